//! The loads of `leasehold bench` on another store as well, in turns in the same run: absolute figures
//! move with the machine and its mood, ratios of neighbours much less.

use std::io::Write;

use leasehold::bench::generator::Plan;
use leasehold::bench::keep_alive::Renewals;
use leasehold::bench::progress::Progress;
use leasehold::bench::report::{Report, Run};
use leasehold::bench::watch::Report as WatchReport;
use leasehold::bench::{keep_alive, mixed, watch};
use leasehold::cli::arguments::bench::{LoadArgs, LoadTarget, RenewalArgs, WatchLoadArgs};
use leasehold::cli::arguments::{GlobalArgs, TIMEOUT_USUAL};
use leasehold::cli::connection::{Surroundings, Target};
use leasehold::cli::failure::Failure;

use crate::arguments::{BesideArgs, PeerArgs, PeerKind};
use crate::etcd::EtcdConnector;

/// The other store, if one is named.
fn find(
    peer: &PeerArgs,
    whom: LoadTarget,
    global: &GlobalArgs,
) -> Result<Option<EtcdConnector>, Failure> {
    let Some(PeerKind::Etcd) = peer.peer else {
        return Ok(None);
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let timeout = global.timeout.unwrap_or(TIMEOUT_USUAL);
    let found = EtcdConnector::find(&peer.peer_endpoints, whom, timeout);
    Ok(Some(runtime.block_on(found)?))
}

impl PeerArgs {
    /// How often each store gets its turn.
    fn rounds(&self) -> u32 {
        self.peer.map_or(1, |_| self.interleave)
    }

    /// The same load, beside the other store's processes.
    fn plan(&self, ours: &Plan) -> Plan {
        Plan {
            server_pids: self.peer_pid.clone(),
            ..ours.clone()
        }
    }
}

/// Reads and writes of single keys; `reads` is the share of reads.
pub(crate) fn mixed(
    reads: f64,
    load: &LoadArgs,
    peer: &PeerArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let plan = mixed::plan(reads, load, global)?;
    let progress = Progress::new(load.quiet);
    let ours = mixed::connector(load, global)?;
    let theirs = find(peer, load.target, global)?;
    if !load.no_fill {
        mixed::fill(&ours, &plan, progress)?;
        if let Some(theirs) = &theirs {
            mixed::fill(theirs, &plan, progress)?;
        }
    }
    let mut report = Report::begin();
    let mut of_ours = Vec::new();
    for _ in 0..peer.rounds() {
        of_ours.push(Run::measure(&ours, &plan, progress)?);
        report.runs.extend(of_ours.last().cloned());
        if let Some(theirs) = &theirs {
            let run = Run::measure(theirs, &peer.plan(&plan), progress)?;
            report.runs.push(run);
        }
    }
    report.end();
    mixed::write_histograms(&of_ours, load, progress)?;
    report.show(global, out)
}

/// Renewals of leases.
pub(crate) fn keep_alive(
    arguments: &BesideArgs<RenewalArgs>,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (renewals, peer) = (&arguments.load, &arguments.peer);
    let (load, leases, batch) = (&renewals.load, renewals.leases, renewals.batch);
    let plan = mixed::plan(0.0, load, global)?;
    let ours = Renewals::new(mixed::connector(load, global)?, leases, batch);
    let theirs = find(peer, load.target, global)?;
    let theirs = theirs.map(|theirs| Renewals::new(theirs, leases, batch));
    let progress = Progress::new(load.quiet);
    keep_alive::begin(renewals, progress);
    let mut report = Report::begin();
    for _ in 0..peer.rounds() {
        let run = keep_alive::measure(&ours, &plan, batch, progress)?;
        report.runs.push(run);
        if let Some(theirs) = &theirs {
            let run = keep_alive::measure(theirs, &peer.plan(&plan), batch, progress)?;
            report.runs.push(run);
        }
    }
    report.end();
    report.show(global, out)
}

/// Writes while many watch.
pub(crate) fn watch(
    arguments: &BesideArgs<WatchLoadArgs>,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (load, peer) = (&arguments.load, &arguments.peer);
    if load.find_rate {
        return Err(Failure::usage(
            "the rate that watchers keep up with is found by `leasehold bench watch --find-rate`",
        ));
    }
    let target = Target::find(global, &Surroundings::of_process(global)?)?;
    let ours = watch::store(target, load);
    let theirs = find(peer, LoadTarget::Leader, global)?;
    let progress = Progress::new(load.quiet);
    let runtime = watch::runtime()?;
    let mut report = WatchReport::begin(load);
    for _ in 0..peer.rounds() {
        let run = runtime.block_on(watch::measure(load, &ours, progress))?;
        report.runs.push(run);
        if let Some(theirs) = &theirs {
            let run = runtime.block_on(watch::measure(load, theirs, progress))?;
            report.runs.push(run);
        }
    }
    report.end(global.output, out)
}
