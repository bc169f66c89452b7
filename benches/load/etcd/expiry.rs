//! etcd's leases while they end: what `lease-expiry --peer etcd` looks at.
//!
//! A lease and the key that hangs on it are two requests here, for etcd has no request that does
//! both. Holders ask the leader, as they find it; renewals go over one stream of each, and one watch
//! that leaves out puts sees the keys go.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::cluster::EtcdCluster;
use super::leases::Renewer;
use super::messages::{WatchCreateRequest, WatchRequest, WatchResponse};
use super::rpc::{Incoming, Outgoing, Rpc};
use super::store::{EtcdConnection, EtcdConnector};
use super::watches::{PUT, cancelled};
use leasehold::bench::expiry::probe::Probe;
use leasehold::bench::expiry::store::{Endings, Leadership, LeaseHolder, LeaseStore};
use leasehold::bench::store::{Store, Trouble};
use leasehold::cli::arguments::bench::LoadTarget;
use leasehold::cli::failure::Failure;

/// A request may have to wait for everything that is asked for at the same time.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The leases of three processes of etcd.
#[derive(Debug)]
pub(crate) struct EtcdLeases {
    cluster: EtcdCluster,
}

/// Holds leases of etcd.
#[derive(Debug)]
pub(crate) struct EtcdKeeper {
    renewer: Renewer,
}

/// A watch of etcd.
#[derive(Debug)]
pub(crate) struct EtcdEndings {
    incoming: Incoming,
    /// Kept, because the server ends a stream that we have ended.
    _outgoing: Outgoing,
    _connection: EtcdConnection,
}

fn failure(trouble: Trouble) -> Failure {
    Failure::refused(trouble.detail)
}

impl EtcdLeases {
    /// Of a cluster that was started for the purpose.
    pub(crate) fn new(cluster: EtcdCluster) -> Self {
        Self { cluster }
    }

    async fn dial(&self) -> Result<EtcdConnection, Failure> {
        let endpoints = self.cluster.endpoints();
        let connector = EtcdConnector::find(&endpoints, LoadTarget::Leader, TIMEOUT).await?;
        connector.dial(0).await
    }
}

impl LeaseStore for EtcdLeases {
    type Holder = EtcdKeeper;
    type Endings = EtcdEndings;

    fn name(&self) -> &'static str {
        "etcd"
    }

    async fn holder(&self) -> Result<EtcdKeeper, Failure> {
        let connection = Arc::new(self.dial().await?);
        Ok(EtcdKeeper {
            renewer: Renewer::new(connection),
        })
    }

    async fn endings(&self, prefix: &str) -> Result<EtcdEndings, Failure> {
        let connection = self.dial().await?;
        let opened = connection.channel.open(Rpc::Watch).await;
        let (mut outgoing, mut incoming) = opened.map_err(failure)?;
        let create = WatchCreateRequest {
            key: Bytes::copy_from_slice(prefix.as_bytes()),
            range_end: after(prefix),
            start_revision: 0,
            filters: vec![PUT],
            watch_id: 0,
        };
        let request = WatchRequest {
            create: Some(create),
        };
        outgoing.say(&request).map_err(failure)?;
        let first = timeout(TIMEOUT, incoming.hear::<WatchResponse>()).await;
        match first.unwrap_or(Ok(None)).map_err(failure)? {
            Some(response) if response.created => Ok(EtcdEndings {
                incoming,
                _outgoing: outgoing,
                _connection: connection,
            }),
            _ => Err(Failure::refused("etcd did not open a watch")),
        }
    }

    async fn leadership(&self) -> Result<Leadership, Failure> {
        for endpoint in self.cluster.endpoints() {
            let asked = EtcdConnection::new(&endpoint, TIMEOUT).map_err(failure)?;
            let Ok(status) = asked.status().await else {
                continue;
            };
            if status.leader == status.member {
                return Ok(Leadership {
                    endpoint,
                    term: status.term,
                    ..Leadership::default()
                });
            }
        }
        Err(Failure::refused("no member of etcd leads"))
    }

    fn probe(&self, _: &Leadership) -> Result<Option<Probe>, Failure> {
        // Its leader has no lease that it could be asked about.
        Ok(None)
    }

    fn pids(&self) -> Vec<u32> {
        self.cluster.pids()
    }
}

impl LeaseHolder for EtcdKeeper {
    async fn grant(&self, key: Bytes, ttl: Duration) -> Result<i64, Trouble> {
        let connection = &self.renewer.connection;
        let id = connection.grant(ttl.as_secs()).await?;
        connection.put_once(key, Bytes::new(), id).await?;
        Ok(id)
    }

    async fn renew(&self, leases: &[i64]) -> Result<Vec<bool>, Trouble> {
        Ok(self.renewer.renew(leases).await?.kept)
    }

    async fn close(&self) {
        self.renewer.connection.close().await;
    }
}

impl Endings for EtcdEndings {
    async fn next(&mut self) -> Result<Vec<Bytes>, Failure> {
        let heard = self.incoming.hear::<WatchResponse>().await;
        let response = heard.map_err(failure)?;
        let response = response.ok_or_else(|| Failure::refused("etcd ended the watch"))?;
        match cancelled(&response) {
            Some(failure) => Err(failure),
            None => Ok(gone(response)),
        }
    }
}

/// The keys that were deleted.
fn gone(response: WatchResponse) -> Vec<Bytes> {
    let deleted = response
        .events
        .into_iter()
        .filter(|event| event.kind != PUT);
    deleted.filter_map(|event| Some(event.kv?.key)).collect()
}

/// The first key after all that begin with `prefix`, which ends with a character of ASCII.
fn after(prefix: &str) -> Bytes {
    let mut bytes = prefix.as_bytes().to_vec();
    if let Some(last) = bytes.last_mut() {
        *last += 1;
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::messages::{Event, KeyValue};

    #[test]
    fn keys_that_were_deleted_have_gone_and_those_that_were_put_have_not() {
        let event = |kind, key: &'static str| Event {
            kind,
            kv: Some(KeyValue {
                key: key.into(),
                ..KeyValue::default()
            }),
        };
        let response = WatchResponse {
            events: vec![event(1, "a"), event(PUT, "b"), event(1, "c")],
            ..WatchResponse::default()
        };
        assert_eq!(gone(response), ["a", "c"]);
        assert_eq!(after("bench/7/"), "bench/70");
    }
}
