//! `benches/compare.sh --door`: the port for etcd's clients beside etcd.
//!
//! One client, the same messages and the same generator on both, and on a bare HTTP/2 echo, which is as much
//! as a server of this protocol can do. Reads and writes of single keys, renewals, many watches of one
//! key, and how long nothing is answered after the leader was killed.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use leasehold::bench::cluster::OwnCluster;
use leasehold::bench::generator;
use leasehold::bench::keep_alive::{self, Renewals};
use leasehold::bench::load::Keys;
use leasehold::bench::memory::resident_bytes;
use leasehold::bench::process::until_stopped;
use leasehold::bench::progress::Progress;
use leasehold::bench::report::{Report, Run};
use leasehold::bench::store::{Connection, Store, WatchTarget};
use leasehold::bench::watch;
use leasehold::cli::arguments::bench::{LoadTarget, WatchLoadArgs};
use leasehold::cli::failure::Failure;

use super::goals::{self, Limit, Outcome, Unit};
use super::rows::{
    self, GapGoal, GapRow, Goal, LEASED, Row, STALE, Spread, gap, get, micros, of, put, ratio_text,
    text, throughput,
};
use super::{BUSY, KEYS, Options, TIMEOUT, VALUE_BYTES, aside, has_etcd};
use crate::arguments::{CompareArgs, GapCase};
use crate::etcd::{Echo, EtcdCluster, EtcdConnector, EtcdProber};
use crate::gap::{GapReport, Subject, Turns};

const COMMAND: &str = "benches/compare.sh --door";
/// What is put on the leader of each store, and, where it says so, on the echo.
const ROWS: [DoorRow; 9] = [
    at_leader(get("get, 1 client", LEASED, 1, 1, &[Goal::P50(0.6)])),
    beside_echo(get("get, 64 clients", LEASED, 64, 1, GETS)),
    beside_echo(get(
        "get, 64 clients on 16 connections",
        LEASED,
        64,
        16,
        GETS,
    )),
    at_leader(get(
        "serializable get, 64 clients",
        STALE,
        64,
        1,
        &[Goal::Throughput(2.0)],
    )),
    at_leader(put("put, 1 client", 1, 1, &[])),
    at_leader(put(PUTS, 64, 1, &[Goal::Throughput(1.5)])),
    at_leader(put(PUTS_ON_3, 64, 3, &[])),
    DoorRow {
        place: Place::Everywhere,
        ..at_leader(put(PUTS_EVERYWHERE, 64, 3, &[]))
    },
    DoorRow {
        place: Place::Renewals,
        ..at_leader(put(
            "renewal of a lease, 64 clients",
            64,
            1,
            &[Goal::Throughput(1.5)],
        ))
    },
];
const GETS: &[Goal] = &[Goal::Throughput(3.0), Goal::P99(0.3), Goal::Cpu(8.0)];
const PUTS: &str = "put, 64 clients";
const PUTS_ON_3: &str = "put, 64 clients on 3 connections";
const PUTS_EVERYWHERE: &str = "put, 64 clients on 3 connections, one to each node";
/// Our throughput at least so much of the echo's.
const OF_ECHO: f64 = 0.6;
/// Puts at all nodes at least so much of those at the leader.
const OF_LEADER: f64 = 0.9;
/// Leases of each connection.
const LEASES: u32 = 1_000;

/// Watches of one key.
const WATCHERS: usize = 10_000;
const WATCH_CONNECTIONS: usize = 4;
const WATCH_RATE: u64 = 4;
/// The delay's 99th percentile at most so much of etcd's.
const WATCH_DELAY: f64 = 0.5;
/// Memory of the node that serves them, at most so much for each.
const WATCH_BYTES: f64 = 4_096.0;

const GAPS: [GapRow; 2] = [
    gap(
        "reads, leader killed",
        GapCase::Kill,
        "read",
        GapGoal::Ratio(0.6),
    ),
    gap(
        "writes, leader killed",
        GapCase::Kill,
        "write",
        GapGoal::None,
    ),
];

struct DoorRow {
    row: Row,
    place: Place,
    beside_echo: bool,
}

/// Where a load is put, and of what kind it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Leader,
    /// A connection to each node.
    Everywhere,
    /// The leader, which renews leases.
    Renewals,
}

const fn at_leader(row: Row) -> DoorRow {
    DoorRow {
        row,
        place: Place::Leader,
        beside_echo: false,
    }
}

const fn beside_echo(row: Row) -> DoorRow {
    DoorRow {
        beside_echo: true,
        ..at_leader(row)
    }
}

/// Measures it, and writes it down.
pub(crate) fn run(arguments: &CompareArgs, out: &mut impl io::Write) -> Result<(), Failure> {
    let options = Options::of(arguments);
    for directory in [&*arguments.out, options.data] {
        std::fs::create_dir_all(directory)?;
    }
    let results = until_stopped(measure(&options))?;
    let outcomes = results.outcomes();
    let table = results.table(&options, &outcomes);
    let write = |name: &str, text: &str| std::fs::write(arguments.out.join(name), text);
    write("door.md", &table)?;
    let numbers = serde_json::json!({
        "loads": results.report,
        "watches": {
            "leasehold": results.watches.ours,
            "etcd": results.watches.theirs,
            "leasehold_bytes_each": results.watches.our_bytes,
            "etcd_bytes_each": results.watches.their_bytes,
        },
        "gaps": results.gaps,
        "etcd": results.etcd,
        "goals": outcomes.iter().map(Outcome::json).collect::<Vec<_>>(),
    });
    write("door.json", &format!("{numbers:#}\n"))?;
    writeln!(out, "{table}")?;
    writeln!(
        out,
        "written to {}: door.md, door.json",
        arguments.out.display()
    )?;
    Ok(out.flush()?)
}

/// A cluster of ours, asked at its port for etcd's clients.
struct Door(OwnCluster);

impl Door {
    fn endpoints(&self) -> Vec<String> {
        let endpoint = |number| self.0.addresses(number).etcd.to_string();
        (0..3).map(endpoint).collect()
    }
}

impl Subject for Door {
    type Prober = EtcdProber;

    fn name(&self) -> &'static str {
        "leasehold"
    }

    async fn prober(&mut self) -> Result<EtcdProber, Failure> {
        EtcdProber::new(&self.endpoints())
    }

    async fn wait_until_whole(&mut self) -> Result<usize, Failure> {
        self.0.wait_until_whole().await
    }

    async fn wait_for_other_leader(&mut self, former: usize) -> Result<(), Failure> {
        self.0.wait_for_leader(Some(former)).await?;
        Ok(())
    }

    async fn disturb(&mut self, leader: usize, case: GapCase) -> Result<(), Failure> {
        self.0.disturb(leader, case).await
    }

    fn repair(&mut self, former: usize, case: GapCase) -> Result<(), Failure> {
        self.0.repair(former, case)
    }
}

/// One store's servers, as its clients find them.
struct Side {
    leader: EtcdConnector,
    everywhere: EtcdConnector,
    pids: Vec<u32>,
}

impl Side {
    async fn find(endpoints: &[String], pids: Vec<u32>) -> Result<Self, Failure> {
        Ok(Self {
            leader: EtcdConnector::find(endpoints, LoadTarget::Leader, TIMEOUT).await?,
            everywhere: EtcdConnector::find(endpoints, LoadTarget::Any, TIMEOUT).await?,
            pids,
        })
    }
}

/// A row with its runs: ours, etcd's, the echo's.
struct Measured {
    row: &'static DoorRow,
    ours: Vec<Run>,
    theirs: Vec<Run>,
    echo: Vec<Run>,
}

/// Many watches of one key.
#[derive(Default)]
struct Watches {
    ours: Vec<watch::Run>,
    theirs: Vec<watch::Run>,
    our_bytes: Vec<f64>,
    their_bytes: Vec<f64>,
}

/// Everything that was found.
struct Results {
    rows: Vec<Measured>,
    watches: Watches,
    report: Report,
    gaps: GapReport,
    etcd: Option<String>,
}

async fn measure(options: &Options<'_>) -> Result<Results, Failure> {
    let progress = Progress::new(false);
    let mut report = options.begin_report();
    let mut gaps = GapReport::begin();
    let plan = options.cluster(&[], true);
    let mut door = Door(OwnCluster::start(&plan).await?);
    let mut etcd = match has_etcd() {
        true => Some(EtcdCluster::start(options.data, &[]).await?),
        false => None,
    };
    let ours = Side::find(&door.endpoints(), door.0.pids()).await?;
    let (version, theirs) = match &etcd {
        Some(etcd) => (
            Some(etcd.version().await?),
            Some(Side::find(&etcd.endpoints(), etcd.pids()).await?),
        ),
        None => (None, None),
    };
    let rows = loads(options, &ours, theirs.as_ref(), progress).await?;
    let watches = match options.wants("watches") {
        true => watches(options, &ours, theirs.as_ref(), progress).await?,
        false => Watches::default(),
    };
    if options.wants("gaps") {
        let mut turns = Turns {
            cases: &[GapCase::Kill],
            rounds: options.gap_rounds,
            progress,
            report: &mut gaps,
        };
        turns.take(&mut door, etcd.as_mut()).await?;
    }
    let all = rows
        .iter()
        .flat_map(|row| row.ours.iter().chain(&row.theirs).chain(&row.echo));
    report.runs = all.cloned().collect();
    report.end();
    // Runs of different rows are no pairs.
    report.ratios.clear();
    gaps.end();
    Ok(Results {
        rows,
        watches,
        report,
        gaps,
        etcd: version,
    })
}

async fn loads(
    options: &Options<'_>,
    ours: &Side,
    theirs: Option<&Side>,
    progress: Progress,
) -> Result<Vec<Measured>, Failure> {
    let keys = Arc::new(Keys::new(KEYS, VALUE_BYTES));
    let echo = Echo::start(options.data, VALUE_BYTES).await?;
    let echo_side = Side {
        leader: echo.connector(TIMEOUT).await?,
        everywhere: echo.connector(TIMEOUT).await?,
        pids: vec![echo.pid()],
    };
    for side in [Some(ours), theirs].into_iter().flatten() {
        let plan = options.plan(&ROWS[0].row, &keys, Vec::new());
        aside(side.leader.clone(), plan, |connector, plan| {
            generator::fill(&connector, &plan.load)
        })
        .await?;
    }
    let mut rows = Vec::new();
    for row in ROWS.iter().filter(|row| options.wants(row.row.name)) {
        let mut measured = Measured {
            row,
            ours: Vec::new(),
            theirs: Vec::new(),
            echo: Vec::new(),
        };
        for round in 1..=options.rounds {
            let (name, rounds) = (row.row.name, options.rounds);
            progress.say(&format!("{name} (round {round} of {rounds})"));
            let run = async |side: &Side| {
                let plan = options.plan(&row.row, &keys, side.pids.clone());
                let (leader, everywhere) = (side.leader.clone(), side.everywhere.clone());
                match row.place {
                    Place::Leader => put_on(leader, plan, progress).await,
                    Place::Everywhere => put_on(everywhere, plan, progress).await,
                    Place::Renewals => {
                        let renewals = Renewals::new(leader, LEASES, 1);
                        aside(renewals, plan, move |renewals, plan| {
                            keep_alive::measure(&renewals, &plan, 1, progress)
                        })
                        .await
                    }
                }
            };
            measured.ours.push(run(ours).await?);
            if let Some(theirs) = theirs {
                measured.theirs.push(run(theirs).await?);
            }
            if row.beside_echo {
                let mut run = run(&echo_side).await?;
                run.store = "echo";
                measured.echo.push(run);
            }
        }
        rows.push(measured);
    }
    Ok(rows)
}

async fn put_on(
    connector: EtcdConnector,
    plan: generator::Plan,
    progress: Progress,
) -> Result<Run, Failure> {
    aside(connector, plan, move |connector, plan| {
        Run::measure(&connector, &plan, progress)
    })
    .await
}

async fn watches(
    options: &Options<'_>,
    ours: &Side,
    theirs: Option<&Side>,
    progress: Progress,
) -> Result<Watches, Failure> {
    let mut found = Watches::default();
    for round in 1..=options.rounds {
        progress.say(&format!(
            "{WATCHERS} watches of one key (round {round} of {})",
            options.rounds
        ));
        // Later ones find the memory of those before.
        let is_first = round == 1;
        if is_first {
            let bytes = watch_bytes(&ours.leader, &ours.pids).await?;
            found.our_bytes.push(bytes);
        }
        found.ours.push(watch_load(options, ours, progress).await?);
        if let Some(theirs) = theirs {
            if is_first {
                let bytes = watch_bytes(&theirs.leader, &theirs.pids).await?;
                found.their_bytes.push(bytes);
            }
            found
                .theirs
                .push(watch_load(options, theirs, progress).await?);
        }
    }
    Ok(found)
}

/// By how much the servers' memory grows with each watch, before anything happens.
async fn watch_bytes(store: &EtcdConnector, pids: &[u32]) -> Result<f64, Failure> {
    let before = resident_bytes(pids)?;
    let mut held = Vec::new();
    let mut connections = Vec::new();
    for number in 0..WATCH_CONNECTIONS {
        let connection = store.connect(number).await?;
        for _ in 0..WATCHERS / WATCH_CONNECTIONS {
            let target = WatchTarget::Key {
                key: "bench/watched".into(),
                start: 0,
            };
            held.push(connection.watch(target).await?);
        }
        connections.push(connection);
    }
    let after = resident_bytes(pids)?;
    drop(held);
    for connection in connections {
        connection.close().await;
    }
    Ok(after.saturating_sub(before) as f64 / WATCHERS as f64)
}

async fn watch_load(
    options: &Options<'_>,
    side: &Side,
    progress: Progress,
) -> Result<watch::Run, Failure> {
    let arguments = WatchLoadArgs {
        watchers: WATCHERS,
        connections: WATCH_CONNECTIONS,
        keys: 1,
        rate: WATCH_RATE,
        value_size: 64,
        duration: options.duration * 2,
        catch_up: 0,
        endpoint: None,
        find_rate: false,
        step: Duration::ZERO,
        server_pid: Vec::new(),
        quiet: true,
    };
    let store = side.leader.clone();
    let running = tokio::task::spawn_blocking(move || {
        let runtime = watch::runtime()?;
        runtime.block_on(watch::measure(&arguments, &store, progress))
    });
    running
        .await
        .map_err(|error| Failure::refused(error.to_string()))?
}

impl Results {
    fn outcomes(&self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for measured in &self.rows {
            let Measured {
                row, ours, theirs, ..
            } = measured;
            outcomes.extend(row.row.outcomes(ours, theirs));
            if row.beside_echo {
                outcomes.push(Outcome::new(
                    format!("{}: throughput / a bare HTTP/2 echo's", row.row.name),
                    Limit::AtLeast(OF_ECHO),
                    Unit::Times,
                    rows::ratio(ours, &measured.echo, throughput),
                ));
            }
        }
        let row = |name| {
            self.rows
                .iter()
                .find(|measured| measured.row.row.name == name)
        };
        if let (Some(everywhere), Some(leader)) = (row(PUTS_EVERYWHERE), row(PUTS_ON_3)) {
            outcomes.push(Outcome::new(
                format!("{PUTS_EVERYWHERE}: throughput / those at the leader"),
                Limit::AtLeast(OF_LEADER),
                Unit::Times,
                rows::ratio(&everywhere.ours, &leader.ours, throughput),
            ));
        }
        if !self.watches.ours.is_empty() {
            let p99 = |runs: &[watch::Run]| runs.iter().map(|run| run.p99_us).collect::<Vec<_>>();
            outcomes.push(Outcome::new(
                format!("{WATCHERS} watches of one key: p99 of the delay / etcd's"),
                Limit::AtMost(WATCH_DELAY),
                Unit::Times,
                Spread::of(&p99(&self.watches.ours), &p99(&self.watches.theirs)),
            ));
            outcomes.push(Outcome::new(
                format!("{WATCHERS} watches of one key: memory of all servers for each"),
                Limit::AtMost(WATCH_BYTES),
                Unit::Bytes,
                Spread::alone(&self.watches.our_bytes),
            ));
        }
        outcomes.extend(GAPS.iter().filter_map(|row| row.outcome(&self.gaps)));
        let by_door = |outcome: Outcome| outcome.by(COMMAND);
        outcomes.into_iter().map(by_door).collect()
    }

    fn table(&self, options: &Options<'_>, outcomes: &[Outcome]) -> String {
        let mut text = String::new();
        let etcd = self.etcd.as_deref();
        let etcd = etcd.map_or_else(|| "no etcd".to_owned(), |version| format!("etcd {version}"));
        let heading = &self.report.heading;
        let _ = writeln!(
            text,
            "The port for etcd's clients of leasehold {} (commit {}), and {etcd}: three nodes each; one client \
             of etcd, without TLS, and all nodes on one machine: {}. Values of {VALUE_BYTES} bytes, {KEYS} \
             keys, {} rounds of {:?} in turns. Figures are medians of the rounds, ratios those of the medians, \
             with the least and the greatest of any pair of neighbours.\n",
            heading.version,
            heading.commit,
            heading.machine(),
            options.rounds,
            options.duration,
        );
        text.push_str(
            "| Load | ops/s | p50 | p99 | server CPU/op | etcd ops/s | p50 | p99 | server CPU/op \
             | ops/s ratio | echo ops/s | of the echo |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for measured in &self.rows {
            let line = measured.row.row.line(&measured.ours, &measured.theirs);
            let echo = rows::text(
                of(&measured.echo, throughput),
                leasehold::bench::figures::number_text,
            );
            let share = ratio_text(rows::ratio(&measured.ours, &measured.echo, throughput));
            let _ = writeln!(text, "{line} {echo} | {share} |");
        }
        self.watch_table(&mut text);
        text.push_str(
            "\n| Time without | median | worst | while all is well | etcd median | worst \
             | while all is well | ratio |\n|---|---|---|---|---|---|---|---|\n",
        );
        for row in &GAPS {
            let _ = writeln!(text, "{}", row.line(&self.gaps));
        }
        text.push('\n');
        text.push_str(&goals::table(outcomes));
        if heading.load_average_before.is_some_and(|load| load > BUSY) {
            text.push_str(
                "\nThe machine had other work when this began: run it again when it has none, and \
                 trust no figure of this.\n",
            );
        }
        let failed: u64 = self.report.runs.iter().map(|run| run.failed).sum();
        if failed > 0 {
            let _ = writeln!(text, "\n{failed} requests failed: see door.json.");
        }
        text
    }

    fn watch_table(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "\n| {WATCHERS} watches of one key on {WATCH_CONNECTIONS} connections, {WATCH_RATE} puts a second | \
             events/s | delay p50 | p99 | interrupted | memory of all servers, each |\n|---|---|---|---|---|---|"
        );
        let Watches {
            ours,
            theirs,
            our_bytes,
            their_bytes,
        } = &self.watches;
        for (name, runs, bytes) in [
            ("leasehold", ours, our_bytes),
            ("etcd", theirs, their_bytes),
        ] {
            let median = |figure: fn(&watch::Run) -> f64| {
                let all: Vec<f64> = runs.iter().map(figure).collect();
                (!all.is_empty()).then(|| leasehold::bench::figures::median(&all))
            };
            let bytes = Spread::alone(bytes).map(|spread| spread.median);
            let number = leasehold::bench::figures::number_text;
            let _ = writeln!(
                out,
                "| {name} | {} | {} | {} | {} | {} |",
                text(median(|run| run.events_per_second), number),
                text(median(|run| run.p50_us), micros),
                text(median(|run| run.p99_us), micros),
                text(median(|run| run.resumed as f64), number),
                text(bytes, number),
            );
        }
    }
}
