//! Consensus: roles, terms, messages and proposals.

use super::table::{By, Counter, Gauge, Histogram, labels, metrics};

metrics! {
    /// Consensus.
    pub struct RaftMetrics {
        pub has_leader: Gauge = "leasehold_raft_has_leader", "1 while this node knows a leader.";
        pub is_leader: Gauge = "leasehold_raft_is_leader", "1 while this node is the leader.";
        pub is_learner: Gauge = "leasehold_raft_is_learner",
            "1 while this node is a learner: it replicates the log and does not vote.";
        pub term: Gauge = "leasehold_raft_term", "This node's term.";
        pub leader_changes: Counter = "leasehold_raft_leader_changes_total",
            "Leader changes seen by this node.";
        pub timer_delay_seconds: Histogram = "leasehold_raft_timer_delay_seconds",
            "How late the node handled its timers: scheduling delays and its own pauses.";
        pub election_seconds: Histogram = "leasehold_raft_election_duration_seconds",
            "Time from this node's first pre-vote request until it knew a leader, itself or \
             another node.";
        pub proposals_committed: Counter = "leasehold_raft_proposals_committed_total",
            "Log entries known to be committed.";
        pub proposals_applied: Counter = "leasehold_raft_proposals_applied_total",
            "Log entries applied to the state.";
        pub proposals_pending: Gauge = "leasehold_raft_proposals_pending",
            "Client writes on this node waiting to be committed and applied.";
        pub proposals_failed: Counter = "leasehold_raft_proposals_failed_total",
            "Client writes that were not proposed, or that this node gave up before they were \
             committed.";
        pub commit_index: Gauge = "leasehold_raft_commit_index",
            "Highest log index known to be committed.";
        pub applied_index: Gauge = "leasehold_raft_applied_index",
            "Highest log index applied to the state.";
        pub lost_logs: Counter = "leasehold_raft_lost_logs_total",
            "Followers found to lack entries that they had acknowledged to this leader.";
        pub messages_refused: Counter = "leasehold_raft_messages_refused_total",
            "Messages rejected because no correct peer can have sent them.";
        pub messages_sent: By<MessageKind, Counter> = "leasehold_raft_messages_sent_total",
            "Raft messages handed to the transport, by kind.";
        pub quarantined: Gauge = "leasehold_raft_quarantined",
            "1 while this node is quarantined: it copies all data from its peers and neither \
             votes nor serves.";
        pub without_state: Gauge = "leasehold_raft_without_state",
            "1 while this node has no state and waits for a snapshot from a peer.";
    }
}

labels! {
    /// The purpose of a message to a peer.
    pub enum MessageKind: "kind" {
        /// Heartbeats and their replies, which renew promises all the time.
        Heartbeat = "heartbeat",
        /// Entries and their acknowledgements.
        Append = "append",
        /// Elections.
        Vote = "vote",
        /// Comparison of state hashes.
        StateHash = "state_hash",
        /// Everything else: transfers, releases, rejoining.
        Other = "other",
    }
}
