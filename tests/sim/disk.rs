//! A machine's disk, as far as consensus sees it: what was synced stays, what was not may go.
//!
//! The log and the vote file come in two kinds. Some runs have the real thing: `log::Log` over
//! `log/sim_disk.rs`, which keeps an arbitrary part of the unsynced sectors. The others, which are
//! faster, have a *plain* log that keeps a prefix of what was under way; that the real one is no
//! worse is checked whenever it is opened again: everything that was reported durable is there, and
//! nothing is taken for damaged.
//!
//! The state (`state.rs`) is synced before the log is cut, and seldom otherwise, so after a loss
//! of power an older version of it may be found, or none at all. A log without a beginning cannot
//! make up for that alone; so a state is lost whole only while all others have theirs.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::Bytes;
use leasehold::front::Durable;
use leasehold::kv;
use leasehold::kv::MemStore;
use leasehold::log::{
    Damage, Disk, DiskError, DiskFile, Log, LogOptions, Record, Recovery, Verdict, Vote,
};
use leasehold::node::recovery;
use leasehold::node::recovery::{
    Bootstrap, LogFacts, OpenLog, StateFacts, StateOpening, Step, UnprovenReason,
};
use leasehold::raft::{Configuration, Entry, HardState, Payload, UnsavedState};
use leasehold::types::{BootstrapId, Incarnation, LogId, LogIndex, NodeId, Term};

use crate::clock::{MS, Nanos, US};
use crate::dice::Dice;
use crate::marks::{Mark, Marks};
use crate::members::latest;
use crate::options::Options;
use crate::state::State;
use crate::world::CLUSTER;

/// The disk in memory that the tests of the log use, too.
#[expect(dead_code, reason = "the tests of the log use all of it")]
#[path = "../../src/log/sim_disk.rs"]
mod sim_disk;

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Killed: what it handed to the system stays.
    Kill,
    /// The machine lost power.
    Power,
}

/// What a sync reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sync {
    Done,
    Failed,
}

/// The log, the vote file and the store's files.
pub(crate) struct SimDisk {
    /// What is durable: of a plain log, all there is; of a real one, what it has reported.
    hard: HardState,
    entries: Vec<Entry>,
    /// Everything that was ever written to a real log.
    written: BTreeSet<LogId>,
    real: Option<RealLog>,
    /// Written, and not known to be synced.
    under_way: Vec<UnsavedState>,
    /// The log was damaged, and the replica has not got everything back since (A23).
    pub(crate) quarantined: bool,
    /// It has reported syncs that it did not do: what is found after a crash is what there is.
    lied: bool,
    /// Everything was lost, the vote file too, and has not been got back since.
    pub(crate) wiped: bool,
    /// The log was damaged and has not been repaired since.
    damage: Option<Damage>,
    /// There are a log and a vote file.
    has_log: bool,
    /// What the data directory remembers of the bootstrap, and that something may be forgotten.
    bootstrap: Bootstrap,
    pub(crate) unproven: Option<UnprovenReason>,
    /// A leader contradicts this committed entry.
    pub(crate) diverged: Option<LogIndex>,
    /// Which bootstrap of its cluster the member comes from, as the data directory remembers it.
    pub(crate) bootstrap_id: Option<BootstrapId>,
    /// The replica says that it has: written with the next sync.
    pub(crate) recovered: bool,
    /// The state machine's.
    pub(crate) state: State,
    /// The state was lost as a whole, and may end before the log begins until another one comes.
    state_is_gone: bool,
    /// The state does not open.
    state_is_broken: bool,
    /// The state that was set aside, and whether it is to be opened again.
    aside: Option<MemStore>,
    aside_is_wanted: bool,
    /// How many entries it had when it was set back to an older copy of itself.
    had: usize,
    /// A whole state that was received, durably, and is not in use yet.
    received: Option<Received>,
    /// The log begins after this entry. What lies before it is only kept for the checkers.
    base: LogId,
    latency_min: Nanos,
    latency_max: Nanos,
    /// Until then, syncs take as long as told.
    slow_until: Nanos,
    slow_by: Nanos,
    /// The next sync fails.
    pub(crate) fails: bool,
    /// Until then, there is no space.
    pub(crate) full_until: Nanos,
    pub(crate) marks: Marks,
    dice: Dice,
}

/// A state and the entries that it came from.
pub(crate) struct Backup {
    store: MemStore,
    entries: Vec<Entry>,
}

impl Backup {
    /// Up to the last that it contains.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

/// A data directory as it was.
#[derive(Clone)]
pub(crate) struct OlderCopy {
    hard: HardState,
    entries: Vec<Entry>,
    base: LogId,
    store: MemStore,
    state_is_gone: bool,
    aside: Option<MemStore>,
}

/// A whole state, as one member sends it to another.
#[derive(Clone)]
pub(crate) struct Received {
    /// The last entry in it.
    pub(crate) id: LogId,
    pub(crate) store: MemStore,
    /// The entries that it came from, for the checkers.
    pub(crate) entries: Vec<Entry>,
}

impl SimDisk {
    /// An empty disk of its own speed, with a real log for `node` or a plain one.
    pub(crate) fn new(mut dice: Dice, node: usize, options: &Options) -> Self {
        let latency_min = dice.spread(20 * US, MS);
        let latency_max = latency_min + dice.spread(20 * US, 6 * MS);
        Self {
            hard: HardState::default(),
            entries: Vec::new(),
            written: BTreeSet::new(),
            real: (options.real_log).then(|| RealLog::new(node, dice.number())),
            under_way: Vec::new(),
            quarantined: false,
            lied: false,
            wiped: false,
            damage: None,
            has_log: false,
            bootstrap: Bootstrap::Missing,
            unproven: None,
            diverged: None,
            bootstrap_id: None,
            recovered: false,
            state: State::new(Dice::new(options.seed, "state", node as u64)),
            state_is_gone: false,
            state_is_broken: false,
            aside: None,
            aside_is_wanted: false,
            had: 0,
            received: None,
            base: LogId::default(),
            latency_min,
            latency_max,
            slow_until: 0,
            slow_by: 0,
            fails: false,
            full_until: 0,
            marks: Marks::default(),
            dice,
        }
    }

    /// Begins to write `batch`; says how long its sync takes.
    pub(crate) fn write(&mut self, now: Nanos, batch: Vec<UnsavedState>) -> Nanos {
        assert!(self.under_way.is_empty(), "one batch at a time");
        let votes = batch.iter().filter(|u| u.hard_state.is_some()).count() as u64;
        if self.real.is_some() {
            let entries = batch.iter().flat_map(|unsaved| &unsaved.entries);
            self.written.extend(entries.map(|entry| entry.id));
        }
        self.under_way = batch;
        let usual = self.dice.between(self.latency_min, self.latency_max) * (1 + votes);
        if now < self.slow_until {
            self.marks.hit(Mark::DiskSlow);
            usual + self.dice.between(self.slow_by / 4, self.slow_by)
        } else {
            usual
        }
    }

    /// The sync of what was written last returns.
    pub(crate) fn sync(&mut self, now: Nanos) -> Sync {
        let fault = match () {
            () if now < self.full_until => Some(sim_disk::Fault::NoSpace),
            () if self.fails => Some(sim_disk::Fault::Io),
            () => None,
        };
        self.fails = false;
        match fault {
            Some(sim_disk::Fault::NoSpace) => self.marks.hit(Mark::DiskFull),
            Some(_) => self.marks.hit(Mark::SyncFailed),
            None => {}
        }
        if let Some(real) = &mut self.real {
            if let Some(fault) = fault {
                let call = self.dice.between(1, 4);
                real.disk.fail_call(call, fault);
            }
            if !real.write(&self.under_way) {
                return Sync::Failed;
            }
            if !real.idle(&mut self.dice) {
                return Sync::Failed;
            }
        } else if fault.is_some() {
            return Sync::Failed;
        }
        for unsaved in std::mem::take(&mut self.under_way) {
            self.keep(unsaved, usize::MAX);
        }
        if std::mem::take(&mut self.recovered) && self.quarantined {
            if let Some(log) = self.real.as_mut().and_then(|real| real.log.as_mut())
                && log.end_quarantine().is_err()
            {
                return Sync::Failed;
            }
            self.quarantined = false;
        }
        if self.dice.chance(0.01) {
            self.state.write_back();
        }
        Sync::Done
    }

    /// The process ended; what was under way is kept in part. The state may be lost whole if
    /// `spare` says that others can make up for it, or the log can.
    ///
    /// # Errors
    /// The log that is found is not one that may be.
    pub(crate) fn stop(&mut self, ending: Ending, spare: bool) -> Result<(), String> {
        // Who comes next must find out anew what this one had.
        self.recovered = false;
        if !self.under_way.is_empty() {
            self.marks.hit(match ending {
                Ending::Kill => Mark::KilledWhileWriting,
                Ending::Power => Mark::PowerLostWhileWriting,
            });
        }
        let found = match self.real.is_some() {
            true => self.stop_real(ending),
            false => {
                self.stop_plain();
                Ok(())
            }
        };
        match ending {
            Ending::Kill => self.state.kill(),
            Ending::Power if self.dice.chance(0.5) || !spare && self.base.index.0 > 0 => {
                self.marks.hit(Mark::OlderStoreFound);
                self.state.lose_power();
            }
            Ending::Power => {
                self.marks.hit(Mark::EmptyStoreFound);
                self.lose_state();
            }
        }
        found
    }

    /// Whether the state ends before the log begins.
    pub(crate) fn lacks_state(&self) -> bool {
        self.state.applied() < self.base.index
    }

    /// Whether it will when it starts, because its state does not open.
    pub(crate) fn will_lack_state(&self) -> bool {
        self.state_is_broken && self.base.index.0 > 0
    }

    /// Whether what the log lacks is in no state either, though neither was lost as a whole.
    pub(crate) fn log_was_cut_too_far(&self) -> bool {
        let received = self.received.as_ref();
        let is_received = received.is_some_and(|received| received.id == self.base);
        self.lacks_state() && !self.state_is_gone && !is_received
    }

    /// While no process runs, something that was synced rots. The plain log loses its end, and
    /// knows it.
    ///
    /// # Errors
    /// The damage was not noticed, and something that was durable is gone.
    pub(crate) fn rot(&mut self) -> Result<(), String> {
        let Some(real) = &mut self.real else {
            let base = self.base.index.0;
            let left = self.dice.between(base, self.entries.len() as u64) as usize;
            self.lose_end(left);
            return Ok(());
        };
        real.log = None;
        let mark = if self.dice.chance(0.7) {
            real.flip_somewhere(&mut self.dice);
            Mark::BitFlipped
        } else {
            real.misdirect_somewhere(&mut self.dice);
            Mark::SectorMisdirected
        };
        self.marks.hit(mark);
        let (log, recovery) = Log::open(real.disk.clone(), real.options)
            .map_err(|error| format!("{mark:?}: {error}"))?;
        real.log = Some(log);
        let entries: Vec<Entry> = recovery.records.into_iter().map(entry).collect();
        match recovery.verdict {
            Verdict::Damaged(damage) => {
                self.damage = Some(damage);
                self.marks.hit(Mark::DamageNoticed);
            }
            _ if entries != self.entries => {
                let ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
                return Err(format!("{mark:?}, unnoticed; found {ids:?}"));
            }
            _ => {}
        }
        // What had been cut may be at the end again, but nothing that never was.
        if let Some(new) = entries
            .iter()
            .find(|entry| !self.written.contains(&entry.id))
        {
            return Err(format!("{mark:?}, and {} was made of it", new.id));
        }
        self.entries = entries;
        Ok(())
    }

    /// While no process runs, the plain log loses all but `left` entries, and knows it.
    pub(crate) fn lose_end(&mut self, left: usize) {
        self.marks.hit(Mark::LogLostItsEnd);
        self.entries.truncate(left);
        self.damage = Some(Damage {
            what: "its end is gone".to_owned(),
            place: format!("entry {left}"),
        });
    }

    /// While no process runs, everything is lost: log, vote file, store, and what the data
    /// directory remembered.
    pub(crate) fn wipe(&mut self, node: usize) {
        self.marks.hit(Mark::MemberWiped);
        self.forget_all(node);
    }

    fn forget_all(&mut self, node: usize) {
        self.hard = HardState::default();
        self.entries.clear();
        self.base = LogId::default();
        self.received = None;
        self.real = (self.real.is_some()).then(|| RealLog::new(node, self.dice.number()));
        self.lose_state();
        self.state_is_broken = false;
        self.aside = None;
        self.aside_is_wanted = false;
        self.had = 0;
        self.quarantined = false;
        self.damage = None;
        self.has_log = false;
        self.wiped = true;
        self.unproven = None;
        self.diverged = None;
        self.bootstrap_id = None;
        self.bootstrap = Bootstrap::Missing;
    }

    /// While no process runs, a member of a cluster of `names` is restored from a backup of `of`.
    pub(crate) fn restore(&mut self, node: usize, of: &Backup, names: Vec<String>) {
        self.forget_all(node);
        self.marks.hit(Mark::MemberRestored);
        assert!(
            self.real.is_none(),
            "real logs are restored by the server's own tests"
        );
        self.wiped = false;
        self.state.replace(of.store.clone());
        self.state_is_gone = false;
        self.entries.clone_from(&of.entries);
        self.base = of
            .entries
            .last()
            .map_or_else(LogId::default, |entry| entry.id);
        self.hard.term = self.base.term;
        self.has_log = true;
        self.bootstrap = Bootstrap::Members(names);
        self.unproven = Some(UnprovenReason::Restored {
            base: self.base.index,
            hash: 7,
        });
    }

    /// A backup of all that is here.
    pub(crate) fn back_up(&self) -> Backup {
        let applied = self.state.applied().0 as usize;
        Backup {
            store: self.state.copy(),
            entries: self.entries[..applied].to_vec(),
        }
    }

    /// A copy of all that is durable here; none of a real log: the server's own tests copy those.
    pub(crate) fn copy(&self) -> Option<OlderCopy> {
        self.real.is_none().then(|| OlderCopy {
            hard: self.hard,
            entries: self.entries.clone(),
            base: self.base,
            store: self.state.copy(),
            state_is_gone: self.state_is_gone,
            aside: self.aside.clone(),
        })
    }

    /// Whether all that is forgotten with `copy` are entries, and some are.
    pub(crate) fn forgets_entries_alone(&self, copy: &OlderCopy) -> bool {
        let held = copy.entries.len();
        self.hard == copy.hard && (1..self.entries.len()).contains(&held)
    }

    /// Whether it was set back, and has not got back since what it had.
    pub(crate) fn lacks_what_it_had(&self) -> bool {
        self.entries.len() < self.had
    }

    /// While no process runs, the state becomes one that does not open.
    pub(crate) fn break_state(&mut self) {
        self.state_is_broken = true;
    }

    /// While no process runs, the state that was set aside is asked for again: no leader was heard of.
    pub(crate) fn want_state_back(&mut self) {
        self.aside_is_wanted = true;
    }

    /// While no process runs, the data directory is replaced by a copy of itself.
    pub(crate) fn set_back(&mut self, to: &OlderCopy) {
        self.had = self.entries.len();
        self.hard = to.hard;
        self.entries.clone_from(&to.entries);
        self.base = to.base;
        self.state.replace(to.store.clone());
        self.state_is_gone = to.state_is_gone;
        self.aside.clone_from(&to.aside);
        self.received = None;
    }

    /// While no process runs, everything is lost but what the data directory remembers.
    pub(crate) fn lose_data(&mut self, node: usize) {
        let (bootstrap, unproven) = (self.bootstrap.clone(), self.unproven);
        let id = self.bootstrap_id;
        self.wipe(node);
        (self.bootstrap, self.unproven) = (bootstrap, unproven);
        self.bootstrap_id = id;
    }

    /// While no process runs, the state is set aside: it is built anew from the log.
    pub(crate) fn lose_state(&mut self) {
        self.state.lose_all();
        self.state_is_gone = true;
    }

    /// From now on (until told otherwise) syncs of a real log report success and do nothing.
    pub(crate) fn lie(&mut self, lies: bool) {
        if let Some(real) = &self.real {
            real.disk.lie_about_syncs(lies);
        }
        self.lied |= lies;
    }

    /// Whether something that was durable is missing, and the replica knows it.
    pub(crate) fn is_damaged(&self) -> bool {
        self.quarantined || self.wiped || self.damage.is_some()
    }

    /// As the log thread writes a group: the newest hard state first, then all entries.
    fn stop_plain(&mut self) {
        let under_way = std::mem::take(&mut self.under_way);
        if self.dice.chance(0.5) {
            return;
        }
        if let Some(hard) = under_way
            .iter()
            .rev()
            .find_map(|unsaved| unsaved.hard_state)
        {
            self.hard = hard;
        }
        let whole = self.dice.between(0, under_way.len() as u64) as usize;
        for (place, mut unsaved) in under_way.into_iter().enumerate() {
            unsaved.hard_state = None;
            if place < whole {
                self.keep(unsaved, usize::MAX);
                continue;
            }
            let some = self.dice.between(0, unsaved.entries.len() as u64) as usize;
            self.keep(unsaved, some);
            break;
        }
    }

    fn stop_real(&mut self, ending: Ending) -> Result<(), String> {
        let real = self.real.as_mut().expect("asked before");
        let under_way = std::mem::take(&mut self.under_way);
        if !under_way.is_empty() {
            // The process ends at some call of the write that is under way, or just after it.
            let call = self.dice.between(1, 12);
            real.disk.fail_call(call, sim_disk::Fault::Crash);
            real.write(&under_way);
        }
        let recovery = real.reopen(ending, self.quarantined, self.lied)?;
        self.marks.hit(Mark::RealLogReopened);
        self.quarantined = recovery.quarantined;
        let hard = HardState {
            term: recovery.vote.term,
            vote: recovery.vote.voted_for,
            promise_floor: recovery.vote.promise_floor,
            bootstrap: recovery.vote.bootstrap,
        };
        let entries: Vec<Entry> = recovery.records.into_iter().map(entry).collect();
        let hard_may_be = self.hard == hard
            || under_way
                .iter()
                .any(|unsaved| unsaved.hard_state == Some(hard));
        if !hard_may_be && !self.lied {
            return Err(format!("{hard:?} is found instead of {:?}", self.hard));
        }
        // What was reported durable is there, as far as nothing under way replaces it.
        let replaced = under_way.iter().flat_map(|unsaved| unsaved.entries.first());
        let kept = replaced.map(|entry| entry.id.index.0 as usize - 1).min();
        let kept = kept.unwrap_or(usize::MAX).min(self.entries.len());
        if entries.get(..kept) != Some(&self.entries[..kept]) && !self.lied {
            let ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
            return Err(format!(
                "{} entries were durable, found {ids:?}",
                self.entries.len()
            ));
        }
        if !under_way.is_empty() && entries.len() < self.entries.len() {
            self.marks.hit(Mark::LogCutShort);
        }
        self.hard = hard;
        self.entries = entries;
        Ok(())
    }

    /// Slower until `until`, by up to `by`.
    pub(crate) fn slow_down(&mut self, until: Nanos, by: Nanos) {
        self.slow_until = until;
        self.slow_by = by;
    }

    /// Works as it should from now on.
    pub(crate) fn heal(&mut self) {
        self.slow_until = 0;
        self.fails = false;
        self.full_until = 0;
    }

    /// The vote file.
    pub(crate) fn hard(&self) -> HardState {
        self.hard
    }

    /// The synced log, with what was before its base.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Where the log begins.
    pub(crate) fn base(&self) -> LogId {
        self.base
    }

    /// The synced log.
    pub(crate) fn log(&self) -> &[Entry] {
        &self.entries[self.base.index.0 as usize..]
    }

    /// Which bootstrap of its cluster it comes from: as the directory remembers it, and as the log begins.
    pub(crate) fn known_bootstrap(&self) -> Option<BootstrapId> {
        let begun = |entry: &Entry| match &entry.payload {
            Payload::Command(bytes) => kv::bootstraps(bytes),
            Payload::Noop | Payload::Configuration(_) => None,
        };
        // The log is asked for a moment only: decoding its first entry is long for what is done per message.
        self.bootstrap_id
            .or_else(|| self.log().first().and_then(begun))
    }

    /// Makes the state durable, as far as the database has it.
    pub(crate) fn persist(&mut self) -> Durable {
        let durable = self.state.persist();
        self.state_is_gone &= durable.through().index < self.base.index;
        durable
    }

    /// Whether logs may begin anywhere here.
    pub(crate) fn can_compact(&self) -> bool {
        self.real.is_none()
    }

    /// A whole state lies beside the one in use from now on, unless another one does.
    pub(crate) fn receive(&mut self, received: Received) -> bool {
        let takes = self.received.is_none();
        if takes {
            self.received = Some(received);
        }
        takes
    }

    /// It is not needed.
    pub(crate) fn discard(&mut self, id: LogId) {
        self.received.take_if(|received| received.id == id);
    }

    /// It takes the place of the one in use; whether it is there.
    pub(crate) fn install(&mut self, id: LogId) -> bool {
        let Some(received) = self.received.take_if(|received| received.id == id) else {
            return false;
        };
        self.state.replace(received.store);
        self.state_is_gone = false;
        true
    }

    /// What the data directory remembers of the bootstrap.
    pub(crate) fn bootstrap(&self) -> &Bootstrap {
        &self.bootstrap
    }

    /// What a process finds that starts.
    pub(crate) fn facts(&self, lease_tripped: bool) -> recovery::Disk {
        recovery::Disk {
            path: PathBuf::from("disk"),
            removed: None,
            bootstrap: self.bootstrap.clone(),
            unproven: self.unproven,
            diverged: self.diverged,
            lease_tripped,
            log: match self.has_log {
                true => LogFacts::Unread,
                false => LogFacts::Missing,
            },
            state: StateFacts::default(),
        }
    }

    /// Does what was decided; `base_configuration` is in force where the log begins.
    pub(crate) fn carry_out(
        &mut self,
        step: Step,
        facts: &mut recovery::Disk,
        base_configuration: &Configuration,
    ) {
        match step {
            Step::Bootstrap { members, unproven } => {
                if unproven {
                    self.unproven = Some(UnprovenReason::WasEmpty);
                }
                self.bootstrap = Bootstrap::Members(members);
            }
            Step::MarkLostLog => self.unproven = Some(UnprovenReason::LostLog),
            Step::MarkOlderVotes => self.unproven = Some(UnprovenReason::OlderVotes),
            Step::OpenLog => {
                self.has_log = true;
                let in_force = latest(self.log()).unwrap_or(base_configuration);
                facts.log = LogFacts::Open(OpenLog {
                    damage: self.damage.clone(),
                    repaired: None,
                    is_quarantined: self.quarantined,
                    base: self.base,
                    last: self.entries.last().map_or(self.base, |entry| entry.id),
                    term: self.hard.term,
                    members: in_force.members(),
                    version: None,
                });
            }
            Step::RepairLog => {
                if let Some(log) = self.real.as_mut().and_then(|real| real.log.as_mut()) {
                    log.repair().expect("a damaged log can be repaired");
                }
                self.quarantined = true;
                let repaired = self.damage.take();
                if let LogFacts::Open(log) = &mut facts.log {
                    log.is_quarantined = true;
                    (log.damage, log.repaired) = (None, repaired);
                }
            }
            Step::SetStateAside { .. } => {
                self.marks.hit(Mark::StateSetAside);
                self.aside = Some(self.state.copy());
                self.state_is_broken = false;
                self.lose_state();
                facts.state = StateFacts {
                    is_set_aside: true,
                    is_wanted_back: self.aside_is_wanted,
                    ..StateFacts::default()
                };
            }
            Step::OpenState if self.state_is_broken => {
                let why = "a block of it does not read".to_owned();
                facts.state.opened = Some(StateOpening::Damaged(why));
            }
            Step::OpenState => {
                let look = self.state.look();
                let applied = look.applied().index;
                let version = kv::cluster_version(&look).expect("memory does not fail");
                let received = self.received.as_ref();
                facts.state = StateFacts {
                    opened: Some(StateOpening::Whole { applied, version }),
                    is_received: received.is_some_and(|received| received.id == self.base),
                    is_wanted_back: self.aside_is_wanted,
                    ..StateFacts::default()
                };
            }
            Step::ReopenState => {
                let aside = self.aside.take().expect("it was set aside");
                self.aside_is_wanted = false;
                self.state.replace(aside);
                self.state_is_gone = false;
                facts.state = StateFacts::default();
            }
            Step::AdoptState => {
                self.install(self.base);
                self.marks.hit(Mark::InstallationFinished);
                facts.state = StateFacts::default();
            }
            Step::Quarantine => {
                if let Some(log) = self.real.as_mut().and_then(|real| real.log.as_mut()) {
                    log.begin_quarantine()
                        .expect("the vote file can be written");
                }
                self.quarantined = true;
                if let LogFacts::Open(log) = &mut facts.log {
                    log.is_quarantined = true;
                }
            }
            Step::Start(_) => unreachable!("that is for the world"),
        }
        facts.bootstrap = self.bootstrap.clone();
        facts.unproven = self.unproven;
    }

    /// What came in for an earlier process and is not in use now comes to nothing.
    pub(crate) fn clear_received(&mut self) {
        self.received = None;
    }

    /// The term of the synced entry at `index`.
    pub(crate) fn term_at(&self, index: LogIndex) -> Option<Term> {
        let place = usize::try_from(index.0).ok()?.checked_sub(1)?;
        self.entries.get(place).map(|entry| entry.id.term)
    }

    fn keep(&mut self, unsaved: UnsavedState, entries_max: usize) {
        if let Some(hard) = unsaved.hard_state {
            self.hard = hard;
        }
        if let Some(base) = unsaved.base {
            self.begin_after(base.id);
        }
        for entry in unsaved.entries.into_iter().take(entries_max) {
            let place = entry.id.index.0 as usize - 1;
            assert!(place <= self.entries.len(), "the log has no gap");
            self.entries.truncate(place);
            self.entries.push(entry);
        }
    }
}

impl SimDisk {
    fn begin_after(&mut self, base: LogId) {
        if self.term_at(base.index) != Some(base.term) {
            let received = self
                .received
                .as_ref()
                .filter(|received| received.id == base);
            // The driver hands a new base to the log before it lets go of the state.
            let received = received.expect("a log begins anew after the state that was received");
            self.entries = received.entries.clone();
        }
        self.base = base;
    }
}

/// What a disk writes in one piece.
const SECTOR: usize = 512;

/// `log::Log` over its own simulated disk.
struct RealLog {
    disk: sim_disk::SimDisk,
    options: LogOptions,
    log: Option<Log<sim_disk::SimDisk>>,
}

impl RealLog {
    fn new(node: usize, seed: u64) -> Self {
        let disk = sim_disk::SimDisk::new(seed);
        let options = LogOptions {
            cluster: CLUSTER,
            node: NodeId(node as u64 + 1),
            incarnation: Incarnation(0),
            segment_bytes: 64 << 10,
        };
        let (log, _) = Log::open(disk.clone(), options).expect("an empty disk takes a log");
        Self {
            disk,
            options,
            log: Some(log),
        }
    }

    /// Makes a group durable as the log thread does; whether that went well.
    fn write(&mut self, group: &[UnsavedState]) -> bool {
        let Some(log) = &mut self.log else {
            return false;
        };
        let hard = group.iter().rev().find_map(|unsaved| unsaved.hard_state);
        if let Some(hard) = hard {
            let vote = Vote {
                term: hard.term,
                voted_for: hard.vote,
                promise_floor: hard.promise_floor,
                bootstrap: hard.bootstrap,
            };
            if log.save_vote(vote).is_err() {
                return false;
            }
        }
        let entries = group.iter().flat_map(|unsaved| &unsaved.entries);
        let records: Vec<Record> = entries.map(record).collect();
        log.append(&records).is_ok()
    }

    /// Now and then nothing comes for a while: the batch is marked, the next segment prepared.
    fn idle(&mut self, dice: &mut Dice) -> bool {
        let Some(log) = &mut self.log else {
            return false;
        };
        let marked = !dice.chance(0.3) || log.mark().is_ok();
        let prepared = !dice.chance(0.3) || log.prepare_next(true).is_ok();
        marked && prepared
    }

    /// One bit of the part of a file that is in use.
    fn flip_somewhere(&mut self, dice: &mut Dice) {
        let names = self.disk.file_names();
        let name = dice.pick(&names);
        let contents = self.disk.contents(name);
        let used = contents.iter().rposition(|byte| *byte != 0);
        if let Some(last) = used {
            let byte = dice.between(0, last as u64) as usize;
            self.disk.flip(name, byte * 8 + dice.between(0, 7) as usize);
        }
    }

    /// A sector in use is written over with another: as a write that went to the wrong place. (That
    /// it is missing where it belongs is what any unsynced write may be, or beyond what can be
    /// noticed: A24.)
    fn misdirect_somewhere(&mut self, dice: &mut Dice) {
        let names = self.disk.file_names();
        let (from, to) = (dice.pick(&names), dice.pick(&names));
        let sectors = |name: &String| {
            let contents = self.disk.contents(name);
            let used = contents.iter().rposition(|byte| *byte != 0);
            (used.map_or(0, |last| last / SECTOR) as u64, contents)
        };
        let (last, contents) = sectors(from);
        let meant = dice.between(0, last) as usize * SECTOR;
        let met = dice.between(0, sectors(to).0) as usize * SECTOR;
        let sector = contents.get(meant..meant + SECTOR);
        if let Some(sector) = sector.filter(|sector| sector.iter().any(|byte| *byte != 0)) {
            self.disk.rot(to, met, sector);
        }
    }

    /// The process ends, and another opens what is there.
    fn reopen(
        &mut self,
        ending: Ending,
        quarantined: bool,
        lied: bool,
    ) -> Result<Recovery, String> {
        self.log = None;
        match ending {
            Ending::Kill => self.disk.kill(),
            // A disk that lied has an older state, and a whole one: else it would be noticed.
            Ending::Power if lied => self.disk.crash_keeping(|_, _| false),
            Ending::Power => self.disk.crash(),
        }
        let (log, recovery) =
            Log::open(self.disk.clone(), self.options).map_err(|error| error.to_string())?;
        self.log = Some(log);
        match &recovery.verdict {
            Verdict::Damaged(damage) => Err(damage.to_string()),
            // A quarantine whose end was being written may have ended.
            _ if recovery.quarantined && !quarantined => Err("in quarantine".to_owned()),
            _ if recovery.created => Err("created anew".to_owned()),
            _ => Ok(recovery),
        }
    }
}

fn record(entry: &Entry) -> Record {
    let (kind, payload) = match &entry.payload {
        Payload::Noop => (0, Bytes::new()),
        Payload::Command(bytes) => (1, bytes.clone()),
        Payload::Configuration(configuration) => {
            let bytes = postcard::to_allocvec(configuration).expect("memory takes any length");
            (2, Bytes::from(bytes))
        }
    };
    Record {
        id: entry.id,
        kind,
        payload,
    }
}

fn entry(record: Record) -> Entry {
    let payload = match record.kind {
        0 => Payload::Noop,
        1 => Payload::Command(record.payload),
        _ => Payload::Configuration(
            postcard::from_bytes(&record.payload).expect("what was written reads"),
        ),
    };
    Entry {
        id: record.id,
        payload,
    }
}
