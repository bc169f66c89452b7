//! leasehold and etcd side by side, as `benches/compare.sh` runs it: three processes each, the same
//! load in turns, and how long nobody is answered when leadership changes hands.
//!
//! Both sync every write, both lie on the same disk, both are talked to through their own network
//! protocol by the same generator in this process. Where a ratio is shown, it is the median of pairs
//! of neighbours. Where etcd is not installed, its columns stay empty, and a line says so.
//!
//! Some loads alone: `cargo bench --features bench-etcd --bench compare -- --only put`.

#![expect(clippy::print_stdout, reason = "a bench prints what it found")]
#![expect(
    clippy::print_stderr,
    reason = "and says on standard error how far it has come"
)]

mod goals;
mod rows;
mod svg;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use leasehold::bench::cluster::{ClusterPlan, OwnCluster};
use leasehold::bench::command::{Turns, one, until_told_to_stop};
use leasehold::bench::gap::GapReport;
use leasehold::bench::generator;
use leasehold::bench::generator::Plan;
use leasehold::bench::leasehold::Leasehold;
use leasehold::bench::load::{Choice, Keys, Load};
use leasehold::bench::progress::Progress;
use leasehold::bench::report::{Report, Run};
use leasehold::bench::store::Connector;
use leasehold::cli::arguments::bench::{GapCase, LoadTarget};
use leasehold::cli::failure::Failure;
use leasehold::etcd::{EtcdCluster, EtcdConnector};

use crate::goals::Outcome;
use crate::rows::{ROWS, Row};

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

/// How much is measured, and where everything goes.
struct Options {
    rounds: u32,
    gap_rounds: u32,
    warm_up: Duration,
    duration: Duration,
    out: PathBuf,
    data: PathBuf,
    /// The load average before anything of ours ran, if that was not just now.
    load_before: Option<f64>,
    /// What other benches found.
    figures: Vec<PathBuf>,
    /// Only loads with this in their names, and no changes of leaders.
    only: Option<String>,
}

impl Options {
    fn of(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/compare");
        let mut options = Self {
            rounds: 3,
            gap_rounds: 5,
            warm_up: Duration::from_secs(1),
            duration: Duration::from_secs(4),
            data: target.clone(),
            out: target,
            load_before: None,
            figures: Vec::new(),
            only: None,
        };
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            let mut path = || arguments.next().map(PathBuf::from);
            match argument.as_str() {
                "--quick" => {
                    options.rounds = 1;
                    options.gap_rounds = 2;
                    options.warm_up = Duration::from_millis(500);
                    options.duration = Duration::from_millis(1_500);
                }
                "--out" => options.out = path().ok_or("--out wants a directory")?,
                "--data" => options.data = path().ok_or("--data wants a directory")?,
                "--load-before" => {
                    let load = arguments.next().and_then(|load| load.parse().ok());
                    options.load_before = Some(load.ok_or("--load-before wants a number")?);
                }
                "--figures" => {
                    let file = path().ok_or("--figures wants a file")?;
                    options.figures.push(file);
                }
                "--only" => {
                    let name = arguments
                        .next()
                        .ok_or("--only wants a part of a load's name")?;
                    options.only = Some(name);
                }
                // What cargo says to every bench.
                "--bench" => {}
                other => {
                    return Err(format!(
                        "{other}: only --quick, --out DIR, --data DIR, --load-before LOAD, \
                         --figures FILE and --only NAME"
                    ));
                }
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    let options = match Options::of(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("compare: {error}");
            return ExitCode::from(2);
        }
    };
    match compare(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("compare: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn compare(options: &Options) -> Result<(), Failure> {
    for directory in [&options.out, &options.data] {
        std::fs::create_dir_all(directory)?;
    }
    // Before anything takes time.
    let elsewhere = goals::elsewhere(&options.figures).map_err(Failure::usage)?;
    let measured = until_told_to_stop(measure(options))?;
    let mut outcomes = measured.outcomes();
    outcomes.extend(elsewhere);
    let table = measured.table(options, &outcomes);
    let write = |name: &str, text: &str| std::fs::write(options.out.join(name), text);
    write("compare.md", &table)?;
    write("goals.md", &goals::table(&outcomes))?;
    write("compare.svg", &svg::picture(&measured))?;
    let numbers = serde_json::json!({
        "loads": measured.report,
        "gaps": measured.gaps,
        "fast_gaps": measured.fast_gaps,
        "etcd": measured.etcd,
        "goals": outcomes.iter().map(Outcome::json).collect::<Vec<_>>(),
    });
    write("compare.json", &format!("{numbers:#}\n"))?;
    println!("{table}");
    println!(
        "written to {}: compare.md, goals.md, compare.svg, compare.json",
        options.out.display()
    );
    Ok(())
}

/// Everything that was found.
struct Measured {
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

async fn measure(options: &Options) -> Result<Measured, Failure> {
    let has_etcd = EtcdCluster::program().is_some();
    if !has_etcd {
        eprintln!("compare: there is no etcd here: SKIPPED, leasehold is measured alone");
    }
    let mut report = Report::begin();
    if options.load_before.is_some() {
        report.heading.load_average_before = options.load_before;
    }
    let mut gaps_report = GapReport::begin();
    let mut fast_gaps = GapReport::begin();
    let plan = |settings: &[(&str, &str)]| ClusterPlan {
        program: PathBuf::from(env!("CARGO_BIN_EXE_leasehold")),
        parent: options.data.clone(),
        settings: owned(settings),
    };
    let progress = Progress::new(false);

    let mut ours = OwnCluster::start(&plan(&[])).await?;
    let mut theirs = match has_etcd {
        true => Some(EtcdCluster::start(&options.data, &[]).await?),
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
        true => Some(EtcdCluster::start(&options.data, &owned(&ETCD_FAST)).await?),
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
    Ok(Measured {
        rows,
        report,
        gaps: gaps_report,
        fast_gaps,
        etcd,
    })
}

async fn loads(
    options: &Options,
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
    let plan = |row: &Row, pids: Vec<u32>| Plan {
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
        warm_up: options.warm_up,
        duration: options.duration,
        seed: 1,
        server_pids: pids,
    };
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
    let is_wanted = |row: &&Row| {
        let only = options.only.as_deref();
        only.is_none_or(|only| row.name.contains(only))
    };
    for row in ROWS.iter().filter(is_wanted) {
        let (mut of_ours, mut of_theirs) = (Vec::new(), Vec::new());
        for round in 0..options.rounds {
            progress.say(&format!(
                "{} (round {} of {})",
                row.name,
                round + 1,
                options.rounds
            ));
            let load = move |connector, plan| one(&connector, &plan, progress);
            of_ours.push(aside(our_connector.clone(), plan(row, ours.pids()), load).await?);
            if let (Some(connector), Some(theirs)) = (&their_connector, theirs) {
                let load = move |connector, plan| one(&connector, &plan, progress);
                of_theirs.push(aside(connector.clone(), plan(row, theirs.pids()), load).await?);
            }
        }
        rows.push((row, of_ours, of_theirs));
    }
    Ok(rows)
}

/// Runs a load on threads of its own, while this one still hears that it should stop.
async fn aside<C: Connector, T: Send + 'static>(
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

impl Measured {
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

    fn table(&self, options: &Options, outcomes: &[Outcome]) -> String {
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
