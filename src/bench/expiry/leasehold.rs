//! leasehold's leases, through the SDK.

use std::time::Duration;

use super::leadership::{Leadership, LeaseCluster, Renewals};
use super::probe::Probe;
use crate::bench::cluster::OwnCluster;
use crate::bench::leasehold::{Leasehold, connect};
use crate::bench::{Stopwatch, Wall};
use crate::cli::connection::Target;
use crate::cli::failure::Failure;
use crate::client::Client;

/// A request may have to wait for everything that is asked for at the same time.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a cluster may take until one of its nodes leads, and how often that is looked for.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// A cluster of leasehold: one of our own, or one that was there before.
#[derive(Debug)]
pub struct LeaseholdLeases {
    target: Target,
    own: Option<OwnCluster>,
    pids: Vec<u32>,
}

impl LeaseholdLeases {
    /// A cluster that was started for the purpose.
    pub fn own(cluster: OwnCluster) -> Self {
        Self {
            target: cluster.target().clone(),
            pids: cluster.pids(),
            own: Some(cluster),
        }
    }

    /// One that runs already, with these processes if they run here.
    pub fn existing(target: &Target, pids: &[u32]) -> Self {
        Self {
            target: target.clone(),
            own: None,
            pids: pids.to_vec(),
        }
    }

    /// What the node that leads says of itself, if one does.
    async fn leads(&self, client: &Client) -> Option<Leadership> {
        for endpoint in &self.target.endpoints {
            let Ok(answer) = client.status(endpoint).await else {
                continue;
            };
            if answer.header.leader_id != Some(answer.header.member_id) {
                continue;
            }
            let Ok(report) = client.leader_lease_report(endpoint).await else {
                continue;
            };
            let heartbeat = report.timing.heartbeat_interval;
            return Some(Leadership {
                endpoint: endpoint.clone(),
                term: answer.header.raft_term.0,
                lapses: Some(report.lease.expirations),
                renewals: Some(Renewals::of(report.renew_interval, heartbeat)),
            });
        }
        None
    }
}

impl LeaseCluster for LeaseholdLeases {
    type Store = Leasehold;

    async fn store(&self) -> Result<Leasehold, Failure> {
        Ok(Leasehold::at(&self.target).with_timeout(TIMEOUT))
    }

    async fn leadership(&self) -> Result<Leadership, Failure> {
        let client = connect(&self.target).await?;
        let watch = Wall::start();
        // There is no leader during an election, which may be at any moment.
        let found = loop {
            if let Some(found) = self.leads(&client).await {
                break found;
            }
            if watch.elapsed() > PATIENCE {
                return Err(Failure::refused(format!(
                    "there is no leader after {PATIENCE:?}"
                )));
            }
            tokio::time::sleep(POLL).await;
        };
        client.close().await;
        Ok(found)
    }

    fn probe(&self, leadership: &Leadership) -> Result<Option<Probe>, Failure> {
        Probe::start(&self.target, leadership.endpoint.clone()).map(Some)
    }

    fn pids(&self) -> Vec<u32> {
        match &self.own {
            Some(own) => own.pids(),
            None => self.pids.clone(),
        }
    }
}
