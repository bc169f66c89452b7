//! The state of a node as one value: observers compare two of them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::corruption_checker::StateCheck;
use super::proposal_counts::Proposals;
use crate::raft;
use crate::raft::Configuration;
use crate::time::Instant;
use crate::types::{BootstrapId, LogIndex, NodeId, Term};

/// The state of a node. Made once per turn, so it copies numbers and shares the rest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// How consensus stands.
    pub status: raft::Status,
    /// As leader: when its lease ends; `None` while it has none.
    pub lease_until: Option<Instant>,
    /// Counters of client writes.
    pub proposals: Proposals,
    /// The client leases.
    pub leases: LeaseTotals,
    /// The members.
    pub members: MembersInForce,
    /// The result of comparing states with other nodes.
    pub state_check: StateCheck,
    /// How many comparisons agreed.
    pub checks_agreed: u64,
    /// How long the disk has been silent, if longer than a promise lasts.
    pub disk_silent: Option<Duration>,
    /// How often a clock of this machine ran backwards (A4).
    pub clock_regressions: u64,
    /// An assumption that leases rest on was seen to fail (P37).
    pub lease_tripped: bool,
    /// It may have lost acknowledged entries, and has not recovered them.
    pub is_unproven: bool,
    /// The cluster is not bootstrapped, and these did not vote when this node last tried.
    pub bootstrap_awaits: BTreeSet<NodeId>,
    /// Which bootstrap of its cluster it comes from, if it knows.
    pub bootstrap: Option<BootstrapId>,
    /// Its removal is committed, and it does not lead.
    pub is_removed: bool,
    /// The version that the cluster has agreed on, by the committed entries that this node knows.
    pub cluster_version: u16,
}

/// The client leases of a node, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseTotals {
    /// How many there are.
    pub leases: usize,
    /// How many keys are attached to them.
    pub keys: u64,
    /// How many are due and not ended yet; 0 elsewhere than on the leader.
    pub expiring: usize,
}

/// The configuration in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembersInForce {
    /// Its log index.
    pub index: LogIndex,
    /// It is known to be committed.
    pub is_committed: bool,
    /// The configuration.
    pub configuration: Arc<Configuration>,
}

/// The configuration that was shared last, with its index and the term then: in another term another
/// configuration may have the same index.
#[derive(Debug, Default)]
pub(super) struct SharedConfiguration {
    pub(super) index_and_term: Option<(LogIndex, Term)>,
    pub(super) configuration: Arc<Configuration>,
}
