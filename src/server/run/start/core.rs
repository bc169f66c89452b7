//! Builds the replica, and the handles shared by its threads and tasks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::disks::{Replica, StartWarnings, Storage};
use super::identity::Identity;
use super::recovery::configuration_of;
use crate::api::Member;
use crate::kv;
use crate::node::{Node, NodeOptions};
use crate::raft::Configuration;
use crate::server::config::{ClusterState, Config};
use crate::server::disk::gc_thread::GcProgress;
use crate::server::disk::log_compactor::LogUse;
use crate::server::disk::marker::Marker;
use crate::server::disk::space::SpaceGate;
use crate::server::disk::store::StateReader;
use crate::server::mail::Mailbox;
use crate::server::metrics::Metrics;
use crate::server::peers::Roster;
use crate::server::peers::members::{MemberNames, OwnStanding};
use crate::server::status::contacts::Contacts;
use crate::server::status::node_state::NodeState;
use crate::server::status::startup::StartupProgress;
use crate::server::threads::fatal::{Exit, Fatal};
use crate::server::watch::Watches;
use crate::transport::TransportStats;
use crate::types::LogIndex;

/// Maximum number of requests pending in a node; further ones are refused as overload.
const WAITING_MAX: usize = 65_536;
/// Sessions that a cluster keeps.
const SESSIONS_MAX: u32 = 100_000;
/// How long a session may stay unused before it is forgotten.
const SESSION_IDLE_MAX: Duration = Duration::from_secs(3600);

/// The third stage.
pub(super) struct Core {
    pub(super) replica: ReadyReplica,
    pub(super) shared: Shared,
}

/// The parts owned by the driver's thread.
pub(super) struct ReadyReplica {
    pub(super) node: Node,
    pub(super) names: MemberNames,
    pub(super) configuration: Configuration,
    pub(super) roster: Roster,
    /// See [`RestoredState::unproven`].
    pub(super) unproven: bool,
}

/// The handles shared by threads, ports and tasks of the node.
pub(super) struct Shared {
    pub(super) metrics: Arc<Metrics>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) node: Arc<NodeState>,
    pub(super) store: StateReader,
    pub(super) standing: Arc<OwnStanding>,
    pub(super) startup: Arc<StartupProgress>,
    pub(super) watches: Arc<Watches>,
    pub(super) removed: Arc<GcProgress>,
    pub(super) log_use: Arc<LogUse>,
    pub(super) space: Arc<SpaceGate>,
    pub(super) transport: Arc<TransportStats>,
    pub(super) fatal: Fatal,
    pub(super) failed: watch::Receiver<Option<String>>,
    pub(super) exit: Exit,
}

impl Core {
    /// Builds the replica from the restored log and state.
    pub(super) fn new(
        config: &Config,
        exit_on_fatal: bool,
        identity: &Identity,
        metrics: Arc<Metrics>,
        storage: &Storage,
        replica: Replica,
        warnings: StartWarnings,
    ) -> Self {
        let unproven = replica.restored.unproven;
        let configuration = configuration_of(&replica.restored).clone();
        let names = replica.names;
        // Until the node reports more: the members that are accepted, and their addresses.
        // The driver says at once what is committed of it.
        let (none, empty) = (Configuration::default(), Roster::default());
        let nobody = names.roster(LogIndex(0), true, &none, &empty);
        let roster = names.roster(LogIndex(0), false, &configuration, &nobody);
        let described = names.describe(&configuration);
        note_other_names(config, &described);
        let initial = names.describe(&names.first_configuration());
        let cluster_version = replica.cluster_version;
        let node = Node::new(
            NodeOptions {
                cluster_id: identity.cluster_id,
                id: identity.member_id,
                members: initial.into_iter().map(|member| member.info).collect(),
                timing: config.timing,
                limits: config.limits,
                waiting_max: WAITING_MAX,
                sessions_max: SESSIONS_MAX,
                session_idle_max: SESSION_IDLE_MAX,
                leases: config.leases,
                auto_compaction: config.compaction.auto,
                check_interval: config.storage.corruption_check_interval,
                seed: identity.seed(),
                bootstrap: identity.draw_bootstrap(),
            },
            replica.restored,
            replica.bootstrap,
            storage.store.reader().revision(),
            identity.started,
        )
        .with_leases(replica.leases)
        .with_versions(kv::KNOWN_VERSIONS, cluster_version);
        let shared = Shared::new(
            config,
            exit_on_fatal,
            identity,
            metrics,
            storage,
            &node,
            warnings,
        );
        let version = &shared.node.cluster_version;
        version.store(cluster_version, Ordering::Relaxed);
        shared.node.know_bootstrap(replica.bootstrap);
        shared.node.directory.set_members(&described);
        Self {
            replica: ReadyReplica {
                node,
                names,
                configuration,
                roster,
                unproven,
            },
            shared,
        }
    }
}

impl Shared {
    fn new(
        config: &Config,
        exit_on_fatal: bool,
        identity: &Identity,
        metrics: Arc<Metrics>,
        storage: &Storage,
        node: &Node,
        warnings: StartWarnings,
    ) -> Self {
        let store = storage.store.reader();
        let incarnation = identity.data_dir.identity().incarnation;
        let state = NodeState {
            cluster_id: identity.cluster_id,
            member_id: identity.member_id,
            name: config.node.name.clone(),
            timing: config.timing,
            clock: identity.clock.clone(),
            status: Arc::default(),
            published: node.published(),
            cluster_version: Arc::default(),
            bootstrap: Arc::default(),
            directory: Arc::default(),
            integrity: Arc::default(),
            readable: Arc::default(),
            lease_stats: Arc::default(),
            stopping: AtomicBool::new(false),
            contacts: Arc::new(Contacts::new(identity.clock.now())),
            followers: Arc::default(),
            asks_for_read_leases: AtomicBool::new(config.timing.read_lease_enabled),
            doubles: Arc::default(),
            quarantined_at_start: warnings.quarantine_warning,
            start_warnings: warnings.warnings,
        };
        // No request comes in before it is known whether it may be served.
        state.integrity.set(node.state_check(), 0);
        let (fatal, failed) = Fatal::new(&config.node.name, exit_on_fatal);
        Self {
            metrics,
            mailbox: Arc::default(),
            node: Arc::new(state),
            standing: Arc::new(OwnStanding::new(incarnation)),
            startup: Arc::new(StartupProgress {
                applied: store.applied(),
                lacks_state: storage.lacks_state,
                has_caught_up: AtomicBool::new(false),
            }),
            watches: Arc::default(),
            removed: Arc::default(),
            log_use: Arc::new(LogUse::new(storage.log.base().index)),
            // The first look at the disk says how much the tables take.
            space: Arc::new(SpaceGate::new(config)),
            transport: Arc::default(),
            exit: fatal.exit(
                identity.data_dir.clone(),
                Marker::Removed.record_in(identity.data_dir.path()),
            ),
            fatal,
            failed,
            store,
        }
    }
}

/// Members come and go by `leasehold member`, and not by the configuration file: a file that
/// names others draws a warning.
fn note_other_names(config: &Config, members: &[Member]) {
    if config.cluster.state != ClusterState::New || members.is_empty() {
        return;
    }
    let configured = config.cluster.initial.iter();
    let configured: BTreeSet<&str> = configured.map(|member| member.name.as_str()).collect();
    let members: BTreeSet<&str> = members
        .iter()
        .map(|member| member.info.name.as_str())
        .collect();
    if configured != members {
        tracing::warn!(
            node = %config.node.name,
            ?configured,
            ?members,
            "cluster.initial differs from the current members, which are changed with `leasehold \
             member` and not in the configuration: set cluster.state = \"existing\" to mark it as \
             a list of members to contact"
        );
    }
}
