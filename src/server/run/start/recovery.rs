//! Examines a node's disks and executes the steps that [`decide`] returns.
//!
//! This module only collects facts and executes steps. Each step is durable when it returns; the next
//! step, and refusals, are decided there.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::error::{StartError, io_error};
use crate::kv;
use crate::kv::HeldLeases;
use crate::log::{Log, Verdict};
use crate::node::recovery::{
    Bootstrap, Disk, LogFacts, Member, OpenLog, Start, StateFacts, StateOpening, Step,
    UnprovenReason, decide,
};
use crate::raft::{Configuration, Payload, RestoredState};
use crate::server::config::Config;
use crate::server::disk::attempt::Attempt;
use crate::server::disk::data_dir::DataDir;
use crate::server::disk::file::RealDisk;
use crate::server::disk::log_thread::restore;
use crate::server::disk::marker::Marker;
use crate::server::disk::space::DiskPlan;
use crate::server::disk::state_dirs::StateDirs;
use crate::server::disk::store::{StateStore, StoreOptions};
use crate::server::disk::{attempt, bootstrap};
use crate::server::metrics::Metrics;
use crate::server::peers::members::MemberNames;
use crate::types::{BootstrapId, Incarnation, LogId, LogIndex};

/// A node's disks, in order and open.
pub(super) struct Recovered {
    pub(super) log: Log<RealDisk>,
    pub(super) state_dirs: StateDirs,
    pub(super) store: StateStore,
    /// Whether the state ends before the log begins.
    pub(super) lacks_state: bool,
    pub(super) restored: RestoredState,
    pub(super) names: MemberNames,
    /// Which bootstrap of its cluster it comes from, if anything says so.
    pub(super) bootstrap: Option<BootstrapId>,
    pub(super) leases: HeldLeases,
    pub(super) cluster_version: u16,
    pub(super) quarantine_warning: Option<String>,
    pub(super) warnings: Vec<String>,
}

impl Recovered {
    /// Repairs and opens the disks. `told` names the initial members, if peers reported them.
    ///
    /// # Errors
    /// The node must not start on them, or they fail.
    pub(super) fn on_disk(
        config: &Config,
        data_dir: &DataDir,
        told: Vec<String>,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, StartError> {
        let mut recovery = InProgress::look(config, data_dir, told, metrics)?;
        loop {
            match decide(&recovery.facts, &recovery.member)? {
                Step::Start(start) => return recovery.finish(start),
                step => recovery.carry_out(step)?,
            }
        }
    }
}

/// A recovery in progress.
struct InProgress<'a> {
    config: &'a Config,
    data_dir: &'a DataDir,
    metrics: &'a Arc<Metrics>,
    member: Member,
    facts: Disk,
    state_dirs: StateDirs,
    log: Option<InUse>,
    store: Option<StateStore>,
    /// Which bootstrap of its cluster the directory remembers, and which one all that says so agrees on; known
    /// once the state was open.
    remembered: Option<BootstrapId>,
    bootstrap: Option<BootstrapId>,
    warnings: Vec<String>,
}

/// The open log, and the facts derived from it.
struct InUse {
    log: Log<RealDisk>,
    restored: RestoredState,
    names: MemberNames,
}

impl<'a> InProgress<'a> {
    fn look(
        config: &'a Config,
        data_dir: &'a DataDir,
        told: Vec<String>,
        metrics: &'a Arc<Metrics>,
    ) -> Result<Self, StartError> {
        let initial = config.cluster.initial.iter();
        let member = Member {
            id: data_dir.identity().node(),
            state: config.cluster.state,
            initial: initial.map(|member| member.name.clone()).collect(),
            is_initial_member: data_dir.identity().incarnation == Incarnation(0),
            told,
            versions: kv::KNOWN_VERSIONS,
        };
        let facts = look(data_dir.path()).map_err(io_error("reading the data directory"))?;
        Ok(Self {
            config,
            data_dir,
            metrics,
            member,
            facts,
            state_dirs: StateDirs::new(data_dir.path()),
            log: None,
            store: None,
            remembered: None,
            bootstrap: None,
            warnings: Vec::new(),
        })
    }

    fn carry_out(&mut self, step: Step) -> Result<(), StartError> {
        let path = self.data_dir.path();
        let remembering = || io_error("writing the markers of the data directory");
        match step {
            Step::Bootstrap { members, unproven } => {
                if unproven {
                    self.mark(UnprovenReason::WasEmpty).map_err(remembering())?;
                }
                bootstrap::write(path, members.clone()).map_err(remembering())?;
                self.facts.bootstrap = Bootstrap::Members(members);
            }
            Step::MarkLostLog => self.mark(UnprovenReason::LostLog).map_err(remembering())?,
            Step::MarkOlderVotes => {
                self.mark(UnprovenReason::OlderVotes)
                    .map_err(remembering())?;
            }
            Step::OpenLog => self.open_log()?,
            Step::RepairLog => {
                let (log, facts) = self.open();
                log.repair()?;
                facts.repaired = facts.damage.take();
                facts.is_quarantined = true;
            }
            Step::SetStateAside { why } => {
                self.store = None;
                self.settle()?;
                self.warnings.push(set_aside(&self.state_dirs, &why)?);
                let removed = Marker::StateDamaged.remove(path);
                removed.map_err(io_error("removing the mark of damage"))?;
                let wanted = self.state_dirs.to_reopen().map_err(looking())?;
                self.facts.state = StateFacts {
                    is_set_aside: true,
                    is_wanted_back: wanted.is_some(),
                    ..StateFacts::default()
                };
            }
            Step::OpenState => self.open_state()?,
            Step::AdoptState => self.adopt_state()?,
            Step::ReopenState => {
                self.store = None;
                let reopened = self.state_dirs.reopen();
                reopened.map_err(io_error("putting back the state that was set aside"))?;
                tracing::warn!(
                    "no leader was heard of while this node had no state: the one that was set aside \
                     is opened again"
                );
                self.facts.state = StateFacts::default();
            }
            Step::Quarantine => {
                let (log, facts) = self.open();
                log.begin_quarantine()?;
                facts.is_quarantined = true;
            }
            Step::Start(_) => unreachable!("that ends the loop"),
        }
        Ok(())
    }

    fn mark(&mut self, why: UnprovenReason) -> io::Result<()> {
        bootstrap::write_unproven(self.data_dir.path(), why)?;
        self.facts.unproven = Some(why);
        Ok(())
    }

    /// The open log, and what is known of it.
    fn open(&mut self) -> (&mut Log<RealDisk>, &mut OpenLog) {
        match (&mut self.log, &mut self.facts.log) {
            (Some(in_use), LogFacts::Open(facts)) => (&mut in_use.log, facts),
            _ => unreachable!("a log is repaired and quarantined once it is open"),
        }
    }

    fn base(&self) -> LogId {
        let log = self.log.as_ref();
        log.map_or_else(LogId::default, |in_use| in_use.restored.base)
    }

    fn open_log(&mut self) -> Result<(), StartError> {
        // Checked before the log is opened, which writes to it: data of a later release stays unchanged.
        StateStore::refuse_newer_format(&self.data_dir.state_path())?;
        let options = self
            .data_dir
            .log_options(DiskPlan::of(self.config).segment_bytes);
        let observed = self.metrics.clone();
        let disk = self.data_dir.log_disk().observed_by(Arc::new(move |took| {
            let seconds = &observed.storage.wal_fsync_seconds;
            seconds.record(took.as_secs_f64());
        }));
        let (log, recovery) = Log::open(disk, options)?;
        if let Verdict::TornTailCut { batches, bytes } = recovery.verdict {
            tracing::info!(
                batches,
                bytes,
                "dropped the last batch of the log, which was never synced: no acknowledged entry \
                 is lost"
            );
        }
        let Bootstrap::Members(initial_members) = &self.facts.bootstrap else {
            unreachable!("the directory remembers its bootstrap before it has a log");
        };
        let names = MemberNames::new(
            self.config,
            self.data_dir.identity().cluster,
            initial_members.clone(),
            self.facts.unproven.is_some(),
        );
        let damage = match &recovery.verdict {
            Verdict::Damaged(damage) => Some(damage.clone()),
            Verdict::Clean | Verdict::TornTailCut { .. } => None,
        };
        let is_quarantined = recovery.quarantined;
        let restored = restore(recovery, names.first_configuration())?;
        let versions = restored
            .entries
            .iter()
            .filter_map(|entry| match &entry.payload {
                Payload::Command(bytes) => kv::raises_version(bytes),
                Payload::Noop | Payload::Configuration(_) => None,
            });
        let last = restored.entries.last();
        self.facts.log = LogFacts::Open(OpenLog {
            damage,
            repaired: None,
            is_quarantined,
            base: restored.base,
            last: last.map_or(restored.base, |entry| entry.id),
            term: restored.hard_state.term,
            members: configuration_of(&restored).members(),
            version: versions.max(),
        });
        self.log = Some(InUse {
            log,
            restored,
            names,
        });
        Ok(())
    }

    /// Finishes what an earlier process began with the directories of states.
    fn settle(&self) -> Result<(), StartError> {
        let settled = self.state_dirs.settle();
        settled.map_err(io_error("putting the state in its place"))
    }

    fn open_state(&mut self) -> Result<(), StartError> {
        self.settle()?;
        let marking = || io_error("marking the opening of the state");
        let lost = Attempt::lost(self.data_dir.path()).map_err(marking())?;
        if let Some(advice) = attempt::advice(lost, &self.state_dirs.state()) {
            tracing::warn!("{advice}");
        }
        let attempt = Attempt::begin(self.data_dir.path(), lost).map_err(marking())?;
        let options = store_options(self.config);
        let opened = StateStore::open(&self.state_dirs.state(), &options);
        attempt.end().map_err(marking())?;
        let store = match opened {
            Err(error) if error.is_damage() => {
                self.facts.state.opened = Some(StateOpening::Damaged(error.to_string()));
                return Ok(());
            }
            opened => opened?,
        };
        let (applied, base) = (store.reader().applied(), self.base());
        let snapshot = store.reader().snapshot()?;
        // Before anything is done because log and state do not fit: those of two bootstraps never do.
        self.find_bootstrap(kv::bootstrap(&snapshot)?)?;
        let version = kv::cluster_version(&snapshot)?;
        drop(snapshot);
        self.facts.state.opened = Some(StateOpening::Whole { applied, version });
        if applied < base.index {
            let received = self.state_dirs.accepted(base).map_err(looking())?;
            self.facts.state.is_received = received.is_some();
        }
        self.store = Some(store);
        Ok(())
    }

    /// Which bootstrap of its cluster the member comes from: what its directory remembers, what its state says
    /// (`applied`), and what its log begins with, which may not be applied yet.
    fn find_bootstrap(&mut self, applied: Option<BootstrapId>) -> Result<(), StartError> {
        let path = self.data_dir.path();
        let remembered =
            bootstrap::read_id(path).map_err(io_error("reading the data directory"))?;
        let in_use = self.log.as_ref();
        let first = in_use.and_then(|in_use| in_use.restored.entries.first());
        let begun = first.and_then(|entry| match &entry.payload {
            Payload::Command(bytes) => kv::bootstraps(bytes),
            Payload::Noop | Payload::Configuration(_) => None,
        });
        let mut all = [remembered, applied, begun].into_iter().flatten();
        let found = all.next();
        if let (Some(found), Some(other)) = (found, all.find(|other| Some(*other) != found)) {
            let path = path.to_owned();
            return Err(StartError::TwoBootstraps { path, found, other });
        }
        (self.remembered, self.bootstrap) = (remembered, found);
        Ok(())
    }

    fn adopt_state(&mut self) -> Result<(), StartError> {
        self.store = None;
        let base = self.base();
        if let Some(received) = self.state_dirs.accepted(base).map_err(looking())? {
            let adopting = io_error("installing a received snapshot");
            self.state_dirs.adopt(&received).map_err(adopting)?;
            self.settle()?;
            tracing::info!(base = %base, "snapshot received before the stop installed");
        }
        self.facts.state.opened = None;
        self.facts.state.is_received = false;
        Ok(())
    }

    /// All is open, and stands as it is.
    fn finish(self, start: Start) -> Result<Recovered, StartError> {
        let (Some(in_use), Some(store)) = (self.log, self.store) else {
            unreachable!("a node starts once its log and its state are open");
        };
        // Nothing comes in before this returns.
        self.state_dirs.clear().map_err(looking())?;
        let InUse {
            log,
            mut restored,
            names,
        } = in_use;
        restored.applied = store.reader().applied();
        restored.quarantined = start.quarantined;
        restored.unproven = start.unproven;
        restored.restored_from = start.restored_from;
        restored.diverged = start.diverged;
        restored.lease_tripped = start.lease_tripped;
        let mut warnings = self.warnings;
        if start.lease_tripped {
            let mark = Marker::LeaseTripped.path(self.data_dir.path());
            warnings.push(tripwire_warning(&mark));
        }
        let quarantine_warning = start.quarantine_warning();
        if let Some(warning) = &quarantine_warning {
            tracing::error!("{warning}");
        }
        if start.lacks_state {
            tracing::warn!(
                applied = %restored.applied,
                base = %restored.base,
                "this node has no state: it serves no requests until it has received a snapshot \
                 from the leader"
            );
        }
        let snapshot = store.reader().snapshot()?;
        if let (None, Some(found)) = (self.remembered, self.bootstrap) {
            let remembering = bootstrap::write_id(self.data_dir.path(), found);
            remembering.map_err(io_error("writing the markers of the data directory"))?;
        }
        let leases = kv::held_leases(&snapshot)?;
        let cluster_version = kv::cluster_version(&snapshot)?;
        drop(snapshot);
        Ok(Recovered {
            log,
            state_dirs: self.state_dirs,
            store,
            lacks_state: start.lacks_state,
            restored,
            names,
            bootstrap: self.bootstrap,
            leases,
            cluster_version,
            quarantine_warning,
            warnings,
        })
    }
}

/// The facts about a data directory before anything in it is opened.
fn look(path: &Path) -> io::Result<Disk> {
    let removed = Marker::Removed.read(path)?;
    let damage_mark = Marker::StateDamaged.read(path)?;
    #[cfg(leasehold_bugs)]
    let damage_mark = match planted!(KillsProveDamage) && Attempt::lost(path)? >= 2 {
        true => Some("opening it crashed this process".to_owned()),
        false => damage_mark,
    };
    let has_log = path.join("vote").try_exists()? || path.join("log").try_exists()?;
    Ok(Disk {
        path: path.to_owned(),
        removed: removed.map(|why| why.trim().to_owned()),
        bootstrap: bootstrap::read(path)?,
        unproven: bootstrap::read_unproven(path)?,
        // Whatever the mark says, it is there.
        diverged: Marker::Diverged
            .read(path)?
            .map(|index| LogIndex(index.trim().parse().unwrap_or(0))),
        lease_tripped: Marker::LeaseTripped.is_set(path)?,
        log: match has_log {
            true => LogFacts::Unread,
            false => LogFacts::Missing,
        },
        state: StateFacts {
            damage_mark: damage_mark.map(|why| why.trim().to_owned()),
            is_wanted_back: StateDirs::new(path).to_reopen()?.is_some(),
            ..StateFacts::default()
        },
    })
}

fn looking() -> impl FnOnce(io::Error) -> StartError {
    io_error("looking for a received snapshot")
}

fn tripwire_warning(mark: &Path) -> String {
    format!(
        "this node serves no leased reads: it once held a leader lease while another node was \
         leader, so a clock assumption was violated ({}); find the cause, then stop the node, run \
         `leasehold leader-lease clear`, and start it again",
        mark.display()
    )
}

/// Splits `storage.cache_bytes`: most of it goes to current records, which answer point reads.
pub(super) fn store_options(config: &Config) -> StoreOptions {
    let cache_bytes = config.storage.cache_bytes;
    let records = cache_bytes / 4 * 3;
    let plan = DiskPlan::of(config);
    StoreOptions {
        record_cache_bytes: usize::try_from(records).unwrap_or(usize::MAX),
        block_cache_bytes: cache_bytes - records,
        memtable_bytes: plan.memtable_bytes,
        journal_bytes: plan.journal_bytes,
    }
}

/// Moves an unusable state aside: the complete log or a peer replaces it.
fn set_aside(state_dirs: &StateDirs, why: &str) -> Result<String, StartError> {
    let aside = state_dirs.set_aside();
    let aside = aside.map_err(io_error("setting the damaged state aside"))?;
    let warning = format!(
        "the state of this node is unusable ({why}): it was moved to {} and is rebuilt from the \
         log, or from a peer if the log was truncated; delete that directory once you have \
         inspected it",
        aside.display()
    );
    tracing::warn!("{warning}");
    Ok(warning)
}

/// The configuration in force after all that the log holds.
pub(super) fn configuration_of(restored: &RestoredState) -> &Configuration {
    let entries = restored.entries.iter().rev();
    let mut configurations = entries.filter_map(|entry| match &entry.payload {
        Payload::Configuration(configuration) => Some(&**configuration),
        _ => None,
    });
    configurations
        .next()
        .unwrap_or(&restored.base_configuration)
}
