//! leasehold as the subject: a cluster of our own, or one that was there before.

use std::time::Duration;

use bytes::Bytes;

use super::{Prober, Subject};
use crate::arguments::GapCase;
use leasehold::api::{Consistency, ErrorKind, Outcome, PutRequest, RangeRequest, Request};
use leasehold::bench::cluster::OwnCluster;
use leasehold::bench::leasehold::{connect, tls, with_all_members};
use leasehold::bench::process::StopSignal;
use leasehold::bench::{Stopwatch, Wall};
use leasehold::cli::connection::Target;
use leasehold::cli::failure::Failure;
use leasehold::client::{Client, ConnectOptions, RetryPolicy};

const KEY: Bytes = Bytes::from_static(b"bench/gap");
/// How long a probe of one member waits.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a change of leader may take that was asked for.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

/// Asks single members, and beside that as any program does.
#[derive(Debug)]
pub(crate) struct LeaseholdProber {
    /// Asks one member, once.
    single: Client,
    /// Asks the cluster.
    client: Client,
    endpoints: Vec<String>,
}

impl LeaseholdProber {
    async fn new(target: &Target) -> Result<Self, Failure> {
        let options = ConnectOptions::new()
            .with_tls(tls(target))
            .with_timeout(PROBE_TIMEOUT)
            .with_retry(RetryPolicy::never())
            .with_exactly_once(false)
            .with_client_name("leasehold-bench");
        Ok(Self {
            single: Client::connect(target.endpoints.iter().cloned(), Some(options)).await?,
            client: connect(target).await?,
            endpoints: target.endpoints.clone(),
        })
    }

    async fn asks(&self, member: usize, request: Request) -> bool {
        let endpoint = self.endpoints[member].as_str();
        let called = self
            .single
            .call_at(endpoint, request, Consistency::Linearizable);
        called.await.is_ok()
    }
}

impl Prober for LeaseholdProber {
    fn members(&self) -> usize {
        self.endpoints.len()
    }

    async fn reads(&self, member: usize) -> bool {
        let request = Request::Range(RangeRequest {
            key: KEY,
            ..RangeRequest::default()
        });
        self.asks(member, request).await
    }

    async fn writes(&self, member: usize) -> bool {
        let request = Request::Put(PutRequest {
            key: KEY,
            value: KEY,
            prev_kv: false,
            ..PutRequest::default()
        });
        self.asks(member, request).await
    }

    async fn client_reads(&self) -> Option<bool> {
        Some(self.client.get(KEY, None).await.is_ok())
    }

    async fn client_writes(&self) -> Option<bool> {
        Some(self.client.put(KEY, KEY, None).await.is_ok())
    }
}

/// Has the node that leads hand over. It is asked again if nothing came of it: a node that is to take
/// over may be too busy to do so in time. `leads` tells who leads now.
async fn hand_over(
    client: &Client,
    former: usize,
    leads: impl AsyncFn() -> Option<usize>,
) -> Result<(), Failure> {
    let watch = Wall::start();
    loop {
        let Err(error) = client.move_leader(None).await else {
            return Ok(());
        };
        // It may have moved all the same, and is not to be moved again.
        let leader = loop {
            let leader = leads().await;
            if leader.is_some() || watch.elapsed() > PATIENCE {
                break leader;
            }
            tokio::time::sleep(POLL).await;
        };
        if leader.is_some_and(|leader| leader != former) {
            return Ok(());
        }
        let may_help = error.is_retryable()
            || error.kind == ErrorKind::DeadlineExceeded
            || error.outcome == Outcome::Unknown;
        if !may_help || watch.elapsed() > PATIENCE {
            return Err(error.into());
        }
        tokio::time::sleep(POLL).await;
    }
}

impl Subject for OwnCluster {
    type Prober = LeaseholdProber;

    fn name(&self) -> &'static str {
        "leasehold"
    }

    async fn prober(&mut self) -> Result<LeaseholdProber, Failure> {
        LeaseholdProber::new(self.target()).await
    }

    async fn wait_until_whole(&mut self) -> Result<usize, Failure> {
        Self::wait_until_whole(self).await
    }

    async fn wait_for_other_leader(&mut self, former: usize) -> Result<(), Failure> {
        self.wait_for_leader(Some(former)).await?;
        Ok(())
    }

    async fn disturb(&mut self, leader: usize, case: GapCase) -> Result<(), Failure> {
        match case {
            GapCase::MoveLeader => {
                hand_over(self.client(), leader, async || self.leader().await).await
            }
            GapCase::Stop => self.begin_to_end(leader, StopSignal::Stop),
            GapCase::Kill => self.begin_to_end(leader, StopSignal::Kill),
        }
    }

    fn repair(&mut self, former: usize, case: GapCase) -> Result<(), Failure> {
        match case {
            GapCase::MoveLeader => Ok(()),
            GapCase::Stop | GapCase::Kill => self.restart(former),
        }
    }
}

/// A cluster that was there before, and stays.
#[derive(Debug)]
pub(crate) struct ExistingCluster {
    target: Target,
    client: Client,
}

impl ExistingCluster {
    /// The one that `target` names, with all its members.
    ///
    /// # Errors
    /// No node can be reached.
    pub(crate) async fn find(target: &Target) -> Result<Self, Failure> {
        let client = connect(target).await?;
        let target = with_all_members(target).await?;
        Ok(Self { target, client })
    }

    async fn leader(&self) -> Option<usize> {
        for (number, endpoint) in self.target.endpoints.iter().enumerate() {
            let answer = self.client.status(endpoint).await;
            if answer.is_ok_and(|answer| answer.status.leader_lease.is_valid) {
                return Some(number);
            }
        }
        None
    }

    async fn wait_for_leader(&self, not: Option<usize>) -> Result<usize, Failure> {
        let watch = Wall::start();
        loop {
            if let Some(leader) = self.leader().await.filter(|leader| Some(*leader) != not) {
                return Ok(leader);
            }
            if watch.elapsed() > PATIENCE {
                return Err(Failure::refused(format!(
                    "no node of {} leads under a lease after {PATIENCE:?}",
                    self.target.endpoints.join(",")
                )));
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Subject for ExistingCluster {
    type Prober = LeaseholdProber;

    fn name(&self) -> &'static str {
        "leasehold"
    }

    async fn prober(&mut self) -> Result<LeaseholdProber, Failure> {
        LeaseholdProber::new(&self.target).await
    }

    async fn wait_until_whole(&mut self) -> Result<usize, Failure> {
        self.wait_for_leader(None).await
    }

    async fn wait_for_other_leader(&mut self, former: usize) -> Result<(), Failure> {
        self.wait_for_leader(Some(former)).await?;
        Ok(())
    }

    async fn disturb(&mut self, leader: usize, case: GapCase) -> Result<(), Failure> {
        match case {
            GapCase::MoveLeader => {
                hand_over(&self.client, leader, async || self.leader().await).await
            }
            GapCase::Stop | GapCase::Kill => Err(Failure::usage(
                "a cluster that runs already is not ended: leave --endpoints away, and three \
                 processes are started for it",
            )),
        }
    }

    fn repair(&mut self, _: usize, _: GapCase) -> Result<(), Failure> {
        Ok(())
    }
}
