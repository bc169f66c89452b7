//! leasehold and etcd side by side, as `benches/compare.sh` runs it: three processes each, the same
//! load in turns, and how long no request is answered when leadership changes.
//!
//! Both sync every write, both lie on the same disk, both are talked to through their own network
//! protocol by the same generator in this process. Where a ratio is shown, it is the median of pairs
//! of neighbours. Where etcd is not installed, its columns stay empty, and a line says so.
//!
//! Some loads alone: `cargo bench --bench load -- compare --only put`.

mod door;
mod goals;
mod rows;
mod svg;

use std::fmt::Write as _;
use std::io;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold::bench::cluster::{ClusterPlan, OwnCluster};
use leasehold::bench::generator;
use leasehold::bench::generator::Plan;
use leasehold::bench::leasehold::Leasehold;
use leasehold::bench::load::{Choice, Keys, Load};
use leasehold::bench::process::until_stopped;
use leasehold::bench::progress::Progress;
use leasehold::bench::report::{Report, Run};
use leasehold::bench::store::Store;
use leasehold::cli::arguments::bench::LoadTarget;
use leasehold::cli::failure::Failure;

pub(crate) use self::door::run as door;
use self::goals::Outcome;
use self::rows::{ROWS, Row};
pub(crate) use self::svg::picture;
use crate::arguments::{CompareArgs, GapCase};
use crate::etcd::{EtcdCluster, EtcdConnector};
use crate::gap::{GapReport, Turns};

const KEYS: u32 = 10_000;
const VALUE_BYTES: u32 = 256;
const TIMEOUT: Duration = Duration::from_secs(5);

/// A load average from which on a machine is not quiet.
const BUSY: f64 = 1.0;

/// The share of leased gets that may be served otherwise without a word.
const NOT_LEASED: f64 = 0.001;

/// Timings as short as etcd's shortest usual ones.
const FAST: [(&str, &str); 6] = [
    ("raft.heartbeat_interval", "10ms"),
    ("leader_lease.duration", "90ms"),
    ("leader_lease.max_clock_skew", "10ms"),
    ("raft.election_timeout_min", "100ms"),
    ("raft.election_timeout_max", "200ms"),
    ("raft.step_down_after", "150ms"),
];
const ETCD_FAST: [(&str, &str); 2] = [("heartbeat-interval", "10"), ("election-timeout", "100")];

/// How much is measured, and where the data of the clusters lies.
struct Options<'a> {
    rounds: u32,
    gap_rounds: u32,
    warm_up: Duration,
    duration: Duration,
    data: &'a Path,
    load_before: Option<f64>,
    only: Option<&'a str>,
}

impl<'a> Options<'a> {
    fn of(arguments: &'a CompareArgs) -> Self {
        let (rounds, gap_rounds, warm_up, duration) = match arguments.quick {
            true => (1, 2, 500, 1_500),
            false => (3, 5, 1_000, 4_000),
        };
        Self {
            rounds,
            gap_rounds,
            warm_up: Duration::from_millis(warm_up),
            duration: Duration::from_millis(duration),
            data: arguments.data.as_deref().unwrap_or(&arguments.out),
            load_before: arguments.load_before,
            only: arguments.only.as_deref(),
        }
    }

    /// A report that has begun, with the load from before anything ran.
    fn begin_report(&self) -> Report {
        let mut report = Report::begin();
        if self.load_before.is_some() {
            report.heading.load_average_before = self.load_before;
        }
        report
    }

    /// A cluster of ours, of the binary that was built beside this one.
    fn cluster(&self, settings: &[(&str, &str)], has_etcd_port: bool) -> ClusterPlan {
        ClusterPlan {
            program: PathBuf::from(env!("CARGO_BIN_EXE_leasehold")),
            parent: self.data.to_owned(),
            settings: owned(settings),
            has_etcd_port,
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_none_or(|only| name.contains(only))
    }

    fn plan(&self, row: &Row, keys: &Arc<Keys>, server_pids: Vec<u32>) -> Plan {
        Plan {
            load: Load {
                reads: row.reads,
                consistency: row.consistency,
                keys: keys.clone(),
                choice: Choice::Uniform,
            },
            clients: row.clients,
            connections: row.connections,
            threads: 1,
            rate: None,
            warm_up: self.warm_up,
            duration: self.duration,
            seed: 1,
            server_pids,
        }
    }
}

/// Measures it, and writes it down.
pub(crate) fn run(arguments: &CompareArgs, out: &mut impl io::Write) -> Result<(), Failure> {
    let options = Options::of(arguments);
    for directory in [&*arguments.out, options.data] {
        std::fs::create_dir_all(directory)?;
    }
    // Before anything takes time.
    let elsewhere = goals::elsewhere(&arguments.figures).map_err(Failure::usage)?;
    let measured = until_stopped(measure(&options))?;
    let mut outcomes = measured.outcomes();
    outcomes.extend(elsewhere);
    let table = measured.table(&options, &outcomes);
    let write = |name: &str, text: &str| std::fs::write(arguments.out.join(name), text);
    write("compare.md", &table)?;
    write("goals.md", &goals::table(&outcomes))?;
    // That of a run before is not to stand beside tables that it does not show.
    match picture(&table) {
        Some(picture) => write("compare.svg", &picture)?,
        None => drop(std::fs::remove_file(arguments.out.join("compare.svg"))),
    }
    let numbers = serde_json::json!({
        "loads": measured.report,
        "gaps": measured.gaps,
        "fast_gaps": measured.fast_gaps,
        "etcd": measured.etcd,
        "goals": outcomes.iter().map(Outcome::json).collect::<Vec<_>>(),
    });
    write("compare.json", &format!("{numbers:#}\n"))?;
    writeln!(out, "{table}")?;
    writeln!(
        out,
        "written to {}: compare.md, goals.md, compare.json, and beside etcd compare.svg",
        arguments.out.display()
    )?;
    Ok(out.flush()?)
}

/// Whether there is an etcd to compare with; says so if there is none.
fn has_etcd() -> bool {
    let is_there = EtcdCluster::program().is_some();
    if !is_there {
        // Not as progress: a log must contain it, too.
        let _ = writeln!(
            io::stderr(),
            "compare: there is no etcd here: SKIPPED, leasehold is measured alone"
        );
    }
    is_there
}

/// Everything that was found.
struct Results {
    /// Each row with its runs, ours and etcd's.
    rows: Vec<(&'static Row, Vec<Run>, Vec<Run>)>,
    report: Report,
    /// With each store's own defaults.
    gaps: GapReport,
    /// With short timings.
    fast_gaps: GapReport,
    /// Its version, if it is there.
    etcd: Option<String>,
}

async fn measure(options: &Options<'_>) -> Result<Results, Failure> {
    let progress = Progress::new(false);
    let has_etcd = has_etcd();
    let mut report = options.begin_report();
    let mut gaps_report = GapReport::begin();
    let mut fast_gaps = GapReport::begin();
    let plan = |settings: &[(&str, &str)]| options.cluster(settings, false);
    let mut ours = OwnCluster::start(&plan(&[])).await?;
    let mut theirs = match has_etcd {
        true => Some(EtcdCluster::start(options.data, &[]).await?),
        false => None,
    };
    let etcd = match &theirs {
        Some(theirs) => Some(theirs.version().await?),
        None => None,
    };
    let rows = loads(options, &ours, theirs.as_ref(), progress).await?;
    let cases: &[GapCase] = match options.only {
        None => &[GapCase::MoveLeader, GapCase::Kill],
        Some(_) => &[],
    };
    let rounds = options.gap_rounds;
    let mut turns = Turns {
        cases,
        rounds,
        progress,
        report: &mut gaps_report,
    };
    turns.take(&mut ours, theirs.as_mut()).await?;
    drop((ours, theirs));

    let mut ours = OwnCluster::start(&plan(&FAST)).await?;
    let mut theirs = match has_etcd {
        true => Some(EtcdCluster::start(options.data, &owned(&ETCD_FAST)).await?),
        false => None,
    };
    let cases = match options.only {
        None => &[GapCase::Kill][..],
        Some(_) => &[],
    };
    let mut turns = Turns {
        cases,
        rounds,
        progress,
        report: &mut fast_gaps,
    };
    turns.take(&mut ours, theirs.as_mut()).await?;
    drop((ours, theirs));

    report.runs = rows
        .iter()
        .flat_map(|(_, ours, theirs)| ours.iter().chain(theirs))
        .cloned()
        .collect();
    report.end();
    // Runs of different rows are no pairs.
    report.ratios.clear();
    gaps_report.end();
    fast_gaps.end();
    Ok(Results {
        rows,
        report,
        gaps: gaps_report,
        fast_gaps,
        etcd,
    })
}

async fn loads(
    options: &Options<'_>,
    ours: &OwnCluster,
    theirs: Option<&EtcdCluster>,
    progress: Progress,
) -> Result<Vec<(&'static Row, Vec<Run>, Vec<Run>)>, Failure> {
    let keys = Arc::new(Keys::new(KEYS, VALUE_BYTES));
    let our_connector = Leasehold::find(ours.target(), LoadTarget::Leader).await?;
    let their_connector = match theirs {
        Some(theirs) => {
            let endpoints = theirs.endpoints();
            Some(EtcdConnector::find(&endpoints, LoadTarget::Leader, TIMEOUT).await?)
        }
        None => None,
    };
    let plan = |row: &Row, pids: Vec<u32>| options.plan(row, &keys, pids);
    let first = plan(&ROWS[0], Vec::new());
    aside(our_connector.clone(), first.clone(), |connector, plan| {
        generator::fill(&connector, &plan.load)
    })
    .await?;
    if let Some(connector) = &their_connector {
        aside(connector.clone(), first, |connector, plan| {
            generator::fill(&connector, &plan.load)
        })
        .await?;
    }
    let mut rows = Vec::new();
    for row in ROWS.iter().filter(|row| options.wants(row.name)) {
        let (mut of_ours, mut of_theirs) = (Vec::new(), Vec::new());
        for round in 0..options.rounds {
            progress.say(&format!(
                "{} (round {} of {})",
                row.name,
                round + 1,
                options.rounds
            ));
            let load = move |connector, plan| Run::measure(&connector, &plan, progress);
            of_ours.push(aside(our_connector.clone(), plan(row, ours.pids()), load).await?);
            if let (Some(connector), Some(theirs)) = (&their_connector, theirs) {
                let load = move |connector, plan| Run::measure(&connector, &plan, progress);
                of_theirs.push(aside(connector.clone(), plan(row, theirs.pids()), load).await?);
            }
        }
        rows.push((row, of_ours, of_theirs));
    }
    Ok(rows)
}

/// Runs a load on threads of its own, while this one still handles signals.
async fn aside<C: Store, T: Send + 'static>(
    connector: C,
    plan: Plan,
    load: impl FnOnce(C, Plan) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let running = tokio::task::spawn_blocking(move || load(connector, plan));
    running
        .await
        .map_err(|error| Failure::refused(error.to_string()))?
}

fn owned(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    settings.iter().map(own).collect()
}

impl Results {
    fn gaps_of(&self, row: &rows::GapRow) -> &GapReport {
        if row.fast {
            &self.fast_gaps
        } else {
            &self.gaps
        }
    }

    /// Every goal that both stores are needed for, or a cluster of ours.
    fn outcomes(&self) -> Vec<Outcome> {
        let loads = self.rows.iter();
        let loads = loads.flat_map(|(row, ours, theirs)| row.outcomes(ours, theirs));
        let gaps = rows::GAPS.iter();
        let gaps = gaps.filter_map(|row| row.outcome(self.gaps_of(row)));
        loads.chain(gaps).collect()
    }

    fn table(&self, options: &Options<'_>, outcomes: &[Outcome]) -> String {
        let mut text = String::new();
        let etcd = self
            .etcd
            .as_deref()
            .map_or_else(|| "no etcd".to_owned(), |version| format!("etcd {version}"));
        let heading = &self.report.heading;
        let _ = writeln!(
            text,
            "leasehold {} (commit {}) and {etcd}: three nodes each; the load and all nodes on one \
             machine: {}. Values of {VALUE_BYTES} bytes, {KEYS} keys, {} rounds of {:?} in turns. \
             Figures are medians of the rounds, ratios those of the medians, with the least and \
             the greatest of any pair of neighbours.\n",
            heading.version,
            heading.commit,
            heading.machine(),
            options.rounds,
            options.duration,
        );
        text.push_str(
            "| Load | ops/s | p50 | p99 | server CPU/op | etcd ops/s | p50 | p99 | server CPU/op \
             | ops/s ratio |\n|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for (row, ours, theirs) in &self.rows {
            let _ = writeln!(text, "{}", row.line(ours, theirs));
        }
        text.push_str(
            "\n| Time without | median | worst | while all is well | etcd median | worst \
             | while all is well | ratio |\n|---|---|---|---|---|---|---|---|\n",
        );
        for row in &rows::GAPS {
            let _ = writeln!(text, "{}", row.line(self.gaps_of(row)));
        }
        text.push('\n');
        text.push_str(&goals::table(outcomes));
        if heading.load_average_before.is_some_and(|load| load > BUSY) {
            text.push_str(
                "\nThe machine had other work when this began: run it again when it has none, and \
                 trust no figure of this.\n",
            );
        }
        for (row, ours, _) in &self.rows {
            if let Some(share) = row.not_leased(ours).filter(|share| *share > NOT_LEASED) {
                let _ = writeln!(
                    text,
                    "\n{}: {:.1} % of the reads were not served under the lease.",
                    row.name,
                    share * 100.0
                );
            }
        }
        let failed: u64 = self.report.runs.iter().map(|run| run.failed).sum();
        if failed > 0 {
            let _ = writeln!(text, "\n{failed} requests failed: see compare.json.");
        }
        text
    }
}
