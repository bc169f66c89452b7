//! Consensus over opaque bytes: Raft, and a leader lease that makes reads local.
//!
//! [`Consensus`] is one replica as a pure value: it takes time and messages in
//! ([`Consensus::handle`]) and gives effects out ([`Consensus::poll_output`]). There is no clock, no
//! socket, no disk and no randomness inside that was not handed in, so the simulator and the server
//! run the same code, and every schedule that ever broke a lease can be played back to it: the
//! conversations in `testdata/` are named by what they claim.
//!
//! The rules are those of Raft (Ongaro's thesis, with pre-vote, joint configurations and leadership
//! transfer), and those of docs/protocol.md, whose names (P1 to P39, A1 to A24, N1 to N9) stand
//! beside the code that keeps them:
//!
//! - A voter that hears its leader promises to help nobody else to be elected for a while. The
//!   promise is a field of its own: no term, role or message ends it, only time, or the word of the
//!   leader that it was made to.
//! - A leader counts its lease from the moment at which it *created* the round that a quorum
//!   echoed, and stops trusting it before any of the promises can end.
//! - Whatever ends a lease zeroes the shared cell first, and is done or said afterwards.
//! - What is not durable is not told: votes, acknowledgements, and promises longer than any before
//!   wait inside for [`Input::Persisted`]. So a driver can not send too early.
//!
//! A log may be cut at its beginning once the state machine holds that durably
//! ([`Input::Compact`]). A follower that needs what is gone is sent a whole state instead
//! ([`Output::SendSnapshot`]), by whatever way the shell has; heartbeats go on meanwhile, so it goes
//! on promising. What arrives there takes the place of its log and its state machine in one step
//! ([`Output::Install`]); see `snapshot.rs`.
//!
//! Members change by joint configurations ([`Consensus::change`]; see `membership.rs`), which are in
//! force from their append on, for commitment, elections and the lease alike.
//!
//! Caveats. Nothing here can notice that a machine's two clocks both lie; the tripwire can only tell
//! afterwards (P37).

mod bounded;
mod config;
mod consensus;
mod digest;
mod election;
mod follower;
mod leader;
mod leader_lease;
mod log;
mod membership;
mod message;
mod output;
mod progress;
mod quorum;
mod read_index;
mod reads;
mod role;
mod snapshot;
mod staleness;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(crate) use bounded::bounded;
pub use config::{PROMISE_MAX, Timing, TimingError, TimingOptions};
pub use consensus::{COMMAND_BYTES_MAX, Consensus};
pub(crate) use leader_lease::LeaderLease;
pub use leader_lease::{Invalidation, LeaseCell, LeaseCounters, ReadPermit};
pub use membership::{Change, Joining, MembershipError};
pub use message::{
    APPEND_WEIGHT_MAX, Append, Appended, Ballot, Confirmed, Conflict, Envelope, Heard, Heartbeat,
    HeartbeatReply, Message, PreVote, PreVoteReply, ReadIndex, ReadIndexReply, Reason, Rejoin,
    RejoinReply, RoundId, StateHash, TimeoutNow, Verdict, Vote, VoteReply,
};
pub use output::{
    Entry, HardState, Input, LogBase, Output, Payload, ReadId, ReadMode, ReadRefusal, Ticket,
    Unsaved,
};
pub use quorum::{Configuration, DETAILS_BYTES_MAX, MEMBERS_MAX};
pub use staleness::{Staleness, StalenessBound};

use crate::sync::{AtomicU8, AtomicU64, Count, Ordering, Slot};
use crate::types::{LogId, LogIndex, NodeId, Role, Term};

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
    /// How far the state machine has applied; entries after it are handed out again. Before `base`
    /// if the state machine was lost: then this replica serves and leads nothing until it has been
    /// sent a state (decision 8), while its votes, which rest on its log, count.
    pub applied: LogIndex,
    /// The log is damaged: neither vote nor campaign (A23).
    pub quarantined: bool,
    /// The data directory was empty, and this node has not shown since that it takes part in the
    /// bootstrap of its cluster: it may be a member that lost everything. See
    /// [`Consensus::is_unproven`].
    pub unproven: bool,
    /// The tripwire has gone off and no operator has cleared it: no leased reads (P37).
    pub lease_tripped: bool,
}

/// What consensus publishes for other threads, written inside `handle` before it returns.
#[derive(Debug, Default)]
pub struct Published {
    commit: AtomicU64,
    term: AtomicU64,
    /// 0 for nobody.
    leader: AtomicU64,
    role: AtomicU8,
    lease: Slot<LeaseCell>,
    staleness: Slot<Staleness>,
    lease_counters: Arc<LeaseCounters>,
    messages_refused: Count,
    lost_logs: Count,
}

impl Published {
    /// Highest committed index.
    pub fn commit(&self) -> LogIndex {
        LogIndex(self.commit.load(Ordering::Acquire))
    }

    /// The current leadership's lease; `None` when not leading. Load it anew for every batch (A1).
    pub fn lease(&self) -> Option<Arc<LeaseCell>> {
        self.lease.load_full()
    }

    /// What is known of how old this node's applied state can be; `None` while nothing is. Load it
    /// before the store is read.
    pub fn staleness(&self) -> Option<Arc<Staleness>> {
        self.staleness.load_full()
    }

    /// The node's term.
    pub fn term(&self) -> Term {
        Term(self.term.load(Ordering::Acquire))
    }

    /// Whom the node believes to lead.
    pub fn leader(&self) -> Option<NodeId> {
        let id = self.leader.load(Ordering::Acquire);
        (id != 0).then_some(NodeId(id))
    }

    /// The node's role.
    pub fn role(&self) -> Role {
        let role = usize::from(self.role.load(Ordering::Acquire));
        ROLES.get(role).copied().unwrap_or_default()
    }

    /// What happened to this node's leader leases since it started.
    pub fn lease_counters(&self) -> &Arc<LeaseCounters> {
        &self.lease_counters
    }

    /// Messages that no correct peer can have sent, and that changed nothing.
    pub fn messages_refused(&self) -> u64 {
        self.messages_refused.load(Ordering::Relaxed)
    }

    /// As leader: how often a follower turned out to lack what it had acknowledged.
    pub fn lost_logs(&self) -> u64 {
        self.lost_logs.load(Ordering::Relaxed)
    }

    /// The same, for a copy of its replica. Counts are shared: nothing is decided by them.
    fn fork(&self) -> Self {
        Self {
            commit: AtomicU64::new(self.commit.load(Ordering::Acquire)),
            term: AtomicU64::new(self.term.load(Ordering::Acquire)),
            leader: AtomicU64::new(self.leader.load(Ordering::Acquire)),
            role: AtomicU8::new(self.role.load(Ordering::Acquire)),
            lease: Slot::new(self.lease.load_full()),
            staleness: Slot::new(self.staleness.load_full()),
            lease_counters: self.lease_counters.clone(),
            messages_refused: Count::new(self.messages_refused()),
            lost_logs: Count::new(self.lost_logs()),
        }
    }

    fn count_lost_log(&self) {
        self.lost_logs.fetch_add(1, Ordering::Relaxed);
    }

    fn begin_lease(&self, cell: Arc<LeaseCell>) {
        self.lease.store(Some(cell));
    }

    fn end_lease(&self) {
        self.lease.store(None);
    }

    fn refuse_message(&self) {
        self.messages_refused.fetch_add(1, Ordering::Relaxed);
    }

    fn update(&self, commit: LogIndex, term: Term, role: Role, leader: Option<NodeId>) {
        let role = ROLES.iter().position(|known| *known == role);
        let role = role.and_then(|role| u8::try_from(role).ok()).unwrap_or(0);
        self.term.store(term.0, Ordering::Release);
        self.role.store(role, Ordering::Release);
        let leader = leader.map_or(0, |leader| leader.0);
        self.leader.store(leader, Ordering::Release);
        self.commit.store(commit.0, Ordering::Release);
    }
}

/// Roles by the number that stands for them in an atomic.
const ROLES: [Role; 6] = [
    Role::Follower,
    Role::PreCandidate,
    Role::Candidate,
    Role::Leader,
    Role::Learner,
    Role::Quarantined,
];

/// Why a proposal, read or transfer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposalError {
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
    /// Members may not be changed like that, or not now.
    Membership(MembershipError),
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
