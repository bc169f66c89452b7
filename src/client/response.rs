//! The replies of the client's methods.

use bytes::Bytes;

use crate::api::{
    Error, ErrorKind, KeyValue, Outcome, RangeCount, RangeResponse, ResponseBody, ResponseHeader,
    TxnOpResponse,
};
use crate::wire::point::PointReply;

/// The keys that a [`get`](crate::client::Client::get) found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetResponse {
    /// The node that answered, its revision, and how the read was served.
    pub header: ResponseHeader,
    /// The keys found, in the requested order.
    pub kvs: Vec<KeyValue>,
    /// Whether a limit cut the result short.
    pub more: bool,
    /// How many keys the range holds, whatever limit and filters. `None` if there are more than the reply has, and
    /// their number was not [asked for](super::GetOptions::with_count).
    pub count: Option<u64>,
}

impl From<PointReply> for GetResponse {
    fn from(reply: PointReply) -> Self {
        Self {
            header: reply.header,
            kvs: reply.kv.into_iter().collect(),
            more: false,
            count: Some(reply.count),
        }
    }
}

impl GetResponse {
    pub(super) fn new(header: ResponseHeader, found: RangeResponse, asked: RangeCount) -> Self {
        let is_counted = asked.is_whole(found.more);
        Self {
            header,
            kvs: found.kvs,
            more: found.more,
            count: is_counted.then_some(found.count),
        }
    }

    /// The first key found: for a get of one key, that key if it exists.
    pub fn kv(&self) -> Option<&KeyValue> {
        self.kvs.first()
    }

    /// The value of the first key found.
    pub fn value(&self) -> Option<&Bytes> {
        self.kv().map(|kv| &kv.value)
    }
}

/// The reply of a [`put`](crate::client::Client::put) that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutResponse {
    /// The node that answered, and the revision of this write.
    pub header: ResponseHeader,
    /// The previous key-value pair, if it existed and was requested.
    pub prev_kv: Option<KeyValue>,
}

/// The reply of a [`put_sequential`](crate::client::Client::put_sequential) that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequentialPutResponse {
    /// The node that answered, and the revision of this write, which created the key.
    pub header: ResponseHeader,
    /// The key that was written.
    pub key: Bytes,
}

/// The reply of a [`delete`](crate::client::Client::delete) that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteResponse {
    /// The node that answered, and the revision of this write.
    pub header: ResponseHeader,
    /// The number of keys deleted.
    pub deleted: u64,
    /// The deleted key-value pairs, if requested.
    pub prev_kvs: Vec<KeyValue>,
}

/// The reply of a [`txn`](crate::client::Client::txn) that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnResponse {
    /// The node that answered, and the revision: that of the transaction's changes, if it made any.
    pub header: ResponseHeader,
    /// Whether all comparisons held.
    pub succeeded: bool,
    /// The results of the executed operations, in their order.
    pub responses: Vec<TxnOpResponse>,
}

/// The result of a [`create`](crate::client::Client::create), a
/// [`compare_and_swap`](crate::client::Client::compare_and_swap) or a
/// [`compare_and_delete`](crate::client::Client::compare_and_delete).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CasResponse {
    /// The node that answered, and the revision: on success that of the change, which is the mod
    /// revision for the next compare-and-swap.
    pub header: ResponseHeader,
    /// Whether the key was as expected, and has been changed.
    pub succeeded: bool,
    /// Without success, the current key-value pair; `None` if the key does not exist.
    pub current: Option<KeyValue>,
}

/// The reply of a [`compact`](crate::client::Client::compact) that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionResponse {
    /// The node that answered, and the store's revision at that time.
    pub header: ResponseHeader,
}

/// The status of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusResponse {
    /// The node that answered.
    pub header: ResponseHeader,
    /// Its status.
    pub status: crate::api::StatusResponse,
}

/// The error for a reply of another type than its request calls for.
pub(super) fn unexpected_response(body: &ResponseBody, outcome: Outcome) -> Error {
    let shape = match body {
        ResponseBody::Range(_) => "range",
        ResponseBody::Put(_) => "put",
        ResponseBody::DeleteRange(_) => "delete",
        ResponseBody::OpenSession { .. } => "session",
        ResponseBody::Status(_) => "status",
        ResponseBody::MoveLeader => "move-leader",
        ResponseBody::Compact => "compact",
        ResponseBody::LeaderLeaseReport(_) => "leader-lease-report",
        ResponseBody::Txn(_) => "transaction",
        ResponseBody::LeaseGrant(_) => "lease-grant",
        ResponseBody::LeaseRevoke(_) => "lease-revoke",
        ResponseBody::LeaseKeepAlive(_) => "lease-keep-alive",
        ResponseBody::LeaseTimeToLive(_) => "lease-time-to-live",
        ResponseBody::LeaseList(_) => "lease-list",
        ResponseBody::LeaseUpdateTtl { .. } => "lease-update-ttl",
        ResponseBody::PutWithNewLease(_) => "put-with-new-lease",
        ResponseBody::RangePage(_) => "page",
        ResponseBody::Watch => "watch",
        ResponseBody::WatchCancel => "watch-cancel",
        ResponseBody::WatchProgress => "watch-progress",
        ResponseBody::Snapshot(_) => "snapshot",
        ResponseBody::Members(_) => "member",
        ResponseBody::Auth(_) => "auth",
        ResponseBody::Alarms(_) => "alarms",
        ResponseBody::ForwardToLeader => "forward-to-leader",
        ResponseBody::LeaseNamed(_) => "lease-named",
    };
    Error {
        kind: ErrorKind::Internal,
        outcome,
        detail: format!("the server sent a {shape} reply, which does not match the request"),
        tries: None,
    }
}
