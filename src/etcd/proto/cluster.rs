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

/// Adds a member.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberAddRequest {
    #[prost(string, repeated, tag = "1")]
    pub(crate) peer_urls: Vec<String>,
    #[prost(bool, tag = "2")]
    pub(crate) is_learner: bool,
}

/// To [`MemberAddRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberAddResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub(crate) member: Option<Member>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) members: Vec<Member>,
}

/// Removes a member.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberRemoveRequest {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
}

/// To [`MemberRemoveRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberRemoveResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) members: Vec<Member>,
}

/// Gives a member other URLs.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberUpdateRequest {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(string, repeated, tag = "2")]
    pub(crate) peer_urls: Vec<String>,
}

/// To [`MemberUpdateRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberUpdateResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) members: Vec<Member>,
}

/// Makes a learner a voter.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberPromoteRequest {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
}

/// To [`MemberPromoteRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberPromoteResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) members: Vec<Member>,
}
