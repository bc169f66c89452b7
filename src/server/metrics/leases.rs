//! Client leases: how many, what becomes of them, and how late they end.

use metrics::{Counter, Gauge, Histogram};

use super::Register;
use crate::api::{ErrorKind, LeaseKept};
use crate::node::{Lapse, LeaseCounts};

/// Bounds of how late a lease ends: 1 ms to 10 minutes.
pub(super) const LATENESS_SECONDS: &[f64] = &[
    1e-3, 2.5e-3, 5e-3, 1e-2, 2e-2, 3e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0,
];
pub(super) const LATENESS: &str = "leasehold_lease_expiry_error_seconds";
/// Bounds of times to live: half a second to a year.
pub(super) const TTL_SECONDS: &[f64] = &[
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1_800.0,
    3_600.0,
    86_400.0,
    31_536_000.0,
];
pub(super) const TTL: &str = "leasehold_lease_ttl_seconds";
/// Bounds of a part of the whole. A holder that renews after a third has two thirds left.
pub(super) const RATIOS: &[f64] = &[0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0];
pub(super) const RATIO: &str = "leasehold_lease_remaining_ratio_at_renew";

const REVOKED: &str = "leasehold_lease_revoked_total";
const REVOKED_HELP: &str = "Client leases that ended, by reason; counted on every node that \
                            applies the end.";
const LAPSES: &str = "leasehold_lease_lapses_total";
const LAPSES_HELP: &str = "Times this leader extended all client leases to their full TTL because \
                           holders may have been unable to renew, by reason.";
const REJECTED: &str = "leasehold_lease_renew_rejected_total";
const REJECTED_HELP: &str = "Renewals of client leases that were rejected, by reason.";

/// Client leases, as this node sees them.
pub struct LeaseMetrics {
    /// How many there are.
    pub leases: Gauge,
    /// How many keys hang on them.
    pub keys: Gauge,
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
    /// How long leases last that were granted, in seconds.
    pub ttl_seconds: Histogram,
    /// Which part of its time a lease still had when it was renewed, from 0 to 1; sampled, of a
    /// leader.
    pub remaining_ratio_at_renew: Histogram,
    /// How long renewals took, from decoded request to encoded reply, in seconds; all leases of one
    /// request together.
    pub renew_duration_seconds: Histogram,
    revoked: Counter,
    expired: Counter,
    not_found: Counter,
    over: Counter,
    undecided: Counter,
    stood_still: Counter,
    clock_went_back: Counter,
    no_quorum: Counter,
    leader_lease_invalid: Counter,
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
        let lapses = |reason| {
            register
                .labelled(&[("reason", reason)])
                .counter(LAPSES, LAPSES_HELP)
        };
        Self {
            leases: register.gauge("leasehold_leases", "Client leases that exist."),
            keys: register.gauge("leasehold_lease_keys", "Keys attached to client leases."),
            expiring: register.gauge(
                "leasehold_lease_expiring",
                "Client leases past their deadline whose expiry has not been applied yet; 0 on \
                 nodes other than the leader.",
            ),
            granted: register.counter("leasehold_lease_granted_total", "Client leases granted."),
            renewed: register.counter(
                "leasehold_lease_renewed_total",
                "Renewals of client leases that this node acknowledged.",
            ),
            stood_still: lapses("stood_still"),
            clock_went_back: lapses("clock_went_back"),
            no_quorum: lapses("no_quorum"),
            checkpoints: register.counter(
                "leasehold_lease_checkpoints_total",
                "Checkpoints of the remaining TTL of long client leases, written to the log.",
            ),
            expiry_error_seconds: register.histogram(
                LATENESS,
                "Delay from the deadline of a client lease until its expiry was applied.",
            ),
            ttl_seconds: register.histogram(TTL, "TTL of granted client leases."),
            remaining_ratio_at_renew: register.histogram(
                RATIO,
                "Remaining time of a client lease at its renewal as a fraction of its TTL, sampled \
                 from one renewal in 64; small values mean that holders come close to losing their \
                 leases.",
            ),
            renew_duration_seconds: register.histogram(
                "leasehold_lease_renew_duration_seconds",
                "Time inside the server of keep-alive requests.",
            ),
            revoked: ended("client"),
            expired: ended("expired"),
            not_found: rejected("not_found"),
            over: rejected("expired"),
            undecided: rejected("undecided"),
            leader_lease_invalid: rejected("leader_lease_invalid"),
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

    /// A request to renew so many leases was refused as a whole. Counted where nobody could prove to
    /// lead; a client that asks a follower is sent on, and nothing is lost.
    pub(crate) fn refused(&self, leases: u64, error: &ErrorKind) {
        let is_doubt = matches!(
            error,
            ErrorKind::LeaderChanged
                | ErrorKind::LeaseInvalid
                | ErrorKind::NoLeader
                | ErrorKind::DeadlineExceeded
        );
        if is_doubt {
            self.leader_lease_invalid.increment(leases);
        }
    }

    /// What applying entries, and leading, did to leases.
    pub(crate) fn changed(&self, counts: &LeaseCounts) {
        self.granted.increment(counts.granted_ttl_ms.len() as u64);
        for ttl_ms in &counts.granted_ttl_ms {
            self.ttl_seconds.record(*ttl_ms as f64 / 1e3);
        }
        for thousandths in &counts.left_at_renewal {
            self.remaining_ratio_at_renew
                .record(*thousandths as f64 / 1e3);
        }
        self.revoked.increment(counts.revoked);
        self.expired.increment(counts.expired);
        self.checkpoints.increment(counts.checkpoints);
        for lapse in &counts.lapses {
            let of = match lapse {
                Lapse::StoodStill(_) => &self.stood_still,
                Lapse::ClockWentBack => &self.clock_went_back,
                Lapse::NoQuorum(_) => &self.no_quorum,
            };
            of.increment(1);
        }
        for late in &counts.late {
            self.expiry_error_seconds.record(late.as_secs_f64());
        }
    }
}
