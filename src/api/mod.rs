//! The contract between a client and a node: requests, replies and errors.
//!
//! Both sides compile this module and nothing else of each other. The words are etcd's where etcd
//! has one. What travels is wrapped by `wire`; nothing here knows bytes, streams or log entries.
//!
//! Compatibility: these types are encoded with postcard, which is not self-describing. Enum
//! variants are only ever appended, and a struct that must grow gets a new variant of the request
//! or reply that holds it.

mod attempts;
mod auth;
mod course;
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
pub use self::course::{WatchCourse, WatchEnd, WatchStep};
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
    /// Time the caller is still willing to wait, in milliseconds, from the moment it sent this.
    pub timeout_ms: u32,
    /// How fresh a read must be. Ignored by writes.
    pub consistency: Consistency,
    /// The least revision a read may be served at, as an earlier reply gave it; 0 for any. A node
    /// that has not applied it waits until it has, and just before the deadline refuses the read
    /// with [`ErrorKind::FutureRevision`]. No clock takes part, so with the newest revision that a
    /// caller has seen it never sees an older state, whatever clocks do. Ignored by writes.
    pub min_revision: i64,
    /// Which session and number this write has, if it is to be applied exactly once.
    pub session: Option<SessionCall>,
    /// What is asked.
    pub request: Request,
}

/// A write's place in its session: what makes a retry recognisable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCall {
    /// The session.
    pub id: SessionId,
    /// This write's number in it; numbers start at 1 and are never reused for another write.
    pub sequence: u64,
    /// Every write up to and including this number has been answered to the client, which will
    /// not retry it: the server may forget its reply.
    pub acknowledged: u64,
}

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Consistency {
    /// Sees every write acknowledged before the read began. Served under the leader's lease where
    /// it has one, else after one quorum round.
    #[default]
    Linearizable,
    /// As above, always by a quorum round: independent of clocks.
    LinearizableQuorum,
    /// As above, only under the lease: refused with [`ErrorKind::LeaseInvalid`] when it is void.
    LeaseOnly,
    /// Whatever the asked node has applied; may be old.
    Serializable,
    /// A state that is at most this old: it holds everything that was acknowledged to anybody
    /// longer than this before the request arrived. The asked node answers from its own state if
    /// it can prove by its own clocks that this is young enough, without a message to anybody;
    /// else as [`Self::Linearizable`].
    MaxStaleness(Duration),
}

/// What a client may ask.
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
    /// How this node is; answered by any node from what it knows itself.
    Status,
    /// Hand leadership to another voter; answered by the leader once it has let go.
    MoveLeader {
        /// The voter to lead next; `None` lets the leader choose the most up to date one.
        target: Option<NodeId>,
    },
    /// Give up history.
    Compact(CompactionRequest),
    /// What the leader lease depends on, as this node measures it; answered by any node.
    LeaderLeaseReport,
    /// Compare, and do one thing or another, in one step.
    Txn(TxnRequest),
    /// Grant a client lease.
    LeaseGrant(LeaseGrantRequest),
    /// End a client lease, and delete what is attached to it.
    LeaseRevoke(LeaseRef),
    /// Renew client leases; answered by the leader, without a log entry.
    LeaseKeepAlive(Vec<LeaseRef>),
    /// How a client lease is.
    LeaseTimeToLive {
        /// Its id.
        id: i64,
        /// Name the keys that are attached to it, too.
        keys: bool,
    },
    /// Which client leases there are.
    LeaseList(LeaseListRequest),
    /// Give a client lease another time to live. It holds from the next renewal on; no time that
    /// has been promised already is taken back (A13).
    LeaseUpdateTtl {
        /// Which.
        lease: LeaseRef,
        /// The new time to live, in milliseconds, by the rules of a grant.
        ttl_ms: i64,
    },
    /// Grant a client lease and attach a key to it, in one step.
    PutWithNewLease(LeaseGrantRequest, PutRequest),
    /// Read as much of a range as fits one reply, in key order, and say where the rest begins: so a
    /// range of any size is read at one revision, at the pace of whoever reads it. Nothing is sorted
    /// or counted.
    RangePage(RangeRequest),
    /// Watch keys. Served by any node from what it has applied; what happens to the keys comes as
    /// [`WatchMessage`]s on a one-way stream that the server opens.
    Watch {
        /// What the client calls the watch; on a connection, never used for two that are open.
        watch_id: u64,
        /// What to watch.
        watch: WatchRequest,
    },
    /// End a watch of this connection.
    WatchCancel {
        /// Which.
        watch_id: u64,
    },
    /// Have a watch of this connection told how far it is ([`WatchMessage::Progress`]), as soon as
    /// everything up to there has been sent.
    WatchProgress {
        /// Which.
        watch_id: u64,
    },
    /// A snapshot of the whole state, chunk by chunk.
    Snapshot(SnapshotCall),
    /// Who the members are; a read like any other.
    MemberList,
    /// Take a member in, perhaps in the place of another.
    MemberAdd(MemberAddRequest),
    /// Let a member go.
    MemberRemove {
        /// Which.
        id: NodeId,
    },
    /// Make a voter of a learner that has caught up.
    MemberPromote {
        /// Which.
        id: NodeId,
    },
    /// Note down where a member is.
    MemberUpdate(MemberUpdateRequest),
    /// About users, roles and what they may do.
    Auth(AuthRequest),
}

/// A successful reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// Who answered, and how.
    pub header: ResponseHeader,
    /// What was answered.
    pub body: ResponseBody,
}

/// Who answered a request, at which revision, and how a read was served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseHeader {
    /// First 64 bits of the cluster id.
    pub cluster_id: u64,
    /// The member that answered.
    pub member_id: NodeId,
    /// Of a read: the store's revision in the snapshot that was served. Of a write: its own.
    pub revision: i64,
    /// The Raft term the member was in.
    pub raft_term: Term,
    /// Who it believed to be leader.
    pub leader_id: Option<NodeId>,
    /// How a read was served; `None` for writes.
    pub read: Option<ReadInfo>,
}

/// How a read was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadInfo {
    /// On whose authority.
    pub path: ReadPath,
    /// What was left of the leader's lease when it validated the read, margin already taken off;
    /// zero if no lease took part.
    pub lease_remaining: Duration,
    /// The margin the lease keeps against clock drift.
    pub lease_margin: Duration,
    /// The read had to see at least this log index.
    pub read_index: LogIndex,
    /// The snapshot it was served from contains at least this log index.
    pub applied_index: LogIndex,
    /// Where `path` is [`ReadPath::Serializable`]: everything acknowledged to anybody longer than
    /// this before the read was served is in it. `None` where nothing can be proved; and for other
    /// paths, which leave nothing out.
    pub staleness: Option<Duration>,
}

/// On whose authority a read was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReadPath {
    /// The leader's lease: no message, no wait.
    Lease,
    /// A quorum round of the leader, started after the read arrived.
    ReadIndex,
    /// Nobody's: the node's own state, possibly old.
    Serializable,
    /// The leader's word, which the follower that served the read asked for after the read had
    /// arrived: one exchange between the two, under the leader's lease or its quorum round.
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
    /// To [`Request::LeaseKeepAlive`]: what became of each lease, in the order of the request.
    LeaseKeepAlive(Vec<LeaseKept>),
    /// To [`Request::LeaseTimeToLive`].
    LeaseTimeToLive(Box<LeaseInfo>),
    /// To [`Request::LeaseList`].
    LeaseList(LeaseListResponse),
    /// To [`Request::LeaseUpdateTtl`].
    LeaseUpdateTtl {
        /// The time to live that it has now, in milliseconds.
        ttl_ms: u64,
    },
    /// To [`Request::PutWithNewLease`].
    PutWithNewLease(Box<PutWithNewLeaseResponse>),
    /// To [`Request::RangePage`].
    RangePage(RangePage),
    /// To [`Request::Watch`]: it is open. The header's revision is the one after which a watch from
    /// now on begins.
    Watch,
    /// To [`Request::WatchCancel`]: it is over. What was sent before may still arrive.
    WatchCancel,
    /// To [`Request::WatchProgress`]: the watch will be told.
    WatchProgress,
    /// To [`Request::Snapshot`].
    Snapshot(SnapshotReply),
    /// To [`Request::MemberList`], and to every change of members once it is complete.
    Members(Box<MembersResponse>),
    /// To [`Request::Auth`].
    Auth(AuthResponse),
}
