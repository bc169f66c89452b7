//! Watches: the service `etcdserverpb.Watch`.

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

use super::kv::{KeyValue, ResponseHeader};

/// A request on a stream of watches.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {
    #[prost(oneof = "WatchRequestUnion", tags = "1, 2, 3")]
    pub(crate) request: Option<WatchRequestUnion>,
}

/// Which request.
#[derive(Clone, PartialEq, Oneof)]
#[expect(
    clippy::enum_variant_names,
    reason = "as the fields are named: the JSON form of the API shows them"
)]
pub(crate) enum WatchRequestUnion {
    #[prost(message, tag = "1")]
    CreateRequest(WatchCreateRequest),
    #[prost(message, tag = "2")]
    CancelRequest(WatchCancelRequest),
    #[prost(message, tag = "3")]
    ProgressRequest(WatchProgressRequest),
}

/// Opens a watch.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCreateRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) start_revision: i64,
    #[prost(bool, tag = "4")]
    pub(crate) progress_notify: bool,
    #[prost(enumeration = "WatchFilter", repeated, tag = "5")]
    pub(crate) filters: Vec<i32>,
    #[prost(bool, tag = "6")]
    pub(crate) prev_kv: bool,
    #[prost(int64, tag = "7")]
    pub(crate) watch_id: i64,
    #[prost(bool, tag = "8")]
    pub(crate) fragment: bool,
}

/// What a watch leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum WatchFilter {
    NoPut = 0,
    NoDelete = 1,
}

/// Ends a watch.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCancelRequest {
    #[prost(int64, tag = "1")]
    pub(crate) watch_id: i64,
}

/// Asks how far the watches of the stream are.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchProgressRequest {}

/// What a stream of watches sends.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) watch_id: i64,
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(crate) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(crate) cancel_reason: String,
    #[prost(bool, tag = "7")]
    pub(crate) fragment: bool,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<Event>,
}

/// A change of a key.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    #[prost(enumeration = "EventType", tag = "1")]
    pub(crate) r#type: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
    #[prost(message, optional, tag = "3")]
    pub(crate) prev_kv: Option<KeyValue>,
}

/// What was done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum EventType {
    Put = 0,
    Delete = 1,
}
