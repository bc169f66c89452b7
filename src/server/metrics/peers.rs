//! What this node sees of each other member.

use metrics::{Counter, Gauge, Histogram, Label};

use super::{Labelled, Metrics};

/// One other member, as this node sees it.
pub struct PeerMetrics {
    /// From sending it a heartbeat until its answer, in seconds.
    pub heartbeat_round_trip_seconds: Histogram,
    /// Heartbeats to it that could not be handed to a connection.
    pub heartbeat_send_failures: Counter,
    /// Entries of this leader's log that it has not acknowledged; 0 off the leader.
    pub lag_entries: Gauge,
}

impl Metrics {
    /// The metrics of the member `peer`; the same ones whenever they are asked for. There are as many
    /// as a cluster has members in its life, so a name is a label that stays bounded.
    pub fn peer(&self, peer: &str) -> PeerMetrics {
        let labelled = || Labelled {
            recorder: &self.recorder,
            labels: vec![Label::new("peer", peer.to_owned())],
        };
        PeerMetrics {
            heartbeat_round_trip_seconds: labelled().histogram(
                "leasehold_raft_heartbeat_round_trip_seconds",
                "Time from sending a heartbeat to this member until its reply was processed; at \
                 most one sample per 10 ms, on the leader only.",
            ),
            heartbeat_send_failures: labelled().counter(
                "leasehold_raft_heartbeat_send_failures_total",
                "Heartbeats to this member that were dropped because it was not connected or its \
                 send queue was full.",
            ),
            lag_entries: labelled().gauge(
                "leasehold_raft_follower_lag_entries",
                "Entries of this leader's log that the member has not acknowledged; all of them \
                 while nothing has been heard from it; 0 on nodes other than the leader.",
            ),
        }
    }

    /// The clocks of the member `peer` run faster than ours by `ratio`.
    pub fn clock_drifts(&self, peer: &str, ratio: f64) {
        // Once a second for each member: its gauge is looked up.
        Labelled {
            recorder: &self.recorder,
            labels: vec![Label::new("peer", peer.to_owned())],
        }
        .gauge(
            "leasehold_clock_drift_ratio",
            "Rate of the peer's clock relative to this node's over the last minutes, minus one: \
             1e-6 means that it gains one microsecond per second.",
        )
        .set(ratio);
    }
}
