//! The status of a node, as reported by itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::MemberInfo;
use crate::types::{LogIndex, Role};

/// The warning in the status of a node that was taken out of service.
pub const DRAINED: &str =
    "drained: this node replicates and votes, but serves no requests until it is restarted";

/// The status of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusResponse {
    /// The node's name.
    pub name: String,
    /// The version of the binary.
    pub version: String,
    /// Its Raft role.
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
    /// Conditions that an operator must know about, as sentences; empty if there are none.
    pub warnings: Vec<String>,
    /// The state of compaction.
    pub history: HistoryStatus,
    /// The space quota.
    pub quota: QuotaStatus,
    /// Counts of the reads it has served since it started.
    pub reads: ReadCounts,
    /// The cluster version, as known to the node.
    pub cluster_version: u16,
}

impl StatusResponse {
    /// Whether the node was taken out of service.
    pub fn is_drained(&self) -> bool {
        self.warnings.iter().any(|warning| warning == DRAINED)
    }
}

/// The space quota of a node, and whether the alarm is raised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaStatus {
    /// The configured quota of this node, in bytes; 0 while it has not been checked.
    pub bytes: u64,
    /// The alarm is raised: the cluster refuses puts and lease grants.
    pub no_space: bool,
}

/// Counts of reads, by authority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadCounts {
    /// Under the leader's lease.
    pub lease: u64,
    /// After a quorum had confirmed the leader.
    pub read_index: u64,
    /// At a follower, with a read index from the leader.
    pub follower: u64,
    /// Local reads, possibly stale.
    pub serializable: u64,
    /// Under a read lease that the node held of its leader.
    pub read_lease: u64,
}

/// The compacted history of a node, and how much of it is removed from disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryStatus {
    /// The oldest revision that can be read; 0 before the first compaction.
    pub compact_revision: i64,
    /// The history of compactions up to this revision has been removed from this node, and the disk
    /// space reclaimed where a compaction requested it.
    pub removed_through: i64,
}

/// The leader lease of the node that was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderLeaseStatus {
    /// The lease is valid: the node may serve linearizable reads without a quorum round.
    pub is_valid: bool,
    /// Its remaining time, safety margin subtracted.
    pub remaining: Duration,
    /// What voters promise.
    pub lease_duration: Duration,
    /// The margin kept against clock drift.
    pub max_clock_skew: Duration,
    /// Renewals since the node started.
    pub renewals: u64,
    /// Expirations since the node started.
    pub expirations: u64,
    /// Reads it refused since the node started.
    pub rejections: u64,
}
