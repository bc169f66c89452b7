//! What is asked of a store: which operations, on which keys, with which values.
//!
//! Keys and values are made once, before the load begins; choosing one costs a few nanoseconds, so
//! that a generator on the same machine takes little from the servers.

use std::sync::Arc;

use bytes::Bytes;

use crate::api::Consistency;

/// What all clients do.
#[derive(Clone, Debug)]
pub struct Load {
    /// The share of reads, from 0 to 1.
    pub reads: f64,
    /// How fresh they must be.
    pub consistency: Consistency,
    /// What there is to read and write.
    pub keys: Arc<Keys>,
    /// How keys are chosen.
    pub choice: Choice,
}

/// The keys of a load, and the value that each write writes.
#[derive(Clone, Debug)]
pub struct Keys {
    /// In key order; not empty.
    pub names: Vec<Bytes>,
    /// Not compressible, in case a store compresses.
    pub value: Bytes,
}

impl Keys {
    /// `count` keys, at least one, and a value of so many bytes.
    pub fn new(count: u32, value_bytes: u32) -> Self {
        let mut random = fastrand::Rng::with_seed(0x6c65_6173_6568_6f6c);
        let name = |number| Bytes::from(format!("bench/{number:08}"));
        Self {
            names: (0..count.max(1)).map(name).collect(),
            value: (0..value_bytes).map(|_| random.u8(..)).collect(),
        }
    }
}

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// All alike.
    Uniform,
    /// By Zipf's law.
    Zipf(Zipf),
}

/// Zipf's law: the key of rank `k` is chosen as often as `1 / k^exponent` says.
///
/// Draws by rejection from the integral of the law ("rejection-inversion", Hörmann and Derflinger,
/// 1996): no table, and about one draw in all but every tenth case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Zipf {
    count: f64,
    exponent: f64,
    integral_first: f64,
    integral_last: f64,
    shortcut: f64,
}

impl Zipf {
    /// Over `count` keys, at least one; the exponent is positive.
    pub fn new(count: u32, exponent: f64) -> Self {
        let count = f64::from(count.max(1));
        let mut law = Self {
            count,
            exponent,
            integral_first: 0.0,
            integral_last: 0.0,
            shortcut: 0.0,
        };
        law.integral_first = law.integral(1.5) - 1.0;
        law.integral_last = law.integral(count + 0.5);
        law.shortcut = 2.0 - law.integral_inverse(law.integral(2.5) - law.weight(2.0));
        law
    }

    /// A rank, counted from 0: 0 is the most frequent.
    pub fn draw(&self, random: &mut fastrand::Rng) -> usize {
        loop {
            let point =
                self.integral_last + random.f64() * (self.integral_first - self.integral_last);
            let at = self.integral_inverse(point);
            let rank = at.round().clamp(1.0, self.count);
            if rank - at <= self.shortcut || point >= self.integral(rank + 0.5) - self.weight(rank)
            {
                return rank as usize - 1;
            }
        }
    }

    fn weight(&self, at: f64) -> f64 {
        (-self.exponent * at.ln()).exp()
    }

    /// The integral of the weight up to `at`, but for a constant.
    fn integral(&self, at: f64) -> f64 {
        let log = at.ln();
        expm1_over((1.0 - self.exponent) * log) * log
    }

    fn integral_inverse(&self, integral: f64) -> f64 {
        let scaled = (integral * (1.0 - self.exponent)).max(-1.0);
        (ln_1p_over(scaled) * integral).exp()
    }
}

/// `(e^x - 1) / x`, also where x is nearly zero.
fn expm1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 {
        x.exp_m1() / x
    } else {
        1.0 + x / 2.0
    }
}

/// `ln(1 + x) / x`, also where x is nearly zero.
fn ln_1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 {
        x.ln_1p() / x
    } else {
        1.0 - x / 2.0
    }
}

/// What one client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read the key with this number.
    Get(usize),
    /// Write it.
    Put(usize),
}

/// One client's own sequence of operations.
#[derive(Debug)]
pub struct Choices {
    random: fastrand::Rng,
    reads: f64,
    count: usize,
    choice: Choice,
}

impl Choices {
    /// Of `load`. The same seed makes the same choices.
    pub fn new(load: &Load, seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            reads: load.reads,
            count: load.keys.names.len(),
            choice: load.choice,
        }
    }

    /// The next operation.
    pub fn next_operation(&mut self) -> Operation {
        let key = match &self.choice {
            Choice::Uniform => self.random.usize(..self.count),
            Choice::Zipf(law) => law.draw(&mut self.random),
        };
        // A generator draws from [0, 1), so that a share of 1 means every time.
        if self.random.f64() < self.reads {
            Operation::Get(key)
        } else {
            Operation::Put(key)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(reads: f64, choice: Choice) -> Load {
        Load {
            reads,
            consistency: Consistency::Linearizable,
            keys: Arc::new(Keys::new(100, 16)),
            choice,
        }
    }

    #[test]
    fn keys_are_in_order_and_values_have_their_length() {
        let keys = Keys::new(1_000, 256);
        assert!(keys.names.is_sorted());
        assert_eq!(keys.names.len(), 1_000);
        assert_eq!(keys.value.len(), 256);
        assert_eq!(Keys::new(0, 0).names.len(), 1, "there is always a key");
    }

    #[test]
    fn a_share_of_one_reads_every_time_and_of_zero_never() {
        for (share, reads) in [(1.0, 10_000), (0.0, 0)] {
            let mut choices = Choices::new(&load(share, Choice::Uniform), 7);
            let drawn = (0..10_000).map(|_| choices.next_operation());
            let found = drawn.filter(|drawn| matches!(drawn, Operation::Get(_)));
            assert_eq!(found.count(), reads);
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_choices() {
        let draw = |seed| -> Vec<Operation> {
            let mut choices = Choices::new(&load(0.5, Choice::Uniform), seed);
            (0..100).map(|_| choices.next_operation()).collect()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }

    #[test]
    fn zipf_draws_each_rank_as_often_as_the_law_says() {
        const DRAWS: u32 = 400_000;
        for (count, exponent) in [(1, 0.99), (2, 0.99), (100, 0.99), (100, 1.0), (50, 2.0)] {
            let law = Zipf::new(count, exponent);
            let mut random = fastrand::Rng::with_seed(11);
            let mut found = vec![0_u32; count as usize];
            for _ in 0..DRAWS {
                found[law.draw(&mut random)] += 1;
            }
            let weight = |rank: u32| f64::from(rank).powf(-exponent);
            let whole: f64 = (1..=count).map(weight).sum();
            for rank in 1..=count {
                let expected = f64::from(DRAWS) * weight(rank) / whole;
                let seen = f64::from(found[rank as usize - 1]);
                // Six standard deviations of a count.
                let slack = 6.0 * expected.sqrt() + 1.0;
                assert!(
                    (seen - expected).abs() <= slack,
                    "rank {rank} of {count}, exponent {exponent}: {seen} for {expected}"
                );
            }
        }
    }
}
