//! What a copy of a prefix inside the program gives, beside leased gets: `cached-reads`.
//!
//! Three processes of this binary and one client, which reads keys by leased gets and then from a
//! `CachedKv`, while keys are written at a fixed rate. Beside the readers a probe writes a key and reads it
//! the same way once the write is acknowledged, until it finds what it wrote: that is how stale a reader
//! really is, and the age that each answer tells is how stale it can be at most.

use std::io;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;

use leasehold::bench::cluster::OwnCluster;
use leasehold::bench::figures::{duration_text, number_text};
use leasehold::bench::heading::{Heading, print_for_programs};
use leasehold::bench::progress::Progress;
use leasehold::bench::tally::Latencies;
use leasehold::bench::{Stopwatch, Wall};
use leasehold::cli::arguments::GlobalArgs;
use leasehold::cli::failure::Failure;
use leasehold::cli::print::{Align, table};
use leasehold::client::Client;
use leasehold::client::recipes::CachedKv;

use crate::arguments::CachedReadArgs;
use crate::read_leases::put;
use crate::run::cluster_plan;

const SCHEMA: &str = "leasehold-cached-reads-1";
const PREFIX: &str = "cached-reads/";
const PROBE: &str = "cached-reads/probe";
/// Of the reads from memory one in so many is timed: reading the clock takes as long as they do.
const TIMED: u64 = 64;
/// Between two looks of a probe that was stale; no timer of the runtime is finer.
const LOOK_PAUSE: Duration = Duration::from_millis(1);
/// Between two writes of the probe.
const PROBE_PAUSE: Duration = Duration::from_millis(5);

/// What was found.
#[derive(Debug, Serialize)]
struct CachedReadReport {
    #[serde(flatten)]
    heading: Heading,
    keys: u32,
    /// Puts due in a second, the probe's aside.
    rate: u32,
    cases: Vec<Case>,
}

/// One way to read.
#[derive(Debug, Serialize)]
struct Case {
    reads: &'static str,
    /// How many read at a time, each after its last answer.
    readers: usize,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// How old an answer says that it can be at most; nothing of a leased get, which is never old.
    age_p50_ms: Option<f64>,
    age_p99_ms: Option<f64>,
    /// Probes whose first read did not show what they had written.
    stale_probes: f64,
    /// Until a probe found what it had written, from the acknowledgement on.
    shown_after_p50_ms: f64,
    shown_after_p99_ms: f64,
}

/// What readers took, and what their answers said of their age.
#[derive(Default)]
struct Taken {
    reads: u64,
    timed: Latencies,
    ages: Latencies,
}

/// What became of the probe's writes.
#[derive(Default)]
struct Probed {
    shown_after: Latencies,
    stale: u64,
}

/// Measures both ways of reading.
///
/// # Errors
/// The cluster cannot be started, or does not answer.
pub(crate) fn run(
    arguments: &CachedReadArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let progress = Progress::new(arguments.quiet);
    let runtime = tokio::runtime::Runtime::new()?;
    let mut heading = Heading::begin(SCHEMA);
    let cases = runtime.block_on(measure(arguments, progress))?;
    heading.end();
    let report = CachedReadReport {
        heading,
        keys: arguments.keys,
        rate: arguments.rate,
        cases,
    };
    if !print_for_programs(out, &report, global.output)? {
        print(&report, out)?;
    }
    Ok(())
}

async fn measure(arguments: &CachedReadArgs, progress: Progress) -> Result<Vec<Case>, Failure> {
    let mut cluster = OwnCluster::start(&cluster_plan(&arguments.own)).await?;
    cluster.wait_until_whole().await?;
    let client = cluster.client().clone();
    for number in 0..arguments.keys {
        client.put(key(number), "value", None).await?;
    }
    client.put(PROBE, "0", None).await?;
    progress.say("leased gets");
    let leased = leased_gets(arguments, &client).await?;
    progress.say("reads from a CachedKv");
    let cached = cached_reads(arguments, &client).await?;
    Ok(vec![leased, cached])
}

fn key(number: u32) -> String {
    format!("{PREFIX}{number:06}")
}

async fn leased_gets(arguments: &CachedReadArgs, client: &Client) -> Result<Case, Failure> {
    let over = Arc::new(AtomicBool::new(false));
    let mut readers = JoinSet::new();
    for reader in 0..arguments.clients {
        let (client, over, keys) = (client.clone(), Arc::clone(&over), arguments.keys);
        readers.spawn(async move {
            let mut taken = Taken::default();
            let mut number = reader;
            while !over.load(Ordering::Relaxed) {
                number = (number + 7) % keys;
                let asked = Wall::start();
                client.get(key(number), None).await?;
                taken.timed.record(asked.elapsed());
                taken.reads += 1;
            }
            Ok::<_, Failure>(taken)
        });
    }
    let shown = async |least: u64| {
        let found = client.get(PROBE, None).await?;
        Ok(found.value().is_some_and(|value| number(value) >= least))
    };
    let watch = Wall::start();
    let probed = writes_and_probe(arguments, client, shown).await?;
    over.store(true, Ordering::Relaxed);
    let mut taken = Taken::default();
    while let Some(reader) = readers.join_next().await {
        taken.add(&reader.expect("it does not panic")?);
    }
    let elapsed = watch.elapsed();
    Ok(case(
        "leased get",
        arguments.clients as usize,
        &taken,
        elapsed,
        &probed,
    ))
}

async fn cached_reads(arguments: &CachedReadArgs, client: &Client) -> Result<Case, Failure> {
    let cache = CachedKv::open(client, PREFIX, None).await?;
    let over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..arguments.threads)
        .map(|reader| {
            let (cache, over, keys) = (cache.clone(), Arc::clone(&over), arguments.keys);
            thread::spawn(move || read_from_memory(&cache, reader, keys, &over))
        })
        .collect();
    let shown = async |least: u64| {
        let found = cache.get(PROBE);
        Ok(found.value().is_some_and(|value| number(value) >= least))
    };
    let watch = Wall::start();
    let probed = writes_and_probe(arguments, client, shown).await;
    over.store(true, Ordering::Relaxed);
    let mut taken = Taken::default();
    for reader in readers {
        taken.add(&reader.join().expect("it does not panic"));
    }
    let elapsed = watch.elapsed();
    Ok(case(
        "CachedKv",
        arguments.threads as usize,
        &taken,
        elapsed,
        &probed?,
    ))
}

fn read_from_memory(cache: &CachedKv, reader: u32, keys: u32, over: &AtomicBool) -> Taken {
    let names: Vec<String> = (0..keys).map(key).collect();
    let mut taken = Taken::default();
    let mut place = reader as usize;
    while !over.load(Ordering::Relaxed) {
        for _ in 1..TIMED {
            place = (place + 7) % names.len();
            std::hint::black_box(cache.get(&names[place]));
        }
        place = (place + 7) % names.len();
        let asked = Wall::start();
        let found = cache.get(&names[place]);
        taken.timed.record(asked.elapsed());
        taken.ages.record(found.age);
        taken.reads += TIMED;
    }
    taken
}

/// Writes keys at the rate asked for, and probes meanwhile: `shown` says whether a read shows a number that
/// is at least so high.
async fn writes_and_probe(
    arguments: &CachedReadArgs,
    client: &Client,
    shown: impl AsyncFn(u64) -> Result<bool, Failure>,
) -> Result<Probed, Failure> {
    let puts = {
        let (client, rate, duration) = (client.clone(), arguments.rate, arguments.duration);
        let keys = arguments.keys;
        tokio::spawn(async move { put(&client, |turn| key(turn % keys), rate, duration).await })
    };
    let mut probed = Probed::default();
    let began = Wall::start();
    // Over both ways of reading, what is written grows.
    let found = client.get(PROBE, None).await?;
    let mut least = found.value().map_or(0, |value| number(value));
    while began.elapsed() < arguments.duration {
        least += 1;
        client.put(PROBE, least.to_string(), None).await?;
        let acknowledged = Wall::start();
        let mut is_first = true;
        while !shown(least).await? {
            probed.stale += u64::from(is_first);
            is_first = false;
            // Looking all the time would take what brings the change.
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        // A first read that shows it was not stale for any time.
        probed.shown_after.record(match is_first {
            true => Duration::ZERO,
            false => acknowledged.elapsed(),
        });
        tokio::time::sleep(PROBE_PAUSE).await;
    }
    puts.await.expect("it does not panic")?;
    Ok(probed)
}

/// What the probe wrote.
fn number(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.parse().unwrap_or_default()
}

impl Taken {
    fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.timed.add(&other.timed);
        self.ages.add(&other.ages);
    }
}

fn case(
    reads: &'static str,
    readers: usize,
    taken: &Taken,
    elapsed: Duration,
    probed: &Probed,
) -> Case {
    let age = |share| (taken.ages.count() > 0).then(|| millis(taken.ages.at(share)));
    Case {
        reads,
        readers,
        per_second: taken.reads as f64 / elapsed.as_secs_f64(),
        p50_us: millis(taken.timed.at(0.5)) * 1e3,
        p99_us: millis(taken.timed.at(0.99)) * 1e3,
        age_p50_ms: age(0.5),
        age_p99_ms: age(0.99),
        stale_probes: probed.stale as f64 / probed.shown_after.count().max(1) as f64,
        shown_after_p50_ms: millis(probed.shown_after.at(0.5)),
        shown_after_p99_ms: millis(probed.shown_after.at(0.99)),
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn print(report: &CachedReadReport, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{} keys, puts due a second: {}",
        report.keys, report.rate
    )?;
    let text = |millis: f64| match millis > 0.0 {
        true => duration_text(Duration::from_secs_f64(millis / 1e3)),
        false => "0".to_owned(),
    };
    let rows = report.cases.iter().map(|case| {
        let age = case.age_p50_ms.zip(case.age_p99_ms);
        vec![
            case.reads.to_owned(),
            case.readers.to_string(),
            number_text(case.per_second),
            format!("{} / {}", text(case.p50_us / 1e3), text(case.p99_us / 1e3)),
            age.map_or_else(String::new, |(p50, p99)| {
                format!("{} / {}", text(p50), text(p99))
            }),
            format!("{:.0} %", case.stale_probes * 100.0),
            format!(
                "{} / {}",
                text(case.shown_after_p50_ms),
                text(case.shown_after_p99_ms)
            ),
        ]
    });
    let columns = [
        ("READS", Align::Left),
        ("READERS", Align::Right),
        ("A SECOND", Align::Right),
        ("P50, P99", Align::Right),
        ("AGE P50, P99", Align::Right),
        ("STALE PROBES", Align::Right),
        ("SHOWN AFTER P50, P99", Align::Right),
    ];
    table(out, &columns, rows)?;
    writeln!(out, "on {}", report.heading.machine())
}
