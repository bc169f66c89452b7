//! What can be proposed to a leader besides commands, and why a proposal is refused.

use bytes::Bytes;

use crate::types::NodeId;

/// The largest command that fits a message to a peer.
pub const COMMAND_BYTES_MAX: usize = (2 << 20) - (64 << 10);

/// A change of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new member, as a learner at first.
    Add {
        /// The member. An identity that was removed must not come back: it has promised and voted.
        member: NodeId,
        /// What the shell keeps about it.
        details: Bytes,
        /// What it becomes.
        role: JoinRole,
    },
    /// A learner that has caught up becomes a voter.
    Promote(NodeId),
    /// A member is none any more.
    Remove(NodeId),
    /// What the shell keeps about a member is something else now.
    Update {
        /// The member.
        member: NodeId,
        /// What is kept.
        details: Bytes,
    },
}

/// What a new member becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinRole {
    /// A learner, until it is promoted by a change.
    Learner,
    /// A voter, as soon as it has caught up.
    Voter,
    /// A voter, as soon as it has caught up, in the step in which this voter is removed.
    InPlaceOf(NodeId),
}

/// Why members may not be changed like that, or not now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipError {
    /// Another change is not complete yet.
    InProgress,
    /// This leader has not committed an entry of its own term yet.
    NotSettled,
    /// It is a member already.
    Member,
    /// It is no member.
    NoMember,
    /// It is no voter.
    NoVoter,
    /// It is no learner.
    NoLearner,
    /// No voter would be left.
    LastVoter,
    /// The learner lacks so many entries; `None` while it has not acknowledged anything.
    Behind(Option<u64>),
    /// Of the voters that there would be, too few answer.
    Unreachable {
        /// How many do.
        reachable: usize,
        /// How many must.
        needed: usize,
    },
    /// There would be more members than there may be.
    TooMany,
    /// The details of a member are too long.
    TooLarge,
}

/// Why a proposal, read or transfer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposalError {
    /// This node does not lead.
    NotLeader {
        /// The leader, where known.
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
