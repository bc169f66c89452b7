//! `leasehold bench watch`: how many watchers a node serves at which rate of writes, and how soon.
//!
//! Writers put values that say when they were sent; watchers say how long ago that was, so a delay is
//! from the writer's hand to the reader's and holds the whole commit. The rate is an open loop: a put
//! is due whether or not the one before it was answered. What each watcher hears is checked: a gap, a
//! repetition or a wrong order is a failure of the run and no figure.
//!
//! With `--find-rate` the rate is looked for (`find.rs`).

mod find;

use std::io::Write;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;

use super::Stopwatch;
use super::Wall;
use super::figures::duration_text;
use super::figures::number_text;
use super::heading::Heading;
use super::tally::Latencies;
use crate::api::Error;
use crate::cli::arguments::Format;
use crate::cli::arguments::GlobalArgs;
use crate::cli::arguments::bench::WatchLoadArgs;
use crate::cli::connection::Surroundings;
use crate::cli::connection::Target;
use crate::cli::failure::Failure;
use crate::cli::print::fields;
use crate::client::Client;
use crate::client::ConnectOptions;
use crate::client::TlsOptions;
use crate::client::WatchEvent;
use crate::client::WatchOptions;
use crate::client::Watcher;

/// Bytes of a value that say when it was sent.
const STAMP_BYTES: usize = 8;
/// Puts that may be under way.
const PUTS_MAX: usize = 1024;
/// Watches that are opened at the same time.
const OPENING_MAX: usize = 64;
/// How long watchers may take to hear the last change, and to be opened.
const PATIENCE: Duration = Duration::from_secs(120);
/// Over how many histograms the delays are spread.
const DELAYS: usize = 16;
/// How long nothing is heard before it is asked whether there is more.
const SILENCE: Duration = Duration::from_secs(1);

/// What came of it.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    heading: Heading,
    watchers: usize,
    connections: usize,
    keys: usize,
    /// Puts a second that were asked for; 0 if watchers caught up with what was there.
    rate: u64,
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
    /// The revision with which watchers are done; 0 while it is not known.
    last: AtomicI64,
    events: AtomicU64,
    resumed: AtomicU64,
    /// Delays count.
    is_measured: AtomicBool,
    /// A few, so that watchers seldom meet at one, and not one for each, because each is large.
    delays: [Mutex<Latencies>; DELAYS],
    /// By key: the revision of its newest put that was answered.
    written: Vec<AtomicI64>,
    /// By watcher.
    heard: Vec<Heard>,
}

/// What one watcher has heard.
#[derive(Default)]
struct Heard {
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
            last: AtomicI64::new(0),
            events: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            is_measured: AtomicBool::new(arguments.catch_up == 0),
            delays: std::array::from_fn(|_| Mutex::default()),
            written: (0..arguments.keys).map(|_| AtomicI64::new(0)).collect(),
            heard: (0..arguments.watchers).map(|_| Heard::default()).collect(),
        })
    }

    /// The delays since this was asked last.
    fn take_delays(&self) -> Latencies {
        let mut all = Latencies::default();
        for delays in &self.delays {
            let mut delays = delays.lock().unwrap_or_else(PoisonError::into_inner);
            all.add(&std::mem::take(&mut delays));
        }
        all
    }

    /// Which key a watcher watches.
    fn key_of(&self, watcher: usize) -> usize {
        watcher % self.written.len()
    }

    /// How many watchers have not heard of the newest put to their key.
    fn behind(&self) -> usize {
        let heard = self.heard.iter().enumerate();
        let is_behind = |(number, heard): &(usize, &Heard)| {
            let written = self.written[self.key_of(*number)].load(Ordering::Relaxed);
            heard.revision.load(Ordering::Acquire) < written
        };
        heard.filter(is_behind).count()
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
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    if arguments.find_rate {
        let mut found = runtime.block_on(find::find(arguments, &target))?;
        found.heading.end();
        find::print(&found, global.output, out)?;
        out.flush()?;
        return Ok(());
    }
    let mut heading = Heading::begin("leasehold-bench-watch-1");
    let measured = runtime.block_on(measure(arguments, &target))?;
    heading.end();
    let report = Report {
        heading,
        ..measured
    };
    print(&report, global.output, out)?;
    out.flush()?;
    Ok(())
}

async fn connect(target: &Target) -> Result<Client, Error> {
    let tls = TlsOptions::new()
        .ca_pem_file(&target.cacert)
        .identity_pem_files(&target.cert, &target.key);
    let options = ConnectOptions::new()
        .with_tls(tls)
        .with_timeout(target.timeout.max(Duration::from_secs(10)))
        .with_client_name("leasehold-bench");
    Client::connect(target.endpoints.iter().cloned(), Some(options)).await
}

async fn measure(arguments: &WatchLoadArgs, target: &Target) -> Result<Report, Failure> {
    let shared = Shared::new(arguments);
    let writer = connect(target).await?;
    let mut start = writer
        .put(shared.prefix.clone(), "", None)
        .await?
        .header
        .revision
        + 1;
    if arguments.catch_up > 0 {
        let count = Count::Puts(arguments.catch_up);
        let past = write(&writer, arguments, &shared, count, None).await?;
        shared.last.store(past.last_revision, Ordering::Relaxed);
    }
    let mut clients = Vec::new();
    for _ in 0..arguments.connections {
        clients.push(connect(target).await?);
    }
    if arguments.catch_up == 0 {
        // From here on, whenever each of them is opened.
        start = writer
            .put(shared.prefix.clone(), "", None)
            .await?
            .header
            .revision
            + 1;
    }
    let opened = shared.wall.elapsed();
    let watching = watch_all(arguments, &clients, start, &shared).await?;
    let (began, written) = if arguments.catch_up > 0 {
        (opened, Written::default())
    } else {
        let began = shared.wall.elapsed();
        let count = Count::For(arguments.duration, arguments.rate);
        let written = write(&writer, arguments, &shared, count, None).await?;
        end(&writer, &shared).await?;
        (began, written)
    };
    let wrote_for = shared.wall.elapsed().saturating_sub(began);
    finish(watching).await?;
    let delays = shared.take_delays();
    let took = shared.wall.elapsed().saturating_sub(began).as_secs_f64();
    let events = shared.events.load(Ordering::Relaxed);
    let micros = |share| delays.at(share).as_secs_f64() * 1e6;
    let report = Report {
        heading: Heading::begin("leasehold-bench-watch-1"),
        watchers: arguments.watchers,
        connections: arguments.connections,
        keys: arguments.keys,
        rate: if arguments.catch_up > 0 {
            0
        } else {
            arguments.rate
        },
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
    for client in clients {
        client.close().await;
    }
    writer.close().await;
    Ok(report)
}

/// Writes once more, after which everybody knows that it was the last.
async fn end(writer: &Client, shared: &Shared) -> Result<(), Error> {
    let end = writer.put(shared.prefix.clone(), "", None).await?;
    shared.last.store(end.header.revision, Ordering::Relaxed);
    writer.put(shared.prefix.clone(), "", None).await?;
    Ok(())
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
    last_revision: i64,
}

/// Puts, in an open loop where a rate is given. Ends early once watchers have been interrupted more
/// often than `resumed_max`.
async fn write(
    client: &Client,
    arguments: &WatchLoadArgs,
    shared: &Arc<Shared>,
    count: Count,
    resumed_max: Option<u64>,
) -> Result<Written, Failure> {
    let began = shared.wall.elapsed();
    let mut written = Written::default();
    let mut puts = JoinSet::new();
    let mut number = 0_u64;
    let mut note = |put: Result<Result<i64, Error>, tokio::task::JoinError>| match put {
        Ok(Ok(revision)) => {
            written.done += 1;
            written.last_revision = written.last_revision.max(revision);
        }
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
        let key = format!("{}{place}", shared.prefix);
        let (client, shared) = (client.clone(), Arc::clone(shared));
        let bytes = arguments.value_size.max(STAMP_BYTES);
        puts.spawn(async move {
            let mut value = vec![b'v'; bytes];
            let sent = shared.wall.elapsed().as_nanos() as u64;
            value[..STAMP_BYTES].copy_from_slice(&sent.to_le_bytes());
            let revision = client.put(key, value, None).await?.header.revision;
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

type Watching = JoinSet<Result<(), Failure>>;
/// A watch that was asked for, and whose it is.
type Opening = JoinSet<(usize, Result<Watcher, Error>)>;

async fn watch_all(
    arguments: &WatchLoadArgs,
    clients: &[Client],
    start: i64,
    shared: &Arc<Shared>,
) -> Result<Watching, Failure> {
    let mut watching = JoinSet::new();
    let mut opening = Opening::new();
    for (number, client) in (0..arguments.watchers).zip(clients.iter().cycle()) {
        let mut options = WatchOptions::new()
            .with_start_revision(start)
            .with_timeout(PATIENCE);
        // With one key for all, each hears everything.
        let key = format!("{}{}", shared.prefix, shared.key_of(number));
        if let Some(endpoint) = &arguments.endpoint {
            options = options.with_endpoint(endpoint);
        }
        let client = client.clone();
        while opening.len() >= OPENING_MAX {
            take(&mut opening, &mut watching, shared).await?;
        }
        opening.spawn(async move { (number, client.watch(key, Some(options)).await) });
    }
    while !opening.is_empty() {
        take(&mut opening, &mut watching, shared).await?;
    }
    Ok(watching)
}

async fn take(
    opening: &mut Opening,
    watching: &mut Watching,
    shared: &Arc<Shared>,
) -> Result<(), Failure> {
    match opening.join_next().await {
        Some(Ok((number, watcher))) => {
            watching.spawn(hear(number, watcher?, Arc::clone(shared)));
            Ok(())
        }
        _ => Err(Failure::refused("a watch was cut short while it opened")),
    }
}

/// Reads a watch until it has heard the last change.
async fn hear(number: usize, mut watcher: Watcher, shared: Arc<Shared>) -> Result<(), Failure> {
    let heard = &shared.heard[number];
    let (mut last, mut version) = (0, 0);
    loop {
        let until = shared.last.load(Ordering::Relaxed);
        if until > 0 && last >= until {
            return Ok(());
        }
        // Whoever has heard all of its own key learns from progress that nothing more comes.
        let event = match tokio::time::timeout(SILENCE, watcher.next()).await {
            Ok(Some(event)) => event?,
            Ok(None) => return Err(Failure::refused("a watch ended")),
            Err(_) => {
                if until > 0 {
                    // While it is being opened again it cannot be asked.
                    let _ = watcher.request_progress().await;
                }
                continue;
            }
        };
        match event {
            WatchEvent::Events { revision, events } => {
                if revision <= last {
                    return Err(Failure::refused(format!(
                        "a watch was told revision {revision} after {last}"
                    )));
                }
                last = revision;
                for event in &events {
                    // Of one key each version follows the one before.
                    if version > 0 && event.kv.version != version + 1 {
                        return Err(Failure::refused(format!(
                            "a watch was told version {} of a key after version {version}",
                            event.kv.version
                        )));
                    }
                    version = event.kv.version;
                    let stamp = event.kv.value.first_chunk::<STAMP_BYTES>();
                    if let (Some(stamp), true) = (stamp, shared.is_measured.load(Ordering::Relaxed))
                    {
                        let sent = Duration::from_nanos(u64::from_le_bytes(*stamp));
                        let delays = &shared.delays[number % DELAYS];
                        let mut delays = delays.lock().unwrap_or_else(PoisonError::into_inner);
                        delays.record(shared.wall.elapsed().saturating_sub(sent));
                    }
                }
                // In this order: whoever sees that all have heard of a revision has its events counted.
                shared
                    .events
                    .fetch_add(events.len() as u64, Ordering::Relaxed);
                heard.revision.store(last, Ordering::Release);
            }
            WatchEvent::Progress { revision } => {
                last = last.max(revision);
                heard.revision.store(last, Ordering::Relaxed);
            }
            WatchEvent::Resumed { .. } => {
                heard.resumed.fetch_add(1, Ordering::Relaxed);
                shared.resumed.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
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
            serde_json::to_writer(&mut *out, report).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
        Format::Fields => {
            let document = serde_json::to_value(report).map_err(std::io::Error::from)?;
            fields(out, &document)?;
        }
        Format::Simple | Format::Table => {
            let micros = |micros: f64| duration_text(Duration::from_secs_f64(micros / 1e6));
            writeln!(
                out,
                "{} watchers on {} connections, {} keys",
                number_text(report.watchers as f64),
                report.connections,
                report.keys
            )?;
            if report.rate > 0 {
                writeln!(
                    out,
                    "  puts    {} a second of {} asked for, {} failed",
                    number_text(report.puts_per_second),
                    report.rate,
                    report.puts_failed
                )?;
                writeln!(
                    out,
                    "  delay   p50 {}  p99 {}  p99.9 {}  max {}  (from sending the put)",
                    micros(report.p50_us),
                    micros(report.p99_us),
                    micros(report.p999_us),
                    micros(report.max_us)
                )?;
            }
            writeln!(
                out,
                "  events  {} a second, {} in all; {} interruptions, no gap",
                number_text(report.events_per_second),
                number_text(report.events as f64),
                report.resumed
            )?;
            writeln!(out, "  on {}", report.heading.machine())?;
        }
    }
    Ok(())
}
