//! How long a new leader takes from its election until it serves, with all the leases there are.
//!
//! The members that did not lead are asked all the time whether they do; from the first yes on, the
//! one that does is asked to read under its lease. So the result is right to a few milliseconds, and
//! holds the time of two answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::task::JoinSet;

use leasehold::api::{Consistency, RangeRequest, Request};
use leasehold::bench::leasehold::tls;
use leasehold::bench::{Stopwatch, Wall};
use leasehold::cli::connection::Target;
use leasehold::cli::failure::Failure;
use leasehold::client::{Client, ConnectOptions, RetryPolicy};

/// Between an answer and the next question.
const PAUSE: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(1);

/// A thread that looks out for a new leader.
#[derive(Debug)]
pub(crate) struct Succession {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Option<Duration>, Failure>>>,
}

impl Succession {
    /// Asks all members of `target` but the one at `former`.
    ///
    /// # Errors
    /// The system gives us no thread.
    pub(crate) fn start(target: &Target, former: &str) -> Result<Self, Failure> {
        let over = Arc::new(AtomicBool::new(false));
        let (told, target) = (over.clone(), target.clone());
        let others = target.endpoints.iter().filter(|other| *other != former);
        let others: Vec<String> = others.cloned().collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = thread::Builder::new()
            .name("succession".to_owned())
            .spawn(move || runtime.block_on(look_out(&target, others, &told)))?;
        Ok(Self {
            over,
            thread: Some(thread),
        })
    }

    /// Ends, and says how long the new leader took; `None` if none was seen to begin.
    ///
    /// # Errors
    /// No node could be reached at all.
    pub(crate) fn stop(mut self) -> Result<Option<Duration>, Failure> {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().and_then(|thread| thread.join().ok());
        ended.unwrap_or_else(|| {
            Err(Failure::refused(
                "who looked out for a leader ended too early",
            ))
        })
    }
}

impl Drop for Succession {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

async fn look_out(
    target: &Target,
    others: Vec<String>,
    over: &Arc<AtomicBool>,
) -> Result<Option<Duration>, Failure> {
    let mut looks = JoinSet::new();
    for endpoint in others {
        let options = ConnectOptions::new()
            .with_tls(tls(target))
            .with_timeout(TIMEOUT)
            .with_retry(RetryPolicy::never())
            .with_client_name("leasehold-bench");
        let client = Client::connect([endpoint.clone()], Some(options)).await?;
        looks.spawn(look_at(client, endpoint, over.clone()));
    }
    let mut found = None;
    while let Some(took) = looks.join_next().await {
        let took = took.ok().flatten();
        found = found.or(took);
    }
    Ok(found)
}

/// How long the member at `endpoint` took from when it led until it served.
async fn look_at(client: Client, endpoint: String, over: Arc<AtomicBool>) -> Option<Duration> {
    let watch = Wall::start();
    let mut led_at = None;
    while !over.load(Ordering::Relaxed) {
        match led_at {
            None => {
                if let Ok(answer) = client.status(&endpoint).await {
                    let leads = answer.header.leader_id == Some(answer.header.member_id);
                    led_at = leads.then(|| watch.elapsed());
                }
            }
            Some(led_at) => {
                let request = Request::Range(RangeRequest {
                    key: "bench-expiry".into(),
                    ..RangeRequest::default()
                });
                let read = client.call_at(&endpoint, request, Consistency::LeaseOnly);
                if read.await.is_ok() {
                    return Some(watch.elapsed() - led_at);
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    None
}
