//! leasehold's leases, through the SDK.

use std::time::Duration;

use bytes::Bytes;

use super::probe::Probe;
use super::store::{Endings, Leadership, LeaseHolder, LeaseStore, Renewals};
use crate::api::{
    Consistency, Error, ErrorKind, LeaseGrantRequest, LeaseKept, LeaseRef, PutRequest, Request,
    ResponseBody,
};
use crate::bench::cluster::OwnCluster;
use crate::bench::leasehold::tls;
use crate::bench::store::Trouble;
use crate::bench::{Stopwatch, Wall};
use crate::cli::connection::Target;
use crate::cli::failure::Failure;
use crate::client::{Client, ConnectOptions, WatchEvent, WatchOptions, Watcher};

/// A request may have to wait for everything that is asked for at the same time.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a cluster may take until one of its nodes leads, and how often that is looked for.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// How often an undecided renewal is asked again, and after which pause.
const UNDECIDED_TRIES: u32 = 40;
const UNDECIDED_WAIT: Duration = Duration::from_millis(25);
/// What the watch may hold back while this process is busy with other things.
const WATCH_BYTES: usize = 64 << 20;

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

    async fn connect(&self) -> Result<Client, Failure> {
        let options = ConnectOptions::new()
            .with_tls(tls(&self.target))
            .with_timeout(TIMEOUT)
            .with_connect_timeout(self.target.timeout)
            .with_client_name("leasehold-bench");
        let endpoints = self.target.endpoints.iter().cloned();
        Ok(Client::connect(endpoints, Some(options)).await?)
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

impl LeaseStore for LeaseholdLeases {
    type Holder = Client;
    type Endings = Watched;

    fn name(&self) -> &'static str {
        "leasehold"
    }

    async fn holder(&self) -> Result<Client, Failure> {
        self.connect().await
    }

    async fn endings(&self, prefix: &str) -> Result<Watched, Failure> {
        let client = self.connect().await?;
        let options = WatchOptions::new()
            .with_prefix()
            .with_no_put()
            .with_buffer(WATCH_BYTES);
        let watcher = client.watch(prefix, Some(options)).await?;
        Ok(Watched { watcher })
    }

    async fn leadership(&self) -> Result<Leadership, Failure> {
        let client = self.connect().await?;
        let watch = Wall::start();
        // Nobody leads while another leader is elected, which may be at any moment.
        let found = loop {
            if let Some(found) = self.leads(&client).await {
                break found;
            }
            if watch.elapsed() > PATIENCE {
                return Err(Failure::refused(format!(
                    "no node leads after {PATIENCE:?}"
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

impl LeaseHolder for Client {
    async fn grant(&self, key: Bytes, ttl: Duration) -> Result<i64, Trouble> {
        let grant = LeaseGrantRequest {
            ttl_ms: i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX),
            ..LeaseGrantRequest::default()
        };
        let put = PutRequest {
            key,
            ..PutRequest::default()
        };
        let request = Request::PutWithNewLease(grant, put);
        match self.call(request, Consistency::Linearizable).await?.body {
            ResponseBody::PutWithNewLease(both) => Ok(both.grant.id),
            _ => Err(strange()),
        }
    }

    async fn renew(&self, leases: &[i64]) -> Result<Vec<bool>, Trouble> {
        let all: Vec<LeaseRef> = leases.iter().map(|id| LeaseRef::id(*id)).collect();
        for _ in 0..UNDECIDED_TRIES {
            let request = Request::LeaseKeepAlive(all.clone());
            let response = self.call(request, Consistency::Linearizable).await?;
            let ResponseBody::LeaseKeepAlive(kept) = response.body else {
                return Err(strange());
            };
            if !kept.contains(&LeaseKept::Undecided) {
                let renewed = |kept: &LeaseKept| matches!(kept, LeaseKept::Renewed { .. });
                return Ok(kept.iter().map(renewed).collect());
            }
            tokio::time::sleep(UNDECIDED_WAIT).await;
        }
        let detail = "whether some leases are over was not decided in time";
        Err(Error::not_applied(ErrorKind::DeadlineExceeded, detail).into())
    }

    async fn close(&self) {
        Self::close(self).await;
    }
}

fn strange() -> Trouble {
    Error::not_applied(ErrorKind::Internal, "not an answer to what was asked").into()
}

/// A watch of leasehold.
#[derive(Debug)]
pub struct Watched {
    watcher: Watcher,
}

impl Endings for Watched {
    async fn next(&mut self) -> Result<Vec<Bytes>, Failure> {
        loop {
            match self.watcher.next().await {
                Some(Ok(WatchEvent::Events { events, .. })) => {
                    return Ok(events.into_iter().map(|event| event.kv.key).collect());
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => return Err(Failure::refused("the watch ended")),
            }
        }
    }
}
