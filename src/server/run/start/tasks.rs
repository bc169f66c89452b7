//! The tasks of a node: they accept clients, and run periodic maintenance.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use super::core::Shared;
use super::etcd_port::EtcdService;
use super::identity::Identity;
use super::ports::Ports;
use crate::server::admin::log_control::LogControl;
use crate::server::admin::probes::NodeProbes;
use crate::server::admin::service::AdminService;
use crate::server::config::Config;
use crate::server::disk::quota::QuotaWatch;
use crate::server::disk::space::DiskPlan;
use crate::server::disk::state_dirs::StateDirs;
use crate::server::metrics::UPKEEP_INTERVAL;
use crate::server::run::backups::Backups;
use crate::server::run::certificates::{Certificates, IssuerKeys, PortCertificate};
use crate::server::run::reopening::LeaderlessWatch;
use crate::server::session::drain::Drain;
use crate::server::session::{Sessions, exports};
use crate::server::status::reload::ReloadReports;
use crate::sync::Mutex;
use crate::transport::{ClientListener, CloseCode};

/// The sixth stage. Dropped, it closes the port for clients and ends its tasks.
pub(super) struct Tasks {
    pub(super) listener: Arc<ClientListener>,
    pub(super) accepting: JoinHandle<()>,
    pub(super) certificates: AbortOnDrop,
    /// Notify it to reload the certificates.
    pub(super) reload: Arc<Notify>,
    pub(super) reloaded: Arc<ReloadReports>,
    pub(super) drain: Arc<Drain>,
    pub(super) etcd: Option<EtcdService>,
    backups_end: Arc<AtomicBool>,
    _tending: JoinSet<()>,
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.listener.close(CloseCode::Stopping);
        self.backups_end.store(true, Ordering::Relaxed);
    }
}

/// A task that ends with this value.
pub(super) struct AbortOnDrop(pub(super) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Looks for a leader while the node has no state.
fn leaderless_watch(config: &Config, shared: &Shared) -> LeaderlessWatch {
    LeaderlessWatch {
        node: shared.node.clone(),
        lacks_state: shared.startup.lacks_state,
        state_dirs: StateDirs::new(&config.node.data_dir),
        fatal: shared.fatal.clone(),
    }
}

impl Tasks {
    /// Starts the tasks. Clients are served from now on.
    pub(super) fn new(
        config: &Config,
        identity: &Identity,
        shared: &Shared,
        ports: &mut Ports,
        sessions: &Arc<Sessions>,
    ) -> Self {
        shared.metrics.spawn_upkeep(UPKEEP_INTERVAL);
        let listener = ports.listener.clone();
        let accepting = tokio::spawn(sessions.clone().accept(listener.clone()));
        tokio::spawn(exports::tend(sessions.serving.exports.clone()));
        let mut tending = JoinSet::new();
        let quota = QuotaWatch {
            name: config.node.name.clone(),
            room: sessions.serving.room.clone(),
            data_dir: config.node.data_dir.clone(),
            plan: DiskPlan::of(config),
            looks: AtomicU64::new(0),
            store: shared.store.clone(),
            mailbox: shared.mailbox.clone(),
            metrics: shared.metrics.clone(),
            on_fatal: shared.fatal.for_store(),
        };
        tending.spawn(quota.run());
        tending.spawn(leaderless_watch(config, shared).watch());
        let backups_end = Arc::new(AtomicBool::new(false));
        if let Some(config) = config.backup.clone() {
            let backups = Backups {
                config,
                store: shared.store.clone(),
                origins: sessions.serving.origins.clone(),
                readable: shared.node.readable.clone(),
                integrity: shared.node.integrity.clone(),
                metrics: shared.metrics.clone(),
                stopping: backups_end.clone(),
                on_fatal: shared.fatal.for_store(),
            };
            tending.spawn(backups.run());
        }
        let reload = Arc::new(Notify::new());
        let reloaded = Arc::new(ReloadReports::default());
        let certificates = Certificates {
            name: config.node.name.clone(),
            cluster_id: identity.cluster_id,
            client: PortCertificate::new("client", &config.tls.client, listener.endpoint().clone()),
            peer: PortCertificate::new("peer", &config.tls.peer, ports.peers.endpoint().clone()),
            issuer: identity.issuer.clone().map(IssuerKeys::new),
            interval: config.tls.reload_interval,
            asked: reload.clone(),
            told: reloaded.clone(),
            metrics: shared.metrics.clone(),
        };
        Self {
            listener,
            accepting,
            certificates: AbortOnDrop(tokio::spawn(certificates.look_after())),
            reload,
            reloaded,
            drain: Arc::new(Drain {
                node: shared.node.clone(),
                sessions: sessions.clone(),
                done: tokio::sync::Mutex::default(),
            }),
            etcd: Self::serve_etcd(shared, ports, sessions),
            backups_end,
            _tending: tending,
        }
    }

    /// Serves the port for etcd's clients, if there is one.
    fn serve_etcd(
        shared: &Shared,
        ports: &mut Ports,
        sessions: &Arc<Sessions>,
    ) -> Option<EtcdService> {
        let port = ports.etcd.take()?;
        let metrics = shared.metrics.clone();
        let probes = Self::node_probes(shared, ports, sessions);
        let scrape = move || metrics.render(|metrics| probes.refresh(metrics));
        Some(EtcdService::start(port, sessions, Box::new(scrape)))
    }

    /// The view of the node for probes and scrapes.
    pub(super) fn node_probes(
        shared: &Shared,
        ports: &Ports,
        sessions: &Arc<Sessions>,
    ) -> NodeProbes {
        NodeProbes {
            node: shared.node.clone(),
            sessions: sessions.clone(),
            transport: shared.transport.clone(),
            failed: shared.failed.clone(),
            startup: shared.startup.clone(),
            ports: [
                ("client", ports.listener.endpoint().clone()),
                ("peer", ports.peers.endpoint().clone()),
            ],
        }
    }

    /// The operations of the node for the admin port.
    pub(super) fn admin_service(
        &self,
        config: &Config,
        shared: &Shared,
        ports: &Ports,
        sessions: &Arc<Sessions>,
        log: Option<LogControl>,
    ) -> AdminService {
        AdminService {
            node: shared.node.clone(),
            sessions: sessions.clone(),
            startup: shared.startup.clone(),
            drain: self.drain.clone(),
            reload: self.reload.clone(),
            reloaded: self.reloaded.clone(),
            client_port: ports.listener.endpoint().clone(),
            peer_port: ports.peers.endpoint().clone(),
            log,
            settings: config.effective.clone(),
            advertised: ports.advertised.clone(),
            baseline: Mutex::default(),
        }
    }
}
