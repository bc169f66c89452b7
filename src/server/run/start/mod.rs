//! Putting a node together, in stages; `running` takes it apart again.
//!
//! Each stage is made from the ones before it, so the order that matters is what the compiler lets
//! through, and [`Stage`] lists it for the test that holds it: the data directory is locked before
//! the clock is read that the voter's silence is counted from (A3), the log is whole before consensus
//! sees it, and the ports for clients and peers open last. Operators are answered from early on.

mod admin_ports;
mod core;
mod disks;
mod error;
mod identity;
mod ports;
mod recovery;
mod running;
mod tasks;
mod threads;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::clock::SystemClock;
use crate::raft::Status;
use crate::server::admin::AdminServer;
use crate::server::admin::log_control::LogControl;
use crate::server::config::Config;
use crate::server::peers::Peers;
use crate::server::session::Sessions;
use crate::server::session::traces::Exporting;
use crate::server::threads::fatal::Exit;
use crate::time::Clock;
use crate::types::{ClusterId, NodeId};

use self::admin_ports::AdminPorts;
use self::core::Core;
use self::disks::Disks;
use self::identity::Identity;
use self::ports::{Ports, sessions};
use self::tasks::Tasks;
use self::threads::Threads;

pub use self::error::StartError;
pub(crate) use self::identity::load_tls;
pub use self::running::{CertificateReload, Pulse};

/// What a server needs besides its configuration.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// End the process when the node cannot go on (a failed sync, a damaged store). Without it the
    /// node alone ends, as `dev` wants it.
    pub exit_on_fatal: bool,
    /// The log of this process, if this node may change what is in it.
    pub log: Option<LogControl>,
}

/// How far a start has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The node knows who it is, and its data directory is locked.
    Identity,
    /// Operators are answered.
    AdminPorts,
    /// Log and state are open and whole.
    Disks,
    /// The replica is made of them.
    Core,
    /// Peers and clients can reach the node.
    Ports,
    /// The replica runs.
    Threads,
    /// Clients are served.
    Tasks,
}

/// A running node. Dropped, it ends as if it had crashed.
pub struct Server {
    name: String,
    member_id: NodeId,
    cluster_id: ClusterId,
    client_address: SocketAddr,
    peer_address: SocketAddr,
    status: Arc<ArcSwap<Status>>,
    failed: watch::Receiver<Option<String>>,
    exit: Exit,
    admin: Vec<AdminServer>,
    sessions: Arc<Sessions>,
    exporting: Option<Exporting>,
    peers: Arc<Peers>,
    tasks: Tasks,
    threads: Threads,
}

impl Server {
    /// Starts a node and returns once it listens; whether it leads or follows shows later.
    ///
    /// # Errors
    /// Every [`StartError`] says what to do. Nothing is left running.
    ///
    /// # Cancel safety
    /// Not cancel safe: let it finish, then shut the server down.
    pub async fn start(config: Config, options: ServerOptions) -> Result<Self, StartError> {
        Self::start_in_stages(config, options, Arc::new(SystemClock), |_| {}).await
    }

    /// [`Server::start`] by this clock. Calls `reached` at the end of each stage.
    async fn start_in_stages(
        config: Config,
        options: ServerOptions,
        clock: Arc<dyn Clock>,
        mut reached: impl FnMut(Stage),
    ) -> Result<Self, StartError> {
        let identity = Identity::new(&config, clock).await?;
        reached(Stage::Identity);
        let admin = AdminPorts::new(&config, &identity).await?;
        reached(Stage::AdminPorts);
        let disks = Disks::new(&config, &identity, &admin.metrics).await?;
        reached(Stage::Disks);
        let metrics = admin.metrics.clone();
        let Core { shared, replica } = Core::new(
            &config,
            &options,
            &identity,
            metrics,
            &disks.storage,
            disks.replica,
        );
        reached(Stage::Core);
        let roster = replica.roster.clone();
        let ports = Ports::new(&config, &identity, &shared, disks.places, roster).await?;
        let (sessions, exporting) = sessions(&config, &identity, &shared, disks.notes, disks.audit);
        reached(Stage::Ports);
        let threads = Threads::new(&config, &identity, &shared, &ports, disks.storage, replica)?;
        reached(Stage::Threads);
        let tasks = Tasks::new(&config, &identity, &shared, &ports, &sessions);
        let instruments = tasks.instruments(&shared, &ports, &sessions);
        let managed = tasks.managed(&config, &shared, &ports, &sessions, options.log);
        let admin = admin.attach(instruments, managed);
        reached(Stage::Tasks);
        tracing::info!(
            node = %config.node.name,
            member = %identity.member_id,
            cluster = %identity.cluster_id,
            version = crate::version::VERSION,
            client = %ports.client_address,
            peer = %ports.peer_address,
            admin = %admin[0].address(),
            data_dir = %config.node.data_dir.display(),
            "started; leased reads are safe while clocks drift by less than {} ppm",
            config.timing.max_drift_ppm,
        );
        Ok(Self {
            name: config.node.name,
            member_id: identity.member_id,
            cluster_id: identity.cluster_id,
            client_address: ports.client_address,
            peer_address: ports.peer_address,
            status: shared.status,
            failed: shared.failed,
            exit: shared.exit,
            admin,
            sessions,
            exporting,
            peers: ports.peers,
            tasks,
            threads,
        })
    }
}
