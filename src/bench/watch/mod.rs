//! `leasehold bench watch`: how many watchers a node serves at which rate of writes, and how soon.
//!
//! Writers put values that say when they were sent; watchers say how long ago that was, so a delay is
//! from the writer's hand to the reader's and holds the whole commit. The rate is an open loop: a put
//! is due whether or not the one before it was answered. What each watcher hears is checked: a gap, a
//! repetition or a wrong order is a failure of the run and no figure.
//!
//! With `--find-rate` the rate is looked for (`find.rs`).

mod find;

use std::io;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::task::JoinSet;

use super::figures::{duration_text, number_text};
use super::heading::Heading;
use super::progress::Progress;
use super::tally::Latencies;
use super::watched::{Heard, Listener, Watched, WatchedConnection, WatchedLeasehold};
use super::{Stopwatch, Wall};
use crate::cli::arguments::bench::WatchLoadArgs;
use crate::cli::arguments::{Format, GlobalArgs};
use crate::cli::connection::{Surroundings, Target};
use crate::cli::failure::Failure;
use crate::cli::print::fields;
use crate::sync::Mutex;

/// Bytes of a value that say when it was sent.
const STAMP_BYTES: usize = 8;
/// In place of when it was sent: nothing of this key comes after it.
const LAST: u64 = u64::MAX;
/// Puts that may be under way.
const PUTS_MAX: usize = 1024;
/// Watches that are opened at the same time.
const OPENING_MAX: usize = 64;
/// How long watchers may take to hear the last change.
const PATIENCE: Duration = Duration::from_secs(120);
/// Delays are taken down by many watchers at a time; each distribution is large.
const SHARDS: usize = 8;

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
    events_per_second: f64,
    /// How often a watch was interrupted: too slow, or its connection broke.
    resumed: u64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

/// What the watchers share.
struct Shared {
    wall: Wall,
    prefix: String,
    events: AtomicU64,
    resumed: AtomicU64,
    /// Delays count.
    is_measured: bool,
    delays: [Mutex<Latencies>; SHARDS],
    /// By key: the revision of its newest put that was answered.
    written: Vec<AtomicI64>,
    /// By watcher.
    hearing: Vec<Hearing>,
}

/// What one watcher has heard.
#[derive(Default)]
struct Hearing {
    /// Everything up to this revision.
    revision: AtomicI64,
    /// How often it was interrupted.
    resumed: AtomicU32,
}

impl Shared {
    fn new(arguments: &WatchLoadArgs) -> Arc<Self> {
        Arc::new(Self {
            wall: Wall::start(),
            prefix: format!("bench-watch/{}/", std::process::id()),
            events: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            is_measured: arguments.catch_up == 0,
            delays: Default::default(),
            written: (0..arguments.keys).map(|_| AtomicI64::new(0)).collect(),
            hearing: (0..arguments.watchers)
                .map(|_| Hearing::default())
                .collect(),
        })
    }

    /// The delays since this was asked last.
    fn take_delays(&self) -> Latencies {
        let mut all = Latencies::default();
        for delays in &self.delays {
            let mut delays = delays.lock();
            all.add(&std::mem::take(&mut delays));
        }
        all
    }

    /// Which key a watcher watches. With one key for all, each hears everything.
    fn key_of(&self, watcher: usize) -> usize {
        watcher % self.written.len()
    }

    /// How many watchers have not heard of the newest put to their key.
    fn behind(&self) -> usize {
        let hearing = self.hearing.iter().enumerate();
        let is_behind = |(number, hearing): &(usize, &Hearing)| {
            let written = self.written[self.key_of(*number)].load(Ordering::Relaxed);
            hearing.revision.load(Ordering::Acquire) < written
        };
        hearing.filter(is_behind).count()
    }
}

/// Carries out `leasehold bench watch`.
///
/// # Errors
/// Nobody can be reached, or a watcher was told something else than what happened.
pub fn run(
    arguments: &WatchLoadArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let target = Target::find(global, &Surroundings::of_process()?)?;
    let store = WatchedLeasehold::new(target, arguments.endpoint.clone());
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
/// Nobody can be reached, or a watcher was told something else than what happened.
pub async fn measure<W: Watched>(
    arguments: &WatchLoadArgs,
    store: &W,
    progress: Progress,
) -> Result<Run, Failure> {
    let say = |what: &str| progress.say(&format!("{:>10} {what}", store.name()));
    let shared = Shared::new(arguments);
    let writer = store.connection(0).await?;
    let begin = || writer.write(Bytes::from(shared.prefix.clone()), Bytes::new());
    let mut start = begin().await? + 1;
    if arguments.catch_up > 0 {
        say(&format!("writing {} revisions", arguments.catch_up));
        let count = Count::Puts(arguments.catch_up);
        write(&writer, arguments, &shared, count, None).await?;
        write_last(&writer, arguments, &shared).await?;
    }
    let mut connections = Vec::new();
    for number in 0..arguments.connections {
        connections.push(store.connection(number).await?);
    }
    if arguments.catch_up == 0 {
        // From here on, whenever each of them is opened.
        start = begin().await? + 1;
    }
    say(&format!("opening {} watches", arguments.watchers));
    let opened = shared.wall.elapsed();
    let watching = watch_all(arguments, &connections, start, &shared).await?;
    let (began, written) = if arguments.catch_up > 0 {
        (opened, Written::default())
    } else {
        let began = shared.wall.elapsed();
        say(&format!("{} puts a second", arguments.rate));
        let count = Count::For(arguments.duration, arguments.rate);
        let written = write(&writer, arguments, &shared, count, None).await?;
        write_last(&writer, arguments, &shared).await?;
        (began, written)
    };
    let wrote_for = shared.wall.elapsed().saturating_sub(began);
    say("waiting until all have heard everything");
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
        connection.leave().await;
    }
    writer.leave().await;
    Ok(run)
}

/// How much is written.
#[derive(Clone, Copy)]
enum Count {
    /// So many, as fast as they go.
    Puts(u64),
    /// For so long, at so many a second.
    For(Duration, u64),
}

#[derive(Default)]
struct Written {
    done: u64,
    failed: u64,
}

/// Puts, in an open loop where a rate is given. Ends early once watchers have been interrupted more
/// often than `resumed_max`.
async fn write<C: WatchedConnection>(
    connection: &C,
    arguments: &WatchLoadArgs,
    shared: &Arc<Shared>,
    count: Count,
    resumed_max: Option<u64>,
) -> Result<Written, Failure> {
    let began = shared.wall.elapsed();
    let mut written = Written::default();
    let mut puts = JoinSet::new();
    let mut number = 0_u64;
    let mut note = |put: Result<Result<i64, Failure>, tokio::task::JoinError>| match put {
        Ok(Ok(_)) => written.done += 1,
        _ => written.failed += 1,
    };
    loop {
        let elapsed = shared.wall.elapsed().saturating_sub(began);
        if resumed_max.is_some_and(|most| shared.resumed.load(Ordering::Relaxed) > most) {
            break;
        }
        match count {
            Count::Puts(most) if number >= most => break,
            Count::For(duration, _) if elapsed >= duration => break,
            Count::For(_, rate) => {
                let due = Duration::from_secs_f64(number as f64 / rate as f64);
                if due > elapsed {
                    tokio::time::sleep(due - elapsed).await;
                }
            }
            Count::Puts(_) => {}
        }
        while puts.len() >= PUTS_MAX {
            puts.join_next().await.into_iter().for_each(&mut note);
        }
        while let Some(put) = puts.try_join_next() {
            note(put);
        }
        let place = (number % arguments.keys as u64) as usize;
        let key = key(shared, place);
        let (connection, shared) = (connection.clone(), Arc::clone(shared));
        let bytes = arguments.value_size.max(STAMP_BYTES);
        puts.spawn(async move {
            let sent = shared.wall.elapsed().as_nanos() as u64;
            let revision = connection.write(key, value(bytes, sent)).await?;
            shared.written[place].fetch_max(revision, Ordering::Relaxed);
            Ok(revision)
        });
        number += 1;
    }
    while let Some(put) = puts.join_next().await {
        note(put);
    }
    if written.done == 0 {
        return Err(Failure::refused("no put was answered"));
    }
    Ok(written)
}

fn key(shared: &Shared, number: usize) -> Bytes {
    Bytes::from(format!("{}{number}", shared.prefix))
}

fn value(bytes: usize, stamp: u64) -> Bytes {
    let mut value = vec![b'v'; bytes];
    value[..STAMP_BYTES].copy_from_slice(&stamp.to_le_bytes());
    Bytes::from(value)
}

/// Writes to each key what tells its watchers that nothing more comes.
async fn write_last<C: WatchedConnection>(
    connection: &C,
    arguments: &WatchLoadArgs,
    shared: &Arc<Shared>,
) -> Result<(), Failure> {
    let mut puts = JoinSet::new();
    for number in 0..arguments.keys {
        while puts.len() >= PUTS_MAX {
            written(puts.join_next().await)?;
        }
        let key = key(shared, number);
        let connection = connection.clone();
        puts.spawn(async move { connection.write(key, value(STAMP_BYTES, LAST)).await });
    }
    while !puts.is_empty() {
        written(puts.join_next().await)?;
    }
    Ok(())
}

fn written(
    put: Option<Result<Result<i64, Failure>, tokio::task::JoinError>>,
) -> Result<(), Failure> {
    match put {
        Some(Ok(put)) => put.map(drop),
        _ => Err(Failure::refused("a put was cut short")),
    }
}

type Watching = JoinSet<Result<(), Failure>>;
/// A watch that was asked for, and whose it is.
type Opening<L> = JoinSet<(usize, Result<L, Failure>)>;

async fn watch_all<C: WatchedConnection>(
    arguments: &WatchLoadArgs,
    connections: &[C],
    start: i64,
    shared: &Arc<Shared>,
) -> Result<Watching, Failure> {
    let mut watching = JoinSet::new();
    let mut opening: Opening<C::Listener> = JoinSet::new();
    for (number, connection) in (0..arguments.watchers).zip(connections.iter().cycle()) {
        let key = key(shared, shared.key_of(number));
        let connection = connection.clone();
        while opening.len() >= OPENING_MAX {
            take(&mut opening, &mut watching, shared).await?;
        }
        opening.spawn(async move { (number, connection.watch(key, start).await) });
    }
    while !opening.is_empty() {
        take(&mut opening, &mut watching, shared).await?;
    }
    Ok(watching)
}

async fn take<L: Listener>(
    opening: &mut Opening<L>,
    watching: &mut Watching,
    shared: &Arc<Shared>,
) -> Result<(), Failure> {
    match opening.join_next().await {
        Some(Ok((number, listener))) => {
            watching.spawn(hear(listener?, number, Arc::clone(shared)));
            Ok(())
        }
        _ => Err(Failure::refused("a watch was cut short while it opened")),
    }
}

/// Reads a watch until it has heard the last change of its key.
async fn hear<L: Listener>(
    mut listener: L,
    number: usize,
    shared: Arc<Shared>,
) -> Result<(), Failure> {
    let hearing = &shared.hearing[number];
    let (mut last, mut version) = (0, 0);
    loop {
        let (revision, changes) = match listener.hear().await? {
            Heard::Changes { revision, changes } => (revision, changes),
            Heard::Resumed => {
                hearing.resumed.fetch_add(1, Ordering::Relaxed);
                shared.resumed.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            Heard::Other => continue,
        };
        if revision <= last {
            return Err(Failure::refused(format!(
                "a watch was told revision {revision} after {last}"
            )));
        }
        last = revision;
        let count = changes.len() as u64;
        let mut is_last = false;
        for change in changes {
            // Of one key each version follows the one before.
            if version > 0 && change.version != version + 1 {
                return Err(Failure::refused(format!(
                    "a watch was told version {} of a key after version {version}",
                    change.version
                )));
            }
            version = change.version;
            match change
                .value
                .first_chunk()
                .map(|stamp| u64::from_le_bytes(*stamp))
            {
                Some(LAST) => is_last = true,
                Some(stamp) if shared.is_measured => {
                    let delay = shared
                        .wall
                        .elapsed()
                        .saturating_sub(Duration::from_nanos(stamp));
                    let shard = &shared.delays[number % SHARDS];
                    let mut delays = shard.lock();
                    delays.record(delay);
                }
                _ => {}
            }
        }
        // In this order: whoever sees that all have heard of a revision has its events counted.
        shared.events.fetch_add(count, Ordering::Relaxed);
        hearing.revision.store(last, Ordering::Release);
        if is_last {
            return Ok(());
        }
    }
}

async fn finish(mut watching: Watching) -> Result<(), Failure> {
    loop {
        match tokio::time::timeout(PATIENCE, watching.join_next()).await {
            Ok(Some(Ok(heard))) => heard?,
            Ok(Some(Err(_))) => return Err(Failure::refused("a watch was cut short")),
            Ok(None) => return Ok(()),
            Err(_) => {
                return Err(Failure::refused(format!(
                    "{} watchers did not hear the last change within {PATIENCE:?}",
                    watching.len()
                )));
            }
        }
    }
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
