//! The transport's counters, for the metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// The two ports of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// Between nodes.
    Peer,
    /// Between clients and nodes.
    Client,
}

impl Port {
    /// Both ports.
    pub const ALL: [Self; 2] = [Self::Peer, Self::Client];

    /// The name used in logs and metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Client => "client",
        }
    }

    /// The protocol's name in the TLS handshake, which fails with the name of the other port.
    pub(crate) fn alpn(self) -> &'static [u8] {
        match self {
            Self::Peer => b"leasehold-peer/1",
            Self::Client => b"leasehold/1",
        }
    }
}

/// Why a connection could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HandshakeFailure {
    /// TLS failed: wrong authority, expired, no certificate.
    Tls,
    /// The other side supports another protocol.
    Alpn,
    /// The handshake timed out.
    Timeout,
    /// The certificate's identity is not allowed to connect here.
    Identity,
    /// The certificate or hello is of another cluster.
    Cluster,
    /// No protocol version in common.
    Version,
    /// Too many connections.
    Limit,
    /// The hello was missing or invalid.
    Hello,
    /// Any other cause, such as an address that does not answer.
    Other,
}

impl HandshakeFailure {
    /// All reasons.
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

/// Whether the `count`th event of its kind is logged: unauthenticated peers cause these events, and
/// must not be able to fill a disk.
pub fn is_worth_saying(count: u64) -> bool {
    count <= 10 || count.is_multiple_of(1000)
}

/// Traffic of connections, packet headers included. For a connection, since its beginning; for a
/// port, the sum over all its connections, including those that are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets declared lost.
    pub lost_packets: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

impl Traffic {
    /// The growth since `before`; zero where the value has fallen.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            lost_packets: self.lost_packets.saturating_sub(before.lost_packets),
            sent_bytes: self.sent_bytes.saturating_sub(before.sent_bytes),
            received_bytes: self.received_bytes.saturating_sub(before.received_bytes),
        }
    }
}

/// [`Traffic`], summed by several threads.
#[derive(Debug, Default)]
struct TrafficSum {
    lost_packets: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

/// Counters of one process, shared by its endpoints. All but `connections` are monotonic.
#[derive(Debug, Default)]
pub struct TransportStats {
    traffic: [TrafficSum; 2],
    migrations: AtomicU64,
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

    /// Malformed frames; each one closed its connection.
    pub fn malformed_frames(&self, port: Port) -> u64 {
        self.malformed_frames[port as usize].load(Ordering::Relaxed)
    }

    /// Open connections.
    pub fn connections(&self, port: Port) -> u64 {
        self.connections[port as usize].load(Ordering::Relaxed)
    }

    /// Traffic of this port's connections. For open connections, up to the last
    /// [`Endpoint::look`](super::Endpoint::look).
    pub fn traffic(&self, port: Port) -> Traffic {
        let sum = &self.traffic[port as usize];
        Traffic {
            lost_packets: sum.lost_packets.load(Ordering::Relaxed),
            sent_bytes: sum.sent_bytes.load(Ordering::Relaxed),
            received_bytes: sum.received_bytes.load(Ordering::Relaxed),
        }
    }

    /// Connections whose address had changed since the update before.
    pub fn migrations(&self) -> u64 {
        self.migrations.load(Ordering::Relaxed)
    }

    /// Unauthenticated peers that were required to validate their address first.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Unauthenticated peers that got no answer, because there were too many.
    pub fn ignored(&self) -> u64 {
        self.ignored.load(Ordering::Relaxed)
    }

    pub(crate) fn count_traffic(&self, port: Port, more: Traffic) {
        let sum = &self.traffic[port as usize];
        for (sum, more) in [
            (&sum.lost_packets, more.lost_packets),
            (&sum.sent_bytes, more.sent_bytes),
            (&sum.received_bytes, more.received_bytes),
        ] {
            sum.fetch_add(more, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_migration(&self) {
        self.migrations.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_ok(&self, port: Port) {
        self.handshakes_ok[port as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the failure, and returns the new count.
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
