//! What requests are answered with.

use bytes::Bytes;

use crate::api::KeyValue;
use crate::api::ResponseHeader;
use crate::wire::point::PointReply;

/// The keys that a [`get`](crate::client::Client::get) found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetResponse {
    /// Who answered, at which revision, and how the read was served.
    pub header: ResponseHeader,
    /// The keys found, in key order.
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
