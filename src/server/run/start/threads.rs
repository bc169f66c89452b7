//! The threads of a node: one drives the replica, and each of the others owns something that may
//! block.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::core::{ReadyReplica, Shared};
use super::disks::Storage;
use super::error::{StartError, io_error};
use super::identity::Identity;
use super::ports::Ports;
use super::recovery::store_options;
use crate::log::Log;
use crate::node::MembersInForce;
use crate::server::config::{Config, SnapshotConfig};
use crate::server::disk::data_dir::DataDir;
use crate::server::disk::file::RealDisk;
use crate::server::disk::gc_thread::{GcThread, GcWork, Pace};
use crate::server::disk::hand_over_thread::{HandOverThread, HandOverWork};
use crate::server::disk::journal_thread::{JournalThread, StopJournal};
use crate::server::disk::log_compactor::{LogCompactor, StopCompactor};
use crate::server::disk::log_thread::LogThread;
use crate::server::disk::mark_writer::MarkWriter;
use crate::server::disk::marker::Marker;
use crate::server::disk::space::{DiskPlan, SpaceGate};
use crate::server::disk::state_thread::{StateThread, Work};
use crate::server::disk::store::{CompactionGc, HandOver, Journal, Keeper, StateStore, StoreError};
use crate::server::driver::Driver;
use crate::server::driver::effects::{EffectRunner, LogReports};
use crate::server::driver::elections::Elections;
use crate::server::driver::lease_log::LeaseLog;
use crate::server::driver::observer::{Membership, Renewals, Reporter};
use crate::server::mail::{Mail, Mailbox};
use crate::server::peers::Peers;
use crate::server::threads::fatal::Watch;
use crate::server::threads::queue::BatchQueue;
use crate::server::threads::{DRIVER, give_way, spawn};
use crate::server::watch::{WatchThread, Watches};

/// The fifth stage.
pub(super) struct Threads {
    driver: JoinHandle<()>,
    log: Arc<LogThread>,
    state: JoinHandle<()>,
    hand_over: JoinHandle<()>,
    gc: JoinHandle<()>,
    journal: JoinHandle<()>,
    log_compactor: JoinHandle<()>,
    watch: JoinHandle<()>,
    queues: Queues,
}

/// The queues of the threads. Dropping it ends all threads, so a server that is dropped without a
/// shutdown, or whose start fails, leaves none behind. The data directory stays locked until the last
/// thread that writes there is gone.
struct Queues {
    mailbox: Arc<Mailbox>,
    state: Arc<BatchQueue<Work>>,
    hand_over: Arc<BatchQueue<HandOverWork>>,
    gc: Arc<BatchQueue<GcWork>>,
    journal: Arc<BatchQueue<StopJournal>>,
    log_compactor: Arc<BatchQueue<StopCompactor>>,
    watches: Arc<Watches>,
    space: Arc<SpaceGate>,
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.mailbox.send(Mail::Stop);
        self.stop_disk();
        self.watches.stop();
    }
}

impl Queues {
    fn new(shared: &Shared) -> Self {
        Self {
            mailbox: shared.mailbox.clone(),
            state: Arc::default(),
            hand_over: Arc::default(),
            gc: Arc::default(),
            journal: Arc::default(),
            log_compactor: Arc::default(),
            watches: shared.watches.clone(),
            space: shared.space.clone(),
        }
    }

    /// Ends the threads that work for the driver.
    fn stop_disk(&self) {
        // Who waits for space must not hold up the end.
        self.space.end();
        // The GC thread may be merging tables, so it is stopped first: the others finish meanwhile.
        self.gc.send(GcWork::Stop);
        self.hand_over.send(HandOverWork::Stop);
        self.journal.send(StopJournal);
        self.log_compactor.send(StopCompactor);
        self.state.send(Work::Stop);
    }
}

type ThreadResult = Result<JoinHandle<()>, StartError>;

/// The inputs of all threads.
struct Ground<'a> {
    config: &'a Config,
    identity: &'a Identity,
    shared: &'a Shared,
    ports: &'a Ports,
    queues: &'a Queues,
}

impl Threads {
    /// Starts the threads, the driver last, so that its effects are executed from the beginning.
    pub(super) fn new(
        config: &Config,
        identity: &Identity,
        shared: &Shared,
        ports: &Ports,
        storage: Storage,
        replica: ReadyReplica,
    ) -> Result<Self, StartError> {
        let queues = Queues::new(shared);
        let ground = Ground {
            config,
            identity,
            shared,
            ports,
            queues: &queues,
        };
        let Storage {
            log,
            store,
            lacks_state,
        } = storage;
        let log = Arc::new(ground.log(log)?);
        Ok(Self {
            hand_over: ground.hand_over(store.hand_over())?,
            gc: ground.gc(store.compaction_gc(), store.hand_over())?,
            journal: ground.journal(store.journal())?,
            log_compactor: ground.log_compactor(store.keeper())?,
            watch: ground.watch()?,
            state: ground.state(store, lacks_state)?,
            driver: ground.driver(replica, log.clone())?,
            log,
            queues,
        })
    }

    /// Waits briefly for the driver's turn, independent of disks and peers.
    pub(super) fn mailbox(&self) -> Arc<Mailbox> {
        self.queues.mailbox.clone()
    }

    /// Ends the threads after each has finished its queue. Blocks.
    pub(super) fn join(self, peers: Arc<Peers>) {
        self.queues.mailbox.send(Mail::Stop);
        let mut panicked = self.driver.join().is_err();
        self.queues.stop_disk();
        let disk = [
            self.state,
            self.hand_over,
            self.gc,
            self.journal,
            self.log_compactor,
        ];
        for thread in disk {
            panicked |= thread.join().is_err();
        }
        self.queues.watches.stop();
        panicked |= self.watch.join().is_err();
        drop(peers);
        if let Ok(log) = Arc::try_unwrap(self.log)
            && let Err(error) = log.stop()
        {
            tracing::error!(%error, "the log was not closed cleanly");
        }
        assert!(!panicked, "a thread of this node panicked");
    }
}

impl Ground<'_> {
    fn log(&self, log: Log<RealDisk>) -> Result<LogThread, StartError> {
        let reports = LogReports {
            mailbox: self.shared.mailbox.clone(),
            metrics: self.shared.metrics.clone(),
            on_fatal: self.shared.fatal.for_log(),
        };
        LogThread::spawn(&self.name_of("log"), self.guard("log"), log, reports)
            .map_err(io_error("starting the log thread"))
    }

    fn hand_over(&self, hand_over: HandOver) -> ThreadResult {
        let mut thread = HandOverThread {
            hand_over,
            work: self.queues.hand_over.clone(),
            metrics: self.shared.metrics.clone(),
            space: self.shared.space.clone(),
        };
        let on_fatal = self.on_fatal();
        self.spawn_background("database", move || {
            if let Err(error) = thread.run() {
                on_fatal(error);
            }
        })
    }

    fn gc(&self, compaction_gc: CompactionGc, hand_over: HandOver) -> ThreadResult {
        let compaction = self.config.compaction;
        let mut thread = GcThread {
            compaction_gc,
            hand_over,
            work: self.queues.gc.clone(),
            pace: Pace {
                batch_limit: compaction.batch_limit,
                sleep_interval: compaction.sleep_interval,
            },
            removed: self.shared.removed.clone(),
            metrics: self.shared.metrics.clone(),
            space: self.shared.space.clone(),
        };
        let on_fatal = self.on_fatal();
        self.spawn_background("gc", move || {
            if let Err(error) = thread.run() {
                on_fatal(error);
            }
        })
    }

    fn journal(&self, journal: Journal) -> ThreadResult {
        let mut thread = JournalThread {
            journal,
            work: self.queues.journal.clone(),
        };
        let on_fatal = self.on_fatal();
        self.spawn_background("journal", move || {
            if let Err(error) = thread.run() {
                on_fatal(error);
            }
        })
    }

    fn log_compactor(&self, keeper: Keeper) -> ThreadResult {
        let mut thread = LogCompactor {
            options: SnapshotConfig {
                log_bytes: DiskPlan::of(self.config).log_bytes,
                ..self.config.snapshots
            },
            log_use: self.shared.log_use.clone(),
            keeper,
            work: self.queues.log_compactor.clone(),
            mailbox: self.shared.mailbox.clone(),
            metrics: self.shared.metrics.clone(),
        };
        let on_fatal = self.on_fatal();
        self.spawn_background("compactor", move || {
            if let Err(error) = thread.run() {
                on_fatal(error);
            }
        })
    }

    fn watch(&self) -> ThreadResult {
        let thread = WatchThread {
            options: self.config.watch,
            cluster_id: self.identity.cluster_id,
            member_id: self.identity.member_id,
            watches: self.shared.watches.clone(),
            store: self.shared.store.clone(),
            published: self.shared.node.published.clone(),
            clock: self.identity.clock.clone(),
            metrics: self.shared.metrics.clone(),
            seed: self.identity.seed(),
        };
        let on_fatal = self.shared.fatal.for_store();
        self.spawn("watch", move || {
            if let Err(error) = thread.run() {
                on_fatal(error);
            }
        })
    }

    fn state(&self, store: StateStore, lacks_state: bool) -> ThreadResult {
        let mut thread = StateThread {
            store,
            work: self.queues.state.clone(),
            gc: self.queues.gc.clone(),
            mailbox: self.shared.mailbox.clone(),
            metrics: self.shared.metrics.clone(),
            listener: self.shared.watches.clone(),
            readable: self.shared.node.readable.clone(),
            lacks_state,
            received: self.ports.incoming.clone(),
            state_dirs: self.ports.incoming.state_dirs.clone(),
            options: store_options(self.config),
            log_use: self.shared.log_use.clone(),
            data_dir: self.identity.data_dir.clone(),
            counting: None,
            space: self.shared.space.clone(),
            hand_over: self.queues.hand_over.clone(),
        };
        let on_fatal = self.on_fatal();
        self.spawn("state", move || {
            if let Err(error) = thread.run() {
                on_fatal(error);
            }
        })
    }

    fn driver(&self, replica: ReadyReplica, log: Arc<LogThread>) -> ThreadResult {
        let (config, shared) = (self.config, self.shared);
        let data_dir = &self.identity.data_dir;
        let effects = EffectRunner {
            log: log.clone(),
            state: self.queues.state.clone(),
            peers: self.ports.peers.clone(),
            outgoing: self.ports.outgoing.clone(),
            incoming: self.ports.incoming.clone(),
            metrics: shared.metrics.clone(),
            marks: MarkWriter {
                node: config.node.name.clone(),
                data_dir: data_dir.path().to_owned(),
                log,
            },
        };
        let observer = Reporter {
            name: config.node.name.clone(),
            metrics: shared.metrics.clone(),
            lease_stats: shared.node.lease_stats.clone(),
            contacts: shared.node.contacts.clone(),
            followers: shared.node.followers.clone(),
            integrity: shared.node.integrity.clone(),
            watches: shared.watches.clone(),
            status: shared.node.status.clone(),
            cluster_version: shared.node.cluster_version.clone(),
            bootstrap: shared.node.bootstrap.clone(),
            exit: shared.exit.clone(),
            membership: Membership {
                peers: self.ports.peers.clone(),
                directory: shared.node.directory.clone(),
                standing: shared.standing.clone(),
                names: replica.names,
                in_force: MembersInForce {
                    configuration: Arc::new(replica.configuration),
                    ..MembersInForce::default()
                },
                leader: None,
                published: replica.roster.clone(),
                roster: replica.roster,
                metrics: BTreeMap::new(),
                logged: (false, Vec::new()),
            },
            lease_log: LeaseLog::new(),
            elections: Elections::default(),
            renewals: Renewals::new(config.timing.trusted_lease()),
            disruptions: 0,
            has_served: false,
            lacks_bootstrap: false,
        };
        shared.node.status.store(Arc::new(replica.node.status()));
        let driver = Driver::new(
            replica.node,
            shared.mailbox.clone(),
            self.identity.clock.clone(),
            effects,
            observer,
            replica.unproven,
        );
        self.spawn(DRIVER, move || driver.run())
    }

    /// Starts a thread whose failure ends the node. The data directory stays locked while it lives.
    fn spawn(&self, name: &'static str, body: impl FnOnce() + Send + 'static) -> ThreadResult {
        spawn(&self.name_of(name), self.guard(name), body).map_err(io_error("starting a thread"))
    }

    /// The same for one that gives way to all others.
    fn spawn_background(
        &self,
        name: &'static str,
        body: impl FnOnce() + Send + 'static,
    ) -> ThreadResult {
        self.spawn(name, move || {
            give_way();
            body();
        })
    }

    fn name_of(&self, thread: &str) -> String {
        format!("{}-{thread}", self.config.node.name)
    }

    fn guard(&self, thread: &'static str) -> (Arc<DataDir>, Watch) {
        let watch = self.shared.fatal.watch(thread);
        (self.identity.data_dir.clone(), watch)
    }

    /// Handles a failed store: ends the node, and marks a damaged state.
    fn on_fatal(&self) -> Box<dyn Fn(StoreError) + Send> {
        let data_dir = self.identity.data_dir.path();
        self.shared
            .fatal
            .for_state(Marker::StateDamaged.record_in(data_dir))
    }
}
