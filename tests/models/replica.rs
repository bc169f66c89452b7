//! One replica of a model: the real core, its disk, its clocks, and whoever reads at it.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leasehold::raft::{
    Configuration, Consensus, Entry, HardState, LeaseCell, RestoredState, Ticket, Timing,
    UnsavedState,
};
use leasehold::time::Instant;
use leasehold::types::{LogId, LogIndex, NodeId, Term};

/// Where the logs begin: the cluster was bootstrapped, and what was stored then has been cut since. An
/// election on an empty log would take the votes of all (A25).
pub(crate) const BASE: LogId = LogId {
    index: LogIndex(1),
    term: Term(0),
};

/// Where they begin in models of a bootstrap.
pub(crate) const NOTHING: LogId = LogId {
    index: LogIndex(0),
    term: Term(0),
};

/// What a crash leaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Disk {
    pub(crate) hard: HardState,
    /// What lies before the entries.
    pub(crate) base: LogId,
    pub(crate) entries: Vec<Entry>,
    /// It may have held something that it has forgotten.
    pub(crate) unproven: bool,
    /// It did, and the replica has not got everything back since.
    pub(crate) wiped: bool,
}

impl Disk {
    /// One that holds nothing behind `base`. A replica that begins with nothing at all is unproven.
    pub(crate) fn after(base: LogId) -> Self {
        Self {
            hard: HardState::default(),
            base,
            entries: Vec::new(),
            unproven: base == NOTHING,
            wiped: false,
        }
    }

    /// How many entries a log has that ends at `index`.
    pub(crate) fn through(&self, index: LogIndex) -> usize {
        usize::try_from(index.0 - self.base.index.0).expect("logs of models are short")
    }

    pub(crate) fn write(&mut self, unsaved: &UnsavedState) {
        if let Some(hard) = unsaved.hard_state {
            self.hard = hard;
        }
        if let Some(first) = unsaved.entries.first() {
            let keep = self.through(first.id.index) - 1;
            assert!(keep <= self.entries.len(), "writes leave no hole");
            self.entries.truncate(keep);
            self.entries.extend(unsaved.entries.iter().cloned());
        }
    }

    pub(crate) fn entry(&self, index: LogIndex) -> Option<&Entry> {
        self.entries.get(self.through(index).checked_sub(1)?)
    }
}

/// A read that a session has begun and not yet answered.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// The lease object it loaded (A1).
    pub(crate) cell: Arc<LeaseCell>,
    /// What the read must see, captured since.
    pub(crate) captured: LogIndex,
    /// What its snapshot contains.
    pub(crate) snapshot: LogIndex,
    /// What anybody could have seen before the request arrived.
    pub(crate) exposed: LogIndex,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    pub(crate) id: NodeId,
    pub(crate) timing: Timing,
    pub(crate) core: Arc<Consensus>,
    pub(crate) disk: Disk,
    /// Writes on their way, oldest first.
    pub(crate) writes: VecDeque<(Ticket, UnsavedState)>,
    pub(crate) clock: Instant,
    /// Which life of the process this is.
    pub(crate) life: u64,
    pub(crate) applied: LogIndex,
    /// Handed out, and not yet applied.
    pub(crate) to_apply: LogIndex,
    /// The newest lease object that a reader of this life can hold.
    pub(crate) cell: Option<Arc<LeaseCell>>,
    /// The same of its read lease.
    pub(crate) read_cell: Option<Arc<LeaseCell>>,
    pub(crate) session: Option<Session>,
    /// A read by quorum waits, and this is what anybody could have seen before it arrived.
    pub(crate) asked: Option<LogIndex>,
    /// Of all of the above.
    pub(crate) digest: u64,
    /// The commit index up to which the claims have looked at this life.
    pub(crate) looked_at: LogIndex,
}

/// What chance says, always: it is the model that chooses.
const SEED: u64 = 7;

impl Replica {
    /// A replica with what its disk holds.
    pub(crate) fn start(
        id: NodeId,
        timing: Timing,
        configuration: &Configuration,
        disk: Disk,
        applied: LogIndex,
        clock: Instant,
        life: u64,
    ) -> Self {
        let restored = RestoredState {
            hard_state: disk.hard,
            base: disk.base,
            base_configuration: configuration.clone(),
            entries: disk.entries.clone(),
            applied,
            quarantined: false,
            unproven: disk.unproven,
            restored_from: None,
            diverged: None,
            lease_tripped: false,
            // No two bootstraps are alike.
            bootstrap_command: match disk.base {
                NOTHING => Bytes::from_owner([id.0.to_le_bytes(), life.to_le_bytes()].concat()),
                _ => Bytes::new(),
            },
        };
        // The core mixes the clock into the seed. Taken out again, rounds are named by the life
        // alone, and equal states have equal names.
        let seed = life ^ clock.boot.rotate_left(32);
        let mut core = Consensus::new(id, timing, restored, seed, clock);
        core.still(SEED);
        Self {
            id,
            timing,
            core: Arc::new(core),
            looked_at: disk.base.index,
            disk,
            writes: VecDeque::new(),
            clock,
            life,
            applied,
            to_apply: applied,
            cell: None,
            read_cell: None,
            session: None,
            asked: None,
            digest: 0,
        }
    }

    /// A copy whose core is its own, with the readers' lease objects where they belong.
    pub(crate) fn fork(&self) -> Self {
        let core = self.core.fork();
        let (old, new) = (self.core.published(), core.published());
        let pairs = [
            (old.lease(), new.lease()),
            (old.read_lease(), new.read_lease()),
        ];
        let moved = |cell: &Arc<LeaseCell>| {
            let mut pairs = pairs.iter();
            let moved = pairs.find_map(|(old, new)| match (old, new) {
                (Some(old), Some(new)) if Arc::ptr_eq(old, cell) => Some(new.clone()),
                _ => None,
            });
            moved.unwrap_or_else(|| cell.clone())
        };
        let cell = self.cell.as_ref().map(moved);
        let read_cell = self.read_cell.as_ref().map(moved);
        let session = self.session.as_ref().map(|session| Session {
            cell: moved(&session.cell),
            ..session.clone()
        });
        Self {
            core: Arc::new(core),
            cell,
            read_cell,
            session,
            disk: self.disk.clone(),
            writes: self.writes.clone(),
            ..*self
        }
    }

    /// A reader that begins now loads a lease object that is published now; and one that has loaded an object that
    /// is void for good learns nothing from it.
    pub(crate) fn note_cells(&mut self) {
        let published = self.core.published();
        let now = [published.lease(), published.read_lease()];
        for (known, now) in [&mut self.cell, &mut self.read_cell].into_iter().zip(now) {
            let is_void = |cell: &Arc<LeaseCell>| cell.until() == Instant::ZERO;
            if now.is_some() || known.as_ref().is_some_and(is_void) {
                *known = now;
            }
        }
    }

    /// The core, which must be this copy's own.
    pub(crate) fn core(&mut self) -> &mut Consensus {
        Arc::get_mut(&mut self.core).expect("forked before it is stepped")
    }

    /// So much time passes that whatever it waits for is over.
    pub(crate) fn lapse(&mut self) {
        self.clock = self.clock + self.timing.election_timeout_max * 3;
    }

    /// Chance has no say.
    pub(crate) fn still(&mut self) {
        self.core().still(SEED);
    }

    /// The log as the core has it in memory: what is durable, and what is being written.
    pub(crate) fn log(&self) -> Vec<Entry> {
        let mut log = Disk {
            entries: self.disk.entries.clone(),
            ..Disk::after(self.disk.base)
        };
        for (_, unsaved) in &self.writes {
            log.write(unsaved);
        }
        log.entries
    }

    /// Brings the digest up to date.
    pub(crate) fn seal(&mut self, steps_back: Duration) {
        let mut hasher = DefaultHasher::new();
        self.core.digest(self.clock, steps_back).hash(&mut hasher);
        self.disk.hash(&mut hasher);
        self.writes.len().hash(&mut hasher);
        for (_, unsaved) in &self.writes {
            unsaved.hash(&mut hasher);
        }
        (self.life, self.applied, self.to_apply).hash(&mut hasher);
        // A reader asks a lease object nothing but whether the clock is before its end.
        let mut reader = |cell: &LeaseCell| {
            let until = cell.until();
            let back = u64::try_from(steps_back.as_nanos()).expect("models step back a little");
            let boot = (until.boot + back).saturating_sub(self.clock.boot);
            let raw = (until.raw + back).saturating_sub(self.clock.raw);
            (cell.term, cell.floor, boot, raw).hash(&mut hasher);
        };
        if let Some(cell) = &self.cell {
            reader(cell);
        }
        if let Some(cell) = &self.read_cell {
            reader(cell);
        }
        if let Some(session) = &self.session {
            reader(&session.cell);
            (session.captured, session.snapshot, session.exposed).hash(&mut hasher);
        }
        (self.cell.is_some(), self.read_cell.is_some()).hash(&mut hasher);
        self.session.is_some().hash(&mut hasher);
        self.asked.hash(&mut hasher);
        self.digest = hasher.finish();
    }
}
