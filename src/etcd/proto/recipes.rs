//! Locks and elections: the services `v3lockpb.Lock` and `v3electionpb.Election`.

use bytes::Bytes;
use prost::Message;

use super::kv::{KeyValue, ResponseHeader};

/// Takes a lock, and waits for it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LockRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) name: Bytes,
    #[prost(int64, tag = "2")]
    pub(crate) lease: i64,
}

/// To [`LockRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LockResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) key: Bytes,
}

/// Gives a lock up.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UnlockRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
}

/// To [`UnlockRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UnlockResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

/// Stands for election, and waits until it is won.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CampaignRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) name: Bytes,
    #[prost(int64, tag = "2")]
    pub(crate) lease: i64,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) value: Bytes,
}

/// To [`CampaignRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CampaignResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub(crate) leader: Option<LeaderKey>,
}

/// What a leader holds.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaderKey {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) name: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) key: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) rev: i64,
    #[prost(int64, tag = "4")]
    pub(crate) lease: i64,
}

/// Asks who leads; once, or again and again.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaderRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) name: Bytes,
}

/// To [`LeaderRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaderResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
}

/// Gives leadership up.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResignRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) leader: Option<LeaderKey>,
}

/// To [`ResignRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResignResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

/// Changes what the leader says.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProclaimRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) leader: Option<LeaderKey>,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

/// To [`ProclaimRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProclaimResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}
