//! The simulator: the replica that serves in production, run by the thousand under one seed each,
//! with invented clocks, links, disks and crashes, and judged by checkers.
//!
//! A *run* is drawn from a 64-bit seed: its options, its faults, every delay. The same seed gives
//! the same run, event for event, on the same commit. Faults last some seconds; then everything
//! heals, and the cluster must be well again within a bounded time.
//!
//! ```text
//! cargo test --test sim                                   some seeds; optimised, a few hundred
//! SIM_SEEDS=20000 SIM_FIRST_SEED=1 cargo test --release --test sim seeds -- --nocapture
//! SIM_SEED=0x1f3a cargo test --test sim replay -- --nocapture      one seed, told in full
//! SIM_SEED=0x1f3a cargo test --test sim shrunk -- --nocapture      a failing one, made small
//! SIM_SCRIPT=tests/sim/regressions/….sched cargo test --test sim replay -- --nocapture
//! ```
//!
//! Seeds run on all cores, or on `SIM_THREADS`. A seed that fails prints the command that replays
//! it. `SIM_PROFILE` (calm, swarm, targeted, storm, frozen) and `SIM_SECONDS` override what the
//! seed draws; a replay needs the same.
//!
//! Where to look: `world.rs` is the loop, `driver.rs` and `session.rs` are the server's threads,
//! `schedule.rs` says which faults there are, `checkers/` says what must hold, `scenarios.rs` has
//! the schedules that are told by name.

#![allow(
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test binary speaks to whoever runs it, and may panic"
)]

#[cfg(leasehold_bugs)]
mod bugs;
mod checkers;
mod clock;
mod determinism;
mod dice;
mod disk;
mod driver;
mod erring;
mod history;
mod holders;
mod lockers;
mod machine;
mod many;
mod marks;
mod members;
mod nemesis;
mod network;
mod options;
mod partitions;
mod queue;
mod recovery;
mod replay;
mod run;
mod scenarios;
mod schedule;
mod script;
mod session;
mod shrink;
mod snapshots;
mod state;
mod tell;
mod trace;
mod watchers;
mod watches;
mod wiped;
mod workload;
mod world;

use many::Pace;
use options::{Options, Profile};

/// How many seeds are run unless the environment says so: among so many, everything happens that can.
const SEEDS: u64 = 300;

/// A run is a million small pieces, and takes a fifth longer with the system's allocator.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A part of `seeds` in a build that is not optimised, which takes ten times as long for each. The gate runs both.
const fn affordable(seeds: u64) -> u64 {
    match cfg!(debug_assertions) {
        true => seeds.div_ceil(5),
        false => seeds,
    }
}

/// The environment's word for how to run.
struct Settings {
    first: u64,
    seeds: u64,
    threads: usize,
    profile: Option<Profile>,
    seconds: Option<u64>,
}

impl Settings {
    fn read() -> Self {
        let profile = std::env::var("SIM_PROFILE").ok();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            first: number("SIM_FIRST_SEED").unwrap_or(1),
            seeds: number("SIM_SEEDS").unwrap_or(affordable(SEEDS)),
            threads: number("SIM_THREADS").map_or(cores, |threads| threads.max(1) as usize),
            profile: profile.map(|name| Profile::named(&name).expect("SIM_PROFILE is a profile")),
            seconds: number("SIM_SECONDS"),
        }
    }

    fn options(&self, seed: u64) -> Options {
        Options::draw(seed, self.profile, self.seconds)
    }
}

/// A number from the environment, decimal or with `0x`.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    Some(parsed.unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[test]
fn seeds_end_well() {
    let settings = Settings::read();
    let mut pace = Pace::start(settings.threads);
    let (total, failed) = many::run_all(settings.first, settings.seeds, &mut pace, |seed| {
        settings.options(seed)
    });
    match failed {
        Some((options, Some(report))) => {
            panic!("{}", replay::failure(&options, &report).unwrap_or_default());
        }
        Some((options, None)) => {
            panic!("a node panicked\n{}", replay::what_next(&options));
        }
        None => {}
    }
    let many::Total {
        seeds,
        counts: total,
        marks,
        simulated,
        operations,
        events,
        digest,
    } = total;
    eprintln!(
        "{seeds} seeds from {}, {}, {operations} operations, {events} events, digest {digest:016x}, {total:?}",
        settings.first,
        pace.tell(simulated),
    );
    eprintln!("rarest: {:?}", marks.rarest(12));
    // What never happens any more is not tested any more.
    if settings.seeds >= SEEDS && settings.profile.is_none() {
        let missing = marks.missing();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
    // A run in which nothing happened proves nothing.
    if settings.seeds >= affordable(SEEDS) && settings.profile.is_none() {
        let happened = [
            total.elections,
            total.commits,
            total.leased_reads,
            total.quorum_reads,
            total.stale_reads,
            total.follower_reads,
            total.bounded_reads,
            total.ages,
            total.early_reads,
            total.promises,
            total.votes,
            total.transfer_votes,
            total.broken_by_freeze,
            total.recoveries,
        ];
        assert!(happened.iter().all(|count| *count > 0), "{total:?}");
        assert!(total.leased_reads > 20 * settings.seeds, "{total:?}");
    }
}
