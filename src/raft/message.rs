//! What peers say to each other.
//!
//! Every message from a leader carries its newest round and the length of the promise it asks for
//! ([`Heartbeat`]); every answer to a leader echoes the newest round that this replica heard and
//! says whether it promised ([`Heard`]). A lease is counted from those echoes alone, so a late,
//! doubled or reordered answer can only make it older, never newer (P25, P27, P28).
//!
//! No message is trusted: the receiver checks what it says.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::raft::bounded::{Weigh, bounded};
use crate::raft::{Entry, ReadMode};
use crate::types::{LogId, LogIndex, NodeId, Term};

/// The most that one [`Append`] may take of its receiver's memory besides payloads: an entry counts
/// for 1, and four members of a configuration for 1 more.
pub const APPEND_WEIGHT_MAX: usize = 16_384;

// What the bounds were chosen for.
const _: () = assert!(size_of::<Entry>() <= 128 && size_of::<Envelope>() <= 160);

/// A message with its sender, receiver and the sender's term.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Envelope {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// The sender's term.
    pub term: Term,
    /// The message.
    pub message: Message,
}

impl Envelope {
    /// Whether the message may be large and may wait: it must not hold up heartbeats and votes.
    pub fn is_bulk(&self) -> bool {
        matches!(&self.message, Message::Append(append) if !append.entries.is_empty())
    }
}

impl Weigh for Envelope {
    fn weight(&self) -> usize {
        1 + match &self.message {
            Message::Append(append) => append.entries.iter().map(Weigh::weight).sum(),
            _ => 0,
        }
    }
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Would you elect me? Changes nothing at the receiver.
    PreVote(PreVote),
    /// The answer to a [`PreVote`].
    PreVoteReply(PreVoteReply),
    /// Elect me.
    Vote(Vote),
    /// The answer to a [`Vote`].
    VoteReply(VoteReply),
    /// I lead; go on promising.
    Heartbeat(Heartbeat),
    /// The answer to a [`Heartbeat`].
    HeartbeatReply(HeartbeatReply),
    /// Entries of the leader's log, which is a heartbeat too.
    Append(Append),
    /// The answer to an [`Append`], once what it acknowledges is durable.
    Appended(AppendReply),
    /// Campaign now: the leader of this term has given up its lease for you.
    TimeoutNow(TimeoutNow),
    /// The leader of this term has stopped for good: promises made to it are void (P36).
    Release,
    /// A damaged replica asks how much it must hold before its word counts again (A23).
    Rejoin(Rejoin),
    /// The answer to a [`Rejoin`].
    RejoinReply(RejoinReply),
    /// A follower asks what its reads must see (F1).
    ReadIndex(ReadIndex),
    /// The answer to a [`ReadIndex`].
    ReadIndexReply(ReadIndexReply),
    /// What a replica's state is at some entry. Consensus carries it and makes nothing of it.
    StateHash(StateHash),
    /// The sender's state machine lacks entries that its log does not hold either: it needs a whole
    /// state.
    NeedState,
    /// The receiver has acknowledged entries to the leader of this term that its log lacks (A28). Names the
    /// newest round.
    Forgotten(RoundId),
    /// The leader wants back the read lease that it has granted the receiver (RL7).
    Recall,
    /// The sender holds no read lease that was granted for this name of its or one before, and accepts none.
    Returned(RoundId),
    /// What the receiver has acknowledged to the sender when that led, and may have forgotten since (A28).
    Reminder(Reminder),
}

/// Names one round: a question put to all peers at one moment of its creator's clock.
///
/// Never used twice, not even by the next process of the same node: the upper bits are drawn at
/// every start. Pre-votes and votes take their names from the same counter, so an answer to an
/// older question is never mistaken for an answer to this one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RoundId(pub u64);

impl RoundId {
    /// Whether one life of a node has drawn both names: the upper bits are drawn at its start, the lower count.
    /// Names of two lives have no order.
    pub(crate) fn is_of_one_life_with(self, other: Self) -> bool {
        self.0.abs_diff(other.0) < 1 << 20
    }
}

impl fmt::Debug for RoundId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:x}", self.0)
    }
}

/// How a candidate's log begins: what a voter that has stored nothing yet must know of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LogOrigin {
    /// Its first entry; 0@0 while it has none.
    pub first: LogId,
    /// While it has none: the hash of what a restored member was restored from (A26); else 0.
    pub hash: u128,
}

/// Would you elect me?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PreVote {
    /// Names this question.
    pub round: RoundId,
    /// The term that would be campaigned for.
    pub next_term: Term,
    /// The last entry of the sender's log.
    pub last: LogId,
    /// How its log begins.
    pub origin: LogOrigin,
}

/// Whether a (pre-)vote is given, and if not, why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ballot {
    /// Given.
    Granted,
    /// Not given.
    Withheld(Reason),
}

/// Why a (pre-)vote is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// The term asked for is over.
    Term,
    /// The voter has promised a leader not to, or may have before it started.
    Promise,
    /// The voter leads, and its lease holds.
    Leads,
    /// The voter's log is more up to date.
    Log,
    /// The voter voted for another in this term, or stands for the bootstrap itself.
    Voted,
    /// The voter's log is damaged: its vote would count for more than it knows.
    Quarantined,
    /// The voter was restored from other data, or with another revision (A26).
    Origin,
}

/// The answer to a [`PreVote`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PreVoteReply {
    /// The question's name.
    pub round: RoundId,
    /// The answer.
    pub ballot: Ballot,
}

/// Elect me.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Vote {
    /// Names this question. A candidate elected by transfer counts its lease from it.
    pub round: RoundId,
    /// The last entry of the candidate's log.
    pub last: LogId,
    /// How its log begins.
    pub origin: LogOrigin,
    /// How long an authorised voter is asked to promise.
    pub promise: Duration,
    /// The term whose leader handed over to this candidate. It authorises the vote only if it is
    /// the term just before the one campaigned for (P10).
    pub transfer_from: Option<Term>,
}

/// The answer to a [`Vote`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VoteReply {
    /// The question's name.
    pub round: RoundId,
    /// The answer.
    pub ballot: Ballot,
    /// Whether the voter promised, as it does when the vote is authorised by a transfer.
    pub promised: bool,
}

/// I lead; go on promising.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The newest round created before this message was.
    pub round: RoundId,
    /// How long the receiver is asked to support no election.
    pub promise: Duration,
    /// What the leader has committed and applied itself: nothing can be seen anywhere before it
    /// can be seen at the leader (A11). The receiver commits it as far as it knows its log to be the
    /// leader's.
    pub commit: LogIndex,
    /// How old the receiver's state can be, if the leader's lease held when this was created.
    pub fresh: Option<Fresh>,
}

/// Everything that was acknowledged before the receiver drew `name` is at or below `index`. So the
/// receiver knows, by its own clock alone, how old its state can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fresh {
    /// The receiver's [`HeartbeatReply::name`] that was in when this was created.
    pub name: RoundId,
    /// The leader's commit index, which may be ahead of [`Heartbeat::commit`]. The receiver commits
    /// nothing because of it.
    pub index: LogIndex,
    /// A read lease, which the receiver counts from when it drew `name`.
    pub grant: Option<ReadGrant>,
}

/// A read lease: the receiver may serve linearizable reads by its own state (RL2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReadGrant {
    /// For how long from when the name was drawn. Less than the promise that the leader asks for.
    pub length: Duration,
    /// What was committed when the receiver's tenure began: no state below it may be served.
    pub floor: LogIndex,
}

/// What every answer to a leader says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Heard {
    /// The newest round heard from this leader in this term.
    pub round: RoundId,
    /// Whether it was promised as asked. Set by the code that keeps the promise (P27).
    pub promised: bool,
}

/// The answer to a [`Heartbeat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HeartbeatReply {
    /// The round, and the promise.
    pub heard: Heard,
    /// How far this log is known to be the leader's, durable or not; 0 if nothing is known yet.
    /// It tells the leader what got lost on the way; it is not an acknowledgement.
    pub verified: LogIndex,
    /// A name of the sender's own, drawn as this was created, for the leader to give back
    /// ([`Heartbeat::fresh`]). Never used twice, so not even a message to an earlier life of the
    /// sender can be taken for younger than it is.
    pub name: RoundId,
    /// The sender asks for a read lease.
    pub wants_read_lease: bool,
}

/// Entries of the leader's log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Append {
    /// Every append is a heartbeat.
    pub heartbeat: Heartbeat,
    /// The entry just before the first one here: the receiver must hold it.
    pub base: LogId,
    /// The [checksum](Entry::checksum) of that entry; none if the leader's log begins after it.
    pub base_checksum: Option<u32>,
    /// Contiguous entries; none in a probe. Their weight is at most [`APPEND_WEIGHT_MAX`].
    #[serde(deserialize_with = "bounded::<APPEND_WEIGHT_MAX, _, _>")]
    pub entries: Vec<Entry>,
}

/// The answer to an [`Append`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AppendReply {
    /// The round, and the promise.
    pub heard: Heard,
    /// The result.
    pub verdict: Verdict,
}

/// The result of an [`Append`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// Everything up to here is the leader's and durable.
    Durable(LogIndex),
    /// Everything up to here is the leader's and stored, by a damaged replica whose word does not
    /// count yet (A23).
    Held(LogIndex),
    /// The base was not there.
    Conflict(Conflict),
}

/// Where two logs part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Conflict {
    /// The index of the base that was refused.
    pub base: LogIndex,
    /// The first entry of the term that the receiver has at that place; or, where its log is too
    /// short, the place after its end, in term 0.
    pub first: LogId,
}

/// Campaign now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TimeoutNow {
    /// The last entry of the leader's log. It is committed.
    pub last: LogId,
    /// As [`Heartbeat::commit`].
    pub commit: LogIndex,
    /// Names this transfer, for traces.
    pub id: u64,
}

/// A damaged replica asks how much it must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rejoin {
    /// Names the process that asks: drawn at its start.
    pub nonce: u64,
}

/// The answer to a [`Rejoin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RejoinReply {
    /// The nonce of the question.
    pub nonce: u64,
    /// Hold everything up to here, durably and committed, before you vote or acknowledge.
    pub through: LogIndex,
}

/// A follower asks what its reads must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReadIndex {
    /// Names this question; drawn when it was created. The answer serves every read that had
    /// arrived by then.
    pub name: RoundId,
    /// What must confirm the answer.
    pub mode: ReadMode,
}

/// The answer to a [`ReadIndex`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReadIndexReply {
    /// The question's name.
    pub name: RoundId,
    /// As it was asked.
    pub mode: ReadMode,
    /// What the reads must see; `None` if the lease alone was to confirm it, and is void.
    pub confirmed: Option<Confirmation>,
}

/// What the receiver has acknowledged to a leader of before. That stays true for ever, so it may be late or come twice:
/// the receiver compares it with what it holds as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reminder {
    /// The term in which the sender led and the receiver acknowledged.
    pub term: Term,
    /// The last entry that it acknowledged then.
    pub last: LogId,
}

/// What a replica's state is at some entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StateHash {
    /// The entry.
    pub index: LogIndex,
    /// The hash of the state in which it is the last that was applied.
    pub hash: u128,
}

/// What a leader says of itself, confirmed after it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Confirmation {
    /// Its commit index, captured after the question arrived; never below what it was elected
    /// with (A7, A11).
    pub index: LogIndex,
    /// What was left of the lease that confirmed it; `None` if a quorum round did.
    pub lease_remaining: Option<Duration>,
}
