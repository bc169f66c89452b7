//! Asks every node again and again what its lease depends on, and what its clocks say.
//!
//! On a thread and a connection of its own: a reading of our clock that waited for other work
//! would make every answer look slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use super::clocks::{Sample, Track};
use crate::api::{ClockReading, LeaderLeaseReport};
use crate::bench::leasehold::connect;
use crate::cli::connection::Target;
use crate::cli::failure::Failure;
use crate::client::Client;
use crate::clock::SystemClock;
use crate::time::Clock;

/// Between two questions to one node.
const INTERVAL: Duration = Duration::from_millis(50);

/// What one node said.
#[derive(Clone, Debug)]
pub struct NodeTrack {
    /// Where it was asked.
    pub endpoint: String,
    /// Its clocks.
    pub track: Track,
    /// Its first report.
    pub first: LeaderLeaseReport,
    /// Its last.
    pub last: LeaderLeaseReport,
    /// Questions that it did not answer.
    pub unanswered: u64,
}

/// The thread, until its result is collected.
#[derive(Debug)]
pub struct Sampler {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Vec<NodeTrack>, Failure>>>,
}

impl Sampler {
    /// Begins with the nodes that `target` names.
    ///
    /// # Errors
    /// The system gives us no thread.
    pub fn start(target: &Target) -> Result<Self, Failure> {
        let over = Arc::new(AtomicBool::new(false));
        let (told, target) = (over.clone(), target.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || runtime.block_on(sample(&target, &told)))?;
        Ok(Self {
            over,
            thread: Some(thread),
        })
    }

    /// Ends, and says what each node said.
    ///
    /// # Errors
    /// A node could not be asked at all.
    pub fn stop(mut self) -> Result<Vec<NodeTrack>, Failure> {
        let ended = self.end();
        ended.unwrap_or_else(|| Err(Failure::refused("the sampler stopped early")))
    }

    fn end(&mut self) -> Option<Result<Vec<NodeTrack>, Failure>> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.end();
    }
}

async fn sample(target: &Target, over: &AtomicBool) -> Result<Vec<NodeTrack>, Failure> {
    let client = connect(target).await?;
    let mut nodes = Vec::new();
    for endpoint in &target.endpoints {
        let (sample, first) = ask(&client, endpoint).await?;
        let mut track = Track::default();
        track.push(sample);
        nodes.push(NodeTrack {
            endpoint: endpoint.clone(),
            track,
            last: first.clone(),
            first,
            unanswered: 0,
        });
    }
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(INTERVAL).await;
        for node in &mut nodes {
            match ask(&client, &node.endpoint).await {
                Ok((sample, report)) => {
                    node.track.push(sample);
                    node.last = report;
                }
                Err(_) => node.unanswered += 1,
            }
        }
    }
    client.close().await;
    Ok(nodes)
}

async fn ask(client: &Client, endpoint: &str) -> Result<(Sample, LeaderLeaseReport), Failure> {
    let sent = reading();
    let report = client.leader_lease_report(endpoint).await?;
    let sample = Sample {
        sent,
        received: reading(),
        node: report.clock,
    };
    Ok((sample, report))
}

fn reading() -> ClockReading {
    let now = SystemClock.now();
    ClockReading {
        boot: now.boot,
        raw: now.raw,
    }
}
