//! The connections to the other members: messages out, messages in, never a wait.
//!
//! It runs on a thread and a socket of its own, so that no number of clients can hold up a
//! heartbeat. [`Peers::send`] puts a message into a bounded queue and returns; what does not fit
//! or has no connection is dropped and counted, because consensus tolerates loss and tolerates
//! nothing late. Control messages (heartbeats, votes, acknowledgements) travel on a stream of
//! their own that is served before the stream for log entries: a heartbeat never queues behind a
//! big append.
//!
//! Both sides call each other, with a jittered back-off, because either may have moved to an
//! address that the other does not know yet; what a peer says of its own address is remembered
//! beside the configured one. Of two connections between the same two members one is closed, the
//! same one on both sides (`hub.rs`).
//!
//! Who the members are may change at any time ([`Peers::set_roster`]): who is new is called, who left is
//! let go a little later, once it has heard of it. Nothing of a peer reaches the core before its hello
//! has been checked: certificate, cluster, bootstrap, member id, incarnation, membership; and each message must
//! come from the member at the other end and be meant for this one.

mod connection;
mod drift;
mod handler;
mod hub;
pub(crate) mod joining;
pub(crate) mod members;
mod roster;
mod stats;
pub(crate) mod transfer;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};

use tokio::sync::watch;

use crate::raft::Envelope;
use crate::server::threads::spawn;
use crate::transport::{BindError, CloseCode, Connection, Endpoint, Port, TransportStats};
use crate::types::{Incarnation, NodeId};

pub(crate) use self::connection::ask_standing;
pub use self::handler::{PeerHandler, PeerInfo, PeersConfig};
use self::hub::Hub;
pub use self::roster::{CommittedConfiguration, Roster, RosterPeer};
pub use self::stats::PeerStats;

/// How long the last messages and the farewell may take when the process stops.
const FAREWELL: Duration = Duration::from_millis(500);
/// How long what is written last may take to leave.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Why the connections to peers could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// The socket.
    #[error("the peer port cannot be opened: {0}")]
    Bind(#[from] BindError),
    /// Member id, certificate and incarnation do not fit together.
    #[error(
        "the data directory belongs to member {configured}, but the certificate is for {name}, \
         which as {incarnation} is member {derived}: use the certificate issued to this node"
    )]
    ForeignIdentity {
        /// The id that was given.
        configured: NodeId,
        /// The id that follows from the certificate.
        derived: NodeId,
        /// The name in the certificate.
        name: String,
        /// The incarnation that was given.
        incarnation: Incarnation,
    },
    /// The thread could not be started.
    #[error("the thread of the peer connections cannot be started: {0}")]
    Thread(#[from] io::Error),
}

/// The connections to the other members. Dropping it closes them.
#[derive(Debug)]
pub struct Peers {
    hub: Arc<Hub>,
    endpoint: Endpoint,
    transport: Arc<TransportStats>,
    local_address: SocketAddr,
    stop: watch::Sender<bool>,
    runtime: tokio::runtime::Handle,
    thread: Option<thread::JoinHandle<()>>,
}

impl Peers {
    /// Opens the peer port, starts the thread that serves it, and begins to call the others.
    ///
    /// # Errors
    /// The identity is inconsistent, the port cannot be had, or the thread not be started.
    pub fn start(
        config: PeersConfig,
        handler: Arc<dyn PeerHandler>,
        transport: Arc<TransportStats>,
    ) -> Result<Self, PeersError> {
        let identity = config.tls.identity();
        let derived = NodeId::derive(identity.cluster_id, identity.name(), config.incarnation);
        if derived != config.node_id {
            return Err(PeersError::ForeignIdentity {
                configured: config.node_id,
                derived,
                name: identity.name().to_string(),
                incarnation: config.incarnation,
            });
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (endpoint, local_address) = match open(&runtime, &config, &transport) {
            Ok(opened) => opened,
            Err(error) => {
                // Simply dropped, it would panic where the caller is itself inside a runtime.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let hub = Arc::new(Hub::new(config, local_address, handler));
        let port = endpoint.clone();
        let (stop, stopped) = watch::channel(false);
        let (ready, started) = mpsc::channel();
        let handle = runtime.handle().clone();
        let thread = {
            let hub = Arc::clone(&hub);
            spawn("leasehold-peers", (), move || {
                // The receiver is gone if the start has failed meanwhile.
                let _ = ready.send(());
                runtime.block_on(serve(endpoint, hub, stopped));
            })?
        };
        // Fails only if the thread is gone already, and then every send is dropped and counted.
        let _ = started.recv();
        Ok(Self {
            hub,
            endpoint: port,
            transport,
            local_address,
            stop,
            runtime: handle,
            thread: Some(thread),
        })
    }

    /// Sends a message if its receiver is connected and has room; drops and counts it otherwise.
    /// Never waits. Returns the message that was dropped: this one, or an older one to the same member.
    pub fn send(&self, envelope: Envelope) -> Option<Envelope> {
        self.hub.send(envelope)
    }

    /// Replaces the members: new ones are called, and removed ones disconnected after a while, so that
    /// they learn of it. Never waits.
    pub fn set_roster(&self, roster: Roster) {
        self.hub.set_roster(roster);
    }

    /// The connection to a member, if there is one: for what is too large for messages.
    pub(crate) fn connection(&self, id: NodeId) -> Option<Connection> {
        self.hub.connection(id)
    }

    /// Runs `task` beside the connections, until it ends or they do.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// Admits only members that know this version of the cluster from now on.
    pub fn require_version(&self, version: u16) {
        self.hub.require_version(version);
    }

    /// This node has learned which bootstrap of its cluster it comes from: closes the connections to
    /// members that come from another.
    pub fn part_from_other_bootstraps(&self) {
        self.hub.part_from_other_bootstraps();
    }

    /// The port, for those who look after its certificates.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Where the peer port is bound.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// The members that are connected now.
    pub fn connected(&self) -> Vec<PeerInfo> {
        self.hub.connected()
    }

    /// What the member last said of itself, connected or not; `None` if it never connected.
    pub fn find(&self, id: NodeId) -> Option<PeerInfo> {
        self.hub.find(id)
    }

    /// What is counted here.
    pub fn stats(&self) -> &PeerStats {
        self.hub.stats()
    }

    /// What is counted below: handshakes, malformed frames.
    pub fn transport_stats(&self) -> &Arc<TransportStats> {
        &self.transport
    }

    /// Sends what is queued, if that is quick, takes leave of the peers and ends the thread.
    /// Waits for that, at most about a second.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.stop.send(true);
        let Some(thread) = self.thread.take() else {
            return;
        };
        // The handler may hold the last reference, and be dropped over there.
        if thread.thread().id() != thread::current().id() {
            // A panic over there has been reported by the hook.
            let _ = thread.join();
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.end();
    }
}

fn open(
    runtime: &tokio::runtime::Runtime,
    config: &PeersConfig,
    transport: &Arc<TransportStats>,
) -> Result<(Endpoint, SocketAddr), PeersError> {
    let _inside = runtime.enter();
    let endpoint = Endpoint::listen(
        config.bind,
        Port::Peer,
        &config.tls,
        config.limits,
        config.admission,
        Arc::clone(transport),
    )?;
    let local_address = endpoint.local_address()?;
    Ok((endpoint, local_address))
}

async fn serve(endpoint: Endpoint, hub: Arc<Hub>, mut stopped: watch::Receiver<bool>) {
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(connection::accept_all(endpoint.clone(), Arc::clone(&hub)));
    loop {
        tokio::select! {
            // An error means that the sender is gone, which is a stop too.
            _ = stopped.wait_for(|stop| *stop) => break,
            names = hub.uncalled() => {
                for name in names {
                    tasks.spawn(connection::keep_calling(endpoint.clone(), Arc::clone(&hub), name));
                }
            }
        }
        while tasks.try_join_next().is_some() {}
    }
    let _ = tokio::time::timeout(FAREWELL, hub.drained()).await;
    if !hub.connected().is_empty() {
        // What was taken from the queues may not have left the socket, and closing would discard
        // it: the last message of a leader releases its voters (P36) and is worth a moment.
        tokio::time::sleep(LAST_WORDS).await;
    }
    tasks.abort_all();
    endpoint.close(CloseCode::Stopping);
    let _ = tokio::time::timeout(FAREWELL, endpoint.wait_idle()).await;
}
