//! Leases that end while leaders are killed, or on another store as well.
//!
//! While leases are kept, leaders may be killed: then it is measured how long no node answered with so
//! many leases, how long the next leader took from its election until it served ([`succession`]), and
//! no lease may be lost.

use std::io;
use std::io::Write;

use leasehold::bench::cluster::OwnCluster;
use leasehold::bench::expiry;
use leasehold::bench::expiry::book::Book;
use leasehold::bench::expiry::leadership::LeaseCluster;
use leasehold::bench::expiry::leasehold::LeaseholdLeases;
use leasehold::bench::expiry::report::{ExpiryReport, ExpiryRun, millis, text};
use leasehold::bench::expiry::{Plan, turn};
use leasehold::bench::figures::number_text;
use leasehold::bench::heading::{Heading, print_for_programs};
use leasehold::bench::process::until_stopped;
use leasehold::bench::progress::Progress;
use leasehold::cli::arguments::{Format, GlobalArgs};
use leasehold::cli::connection::{Surroundings, Target};
use leasehold::cli::failure::Failure;
use serde::Serialize;

use crate::arguments::{DisturbedExpiryArgs, GapCase, PeerKind};
use crate::etcd::{EtcdCluster, EtcdLeases};
use crate::gap::{self, GapReport};
use crate::run::cluster_plan;
use crate::succession::Succession;

/// All that was found.
#[derive(Debug, Serialize)]
struct DisturbedReport {
    #[serde(flatten)]
    heading: Heading,
    runs: Vec<DisturbedRun>,
}

/// One turn of one store.
#[derive(Debug, Serialize)]
struct DisturbedRun {
    #[serde(flatten)]
    run: ExpiryRun,
    /// Each leader that was killed while leases were kept.
    kills: Vec<KillReport>,
}

/// What the death of a leader came to.
#[derive(Clone, Copy, Debug, Serialize)]
struct KillReport {
    /// Leases that existed then.
    leases: usize,
    /// How long no node answered a linearizable read.
    read_gap_ms: f64,
    /// How long no node took a write.
    write_gap_ms: f64,
    /// From the moment at which a member was seen to lead until it answered a read by its lease.
    election_to_serving_ms: Option<f64>,
    /// The longest gap of reads while all was well.
    noise_ms: f64,
}

/// Measures it.
pub(crate) fn run(
    arguments: &DisturbedExpiryArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    check(arguments, global)?;
    let plan = Plan::of(&arguments.expiry);
    let progress = Progress::new(arguments.expiry.quiet);
    let mut report = DisturbedReport {
        heading: ExpiryReport::begin().heading,
        runs: Vec::new(),
    };
    until_stopped(async {
        let own = cluster_plan(&arguments.expiry.own);
        let theirs = match arguments.peer {
            None => None,
            Some(PeerKind::Etcd) => {
                let cluster = EtcdCluster::start(&own.parent, &arguments.peer_set).await?;
                Some(EtcdLeases::new(cluster))
            }
        };
        let (ours, mut cluster) = if global.endpoints.is_empty() {
            let cluster = OwnCluster::start(&own).await?;
            let ours = LeaseholdLeases::existing(cluster.target(), &cluster.pids());
            (ours, Some(cluster))
        } else {
            let target = Target::find(global, &Surroundings::of_process(global)?)?;
            let pids = &arguments.expiry.server_pid;
            (LeaseholdLeases::existing(&target, pids), None)
        };
        for _ in 0..arguments.expiry.rounds {
            let mut kills = Vec::new();
            let killing = async |book: &Book| {
                for _ in 0..arguments.kills {
                    if let Some(cluster) = &mut cluster {
                        kills.push(kill(&ours, cluster, book, progress).await?);
                    }
                }
                Ok(())
            };
            let run = turn(&ours, plan, progress, killing).await?;
            report.runs.push(DisturbedRun { run, kills });
            if let Some(theirs) = &theirs {
                let run = turn(theirs, plan, progress, async |_| Ok(())).await?;
                let kills = Vec::new();
                report.runs.push(DisturbedRun { run, kills });
            }
        }
        Ok(())
    })?;
    report.heading.end();
    report.print(out, global.output)?;
    out.flush()?;
    report.runs.iter().try_for_each(|run| run.run.check())
}

fn check(arguments: &DisturbedExpiryArgs, global: &GlobalArgs) -> Result<(), Failure> {
    expiry::check(&arguments.expiry, global)?;
    if !global.endpoints.is_empty() && arguments.kills > 0 {
        return Err(Failure::usage(
            "a cluster that runs already is not ended: leave --endpoints away, and three processes \
             are started for it",
        ));
    }
    if arguments.kills > 0 && arguments.expiry.keep.is_none() {
        return Err(Failure::usage(
            "leaders are killed while leases are kept: give --keep as well, for example --keep 10s",
        ));
    }
    if arguments.peer.is_some() && arguments.kills > 0 {
        return Err(Failure::usage(
            "leaders of another store are killed by `gap`: leave --kills or --peer away",
        ));
    }
    if arguments.peer.is_some() && arguments.expiry.ttl.subsec_nanos() > 0 {
        return Err(Failure::usage(
            "the other store counts in whole seconds: give both the same, for example --ttl 5s",
        ));
    }
    Ok(())
}

/// Kills the leader, while holders go on.
async fn kill(
    store: &LeaseholdLeases,
    cluster: &mut OwnCluster,
    book: &Book,
    progress: Progress,
) -> Result<KillReport, Failure> {
    let name = "leasehold";
    let former = store.leadership().await?.endpoint;
    let succession = Succession::start(cluster.target(), &former)?;
    let round = gap::round(cluster, GapCase::Kill, progress).await?;
    let serving = succession.stop()?;
    let mut gaps = GapReport::begin();
    gaps.add(name, GapCase::Kill, &[round]);
    let found = |probe| gaps.find(name, GapCase::Kill, probe);
    let gap = |probe| found(probe).map_or(0.0, |gap| gap.worst_ms);
    let count = book.count();
    Ok(KillReport {
        leases: count.granted - count.ended,
        read_gap_ms: gap("read"),
        write_gap_ms: gap("write"),
        election_to_serving_ms: serving.map(millis),
        noise_ms: found("read").map_or(0.0, |gap| gap.noise_ms),
    })
}

impl DisturbedReport {
    fn print(&self, out: &mut impl Write, format: Format) -> io::Result<()> {
        if print_for_programs(out, self, format)? {
            return Ok(());
        }
        for run in &self.runs {
            run.run.print(out)?;
            run.kills.iter().try_for_each(|kill| kill.print(out))?;
        }
        writeln!(out, "on {}", self.heading.machine())
    }
}

impl KillReport {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        write!(
            out,
            "  kill       with {} leases: no read for {}, no write for {} (noise {})",
            number_text(self.leases as f64),
            text(self.read_gap_ms),
            text(self.write_gap_ms),
            text(self.noise_ms)
        )?;
        match self.election_to_serving_ms {
            Some(took) => writeln!(out, "; from election to serving {}", text(took)),
            None => writeln!(out),
        }
    }
}
