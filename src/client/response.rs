//! What requests are answered with.

use bytes::Bytes;

use crate::api::{KeyValue, ResponseHeader, TxnOpResponse};
use crate::wire::point::PointReply;

/// The keys that a [`get`](crate::client::Client::get) found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetResponse {
    /// Who answered, at which revision, and how the read was served.
    pub header: ResponseHeader,
    /// The keys found, in the order asked for.
    pub kvs: Vec<KeyValue>,
    /// There are more than these: a limit was reached.
    pub more: bool,
    /// How many there are in all, whatever the limit.
    pub count: u64,
}

impl From<PointReply> for GetResponse {
    fn from(reply: PointReply) -> Self {
        Self {
            header: reply.header,
            kvs: reply.kv.into_iter().collect(),
            more: false,
            count: reply.count,
        }
    }
}

impl GetResponse {
    /// Who answered, at which revision, and how the read was served.
    pub fn header(&self) -> &ResponseHeader {
        &self.header
    }

    /// The first key found: of a get of one key, that key if it exists.
    pub fn kv(&self) -> Option<&KeyValue> {
        self.kvs.first()
    }

    /// The value of the first key found.
    pub fn value(&self) -> Option<&Bytes> {
        self.kv().map(|kv| &kv.value)
    }
}

/// A [`put`](crate::client::Client::put) took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutResponse {
    /// Who answered, and the revision of this write.
    pub header: ResponseHeader,
    /// What the key held before, if it existed and was asked for.
    pub prev_kv: Option<KeyValue>,
}

impl PutResponse {
    /// Who answered, and the revision of this write.
    pub fn header(&self) -> &ResponseHeader {
        &self.header
    }
}

/// A [`delete`](crate::client::Client::delete) took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteResponse {
    /// Who answered, and the revision of this write.
    pub header: ResponseHeader,
    /// How many keys were deleted.
    pub deleted: u64,
    /// What they held before, if asked for.
    pub prev_kvs: Vec<KeyValue>,
}

impl DeleteResponse {
    /// Who answered, and the revision of this write.
    pub fn header(&self) -> &ResponseHeader {
        &self.header
    }
}

/// A [`txn`](crate::client::Client::txn) was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnResponse {
    /// Who answered, and at which revision: that of its changes, if it made any.
    pub header: ResponseHeader,
    /// Whether all comparisons held.
    pub succeeded: bool,
    /// The answers to the operations that were carried out, in their order.
    pub responses: Vec<TxnOpResponse>,
}

impl TxnResponse {
    /// Who answered, and at which revision: that of its changes, if it made any.
    pub fn header(&self) -> &ResponseHeader {
        &self.header
    }
}

/// What became of a [`create`](crate::client::Client::create), a
/// [`compare_and_swap`](crate::client::Client::compare_and_swap) or a
/// [`compare_and_delete`](crate::client::Client::compare_and_delete).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CasResponse {
    /// Who answered, and at which revision: if it succeeded, that of the change, which is the mod
    /// revision for the next compare-and-swap.
    pub header: ResponseHeader,
    /// The key was as expected, and has been changed.
    pub succeeded: bool,
    /// If not: what the key holds instead; `None` if it does not exist.
    pub current: Option<KeyValue>,
}

impl CasResponse {
    /// Who answered, and at which revision.
    pub fn header(&self) -> &ResponseHeader {
        &self.header
    }
}

/// A [`compact`](crate::client::Client::compact) took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionResponse {
    /// Who answered, and the store's revision then.
    pub header: ResponseHeader,
}

impl CompactionResponse {
    /// Who answered, and the store's revision then.
    pub fn header(&self) -> &ResponseHeader {
        &self.header
    }
}

/// How the asked node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusResponse {
    /// Who answered.
    pub header: ResponseHeader,
    /// How it is.
    pub status: crate::api::StatusResponse,
}

impl StatusResponse {
    /// Who answered.
    pub fn header(&self) -> &ResponseHeader {
        &self.header
    }
}
