//! Chaos on real processes: three nodes with disks, clocks and wires of their own, everything that can
//! go wrong with those drawn from a seed, clients that know what they may expect, and a judgement.
//!
//! ```text
//! cargo test --test cluster chaos::                         # two minutes
//! CHAOS_SECONDS=3600 CHAOS_SEED=7 cargo chaos               # an hour, in chunks, and a table
//! ```
//!
//! A chunk is a cluster of its own, with the next seed. A seed repeats the schedule, not the run. Beside
//! it stand trials of one thing each, under the same clients and the same judgement where clients take
//! part: a disk that stalls, a full one ([`disks`], [`full_disks`]), partitions by the kernel ([`partitions`]), clocks that
//! run as wrong as they may ([`wrong_clocks`]), holders of read leases ([`read_leases`]), and kills at each step of a
//! state that is installed ([`installs`]). What cannot be done on a machine is said when that is found out, and again at
//! the end. What is judged:
//!
//! - linearizability of everything that clients read and wrote, by revisions and values
//!   ([`leasehold::bench::history`]): reads under a node's own lease are among it, and those of clients that ask one
//!   member and no other, which answers by its read lease where it holds one; and what clients of etcd read and write
//!   at each node's port for them, by gRPC and by JSON;
//! - that no acknowledged write is lost: it is read at the end, and told by a watch at each node, once;
//! - that a swap counts once, however often it was sent;
//! - that no lease ends while its holder counts on it, none early, and in the end all that were
//!   abandoned have ended: of the SDK's and of etcd's clients;
//! - that the store takes no write of a lock's former holder: of the SDK's and of etcd's Lock;
//! - that it takes no word of an election's former leader after one of a later one, that nobody is told of a leader
//!   that was deposed before they asked, and that observers are told what was said, of one leader after the other;
//! - that the watches of all nodes tell the same, those of etcd's clients, too, that all states are equal in the end, that no process
//!   panics or finds a lease of its own wrong, and that none ends but by a fault of its disk.

mod disks;
mod fleet;
mod full_disks;
mod installs;
mod load;
mod partitions;
mod read_leases;
mod schedule;
pub(crate) mod tools;
mod trial;
pub(crate) mod wires;
mod wrong_clocks;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fleet::Fleet;
use schedule::ReadLeases;
use trial::{TICK, Trial};

use crate::harness::{setting, tell_what_was_left_out};

const NODES: usize = 3;
/// A cluster's life under faults.
const CHUNK: Duration = Duration::from_secs(110);

/// What chunks came to together.
#[derive(Default)]
struct Totals {
    faults: BTreeMap<&'static str, (u64, u64)>,
    counts: BTreeMap<&'static str, u64>,
    violations: Vec<String>,
}

impl Totals {
    fn print(&self) {
        eprintln!("\n| Fault | Done | Not possible at the time |\n|---|---|---|");
        for (name, (done, skipped)) in &self.faults {
            eprintln!("| {name} | {done} | {skipped} |");
        }
        eprintln!("\n| Count | |\n|---|---|");
        for (name, count) in &self.counts {
            eprintln!("| {name} | {count} |");
        }
        eprintln!("\n{} violations", self.violations.len());
        tell_what_was_left_out();
    }
}

#[test]
fn whatever_goes_wrong_clients_are_told_the_truth() {
    let length = Duration::from_secs(setting("CHAOS_SECONDS", 110));
    let mut seed = setting("CHAOS_SEED", 1);
    let mut totals = Totals::default();
    let mut left = length;
    while !left.is_zero() {
        let chunk = left.min(CHUNK);
        left -= chunk;
        run(seed, chunk, &mut totals);
        totals.print();
        assert!(
            totals.violations.is_empty(),
            "seed {seed}: {}",
            totals.violations.join("\n")
        );
        seed += 1;
    }
    for what in [
        "writes acknowledged",
        "reads judged",
        "revisions told by watches",
        load::etcd::watches::TOLD,
        load::etcd::leases::LOOKS,
        load::etcd::gateway::ANSWERED,
        load::etcd::locks::TAKEN,
        load::etcd::elections::PROCLAIMED,
        load::etcd::elections::TOLD,
    ] {
        assert!(totals.counts[what] > 0, "nothing was shown: no {what}");
    }
}

/// One chunk.
fn run(seed: u64, length: Duration, totals: &mut Totals) {
    let events = schedule::draw(seed, length, NODES);
    let read_leases = ReadLeases::draw(seed, NODES);
    let fleet = Fleet::start_with(NODES, seed, &read_leases);
    let mut trial = Trial::begin(fleet, seed);
    eprintln!(
        "seed {seed}: {} faults within {length:?}, {read_leases:?}",
        events.len()
    );
    let began = Instant::now();
    let mut due = events.iter().peekable();
    while began.elapsed() < length {
        while let Some(event) = due.next_if(|event| event.at <= began.elapsed()) {
            eprintln!("{event}");
            trial.fleet.begin(event, trial.load.leader());
        }
        trial.fleet.tick();
        std::thread::sleep(TICK);
    }
    let verdict = trial.end();
    totals.violations.extend(verdict.violations);
    for (name, count) in verdict.counts {
        *totals.counts.entry(name).or_default() += count;
    }
    for (name, (done, skipped)) in verdict.faults {
        let sum = totals.faults.entry(name).or_default();
        sum.0 += done;
        sum.1 += skipped;
    }
}
