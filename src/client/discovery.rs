//! Endpoints by service records of DNS.

use std::net::SocketAddr;
use std::time::Duration;

use crate::api::{Error, ErrorKind};
use crate::transport::{SrvError, SrvService, lookup_srv, srv_name};

/// Where a client finds its endpoints: in the SRV records `_leasehold-client._udp.DOMAIN`, as etcd's clients find
/// theirs in `_etcd-client._tcp.DOMAIN`.
///
/// They are looked up when the client connects, those of the lowest priority first. From then on the client
/// keeps to the members that the cluster itself names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvDiscovery {
    domain: String,
    name: Option<String>,
    dns: Option<SocketAddr>,
}

impl SrvDiscovery {
    /// By the records of `domain`.
    pub fn new(domain: impl Into<String>) -> Self {
        Self {
            domain: domain.into(),
            name: None,
            dns: None,
        }
    }

    /// Of one cluster of several: `_leasehold-client-NAME._udp.DOMAIN`.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Asks this DNS server. Default: those of `/etc/resolv.conf`.
    #[must_use]
    pub fn with_dns(mut self, server: SocketAddr) -> Self {
        self.dns = Some(server);
        self
    }

    /// The endpoints, if they are found in this time.
    pub(super) async fn endpoints_within(&self, patience: Duration) -> Result<Vec<String>, Error> {
        let found = tokio::time::timeout(patience, self.endpoints()).await;
        found.unwrap_or_else(|_| {
            Err(Error::not_applied(
                ErrorKind::ConnectFailed,
                format!(
                    "no DNS server has named the endpoints of {} in time",
                    self.domain
                ),
            ))
        })
    }

    /// The endpoints, as `host:port`.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::api::Error> {
    /// use leasehold::client::{Client, ConnectOptions, SrvDiscovery, TlsOptions};
    ///
    /// let discovery = SrvDiscovery::new("example.org");
    /// println!("{:?}", discovery.endpoints().await?);
    ///
    /// // A client that is given no endpoints asks by itself.
    /// let options = ConnectOptions::new()
    ///     .with_tls(TlsOptions::new().ca_pem_file("client-ca.pem").identity_pem_files("app.pem", "app.key"))
    ///     .with_discovery(discovery);
    /// let client = Client::connect(Vec::<String>::new(), Some(options)).await?;
    /// # drop(client);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`]: the domain or the name is none; [`ErrorKind::ConnectFailed`]: there
    /// are no records, or no DNS server has answered.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn endpoints(&self) -> Result<Vec<String>, Error> {
        let look = async {
            let service = srv_name(SrvService::Client, self.name.as_deref(), &self.domain)?;
            lookup_srv(&service, self.dns.as_slice()).await
        };
        let records = look.await.map_err(|error| {
            let kind = match error {
                SrvError::Name(_) => ErrorKind::InvalidArgument,
                _ => ErrorKind::ConnectFailed,
            };
            Error::not_applied(kind, error.to_string())
        })?;
        let endpoint =
            |record: crate::transport::SrvRecord| format!("{}:{}", record.target, record.port);
        Ok(records.into_iter().map(endpoint).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Client, ConnectOptions};

    #[tokio::test]
    async fn a_dns_server_that_is_silent_is_not_waited_for_longer_than_for_a_connection() {
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let discovery = SrvDiscovery::new("example.org").with_dns(silent.local_addr().unwrap());
        let options = ConnectOptions::new()
            .with_discovery(discovery)
            .with_connect_timeout(Duration::from_millis(10));
        let none: [&str; 0] = [];
        let error = Client::connect(none, Some(options)).await.map(drop);
        let error = error.unwrap_err();
        assert_eq!(error.kind, ErrorKind::ConnectFailed);
        assert!(error.to_string().contains("example.org in time"), "{error}");
    }
}
