//! One authenticated connection, and how it ends.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustls_pki_types::CertificateDer;

use crate::sync::Mutex;
use crate::transport::{
    HandshakeFailure, IdentityError, PeerIdentity, Port, SpiffeUsers, Tls, Traffic, TransportStats,
};
use crate::types::ClusterId;
use crate::wire::{FrameLimits, WireError};

/// Why one side closed a connection; sent to the other side. The numbers never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CloseCode {
    /// No longer needed.
    Done = 0,
    /// The other side sent bytes that are not a valid frame.
    Malformed = 1,
    /// A second connection between the same two peers; the other one stays.
    Duplicate = 2,
    /// The certificate's identity is not allowed to connect here.
    Identity = 3,
    /// The certificate is of another cluster.
    Cluster = 4,
    /// No protocol version in common.
    Version = 5,
    /// Too many connections.
    Busy = 6,
    /// This side is stopping.
    Stopping = 7,
    /// The hello did not arrive, or was invalid.
    Hello = 8,
    /// A newer incarnation of the same member is known.
    Outdated = 9,
    /// The certificate has expired, or its authority is no longer trusted. A peer with a new
    /// certificate may reconnect.
    Untrusted = 10,
    /// The peer comes from another bootstrap of the same cluster.
    Bootstrap = 11,
}

impl CloseCode {
    fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Done,
            1 => Self::Malformed,
            2 => Self::Duplicate,
            3 => Self::Identity,
            4 => Self::Cluster,
            5 => Self::Version,
            6 => Self::Busy,
            7 => Self::Stopping,
            8 => Self::Hello,
            9 => Self::Outdated,
            10 => Self::Untrusted,
            11 => Self::Bootstrap,
            _ => return None,
        })
    }

    fn words(self) -> &'static str {
        match self {
            Self::Done => "no longer needed",
            Self::Malformed => "malformed frame",
            Self::Duplicate => "duplicate connection",
            Self::Identity => "identity not accepted here",
            Self::Cluster => "another cluster",
            Self::Version => {
                "no supported version in common with the cluster: run the release of the other \
                 members"
            }
            Self::Busy => "too many connections",
            Self::Stopping => "stopping",
            Self::Hello => "hello missing or malformed",
            Self::Outdated => "a newer incarnation exists",
            Self::Untrusted => "the certificate is no longer trusted: reconnect",
            Self::Bootstrap => {
                "this node comes from another bootstrap of the cluster than that member: see its \
                 warnings in `endpoint status`"
            }
        }
    }

    fn failure(self) -> HandshakeFailure {
        match self {
            Self::Identity | Self::Outdated | Self::Untrusted => HandshakeFailure::Identity,
            Self::Cluster | Self::Bootstrap => HandshakeFailure::Cluster,
            Self::Version => HandshakeFailure::Version,
            Self::Busy => HandshakeFailure::Limit,
            Self::Hello | Self::Malformed => HandshakeFailure::Hello,
            Self::Done | Self::Duplicate | Self::Stopping => HandshakeFailure::Other,
        }
    }
}

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionLost {
    /// The other side closed it.
    #[error("the other side closed the connection: {}", .0.words())]
    Closed(CloseCode),
    /// This side closed it.
    #[error("the connection was closed")]
    ClosedHere,
    /// The other side stopped responding.
    #[error("the other side stopped responding")]
    TimedOut,
    /// The other side does not know the connection: it was restarted.
    #[error("the other side has restarted")]
    Reset,
    /// The other side closed it during the TLS handshake or right after.
    #[error("the other side refused the TLS handshake: {0}")]
    Tls(String),
    /// The other side gave it up during the handshake.
    #[error("the other side gave up during the handshake")]
    GivenUp,
    /// Any other cause.
    #[error("the connection broke: {0}")]
    Other(String),
}

impl ConnectionLost {
    pub(crate) fn of(error: &quinn::ConnectionError) -> Self {
        match error {
            quinn::ConnectionError::ApplicationClosed(close) => {
                match CloseCode::from_number(close.error_code.into_inner()) {
                    Some(code) => Self::Closed(code),
                    None => Self::Other(close.to_string()),
                }
            }
            quinn::ConnectionError::LocallyClosed => Self::ClosedHere,
            quinn::ConnectionError::TimedOut => Self::TimedOut,
            quinn::ConnectionError::Reset => Self::Reset,
            quinn::ConnectionError::ConnectionClosed(close)
                if crypto_alert(close.error_code).is_some() =>
            {
                Self::Tls(alert_words(
                    crypto_alert(close.error_code).unwrap_or_default(),
                ))
            }
            quinn::ConnectionError::TransportError(error) if crypto_alert(error.code).is_some() => {
                Self::Tls(error.reason.clone())
            }
            // A close that no code explains before the handshake is complete (RFC 9000, section 10.2.3).
            quinn::ConnectionError::ConnectionClosed(close)
                if close.error_code == quinn::TransportErrorCode::APPLICATION_ERROR =>
            {
                Self::GivenUp
            }
            other => Self::Other(other.to_string()),
        }
    }
}

/// Why a connection could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The address cannot be used or resolved.
    #[error("{address} cannot be reached: {reason}")]
    Address {
        /// The address.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The address did not answer in time.
    #[error("{address} did not answer in time")]
    Timeout {
        /// The address.
        address: String,
    },
    /// TLS failed.
    #[error("TLS handshake with {address} failed: {reason}")]
    Tls {
        /// The address.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The other side does not support our protocol.
    #[error("{address} speaks another protocol: is this the right port?")]
    Alpn {
        /// The address.
        address: String,
    },
    /// The other side has another identity than expected.
    #[error("{address}: {source}")]
    Identity {
        /// The address.
        address: String,
        /// The reason.
        source: IdentityError,
    },
    /// The other side closed the connection during the handshake.
    #[error("{address}: {lost}")]
    Lost {
        /// The address.
        address: String,
        /// The cause.
        lost: ConnectionLost,
    },
}

impl ConnectError {
    pub(crate) fn of(address: SocketAddr, error: &quinn::ConnectionError) -> Self {
        let address = address.to_string();
        let code = match error {
            quinn::ConnectionError::TransportError(error) => crypto_alert(error.code),
            quinn::ConnectionError::ConnectionClosed(close) => crypto_alert(close.error_code),
            quinn::ConnectionError::TimedOut => return Self::Timeout { address },
            _ => None,
        };
        match (code, ConnectionLost::of(error)) {
            (Some(NO_APPLICATION_PROTOCOL), _) => Self::Alpn { address },
            (_, ConnectionLost::Tls(reason)) => Self::Tls { address, reason },
            (_, lost) => Self::Lost { address, lost },
        }
    }

    /// The reason for which the metrics count it.
    pub fn failure(&self) -> HandshakeFailure {
        match self {
            Self::Address { .. } => HandshakeFailure::Other,
            Self::Timeout { .. } => HandshakeFailure::Timeout,
            Self::Tls { .. } => HandshakeFailure::Tls,
            Self::Alpn { .. } => HandshakeFailure::Alpn,
            Self::Identity { source, .. } => failure_of(source),
            Self::Lost { lost, .. } => match lost {
                ConnectionLost::Closed(code) => code.failure(),
                ConnectionLost::TimedOut => HandshakeFailure::Timeout,
                ConnectionLost::Tls(_) => HandshakeFailure::Tls,
                _ => HandshakeFailure::Other,
            },
        }
    }
}

fn failure_of(error: &IdentityError) -> HandshakeFailure {
    match error {
        IdentityError::ForeignCluster { .. } => HandshakeFailure::Cluster,
        _ => HandshakeFailure::Identity,
    }
}

/// TLS alert 120.
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// The TLS alert in a QUIC error code, if it is one.
fn crypto_alert(code: quinn::TransportErrorCode) -> Option<u8> {
    let number = u64::from(code);
    (0x100..0x200)
        .contains(&number)
        .then(|| u8::try_from(number & 0xff).unwrap_or_default())
}

fn alert_words(alert: u8) -> String {
    match alert {
        40 => "handshake failure".into(),
        42 | 43 | 46 => "it does not accept our certificate".into(),
        44 => "our certificate was revoked".into(),
        45 => "our certificate has expired".into(),
        // 51: the authority has the right name and another key.
        48 | 51 => "it does not know the authority of our certificate".into(),
        116 => "it requires a certificate".into(),
        NO_APPLICATION_PROTOCOL => "it speaks another protocol".into(),
        other => format!("TLS alert {other}"),
    }
}

/// Statistics of one connection, for operators. Counters start at its beginning.
#[derive(Clone, Debug)]
pub struct ConnectionFacts {
    /// Identity of the other side, by certificate.
    pub identity: PeerIdentity,
    /// Current address of the other side.
    pub address: SocketAddr,
    /// Whether this side opened the connection.
    pub dialled: bool,
    /// The current estimate of the round-trip time.
    pub round_trip: Duration,
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets declared lost; MTU probes do not count.
    pub lost_packets: u64,
    /// The current path MTU: the largest datagram that is known to arrive at the other side, 1,200
    /// bytes at first, and more once larger probes were acknowledged.
    pub datagram_bytes: u16,
    /// Bytes sent, packet headers included.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

/// UDP packets of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Datagrams {
    /// Sent, retransmissions included.
    pub sent: u64,
    /// Received.
    pub received: u64,
}

/// A connection whose other side is authenticated. Cheap to clone; all clones are one connection,
/// which ends when it is closed, lost, or the last clone and stream is dropped.
#[derive(Clone, Debug)]
pub struct Connection {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    quic: quinn::Connection,
    identity: PeerIdentity,
    port: Port,
    dialled: bool,
    limits: FrameLimits,
    stats: Arc<TransportStats>,
    counted: Mutex<CountedTraffic>,
    // Dropped in this order: when the count of open connections falls, the permits are free.
    _seats: Vec<Seat>,
    _open: OpenCount,
}

/// The part of a connection's counters that its port has counted already.
#[derive(Debug)]
struct CountedTraffic {
    traffic: Traffic,
    /// The last known address of the other side.
    address: SocketAddr,
}

impl Inner {
    /// Updates the counters of the port. Each connection adds its growth since the last update, so
    /// that the counters never fall, however many connections end.
    fn count(&self) {
        let mut counted = self.counted.lock();
        let now = traffic_of(&self.quic);
        self.stats
            .count_traffic(self.port, now.since(counted.traffic));
        counted.traffic = now;
        let address = self.quic.remote_address();
        if address != counted.address {
            self.stats.count_migration();
            counted.address = address;
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.count();
    }
}

fn traffic_of(quic: &quinn::Connection) -> Traffic {
    let stats = quic.stats();
    Traffic {
        lost_packets: stats.path.lost_packets,
        sent_bytes: stats.udp_tx.bytes,
        received_bytes: stats.udp_rx.bytes,
    }
}

/// Counts a connection as open for as long as it lives.
#[derive(Debug)]
struct OpenCount {
    port: Port,
    stats: Arc<TransportStats>,
}

impl OpenCount {
    fn new(port: Port, stats: &Arc<TransportStats>) -> Self {
        stats.opened(port);
        Self {
            port,
            stats: Arc::clone(stats),
        }
    }
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        self.stats.closed(self.port);
    }
}

/// What an endpoint knows when a handshake is complete.
pub(crate) struct EstablishedConnection {
    pub(crate) quic: quinn::Connection,
    pub(crate) port: Port,
    pub(crate) dialled: bool,
    pub(crate) cluster_id: ClusterId,
    pub(crate) tls: Arc<Tls>,
    pub(crate) limits: FrameLimits,
    pub(crate) stats: Arc<TransportStats>,
    pub(crate) seats: Vec<Seat>,
}

impl Connection {
    /// Checks the identity of the other side, and closes the connection if it is wrong.
    pub(crate) fn identify(
        established: EstablishedConnection,
        identity_seats: Option<(&Seats<PeerIdentity>, usize)>,
    ) -> Result<Self, (HandshakeFailure, ConnectError)> {
        let EstablishedConnection {
            quic,
            port,
            dialled,
            cluster_id,
            tls,
            limits,
            stats,
            mut seats,
        } = established;
        let counted = Mutex::new(CountedTraffic {
            traffic: Traffic::default(),
            address: quic.remote_address(),
        });
        let address = quic.remote_address().to_string();
        let users = tls.spiffe().filter(|_| port == Port::Client && !dialled);
        let identity = identity_of(&quic, cluster_id, users)
            .and_then(|identity| admit(identity, port, dialled, cluster_id))
            .and_then(|identity| match tls.allows(&identity) {
                true => Ok(identity),
                false => Err(IdentityError::NotAllowed(identity)),
            })
            .map_err(|source| {
                let failure = failure_of(&source);
                let code = match failure {
                    HandshakeFailure::Cluster => CloseCode::Cluster,
                    _ => CloseCode::Identity,
                };
                close(&quic, code);
                let address = address.clone();
                (failure, ConnectError::Identity { address, source })
            })?;
        if let Some((taken, seats_max)) = identity_seats {
            let Some(seat) = taken.take(identity.clone(), seats_max) else {
                close(&quic, CloseCode::Busy);
                let lost = ConnectionLost::Closed(CloseCode::Busy);
                return Err((
                    HandshakeFailure::Limit,
                    ConnectError::Lost { address, lost },
                ));
            };
            seats.push(seat);
        }
        Ok(Self {
            inner: Arc::new(Inner {
                quic,
                identity,
                port,
                dialled,
                limits,
                counted,
                _seats: seats,
                _open: OpenCount::new(port, &stats),
                stats,
            }),
        })
    }

    /// A weak handle that does not keep the connection open.
    pub(crate) fn downgrade(&self) -> WeakConnection {
        WeakConnection(Arc::downgrade(&self.inner))
    }

    /// The certificates that the other side presented, its own first.
    pub(crate) fn certificates(&self) -> Vec<CertificateDer<'static>> {
        certificates_of(&self.inner.quic).unwrap_or_default()
    }

    /// The connection below.
    pub(super) fn quic(&self) -> &quinn::Connection {
        &self.inner.quic
    }

    pub(super) fn port(&self) -> Port {
        self.inner.port
    }

    /// Limits of the frames that may arrive.
    pub(super) fn limits(&self) -> FrameLimits {
        self.inner.limits
    }

    /// Identity of the other side, by certificate.
    pub fn identity(&self) -> &PeerIdentity {
        &self.inner.identity
    }

    /// Current address of the other side; a client may migrate.
    pub fn remote_address(&self) -> SocketAddr {
        self.inner.quic.remote_address()
    }

    /// Whether this side opened the connection.
    pub fn dialled(&self) -> bool {
        self.inner.dialled
    }

    /// The current estimate of the round-trip time.
    pub fn round_trip(&self) -> Duration {
        self.inner.quic.rtt()
    }

    /// Updates the counters of its port.
    pub(crate) fn count(&self) {
        self.inner.count();
    }

    /// Statistics of the connection, for operators.
    pub fn facts(&self) -> ConnectionFacts {
        let path = self.inner.quic.stats().path;
        let traffic = traffic_of(&self.inner.quic);
        ConnectionFacts {
            identity: self.inner.identity.clone(),
            address: self.remote_address(),
            dialled: self.inner.dialled,
            round_trip: self.round_trip(),
            sent_packets: path.sent_packets,
            lost_packets: traffic.lost_packets,
            datagram_bytes: path.current_mtu,
            sent_bytes: traffic.sent_bytes,
            received_bytes: traffic.received_bytes,
        }
    }

    /// Packets sent and received so far, of every kind.
    pub fn datagrams(&self) -> Datagrams {
        let stats = self.inner.quic.stats();
        Datagrams {
            sent: stats.udp_tx.datagrams,
            received: stats.udp_rx.datagrams,
        }
    }

    /// Closes the connection at once, with this code. Closing twice has no effect.
    pub fn close(&self, code: CloseCode) {
        close(&self.inner.quic, code);
    }

    /// Counts a malformed frame and closes the connection that it arrived on.
    pub fn close_malformed(&self, error: &WireError) {
        if self.inner.quic.close_reason().is_none() {
            self.inner.stats.count_malformed(self.inner.port);
            tracing::warn!(
                port = self.inner.port.name(),
                from = %self.inner.identity,
                address = %self.remote_address(),
                %error,
                "malformed frame; closing the connection"
            );
        }
        self.close(CloseCode::Malformed);
    }

    /// Waits until the connection is over, and returns the cause.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> ConnectionLost {
        ConnectionLost::of(&self.inner.quic.closed().await)
    }

    /// Whether the connection is over.
    pub fn is_lost(&self) -> bool {
        self.inner.quic.close_reason().is_some()
    }

    /// Whether both are the same connection, and not two to the same peer.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

fn close(quic: &quinn::Connection, code: CloseCode) {
    quic.close(
        quinn::VarInt::from_u32(code as u32),
        code.words().as_bytes(),
    );
}

/// A weak handle to a connection.
#[derive(Debug)]
pub(crate) struct WeakConnection(Weak<Inner>);

impl WeakConnection {
    /// The connection, if it is still in use.
    pub(crate) fn upgrade(&self) -> Option<Connection> {
        self.0.upgrade().map(|inner| Connection { inner })
    }
}

fn certificates_of(quic: &quinn::Connection) -> Option<Vec<CertificateDer<'static>>> {
    let certificates = quic.peer_identity()?.downcast().ok()?;
    Some(*certificates)
}

fn identity_of(
    quic: &quinn::Connection,
    cluster_id: ClusterId,
    users: Option<&SpiffeUsers>,
) -> Result<PeerIdentity, IdentityError> {
    let certificates = certificates_of(quic).ok_or(IdentityError::Missing)?;
    let leaf = certificates.first().ok_or(IdentityError::Missing)?;
    PeerIdentity::of_client(leaf, cluster_id, users)
}

/// Checks which kind of peer may be on the other side: on the peer port only nodes; on the client
/// port a client that connects and a node that accepts.
fn admit(
    identity: PeerIdentity,
    port: Port,
    dialled: bool,
    ours: ClusterId,
) -> Result<PeerIdentity, IdentityError> {
    if identity.cluster_id != ours {
        return Err(IdentityError::ForeignCluster {
            ours,
            theirs: identity.cluster_id,
        });
    }
    let node_expected = port == Port::Peer || dialled;
    if identity.is_node() != node_expected {
        return Err(IdentityError::WrongKind(identity));
    }
    Ok(identity)
}

/// The number of connections of each key (an address, an identity).
#[derive(Debug)]
pub(crate) struct Seats<K: Ord> {
    taken: Arc<Mutex<BTreeMap<K, usize>>>,
}

impl<K: Ord> Default for Seats<K> {
    fn default() -> Self {
        Self {
            taken: Arc::default(),
        }
    }
}

impl<K: Ord + Clone + Send + Sync + 'static> Seats<K> {
    /// Takes a permit for `key` if fewer than `seats_max` are taken.
    pub(crate) fn take(&self, key: K, seats_max: usize) -> Option<Seat> {
        let mut taken = self.taken.lock();
        if taken.get(&key).is_some_and(|count| *count >= seats_max) {
            return None;
        }
        *taken.entry(key.clone()).or_insert(0) += 1;
        let all = Arc::clone(&self.taken);
        Some(Seat {
            give_back: Some(Box::new(move || {
                let mut taken = all.lock();
                if let Some(count) = taken.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        taken.remove(&key);
                    }
                }
            })),
        })
    }
}

/// A permit, returned when dropped.
pub(crate) struct Seat {
    give_back: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seat")
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(give_back) = self.give_back.take() {
            give_back();
        }
    }
}

/// Permits by address, without the port.
pub(crate) type AddressSeats = Seats<IpAddr>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_bounded_for_each_and_come_back() {
        let seats = Seats::default();
        let first = seats.take("a", 2).unwrap();
        let _second = seats.take("a", 2).unwrap();
        assert!(seats.take("a", 2).is_none());
        assert!(seats.take("b", 2).is_some());
        drop(first);
        assert!(seats.take("a", 2).is_some());
    }

    #[test]
    fn an_emptied_row_of_seats_is_forgotten() {
        let seats = Seats::default();
        drop(seats.take(1, 1));
        assert!(seats.taken.lock().is_empty());
    }

    #[test]
    fn only_nodes_meet_on_the_peer_port_and_a_client_only_ever_calls() {
        let ours = ClusterId(1);
        let node = PeerIdentity::node(ours, "n1");
        let client = PeerIdentity::client(ours, "c1");
        let foreign = PeerIdentity::node(ClusterId(2), "n1");
        // (who, port, did we call, may they)
        let table = [
            (&node, Port::Peer, true, true),
            (&node, Port::Peer, false, true),
            (&client, Port::Peer, true, false),
            (&client, Port::Peer, false, false),
            (&node, Port::Client, true, true),
            (&node, Port::Client, false, false),
            (&client, Port::Client, true, false),
            (&client, Port::Client, false, true),
            (&foreign, Port::Peer, true, false),
            (&foreign, Port::Peer, false, false),
            (&foreign, Port::Client, true, false),
            (&foreign, Port::Client, false, false),
        ];
        for (who, port, dialled, may) in table {
            let admitted = admit(who.clone(), port, dialled, ours);
            assert_eq!(admitted.is_ok(), may, "{who} {port:?} dialled={dialled}");
        }
    }

    #[test]
    fn close_codes_keep_their_numbers() {
        for number in 0..12 {
            let code = CloseCode::from_number(number).unwrap();
            assert_eq!(code as u64, number);
        }
        assert_eq!(CloseCode::from_number(12), None);
    }
}
