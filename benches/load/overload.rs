//! A cluster that is asked for more than it can do: `overload`.
//!
//! Three processes of this binary, each held to a part of a core so that the clients have the
//! rest. First a closed loop finds the most that they serve, the *peak*. Then puts are due at parts and
//! multiples of it, whether or not earlier ones are answered, each with a deadline and without a second
//! attempt. *Goodput* is what was answered within its deadline. Beside all of that, client leases are
//! kept alive by the SDK as any program has it; what matters is that none is lost.

use std::io;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;

use leasehold::api::Consistency;
use leasehold::bench::cluster::OwnCluster;
use leasehold::bench::figures::{duration_text, number_text};
use leasehold::bench::generator;
use leasehold::bench::generator::Plan;
use leasehold::bench::heading::{Heading, print_for_programs};
use leasehold::bench::leasehold::{Leasehold, connect};
use leasehold::bench::load::{Choice, Keys, Load};
use leasehold::bench::memory::resident_bytes;
use leasehold::bench::process::until_stopped;
use leasehold::bench::progress::Progress;
use leasehold::bench::report::Run;
use leasehold::cli::arguments::bench::LoadTarget;
use leasehold::cli::arguments::{Format, GlobalArgs};
use leasehold::cli::connection::Target;
use leasehold::cli::failure::Failure;
use leasehold::cli::print::{Align, table};
use leasehold::client::KeepAliveEvent;

use crate::arguments::OverloadArgs;
use crate::cpu_share::CpuShare;
use crate::run::cluster_plan;

const SCHEMA: &str = "leasehold-overload-1";
/// Clients of the closed loops that look for the peak.
const PEAK_CLIENTS: [u32; 3] = [32, 128, 512];
/// What is due, in peaks.
const FACTORS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];
/// More than that are never under way.
const CLIENTS_MAX: f64 = 60_000.0;
/// Keys that are written.
const KEYS: u32 = 10_000;
const VALUE_BYTES: u32 = 256;
/// How long each load runs before it is measured.
const WARM_UP: Duration = Duration::from_secs(2);

/// What was found.
#[derive(Debug, Serialize)]
struct OverloadReport {
    #[serde(flatten)]
    heading: Heading,
    /// How the servers were held to their share.
    held_by: &'static str,
    /// Of a core, each.
    cores: f64,
    /// Leases that were kept alive all the time.
    leases: u32,
    /// How long each lasts without a renewal, in milliseconds.
    ttl_ms: u128,
    /// The deadline of a put, in milliseconds.
    deadline_ms: u128,
    /// Puts a second at most, in closed loops.
    peak: f64,
    stages: Vec<Stage>,
}

/// One load.
#[derive(Debug, Serialize)]
struct Stage {
    /// Puts due, in peaks.
    factor: f64,
    /// The same, in a second.
    offered: f64,
    /// Answered within their deadline, in a second.
    goodput: f64,
    /// The same, as a part of the peak.
    of_peak: f64,
    /// Turned away, in a second.
    slow_down: f64,
    /// Failed otherwise, or not even sent, in a second.
    other: f64,
    /// How long those took that were answered, in milliseconds.
    p50_ms: f64,
    p99_ms: f64,
    /// Leases lost meanwhile, and times that one was at risk.
    leases_lost: u64,
    leases_at_risk: u64,
    /// Memory of the three servers together at its end, in bytes.
    resident_bytes: u64,
    /// The leader was another one at its end.
    leader_changed: bool,
}

/// Leases that are kept alive, and what becomes of them.
struct KeptLeases {
    lost: Arc<AtomicU64>,
    at_risk: Arc<AtomicU64>,
    // Ends the keepers.
    _keepers: JoinSet<()>,
}

impl KeptLeases {
    async fn begin(target: &Target, count: u32, ttl: Duration) -> Result<Self, Failure> {
        let (lost, at_risk) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let client = connect(target).await?;
        let mut keepers = JoinSet::new();
        for _ in 0..count {
            let granted = client.lease().grant(ttl, None).await?;
            let mut keeper = client.lease().keep_alive(granted.id).await?;
            let (lost, at_risk) = (lost.clone(), at_risk.clone());
            keepers.spawn(async move {
                while let Some(event) = keeper.event().await {
                    match event {
                        KeepAliveEvent::Lost { .. } => lost.fetch_add(1, Ordering::Relaxed),
                        KeepAliveEvent::AtRisk { .. } => at_risk.fetch_add(1, Ordering::Relaxed),
                        _ => 0,
                    };
                }
            });
        }
        Ok(Self {
            lost,
            at_risk,
            _keepers: keepers,
        })
    }

    /// Lost and at risk since this was asked last.
    fn since(&self) -> (u64, u64) {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        (take(&self.lost), take(&self.at_risk))
    }
}

/// Carries out `overload`.
///
/// # Errors
/// The cluster cannot be started, or does not bear being asked at all.
pub(crate) fn run(
    arguments: &OverloadArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if !global.endpoints.is_empty() {
        return Err(Failure::usage(
            "a cluster that runs already is not held to a part of a core: leave --endpoints away, and \
             three processes are started for it",
        ));
    }
    let progress = Progress::new(arguments.quiet);
    let report = until_stopped(measure(arguments, progress))?;
    report.print(out, global.output)?;
    Ok(())
}

async fn measure(arguments: &OverloadArgs, progress: Progress) -> Result<OverloadReport, Failure> {
    let mut cluster = OwnCluster::start(&cluster_plan(&arguments.own)).await?;
    let mut leader = cluster.wait_until_whole().await?;
    let found = Leasehold::find(cluster.target(), LoadTarget::Leader).await?;
    let connector = found
        .clone()
        .with_timeout(arguments.deadline)
        .without_retries();
    let keys = Arc::new(Keys::new(KEYS, VALUE_BYTES));
    let load = Load {
        reads: 0.0,
        consistency: Consistency::Linearizable,
        keys,
        choice: Choice::Uniform,
    };
    progress.say("writing the keys, and granting the leases");
    let filled = load.clone();
    apart(move || generator::fill(&found, &filled)).await?;
    let kept = KeptLeases::begin(cluster.target(), arguments.leases, arguments.ttl).await?;
    // Only now: what comes before need not take long.
    let share = CpuShare::hold(&cluster.pids(), arguments.cores)?;
    progress.say(&format!("each server is held by {}", share.how()));
    let plan = |clients: u32, rate: Option<f64>| Plan {
        load: load.clone(),
        clients,
        connections: arguments.connections.min(clients),
        threads: 1,
        rate,
        warm_up: WARM_UP,
        duration: arguments.duration,
        seed: 1,
        server_pids: Vec::new(),
    };
    let one = |plan: Plan| {
        let connector = connector.clone();
        apart(move || Run::measure(&connector, &plan, progress))
    };
    let mut report = OverloadReport {
        heading: Heading::begin(SCHEMA),
        held_by: share.how(),
        cores: arguments.cores,
        leases: arguments.leases,
        ttl_ms: arguments.ttl.as_millis(),
        deadline_ms: arguments.deadline.as_millis(),
        peak: 0.0,
        stages: Vec::new(),
    };
    for clients in PEAK_CLIENTS {
        let run = one(plan(clients, None)).await?;
        report.peak = report.peak.max(run.ops_per_second);
        cluster.check()?;
    }
    progress.say(&format!("the peak is {} puts/s", number_text(report.peak)));
    if report.peak < 1.0 {
        return Err(Failure::refused(
            "nothing was answered: give the servers more of a core",
        ));
    }
    kept.since();
    for factor in FACTORS {
        let offered = report.peak * factor;
        // All that can be under way before their deadlines are over, and some.
        let under_way = offered * arguments.deadline.as_secs_f64() * 1.2;
        let clients = under_way.clamp(64.0, CLIENTS_MAX) as u32;
        let run = one(plan(clients, Some(offered))).await?;
        cluster.check()?;
        let now = cluster.wait_for_leader(None).await?;
        let memory = resident_bytes(&cluster.pids())?;
        let mut stage = Stage::of(&run, factor, offered, report.peak);
        (stage.leases_lost, stage.leases_at_risk) = kept.since();
        stage.resident_bytes = memory;
        stage.leader_changed = now != leader;
        leader = now;
        report.stages.push(stage);
    }
    report.heading.end();
    // Before the processes end.
    drop(share);
    Ok(report)
}

/// Runs what blocks on a thread of its own.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Failure::refused(error.to_string()))?
}

impl Stage {
    fn of(run: &Run, factor: f64, offered: f64, peak: f64) -> Self {
        let a_second = |count: u64| count as f64 / run.setup.seconds.max(1e-9);
        let slow_down = run.errors.get("LH-SLOW-DOWN");
        let slow_down = slow_down.map_or(0, |errors| errors.count);
        let taken = run.operations.get("put").map(|puts| puts.latency_us);
        Self {
            factor,
            offered,
            goodput: run.ops_per_second,
            of_peak: run.ops_per_second / peak,
            slow_down: a_second(slow_down),
            other: a_second(run.failed - slow_down + run.unsent),
            p50_ms: taken.map_or(0.0, |taken| taken.p50 / 1e3),
            p99_ms: taken.map_or(0.0, |taken| taken.p99 / 1e3),
            leases_lost: 0,
            leases_at_risk: 0,
            resident_bytes: 0,
            leader_changed: false,
        }
    }
}

impl OverloadReport {
    fn print(&self, out: &mut impl Write, format: Format) -> io::Result<()> {
        if print_for_programs(out, self, format)? {
            return Ok(());
        }
        let millis = |millis: u128| {
            let millis = u64::try_from(millis).unwrap_or(u64::MAX);
            duration_text(Duration::from_millis(millis))
        };
        writeln!(
            out,
            "three servers held to {} of a core each by {}; at most {} puts/s in closed loops; deadline \
             {}; {} leases of {} kept alive",
            self.cores,
            self.held_by,
            number_text(self.peak),
            millis(self.deadline_ms),
            self.leases,
            millis(self.ttl_ms),
        )?;
        let columns = [
            ("LOAD", Align::Right),
            ("OFFERED/S", Align::Right),
            ("GOODPUT/S", Align::Right),
            ("OF PEAK", Align::Right),
            ("SLOW DOWN/S", Align::Right),
            ("OTHER/S", Align::Right),
            ("P50", Align::Right),
            ("P99", Align::Right),
            ("LEASES LOST", Align::Right),
            ("AT RISK", Align::Right),
            ("MEMORY", Align::Right),
            ("LEADER", Align::Left),
        ];
        let text = |millis: f64| duration_text(Duration::from_secs_f64(millis / 1e3));
        let rows = self.stages.iter().map(|stage| {
            vec![
                format!("{}x", stage.factor),
                number_text(stage.offered),
                number_text(stage.goodput),
                format!("{:.0} %", stage.of_peak * 100.0),
                number_text(stage.slow_down),
                number_text(stage.other),
                text(stage.p50_ms),
                text(stage.p99_ms),
                stage.leases_lost.to_string(),
                stage.leases_at_risk.to_string(),
                leasehold::cli::print::size(stage.resident_bytes),
                if stage.leader_changed {
                    "changed"
                } else {
                    "same"
                }
                .to_owned(),
            ]
        });
        table(out, &columns, rows)?;
        writeln!(out, "on {}", self.heading.machine())
    }
}
