//! A UDP socket that speaks our QUIC: how it is bound, how strangers are held off, how calls are
//! made.

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
use crate::transport::connection::{AddressSeats, Established, Seat, Seats, WeakConnection};
use crate::transport::settings::{client_config, endpoint_config, server_config, server_crypto};
use crate::transport::stats::is_worth_saying;
use crate::transport::{
    CloseCode, ConnectError, Connection, ConnectionFacts, HandshakeFailure, PeerIdentity, Port,
    Tls, TransportStats,
};
use crate::types::ClusterId;
use crate::wire::FrameLimits;

/// How many strangers, and how many connections, an endpoint puts up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Connections at most.
    pub connections_max: usize,
    /// Connections at most from one identity.
    pub per_identity_max: usize,
    /// Connections at most from one address.
    pub per_address_max: usize,
    /// Above this many unfinished handshakes, a stranger must first prove its address.
    pub handshakes_before_retry: usize,
    /// Above this many unfinished handshakes, a stranger gets no answer. One network (/24, /48) may
    /// have a quarter of them, and one address (an IPv6 /64) a quarter of that.
    pub handshakes_max: usize,
    /// Above this many handshakes a second from one network (/24, /48), a stranger of it must
    /// first prove its address.
    pub per_network_per_second_max: u32,
}

impl Admission {
    /// What a server of this size admits; `limits` in the configuration changes it.
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
    /// Another process has the port.
    #[error("{address} is in use by another process: stop that one, or listen on another port")]
    InUse {
        /// The address.
        address: SocketAddr,
    },
    /// The address is not this machine's.
    #[error("{address} is not an address of this machine")]
    NotLocal {
        /// The address.
        address: SocketAddr,
    },
    /// The system does not allow it.
    #[error("this user may not listen on {address}: use a port above 1023")]
    NotAllowed {
        /// The address.
        address: SocketAddr,
    },
    /// A client's certificate where a node's is needed, or the other way round.
    #[error("the certificate is for {identity}, and this needs one for a {wanted}")]
    WrongKind {
        /// Whom the certificate is for.
        identity: PeerIdentity,
        /// What is needed.
        wanted: &'static str,
    },
    /// The certificate cannot be used.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
    /// Something else.
    #[error("{address} cannot be opened: {reason}")]
    Other {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        reason: String,
    },
}

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bursts of a few thousand small frames must survive a scheduler pause of the reader.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Of all handshakes that may be under way, those of one network (/24, /48) may be this part.
const NETWORK_PART: usize = 4;
/// Of those of one network, the ones of one address (an IPv6 /64) may be this part.
const ADDRESS_PART: usize = 4;
/// Of those of one address, the ones that have not proved to come from it may be this part: whoever
/// forges an address shall not keep its owner from being heard.
const UNPROVEN_PART: usize = 2;
/// Networks whose rate is remembered at one time; beyond that everyone proves their address.
const NETWORKS_MAX: usize = 4096;

/// A bound UDP socket. Cheap to clone; all clones are one endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    quic: quinn::Endpoint,
    call: ArcSwap<quinn::ClientConfig>,
    /// How it is called, if it is.
    answer: Mutex<Option<quinn::ServerConfig>>,
    /// The certificates in use.
    tls: ArcSwap<Tls>,
    /// Connections that were made, and may be over.
    live: Mutex<Vec<WeakConnection>>,
    server_name: String,
    cluster_id: ClusterId,
    port: Port,
    limits: FrameLimits,
    admission: Admission,
    stats: Arc<TransportStats>,
    handshakes: Arc<AtomicUsize>,
    addresses: AddressSeats,
    /// Handshakes under way, by network.
    networks: Seats<[u8; 6]>,
    /// Handshakes under way, by address.
    callers: AddressSeats,
    identities: Seats<PeerIdentity>,
    rates: Mutex<NetworkRates>,
}

impl Endpoint {
    /// Binds `address` and listens there; calls can be made from it as well. Needs a tokio
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

    /// An endpoint of a client, on any free port: it calls and is not called.
    ///
    /// # Errors
    /// No socket can be had, or `tls` is not a client's.
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
        let quic = quinn::Endpoint::new(
            endpoint_config(tls, server.is_some()),
            server.clone(),
            socket,
            Arc::new(quinn::TokioRuntime),
        )
        .map_err(OpenError::Io)?;
        Ok(Self {
            shared: Arc::new(Shared {
                quic,
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

    /// Where it is bound.
    ///
    /// # Errors
    /// The system does not say.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.shared.quic.local_addr()
    }

    /// What it counts.
    pub fn stats(&self) -> &Arc<TransportStats> {
        &self.shared.stats
    }

    /// The next caller that is worth a handshake; `None` once the endpoint is closed. Strangers
    /// beyond the bounds of [`Admission`] are dealt with here and never returned.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn accept(&self) -> Option<Accepting> {
        let shared = &self.shared;
        loop {
            let incoming = shared.quic.accept().await?;
            let address = incoming.remote_address();
            let pending = shared.handshakes.load(Ordering::Relaxed);
            let full = pending >= shared.admission.handshakes_max
                || shared.quic.open_connections() >= shared.admission.connections_max;
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
            // Whoever has many addresses of one network shall not keep all others from being heard.
            let network = network_of(address.ip());
            let Some(of_network) = shared.networks.take(network, most.of_network) else {
                shared.ignore(incoming);
                continue;
            };
            // And whoever has one address not all others of its network.
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
            return Some(Accepting {
                incoming,
                address,
                pending: Pending::new(&shared.handshakes, [of_network, of_address]),
                seat,
                endpoint: self.clone(),
            });
        }
    }

    /// Calls the node at `address`, and makes sure that it is a node of this cluster.
    ///
    /// # Errors
    /// Nobody answers within five seconds, or not the right one. Counted by reason.
    ///
    /// # Cancel safety
    /// Safe: the call is given up.
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

    /// Calls several addresses of one node, one after the other but without waiting long for any:
    /// the next is tried when the one before has failed or kept quiet for `stagger`. The first
    /// that answers rightly is taken, the others are given up.
    ///
    /// # Errors
    /// None answered rightly; the last error. Without addresses, that there are none.
    ///
    /// # Cancel safety
    /// Safe: all calls are given up.
    pub async fn connect_any(
        &self,
        addresses: &[SocketAddr],
        stagger: Duration,
    ) -> Result<Connection, ConnectError> {
        let mut waiting = addresses.iter().copied();
        let mut calls = JoinSet::new();
        let mut last = ConnectError::Address {
            address: "the node".into(),
            reason: "it has no address that can be called from here".into(),
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
                // A call that was cut off (the runtime is ending), or one that takes its time.
                Ok(Some(Err(_)) | None) | Err(_) => {}
            }
        }
    }

    async fn try_connect(&self, address: SocketAddr) -> Result<Connection, ConnectError> {
        let shared = &self.shared;
        let connecting = shared
            .quic
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

    fn established(&self, quic: quinn::Connection, dialled: bool, seats: Vec<Seat>) -> Established {
        let shared = &self.shared;
        Established {
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

    /// Shows these certificates, and trusts their authorities, from the next connection on. What is
    /// connected stays so; see [`Endpoint::close_untrusted`].
    ///
    /// # Errors
    /// They are not of the same name in the same cluster, or cannot be used. Then nothing changes.
    pub fn renew(&self, tls: &Tls) -> Result<(), BindError> {
        let shared = &self.shared;
        let before = shared.tls.load();
        if tls.identity() != before.identity() {
            return Err(BindError::Tls(format!(
                "the new certificate is for {}, and the present one for {}",
                tls.identity(),
                before.identity()
            )));
        }
        let call = client_config(tls, shared.port).map_err(BindError::Tls)?;
        let mut answer = shared.answer.lock();
        if let Some(config) = &mut *answer {
            // Nothing but the certificates: the key of the tokens, for one, stays good.
            config.crypto = server_crypto(tls, shared.port).map_err(BindError::Tls)?;
            shared.quic.set_server_config(Some(config.clone()));
        }
        shared.call.store(Arc::new(call));
        shared.tls.store(Arc::new(tls.clone()));
        Ok(())
    }

    /// Closes connections whose other side would not be let in any more: its certificate has ended, or
    /// nobody who signed it is trusted. Who has better ones connects anew. Says how many they were.
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

    /// When the certificate that it shows ends, in seconds since 1970.
    pub fn certificate_ends(&self) -> i64 {
        self.shared.tls.load().expires_at_unix_seconds()
    }

    /// The connections that are open, in the order they were made.
    pub fn connections(&self) -> Vec<ConnectionFacts> {
        let open = self.shared.open_connections();
        let live = open.iter().filter(|connection| !connection.is_lost());
        live.map(Connection::facts).collect()
    }

    /// Brings [`TransportStats::traffic`] and [`TransportStats::migrations`] up to date, and returns the
    /// round-trip time of each connection that is open, as QUIC estimates it now.
    pub fn look(&self) -> Vec<Duration> {
        let open = self.shared.open_connections();
        open.iter().for_each(Connection::count);
        let live = open.iter().filter(|connection| !connection.is_lost());
        live.map(Connection::round_trip).collect()
    }

    /// Moves to a new local port: what to do when a middlebox has forgotten the old one.
    /// Connections survive where the other side allows migration.
    ///
    /// # Errors
    /// No socket can be had; the old one is kept.
    pub fn rebind(&self) -> io::Result<()> {
        let (_, socket) = client_socket().map_err(io::Error::other)?;
        self.shared.quic.rebind(socket)
    }

    /// Closes every connection for this reason and accepts no more.
    pub fn close(&self, code: CloseCode) {
        self.shared
            .quic
            .close(quinn::VarInt::from_u32(code as u32), b"");
    }

    /// Waits until the other sides had a chance to hear of [`Endpoint::close`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn wait_idle(&self) {
        self.shared.quic.wait_idle().await;
    }

    fn is_frequent(&self, address: IpAddr) -> bool {
        #[expect(
            clippy::disallowed_methods,
            reason = "a rate of strangers is no lease: plain elapsed time is enough"
        )]
        let now = std::time::Instant::now();
        let mut rates = self.shared.rates.lock();
        rates.count(now, network_of(address)) > self.shared.admission.per_network_per_second_max
    }
}

impl Shared {
    /// No answer at all: an answer to a forged address would strike someone else.
    fn ignore(&self, incoming: quinn::Incoming) {
        self.stats.count_ignored();
        self.stats.count_failed(self.port, HandshakeFailure::Limit);
        incoming.ignore();
    }

    /// Wants to see that the stranger hears what is sent to its address. It must be one that may be
    /// asked for that.
    fn ask_for_proof(&self, incoming: quinn::Incoming) {
        self.stats.count_retry();
        // Cannot fail: `may_retry` was asked.
        let _ = incoming.retry();
    }

    fn live(&self) -> MutexGuard<'_, Vec<WeakConnection>> {
        self.live.lock()
    }

    /// The connections that somebody still holds.
    fn open_connections(&self) -> Vec<Connection> {
        let mut live = self.live();
        live.retain(|connection| connection.upgrade().is_some());
        live.iter().filter_map(WeakConnection::upgrade).collect()
    }

    /// Remembers a connection that was made, and forgets those that are over once there are many.
    fn look_after(&self, connection: &Connection) {
        let mut live = self.live();
        if live.len() == live.capacity() {
            live.retain(|connection| connection.upgrade().is_some());
        }
        live.push(connection.downgrade());
    }
}

/// A caller whose handshake has not been made.
#[derive(Debug)]
pub struct Accepting {
    incoming: quinn::Incoming,
    address: SocketAddr,
    pending: Pending,
    seat: Seat,
    endpoint: Endpoint,
}

impl Accepting {
    /// Where the call comes from.
    pub fn remote_address(&self) -> SocketAddr {
        self.address
    }

    /// Makes the handshake and checks who is calling.
    ///
    /// # Errors
    /// The caller cannot prove to be who may call here, or takes more than five seconds. Counted
    /// by reason.
    ///
    /// # Cancel safety
    /// Safe: the caller is refused.
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
                if is_worth_saying(count) {
                    tracing::warn!(port = shared.port.name(), %error, "caller refused");
                }
                Err(error)
            }
        }
    }
}

/// The addresses of `host:port`, asked for anew at each call, because they move.
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
        return Err(failed("the name has no address".into()));
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
struct Pending {
    count: Arc<AtomicUsize>,
    /// Of its network, and of its address.
    _seats: [Seat; 2],
}

impl Pending {
    fn new(count: &Arc<AtomicUsize>, seats: [Seat; 2]) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self {
            count: Arc::clone(count),
            _seats: seats,
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many handshakes may be under way at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HandshakesMax {
    of_network: usize,
    of_address: usize,
    /// Of one address, where it is not proved that they come from it.
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

/// Handshakes of the current second, by network.
#[derive(Debug, Default)]
struct NetworkRates {
    since: Option<std::time::Instant>,
    counts: BTreeMap<[u8; 6], u32>,
}

impl NetworkRates {
    /// Counts one more, and says how many that makes in this second.
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

/// The /24 of an IPv4 address, the /48 of an IPv6 one.
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

/// What counts as one address: of IPv6 the /64, for a host may use all of that.
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
            // Both families where the system can do that; one is enough where it cannot.
            let _ = socket.set_only_v6(false);
        }
        socket.bind(&address.into())?;
        Ok(socket)
    };
    open().map_err(|error| OpenError::Io(error).at(address))
}

/// A socket on any free port, for both families where there are two.
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
    // The system clamps what it does not allow, without an error: so ask, then look.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    let received = socket.recv_buffer_size().unwrap_or(0);
    if warn && received < SOCKET_BUFFER_BYTES {
        WARNED.call_once(|| {
            tracing::warn!(
                wanted = SOCKET_BUFFER_BYTES,
                got = received,
                "the UDP receive buffer is small, packets may be lost under load: raise \
                 net.core.rmem_max and net.core.wmem_max"
            );
        });
    }
}

/// What can go wrong after the address is known to be ours.
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
