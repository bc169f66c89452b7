//! The state on fjall: what the state machine has applied so far.
//!
//! Nothing here is synced while the node works. Every batch carries the applied entry with what it
//! changed, so a crash takes the state back to some earlier moment of itself, and the Raft log,
//! which is synced, replays the rest. [`StateStore::persist`] makes it durable where that matters:
//! before the log is cut, and at a graceful stop.
//!
//! What the disk gives back is not trusted blindly (D1). After anything but a clean stop
//! [`StateStore::needs_verification`] is set, and [`StateReader::verify`] reads everything and
//! compares it with the content hash; a state that fails is rebuilt, never served. fjall may panic
//! on damaged tables, so opening and verifying run inside a boundary ([`contains_panic`]).
//!
//! One thread owns the [`StateStore`] and applies, one [`Sweeper`] beside it removes compacted history,
//! and any number read through [`StateReader`]s. Point
//! reads come from a bounded cache of current records where they can; whatever
//! needs more than one record takes a [`Snapshot`].
//!
//! A batch is published before the database has it: its changes lie ahead of the database, where
//! every look finds them, until it has taken them in. So neither a write's answer nor a read of what
//! was just committed waits for that. A crash in between loses what every crash may: the end of the
//! state, which the log replays.
//!
//! The order in which a batch is published is what makes this linearizable; it stands in
//! `front.rs`. The applied index lives beside the database handle it belongs to (A9).
//!
//! A whole state goes out as chunks by an [`Export`], and comes in by an [`Import`] into a directory of
//! its own. From there it takes the place of this one while all of these go on (`replace.rs`).
//!
//! Every error is fatal: the store is poisoned by it and answers nothing any more, but what it was.
//!
//! On disk, under the directory given: `format` (which version wrote this), `lock` (held while
//! open), `clean` (present after a clean stop; says of which state), `db` (fjall's own).

mod boundary;
mod cache;
mod counts;
mod error;
mod export;
mod front;
mod gate;
mod import;
mod journal;
mod keeper;
mod marks;
mod replace;
mod sweep;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};

use crate::api::KeyValue;
use crate::kv;
use crate::kv::access::Policy;
use crate::kv::{Change, Changes, ContentHash, Overlay, Pair, Progress, Reply, Space, Span, View};
use crate::sync::{Mutex, MutexGuard};
use crate::types::{LogId, LogIndex};
use crate::wire::point::Record;

use cache::Cached;
use counts::KeyCount;
use front::Front;
use marks::Directory;
use replace::Current;

pub use boundary::contains_panic;
pub use counts::{Operations, Uncounted};
pub use error::{Failure, StoreError};
pub use export::{Export, Origin};
pub use gate::Gate;
pub use import::{Import, ImportError};
pub use journal::Journal;
pub use keeper::Keeper;
pub use replace::Retired;
pub use sweep::{Sweeper, Swept};

/// How much memory the state may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// For current records kept ready for point reads. Zero turns that off.
    pub record_cache_bytes: usize,
    /// For blocks of the tables on disk.
    pub block_cache_bytes: u64,
    /// For writes of one keyspace before they go into a table.
    pub memtable_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            record_cache_bytes: 64 << 20,
            block_cache_bytes: 32 << 20,
            memtable_bytes: 16 << 20,
        }
    }
}

/// The state, in the hands of the one thread that applies.
pub struct StateStore {
    shared: Arc<Shared>,
    /// The same, for all who read.
    current: Current,
    needs_verification: bool,
}

/// One entry of a batch, applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The entry.
    pub id: LogId,
    /// Its answer.
    pub reply: Reply,
}

impl StateStore {
    /// Refuses a state that a later release wrote, before anything else of this node is touched.
    ///
    /// # Errors
    /// [`StoreError::NewerFormat`], and no other.
    pub fn refuse_newer_format(directory: &Path) -> Result<(), StoreError> {
        marks::refuse_newer_format(directory)
    }

    /// Opens the state in `directory`, or makes an empty one there.
    ///
    /// # Errors
    /// The directory is in use, foreign, of a newer format, damaged, or cannot be read or written.
    pub fn open(directory: &Path, options: &StoreOptions) -> Result<Self, StoreError> {
        boundary::contain(|| Self::open_unguarded(directory, options))
    }

    fn open_unguarded(path: &Path, options: &StoreOptions) -> Result<Self, StoreError> {
        let directory = Directory::claim(path)?;
        let mark = marks::take_clean_mark(directory.path())?;
        let (database, spaces) = open_database(&directory, options)?;
        directory.finish_creation(|| {
            database
                .persist(PersistMode::SyncAll)
                .map_err(|error| StoreError::from_fjall("creating the state", error))
        })?;

        // A state at entry 0 is not new for that: its journal may be lost, and its tables not.
        let is_new = directory.is_new();
        let shared = Arc::new(Shared {
            ahead: Mutex::default(),
            front: Front::new(options.record_cache_bytes),
            keys: KeyCount::default(),
            spaces,
            database,
            failure: OnceLock::new(),
            farewell: Farewell {
                path: directory.path().to_owned(),
                mark: Mutex::default(),
            },
            _lock: directory.into_lock(),
        });
        let snapshot = Snapshot::take(&shared)?;
        let gate = Gate::default();
        gate.publish(Arc::new(Policy::of(&snapshot)?));
        shared.front.publish(snapshot.progress);

        let is_clean = mark == Some(snapshot.mark()?);
        Ok(Self {
            current: Current::new(Arc::clone(&shared), gate),
            shared,
            needs_verification: !is_clean && !is_new,
        })
    }

    /// Whether the last stop was not a clean one: then [`StateReader::verify`] must have passed
    /// before anything is served from here.
    pub fn needs_verification(&self) -> bool {
        self.needs_verification
    }

    /// A handle for reading.
    pub fn reader(&self) -> StateReader {
        StateReader {
            current: self.current.clone(),
        }
    }

    /// Applies entries in their order, all or none, publishes the state they lead to and hands it
    /// to the database. `None` is an entry without a command. Not synced.
    ///
    /// # Errors
    /// Any is fatal. [`StoreError::OutOfOrder`]: the entries do not follow what is applied.
    pub fn apply_batch(
        &mut self,
        entries: &[(LogId, Option<Bytes>)],
    ) -> Result<Vec<Applied>, StoreError> {
        let (applied, _) = self.apply_ahead(entries, false)?;
        self.settle()?;
        Ok(applied)
    }

    /// As [`StateStore::apply_batch`], but the database is not given the changes yet: readers find
    /// them ahead of it until [`StateStore::settle`]. So answers need not wait for it. If `tells`, it
    /// also says what was changed, for watches.
    ///
    /// # Errors
    /// Any is fatal, and the state stays as it was published before. [`StoreError::OutOfOrder`]:
    /// the entries do not follow what is applied.
    pub fn apply_ahead(
        &mut self,
        entries: &[(LogId, Option<Bytes>)],
        tells: bool,
    ) -> Result<(Vec<Applied>, Option<Vec<Change>>), StoreError> {
        self.settle()?;
        self.shared.check_poison()?;
        let result = self.apply_unguarded(entries, tells);
        self.shared.poison_on_error(result)
    }

    /// Hands the database what was last applied ahead of it. Whatever writes to the database by
    /// another way does this first.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn settle(&mut self) -> Result<(), StoreError> {
        self.shared.check_poison()?;
        let result = self.settle_unguarded();
        self.shared.poison_on_error(result)
    }

    fn settle_unguarded(&self) -> Result<(), StoreError> {
        let Some(ahead) = self.shared.ahead().clone() else {
            return Ok(());
        };
        let changes = Space::ALL.into_iter().zip(ahead.iter());
        self.shared.commit("writing the state", changes)?;
        // Only now: who looks in between finds the same in both.
        *self.shared.ahead() = None;
        Ok(())
    }

    fn apply_unguarded(
        &self,
        entries: &[(LogId, Option<Bytes>)],
        tells: bool,
    ) -> Result<(Vec<Applied>, Option<Vec<Change>>), StoreError> {
        if entries.is_empty() {
            return Ok((Vec::new(), tells.then(Vec::new)));
        }
        let base = Base {
            snapshot: Snapshot::take(&self.shared)?,
        };
        let mut overlay = Overlay::new(base);
        let mut applied = Vec::with_capacity(entries.len());
        for (id, command) in entries {
            let reply = kv::apply(&mut overlay, *id, command.as_deref())?;
            applied.push(Applied { id: *id, reply });
        }
        let progress = kv::progress(&overlay)?;
        let gate = self.current.gate();
        if gate.policy().status() != progress.access {
            gate.publish(Arc::new(Policy::of(&overlay)?));
        }

        let mut ahead = Ahead::default();
        for (space, changes) in overlay.into_changes() {
            ahead[space.slot()] = changes;
        }
        let told = match tells {
            true => Some(kv::changes_of(
                &ahead[Space::Events.slot()],
                &ahead[Space::History.slot()],
            )?),
            false => None,
        };
        let ahead = Arc::new(ahead);
        // Before anything is published: who is told of a revision finds it.
        *self.shared.ahead() = Some(Arc::clone(&ahead));

        let current = &ahead[Space::Current.slot()];
        let changes = current.iter().map(|(key, record)| {
            let cached = match record {
                Some(record) => {
                    let kv = kv::key_value(key.clone(), record.clone())?;
                    Cached::Present(Record::new(&kv))
                }
                None => Cached::Absent {
                    revision: progress.revision,
                },
            };
            Ok::<_, StoreError>((key, cached))
        });
        let done = kv::key_changes(&ahead[Space::Events.slot()])?;
        self.shared.front.advance(changes, progress)?;
        self.shared.keys.changed(done.more);
        self.current.operations().done(done);
        Ok((applied, told))
    }

    /// Makes everything applied so far durable, and says up to which entry that is: the log may
    /// be cut there.
    ///
    /// # Errors
    /// Any is fatal: after a failed sync nobody knows what is on the disk.
    pub fn persist(&mut self) -> Result<LogId, StoreError> {
        self.settle()?;
        let result = Snapshot::take(&self.shared).and_then(|snapshot| {
            self.shared.sync()?;
            Ok(snapshot.progress.applied)
        });
        self.shared.poison_on_error(result)
    }

    /// Makes everything durable and has it noted that the stop was clean, so that the next start need
    /// not verify. It is noted, and the directory unlocked, when the last reader and snapshot are gone.
    ///
    /// # Errors
    /// As [`StateStore::persist`].
    pub fn close(mut self) -> Result<LogId, StoreError> {
        self.persist_clean()
    }

    /// As [`StateStore::close`], but the store stays open. Nothing may be applied to it after this.
    ///
    /// # Errors
    /// As [`StateStore::persist`].
    pub fn persist_clean(&mut self) -> Result<LogId, StoreError> {
        let durable = self.persist()?;
        // A state that was not proved good must not look good to the next start.
        if !self.needs_verification {
            let mark = Snapshot::take(&self.shared)?.mark()?;
            *self.shared.farewell.mark() = Some(mark);
        }
        Ok(durable)
    }

    /// Takes note of what [`StateReader::verify`] has found: a sound state needs no further
    /// verification, and may be marked clean when it is closed.
    pub fn verified(&mut self, report: &HashReport) {
        if report.is_sound() {
            self.needs_verification = false;
        }
    }
}

/// The most bytes of fjall's journals before it hurries to empty them into tables.
const JOURNAL_BYTES_MAX: u64 = 256 << 20;

/// How many threads of fjall's there are. The first of them leaves merges to the others, so that
/// memtables become tables meanwhile; alone (as it would be where a control group leaves us one core)
/// it does both in turn, and writes wait for the merges. What it leaves comes round to it until another
/// one takes it, so with a single other one it would turn around for as long as that one merges.
fn worker_threads() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    cores.clamp(WORKER_THREADS_MIN, WORKER_THREADS_MAX)
}

const WORKER_THREADS_MIN: usize = 3;
const WORKER_THREADS_MAX: usize = 4;

/// `meta` is a few records written over and over; a small memtable keeps it from holding back the
/// journals of everyone.
const META_MEMTABLE_BYTES: u64 = 2 << 20;

/// How far fjall's threads stand back behind those that somebody waits for. A merge takes seconds, on as
/// many cores as there are; where these are few, writes and renewals would wait for it. It must not starve
/// either, or memtables pile up: this leaves it a quarter of a core that others want whole.
const WORKER_NICENESS: i32 = 5;

/// Opens the database in `directory`, or makes an empty one, with all its keyspaces in the order of
/// [`Space::ALL`].
fn open_database(
    directory: &Directory,
    options: &StoreOptions,
) -> Result<(Database, Vec<Keyspace>), StoreError> {
    let (path, options) = (directory.database(), *options);
    boundary::expendable(move || {
        // A thread begins with the niceness of the one that starts it, which cannot take its own back.
        stand_back();
        open_on_this_thread(&path, &options)
    })
}

/// Gives way to the other threads of this process.
fn stand_back() {
    // Elsewhere it is the process that has a niceness.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(WORKER_NICENESS) {
        tracing::warn!(%error, "merging of tables runs at the priority of everything else");
    }
}

fn open_on_this_thread(
    path: &Path,
    options: &StoreOptions,
) -> Result<(Database, Vec<Keyspace>), StoreError> {
    let database = Database::builder(path)
        .cache_size(options.block_cache_bytes)
        .max_journaling_size(JOURNAL_BYTES_MAX)
        .worker_threads(worker_threads())
        .open()
        .map_err(|error| StoreError::from_fjall("opening the state", error))?;
    let mut spaces = Vec::with_capacity(Space::ALL.len());
    for space in Space::ALL {
        let create = || create_options(space, options);
        let keyspace = database
            .keyspace(space.name(), create)
            .map_err(|error| StoreError::from_fjall("opening a keyspace", error))?;
        spaces.push(keyspace);
    }
    Ok((database, spaces))
}

fn create_options(space: Space, options: &StoreOptions) -> KeyspaceCreateOptions {
    let memtable_bytes = match space {
        Space::Meta => options.memtable_bytes.min(META_MEMTABLE_BYTES),
        _ => options.memtable_bytes,
    };
    KeyspaceCreateOptions::default().max_memtable_size(memtable_bytes)
}

/// Reads the state. Cheap to clone. Each call looks at one state, even where another one takes its
/// place meanwhile, and later calls at no older one.
#[derive(Clone)]
pub struct StateReader {
    current: Current,
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

impl StateReader {
    /// The last index applied. Any read that begins later contains it.
    pub fn applied(&self) -> LogIndex {
        self.current.load().front.applied()
    }

    /// The store-wide revision.
    pub fn revision(&self) -> i64 {
        self.current.load().front.revision()
    }

    /// The oldest revision that can be read; 0 while nothing was ever compacted.
    pub fn compact_revision(&self) -> i64 {
        self.current.load().front.compact_revision()
    }

    /// Reads one key: from the cache if it is there, else from disk. A key found in the cache
    /// shares its memory with it.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn get(&self, key: &[u8]) -> Result<Point, StoreError> {
        let shared = self.current.load();
        shared.check_poison()?;
        let result = shared.front.get(key, || Self::read_current(&shared, key));
        shared.poison_on_error(result)
    }

    fn read_current(shared: &Arc<Shared>, key: &[u8]) -> Result<Cached, StoreError> {
        let look = shared.look();
        match look.get(shared, Space::Current, key)? {
            // Encoded anew, which copies: what fjall hands out may keep a whole block in memory.
            Some(record) => {
                let kv = kv::key_value(Bytes::copy_from_slice(key), record)?;
                Ok(Cached::Present(Record::new(&kv)))
            }
            None => {
                let snapshot = Snapshot::with(shared, look)?;
                Ok(Cached::Absent {
                    revision: snapshot.progress.revision,
                })
            }
        }
    }

    /// The rules of access of this state, and of those that follow it.
    pub fn gate(&self) -> &Arc<Gate> {
        self.current.gate()
    }

    /// How many keys there are now; `None` until those that were found at the start are counted.
    pub fn keys(&self) -> Option<u64> {
        self.current.load().keys.get()
    }

    /// What was done to keys, since the process began.
    pub fn operations(&self) -> &Operations {
        self.current.operations()
    }

    /// A consistent look at everything, for ranges. It stays as it is while writes go on; held for
    /// long, it keeps what was replaced since from being cleaned up.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let shared = self.current.load();
        shared.check_poison()?;
        let result = Snapshot::take(&shared);
        shared.poison_on_error(result)
    }

    /// Bytes of state on disk.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn storage_bytes(&self) -> Result<u64, StoreError> {
        let shared = self.current.load();
        shared.check_poison()?;
        let bytes = shared.database.disk_space();
        let result = bytes.map_err(|error| StoreError::from_fjall("measuring the state", error));
        shared.poison_on_error(result)
    }

    /// Reads everything and compares it with the content hash. Takes time by the size of the
    /// state.
    ///
    /// # Errors
    /// Any is fatal, and means the same as a report that is not sound: rebuild.
    pub fn verify(&self) -> Result<HashReport, StoreError> {
        let shared = self.current.get();
        shared.check_poison()?;
        let result = boundary::contain(|| {
            let snapshot = Snapshot::take(&shared)?;
            Ok(HashReport {
                progress: snapshot.progress,
                kept: kv::content_hash(&snapshot)?,
                scanned: kv::scan(&snapshot)?,
            })
        });
        shared.poison_on_error(result)
    }
}

/// What a verification found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashReport {
    /// Of which state.
    pub progress: Progress,
    /// The hash that every change has kept.
    pub kept: ContentHash,
    /// The hash of what is really there.
    pub scanned: ContentHash,
}

impl HashReport {
    /// The state is what was written. If not, it must be rebuilt and never served.
    pub fn is_sound(&self) -> bool {
        self.kept == self.scanned
    }
}

/// A consistent look at the state, with how far it is read from inside of it.
pub struct Snapshot {
    look: Look,
    shared: Arc<Shared>,
    progress: Progress,
}

impl Snapshot {
    fn take(shared: &Arc<Shared>) -> Result<Self, StoreError> {
        Self::with(shared, shared.look())
    }

    /// A look at what the database itself has. Whoever writes to it beside the thread that applies
    /// goes by this: what is ahead may be lost in a crash, and what was done by its word would not be.
    fn settled(shared: &Arc<Shared>) -> Result<Self, StoreError> {
        let look = Look {
            database: shared.database.snapshot(),
            ahead: None,
        };
        Self::with(shared, look)
    }

    fn with(shared: &Arc<Shared>, look: Look) -> Result<Self, StoreError> {
        let mut this = Self {
            look,
            shared: Arc::clone(shared),
            progress: Progress::default(),
        };
        this.progress = kv::progress(&this)?;
        Ok(this)
    }

    /// The last entry this look contains.
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

    fn mark(&self) -> Result<marks::CleanMark, StoreError> {
        Ok(marks::CleanMark {
            applied: self.progress.applied,
            hash: kv::content_hash(self)?,
        })
    }
}

impl View for Snapshot {
    type Error = StoreError;

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let result = self.look.get(&self.shared, space, key);
        self.shared.poison_on_error(result)
    }

    fn range(
        &self,
        space: Space,
        span: &Span,
    ) -> impl Iterator<Item = Result<Pair, StoreError>> + use<'_> {
        let keyspace = &self.shared.spaces[space.slot()];
        let below = self
            .look
            .database
            .range::<&[u8], _>(keyspace, span.bounds())
            .map(|guard| match guard.into_inner() {
                Ok((key, record)) => Ok((key.into(), record.into())),
                Err(error) => {
                    let error = StoreError::from_fjall("reading the state", error);
                    self.shared.poison_on_error(Err(error))
                }
            });
        let ahead = self.look.ahead.as_deref().unwrap_or(&NOTHING_AHEAD);
        kv::overlaid(below, &ahead[space.slot()], span)
    }
}

/// What a batch is applied to: the state as it is, its current records from the cache where they
/// are. Finding one there costs a fraction of what fjall asks for it.
struct Base {
    snapshot: Snapshot,
}

impl View for Base {
    type Error = StoreError;

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        if space == Space::Current {
            match self.snapshot.shared.front.known(key) {
                Some(Cached::Present(record)) => {
                    return Ok(Some(kv::record_of(&record.to_key_value())));
                }
                Some(Cached::Absent { .. }) => return Ok(None),
                None => {}
            }
        }
        self.snapshot.get(space, key)
    }

    fn range(
        &self,
        space: Space,
        span: &Span,
    ) -> impl Iterator<Item = Result<Pair, StoreError>> + use<'_> {
        self.snapshot.range(space, span)
    }
}

/// The changes of one batch, by keyspace.
type Ahead = [Changes; Space::ALL.len()];

static NOTHING_AHEAD: Ahead = [const { Changes::new() }; Space::ALL.len()];

/// The database at one moment, and what was published ahead of it by then.
struct Look {
    database: fjall::Snapshot,
    ahead: Option<Arc<Ahead>>,
}

impl Look {
    fn get(&self, shared: &Shared, space: Space, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        if let Some(change) = self
            .ahead
            .as_deref()
            .and_then(|ahead| ahead[space.slot()].get(key))
        {
            return Ok(change.clone());
        }
        self.database
            .get(&shared.spaces[space.slot()], key)
            .map(|record| record.map(Bytes::from))
            .map_err(|error| StoreError::from_fjall("reading the state", error))
    }
}

/// What the thread that applies and those that read have in common.
struct Shared {
    /// In the order of [`Space::ALL`].
    spaces: Vec<Keyspace>,
    database: Database,
    /// What is published and not yet in the database. It is set before the front shows it, and
    /// taken away when the database has it.
    ahead: Mutex<Option<Arc<Ahead>>>,
    front: Front,
    keys: KeyCount,
    /// The error that ended its use: the first one. Others follow from it.
    failure: OnceLock<Failure>,
    /// When fjall has let go of its files.
    farewell: Farewell,
    /// Released last.
    _lock: File,
}

/// Notes that the stop was a clean one, if it was, once the database is closed and its files do not
/// change any more.
struct Farewell {
    path: PathBuf,
    mark: Mutex<Option<marks::CleanMark>>,
}

impl Farewell {
    fn mark(&self) -> MutexGuard<'_, Option<marks::CleanMark>> {
        // It is set or taken away in one step.
        self.mark.lock()
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let mark = self.mark().take();
        if let Some(mark) = mark
            && let Err(error) = marks::write_clean_mark(&self.path, &mark)
        {
            // Nothing is lost: the next start reads everything.
            tracing::warn!(%error, "the clean stop of the state could not be noted");
        }
    }
}

impl Shared {
    /// A look at the state as it is. Both halves are taken under one lock, so that they belong
    /// together: the database may have what is ahead of it already, and nothing later.
    fn look(&self) -> Look {
        let ahead = self.ahead();
        Look {
            database: self.database.snapshot(),
            ahead: ahead.clone(),
        }
    }

    fn ahead(&self) -> MutexGuard<'_, Option<Arc<Ahead>>> {
        // It is set or taken away in one step.
        self.ahead.lock()
    }

    /// Gives the database `changes`, all or none. `what` is being done, for the error.
    fn commit<'a>(
        &self,
        what: &'static str,
        changes: impl IntoIterator<Item = (Space, &'a Changes)>,
    ) -> Result<(), StoreError> {
        let mut batch = self.database.batch();
        for (space, changes) in changes {
            let keyspace = &self.spaces[space.slot()];
            for (key, change) in changes {
                match change {
                    Some(record) => batch.insert(keyspace, key.clone(), record.clone()),
                    None => batch.remove(keyspace, key.clone()),
                }
            }
        }
        let committed = batch.commit();
        committed.map_err(|error| StoreError::from_fjall(what, error))
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.database
            .persist(PersistMode::SyncAll)
            .map_err(|error| StoreError::from_fjall("syncing the state", error))
    }

    fn check_poison(&self) -> Result<(), StoreError> {
        self.failure
            .get()
            .map_or(Ok(()), |failure| Err(StoreError::Poisoned(failure.clone())))
    }

    fn poison_on_error<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &result {
            self.failure.get_or_init(|| Failure::of(error));
            *self.farewell.mark() = None;
        }
        result
    }
}
