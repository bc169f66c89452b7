//! The leader lease, as a node sees its own.

use metrics::{Counter, Gauge, Histogram};

use super::Register;
use crate::raft::Invalidation;

/// The leader lease, as this node sees it.
pub struct LeaderLeaseMetrics {
    /// 1 while the node may answer reads alone.
    pub valid: Gauge,
    /// What is left of it, in seconds, margin taken off; 0 when void.
    pub remaining_seconds: Gauge,
    /// What voters promise, in seconds.
    pub duration_seconds: Gauge,
    /// The margin, in seconds.
    pub max_clock_skew_seconds: Gauge,
    /// Renewals.
    pub renewals: Counter,
    /// Times it lapsed.
    pub expirations: Counter,
    /// Reads that found it void.
    pub rejections: Counter,
    /// Clock readings that went backwards or jumped ahead.
    pub clock_jumps: Counter,
    /// Proofs that an assumption about clocks or members is false.
    pub assumption_violations: Counter,
    /// How far apart the starts of successive leases were, in seconds.
    pub renew_interval_seconds: Histogram,
    /// What was left of the lease when a batch of reads was validated, in seconds.
    pub read_margin_seconds: Histogram,
    /// From the beginning of a round until a quorum had answered it, in seconds.
    pub round_trip_seconds: Histogram,
    invalidations: [Counter; Invalidation::ALL.len()],
}

impl LeaderLeaseMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        Self {
            valid: register.gauge(
                "leasehold_leader_lease_valid",
                "1 while this node holds a valid leader lease and may serve linearizable reads \
                 without a quorum round.",
            ),
            remaining_seconds: register.gauge(
                "leasehold_leader_lease_remaining_seconds",
                "Remaining time of the leader lease, safety margin subtracted; 0 if it is not \
                 valid.",
            ),
            duration_seconds: register.gauge(
                "leasehold_leader_lease_duration_seconds",
                "How long a voter promises not to vote for another leader.",
            ),
            max_clock_skew_seconds: register.gauge(
                "leasehold_leader_lease_max_clock_skew_seconds",
                "Margin by which the leader lease ends before the voters' promises.",
            ),
            renewals: register.counter(
                "leasehold_leader_lease_renewals_total",
                "Renewals of the leader lease.",
            ),
            expirations: register.counter(
                "leasehold_leader_lease_expirations_total",
                "Times the leader lease expired without a renewal.",
            ),
            rejections: register.counter(
                "leasehold_leader_lease_rejections_total",
                "Reads that found no valid leader lease.",
            ),
            clock_jumps: register.counter(
                "leasehold_clock_jump_total",
                "Clock readings that went backwards or jumped ahead.",
            ),
            assumption_violations: register.counter(
                "leasehold_leader_lease_assumption_violations_total",
                "Violations of the assumptions about clocks and members: another node was leader \
                 while this one held a valid leader lease.",
            ),
            renew_interval_seconds: register.histogram(
                "leasehold_leader_lease_renew_interval_seconds",
                "Time between the starts of successive leader leases; renewals less than 10 ms \
                 apart count as one.",
            ),
            read_margin_seconds: register.histogram(
                "leasehold_leader_lease_read_margin_seconds",
                "Remaining time of the leader lease when a batch of reads was checked against it.",
            ),
            round_trip_seconds: register.histogram(
                "leasehold_leader_lease_round_trip_seconds",
                "Time from the start of a heartbeat round until a quorum has acknowledged it.",
            ),
            invalidations: Invalidation::ALL.map(|reason| {
                register.labelled(&[("reason", reason.label())]).counter(
                    "leasehold_leader_lease_invalidations_total",
                    "Leader leases that ended before they expired, by reason.",
                )
            }),
        }
    }

    /// Leases ended before their time, by what ended them.
    pub fn invalidations(&self, reason: Invalidation) -> &Counter {
        &self.invalidations[reason as usize]
    }
}
