//! Time as the leases know it: a pair of clocks that is never collapsed into one number.
//!
//! A leader that trusts its lease too long serves a stale read, and a voter that forgets its
//! promise too early elects a second leader. No single clock is right for both: `CLOCK_BOOTTIME`
//! counts suspended time but is slewed by NTP, `CLOCK_MONOTONIC_RAW` is never slewed but stops in
//! suspend. So an [`Instant`] carries both readings, and each question is put to the pair in its
//! safe direction: what is dangerous to believe too long needs *both* clocks to say "not yet"
//! ([`Instant::certainly_before`]), what is dangerous to do too early needs *both* to say "over"
//! ([`Instant::certainly_after`]).
//!
//! There is no `now()` here: time is given, by the driver or by the simulator. [`Clock`] is what
//! they give it with; the real one lives in `clock/`.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A reading of both clocks, in nanoseconds since each clock's own start. Comparable only with
/// readings of the same machine since the same boot.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Instant {
    /// `CLOCK_BOOTTIME`: counts suspended time.
    pub boot: u64,
    /// `CLOCK_MONOTONIC_RAW`: never slewed.
    pub raw: u64,
}

impl Instant {
    /// An instant before every reading: a deadline here is already over.
    pub const ZERO: Self = Self { boot: 0, raw: 0 };
    /// An instant after every reading: a deadline here never comes.
    pub const NEVER: Self = Self {
        boot: u64::MAX,
        raw: u64::MAX,
    };

    /// Both clocks at the same count: what tests and simulators start from.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self {
            boot: nanos,
            raw: nanos,
        }
    }

    /// Both clocks are before `deadline`: the question for anything that must not be trusted too
    /// long (a leader lease, a client's view of its own lease). Exactly at the deadline is over.
    pub fn certainly_before(self, deadline: Self) -> bool {
        let boot = self.boot < deadline.boot || planted!(BeforeByRaw);
        boot && self.raw < deadline.raw
    }

    /// Both clocks have reached `deadline`: the question for anything that must not be done too
    /// early (a vote after a promise, an expiry).
    pub fn certainly_after(self, deadline: Self) -> bool {
        let raw = self.raw >= deadline.raw || planted!(AfterByBoot);
        self.boot >= deadline.boot && raw
    }

    /// Either clock has reached `deadline`: the question for giving something up in good time.
    pub fn possibly_after(self, deadline: Self) -> bool {
        !self.certainly_before(deadline)
    }

    /// The later reading of each clock.
    pub fn max(self, other: Self) -> Self {
        Self {
            boot: self.boot.max(other.boot),
            raw: self.raw.max(other.raw),
        }
    }

    /// The earlier reading of each clock.
    pub fn min(self, other: Self) -> Self {
        Self {
            boot: self.boot.min(other.boot),
            raw: self.raw.min(other.raw),
        }
    }

    /// The least time that may have passed since `earlier`, by the slower clock.
    pub fn at_least_since(self, earlier: Self) -> Duration {
        let boot = self.boot.saturating_sub(earlier.boot);
        let raw = self.raw.saturating_sub(earlier.raw);
        Duration::from_nanos(boot.min(raw))
    }

    /// The most time that may have passed since `earlier`, by the faster clock.
    pub fn at_most_since(self, earlier: Self) -> Duration {
        let boot = self.boot.saturating_sub(earlier.boot);
        let raw = self.raw.saturating_sub(earlier.raw);
        Duration::from_nanos(boot.max(raw))
    }

    /// Whether either clock reads less than it did at `earlier`: a clock that ran backwards.
    pub fn went_back_since(self, earlier: Self) -> bool {
        let raw = self.raw < earlier.raw && !planted!(RawStepUnseen);
        self.boot < earlier.boot || raw
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Both clocks later by `duration`; saturates at [`Instant::NEVER`].
    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self {
            boot: self.boot.saturating_add(nanos),
            raw: self.raw.saturating_add(nanos),
        }
    }
}

impl fmt::Display for Instant {
    /// Milliseconds of the boot clock, and of the raw one where they differ.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |nanos: u64| nanos as f64 / 1e6;
        if self.boot == self.raw {
            write!(f, "{}ms", millis(self.boot))
        } else {
            write!(f, "{}ms|{}ms", millis(self.boot), millis(self.raw))
        }
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where readings come from. One read gives both clocks.
///
/// A clock never corrects itself: if the machine's clock steps back, so does the reading, and it
/// is for the lease to notice (A4).
pub trait Clock: Send + Sync {
    /// The pair, read now.
    fn now(&self) -> Instant;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(boot: u64, raw: u64) -> Instant {
        Instant { boot, raw }
    }

    #[test]
    fn a_deadline_is_trusted_only_while_both_clocks_are_before_it() {
        let deadline = at(100, 100);
        assert!(at(99, 99).certainly_before(deadline));
        assert!(
            !at(100, 99).certainly_before(deadline),
            "exactly at the bound is over"
        );
        assert!(
            !at(50, 100).certainly_before(deadline),
            "a suspended raw clock must not help"
        );
    }

    #[test]
    fn a_deadline_is_over_only_when_both_clocks_have_reached_it() {
        let deadline = at(100, 100);
        assert!(at(100, 100).certainly_after(deadline));
        assert!(
            !at(500, 99).certainly_after(deadline),
            "suspended time alone does not end it"
        );
        assert!(
            !at(99, 500).certainly_after(deadline),
            "a clock that is too fast does not end it"
        );
        assert!(at(500, 99).possibly_after(deadline));
        assert!(at(99, 500).possibly_after(deadline));
        assert!(!at(99, 99).possibly_after(deadline));
    }

    #[test]
    fn the_time_between_lies_between_what_the_two_clocks_say() {
        for (earlier, later) in [(at(10, 20), at(15, 50)), (at(20, 10), at(50, 15))] {
            assert_eq!(later.at_least_since(earlier), Duration::from_nanos(5));
            assert_eq!(later.at_most_since(earlier), Duration::from_nanos(30));
            assert_eq!(earlier.at_most_since(later), Duration::ZERO);
        }
    }

    #[test]
    fn adding_saturates_instead_of_wrapping() {
        assert_eq!(Instant::NEVER + Duration::from_secs(1), Instant::NEVER);
        assert_eq!(at(1, 2) + Duration::from_nanos(5), at(6, 7));
    }

    #[test]
    fn a_step_back_of_either_clock_is_seen() {
        assert!(at(9, 20).went_back_since(at(10, 10)));
        assert!(at(20, 9).went_back_since(at(10, 10)));
        assert!(!at(10, 10).went_back_since(at(10, 10)));
    }
}
