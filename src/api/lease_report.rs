//! The leader lease report: what a leader lease depends on, as measured by one node.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::LeaderLeaseStatus;
use crate::types::Role;

/// What a leader lease depends on, as measured by the node that answers. The difference of two
/// reports of a node covers the time between them: see [`Distribution::since`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderLeaseReport {
    /// The node's name.
    pub name: String,
    /// Its Raft role.
    pub role: Role,
    /// Its clocks, read when it answered. Comparable with other readings of that node since its
    /// machine booted; with those of another machine, only their rates are comparable.
    pub clock: ClockReading,
    /// The leader lease, as this node sees it.
    pub lease: LeaderLeaseStatus,
    /// The settings that the lease rests on.
    pub timing: LeaseTiming,
    /// Time between renewals of its lease, while it is leader.
    pub renew_interval: Distribution,
    /// Time from the start of a round of heartbeats, or of messages that serve as such, until a
    /// quorum has answered, while it is leader.
    pub round_trip: Distribution,
    /// How late the node handled its timers: scheduling delays and its own pauses.
    pub timer_delay: Distribution,
    /// Conditions that an operator must know about, as sentences; empty if there are none.
    pub warnings: Vec<String>,
}

/// A node's two clocks, in nanoseconds since each clock's own start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// Counts suspended time; slewed where NTP runs.
    pub boot: u64,
    /// Never slewed; stops while the machine is suspended.
    pub raw: u64,
}

/// The settings that a leader lease rests on, of the node that was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseTiming {
    /// Interval between heartbeats of the leader.
    pub heartbeat_interval: Duration,
    /// Minimum election timeout: how long a node hears no leader before it campaigns.
    pub election_timeout_min: Duration,
    /// Maximum election timeout.
    pub election_timeout_max: Duration,
    /// How long a leader hears no quorum before it steps down.
    pub step_down_after: Duration,
    /// Maximum rate error of a machine's clock, in parts per million.
    pub max_drift_ppm: u32,
    /// The granularity of a clock.
    pub clock_granularity: Duration,
}

/// A histogram of durations since the node started, with buckets whose bounds are within a
/// thirtieth of each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// Buckets in ascending order with their counts; omitted ones are empty.
    pub buckets: Vec<(u16, u64)>,
}

impl Distribution {
    /// How many buckets there are. The last holds everything above two minutes.
    pub const BUCKETS: usize = 768;
    /// Buckets for each doubling.
    const PARTS: u64 = 32;
    const PARTS_LOG: u32 = Self::PARTS.ilog2();

    /// The bucket of a duration.
    pub fn bucket(taken: Duration) -> u16 {
        let micros = u64::try_from(taken.as_micros()).unwrap_or(u64::MAX);
        let bucket = if micros < Self::PARTS {
            micros
        } else {
            let doublings = micros.ilog2() - Self::PARTS_LOG;
            let part = (micros >> doublings) - Self::PARTS;
            Self::PARTS * (u64::from(doublings) + 1) + part
        };
        bucket.min(Self::BUCKETS as u64 - 1) as u16
    }

    /// The longest duration that falls into a bucket, to a microsecond.
    pub fn bound(bucket: u16) -> Duration {
        // A number from the network may be any.
        let bucket = u64::from(bucket).min(Self::BUCKETS as u64 - 1);
        let micros = match bucket / Self::PARTS {
            0 => bucket,
            doublings => ((Self::PARTS + bucket % Self::PARTS + 1) << (doublings - 1)) - 1,
        };
        Duration::from_micros(micros)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.buckets
            .iter()
            .fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// The quantile `share`, from 0 to 1, rounded up to a bucket's bound; zero if there are no
    /// samples.
    pub fn at(&self, share: f64) -> Duration {
        let wanted = (self.count() as f64 * share.clamp(0.0, 1.0))
            .ceil()
            .max(1.0) as u64;
        let mut seen = 0_u64;
        for (bucket, count) in &self.buckets {
            seen = seen.saturating_add(*count);
            if seen >= wanted {
                return Self::bound(*bucket);
            }
        }
        Duration::ZERO
    }

    /// The maximum, rounded up to its bucket's bound; zero if there are no samples.
    pub fn max(&self) -> Duration {
        self.buckets
            .last()
            .map_or(Duration::ZERO, |(bucket, _)| Self::bound(*bucket))
    }

    /// The samples added since `earlier`, from the same node; all of them if the node was restarted
    /// in between.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |bucket: u16| {
            let found = earlier.buckets.iter().find(|(known, _)| *known == bucket);
            found.map_or(0, |(_, count)| *count)
        };
        let fell = earlier.buckets.iter().any(|(bucket, count)| {
            self.buckets
                .iter()
                .find(|(known, _)| known == bucket)
                .map_or(0, |(_, now)| *now)
                < *count
        });
        if fell {
            return self.clone();
        }
        let added = self
            .buckets
            .iter()
            .map(|(bucket, count)| (*bucket, count - before(*bucket)));
        Self {
            buckets: added.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum: std::collections::BTreeMap<u16, u64> = self.buckets.iter().copied().collect();
        for (bucket, count) in &other.buckets {
            let all = sum.entry(*bucket).or_default();
            *all = all.saturating_add(*count);
        }
        Self {
            buckets: sum.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(micros: &[u64]) -> Distribution {
        let one = |micros: &u64| Distribution {
            buckets: vec![(Distribution::bucket(Duration::from_micros(*micros)), 1)],
        };
        micros
            .iter()
            .map(one)
            .fold(Distribution::default(), |sum, one| sum.plus(&one))
    }

    #[test]
    fn every_duration_falls_into_the_first_bucket_whose_bound_it_does_not_exceed() {
        let mut last = 0;
        for micros in (0..5_000).chain((5_000..200_000_000).step_by(9_973)) {
            let taken = Duration::from_micros(micros);
            let bucket = Distribution::bucket(taken);
            assert!(bucket >= last, "{taken:?}");
            last = bucket;
            if usize::from(bucket) == Distribution::BUCKETS - 1 {
                continue;
            }
            let bound = Distribution::bound(bucket);
            assert!(taken <= bound, "{taken:?} in {bucket} up to {bound:?}");
            assert!(
                bound.as_micros() <= u128::from(micros + micros / 31 + 1),
                "{taken:?}"
            );
            assert!(
                bucket == 0 || Distribution::bound(bucket - 1) < taken,
                "{taken:?}"
            );
        }
        assert_eq!(Distribution::bucket(Duration::MAX), 767);
        assert!(Distribution::bound(u16::MAX) > Duration::from_secs(120));
    }

    #[test]
    fn quantiles_are_rounded_up_and_never_down() {
        let all: Vec<u64> = (1..=1_000).collect();
        let taken = of(&all);
        assert_eq!(taken.count(), 1_000);
        for (share, micros) in [(0.5, 500), (0.99, 990), (1.0, 1_000), (0.0, 1)] {
            let found = u64::try_from(taken.at(share).as_micros()).unwrap();
            assert!(
                (micros..=micros + micros / 31 + 1).contains(&found),
                "{share}: {found}"
            );
        }
        assert_eq!(taken.max(), taken.at(1.0));
        assert_eq!(of(&[]).at(0.5), Duration::ZERO);
        assert_eq!(of(&[]).max(), Duration::ZERO);
    }

    #[test]
    fn what_was_added_is_told_from_what_was_there() {
        let (earlier, later) = (of(&[5, 5, 900]), of(&[5, 5, 5, 7, 900]));
        assert_eq!(later.since(&earlier), of(&[5, 7]));
        assert_eq!(later.since(&later), of(&[]));
        assert_eq!(
            earlier.since(&later),
            earlier,
            "a node that was started anew has forgotten"
        );
    }
}
