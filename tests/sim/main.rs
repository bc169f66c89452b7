//! The simulator: the replica that serves in production, run by the thousand under one seed each,
//! with invented clocks, links, disks and crashes, and judged by checkers.
//!
//! A *run* is drawn from a 64-bit seed: its options, its faults, every delay. The same seed gives
//! the same run, event for event, on the same commit. Faults last some seconds; then everything
//! heals, and the cluster must be well again within a bounded time.
//!
//! ```text
//! cargo test --test sim                                   a few hundred seeds
//! SIM_SEEDS=20000 SIM_FIRST_SEED=1 cargo test --release --test sim seeds -- --nocapture
//! SIM_SEED=0x1f3a cargo test --test sim replay -- --nocapture      one seed, told in full
//! SIM_SEED=0x1f3a cargo test --test sim shrunk -- --nocapture      a failing one, made small
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

/// A deliberate bug, as in the library (`src/planted.rs`): never and nothing in a normal build.
#[cfg(not(leasehold_bugs))]
macro_rules! planted {
    ($bug:ident) => {
        false
    };
    ($bug:ident => $does:expr) => {};
}
#[cfg(leasehold_bugs)]
macro_rules! planted {
    ($bug:ident) => {
        leasehold::planted::is_on(leasehold::planted::Bug::$bug)
    };
    ($bug:ident => $does:expr) => {
        if planted!($bug) {
            $does
        }
    };
}

#[cfg(leasehold_bugs)]
mod bugs;
mod checkers;
mod clock;
mod dice;
mod disk;
mod driver;
mod history;
mod machine;
mod many;
mod nemesis;
mod network;
mod options;
#[cfg(leasehold_bugs)]
mod planted;
mod queue;
mod run;
mod scenarios;
mod schedule;
mod session;
mod shrink;
mod trace;
mod workload;
mod world;

use std::fmt::Write as _;
use std::time::Duration;

use many::Pace;
use options::Options;
use options::Profile;
use run::Report;
use run::run;

/// How many seeds a plain `cargo test` runs.
const SEEDS: u64 = 300;

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
            seeds: number("SIM_SEEDS").unwrap_or(SEEDS),
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
            panic!("{}", failure(&options, &report).unwrap_or_default());
        }
        Some((options, None)) => panic!("a node panicked\n{}", replay_with(&options)),
        None => {}
    }
    let many::Total {
        seeds,
        counts: total,
        simulated,
        operations,
        events,
    } = total;
    eprintln!(
        "{seeds} seeds from {}, {}, {operations} operations, {events} events, {total:?}",
        settings.first,
        pace.tell(simulated),
    );
    // A run in which nothing happened proves nothing.
    if settings.seeds >= 100 && settings.profile.is_none() {
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

#[test]
fn the_same_seed_gives_the_same_run() {
    let settings = Settings::read();
    for seed in settings.first..settings.first + 6 {
        let first = run(settings.options(seed));
        let mut options = settings.options(seed);
        options.readable = true;
        let second = run(options);
        assert_eq!(first.trace.hash(), second.trace.hash(), "seed {seed:#x}");
        assert_eq!(first.trace.events(), second.trace.events());
        assert!(first.trace.events() > 1_000);
    }
}

/// Runs one seed and tells everything: `SIM_SEED=… cargo test --test sim replay -- --nocapture`.
#[test]
fn replay() {
    let Some(seed) = number("SIM_SEED") else {
        return;
    };
    let settings = Settings::read();
    let mut options = settings.options(seed);
    options.readable = true;
    println!("{options:#?}");
    let report = run(options.clone());
    for line in report.trace.lines() {
        println!("{line}");
    }
    println!("{:?}", report.counts);
    if let Some(failure) = failure(&options, &report) {
        panic!("{failure}");
    }
}

/// Leaves out of a failing seed's faults what it does not need to fail, and tells the rest:
/// `SIM_SEED=… cargo test --test sim shrunk -- --nocapture`.
#[test]
fn shrunk() {
    let Some(seed) = number("SIM_SEED") else {
        return;
    };
    let Some((mut options, schedule)) = shrink::shrink(Settings::read().options(seed)) else {
        println!("seed {seed:#x} ends well");
        return;
    };
    options.readable = true;
    let report = run(options.clone());
    for line in report.trace.lines() {
        println!("{line}");
    }
    println!("{options:#?}");
    for planned in schedule {
        println!("{planned:?}");
    }
    if let Some(failure) = failure(&options, &report) {
        println!("{failure}");
    }
}

/// What to say of a run that failed.
fn failure(options: &Options, report: &Report) -> Option<String> {
    let violation = report.violation.as_ref()?;
    let mut text = String::new();
    let seed = options.seed;
    let _ = write!(
        text,
        "FAILED {} seed={seed:#x} profile={} nodes={} event={} at {:?}\n{}\n{}",
        violation.rule,
        options.profile.name(),
        options.nodes,
        report.trace.events(),
        Duration::from_nanos(report.simulated),
        violation.what,
        replay_with(options),
    );
    Some(text)
}

/// The command that tells a run in full.
fn replay_with(options: &Options) -> String {
    let mut text = "replay: ".to_owned();
    for name in ["SIM_PROFILE", "SIM_SECONDS"] {
        if let Ok(value) = std::env::var(name) {
            let _ = write!(text, "{name}={value} ");
        }
    }
    let seed = options.seed;
    let _ = write!(
        text,
        "SIM_SEED={seed:#x} cargo test --test sim replay -- --nocapture"
    );
    text
}
