//! What peers say to each other.
//!
//! The dialling side opens a bidirectional stream and sends [`PeerHello`], the other side answers
//! with its own, or with what it knows of the caller's [`MemberStanding`] and closes; then each opens one-way streams and fills them with [`Raft`] frames. Streams
//! have no order between them, and consensus asks for none (P31).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::api::{Call, Error, Response};
use crate::kv::access::Author;
use crate::raft::{APPEND_WEIGHT_MAX, Envelope, MEMBERS_MAX, bounded};
use crate::types::{BootstrapId, ClusterId, Incarnation, LogId, LogIndex, NodeId};
use crate::wire::{Body, Kind, RequestContext, VersionRange};

/// A peer introduces itself. Never changes its shape, from the first release on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerHello {
    /// What the peer speaks.
    pub versions: VersionRange,
    /// Its cluster; checked before anything else.
    pub cluster_id: ClusterId,
    /// Its member id: derived from cluster, certificate name and incarnation.
    pub node_id: NodeId,
    /// Its name, as in its certificate.
    pub name: String,
    /// Which life of its data this is.
    pub incarnation: Incarnation,
    /// Where other peers reach it, as `host:port`.
    pub peer_address: String,
    /// Where clients reach it, as `host:port`.
    pub client_address: String,
    /// Where etcd's clients reach it, as a URL; empty if they do not.
    pub etcd_url: String,
    /// Drawn when the process started: tells a restarted peer from one that never went away.
    pub boot: u64,
    /// Rises with every hello of this process to that peer: tells, of two connections that cross,
    /// which hello was written before which.
    pub sequence: u64,
    /// Which bootstrap of its cluster it comes from, if it knows. One that comes from another is refused:
    /// their logs have the same places and terms, and different entries.
    pub bootstrap: Option<BootstrapId>,
}

/// What the cluster knows of the node at the other end, by the name in its certificate. A node without
/// data asks before it has an identity; one whose hello is refused receives it without asking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberStanding {
    /// What is known of me?
    Ask,
    /// This much.
    Known {
        /// Where the newest configuration stands in the log that is known to be committed: who was made
        /// a member later is not known here yet.
        index: LogIndex,
        /// The life of the node that is a member; `None` if none is.
        incarnation: Option<Incarnation>,
        /// The members that the cluster was bootstrapped with, by name; empty where that is not known.
        #[serde(deserialize_with = "bounded::<MEMBERS_MAX, _, _>")]
        initial_members: Vec<String>,
    },
}

/// The clocks of a peer as it sent this, in nanoseconds; sent about once a second. No lease rests on
/// it: it shows how fast clocks run against each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerClock {
    /// Its `CLOCK_BOOTTIME`.
    pub boot: u64,
    /// Its `CLOCK_MONOTONIC_RAW`.
    pub raw: u64,
}

/// So many messages fit one frame, even beside the heaviest append.
pub const ENVELOPES_MAX: usize = 1_024;

/// What one frame may take of its receiver's memory: messages and entries count for 1 each.
pub const FRAME_WEIGHT_MAX: usize = ENVELOPES_MAX + APPEND_WEIGHT_MAX;

/// Raft messages, as many as were waiting. They weigh at most [`FRAME_WEIGHT_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Raft {
    /// The messages, oldest first.
    #[serde(deserialize_with = "bounded::<FRAME_WEIGHT_MAX, _, _>")]
    pub envelopes: Vec<Envelope>,
}

/// What two peers say of a whole state that one sends to the other, on a two-way stream of its own:
/// an offer, how far it is there already, chunks, and how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transfer {
    /// The sender has a state for the receiver.
    Offer {
        /// Names this state at this sender: one of which the receiver has a part goes on there.
        export: u64,
        /// The entry that it ends with.
        base: LogId,
    },
    /// The receiver wants it, from this chunk on.
    Want {
        /// The number of the chunk.
        from: u64,
    },
    /// The receiver has its hands full with another one.
    Busy,
    /// The receiver has it, whole and durable.
    Done,
    /// The receiver cannot use what came, and has thrown it away.
    Failed {
        /// It was damaged; otherwise it could not be stored.
        corrupt: bool,
    },
}

/// A chunk of a state ([`crate::wire::state`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateChunk {
    /// The chunk.
    pub bytes: Bytes,
}

/// A request that a node has received and that only the leader can carry out, on a two-way stream of
/// such requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    /// Chosen by the sender, unique on its stream.
    pub id: u64,
    /// In whose name it is to be carried out, if that has to be known.
    pub author: Option<Author>,
    /// What is asked, with the time that its client still waits.
    pub call: Call,
    /// What the request says of itself; the span of its trace is that of the node that forwards it.
    pub context: RequestContext,
}

/// The leader's answer to a [`Forward`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardReply {
    /// Which request it answers.
    pub id: u64,
    /// The answer.
    pub result: Result<Response, Error>,
    /// How far the leader had applied the log: the entry of the request, if it became one, is contained.
    pub applied: LogIndex,
}

impl Body for Forward {
    const KIND: Kind = Kind::Forward;
}
impl Body for ForwardReply {
    const KIND: Kind = Kind::ForwardReply;
}
impl Body for Transfer {
    const KIND: Kind = Kind::Transfer;
}
impl Body for StateChunk {
    const KIND: Kind = Kind::StateChunk;
}
impl Body for PeerHello {
    const KIND: Kind = Kind::PeerHello;
}
impl Body for MemberStanding {
    const KIND: Kind = Kind::Standing;
}
impl Body for PeerClock {
    const KIND: Kind = Kind::PeerClock;
}
impl Body for Raft {
    const KIND: Kind = Kind::Raft;
}
