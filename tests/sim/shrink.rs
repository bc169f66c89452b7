//! Makes a failing run small: leaves out what it does not need in order to fail.
//!
//! A run is a function of its options, and its faults are a list; so lines are left out as long as
//! the same rule still breaks, many at a time first, one at a time in the end (delta debugging).
//! Then whatever else can be simple is made simple: the network, the clocks, the clients, and the
//! lengths of what is left. The result is an explicit schedule, to be kept as a text (`script.rs`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use leasehold::raft::Timing;

use crate::clock::{MS, Nanos, SECOND};
use crate::dice::Dice;
use crate::nemesis::{Planned, When};
use crate::network::Quality;
use crate::options::Options;
use crate::run::run;
use crate::schedule;
use crate::watches::WatchLimits;

/// A failing run made small.
pub(crate) struct Shrunk {
    pub(crate) options: Options,
    pub(crate) rule: String,
    /// How many runs that took.
    pub(crate) runs: usize,
    /// How many faults there were.
    pub(crate) faults_before: usize,
}

/// The smallest options found, within `runs_max` runs, under which the rule breaks that `options`
/// break; `None` if they break none.
pub(crate) fn shrink(options: Options, runs_max: usize) -> Option<Shrunk> {
    let (rule, when) = broken(&options)?;
    let mut best = options;
    let drawn = match best.schedule.take() {
        Some(schedule) => schedule,
        None => schedule::draw(&best, &mut Dice::new(best.seed, "nemesis", 0)),
    };
    let kept = drawn.into_iter().enumerate();
    let kept = kept.filter(|(line, _)| !best.without.contains(line));
    best.schedule = Some(kept.map(|(_, planned)| planned).collect());
    best.without.clear();
    let faults_before = best.schedule.as_ref().map_or(0, Vec::len);
    let mut shrinker = Shrinker {
        rule,
        best,
        runs: 1,
        runs_max,
    };
    let soon = when.next_multiple_of(10 * MS) + 10 * MS;
    shrinker.attempt(|options| options.faulty_for = options.faulty_for.min(soon));
    loop {
        let before = format!("{:?}", shrinker.best);
        shrinker.leave_out_faults();
        shrinker.simplify_options();
        shrinker.simplify_faults();
        if format!("{:?}", shrinker.best) == before || shrinker.runs >= runs_max {
            break;
        }
    }
    Some(Shrunk {
        options: shrinker.best,
        rule: shrinker.rule,
        runs: shrinker.runs,
        faults_before,
    })
}

struct Shrinker {
    rule: String,
    best: Options,
    runs: usize,
    runs_max: usize,
}

impl Shrinker {
    /// Keeps a change if the same rule still breaks; whether it did.
    fn attempt(&mut self, change: impl FnOnce(&mut Options)) -> bool {
        let mut changed = self.best.clone();
        change(&mut changed);
        let same = format!("{changed:?}") == format!("{:?}", self.best);
        if same || self.runs >= self.runs_max {
            return false;
        }
        self.runs += 1;
        let fails = broken(&changed).is_some_and(|(rule, _)| rule == self.rule);
        if fails {
            self.best = changed;
        }
        fails
    }

    fn faults(&mut self) -> usize {
        self.best.schedule.as_ref().map_or(0, Vec::len)
    }

    fn leave_out_faults(&mut self) {
        let mut size = self.faults().div_ceil(2).max(1);
        loop {
            let mut start = 0;
            while start < self.faults() {
                let end = (start + size).min(self.faults());
                let left_out = self.attempt(|options| {
                    options.schedule.iter_mut().for_each(|lines| {
                        lines.drain(start..end);
                    });
                });
                if !left_out {
                    start = end;
                }
            }
            if size == 1 {
                return;
            }
            size = size.div_ceil(2);
        }
    }

    fn simplify_options(&mut self) {
        let simpler: [fn(&mut Options); 20] = [
            |options| options.clients = 0,
            |options| options.probe_every = None,
            |options| options.preempt = 0.0,
            |options| options.quality = Quality::STILL,
            |options| options.quality.late = 0.0,
            |options| options.quality.loss = 0.0,
            |options| options.quality.double = 0.0,
            |options| options.drift_ppm = 0,
            |options| options.real_log = false,
            |options| options.found(3),
            |options| options.timing = Timing::default(),
            |options| options.together = 0.0,
            |options| options.batch_max = 64,
            |options| options.keys = 1,
            |options| options.watchers = 0,
            |options| options.historians = 0,
            |options| options.watch = WatchLimits::USUAL,
            |options| options.connections = 1,
            |options| options.sessions_idle_max = Duration::from_secs(3600),
            |options| options.preempt_max = MS,
        ];
        for change in simpler {
            self.attempt(change);
        }
        while self.best.clients > 1 && self.attempt(|options| options.clients -= 1) {}
        while self.best.watchers > 1 && self.attempt(|options| options.watchers -= 1) {}
        let fewer = |options: &mut Options| {
            options.nodes -= 1;
            options.founders = options.founders.min(options.nodes);
        };
        while self.best.nodes > 1 && self.attempt(fewer) {}
    }

    /// Shorter, and at rounder times.
    fn simplify_faults(&mut self) {
        for line in 0..self.faults() {
            while self.change_fault(line, |fault| fault.lasts /= 2) {}
            for unit in [SECOND / 10, 10 * MS, MS] {
                self.change_fault(line, |fault| fault.lasts = rounded(fault.lasts, unit));
                self.change_fault(line, |fault| match &mut fault.when {
                    When::At(at) => *at = rounded(*at, unit),
                    When::Seen { armed, .. } => *armed = rounded(*armed, unit),
                });
            }
        }
    }

    fn change_fault(&mut self, line: usize, change: impl FnOnce(&mut Planned)) -> bool {
        self.attempt(|options| {
            if let Some(fault) = options.schedule.iter_mut().flatten().nth(line) {
                change(fault);
            }
        })
    }
}

fn rounded(time: Nanos, unit: Nanos) -> Nanos {
    time.next_multiple_of(unit)
}

/// Which rule breaks, and when; a panic is a rule, too.
fn broken(options: &Options) -> Option<(String, Nanos)> {
    let report = catch_unwind(AssertUnwindSafe(|| run(options.clone())));
    let Ok(report) = report else {
        return Some(("a node panicked".to_owned(), options.faulty_for));
    };
    let violation = report.violation?;
    Some((violation.rule.to_owned(), report.simulated))
}
