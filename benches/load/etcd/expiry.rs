//! The cluster of etcd whose leases expire: what `lease-expiry --peer etcd` looks at.

use std::time::Duration;

use super::cluster::EtcdCluster;
use super::store::{EtcdConnection, EtcdConnector};
use leasehold::bench::expiry::leadership::{Leadership, LeaseCluster};
use leasehold::bench::expiry::probe::Probe;
use leasehold::cli::arguments::bench::LoadTarget;
use leasehold::cli::failure::Failure;

/// A request may have to wait for everything that is asked for at the same time.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The leases of three processes of etcd.
#[derive(Debug)]
pub(crate) struct EtcdLeases {
    cluster: EtcdCluster,
}

impl EtcdLeases {
    /// Of a cluster that was started for the purpose.
    pub(crate) fn new(cluster: EtcdCluster) -> Self {
        Self { cluster }
    }
}

impl LeaseCluster for EtcdLeases {
    type Store = EtcdConnector;

    async fn store(&self) -> Result<EtcdConnector, Failure> {
        EtcdConnector::find(&self.cluster.endpoints(), LoadTarget::Leader, TIMEOUT).await
    }

    async fn leadership(&self) -> Result<Leadership, Failure> {
        for endpoint in self.cluster.endpoints() {
            let asked = EtcdConnection::new(&endpoint, TIMEOUT)?;
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
