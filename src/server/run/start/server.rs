//! A node, made stage by stage.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::admin_ports::AdminPorts;
use super::core::Core;
use super::disks::Disks;
use super::error::StartError;
use super::identity::Identity;
use super::ports::{Ports, sessions};
use super::tasks::Tasks;
use super::threads::Threads;
use crate::clock;
use crate::clock::{SystemClock, VM_CLOCK_DEVICE};
use crate::raft::Status;
use crate::server::admin::AdminServer;
use crate::server::admin::log_control::LogControl;
use crate::server::config::Config;
use crate::server::peers::Peers;
use crate::server::session::Sessions;
use crate::server::session::traces::ExporterTask;
use crate::server::threads::fatal::Exit;
use crate::time::Clock;
use crate::types::{ClusterId, NodeId};

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
pub(super) enum Stage {
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
    pub(super) name: String,
    /// Gone once the data directory can be opened again.
    pub(super) data_dir_lock: Weak<()>,
    pub(super) member_id: NodeId,
    pub(super) cluster_id: ClusterId,
    pub(super) client_address: SocketAddr,
    pub(super) peer_address: SocketAddr,
    pub(super) status: Arc<ArcSwap<Status>>,
    pub(super) failed: watch::Receiver<Option<String>>,
    pub(super) exit: Exit,
    pub(super) admin: Vec<AdminServer>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) exporting: Option<ExporterTask>,
    pub(super) peers: Arc<Peers>,
    pub(super) tasks: Tasks,
    pub(super) threads: Threads,
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
    pub(super) async fn start_in_stages(
        config: Config,
        options: ServerOptions,
        clock: Arc<dyn Clock>,
        mut reached: impl FnMut(Stage),
    ) -> Result<Self, StartError> {
        let unwatched = watch_vm_clock(&config)?;
        let identity = Identity::new(&config, clock).await?;
        reached(Stage::Identity);
        let admin = AdminPorts::new(&config, &identity).await?;
        reached(Stage::AdminPorts);
        let mut disks = Disks::new(&config, &identity, &admin.metrics).await?;
        disks.warnings.warnings.extend(unwatched);
        reached(Stage::Disks);
        let metrics = admin.metrics.clone();
        let Core { shared, replica } = Core::new(
            &config,
            options.exit_on_fatal,
            &identity,
            metrics,
            &disks.storage,
            disks.replica,
            disks.warnings,
        );
        reached(Stage::Core);
        let roster = replica.roster.clone();
        let mut ports = Ports::new(&config, &identity, &shared, disks.state_dirs, roster).await?;
        let (sessions, exporting) = sessions(&config, &identity, &shared, &ports, disks.audit);
        reached(Stage::Ports);
        let threads = Threads::new(&config, &identity, &shared, &ports, disks.storage, replica)?;
        reached(Stage::Threads);
        let tasks = Tasks::new(&config, &identity, &shared, &mut ports, &sessions);
        let probes = Tasks::node_probes(&shared, &ports, &sessions);
        let service = tasks.admin_service(&config, &shared, &ports, &sessions, options.log);
        let admin = admin.attach(probes, service);
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
            data_dir_lock: identity.data_dir.lock_held(),
            member_id: identity.member_id,
            cluster_id: identity.cluster_id,
            client_address: ports.client_address,
            peer_address: ports.peer_address,
            status: shared.node.status.clone(),
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

/// Asks the VMClock device from here on, if there is one. Returns a warning if there is and it cannot be asked.
fn watch_vm_clock(config: &Config) -> Result<Option<String>, StartError> {
    let node = &config.node.name;
    let device = config.node.vm_clock.clone();
    let path = device
        .as_deref()
        .unwrap_or_else(|| Path::new(VM_CLOCK_DEVICE));
    match clock::watch_vm_clock(path) {
        Ok(()) => {
            tracing::info!(
                node,
                "the hypervisor tells of disrupted clocks by {}",
                path.display()
            );
            Ok(None)
        }
        Err(source) => match device {
            Some(device) => Err(StartError::VmClock { device, source }),
            None if source.kind() == io::ErrorKind::NotFound => Ok(None),
            None => {
                let warning = format!(
                    "this machine has a VMClock device, and it cannot be asked whether the hypervisor has disrupted \
                     the clocks ({}: {source}): let the user of this process read it, or a live migration may make \
                     leased reads stale",
                    path.display()
                );
                tracing::warn!(node, "{warning}");
                Ok(Some(warning))
            }
        },
    }
}
