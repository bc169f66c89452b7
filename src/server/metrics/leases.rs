//! Client leases: how many, their renewals, and how they end.

use super::table::{By, Counter, Gauge, Histogram, labels, metrics};
use crate::api::{ErrorKind, LeaseKept};
use crate::node::{Lapse, LeaseCounts};

/// Buckets of how late a lease expires: 1 ms to 10 minutes.
const LATENESS_SECONDS: &[f64] = &[
    1e-3, 2.5e-3, 5e-3, 1e-2, 2e-2, 3e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0,
];
/// Buckets of TTLs: half a second to a year.
const TTL_SECONDS: &[f64] = &[
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
/// Buckets of fractions. A holder that renews after a third of the TTL has two thirds left.
const RATIOS: &[f64] = &[0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0];

metrics! {
    /// Client leases, as this node sees them.
    pub struct LeaseMetrics {
        pub leases: Gauge = "leasehold_leases", "Client leases that exist.";
        pub keys: Gauge = "leasehold_lease_keys", "Keys attached to client leases.";
        pub expiring: Gauge = "leasehold_lease_expiring",
            "Client leases past their deadline whose expiry has not been applied yet; 0 on \
             nodes other than the leader.";
        granted: Counter = "leasehold_lease_granted_total", "Client leases granted.";
        renewed: Counter = "leasehold_lease_renewed_total",
            "Renewals of client leases that this node acknowledged.";
        rejected: By<RenewRejection, Counter> = "leasehold_lease_renew_rejected_total",
            "Renewals of client leases that were rejected, by reason.";
        ended: By<LeaseEnd, Counter> = "leasehold_lease_revoked_total",
            "Client leases that ended, by reason; counted on every node that applies the end.";
        lapses: By<LapseReason, Counter> = "leasehold_lease_lapses_total",
            "Times this leader extended all client leases to their full TTL because \
             holders may have been unable to renew, by reason.";
        checkpoints: Counter = "leasehold_lease_checkpoints_total",
            "Checkpoints of the remaining TTL of long client leases, written to the log.";
        expiry_error_seconds: Histogram = "leasehold_lease_expiry_error_seconds",
            "Delay from the deadline of a client lease until its expiry was applied.",
            in LATENESS_SECONDS;
        ttl_seconds: Histogram = "leasehold_lease_ttl_seconds",
            "TTL of granted client leases.", in TTL_SECONDS;
        remaining_ratio_at_renew: Histogram = "leasehold_lease_remaining_ratio_at_renew",
            "Remaining time of a client lease at its renewal as a fraction of its TTL, sampled \
             from one renewal in 64; small values mean that holders come close to losing their \
             leases.", in RATIOS;
        pub renew_duration_seconds: Histogram = "leasehold_lease_renew_duration_seconds",
            "Time inside the server of keep-alive requests.";
    }
}

labels! {
    enum LeaseEnd: "reason" {
        Client = "client",
        Expired = "expired",
    }
}

labels! {
    enum RenewRejection: "reason" {
        NotFound = "not_found",
        Expired = "expired",
        Undecided = "undecided",
        LeaderLeaseInvalid = "leader_lease_invalid",
    }
}

labels! {
    enum LapseReason: "reason" {
        StoodStill = "stood_still",
        ClockWentBack = "clock_went_back",
        NoQuorum = "no_quorum",
    }
}

impl LeaseMetrics {
    /// Counts the outcomes of a renewal of several leases.
    pub(crate) fn kept(&self, kept: &[LeaseKept]) {
        let count = |wanted: fn(&LeaseKept) -> bool| {
            let count = kept.iter().filter(|kept| wanted(kept)).count();
            u64::try_from(count).unwrap_or(u64::MAX)
        };
        let renewed = count(|kept| matches!(kept, LeaseKept::Renewed { .. }));
        self.renewed.increment(renewed);
        if usize::try_from(renewed).unwrap_or(usize::MAX) < kept.len() {
            let over = |kept: &LeaseKept| matches!(kept, LeaseKept::Expired | LeaseKept::Revoked);
            let not_found = count(|kept| *kept == LeaseKept::NotFound);
            let undecided = count(|kept| *kept == LeaseKept::Undecided);
            self.rejected[RenewRejection::NotFound].increment(not_found);
            self.rejected[RenewRejection::Expired].increment(count(over));
            self.rejected[RenewRejection::Undecided].increment(undecided);
        }
    }

    /// A request to renew so many leases was refused as a whole. Counted only if no node could prove
    /// to be the leader; a client that asked a follower is redirected and loses nothing.
    pub(crate) fn refused(&self, leases: u64, error: &ErrorKind) {
        let is_doubt = matches!(
            error,
            ErrorKind::LeaderChanged
                | ErrorKind::LeaseInvalid
                | ErrorKind::NoLeader
                | ErrorKind::DeadlineExceeded
        );
        if is_doubt {
            self.rejected[RenewRejection::LeaderLeaseInvalid].increment(leases);
        }
    }

    /// Counts what happened to leases while entries were applied, and on the leader.
    pub(crate) fn changed(&self, counts: &LeaseCounts) {
        self.granted.increment(counts.granted_ttl_ms.len() as u64);
        for ttl_ms in &counts.granted_ttl_ms {
            self.ttl_seconds.record(*ttl_ms as f64 / 1e3);
        }
        for thousandths in &counts.left_at_renewal {
            self.remaining_ratio_at_renew
                .record(*thousandths as f64 / 1e3);
        }
        self.ended[LeaseEnd::Client].increment(counts.revoked);
        self.ended[LeaseEnd::Expired].increment(counts.expired);
        self.checkpoints.increment(counts.checkpoints);
        for lapse in &counts.lapses {
            let reason = match lapse {
                Lapse::StoodStill(_) => LapseReason::StoodStill,
                Lapse::ClockWentBack => LapseReason::ClockWentBack,
                Lapse::NoQuorum(_) => LapseReason::NoQuorum,
            };
            self.lapses[reason].increment(1);
        }
        for late in &counts.late {
            self.expiry_error_seconds.record(late.as_secs_f64());
        }
    }
}
