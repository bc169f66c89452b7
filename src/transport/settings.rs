//! Settings of quinn and rustls: quinn's defaults suit the open internet, not a closed cluster.

use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};

use crate::transport::{Port, Tls};

const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// The assumed round-trip time until it has been measured. A first packet that is lost, or sent to
/// a node that is just starting, is retransmitted after three of these.
const INITIAL_ROUND_TRIP: Duration = Duration::from_millis(50);
const RETRY_TOKEN_LIFETIME: Duration = Duration::from_secs(15);

/// The certificates that a node presents at this port, and the authorities that it trusts.
pub(super) fn server_crypto(tls: &Tls, port: Port) -> Result<Arc<QuicServerConfig>, String> {
    let config = tls.server_config(port)?;
    let crypto = QuicServerConfig::try_from(config).map_err(|error| error.to_string())?;
    Ok(Arc::new(crypto))
}

/// How a node accepts connections at this port.
pub(super) fn server_config(tls: &Tls, port: Port) -> Result<quinn::ServerConfig, String> {
    let mut config = quinn::ServerConfig::with_crypto(server_crypto(tls, port)?);
    let mut tokens = quinn::ValidationTokenConfig::default();
    tokens.sent(0);
    config
        .transport_config(Arc::new(transport_config(Side::Listening, port)))
        // A client may change networks; a node that changes addresses is connected to again, by
        // certificate (P31).
        .migration(port == Port::Client)
        .retry_token_lifetime(RETRY_TOKEN_LIFETIME)
        .validation_token_config(tokens)
        .max_incoming(1024)
        .incoming_buffer_size(64 << 10)
        .incoming_buffer_size_total(8 << 20);
    Ok(config)
}

/// How a node or client connects to a node at this port.
pub(super) fn client_config(tls: &Tls, port: Port) -> Result<quinn::ClientConfig, String> {
    let config = tls.client_config(port).map_err(|error| error.to_string())?;
    let crypto = QuicClientConfig::try_from(config).map_err(|error| error.to_string())?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config
        .token_store(Arc::new(quinn::NoneTokenStore))
        .transport_config(Arc::new(transport_config(Side::Calling, port)));
    Ok(config)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Listening,
    Calling,
}

/// Windows and limits. What one stream may have in flight (`stream`) stays well below the limits of
/// the connection (`connection`, `unacknowledged`): otherwise a stream full of bulk data would
/// delay the heartbeats on another stream.
fn transport_config(side: Side, port: Port) -> quinn::TransportConfig {
    struct Windows {
        stream: u32,
        connection: u32,
        unacknowledged: u64,
        two_way_streams: u32,
        one_way_streams: u32,
    }
    let windows = match (port, side) {
        (Port::Peer, _) => Windows {
            stream: 4 << 20,
            connection: 64 << 20,
            unacknowledged: 16 << 20,
            two_way_streams: 4,
            one_way_streams: 16,
        },
        (Port::Client, Side::Listening) => Windows {
            stream: 256 << 10,
            connection: 4 << 20,
            unacknowledged: 4 << 20,
            two_way_streams: 64,
            one_way_streams: 0,
        },
        // Watches have streams of their own.
        (Port::Client, Side::Calling) => Windows {
            stream: 2 << 20,
            connection: 16 << 20,
            unacknowledged: 4 << 20,
            two_way_streams: 0,
            one_way_streams: 10_000,
        },
    };
    let mut config = quinn::TransportConfig::default();
    config
        .stream_receive_window(quinn::VarInt::from_u32(windows.stream))
        .receive_window(quinn::VarInt::from_u32(windows.connection))
        .send_window(windows.unacknowledged)
        .max_concurrent_bidi_streams(quinn::VarInt::from_u32(windows.two_way_streams))
        .max_concurrent_uni_streams(quinn::VarInt::from_u32(windows.one_way_streams))
        .datagram_receive_buffer_size(None)
        .initial_rtt(INITIAL_ROUND_TRIP)
        .max_idle_timeout(Some(
            quinn::IdleTimeout::try_from(IDLE_TIMEOUT).expect("ten seconds are in range"),
        ));
    // The client keeps the connection to its server alive: a client that does not is gone.
    if port == Port::Peer || side == Side::Calling {
        config.keep_alive_interval(Some(KEEP_ALIVE));
    }
    config
}

/// A node that was killed and restarted knows nothing of its old connections. With a reset key that
/// outlives the process it can answer with a stateless reset, and the other side reconnects at once
/// instead of waiting for the idle timeout.
pub(super) fn endpoint_config(tls: &Tls, listens: bool) -> quinn::EndpointConfig {
    if !listens {
        return quinn::EndpointConfig::default();
    }
    let reset_key = Arc::new(tls.derived_key(b"leasehold stateless reset"));
    let mut config = quinn::EndpointConfig::new(reset_key);
    config.cid_generator(|| Box::new(RandomIds::default()));
    config
}

/// Connection ids that any process accepts as its own: quinn's default ids identify their process,
/// and ids of an earlier process would get no reset.
struct RandomIds {
    random: &'static dyn rustls::crypto::SecureRandom,
}

impl Default for RandomIds {
    fn default() -> Self {
        Self {
            random: rustls::crypto::ring::default_provider().secure_random,
        }
    }
}

const ID_BYTES: usize = 8;

impl quinn::ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> quinn::ConnectionId {
        let mut id = [0; ID_BYTES];
        self.random
            .fill(&mut id)
            .expect("a system without random bytes has no TLS either");
        quinn::ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
