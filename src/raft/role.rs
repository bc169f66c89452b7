//! The roles of a node, and the state that ends with each.
//!
//! State that must outlive a role (term, vote, log, and the promise to support no election) is in
//! [`Consensus`](super::Consensus) itself.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use crate::raft::digest::Digest;
use crate::raft::leader_lease::LeaderLease;
use crate::raft::progress::Progress;
use crate::raft::read_lease::Grants;
use crate::raft::reads::Reads;
use crate::raft::{Conflict, Heard, RoundId};
use crate::time::Instant;
use crate::types::{LogId, LogIndex, NodeId, Term};

/// A node's role and what belongs to it.
#[derive(Clone, Debug)]
pub(super) enum RoleState {
    /// Follows a leader, or waits for one.
    Follower(Follower),
    /// Asks whether it could win an election.
    PreCandidate(Campaign),
    /// Stands for election.
    Candidate(Campaign),
    /// Leads.
    Leader(Box<Leader>),
}

/// What a follower knows of its leader, and owes it.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Follower {
    /// The leader of this term, where known.
    pub(super) leader: Option<NodeId>,
    /// The newest round heard from it, and whether it was promised.
    pub(super) heard: Heard,
    /// Our log is known to be the leader's up to here.
    pub(super) verified: LogIndex,
    /// The highest commit index that the leader has sent.
    pub(super) leader_commit: LogIndex,
    /// How far we have acknowledged.
    pub(super) acknowledged: LogIndex,
    /// An answer to a heartbeat is due.
    pub(super) owes_reply: bool,
    /// An acknowledgement is due once the log is durable up to here.
    pub(super) owes_acknowledgement: Option<LogIndex>,
    /// An append did not fit; the reply must say where the logs diverge.
    pub(super) owes_conflict: Option<Conflict>,
}

/// One attempt to be elected.
#[derive(Clone, Debug)]
pub(super) struct Campaign {
    /// Names the question that was put to the voters.
    pub(super) round: RoundId,
    /// When it was put.
    pub(super) created: Instant,
    /// The voters that granted it. Our own vote enters once it is durable.
    pub(super) granted: BTreeSet<NodeId>,
    /// The voters that promised, too (H1).
    pub(super) promised: BTreeSet<NodeId>,
    /// The term whose leader handed over to us, while the promises that come with its voters' votes
    /// bear a lease.
    pub(super) transfer_from: Option<Term>,
}

/// What a leader knows and does.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    /// Every other member, and those on their way out.
    pub(super) peers: BTreeMap<NodeId, Progress>,
    /// Removed peers that are still being notified, and since when.
    pub(super) leaving: BTreeMap<NodeId, Instant>,
    /// The lease of this leadership.
    pub(super) lease: LeaderLease,
    /// The read leases that it has granted.
    pub(super) grants: Grants,
    /// The last entry of the log when it was elected: nothing before it is in doubt once applied.
    pub(super) last_at_election: LogIndex,
    /// Reads that wait for a round.
    pub(super) reads: Reads,
    /// Leadership is being handed over.
    pub(super) transfer: Option<Transfer>,
    /// When the next round is due.
    pub(super) heartbeat_due: Instant,
    /// A round was created and must be made known.
    pub(super) announce: bool,
    /// Weight of this leadership's entries that are not yet committed.
    pub(super) uncommitted_bytes: usize,
}

/// A leadership transfer in progress.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    /// The target; this node itself, to begin a term with a lease after a transfer failed.
    pub(super) target: NodeId,
    /// Given up at this instant.
    pub(super) until: Instant,
    /// It does not wait until all is applied here: nothing can be.
    pub(super) even_unapplied: bool,
    /// `TimeoutNow` was sent, with this as our last entry.
    pub(super) told: Option<LogId>,
}

// The fields of a role that future behaviour depends on.

impl RoleState {
    pub(super) fn digest(&self, digest: &mut Digest) {
        digest.value(&mem::discriminant(self));
        match self {
            Self::Follower(follower) => digest.value(follower),
            Self::PreCandidate(campaign) | Self::Candidate(campaign) => campaign.digest(digest),
            Self::Leader(leader) => leader.digest(digest),
        }
    }
}

impl Campaign {
    pub(super) fn digest(&self, digest: &mut Digest) {
        let Self {
            round,
            created,
            granted,
            promised,
            transfer_from,
        } = self;
        digest.since(*created);
        digest.value(&(round, granted, promised, transfer_from));
    }
}

impl Leader {
    fn digest(&self, digest: &mut Digest) {
        let Self {
            peers,
            leaving,
            lease,
            grants,
            last_at_election,
            reads,
            transfer,
            heartbeat_due,
            announce,
            uncommitted_bytes,
        } = self;
        for (peer, progress) in peers {
            digest.value(peer);
            progress.digest(digest);
        }
        for (peer, since) in leaving {
            digest.value(peer);
            digest.since(*since);
        }
        lease.digest(digest);
        grants.digest(digest);
        digest.value(&(last_at_election, reads, announce, uncommitted_bytes));
        digest.deadline(*heartbeat_due);
        digest.value(&transfer.is_some());
        if let Some(transfer) = transfer {
            let Transfer {
                target,
                until,
                even_unapplied,
                told,
            } = transfer;
            digest.value(&(target, even_unapplied, told));
            digest.deadline(*until);
        }
    }
}
