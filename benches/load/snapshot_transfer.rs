//! `snapshot-transfer`: what a leader's clients notice while a member is sent the whole state.
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

use leasehold::api::Consistency;
use leasehold::bench::cluster::OwnCluster;
use leasehold::bench::figures::{micros_text, number_text};
use leasehold::bench::generator::Plan;
use leasehold::bench::heading::{Heading, print_for_programs};
use leasehold::bench::leasehold::Leasehold;
use leasehold::bench::load::{Choice, Keys, Load};
use leasehold::bench::process::{StopSignal, until_stopped};
use leasehold::bench::progress::Progress;
use leasehold::bench::report::{Quantiles, Run};
use leasehold::bench::{Stopwatch, Wall, generator};
use leasehold::cli::arguments::bench::LoadTarget;
use leasehold::cli::arguments::{Format, GlobalArgs};
use leasehold::cli::failure::Failure;
use leasehold::cli::print::{Align, table};
use leasehold::types::LogIndex;

use crate::arguments::TransferArgs;
use crate::run::cluster_plan;

/// The name of the JSON document's shape.
const SCHEMA: &str = "leasehold-snapshot-transfer/1";
/// Keys that the load reads and writes.
const KEYS: u32 = 10_000;
const VALUE_BYTES: u32 = 256;
/// One request in ten writes.
const READS: f64 = 0.9;
/// Requests under way at a time, at most.
const CLIENTS: u32 = 256;
/// For what the filling has set off, and what a restarted member does when it is there again.
const REST: Duration = Duration::from_secs(3);
/// Interval between checks of the progress.
const LOOK: Duration = Duration::from_millis(100);
/// How long a member may take to be started, and to be fed.
const PATIENCE: Duration = Duration::from_secs(600);

/// All that was found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TransferReport {
    /// Of what, and where.
    #[serde(flatten)]
    pub(crate) heading: Heading,
    /// Bytes of values that were written first.
    pub(crate) state_bytes: u64,
    /// Each round.
    pub(crate) rounds: Vec<TransferRound>,
}

/// The load without and with a member being fed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TransferRound {
    /// All members were there.
    pub(crate) without: Run,
    /// One of them was being sent the state.
    pub(crate) with: Run,
    /// From the start of the member's process until it had caught up, in seconds.
    pub(crate) transfer_seconds: f64,
    /// Whether it had caught up before the load was over: then the figures are of a part.
    pub(crate) ended_early: bool,
}

/// Measures it.
///
/// # Errors
/// The cluster does not come to life, or the member is not fed within ten minutes.
pub(crate) fn run(
    arguments: &TransferArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if !global.endpoints.is_empty() {
        return Err(Failure::usage(
            "a member's directory is emptied for this, which is done to no cluster that runs \
             already: leave --endpoints away, and three processes are started for it",
        ));
    }
    let progress = Progress::new(arguments.quiet);
    let count = (u64::from(arguments.mib) << 20) / u64::from(arguments.value_size);
    let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
    let mut report = TransferReport {
        heading: Heading::begin(SCHEMA),
        state_bytes: u64::from(count) * u64::from(arguments.value_size),
        rounds: Vec::new(),
    };
    until_stopped(async {
        let mut cluster = OwnCluster::start(&cluster_plan(&arguments.own)).await?;
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
) -> Result<TransferRound, Failure> {
    cluster.wait_until_whole().await?;
    tokio::time::sleep(REST).await;
    // Another node may be leader after the pause.
    let leader = cluster.wait_until_whole().await?;
    progress.say("without:");
    let without = measure(cluster, plan, progress).await?;

    let fed = (leader + 1) % cluster.pids().len();
    let needed = applied(cluster, leader).await?;
    progress.say("with a member that is sent the whole state:");
    let watch = Wall::start();
    cluster.begin_to_end(fed, StopSignal::Kill)?;
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
    Ok(TransferRound {
        without,
        with,
        transfer_seconds: watch.elapsed().as_secs_f64(),
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
    apart(move || Run::measure(&leader, &plan, progress)).await
}

/// Does what blocks on a thread of its own, so that signals are handled meanwhile.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Failure::refused(error.to_string()))?
}

impl TransferReport {
    /// Prints it.
    ///
    /// # Errors
    /// Those of `out`.
    pub(crate) fn print(&self, out: &mut impl Write, format: Format) -> io::Result<()> {
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
                true => format!("in part ({:.0} s)", round.transfer_seconds),
                false => format!("yes ({:.0} s)", round.transfer_seconds),
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
