//! The node: the service `etcdserverpb.Maintenance`.

use bytes::Bytes;
use prost::{Enumeration, Message};

use super::kv::ResponseHeader;

/// Asks for the status of the node.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusRequest {}

/// To [`StatusRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(int64, tag = "3")]
    pub(crate) db_size: i64,
    #[prost(uint64, tag = "4")]
    pub(crate) leader: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) raft_index: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) raft_term: u64,
    #[prost(uint64, tag = "7")]
    pub(crate) raft_applied_index: u64,
    #[prost(string, repeated, tag = "8")]
    pub(crate) errors: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(crate) db_size_in_use: i64,
    #[prost(bool, tag = "10")]
    pub(crate) is_learner: bool,
    #[prost(string, tag = "11")]
    pub(crate) storage_version: String,
    #[prost(int64, tag = "12")]
    pub(crate) db_size_quota: i64,
    #[prost(message, optional, tag = "13")]
    pub(crate) downgrade_info: Option<DowngradeInfo>,
}

/// Whether the cluster is on its way to an older version.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DowngradeInfo {
    #[prost(bool, tag = "1")]
    pub(crate) enabled: bool,
    #[prost(string, tag = "2")]
    pub(crate) target_version: String,
}

/// Reads or changes alarms.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AlarmRequest {
    #[prost(enumeration = "AlarmAction", tag = "1")]
    pub(crate) action: i32,
    #[prost(uint64, tag = "2")]
    pub(crate) member_id: u64,
    #[prost(int32, tag = "3")]
    pub(crate) alarm: i32,
}

/// What is done with alarms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum AlarmAction {
    Get = 0,
    Activate = 1,
    Deactivate = 2,
}

/// The alarm of a member that has no space left; 0 stands for every alarm.
pub(crate) const ALARM_NO_SPACE: i32 = 1;
/// That of a member whose state is damaged.
pub(crate) const ALARM_CORRUPT: i32 = 2;

/// An alarm of a member.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AlarmMember {
    #[prost(uint64, tag = "1")]
    pub(crate) member_id: u64,
    #[prost(int32, tag = "2")]
    pub(crate) alarm: i32,
}

/// To [`AlarmRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AlarmResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) alarms: Vec<AlarmMember>,
}

/// Asks for the hash of all keys at a revision.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HashKvRequest {
    #[prost(int64, tag = "1")]
    pub(crate) revision: i64,
}

/// To [`HashKvRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HashKvResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(uint32, tag = "2")]
    pub(crate) hash: u32,
    #[prost(int64, tag = "3")]
    pub(crate) compact_revision: i64,
    #[prost(int64, tag = "4")]
    pub(crate) hash_revision: i64,
}

/// Asks for the hash of all that the node stores.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HashRequest {}

/// To [`HashRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HashResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(uint32, tag = "2")]
    pub(crate) hash: u32,
}

/// Hands leadership over.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MoveLeaderRequest {
    #[prost(uint64, tag = "1")]
    pub(crate) target_id: u64,
}

/// To [`MoveLeaderRequest`]. etcd fills in no header.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MoveLeaderResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

/// Frees space in the files of the node.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DefragmentRequest {}

/// To [`DefragmentRequest`]. etcd fills in no header.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DefragmentResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

/// Takes the cluster back to an older version.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DowngradeRequest {
    #[prost(enumeration = "DowngradeAction", tag = "1")]
    pub(crate) action: i32,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

/// What [`DowngradeRequest`] wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum DowngradeAction {
    Validate = 0,
    Enable = 1,
    Cancel = 2,
}

/// To [`DowngradeRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DowngradeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

/// Asks for all that the node stores, as a file.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SnapshotRequest {}

/// A piece of it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SnapshotResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(uint64, tag = "2")]
    pub(crate) remaining_bytes: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) blob: Bytes,
    #[prost(string, tag = "4")]
    pub(crate) version: String,
}
