//! Connections of clients and peers, in numbers.

use metrics::{Counter, Gauge, Histogram};

use super::Register;

/// Connections of clients and peers.
pub struct TransportMetrics {
    /// The client port.
    pub client: PortMetrics,
    /// The peer port.
    pub peer: PortMetrics,
    /// Unauthenticated peers that had to validate their address with a Retry packet.
    pub retries: Counter,
    /// Connection attempts of unauthenticated peers that were ignored because there were too many.
    pub ignored: Counter,
    /// Connections that were found at another address than before.
    pub migrations: Counter,
}

/// One port's connections.
pub struct PortMetrics {
    /// Open connections.
    pub connections: Gauge,
    /// Frames that could not be decoded; each ends its connection.
    pub malformed_frames: Counter,
    /// When the certificate that this node shows there ends, in seconds since 1970.
    pub certificate_expiry_seconds: Gauge,
    /// Certificates that were taken into use while the node ran.
    pub certificate_reloads_ok: Counter,
    /// Certificates that had changed and could not be used.
    pub certificate_reloads_failed: Counter,
    /// Packets that went out and were taken for lost.
    pub lost_packets: Counter,
    /// Bytes that went out.
    pub sent_bytes: Counter,
    /// Bytes that came in.
    pub received_bytes: Counter,
    /// Round-trip times as QUIC estimates them, in seconds.
    pub round_trip_seconds: Histogram,
    handshakes: [Counter; HANDSHAKE_RESULTS.len()],
}

/// How a handshake may end, and at the end a place for what is not known here.
const HANDSHAKE_RESULTS: [&str; 10] = [
    "ok", "tls", "alpn", "timeout", "identity", "cluster", "version", "limit", "hello", "other",
];

impl PortMetrics {
    /// Handshakes of incoming connections that ended so: `ok`, or the name of the failure.
    pub fn handshakes(&self, result: &str) -> &Counter {
        let index = HANDSHAKE_RESULTS.iter().position(|known| *known == result);
        &self.handshakes[index.unwrap_or(HANDSHAKE_RESULTS.len() - 1)]
    }
}

impl TransportMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        Self {
            client: PortMetrics::new(register, "client"),
            peer: PortMetrics::new(register, "peer"),
            retries: register.counter(
                "leasehold_quic_retries_total",
                "Unauthenticated peers that had to validate their address with a Retry packet.",
            ),
            ignored: register.counter(
                "leasehold_quic_ignored_total",
                "Connection attempts of unauthenticated peers that were ignored because there were \
                 too many.",
            ),
            migrations: register.counter(
                "leasehold_quic_migrations_total",
                "Client connections seen at a new address since the previous scrape.",
            ),
        }
    }
}

impl PortMetrics {
    fn new(register: Register<'_>, kind: &'static str) -> Self {
        let labelled = || register.labelled(&[("kind", kind)]);
        let reloads = |result| {
            register
                .labelled(&[("role", kind), ("result", result)])
                .counter(
                    "leasehold_tls_reloads_total",
                    "Reloads of changed certificates while the node ran, by outcome.",
                )
        };
        Self {
            connections: labelled().gauge("leasehold_quic_connections", "Open connections."),
            malformed_frames: labelled().counter(
                "leasehold_malformed_frames_total",
                "Frames that could not be decoded; each ends its connection.",
            ),
            certificate_expiry_seconds: register.labelled(&[("role", kind)]).gauge(
                "leasehold_tls_certificate_expiry_timestamp_seconds",
                "Expiry of the certificate that this node presents on a port, as a Unix timestamp \
                 in seconds.",
            ),
            certificate_reloads_ok: reloads("ok"),
            certificate_reloads_failed: reloads("failed"),
            lost_packets: labelled().counter(
                "leasehold_quic_lost_packets_total",
                "Packets declared lost on authenticated connections.",
            ),
            sent_bytes: labelled().counter(
                "leasehold_quic_sent_bytes_total",
                "Bytes of UDP sent over authenticated connections.",
            ),
            received_bytes: labelled().counter(
                "leasehold_quic_received_bytes_total",
                "Bytes of UDP received over authenticated connections.",
            ),
            round_trip_seconds: labelled().histogram(
                "leasehold_quic_round_trip_seconds",
                "Round-trip time estimated by QUIC: one sample per open connection and scrape.",
            ),
            handshakes: HANDSHAKE_RESULTS.map(|result| {
                register
                    .labelled(&[("kind", kind), ("result", result)])
                    .counter(
                        "leasehold_quic_handshakes_total",
                        "Handshakes of incoming connections, by outcome.",
                    )
            }),
        }
    }
}
