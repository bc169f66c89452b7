//! What a node says of itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Sessions;
use crate::api::{
    ClockReading, HistoryStatus, LeaderLeaseReport, LeaderLeaseStatus, LeaseTiming, Response,
    ResponseBody, StatusResponse,
};
use crate::server::disk::store::StateReader;
use crate::time::Instant;
use crate::types::Role;

/// How long a measured size is good enough.
const SIZE_LIFETIME: Duration = Duration::from_secs(5);

/// How much state lies on disk. To find out takes the storage engine a walk over all its tables, so
/// it is asked now and then, not by everyone who wants to know.
#[derive(Debug, Default)]
pub(crate) struct StorageSize {
    bytes: AtomicU64,
    /// When it was measured, by the clock that does not stop; 0 for never.
    measured: AtomicU64,
}

impl StorageSize {
    fn bytes(&self, now: Instant, store: &StateReader) -> u64 {
        let measured = self.measured.load(Ordering::Relaxed);
        let age = Duration::from_nanos(now.boot.saturating_sub(measured));
        if measured == 0 || age >= SIZE_LIFETIME {
            // Of several who find it old, one measures.
            let mine = self.measured.compare_exchange(
                measured,
                now.boot,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if mine.is_ok() {
                let bytes = store.storage_bytes().unwrap_or_default();
                self.bytes.store(bytes, Ordering::Relaxed);
            }
        }
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Sessions {
    pub(crate) fn status_response(&self) -> Response {
        let status = self.status.load();
        let now = self.clock.now();
        let body = StatusResponse {
            name: self.name.clone(),
            version: crate::version::VERSION.to_owned(),
            role: status.role,
            last_index: status.last.index,
            commit_index: self.published.commit(),
            applied_index: self.store.applied(),
            storage_bytes: self.storage_size.bytes(now, &self.store),
            leader_lease: self.lease_status(now),
            members: self.directory.members(),
            warnings: self.all_warnings(status.role),
            history: HistoryStatus {
                compact_revision: self.store.compact_revision(),
                removed_through: self.removed.through(),
            },
            quota: self.room.status(),
            reads: self.metrics.reads.counts(),
            cluster_version: self.cluster_version.load(Ordering::Relaxed),
        };
        Response {
            header: self.header(self.store.revision()),
            body: ResponseBody::Status(Box::new(body)),
        }
    }

    pub(crate) fn lease_report_response(&self) -> Response {
        let role = self.status.load().role;
        let (timing, lease_stats) = (&self.timing, &self.lease_stats);
        let mut body = LeaderLeaseReport {
            name: self.name.clone(),
            role,
            clock: ClockReading::default(),
            lease: LeaderLeaseStatus::default(),
            timing: LeaseTiming {
                heartbeat_interval: timing.heartbeat_interval,
                election_timeout_min: timing.election_timeout_min,
                election_timeout_max: timing.election_timeout_max,
                step_down_after: timing.step_down_after,
                max_drift_ppm: timing.max_drift_ppm,
                clock_granularity: timing.clock_granularity,
            },
            renew_interval: lease_stats.renew_interval.read(),
            round_trip: lease_stats.round_trip.read(),
            timer_delay: lease_stats.timer_delay.read(),
            warnings: self.all_warnings(role),
        };
        // Last, so that little lies between the reading and its way out.
        let now = self.clock.now();
        body.lease = self.lease_status(now);
        body.clock = ClockReading {
            boot: now.boot,
            raw: now.raw,
        };
        Response {
            header: self.header(self.store.revision()),
            body: ResponseBody::LeaderLeaseReport(Box::new(body)),
        }
    }

    fn lease_status(&self, now: Instant) -> LeaderLeaseStatus {
        let lease = self.published.lease();
        let remaining = lease.as_ref().and_then(|cell| cell.remaining(now));
        let counters = self.published.lease_counters();
        LeaderLeaseStatus {
            is_valid: remaining.is_some(),
            remaining: remaining.unwrap_or_default(),
            lease_duration: self.lease_duration,
            max_clock_skew: self.reader.lease_margin,
            renewals: counters.renewals(),
            expirations: counters.expirations(),
            rejections: counters.rejections(),
        }
    }

    fn all_warnings(&self, role: Role) -> Vec<String> {
        let quarantined = self
            .quarantine_warning
            .iter()
            .filter(|_| role == Role::Quarantined);
        let told = quarantined.chain(&self.warnings).cloned();
        let found = self.integrity.warning().into_iter();
        found.chain(self.room.warning()).chain(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::disk::store::{StateStore, StoreOptions};

    #[test]
    fn the_size_is_measured_now_and_then_and_not_for_everyone() {
        let folder = tempfile::tempdir().unwrap();
        let store = StateStore::open(&folder.path().join("state"), &StoreOptions::default());
        let reader = store.unwrap().reader();
        let size = StorageSize::default();
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let measured = |seconds: u64| {
            size.bytes(at(seconds), &reader);
            size.measured.load(Ordering::Relaxed) / 1_000_000_000
        };
        assert_eq!(measured(100), 100);
        assert_eq!(measured(104), 100);
        assert_eq!(measured(105), 105);
        assert_eq!(measured(106), 105);
    }
}
