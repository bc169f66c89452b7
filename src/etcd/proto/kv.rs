//! Keys: the service `etcdserverpb.KV`.

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

/// Begins every answer.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub(crate) cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) member_id: u64,
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
    #[prost(uint64, tag = "4")]
    pub(crate) raft_term: u64,
}

/// A record.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(int64, tag = "2")]
    pub(crate) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(int64, tag = "4")]
    pub(crate) version: i64,
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) value: Bytes,
    #[prost(int64, tag = "6")]
    pub(crate) lease: i64,
}

/// Reads a key or a range.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(int64, tag = "4")]
    pub(crate) revision: i64,
    #[prost(enumeration = "SortOrder", tag = "5")]
    pub(crate) sort_order: i32,
    #[prost(enumeration = "SortTarget", tag = "6")]
    pub(crate) sort_target: i32,
    #[prost(bool, tag = "7")]
    pub(crate) serializable: bool,
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
    #[prost(bool, tag = "9")]
    pub(crate) count_only: bool,
    #[prost(int64, tag = "10")]
    pub(crate) min_mod_revision: i64,
    #[prost(int64, tag = "11")]
    pub(crate) max_mod_revision: i64,
    #[prost(int64, tag = "12")]
    pub(crate) min_create_revision: i64,
    #[prost(int64, tag = "13")]
    pub(crate) max_create_revision: i64,
}

/// The order of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum SortOrder {
    None = 0,
    Ascend = 1,
    Descend = 2,
}

/// What an answer is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum SortTarget {
    Key = 0,
    Version = 1,
    Create = 2,
    Mod = 3,
    Value = 4,
}

/// To [`RangeRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(crate) more: bool,
    #[prost(int64, tag = "4")]
    pub(crate) count: i64,
}

/// One of the answers to a [`RangeRequest`] of RangeStream.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeStreamResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) range_response: Option<RangeResponse>,
}

/// Writes a key.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
    #[prost(bool, tag = "4")]
    pub(crate) prev_kv: bool,
    #[prost(bool, tag = "5")]
    pub(crate) ignore_value: bool,
    #[prost(bool, tag = "6")]
    pub(crate) ignore_lease: bool,
}

/// To [`PutRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub(crate) prev_kv: Option<KeyValue>,
}

/// Deletes a key or a range.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: Bytes,
    #[prost(bool, tag = "3")]
    pub(crate) prev_kv: bool,
}

/// To [`DeleteRangeRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) deleted: i64,
    #[prost(message, repeated, tag = "3")]
    pub(crate) prev_kvs: Vec<KeyValue>,
}

/// An operation of a transaction.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "RequestUnion", tags = "1, 2, 3, 4")]
    pub(crate) request: Option<RequestUnion>,
}

/// Which operation.
#[derive(Clone, PartialEq, Oneof)]
#[expect(
    clippy::enum_variant_names,
    reason = "as the fields are named: the JSON form of the API shows them"
)]
pub(crate) enum RequestUnion {
    #[prost(message, tag = "1")]
    RequestRange(RangeRequest),
    #[prost(message, tag = "2")]
    RequestPut(PutRequest),
    #[prost(message, tag = "3")]
    RequestDeleteRange(DeleteRangeRequest),
    #[prost(message, tag = "4")]
    RequestTxn(TxnRequest),
}

/// The answer to an operation of a transaction.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseOp {
    #[prost(oneof = "ResponseUnion", tags = "1, 2, 3, 4")]
    pub(crate) response: Option<ResponseUnion>,
}

/// To which operation.
#[derive(Clone, PartialEq, Oneof)]
#[expect(
    clippy::enum_variant_names,
    reason = "as the fields are named: the JSON form of the API shows them"
)]
pub(crate) enum ResponseUnion {
    #[prost(message, tag = "1")]
    ResponseRange(RangeResponse),
    #[prost(message, tag = "2")]
    ResponsePut(PutResponse),
    #[prost(message, tag = "3")]
    ResponseDeleteRange(DeleteRangeResponse),
    #[prost(message, tag = "4")]
    ResponseTxn(TxnResponse),
}

/// A comparison of a transaction.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub(crate) result: i32,
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub(crate) target: i32,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) key: Bytes,
    #[prost(oneof = "CompareUnion", tags = "4, 5, 6, 7, 8")]
    pub(crate) target_union: Option<CompareUnion>,
    #[prost(bytes = "bytes", tag = "64")]
    pub(crate) range_end: Bytes,
}

/// The operator of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum CompareResult {
    Equal = 0,
    Greater = 1,
    Less = 2,
    NotEqual = 3,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum CompareTarget {
    Version = 0,
    Create = 1,
    Mod = 2,
    Value = 3,
    Lease = 4,
}

/// What it is compared with.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum CompareUnion {
    #[prost(int64, tag = "4")]
    Version(i64),
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(bytes = "bytes", tag = "7")]
    Value(Bytes),
    #[prost(int64, tag = "8")]
    Lease(i64),
}

/// Comparisons that choose between two lists of operations.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) failure: Vec<RequestOp>,
}

/// To [`TxnRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(crate) responses: Vec<ResponseOp>,
}

/// Compacts history.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CompactionRequest {
    #[prost(int64, tag = "1")]
    pub(crate) revision: i64,
    #[prost(bool, tag = "2")]
    pub(crate) physical: bool,
}

/// To [`CompactionRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CompactionResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}
