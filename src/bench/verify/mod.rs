//! Whether this hardware keeps what the leader lease relies on: `leasehold verify lease`.
//!
//! First it measures, under real load, while nothing is broken: how fast the clocks of the nodes run
//! against each other, how late threads get to run, how long a quorum takes to answer, how evenly
//! the lease is renewed, and whether it ever had a gap. Then, if it may, it pauses, kills and cuts
//! off the leader of a cluster of its own. Whatever clients saw meanwhile is judged as a history,
//! and at the end it says what may be relied on, and which settings this machine bears.
//!
//! What it cannot find: a hypervisor that stops a machine *and* its clocks, which nothing inside
//! can notice, and what a minute does not show.

pub mod clocks;
pub mod faults;
pub mod judge;
pub mod proxy;
pub mod pulse;
pub mod report;
pub mod sampler;
pub mod workload;

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::clocks::{Rate, Which};
use self::judge::Measurements;
use self::proxy::Wires;
use self::pulse::Pulse;
use self::report::Report;
use self::sampler::{NodeTrack, Sampler};
use self::workload::{Counts, Workload};
use super::cluster::{ClusterPlan, OwnCluster, free_addresses};
use super::figures::duration_text;
use super::history;
use super::history::Findings;
use super::leasehold::with_all_members;
use super::process::until_stopped;
use super::progress::Progress;
use super::tally::Latencies;
use crate::api::Distribution;
use crate::cli::arguments::GlobalArgs;
use crate::cli::arguments::bench::{VerifyCommand, VerifyHistoryArgs, VerifyLeaseArgs};
use crate::cli::connection::{Surroundings, Target};
use crate::cli::failure::Failure;

/// How often there is a line of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Load before anything is counted: connections, caches, and the first writes of everything.
const WARM_UP: Duration = Duration::from_secs(1);

/// Carries out `leasehold verify`.
///
/// # Errors
/// Something did not pass, or could not be verified.
pub fn run(
    command: VerifyCommand,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    match command {
        VerifyCommand::Lease(arguments) => {
            let plan = ClusterPlan::of_this_binary(&arguments.own)?;
            let report = verify_lease(&arguments, global, &plan)?;
            report.print(out, global.output)?;
            out.flush()?;
            match report.failed().as_slice() {
                [] => Ok(()),
                failed => Err(Failure::refused(format!(
                    "leader leases are not safe here: {}",
                    failed.join(", ")
                ))),
            }
        }
        VerifyCommand::History(arguments) => verify_history(&arguments, global, out),
    }
}

/// Verifies a lease; a cluster of its own is as `plan` says.
///
/// # Errors
/// It could not be verified. That something did not pass is no error: the report says it.
pub fn verify_lease(
    arguments: &VerifyLeaseArgs,
    global: &GlobalArgs,
    plan: &ClusterPlan,
) -> Result<Report, Failure> {
    let is_own = global.endpoints.is_empty();
    if !is_own && (!arguments.faults.is_empty() || !plan.settings.is_empty()) {
        return Err(Failure::usage(
            "no faults or settings can be applied to an existing cluster: omit --endpoints to \
             start three processes for this",
        ));
    }
    let progress = Progress::new(arguments.quiet);
    let heading = Report::heading();
    let record = arguments.history.as_deref();
    let (measured, mut histories) = until_stopped(async {
        if !is_own {
            let target = Target::find(global, &Surroundings::of_process(global)?)?;
            let target = with_all_members(&target).await?;
            let (measured, findings) = measure(&target, false, arguments, record, progress).await?;
            return Ok((measured, vec![findings]));
        }
        progress.say("starting three nodes on loopback");
        let mut cluster = OwnCluster::start(plan).await?;
        cluster.wait_until_whole().await?;
        let (measured, findings) =
            measure(cluster.target(), true, arguments, record, progress).await?;
        cluster.check()?;
        Ok((measured, vec![findings]))
    })?;
    let mut faults = Vec::new();
    if !arguments.faults.is_empty() {
        let record = record.map(beside);
        let (reports, findings) =
            until_stopped(break_things(arguments, plan, &measured, record, progress))?;
        faults = reports;
        histories.push(findings);
    }
    let mut report = Report::new(heading, judge::judge(&measured, &histories));
    report.seconds = arguments.duration.as_secs_f64();
    report.heading.end();
    report.faults = faults;
    report.histories = histories;
    report.suggestion = judge::suggest(&measured);
    if is_own {
        report.remarks.push(
            "all nodes ran on this machine and shared its clocks: drift between machines shows \
             only with --endpoints of a cluster that spans several"
                .to_owned(),
        );
        if lies_in_memory(&plan.parent) {
            report.remarks.push(format!(
                "{} is in memory, so syncs cost nothing: use --data-dir to name a directory on the \
                 disk that nodes will use",
                plan.parent.display()
            ));
        }
    } else {
        report.remarks.push(
            "no faults were injected into the existing cluster: with --faults and without \
             --endpoints, three processes are started and faults injected into them"
                .to_owned(),
        );
    }
    Ok(report)
}

/// Measures while nothing is broken.
async fn measure(
    target: &Target,
    same_machine: bool,
    arguments: &VerifyLeaseArgs,
    record: Option<&Path>,
    progress: Progress,
) -> Result<(Measurements, Findings), Failure> {
    let workload = Workload::start(target, arguments.clients, record, 0).await?;
    tokio::time::sleep(WARM_UP).await;
    let before = workload.counts();
    workload.forget_gaps();
    let sampler = Sampler::start(target)?;
    let pulse = Pulse::start()?;
    let mut left = arguments.duration;
    while !left.is_zero() {
        let step = left.min(PROGRESS_INTERVAL);
        tokio::time::sleep(step).await;
        left -= step;
        let counts = workload.counts();
        progress.say(&format!(
            "{} reads, {} writes, longest without a leased read {}; {} left",
            counts.reads.count(),
            counts.writes.count(),
            duration_text(counts.longest_gap),
            duration_text(left)
        ));
    }
    let pulse = pulse.stop();
    let counts = workload.counts();
    let nodes = sampler.stop()?;
    let (_, findings) = workload.end().await?;
    Ok((
        measured(&nodes, same_machine, &pulse, &before, &counts),
        findings,
    ))
}

/// Breaks a cluster of its own, one fault after the other.
async fn break_things(
    arguments: &VerifyLeaseArgs,
    plan: &ClusterPlan,
    measured: &Measurements,
    record: Option<PathBuf>,
    progress: Progress,
) -> Result<(Vec<faults::FaultReport>, Findings), Failure> {
    progress.say("starting three nodes with a network that can be partitioned");
    let addresses = free_addresses(3)?;
    let peers: Vec<_> = addresses.iter().map(|node| node.peer).collect();
    let wires = Wires::start(&peers)?;
    let route = |from, to| wires.address(from, to).unwrap_or(peers[to]);
    let mut cluster = OwnCluster::start_at(plan, &addresses, route).await?;
    let workload =
        Workload::start(cluster.target(), arguments.clients, record.as_deref(), 0).await?;
    let mut reports = Vec::new();
    let election_max = measured.timing.election_timeout_max;
    for fault in &arguments.faults {
        let report = faults::inflict(*fault, &mut cluster, &wires, &workload, election_max).await?;
        progress.say(&format!(
            "{} {}: reads silent for {:.0} ms",
            report.fault, report.node, report.reads_silent_ms
        ));
        reports.push(report);
    }
    let (_, findings) = workload.end().await?;
    Ok((reports, findings))
}

fn measured(
    nodes: &[NodeTrack],
    same_machine: bool,
    pulse: &Latencies,
    before: &Counts,
    after: &Counts,
) -> Measurements {
    let any = nodes
        .first()
        .map(|node| node.last.clone())
        .unwrap_or_default();
    let sum = |of: fn(&crate::api::LeaderLeaseReport) -> &Distribution| {
        let added = nodes
            .iter()
            .map(|node| of(&node.last).since(of(&node.first)));
        added.fold(Distribution::default(), |sum, added| sum.plus(&added))
    };
    let allowed = f64::from(any.timing.max_drift_ppm);
    let length = any.lease.lease_duration;
    let excesses = |node: &NodeTrack| -> usize {
        Which::BOTH
            .map(|which| node.track.excesses(which, length, allowed))
            .iter()
            .sum()
    };
    let of_path = |counts: &Counts, path| counts.paths.get(path).copied().unwrap_or(0);
    let lapses = |node: &NodeTrack| {
        node.last
            .lease
            .expirations
            .saturating_sub(node.first.lease.expirations)
    };
    Measurements {
        same_machine,
        lease_duration: any.lease.lease_duration,
        max_clock_skew: any.lease.max_clock_skew,
        timing: any.timing,
        drift: drift(nodes),
        slew: nodes
            .iter()
            .filter_map(|node| node.track.slew())
            .reduce(worse),
        clock_excesses: nodes.iter().map(excesses).sum(),
        pulse: (pulse.at(0.999), pulse.max()),
        timer_delay: sum(|report| &report.timer_delay),
        round_trip: sum(|report| &report.round_trip),
        renew_interval: sum(|report| &report.renew_interval),
        expirations: nodes.iter().map(lapses).sum(),
        probes_answered: after.probes_answered - before.probes_answered,
        probes_refused: after.probes_refused - before.probes_refused,
        longest_gap: after.longest_gap,
        reads_leased: of_path(after, "lease") - of_path(before, "lease"),
        reads: after.paths.values().sum::<u64>() - before.paths.values().sum::<u64>(),
        warnings: nodes
            .iter()
            .flat_map(|node| {
                let name = &node.last.name;
                node.last
                    .warnings
                    .iter()
                    .map(move |warning| format!("{name}: {warning}"))
            })
            .collect(),
    }
}

/// The largest difference between any two clocks of a kind: between two nodes, and between a node
/// and this machine.
fn drift(nodes: &[NodeTrack]) -> Option<Rate> {
    let mut worst: Option<Rate> = None;
    for which in Which::BOTH {
        // A node whose rate is not known could be anything.
        let rates: Vec<Rate> = nodes
            .iter()
            .map(|node| node.track.rate(which))
            .collect::<Option<_>>()?;
        for (place, one) in rates.iter().enumerate() {
            let others = rates[place + 1..].iter().map(|other| one.against(*other));
            let with_us = std::iter::once(*one);
            worst = others.chain(with_us).chain(worst).reduce(worse);
        }
    }
    worst
}

/// The one that may be further from nothing.
fn worse(one: Rate, other: Rate) -> Rate {
    if other.bound() > one.bound() {
        other
    } else {
        one
    }
}

fn verify_history(
    arguments: &VerifyHistoryArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let path = &arguments.file;
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::usage(format!("{} cannot be checked: {error}", path.display()))
    };
    let file = File::open(path).map_err(|error| cannot(&error))?;
    let operations = history::read(BufReader::new(file)).map_err(|error| cannot(&error))?;
    let findings = history::check(&operations);
    let mut report = Report::new(Report::heading(), judge::of_history(&findings));
    report.heading.end();
    let violations = findings.violations;
    report.histories = vec![findings];
    report.print(out, global.output)?;
    out.flush()?;
    match violations {
        0 => Ok(()),
        violations => Err(Failure::refused(format!(
            "{} is not linearizable: {violations} violations",
            path.display()
        ))),
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".faults");
    PathBuf::from(name)
}

/// Whether a directory is of a file system that has no disk.
fn lies_in_memory(path: &Path) -> bool {
    /// What Linux calls tmpfs.
    const TMPFS: i128 = 0x0102_1994;
    rustix::fs::statfs(path).is_ok_and(|system| i128::from(system.f_type) == TMPFS)
}
