//! What a put costs a node's state in CPU time: decode, apply, hash and the record cache on the state thread,
//! and what is handed to fjall later, in pieces as large as those of a node that writes 20,000 a second; no network,
//! no log.
//!
//! `cargo bench --bench apply`; after `--`, `figures=FILE` writes them there too, and a number is
//! how many puts a round has.

#![expect(clippy::unwrap_used, reason = "a bench that meets an error is over")]
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

#[path = "figures/mod.rs"]
mod figures;

use std::time::Duration;

use bytes::Bytes;
use leasehold::api::{PutRequest, SessionCall};
use leasehold::kv::{Command, Operation};
use leasehold::server::disk::store::{StateStore, StoreOptions};
use leasehold::types::{LogId, LogIndex, SessionId, Term};

const ROUNDS: usize = 5;
const PUTS: usize = 60_000;
const KEYS: usize = 10_000;
const VALUE: usize = 256;
/// So many puts gather until they are handed to the database.
const GATHERED: usize = 1_000;

/// As the binary allocates.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn at(index: u64) -> LogId {
    LogId::new(LogIndex(index), Term(1))
}

/// The put of a client with `in_flight` callers, each of which asks again when it is answered.
fn put(number: u64, session: Option<SessionId>, in_flight: u64) -> Bytes {
    // A walk that no cache follows.
    let key = format!("bench/{:08}", number.wrapping_mul(7919) % KEYS as u64);
    let session = session.map(|id| SessionCall {
        id,
        sequence: number + 1,
        acknowledged: (number + 1).saturating_sub(in_flight),
    });
    let operation = Operation::Put(PutRequest {
        key: key.into(),
        value: vec![7; VALUE].into(),
        ..PutRequest::default()
    });
    Command::Write {
        author: None,
        session,
        operation,
    }
    .encode()
}

/// The CPU time of this thread so far, which says the same however busy the machine is.
fn thread_cpu() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// Microseconds of CPU a put in each round: of the state thread, and of the one that hands over.
#[derive(Default)]
struct Costs {
    state: Vec<f64>,
    hand_over: Vec<f64>,
}

fn run(batch: usize, with_session: bool, puts: usize) -> Costs {
    let folder = tempfile::tempdir().unwrap();
    let options = StoreOptions::default();
    let mut store = StateStore::open(&folder.path().join("state"), &options).unwrap();
    let open = Command::OpenSession {
        author: None,
        sessions_max: 16,
    }
    .encode();
    store.apply_batch(&[(at(1), Some(open))]).unwrap();
    let session = with_session.then_some(SessionId(1));
    let hand_over = store.hand_over();
    let mut costs = Costs::default();
    for round in 0..ROUNDS {
        let first = round * puts;
        let entries: Vec<_> = (first..first + puts)
            .map(|number| {
                let command = put(number as u64, session, batch as u64);
                (at(number as u64 + 2), Some(command))
            })
            .collect();
        let (mut applying, mut handing) = (Duration::ZERO, Duration::ZERO);
        for piece in entries.chunks(GATHERED) {
            let began = thread_cpu();
            for batch in piece.chunks(batch) {
                let (applied, _) = store.apply_ahead(batch, false).unwrap();
                assert!(applied.iter().all(|applied| applied.reply.result.is_ok()));
                store.merge_runs();
            }
            let applied = thread_cpu();
            while hand_over.step().unwrap().rest > 0 {}
            applying += applied - began;
            handing += thread_cpu() - applied;
        }
        let each = |spent: Duration| spent.as_secs_f64() * 1e6 / puts as f64;
        costs.state.push(each(applying));
        costs.hand_over.push(each(handing));
    }
    costs.state.sort_by(f64::total_cmp);
    costs.hand_over.sort_by(f64::total_cmp);
    costs
}

fn main() {
    let puts = std::env::args().find_map(|argument| argument.parse().ok());
    let puts = puts.unwrap_or(PUTS);
    println!(
        "apply: one thread, {KEYS} keys, values of {VALUE} bytes, medians of {ROUNDS} rounds of {puts} \
         puts; what fjall's own threads do meanwhile is not counted"
    );
    let mut figures = figures::Figures::default();
    for (batch, with_session) in [(64, true), (256, true), (1, true), (64, false)] {
        let costs = run(batch, with_session, puts);
        let session = if with_session { "with" } else { "without" };
        let shown = |rounds: &[f64]| {
            let (least, most) = (rounds[0], rounds[ROUNDS - 1]);
            format!("{:.1} µs ({least:.1} to {most:.1})", rounds[ROUNDS / 2])
        };
        println!(
            "{batch:>4} entries a batch, {session:>7} a session: state {}, hand-over {} a put",
            shown(&costs.state),
            shown(&costs.hand_over),
        );
        figures.add(&format!("apply {batch} {session} session"), costs.state);
        figures.add(
            &format!("hand over {batch} {session} session"),
            costs.hand_over,
        );
    }
    let file = std::env::args().find_map(|argument| figures::file_of(&argument));
    figures.write(file.as_deref()).unwrap();
}
