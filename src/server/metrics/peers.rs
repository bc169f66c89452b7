//! What this node measures about each other member.

use super::table::{Counter, Gauge, Histogram, metrics};

metrics! {
    /// One other member, as this node sees it.
    pub struct PeerMetrics {
        pub heartbeat_round_trip_seconds: Histogram =
            "leasehold_raft_heartbeat_round_trip_seconds",
            "Time from sending a heartbeat to this member until its reply was processed; at \
             most one sample per 10 ms, on the leader only.";
        pub heartbeat_send_failures: Counter = "leasehold_raft_heartbeat_send_failures_total",
            "Heartbeats to this member that were dropped because it was not connected or its \
             send queue was full.";
        pub lag_entries: Gauge = "leasehold_raft_follower_lag_entries",
            "Entries of this leader's log that the member has not acknowledged; all of them \
             while nothing has been heard from it; 0 on nodes other than the leader.";
        pub holds_read_lease: Gauge = "leasehold_raft_follower_read_lease",
            "1 if the member holds a read lease of this leader, or may still do: commits wait for it; \
             0 on nodes other than the leader.";
    }
}
