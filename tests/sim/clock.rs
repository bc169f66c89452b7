//! The clocks of a machine: two hands, each with its own offset and rate.
//!
//! Real time is the world's and known to the checkers alone. A machine reads a pair: the boot clock
//! goes on in suspend and may be slewed, the raw clock stops in suspend. Assumption A1 of the lease
//! protocol asks that one of the two keeps its rate. So on each machine one hand is *steady*, and the
//! other may be slewed far too fast or slow, and may jump; a machine is put to sleep only where the
//! boot clock is the steady one. Only a *freeze* (both stop, as under a hypervisor that hides its
//! pauses) breaks A1.

use std::time::Duration;

use leasehold::time::{Clock, Instant};

use crate::dice::Dice;

/// Nanoseconds of real time.
pub(crate) type Nanos = u64;
/// One microsecond.
pub(crate) const US: Nanos = 1_000;
/// One millisecond.
pub(crate) const MS: Nanos = 1_000_000;
/// One second.
pub(crate) const SECOND: Nanos = 1_000_000_000;

/// Which of the two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Boot,
    Raw,
}

/// One machine's clocks.
#[derive(Clone, Debug)]
pub(crate) struct MachineClock {
    /// When the hands were last brought up to date.
    since: Nanos,
    boot: Hand,
    raw: Hand,
    /// The one that keeps its rate within the bound of the drift.
    steady: Which,
    /// Readings are multiples of this; at most half of the granularity that the timing allows for.
    quantum: u64,
}

/// What a machine's clock reads at one moment of real time.
pub(crate) struct Reading(Instant);

impl Clock for Reading {
    fn now(&self) -> Instant {
        self.0
    }
}

#[derive(Clone, Debug)]
struct Hand {
    reading: u64,
    /// How much faster than real time, in parts per million.
    ppm: i64,
    stopped: bool,
}

/// A machine's clocks at a moment, as the library reads them.
pub(crate) struct ReadAt<'a>(pub(crate) &'a MachineClock, pub(crate) Nanos);

impl Clock for ReadAt<'_> {
    fn now(&self) -> Instant {
        self.0.read(self.1)
    }
}

impl MachineClock {
    /// Clocks whose better hand is wrong by at most `drift_ppm`, extremes favoured; the other one
    /// is as good, or, once in a while or if `slewed`, wrong by far more.
    pub(crate) fn draw(dice: &mut Dice, drift_ppm: u32, slewed: bool, now: Nanos) -> Self {
        let bound = i64::from(drift_ppm);
        let rate = |dice: &mut Dice| match dice.between(0, 3) {
            0 => bound,
            1 => -bound,
            2 => 0,
            _ => dice.between(0, 2 * u64::from(drift_ppm)) as i64 - bound,
        };
        let good = rate(dice);
        let other = match dice.between(0, if slewed { 1 } else { 5 }) {
            0 => *dice.pick(&[80_000, 250_000]),
            1 => *dice.pick(&[-80_000, -250_000]),
            2 => rate(dice),
            _ => good,
        };
        let (steady, boot_ppm, raw_ppm) = if dice.chance(0.5) {
            (Which::Raw, other, good)
        } else {
            (Which::Boot, good, other)
        };
        let hand = |dice: &mut Dice, ppm| Hand {
            reading: dice.spread(SECOND, 1_000_000 * SECOND),
            ppm,
            stopped: false,
        };
        Self {
            since: now,
            boot: hand(dice, boot_ppm),
            raw: hand(dice, raw_ppm),
            steady,
            quantum: *dice.pick(&[1, 1, 1_000, 250_000, 500_000]),
        }
    }

    /// Perfect clocks that read `now`.
    pub(crate) fn perfect(now: Nanos) -> Self {
        let hand = Hand {
            reading: now + SECOND,
            ppm: 0,
            stopped: false,
        };
        Self {
            since: now,
            boot: hand.clone(),
            raw: hand,
            steady: Which::Boot,
            quantum: 1,
        }
    }

    /// The pair, read at `now`.
    pub(crate) fn read(&self, now: Nanos) -> Instant {
        let passed = now - self.since;
        let quantised = |reading: u64| match self.quantum {
            // As with most clocks: a division would take longer than all the rest.
            1 => reading,
            quantum => reading - reading % quantum,
        };
        Instant {
            boot: quantised(self.boot.after(passed)),
            raw: quantised(self.raw.after(passed)),
        }
    }

    /// The clock as a thread of the machine sees it at `now`.
    pub(crate) fn at(&self, now: Nanos) -> Reading {
        Reading(self.read(now))
    }

    /// Both hands run at these rates from `now` on.
    pub(crate) fn set_rates(&mut self, now: Nanos, boot_ppm: i64, raw_ppm: i64) {
        self.catch_up(now);
        self.boot.ppm = boot_ppm;
        self.raw.ppm = raw_ppm;
    }

    /// Readings are multiples of `quantum` from now on.
    pub(crate) fn read_in_steps_of(&mut self, quantum: u64) {
        self.quantum = quantum;
    }

    /// The machine sleeps: the raw clock stops, if the boot clock can be relied upon.
    pub(crate) fn suspend(&mut self, now: Nanos) {
        self.catch_up(now);
        self.raw.stopped = self.steady == Which::Boot;
    }

    /// The machine is stopped from outside, and so are both clocks: A1 does not hold.
    pub(crate) fn freeze(&mut self, now: Nanos) {
        self.catch_up(now);
        self.raw.stopped = true;
        self.boot.stopped = true;
    }

    /// Both hands run again.
    pub(crate) fn resume(&mut self, now: Nanos) {
        self.catch_up(now);
        self.raw.stopped = false;
        self.boot.stopped = false;
    }

    /// The less steady hand jumps; A1 still holds.
    pub(crate) fn jump(&mut self, now: Nanos, by: i64) {
        let other = match self.steady {
            Which::Boot => Which::Raw,
            Which::Raw => Which::Boot,
        };
        self.step(now, other, by);
    }

    /// One hand jumps.
    pub(crate) fn step(&mut self, now: Nanos, which: Which, by: i64) {
        self.catch_up(now);
        let hand = match which {
            Which::Boot => &mut self.boot,
            Which::Raw => &mut self.raw,
        };
        hand.reading = hand.reading.saturating_add_signed(by).max(1);
    }

    /// The machine was switched off and on.
    pub(crate) fn reboot(&mut self, now: Nanos, uptime: Nanos) {
        self.catch_up(now);
        self.boot.reading = uptime;
        self.raw.reading = uptime;
        self.boot.stopped = false;
        self.raw.stopped = false;
    }

    /// When a lease until `until` can no longer be trusted, if the clocks go on as they do: once
    /// either says that it is over.
    pub(crate) fn trusted_until(&self, now: Nanos, until: Instant) -> Nanos {
        let boot = until.boot.saturating_add(self.quantum);
        let raw = until.raw.saturating_add(self.quantum);
        let boot = self.boot.reaches(now, now - self.since, boot);
        boot.min(self.raw.reaches(now, now - self.since, raw))
    }

    /// When a promise until `until` is over, if the clocks go on as they do: once both say so.
    pub(crate) fn over_at(&self, now: Nanos, until: Instant) -> Nanos {
        let boot = self.boot.reaches(now, now - self.since, until.boot);
        boot.max(self.raw.reaches(now, now - self.since, until.raw))
    }

    fn catch_up(&mut self, now: Nanos) {
        let passed = now - self.since;
        self.boot.reading = self.boot.after(passed);
        self.raw.reading = self.raw.after(passed);
        self.since = now;
    }
}

impl Hand {
    /// When it shows `reading`, `passed` after it was brought up to date.
    fn reaches(&self, now: Nanos, passed: Nanos, reading: u64) -> Nanos {
        let missing = reading.saturating_sub(self.after(passed));
        match missing {
            0 => now,
            _ if self.stopped => Nanos::MAX,
            _ => {
                let rate = u128::from(1_000_000u64.saturating_add_signed(self.ppm));
                let wait = (u128::from(missing) * 1_000_000).div_ceil(rate);
                u64::try_from(wait).map_or(Nanos::MAX, |wait| now.saturating_add(wait))
            }
        }
    }

    fn after(&self, passed: Nanos) -> u64 {
        if self.stopped {
            return self.reading;
        }
        if self.ppm == 0 {
            return self.reading + passed;
        }
        // Rates are below a million, so what cannot overflow is hours long.
        let gained = match i64::try_from(passed) {
            Ok(passed) if passed < 1 << 43 => passed * self.ppm / 1_000_000,
            _ => (i128::from(passed) * i128::from(self.ppm) / 1_000_000) as i64,
        };
        self.reading + passed.saturating_add_signed(gained)
    }
}

/// How long a thread that waits for `deadline` sleeps, judged at `now`.
pub(crate) fn until(now: Instant, deadline: Instant) -> Duration {
    let boot = deadline.boot.saturating_sub(now.boot);
    let raw = deadline.raw.saturating_sub(now.raw);
    Duration::from_nanos(boot.min(raw))
}

/// A duration in nanoseconds.
pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspend_stops_the_raw_clock_and_freeze_stops_both() {
        let mut clock = MachineClock::perfect(0);
        let start = clock.read(0);
        clock.suspend(SECOND);
        clock.resume(3 * SECOND);
        let slept = clock.read(3 * SECOND);
        assert_eq!(slept.boot - start.boot, 3 * SECOND);
        assert_eq!(slept.raw - start.raw, SECOND);
        clock.freeze(3 * SECOND);
        clock.resume(9 * SECOND);
        assert_eq!(clock.read(9 * SECOND), slept);
    }

    #[test]
    fn it_is_foretold_when_a_reading_will_be_reached() {
        let mut clock = MachineClock::perfect(0);
        clock.set_rates(0, 20_000, -20_000);
        let until = clock.read(SECOND) + Duration::from_millis(1);
        let (first, last) = (
            clock.trusted_until(SECOND, until),
            clock.over_at(SECOND, until),
        );
        assert!(SECOND < first && first < SECOND + MS && SECOND + MS < last);
        assert!(clock.read(last).certainly_after(until));
        assert!(!clock.read(last - 2_000).certainly_after(until));
        assert!(!clock.read(first).certainly_before(until));
        assert!(clock.read(first - 2_000).certainly_before(until));
        clock.suspend(SECOND);
        assert_eq!(clock.over_at(SECOND, until), Nanos::MAX);
    }

    #[test]
    fn rates_and_steps_are_those_asked_for() {
        let mut clock = MachineClock::perfect(0);
        clock.set_rates(0, 20_000, -20_000);
        let start = clock.read(0);
        let later = clock.read(SECOND);
        assert_eq!(later.boot - start.boot, 1_020 * MS);
        assert_eq!(later.raw - start.raw, 980 * MS);
        clock.step(SECOND, Which::Boot, -(100 * MS as i64));
        assert_eq!(later.boot - clock.read(SECOND).boot, 100 * MS);
    }
}
