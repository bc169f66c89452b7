//! Read leases, as the leader that grants them and as a holder.

use super::table::{By, Counter, Gauge, labels, metrics};
use crate::raft::RecallReason;

metrics! {
    /// Read leases.
    pub struct ReadLeaseMetrics {
        pub remaining_seconds: Gauge = "leasehold_read_lease_remaining_seconds",
            "Remaining time of the read lease that this node holds; 0 if it holds none.";
        pub renewals: Counter = "leasehold_read_lease_renewals_total",
            "Read leases that this node was granted, renewals included.";
        pub rejections: Counter = "leasehold_read_lease_rejections_total",
            "Reads that found the read lease of this node over.";
        pub holders: Gauge = "leasehold_read_lease_holders",
            "Members that hold a read lease of this node as the leader, or may still do.";
        pub grants: Counter = "leasehold_read_lease_grants_total",
            "Read leases that this node has granted as the leader, renewals included.";
        pub waited_out: Counter = "leasehold_read_lease_waited_out_total",
            "Recalled read leases that were not given back and had to be waited for.";
        pub commit_held_back_milliseconds: Counter = "leasehold_read_lease_commit_held_back_milliseconds_total",
            "Time during which commits waited for the holder of a read lease, in milliseconds.";
        pub recalls: By<RecallReason, Counter> = "leasehold_read_lease_recalls_total",
            "Read leases that this node has recalled as the leader, by reason.";
    }
}

labels!(RecallReason: "reason", label);
