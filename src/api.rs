//! The contract between a client and a node: requests, replies and errors.
//!
//! Both sides compile this file and nothing else of each other. The words are etcd's where etcd
//! has one. What travels is wrapped by `wire`; nothing here knows bytes, streams or log entries.
//!
//! Compatibility: these types are encoded with postcard, which is not self-describing. Enum
//! variants are only ever appended, and a struct that must grow gets a new variant of the request
//! or reply that holds it.

mod auth;
mod lease;
mod lease_report;
mod member;

use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

pub use self::auth::AuthRequest;
pub use self::auth::AuthResponse;
pub use self::auth::AuthStatus;
pub use self::auth::PASSWORD_BYTES_MAX;
pub use self::auth::Password;
pub use self::auth::Permission;
pub use self::auth::PermissionKind;
pub use self::auth::ROOT;
pub use self::auth::RoleInfo;
pub use self::auth::Secret;
pub use self::auth::UserInfo;
pub use self::lease::KEEP_ALIVE_LEASES_MAX;
pub use self::lease::LEASE_NAME_BYTES_MAX;
pub use self::lease::LEASE_PAGE_MAX;
pub use self::lease::LeaseGrantRequest;
pub use self::lease::LeaseGrantResponse;
pub use self::lease::LeaseInfo;
pub use self::lease::LeaseKept;
pub use self::lease::LeaseListRequest;
pub use self::lease::LeaseListResponse;
pub use self::lease::LeaseRef;
pub use self::lease::LeaseRevokeResponse;
pub use self::lease::LeaseTarget;
pub use self::lease::PutWithNewLeaseResponse;
pub use self::lease_report::ClockReading;
pub use self::lease_report::Distribution;
pub use self::lease_report::LeaderLeaseReport;
pub use self::lease_report::LeaseTiming;
pub use self::member::Member;
pub use self::member::MemberAddRequest;
pub use self::member::MemberDetails;
pub use self::member::MemberUpdateRequest;
pub use self::member::MembersResponse;
pub use self::member::Membership;
use crate::types::ClusterId;
use crate::types::LogIndex;
use crate::types::NodeId;
use crate::types::Role;
use crate::types::SessionId;
use crate::types::Term;

mod course;
mod fence;
mod nested;
mod snapshot;
mod txn;
mod watch;

pub use course::WatchCourse;
pub use course::WatchEnd;
pub use course::WatchStep;
pub use fence::Fence;
pub use snapshot::SnapshotCall;
pub use snapshot::SnapshotReply;
pub use txn::CasResult;
pub use txn::Compare;
pub use txn::CompareOp;
pub use txn::CompareTarget;
pub use txn::TXN_DEPTH_MAX;
pub use txn::TXN_PARTS_MAX;
pub use txn::TxnOp;
pub use txn::TxnOpResponse;
pub use txn::TxnRequest;
pub use txn::TxnResponse;
pub use watch::Event;
pub use watch::EventKind;
pub use watch::WatchMessage;
pub use watch::WatchRequest;

/// What a request may cost, checked by the SDK before it is sent and by the server before it is
/// taken in (decisions: figures of api.md section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest key, in bytes. Keys are never empty.
    pub key_bytes_max: usize,
    /// Longest value, in bytes.
    pub value_bytes_max: usize,
    /// Largest encoded request, in bytes.
    pub request_bytes_max: usize,
    /// Largest encoded reply, in bytes; a range that would exceed it stops early with `more`.
    pub reply_bytes_max: usize,
    /// Most comparisons, and most operations of a branch, that a transaction may have; what is
    /// nested in it has as many fewer. Above all stands [`TXN_PARTS_MAX`].
    pub txn_ops_max: usize,
}

impl Limits {
    /// The limits of an unconfigured server.
    pub const DEFAULT: Self = Self {
        key_bytes_max: 8 << 10,
        value_bytes_max: 1 << 20,
        request_bytes_max: 1536 << 10,
        reply_bytes_max: 1536 << 10,
        txn_ops_max: 128,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

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

impl Request {
    /// Whether this request may change the store and so becomes a log entry.
    pub fn is_write(&self) -> bool {
        match self {
            Self::Put(_)
            | Self::DeleteRange(_)
            | Self::OpenSession
            | Self::Compact(_)
            | Self::LeaseGrant(_)
            | Self::LeaseRevoke(_)
            | Self::LeaseUpdateTtl { .. }
            | Self::PutWithNewLease(..) => true,
            Self::Txn(txn) => !txn.is_read_only(),
            Self::Auth(auth) => auth.is_write(),
            Self::Range(_)
            | Self::Status
            | Self::MoveLeader { .. }
            | Self::LeaderLeaseReport
            | Self::Watch { .. }
            | Self::WatchCancel { .. }
            | Self::WatchProgress { .. }
            | Self::LeaseKeepAlive(_)
            | Self::LeaseTimeToLive { .. }
            | Self::LeaseList(_)
            | Self::RangePage(_)
            | Self::Snapshot(_)
            | Self::MemberList
            | Self::MemberAdd(_)
            | Self::MemberRemove { .. }
            | Self::MemberPromote { .. }
            | Self::MemberUpdate(_) => false,
        }
    }

    /// Whether this only looks at the store: it is served on a permit, and no log entry is made.
    pub fn is_read(&self) -> bool {
        match self {
            Self::Range(_)
            | Self::RangePage(_)
            | Self::LeaseTimeToLive { .. }
            | Self::LeaseList(_)
            | Self::Snapshot(_)
            | Self::MemberList => true,
            Self::Txn(txn) => txn.is_read_only(),
            Self::Auth(auth) => auth.is_read(),
            Self::Put(_)
            | Self::DeleteRange(_)
            | Self::OpenSession
            | Self::Status
            | Self::MoveLeader { .. }
            | Self::Compact(_)
            | Self::LeaderLeaseReport
            | Self::Watch { .. }
            | Self::WatchCancel { .. }
            | Self::WatchProgress { .. }
            | Self::LeaseGrant(_)
            | Self::LeaseRevoke(_)
            | Self::LeaseKeepAlive(_)
            | Self::LeaseUpdateTtl { .. }
            | Self::PutWithNewLease(..)
            | Self::MemberAdd(_)
            | Self::MemberRemove { .. }
            | Self::MemberPromote { .. }
            | Self::MemberUpdate(_) => false,
        }
    }

    /// Whether this changes who the members are, or where.
    pub fn is_member_change(&self) -> bool {
        matches!(
            self,
            Self::MemberAdd(_)
                | Self::MemberRemove { .. }
                | Self::MemberPromote { .. }
                | Self::MemberUpdate(_)
        )
    }

    /// Whether this is about a watch of the connection that it comes by.
    pub fn is_watch_control(&self) -> bool {
        matches!(
            self,
            Self::Watch { .. } | Self::WatchCancel { .. } | Self::WatchProgress { .. }
        )
    }

    /// The request's name in logs and metric labels.
    pub fn method(&self) -> &'static str {
        match self {
            Self::Range(_) => "range",
            Self::Put(_) => "put",
            Self::DeleteRange(_) => "delete_range",
            Self::OpenSession => "open_session",
            Self::Status => "status",
            Self::MoveLeader { .. } => "move_leader",
            Self::Compact(_) => "compact",
            Self::LeaderLeaseReport => "leader_lease_report",
            Self::Txn(_) => "txn",
            Self::Watch { .. } => "watch",
            Self::WatchCancel { .. } => "watch_cancel",
            Self::WatchProgress { .. } => "watch_progress",
            Self::LeaseGrant(_) => "lease_grant",
            Self::LeaseRevoke(_) => "lease_revoke",
            Self::LeaseKeepAlive(_) => "lease_keep_alive",
            Self::LeaseTimeToLive { .. } => "lease_time_to_live",
            Self::LeaseList(_) => "lease_list",
            Self::LeaseUpdateTtl { .. } => "lease_update_ttl",
            Self::PutWithNewLease(..) => "put_with_new_lease",
            Self::RangePage(_) => "range_page",
            Self::Snapshot(_) => "snapshot",
            Self::MemberList => "member_list",
            Self::MemberAdd(_) => "member_add",
            Self::MemberRemove { .. } => "member_remove",
            Self::MemberPromote { .. } => "member_promote",
            Self::MemberUpdate(_) => "member_update",
            Self::Auth(auth) => auth.method(),
        }
    }
}

/// Which keys, beginning with the request's `key`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyRange {
    /// Exactly `key`.
    #[default]
    Single,
    /// Every key that starts with `key`; an empty `key` means every key.
    Prefix,
    /// `[key, end)`.
    Until(Bytes),
    /// `key` and everything after it.
    From,
}

impl KeyRange {
    /// The first key that this means together with `key`, and the first one after it that it does
    /// not mean, if there is one.
    pub fn bounds(&self, key: &Bytes) -> (Bytes, Option<Bytes>) {
        let end = match self {
            Self::Single => Some(successor(key)),
            Self::Prefix => prefix_end(key),
            Self::Until(end) => Some(end.clone()),
            Self::From => None,
        };
        (key.clone(), end)
    }
}

/// The first key after `key`.
pub fn successor(key: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(key.len() + 1);
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(&[0]);
    bytes.freeze()
}

/// The first key after all that start with `prefix`, if there is any.
fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = BytesMut::from(&prefix[..=last]);
    end[last] += 1;
    Some(end.freeze())
}

/// Read one key or a range of keys.
///
/// In this order, as in etcd: the range at the revision is taken and counted, the filters leave
/// keys out, what is left is sorted, and the limit cuts it off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeRequest {
    /// The key, or where the range starts.
    pub key: Bytes,
    /// How far the range goes.
    pub range: KeyRange,
    /// At most this many keys; 0 means no limit of the caller's own.
    pub limit: u64,
    /// Leave values out of the reply.
    pub keys_only: bool,
    /// Leave keys out as well: only count them.
    pub count_only: bool,
    /// Read the store as it was at this revision; 0 means the current one. Refused with
    /// [`ErrorKind::Compacted`] or [`ErrorKind::FutureRevision`] if it cannot be read.
    pub revision: i64,
    /// By what to sort.
    pub sort_target: SortTarget,
    /// In which direction to sort.
    pub sort_order: SortOrder,
    /// Leave out keys whose mod revision is lower; 0 leaves out none.
    pub min_mod_revision: i64,
    /// Leave out keys whose mod revision is higher; 0 leaves out none.
    pub max_mod_revision: i64,
    /// Leave out keys whose create revision is lower; 0 leaves out none.
    pub min_create_revision: i64,
    /// Leave out keys whose create revision is higher; 0 leaves out none.
    pub max_create_revision: i64,
}

impl RangeRequest {
    /// Whether this asks for one key as it is now, which one lookup answers.
    pub fn is_point(&self) -> bool {
        self.range == KeyRange::Single
            && self.revision == 0
            && self.min_mod_revision == 0
            && self.max_mod_revision == 0
            && self.min_create_revision == 0
            && self.max_create_revision == 0
    }

    /// Whether the filters let `kv` through.
    pub(crate) fn admits(&self, kv: &KeyValue) -> bool {
        let within =
            |revision, min, max| (min == 0 || revision >= min) && (max == 0 || revision <= max);
        within(
            kv.mod_revision,
            self.min_mod_revision,
            self.max_mod_revision,
        ) && within(
            kv.create_revision,
            self.min_create_revision,
            self.max_create_revision,
        )
    }

    /// By what and in which direction the reply must be sorted; `None` where keys in their order
    /// are what is asked for.
    pub(crate) fn sort(&self) -> Option<(SortTarget, SortOrder)> {
        match (self.sort_target, self.sort_order) {
            (SortTarget::Key, SortOrder::None | SortOrder::Ascend) => None,
            sort => Some(sort),
        }
    }

    pub(crate) fn sorts_by_value(&self) -> bool {
        self.sort_target == SortTarget::Value
    }
}

/// By what a range is sorted. Where it is equal, the smaller key comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SortTarget {
    /// The key.
    #[default]
    Key,
    /// How often it was written.
    Version,
    /// When it was created.
    CreateRevision,
    /// When it was last written.
    ModRevision,
    /// The value, byte by byte.
    Value,
}

/// In which direction a range is sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SortOrder {
    /// The caller does not care. Keys come in their order; by anything else it means ascending, as
    /// in etcd.
    #[default]
    None,
    /// The smallest first.
    Ascend,
    /// The largest first.
    Descend,
}

/// Write one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutRequest {
    /// The key; not empty.
    pub key: Bytes,
    /// The value; may be empty.
    pub value: Bytes,
    /// Return what the key held before.
    pub prev_kv: bool,
    /// Keep the value that the key has, and write it anew: `value` must be empty, and the key must
    /// exist ([`ErrorKind::KeyNotFound`]).
    pub ignore_value: bool,
    /// Keep the client lease that the key is attached to, where a put detaches it otherwise: the key
    /// must exist ([`ErrorKind::KeyNotFound`]).
    pub ignore_lease: bool,
    /// The client lease to attach the key to ([`ErrorKind::LeaseNotFound`] if there is none such).
    pub lease: LeaseTarget,
}

/// Delete one key or a range of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteRangeRequest {
    /// The key, or where the range starts.
    pub key: Bytes,
    /// How far the range goes.
    pub range: KeyRange,
    /// Return what the keys held before.
    pub prev_kv: bool,
}

/// Give up history: what was before `revision` cannot be read any more afterwards.
///
/// Reads at `revision` and above stay possible, and of every key that exists at `revision` the value
/// that it has then. Refused with [`ErrorKind::Compacted`] if that has been given up already, and
/// with [`ErrorKind::FutureRevision`] if it does not exist yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionRequest {
    /// The oldest revision to keep; positive.
    pub revision: i64,
    /// Have every node give the space back to its disk as soon as it has removed what is given up,
    /// however little that is. Else it does so when it is worth the work.
    pub physical: bool,
}

impl CompactionRequest {
    /// Gives up what was before `revision`.
    pub const fn at(revision: i64) -> Self {
        Self {
            revision,
            physical: false,
        }
    }
}

/// A key with its value and history, as of some revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty where only keys were asked for.
    pub value: Bytes,
    /// The revision that created the key (since it was last absent).
    pub create_revision: i64,
    /// The revision that last wrote it.
    pub mod_revision: i64,
    /// Writes since it was created; 1 right after creation.
    pub version: i64,
    /// The client lease it is attached to; 0 for none.
    pub lease: i64,
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

/// A part of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangePage {
    /// The keys found, in key order. There may be none in a page though more follow.
    pub kvs: Vec<KeyValue>,
    /// Where the next page begins; `None` if the range is at its end or the limit is reached.
    pub next: Option<Bytes>,
    /// The revision that was read: what the next page asks for.
    pub revision: i64,
}

/// Keys in order, and whether that was all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeResponse {
    /// The keys found, in the order asked for.
    pub kvs: Vec<KeyValue>,
    /// More keys exist that were asked for: the limit, or the size of one reply, was reached.
    pub more: bool,
    /// How many keys the range holds in all, whatever the limit and the filters.
    pub count: u64,
}

/// A put took effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutResponse {
    /// What the key held before, if it existed and was asked for.
    pub prev_kv: Option<KeyValue>,
}

/// A delete took effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteRangeResponse {
    /// How many keys were deleted.
    pub deleted: u64,
    /// What they held before, if asked for.
    pub prev_kvs: Vec<KeyValue>,
}

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

/// What a node knows of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Its id.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Where peers reach it, as `host:port`.
    pub peer_address: String,
    /// Where clients reach it, as `host:port`; empty while unknown.
    pub client_address: String,
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

/// Why a request failed, and what became of it.
///
/// `Display` is a sentence for a person; [`Error::kind`] is for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// What became of the request.
    pub outcome: Outcome,
    /// One sentence more than the kind says: what was found, and what to do about it.
    pub detail: String,
}

/// What became of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// It took no effect and will take none.
    NotApplied,
    /// It took effect; only the reply is missing.
    Applied,
    /// It may have taken effect, or may yet. Read before repeating it.
    Unknown,
}

/// What went wrong, sorted by who must act.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request itself is wrong; repeating it will not help.
    InvalidArgument,
    /// It is larger than the server takes.
    RequestTooLarge {
        /// The most that is taken, in bytes.
        limit: u64,
        /// What was sent, in bytes.
        actual: u64,
    },
    /// This node does not lead; ask that one.
    NotLeader {
        /// Who leads, where known.
        leader: Option<NodeId>,
        /// Where clients reach the leader, where known.
        address: Option<String>,
    },
    /// Nobody leads at the moment; ask again shortly.
    NoLeader,
    /// Leadership moved while the request was under way.
    LeaderChanged,
    /// A lease-only read found the lease void.
    LeaseInvalid,
    /// No quorum answered in time.
    QuorumTimeout,
    /// The request's own deadline passed.
    DeadlineExceeded,
    /// The server is busy; ask again after the time given.
    SlowDown {
        /// How long to wait, in milliseconds.
        retry_after_ms: u32,
    },
    /// The session is not known (any more): it was forgotten, or never opened.
    SessionExpired,
    /// The write's number is one whose reply was already acknowledged.
    StaleSequence,
    /// The state is as large as it may be, or the leader's disk is full: nothing is written or granted
    /// until there is room again. What makes room is always allowed.
    NoSpace {
        /// How much the state takes, in bytes.
        used: u64,
        /// How much it may take, in bytes.
        quota: u64,
    },
    /// This node cannot serve: its data is damaged and it waits to be rebuilt.
    Corrupt,
    /// This node is stopping or still starting.
    Unavailable,
    /// The other side belongs to another cluster.
    ClusterMismatch,
    /// No secure connection could be made.
    TlsHandshake,
    /// The connection broke.
    ConnectionLost,
    /// No endpoint could be reached.
    ConnectFailed,
    /// The server does not know this request.
    Unsupported,
    /// A defect of ours.
    Internal,
    /// A retry of a write that took effect; the first reply was too large to be kept for it.
    ReplyNotKept,
    /// History before this revision has been given up.
    Compacted {
        /// The oldest revision that can be read.
        compact_revision: i64,
    },
    /// The revision does not exist yet, or has not come to the node by the read's deadline.
    FutureRevision,
    /// A put that keeps something of its key found no such key.
    KeyNotFound,
    /// A transaction has too many operations, or is nested too deep.
    TxnTooLarge,
    /// A transaction writes a key twice.
    DuplicateKey,
    /// There is no client lease of that id or name.
    LeaseNotFound,
    /// A client lease has that id or name already.
    LeaseExists,
    /// The client lease is over, or about to be: its end is decided.
    LeaseExpired,
    /// A client lease cannot last that long.
    TtlOutOfRange {
        /// The longest, in milliseconds.
        ttl_max_ms: u64,
    },
    /// There are so many client leases, or a lease has so many keys, that no more may be added.
    LeaseLimit {
        /// How many there may be.
        limit: u64,
    },
    /// What there is to answer is larger than one reply may be.
    ResponseTooLarge {
        /// The most that a reply holds, in bytes.
        limit: u64,
        /// What it would take, in bytes.
        actual: u64,
    },
    /// A watcher took its events more slowly than they arose.
    SlowWatcher,
    /// The connection has no such watch (any more).
    WatchNotFound,
    /// The connection has a watch of that name already.
    WatchExists,
    /// A write named a fence, and the lock has moved on since its writer held it.
    Fenced {
        /// The revision that the key of the fence is from now; 0 if it is gone.
        current: i64,
    },
    /// The node does not have that snapshot (any more).
    SnapshotGone,
    /// There is a member of that name, or at that address, already.
    MemberExists,
    /// There is no such member.
    MemberNotFound,
    /// The members may not be changed like that, or not now: it would not be safe.
    UnsafeReconfiguration,
    /// The learner has not caught up yet.
    LearnerNotReady,
    /// It is not known who asks: there is no such user, or the password or the token is not good.
    Unauthenticated,
    /// The token has had its time: another one must be asked for.
    TokenExpired,
    /// Whoever asks may not do that.
    PermissionDenied,
    /// There is no user of that name.
    UserNotFound,
    /// There is a user of that name already.
    UserExists,
    /// There is no role of that name.
    RoleNotFound,
    /// There is a role of that name already.
    RoleExists,
}

impl ErrorKind {
    /// The stable name of the kind: what programs and metrics match on.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidArgument => "LH-INVALID-ARGUMENT",
            Self::RequestTooLarge { .. } => "LH-REQUEST-TOO-LARGE",
            Self::NotLeader { .. } => "LH-NOT-LEADER",
            Self::NoLeader => "LH-NO-LEADER",
            Self::LeaderChanged => "LH-LEADER-CHANGED",
            Self::LeaseInvalid => "LH-LEASE-INVALID",
            Self::QuorumTimeout => "LH-QUORUM-TIMEOUT",
            Self::DeadlineExceeded => "LH-DEADLINE-EXCEEDED",
            Self::SlowDown { .. } => "LH-SLOW-DOWN",
            Self::SessionExpired => "LH-SESSION-EXPIRED",
            Self::StaleSequence => "LH-STALE-SEQUENCE",
            Self::NoSpace { .. } => "LH-NO-SPACE",
            Self::Corrupt => "LH-CORRUPT",
            Self::Unavailable => "LH-UNAVAILABLE",
            Self::ClusterMismatch => "LH-CLUSTER-MISMATCH",
            Self::TlsHandshake => "LH-TLS-HANDSHAKE",
            Self::ConnectionLost => "LH-CONNECTION-LOST",
            Self::ConnectFailed => "LH-CONNECT-FAILED",
            Self::Unsupported => "LH-UNSUPPORTED",
            Self::Internal => "LH-INTERNAL",
            Self::ReplyNotKept => "LH-REPLY-NOT-KEPT",
            Self::Compacted { .. } => "LH-COMPACTED",
            Self::FutureRevision => "LH-FUTURE-REVISION",
            Self::KeyNotFound => "LH-KEY-NOT-FOUND",
            Self::TxnTooLarge => "LH-TXN-TOO-LARGE",
            Self::DuplicateKey => "LH-DUPLICATE-KEY",
            Self::SlowWatcher => "LH-SLOW-WATCHER",
            Self::WatchNotFound => "LH-WATCH-NOT-FOUND",
            Self::WatchExists => "LH-WATCH-EXISTS",
            Self::Fenced { .. } => "LH-FENCED",
            Self::LeaseNotFound => "LH-LEASE-NOT-FOUND",
            Self::LeaseExists => "LH-LEASE-EXISTS",
            Self::LeaseExpired => "LH-LEASE-EXPIRED",
            Self::TtlOutOfRange { .. } => "LH-TTL-OUT-OF-RANGE",
            Self::LeaseLimit { .. } => "LH-LEASE-LIMIT",
            Self::ResponseTooLarge { .. } => "LH-RESPONSE-TOO-LARGE",
            Self::SnapshotGone => "LH-SNAPSHOT-GONE",
            Self::MemberExists => "LH-MEMBER-EXISTS",
            Self::MemberNotFound => "LH-MEMBER-NOT-FOUND",
            Self::UnsafeReconfiguration => "LH-UNSAFE-RECONFIGURATION",
            Self::LearnerNotReady => "LH-LEARNER-NOT-READY",
            Self::Unauthenticated => "LH-UNAUTHENTICATED",
            Self::TokenExpired => "LH-TOKEN-EXPIRED",
            Self::PermissionDenied => "LH-PERMISSION-DENIED",
            Self::UserNotFound => "LH-USER-NOT-FOUND",
            Self::UserExists => "LH-USER-EXISTS",
            Self::RoleNotFound => "LH-ROLE-NOT-FOUND",
            Self::RoleExists => "LH-ROLE-EXISTS",
        }
    }
}

impl Error {
    /// A request that took no effect.
    pub fn not_applied(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            outcome: Outcome::NotApplied,
            detail: detail.into(),
        }
    }

    /// A request that may have taken effect.
    pub fn unknown(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            outcome: Outcome::Unknown,
            detail: detail.into(),
        }
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// What became of the request.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// The stable name of the kind.
    pub fn code(&self) -> &'static str {
        self.kind.code()
    }

    /// Whether the same request may succeed if it is sent again. Says nothing about whether
    /// repeating it is safe: that is [`Error::outcome`]'s question.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::NotLeader { .. }
                | ErrorKind::NoLeader
                | ErrorKind::LeaderChanged
                | ErrorKind::QuorumTimeout
                | ErrorKind::SlowDown { .. }
                | ErrorKind::Unavailable
                | ErrorKind::ConnectionLost
                | ErrorKind::ConnectFailed
        )
    }

    /// How long the server asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.kind {
            ErrorKind::SlowDown { retry_after_ms } => {
                Some(Duration::from_millis(u64::from(retry_after_ms)))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.detail, self.code())?;
        match self.outcome {
            Outcome::NotApplied => write!(f, ")"),
            Outcome::Applied => write!(f, "; the request took effect)"),
            Outcome::Unknown => write!(f, "; the request may have taken effect)"),
        }
    }
}

impl std::error::Error for Error {}

/// Checks the parts of a request that need no store: sizes and shapes.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] or [`ErrorKind::RequestTooLarge`], outcome *not applied*, with a
/// sentence that says what is allowed.
pub fn validate(request: &Request, limits: &Limits) -> Result<(), Error> {
    match request {
        Request::Range(range) => validate_read(range, limits),
        Request::DeleteRange(delete) => validate_delete(delete, limits),
        Request::RangePage(range) => validate_page(range, limits),
        Request::Put(put) => validate_put(put, limits),
        Request::Txn(txn) => {
            txn.validate(limits, TXN_DEPTH_MAX, limits.txn_ops_max, &mut 0)?;
            txn.check_keys()
        }
        Request::Compact(compaction) => {
            if compaction.revision < 1 {
                return Err(Error::not_applied(
                    ErrorKind::InvalidArgument,
                    format!(
                        "history cannot be given up before revision {}: revisions are positive",
                        compaction.revision
                    ),
                ));
            }
            Ok(())
        }
        Request::LeaseGrant(grant) => lease::validate_grant(grant),
        Request::LeaseRevoke(lease) => lease::validate_id(lease.id, false),
        Request::LeaseKeepAlive(leases) => lease::validate_keep_alive(leases),
        Request::LeaseTimeToLive { id, .. } => lease::validate_id(*id, false),
        Request::LeaseList(list) => lease::validate_id(list.after, true),
        Request::LeaseUpdateTtl { lease, ttl_ms } => {
            lease::validate_id(lease.id, false)?;
            lease::validate_ttl(*ttl_ms)
        }
        Request::PutWithNewLease(grant, put) => {
            lease::validate_grant(grant)?;
            if put.lease != LeaseTarget::None || put.ignore_lease {
                return Err(Error::not_applied(
                    ErrorKind::InvalidArgument,
                    "the put names a lease, and is to be attached to the one that is granted: \
                     leave it out",
                ));
            }
            validate_put(put, limits)
        }
        Request::OpenSession
        | Request::Status
        | Request::MoveLeader { .. }
        | Request::LeaderLeaseReport
        | Request::WatchCancel { .. }
        | Request::WatchProgress { .. }
        | Request::Snapshot(_)
        | Request::MemberList
        | Request::MemberRemove { .. }
        | Request::MemberPromote { .. } => Ok(()),
        Request::MemberAdd(add) => member::validate_add(add),
        Request::MemberUpdate(update) => member::validate_update(update),
        Request::Watch { watch, .. } => watch.validate(limits),
        Request::Auth(auth) => auth::validate(auth, limits),
    }
}

fn validate_put(put: &PutRequest, limits: &Limits) -> Result<(), Error> {
    validate_key(&put.key, limits)?;
    lease::validate_target(put)?;
    if put.ignore_value && !put.value.is_empty() {
        return Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            "a value is given that the put is told to ignore: leave one of the two out",
        ));
    }
    if put.value.len() > limits.value_bytes_max {
        return Err(Error::not_applied(
            ErrorKind::RequestTooLarge {
                limit: limits.value_bytes_max as u64,
                actual: put.value.len() as u64,
            },
            format!(
                "the value has {} bytes, and at most {} are taken: split it, or raise \
                 limits.max_value_bytes on every node",
                put.value.len(),
                limits.value_bytes_max
            ),
        ));
    }
    Ok(())
}

fn validate_delete(delete: &DeleteRangeRequest, limits: &Limits) -> Result<(), Error> {
    validate_range(&delete.key, &delete.range, limits)
}

fn validate_read(range: &RangeRequest, limits: &Limits) -> Result<(), Error> {
    validate_range(&range.key, &range.range, limits)?;
    let revisions = [
        ("the revision to read at", range.revision),
        ("min_mod_revision", range.min_mod_revision),
        ("max_mod_revision", range.max_mod_revision),
        ("min_create_revision", range.min_create_revision),
        ("max_create_revision", range.max_create_revision),
    ];
    match revisions.into_iter().find(|(_, revision)| *revision < 0) {
        None => Ok(()),
        Some((what, revision)) => Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            format!("{what} is {revision}: revisions are positive, and 0 leaves it open"),
        )),
    }
}

fn validate_page(range: &RangeRequest, limits: &Limits) -> Result<(), Error> {
    validate_read(range, limits)?;
    if range.count_only || range.sort().is_some() {
        return Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            "a range that is read page by page comes in key order and is not counted: ask for it \
             in one reply to have it sorted or counted",
        ));
    }
    Ok(())
}

fn validate_key(key: &[u8], limits: &Limits) -> Result<(), Error> {
    if key.is_empty() {
        return Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            "the key is empty: give a key of at least one byte",
        ));
    }
    validate_key_length(key, limits)
}

fn validate_key_length(key: &[u8], limits: &Limits) -> Result<(), Error> {
    if key.len() > limits.key_bytes_max {
        return Err(Error::not_applied(
            ErrorKind::RequestTooLarge {
                limit: limits.key_bytes_max as u64,
                actual: key.len() as u64,
            },
            format!(
                "the key has {} bytes, and at most {} are taken: use a shorter key",
                key.len(),
                limits.key_bytes_max
            ),
        ));
    }
    Ok(())
}

fn validate_range(key: &[u8], range: &KeyRange, limits: &Limits) -> Result<(), Error> {
    match range {
        KeyRange::Single => validate_key(key, limits),
        KeyRange::Prefix | KeyRange::From => validate_key_length(key, limits),
        KeyRange::Until(end) => {
            validate_key_length(key, limits)?;
            validate_key_length(end, limits)?;
            if end.as_ref() <= key {
                return Err(Error::not_applied(
                    ErrorKind::InvalidArgument,
                    "the range ends at or before its start: its end must sort after its first key",
                ));
            }
            Ok(())
        }
    }
}

/// Where a new cluster's members stand, as proposed by its first leader and applied as the
/// cluster's first command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// The cluster's identity.
    pub cluster_id: ClusterId,
    /// Its first members.
    pub members: Vec<MemberInfo>,
}

#[cfg(test)]
pub(crate) mod every;
#[cfg(test)]
mod golden;

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: usize, value: usize) -> Request {
        Request::Put(PutRequest {
            key: Bytes::from(vec![b'k'; key]),
            value: Bytes::from(vec![b'v'; value]),
            prev_kv: false,
            ..PutRequest::default()
        })
    }

    #[test]
    fn limits_hold_at_the_bound_and_one_beyond() {
        let limits = Limits::DEFAULT;
        assert!(validate(&put(1, 0), &limits).is_ok());
        assert!(validate(&put(limits.key_bytes_max, limits.value_bytes_max), &limits).is_ok());
        let empty = validate(&put(0, 1), &limits).unwrap_err();
        assert_eq!(empty.kind, ErrorKind::InvalidArgument);
        let long_key = validate(&put(limits.key_bytes_max + 1, 1), &limits).unwrap_err();
        assert!(matches!(
            long_key.kind,
            ErrorKind::RequestTooLarge {
                limit: 8192,
                actual: 8193
            }
        ));
        let long_value = validate(&put(1, limits.value_bytes_max + 1), &limits).unwrap_err();
        assert!(matches!(long_value.kind, ErrorKind::RequestTooLarge { .. }));
        assert_eq!(long_value.outcome, Outcome::NotApplied);
    }

    #[test]
    fn an_inverted_range_is_refused_and_an_empty_prefix_means_everything() {
        let inverted = Request::Range(RangeRequest {
            key: Bytes::from_static(b"b"),
            range: KeyRange::Until(Bytes::from_static(b"a")),
            ..RangeRequest::default()
        });
        let error = validate(&inverted, &Limits::DEFAULT).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        let all = Request::Range(RangeRequest {
            range: KeyRange::Prefix,
            ..RangeRequest::default()
        });
        assert!(validate(&all, &Limits::DEFAULT).is_ok());
    }

    #[test]
    fn revisions_that_cannot_be_are_refused() {
        let range = RangeRequest {
            range: KeyRange::Prefix,
            ..RangeRequest::default()
        };
        for (revision, bound) in [(-1, 0), (0, -1)] {
            let requests = [
                RangeRequest {
                    revision,
                    min_mod_revision: bound,
                    ..range.clone()
                },
                RangeRequest {
                    revision,
                    max_mod_revision: bound,
                    ..range.clone()
                },
                RangeRequest {
                    revision,
                    min_create_revision: bound,
                    ..range.clone()
                },
                RangeRequest {
                    revision,
                    max_create_revision: bound,
                    ..range.clone()
                },
            ];
            for request in requests {
                let error = validate(&Request::Range(request), &Limits::DEFAULT).unwrap_err();
                assert_eq!(error.kind, ErrorKind::InvalidArgument);
                assert!(error.detail.contains("-1"), "{error}");
            }
        }
        for revision in [i64::MIN, -1, 0] {
            let compaction = Request::Compact(CompactionRequest::at(revision));
            let error = validate(&compaction, &Limits::DEFAULT).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn an_error_reads_as_a_sentence_and_says_what_became_of_the_request() {
        let error = Error::unknown(ErrorKind::ConnectionLost, "the connection to n1 broke");
        assert_eq!(
            error.to_string(),
            "the connection to n1 broke (LH-CONNECTION-LOST; the request may have taken effect)"
        );
    }
}
