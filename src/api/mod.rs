//! The contract between a client and a node: requests, replies and errors.
//!
//! It is the only module that both sides share. Names follow etcd where it has one. `wire` frames
//! the messages; nothing here knows bytes, streams or log entries.
//!
//! Compatibility: these types are encoded with postcard, which is not self-describing. Enum
//! variants are only ever appended, and a struct that must grow gets a new variant of the request
//! or reply that holds it.

mod attempts;
mod auth;
mod cursor;
mod error;
mod fence;
mod key;
mod lease;
mod lease_report;
mod limits;
mod member;
mod nested;
mod snapshot;
mod spec;
mod status;
mod txn;
mod watch;

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::types::{LogIndex, NodeId, SessionId, Term};

pub use self::attempts::Attempts;
pub use self::auth::{
    AuthRequest, AuthResponse, AuthStatus, PASSWORD_BYTES_MAX, Password, Permission,
    PermissionKind, ROOT, RoleInfo, Secret, UserInfo,
};
pub use self::cursor::{WatchCursor, WatchEnd, WatchEvent};
pub use self::error::{Error, ErrorKind, Outcome};
pub use self::fence::{Fence, last_ahead_of};
pub use self::key::{
    CompactionRequest, DeleteRangeRequest, DeleteRangeResponse, KeyRange, KeyValue, PutRequest,
    PutResponse, RangePage, RangeRequest, RangeResponse, SortOrder, SortTarget, successor,
};
pub use self::lease::{
    KEEP_ALIVE_LEASES_MAX, LEASE_NAME_BYTES_MAX, LEASE_PAGE_MAX, LeaseGrantRequest,
    LeaseGrantResponse, LeaseInfo, LeaseKept, LeaseListRequest, LeaseListResponse, LeaseRef,
    LeaseRevokeResponse, LeaseTarget, PutWithNewLeaseResponse,
};
pub use self::lease_report::{ClockReading, Distribution, LeaderLeaseReport, LeaseTiming};
pub use self::limits::{Limits, validate};
pub use self::member::{
    ClusterInfo, Member, MemberAddRequest, MemberDetails, MemberInfo, MemberUpdateRequest,
    MembersResponse, Membership,
};
pub use self::snapshot::{SnapshotCall, SnapshotReply};
pub use self::spec::{Class, Needs, RequestKind, Safety, Spec};
pub use self::status::{HistoryStatus, LeaderLeaseStatus, QuotaStatus, ReadCounts, StatusResponse};
pub use self::txn::{
    CasResult, Compare, CompareOp, CompareTarget, TXN_DEPTH_MAX, TXN_PARTS_MAX, TxnOp,
    TxnOpResponse, TxnRequest, TxnResponse,
};
pub use self::watch::{Event, EventKind, WatchMessage, WatchRequest};

/// One request with everything a server needs to decide whether and how to serve it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The remaining time of the caller, in milliseconds from when it sent this.
    pub timeout_ms: u32,
    /// The consistency of a read. Ignored by writes.
    pub consistency: Consistency,
    /// The least revision a read may be served at, as an earlier reply gave it; 0 for any. A node
    /// that has not applied it waits until it has, and just before the deadline refuses the read
    /// with [`ErrorKind::FutureRevision`]. No clock is involved, so a caller that passes the newest
    /// revision it has seen never sees an older state. Ignored by writes.
    pub min_revision: i64,
    /// The session and number of this write, if it is to be applied exactly once.
    pub session: Option<SessionCall>,
    /// What is asked.
    pub request: Request,
}

/// A write's session and number, by which a retry is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCall {
    /// The session.
    pub id: SessionId,
    /// This write's number in it; numbers start at 1 and are never reused for another write.
    pub sequence: u64,
    /// The client has received the replies of all writes up to and including this number and will
    /// not retry them: the server may forget these replies.
    pub acknowledged: u64,
}

/// The consistency of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Consistency {
    /// Linearizable: sees every write acknowledged before the read began. Served under the leader
    /// lease if it is valid, else after one quorum round.
    #[default]
    Linearizable,
    /// As above, always by a quorum round: independent of clocks.
    LinearizableQuorum,
    /// As above, only under the lease: refused with [`ErrorKind::LeaseInvalid`] if it is not valid.
    LeaseOnly,
    /// The local state of the node; may be stale.
    Serializable,
    /// Bounded staleness: a state that contains everything acknowledged to any client longer than
    /// this before the request arrived. The node answers from its local state, without a message,
    /// if its own clocks prove that the state is recent enough; else as [`Self::Linearizable`].
    MaxStaleness(Duration),
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Read one key or a range of keys.
    Range(RangeRequest),
    /// Write one key.
    Put(PutRequest),
    /// Delete one key or a range of keys.
    DeleteRange(DeleteRangeRequest),
    /// Open a session for exactly-once writes.
    OpenSession,
    /// The status of this node; answered by any node from local knowledge.
    Status,
    /// Transfer leadership to another voter; answered by the leader once it has stepped down.
    MoveLeader {
        /// The new leader; `None` lets the leader choose the most up-to-date voter.
        target: Option<NodeId>,
    },
    /// Compact history.
    Compact(CompactionRequest),
    /// The leader lease report of this node; answered by any node.
    LeaderLeaseReport,
    /// Run a transaction.
    Txn(TxnRequest),
    /// Grant a client lease.
    LeaseGrant(LeaseGrantRequest),
    /// Revoke a client lease and delete its keys.
    LeaseRevoke(LeaseRef),
    /// Renew client leases; answered by the leader, without a log entry.
    LeaseKeepAlive(Vec<LeaseRef>),
    /// The status of a client lease.
    LeaseTimeToLive {
        /// Its id.
        id: i64,
        /// Also return the attached keys.
        keys: bool,
    },
    /// List client leases.
    LeaseList(LeaseListRequest),
    /// Change the TTL of a client lease. It applies from the next renewal on; time that has been
    /// promised already is never taken back (A13).
    LeaseUpdateTtl {
        /// Which.
        lease: LeaseRef,
        /// The new TTL in milliseconds, by the rules of a grant.
        ttl_ms: i64,
    },
    /// Grant a client lease and attach a key to it, in one step.
    PutWithNewLease(LeaseGrantRequest, PutRequest),
    /// Read as much of a range as fits one reply, in key order, with the start of the rest: so a
    /// range of any size can be read at one revision, at the reader's pace. Nothing is sorted or
    /// counted.
    RangePage(RangeRequest),
    /// Watch keys. Served by any node from its applied state; changes arrive as [`WatchMessage`]s
    /// on a one-way stream that the server opens.
    Watch {
        /// The watch id, chosen by the client; unique among the open watches of a connection.
        watch_id: u64,
        /// What to watch.
        watch: WatchRequest,
    },
    /// Cancel a watch of this connection.
    WatchCancel {
        /// Which.
        watch_id: u64,
    },
    /// Request a progress notification ([`WatchMessage::Progress`]) of a watch of this connection,
    /// sent once all earlier events have been sent.
    WatchProgress {
        /// Which.
        watch_id: u64,
    },
    /// A snapshot of the whole state, chunk by chunk.
    Snapshot(SnapshotCall),
    /// List the members; a read like any other.
    MemberList,
    /// Add a member, or replace one.
    MemberAdd(MemberAddRequest),
    /// Remove a member.
    MemberRemove {
        /// Which.
        id: NodeId,
    },
    /// Promote a learner that has caught up.
    MemberPromote {
        /// Which.
        id: NodeId,
    },
    /// Change the addresses of a member.
    MemberUpdate(MemberUpdateRequest),
    /// A request about users, roles or access control.
    Auth(AuthRequest),
}

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
}

impl ReadPath {
    /// The name used in output and metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::ReadIndex => "read_index",
            Self::Serializable => "serializable",
            Self::Follower => "follower",
        }
    }
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResponseBody {
    /// To [`Request::Range`].
    Range(RangeResponse),
    /// To [`Request::Put`].
    Put(PutResponse),
    /// To [`Request::DeleteRange`].
    DeleteRange(DeleteRangeResponse),
    /// To [`Request::OpenSession`].
    OpenSession {
        /// The new session.
        id: SessionId,
    },
    /// To [`Request::Status`].
    Status(Box<StatusResponse>),
    /// To [`Request::MoveLeader`].
    MoveLeader,
    /// To [`Request::Compact`].
    Compact,
    /// To [`Request::LeaderLeaseReport`].
    LeaderLeaseReport(Box<LeaderLeaseReport>),
    /// To [`Request::Txn`].
    Txn(TxnResponse),
    /// To [`Request::LeaseGrant`].
    LeaseGrant(LeaseGrantResponse),
    /// To [`Request::LeaseRevoke`].
    LeaseRevoke(LeaseRevokeResponse),
    /// To [`Request::LeaseKeepAlive`]: the result for each lease, in the order of the request.
    LeaseKeepAlive(Vec<LeaseKept>),
    /// To [`Request::LeaseTimeToLive`].
    LeaseTimeToLive(Box<LeaseInfo>),
    /// To [`Request::LeaseList`].
    LeaseList(LeaseListResponse),
    /// To [`Request::LeaseUpdateTtl`].
    LeaseUpdateTtl {
        /// The current TTL, in milliseconds.
        ttl_ms: u64,
    },
    /// To [`Request::PutWithNewLease`].
    PutWithNewLease(Box<PutWithNewLeaseResponse>),
    /// To [`Request::RangePage`].
    RangePage(RangePage),
    /// To [`Request::Watch`]: the watch is open. A watch from now on starts after the header's
    /// revision.
    Watch,
    /// To [`Request::WatchCancel`]: the watch was cancelled. Events sent before may still arrive.
    WatchCancel,
    /// To [`Request::WatchProgress`]: the notification will be sent.
    WatchProgress,
    /// To [`Request::Snapshot`].
    Snapshot(SnapshotReply),
    /// To [`Request::MemberList`], and to every change of members once it is complete.
    Members(Box<MembersResponse>),
    /// To [`Request::Auth`].
    Auth(AuthResponse),
}
