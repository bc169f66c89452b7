//! Members: the service `etcdserverpb.Cluster`.

use prost::Message;

use super::kv::ResponseHeader;

/// A member of the cluster.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Member {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "3")]
    pub(crate) peer_urls: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(crate) client_urls: Vec<String>,
    #[prost(bool, tag = "5")]
    pub(crate) is_learner: bool,
}

/// Asks for all members.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberListRequest {
    #[prost(bool, tag = "1")]
    pub(crate) linearizable: bool,
}

/// To [`MemberListRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberListResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) members: Vec<Member>,
}
