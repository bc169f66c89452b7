//! `leasehold bench watch`: how many watchers a node serves at which rate of writes, and how soon.
//!
//! Writers put values that say when they were sent; watchers say how long ago that was, so a delay is
//! from the writer's hand to the reader's and holds the whole commit. The rate is an open loop: a put
//! is due whether or not the one before it was answered. What each watcher hears is checked: a gap, a
//! repetition or a wrong order is a failure of the run and no figure.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicI64;
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
    let shared = Arc::new(Shared {
        wall: Wall::start(),
        prefix: format!("bench-watch/{}/", std::process::id()),
        last: AtomicI64::new(0),
        events: AtomicU64::new(0),
        resumed: AtomicU64::new(0),
        is_measured: AtomicBool::new(arguments.catch_up == 0),
    });
    let writer = connect(target).await?;
    let mut start = writer
        .put(shared.prefix.clone(), "", None)
        .await?
        .header
        .revision
        + 1;
    if arguments.catch_up > 0 {
        let past = write(&writer, arguments, &shared, Count::Puts(arguments.catch_up)).await?;
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
        let written = write(&writer, arguments, &shared, Count::For(arguments.duration)).await?;
        // One more, after which everybody knows that it was the last.
        let end = writer.put(shared.prefix.clone(), "", None).await?;
        shared.last.store(end.header.revision, Ordering::Relaxed);
        writer.put(shared.prefix.clone(), "", None).await?;
        (began, written)
    };
    let wrote_for = shared.wall.elapsed().saturating_sub(began);
    let delays = finish(watching).await?;
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

/// How much is written.
#[derive(Clone, Copy)]
enum Count {
    Puts(u64),
    For(Duration),
}

#[derive(Default)]
struct Written {
    done: u64,
    failed: u64,
    last_revision: i64,
}

/// Puts at the rate that was asked for, or, of what is only there to be caught up with, as fast as
/// they go.
async fn write(
    client: &Client,
    arguments: &WatchLoadArgs,
    shared: &Arc<Shared>,
    count: Count,
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
        match count {
            Count::Puts(most) if number >= most => break,
            Count::For(duration) if elapsed >= duration => break,
            Count::For(_) => {
                let due = Duration::from_secs_f64(number as f64 / arguments.rate as f64);
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
        let key = format!("{}{}", shared.prefix, number % arguments.keys as u64);
        let (client, shared) = (client.clone(), Arc::clone(shared));
        let bytes = arguments.value_size.max(STAMP_BYTES);
        puts.spawn(async move {
            let mut value = vec![b'v'; bytes];
            let sent = shared.wall.elapsed().as_nanos() as u64;
            value[..STAMP_BYTES].copy_from_slice(&sent.to_le_bytes());
            client
                .put(key, value, None)
                .await
                .map(|put| put.header.revision)
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

type Watching = JoinSet<Result<Latencies, Failure>>;

async fn watch_all(
    arguments: &WatchLoadArgs,
    clients: &[Client],
    start: i64,
    shared: &Arc<Shared>,
) -> Result<Watching, Failure> {
    let mut watching = JoinSet::new();
    let mut opening: JoinSet<Result<Watcher, Error>> = JoinSet::new();
    for (number, client) in (0..arguments.watchers).zip(clients.iter().cycle()) {
        let mut options = WatchOptions::new()
            .with_start_revision(start)
            .with_timeout(PATIENCE);
        let key = match arguments.keys {
            // With one key for all, each hears everything.
            1 => format!("{}0", shared.prefix),
            keys => format!("{}{}", shared.prefix, number % keys),
        };
        if let Some(endpoint) = &arguments.endpoint {
            options = options.with_endpoint(endpoint);
        }
        let client = client.clone();
        while opening.len() >= OPENING_MAX {
            take(&mut opening, &mut watching, shared).await?;
        }
        opening.spawn(async move { client.watch(key, Some(options)).await });
    }
    while !opening.is_empty() {
        take(&mut opening, &mut watching, shared).await?;
    }
    Ok(watching)
}

async fn take(
    opening: &mut JoinSet<Result<Watcher, Error>>,
    watching: &mut Watching,
    shared: &Arc<Shared>,
) -> Result<(), Failure> {
    match opening.join_next().await {
        Some(Ok(watcher)) => {
            watching.spawn(hear(watcher?, Arc::clone(shared)));
            Ok(())
        }
        _ => Err(Failure::refused("a watch was cut short while it opened")),
    }
}

/// Reads a watch until it has heard the last change.
async fn hear(mut watcher: Watcher, shared: Arc<Shared>) -> Result<Latencies, Failure> {
    let mut delays = Latencies::default();
    let (mut last, mut version) = (0, 0);
    loop {
        let until = shared.last.load(Ordering::Relaxed);
        if until > 0 && last >= until {
            return Ok(delays);
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
                        delays.record(shared.wall.elapsed().saturating_sub(sent));
                    }
                }
                shared
                    .events
                    .fetch_add(events.len() as u64, Ordering::Relaxed);
            }
            WatchEvent::Progress { revision } => last = last.max(revision),
            WatchEvent::Resumed { .. } => {
                shared.resumed.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

async fn finish(mut watching: Watching) -> Result<Latencies, Failure> {
    let mut delays = Latencies::default();
    loop {
        match tokio::time::timeout(PATIENCE, watching.join_next()).await {
            Ok(Some(Ok(heard))) => delays.add(&heard?),
            Ok(Some(Err(_))) => return Err(Failure::refused("a watch was cut short")),
            Ok(None) => return Ok(delays),
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
