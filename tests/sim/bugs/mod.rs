//! The prover proven: every deliberate bug of `leasehold::planted` is found, and nothing is found
//! where there is none.
//!
//! ```text
//! RUSTFLAGS='--cfg leasehold_bugs' cargo test --release --target-dir target/bugs \
//!     --no-default-features --test sim bugs -- --nocapture
//! ```
//!
//! A bug is found by seeds (from 1 on, in runs as they are drawn or aimed at its place), by a
//! scenario told by name, or, where the table says so, by its witness in the library alone
//! (`src/planted/tests.rs` runs all of those). Defences mask each other, so some bugs show only in
//! pairs, and some that show alone are planted in pairs all the same.
//!
//! A seed means something else as soon as any draw changes, so the bounds are about ten times what
//! was needed when they were written. `UPDATE_BUGS=1` writes the table into `README.md`;
//! `BUGS=AckTime,NoFloor+LeaseReadyAtOnce` looks at these alone. `BUGS_SURVEY=1000` tries each in
//! as many runs, as they are drawn or of the kind that `BUGS_AIM` names; `BUGS=pairs` is each pair of
//! those that seeds find, `BUGS=none` no bug at all. `BUGS_TELL=1` tells the runs that were found.

mod cases;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::planted;
use leasehold::planted::Bug;
use leasehold::raft::{Timing, TimingOptions};

use crate::many::computed_by_this_thread;
use crate::options::{Options, Profile, ReadLeases};
use crate::run::run;
use cases::{BEYOND, CASES, WITHOUT};

/// Which runs are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Aim {
    /// As the seed draws them.
    Drawn,
    /// The same with three founders or more, which were restored from a backup, and now and then one is again.
    Restored,
    /// The same, with holders of client leases.
    Holders,
    /// The same, with some who watch and some who read the past.
    Watchers,
    /// The same with three nodes or more, which compare their states often.
    Compared,
    /// The same, with users of locks.
    Lockers,
    /// The same with three nodes or more, whose logs are cut close.
    Compacted,
    /// The same with three founders or more and two who wait, and members change.
    Moved,
    /// The same with three founders or more, all of which ask for read leases and are read from often.
    Read,
    /// The same, and members change.
    ReadMoved,
    /// One play of `schedule.rs`, over and over.
    Play(u64),
    /// The same with five nodes.
    PlayOfFive(u64),
    /// The same, and threads often lose the processor.
    PlayPreempted(u64),
    /// The same, and the margin is the least that 2 % of drift allow.
    PlayTight(u64),
    /// The same as that, and the worse clock of each machine is far too fast or slow.
    PlaySlewed(u64),
    /// The same with clocks that drift by 15 %, and the margin for it.
    PlayDrifting(u64),
    /// The same, and processes start with two different timings.
    PlayRetimed(u64),
}

impl Aim {
    fn options(self, seed: u64) -> Options {
        let play = match self {
            Self::Drawn => return Options::draw(seed, None, None),
            Self::Restored => {
                let mut options = settled(seed);
                options.found_three();
                options.real_log = false;
                options.restored = true;
                return options;
            }
            Self::Holders => {
                let mut options = settled(seed);
                options.holders = 6;
                return options;
            }
            Self::Watchers => {
                let mut options = settled(seed);
                options.watchers = 6;
                options.historians = 2;
                return options;
            }
            Self::Compared => {
                let mut options = settled(seed);
                options.found_three();
                options.check_interval = Some(Duration::from_millis(200));
                return options;
            }
            Self::Lockers => {
                let mut options = settled(seed);
                options.lockers = 6;
                return options;
            }
            Self::Compacted => {
                let mut options = settled(seed);
                options.found_three();
                options.real_log = false;
                options.log_tail = Some(seed % 4);
                return options;
            }
            Self::Moved => {
                let mut options = Options::draw(seed, None, None);
                options.found_three();
                options.founders = options.founders.min(5);
                options.nodes = options.founders + 2;
                options.moves = true;
                return options;
            }
            Self::Read => {
                let mut options = settled(seed);
                options.found_three();
                options.read_from_holders();
                return options;
            }
            Self::ReadMoved => {
                let mut options = Self::Moved.options(seed);
                options.read_from_holders();
                return options;
            }
            Self::Play(play)
            | Self::PlayOfFive(play)
            | Self::PlayPreempted(play)
            | Self::PlayTight(play)
            | Self::PlaySlewed(play)
            | Self::PlayDrifting(play)
            | Self::PlayRetimed(play) => play,
        };
        let mut options = Options::draw(seed, Some(Profile::Targeted), Some(12));
        options.found(options.founders);
        options.moves = false;
        options.play = Some(play);
        match self {
            Self::PlayOfFive(_) => options.found(5),
            Self::PlayPreempted(_) => {
                options.preempt = 0.2;
                options.preempt_max = 400 * crate::clock::MS;
            }
            Self::PlayTight(_) => options.keep_time(20_000, 22),
            Self::PlaySlewed(_) => {
                options.keep_time(20_000, 22);
                options.slewed = true;
            }
            Self::PlayDrifting(_) => options.keep_time(150_000, 152),
            Self::PlayRetimed(_) => {
                let other = options.other_timing.unwrap_or_else(|| options.retimed());
                options.other_timing = Some(other);
            }
            _ => {}
        }
        options
    }

    /// The aim of that name.
    fn named(name: &str) -> Option<Self> {
        let kinds = [
            Self::Play,
            Self::PlayOfFive,
            Self::PlayPreempted,
            Self::PlayTight,
            Self::PlaySlewed,
            Self::PlayDrifting,
            Self::PlayRetimed,
        ];
        let plays = kinds
            .iter()
            .flat_map(|kind| (0..crate::schedule::PLAYS).map(kind));
        let drawn = [
            Self::Drawn,
            Self::Restored,
            Self::Holders,
            Self::Watchers,
            Self::Compared,
            Self::Lockers,
            Self::Compacted,
            Self::Moved,
            Self::Read,
            Self::ReadMoved,
        ];
        let mut all = plays.chain(drawn);
        all.find(|aim| aim.name() == name)
    }

    fn name(self) -> String {
        match self {
            Self::Drawn => "as drawn".to_owned(),
            Self::Restored => "as drawn, restored".to_owned(),
            Self::Holders => "as drawn, six holders of leases".to_owned(),
            Self::Watchers => "as drawn, six watchers and two historians".to_owned(),
            Self::Compared => "as drawn, states often compared".to_owned(),
            Self::Lockers => "as drawn, six users of locks".to_owned(),
            Self::Compacted => "as drawn, logs cut close".to_owned(),
            Self::Moved => "as drawn, members change".to_owned(),
            Self::Read => "as drawn, read leases".to_owned(),
            Self::ReadMoved => "as drawn, read leases, members change".to_owned(),
            Self::Play(play) => format!("play {play}"),
            Self::PlayOfFive(play) => format!("play {play}, five nodes"),
            Self::PlayPreempted(play) => format!("play {play}, preempted"),
            Self::PlayTight(play) => format!("play {play}, least margin"),
            Self::PlaySlewed(play) => format!("play {play}, slewed clocks"),
            Self::PlayDrifting(play) => format!("play {play}, 15 % drift"),
            Self::PlayRetimed(play) => format!("play {play}, two timings"),
        }
    }
}

/// The run of `seed`, in which members stay.
fn settled(seed: u64) -> Options {
    let mut options = Options::draw(seed, None, None);
    options.found(options.founders);
    options.moves = false;
    options
}

impl Options {
    /// Three founders at least.
    fn found_three(&mut self) {
        if self.founders < 3 {
            self.nodes += 3 - self.founders;
            self.founders = 3;
        }
    }

    /// Everybody asks for a read lease, and is read from often.
    fn read_from_holders(&mut self) {
        self.read_leases = Some(ReadLeases::ALL);
        self.probe_every = Some(4 * crate::clock::MS);
        self.think = self.think.min(20 * crate::clock::MS);
    }

    /// The usual promise for all, with so many milliseconds of margin: the least for this drift.
    fn keep_time(&mut self, drift_ppm: u32, margin_ms: u64) {
        let timing = Timing::new(TimingOptions {
            max_clock_skew: Duration::from_millis(margin_ms),
            max_drift_ppm: drift_ppm,
            election_timeout_min: Duration::from_millis(501),
            ..TimingOptions::default()
        });
        self.timing = timing.expect("the margin is enough for the drift");
        // Another one would be for less drift than these clocks have.
        self.other_timing = None;
        self.drift_ppm = drift_ppm;
    }
}

/// What finds a case.
#[derive(Clone, Copy)]
enum By {
    /// One of so many seeds of these runs; a rule that begins with one of these.
    Seeds(Aim, u64, &'static [&'static str]),
    /// A scenario.
    Schedule(&'static str, fn()),
    /// Its witness in the library, and nothing here.
    Witness,
    /// Nothing, alone: what stands beside it does the same. Why.
    Hidden(&'static str),
}

/// Bugs that are planted together, and what finds them.
struct Case {
    /// One, or some that hide each other.
    bugs: &'static [Bug],
    by: By,
}

/// Correct code with clocks worse than its margin is for.
struct Beyond {
    aim: Aim,
    drift_ppm: u32,
    within: u64,
}

/// What was found in one run.
struct Found {
    rule: String,
    options: Options,
}

/// What became of a case.
struct Outcome {
    found: Option<Found>,
    /// The seed that found it, or how many did not.
    seeds: u64,
    /// In how many runs each of its places was come to.
    reached: u64,
    took: Duration,
}

/// Which rule breaks under `bugs` in the run of `options`, if any does.
fn broken(bugs: &[Bug], options: Options) -> Option<String> {
    let _planted = planted::plant(bugs);
    match catch_unwind(AssertUnwindSafe(|| run(options))) {
        Ok(report) => report.violation.map(|violation| violation.rule.to_owned()),
        Err(panic) => Some(format!("a node panicked: {}", said(panic.as_ref()))),
    }
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    let first = text.and_then(|text| text.lines().next());
    first.unwrap_or_default().to_owned()
}

/// Runs seeds until a checker objects.
fn search(bugs: &[Bug], options: impl Fn(u64) -> Options, first: u64, within: u64) -> Outcome {
    let began = computed_by_this_thread();
    let mut outcome = Outcome {
        found: None,
        seeds: within,
        reached: 0,
        took: Duration::ZERO,
    };
    for seed in first..first + within {
        let options = options(seed);
        let rule = broken(bugs, options.clone());
        let all = bugs.iter().all(|bug| planted::was_reached(*bug));
        outcome.reached += u64::from(all);
        if let Some(rule) = rule {
            outcome.found = Some(Found { rule, options });
            outcome.seeds = seed;
            break;
        }
    }
    outcome.took = computed_by_this_thread().saturating_sub(began);
    outcome
}

/// Does something with each of `all` on all cores, keeping their order.
fn on_all_cores<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::SeqCst);
                    let Some(one) = all.get(place) else {
                        return;
                    };
                    let result = work(one);
                    done.lock().unwrap().push((place, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Runs `options` once more, and prints what happens.
fn tell(bugs: &[Bug], options: &Options) {
    let _planted = planted::plant(bugs);
    let mut options = options.clone();
    options.readable = true;
    let report = run(options.clone());
    for line in report.trace.lines() {
        println!("{line}");
    }
    println!("{options:#?}\n{:#?}", report.violation);
}

/// A node that panics under a bug has been found out; its story is of no use to anybody.
fn keep_quiet_about_planted_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !planted::is_any_on() {
            usual(panic);
        }
    }));
}

fn names(bugs: &[Bug]) -> String {
    let names: Vec<String> = bugs.iter().map(Bug::to_string).collect();
    names.join(" + ")
}

fn rules(case: &Case) -> String {
    let rules: Vec<&str> = case.bugs.iter().map(|bug| bug.rule()).collect();
    rules.join(" + ")
}

fn whats(case: &Case) -> String {
    let whats: Vec<&str> = case.bugs.iter().map(|bug| bug.what()).collect();
    whats.join("; ")
}

/// `BUGS`, if it is set: which bugs to look at, some together.
fn wanted() -> Option<Vec<Vec<Bug>>> {
    let wanted = std::env::var("BUGS").ok()?;
    if wanted == "pairs" {
        let found = CASES.iter().filter_map(|case| match (case.by, case.bugs) {
            (By::Seeds(..), [one]) => Some(*one),
            _ => None,
        });
        let found: Vec<Bug> = found.collect();
        let pairs = found.iter().enumerate();
        let pairs = pairs.flat_map(|(place, one)| {
            let others = found[place + 1..].iter();
            others.map(|other| vec![*one, *other])
        });
        return Some(pairs.collect());
    }
    if wanted == "none" {
        return Some(vec![Vec::new()]);
    }
    let bug = |name: &str| Bug::named(name).unwrap_or_else(|| panic!("BUGS: no bug `{name}`"));
    let case = |case: &str| case.split('+').map(bug).collect();
    Some(wanted.split(',').map(case).collect())
}

/// Looks at a case: its line of the table, or why it was not found.
fn look(case: &Case) -> Result<String, String> {
    let line = |by: String, seed: String, aim: String, drift: String, took: String| {
        format!(
            "| {} | {} | {} | {by} | {seed} | {aim} | {drift} | {took} |",
            names(case.bugs),
            rules(case),
            whats(case),
        )
    };
    let dash = || "–".to_owned();
    match case.by {
        By::Witness => {
            let witness = case.bugs[0].witness().unwrap_or_default();
            Ok(line(format!("`{witness}`"), dash(), dash(), dash(), dash()))
        }
        By::Hidden(why) => {
            let by = format!("nothing alone: {why}");
            Ok(line(by, dash(), dash(), dash(), dash()))
        }
        By::Schedule(name, scenario) => {
            let began = computed_by_this_thread();
            let _planted = planted::plant(case.bugs);
            let failed = catch_unwind(scenario).is_err();
            let took = computed_by_this_thread().saturating_sub(began);
            if !failed {
                return Err(format!("{}: {name} ends well", names(case.bugs)));
            }
            let took = format!("{:.1}", took.as_secs_f64());
            Ok(line(
                format!("`{name}`"),
                dash(),
                dash(),
                "0".to_owned(),
                took,
            ))
        }
        By::Seeds(aim, within, expected) => {
            let outcome = search(case.bugs, |seed| aim.options(seed), 1, within);
            let Some(found) = outcome.found else {
                return Err(format!(
                    "{}: {within} seeds of `{}` end well; come to in {}",
                    names(case.bugs),
                    aim.name(),
                    outcome.reached
                ));
            };
            // Else the bug had no part in it.
            if let Some(rule) = broken(&[], found.options.clone()) {
                let (seed, aim) = (outcome.seeds, aim.name());
                let what = format!("{rule} in seed {seed} of `{aim}`, without a bug");
                return Err(format!("{}: {what}", names(case.bugs)));
            }
            let mut by = found.rule.clone();
            if !expected.iter().any(|rule| found.rule.starts_with(rule)) {
                let _ = write!(by, " (expected {})", expected.join(" or "));
            }
            let drift = format!("{} %", f64::from(found.options.drift_ppm) / 1e4);
            let took = format!("{:.1}", outcome.took.as_secs_f64());
            Ok(line(by, outcome.seeds.to_string(), aim.name(), drift, took))
        }
    }
}

#[test]
fn every_bug_is_found() {
    if crate::number("BUGS_SURVEY").is_some() {
        return;
    }
    keep_quiet_about_planted_panics();
    let wanted = wanted();
    let chosen = |case: &&Case| {
        let wanted = wanted.as_ref();
        wanted.is_none_or(|wanted| wanted.iter().any(|bugs| bugs == case.bugs))
    };
    let cases: Vec<&Case> = CASES.iter().filter(chosen).collect();
    let looks = on_all_cores(&cases, |case| look(case));
    let mut table = String::from(HEAD);
    let mut missed = Vec::new();
    for look in looks {
        match look {
            Ok(line) => {
                table.push_str(&line);
                table.push('\n');
            }
            Err(what) => missed.push(what),
        }
    }
    println!("{table}");
    if std::env::var_os("UPDATE_BUGS").is_some() && missed.is_empty() {
        write_down(&table);
    }
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
}

/// Whether two bugs take something away from the same rule.
fn share_a_rule(one: Bug, other: Bug) -> bool {
    let mut rules = one.rule().split(", ");
    rules.any(|rule| other.rule().split(", ").any(|its| its == rule))
}

/// Defences of one rule are those that hide each other's absence, so bugs of one rule are planted
/// together: what finds one of the two must still find something. (Of bugs that have a witness in
/// the library, `src/planted/tests.rs` plants the pairs.)
#[test]
fn pairs_of_one_rule_are_found() {
    if crate::number("BUGS_SURVEY").is_some() || wanted().is_some() {
        return;
    }
    keep_quiet_about_planted_panics();
    let single = |case: &&Case| {
        let runs = matches!(case.by, By::Seeds(..) | By::Schedule(..));
        case.bugs.len() == 1 && runs
    };
    let single: Vec<&Case> = CASES.iter().filter(single).collect();
    let pairs: Vec<(&Case, &Case)> = single
        .iter()
        .enumerate()
        .flat_map(|(place, one)| single[place + 1..].iter().map(|other| (*one, *other)))
        .filter(|(one, other)| share_a_rule(one.bugs[0], other.bugs[0]))
        .collect();
    let looks = on_all_cores(&pairs, |(one, other)| {
        let bugs = [one.bugs[0], other.bugs[0]];
        let by = [one, other]
            .into_iter()
            .find_map(|case| found_as(case, &bugs));
        by.map(|by| format!("{}: {by}", names(&bugs)))
            .ok_or_else(|| names(&bugs))
    });
    let (found, missed): (Vec<_>, Vec<_>) = looks.into_iter().partition(Result::is_ok);
    let found: Vec<String> = found.into_iter().flatten().collect();
    println!("{} pairs of one rule:\n{}", found.len(), found.join("\n"));
    let missed: Vec<String> = missed.into_iter().filter_map(Result::err).collect();
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
}

/// What finds `bugs`, looked for as `case` is.
fn found_as(case: &Case, bugs: &[Bug]) -> Option<String> {
    match case.by {
        By::Seeds(aim, within, _) => {
            let outcome = search(bugs, |seed| aim.options(seed), 1, within);
            let rule = outcome.found?.rule;
            Some(format!("{rule}, seed {} {}", outcome.seeds, aim.name()))
        }
        By::Schedule(name, scenario) => {
            let _planted = planted::plant(bugs);
            catch_unwind(scenario).is_err().then(|| name.to_owned())
        }
        By::Witness | By::Hidden(_) => None,
    }
}

/// A margin that bore any drift would be none, and checkers that bear it would be blind.
#[test]
fn drift_beyond_the_margin_is_found() {
    if crate::number("BUGS_SURVEY").is_some() || wanted().is_some() {
        return;
    }
    let looks = on_all_cores(BEYOND, |beyond| {
        let options = |seed| {
            let mut options = beyond.aim.options(seed);
            options.drift_ppm = beyond.drift_ppm;
            options
        };
        let outcome = search(&[], options, 1, beyond.within);
        let drift = f64::from(beyond.drift_ppm) / 1e4;
        let aim = beyond.aim.name();
        let found = outcome.found.map(|found| found.rule);
        println!(
            "no bug, {aim}, clocks wrong by {drift} %: {}, seed {}",
            found.as_deref().unwrap_or("not found"),
            outcome.seeds
        );
        found.is_some_and(|rule| ["L1", "L4", "L8"].iter().any(|l| rule.starts_with(l)))
    });
    assert!(looks.into_iter().all(|found| found));
}

const HEAD: &str = "\
| Bug | Rule | What it does | Found by | First seed | In runs | Drift | Seconds |
|---|---|---|---|---|---|---|---|
";

/// Replaces the tables in the simulator's README.
fn write_down(table: &str) {
    let (before, _, after) = readme();
    let text = format!("{before}{BEGIN}\n{table}\n{}{END}{after}", without());
    std::fs::write(README, text).unwrap();
}

/// The simulator's README: what is before the tables, the tables, and what is after.
fn readme() -> (String, String, String) {
    let text = std::fs::read_to_string(README).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the README says where");
    let (tables, after) = rest.split_once(END).expect("the README says where it ends");
    (before.to_owned(), tables.to_owned(), after.to_owned())
}

/// The rules that no bug takes away.
fn without() -> String {
    let mut table = String::from("| Rules without a bug | Why |\n|---|---|\n");
    for (rules, why) in WITHOUT {
        let _ = writeln!(table, "| {rules} | {why} |");
    }
    table
}

/// The table tells of the bugs that there are; what was measured for each may have changed since.
#[test]
fn the_table_is_that_of_the_bugs() {
    if std::env::var_os("UPDATE_BUGS").is_some() {
        return;
    }
    let (_, tables, _) = readme();
    let cells = |line: &str| -> Vec<String> {
        let cells = line.split('|').skip(1).take(3);
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let lines = tables
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let written: Vec<_> = lines.skip(2).map(cells).take(CASES.len()).collect();
    let expected: Vec<_> = CASES
        .iter()
        .map(|case| vec![names(case.bugs), rules(case), whats(case)])
        .collect();
    assert_eq!(written, expected, "UPDATE_BUGS=1 writes it anew");
    assert!(tables.contains(&without()), "UPDATE_BUGS=1 writes it anew");
}

/// Every rule of the lease protocol can be taken away, or it is said why not.
#[test]
fn every_rule_has_a_bug_or_a_reason() {
    let taken: BTreeSet<&str> = Bug::ALL
        .iter()
        .flat_map(|bug| bug.rule().split(", "))
        .collect();
    let excused: BTreeSet<&str> = WITHOUT
        .iter()
        .flat_map(|(rules, _)| rules.split(", "))
        .collect();
    let rules = [("P", 39), ("A", 28), ("T", 21), ("N", 9), ("RL", 11)];
    for (list, last) in rules {
        for number in 1..=last {
            let rule = format!("{list}{number}");
            let rule = rule.as_str();
            let (taken, excused) = (taken.contains(rule), excused.contains(rule));
            assert!(taken != excused, "{rule}: bug {taken}, excuse {excused}");
        }
    }
}

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sim/README.md");

const BEGIN: &str = "<!-- The table of bugs.rs begins. -->";
const END: &str = "<!-- The table of bugs.rs ends. -->";

/// Each bug is in a case that finds it, and one that only its witness notices has a witness.
#[test]
fn every_bug_has_a_case() {
    let covered: BTreeSet<Bug> = CASES.iter().flat_map(|case| case.bugs).copied().collect();
    let missing: Vec<&Bug> = Bug::ALL
        .iter()
        .filter(|bug| !covered.contains(bug))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    let is_found_with_another = |bug: Bug| {
        let pairs = CASES.iter().filter(|case| case.bugs.contains(&bug));
        pairs
            .filter(|case| matches!(case.by, By::Seeds(..)))
            .count()
            > 0
    };
    for case in CASES {
        let bug = case.bugs[0];
        match case.by {
            By::Witness => assert!(bug.witness().is_some(), "{bug}"),
            // The models of `tests/interleavings` name the bugs that they must see.
            By::Hidden(why) => assert!(
                is_found_with_another(bug) || why.contains("tests/interleavings"),
                "{bug}"
            ),
            By::Seeds(..) | By::Schedule(..) => {}
        }
    }
}

/// The control: the same build, the same runs, and no bug.
#[test]
fn where_there_is_no_bug_none_is_found() {
    let aims: BTreeSet<Aim> = CASES
        .iter()
        .filter_map(|case| match case.by {
            By::Seeds(aim, ..) => Some(aim),
            _ => None,
        })
        .collect();
    let seeds = crate::number("BUGS_CONTROL").unwrap_or(6);
    let runs: Vec<(Aim, u64)> = aims
        .into_iter()
        .flat_map(|aim| (1..=seeds).map(move |seed| (aim, seed)))
        .collect();
    let objections = on_all_cores(&runs, |(aim, seed)| {
        let rule = broken(&[], aim.options(*seed))?;
        Some(format!("{rule} in seed {seed} of `{}`", aim.name()))
    });
    let objections: Vec<String> = objections.into_iter().flatten().collect();
    assert!(objections.is_empty(), "{}", objections.join("\n"));
}

/// What runs as they are drawn find; no answer is wrong.
#[test]
fn survey() {
    let Some(seeds) = crate::number("BUGS_SURVEY") else {
        return;
    };
    keep_quiet_about_planted_panics();
    let settings = crate::Settings::read();
    let wanted = wanted().unwrap_or_else(|| Bug::ALL.iter().map(|bug| vec![*bug]).collect());
    let aim = std::env::var("BUGS_AIM").ok();
    let aim = aim.map(|name| Aim::named(&name).expect("BUGS_AIM is a kind of run"));
    let options = |seed| aim.map_or_else(|| settings.options(seed), |aim| aim.options(seed));
    on_all_cores(&wanted, |bugs| {
        let outcome = search(bugs, options, settings.first, seeds);
        let found = outcome.found.map(|found| {
            if crate::number("BUGS_TELL").is_some() {
                tell(bugs, &found.options);
            }
            let (profile, nodes) = (found.options.profile.name(), found.options.nodes);
            format!(
                "{} in seed {}, {profile}, {nodes} nodes",
                found.rule, outcome.seeds
            )
        });
        println!(
            "{}: {}; come to in {} runs, {:.1} s",
            names(bugs),
            found.as_deref().unwrap_or("not found"),
            outcome.reached,
            outcome.took.as_secs_f64()
        );
    });
}
