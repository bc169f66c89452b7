//! The configuration of the connections to peers, and the handler of what arrives on them.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use crate::raft::Envelope;
use crate::server::peers::roster::Roster;
use crate::transport::{Admission, FrameStream, Tls};
use crate::types::{BootstrapId, Incarnation, LogIndex, NodeId, VersionRange};
use crate::wire::FrameLimits;

/// Who this node is to its peers, and where they are.
#[derive(Clone, Debug)]
pub struct PeersConfig {
    /// Where to listen.
    pub bind: SocketAddr,
    /// The certificate of this node's peer port.
    pub tls: Tls,
    /// This node's member id.
    pub node_id: NodeId,
    /// Which life of this node's data this is.
    pub incarnation: Incarnation,
    /// Where peers reach this node, as `host:port`; empty means the address bound, or, if that
    /// is every address of the machine, that only the peers' configuration knows.
    pub peer_address: String,
    /// Where clients reach this node, as `host:port`.
    pub client_address: String,
    /// Where etcd's clients reach this node, as a URL; empty if they do not.
    pub etcd_url: String,
    /// The other members, as far as they are known at first. Any other node is refused.
    pub roster: Roster,
    /// How long frames may be.
    pub limits: FrameLimits,
    /// How many callers are put up with.
    pub admission: Admission,
    /// Which bootstrap of its cluster this node comes from, once it knows.
    pub bootstrap: Arc<OnceLock<BootstrapId>>,
    /// Drawn at random when the process starts: names this process, and jitters its back-off.
    pub seed: u64,
}

/// What becomes of what arrives. Called on the thread of the peers, which must not be held up.
pub trait PeerHandler: Send + Sync + 'static {
    /// A message came from the member that it says it is from.
    fn on_message(&self, envelope: Envelope);

    /// A connection to this member is at work. Comes again, without a disconnect between, when a
    /// newer connection takes the older one's place.
    fn on_connected(&self, peer: &PeerInfo) {
        let _ = peer;
    }

    /// The clocks of this member run faster than ours by `ratio`: 1e-6 is a microsecond a second.
    fn on_drift(&self, peer: &PeerInfo, ratio: f64) {
        let _ = (peer, ratio);
    }

    /// This member has opened a two-way stream, on which it wants to send a state or requests. Called
    /// inside the runtime of the peers, where tasks may be spawned for it.
    fn on_stream(&self, peer: &PeerInfo, stream: FrameStream) {
        let _ = (peer, stream);
    }

    /// The member `by` refuses this node's hello, and has said what it knows: of the newest
    /// configuration that is committed, where it stands, and which life of this node is in it, if any.
    fn on_standing(&self, by: &str, index: LogIndex, incarnation: Option<Incarnation>) {
        let _ = (by, index, incarnation);
    }

    /// This member has closed the connection at work because another process has taken this one's place.
    /// Two connections that cross may end so, too.
    fn on_displaced(&self, by: &PeerInfo) {
        let _ = by;
    }

    /// A member was refused, because it comes from another bootstrap of this cluster.
    fn on_other_bootstrap(&self, peer: &str, theirs: BootstrapId) {
        let _ = (peer, theirs);
    }

    /// There is no connection to this member any more.
    fn on_disconnected(&self, peer: NodeId) {
        let _ = peer;
    }
}

/// What a peer has said of itself, checked against its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its member id.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Which life of its data this is.
    pub incarnation: Incarnation,
    /// Where peers reach it.
    pub peer_address: String,
    /// Where clients reach it.
    pub client_address: String,
    /// Where etcd's clients reach it, as a URL.
    pub etcd_url: String,
    /// The versions of the cluster that it knows.
    pub versions: VersionRange,
    /// Drawn when its process started.
    pub boot: u64,
    /// Where it speaks from.
    pub from: SocketAddr,
    /// Which bootstrap of its cluster it comes from, if it knew.
    pub bootstrap: Option<BootstrapId>,
}
