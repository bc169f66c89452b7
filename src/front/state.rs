//! The state as readers find it: what is published, the cache, and the looks at the database.
//!
//! All handles of a state look for the front in use at the beginning of each call ([`Handle`]), so from
//! one moment on they find the new one, with its cache, its revision and its applied index in one piece:
//! an old database is never taken for one that has applied more (A9).

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use crate::api::KeyValue;
use crate::kv;
use crate::kv::{Pair, Progress, Space, Span, View};
#[cfg(leasehold_bugs)]
use crate::sync::Mutex;
use crate::sync::{AtomicI64, AtomicU64, Ordering, Swap};
use crate::types::{LogId, LogIndex};
use crate::wire::point::Record;

use super::ahead::{Growth, HandedOver, Run, Runs, Stack};
use super::cache::{CachedKey, Lookup, RecordCache};
use super::database::Database;

/// What stands in front of a database, between the thread that applies and all that read. See the
/// [module](super).
pub struct Front<D: Database> {
    /// What is published and not yet in the database.
    ahead: Stack,
    cache: RecordCache,
    revision: AtomicI64,
    /// Shown to people only: no read is judged by it.
    compact_revision: AtomicI64,
    /// The same.
    raised_alarms: AtomicU64,
    applied: AtomicU64,
    /// Up to where a look may find changes. It is set before the first of them can be found, and
    /// `applied` after the last.
    shown: AtomicU64,
    /// What the read before has looked at.
    #[cfg(leasehold_bugs)]
    before: Mutex<Option<Look<D>>>,
    /// Let go of last.
    database: D,
}

/// The front in use, for all who read one state.
pub struct Handle<D: Database> {
    front: Arc<Swap<Front<D>>>,
}

impl<D: Database> Clone for Handle<D> {
    fn clone(&self) -> Self {
        Self {
            front: Arc::clone(&self.front),
        }
    }
}

impl<D: Database> Handle<D> {
    pub(super) fn new(front: Arc<Front<D>>) -> Self {
        Self {
            front: Arc::new(Swap::new(front)),
        }
    }

    /// For a short look.
    pub fn load(&self) -> impl Deref<Target = Arc<Front<D>>> + use<D> {
        self.front.load()
    }

    /// For longer work.
    pub fn get(&self) -> Arc<Front<D>> {
        self.front.load_full()
    }

    pub(super) fn set(&self, front: Arc<Front<D>>) {
        self.front.store(front);
    }
}

/// One key, read by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// The key and what it holds; `None` if there is no such key.
    pub record: Option<Record>,
    /// A revision at which this was so, not older than what was applied when the read began: what
    /// belongs into the reply's header (A10).
    pub revision: i64,
    /// What was read contains at least this index (A7).
    pub applied: LogIndex,
}

impl Point {
    /// The key and what it holds, decoded.
    pub fn key_value(&self) -> Option<KeyValue> {
        self.record.as_ref().map(Record::to_key_value)
    }
}

impl<D: Database> Front<D> {
    /// In front of `database`, whose state is published, with about `cache_bytes` for current records.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn open(database: D, cache_bytes: usize) -> Result<Arc<Self>, D::Error> {
        let this = Arc::new(Self {
            ahead: Stack::default(),
            cache: RecordCache::new(cache_bytes),
            revision: AtomicI64::new(0),
            compact_revision: AtomicI64::new(0),
            raised_alarms: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            shown: AtomicU64::new(0),
            #[cfg(leasehold_bugs)]
            before: Mutex::default(),
            database,
        });
        // There is no reader yet, so the order does not matter here.
        let found = this.settled()?.progress;
        this.set_revision(&found);
        this.shown.store(found.applied.index.0, Ordering::Release);
        this.set_applied(found.applied.index);
        Ok(this)
    }

    /// The database behind it.
    pub fn database(&self) -> &D {
        &self.database
    }

    /// The last index applied. Any read that begins later contains it.
    pub fn applied(&self) -> LogIndex {
        LogIndex(self.applied.load(Ordering::Acquire))
    }

    /// The last index of which any look may have found something. While it is ahead of
    /// [`Self::applied`], a batch is being published: one key may be found as the batch left it, and
    /// another, or the same by another reader, as it was before. A read that sees everything up to here
    /// sees whatever was found before it arrived (P21).
    pub fn shown(&self) -> LogIndex {
        LogIndex(self.shown.load(Ordering::Acquire))
    }

    /// The store-wide revision.
    pub fn revision(&self) -> i64 {
        self.revision.load(Ordering::Acquire)
    }

    /// The oldest revision that can be read; 0 while nothing was ever compacted.
    pub fn compact_revision(&self) -> i64 {
        self.compact_revision.load(Ordering::Relaxed)
    }

    /// How many alarms operators have raised.
    pub fn raised_alarms(&self) -> u64 {
        self.raised_alarms.load(Ordering::Relaxed)
    }

    /// Reads one key: from the cache if it is there, else from a look at the database. A key found in
    /// the cache shares its memory with it.
    ///
    /// The order is the reverse of publication: applied index, revision, lookup. So what is found has
    /// everything up to that index, and the revision is not older than it.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn get(self: &Arc<Self>, key: &[u8]) -> Result<Point, D::Error> {
        let applied = self.applied();
        let revision = self.revision();
        let known = match self.cache.get(key) {
            Lookup::Found(known) => known,
            Lookup::Missing(ticket) => {
                let known = self.read_current(key)?;
                self.cache.fill(ticket, key, known.clone());
                known
            }
        };
        #[cfg(leasehold_bugs)]
        let (applied, revision) = (
            if planted!(AppliedReadLater) {
                self.applied()
            } else {
                applied
            },
            if planted!(RevisionReadLater) {
                self.revision()
            } else {
                revision
            },
        );
        Ok(match known {
            CachedKey::Present(record) => Point {
                revision: revision.max(record.mod_revision()),
                record: Some(record),
                applied,
            },
            CachedKey::Absent { revision: absent } => Point {
                revision: revision.max(absent),
                record: None,
                applied,
            },
        })
    }

    fn read_current(self: &Arc<Self>, key: &[u8]) -> Result<CachedKey, D::Error> {
        let look = self.look();
        match look.get(&self.database, Space::Current, key)? {
            // Encoded again, which copies: a value of the database may keep a whole block in memory.
            Some(record) => {
                let kv = kv::key_value(Bytes::copy_from_slice(key), record)?;
                Ok(CachedKey::Present(Record::new(&kv)))
            }
            None => Ok(CachedKey::Absent {
                revision: Snapshot::with(self, look)?.progress.revision,
            }),
        }
    }

    /// A consistent snapshot of the state. Later writes do not change it; held for long, it keeps
    /// replaced records from being removed.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn snapshot(self: &Arc<Self>) -> Result<Snapshot<D>, D::Error> {
        #[cfg(leasehold_bugs)]
        if planted!(OlderSnapshot)
            && let Some(before) = self.before.lock().replace(self.look())
        {
            return Snapshot::with(self, before);
        }
        self.newest()
    }

    /// The same for the thread that applies, whose batch begins from it.
    pub(super) fn newest(self: &Arc<Self>) -> Result<Snapshot<D>, D::Error> {
        Snapshot::with(self, self.look())
    }

    /// A snapshot of the database alone. Writers beside the thread that applies rely on this one: what
    /// is ahead of the database may be lost in a crash, and what they wrote because of it would not be.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn settled(self: &Arc<Self>) -> Result<Snapshot<D>, D::Error> {
        let look = Look {
            database: self.database.snapshot(),
            runs: Runs::default(),
        };
        Snapshot::with(self, look)
    }

    fn look(&self) -> Look<D> {
        let (runs, database) = self.ahead.look(|| self.database.snapshot());
        Look { database, runs }
    }

    /// Hands the database the oldest of what is ahead of it, at most `bytes_max` bytes unless one batch
    /// has more. Any thread may do so: who comes during a hand-over waits for its end, and readers and the
    /// thread that applies do not.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn hand_over(&self, bytes_max: usize) -> Result<HandedOver, D::Error> {
        let write = |runs: &Runs| self.database.write(runs.last_changes());
        self.ahead.hand_over(bytes_max, write)
    }

    /// Does `work` while nothing is handed over, which waits for it. A thread that removes records from the
    /// database does so in here, by what [`Front::settled`] says in here: what is on its way into the
    /// database is ahead of it too, and a look that found it there, and removed below, would count it twice.
    pub fn between_hand_overs<T>(&self, work: impl FnOnce() -> T) -> T {
        self.ahead.between_hand_overs(work)
    }

    /// How many bytes of memory are ahead of the database. No decision that needs to be exact may rest on
    /// it.
    pub fn ahead_bytes(&self) -> u64 {
        self.ahead.bytes()
    }

    /// What is known of `key` as it was last published. For the thread that applies: no other
    /// changes it meanwhile.
    pub(super) fn known(&self, key: &[u8]) -> Option<CachedKey> {
        match self.cache.get(key) {
            Lookup::Found(known) => Some(known),
            Lookup::Missing(_) => None,
        }
    }

    /// The database of a front without other handles.
    pub(super) fn into_database(self: Arc<Self>) -> Result<D, Arc<Self>> {
        Arc::try_unwrap(self).map(|this| this.database)
    }

    /// From here on every look finds these changes, of entries up to `through`.
    pub(super) fn show(&self, run: Arc<Run>, through: LogIndex) -> Growth {
        if !planted!(ShownLate) {
            self.shown.store(through.0, Ordering::Release);
        }
        self.ahead.push(run)
    }

    /// Merges what is ahead of the database, for the thread that applies.
    pub(super) fn merge_runs(&self) {
        self.ahead.merge();
    }

    /// Records what a visible batch made of `key`.
    pub(super) fn change(&self, key: &[u8], known: CachedKey) {
        self.cache.change(key, known);
    }

    pub(super) fn set_revision(&self, progress: &Progress) {
        self.compact_revision
            .store(progress.compact_revision, Ordering::Relaxed);
        self.raised_alarms
            .store(progress.raised_alarms.into(), Ordering::Relaxed);
        self.revision.store(progress.revision, Ordering::Release);
    }

    pub(super) fn set_applied(&self, applied: LogIndex) {
        planted!(ShownLate => self.shown.store(applied.0, Ordering::Release));
        self.applied.store(applied.0, Ordering::Release);
    }
}

/// The database at one moment, and what was ahead of it then.
struct Look<D: Database> {
    database: D::Snapshot,
    runs: Runs,
}

impl<D: Database> Look<D> {
    fn get(&self, database: &D, space: Space, key: &[u8]) -> Result<Option<Bytes>, D::Error> {
        match self.runs.get(space, key) {
            None => database.get(&self.database, space, key),
            Some(None) if planted!(TombstoneSkipped) => database.get(&self.database, space, key),
            Some(change) => Ok(change.clone()),
        }
    }
}

/// A consistent snapshot of the state, with the progress that it holds itself (A9).
pub struct Snapshot<D: Database> {
    look: Look<D>,
    front: Arc<Front<D>>,
    progress: Progress,
}

impl<D: Database> Snapshot<D> {
    fn with(front: &Arc<Front<D>>, look: Look<D>) -> Result<Self, D::Error> {
        let mut this = Self {
            look,
            front: Arc::clone(front),
            progress: Progress::default(),
        };
        this.progress = kv::progress(&this)?;
        Ok(this)
    }

    /// The front it was taken from.
    pub fn front(&self) -> &Front<D> {
        &self.front
    }

    /// Its progress.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// The last entry it contains.
    pub fn applied(&self) -> LogId {
        self.progress.applied
    }

    /// Its revision.
    pub fn revision(&self) -> i64 {
        self.progress.revision
    }

    /// The oldest revision that can be read in it.
    pub fn compact_revision(&self) -> i64 {
        self.progress.compact_revision
    }

    /// Whether what would make the state grow is refused in it, and with which figures.
    pub fn space_alarm(&self) -> Option<kv::SpaceAlarm> {
        self.progress.space_alarm
    }

    /// How many sessions are open in it.
    pub fn sessions(&self) -> u64 {
        self.progress.sessions
    }
}

impl<D: Database> View for Snapshot<D> {
    type Error = D::Error;

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, D::Error> {
        self.look.get(&self.front.database, space, key)
    }

    fn range(
        &self,
        space: Space,
        span: &Span,
    ) -> impl Iterator<Item = Result<Pair, D::Error>> + use<'_, D> {
        let Look { database, runs } = &self.look;
        let below = self.front.database.range(database, space, span);
        kv::overlaid(below, runs.range(space, span))
    }
}
