//! Consensus over opaque bytes. (Interface stub; the implementation replaces it.)

mod config;
mod message;
mod output;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use config::{PROMISE_MAX, Timing, TimingError, TimingOptions};
pub use message::{
    Append, Appended, Ballot, Conflict, Envelope, Heard, Heartbeat, HeartbeatReply, Message,
    PreVote, PreVoteReply, Reason, Rejoin, RejoinReply, RoundId, TimeoutNow, Verdict, Vote,
    VoteReply,
};
pub use output::{Entry, HardState, Input, Output, Payload, ReadId, ReadRefusal, Ticket, Unsaved};

use crate::time::Instant;
use crate::types::LogId;
use crate::types::LogIndex;
use crate::types::NodeId;
use crate::types::Role;
use crate::types::Term;

/// Who votes. While `outgoing` is present the configuration is joint and every decision needs a
/// majority of both sets (section 6).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// Voters (of the new configuration, while joint).
    pub voters: BTreeSet<NodeId>,
    /// Voters of the old configuration, while joint.
    pub outgoing: Option<BTreeSet<NodeId>>,
    /// Members that receive the log and do not vote.
    pub learners: BTreeSet<NodeId>,
}

/// What a node finds on its disks when it starts.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// The vote file's content.
    pub hard_state: HardState,
    /// Where the log begins: the last entry it no longer holds; index 0 for a whole log.
    pub base: LogId,
    /// The configuration in force at `base`: at index 0, the bootstrap configuration.
    pub base_configuration: Configuration,
    /// Everything after `base`, contiguous.
    pub entries: Vec<Entry>,
    /// How far the state machine has applied; entries after it are handed out again.
    pub applied: LogIndex,
    /// The log is damaged: neither vote nor campaign (A23).
    pub quarantined: bool,
    /// The tripwire has gone off and no operator has cleared it: no leased reads (P37).
    pub lease_tripped: bool,
}

/// Proof that a read at `index()` is linearizable. Made only by a live leader lease or a finished
/// quorum round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPermit {
    index: LogIndex,
    lease_remaining: Option<Duration>,
}

impl ReadPermit {
    /// A snapshot serves this read only if it contains this index.
    pub fn index(&self) -> LogIndex {
        self.index
    }
    /// What was left of the lease; `None` if a quorum round permitted the read.
    pub fn lease_remaining(&self) -> Option<Duration> {
        self.lease_remaining
    }
}

/// What one leadership publishes of its lease: one object per leadership (section 5.3, P23, A7).
#[derive(Debug)]
pub struct LeaseCell {
    /// The leadership's term.
    pub term: Term,
    /// `last_at_election`
    pub floor: LogIndex,
    until_boot: AtomicU64,
    until_raw: AtomicU64,
}

impl LeaseCell {
    /// `captured` is the commit index captured after the request arrived.
    pub fn permit(&self, now: Instant, captured: LogIndex) -> Option<ReadPermit> {
        let until = Instant {
            boot: self.until_boot.load(Ordering::SeqCst),
            raw: self.until_raw.load(Ordering::SeqCst),
        };
        now.certainly_before(until).then(|| ReadPermit {
            index: captured.max(self.floor),
            lease_remaining: Some(until.at_least_since(now)),
        })
    }
}

/// What consensus publishes for other threads, written inside `handle` before it returns.
#[derive(Debug, Default)]
pub struct Published {
    commit: AtomicU64,
    lease: ArcSwapOption<LeaseCell>,
}

impl Published {
    /// Highest committed index.
    pub fn commit(&self) -> LogIndex {
        LogIndex(self.commit.load(Ordering::Acquire))
    }
    /// The current leadership's lease; `None` when not leading.
    pub fn lease(&self) -> Option<Arc<LeaseCell>> {
        self.lease.load_full()
    }
}

/// Why a proposal, read or transfer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// This node does not lead.
    NotLeader {
        /// Who does, where known.
        leader: Option<NodeId>,
    },
    /// A leadership transfer is under way; ask again shortly.
    Transferring,
    /// Too much is in flight uncommitted; ask again shortly.
    Busy,
    /// The target is not a voter, or no voter is fit to lead.
    NoTarget,
    /// The command is larger than a message to a peer may be.
    TooLarge,
}

/// How consensus stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// This node's role.
    pub role: Role,
    /// Its term.
    pub term: Term,
    /// Whom it believes to lead.
    pub leader: Option<NodeId>,
    /// Last entry in its log.
    pub last: LogId,
    /// Highest committed index.
    pub commit: LogIndex,
    /// As leader: committed **and** applied everything it was elected with (A8).
    pub ready: bool,
}

/// One replica's consensus.
pub struct Consensus {}

#[allow(unused_variables, clippy::unimplemented)]
impl Consensus {
    /// `seed` draws the election timeouts. `now` is read after the data directory is locked (A3).
    pub fn new(id: NodeId, timing: Timing, restored: Restored, seed: u64, now: Instant) -> Self {
        unimplemented!()
    }
    /// Takes one input in.
    pub fn handle(&mut self, now: Instant, input: Input) {
        unimplemented!()
    }
    /// The next effect; drain after every call.
    pub fn poll_output(&mut self) -> Option<Output> {
        unimplemented!()
    }
    /// When to call `handle(Tick)` at the latest.
    pub fn poll_timeout(&self) -> Instant {
        unimplemented!()
    }
    /// Appends a command, as leader.
    pub fn propose(&mut self, now: Instant, command: Bytes) -> Result<LogId, Refused> {
        unimplemented!()
    }
    /// Asks for a permit by quorum round (or, if `lease_allowed`, at once under the lease).
    pub fn read(&mut self, now: Instant, id: ReadId, lease_allowed: bool) -> Result<(), Refused> {
        unimplemented!()
    }
    /// Hands leadership to `target`, or to the most up to date voter.
    pub fn transfer(&mut self, now: Instant, target: Option<NodeId>) -> Result<NodeId, Refused> {
        unimplemented!()
    }
    /// Steps down and releases the voters' promises (P36). The node takes no further part as
    /// leader or candidate.
    pub fn retire(&mut self, now: Instant) {
        unimplemented!()
    }
    /// How it stands.
    pub fn status(&self) -> Status {
        unimplemented!()
    }
    /// What other threads may look at.
    pub fn published(&self) -> Arc<Published> {
        unimplemented!()
    }
    /// The configuration in force.
    pub fn configuration(&self) -> &Configuration {
        unimplemented!()
    }
}
