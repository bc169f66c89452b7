//! How a node is, as it tells it itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::MemberInfo;
use crate::types::{LogIndex, Role};

/// How a node is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusResponse {
    /// The node's name.
    pub name: String,
    /// The version of the binary.
    pub version: String,
    /// What it is doing.
    pub role: Role,
    /// Last index in its log.
    pub last_index: LogIndex,
    /// Highest index it knows to be committed.
    pub commit_index: LogIndex,
    /// Highest index it has applied.
    pub applied_index: LogIndex,
    /// Bytes of state on disk.
    pub storage_bytes: u64,
    /// The leader lease, as this node sees it.
    pub leader_lease: LeaderLeaseStatus,
    /// The members of the cluster, with the client address of each where this node knows it.
    pub members: Vec<MemberInfo>,
    /// Conditions an operator must know of, as sentences; empty when all is well.
    pub warnings: Vec<String>,
    /// What history the node keeps.
    pub history: HistoryStatus,
    /// How large the state may become.
    pub quota: QuotaStatus,
    /// How many reads it has served since it started.
    pub reads: ReadCounts,
    /// The version that the cluster has agreed on, as far as the node knows.
    pub cluster_version: u16,
}

/// How large the state of a node may become, and whether it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaStatus {
    /// By the configuration of this node, in bytes; 0 while it has not been looked at.
    pub bytes: u64,
    /// The alarm is raised: nothing is written or granted in the cluster.
    pub no_space: bool,
}

/// How many reads a node has served, by the authority that they were served on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadCounts {
    /// Under the leader's lease.
    pub lease: u64,
    /// After a quorum had confirmed the leader.
    pub read_index: u64,
    /// At a follower, on the word of the leader.
    pub follower: u64,
    /// On nobody's word: they may be old.
    pub serializable: u64,
}

/// What history a node keeps, and what is already gone from its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryStatus {
    /// The oldest revision that can be read; 0 while nothing was ever compacted.
    pub compact_revision: i64,
    /// Everything that compactions up to this revision gave up is removed from this node, and where
    /// a compaction asked for it, the space is given back.
    pub removed_through: i64,
}

/// The leader lease of the node that was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderLeaseStatus {
    /// It may answer linearizable reads alone right now.
    pub is_valid: bool,
    /// What is left, margin taken off.
    pub remaining: Duration,
    /// What voters promise.
    pub lease_duration: Duration,
    /// The margin kept against clock drift.
    pub max_clock_skew: Duration,
    /// Renewals since the node started.
    pub renewals: u64,
    /// Times it lapsed since the node started.
    pub expirations: u64,
    /// Reads it refused since the node started.
    pub rejections: u64,
}
