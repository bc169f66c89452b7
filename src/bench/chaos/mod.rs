//! A cluster of its own that is broken for as long as asked, while what its clients see is judged: `leasehold
//! chaos`.
//!
//! One node at a time is killed, paused, restarted or cut off, by turn and for different times, half the time the
//! one that leads; then the cluster has to become whole again. The turns follow from a seed, but not what the
//! cluster does meanwhile. The clients are those of `verify lease`, and so is the judgement; histories are judged
//! in parts, so that a run of a day needs no more memory than one of a minute. No part may see a revision from
//! before its beginning, and what a part has written is read once more after the first fault of the next.
//!
//! It looks for what an operator can look for, on the operator's machine. What several faults at once, wrong
//! clocks, full and damaged disks do is tried by the tests of this repository.

mod report;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use tokio::task::LocalSet;

use self::report::Report;
use super::cluster::{ClusterPlan, OwnCluster, free_addresses};
use super::figures::duration_text;
use super::process::StopSignal;
use super::progress::Progress;
use super::verify::proxy::Wires;
use super::verify::workload::{Aftermath, Workload};
use super::{Stopwatch, Wall};
use crate::cli::arguments::bench::{ChaosArgs, ChaosFault};
use crate::cli::arguments::{Format, GlobalArgs};
use crate::cli::failure::Failure;
use crate::cli::signals::Stop;

/// How many nodes there are.
const NODES: usize = 3;
/// How long a history becomes before it is judged and forgotten.
const HISTORY: Duration = Duration::from_secs(30);
/// The shortest and the longest fault: too short for an election, and long enough for several.
const FAULT_MIN: Duration = Duration::from_millis(200);
const FAULT_MAX: Duration = Duration::from_secs(3);
/// Between two faults, in which the clients are answered.
const CALM: Duration = Duration::from_millis(500);

/// Carries out `leasehold chaos`.
///
/// # Errors
/// It cannot be begun; the cluster has broken a promise, or has not come back to life.
pub fn run(
    arguments: &ChaosArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if !global.endpoints.is_empty() || global.discovery_srv.is_some() {
        return Err(Failure::usage(
            "chaos breaks a cluster of its own and never one that exists: leave out --endpoints and \
             --discovery-srv (LEASEHOLD_ENDPOINTS, LEASEHOLD_DISCOVERY_SRV)",
        ));
    }
    if global.output == Format::Table {
        return Err(Failure::usage(
            "the report of chaos is told in sentences and has no table: leave out `-o table`, or choose \
             json or fields",
        ));
    }
    let plan = ClusterPlan::of_this_binary(&arguments.own)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let report = LocalSet::new().block_on(&runtime, break_for(arguments, &plan))?;
    report.print(out, global.output)?;
    out.flush()?;
    match report.failure() {
        None => Ok(()),
        Some(failure) => Err(Failure::refused(failure)),
    }
}

/// Breaks a cluster until the time is over, something is wrong, or this process is asked to stop.
async fn break_for(arguments: &ChaosArgs, plan: &ClusterPlan) -> Result<Report, Failure> {
    let mut stop = Stop::listen()?;
    let begun = tokio::select! {
        begun = Chaos::begin(arguments, plan) => begun,
        () = stop.asked() => Err(Failure::refused("interrupted")),
    };
    let mut chaos = begun?;
    tokio::select! {
        gone_on = chaos.go_on(arguments.length) => chaos.report.note(gone_on),
        () = stop.asked() => chaos.report.is_interrupted = true,
    }
    let judged = chaos.judge().await;
    chaos.report.note(judged);
    chaos.report.end(chaos.watch.elapsed());
    Ok(chaos.report)
}

/// A cluster that is being broken.
struct Chaos {
    cluster: OwnCluster,
    wires: Wires,
    /// The clients; none between two histories.
    workload: Option<Workload>,
    /// The history before, which is judged after one more fault.
    before: Option<Aftermath>,
    /// The highest revision of any reply of the histories before.
    acknowledged: i64,
    faults: Vec<ChaosFault>,
    clients: u32,
    record: Option<PathBuf>,
    random: fastrand::Rng,
    watch: Wall,
    progress: Progress,
    report: Report,
}

impl Chaos {
    async fn begin(arguments: &ChaosArgs, plan: &ClusterPlan) -> Result<Self, Failure> {
        let seed = arguments.seed.unwrap_or_else(drawn_seed);
        let progress = Progress::new(arguments.quiet);
        progress.say(&format!(
            "starting three nodes on loopback, to be broken by --seed {seed}"
        ));
        let addresses = free_addresses(NODES)?;
        let peers: Vec<_> = addresses.iter().map(|node| node.peer).collect();
        let wires = Wires::start(&peers)?;
        let route = |from, to| wires.address(from, to).unwrap_or(peers[to]);
        let mut cluster = OwnCluster::start_at(plan, &addresses, route).await?;
        cluster.wait_until_whole().await?;
        let mut faults = arguments.faults.clone();
        faults.sort();
        faults.dedup();
        Ok(Self {
            cluster,
            wires,
            workload: None,
            before: None,
            acknowledged: 0,
            faults,
            clients: arguments.clients,
            record: arguments.history.clone(),
            random: fastrand::Rng::with_seed(seed),
            watch: Wall::start(),
            progress,
            report: Report::begin(seed),
        })
    }

    /// One fault after the other for `length`, and one at least.
    async fn go_on(&mut self, length: Duration) -> Result<(), Failure> {
        let mut turns = Vec::new();
        let mut history_begun = Duration::ZERO;
        loop {
            if self.workload.is_none() {
                let target = self.cluster.target();
                let record = self.record.as_deref();
                let workload =
                    Workload::start(target, self.clients, record, self.acknowledged).await?;
                self.workload = Some(workload);
                history_begun = self.watch.elapsed();
            }
            if turns.is_empty() {
                turns.clone_from(&self.faults);
                self.random.shuffle(&mut turns);
            }
            if let Some(fault) = turns.pop() {
                self.inflict(fault, length).await?;
                self.judge_before().await;
            }
            let now = self.watch.elapsed();
            if now >= length {
                return Ok(());
            }
            if self.report.has_violations() {
                return Ok(());
            }
            if now - history_begun >= HISTORY {
                self.stop().await?;
            }
        }
    }

    /// Does one thing to one node, ends it, and waits until the cluster is whole.
    async fn inflict(&mut self, fault: ChaosFault, length: Duration) -> Result<(), Failure> {
        let leader = self.cluster.wait_for_leader(None).await?;
        let node = match self.random.bool() {
            true => leader,
            false => self.random.usize(..NODES),
        };
        let range = FAULT_MIN.as_millis() as u64..=FAULT_MAX.as_millis() as u64;
        let lasts = Duration::from_millis(self.random.u64(range));
        let left = length.saturating_sub(self.watch.elapsed());
        self.progress.say(&format!(
            "{} n{}{} for {}; {} left",
            fault.name(),
            node + 1,
            if node == leader { ", the leader," } else { "" },
            duration_text(lasts),
            duration_text(left)
        ));
        match fault {
            ChaosFault::Pause => self.cluster.pause(node)?,
            ChaosFault::Kill => self.cluster.begin_to_end(node, StopSignal::Kill)?,
            ChaosFault::Restart => self.cluster.begin_to_end(node, StopSignal::Stop)?,
            ChaosFault::Cut => self.wires.cut(node, true),
        }
        self.report.count(fault);
        tokio::time::sleep(lasts).await;
        match fault {
            ChaosFault::Pause => self.cluster.resume(node)?,
            ChaosFault::Kill | ChaosFault::Restart => self.cluster.restart(node)?,
            ChaosFault::Cut => self.wires.cut(node, false),
        }
        self.cluster.wait_until_whole().await?;
        tokio::time::sleep(CALM).await;
        Ok(())
    }

    /// Ends the history, if there is one. It is judged by what is read later.
    async fn stop(&mut self) -> Result<(), Failure> {
        if let Some(workload) = self.workload.take() {
            let stopped = workload.stop().await?;
            self.acknowledged = self.acknowledged.max(stopped.acknowledged());
            self.before = Some(stopped);
        }
        Ok(())
    }

    /// Reads what the history before has written, and judges it, if there is one.
    async fn judge_before(&mut self) {
        if let Some(stopped) = self.before.take() {
            stopped.read_again().await;
            let (counts, findings) = stopped.judge().await;
            self.report.add(&counts, findings);
            self.progress.say(&self.report.so_far());
        }
    }

    /// Ends what there is of histories, and judges it.
    async fn judge(&mut self) -> Result<(), Failure> {
        self.judge_before().await;
        self.stop().await?;
        self.judge_before().await;
        Ok(())
    }
}

/// A seed for a run that is to be another one than those before. It is printed, and makes the run repeatable.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where the seed comes from, if none was handed in"
)]
fn drawn_seed() -> u64 {
    fastrand::u64(..)
}
