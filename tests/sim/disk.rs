//! A machine's disk, as far as consensus sees it: what was synced stays, what was not may go.
//!
//! The log and the vote file are one value each here. A write under way when the machine stops
//! leaves a prefix of itself: whole units of persistence first, then perhaps the hard state and
//! some of the entries of the next. That is what `log` promises of its files; that the promise is
//! kept is the business of `log`'s own tests.
//!
//! The state machine's store is never synced, so after a loss of power an older version of it may
//! be found.

use leasehold::kv::MemStore;
use leasehold::raft::Entry;
use leasehold::raft::HardState;
use leasehold::raft::Unsaved;
use leasehold::types::LogIndex;
use leasehold::types::Term;

use crate::clock::MS;
use crate::clock::Nanos;
use crate::clock::US;
use crate::dice::Dice;

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
    hard: HardState,
    entries: Vec<Entry>,
    /// Written, and not known to be synced.
    under_way: Vec<Unsaved>,
    /// The store as the system has it: lost with the power.
    pub(crate) store: MemStore,
    /// The store as it would be found after a loss of power.
    kept: MemStore,
    latency_min: Nanos,
    latency_max: Nanos,
    /// Until then, syncs take as long as told.
    slow_until: Nanos,
    slow_by: Nanos,
    /// The next sync fails.
    pub(crate) fails: bool,
    /// Until then, there is no space.
    pub(crate) full_until: Nanos,
    dice: Dice,
}

impl SimDisk {
    /// An empty disk of its own speed.
    pub(crate) fn new(mut dice: Dice) -> Self {
        let latency_min = dice.spread(20 * US, MS);
        let latency_max = latency_min + dice.spread(20 * US, 6 * MS);
        Self {
            hard: HardState::default(),
            entries: Vec::new(),
            under_way: Vec::new(),
            store: MemStore::new(),
            kept: MemStore::new(),
            latency_min,
            latency_max,
            slow_until: 0,
            slow_by: 0,
            fails: false,
            full_until: 0,
            dice,
        }
    }

    /// Begins to write `batch`; says how long its sync takes.
    pub(crate) fn write(&mut self, now: Nanos, batch: Vec<Unsaved>) -> Nanos {
        assert!(self.under_way.is_empty(), "one batch at a time");
        let votes = batch.iter().filter(|u| u.hard_state.is_some()).count() as u64;
        self.under_way = batch;
        let usual = self.dice.between(self.latency_min, self.latency_max) * (1 + votes);
        if now < self.slow_until {
            usual + self.dice.between(self.slow_by / 4, self.slow_by)
        } else {
            usual
        }
    }

    /// The sync of what was written last returns.
    pub(crate) fn sync(&mut self, now: Nanos) -> Sync {
        if self.fails || now < self.full_until {
            self.fails = false;
            return Sync::Failed;
        }
        for unsaved in std::mem::take(&mut self.under_way) {
            self.keep(unsaved, usize::MAX);
        }
        if self.dice.chance(0.01) {
            self.kept = self.store.clone();
        }
        Sync::Done
    }

    /// The process ended; what was under way is kept in part.
    pub(crate) fn stop(&mut self, ending: Ending) {
        let under_way = std::mem::take(&mut self.under_way);
        let whole = self.dice.between(0, under_way.len() as u64) as usize;
        for (place, mut unsaved) in under_way.into_iter().enumerate() {
            if place < whole {
                self.keep(unsaved, usize::MAX);
                continue;
            }
            if self.dice.chance(0.5) {
                unsaved.hard_state = None;
                unsaved.entries.clear();
            }
            let some = self.dice.between(0, unsaved.entries.len() as u64) as usize;
            self.keep(unsaved, some);
            break;
        }
        match ending {
            Ending::Kill => {}
            Ending::Power if self.dice.chance(0.5) => self.store = self.kept.clone(),
            Ending::Power => self.store = MemStore::new(),
        }
        self.kept = self.store.clone();
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

    /// The synced log.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The term of the synced entry at `index`.
    pub(crate) fn term_at(&self, index: LogIndex) -> Option<Term> {
        let place = usize::try_from(index.0).ok()?.checked_sub(1)?;
        self.entries.get(place).map(|entry| entry.id.term)
    }

    fn keep(&mut self, unsaved: Unsaved, entries_max: usize) {
        if let Some(hard) = unsaved.hard_state {
            self.hard = hard;
        }
        for entry in unsaved.entries.into_iter().take(entries_max) {
            let place = entry.id.index.0 as usize - 1;
            assert!(place <= self.entries.len(), "the log has no gap");
            self.entries.truncate(place);
            self.entries.push(entry);
        }
    }
}
