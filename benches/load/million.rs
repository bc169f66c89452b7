//! A store of a million keys, over real processes on loopback: what it costs in memory and at the
//! start, and what it does to leased reads and to writes when history is compacted, or everything is
//! read at once.
//!
//! ```text
//! cargo bench --bench million
//! MILLION_KEYS=100000 MILLION_REVISIONS=50000 MILLION_NODES=3 cargo bench --bench million
//! ```
//!
//! An empty cluster runs beside the full one, and the windows of both alternate, so a machine that is
//! busy with other things spoils the figures of both alike: read ratios, not absolutes.

#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures real processes, in real time"
)]
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that meets an error is over"
)]
#![expect(clippy::print_stdout, reason = "the table is the result")]

#[allow(dead_code, unused_imports, reason = "the tests use more of it")]
#[path = "../../tests/cluster/harness.rs"]
mod harness;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use leasehold::api::{TxnOp, TxnRequest};
use leasehold::client::{Client, CompactionOptions, GetOptions, PutOptions};

use harness::Cluster;

const VALUE: usize = 100;
/// Keys written by one transaction of the filling.
const FILL_OPS: u64 = 100;
const FILLERS: u64 = 32;
const READERS: usize = 8;
const WRITERS: u64 = 16;
const WINDOW: Duration = Duration::from_secs(3);

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
        Err(_) => otherwise,
    }
}

fn key(number: u64) -> String {
    format!("key/{number:09}")
}

/// Percentiles in microseconds, and how many.
#[derive(Clone)]
struct Latency(Histogram<u64>);

impl Latency {
    fn new() -> Self {
        Self(Histogram::new(3).unwrap())
    }

    fn row(&self, what: &str) {
        println!(
            "| {what:<44} | {:>9} | {:>9} | {:>9} | {:>9} |",
            self.0.len(),
            self.0.value_at_quantile(0.5),
            self.0.value_at_quantile(0.99),
            self.0.max(),
        );
    }
}

fn head(title: &str) {
    println!("\n{title}\n");
    println!(
        "| {:<44} | {:>9} | {:>9} | {:>9} | {:>9} |",
        "", "count", "p50 µs", "p99 µs", "max µs"
    );
    println!("|{0:-<46}|{0:-<11}|{0:-<11}|{0:-<11}|{0:-<11}|", "");
}

/// Leased gets of random keys, until `stop`.
async fn read(
    client: &Client,
    keys: u64,
    stop: impl Fn() -> bool + Clone + Send + 'static,
) -> Latency {
    let mut readers = Vec::new();
    for reader in 0..READERS {
        let (client, stop) = (client.clone(), stop.clone());
        readers.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(reader as u64);
            let mut latency = Latency::new();
            while !stop() {
                let key = key(random.u64(..keys));
                let began = Instant::now();
                client.get(key, None).await.unwrap();
                latency
                    .0
                    .record(began.elapsed().as_micros() as u64)
                    .unwrap();
            }
            latency
        }));
    }
    let mut all = Latency::new();
    for reader in readers {
        all.0.add(&reader.await.unwrap().0).unwrap();
    }
    all
}

/// Puts that overwrite keys, until `stop`.
async fn write(
    client: &Client,
    keys: u64,
    stop: impl Fn() -> bool + Clone + Send + 'static,
) -> Latency {
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (client, stop) = (client.clone(), stop.clone());
        writers.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(1_000 + writer);
            let mut latency = Latency::new();
            while !stop() {
                let key = key(random.u64(..keys));
                let began = Instant::now();
                client.put(key, vec![7; VALUE], patient()).await.unwrap();
                latency
                    .0
                    .record(began.elapsed().as_micros() as u64)
                    .unwrap();
            }
            latency
        }));
    }
    let mut all = Latency::new();
    for writer in writers {
        all.0.add(&writer.await.unwrap().0).unwrap();
    }
    all
}

fn patient() -> Option<PutOptions> {
    Some(PutOptions::new().with_timeout(Duration::from_secs(60)))
}

fn for_a_window() -> impl Fn() -> bool + Clone + Send + 'static {
    let until = Instant::now() + WINDOW;
    move || Instant::now() >= until
}

fn until(over: &Arc<AtomicBool>) -> impl Fn() -> bool + Clone + Send + 'static {
    let over = Arc::clone(over);
    move || over.load(Ordering::Relaxed)
}

async fn fill(client: &Client, keys: u64) {
    let next = Arc::new(AtomicU64::new(0));
    let mut fillers = Vec::new();
    for _ in 0..FILLERS {
        let (client, next) = (client.clone(), Arc::clone(&next));
        fillers.push(tokio::spawn(async move {
            loop {
                let from = next.fetch_add(FILL_OPS, Ordering::Relaxed);
                if from >= keys {
                    return;
                }
                let ops = (from..keys.min(from + FILL_OPS))
                    .map(|number| TxnOp::put(key(number), vec![1u8; VALUE]));
                let txn = TxnRequest::new().and_then(ops);
                client.txn(txn, None).await.unwrap();
            }
        }));
    }
    for filler in fillers {
        filler.await.unwrap();
    }
}

async fn overwrite(client: &Client, keys: u64, revisions: u64) -> i64 {
    let next = Arc::new(AtomicU64::new(0));
    let mut writers = Vec::new();
    for writer in 0..4 * WRITERS {
        let (client, next) = (client.clone(), Arc::clone(&next));
        writers.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(writer);
            let mut last = 0;
            while next.fetch_add(1, Ordering::Relaxed) < revisions {
                let key = key(random.u64(..keys));
                let put = client.put(key, vec![3; VALUE], patient()).await.unwrap();
                last = put.header.revision;
            }
            last
        }));
    }
    let mut last = 0;
    for writer in writers {
        last = last.max(writer.await.unwrap());
    }
    last
}

/// Resident memory of the first node and bytes of its tables and journals, in MiB.
fn footprint(cluster: &Cluster) -> (f64, f64) {
    let node = &cluster.nodes[0];
    let id = node.process.as_ref().unwrap().id();
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes: f64 = line
        .and_then(|line| line.trim().trim_end_matches(" kB").trim().parse().ok())
        .unwrap();
    let bytes = node.metric("leasehold_storage_size_bytes");
    (kilobytes / 1024.0, bytes / f64::from(1 << 20))
}

/// From the start of every process until a leader serves leased reads.
fn restart(cluster: &mut Cluster) -> Duration {
    for node in &mut cluster.nodes {
        node.stop();
    }
    let began = Instant::now();
    cluster.start_all();
    cluster.wait_for_lease();
    began.elapsed()
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn main() {
    let keys = number("MILLION_KEYS", 1_000_000);
    let revisions = number("MILLION_REVISIONS", 500_000);
    let nodes = number("MILLION_NODES", 1) as usize;
    println!(
        "{keys} keys of {VALUE} bytes, {revisions} revisions, {nodes} node(s); load {}",
        load()
    );
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut empty = Cluster::start(nodes);
    let mut full = Cluster::prepare(nodes);
    // What is compacted here is compacted by hand.
    full.write_configs("[compaction]\nmode = \"off\"\n");
    full.start_all();
    full.wait_for_lease();
    runtime.block_on(async {
        let client = full.client().await;
        let began = Instant::now();
        fill(&client, keys).await;
        println!("filled in {:.1?}", began.elapsed());
        client.close().await;
    });

    println!(
        "\n| {:<20} | {:>12} | {:>12} | {:>14} |",
        "", "memory MiB", "state MiB", "start-up s"
    );
    println!("|{0:-<22}|{0:-<14}|{0:-<14}|{0:-<16}|", "");
    for (what, cluster) in [("empty", &mut empty), ("full", &mut full)] {
        let (memory, state) = footprint(cluster);
        let started = restart(cluster).as_secs_f64();
        println!("| {what:<20} | {memory:>12.0} | {state:>12.0} | {started:>14.2} |");
    }
    runtime.block_on(measure(&empty, &full, keys, revisions));
    println!("\nload at the end {}", load());
}

async fn measure(empty: &Cluster, full: &Cluster, keys: u64, revisions: u64) {
    let (on_empty, on_full) = (empty.client().await, full.client().await);
    head("Leased gets of random keys, windows of both clusters in turns");
    let (mut nothing, mut found) = (Latency::new(), Latency::new());
    for _ in 0..4 {
        nothing
            .0
            .add(&read(&on_empty, keys, for_a_window()).await.0)
            .unwrap();
        found
            .0
            .add(&read(&on_full, keys, for_a_window()).await.0)
            .unwrap();
    }
    nothing.row("empty");
    found.row("full");

    head("Everything is streamed while leased gets run");
    found = read(&on_full, keys, for_a_window()).await;
    found.row("leased gets alone");
    let over = Arc::new(AtomicBool::new(false));
    let reading = tokio::spawn({
        let (client, stop) = (on_full.clone(), until(&over));
        async move { read(&client, keys, stop).await }
    });
    let began = Instant::now();
    let mut stream = on_full
        .get_stream("", Some(GetOptions::new().with_all_keys()))
        .unwrap();
    let mut count = 0u64;
    while let Some(kv) = stream.next().await {
        kv.unwrap();
        count += 1;
    }
    let took = began.elapsed();
    over.store(true, Ordering::Relaxed);
    reading.await.unwrap().row("leased gets beside the stream");
    println!("\n{count} keys streamed in {took:.1?}");

    let began = Instant::now();
    let last = overwrite(&on_full, keys, revisions).await;
    println!("\n{revisions} revisions written in {:.1?}", began.elapsed());
    let (_, before) = footprint(full);

    head("History is compacted under load");
    let both = |stop_reads, stop_writes| {
        let client = on_full.clone();
        async move {
            tokio::join!(
                read(&client, keys, stop_reads),
                write(&client, keys, stop_writes)
            )
        }
    };
    let (reads, writes) = both(for_a_window(), for_a_window()).await;
    reads.row("leased gets before");
    writes.row("puts before");
    let over = Arc::new(AtomicBool::new(false));
    let running = tokio::spawn({
        let (client, reads, writes) = (on_full.clone(), until(&over), until(&over));
        async move { tokio::join!(read(&client, keys, reads), write(&client, keys, writes)) }
    });
    let began = Instant::now();
    let physical = CompactionOptions::new()
        .with_physical()
        .with_timeout(Duration::from_secs(3_600));
    on_full.compact(last, Some(physical)).await.unwrap();
    let took = began.elapsed();
    over.store(true, Ordering::Relaxed);
    let (reads, writes) = running.await.unwrap();
    reads.row("leased gets while history is removed");
    writes.row("puts while history is removed");
    let (reads, writes) = both(for_a_window(), for_a_window()).await;
    reads.row("leased gets after");
    writes.row("puts after");
    let (_, after) = footprint(full);
    println!(
        "\nremoved and given back in {took:.1?}; state {before:.0} MiB before, {after:.0} MiB after"
    );
}
