//! The leader lease, as a node sees its own, and the clocks that it depends on.

use super::table::{By, Counter, Gauge, Histogram, Lookup, labels, metrics};
use crate::raft::Invalidation;

metrics! {
    /// The leader lease, as this node sees it.
    pub struct LeaderLeaseMetrics {
        pub valid: Gauge = "leasehold_leader_lease_valid",
            "1 while this node holds a valid leader lease and may serve linearizable reads \
             without a quorum round.";
        pub remaining_seconds: Gauge = "leasehold_leader_lease_remaining_seconds",
            "Remaining time of the leader lease, safety margin subtracted; 0 if it is not \
             valid.";
        pub duration_seconds: Gauge = "leasehold_leader_lease_duration_seconds",
            "How long a voter promises not to vote for another leader.";
        pub max_clock_skew_seconds: Gauge = "leasehold_leader_lease_max_clock_skew_seconds",
            "Margin by which the leader lease ends before the voters' promises.";
        pub renewals: Counter = "leasehold_leader_lease_renewals_total",
            "Renewals of the leader lease.";
        pub expirations: Counter = "leasehold_leader_lease_expirations_total",
            "Times the leader lease expired without a renewal.";
        pub rejections: Counter = "leasehold_leader_lease_rejections_total",
            "Reads that found no valid leader lease.";
        pub clock_jumps: Counter = "leasehold_clock_jump_total",
            "Clock readings that went backwards or jumped ahead.";
        pub clock_disruptions: Counter = "leasehold_clock_disruptions_total",
            "Times the hypervisor disrupted this machine's clocks, as a VMClock device tells.";
        clock_drift_ratio: Lookup<Gauge> = "leasehold_clock_drift_ratio",
            "Rate of the peer's clock relative to this node's over the last minutes, minus one: \
             1e-6 means that it gains one microsecond per second.";
        pub assumption_violations: Counter = "leasehold_leader_lease_assumption_violations_total",
            "Violations of the assumptions about clocks and members: another node was leader \
             while this one held a valid leader lease.";
        pub renew_interval_seconds: Histogram = "leasehold_leader_lease_renew_interval_seconds",
            "Time between the starts of successive leader leases; renewals less than 10 ms \
             apart count as one.";
        pub read_margin_seconds: Histogram = "leasehold_leader_lease_read_margin_seconds",
            "Remaining time of the leader lease when a batch of reads was checked against it.";
        pub round_trip_seconds: Histogram = "leasehold_leader_lease_round_trip_seconds",
            "Time from the start of a heartbeat round until a quorum has acknowledged it.";
        pub invalidations: By<Invalidation, Counter> = "leasehold_leader_lease_invalidations_total",
            "Leader leases that ended before they expired, by reason.";
    }
}

labels!(Invalidation: "reason", label);

impl LeaderLeaseMetrics {
    /// The clock of the member `peer` is faster than this node's by `ratio`.
    pub fn set_clock_drift(&self, peer: &str, ratio: f64) {
        // Once a second for each member, so a look-up does.
        let labels = [("peer", peer.to_owned().into())];
        self.clock_drift_ratio.find(labels).set(ratio);
    }
}
