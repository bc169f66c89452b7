//! A UDP socket with our QUIC settings: how it is bound, how unauthenticated peers are limited, how
//! connections are opened.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls_pki_types::UnixTime;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::task::JoinSet;

use crate::sync::{Mutex, MutexGuard};
use crate::transport::connection::{
    AddressSeats, EstablishedConnection, Seat, Seats, WeakConnection,
};
use crate::transport::settings::{client_config, endpoint_config, server_config, server_crypto};
use crate::transport::stats::is_worth_saying;
use crate::transport::{
    CloseCode, ConnectError, Connection, ConnectionFacts, ConnectionLost, HandshakeFailure,
    PeerIdentity, Port, Tls, TransportStats,
};
use crate::types::ClusterId;
use crate::wire::FrameLimits;

/// Limits on connections and on unauthenticated peers of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Maximum number of connections.
    pub connections_max: usize,
    /// Maximum number of connections from one identity.
    pub per_identity_max: usize,
    /// Maximum number of connections from one address.
    pub per_address_max: usize,
    /// Above this many unfinished handshakes, an unauthenticated peer must first validate its
    /// address.
    pub handshakes_before_retry: usize,
    /// Above this many unfinished handshakes, an unauthenticated peer gets no answer. One network
    /// (/24, /48) may have a quarter of them, and one address (an IPv6 /64) a quarter of that.
    pub handshakes_max: usize,
    /// Above this many handshakes per second from one network (/24, /48), an unauthenticated peer
    /// in it must first validate its address.
    pub per_network_per_second_max: u32,
}

impl Admission {
    /// The limits of a server by default; `limits` in the configuration changes them.
    pub const DEFAULT: Self = Self {
        connections_max: 4096,
        per_identity_max: 64,
        per_address_max: 128,
        handshakes_before_retry: 128,
        handshakes_max: 512,
        per_network_per_second_max: 20,
    };
}

impl Default for Admission {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Why an endpoint could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Another process uses the port.
    #[error("{address} is in use by another process: stop that process, or listen on another port")]
    InUse {
        /// The address.
        address: SocketAddr,
    },
    /// The address does not belong to this machine.
    #[error("{address} is not an address of this machine")]
    NotLocal {
        /// The address.
        address: SocketAddr,
    },
    /// The operating system denies it.
    #[error("this user may not listen on {address}: use a port above 1023")]
    NotAllowed {
        /// The address.
        address: SocketAddr,
    },
    /// A client's certificate where a node's is needed, or the other way round.
    #[error("the certificate is for {identity}, but one for a {wanted} is required")]
    WrongKind {
        /// The certificate's identity.
        identity: PeerIdentity,
        /// The kind that is needed.
        wanted: &'static str,
    },
    /// The certificate cannot be used.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
    /// Any other cause.
    #[error("{address} cannot be opened: {reason}")]
    Other {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        reason: String,
    },
}

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bursts of a few thousand small frames must survive a scheduling delay of the reader.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// One network (/24, /48) may have this fraction of all unfinished handshakes: a quarter.
const NETWORK_PART: usize = 4;
/// One address (an IPv6 /64) may have this fraction of its network's: a quarter.
const ADDRESS_PART: usize = 4;
/// Handshakes whose source address is not validated may be this fraction of an address's, a half: a
/// peer that forges an address must not lock out its owner.
const UNPROVEN_PART: usize = 2;
/// Networks whose rate is tracked at one time; beyond that every peer must validate its address.
const NETWORKS_MAX: usize = 4096;

/// Connections from and to this process at a bound UDP socket. Cheap to clone; all clones are one endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The socket of new connections.
    quic: ArcSwap<quinn::Endpoint>,
    /// Sockets before it. Those that no connection uses any more go with the next change.
    former: Mutex<Vec<quinn::Endpoint>>,
    call: ArcSwap<quinn::ClientConfig>,
    /// The server configuration, if the endpoint accepts connections.
    answer: Mutex<Option<quinn::ServerConfig>>,
    /// The certificates in use.
    tls: ArcSwap<Tls>,
    /// Connections that were made; some of them may be over.
    live: Mutex<Vec<WeakConnection>>,
    server_name: String,
    cluster_id: ClusterId,
    port: Port,
    limits: FrameLimits,
    admission: Admission,
    stats: Arc<TransportStats>,
    handshakes: Arc<AtomicUsize>,
    addresses: AddressSeats,
    /// Unfinished handshakes, by network.
    networks: Seats<[u8; 6]>,
    /// Unfinished handshakes, by address.
    callers: AddressSeats,
    identities: Seats<PeerIdentity>,
    rates: Mutex<NetworkRates>,
}

impl Endpoint {
    /// Binds `address` and listens there; connections can be opened from it as well. Needs a tokio
    /// runtime, whose tasks then drive it.
    ///
    /// # Errors
    /// The address cannot be bound, or `tls` is not a node's.
    pub fn listen(
        address: SocketAddr,
        port: Port,
        tls: &Tls,
        limits: FrameLimits,
        admission: Admission,
        stats: Arc<TransportStats>,
    ) -> Result<Self, BindError> {
        if !tls.identity().is_node() {
            return Err(BindError::WrongKind {
                identity: tls.identity().clone(),
                wanted: "node",
            });
        }
        let socket = bind(address)?;
        ask_for_buffers(&socket, true);
        let server = server_config(tls, port).map_err(BindError::Tls)?;
        Self::open(
            socket.into(),
            Some(server),
            port,
            tls,
            limits,
            admission,
            stats,
        )
        .map_err(|error| error.at(address))
    }

    /// A client's endpoint, on any free port: it opens connections and accepts none.
    ///
    /// # Errors
    /// No socket can be opened, or `tls` is not a client's.
    pub fn client(
        tls: &Tls,
        limits: FrameLimits,
        stats: Arc<TransportStats>,
    ) -> Result<Self, BindError> {
        if tls.identity().is_node() {
            return Err(BindError::WrongKind {
                identity: tls.identity().clone(),
                wanted: "client",
            });
        }
        let (address, socket) = client_socket()?;
        let admission = Admission::DEFAULT;
        Self::open(socket, None, Port::Client, tls, limits, admission, stats)
            .map_err(|error| error.at(address))
    }

    fn open(
        socket: std::net::UdpSocket,
        server: Option<quinn::ServerConfig>,
        port: Port,
        tls: &Tls,
        limits: FrameLimits,
        admission: Admission,
        stats: Arc<TransportStats>,
    ) -> Result<Self, OpenError> {
        let call = client_config(tls, port).map_err(OpenError::Tls)?;
        let quic = quic_on(socket, tls, server.clone()).map_err(OpenError::Io)?;
        Ok(Self {
            shared: Arc::new(Shared {
                quic: ArcSwap::from_pointee(quic),
                former: Mutex::default(),
                call: ArcSwap::from_pointee(call),
                answer: Mutex::new(server),
                tls: ArcSwap::from_pointee(tls.clone()),
                live: Mutex::default(),
                server_name: tls.server_name(),
                cluster_id: tls.cluster_id(),
                port,
                limits,
                admission,
                stats,
                handshakes: Arc::default(),
                addresses: AddressSeats::default(),
                networks: Seats::default(),
                callers: AddressSeats::default(),
                identities: Seats::default(),
                rates: Mutex::default(),
            }),
        })
    }

    /// The address it is bound to.
    ///
    /// # Errors
    /// The operating system does not report it.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.shared.quic.load().local_addr()
    }

    /// The endpoint's counters.
    pub fn stats(&self) -> &Arc<TransportStats> {
        &self.shared.stats
    }

    /// The next peer whose handshake may proceed; `None` once the endpoint is closed.
    /// Unauthenticated peers beyond the limits of [`Admission`] are handled here and never
    /// returned.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn accept(&self) -> Option<IncomingConnection> {
        let shared = &self.shared;
        // A server keeps its socket.
        let quic = shared.quic.load_full();
        loop {
            let incoming = quic.accept().await?;
            let address = incoming.remote_address();
            let pending = shared.handshakes.load(Ordering::Relaxed);
            let full = pending >= shared.admission.handshakes_max
                || quic.open_connections() >= shared.admission.connections_max;
            if full {
                shared.ignore(incoming);
                continue;
            }
            let is_proven = incoming.remote_address_validated();
            let may_prove = !is_proven && incoming.may_retry();
            let hurried = pending >= shared.admission.handshakes_before_retry
                || self.is_frequent(address.ip());
            if hurried && may_prove {
                shared.ask_for_proof(incoming);
                continue;
            }
            let most = HandshakesMax::of(&shared.admission);
            // A peer with many addresses in one network must not lock out all others.
            let network = network_of(address.ip());
            let Some(of_network) = shared.networks.take(network, most.of_network) else {
                shared.ignore(incoming);
                continue;
            };
            // And a peer with one address must not lock out the others in its network.
            let of_address = if is_proven {
                most.of_address
            } else {
                most.of_address_unproven
            };
            let Some(of_address) = shared.callers.take(host_of(address.ip()), of_address) else {
                match may_prove {
                    true => shared.ask_for_proof(incoming),
                    false => shared.ignore(incoming),
                }
                continue;
            };
            let seats_max = shared.admission.per_address_max;
            let Some(seat) = shared.addresses.take(address.ip(), seats_max) else {
                shared
                    .stats
                    .count_failed(shared.port, HandshakeFailure::Limit);
                incoming.refuse();
                continue;
            };
            return Some(IncomingConnection {
                incoming,
                address,
                pending: PendingHandshake::new(&shared.handshakes, [of_network, of_address]),
                seat,
                endpoint: self.clone(),
            });
        }
    }

    /// Connects to the node at `address`, and verifies that it is a node of this cluster.
    ///
    /// # Errors
    /// No node with the right identity answers within five seconds. Counted by reason.
    ///
    /// # Cancel safety
    /// Safe: the attempt is abandoned.
    pub async fn connect(&self, address: SocketAddr) -> Result<Connection, ConnectError> {
        let shared = &self.shared;
        let result = self.try_connect(address).await;
        match &result {
            Ok(_) => shared.stats.count_ok(shared.port),
            Err(error) => {
                shared.stats.count_failed(shared.port, error.failure());
            }
        }
        result
    }

    /// Connects to one of several addresses of a node: the next one is tried when the one before
    /// has failed or has not answered within `stagger`. The first connection that succeeds is
    /// returned, the other attempts are abandoned.
    ///
    /// # Errors
    /// No attempt succeeded; the error is that of the last one. Without addresses, an error that
    /// says so.
    ///
    /// # Cancel safety
    /// Safe: all attempts are abandoned.
    pub async fn connect_any(
        &self,
        addresses: &[SocketAddr],
        stagger: Duration,
    ) -> Result<Connection, ConnectError> {
        let mut waiting = addresses.iter().copied();
        let mut calls = JoinSet::new();
        let mut last = ConnectError::Address {
            address: "the node".into(),
            reason: "it has no address that is reachable from here".into(),
        };
        loop {
            match waiting.next() {
                Some(address) => {
                    let endpoint = self.clone();
                    calls.spawn(async move { endpoint.connect(address).await });
                }
                None if calls.is_empty() => return Err(last),
                None => {}
            }
            let patience = if waiting.len() == 0 {
                HANDSHAKE_TIMEOUT * 2
            } else {
                stagger
            };
            match tokio::time::timeout(patience, calls.join_next()).await {
                Ok(Some(Ok(Ok(connection)))) => return Ok(connection),
                Ok(Some(Ok(Err(error)))) => last = error,
                // An attempt that was cancelled (the runtime is shutting down), or one that is
                // still running.
                Ok(Some(Err(_)) | None) | Err(_) => {}
            }
        }
    }

    async fn try_connect(&self, address: SocketAddr) -> Result<Connection, ConnectError> {
        let shared = &self.shared;
        let quic = shared.quic.load_full();
        let connecting = quic
            .connect_with(
                quinn::ClientConfig::clone(&shared.call.load()),
                address,
                &shared.server_name,
            )
            .map_err(|error| ConnectError::Address {
                address: address.to_string(),
                reason: error.to_string(),
            })?;
        let quic = within_handshake_time(address, connecting).await?;
        let connection = Connection::identify(self.established(quic, true, Vec::new()), None)
            .map_err(|(_, error)| error)?;
        shared.look_after(&connection);
        Ok(connection)
    }

    fn established(
        &self,
        quic: quinn::Connection,
        dialled: bool,
        seats: Vec<Seat>,
    ) -> EstablishedConnection {
        let shared = &self.shared;
        EstablishedConnection {
            quic,
            port: shared.port,
            dialled,
            cluster_id: shared.cluster_id,
            tls: shared.tls.load_full(),
            limits: shared.limits,
            stats: Arc::clone(&shared.stats),
            seats,
        }
    }

    /// Uses these certificates, and trusts their authorities, from the next connection on. Open
    /// connections stay open; see [`Endpoint::close_untrusted`].
    ///
    /// # Errors
    /// They are not of the same name in the same cluster, or cannot be used. Then nothing changes.
    pub fn renew(&self, tls: &Tls) -> Result<(), BindError> {
        let shared = &self.shared;
        let before = shared.tls.load();
        if tls.identity() != before.identity() {
            return Err(BindError::Tls(format!(
                "the new certificate is for {}, but the current one for {}",
                tls.identity(),
                before.identity()
            )));
        }
        let call = client_config(tls, shared.port).map_err(BindError::Tls)?;
        let mut answer = shared.answer.lock();
        if let Some(config) = &mut *answer {
            // Only the certificates change: the token key, for one, stays valid.
            config.crypto = server_crypto(tls, shared.port).map_err(BindError::Tls)?;
            shared.quic.load().set_server_config(Some(config.clone()));
        }
        shared.call.store(Arc::new(call));
        shared.tls.store(Arc::new(tls.clone()));
        Ok(())
    }

    /// Closes connections whose other side would no longer be accepted: its certificate has
    /// expired, or none of its issuers is trusted. A peer with a valid certificate reconnects.
    /// Returns the number of closed connections.
    pub fn close_untrusted(&self, now: UnixTime) -> usize {
        let shared = &self.shared;
        let tls = shared.tls.load_full();
        let open = shared.open_connections();
        let distrusted = open.iter().filter(|connection| {
            let chain = connection.certificates();
            !tls.allows(connection.identity())
                || tls.still_trusts(&chain, connection.dialled(), now).is_err()
        });
        distrusted
            .inspect(|connection| connection.close(CloseCode::Untrusted))
            .count()
    }

    /// When the certificate in use expires, in seconds since 1970.
    pub fn certificate_ends(&self) -> i64 {
        self.shared.tls.load().expires_at_unix_seconds()
    }

    /// The open connections, in the order they were made.
    pub fn connections(&self) -> Vec<ConnectionFacts> {
        let open = self.shared.open_connections();
        let live = open.iter().filter(|connection| !connection.is_lost());
        live.map(Connection::facts).collect()
    }

    /// Updates [`TransportStats::traffic`] and [`TransportStats::migrations`], and returns the
    /// current round-trip time of each open connection, as QUIC estimates it.
    pub fn look(&self) -> Vec<Duration> {
        let open = self.shared.open_connections();
        open.iter().for_each(Connection::count);
        let live = open.iter().filter(|connection| !connection.is_lost());
        live.map(Connection::round_trip).collect()
    }

    /// Makes new connections from another local port, for when a middlebox may have dropped its state for this one.
    /// Connections that exist keep their port.
    ///
    /// They are not moved along, although QUIC could: quinn 0.11 ends the process with a panic if it is told to move a
    /// connection just as that receives a stateless reset, and the others work where they are.
    ///
    /// # Errors
    /// No socket can be opened; the old one is kept.
    pub fn change_port(&self) -> io::Result<()> {
        let shared = &self.shared;
        let (_, socket) = client_socket().map_err(io::Error::other)?;
        let quic = quic_on(socket, &shared.tls.load(), None)?;
        let mut former = shared.former.lock();
        former.retain(|quic| quic.open_connections() > 0);
        former.push(quinn::Endpoint::clone(&shared.quic.swap(Arc::new(quic))));
        Ok(())
    }

    /// Moves to another local port with all connections, as if a middlebox had done it.
    #[cfg(test)]
    pub(crate) fn rebind(&self) -> io::Result<()> {
        let (_, socket) = client_socket().map_err(io::Error::other)?;
        self.shared.quic.load().rebind(socket)
    }

    /// Closes every connection with this code and accepts no more.
    pub fn close(&self, code: CloseCode) {
        for quic in self.shared.sockets() {
            quic.close(quinn::VarInt::from_u32(code as u32), b"");
        }
    }

    /// Waits until the other sides have been notified of [`Endpoint::close`], as far as possible.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn wait_idle(&self) {
        for quic in self.shared.sockets() {
            quic.wait_idle().await;
        }
    }

    fn is_frequent(&self, address: IpAddr) -> bool {
        #[expect(
            clippy::disallowed_methods,
            reason = "a rate of unauthenticated peers is no lease: plain elapsed time is enough"
        )]
        let now = std::time::Instant::now();
        let mut rates = self.shared.rates.lock();
        rates.count(now, network_of(address)) > self.shared.admission.per_network_per_second_max
    }
}

/// QUIC on this socket, with a server's settings if it is to accept connections.
fn quic_on(
    socket: std::net::UdpSocket,
    tls: &Tls,
    server: Option<quinn::ServerConfig>,
) -> io::Result<quinn::Endpoint> {
    let config = endpoint_config(tls, server.is_some());
    quinn::Endpoint::new(config, server, socket, Arc::new(quinn::TokioRuntime))
}

impl Shared {
    /// The sockets in use, the former ones first.
    fn sockets(&self) -> Vec<quinn::Endpoint> {
        let former = self.former.lock();
        let current = quinn::Endpoint::clone(&self.quic.load());
        former.iter().cloned().chain([current]).collect()
    }

    /// Sends no answer at all: an answer to a forged address would hit another machine.
    fn ignore(&self, incoming: quinn::Incoming) {
        self.stats.count_ignored();
        self.stats.count_failed(self.port, HandshakeFailure::Limit);
        incoming.ignore();
    }

    /// Requires the peer to validate its address (a QUIC Retry). The peer must be one for which
    /// that is possible.
    fn ask_for_proof(&self, incoming: quinn::Incoming) {
        self.stats.count_retry();
        // Cannot fail: `may_retry` was checked.
        let _ = incoming.retry();
    }

    fn live(&self) -> MutexGuard<'_, Vec<WeakConnection>> {
        self.live.lock()
    }

    /// The connections that are still in use.
    fn open_connections(&self) -> Vec<Connection> {
        let mut live = self.live();
        live.retain(|connection| connection.upgrade().is_some());
        live.iter().filter_map(WeakConnection::upgrade).collect()
    }

    /// Tracks a new connection, and drops those that are over once there are many.
    fn look_after(&self, connection: &Connection) {
        let mut live = self.live();
        if live.len() == live.capacity() {
            live.retain(|connection| connection.upgrade().is_some());
        }
        live.push(connection.downgrade());
    }
}

/// A peer whose handshake is not complete.
#[derive(Debug)]
pub struct IncomingConnection {
    incoming: quinn::Incoming,
    address: SocketAddr,
    pending: PendingHandshake,
    seat: Seat,
    endpoint: Endpoint,
}

impl IncomingConnection {
    /// The peer's address.
    pub fn remote_address(&self) -> SocketAddr {
        self.address
    }

    /// Completes the handshake and checks the peer's identity.
    ///
    /// # Errors
    /// The peer cannot prove an identity that may connect here, or takes more than five seconds.
    /// Counted by reason.
    ///
    /// # Cancel safety
    /// Safe: the peer is refused.
    pub async fn establish(self) -> Result<Connection, ConnectError> {
        let Self {
            incoming,
            address,
            pending,
            seat,
            endpoint,
        } = self;
        let shared = &endpoint.shared;
        let handshake = async {
            let connecting = incoming
                .accept()
                .map_err(|error| ConnectError::of(address, &error))?;
            within_handshake_time(address, connecting).await
        };
        let identified = match handshake.await {
            Ok(quic) => Connection::identify(
                endpoint.established(quic, false, vec![seat]),
                Some((&shared.identities, shared.admission.per_identity_max)),
            ),
            Err(error) => Err((error.failure(), error)),
        };
        drop(pending);
        match identified {
            Ok(connection) => {
                shared.look_after(&connection);
                shared.stats.count_ok(shared.port);
                Ok(connection)
            }
            Err((failure, error)) => {
                let count = shared.stats.count_failed(shared.port, failure);
                let port = shared.port.name();
                match &error {
                    _ if !is_worth_saying(count) => {}
                    // Of two calls that cross one is given up.
                    ConnectError::Lost {
                        lost: ConnectionLost::GivenUp,
                        ..
                    } => tracing::info!(port, %error, "incoming connection given up"),
                    error => tracing::warn!(port, %error, "incoming connection refused"),
                }
                Err(error)
            }
        }
    }
}

/// Resolves `host:port`. Each call resolves again, because addresses change.
///
/// # Errors
/// The name is unknown, or not of that form.
///
/// # Cancel safety
/// Safe.
pub async fn resolve(host_and_port: &str) -> Result<Vec<SocketAddr>, ConnectError> {
    let failed = |reason: String| ConnectError::Address {
        address: host_and_port.to_string(),
        reason,
    };
    let found: Vec<SocketAddr> = tokio::net::lookup_host(host_and_port)
        .await
        .map_err(|error| failed(error.to_string()))?
        .collect();
    if found.is_empty() {
        return Err(failed("the name does not resolve to an address".into()));
    }
    Ok(found)
}

async fn within_handshake_time(
    address: SocketAddr,
    connecting: quinn::Connecting,
) -> Result<quinn::Connection, ConnectError> {
    tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting)
        .await
        .map_err(|_| ConnectError::Timeout {
            address: address.to_string(),
        })?
        .map_err(|error| ConnectError::of(address, &error))
}

/// Counts an unfinished handshake for as long as it lives.
#[derive(Debug)]
struct PendingHandshake {
    count: Arc<AtomicUsize>,
    /// The permits of its network, and of its address.
    _seats: [Seat; 2],
}

impl PendingHandshake {
    fn new(count: &Arc<AtomicUsize>, seats: [Seat; 2]) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self {
            count: Arc::clone(count),
            _seats: seats,
        }
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The maximum number of unfinished handshakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HandshakesMax {
    of_network: usize,
    of_address: usize,
    /// For one address, without address validation.
    of_address_unproven: usize,
}

impl HandshakesMax {
    fn of(admission: &Admission) -> Self {
        let of_network = (admission.handshakes_max / NETWORK_PART).max(1);
        let of_address = (of_network / ADDRESS_PART).max(1);
        Self {
            of_network,
            of_address,
            of_address_unproven: (of_address / UNPROVEN_PART).max(1),
        }
    }
}

/// Handshakes in the current second, by network.
#[derive(Debug, Default)]
struct NetworkRates {
    since: Option<std::time::Instant>,
    counts: BTreeMap<[u8; 6], u32>,
}

impl NetworkRates {
    /// Counts one more, and returns the number in this second.
    fn count(&mut self, now: std::time::Instant, network: [u8; 6]) -> u32 {
        let over = self
            .since
            .is_none_or(|since| now.saturating_duration_since(since) >= Duration::from_secs(1));
        if over {
            self.since = Some(now);
            self.counts.clear();
        }
        if self.counts.len() >= NETWORKS_MAX && !self.counts.contains_key(&network) {
            return u32::MAX;
        }
        let count = self.counts.entry(network).or_insert(0);
        *count = count.saturating_add(1);
        *count
    }
}

/// The /24 of an IPv4 address, the /48 of an IPv6 address.
fn network_of(address: IpAddr) -> [u8; 6] {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            [0, 0, 0, a, b, c]
        }
        IpAddr::V6(v6) => {
            let [a, b, c, d, e, f, ..] = v6.octets();
            [a, b, c, d, e, f]
        }
    }
}

/// What counts as one address: for IPv6 the /64, since one host may use all of it.
fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

pub(super) fn bind(address: SocketAddr) -> Result<Socket, BindError> {
    let open = || -> io::Result<Socket> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            // Both families where the system supports that; otherwise one is enough.
            let _ = socket.set_only_v6(false);
        }
        socket.bind(&address.into())?;
        Ok(socket)
    };
    open().map_err(|error| OpenError::Io(error).at(address))
}

/// A socket on any free port, for both address families where both are available.
pub(super) fn client_socket() -> Result<(SocketAddr, std::net::UdpSocket), BindError> {
    let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let one = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let (address, socket) = match bind(both) {
        Ok(socket) => (both, socket),
        Err(_) => (one, bind(one)?),
    };
    ask_for_buffers(&socket, false);
    Ok((address, socket.into()))
}

pub(super) fn ask_for_buffers(socket: &Socket, warn: bool) {
    static WARNED: Once = Once::new();
    // The system clamps the size without an error: so set it, then read it back.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    let received = socket.recv_buffer_size().unwrap_or(0);
    if warn && received < SOCKET_BUFFER_BYTES {
        WARNED.call_once(|| {
            tracing::warn!(
                wanted = SOCKET_BUFFER_BYTES,
                got = received,
                "the UDP receive buffer is small and packets may be lost under load: raise \
                 net.core.rmem_max and net.core.wmem_max"
            );
        });
    }
}

/// The possible errors once the address is known to be local.
enum OpenError {
    Io(io::Error),
    Tls(String),
}

impl OpenError {
    fn at(self, address: SocketAddr) -> BindError {
        let error = match self {
            Self::Tls(reason) => return BindError::Tls(reason),
            Self::Io(error) => error,
        };
        match error.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse { address },
            io::ErrorKind::AddrNotAvailable => BindError::NotLocal { address },
            io::ErrorKind::PermissionDenied => BindError::NotAllowed { address },
            _ => BindError::Other {
                address,
                reason: error.to_string(),
            },
        }
    }
}

impl From<BindError> for io::Error {
    fn from(error: BindError) -> Self {
        Self::other(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_hurries_is_noticed_and_forgiven_after_a_second() {
        #[expect(clippy::disallowed_methods, reason = "any instant will do")]
        let start = std::time::Instant::now();
        let mut rates = NetworkRates::default();
        let here = network_of("10.1.2.3".parse().unwrap());
        assert_eq!(here, network_of("10.1.2.200".parse().unwrap()));
        assert_eq!(here, network_of("::ffff:10.1.2.9".parse().unwrap()));
        assert_ne!(here, network_of("10.1.3.3".parse().unwrap()));
        for count in 1..=30 {
            assert_eq!(rates.count(start, here), count);
        }
        let later = start + Duration::from_secs(1);
        assert_eq!(rates.count(later, here), 1);
    }

    #[test]
    fn one_address_may_make_a_small_part_of_all_handshakes() {
        assert_eq!(
            HandshakesMax::of(&Admission::DEFAULT),
            HandshakesMax {
                of_network: 128,
                of_address: 32,
                of_address_unproven: 16,
            }
        );
        let few = Admission {
            handshakes_max: 1,
            ..Admission::DEFAULT
        };
        assert_eq!(HandshakesMax::of(&few).of_address_unproven, 1);
        let host = |text: &str| host_of(text.parse().unwrap());
        assert_eq!(host("::ffff:10.1.2.3"), host("10.1.2.3"));
        assert_ne!(host("10.1.2.3"), host("10.1.2.4"));
        assert_eq!(host("2001:db8::1"), host("2001:db8::2:3"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
    }

    #[test]
    fn networks_beyond_the_bound_are_all_called_frequent() {
        #[expect(clippy::disallowed_methods, reason = "any instant will do")]
        let start = std::time::Instant::now();
        let mut rates = NetworkRates::default();
        for n in 0..u32::try_from(NETWORKS_MAX).unwrap() {
            let [a, b, c, d] = n.to_be_bytes();
            assert_eq!(rates.count(start, [1, 1, a, b, c, d]), 1);
        }
        assert_eq!(rates.count(start, [9; 6]), u32::MAX);
        assert_eq!(rates.counts.len(), NETWORKS_MAX);
    }
}
