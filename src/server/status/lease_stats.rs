//! How well this node can keep a leader lease alive, as the driver measures it.
//!
//! The driver writes; reports read, and may reset the counts. The histograms for Prometheus have few
//! buckets and begin with the process; these have fine buckets and are sent whole, so that the difference
//! of two reports is exactly what happened between them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::api::Distribution;

/// What a lease depends on.
#[derive(Debug, Default)]
pub(crate) struct LeaseStats {
    /// From one renewal of the lease to the next.
    pub(crate) renew_interval: Recorder,
    /// From the beginning of a round until a quorum has answered it.
    pub(crate) round_trip: Recorder,
    /// How late the driver acted on what was due.
    pub(crate) timer_delay: Recorder,
}

impl LeaseStats {
    /// Resets all counts.
    pub(crate) fn reset(&self) {
        for recorder in [&self.renew_interval, &self.round_trip, &self.timer_delay] {
            recorder.reset();
        }
    }
}

/// Counts durations.
#[derive(Debug)]
pub(crate) struct Recorder {
    buckets: Box<[AtomicU64]>,
}

impl Default for Recorder {
    fn default() -> Self {
        let buckets = (0..Distribution::BUCKETS).map(|_| AtomicU64::new(0));
        Self {
            buckets: buckets.collect(),
        }
    }
}

impl Recorder {
    /// Counts a duration.
    pub(crate) fn record(&self, taken: Duration) {
        let bucket = usize::from(Distribution::bucket(taken));
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
    }

    /// Resets the counts. A duration that is recorded meanwhile may be lost.
    pub(crate) fn reset(&self) {
        for count in &self.buckets {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// All so far.
    pub(crate) fn read(&self) -> Distribution {
        let counts = self
            .buckets
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        Distribution {
            buckets: (0..).zip(counts).filter(|(_, count)| *count > 0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_recorded_is_read_and_nothing_else() {
        let recorder = Recorder::default();
        assert_eq!(recorder.read(), Distribution::default());
        for millis in [1, 1, 50] {
            recorder.record(Duration::from_millis(millis));
        }
        recorder.record(Duration::MAX);
        let read = recorder.read();
        assert_eq!(read.count(), 4);
        assert!(read.buckets.is_sorted());
        assert_eq!(read.buckets[0].1, 2);
        assert!(read.max() > Duration::from_secs(100));
        recorder.reset();
        assert_eq!(recorder.read(), Distribution::default());
    }
}
