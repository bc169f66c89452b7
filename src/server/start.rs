//! Putting a node together, and taking it apart again.
//!
//! The order of the start matters: the data directory is locked before the clock is read that the
//! voter's silence is counted from (A3), the log is whole before consensus sees it, and the ports for
//! clients and peers open last; probes are answered from early on. The order of the stop matters too: refuse new work, hand leadership over, release the
//! promises, then let each thread finish what it holds.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::hash::Hasher;
use std::hash::RandomState;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::sync::oneshot;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::access::Access;
use super::access::Audit;
use super::admin::AdminError;
use super::admin::AdminServer;
use super::admin::Pages;
use super::admin::manage;
use super::admin::manage::Place;
use super::admission::Backlog;
use super::attempt;
use super::attempt::Attempt;
use super::backups::Backups;
use super::budget::ByteBudget;
use super::certificates::Certificates;
use super::certificates::Shown;
use super::certificates::Told;
use super::config::ClusterState;
use super::config::Config;
use super::config::TlsFiles;
use super::directory::Directory;
use super::disk::data_dir::DataDir;
use super::disk::data_dir::DataDirError;
use super::disk::data_dir::Identity;
use super::disk::log_thread;
use super::disk::log_thread::LogThread;
use super::disk::log_thread::RestoreError;
use super::disk::log_thread::restore;
use super::disk::places::Places;
use super::disk::store::StateStore;
use super::disk::store::StoreError;
use super::disk::store::StoreOptions;
use super::drain::Drain;
use super::driver::Driver;
use super::driver::Mail;
use super::driver::Mailbox;
use super::exports;
use super::exports::Exports;
use super::fatal::Exit;
use super::fatal::Fatal;
use super::fatal::damage_mark;
use super::founding::Founding;
use super::founding::FoundingError;
use super::founding::founds_alone;
use super::founding::removed_mark;
use super::gather::Gather;
use super::instruments::Instruments;
use super::instruments::Probes;
use super::integrity::Integrity;
use super::joining;
use super::journal_thread::JournalThread;
use super::journal_thread::StopJournal;
use super::lease_log::LeaseLog;
use super::log_control::LogControl;
use super::log_cutter::LogCutter;
use super::log_cutter::LogUse;
use super::log_cutter::StopCutting;
use super::managed::Managed;
use super::members::MemberNames;
use super::members::OwnStanding;
use super::metrics::Metrics;
use super::metrics::Sampler;
use super::metrics::UPKEEP_INTERVAL;
use super::origins::Origins;
use super::peers::Peers;
use super::peers::PeersConfig;
use super::peers::PeersError;
use super::peers::Roster;
use super::quota::QuotaWatch;
use super::quota::Room;
use super::sessions::Sessions;
use super::sessions::StorageSize;
use super::sinks::Hands;
use super::sinks::LogReports;
use super::sinks::Post;
use super::startup::Beginning;
use super::state_thread::StateThread;
use super::state_thread::Work;
use super::sweep_thread::Pace;
use super::sweep_thread::Removed;
use super::sweep_thread::SweepThread;
use super::sweep_thread::SweepWork;
use super::transfer::Incoming;
use super::transfer::Outgoing;
use super::transfer::SendRate;
use super::vitals::Vitals;
use super::watches::WatchThread;
use super::watches::Watches;
use crate::api::Member;
use crate::clock::SystemClock;
use crate::kv;
use crate::kv::HeldLeases;
use crate::log::Log;
use crate::log::LogError;
use crate::log::Verdict;
use crate::node::Node;
use crate::node::NodeOptions;
use crate::node::Reader;
use crate::raft::Configuration;
use crate::raft::Payload;
use crate::raft::Status;
use crate::time::Clock;
use crate::time::Instant;
use crate::transport::Admission;
use crate::transport::BindError;
use crate::transport::ClientListener;
use crate::transport::CloseCode;
use crate::transport::ListenerConfig;
use crate::transport::Tls;
use crate::transport::TlsError;
use crate::transport::TransportStats;
use crate::types::ClusterId;
use crate::types::Incarnation;
use crate::types::LogIndex;
use crate::types::NodeId;
use crate::types::VersionRange;
use crate::wire::FrameLimits;

/// Requests that may wait inside a node; beyond that it asks clients to slow down.
const WAITING_MAX: usize = 65_536;
/// Sessions that a cluster keeps.
const SESSIONS_MAX: u32 = 100_000;
/// How long a session may stay unused before it is forgotten.
const SESSION_IDLE_MAX: Duration = Duration::from_secs(3600);

/// What a server needs besides its configuration.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// End the process when the node cannot go on (a failed sync, a damaged store). Without it the
    /// node alone ends, as `dev` wants it.
    pub exit_on_fatal: bool,
    /// The log of this process, if this node may change what is in it.
    pub log: Option<LogControl>,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A certificate cannot be used.
    #[error("[tls.{section}] {error}")]
    Tls {
        /// `client` or `peer`.
        section: &'static str,
        /// What is wrong with it.
        error: TlsError,
    },
    /// The certificate is not this node's.
    #[error(
        "[tls.{section}] the certificate is {found}'s, and node.name is \"{name}\": use the \
         certificate that was issued to \"{name}\", or correct the name"
    )]
    CertificateName {
        /// `client` or `peer`.
        section: &'static str,
        /// Whose it is.
        found: String,
        /// Who this node is.
        name: String,
    },
    /// The new certificate is of another cluster than the one before.
    #[error(
        "[tls.{section}] the certificate is of cluster {found}, and this node is of {cluster}: issue \
         it with this cluster's authorities"
    )]
    CertificateOfAnotherCluster {
        /// `client` or `peer`.
        section: &'static str,
        /// The certificate's.
        found: ClusterId,
        /// The node's.
        cluster: ClusterId,
    },
    /// The two certificates belong to different clusters.
    #[error(
        "the certificates of [tls.client] and [tls.peer] belong to different clusters ({client} \
         and {peer}): issue both with the same authorities"
    )]
    CertificateClusters {
        /// The client port's.
        client: ClusterId,
        /// The peer port's.
        peer: ClusterId,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The configuration does not fit what the directory remembers of the founding.
    #[error(transparent)]
    Founding(#[from] FoundingError),
    /// The directory is that of a member that was removed.
    #[error("{why} (says {})", path.display())]
    Removed {
        /// What it was told.
        why: String,
        /// The file that remembers it.
        path: PathBuf,
    },
    /// The directory is empty, the cluster is said to exist, and nobody can be asked.
    #[error(
        "{} is empty, cluster.state says that the cluster exists, and cluster.initial names nobody who \
         could be asked: name other members there, restore the directory, or set cluster.state = \"new\" \
         if there never was such a cluster",
        path.display()
    )]
    NobodyToAsk {
        /// The directory.
        path: PathBuf,
    },
    /// Emptied, this member of a larger cluster would found it anew.
    #[error(
        "this cluster has {members} members, and cluster.initial names this node alone with cluster.state \
         = \"new\": were its data directory ever emptied it would found the cluster again, beside the \
         others; set cluster.state = \"existing\""
    )]
    WouldFoundAlone {
        /// How many there are.
        members: usize,
    },
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log holds what this version cannot read.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The state was lost, the log has been cut, and there are no peers to take it from.
    #[error(
        "the state has applied entry {applied}, and the log begins after {base}: the state was lost, \
         and this node has no peers to take it from; restore a backup of the data directory"
    )]
    StateLost {
        /// How far the state goes.
        applied: LogIndex,
        /// Where the log begins.
        base: LogIndex,
    },
    /// The data is of a cluster that has agreed on what this program does not know.
    #[error(
        "{} belongs to a cluster of version {found}, and this program knows {known}: start the newer \
         release that wrote it; there is no way back to an older one",
        data_dir.display()
    )]
    NewerCluster {
        /// The data directory.
        data_dir: PathBuf,
        /// What the cluster is.
        found: u16,
        /// What this program knows.
        known: VersionRange,
    },
    /// The state cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The peer port cannot be opened.
    #[error("listen.peer: {0}")]
    Peers(PeersError),
    /// A port cannot be opened.
    #[error("{setting}: {error}")]
    Bind {
        /// The setting that names the address.
        setting: &'static str,
        /// What is wrong.
        error: BindError,
    },
    /// The admin port cannot be opened.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A thread cannot be started, or a folder renamed.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

/// A running node.
pub struct Server {
    name: String,
    member_id: NodeId,
    cluster_id: ClusterId,
    client_address: SocketAddr,
    peer_address: SocketAddr,
    admin: Vec<AdminServer>,
    sessions: Arc<Sessions>,
    listener: Arc<ClientListener>,
    accepting: tokio::task::JoinHandle<()>,
    certificates: AbortOnDrop,
    reload: Arc<Notify>,
    drain: Arc<Drain>,
    peers: Arc<Peers>,
    mailbox: Arc<Mailbox>,
    status: Arc<ArcSwap<Status>>,
    driver: JoinHandle<()>,
    log_thread: Arc<LogThread>,
    state_work: Arc<Gather<Work>>,
    state_thread: JoinHandle<()>,
    sweep_work: Arc<Gather<SweepWork>>,
    sweep_thread: JoinHandle<()>,
    journal_work: Arc<Gather<StopJournal>>,
    journal_thread: JoinHandle<()>,
    cutter_work: Arc<Gather<StopCutting>>,
    cutter_thread: JoinHandle<()>,
    watch_thread: JoinHandle<()>,
    failed: watch::Receiver<Option<String>>,
    exit: Exit,
    _ends: Ends,
}

/// Asks a node to load its certificates anew.
#[derive(Clone, Debug)]
pub struct CertificateReload {
    asked: Arc<Notify>,
}

impl CertificateReload {
    /// Has the files loaded now, changed or not; when they change the node does it by itself. Returns
    /// at once: the node's log and metrics tell what came of it.
    pub fn ask(&self) {
        self.asked.notify_one();
    }
}

/// A task that ends with whoever started it.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Feels whether a node turns.
#[derive(Clone, Debug)]
pub struct Pulse {
    mailbox: Arc<Mailbox>,
}

impl Pulse {
    /// Returns once the thread that drives the node has handled what was before this in its queue;
    /// never, if it stands still or has ended. Neither a slow disk nor the want of a leader holds it
    /// up.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn beat(&self) {
        let (answer, answered) = oneshot::channel();
        self.mailbox.send(Mail::Pulse(answer));
        if answered.await.is_err() {
            std::future::pending().await
        }
    }
}

/// A server that is dropped without a shutdown ends its threads and lets go of its ports. The data
/// directory stays locked until the last thread that writes there is gone.
struct Ends {
    mailbox: Arc<Mailbox>,
    state_work: Arc<Gather<Work>>,
    sweep_work: Arc<Gather<SweepWork>>,
    journal_work: Arc<Gather<StopJournal>>,
    cutter_work: Arc<Gather<StopCutting>>,
    watches: Arc<Watches>,
    listener: Arc<ClientListener>,
    backups_end: Arc<AtomicBool>,
    _tending: JoinSet<()>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.listener.close(CloseCode::Stopping);
        self.mailbox.send(Mail::Stop);
        self.state_work.send(Work::Stop);
        self.sweep_work.send(SweepWork::Stop);
        self.journal_work.send(StopJournal);
        self.cutter_work.send(StopCutting);
        self.watches.stop();
        self.backups_end.store(true, Ordering::Relaxed);
    }
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
        let tls_client = load_tls("client", &config.tls_client, &config.node.name)?;
        let tls_peer = load_tls("peer", &config.tls_peer, &config.node.name)?;
        let cluster_id = tls_peer.cluster_id();
        if tls_client.cluster_id() != cluster_id {
            let client = tls_client.cluster_id();
            return Err(StartError::CertificateClusters {
                client,
                peer: cluster_id,
            });
        }
        let told = who_am_i(&config, &tls_peer).await?;
        let identity = Identity {
            cluster: cluster_id,
            node_name: config.node.name.clone(),
            incarnation: told.incarnation,
        };
        let member_id = identity.node();
        let data_dir = DataDir::open_or_create(&config.node.data_dir, &identity)?;
        refuse_removed(data_dir.path())?;
        let founding = Founding::check(&config, &data_dir, told.founders)?;
        let data_dir = Arc::new(data_dir);
        let names = MemberNames::new(&config, cluster_id, &founding);

        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        // After the lock is held: an earlier process of this directory can promise nothing more.
        let started = clock.now();
        let metrics = Metrics::new();
        for (port, tls) in [
            (&metrics.transport.client, &tls_client),
            (&metrics.transport.peer, &tls_peer),
        ] {
            let ends = tls.expires_at_unix_seconds() as f64;
            port.certificate_expiry_seconds.set(ends);
        }
        let vitals = Arc::new(Vitals::default());
        // Probes are answered while log and state are opened, which may take long: of those who only
        // look, none shall take a node that starts for one that is gone.
        let probes = Arc::new(Probes {
            metrics: metrics.clone(),
            node: OnceLock::new(),
        });
        let place = Place::default();
        let pages = Pages::probes(probes.clone()).and(manage::router(place.clone()), manage::PATHS);
        let mut admin = vec![AdminServer::start("listen.admin", config.listen.admin, pages).await?];
        if let Some(address) = config.listen.metrics {
            let pages = Pages::probes(probes.clone());
            admin.push(AdminServer::start("listen.metrics", address, pages).await?);
        }
        let (found, names, founding) = {
            let (config, data_dir, metrics) = (config.clone(), data_dir.clone(), metrics.clone());
            let open = move || {
                let found = Found::on_disk(&config, &data_dir, &names, &founding, &metrics);
                (found, names, founding)
            };
            match tokio::task::spawn_blocking(open).await {
                Ok((found, names, founding)) => (found?, names, founding),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        };
        let beginning = Arc::new(Beginning {
            applied: found.store.reader().applied(),
            lacks_state: found.lacks_state,
            has_caught_up: AtomicBool::new(false),
        });
        let configuration = configuration_of(&found.restored).clone();
        if founds_alone(&config) && configuration.members().iter().any(|id| *id != member_id) {
            let members = configuration.members().len();
            return Err(StartError::WouldFoundAlone { members });
        }
        // Until the node says more: who may be heard, and who is where.
        // The driver says at once what is committed of it.
        let nobody = names.roster(
            LogIndex(0),
            true,
            &Configuration::default(),
            &Roster::default(),
        );
        let roster = names.roster(LogIndex(0), false, &configuration, &nobody);
        let described = names.describe(&configuration);
        note_other_names(&config, &described);
        let directory = Arc::new(Directory::default());
        directory.set_members(&described);
        let founders = names.describe(&names.first_configuration());
        let members = founders.into_iter().map(|member| member.info).collect();
        let standing = Arc::new(OwnStanding::new(data_dir.identity().incarnation));
        let limits = config.limits;
        let node = Node::new(
            NodeOptions {
                cluster_id,
                id: member_id,
                members,
                timing: config.timing,
                limits,
                waiting_max: WAITING_MAX,
                sessions_max: SESSIONS_MAX,
                session_idle_max: SESSION_IDLE_MAX,
                leases: config.leases,
                auto_compaction: config.compaction.auto,
                check_interval: config.storage.corruption_check_interval,
                seed: seed(started, member_id),
            },
            found.restored,
            found.founded,
            found.store.reader().revision(),
            started,
        )
        .with_leases(found.leases)
        .with_versions(kv::KNOWN_VERSIONS, found.cluster_version);
        let cluster_version = Arc::new(AtomicU16::new(found.cluster_version));

        let transport_stats = Arc::new(TransportStats::default());
        let (fatal, failed) = Fatal::new(&config.node.name, options.exit_on_fatal);
        let exit = fatal.exit(data_dir.path());
        let mailbox = Arc::new(Mailbox::default());
        let status = Arc::new(ArcSwap::from_pointee(Status::default()));
        let published = node.published();
        let store_reader = found.store.reader();
        let readable = Arc::new(AtomicBool::new(false));

        let frame_limits = FrameLimits::of(&limits);
        let listener = ClientListener::bind(
            config.listen.client,
            &tls_client,
            ListenerConfig {
                member_id,
                limits: frame_limits,
                admission: config.connections,
            },
            transport_stats.clone(),
        )
        .map_err(|error| StartError::Bind {
            setting: "listen.client",
            error,
        })?;
        let client_address = listener
            .local_address()
            .map_err(io_error("reading the client port"))?;
        let advertised = config
            .advertise
            .client
            .clone()
            .unwrap_or_else(|| client_address.to_string());
        directory.learn(member_id, "", &advertised);
        let peers_config = PeersConfig {
            bind: config.listen.peer,
            tls: tls_peer,
            node_id: member_id,
            incarnation: data_dir.identity().incarnation,
            peer_address: config.advertise.peer.clone().unwrap_or_default(),
            client_address: advertised,
            roster: roster.clone(),
            limits: frame_limits,
            admission: Admission::DEFAULT,
            seed: seed(started, member_id),
        };
        let store_options = store_options(config.storage.cache_bytes);
        let incoming = Arc::new(Incoming {
            cluster: cluster_id,
            places: found.places,
            data_dir: data_dir.clone(),
            options: store_options,
            mailbox: mailbox.clone(),
            metrics: metrics.clone(),
            limits: frame_limits,
            slot: Mutex::default(),
        });
        let post = Arc::new(Post {
            mailbox: mailbox.clone(),
            directory: directory.clone(),
            incoming: incoming.clone(),
            metrics: metrics.clone(),
            standing: standing.clone(),
            exit: exit.clone(),
        });
        let stats = transport_stats.clone();
        // It makes a runtime of its own, which must not be dropped inside of this one.
        let peers = tokio::task::spawn_blocking(move || Peers::start(peers_config, post, stats))
            .await
            .map_err(|error| StartError::Io {
                what: "starting the peer connections",
                error: io::Error::other(error),
            })?
            .map_err(StartError::Peers)?;
        let peers = Arc::new(peers);
        peers.require_version(found.cluster_version);
        let peer_address = peers.local_address();

        let log_use = Arc::new(LogUse::new(found.log.base().index));
        let outgoing = Arc::new(Outgoing {
            cluster: cluster_id,
            member: member_id,
            peers: Arc::downgrade(&peers),
            store: store_reader.clone(),
            log_use: log_use.clone(),
            mailbox: mailbox.clone(),
            metrics: metrics.clone(),
            limits: frame_limits,
            rate: SendRate::new(config.snapshots.send_bytes_per_second),
            broken: Mutex::default(),
            exports: AtomicU64::new(0),
        });
        let removed = Arc::new(Removed::default());
        let exports = Arc::new(Exports::default());
        let origins = Origins::of_node(cluster_id, member_id, mailbox.clone());
        let origins = Arc::new(origins);
        let integrity = Arc::new(Integrity::default());
        let watches = Arc::new(Watches::default());
        let sessions = Arc::new(Sessions {
            cluster_id,
            member_id,
            name: config.node.name.clone(),
            limits,
            frame_limits,
            in_flight_max: config.inflight_max,
            budget: ByteBudget::new(config.work.bytes_max),
            connection_bytes_max: config.work.connection_bytes_max,
            backlog: Backlog::new(config.work.waiting_max),
            room: Arc::new(Room::new(config.quota)),
            storage_size: StorageSize::default(),
            reader: Reader {
                lease_margin: config.timing.max_clock_skew,
            },
            store: store_reader.clone(),
            readable: readable.clone(),
            published: published.clone(),
            status: status.clone(),
            clock: clock.clone(),
            mailbox: mailbox.clone(),
            directory: directory.clone(),
            metrics: metrics.clone(),
            watches: watches.clone(),
            audit: match &config.auth_audit_file {
                Some(path) => {
                    let audit = Audit::open(path);
                    Some(audit.map_err(io_error("opening auth.audit_file"))?)
                }
                None => None,
            },
            access: Access::new(
                store_reader.gate().clone(),
                cluster_id,
                config.auth_token_ttl,
            ),
            stopping: AtomicBool::new(false),
            scans: Sessions::scan_slots(),
            exports: exports.clone(),
            origins,
            founds_alone: founds_alone(&config),
            timing: config.timing,
            vitals: vitals.clone(),
            lease_duration: config.timing.lease_duration,
            lease_enabled: config.timing.lease_enabled,
            handed_on: AtomicUsize::new(0),
            removed: removed.clone(),
            integrity: integrity.clone(),
            sampler: Sampler::default(),
            cluster_version: cluster_version.clone(),
            quarantine_warning: found.quarantine_warning,
            warnings: found.warnings,
            on_fatal: fatal.for_store(),
        });
        let instruments = Instruments {
            sessions: sessions.clone(),
            transport: transport_stats,
            failed: failed.clone(),
            beginning: beginning.clone(),
            ports: [
                ("client", listener.endpoint().clone()),
                ("peer", peers.endpoint().clone()),
            ],
        };
        metrics.spawn_upkeep(UPKEEP_INTERVAL);

        let log_thread = LogThread::spawn(
            found.log,
            LogReports {
                mailbox: mailbox.clone(),
                metrics: metrics.clone(),
                on_fatal: fatal.for_log(),
                _data_dir: data_dir.clone(),
                _watch: fatal.watch("log"),
            },
        )
        .map_err(io_error("starting the log thread"))?;
        let log_thread = Arc::new(log_thread);
        let state_work = Arc::new(Gather::default());
        let sweep_work = Arc::new(Gather::default());
        let sweep_thread = SweepThread {
            sweeper: found.store.sweeper(),
            work: sweep_work.clone(),
            pace: Pace {
                batch_limit: config.compaction.batch_limit,
                sleep_interval: config.compaction.sleep_interval,
            },
            removed,
            metrics: metrics.clone(),
            on_fatal: fatal.for_state(data_dir.state_path()),
            data_dir: data_dir.clone(),
            watch: fatal.watch("sweep"),
        }
        .spawn(&config.node.name)
        .map_err(io_error("starting the sweep thread"))?;
        let journal_work = Arc::new(Gather::default());
        let journal_thread = JournalThread {
            journal: found.store.journal(),
            work: journal_work.clone(),
            on_fatal: fatal.for_state(data_dir.state_path()),
            data_dir: data_dir.clone(),
            watch: fatal.watch("journal"),
        }
        .spawn(&config.node.name)
        .map_err(io_error("starting the journal thread"))?;
        let cutter_work = Arc::new(Gather::default());
        let cutter_thread = LogCutter {
            options: config.snapshots,
            log_use: log_use.clone(),
            keeper: found.store.keeper(),
            work: cutter_work.clone(),
            mailbox: mailbox.clone(),
            metrics: metrics.clone(),
            on_fatal: fatal.for_state(data_dir.state_path()),
            data_dir: data_dir.clone(),
            watch: fatal.watch("cutter"),
        }
        .spawn(&config.node.name)
        .map_err(io_error("starting the thread that cuts the log"))?;
        let watch_thread = WatchThread {
            options: config.watch,
            cluster_id,
            member_id,
            watches: watches.clone(),
            store: store_reader,
            published,
            clock: clock.clone(),
            metrics: metrics.clone(),
            seed: seed(started, member_id),
            on_fatal: fatal.for_store(),
            watch: Some(fatal.watch("watch")),
        }
        .spawn(&config.node.name)
        .map_err(io_error("starting the watch thread"))?;
        let state_thread = StateThread {
            store: found.store,
            work: state_work.clone(),
            sweep: sweep_work.clone(),
            mailbox: mailbox.clone(),
            metrics: metrics.clone(),
            watches: watches.clone(),
            readable,
            lacks_state: found.lacks_state,
            incoming: incoming.clone(),
            options: store_options,
            log_use,
            on_fatal: fatal.for_state(data_dir.state_path()),
            data_dir: data_dir.clone(),
            watch: fatal.watch("state"),
        }
        .spawn(&config.node.name)
        .map_err(io_error("starting the state thread"))?;
        let driver = Driver::new(
            node,
            mailbox.clone(),
            clock,
            Hands {
                log: log_thread.clone(),
                state: state_work.clone(),
                peers: peers.clone(),
                outgoing,
                incoming,
                metrics: metrics.clone(),
                directory: directory.clone(),
                cluster_version,
                name: config.node.name.clone(),
                tripwire_mark: tripwire_mark(data_dir.path()),
                unproven_mark: founding.mark(),
                trusted_lease: config.timing.trusted_lease(),
                vitals,
                integrity,
                watches: watches.clone(),
                lease_log: LeaseLog::new(),
                damage_mark: damage_mark(&data_dir.state_path()),
                names,
                roster,
                configuration: (LogIndex(0), false, configuration),
                standing,
                exit: exit.clone(),
            },
            status.clone(),
            founding.unproven,
        );
        let watch = fatal.watch("driver");
        let driver = std::thread::Builder::new()
            .name(format!("{}-driver", config.node.name))
            .spawn(move || {
                let _watch = watch;
                driver.run();
            })
            .map_err(io_error("starting the driver thread"))?;
        let listener = Arc::new(listener);
        let accepting = tokio::spawn(sessions.clone().accept(listener.clone()));
        tokio::spawn(exports::tend(exports));
        // Ends with the server.
        let mut tending = JoinSet::new();
        let quota = QuotaWatch {
            name: config.node.name.clone(),
            room: sessions.room.clone(),
            data_dir: config.node.data_dir.clone(),
            segment_bytes: config.storage.segment_bytes,
            store: sessions.store.clone(),
            mailbox: mailbox.clone(),
            metrics: metrics.clone(),
            on_fatal: fatal.for_store(),
        };
        tending.spawn(quota.run());
        let backups_end = Arc::new(AtomicBool::new(false));
        if let Some(config) = config.backup.clone() {
            let backups = Backups {
                config,
                store: sessions.store.clone(),
                origins: sessions.origins.clone(),
                readable: sessions.readable.clone(),
                integrity: sessions.integrity.clone(),
                metrics: metrics.clone(),
                stopping: backups_end.clone(),
                on_fatal: fatal.for_store(),
            };
            tending.spawn(backups.run());
        }
        let reload = Arc::new(Notify::new());
        let reloaded = Arc::new(Told::default());
        let certificates = Certificates {
            name: config.node.name.clone(),
            cluster_id,
            client: Shown::new("client", &config.tls_client, listener.endpoint().clone()),
            peer: Shown::new("peer", &config.tls_peer, peers.endpoint().clone()),
            interval: config.tls_reload_interval,
            asked: reload.clone(),
            told: reloaded.clone(),
            metrics: metrics.clone(),
        };
        let certificates = AbortOnDrop(tokio::spawn(certificates.look_after()));
        let drain = Arc::new(Drain {
            sessions: sessions.clone(),
            done: tokio::sync::Mutex::default(),
        });
        let managed = Managed {
            sessions: sessions.clone(),
            beginning,
            drain: drain.clone(),
            reload: reload.clone(),
            reloaded,
            client_port: listener.endpoint().clone(),
            peer_port: peers.endpoint().clone(),
            log: options.log,
            baseline: Mutex::default(),
        };
        // Each is set here, and nowhere else.
        let _ = probes.node.set(Arc::new(instruments));
        let _ = place.set(Arc::new(managed));

        tracing::info!(
            node = %config.node.name,
            member = %member_id,
            cluster = %cluster_id,
            version = crate::version::VERSION,
            client = %client_address,
            peer = %peer_address,
            admin = %admin[0].address(),
            data_dir = %config.node.data_dir.display(),
            "started; leased reads are safe while clocks drift by less than {} ppm",
            config.timing.max_drift_ppm,
        );
        Ok(Self {
            _ends: Ends {
                mailbox: mailbox.clone(),
                state_work: state_work.clone(),
                sweep_work: sweep_work.clone(),
                journal_work: journal_work.clone(),
                cutter_work: cutter_work.clone(),
                watches,
                listener: listener.clone(),
                backups_end,
                _tending: tending,
            },
            name: config.node.name,
            member_id,
            cluster_id,
            client_address,
            peer_address,
            admin,
            sessions,
            listener,
            accepting,
            certificates,
            reload,
            drain,
            peers,
            mailbox,
            status,
            driver,
            log_thread,
            state_work,
            state_thread,
            sweep_work,
            sweep_thread,
            journal_work,
            journal_thread,
            cutter_work,
            cutter_thread,
            watch_thread,
            failed,
            exit,
        })
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its member id.
    pub fn member_id(&self) -> NodeId {
        self.member_id
    }

    /// The cluster it belongs to.
    pub fn cluster_id(&self) -> ClusterId {
        self.cluster_id
    }

    /// Where clients reach it.
    pub fn client_address(&self) -> SocketAddr {
        self.client_address
    }

    /// Where peers reach it.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }

    /// Where probes and metrics are.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin[0].address()
    }

    /// How consensus stands on this node.
    pub fn status(&self) -> Arc<Status> {
        self.status.load_full()
    }

    /// Whether this node leads and may answer linearizable reads alone right now.
    pub fn has_lease(&self) -> bool {
        let now = self.sessions.clock.now();
        self.sessions
            .published
            .lease()
            .is_some_and(|cell| cell.is_valid(now))
    }

    /// Feels whether the node turns: its sign of life for a watchdog.
    pub fn pulse(&self) -> Pulse {
        Pulse {
            mailbox: self.mailbox.clone(),
        }
    }

    /// Asks for the certificates to be loaded anew.
    pub fn certificate_reload(&self) -> CertificateReload {
        CertificateReload {
            asked: self.reload.clone(),
        }
    }

    /// Waits until the node cannot go on, and says why.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn failed(&self) -> String {
        let mut failed = self.failed.clone();
        loop {
            let reason = failed.borrow_and_update().clone();
            match reason {
                Some(reason) => return reason,
                // The sender lives as long as the threads do, which end with the server.
                None if failed.changed().await.is_err() => std::future::pending().await,
                None => {}
            }
        }
    }

    /// Whether the node was removed from its cluster: then it has stopped taking part for good, and
    /// [`Server::failed`] says why.
    pub fn was_removed(&self) -> bool {
        self.exit.has_left()
    }

    /// Stops gracefully: hands leadership over, takes no more work, finishes what it holds,
    /// releases promises, makes everything durable.
    ///
    /// # Cancel safety
    /// Not cancel safe; dropping the server instead is like a crash, which it survives.
    pub async fn shutdown(mut self) {
        tracing::info!(node = %self.name, "stopping");
        self.drain.run().await;
        // The release of promises must leave before the peers' connections close.
        tokio::time::sleep(Duration::from_millis(50)).await;
        // It holds the ports.
        self.certificates.0.abort();
        self.listener.close(CloseCode::Stopping);
        let _ = tokio::time::timeout(Duration::from_secs(1), self.listener.wait_idle()).await;
        self.accepting.abort();
        for admin in std::mem::take(&mut self.admin) {
            admin.shutdown().await;
        }
        let name = self.name.clone();
        // Threads are joined where waiting is allowed.
        let joined = tokio::task::spawn_blocking(move || self.join()).await;
        if joined.is_err() {
            tracing::error!(node = %name, "a thread of this node panicked while stopping");
        }
        tracing::info!(node = %name, "stopped");
    }

    fn join(self) {
        self.mailbox.send(Mail::Stop);
        let mut panicked = self.driver.join().is_err();
        // It may be in the middle of merging tables: what cannot wait is done meanwhile.
        self.sweep_work.send(SweepWork::Stop);
        self.journal_work.send(StopJournal);
        self.cutter_work.send(StopCutting);
        self.state_work.send(Work::Stop);
        panicked |= self.state_thread.join().is_err();
        panicked |= self.sweep_thread.join().is_err();
        panicked |= self.journal_thread.join().is_err();
        panicked |= self.cutter_thread.join().is_err();
        self.sessions.watches.stop();
        panicked |= self.watch_thread.join().is_err();
        drop(self.peers);
        if let Ok(log_thread) = Arc::try_unwrap(self.log_thread)
            && let Err(error) = log_thread.stop()
        {
            tracing::error!(%error, "the log was not closed cleanly");
        }
        assert!(!panicked, "a thread of this node panicked");
    }
}

/// What the disks held.
struct Found {
    log: Log<super::disk::file::RealDisk>,
    places: Places,
    store: StateStore,
    /// It ends before the log begins.
    lacks_state: bool,
    restored: crate::raft::Restored,
    founded: bool,
    leases: HeldLeases,
    cluster_version: u16,
    quarantine_warning: Option<String>,
    warnings: Vec<String>,
}

impl Found {
    fn on_disk(
        config: &Config,
        data_dir: &DataDir,
        names: &MemberNames,
        founding: &Founding,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, StartError> {
        // Before the log is opened, which writes to it: what a later release left stays as it is.
        StateStore::refuse_newer_format(&data_dir.state_path())?;
        let options = data_dir.log_options(config.storage.segment_bytes);
        let observed = metrics.clone();
        let disk = data_dir.log_disk().observed_by(Arc::new(move |took| {
            observed
                .storage
                .wal_fsync_seconds
                .record(took.as_secs_f64());
        }));
        let (mut log, recovery) = Log::open(disk, options)?;
        let first = names.first_configuration();
        let configuration = log_thread::configuration(&recovery, &first)?;
        // One that joins, and knows nothing yet, has somebody who took it in.
        let has_peers = configuration.members().len() != 1;
        let mut warnings = Vec::new();
        let mut quarantine_warning = None;
        match &recovery.verdict {
            Verdict::Clean => {}
            Verdict::TornTailCut { batches, bytes } => tracing::info!(
                batches,
                bytes,
                "the last batch of the log was never synced, and has been cut: nothing that was \
                 acknowledged is lost"
            ),
            Verdict::Damaged(damage) => {
                let warning = quarantine_sentence(&damage.to_string(), has_peers);
                tracing::error!("{warning}");
                quarantine_warning = Some(warning);
                log.repair()?;
            }
        }
        let places = Places::new(data_dir.path());
        places
            .settle()
            .map_err(io_error("putting the state in its place"))?;
        let state_path = places.state();
        let store_options = store_options(config.storage.cache_bytes);
        // What is lost can be had from the log, or from peers.
        let can_be_lost = recovery.base.index == LogIndex(0) || has_peers;
        let mark = damage_mark(&state_path);
        if can_be_lost && let Ok(why) = std::fs::read_to_string(&mark) {
            warnings.push(set_aside(&state_path, why.trim())?);
            std::fs::remove_file(&mark).map_err(io_error("removing the mark of damage"))?;
        }
        let marking = || io_error("marking the opening of the state");
        let (attempt, lost) = Attempt::begin(&state_path).map_err(marking())?;
        if can_be_lost && lost >= attempt::PROOF {
            let why = format!("opening it ended this process {lost} times in a row");
            warnings.push(set_aside(&state_path, &why)?);
        }
        let opened = StateStore::open(&state_path, &store_options);
        attempt.end().map_err(marking())?;
        let mut store = match opened {
            Err(error) if error.is_damage() && can_be_lost => {
                warnings.push(set_aside(&state_path, &error.to_string())?);
                StateStore::open(&state_path, &store_options)?
            }
            opened => opened?,
        };
        let looking = || io_error("looking for a state that came from a peer");
        if store.reader().applied() < recovery.base.index
            && let Some(received) = places.accepted(recovery.base).map_err(looking())?
        {
            drop(store);
            places
                .adopt(&received)
                .and_then(|()| places.settle())
                .map_err(io_error("putting a state from a peer in its place"))?;
            store = StateStore::open(&state_path, &store_options)?;
            tracing::info!(base = %recovery.base, "a state that came from a peer is in use");
        }
        places.clear().map_err(looking())?;
        let lacks_state = store.reader().applied() < recovery.base.index;
        if lacks_state && !has_peers {
            return Err(StartError::StateLost {
                applied: store.reader().applied(),
                base: recovery.base.index,
            });
        }
        if lacks_state {
            tracing::warn!(
                applied = %store.reader().applied(),
                base = %recovery.base,
                "this node has no state: it serves nothing until a peer has sent its own, which it \
                 asks the leader for"
            );
        }
        let snapshot = store.reader().snapshot()?;
        let founded = kv::cluster_info(&snapshot)?.is_some();
        let leases = kv::held_leases(&snapshot)?;
        let cluster_version = kv::cluster_version(&snapshot)?;
        drop(snapshot);
        let applied = store.reader().applied();
        let was_quarantined = recovery.quarantined;
        let mut restored = restore(recovery, first, applied)?;
        restored.unproven = founding.unproven;
        let logged = restored
            .entries
            .iter()
            .filter_map(|entry| match &entry.payload {
                Payload::Command(bytes) => kv::raises_version(bytes),
                Payload::Noop | Payload::Configuration(_) => None,
            });
        // What is only in the log may still be cut from it, but not by this program: it would apply
        // what comes instead, and could not read that either.
        let newest = logged.max().unwrap_or(cluster_version).max(cluster_version);
        if newest > kv::KNOWN_VERSIONS.newest {
            return Err(StartError::NewerCluster {
                data_dir: config.node.data_dir.clone(),
                found: newest,
                known: kv::KNOWN_VERSIONS,
            });
        }
        let last = restored
            .entries
            .last()
            .map_or(restored.base, |entry| entry.id);
        let doubt = if founding.emptied {
            // Nobody it helps to elect could be sure of what the cluster has committed.
            restored.quarantined = true;
            Some("the data directory of this member was empty, and its cluster exists".to_owned())
        } else if was_quarantined {
            Some("it was so before the last stop, and was not whole again by then".to_owned())
        } else if applied > last.index {
            Some(format!(
                "it ends with entry {}, and the state holds entry {applied}: its end is lost",
                last.index
            ))
        } else if restored.hard_state.term < last.term {
            // Consensus draws the same conclusion.
            Some(format!(
                "it holds entries of term {}, and the vote file knows of none after {}: that file is \
                 an older one, and votes may be forgotten",
                last.term, restored.hard_state.term
            ))
        } else {
            None
        };
        if quarantine_warning.is_none()
            && let Some(why) = doubt
        {
            let warning = quarantine_sentence(&why, has_peers);
            tracing::error!("{warning}");
            quarantine_warning = Some(warning);
        }
        if restored.quarantined {
            // A state ahead of the log proves a loss, too; only this remembers it after a crash.
            log.begin_quarantine()?;
        }
        let mark = tripwire_mark(data_dir.path());
        restored.lease_tripped = mark.exists();
        if restored.lease_tripped {
            warnings.push(tripwire_warning(&mark));
        }
        Ok(Self {
            log,
            places,
            store,
            lacks_state,
            restored,
            founded,
            leases,
            cluster_version,
            quarantine_warning,
            warnings,
        })
    }
}

/// The file that remembers that an assumption about clocks failed on this node (P37).
fn tripwire_mark(data_dir: &Path) -> PathBuf {
    data_dir.join("leader-lease.tripped")
}

fn tripwire_warning(mark: &Path) -> String {
    format!(
        "this node serves no reads under a leader lease: it once held one while another node led, so \
         an assumption about clocks failed; find out why, then stop the node, delete {} and start \
         it again",
        mark.display()
    )
}

/// How `cache_bytes` is shared out: most of it to current records, which answer point reads.
fn store_options(cache_bytes: u64) -> StoreOptions {
    let records = cache_bytes / 4 * 3;
    StoreOptions {
        record_cache_bytes: usize::try_from(records).unwrap_or(usize::MAX),
        block_cache_bytes: cache_bytes - records,
        ..StoreOptions::default()
    }
}

/// What is said of a log that cannot be trusted.
fn quarantine_sentence(why: &str, has_peers: bool) -> String {
    let then = match has_peers {
        false => {
            "it has no peers to take everything anew from: restore its data directory from a copy"
        }
        true => "it takes everything anew from its peers",
    };
    format!(
        "the log of this node is damaged ({why}): it is quarantined, neither votes nor serves; {then}"
    )
}

/// Puts a state that cannot be used out of the way: the log, if it is whole, or a peer makes up for it.
fn set_aside(state: &Path, why: &str) -> Result<String, StartError> {
    let mut number = 1;
    let aside = loop {
        let candidate = state.with_extension(format!("damaged-{number}"));
        if !candidate.exists() {
            break candidate;
        }
        number += 1;
    };
    match std::fs::rename(state, &aside) {
        // Set aside by an earlier start that got no further.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        renamed => renamed.map_err(io_error("setting the damaged state aside"))?,
    }
    let warning = format!(
        "the state of this node cannot be used ({why}): it was moved to {} and is rebuilt from the \
         log, or from a peer where the log was cut; delete that folder when you have looked at it",
        aside.display()
    );
    tracing::warn!("{warning}");
    Ok(warning)
}

/// What is in the files of one port, if it is this node's.
pub(super) fn load_tls(
    section: &'static str,
    files: &TlsFiles,
    name: &str,
) -> Result<Tls, StartError> {
    let tls = Tls::load(&files.paths()).map_err(|error| StartError::Tls { section, error })?;
    let tls = tls.with_allowed(files.allowed_sans.clone());
    let identity = tls.identity();
    if !identity.is_node() || identity.name() != name {
        return Err(StartError::CertificateName {
            section,
            found: identity.to_string(),
            name: name.to_owned(),
        });
    }
    Ok(tls)
}

/// Which life of its data this node is in: what its data directory says; what the cluster says, where
/// that is empty and the cluster exists; the first, in a new one.
async fn who_am_i(config: &Config, tls: &Tls) -> Result<joining::Told, StartError> {
    let path = &config.node.data_dir;
    let known = DataDir::read_identity(path)?;
    let told = |incarnation| joining::Told {
        incarnation,
        founders: Vec::new(),
    };
    if let Some(identity) = known {
        return Ok(told(identity.incarnation));
    }
    if config.cluster_state == ClusterState::New {
        return Ok(told(Incarnation(0)));
    }
    let others = config.initial_members.iter();
    if others
        .filter(|member| member.name != config.node.name)
        .count()
        == 0
    {
        return Err(StartError::NobodyToAsk { path: path.clone() });
    }
    joining::ask(config, tls)
        .await
        .map_err(|error| StartError::Bind {
            setting: "listen.peer",
            error,
        })
}

/// A member that was removed does not come back with what it had: it has promised and voted.
fn refuse_removed(data_dir: &Path) -> Result<(), StartError> {
    let path = removed_mark(data_dir);
    match std::fs::read_to_string(&path) {
        Ok(why) => Err(StartError::Removed {
            why: why.trim().to_owned(),
            path,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error("looking whether this member was removed")(error)),
    }
}

/// The configuration in force after all that the log holds.
fn configuration_of(restored: &crate::raft::Restored) -> &Configuration {
    let entries = restored.entries.iter().rev();
    let mut configurations = entries.filter_map(|entry| match &entry.payload {
        Payload::Configuration(configuration) => Some(&**configuration),
        _ => None,
    });
    configurations
        .next()
        .unwrap_or(&restored.base_configuration)
}

/// Members come and go by `leasehold member`, and not by the configuration file: whoever thinks
/// otherwise is told.
fn note_other_names(config: &Config, members: &[Member]) {
    if config.cluster_state != ClusterState::New || members.is_empty() {
        return;
    }
    let configured = config.initial_members.iter();
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
            "cluster.initial names others than the members, who are changed by `leasehold member` and \
             not by the configuration: set cluster.state = \"existing\" to say that it names members to \
             ask"
        );
    }
}

/// What the election timeouts are drawn from: different on every node and at every start.
fn seed(started: Instant, member: NodeId) -> u64 {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&started.boot.to_le_bytes());
    bytes[8..16].copy_from_slice(&started.raw.to_le_bytes());
    bytes[16..].copy_from_slice(&member.0.to_le_bytes());
    // A hasher of std is seeded by the system when it is made.
    let mut hasher = RandomState::new().build_hasher();
    hasher.write(&bytes);
    hasher.finish()
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |error| StartError::Io { what, error }
}
