//! How a node stands, as one value: whoever watches it compares two of them.

use std::sync::Arc;
use std::time::Duration;

use super::corruption_checker::StateCheck;
use super::proposal_counts::Proposals;
use crate::raft;
use crate::raft::Configuration;
use crate::time::Instant;
use crate::types::{LogIndex, Term};

/// A node after some input. Made once a turn, so it copies numbers and shares the rest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// How consensus stands.
    pub status: raft::Status,
    /// As leader: when its lease ends by what it knows; nothing while it has none.
    pub lease_until: Option<Instant>,
    /// What became of the writes of clients.
    pub proposals: Proposals,
    /// The client leases.
    pub leases: LeaseTotals,
    /// The members.
    pub members: MembersInForce,
    /// What the comparison of states with other nodes has shown.
    pub state_check: StateCheck,
    /// How many comparisons agreed.
    pub checks_agreed: u64,
    /// For how long the disk has owed an answer, if that is longer than a promise lasts.
    pub disk_silent: Option<Duration>,
    /// How often a clock of this machine ran backwards (A4).
    pub clock_regressions: u64,
    /// An assumption that leases rest on was seen to fail (P37).
    pub lease_tripped: bool,
    /// It may have forgotten what it acknowledged, and has not got it back.
    pub is_unproven: bool,
    /// It is committed that this node is no member any more, and it does not lead.
    pub is_removed: bool,
    /// What the cluster is, by all that is committed as far as this node knows.
    pub cluster_version: u16,
}

/// The client leases of a node, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseTotals {
    /// How many there are.
    pub leases: usize,
    /// How many keys hang on them.
    pub keys: u64,
    /// How many are due and not gone yet; none off the leader.
    pub expiring: usize,
}

/// The configuration in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembersInForce {
    /// Where it stands in the log.
    pub index: LogIndex,
    /// It is known to be committed.
    pub is_committed: bool,
    /// It.
    pub configuration: Arc<Configuration>,
}

/// The configuration as it was shared last, and where and in which term that was: another term may
/// have put another one at the same place.
#[derive(Debug, Default)]
pub(super) struct SharedConfiguration {
    pub(super) place: Option<(LogIndex, Term)>,
    pub(super) configuration: Arc<Configuration>,
}
