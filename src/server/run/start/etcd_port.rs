//! The port for etcd's clients, where the configuration wants one.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::error::StartError;
use crate::server::config::Config;
use crate::server::disk::tls::CertificateError;
use crate::server::etcd::{
    BrowserOptions, EtcdCertificates, EtcdListener, EtcdOptions, Scrape, SnapshotRoom,
};
use crate::server::session::Sessions;

/// Binds the port, if there is to be one.
pub(super) async fn bind(config: &Config) -> Result<Option<EtcdListener>, StartError> {
    let Some(etcd) = &config.tls.etcd else {
        return Ok(None);
    };
    let certificates = match &etcd.tls {
        None => None,
        Some(tls) => {
            let interval = config.tls.reload_interval;
            let prefix = config
                .auth
                .oidc
                .as_ref()
                .map(|issuer| issuer.user_prefix.as_str());
            let loaded = EtcdCertificates::load(&tls.files, tls.client_cert_auth, prefix, interval);
            Some(loaded.map_err(|error| CertificateError::Tls {
                section: "etcd",
                error,
            })?)
        }
    };
    let options = EtcdOptions {
        emulated_version: etcd.emulated_version.clone(),
        reply_bytes_max: etcd.max_reply_bytes,
        streams_max: etcd.max_concurrent_streams,
        has_gateway: etcd.http_gateway,
        browsers: BrowserOptions {
            has_console: etcd.console,
            is_secure: etcd.tls.is_some(),
            hosts: known_hosts(config),
        },
        snapshot_room: SnapshotRoom::of(config),
    };
    let (address, admission) = (etcd.address, config.connections);
    let listener = EtcdListener::bind(address, certificates, options, admission).await;
    let listener = listener.map_err(|error| StartError::Etcd { address, error })?;
    if etcd.tls.is_none() {
        tracing::warn!(
            address = %listener.address(),
            "the etcd port is served without TLS: anyone who reaches it can read along, and may do \
             everything while access is not controlled"
        );
    }
    Ok(Some(listener))
}

/// The names of hosts in the addresses that this node advertises.
fn known_hosts(config: &Config) -> Vec<String> {
    let advertised = &config.advertise;
    let addresses = [&advertised.client, &advertised.peer, &advertised.etcd];
    let hosts = addresses
        .into_iter()
        .flatten()
        .filter_map(|address| address.rsplit_once(':'))
        .map(|(host, _)| host.to_owned());
    hosts.collect()
}

/// Where etcd's clients reach this node, as a URL; empty without a port for them.
pub(super) fn url(config: &Config, port: Option<&EtcdListener>) -> String {
    let (Some(port), Some(etcd)) = (port, &config.tls.etcd) else {
        return String::new();
    };
    let advertised = config.advertise.etcd.clone();
    let address = advertised.unwrap_or_else(|| port.address().to_string());
    match etcd.tls {
        None => format!("http://{address}"),
        Some(_) => format!("https://{address}"),
    }
}

/// The task that serves the port. Dropped, it ends with its connections.
pub(super) struct EtcdService {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl EtcdService {
    /// Serves the port from now on.
    pub(super) fn start(port: EtcdListener, sessions: &Arc<Sessions>, scrape: Scrape) -> Self {
        let (stop, stopping) = watch::channel(false);
        if port.takes_unnamed_clients() && sessions.serving.access.rules().is_none() {
            tracing::warn!(
                address = %port.address(),
                "the etcd port needs no certificate of its clients: anyone who reaches it may do \
                 everything while access is not controlled (tls.etcd.client_cert_auth = true, or \
                 `leasehold auth enable`)"
            );
        }
        Self {
            address: port.address(),
            task: tokio::spawn(port.serve(sessions.clone(), scrape, stopping)),
            stop,
        }
    }

    /// Where the port is.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, lets calls finish, and waits until the last connection has ended.
    pub(super) async fn finish(&mut self) {
        self.stop.send_replace(true);
        // A panic over there has been reported by the hook.
        let _ = (&mut self.task).await;
    }
}

impl Drop for EtcdService {
    fn drop(&mut self) {
        self.task.abort();
    }
}
