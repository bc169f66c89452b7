//! `leasehold bench watch`: how many watchers a node serves at which rate of writes, and how soon.
//!
//! Writers put values that say when they were sent; watchers say how long ago that was, so a delay is
//! from the writer's hand to the reader's and holds the whole commit. The rate is an open loop: a put
//! is due whether or not the one before it was answered. What each watcher receives is checked: a gap, a
//! repetition or a wrong order is a failure of the run and no figure.
//!
//! With `--find-rate` the rate is looked for (`find.rs`).

mod find;
mod watching;

use std::io;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use self::watching::{Count, Shared, WriteCounts, finish, watch_all, write, write_last};
use super::Stopwatch;
use super::figures::{duration_text, number_text};
use super::heading::Heading;
use super::leasehold::Leasehold;
use super::progress::Progress;
use super::store::{Connection, Store};
use crate::cli::arguments::bench::WatchLoadArgs;
use crate::cli::arguments::{Format, GlobalArgs};
use crate::cli::connection::{Surroundings, Target};
use crate::cli::failure::Failure;
use crate::cli::print::fields;

/// The shortest timeout of a request: servers under this load may be slow.
const TIMEOUT_MIN: Duration = Duration::from_secs(10);

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    heading: Heading,
    watchers: usize,
    connections: usize,
    keys: usize,
    /// Puts a second that were asked for; 0 if watchers caught up with what was there.
    rate: u64,
    /// Each store, each time.
    pub runs: Vec<Run>,
}

/// One store, once.
#[derive(Debug, Serialize)]
pub struct Run {
    store: &'static str,
    puts: u64,
    puts_failed: u64,
    /// Puts a second that were committed.
    puts_per_second: f64,
    events: u64,
    /// Events a second, of all watchers together.
    pub events_per_second: f64,
    /// How often a watch was interrupted: too slow, or its connection broke.
    pub resumed: u64,
    /// Half of the events were received within so many microseconds of their put.
    pub p50_us: f64,
    /// Of a hundred events, 99 were.
    pub p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

/// Carries out `leasehold bench watch`.
///
/// # Errors
/// No node can be reached, or a watcher received something else than what happened.
pub fn run(
    arguments: &WatchLoadArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let target = Target::find(global, &Surroundings::of_process(global)?)?;
    let store = store(target, arguments);
    let progress = Progress::new(arguments.quiet);
    let runtime = runtime()?;
    if arguments.find_rate {
        let mut found = runtime.block_on(find::find(arguments, &store, progress))?;
        found.heading.end();
        find::print(&found, global.output, out)?;
        out.flush()?;
        return Ok(());
    }
    let mut report = Report::begin(arguments);
    let run = runtime.block_on(measure(arguments, &store, progress))?;
    report.runs.push(run);
    report.end(global.output, out)
}

/// The cluster that `target` names, for this load.
pub fn store(target: Target, arguments: &WatchLoadArgs) -> Leasehold {
    let timeout = target.timeout.max(TIMEOUT_MIN);
    Leasehold::at(&target)
        .with_timeout(timeout)
        .with_watches_at(arguments.endpoint.clone())
}

/// What writers and watchers run on.
///
/// # Errors
/// The system gives us no threads.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

impl Report {
    /// Nothing yet; notes how busy the machine is.
    pub fn begin(arguments: &WatchLoadArgs) -> Self {
        Self {
            heading: Heading::begin("leasehold-bench-watch-1"),
            watchers: arguments.watchers,
            connections: arguments.connections,
            keys: arguments.keys,
            rate: match arguments.catch_up {
                0 => arguments.rate,
                _ => 0,
            },
            runs: Vec::new(),
        }
    }

    /// All was done: prints it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn end(mut self, format: Format, out: &mut impl Write) -> Result<(), Failure> {
        self.heading.end();
        print(&self, format, out)?;
        out.flush()?;
        Ok(())
    }
}

/// Puts this load on one store.
///
/// # Errors
/// No node can be reached, or a watcher received something else than what happened.
pub async fn measure<S: Store>(
    arguments: &WatchLoadArgs,
    store: &S,
    progress: Progress,
) -> Result<Run, Failure> {
    let say = |what: &str| progress.say(&format!("{:>10} {what}", store.name()));
    let shared = Shared::new(arguments);
    let writer = Arc::new(store.connect(0).await?);
    let first = Bytes::from(shared.prefix.clone());
    let empty = Bytes::new();
    let begin = || writer.put(&first, &empty);
    let mut start = begin().await?.revision + 1;
    if arguments.catch_up > 0 {
        say(&format!("writing {} revisions", arguments.catch_up));
        let count = Count::Puts(arguments.catch_up);
        write(&writer, arguments, &shared, count, None).await?;
        write_last(&writer, arguments, &shared).await?;
    }
    let mut connections = Vec::new();
    for number in 0..arguments.connections {
        connections.push(Arc::new(store.connect(number).await?));
    }
    if arguments.catch_up == 0 {
        // From here on, whenever each of them is opened.
        start = begin().await?.revision + 1;
    }
    say(&format!("opening {} watches", arguments.watchers));
    let opened = shared.wall.elapsed();
    let watching = watch_all(arguments, &connections, start, &shared).await?;
    let (began, written) = if arguments.catch_up > 0 {
        (opened, WriteCounts::default())
    } else {
        let began = shared.wall.elapsed();
        say(&format!("{} puts a second", arguments.rate));
        let count = Count::For(arguments.duration, arguments.rate);
        let written = write(&writer, arguments, &shared, count, None).await?;
        write_last(&writer, arguments, &shared).await?;
        (began, written)
    };
    let wrote_for = shared.wall.elapsed().saturating_sub(began);
    say("waiting until all watchers have received everything");
    finish(watching).await?;
    let took = shared.wall.elapsed().saturating_sub(began).as_secs_f64();
    let events = shared.events.load(Ordering::Relaxed);
    let delays = shared.take_delays();
    let micros = |share| delays.at(share).as_secs_f64() * 1e6;
    let run = Run {
        store: store.name(),
        puts: written.done,
        puts_failed: written.failed,
        puts_per_second: written.done as f64 / wrote_for.as_secs_f64(),
        events,
        events_per_second: events as f64 / took,
        resumed: shared.resumed.load(Ordering::Relaxed),
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        p999_us: micros(0.999),
        max_us: delays.max().as_secs_f64() * 1e6,
    };
    for connection in connections {
        connection.close().await;
    }
    writer.close().await;
    Ok(run)
}

fn print(report: &Report, format: Format, out: &mut impl Write) -> Result<(), Failure> {
    match format {
        Format::Json => {
            serde_json::to_writer(&mut *out, report).map_err(io::Error::from)?;
            writeln!(out)?;
        }
        Format::Fields => {
            let document = serde_json::to_value(report).map_err(io::Error::from)?;
            fields(out, &document)?;
        }
        Format::Simple | Format::Table => {
            writeln!(
                out,
                "{} watchers on {} connections, {} keys",
                number_text(report.watchers as f64),
                report.connections,
                report.keys
            )?;
            for run in &report.runs {
                print_run(run, report.rate, out)?;
            }
            writeln!(out, "on {}", report.heading.machine())?;
        }
    }
    Ok(())
}

fn print_run(run: &Run, rate: u64, out: &mut impl Write) -> Result<(), Failure> {
    let micros = |micros: f64| duration_text(Duration::from_secs_f64(micros / 1e6));
    writeln!(out, "{}", run.store)?;
    if rate > 0 {
        writeln!(
            out,
            "  puts    {} a second of {rate} asked for, {} failed",
            number_text(run.puts_per_second),
            run.puts_failed
        )?;
        writeln!(
            out,
            "  delay   p50 {}  p99 {}  p99.9 {}  max {}  (from sending the put)",
            micros(run.p50_us),
            micros(run.p99_us),
            micros(run.p999_us),
            micros(run.max_us)
        )?;
    }
    writeln!(
        out,
        "  events  {} a second, {} in all; {} interruptions, no gap",
        number_text(run.events_per_second),
        number_text(run.events as f64),
        run.resumed
    )?;
    Ok(())
}
