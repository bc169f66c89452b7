//! `leasehold bench feed`: what a leader's clients notice while a member is sent the whole state.
//!
//! A follower is killed and its directory emptied; when it is started again, its leader has nothing
//! for it but the state as a whole. The same load is put on the leader without and with that, in
//! turns: reads under its lease, and writes, both due at a rate, so that a leader that is kept from
//! answering shows as late answers and not as fewer questions.

use std::io;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::cluster::OwnCluster;
use super::command::{one, own_cluster, until_told_to_stop};
use super::figures::{micros_text, number_text};
use super::generator::Plan;
use super::heading::{Heading, print_for_programs};
use super::leasehold::Leasehold;
use super::load::{Choice, Keys, Load};
use super::process::Ending;
use super::progress::Progress;
use super::report::{Quantiles, Run};
use super::{Stopwatch, Wall, generator};
use crate::api::Consistency;
use crate::cli::arguments::bench::{FeedArgs, LoadTarget};
use crate::cli::arguments::{Format, GlobalArgs};
use crate::cli::failure::Failure;
use crate::cli::print::{Align, table};
use crate::types::LogIndex;

/// The name of the JSON document's shape.
const SCHEMA: &str = "leasehold-feed/1";
/// Keys that the load reads and writes.
const KEYS: u32 = 10_000;
const VALUE_BYTES: u32 = 256;
/// One request in ten writes.
const READS: f64 = 0.9;
/// Requests under way at a time, at most.
const CLIENTS: u32 = 256;
/// For what the filling has set off, and what a restarted member does when it is there again.
const REST: Duration = Duration::from_secs(3);
/// How often it is looked how far things are.
const LOOK: Duration = Duration::from_millis(100);
/// How long a member may take to be started, and to be fed.
const PATIENCE: Duration = Duration::from_secs(600);

/// All that was found.
#[derive(Clone, Debug, Serialize)]
pub struct FeedReport {
    /// Of what, and where.
    #[serde(flatten)]
    pub heading: Heading,
    /// Bytes of values that were written first.
    pub state_bytes: u64,
    /// Each round.
    pub rounds: Vec<FeedRound>,
}

/// The load without and with a member being fed.
#[derive(Clone, Debug, Serialize)]
pub struct FeedRound {
    /// All members were there.
    pub without: Run,
    /// One of them was being sent the state.
    pub with: Run,
    /// From the start of the member's process until it had caught up, in seconds.
    pub fed_seconds: f64,
    /// Whether it had caught up before the load was over: then the figures are of a part.
    pub ended_early: bool,
}

/// Carries out `leasehold bench feed`.
///
/// # Errors
/// The cluster does not come to life, or the member is not fed within ten minutes.
pub fn run(arguments: &FeedArgs, global: &GlobalArgs, out: &mut impl Write) -> Result<(), Failure> {
    if !global.endpoints.is_empty() {
        return Err(Failure::usage(
            "a member's directory is emptied for this, which is done to no cluster that runs \
             already: leave --endpoints away, and three processes are started for it",
        ));
    }
    let progress = Progress::new(arguments.quiet);
    let count = (u64::from(arguments.mib) << 20) / u64::from(arguments.value_size);
    let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
    let mut report = FeedReport {
        heading: Heading::begin(SCHEMA),
        state_bytes: u64::from(count) * u64::from(arguments.value_size),
        rounds: Vec::new(),
    };
    until_told_to_stop(async {
        let mut cluster = OwnCluster::start(&own_cluster(&arguments.own)?).await?;
        let leader = Leasehold::find(cluster.target(), LoadTarget::Leader).await?;
        let filling = load(Keys::new(count, arguments.value_size));
        progress.say(&format!(
            "writing {count} values of {} bytes",
            number_text(f64::from(arguments.value_size))
        ));
        apart(move || generator::fill(&leader, &filling)).await?;
        let measured = load(Keys::new(KEYS, VALUE_BYTES));
        for number in 0..arguments.rounds {
            let plan = Plan {
                load: measured.clone(),
                clients: CLIENTS,
                connections: 1,
                threads: 1,
                rate: (arguments.rate > 0.0).then_some(arguments.rate),
                warm_up: Duration::from_secs(1),
                duration: arguments.duration,
                seed: u64::from(number),
                server_pids: Vec::new(),
            };
            report
                .rounds
                .push(round(&mut cluster, &plan, progress).await?);
        }
        Ok(())
    })?;
    report.heading.end();
    report.print(out, global.output)?;
    Ok(out.flush()?)
}

fn load(keys: Keys) -> Load {
    Load {
        reads: READS,
        consistency: Consistency::LeaseOnly,
        keys: Arc::new(keys),
        choice: Choice::Uniform,
    }
}

async fn round(
    cluster: &mut OwnCluster,
    plan: &Plan,
    progress: Progress,
) -> Result<FeedRound, Failure> {
    cluster.wait_until_whole().await?;
    tokio::time::sleep(REST).await;
    // Somebody else may lead after the rest.
    let leader = cluster.wait_until_whole().await?;
    progress.say("without:");
    let without = measure(cluster, plan, progress).await?;

    let fed = (leader + 1) % cluster.pids().len();
    let needed = applied(cluster, leader).await?;
    progress.say("with a member that is sent the whole state:");
    let watch = Wall::start();
    cluster.begin_to_end(fed, Ending::Kill)?;
    cluster.start_empty(fed)?;
    // Its own account begins when it serves its port; what it is sent begins soon after.
    while applied(cluster, fed).await.is_err() {
        patience(cluster, &watch)?;
        tokio::time::sleep(LOOK).await;
    }
    let with = measure(cluster, plan, progress).await?;
    let mut ended_early = true;
    while applied(cluster, fed)
        .await
        .is_ok_and(|applied| applied < needed)
    {
        ended_early = false;
        patience(cluster, &watch)?;
        tokio::time::sleep(LOOK).await;
    }
    Ok(FeedRound {
        without,
        with,
        fed_seconds: watch.elapsed().as_secs_f64(),
        ended_early,
    })
}

fn patience(cluster: &mut OwnCluster, watch: &Wall) -> Result<(), Failure> {
    cluster.check()?;
    if watch.elapsed() > PATIENCE {
        return Err(Failure::refused(format!(
            "the member that was emptied has not caught up after {PATIENCE:?}"
        )));
    }
    Ok(())
}

/// How far node `number` has applied the log, by its own account.
async fn applied(cluster: &OwnCluster, number: usize) -> Result<LogIndex, Failure> {
    let endpoint = cluster.addresses(number).client.to_string();
    let asked = cluster.client().status(endpoint);
    let answer = tokio::time::timeout(Duration::from_secs(1), asked)
        .await
        .map_err(|_| Failure::refused("a node does not answer"))??;
    Ok(answer.status.applied_index)
}

async fn measure(cluster: &OwnCluster, plan: &Plan, progress: Progress) -> Result<Run, Failure> {
    let leader = Leasehold::find(cluster.target(), LoadTarget::Leader).await?;
    let plan = plan.clone();
    apart(move || one(&leader, &plan, progress)).await
}

/// Does what blocks on a thread of its own, so that signals are heard meanwhile.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Failure::refused(error.to_string()))?
}

impl FeedReport {
    /// Prints it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut impl Write, format: Format) -> io::Result<()> {
        if print_for_programs(out, self, format)? {
            return Ok(());
        }
        writeln!(
            out,
            "{} MiB of values, on {}",
            number_text(self.state_bytes as f64 / f64::from(1 << 20)),
            self.heading.machine()
        )?;
        let columns = [
            ("ROUND", Align::Right),
            ("A MEMBER IS FED", Align::Left),
            ("OPS/S", Align::Right),
            ("FAILED", Align::Right),
            ("LEASED GET P50", Align::Right),
            ("P99", Align::Right),
            ("MAX", Align::Right),
            ("PUT P50", Align::Right),
            ("P99", Align::Right),
            ("MAX", Align::Right),
        ];
        let rows = self.rounds.iter().zip(1..).flat_map(|(round, number)| {
            let fed = match round.ended_early {
                true => format!("in part ({:.0} s)", round.fed_seconds),
                false => format!("yes ({:.0} s)", round.fed_seconds),
            };
            [(&round.without, "no".to_owned()), (&round.with, fed)].map(|(run, fed)| {
                let mut row = vec![
                    number.to_string(),
                    fed,
                    number_text(run.ops_per_second),
                    (run.failed + run.unsent).to_string(),
                ];
                row.extend(["get", "put"].iter().flat_map(|kind| latencies(run, kind)));
                row
            })
        });
        table(out, &columns, rows)
    }
}

fn latencies(run: &Run, kind: &str) -> [String; 3] {
    let text = |of: fn(&Quantiles) -> f64| {
        let operation = run.operations.get(kind);
        operation.map_or_else(String::new, |operation| {
            micros_text(of(&operation.latency_us))
        })
    };
    [
        text(|taken| taken.p50),
        text(|taken| taken.p99),
        text(|taken| taken.max),
    ]
}
