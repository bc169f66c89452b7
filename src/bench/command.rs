//! From what was typed to what is measured.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::LocalSet;

use super::cluster::{ClusterPlan, OwnCluster};
use super::expiry::leasehold::LeaseholdLeases;
use super::expiry::store::LeaseStore;
use super::gap::{ExistingCluster, GapReport, Subject};
use super::generator::Plan;
use super::heading::cores;
use super::leasehold::Leasehold;
use super::load::{Choice, Keys, Load, Zipf};
use super::progress::Progress;
use super::renewals::Renewals;
use super::report::{Report, Run};
use super::store::Connector;
use super::watched::{Watched, WatchedLeasehold};
use super::{gap, generator};
use crate::cli::arguments::GlobalArgs;
use crate::cli::arguments::bench::{
    BenchCommand, Distribution, GapArgs, GapCase, LoadArgs, LoadTarget, OwnClusterArgs, PeerKind,
    RenewalArgs,
};
use crate::cli::connection::{Surroundings, Target};
use crate::cli::failure::Failure;
use crate::cli::signals::Stop;

/// Zipf's law as load generators use it, since YCSB.
const ZIPF_EXPONENT: f64 = 0.99;

/// Other stores, as far as this binary knows them.
pub trait Peers {
    /// Connects to one of them.
    type Connector: Connector;
    /// Connects to one of them, and has leases granted.
    type Holders: Connector;
    /// One of them, to be watched.
    type Watched: Watched;
    /// A cluster of one of them.
    type Subject: Subject;
    /// The leases of one of them.
    type Leases: LeaseStore;

    /// Whoever is at `endpoints`. A request may take as long as `timeout`.
    ///
    /// # Errors
    /// This binary does not know that store, or nobody can be reached.
    fn find(
        &self,
        kind: PeerKind,
        endpoints: &[String],
        whom: LoadTarget,
        timeout: Duration,
    ) -> impl Future<Output = Result<Self::Connector, Failure>>;

    /// What holds so many leases on each connection, and renews so many with each request.
    fn holders(&self, connector: Self::Connector, leases: u32, batch: u32) -> Self::Holders;

    /// What watches, and writes what is watched.
    fn watched(&self, connector: Self::Connector) -> Self::Watched;

    /// Three processes of its own below `parent`, started with these flags; they end when it is
    /// dropped.
    ///
    /// # Errors
    /// This binary does not know that store, or its program is not there.
    fn start(
        &self,
        kind: PeerKind,
        parent: &Path,
        flags: &[(String, String)],
    ) -> impl Future<Output = Result<Self::Subject, Failure>>;

    /// As [`Peers::start`], for its leases.
    ///
    /// # Errors
    /// As [`Peers::start`].
    fn start_leases(
        &self,
        kind: PeerKind,
        parent: &Path,
        flags: &[(String, String)],
    ) -> impl Future<Output = Result<Self::Leases, Failure>>;
}

/// No other store.
#[derive(Clone, Copy, Debug)]
pub struct NoPeers;

impl Peers for NoPeers {
    type Connector = Leasehold;
    type Holders = Renewals;
    type Watched = WatchedLeasehold;
    type Subject = OwnCluster;
    type Leases = LeaseholdLeases;

    fn holders(&self, connector: Leasehold, leases: u32, batch: u32) -> Renewals {
        Renewals::new(connector, leases, batch)
    }

    fn watched(&self, connector: Leasehold) -> WatchedLeasehold {
        WatchedLeasehold::new(connector.target().clone(), None)
    }

    async fn find(
        &self,
        kind: PeerKind,
        _: &[String],
        _: LoadTarget,
        _: Duration,
    ) -> Result<Leasehold, Failure> {
        Err(unknown(kind))
    }

    async fn start(
        &self,
        kind: PeerKind,
        _: &Path,
        _: &[(String, String)],
    ) -> Result<OwnCluster, Failure> {
        Err(unknown(kind))
    }

    async fn start_leases(
        &self,
        kind: PeerKind,
        _: &Path,
        _: &[(String, String)],
    ) -> Result<LeaseholdLeases, Failure> {
        Err(unknown(kind))
    }
}

fn unknown(kind: PeerKind) -> Failure {
    let PeerKind::Etcd = kind;
    Failure::usage(
        "this binary does not speak etcd's API: build one that does with `cargo build --release \
         --features bench-etcd`",
    )
}

/// Carries out `leasehold bench`.
///
/// # Errors
/// Nobody can be reached, or nothing was answered.
pub fn run(
    command: BenchCommand,
    global: &GlobalArgs,
    peers: &impl Peers,
    out: &mut impl Write,
) -> Result<(), Failure> {
    match command {
        BenchCommand::Get(arguments) => load(1.0, &arguments, global, peers, out),
        BenchCommand::Put(arguments) => load(0.0, &arguments, global, peers, out),
        BenchCommand::Mixed(arguments) => {
            load(arguments.reads, &arguments.load, global, peers, out)
        }
        BenchCommand::LeaseKeepalive(arguments) => renewals(&arguments, global, peers, out),
        BenchCommand::Watch(arguments) => super::watch::run(&arguments, global, peers, out),
        BenchCommand::LeaseExpiry(arguments) => super::expiry::run(&arguments, global, peers, out),
        BenchCommand::Feed(arguments) => super::feed::run(&arguments, global, out),
        BenchCommand::Overload(arguments) => super::overload::run(&arguments, global, out),
        BenchCommand::Gap(arguments) => gap(&arguments, global, peers, out),
    }
}

fn load(
    reads: f64,
    arguments: &LoadArgs,
    global: &GlobalArgs,
    peers: &impl Peers,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let target = Target::find(global, &Surroundings::of_process()?)?;
    let plan = plan(reads, arguments, global)?;
    let progress = Progress::new(arguments.quiet);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ours = runtime.block_on(Leasehold::find(&target, arguments.target))?;
    let theirs = match arguments.peer.peer {
        None => None,
        Some(kind) => {
            let (endpoints, whom) = (&arguments.peer.peer_endpoints, arguments.target);
            let found = peers.find(kind, endpoints, whom, global.timeout);
            Some(runtime.block_on(found)?)
        }
    };
    // What finds the leader has done its work; each load has threads of its own.
    drop(runtime);
    if !arguments.no_fill {
        fill(&ours, &plan, progress)?;
        if let Some(theirs) = &theirs {
            fill(theirs, &plan, progress)?;
        }
    }
    let mut report = Report::begin();
    let rounds = if theirs.is_some() {
        arguments.peer.interleave
    } else {
        1
    };
    for _ in 0..rounds {
        report.runs.push(one(&ours, &plan, progress)?);
        if let Some(theirs) = &theirs {
            let plan = Plan {
                server_pids: arguments.peer.peer_pid.clone(),
                ..plan.clone()
            };
            report.runs.push(one(theirs, &plan, progress)?);
        }
    }
    report.end();
    if let Some(name) = &arguments.histogram {
        // The first store's last run: a histogram is looked at one by one.
        if let Some(run) = report.runs.iter().rfind(|run| run.store == ours.name()) {
            for file in run.write_histograms(name)? {
                progress.say(&format!("wrote {}", file.display()));
            }
        }
    }
    show(&report, global, out)
}

/// Prints `report`; refuses one in which a store answered nothing.
fn show(report: &Report, global: &GlobalArgs, out: &mut impl Write) -> Result<(), Failure> {
    report.print(out, global.output)?;
    out.flush()?;
    match report.runs.iter().find(|run| run.answered == 0) {
        Some(run) => Err(Failure::refused(format!(
            "{} answered no request",
            run.store
        ))),
        None => Ok(()),
    }
}

/// Renewals of leases: like writes, but that nothing is filled in first.
fn renewals(
    arguments: &RenewalArgs,
    global: &GlobalArgs,
    peers: &impl Peers,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let load = &arguments.load;
    let target = Target::find(global, &Surroundings::of_process()?)?;
    let plan = plan(0.0, load, global)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (leases, batch) = (arguments.leases, arguments.batch);
    let ours = runtime.block_on(Leasehold::find(&target, load.target))?;
    let ours = Renewals::new(ours, leases, batch);
    let theirs = match load.peer.peer {
        None => None,
        Some(kind) => {
            let endpoints = &load.peer.peer_endpoints;
            let found = peers.find(kind, endpoints, load.target, global.timeout);
            Some(peers.holders(runtime.block_on(found)?, leases, batch))
        }
    };
    drop(runtime);
    let progress = Progress::new(load.quiet);
    progress.say(&format!(
        "each connection holds {leases} leases; a request renews {batch} of them"
    ));
    let mut report = Report::begin();
    let rounds = theirs.as_ref().map_or(1, |_| load.peer.interleave);
    for _ in 0..rounds {
        renew(&ours, &plan, batch, progress, &mut report)?;
        if let Some(theirs) = &theirs {
            let plan = Plan {
                server_pids: load.peer.peer_pid.clone(),
                ..plan.clone()
            };
            renew(theirs, &plan, batch, progress, &mut report)?;
        }
    }
    report.end();
    show(&report, global, out)
}

fn renew<C: Connector>(
    connector: &C,
    plan: &Plan,
    batch: u32,
    progress: Progress,
    report: &mut Report,
) -> Result<(), Failure> {
    let mut run = one(connector, plan, progress)?;
    run.load = "lease-keepalive";
    progress.say(&format!(
        "{:>10} {:.0} renewals per second",
        run.store,
        run.ops_per_second * f64::from(batch)
    ));
    report.runs.push(run);
    Ok(())
}

/// One load on one store, with progress.
///
/// # Errors
/// A connection could not be made, or a process whose CPU time was asked for is not there.
pub fn one<C: Connector>(connector: &C, plan: &Plan, progress: Progress) -> Result<Run, Failure> {
    let name = connector.name();
    let mut show = |interval: &generator::Interval| progress.show(name, interval);
    let outcome = generator::run(plan, connector, &mut show)?;
    Ok(Run::new(name, plan, outcome))
}

fn fill<C: Connector>(connector: &C, plan: &Plan, progress: Progress) -> Result<(), Failure> {
    let keys = &plan.load.keys;
    progress.say(&format!(
        "{:>10} writing {} keys of {} bytes",
        connector.name(),
        keys.names.len(),
        keys.value.len()
    ));
    generator::fill(connector, &plan.load)
}

fn gap(
    arguments: &GapArgs,
    global: &GlobalArgs,
    peers: &impl Peers,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let is_own = global.endpoints.is_empty();
    let cases = match (arguments.case.as_slice(), is_own) {
        ([], true) => GapCase::ALL.to_vec(),
        ([], false) => vec![GapCase::MoveLeader],
        (cases, _) => cases.to_vec(),
    };
    if !is_own && (cases != [GapCase::MoveLeader] || !arguments.own.set.is_empty()) {
        return Err(Failure::usage(
            "a cluster that runs already is neither ended nor configured: leave --endpoints away, \
             and three processes are started for it",
        ));
    }
    let progress = Progress::new(arguments.quiet);
    let mut report = GapReport::begin();
    until_told_to_stop(async {
        let parent = parent(&arguments.own);
        let mut theirs = match arguments.peer {
            None => None,
            Some(kind) => Some(peers.start(kind, &parent, &arguments.peer_set).await?),
        };
        let mut turns = Turns {
            cases: &cases,
            rounds: arguments.rounds,
            progress,
            report: &mut report,
        };
        if is_own {
            let mut ours = OwnCluster::start(&own_cluster(&arguments.own)?).await?;
            turns.take(&mut ours, theirs.as_mut()).await
        } else {
            let target = Target::find(global, &Surroundings::of_process()?)?;
            let mut ours = ExistingCluster::find(&target).await?;
            turns.take(&mut ours, theirs.as_mut()).await
        }
    })?;
    report.end();
    report.print(out, global.output)?;
    Ok(())
}

/// Changes of leadership in one store after the other.
pub struct Turns<'a> {
    /// What happens to leaders.
    pub cases: &'a [GapCase],
    /// How often each.
    pub rounds: u32,
    /// Where it is told as it happens.
    pub progress: Progress,
    /// Where it is noted.
    pub report: &'a mut GapReport,
}

impl Turns<'_> {
    /// Takes leadership away in turns, and notes what that came to.
    ///
    /// # Errors
    /// A cluster did not come back to life.
    pub async fn take<S: Subject, T: Subject>(
        &mut self,
        ours: &mut S,
        mut theirs: Option<&mut T>,
    ) -> Result<(), Failure> {
        for case in self.cases {
            let (mut of_ours, mut of_theirs) = (Vec::new(), Vec::new());
            for _ in 0..self.rounds {
                of_ours.push(gap::round(ours, *case, self.progress).await?);
                if let Some(theirs) = theirs.as_deref_mut() {
                    of_theirs.push(gap::round(theirs, *case, self.progress).await?);
                }
            }
            self.report.add(ours.name(), *case, &of_ours);
            if let Some(theirs) = theirs.as_deref() {
                self.report.add(theirs.name(), *case, &of_theirs);
            }
        }
        Ok(())
    }
}

/// Runs `work` on a thread of its own runtime until it is done, or until this process is told to
/// stop: then it is dropped, and with it every process that it started.
///
/// # Errors
/// Those of `work`, or that it was stopped.
pub fn until_told_to_stop<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut stop = Stop::listen()?;
        tokio::select! {
            done = work => done,
            () = stop.asked() => Err(Failure::refused("stopped before it was done")),
        }
    })
}

/// Where the data of clusters lies that are started for the purpose.
pub fn parent(arguments: &OwnClusterArgs) -> PathBuf {
    arguments
        .data_dir
        .clone()
        .unwrap_or_else(std::env::temp_dir)
}

/// A cluster of processes of this very binary.
///
/// # Errors
/// The system does not say which file it is.
pub fn own_cluster(arguments: &OwnClusterArgs) -> Result<ClusterPlan, Failure> {
    Ok(ClusterPlan {
        program: std::env::current_exe()?,
        parent: parent(arguments),
        settings: arguments.set.clone(),
    })
}

fn plan(reads: f64, arguments: &LoadArgs, global: &GlobalArgs) -> Result<Plan, Failure> {
    if arguments.connections > arguments.clients {
        return Err(Failure::usage(format!(
            "{} connections are more than {} clients can use: give --clients at least as many",
            arguments.connections, arguments.clients
        )));
    }
    let half = u32::try_from(cores() / 2).unwrap_or(1).max(1);
    Ok(Plan {
        load: Load {
            reads,
            consistency: global.consistency,
            keys: Arc::new(Keys::new(arguments.keys, arguments.value_size)),
            choice: match arguments.distribution {
                Distribution::Uniform => Choice::Uniform,
                Distribution::Zipf => Choice::Zipf(Zipf::new(arguments.keys, ZIPF_EXPONENT)),
            },
        },
        clients: arguments.clients,
        connections: arguments.connections,
        threads: arguments.threads.unwrap_or(half).min(arguments.connections),
        rate: (arguments.rate > 0.0).then_some(arguments.rate),
        warm_up: arguments.warm_up,
        duration: arguments.duration,
        seed: arguments.seed,
        server_pids: arguments.server_pid.clone(),
    })
}
