//! The replies to requests about the node itself.

use std::sync::atomic::Ordering;

use super::shared::Sessions;
use crate::api::{
    ClockReading, HistoryStatus, LeaderLeaseReport, LeaderLeaseStatus, LeaseTiming, Request,
    Response, ResponseBody, StatusResponse,
};
use crate::time::Instant;

impl Sessions {
    /// The answer to a question about this node itself; `None` to any other.
    pub(crate) fn of_itself(&self, request: &Request) -> Option<Response> {
        match request {
            Request::Status => Some(self.status_response()),
            Request::LeaderLeaseReport => Some(self.lease_report_response()),
            _ => None,
        }
    }

    pub(crate) fn status_response(&self) -> Response {
        let status = self.node.status.load();
        let now = self.node.clock.now();
        let body = StatusResponse {
            name: self.node.name.clone(),
            version: crate::version::VERSION.to_owned(),
            role: status.role,
            last_index: status.last.index,
            commit_index: self.node.published.commit(),
            applied_index: self.serving.store.applied(),
            storage_bytes: self.serving.storage_size.bytes(now, &self.serving.store),
            leader_lease: self.lease_status(now),
            members: self.node.directory.members(),
            warnings: self.all_warnings(),
            history: HistoryStatus {
                compact_revision: self.serving.store.compact_revision(),
                removed_through: self.serving.removed.through(),
            },
            quota: self.serving.quota_status(),
            reads: self.accounting.metrics.reads.counts(),
            cluster_version: self.node.cluster_version.load(Ordering::Relaxed),
        };
        Response {
            header: self.node.header(self.serving.store.revision()),
            body: ResponseBody::Status(Box::new(body)),
        }
    }

    pub(crate) fn lease_report_response(&self) -> Response {
        let role = self.node.status.load().role;
        let (timing, lease_stats) = (&self.node.timing, &self.node.lease_stats);
        let mut body = LeaderLeaseReport {
            name: self.node.name.clone(),
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
            warnings: self.all_warnings(),
        };
        // Last, so that little lies between the reading and its way out.
        let now = self.node.clock.now();
        body.lease = self.lease_status(now);
        body.clock = ClockReading {
            boot: now.boot,
            raw: now.raw,
        };
        Response {
            header: self.node.header(self.serving.store.revision()),
            body: ResponseBody::LeaderLeaseReport(Box::new(body)),
        }
    }

    pub(crate) fn lease_status(&self, now: Instant) -> LeaderLeaseStatus {
        let lease = self.node.published.lease();
        let remaining = lease.as_ref().and_then(|cell| cell.remaining(now));
        let counters = self.node.published.lease_counters();
        LeaderLeaseStatus {
            is_valid: remaining.is_some(),
            remaining: remaining.unwrap_or_default(),
            lease_duration: self.node.timing.lease_duration,
            max_clock_skew: self.serving.reader.lease_margin,
            renewals: counters.renewals(),
            expirations: counters.expirations(),
            rejections: counters.rejections(),
        }
    }

    /// The warnings of every report about this node.
    pub(crate) fn all_warnings(&self) -> Vec<String> {
        self.node.all_warnings(self.serving.space_warning())
    }
}
