//! Put and get through the SDK over real QUIC on loopback: three nodes, their disks and the client
//! in one process.
//!
//! `cargo bench --bench loopback`

#![expect(clippy::unwrap_used, reason = "a bench that meets an error is over")]
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

#[path = "../tests/cluster/embedded.rs"]
mod embedded;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant as Stopwatch;

use hdrhistogram::Histogram;
use leasehold::api::ReadPath;
use leasehold::client::Client;

const NODES: usize = 3;
const KEYS: usize = 10_000;
const VALUE: usize = 256;
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
enum Load {
    Get,
    Put,
}

/// One closed-loop round: operations a second, and how long each took in nanoseconds.
async fn round(client: &Client, load: Load, callers: usize) -> (f64, Histogram<u64>) {
    let done = Arc::new(AtomicU64::new(0));
    let began = Stopwatch::now();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (client, done) = (client.clone(), done.clone());
            tokio::spawn(async move {
                let mut taken = Histogram::<u64>::new(3).unwrap();
                let mut number = caller * 7919;
                while began.elapsed() < ROUND {
                    number = number.wrapping_add(104_729) % KEYS;
                    let key = format!("key{number:05}");
                    let started = Stopwatch::now();
                    match load {
                        Load::Get => {
                            let get = client.get(key, None).await.unwrap();
                            assert_eq!(get.header.read.unwrap().path, ReadPath::Lease);
                        }
                        Load::Put => {
                            client.put(key, vec![7; VALUE], None).await.unwrap();
                        }
                    }
                    let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap();
                    taken.record(nanos).unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
                taken
            })
        })
        .collect();
    let mut all = Histogram::<u64>::new(3).unwrap();
    for task in tasks {
        all.add(task.await.unwrap()).unwrap();
    }
    (
        done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64(),
        all,
    )
}

fn main() {
    println!(
        "loopback: {NODES} nodes, their disks and the client in one process, one connection, values of \
         {VALUE} bytes, {KEYS} keys, closed loop;\nmedians of {ROUNDS} rounds. A get is served under \
         the lease by the leader alone; a put is on the disks of a majority when it is answered."
    );
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    runtime.block_on(async {
        let servers = embedded::start(folder.path(), NODES).await;
        let options = embedded::client_options(folder.path());
        let client = Client::connect(embedded::endpoints(&servers), Some(options)).await.unwrap();
        for chunk in 0..KEYS / 100 {
            let puts = (0..100).map(|more| {
                let client = client.clone();
                let key = format!("key{:05}", chunk * 100 + more);
                tokio::spawn(async move { client.put(key, vec![7; VALUE], None).await.unwrap() })
            });
            for put in puts.collect::<Vec<_>>() {
                put.await.unwrap();
            }
        }
        for (load, name) in [(Load::Get, "leased get"), (Load::Put, "put")] {
            for callers in [1, 16, 64, 256] {
                let mut rounds = Vec::new();
                for _ in 0..ROUNDS {
                    rounds.push(round(&client, load, callers).await);
                }
                rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
                let (rate, taken) = &rounds[ROUNDS / 2];
                println!(
                    "{name:>10}, {callers:>3} callers: {rate:>9.0} ops/s, p50 {:>7.1} µs, p99 {:>7.1} µs",
                    taken.value_at_quantile(0.5) as f64 / 1e3,
                    taken.value_at_quantile(0.99) as f64 / 1e3,
                );
            }
        }
        client.close().await;
        for server in servers {
            server.shutdown().await;
        }
    });
}
