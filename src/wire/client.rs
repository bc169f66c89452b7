//! What a client and a server say to each other.
//!
//! The first stream of a connection opens with [`ClientHello`] and is answered by
//! [`ServerHello`]; everything after that, on that stream and on further ones, is calls one way
//! and replies the other, in any order, matched by `request_id`.
//!
//! A watch is opened, asked and cancelled by calls like any other. Its events arrive on a one-way
//! stream of its own that the server opens, as [`WatchMessage`]s, of which the first names the watch;
//! the server ends the stream after the last. A client that gives the stream up ends the watch.

use bytes::BytesMut;
use serde::{Deserialize, Serialize};

use crate::api::{Call, Error, Response, WatchMessage};
use crate::types::{BootstrapId, ClusterId, NodeId};
use crate::wire::codec::encode_as;
use crate::wire::{Body, FrameLimits, Kind, RequestContext, VersionRange, WireError, encode};

/// A client introduces itself. Never changes its shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientHello {
    /// What the client speaks.
    pub versions: VersionRange,
    /// The cluster it looks for: the one in its certificate.
    pub cluster_id: ClusterId,
    /// What it calls itself, for logs; not an identity (that is in the certificate).
    pub name: String,
}

/// The server's answer. Never changes its shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerHello {
    /// Who answers, or why the client is turned away.
    pub result: Result<Welcome, Error>,
}

/// Who the client is talking to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version to speak from here on.
    pub version: u16,
    /// The server's cluster.
    pub cluster_id: ClusterId,
    /// The server's member id.
    pub member_id: NodeId,
    /// The server's name, as in its certificate.
    pub name: String,
    /// Which bootstrap of its cluster the server comes from, if it knows. Sessions of one are unknown to
    /// another, and so are revisions and leases.
    pub bootstrap: Option<BootstrapId>,
    /// Who leads, as far as the server knows: a first request may go there at once.
    pub leader: Option<KnownLeader>,
    /// Whether the server asks for read leases: linearizable reads are served by it without another node.
    pub serves_reads: bool,
}

/// A leader, as another node knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownLeader {
    /// The member.
    pub id: NodeId,
    /// Its client address, if it is known.
    pub address: Option<String>,
}

/// One request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientFrame {
    /// Chosen by the client, unique on its connection while the request waits.
    pub request_id: u64,
    /// What is asked.
    pub call: Call,
}

/// A request that says something of itself: what [`ClientFrame`] would be if it could grow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextFrame {
    /// What it says of itself.
    pub context: RequestContext,
    /// The request.
    pub frame: ClientFrame,
}

/// Appends a request as one frame: as a [`ContextFrame`] if it says something of itself, else as it is.
///
/// # Errors
/// [`WireError::TooLong`]; `out` is then as it was.
pub fn encode_call(
    context: &RequestContext,
    frame: &ClientFrame,
    limits: &FrameLimits,
    out: &mut BytesMut,
) -> Result<(), WireError> {
    match context.is_empty() {
        true => encode(frame, limits, out),
        false => encode_as::<ContextFrame>(&(context, frame), limits, out),
    }
}

/// The answer to one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFrame {
    /// Which request it answers.
    pub request_id: u64,
    /// The answer.
    pub result: Result<Response, Error>,
}

impl Body for ClientHello {
    const KIND: Kind = Kind::ClientHello;
}
impl Body for ServerHello {
    const KIND: Kind = Kind::ServerHello;
}
impl Body for ClientFrame {
    const KIND: Kind = Kind::Call;
}
impl Body for ContextFrame {
    const KIND: Kind = Kind::ContextCall;
}
impl Body for ServerFrame {
    const KIND: Kind = Kind::Reply;
}
impl Body for WatchMessage {
    const KIND: Kind = Kind::Watch;
}
