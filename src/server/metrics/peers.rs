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
                "From sending a heartbeat to this member until its answer was acted on; of a leader, \
                 one in 10 ms at most.",
            ),
            heartbeat_send_failures: labelled().counter(
                "leasehold_raft_heartbeat_send_failures_total",
                "Heartbeats to this member that were dropped because there was no connection to it, \
                 or too much waited for the one there was.",
            ),
            lag_entries: labelled().gauge(
                "leasehold_raft_follower_lag_entries",
                "Entries of this leader's log that the member has not acknowledged: all of them \
                 while nothing was heard of it. 0 off the leader.",
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
            "How much faster the peer's clocks run than this node's, over the last minutes: 1e-6 \
             is a microsecond a second.",
        )
        .set(ratio);
    }
}
