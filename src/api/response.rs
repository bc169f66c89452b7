//! What a node answers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    AlarmsResponse, AuthResponse, DeleteRangeResponse, LeaderLeaseReport, LeaseGrantResponse,
    LeaseInfo, LeaseKept, LeaseListResponse, LeaseRef, LeaseRevokeResponse, MembersResponse,
    PutResponse, PutWithNewLeaseResponse, RangePage, RangeResponse, SnapshotReply, StatusResponse,
    TxnResponse,
};
use crate::types::{LogIndex, NodeId, SessionId, Term};

/// A successful reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// Which member answered, and how.
    pub header: ResponseHeader,
    /// What was answered.
    pub body: ResponseBody,
}

/// Which member answered, at which revision, and how a read was served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseHeader {
    /// First 64 bits of the cluster id.
    pub cluster_id: u64,
    /// The member that answered.
    pub member_id: NodeId,
    /// For a read, the revision of the snapshot it was served from; for a write, its own revision.
    pub revision: i64,
    /// The Raft term the member was in.
    pub raft_term: Term,
    /// The leader, as known to that member.
    pub leader_id: Option<NodeId>,
    /// How a read was served; `None` for writes.
    pub read: Option<ReadInfo>,
}

/// How a read was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadInfo {
    /// The authority of the read.
    pub path: ReadPath,
    /// The remaining time of the leader lease when it validated the read, safety margin subtracted;
    /// zero if no lease was involved.
    pub lease_remaining: Duration,
    /// The margin the lease keeps against clock drift.
    pub lease_margin: Duration,
    /// The lowest log index that the read had to see.
    pub read_index: LogIndex,
    /// A log index that the snapshot it was served from contains.
    pub applied_index: LogIndex,
    /// Where `path` is [`ReadPath::Serializable`]: the snapshot contains everything acknowledged to
    /// any client longer than this before the read was served. `None` if nothing can be proved, and
    /// for other paths, which are never stale.
    pub staleness: Option<Duration>,
}

/// The authority on which a read was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReadPath {
    /// The leader lease: no message, no wait.
    Lease,
    /// A quorum round of the leader, started after the read arrived.
    ReadIndex,
    /// None: the node's local state, possibly stale.
    Serializable,
    /// A read index that the serving follower requested from the leader after the read had arrived:
    /// one round trip between the two, plus the leader's lease or quorum round.
    Follower,
    /// The read lease that the serving member holds of the leader: no message, no wait.
    ReadLease,
}

impl ReadPath {
    /// The name used in output and metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::ReadIndex => "read_index",
            Self::Serializable => "serializable",
            Self::Follower => "follower",
            Self::ReadLease => "read_lease",
        }
    }
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResponseBody {
    /// To [`Request::Range`](super::Request::Range).
    Range(RangeResponse),
    /// To [`Request::Put`](super::Request::Put).
    Put(PutResponse),
    /// To [`Request::DeleteRange`](super::Request::DeleteRange).
    DeleteRange(DeleteRangeResponse),
    /// To [`Request::OpenSession`](super::Request::OpenSession).
    OpenSession {
        /// The new session.
        id: SessionId,
    },
    /// To [`Request::Status`](super::Request::Status).
    Status(Box<StatusResponse>),
    /// To [`Request::MoveLeader`](super::Request::MoveLeader).
    MoveLeader,
    /// To [`Request::Compact`](super::Request::Compact).
    Compact,
    /// To [`Request::LeaderLeaseReport`](super::Request::LeaderLeaseReport).
    LeaderLeaseReport(Box<LeaderLeaseReport>),
    /// To [`Request::Txn`](super::Request::Txn).
    Txn(TxnResponse),
    /// To [`Request::LeaseGrant`](super::Request::LeaseGrant).
    LeaseGrant(LeaseGrantResponse),
    /// To [`Request::LeaseRevoke`](super::Request::LeaseRevoke).
    LeaseRevoke(LeaseRevokeResponse),
    /// To [`Request::LeaseKeepAlive`](super::Request::LeaseKeepAlive): the result for each lease, in the order of the request.
    LeaseKeepAlive(Vec<LeaseKept>),
    /// To [`Request::LeaseTimeToLive`](super::Request::LeaseTimeToLive).
    LeaseTimeToLive(Box<LeaseInfo>),
    /// To [`Request::LeaseList`](super::Request::LeaseList).
    LeaseList(LeaseListResponse),
    /// To [`Request::LeaseUpdateTtl`](super::Request::LeaseUpdateTtl).
    LeaseUpdateTtl {
        /// The current TTL, in milliseconds.
        ttl_ms: u64,
    },
    /// To [`Request::PutWithNewLease`](super::Request::PutWithNewLease).
    PutWithNewLease(Box<PutWithNewLeaseResponse>),
    /// To [`Request::RangePage`](super::Request::RangePage).
    RangePage(RangePage),
    /// To [`Request::Watch`](super::Request::Watch): the watch is open. A watch from now on starts after the header's
    /// revision.
    Watch,
    /// To [`Request::WatchCancel`](super::Request::WatchCancel): the watch was cancelled. Events sent before may still arrive.
    WatchCancel,
    /// To [`Request::WatchProgress`](super::Request::WatchProgress): the notification will be sent.
    WatchProgress,
    /// To [`Request::Snapshot`](super::Request::Snapshot).
    Snapshot(SnapshotReply),
    /// To [`Request::MemberList`](super::Request::MemberList), and to every change of members once it is complete.
    Members(Box<MembersResponse>),
    /// To [`Request::Auth`](super::Request::Auth).
    Auth(AuthResponse),
    /// To [`Request::AlarmList`](super::Request::AlarmList), and to [`Request::AlarmSet`](super::Request::AlarmSet), which names what it touched.
    Alarms(AlarmsResponse),
    /// To [`Request::ForwardToLeader`](super::Request::ForwardToLeader).
    ForwardToLeader,
    /// To [`Request::LeaseNamed`](super::Request::LeaseNamed).
    LeaseNamed(LeaseRef),
}
