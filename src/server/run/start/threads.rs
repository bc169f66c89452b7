//! The threads of a node: one drives the replica, and each of the others owns something that may
//! block.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::core::{ReadyReplica, Shared};
use super::disks::Storage;
use super::error::{StartError, io_error};
use super::identity::Identity;
use super::ports::Ports;
use super::recovery::store_options;
use crate::server::config::Config;
use crate::server::disk::gc_thread::{Pace, SweepThread, SweepWork};
use crate::server::disk::journal_thread::{JournalThread, StopJournal};
use crate::server::disk::log_compactor::{LogCutter, StopCutting};
use crate::server::disk::log_thread::LogThread;
use crate::server::disk::marker::Marker;
use crate::server::disk::state_thread::{StateThread, Work};
use crate::server::disk::store::{Journal, Keeper, StateStore, Sweeper};
use crate::server::driver::effects::{Hands, LogReports};
use crate::server::driver::lease_log::LeaseLog;
use crate::server::driver::{Driver, Mail, Mailbox};
use crate::server::peers::Peers;
use crate::server::threads::queue::BatchQueue;
use crate::server::watch::{WatchThread, Watches};
use crate::types::LogIndex;

/// The fifth stage.
pub(super) struct Threads {
    driver: JoinHandle<()>,
    log: Arc<LogThread>,
    state: JoinHandle<()>,
    gc: JoinHandle<()>,
    journal: JoinHandle<()>,
    log_compactor: JoinHandle<()>,
    watch: JoinHandle<()>,
    queues: Queues,
}

/// What the threads wait at. Dropped, it ends them all: a server that is dropped without a shutdown,
/// or whose start fails half way, leaves none behind. The data directory stays locked until the last
/// thread that writes there is gone.
struct Queues {
    mailbox: Arc<Mailbox>,
    state: Arc<BatchQueue<Work>>,
    gc: Arc<BatchQueue<SweepWork>>,
    journal: Arc<BatchQueue<StopJournal>>,
    log_compactor: Arc<BatchQueue<StopCutting>>,
    watches: Arc<Watches>,
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
            gc: Arc::default(),
            journal: Arc::default(),
            log_compactor: Arc::default(),
            watches: shared.watches.clone(),
        }
    }

    /// Ends the threads that work for the driver.
    fn stop_disk(&self) {
        // It may be in the middle of merging tables: what cannot wait is done meanwhile.
        self.gc.send(SweepWork::Stop);
        self.journal.send(StopJournal);
        self.log_compactor.send(StopCutting);
        self.state.send(Work::Stop);
    }
}

/// What all of these are made from.
struct Ground<'a> {
    config: &'a Config,
    identity: &'a Identity,
    shared: &'a Shared,
    ports: &'a Ports,
    queues: &'a Queues,
}

impl Threads {
    /// Starts them, the driver last: what it hands on is taken from its first moment.
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
        let reports = LogReports {
            mailbox: shared.mailbox.clone(),
            metrics: shared.metrics.clone(),
            on_fatal: shared.fatal.for_log(),
            _data_dir: identity.data_dir.clone(),
            _watch: shared.fatal.watch("log"),
        };
        let log = LogThread::spawn(log, reports).map_err(io_error("starting the log thread"))?;
        let log = Arc::new(log);
        let gc = ground.gc(store.sweeper());
        let gc = gc.map_err(io_error("starting the sweep thread"))?;
        let journal = ground.journal(store.journal());
        let journal = journal.map_err(io_error("starting the journal thread"))?;
        let log_compactor = ground.log_compactor(store.keeper());
        let log_compactor =
            log_compactor.map_err(io_error("starting the thread that cuts the log"))?;
        let watch = ground.watch();
        let watch = watch.map_err(io_error("starting the watch thread"))?;
        let state = ground.state(store, lacks_state);
        let state = state.map_err(io_error("starting the state thread"))?;
        let driver = ground.driver(replica, log.clone());
        let driver = driver.map_err(io_error("starting the driver thread"))?;
        Ok(Self {
            driver,
            log,
            state,
            gc,
            journal,
            log_compactor,
            watch,
            queues,
        })
    }

    /// Waits at most a moment for the driver's turn, whatever a disk or a peer does.
    pub(super) fn mailbox(&self) -> Arc<Mailbox> {
        self.queues.mailbox.clone()
    }

    /// Ends them, and lets each finish what it holds. Blocks.
    pub(super) fn join(self, peers: Arc<Peers>) {
        self.queues.mailbox.send(Mail::Stop);
        let mut panicked = self.driver.join().is_err();
        self.queues.stop_disk();
        for thread in [self.state, self.gc, self.journal, self.log_compactor] {
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
    fn gc(&self, sweeper: Sweeper) -> io::Result<JoinHandle<()>> {
        let compaction = self.config.compaction;
        SweepThread {
            sweeper,
            work: self.queues.gc.clone(),
            pace: Pace {
                batch_limit: compaction.batch_limit,
                sleep_interval: compaction.sleep_interval,
            },
            removed: self.shared.removed.clone(),
            metrics: self.shared.metrics.clone(),
            on_fatal: self
                .shared
                .fatal
                .for_state(self.identity.data_dir.path().to_owned()),
            data_dir: self.identity.data_dir.clone(),
            watch: self.shared.fatal.watch("sweep"),
        }
        .spawn(&self.config.node.name)
    }

    fn journal(&self, journal: Journal) -> io::Result<JoinHandle<()>> {
        JournalThread {
            journal,
            work: self.queues.journal.clone(),
            on_fatal: self
                .shared
                .fatal
                .for_state(self.identity.data_dir.path().to_owned()),
            data_dir: self.identity.data_dir.clone(),
            watch: self.shared.fatal.watch("journal"),
        }
        .spawn(&self.config.node.name)
    }

    fn log_compactor(&self, keeper: Keeper) -> io::Result<JoinHandle<()>> {
        LogCutter {
            options: self.config.snapshots,
            log_use: self.shared.log_use.clone(),
            keeper,
            work: self.queues.log_compactor.clone(),
            mailbox: self.shared.mailbox.clone(),
            metrics: self.shared.metrics.clone(),
            on_fatal: self
                .shared
                .fatal
                .for_state(self.identity.data_dir.path().to_owned()),
            data_dir: self.identity.data_dir.clone(),
            watch: self.shared.fatal.watch("cutter"),
        }
        .spawn(&self.config.node.name)
    }

    fn watch(&self) -> io::Result<JoinHandle<()>> {
        WatchThread {
            options: self.config.watch,
            cluster_id: self.identity.cluster_id,
            member_id: self.identity.member_id,
            watches: self.shared.watches.clone(),
            store: self.shared.store.clone(),
            published: self.shared.published.clone(),
            clock: self.identity.clock.clone(),
            metrics: self.shared.metrics.clone(),
            seed: self.identity.seed(),
            on_fatal: self.shared.fatal.for_store(),
            watch: Some(self.shared.fatal.watch("watch")),
        }
        .spawn(&self.config.node.name)
    }

    fn state(&self, store: StateStore, lacks_state: bool) -> io::Result<JoinHandle<()>> {
        StateThread {
            store,
            work: self.queues.state.clone(),
            sweep: self.queues.gc.clone(),
            mailbox: self.shared.mailbox.clone(),
            metrics: self.shared.metrics.clone(),
            watches: self.shared.watches.clone(),
            readable: self.shared.readable.clone(),
            lacks_state,
            incoming: self.ports.incoming.clone(),
            options: store_options(self.config.storage.cache_bytes),
            log_use: self.shared.log_use.clone(),
            on_fatal: self
                .shared
                .fatal
                .for_state(self.identity.data_dir.path().to_owned()),
            data_dir: self.identity.data_dir.clone(),
            watch: self.shared.fatal.watch("state"),
        }
        .spawn(&self.config.node.name)
    }

    fn driver(&self, replica: ReadyReplica, log: Arc<LogThread>) -> io::Result<JoinHandle<()>> {
        let (config, shared) = (self.config, self.shared);
        let data_dir = &self.identity.data_dir;
        let hands = Hands {
            log,
            state: self.queues.state.clone(),
            peers: self.ports.peers.clone(),
            outgoing: self.ports.outgoing.clone(),
            incoming: self.ports.incoming.clone(),
            metrics: shared.metrics.clone(),
            directory: shared.directory.clone(),
            cluster_version: shared.cluster_version.clone(),
            name: config.node.name.clone(),
            tripwire_mark: Marker::LeaseTripped.path(data_dir.path()),
            unproven_mark: replica.unproven_mark,
            trusted_lease: config.timing.trusted_lease(),
            vitals: shared.vitals.clone(),
            integrity: shared.integrity.clone(),
            watches: shared.watches.clone(),
            lease_log: LeaseLog::new(),
            damage_mark: Marker::StateDamaged.path(data_dir.path()),
            names: replica.names,
            peer_metrics: BTreeMap::new(),
            told: replica.roster.clone(),
            leader: None,
            roster: replica.roster,
            configuration: (LogIndex(0), false, replica.configuration),
            logged_members: (false, Vec::new()),
            standing: shared.standing.clone(),
            exit: shared.exit.clone(),
        };
        let driver = Driver::new(
            replica.node,
            shared.mailbox.clone(),
            self.identity.clock.clone(),
            hands,
            shared.status.clone(),
            replica.unproven,
        );
        let watch = shared.fatal.watch("driver");
        std::thread::Builder::new()
            .name(format!("{}-driver", config.node.name))
            .spawn(move || {
                let _watch = watch;
                driver.run();
            })
    }
}
