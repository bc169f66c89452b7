//! What a leased get costs inside the server: lease check, store read, answer; no network.
//!
//! `cargo bench --bench leased_get`; after `--`, `figures=FILE` writes them there too.

#![expect(clippy::unwrap_used, reason = "a bench that meets an error is over")]
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

#[path = "figures/mod.rs"]
mod figures;

use std::hint::black_box;
use std::mem::take;
use std::ops::ControlFlow;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant as Stopwatch};

use bytes::Bytes;
use leasehold::api::{Consistency, Limits, PutRequest};
use leasehold::clock::SystemClock;
use leasehold::kv::{Command, Operation};
use leasehold::node::{
    Captured, Demand, Input, Node, NodeOptions, Output, ReadBuffer, ReadResult, Reader,
};
use leasehold::raft::{Configuration, Payload, Published, RestoredState, Timing};
use leasehold::server::disk::store::{StateReader, StateStore, StoreError, StoreOptions};
use leasehold::time::Clock;
use leasehold::types::{BootstrapId, ClusterId, LogId, LogIndex, NodeId};
use leasehold::wire::point::Record;

const ROUNDS: usize = 7;
const READS: usize = 400_000;
/// Reads between two ticks of the node, which keep the lease alive.
const READS_PER_TICK: usize = 2_000;

/// A cluster of one with a store in a folder.
struct SingleNode {
    node: Node,
    store: StateStore,
    clock: SystemClock,
}

impl SingleNode {
    fn new(folder: &std::path::Path, record_cache_bytes: usize) -> Self {
        let clock = SystemClock;
        let options = NodeOptions {
            cluster_id: ClusterId(1),
            id: NodeId(1),
            members: Vec::new(),
            timing: Timing::default(),
            limits: Limits::DEFAULT,
            waiting_max: 16,
            sessions_max: 16,
            session_idle_max: Duration::from_secs(3600),
            leases: leasehold::node::LeaseOptions::DEFAULT,
            auto_compaction: leasehold::node::AutoCompaction::Off,
            check_interval: None,
            seed: 1,
            bootstrap: BootstrapId(1),
        };
        let restored = RestoredState {
            base_configuration: Configuration {
                voters: [NodeId(1)].into(),
                ..Configuration::default()
            },
            ..RestoredState::default()
        };
        let node = Node::new(options, restored, Some(BootstrapId(1)), 1, clock.now());
        let store_options = StoreOptions {
            record_cache_bytes,
            ..StoreOptions::default()
        };
        let store = StateStore::open(folder, &store_options).unwrap();
        Self { node, store, clock }
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        self.node.handle(now, Input::Tick);
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Persist(ticket, _) => self.node.handle(now, Input::Persisted(ticket)),
                Output::Apply(entries) => {
                    let commands: Vec<(LogId, Option<Bytes>)> = entries
                        .into_iter()
                        .map(|entry| match entry.payload {
                            Payload::Command(bytes) => (entry.id, Some(bytes)),
                            _ => (entry.id, None),
                        })
                        .collect();
                    let applied = self.store.apply_batch(&commands).unwrap();
                    let replies = applied.into_iter().map(|a| (a.id, a.reply)).collect();
                    self.node.handle(now, Input::Applied(replies));
                }
                _ => {}
            }
        }
    }

    /// Waits for the lease, then writes `keys` keys behind the node's back: the bench is about
    /// reading.
    fn prepare(&mut self, keys: usize) {
        while self
            .node
            .published()
            .lease()
            .is_none_or(|cell| !cell.is_valid(self.clock.now()))
        {
            self.tick();
            std::thread::sleep(Duration::from_millis(5));
        }
        let id = self.node.status().last;
        let entry = |number: usize| {
            let put = PutRequest {
                key: key(number),
                value: vec![7; 256].into(),
                prev_kv: false,
                ..PutRequest::default()
            };
            let command = Command::Write {
                author: None,
                session: None,
                operation: Operation::Put(put),
            };
            let index = LogIndex(id.index.0 + 1 + number as u64);
            (LogId::new(index, id.term), Some(command.encode()))
        };
        let entries: Vec<_> = (0..keys).map(entry).collect();
        for batch in entries.chunks(512) {
            self.store.apply_batch(batch).unwrap();
        }
    }
}

fn key(number: usize) -> Bytes {
    format!("key{number:08}").into()
}

fn leased_get(
    published: &Published,
    store: &StateReader,
    clock: &SystemClock,
    key: &[u8],
    buffer: &mut ReadBuffer<Option<Record>>,
) -> bool {
    let get = Demand {
        consistency: Consistency::Linearizable,
        min_revision: 0,
    };
    let captured = Captured::of(
        slice::from_ref(&get),
        store.shown(),
        published,
        take(buffer),
    );
    let looked = captured.look(|_| {
        let point = store.get(key)?;
        Ok::<_, StoreError>(ControlFlow::Continue(point.into()))
    });
    let reader = Reader {
        lease_margin: Duration::from_millis(50),
    };
    let mut judged = looked.unwrap().judge(clock);
    let served = match judged.next(&reader) {
        Some((_, ReadResult::Answer(answer))) => {
            black_box(answer.read());
            black_box(&answer).found().is_some()
        }
        _ => false,
    };
    *buffer = judged.finish().1;
    served
}

/// Nanoseconds a call of `work` in each of several rounds, the shortest first; `alone` is ticked in
/// between.
fn nanos(alone: &mut SingleNode, mut work: impl FnMut(usize) -> bool) -> Vec<f64> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut spent = Duration::ZERO;
        for start in (0..READS).step_by(READS_PER_TICK) {
            alone.tick();
            let began = Stopwatch::now();
            for number in start..start + READS_PER_TICK {
                assert!(work(number), "every read is served");
            }
            spent += began.elapsed();
        }
        rounds.push(spent.as_secs_f64() * 1e9 / READS as f64);
    }
    rounds.sort_by(f64::total_cmp);
    rounds
}

/// What a whole get took in each round.
fn run(keys: usize, record_cache_bytes: usize, label: &str) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let mut alone = SingleNode::new(&folder.path().join("state"), record_cache_bytes);
    alone.prepare(keys);
    let published: Arc<Published> = alone.node.published();
    let store = alone.store.reader();
    let clock = SystemClock;
    let names: Vec<Bytes> = (0..keys).map(key).collect();
    // A walk that no prefetcher follows.
    let pick = |number: usize| &names[number.wrapping_mul(7919) % keys];

    let check = nanos(&mut alone, |_| {
        published
            .lease()
            .is_some_and(|cell| cell.permit(clock.now(), LogIndex(1)).is_some())
    });
    let read = nanos(&mut alone, |number| {
        store.get(pick(number)).unwrap().record.is_some()
    });
    let mut buffer = ReadBuffer::default();
    let whole = nanos(&mut alone, |number| {
        leased_get(&published, &store, &clock, pick(number), &mut buffer)
    });
    println!(
        "{keys:>8} keys, {label:<28} lease check {:>5.0} ns, store read {:>5.0} ns, leased get \
         {:>5.0} ns",
        median(&check),
        median(&read),
        median(&whole)
    );
    whole
}

/// Of figures in their order.
fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

fn main() {
    println!(
        "leased_get: one thread, values of 256 bytes, medians of {ROUNDS} rounds of {READS} reads. The \
         check is one reading of both clocks and two atomic\nloads; sessions make one check for a \
         whole batch of requests, so what a read costs there lies between the last two columns."
    );
    let mut figures = figures::Figures::default();
    let whole = run(10_000, 256 << 20, "all in the record cache");
    figures.add("leased get in process", whole);
    run(10_000, 0, "without a record cache");
    run(200_000, 256 << 20, "all in the record cache");
    let file = std::env::args().find_map(|argument| figures::file_of(&argument));
    figures.write(file.as_deref()).unwrap();
}
