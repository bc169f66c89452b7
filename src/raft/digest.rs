//! A name for the state of a replica, of which each part puts in what decides over its future. Only
//! the exhaustive search asks for it (`consensus/explore.rs`).

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::time::Instant;

/// Gathers what decides over the future of a replica.
#[derive(Debug)]
pub(super) struct Digest {
    hasher: DefaultHasher,
    now: Instant,
    /// How far the clocks may yet step back, in nanoseconds.
    steps_back: u64,
    /// The longest time that is ever added to an instant in the past.
    longest: u64,
}

impl Digest {
    /// Of a replica whose clocks show `now`, may step back by `steps_back`, and that adds no longer time
    /// than `longest` to an instant in the past.
    pub(super) fn new(now: Instant, steps_back: Duration, longest: Duration) -> Self {
        Self {
            hasher: DefaultHasher::new(),
            now,
            steps_back: nanos(steps_back),
            longest: nanos(longest),
        }
    }

    /// The name of the state.
    pub(super) fn finish(&self) -> u64 {
        self.hasher.finish()
    }

    /// Something without time.
    pub(super) fn value(&mut self, value: &(impl Hash + ?Sized)) {
        value.hash(&mut self.hasher);
    }

    /// An instant that is only ever compared with the clock: once it is over, it does not matter
    /// since when.
    pub(super) fn deadline(&mut self, at: Instant) {
        self.instant(at, self.steps_back);
    }

    /// An instant whose age decides something.
    pub(super) fn age(&mut self, at: Instant) {
        self.instant(at, u64::MAX);
    }

    /// An instant from which time is counted.
    pub(super) fn since(&mut self, at: Instant) {
        self.instant(at, self.steps_back.saturating_add(self.longest));
    }

    fn instant(&mut self, at: Instant, memory: u64) {
        for (at, now) in [(at.boot, self.now.boot), (at.raw, self.now.raw)] {
            let distance = match at {
                u64::MAX => i128::MAX,
                at => (i128::from(at) - i128::from(now)).max(-i128::from(memory)),
            };
            distance.hash(&mut self.hasher);
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
