//! Connections of clients and peers.

use std::sync::atomic::{AtomicU64, Ordering};

use super::table::{
    By, ByName, Counter, Gauge, Handle, Histogram, LabelNames, Register, labels, metrics,
};

/// Connections of clients and peers.
pub struct TransportMetrics {
    /// The client port.
    pub client: PortMetrics,
    /// The peer port.
    pub peer: PortMetrics,
    /// Connections at both ports.
    pub quic: QuicMetrics,
}

metrics! {
    /// Connections at both ports.
    pub struct QuicMetrics {
        pub retries: Counter = "leasehold_quic_retries_total",
            "Unauthenticated peers that had to validate their address with a Retry packet.";
        pub ignored: Counter = "leasehold_quic_ignored_total",
            "Connection attempts of unauthenticated peers that were ignored because there were \
             too many.";
        pub migrations: Counter = "leasehold_quic_migrations_total",
            "Client connections seen at a new address since the previous scrape.";
    }
}

/// One port.
pub struct PortMetrics {
    /// Its connections.
    pub connections: ConnectionMetrics,
    /// Its certificate.
    pub certificate: CertificateMetrics,
}

metrics! {
    /// Connections of one port.
    pub struct ConnectionMetrics {
        pub open: Gauge = "leasehold_quic_connections", "Open connections.";
        pub handshakes: ByName<HandshakeResults, Counter> = "leasehold_quic_handshakes_total",
            "Handshakes of incoming connections, by outcome.";
        pub malformed_frames: Counter = "leasehold_malformed_frames_total",
            "Frames that could not be decoded; each ends its connection.";
        pub lost_packets: Counter = "leasehold_quic_lost_packets_total",
            "Packets declared lost on authenticated connections.";
        pub sent_bytes: Counter = "leasehold_quic_sent_bytes_total",
            "Bytes of UDP sent over authenticated connections.";
        pub received_bytes: Counter = "leasehold_quic_received_bytes_total",
            "Bytes of UDP received over authenticated connections.";
        pub round_trip_seconds: Histogram = "leasehold_quic_round_trip_seconds",
            "Round-trip time estimated by QUIC: one sample per open connection and scrape.";
    }
}

metrics! {
    /// The certificate of one port.
    pub struct CertificateMetrics {
        pub expiry_seconds: ReadableGauge = "leasehold_tls_certificate_expiry_timestamp_seconds",
            "Expiry of the certificate that this node presents on a port, as a Unix timestamp \
             in seconds.";
        pub reloads: By<ReloadResult, Counter> = "leasehold_tls_reloads_total",
            "Reloads of changed certificates while the node ran, by outcome.";
    }
}

labels! {
    /// The outcome of a reload of changed certificates.
    pub enum ReloadResult: "result" {
        /// The new certificate is in use.
        Ok = "ok",
        /// The new certificate is invalid: the old one stays in use.
        Failed = "failed",
    }
}

/// A gauge whose value can be read, too.
pub struct ReadableGauge {
    gauge: Gauge,
    last: AtomicU64,
}

impl Handle for ReadableGauge {
    fn register(register: &Register, name: &'static str, help: &'static str) -> Self {
        Self {
            gauge: Gauge::register(register, name, help),
            last: AtomicU64::new(0),
        }
    }
}

impl ReadableGauge {
    /// Sets the value.
    pub fn set(&self, value: f64) {
        self.last.store(value.to_bits(), Ordering::Relaxed);
        self.gauge.set(value);
    }

    /// The value that was set last; 0 before.
    pub fn last(&self) -> f64 {
        f64::from_bits(self.last.load(Ordering::Relaxed))
    }
}

/// The outcomes of handshakes: `ok`, or the name of the failure.
pub struct HandshakeResults;

impl LabelNames for HandshakeResults {
    const LABEL: &'static str = "result";

    fn names() -> impl Iterator<Item = &'static str> {
        let results = [
            "ok", "tls", "alpn", "timeout", "identity", "cluster", "version", "limit", "hello",
        ];
        results.into_iter()
    }
}

impl TransportMetrics {
    pub(super) fn new(register: &Register) -> Self {
        Self {
            client: PortMetrics::new(register, "client"),
            peer: PortMetrics::new(register, "peer"),
            quic: QuicMetrics::new(register),
        }
    }
}

impl PortMetrics {
    fn new(register: &Register, port: &'static str) -> Self {
        Self {
            connections: ConnectionMetrics::new(&register.with("kind", port)),
            certificate: CertificateMetrics::new(&register.with("role", port)),
        }
    }
}
