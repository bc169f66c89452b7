//! Putting a node together; `running` takes it apart again.
//!
//! The order of the start matters: the data directory is locked before the clock is read that the
//! voter's silence is counted from (A3), the log is whole before consensus sees it, and the ports for
//! clients and peers open last; probes are answered from early on.

mod error;
mod identity;
mod recovery;
mod running;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::backups::Backups;
use super::certificates::{Certificates, Shown, Told};
use super::drain::Drain;
use crate::api::Member;
use crate::clock::SystemClock;
use crate::kv;
use crate::node::{Node, NodeOptions, Reader};
use crate::raft::{Configuration, Status};
use crate::server::admin::log_control::LogControl;
use crate::server::admin::manage::Place;
use crate::server::admin::probes::{Instruments, Probes};
use crate::server::admin::service::{Advertised, Managed};
use crate::server::admin::{AdminServer, Pages, manage};
use crate::server::config::{ClusterState, Config};
use crate::server::disk::bootstrap::{Founding, founds_alone};
use crate::server::disk::data_dir::{DataDir, Identity};
use crate::server::disk::gc_thread::{Pace, Removed, SweepThread};
use crate::server::disk::journal_thread::JournalThread;
use crate::server::disk::log_compactor::{LogCutter, LogUse};
use crate::server::disk::log_thread::LogThread;
use crate::server::disk::quota::{QuotaWatch, Room};
use crate::server::disk::state_thread::StateThread;
use crate::server::driver::effects::{Hands, LogReports, Post};
use crate::server::driver::lease_log::LeaseLog;
use crate::server::driver::{Driver, Mailbox};
use crate::server::metrics::{Metrics, Sampler, UPKEEP_INTERVAL};
use crate::server::peers::members::{MemberNames, OwnStanding};
use crate::server::peers::transfer::{Incoming, Outgoing, SendRate};
use crate::server::peers::{Peers, PeersConfig, Roster};
use crate::server::session::admission::Backlog;
use crate::server::session::auth::{Access, Audit};
use crate::server::session::budget::ByteBudget;
use crate::server::session::exports::Exports;
use crate::server::session::origins::Origins;
use crate::server::session::traces::Exporting;
use crate::server::session::{Sessions, SlowLog, StorageSize, exports, traces};
use crate::server::status::directory::Directory;
use crate::server::status::integrity::Integrity;
use crate::server::status::lease_stats::Vitals;
use crate::server::status::startup::Beginning;
use crate::server::threads::fatal::{Exit, Fatal, damage_mark};
use crate::server::threads::queue::Gather;
use crate::server::watch::{WatchThread, Watches};
use crate::time::{Clock, Instant};
use crate::transport::{Admission, ClientListener, ListenerConfig, TransportStats};
use crate::types::{ClusterId, LogIndex, NodeId};
use crate::wire::FrameLimits;

use self::error::io_error;
use self::identity::{load_both_tls, refuse_removed, who_am_i};
pub(crate) use self::recovery::tripwire_mark;
use self::recovery::{Found, configuration_of, store_options};
use self::running::{AbortOnDrop, Ends};

pub use self::error::StartError;
pub(crate) use self::identity::load_tls;
pub use self::running::{CertificateReload, Pulse};

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

/// A running node.
pub struct Server {
    name: String,
    member_id: NodeId,
    cluster_id: ClusterId,
    client_address: SocketAddr,
    peer_address: SocketAddr,
    admin: Vec<AdminServer>,
    sessions: Arc<Sessions>,
    accepting: tokio::task::JoinHandle<()>,
    certificates: AbortOnDrop,
    reload: Arc<Notify>,
    drain: Arc<Drain>,
    peers: Arc<Peers>,
    status: Arc<ArcSwap<Status>>,
    driver: JoinHandle<()>,
    log_thread: Arc<LogThread>,
    state_thread: JoinHandle<()>,
    sweep_thread: JoinHandle<()>,
    journal_thread: JoinHandle<()>,
    cutter_thread: JoinHandle<()>,
    watch_thread: JoinHandle<()>,
    exporting: Option<Exporting>,
    failed: watch::Receiver<Option<String>>,
    exit: Exit,
    ends: Ends,
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
        let (tls_client, tls_peer) = load_both_tls(&config)?;
        let cluster_id = tls_peer.cluster_id();
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
            let mut founding = founding;
            let open = move || {
                let found = Found::on_disk(&config, &data_dir, &names, &mut founding, &metrics);
                (found, names, founding)
            };
            match tokio::task::spawn_blocking(open).await {
                Ok((found, names, founding)) => (found?, names, founding),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        };
        if found.forgot_votes {
            // A vote that it does not remember may still be on its way to a candidate, and what this
            // node now promised or acknowledged to a leader would be worth nothing against that (A23).
            // Nobody waits longer for votes than an election timeout; until twice that nothing is said.
            let wait = config.timing.election_timeout_max * 2;
            tracing::info!(
                ?wait,
                "waits until votes that it may have forgotten count no more"
            );
            tokio::time::sleep(wait).await;
        }
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
        let peer_advertised = config.advertise.peer.clone().unwrap_or_default();
        let advertised = Advertised {
            client: advertised,
            peer: peer_advertised.clone(),
        };
        let peers_config = PeersConfig {
            bind: config.listen.peer,
            tls: tls_peer,
            node_id: member_id,
            incarnation: data_dir.identity().incarnation,
            peer_address: peer_advertised,
            client_address: advertised.client.clone(),
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
        let (traces, exporting) = traces::start(
            &config.tracing,
            &config.node.name,
            cluster_id,
            seed(started, member_id),
            &metrics,
        )
        .unzip();
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
            keep_alives: Sessions::keep_alive_slots(),
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
            slow: SlowLog::new(config.log.slow_request),
            traces,
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
                peer_metrics: BTreeMap::new(),
                told: roster.clone(),
                leader: None,
                roster,
                configuration: (LogIndex(0), false, configuration),
                logged_members: (false, Vec::new()),
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
            settings: config.settings.clone(),
            advertised,
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
            name: config.node.name,
            member_id,
            cluster_id,
            client_address,
            peer_address,
            admin,
            sessions,
            accepting,
            certificates,
            reload,
            drain,
            peers,
            status,
            driver,
            log_thread,
            state_thread,
            sweep_thread,
            journal_thread,
            cutter_thread,
            watch_thread,
            exporting,
            failed,
            exit,
            ends: Ends {
                mailbox,
                state_work,
                sweep_work,
                journal_work,
                cutter_work,
                watches,
                listener,
                backups_end,
                _tending: tending,
            },
        })
    }
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
