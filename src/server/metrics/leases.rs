//! Client leases: how many, what becomes of them, and how late they end.

use metrics::{Counter, Gauge, Histogram};

use super::Register;
use crate::api::LeaseKept;
use crate::node::LeaseCounts;

/// Bounds of how late a lease ends: 1 ms to 10 minutes.
pub(super) const LATENESS_SECONDS: &[f64] = &[
    1e-3, 2.5e-3, 5e-3, 1e-2, 2e-2, 3e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0,
];
pub(super) const LATENESS: &str = "leasehold_lease_expiry_error_seconds";

const REVOKED: &str = "leasehold_lease_revoked_total";
const REVOKED_HELP: &str = "Client leases that ended, by reason; on every node that applied it.";
const REJECTED: &str = "leasehold_lease_renew_rejected_total";
const REJECTED_HELP: &str = "Renewals that were not granted, by reason.";

/// Client leases, as this node sees them.
pub struct LeaseMetrics {
    /// How many there are.
    pub leases: Gauge,
    /// Due, and not gone yet; of a leader.
    pub expiring: Gauge,
    /// Granted.
    pub granted: Counter,
    /// Renewed, by this leader.
    pub renewed: Counter,
    /// Checkpoints proposed, by this leader.
    pub checkpoints: Counter,
    /// From when a lease was due until its end was applied, in seconds; of a leader.
    pub expiry_error_seconds: Histogram,
    revoked: Counter,
    expired: Counter,
    not_found: Counter,
    over: Counter,
    undecided: Counter,
}

impl LeaseMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        let ended = |reason| {
            register
                .labelled(&[("reason", reason)])
                .counter(REVOKED, REVOKED_HELP)
        };
        let rejected = |reason| {
            register
                .labelled(&[("reason", reason)])
                .counter(REJECTED, REJECTED_HELP)
        };
        Self {
            leases: register.gauge("leasehold_leases", "Client leases that exist."),
            expiring: register.gauge(
                "leasehold_lease_expiring",
                "Client leases that are due and whose end is not applied yet; 0 off the leader.",
            ),
            granted: register.counter("leasehold_lease_granted_total", "Client leases granted."),
            renewed: register.counter(
                "leasehold_lease_renewed_total",
                "Renewals of client leases that this node acknowledged.",
            ),
            checkpoints: register.counter(
                "leasehold_lease_checkpoints_total",
                "Remaining times of long client leases that were written to the log.",
            ),
            expiry_error_seconds: register.histogram(
                LATENESS,
                "From when a client lease was due until its end was applied.",
            ),
            revoked: ended("client"),
            expired: ended("expired"),
            not_found: rejected("not_found"),
            over: rejected("expired"),
            undecided: rejected("undecided"),
        }
    }

    /// What became of the leases of a renewal.
    pub(crate) fn kept(&self, kept: &[LeaseKept]) {
        let count = |wanted: fn(&LeaseKept) -> bool| {
            let count = kept.iter().filter(|kept| wanted(kept)).count();
            u64::try_from(count).unwrap_or(u64::MAX)
        };
        let renewed = count(|kept| matches!(kept, LeaseKept::Renewed { .. }));
        self.renewed.increment(renewed);
        if usize::try_from(renewed).unwrap_or(usize::MAX) < kept.len() {
            let over = |kept: &LeaseKept| matches!(kept, LeaseKept::Expired | LeaseKept::Revoked);
            self.not_found
                .increment(count(|kept| *kept == LeaseKept::NotFound));
            self.over.increment(count(over));
            self.undecided
                .increment(count(|kept| *kept == LeaseKept::Undecided));
        }
    }

    /// What applying entries, and leading, did to leases.
    pub(crate) fn changed(&self, counts: &LeaseCounts) {
        self.granted.increment(counts.granted);
        self.revoked.increment(counts.revoked);
        self.expired.increment(counts.expired);
        self.checkpoints.increment(counts.checkpoints);
        for late in &counts.late {
            self.expiry_error_seconds.record(late.as_secs_f64());
        }
    }
}
