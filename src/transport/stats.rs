//! What the transport counts, for the metrics to read.

use std::sync::atomic::{AtomicU64, Ordering};

/// The two ports of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// Nodes among themselves.
    Peer,
    /// Clients and nodes.
    Client,
}

impl Port {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Peer, Self::Client];

    /// The name used in logs and metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Client => "client",
        }
    }

    /// The protocol's name in the TLS handshake: nobody gets past it with the other port's.
    pub(crate) fn alpn(self) -> &'static [u8] {
        match self {
            Self::Peer => b"leasehold-peer/1",
            Self::Client => b"leasehold/1",
        }
    }
}

/// Why a connection did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HandshakeFailure {
    /// TLS failed: wrong authority, expired, no certificate.
    Tls,
    /// The other side speaks another protocol.
    Alpn,
    /// It took too long.
    Timeout,
    /// The certificate names nobody who may connect here.
    Identity,
    /// The certificate or hello is of another cluster.
    Cluster,
    /// No protocol version in common.
    Version,
    /// Too many connections.
    Limit,
    /// The hello was missing or made no sense.
    Hello,
    /// Anything else, such as an address where nobody answers.
    Other,
}

impl HandshakeFailure {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Tls,
        Self::Alpn,
        Self::Timeout,
        Self::Identity,
        Self::Cluster,
        Self::Version,
        Self::Limit,
        Self::Hello,
        Self::Other,
    ];

    /// The name used in logs and metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Alpn => "alpn",
            Self::Timeout => "timeout",
            Self::Identity => "identity",
            Self::Cluster => "cluster",
            Self::Version => "version",
            Self::Limit => "limit",
            Self::Hello => "hello",
            Self::Other => "other",
        }
    }
}

/// Whether the `count`th event of its kind deserves a line in the log: strangers cause these, and
/// must not be able to fill a disk.
pub fn is_worth_saying(count: u64) -> bool {
    count <= 10 || count.is_multiple_of(1000)
}

/// Counters of one process, shared by its endpoints. All but `connections` only rise.
#[derive(Debug, Default)]
pub struct TransportStats {
    handshakes_ok: [AtomicU64; 2],
    handshakes_failed: [[AtomicU64; HandshakeFailure::ALL.len()]; 2],
    malformed_frames: [AtomicU64; 2],
    connections: [AtomicU64; 2],
    retries: AtomicU64,
    ignored: AtomicU64,
}

impl TransportStats {
    /// Handshakes that led to a connection.
    pub fn handshakes_ok(&self, port: Port) -> u64 {
        self.handshakes_ok[port as usize].load(Ordering::Relaxed)
    }

    /// Handshakes that failed for this reason.
    pub fn handshakes_failed(&self, port: Port, reason: HandshakeFailure) -> u64 {
        self.handshakes_failed[port as usize][reason as usize].load(Ordering::Relaxed)
    }

    /// Frames that were none; each cost its sender the connection.
    pub fn malformed_frames(&self, port: Port) -> u64 {
        self.malformed_frames[port as usize].load(Ordering::Relaxed)
    }

    /// Connections open now.
    pub fn connections(&self, port: Port) -> u64 {
        self.connections[port as usize].load(Ordering::Relaxed)
    }

    /// Strangers who were asked to prove their address first.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Strangers who got no answer, because there were too many.
    pub fn ignored(&self) -> u64 {
        self.ignored.load(Ordering::Relaxed)
    }

    pub(crate) fn count_ok(&self, port: Port) {
        self.handshakes_ok[port as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts, and says how many that makes.
    pub(crate) fn count_failed(&self, port: Port, reason: HandshakeFailure) -> u64 {
        self.handshakes_failed[port as usize][reason as usize].fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn count_malformed(&self, port: Port) {
        self.malformed_frames[port as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_ignored(&self) {
        self.ignored.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn opened(&self, port: Port) {
        self.connections[port as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn closed(&self, port: Port) {
        self.connections[port as usize].fetch_sub(1, Ordering::Relaxed);
    }
}
