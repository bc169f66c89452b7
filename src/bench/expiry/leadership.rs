//! A cluster whose leases are watched while they end.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;

use super::probe::Probe;
use crate::bench::store::Store;
use crate::cli::failure::Failure;

/// A cluster, and what its leader reports.
pub trait LeaseCluster {
    /// The store that it is.
    type Store: Store;

    /// The store, for connections of holders and for watches.
    fn store(&self) -> impl Future<Output = Result<Self::Store, Failure>>;

    /// How leadership stands.
    fn leadership(&self) -> impl Future<Output = Result<Leadership, Failure>>;

    /// Probes the leader all the time; nothing if the store has no lease to be
    /// asked about.
    ///
    /// # Errors
    /// The system gives us no thread.
    fn probe(&self, leadership: &Leadership) -> Result<Option<Probe>, Failure>;

    /// Its processes on this machine, as far as they are known.
    fn pids(&self) -> Vec<u32>;
}

/// Who leads, and how well that went so far, as far as the store tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Leadership {
    /// The leader's endpoint.
    #[serde(skip)]
    pub endpoint: String,
    /// Its term.
    pub term: u64,
    /// Times that its leader lease lapsed so far.
    pub lapses: Option<u64>,
    /// Between renewals of its leader lease: how many, how many of those took longer than two
    /// heartbeats, and the longest, in milliseconds.
    pub renewals: Option<Renewals>,
}

/// How regularly a leader renewed its lease.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Renewals {
    /// All of them so far.
    #[serde(skip)]
    pub intervals: crate::api::Distribution,
    /// The configured interval of heartbeats.
    #[serde(skip)]
    pub heartbeat: Duration,
    /// How many there were.
    pub count: u64,
    /// Those that came later than two heartbeats after the one before.
    pub late: u64,
    /// The longest time between two.
    pub longest_ms: f64,
}

impl Renewals {
    /// What happened since `earlier`, at the same leader.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self::of(self.intervals.since(&earlier.intervals), self.heartbeat)
    }

    /// Of these intervals.
    pub fn of(intervals: crate::api::Distribution, heartbeat: Duration) -> Self {
        let bound = crate::api::Distribution::bucket(heartbeat * 2);
        let late = intervals.buckets.iter().filter(|(at, _)| *at > bound);
        Self {
            count: intervals.count(),
            late: late.map(|(_, count)| *count).sum(),
            longest_ms: intervals.max().as_secs_f64() * 1e3,
            intervals,
            heartbeat,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Distribution;

    #[test]
    fn a_renewal_that_took_two_heartbeats_and_more_is_late() {
        let ms = Duration::from_millis;
        let of = |counts: &[(u64, u64)]| Distribution {
            buckets: counts
                .iter()
                .map(|(at, count)| (Distribution::bucket(ms(*at)), *count))
                .collect(),
        };
        let before = Renewals::of(of(&[(50, 3), (400, 1)]), ms(50));
        assert_eq!((before.count, before.late), (4, 1));
        let after = Renewals::of(of(&[(50, 9), (120, 2), (400, 1)]), ms(50));
        let found = after.since(&before);
        assert_eq!((found.count, found.late), (8, 2));
        assert!((120.0..130.0).contains(&found.longest_ms), "{found:?}");
    }
}
