//! Consensus: terms, the log, messages, and states that go from node to node.

use metrics::{Counter, Gauge, Histogram};

use super::Register;

/// Consensus.
pub struct RaftMetrics {
    /// 1 while the node knows a leader.
    pub has_leader: Gauge,
    /// 1 while it leads.
    pub is_leader: Gauge,
    /// 1 while it receives everything and does not vote.
    pub is_learner: Gauge,
    /// Its term.
    pub term: Gauge,
    /// Changes of leader that it saw.
    pub leader_changes: Counter,
    /// How late it acted on what was due, in seconds.
    pub timer_delay_seconds: Histogram,
    /// From when it first asked whether it could be elected until it knew a leader, in seconds.
    pub election_seconds: Histogram,
    /// Highest index known to be committed; as a counter, because it never falls.
    pub proposals_committed: Counter,
    /// Highest index applied.
    pub proposals_applied: Counter,
    /// Writes of clients that wait to be committed and applied.
    pub proposals_pending: Gauge,
    /// Writes of clients that consensus did not take or that were given up.
    pub proposals_failed: Counter,
    /// Highest index known to be committed.
    pub commit_index: Gauge,
    /// Highest index applied.
    pub applied_index: Gauge,
    /// Followers found to lack entries that they had acknowledged to this leader.
    pub lost_logs: Counter,
    /// Messages rejected because no correct peer can have sent them.
    pub messages_refused: Counter,
    /// 1 while this node is quarantined: it copies all data from its peers and neither votes nor
    /// serves.
    pub quarantined: Gauge,
    /// 1 while this node has no state and waits for a snapshot from a peer.
    pub without_state: Gauge,
    /// The first entry that the log may hold.
    pub log_first_index: Gauge,
    /// Bytes of the log's files.
    pub log_bytes: Gauge,
    /// The log's files.
    pub log_segments: Gauge,
    /// Truncations of the log's beginning.
    pub log_compactions: Counter,
    /// How long it took to make the state durable before that, in seconds.
    pub log_compaction_seconds: Histogram,
    snapshots_sent: [Counter; TransferEnd::ALL.len()],
    snapshots_received: [Counter; TransferEnd::ALL.len()],
    /// Bytes of snapshots sent to peers.
    pub snapshot_sent_bytes: Counter,
    /// Bytes of snapshots received from peers.
    pub snapshot_received_bytes: Counter,
    /// How long it took to send a state, in seconds.
    pub snapshot_send_seconds: Histogram,
    /// How long it took to receive a state, in seconds.
    pub snapshot_receive_seconds: Histogram,
    /// How long it took to put a received state to work, in seconds.
    pub snapshot_install_seconds: Histogram,
    messages_sent: [Counter; MessageKind::ALL.len()],
}

impl RaftMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        Self {
            has_leader: register.gauge(
                "leasehold_raft_has_leader",
                "1 while this node knows a leader.",
            ),
            is_leader: register.gauge(
                "leasehold_raft_is_leader",
                "1 while this node is the leader.",
            ),
            is_learner: register.gauge(
                "leasehold_raft_is_learner",
                "1 while this node is a learner: it replicates the log and does not vote.",
            ),
            term: register.gauge("leasehold_raft_term", "This node's term."),
            timer_delay_seconds: register.histogram(
                "leasehold_raft_timer_delay_seconds",
                "How late the node handled its timers: scheduling delays and its own pauses.",
            ),
            election_seconds: register.histogram(
                "leasehold_raft_election_duration_seconds",
                "Time from this node's first pre-vote request until it knew a leader, itself or \
                 another node.",
            ),
            leader_changes: register.counter(
                "leasehold_raft_leader_changes_total",
                "Leader changes seen by this node.",
            ),
            proposals_committed: register.counter(
                "leasehold_raft_proposals_committed_total",
                "Log entries known to be committed.",
            ),
            proposals_applied: register.counter(
                "leasehold_raft_proposals_applied_total",
                "Log entries applied to the state.",
            ),
            proposals_pending: register.gauge(
                "leasehold_raft_proposals_pending",
                "Client writes on this node waiting to be committed and applied.",
            ),
            proposals_failed: register.counter(
                "leasehold_raft_proposals_failed_total",
                "Client writes that were not proposed, or that this node gave up before they were \
                 committed.",
            ),
            commit_index: register.gauge(
                "leasehold_raft_commit_index",
                "Highest log index known to be committed.",
            ),
            applied_index: register.gauge(
                "leasehold_raft_applied_index",
                "Highest log index applied to the state.",
            ),
            lost_logs: register.counter(
                "leasehold_raft_lost_logs_total",
                "Followers found to lack entries that they had acknowledged to this leader.",
            ),
            messages_refused: register.counter(
                "leasehold_raft_messages_refused_total",
                "Messages rejected because no correct peer can have sent them.",
            ),
            quarantined: register.gauge(
                "leasehold_raft_quarantined",
                "1 while this node is quarantined: it copies all data from its peers and neither \
                 votes nor serves.",
            ),
            without_state: register.gauge(
                "leasehold_raft_without_state",
                "1 while this node has no state and waits for a snapshot from a peer.",
            ),
            log_first_index: register.gauge(
                "leasehold_raft_log_first_index",
                "Lowest index that the log may hold; earlier entries were truncated.",
            ),
            log_bytes: register.gauge("leasehold_wal_size_bytes", "Bytes of the log's files."),
            log_segments: register.gauge(
                "leasehold_wal_segments",
                "Segment files of the log, preallocated ones included.",
            ),
            log_compactions: register.counter(
                "leasehold_raft_log_compactions_total",
                "Truncations of the log's beginning.",
            ),
            log_compaction_seconds: register.histogram(
                "leasehold_raft_log_compaction_duration_seconds",
                "Time to make the state durable before the log was truncated.",
            ),
            snapshots_sent: TransferEnd::ALL.map(|end| {
                register.labelled(&[("result", end.label())]).counter(
                    "leasehold_raft_snapshot_sent_total",
                    "Snapshots sent to peers that need truncated entries, by outcome.",
                )
            }),
            snapshots_received: TransferEnd::ALL.map(|end| {
                register.labelled(&[("result", end.label())]).counter(
                    "leasehold_raft_snapshot_received_total",
                    "Snapshots received from peers, by outcome.",
                )
            }),
            snapshot_sent_bytes: register.counter(
                "leasehold_raft_snapshot_sent_bytes_total",
                "Bytes of snapshots sent to peers.",
            ),
            snapshot_received_bytes: register.counter(
                "leasehold_raft_snapshot_received_bytes_total",
                "Bytes of snapshots received from peers.",
            ),
            snapshot_send_seconds: register.histogram(
                "leasehold_raft_snapshot_send_duration_seconds",
                "Time to send a snapshot, or the rest of one.",
            ),
            snapshot_receive_seconds: register.histogram(
                "leasehold_raft_snapshot_receive_duration_seconds",
                "Time to receive a snapshot, or the rest of one.",
            ),
            snapshot_install_seconds: register.histogram(
                "leasehold_raft_snapshot_install_duration_seconds",
                "Time to install a received snapshot.",
            ),
            messages_sent: MessageKind::ALL.map(|kind| {
                register.labelled(&[("kind", kind.label())]).counter(
                    "leasehold_raft_messages_sent_total",
                    "Raft messages handed to the transport, by kind.",
                )
            }),
        }
    }

    /// States that were sent to peers, or not to the end.
    pub fn snapshots_sent(&self, end: TransferEnd) -> &Counter {
        &self.snapshots_sent[end as usize]
    }

    /// States that peers have sent, or not to the end.
    pub fn snapshots_received(&self, end: TransferEnd) -> &Counter {
        &self.snapshots_received[end as usize]
    }

    /// Messages handed to the transport for peers.
    pub fn messages_sent(&self, kind: MessageKind) -> &Counter {
        &self.messages_sent[kind as usize]
    }
}

/// How the transfer of a state has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferEnd {
    /// All of it is there.
    Ok,
    /// The connection broke, or one side was stopped: it may go on where it was.
    Broken,
    /// The receiver had its hands full.
    Busy,
    /// What came was damaged.
    Corrupt,
    /// The receiver could not store it, or the sender not read it.
    Failed,
}

impl TransferEnd {
    const ALL: [Self; 5] = [
        Self::Ok,
        Self::Broken,
        Self::Busy,
        Self::Corrupt,
        Self::Failed,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Broken => "broken",
            Self::Busy => "busy",
            Self::Corrupt => "corrupt",
            Self::Failed => "failed",
        }
    }
}

/// What a message to a peer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Keeps promises alive, and their answers. Flows all the time.
    Heartbeat,
    /// Replicates entries, and the answers.
    Append,
    /// Elections.
    Vote,
    /// Compares states with the others.
    StateHash,
    /// Everything else: transfers, releases, rejoining.
    Other,
}

impl MessageKind {
    const ALL: [Self; 5] = [
        Self::Heartbeat,
        Self::Append,
        Self::Vote,
        Self::StateHash,
        Self::Other,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Heartbeat => "heartbeat",
            Self::Append => "append",
            Self::Vote => "vote",
            Self::StateHash => "state_hash",
            Self::Other => "other",
        }
    }
}
