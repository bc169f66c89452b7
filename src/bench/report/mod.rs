//! What came of a bench, for people and for programs.
//!
//! The JSON document is a contract: fields are added, never renamed; `schema` changes if one must
//! be. Latencies are microseconds. Every number stands beside what it means: how the load was put
//! on, from when latencies count, and how busy the machine was.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use serde::Serialize;

use super::figures::{duration_text, median, micros_text, number_text, ratio_text};
use super::generator;
use super::generator::{Outcome, Plan};
use super::heading::{Heading, print_for_programs};
use super::load::Choice;
use super::progress::Progress;
use super::store::Store;
use super::tally::{Latencies, Series};
use crate::api::Consistency;
use crate::cli::arguments::{Format, GlobalArgs};
use crate::cli::failure::Failure;
use crate::cli::print::{Align, table_of_most};

/// The name of the JSON document's shape.
const SCHEMA: &str = "leasehold-bench/1";

/// A whole bench.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Of what, and where.
    #[serde(flatten)]
    pub heading: Heading,
    /// Every load, in the order in which they were put on.
    pub runs: Vec<Run>,
    /// What the stores have of each other; empty if there was only one.
    pub ratios: Vec<Ratio>,
}

/// One load on one store.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The store.
    pub store: &'static str,
    /// What was put on it.
    #[serde(flatten)]
    pub setup: RunSetup,
    /// Requests answered in a second.
    pub ops_per_second: f64,
    /// Requests answered.
    pub answered: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests that were due and never sent, because every client still waited. They are in the
    /// latencies with what they had waited at the end, which is less than they would have taken.
    pub unsent: u64,
    /// From when latencies count: `sent`, or `due`.
    pub latency_counts_from: &'static str,
    /// Each kind of operation that there was.
    pub operations: BTreeMap<&'static str, OperationReport>,
    /// Failures by code.
    pub errors: BTreeMap<&'static str, ErrorReport>,
    /// Reads by the authority that they were answered on, where the store says so.
    pub read_paths: BTreeMap<&'static str, u64>,
    /// Reads whose key was not there.
    pub not_found: u64,
    /// CPU time of the servers per request, in microseconds, if their processes were named.
    pub server_cpu_us_per_op: Option<f64>,
    /// CPU time of this process per request, in microseconds.
    pub client_cpu_us_per_op: f64,
    /// What keeps these figures from meaning what they seem to mean, as sentences.
    pub remarks: Vec<String>,
    #[serde(skip)]
    outcome: Box<Outcome>,
}

/// What was put on a store, and for how long.
#[derive(Clone, Debug, Serialize)]
pub struct RunSetup {
    /// What was done: `get`, `put` or `mixed`.
    pub load: &'static str,
    /// How fresh reads had to be.
    pub consistency: &'static str,
    /// `closed`: a client asks again when it is answered; `open`: when it is due.
    pub r#loop: &'static str,
    /// Requests due in a second, in an open loop.
    pub rate: Option<f64>,
    /// Requests under way at a time, at most.
    pub clients: u32,
    /// Connections they shared.
    pub connections: u32,
    /// Threads that made them.
    pub threads: u32,
    /// Keys that were chosen from.
    pub keys: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// How keys were chosen.
    pub distribution: &'static str,
    /// How long it was measured.
    pub seconds: f64,
}

/// One kind of operation.
#[derive(Clone, Debug, Serialize)]
pub struct OperationReport {
    /// How many were answered.
    pub answered: u64,
    /// How long they took.
    pub latency_us: Quantiles,
    /// How late they were sent after they were due, in an open loop.
    pub delay_us: Option<Quantiles>,
}

/// A distribution of latencies, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantiles {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// Nine tenths took no longer.
    pub p90: f64,
    /// 99 of a hundred took no longer.
    pub p99: f64,
    /// 999 of a thousand took no longer.
    pub p99_9: f64,
    /// The longest.
    pub max: f64,
}

/// Failures of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct ErrorReport {
    /// How many.
    pub count: u64,
    /// What the first said.
    pub first: String,
}

/// One figure of one store over the same figure of the other, pair by pair.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    /// The figure.
    pub figure: String,
    /// The store above the line.
    pub of: &'static str,
    /// The store below it.
    pub to: &'static str,
    /// The median of the pairs.
    pub median: f64,
    /// Each pair of neighbours.
    pub pairs: Vec<f64>,
}

impl Report {
    /// Prints it; refuses one in which a store answered nothing.
    ///
    /// # Errors
    /// That, or those of `out`.
    pub fn show(&self, global: &GlobalArgs, out: &mut impl Write) -> Result<(), Failure> {
        self.print(out, global.output)?;
        out.flush()?;
        match self.runs.iter().find(|run| run.answered == 0) {
            Some(run) => Err(Failure::refused(format!(
                "{} answered no requests",
                run.store
            ))),
            None => Ok(()),
        }
    }

    /// Nothing yet; notes how busy the machine is.
    pub fn begin() -> Self {
        Self {
            heading: Heading::begin(SCHEMA),
            runs: Vec::new(),
            ratios: Vec::new(),
        }
    }

    /// All was put on. Compares stores that took turns.
    pub fn end(&mut self) {
        self.heading.end();
        self.ratios = ratios(&self.runs);
    }

    /// Prints it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut impl Write, format: Format) -> io::Result<()> {
        if print_for_programs(out, self, format)? {
            return Ok(());
        }
        match format {
            Format::Table => self.print_table(out),
            _ => self.print_simple(out),
        }
    }

    fn print_simple(&self, out: &mut impl Write) -> io::Result<()> {
        for run in &self.runs {
            writeln!(out, "{}", run.summary())?;
        }
        self.print_remarks(out)
    }

    fn print_table(&self, out: &mut impl Write) -> io::Result<()> {
        let columns = [
            ("STORE", Align::Left),
            ("OPERATION", Align::Left),
            ("OPS/S", Align::Right),
            ("P50", Align::Right),
            ("P90", Align::Right),
            ("P99", Align::Right),
            ("P99.9", Align::Right),
            ("MAX", Align::Right),
            ("ERRORS", Align::Right),
            ("READ PATH", Align::Left),
            ("SERVER CPU/OP", Align::Right),
        ];
        let rows = self.runs.iter().flat_map(Run::rows);
        table_of_most(out, &columns, &["P90", "P99.9", "STORE"], rows)?;
        self.print_remarks(out)
    }

    fn print_remarks(&self, out: &mut impl Write) -> io::Result<()> {
        for ratio in &self.ratios {
            let pairs: Vec<String> = ratio.pairs.iter().map(|pair| ratio_text(*pair)).collect();
            writeln!(
                out,
                "{} / {}, {}: {} (pairs: {})",
                ratio.of,
                ratio.to,
                ratio.figure,
                ratio_text(ratio.median),
                pairs.join(" ")
            )?;
        }
        let mut said: Vec<&String> = Vec::new();
        for remark in self.runs.iter().flat_map(|run| &run.remarks) {
            if !said.contains(&remark) {
                writeln!(out, "note: {remark}")?;
                said.push(remark);
            }
        }
        Ok(())
    }
}

impl Run {
    /// One load on one store, with progress.
    ///
    /// # Errors
    /// A connection could not be made, or a process whose CPU time was asked for is not there.
    pub fn measure<C: Store>(
        connector: &C,
        plan: &Plan,
        progress: Progress,
    ) -> Result<Self, Failure> {
        let name = connector.name();
        let mut show = |interval: &generator::Interval| progress.show(name, interval);
        let outcome = generator::run(plan, connector, &mut show)?;
        Ok(Self::new(name, plan, outcome))
    }

    /// Of a load on `store`.
    pub fn new(store: &'static str, plan: &Plan, outcome: Outcome) -> Self {
        let tally = &outcome.tally;
        let seconds = outcome.elapsed.as_secs_f64();
        let answered = tally.answered();
        let per_op = |time: Duration| match answered {
            0 => 0.0,
            answered => rounded(time.as_secs_f64() * 1e6 / answered as f64),
        };
        let is_open = plan.rate.is_some();
        let mut operations = BTreeMap::new();
        for (name, series) in [("get", &tally.reads), ("put", &tally.writes)] {
            if series.taken.count() > 0 {
                operations.insert(name, OperationReport::new(series, is_open));
            }
        }
        let errors = tally.failures.iter().map(|(code, failures)| {
            let report = ErrorReport {
                count: failures.count,
                first: failures.first.clone(),
            };
            (*code, report)
        });
        let mut run = Self {
            store,
            setup: RunSetup {
                load: load_name(plan.load.reads),
                consistency: consistency_name(plan.load.consistency),
                r#loop: if is_open { "open" } else { "closed" },
                rate: plan.rate,
                clients: plan.clients,
                connections: plan.connections,
                threads: plan.threads.min(plan.connections).max(1),
                keys: plan.load.keys.names.len(),
                value_bytes: plan.load.keys.value.len(),
                distribution: match plan.load.choice {
                    Choice::Uniform => "uniform",
                    Choice::Zipf(_) => "zipf",
                },
                seconds,
            },
            ops_per_second: rounded(answered as f64 / seconds),
            answered,
            failed: tally.failed(),
            unsent: tally.reads.unsent + tally.writes.unsent,
            latency_counts_from: if is_open { "due" } else { "sent" },
            operations,
            errors: errors.collect(),
            read_paths: tally
                .paths
                .iter()
                .map(|(path, count)| (path.name(), *count))
                .collect(),
            not_found: tally.not_found,
            server_cpu_us_per_op: outcome.server_cpu.map(per_op),
            client_cpu_us_per_op: per_op(outcome.client_cpu),
            remarks: Vec::new(),
            outcome: Box::new(outcome),
        };
        run.remarks = run.find_remarks();
        run
    }

    /// What was counted.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Writes each operation's distribution beside `name`, in the format that HdrHistogram's own
    /// plotter reads, values in microseconds. Gives the files.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write_histograms(&self, name: &Path) -> io::Result<Vec<PathBuf>> {
        let tally = &self.outcome.tally;
        let mut files = Vec::new();
        for (operation, series) in [("get", &tally.reads), ("put", &tally.writes)] {
            if series.taken.count() > 0 {
                let mut path = name.as_os_str().to_owned();
                path.push(format!(".{operation}.hgrm"));
                let path = PathBuf::from(path);
                fs::write(&path, percentiles(&series.taken))?;
                files.push(path);
            }
        }
        Ok(files)
    }

    fn find_remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(rate) = self.setup.rate {
            let due = self.answered + self.failed + self.unsent;
            if self.unsent > 0 {
                remarks.push(format!(
                    "{} could not keep up with {} requests per second: {} of {due} were never \
                     sent, so the true latencies are longer than these; lower --rate or raise \
                     --clients",
                    self.store,
                    number_text(rate),
                    self.unsent
                ));
            }
            let delays = self
                .operations
                .values()
                .filter_map(|operation| operation.delay_us);
            let delay = delays.map(|delay| delay.p50).fold(0.0, f64::max);
            let latencies = self
                .operations
                .values()
                .map(|operation| operation.latency_us.p50);
            let latency = latencies.fold(f64::INFINITY, f64::min);
            if self.unsent == 0 && delay > latency / 2.0 {
                remarks.push(format!(
                    "half of the requests were sent {} or more after they were due, which is most \
                     of their latency: this machine is too busy to keep the rate, or --clients is \
                     too low",
                    duration_text(Duration::from_secs_f64(delay / 1e6))
                ));
            }
        }
        if self.failed > 0 {
            let share = 100.0 * self.failed as f64 / (self.failed + self.answered) as f64;
            let (code, first) = self
                .errors
                .iter()
                .max_by_key(|(_, error)| error.count)
                .map_or(("", ""), |(code, error)| (*code, error.first.as_str()));
            remarks.push(format!(
                "{share:.2} % of the requests to {} failed, most with {code}: {first}",
                self.store
            ));
        }
        if self.not_found > 0 {
            remarks.push(format!(
                "{} reads found no key and cost less than reads of a value: omit --no-fill",
                self.not_found
            ));
        }
        remarks
    }

    fn summary(&self) -> String {
        let mut line = format!("Summary  {} {}:", self.store, self.setup.load);
        let _ = write!(line, " {} ops/s", number_text(self.ops_per_second));
        for (name, operation) in &self.operations {
            let latency = operation.latency_us;
            let name = if self.operations.len() > 1 { *name } else { "" };
            let _ = write!(
                line,
                "  {name}{}p50 {} p99 {} p99.9 {}",
                if name.is_empty() { "" } else { " " },
                micros_text(latency.p50),
                micros_text(latency.p99),
                micros_text(latency.p99_9)
            );
        }
        if !self.read_paths.is_empty() {
            let _ = write!(line, "  path: {}", self.path_text());
        }
        if let Some(cpu) = self.server_cpu_us_per_op {
            let _ = write!(line, "  server CPU {cpu:.2}µs/op");
        }
        if self.failed > 0 {
            let _ = write!(line, "  errors: {}", self.error_text());
        }
        line
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for (name, operation) in &self.operations {
            let latency = operation.latency_us;
            let of = |share| rows_share(self, operation) * share;
            let mut row = vec![
                self.store.to_owned(),
                (*name).to_owned(),
                number_text(of(self.ops_per_second)),
            ];
            let quantiles = [
                latency.p50,
                latency.p90,
                latency.p99,
                latency.p99_9,
                latency.max,
            ];
            row.extend(quantiles.map(micros_text));
            row.push(one_word(&self.error_text()));
            row.push(match *name {
                "get" => one_word(&self.path_text()),
                _ => String::new(),
            });
            row.push(
                self.server_cpu_us_per_op
                    .map_or_else(String::new, |cpu| format!("{cpu:.2}µs")),
            );
            rows.push(row);
        }
        if rows.is_empty() {
            let mut row = vec![
                self.store.to_owned(),
                self.setup.load.to_owned(),
                "0".to_owned(),
            ];
            row.resize(8, String::new());
            row.extend([one_word(&self.error_text()), String::new(), String::new()]);
            rows.push(row);
        }
        rows
    }

    fn path_text(&self) -> String {
        let all: u64 = self.read_paths.values().sum();
        let share = |(path, count): (&&str, &u64)| {
            format!("{path}={:.2}%", 100.0 * *count as f64 / all as f64)
        };
        let shares: Vec<String> = self.read_paths.iter().map(share).collect();
        shares.join(" ")
    }

    fn error_text(&self) -> String {
        if self.errors.is_empty() {
            return "0".to_owned();
        }
        let of = |(code, error): (&&str, &ErrorReport)| format!("{code}={}", error.count);
        let all: Vec<String> = self.errors.iter().map(of).collect();
        all.join(" ")
    }
}

/// For a cell, which a blank would break where a program cuts the row into words.
fn one_word(shares: &str) -> String {
    shares.replace(' ', ",")
}

/// The operation's share of all that were answered.
fn rows_share(run: &Run, operation: &OperationReport) -> f64 {
    match run.answered {
        0 => 0.0,
        all => operation.answered as f64 / all as f64,
    }
}

impl OperationReport {
    fn new(series: &Series, is_open: bool) -> Self {
        Self {
            answered: series.taken.count() - series.unsent,
            latency_us: Quantiles::new(&series.taken),
            delay_us: is_open.then(|| Quantiles::new(&series.delay)),
        }
    }
}

impl Quantiles {
    /// Of these.
    pub fn new(latencies: &Latencies) -> Self {
        let micros = |taken: Duration| rounded(taken.as_secs_f64() * 1e6);
        let at = |share| micros(latencies.at(share));
        Self {
            mean: micros(latencies.mean()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: micros(latencies.max()),
        }
    }
}

/// How a figure is read off a run, if the run has it.
type Figure = Box<dyn Fn(&Run) -> Option<f64>>;

/// What the first store has of the second in each figure, pairing neighbours.
fn ratios(runs: &[Run]) -> Vec<Ratio> {
    let Some(first) = runs.first() else {
        return Vec::new();
    };
    let ours: Vec<&Run> = runs.iter().filter(|run| run.store == first.store).collect();
    let theirs: Vec<&Run> = runs.iter().filter(|run| run.store != first.store).collect();
    let Some(other) = theirs.first() else {
        return Vec::new();
    };
    let latency = |name: &'static str, of: fn(&Quantiles) -> f64| {
        move |run: &Run| {
            run.operations
                .get(name)
                .map(|operation| of(&operation.latency_us))
        }
    };
    let figures: [(&str, Figure); 6] = [
        ("ops/s", Box::new(|run| Some(run.ops_per_second))),
        (
            "get p50",
            Box::new(latency("get", |quantiles| quantiles.p50)),
        ),
        (
            "get p99",
            Box::new(latency("get", |quantiles| quantiles.p99)),
        ),
        (
            "put p50",
            Box::new(latency("put", |quantiles| quantiles.p50)),
        ),
        (
            "put p99",
            Box::new(latency("put", |quantiles| quantiles.p99)),
        ),
        ("server CPU/op", Box::new(|run| run.server_cpu_us_per_op)),
    ];
    let mut ratios = Vec::new();
    for (figure, of) in figures {
        let pair = |(ours, theirs): (&&Run, &&Run)| {
            let (ours, theirs) = (of(ours)?, of(theirs)?);
            (theirs > 0.0).then(|| ours / theirs)
        };
        let pairs: Vec<f64> = ours.iter().zip(&theirs).filter_map(pair).collect();
        if !pairs.is_empty() {
            ratios.push(Ratio {
                figure: figure.to_owned(),
                of: first.store,
                to: other.store,
                median: median(&pairs),
                pairs,
            });
        }
    }
    ratios
}

/// With three digits behind the point, beyond which nothing is known.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// A distribution in HdrHistogram's percentile format, in microseconds.
fn percentiles(latencies: &Latencies) -> String {
    let histogram = latencies.histogram();
    let mut text = format!(
        "{:>12} {:>14} {:>10} {:>14}\n\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    );
    let mut total = 0;
    for step in histogram.iter_quantiles(5) {
        total += step.count_since_last_iteration();
        let share = step.quantile_iterated_to();
        let value = step.value_iterated_to() as f64 / 1e3;
        let _ = write!(text, "{value:12.3} {share:2.12} {total:10}");
        if share < 1.0 {
            let _ = write!(text, " {:14.2}", 1.0 / (1.0 - share));
        }
        text.push('\n');
    }
    let _ = writeln!(
        text,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]",
        histogram.mean() / 1e3,
        histogram.stdev() / 1e3
    );
    let _ = writeln!(
        text,
        "#[Max     = {:12.3}, Total count    = {:12}]",
        histogram.max() as f64 / 1e3,
        histogram.len()
    );
    text
}

fn load_name(reads: f64) -> &'static str {
    if reads >= 1.0 {
        "get"
    } else if reads <= 0.0 {
        "put"
    } else {
        "mixed"
    }
}

fn consistency_name(consistency: Consistency) -> &'static str {
    match consistency {
        Consistency::Linearizable => "linearizable",
        Consistency::LinearizableQuorum => "quorum",
        Consistency::LeaseOnly => "lease",
        Consistency::Serializable => "serializable",
        Consistency::MaxStaleness(_) => "bounded",
    }
}

#[cfg(test)]
mod tests;
