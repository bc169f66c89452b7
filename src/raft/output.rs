//! What consensus wants done: effects as values, so that a test can compare all of them.

use std::hash::{Hash, Hasher};
use std::mem;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::raft::{Configuration, Envelope, ReadPermit};
use crate::types::{LogId, LogIndex, NodeId, Term};

/// How much of a command is told apart by its hash.
const COMMAND_BYTES_HASHED: usize = 64;

/// Names one [`Output::Persist`]; tickets rise by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Names a read inside consensus; chosen by the caller, unique while the read waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// What must confirm that a linearizable read sees everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReadMode {
    /// The leader's lease, or, while that is void, a quorum round.
    #[default]
    Any,
    /// A quorum round: independent of clocks.
    Quorum,
    /// The leader's lease, or the read is refused.
    Lease,
}

impl ReadMode {
    /// Every mode.
    pub(super) const ALL: [Self; 3] = [Self::Any, Self::Quorum, Self::Lease];
}

/// One log entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// Its place and term.
    pub id: LogId,
    /// What it says.
    pub payload: Payload,
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// Nothing: a new leader's first entry, which lets it commit what came before (Raft, section 5.4.2).
    Noop,
    /// A command of the state machine; opaque here.
    Command(Bytes),
    /// A membership, in force from the moment it is appended.
    Configuration(Box<Configuration>),
}

impl Hash for Payload {
    /// Of a command, only its length and its beginning: a hash need not read a megabyte.
    fn hash<H: Hasher>(&self, state: &mut H) {
        mem::discriminant(self).hash(state);
        match self {
            Self::Noop => {}
            Self::Command(bytes) => {
                bytes.len().hash(state);
                bytes[..bytes.len().min(COMMAND_BYTES_HASHED)].hash(state);
            }
            Self::Configuration(configuration) => configuration.hash(state),
        }
    }
}

/// What must survive a crash besides the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HardState {
    /// The latest term this node has seen.
    pub term: Term,
    /// Whom it voted for in that term.
    pub vote: Option<NodeId>,
    /// The longest promise it ever made: how long it keeps silent after a boot.
    pub promise_floor: Duration,
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
pub struct Unsaved {
    /// The new hard state, if it changed. Written before the entries.
    pub hard_state: Option<HardState>,
    /// The log begins after this entry now. If the log holds that very entry, what follows it stays
    /// as it is; if not, nothing of the log is worth anything any more. Before the entries.
    pub base: Option<LogBase>,
    /// Entries to append, contiguous. The first may lie at or below the last appended index: then
    /// everything from there on is cut first.
    pub entries: Vec<Entry>,
}

/// One effect. `Persist`s are carried out in the order given, `Commit`s and `Install`s in the order
/// given, and nothing else has an order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Make this durable, then report the ticket.
    Persist(Ticket, Unsaved),
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

/// What consensus is told.
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
