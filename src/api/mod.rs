//! The contract between a client and a node: requests, replies and errors.
//!
//! It is the only module that both sides share. Names follow etcd where it has one. `wire` frames
//! the messages; nothing here knows bytes, streams or log entries.
//!
//! Compatibility: these types are encoded with postcard, which is not self-describing. Enum
//! variants are only ever appended, and a struct that must grow gets a new variant of the request
//! or reply that holds it.

mod alarm;
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
mod priority;
mod request;
mod response;
mod snapshot;
mod spec;
mod status;
mod trace_parent;
mod txn;
mod validate;
mod watch;

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

pub use self::alarm::AlarmsResponse;
pub use self::attempts::Attempts;
pub use self::auth::{
    AuthRequest, AuthResponse, AuthStatus, PASSWORD_BYTES_MAX, Password, Permission,
    PermissionKind, ROOT, RoleInfo, Secret, TOKEN_BYTES_MAX, UserInfo,
};
pub use self::cursor::{WatchCursor, WatchEnd, WatchEvent};
pub use self::error::{Error, ErrorKind, Outcome, Tries};
pub use self::fence::{Fence, last_ahead_of};
pub use self::key::{
    CompactionRequest, DeleteRangeRequest, DeleteRangeResponse, KeyRange, KeyValue, PutRequest,
    PutResponse, PutWithNewLeaseResponse, RangeCount, RangePage, RangeRequest, RangeResponse,
    SortOrder, SortTarget, successor,
};
pub use self::lease::{
    KEEP_ALIVE_LEASES_MAX, LEASE_NAME_BYTES_MAX, LEASE_PAGE_MAX, LeaseGrantRequest,
    LeaseGrantResponse, LeaseInfo, LeaseKept, LeaseListRequest, LeaseListResponse, LeaseRef,
    LeaseRevokeResponse, LeaseTarget,
};
pub use self::lease_report::{ClockReading, Distribution, LeaderLeaseReport, LeaseTiming};
pub use self::limits::Limits;
pub use self::member::{
    ClusterInfo, Member, MemberAddRequest, MemberDetails, MemberInfo, MemberUpdateRequest,
    MembersResponse, Membership,
};
pub use self::priority::Priority;
pub use self::request::{Call, Consistency, Request, SessionCall};
pub use self::response::{ReadInfo, ReadPath, Response, ResponseBody, ResponseHeader};
pub use self::snapshot::{SnapshotCall, SnapshotReply};
pub use self::spec::{Class, Needs, RequestKind, Safety, Spec};
pub use self::status::{
    DRAINED, HistoryStatus, LeaderLeaseStatus, QuotaStatus, ReadCounts, StatusResponse,
};
pub use self::trace_parent::TraceParent;
pub use self::txn::{
    CasResult, Compare, CompareOp, CompareTarget, TXN_DEPTH_MAX, TXN_PARTS_MAX, TxnOp,
    TxnOpResponse, TxnRequest, TxnResponse,
};
pub use self::validate::validate;
pub use self::watch::{Event, EventKind, WatchMessage, WatchRequest};
