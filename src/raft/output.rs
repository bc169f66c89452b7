//! Inputs and effects of consensus: values, so that a test can compare all of them.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::raft::{Configuration, Entry, Envelope, ReadPermit};
use crate::types::{LogId, LogIndex, NodeId, Role, Term};

/// Names one [`Output::Persist`]; tickets rise by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Names a read inside consensus; chosen by the caller, unique while the read waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// What must survive a crash besides the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HardState {
    /// The latest term this node has seen.
    pub term: Term,
    /// The candidate that it voted for in that term.
    pub vote: Option<NodeId>,
    /// The longest promise it ever made: how long it keeps silent after a boot.
    pub promise_floor: Duration,
    /// The last term in which it voted for a candidate whose log was empty: the bootstrap, if that
    /// candidate was elected. 0: none.
    pub bootstrap: Term,
}

/// Where a log begins: everything up to here is in the state machine, durably, and in no log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LogBase {
    /// The last entry before the log.
    pub id: LogId,
    /// The configuration in force there.
    pub configuration: Configuration,
}

/// One unit of persistence. Everything in it is durable before its ticket is reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct UnsavedState {
    /// The new hard state, if it changed. Written before the entries.
    pub hard_state: Option<HardState>,
    /// The log begins after this entry now. If the log holds that very entry, what follows it stays
    /// as it is; if not, nothing of the log is worth anything any more. Before the entries.
    pub base: Option<LogBase>,
    /// Entries to append, contiguous. The first may lie at or below the last appended index: then
    /// everything from there on is cut first.
    pub entries: Vec<Entry>,
}

/// What a node finds on its disks when it starts.
#[derive(Clone, Debug, Default)]
pub struct RestoredState {
    /// The vote file's content.
    pub hard_state: HardState,
    /// Where the log begins: the last entry it no longer holds; index 0 for a whole log.
    pub base: LogId,
    /// The configuration in force at `base`: at index 0, the bootstrap configuration.
    pub base_configuration: Configuration,
    /// Everything after `base`, contiguous.
    pub entries: Vec<Entry>,
    /// How far the state machine has applied; entries after it are handed out again. Before `base`
    /// if the state machine was lost: then this replica serves and leads nothing until it has been
    /// sent a state (decision 8), while its votes, which rest on its log, count.
    pub applied: LogIndex,
    /// The log is damaged: neither vote nor campaign (A23).
    pub quarantined: bool,
    /// The data directory was empty, and this node has not shown since that it takes part in the
    /// bootstrap of its cluster: it may be a member that lost everything. See
    /// [`Consensus::is_unproven`](super::Consensus::is_unproven).
    pub unproven: bool,
    /// The member was restored from a backup whose hash this is, the log begins after that, and it
    /// has not shown since that it takes part in the bootstrap of its cluster (A26).
    pub restored_from: Option<u128>,
    /// An entry that was another one in a leader's log though it is committed here, or of the same term: nothing of this
    /// replica counts until an operator has decided which of them stays (A27).
    pub diverged: Option<LogIndex>,
    /// The tripwire has gone off and no operator has cleared it: no leased reads (P37).
    pub lease_tripped: bool,
    /// If this replica leads on a log that holds no entry, its first entry carries this command: that which
    /// tells this cluster from any other (A25). Empty where the cluster is known to have it.
    pub bootstrap_command: Bytes,
}

/// One effect. `Persist`s are carried out in the order given, `Commit`s and `Install`s in the order
/// given, and nothing else has an order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Make this durable, then report the ticket.
    Persist(Ticket, UnsavedState),
    /// Send this; it may be lost.
    Send(Envelope),
    /// Apply these, then report the last index.
    Commit(Vec<Entry>),
    /// The read may be answered from any snapshot that contains the permit's index.
    Permit(ReadId, ReadPermit),
    /// The read can not be answered here.
    RefuseRead(ReadId, ReadRefusal),
    /// This member needs what the log no longer holds: send it the state machine, whatever its
    /// latest durable state is, and report [`Input::SnapshotSent`] once that has ended, well or not.
    SendSnapshot(NodeId),
    /// The state that was received as of this entry becomes the state machine; then report that it
    /// is applied. What is handed out after this follows upon it.
    Install(LogId),
    /// The state that was received as of this entry is not needed any more.
    DiscardSnapshot(LogId),
}

/// Why a waiting read was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadRefusal {
    /// This node does not lead (any more), and hears of no leader.
    NotLeader,
    /// The lease alone was to confirm it, and is void.
    LeaseVoid,
}

/// An input of consensus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A message of a peer arrived.
    Message(Envelope),
    /// Everything up to and including this ticket is durable.
    Persisted(Ticket),
    /// Everything up to and including this index is applied, and visible to new snapshots.
    Applied(LogIndex),
    /// The state machine holds everything up to here durably, so that the log may begin after it.
    Compact(LogIndex),
    /// A whole state of the state machine was received and lies there durably, beside the one that
    /// is used. Answered by [`Output::Install`] or [`Output::DiscardSnapshot`].
    SnapshotReceived(LogBase),
    /// What [`Output::SendSnapshot`] asked for this member has ended.
    SnapshotSent(NodeId),
    /// Time has passed.
    Tick,
}

/// How consensus stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// This node's role.
    pub role: Role,
    /// Its term.
    pub term: Term,
    /// The leader, as far as it knows.
    pub leader: Option<NodeId>,
    /// Last entry in its log.
    pub last: LogId,
    /// Highest committed index.
    pub commit: LogIndex,
    /// As leader: committed **and** applied everything it was elected with (A8).
    pub ready: bool,
}
