//! Whether the leader may answer alone, asked all the time.
//!
//! A read that is served under the leader's lease or not at all: every one that is refused is a moment
//! at which the lease was void, and a leader whose heartbeats were late would show as such. On a thread
//! and a connection of its own, so that a bench that is busy makes no answer look slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;

use crate::api::{Consistency, ErrorKind, RangeRequest, Request};
use crate::bench::leasehold::tls;
use crate::bench::{Stopwatch, Wall};
use crate::cli::connection::Target;
use crate::cli::failure::Failure;
use crate::client::{Client, ConnectOptions, RetryPolicy};

/// Between an answer and the next question.
const PAUSE: Duration = Duration::from_millis(2);
const TIMEOUT: Duration = Duration::from_secs(5);

/// What the leader answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ProbeReport {
    /// Reads that it was asked for.
    pub asked: u64,
    /// Those that it refused because its lease was void, or because it did not lead.
    pub refused: u64,
    /// Those that got no answer.
    pub unanswered: u64,
    /// The longest time without an answer under the lease, in milliseconds.
    pub longest_gap_ms: f64,
}

/// The thread, until its result is collected.
#[derive(Debug)]
pub struct Probe {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<ProbeReport, Failure>>>,
}

impl Probe {
    /// Asks `endpoint`, which leads.
    ///
    /// # Errors
    /// The system gives us no thread.
    pub fn start(target: &Target, endpoint: String) -> Result<Self, Failure> {
        let over = Arc::new(AtomicBool::new(false));
        let (told, target) = (over.clone(), target.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = thread::Builder::new()
            .name("probe".to_owned())
            .spawn(move || runtime.block_on(ask(&target, endpoint, &told)))?;
        Ok(Self {
            over,
            thread: Some(thread),
        })
    }

    /// Stops, and returns what it observed.
    ///
    /// # Errors
    /// No node could be reached at all.
    pub fn stop(mut self) -> Result<ProbeReport, Failure> {
        let ended = self.end();
        ended.unwrap_or_else(|| Err(Failure::refused("the probe stopped early")))
    }

    fn end(&mut self) -> Option<Result<ProbeReport, Failure>> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.end();
    }
}

async fn ask(target: &Target, endpoint: String, over: &AtomicBool) -> Result<ProbeReport, Failure> {
    let options = ConnectOptions::new()
        .with_tls(tls(target))
        .with_timeout(TIMEOUT)
        .with_retry(RetryPolicy::never())
        .with_client_name("leasehold-bench");
    let client = Client::connect([endpoint.clone()], Some(options)).await?;
    let watch = Wall::start();
    let mut report = ProbeReport::default();
    let mut last = watch.elapsed();
    let mut longest = Duration::ZERO;
    while !over.load(Ordering::Relaxed) {
        let request = Request::Range(RangeRequest {
            key: "bench-expiry".into(),
            ..RangeRequest::default()
        });
        let answer = client.call_at(&endpoint, request, Consistency::LeaseOnly);
        report.asked += 1;
        match answer.await.map_err(|error| error.kind) {
            Ok(_) => {
                let now = watch.elapsed();
                longest = longest.max(now - last);
                last = now;
            }
            Err(ErrorKind::LeaseInvalid | ErrorKind::NotLeader { .. }) => report.refused += 1,
            Err(_) => report.unanswered += 1,
        }
        tokio::time::sleep(PAUSE).await;
    }
    longest = longest.max(watch.elapsed() - last);
    report.longest_gap_ms = longest.as_secs_f64() * 1e3;
    client.close().await;
    Ok(report)
}
