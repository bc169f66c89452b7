//! A run as a text: its options and its faults, in words.
//!
//! A seed means another run as soon as any draw changes; a text goes on meaning the same faults. So
//! what the shrinker finds is kept as one (`regressions/`), and can be written by hand as well:
//!
//! ```text
//! nodes 3
//! faults-last 4s
//! at 1500ms for 2s: isolate leader both
//! after 1s on vote-reply then 20us for 1ms: crash sender kill
//! ```
//!
//! What is not said is as in a still world: three nodes, perfect clocks, a network that takes a
//! millisecond, no clients. Delays are still drawn, from `seed`.

use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

use leasehold::node::AutoCompaction;
use leasehold::raft::{Timing, TimingOptions};

use crate::clock::{MS, Nanos, SECOND, US, nanos};
use crate::disk::Ending;
use crate::machine::Thread;
use crate::nemesis::{Fault, Planned, Target, Way, When};
use crate::network::{Aim, Kind, Quality};
use crate::options::{Options, Profile, ReadLeases};
use crate::watches::WatchLimits;

/// A run, and what it is kept for.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) options: Options,
    /// Deliberate bugs that it finds.
    pub(crate) bugs: Vec<String>,
    /// The rule that breaks with them.
    pub(crate) breaks: Option<String>,
}

/// The text of `options` with the faults of their schedule.
pub(crate) fn write(options: &Options) -> String {
    let mut text = String::new();
    let of = |duration: Duration| time(nanos(duration));
    let probes = options.probe_every.map_or_else(|| "none".to_owned(), time);
    let check = options.check_interval.map_or_else(|| "none".to_owned(), of);
    let compaction = match options.auto_compaction {
        AutoCompaction::Off => "none".to_owned(),
        AutoCompaction::Periodic { retention } => format!("older {}", of(retention)),
        AutoCompaction::Revisions { keep } => format!("keep {keep}"),
    };
    let tail = options
        .log_tail
        .map_or_else(|| "all".to_owned(), |tail| tail.to_string());
    let log = if options.real_log { "real" } else { "plain" };
    for line in [
        format!("seed {:#x}", options.seed),
        format!("profile {}", options.profile.name()),
        format!("nodes {}", options.nodes),
        format!("founders {}", options.founders),
        format!("drift {} ppm", options.drift_ppm),
        format!("network {}", quality(&options.quality)),
        format!("preempt {} {}", options.preempt, time(options.preempt_max)),
        format!("log {log}"),
        format!("clients {}", options.clients),
        format!("connections {}", options.connections),
        format!("think {}", time(options.think)),
        format!("together {}", options.together),
        format!("batch {}", options.batch_max),
        format!("probes {probes}"),
        format!("keys {}", options.keys),
        format!("sessions-idle {}", of(options.sessions_idle_max)),
        format!("holders {}", options.holders),
        format!("watchers {}", options.watchers),
        format!("historians {}", options.historians),
        watch_limits(&options.watch),
        format!("lockers {}", options.lockers),
        format!("compaction {compaction}"),
        format!("check {check}"),
        format!("log-tail {tail}"),
        format!("faults-last {}", time(options.faulty_for)),
    ] {
        let _ = writeln!(text, "{line}");
    }
    if options.slewed {
        text += "slewed\n";
    }
    if options.moves {
        text += "moves\n";
    }
    if options.restored {
        text += "restored\n";
    }
    if let Some(read_leases) = &options.read_leases {
        let _ = writeln!(text, "{read_leases}");
    }
    write_timing(&mut text, "", &options.timing);
    if let Some(other) = &options.other_timing {
        write_timing(&mut text, "other ", other);
    }
    for planned in options.schedule.iter().flatten() {
        let _ = writeln!(text, "{}", fault_line(planned));
    }
    text
}

/// What watches may cost, and how they are fed.
fn watch_limits(watch: &WatchLimits) -> String {
    let WatchLimits {
        queue_events,
        queue_bytes,
        memory_bytes,
        step_changes,
        step_bytes,
        parcel_bytes,
        progress,
        forgets,
    } = *watch;
    format!(
        "watch queue {queue_events} {queue_bytes} memory {memory_bytes} step {step_changes} \
         {step_bytes} parcel {parcel_bytes} progress {} forgets {forgets}",
        time(nanos(progress))
    )
}

fn write_timing(text: &mut String, whose: &str, timing: &Timing) {
    let of = |duration: Duration| time(nanos(duration));
    for line in [
        format!("promise {}", of(timing.lease_duration)),
        format!("skew {}", of(timing.max_clock_skew)),
        format!("heartbeat {}", of(timing.heartbeat_interval)),
        format!(
            "election {} {}",
            of(timing.election_timeout_min),
            of(timing.election_timeout_max)
        ),
        format!("step-down {}", of(timing.step_down_after)),
        format!("granularity {}", of(timing.clock_granularity)),
        format!("bound {} ppm", timing.max_drift_ppm),
    ] {
        let _ = writeln!(text, "{whose}{line}");
    }
}

/// One line of a schedule.
pub(crate) fn fault_line(planned: &Planned) -> String {
    let when = match planned.when {
        When::At(at) => format!("at {}", time(at)),
        When::Seen { armed, kind, after } => format!(
            "after {} on {} then {}",
            time(armed),
            name(&KINDS, kind),
            time(after)
        ),
    };
    format!(
        "{when} for {}: {}",
        time(planned.lasts),
        fault(&planned.fault)
    )
}

/// Reads a text.
///
/// # Errors
/// The line that is not understood, and why.
pub(crate) fn read(text: &str) -> Result<Script, String> {
    let mut script = Script {
        options: Options::still(3),
        bugs: Vec::new(),
        breaks: None,
    };
    script.options.readable = false;
    let mut timings = Timings::default();
    let mut planned = Vec::new();
    for line in text.lines() {
        let said = line.split('#').next().unwrap_or_default().trim();
        if said.is_empty() {
            continue;
        }
        let mut words = Words::of(said);
        let read = read_line(&mut words, &mut script, &mut timings, &mut planned);
        read.and_then(|()| words.end())
            .map_err(|error| format!("{line:?}: {error}"))?;
    }
    let valid = |timing| Timing::new(timing).map_err(|error| error.to_string());
    script.options.timing = valid(timings.usual)?;
    script.options.other_timing = timings.other.map(valid).transpose()?;
    script.options.schedule = Some(planned);
    Ok(script)
}

/// What nodes start with, and what some of them start with instead.
#[derive(Default)]
struct Timings {
    usual: TimingOptions,
    other: Option<TimingOptions>,
}

fn read_line(
    words: &mut Words<'_>,
    script: &mut Script,
    timings: &mut Timings,
    planned: &mut Vec<Planned>,
) -> Result<(), String> {
    let options = &mut script.options;
    match words.word()? {
        "at" => {
            let when = When::At(words.time()?);
            planned.push(read_fault_line(when, words)?);
        }
        "after" => {
            let armed = words.time()?;
            words.exactly("on")?;
            let kind = words.one_of(&KINDS)?;
            words.exactly("then")?;
            let after = words.time()?;
            let when = When::Seen { armed, kind, after };
            planned.push(read_fault_line(when, words)?);
        }
        "bug" => script.bugs.push(words.word()?.to_owned()),
        "breaks" => script.breaks = Some(words.rest()),
        "seed" => options.seed = words.number_or_hex()?,
        "profile" => {
            let name = words.word()?;
            let profile = Profile::named(name);
            options.profile = profile.ok_or_else(|| format!("there is no profile {name}"))?;
        }
        "nodes" => {
            let nodes = words.number()?;
            options.found(nodes);
        }
        "founders" => options.founders = words.number()?,
        "moves" => options.moves = true,
        "restored" => options.restored = true,
        "read-leases" => {
            options.read_leases = Some(ReadLeases {
                members: words.number()?,
                max_write_delay: words.duration()?,
            });
        }
        "slewed" => options.slewed = true,
        "other" => {
            let other = timings.other.get_or_insert(timings.usual);
            let word = words.word()?;
            read_timing(word, words, other)?;
        }
        "drift" => {
            options.drift_ppm = words.number()?;
            words.exactly("ppm")?;
        }
        "network" => options.quality = words.quality()?,
        "preempt" => {
            options.preempt = words.number()?;
            options.preempt_max = words.time()?;
        }
        "log" => options.real_log = words.one_of(&[("real", true), ("plain", false)])?,
        "clients" => options.clients = words.number()?,
        "connections" => options.connections = words.number()?,
        "think" => options.think = words.time()?,
        "together" => options.together = words.number()?,
        "batch" => options.batch_max = words.number()?,
        "probes" => {
            options.probe_every = match words.peek() {
                Some("none") => words.word().map(|_| None)?,
                _ => Some(words.time()?),
            }
        }
        "keys" => options.keys = words.number()?,
        "sessions-idle" => options.sessions_idle_max = words.duration()?,
        "holders" => options.holders = words.number()?,
        "watchers" => options.watchers = words.number()?,
        "historians" => options.historians = words.number()?,
        "watch" => options.watch = words.watch_limits()?,
        "lockers" => options.lockers = words.number()?,
        "compaction" => {
            options.auto_compaction = match words.word()? {
                "none" => AutoCompaction::Off,
                "older" => AutoCompaction::Periodic {
                    retention: words.duration()?,
                },
                "keep" => AutoCompaction::Revisions {
                    keep: words.number()?,
                },
                word => return Err(format!("history is kept by no `{word}`")),
            }
        }
        "log-tail" => {
            options.log_tail = match words.peek() {
                Some("all") => words.word().map(|_| None)?,
                _ => Some(words.number()?),
            }
        }
        "check" => {
            options.check_interval = match words.peek() {
                Some("none") => words.word().map(|_| None)?,
                _ => Some(words.duration()?),
            }
        }
        "faults-last" => options.faulty_for = words.time()?,
        word => read_timing(word, words, &mut timings.usual)?,
    }
    Ok(())
}

fn read_timing(
    word: &str,
    words: &mut Words<'_>,
    timing: &mut TimingOptions,
) -> Result<(), String> {
    match word {
        "promise" => timing.lease_duration = words.duration()?,
        "skew" => timing.max_clock_skew = words.duration()?,
        "heartbeat" => timing.heartbeat_interval = words.duration()?,
        "election" => {
            timing.election_timeout_min = words.duration()?;
            timing.election_timeout_max = words.duration()?;
        }
        "step-down" => timing.step_down_after = words.duration()?,
        "granularity" => timing.clock_granularity = words.duration()?,
        "bound" => {
            timing.max_drift_ppm = words.number()?;
            words.exactly("ppm")?;
        }
        other => return Err(format!("nothing is called {other}")),
    }
    Ok(())
}

fn read_fault_line(when: When, words: &mut Words<'_>) -> Result<Planned, String> {
    words.exactly("for")?;
    let lasts = words.time()?;
    let fault = read_fault(words)?;
    Ok(Planned { when, lasts, fault })
}

const THREADS: [(&str, Thread); 5] = [
    ("driver", Thread::Driver),
    ("log", Thread::Log),
    ("state", Thread::State),
    ("sessions", Thread::Sessions),
    ("watches", Thread::Watch),
];
const ENDINGS: [(&str, Ending); 2] = [("kill", Ending::Kill), ("power", Ending::Power)];
const WAYS: [(&str, Way); 3] = [("both", Way::Both), ("in", Way::In), ("out", Way::Out)];
const KINDS: [(&str, Kind); 18] = [
    ("pre-vote", Kind::PreVote),
    ("pre-vote-reply", Kind::PreVoteReply),
    ("vote", Kind::Vote),
    ("vote-reply", Kind::VoteReply),
    ("heartbeat", Kind::Heartbeat),
    ("heartbeat-reply", Kind::HeartbeatReply),
    ("append", Kind::Append),
    ("appended", Kind::Appended),
    ("timeout-now", Kind::TimeoutNow),
    ("release", Kind::Release),
    ("rejoin", Kind::Rejoin),
    ("read-index", Kind::ReadIndex),
    ("read-index-reply", Kind::ReadIndexReply),
    ("state-hash", Kind::StateHash),
    ("need-state", Kind::NeedState),
    ("forgotten", Kind::Forgotten),
    ("read-lease", Kind::ReadLease),
    ("reminder", Kind::Reminder),
];

fn name<T: Copy + PartialEq>(names: &[(&'static str, T)], of: T) -> &'static str {
    let found = names.iter().find(|(_, value)| *value == of);
    found.map_or("?", |(name, _)| name)
}

fn fault(fault: &Fault) -> String {
    match *fault {
        Fault::Crash(who, ending) => format!("crash {} {}", target(who), name(&ENDINGS, ending)),
        Fault::CrashFollowers(ending) => format!("crash-followers {}", name(&ENDINGS, ending)),
        Fault::CrashAll(ending) => format!("crash-all {}", name(&ENDINGS, ending)),
        Fault::Pause(who) => format!("pause {}", target(who)),
        Fault::Stall(who, thread) => format!("stall {} {}", target(who), name(&THREADS, thread)),
        Fault::Suspend(who) => format!("suspend {}", target(who)),
        Fault::Freeze(who) => format!("freeze {}", target(who)),
        Fault::StepClock(who, by) => {
            let way = if by < 0 { "back" } else { "forward" };
            format!(
                "step-clock {} {way} {}",
                target(who),
                time(by.unsigned_abs())
            )
        }
        Fault::Cut(from, to) => format!("cut {} {}", target(from), target(to)),
        Fault::Isolate(who, way, clients) => {
            let clients = if clients { " from-clients-too" } else { "" };
            format!("isolate {} {}{clients}", target(who), name(&WAYS, way))
        }
        Fault::Flap(from, to, up, down) => format!(
            "flap {} {} up {} down {}",
            target(from),
            target(to),
            time(up),
            time(down)
        ),
        Fault::Split(set) => format!("split {set:#x}"),
        Fault::Travel(how) => format!("travel {}", quality(&how)),
        Fault::Delay(aim) => format!(
            "delay {} {} {} {}",
            name(&KINDS, aim.kind),
            aim.chance,
            time(aim.delay_min),
            time(aim.delay_max)
        ),
        Fault::SlowDisk(who, by) => format!("slow-disk {} {}", target(who), time(by)),
        Fault::FailDisk(who) => format!("fail-disk {}", target(who)),
        Fault::FillDisk(who) => format!("fill-disk {}", target(who)),
        Fault::Rot(who) => format!("rot {}", target(who)),
        Fault::Wipe(who) => format!("wipe {}", target(who)),
        Fault::Restore(who) => format!("restore {}", target(who)),
        Fault::SetBack(who) => format!("set-back {}", target(who)),
        Fault::BreakState(who) => format!("break-state {}", target(who)),
        Fault::SlowApply(who, by) => format!("slow-apply {} {}", target(who), time(by)),
        Fault::Transfer(None) => "transfer".to_owned(),
        Fault::Transfer(Some(to)) => format!("transfer {}", target(Target::Node(to))),
        Fault::Retire(who) => format!("retire {}", target(who)),
        Fault::Add(who, true) => format!("add {}", target(who)),
        Fault::Add(who, false) => format!("add-learner {}", target(who)),
        Fault::Promote(who) => format!("promote {}", target(who)),
        Fault::Remove(who) => format!("remove {}", target(who)),
        Fault::Replace(who, by) => format!("replace {} {}", target(who), target(by)),
        Fault::Quiet => "quiet".to_owned(),
    }
}

fn read_fault(words: &mut Words<'_>) -> Result<Fault, String> {
    Ok(match words.word()? {
        "crash" => Fault::Crash(words.target()?, words.one_of(&ENDINGS)?),
        "crash-followers" => Fault::CrashFollowers(words.one_of(&ENDINGS)?),
        "crash-all" => Fault::CrashAll(words.one_of(&ENDINGS)?),
        "pause" => Fault::Pause(words.target()?),
        "stall" => Fault::Stall(words.target()?, words.one_of(&THREADS)?),
        "suspend" => Fault::Suspend(words.target()?),
        "freeze" => Fault::Freeze(words.target()?),
        "step-clock" => {
            let who = words.target()?;
            let sign = words.one_of(&[("back", -1), ("forward", 1)])?;
            Fault::StepClock(who, sign * words.time()? as i64)
        }
        "cut" => Fault::Cut(words.target()?, words.target()?),
        "isolate" => {
            let (who, way) = (words.target()?, words.one_of(&WAYS)?);
            let clients = words.peek() == Some("from-clients-too");
            if clients {
                words.word()?;
            }
            Fault::Isolate(who, way, clients)
        }
        "flap" => {
            let (from, to) = (words.target()?, words.target()?);
            words.exactly("up")?;
            let up = words.time()?;
            words.exactly("down")?;
            Fault::Flap(from, to, up, words.time()?)
        }
        "split" => Fault::Split(words.number_or_hex()? as u32),
        "travel" => Fault::Travel(words.quality()?),
        "delay" => Fault::Delay(Aim {
            kind: words.one_of(&KINDS)?,
            chance: words.number()?,
            delay_min: words.time()?,
            delay_max: words.time()?,
        }),
        "slow-disk" => Fault::SlowDisk(words.target()?, words.time()?),
        "fail-disk" => Fault::FailDisk(words.target()?),
        "fill-disk" => Fault::FillDisk(words.target()?),
        "rot" => Fault::Rot(words.target()?),
        "wipe" => Fault::Wipe(words.target()?),
        "restore" => Fault::Restore(words.target()?),
        "set-back" => Fault::SetBack(words.target()?),
        "break-state" => Fault::BreakState(words.target()?),
        "slow-apply" => Fault::SlowApply(words.target()?, words.time()?),
        "transfer" if words.peek().is_none() => Fault::Transfer(None),
        "transfer" => match words.target()? {
            Target::Node(node) => Fault::Transfer(Some(node)),
            _ => return Err("leadership is handed to a node by its name".to_owned()),
        },
        "retire" => Fault::Retire(words.target()?),
        "add" => Fault::Add(words.target()?, true),
        "add-learner" => Fault::Add(words.target()?, false),
        "promote" => Fault::Promote(words.target()?),
        "remove" => Fault::Remove(words.target()?),
        "replace" => Fault::Replace(words.target()?, words.target()?),
        "quiet" => Fault::Quiet,
        other => return Err(format!("there is no fault {other}")),
    })
}

fn target(target: Target) -> String {
    match target {
        Target::Node(node) => format!("n{}", node + 1),
        Target::Leader => "leader".to_owned(),
        Target::Follower(which) => format!("follower{}", which + 1),
        Target::Sender => "sender".to_owned(),
        Target::Receiver => "receiver".to_owned(),
    }
}

fn quality(quality: &Quality) -> String {
    let Quality {
        delay_min,
        delay_max,
        loss,
        double,
        late,
        late_max,
    } = *quality;
    format!(
        "{} {} loss {loss} double {double} late {late} {}",
        time(delay_min),
        time(delay_max),
        time(late_max)
    )
}

fn time(nanos: Nanos) -> String {
    match nanos {
        0 => "0ms".to_owned(),
        _ if nanos.is_multiple_of(SECOND) => format!("{}s", nanos / SECOND),
        _ if nanos.is_multiple_of(MS) => format!("{}ms", nanos / MS),
        _ if nanos.is_multiple_of(US) => format!("{}us", nanos / US),
        _ => format!("{nanos}ns"),
    }
}

/// The words of a line, one after the other.
struct Words<'a> {
    left: std::iter::Peekable<std::vec::IntoIter<&'a str>>,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Self {
        let words = line.split([' ', ':']).filter(|word| !word.is_empty());
        Self {
            left: words.collect::<Vec<_>>().into_iter().peekable(),
        }
    }

    fn word(&mut self) -> Result<&'a str, String> {
        self.left
            .next()
            .ok_or_else(|| "it ends too soon".to_owned())
    }

    fn peek(&mut self) -> Option<&'a str> {
        self.left.peek().copied()
    }

    fn rest(&mut self) -> String {
        self.left.by_ref().collect::<Vec<_>>().join(" ")
    }

    fn end(&mut self) -> Result<(), String> {
        match self.left.next() {
            None => Ok(()),
            Some(word) => Err(format!("{word} is one word too many")),
        }
    }

    fn exactly(&mut self, expected: &str) -> Result<(), String> {
        match self.word()? {
            word if word == expected => Ok(()),
            word => Err(format!("{word} stands where {expected} should")),
        }
    }

    fn number<T: FromStr>(&mut self) -> Result<T, String> {
        let word = self.word()?;
        word.parse().map_err(|_| format!("{word} is no number"))
    }

    fn number_or_hex(&mut self) -> Result<u64, String> {
        let word = self.word()?;
        let parsed = match word.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => word.parse(),
        };
        parsed.map_err(|_| format!("{word} is no number"))
    }

    fn time(&mut self) -> Result<Nanos, String> {
        let word = self.word()?;
        let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
        let count: Nanos = word[..word.len() - unit.len()]
            .parse()
            .unwrap_or(Nanos::MAX);
        let factor = match unit {
            "s" => SECOND,
            "ms" => MS,
            "us" => US,
            "ns" => 1,
            _ => 0,
        };
        match count.checked_mul(factor) {
            Some(nanos) if factor > 0 => Ok(nanos),
            _ => Err(format!("{word} is no time: say 3s, 20ms, 5us or 7ns")),
        }
    }

    fn duration(&mut self) -> Result<Duration, String> {
        self.time().map(Duration::from_nanos)
    }

    fn one_of<T: Copy>(&mut self, names: &[(&'static str, T)]) -> Result<T, String> {
        let word = self.word()?;
        let found = names.iter().find(|(name, _)| *name == word);
        let value = found.map(|(_, value)| *value);
        value.ok_or_else(|| {
            let all: Vec<_> = names.iter().map(|(name, _)| *name).collect();
            format!("{word} is none of {}", all.join(", "))
        })
    }

    fn target(&mut self) -> Result<Target, String> {
        let word = self.word()?;
        let numbered = |prefix: &str| {
            let number: usize = word.strip_prefix(prefix)?.parse().ok()?;
            number.checked_sub(1)
        };
        match word {
            "leader" => Ok(Target::Leader),
            "sender" => Ok(Target::Sender),
            "receiver" => Ok(Target::Receiver),
            _ => (numbered("follower").map(Target::Follower))
                .or_else(|| numbered("n").map(Target::Node))
                .ok_or_else(|| format!("{word} is nobody: say n1, leader, follower1, sender")),
        }
    }

    fn watch_limits(&mut self) -> Result<WatchLimits, String> {
        self.exactly("queue")?;
        let (queue_events, queue_bytes) = (self.number()?, self.number()?);
        self.exactly("memory")?;
        let memory_bytes = self.number()?;
        self.exactly("step")?;
        let (step_changes, step_bytes) = (self.number()?, self.number()?);
        self.exactly("parcel")?;
        let parcel_bytes = self.number()?;
        self.exactly("progress")?;
        let progress = self.duration()?;
        self.exactly("forgets")?;
        Ok(WatchLimits {
            queue_events,
            queue_bytes,
            memory_bytes,
            step_changes,
            step_bytes,
            parcel_bytes,
            progress,
            forgets: self.number()?,
        })
    }

    fn quality(&mut self) -> Result<Quality, String> {
        let (delay_min, delay_max) = (self.time()?, self.time()?);
        self.exactly("loss")?;
        let loss = self.number()?;
        self.exactly("double")?;
        let double = self.number()?;
        self.exactly("late")?;
        Ok(Quality {
            delay_min,
            delay_max,
            loss,
            double,
            late: self.number()?,
            late_max: self.time()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;
    use crate::schedule;

    #[test]
    fn every_run_that_a_seed_draws_reads_as_it_was_written() {
        for seed in 1..500 {
            let mut options = Options::draw(seed, None, None);
            let dice = &mut Dice::new(seed, "nemesis", 0);
            options.schedule = Some(schedule::draw(&options, dice));
            let read = read(&write(&options)).unwrap_or_else(|error| panic!("{seed}: {error}"));
            assert_eq!(format!("{:?}", read.options), format!("{options:?}"));
        }
    }

    #[test]
    fn what_is_not_said_is_still_and_comments_are_not_read() {
        let script = read("# a claim\n\nat 1500ms for 2s: isolate leader both # so\n");
        let script = script.expect("it is well formed");
        assert_eq!(script.options.nodes, 3);
        let planned = script.options.schedule.expect("there is one");
        assert_eq!(planned.len(), 1);
        assert_eq!(planned[0].when, When::At(1_500 * MS));
        let fault = Fault::Isolate(Target::Leader, Way::Both, false);
        assert_eq!(planned[0].fault, fault);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, complaint) in [
            ("at 1s for 2s: explode n1", "no fault explode"),
            ("at 1 for 2s: quiet", "1 is no time"),
            ("at 1s for 2s: pause everybody", "everybody is nobody"),
            ("at 1s for 2s: quiet now", "now is one word too many"),
            ("at 1s for 2s:", "ends too soon"),
            ("weather fine", "nothing is called weather"),
            ("skew 1ms", "too small"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(complaint), "{error}");
        }
    }
}
