//! The client port of a node: handshake and hello run in the background, and the listener returns
//! connections that are ready for requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::{Mutex, mpsc};
use tokio::task::{JoinHandle, JoinSet};

use crate::api::{Error, ErrorKind};
use crate::transport::{
    Admission, BindError, CloseCode, Connection, ConnectionLost, Endpoint, FrameStream,
    HandshakeFailure, IncomingConnection, PeerIdentity, Port, Tls, TransportStats,
};
use crate::types::{BootstrapId, ClusterId, NodeId};
use crate::wire::client::{ClientHello, KnownLeader, ServerHello, Welcome};
use crate::wire::{FrameLimits, PROTOCOL_VERSIONS, encode};

/// Connections that are ready and have not been accepted; more wait in their handshake.
const READY_MAX: usize = 64;
/// Maximum length of a stored client name, in characters.
const CLIENT_NAME_CHARS_MAX: usize = 64;
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a refused client may take to read the reason.
const FAREWELL: Duration = Duration::from_secs(1);

/// What the welcome says of a node that changes while it runs.
pub trait Introduction: Send + Sync {
    /// Which bootstrap of its cluster the node comes from, once it knows.
    fn bootstrap(&self) -> Option<BootstrapId>;
    /// Who leads, as far as the node knows.
    fn leader(&self) -> Option<KnownLeader>;
    /// Whether the node asks for read leases.
    fn serves_reads(&self) -> bool;
}

/// Configuration of a client port.
#[derive(Clone)]
pub struct ListenerConfig {
    /// This node's member id, shown to clients.
    pub member_id: NodeId,
    /// Size limits of frames.
    pub limits: FrameLimits,
    /// Limits on connections.
    pub admission: Admission,
    /// What clients are told beside who the node is.
    pub introduction: Arc<dyn Introduction>,
}

/// A client port.
#[derive(Debug)]
pub struct ClientListener {
    endpoint: Endpoint,
    ready: Mutex<mpsc::Receiver<ClientConnection>>,
    acceptor: JoinHandle<()>,
}

impl ClientListener {
    /// Binds `address` and starts accepting clients. Needs a tokio runtime, which then drives it.
    ///
    /// # Errors
    /// The address cannot be bound, or `tls` is not a node's.
    pub fn bind(
        address: SocketAddr,
        tls: &Tls,
        config: ListenerConfig,
        stats: Arc<TransportStats>,
    ) -> Result<Self, BindError> {
        let endpoint = Endpoint::listen(
            address,
            Port::Client,
            tls,
            config.limits,
            config.admission,
            stats,
        )?;
        let host = Arc::new(Host {
            cluster_id: tls.cluster_id(),
            name: tls.identity().name().to_string(),
            member_id: config.member_id,
            limits: config.limits,
            introduction: config.introduction,
            stats: Arc::clone(endpoint.stats()),
        });
        let (sender, receiver) = mpsc::channel(READY_MAX);
        let acceptor = tokio::spawn(accept_all(endpoint.clone(), host, sender));
        Ok(Self {
            endpoint,
            ready: Mutex::new(receiver),
            acceptor,
        })
    }

    /// The next client, authenticated and greeted; `None` once the listener is closed.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn accept(&self) -> Option<ClientConnection> {
        self.ready.lock().await.recv().await
    }

    /// The address it listens on.
    ///
    /// # Errors
    /// The operating system does not report it.
    pub fn local_address(&self) -> std::io::Result<SocketAddr> {
        self.endpoint.local_address()
    }

    /// The endpoint, for the renewal of its certificates.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Closes every connection with this code and accepts no more.
    pub fn close(&self, code: CloseCode) {
        self.endpoint.close(code);
    }

    /// Waits until the clients have been notified of [`ClientListener::close`], as far as possible.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn wait_idle(&self) {
        self.endpoint.wait_idle().await;
    }
}

impl Drop for ClientListener {
    fn drop(&mut self) {
        self.endpoint.close(CloseCode::Stopping);
        self.acceptor.abort();
    }
}

/// A client that is authenticated and has sent its hello.
#[derive(Debug)]
pub struct ClientConnection {
    connection: Connection,
    client_name: String,
    first: Option<FrameStream>,
}

impl ClientConnection {
    /// Identity of the client, by certificate.
    pub fn identity(&self) -> &PeerIdentity {
        self.connection.identity()
    }

    /// The name that the client gives itself; for logs, not for decisions.
    pub fn client_name(&self) -> &str {
        &self.client_name
    }

    /// The client's current address.
    pub fn remote_address(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// The next request stream; the first one is available at once.
    ///
    /// # Errors
    /// The connection is over.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn accept_stream(&mut self) -> Result<FrameStream, ConnectionLost> {
        match self.first.take() {
            Some(stream) => Ok(stream),
            None => self.connection.accept_stream().await,
        }
    }

    /// The connection itself: to close it, or to wait for its end.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

/// What the welcome says of this node.
struct Host {
    cluster_id: ClusterId,
    name: String,
    member_id: NodeId,
    limits: FrameLimits,
    introduction: Arc<dyn Introduction>,
    stats: Arc<TransportStats>,
}

async fn accept_all(endpoint: Endpoint, host: Arc<Host>, ready: mpsc::Sender<ClientConnection>) {
    // Dropping the set ends its tasks; the endpoint limits how many there are.
    let mut greetings = JoinSet::new();
    while let Some(accepting) = endpoint.accept().await {
        greetings.spawn(take_in(accepting, Arc::clone(&host), ready.clone()));
        while greetings.try_join_next().is_some() {}
    }
    while greetings.join_next().await.is_some() {}
}

async fn take_in(
    accepting: IncomingConnection,
    host: Arc<Host>,
    ready: mpsc::Sender<ClientConnection>,
) {
    // Refusals are counted and logged where they are decided.
    let Ok(connection) = accepting.establish().await else {
        return;
    };
    match tokio::time::timeout(HELLO_TIMEOUT, greet(&connection, &host)).await {
        Ok(Some((first, client_name))) => {
            let greeted = ClientConnection {
                connection,
                client_name,
                first: Some(first),
            };
            // If the listener has been dropped, the connection is dropped and so closed.
            let _ = ready.send(greeted).await;
        }
        Ok(None) => {}
        Err(_) => {
            host.stats
                .count_failed(Port::Client, HandshakeFailure::Timeout);
            connection.close(CloseCode::Hello);
        }
    }
}

/// Exchanges hello and welcome; `None` if that failed and has been handled.
async fn greet(connection: &Connection, host: &Host) -> Option<(FrameStream, String)> {
    let mut stream = connection.accept_stream().await.ok()?;
    let mut frames = Vec::new();
    stream.read_batch(&mut frames).await.ok()?;
    // Calls may follow only after the welcome, so there is exactly one frame.
    let hello: ClientHello = match frames.as_slice() {
        [only] => stream.receiver.decode(only).ok()?,
        _ => {
            host.stats
                .count_failed(Port::Client, HandshakeFailure::Hello);
            connection.close(CloseCode::Hello);
            return None;
        }
    };
    let answer = judge(&hello, host);
    let refused = answer
        .as_ref()
        .err()
        .map(|(failure, code, _)| (*failure, *code));
    let reply = ServerHello {
        result: answer.map_err(|(_, _, error)| error),
    };
    let mut bytes = BytesMut::new();
    encode(&reply, &host.limits, &mut bytes).ok()?;
    stream.write(bytes.freeze()).await.ok()?;
    let Some((failure, code)) = refused else {
        return Some((stream, fit_for_logs(&hello.name)));
    };
    host.stats.count_failed(Port::Client, failure);
    stream.sender.finish();
    let _ = tokio::time::timeout(FAREWELL, connection.lost()).await;
    connection.close(code);
    None
}

/// Client names are written to logs: they are shortened and stripped of control characters.
fn fit_for_logs(name: &str) -> String {
    name.chars()
        .filter(|c| !c.is_control())
        .take(CLIENT_NAME_CHARS_MAX)
        .collect()
}

fn judge(
    hello: &ClientHello,
    host: &Host,
) -> Result<Welcome, (HandshakeFailure, CloseCode, Error)> {
    if hello.cluster_id != host.cluster_id {
        let detail = format!(
            "this is cluster {}, but the client expects {}: connect to the nodes of that cluster",
            host.cluster_id, hello.cluster_id
        );
        return Err((
            HandshakeFailure::Cluster,
            CloseCode::Cluster,
            Error::not_applied(ErrorKind::ClusterMismatch, detail),
        ));
    }
    let Some(version) = PROTOCOL_VERSIONS.common(hello.versions) else {
        let detail = format!(
            "the client speaks protocol {}, this node {PROTOCOL_VERSIONS}: upgrade the older one",
            hello.versions
        );
        return Err((
            HandshakeFailure::Version,
            CloseCode::Version,
            Error::not_applied(ErrorKind::Unsupported, detail),
        ));
    };
    Ok(Welcome {
        version,
        cluster_id: host.cluster_id,
        member_id: host.member_id,
        name: host.name.clone(),
        bootstrap: host.introduction.bootstrap(),
        leader: host.introduction.leader(),
        serves_reads: host.introduction.serves_reads(),
    })
}
