//! Chaos on real processes: three nodes with disks, clocks and wires of their own, everything that can
//! go wrong with those drawn from a seed, clients that know what they may expect, and a judgement.
//!
//! ```text
//! cargo test --test chaos                                   # two minutes
//! CHAOS_SECONDS=3600 CHAOS_SEED=7 cargo chaos               # an hour, in chunks, and a table
//! ```
//!
//! A chunk is a cluster of its own, with the next seed. A seed repeats the schedule, not the run. What
//! is judged:
//!
//! - linearizability of everything that clients read and wrote, reads under a node's own lease among
//!   it, by revisions and values ([`leasehold::bench::history`]);
//! - that no acknowledged write is lost: it is read at the end, and told by a watch at each node, once;
//! - that a swap counts once, however often it was sent;
//! - that no lease ends while its holder counts on it, none early, and in the end all that were
//!   abandoned have ended;
//! - that the store takes no write of a lock's former holder;
//! - that the watches of all nodes tell the same, that all states are equal in the end, that no process
//!   panics, and that none ends but by a fault of its disk.

#![expect(
    clippy::disallowed_methods,
    reason = "tests wait for real processes, in real time"
)]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]
#![expect(clippy::print_stderr, reason = "figures are reported, never asserted")]

mod fleet;
#[path = "../cluster/harness.rs"]
#[expect(
    dead_code,
    reason = "shared with the cluster tests, which use all of it"
)]
mod harness;
mod load;
mod schedule;
mod wires;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use fleet::Fleet;
use harness::setting;
use leasehold::server::disk::store::HashReport;
use leasehold::server::disk::store::StateStore;
use leasehold::server::disk::store::StoreOptions;
use leasehold::types::LogId;
use load::Load;

const NODES: usize = 3;
/// A cluster's life under faults.
const CHUNK: Duration = Duration::from_secs(110);
/// Between two looks at what is due.
const TICK: Duration = Duration::from_millis(20);

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
    ] {
        assert!(totals.counts[what] > 0, "nothing was shown: no {what}");
    }
}

/// One chunk.
fn run(seed: u64, length: Duration, totals: &mut Totals) {
    let events = schedule::draw(seed, length, NODES);
    let mut fleet = Fleet::start(NODES, seed);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let load = Load::begin(fleet.endpoints(), fleet.cluster.options(), seed);
    let load = runtime.block_on(load);
    eprintln!("seed {seed}: {} faults within {length:?}", events.len());
    let began = Instant::now();
    let mut due = events.iter().peekable();
    while began.elapsed() < length {
        while let Some(event) = due.next_if(|event| event.at <= began.elapsed()) {
            eprintln!("{event}");
            fleet.begin(event, load.leader());
        }
        fleet.tick();
        std::thread::sleep(TICK);
    }
    fleet.heal();
    let outcome = runtime.block_on(load.end());
    totals.violations.extend(outcome.violations);
    totals.violations.extend(fleet.violations());
    totals.violations.extend(look_at_states(&mut fleet));
    for (name, count) in outcome.counts {
        *totals.counts.entry(name).or_default() += count;
    }
    for (name, (done, skipped)) in &fleet.deeds.faults {
        let sum = totals.faults.entry(name).or_default();
        sum.0 += done;
        sum.1 += skipped;
    }
    let traffic = fleet.wires.traffic();
    let datagrams = [
        ("datagrams carried", &traffic.carried),
        ("datagrams lost", &traffic.lost),
        ("datagrams doubled", &traffic.doubled),
        ("datagrams damaged", &traffic.damaged),
        ("datagrams delayed", &traffic.delayed),
    ];
    for (name, count) in datagrams {
        *totals.counts.entry(name).or_default() += count.load(Ordering::Relaxed);
    }
    *totals.counts.entry("processes started").or_default() += fleet.deeds.starts;
    *totals
        .counts
        .entry("processes ended by their disk")
        .or_default() += fleet.deeds.ended_by_disk;
}

/// Stops all nodes, which has to go well, and compares each one's state with its own account of it, and
/// with those that ended as far.
fn look_at_states(fleet: &mut Fleet) -> Vec<String> {
    let mut violations = Vec::new();
    for node in &mut fleet.cluster.nodes {
        let code = node.stop();
        if code != 0 {
            violations.push(format!(
                "{} was asked to stop and ended with {code}",
                node.name
            ));
        }
    }
    let mut reports: BTreeMap<LogId, HashReport> = BTreeMap::new();
    for node in &fleet.cluster.nodes {
        let state = node.data_dir.join("state");
        let store = StateStore::open(&state, &StoreOptions::default()).unwrap();
        let report = store.reader().verify().unwrap();
        if report.kept != report.scanned {
            violations.push(format!(
                "the state of {} is not what it says: {report:?}",
                node.name
            ));
        }
        let other = *reports.entry(report.progress.applied).or_insert(report);
        if other != report {
            violations.push(format!(
                "two nodes have different states: {other:?} {report:?}"
            ));
        }
    }
    violations
}
