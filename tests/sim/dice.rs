//! Randomness, one source per purpose.
//!
//! Everything is drawn from the one seed of a run, but each purpose has a generator of its own, so
//! that one more draw for the network does not shift what the workload does.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A seeded source for one purpose.
#[derive(Clone, Debug)]
pub(crate) struct Dice {
    rng: fastrand::Rng,
}

impl Dice {
    /// The source for `purpose`, number `which` of its kind, in the run of `seed`.
    pub(crate) fn new(seed: u64, purpose: &str, which: u64) -> Self {
        let mut bytes = purpose.as_bytes().to_vec();
        bytes.extend_from_slice(&which.to_le_bytes());
        let seed = xxh3_64_with_seed(&bytes, seed);
        Self {
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    /// Any number.
    pub(crate) fn number(&mut self) -> u64 {
        self.rng.u64(..)
    }

    /// True once in `1/p` times.
    pub(crate) fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.rng.f64() < p
    }

    /// Evenly in `[low, high]`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        self.rng.u64(low..=high.max(low))
    }

    /// In `[low, high]`, each order of magnitude as likely as the next.
    pub(crate) fn spread(&mut self, low: u64, high: u64) -> u64 {
        let low = low.max(1);
        let high = high.max(low);
        let (from, to) = ((low as f64).ln(), (high as f64).ln());
        let drawn = (from + (to - from) * self.rng.f64()).exp();
        (drawn as u64).clamp(low, high)
    }

    /// One of these.
    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.rng.usize(..of.len())]
    }
}
