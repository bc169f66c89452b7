//! What is compared, and what we aim at.

use crate::arguments::GapCase;
use crate::gap::{Gap, GapReport};
use leasehold::api::Consistency;
use leasehold::bench::figures::{duration_text, median, number_text};
use leasehold::bench::report::Run;

use std::time::Duration;

use super::goals::{Limit, Outcome, Unit};

/// A load on both stores.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) reads: f64,
    pub(crate) consistency: Consistency,
    pub(crate) clients: u32,
    pub(crate) connections: u32,
    pub(crate) goals: &'static [Goal],
}

/// What is aimed at.
pub(crate) enum Goal {
    /// Throughput at least so many times etcd's.
    Throughput(f64),
    /// The median latency at most so much of etcd's.
    P50(f64),
    /// The 99th percentile at most so much of etcd's.
    P99(f64),
    /// Servers' CPU time per request, at most so many microseconds.
    Cpu(f64),
}

pub(crate) const fn get(
    name: &'static str,
    consistency: Consistency,
    clients: u32,
    connections: u32,
    goals: &'static [Goal],
) -> Row {
    Row {
        name,
        reads: 1.0,
        consistency,
        clients,
        connections,
        goals,
    }
}

pub(crate) const fn put(
    name: &'static str,
    clients: u32,
    connections: u32,
    goals: &'static [Goal],
) -> Row {
    Row {
        name,
        reads: 0.0,
        consistency: Consistency::Linearizable,
        clients,
        connections,
        goals,
    }
}

pub(crate) const LEASED: Consistency = Consistency::Linearizable;
const QUORUM: Consistency = Consistency::LinearizableQuorum;
pub(crate) const STALE: Consistency = Consistency::Serializable;

/// Every load, in the order in which it is put on.
pub(crate) const ROWS: [Row; 15] = [
    get("leased get, 1 client", LEASED, 1, 1, &[]),
    get("leased get, 16 clients", LEASED, 16, 1, &[]),
    get(
        "leased get, 64 clients",
        LEASED,
        64,
        1,
        &[Goal::Throughput(25.0), Goal::P99(0.05), Goal::Cpu(2.0)],
    ),
    get(
        "leased get, 256 clients",
        LEASED,
        256,
        1,
        &[Goal::Throughput(30.0), Goal::Cpu(1.2)],
    ),
    get(
        "leased get, 64 clients on 16 connections",
        LEASED,
        64,
        16,
        &[Goal::Throughput(12.0)],
    ),
    get(
        "leased get, 256 clients on 16 connections",
        LEASED,
        256,
        16,
        &[],
    ),
    get("quorum get, 1 client", QUORUM, 1, 1, &[]),
    get(
        "quorum get, 64 clients",
        QUORUM,
        64,
        1,
        &[Goal::Throughput(5.0)],
    ),
    get("serializable get, 1 client", STALE, 1, 1, &[]),
    get("serializable get, 64 clients", STALE, 64, 1, &[]),
    get("serializable get, 256 clients", STALE, 256, 1, &[]),
    put("put, 1 client", 1, 1, &[Goal::P50(0.7)]),
    put("put, 16 clients", 16, 1, &[]),
    put("put, 64 clients", 64, 1, &[Goal::Throughput(3.0)]),
    put("put, 256 clients", 256, 1, &[Goal::Throughput(3.0)]),
];

/// A figure, of many runs.
pub(crate) fn of(runs: &[Run], figure: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    let figures: Vec<f64> = runs.iter().filter_map(figure).collect();
    (!figures.is_empty()).then(|| median(&figures))
}

/// One figure over another, over all rounds.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    /// Our median over theirs; or the median of one that is a ratio already.
    pub(crate) median: f64,
    /// The least of any pair of neighbours.
    pub(crate) least: f64,
    /// The greatest.
    pub(crate) most: f64,
}

impl Spread {
    /// Of rounds that took turns; nothing if one side has none, or is zero.
    pub(crate) fn of(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let pairs = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs);
        let pairs: Vec<f64> = pairs.filter(|ratio| ratio.is_finite()).collect();
        let median = median(ours) / median(theirs);
        (!pairs.is_empty() && median.is_finite()).then(|| Self::around(median, &pairs))
    }

    /// Of figures that are compared with nothing.
    pub(crate) fn alone(figures: &[f64]) -> Option<Self> {
        (!figures.is_empty()).then(|| Self::around(median(figures), figures))
    }

    fn around(median: f64, all: &[f64]) -> Self {
        Self {
            median,
            least: all.iter().copied().fold(f64::INFINITY, f64::min),
            most: all.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    /// With its range, written by `show`.
    pub(crate) fn text(self, show: impl Fn(f64) -> String) -> String {
        let (median, least, most) = (show(self.median), show(self.least), show(self.most));
        match least == most {
            true => median,
            false => format!("{median} ({least} to {most})"),
        }
    }
}

/// Our figure over etcd's.
pub(crate) fn ratio(
    ours: &[Run],
    theirs: &[Run],
    figure: impl Fn(&Run) -> Option<f64>,
) -> Option<Spread> {
    let all = |runs: &[Run]| runs.iter().filter_map(&figure).collect::<Vec<f64>>();
    Spread::of(&all(ours), &all(theirs))
}

pub(crate) fn throughput(run: &Run) -> Option<f64> {
    Some(run.ops_per_second)
}

fn p50(run: &Run) -> Option<f64> {
    run.operations
        .values()
        .next()
        .map(|operation| operation.latency_us.p50)
}

fn p99(run: &Run) -> Option<f64> {
    run.operations
        .values()
        .next()
        .map(|operation| operation.latency_us.p99)
}

fn cpu(run: &Run) -> Option<f64> {
    run.server_cpu_us_per_op
}

impl Row {
    /// Of reads that are to be served under the lease, the share that was not.
    pub(crate) fn not_leased(&self, ours: &[Run]) -> Option<f64> {
        if self.reads < 1.0 || self.consistency != LEASED {
            return None;
        }
        let paths = || ours.iter().flat_map(|run| &run.read_paths);
        let all: u64 = paths().map(|(_, count)| count).sum();
        let leased = paths().filter(|(path, _)| **path == "lease");
        let leased: u64 = leased.map(|(_, count)| count).sum();
        (all > 0).then(|| 1.0 - leased as f64 / all as f64)
    }

    /// The row of the table.
    pub(crate) fn line(&self, ours: &[Run], theirs: &[Run]) -> String {
        let mut cells = vec![self.name.to_owned()];
        for runs in [ours, theirs] {
            cells.push(text(of(runs, throughput), number_text));
            cells.push(text(of(runs, p50), micros));
            cells.push(text(of(runs, p99), micros));
            cells.push(text(of(runs, cpu), micros));
        }
        cells.push(ratio_text(ratio(ours, theirs, throughput)));
        format!("| {} |", cells.join(" | "))
    }
}

impl Row {
    /// What is aimed at, and what came of it.
    pub(crate) fn outcomes(&self, ours: &[Run], theirs: &[Run]) -> Vec<Outcome> {
        let of = |goal: &Goal| match *goal {
            Goal::Throughput(least) => Outcome::new(
                format!("{}: throughput / etcd's", self.name),
                Limit::AtLeast(least),
                Unit::Times,
                ratio(ours, theirs, throughput),
            ),
            Goal::P50(most) => Outcome::new(
                format!("{}: p50 / etcd's", self.name),
                Limit::AtMost(most),
                Unit::Times,
                ratio(ours, theirs, p50),
            ),
            Goal::P99(most) => Outcome::new(
                format!("{}: p99 / etcd's", self.name),
                Limit::AtMost(most),
                Unit::Times,
                ratio(ours, theirs, p99),
            ),
            Goal::Cpu(most) => {
                let spent: Vec<f64> = ours.iter().filter_map(cpu).collect();
                Outcome::new(
                    format!("{}: CPU of all servers", self.name),
                    Limit::AtMost(most),
                    Unit::Micros,
                    Spread::alone(&spent),
                )
            }
        };
        self.goals.iter().map(of).collect()
    }
}

/// A gap of both stores.
pub(crate) struct GapRow {
    name: &'static str,
    case: GapCase,
    probe: &'static str,
    /// With short timings, instead of each store's defaults.
    pub(crate) fast: bool,
    goal: GapGoal,
}

pub(crate) enum GapGoal {
    None,
    /// The median at most so much of etcd's.
    Ratio(f64),
    /// The median at most so many milliseconds.
    Millis(f64),
}

pub(crate) const fn gap(
    name: &'static str,
    case: GapCase,
    probe: &'static str,
    goal: GapGoal,
) -> GapRow {
    GapRow {
        name,
        case,
        probe,
        fast: false,
        goal,
    }
}

/// Every gap.
pub(crate) const GAPS: [GapRow; 7] = [
    gap(
        "reads, leader killed",
        GapCase::Kill,
        "read",
        GapGoal::Ratio(0.8),
    ),
    gap(
        "writes, leader killed",
        GapCase::Kill,
        "write",
        GapGoal::None,
    ),
    gap(
        "reads by the SDK, leader killed",
        GapCase::Kill,
        "read_by_sdk",
        GapGoal::None,
    ),
    gap(
        "reads, planned transfer",
        GapCase::MoveLeader,
        "read",
        GapGoal::Millis(5.0),
    ),
    gap(
        "writes, planned transfer",
        GapCase::MoveLeader,
        "write",
        GapGoal::None,
    ),
    GapRow {
        name: "reads, leader killed, short timings",
        case: GapCase::Kill,
        probe: "read",
        fast: true,
        goal: GapGoal::Ratio(1.2),
    },
    GapRow {
        name: "writes, leader killed, short timings",
        case: GapCase::Kill,
        probe: "write",
        fast: true,
        goal: GapGoal::None,
    },
];

impl GapRow {
    /// The row of the table.
    pub(crate) fn line(&self, report: &GapReport) -> String {
        let mut cells = vec![self.name.to_owned()];
        for gap in self.of_both(report) {
            cells.push(text(gap.map(|gap| gap.median_ms), millis));
            cells.push(text(gap.map(|gap| gap.worst_ms), millis));
            cells.push(text(gap.map(|gap| gap.noise_ms), millis));
        }
        cells.push(ratio_text(self.ratio(report)));
        format!("| {} |", cells.join(" | "))
    }

    fn ratio(&self, report: &GapReport) -> Option<Spread> {
        let [ours, theirs] = self.of_both(report);
        Spread::of(&ours?.rounds_ms, &theirs?.rounds_ms)
    }

    fn of_both<'a>(&self, report: &'a GapReport) -> [Option<&'a Gap>; 2] {
        ["leasehold", "etcd"].map(|store| report.find(store, self.case, self.probe))
    }

    /// What is aimed at, and what came of it.
    pub(crate) fn outcome(&self, report: &GapReport) -> Option<Outcome> {
        let name = format!("time without {}", self.name);
        match self.goal {
            GapGoal::None => None,
            GapGoal::Ratio(most) => Some(Outcome::new(
                format!("{name} / etcd's"),
                Limit::AtMost(most),
                Unit::Times,
                self.ratio(report),
            )),
            GapGoal::Millis(most) => {
                let [ours, _] = self.of_both(report);
                Some(Outcome::new(
                    name,
                    Limit::AtMost(most),
                    Unit::Millis,
                    ours.and_then(|gap| Spread::alone(&gap.rounds_ms)),
                ))
            }
        }
    }
}

pub(crate) fn ratio_text(ratio: Option<Spread>) -> String {
    ratio.map_or_else(|| "–".to_owned(), |ratio| ratio.text(times))
}

pub(crate) fn text(figure: Option<f64>, show: impl Fn(f64) -> String) -> String {
    figure.map_or_else(|| "–".to_owned(), show)
}

pub(crate) fn micros(micros: f64) -> String {
    duration_text(Duration::from_secs_f64(micros / 1e6))
}

pub(crate) fn millis(millis: f64) -> String {
    duration_text(Duration::from_secs_f64(millis / 1e3))
}

pub(crate) fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio < 10.0 => format!("{ratio:.2}×"),
        ratio => format!("{ratio:.1}×"),
    }
}
