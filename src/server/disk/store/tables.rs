//! The state's fjall database, with all its keyspaces.

use std::fs::File;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;

use bytes::Bytes;
use fjall::{Keyspace, KeyspaceCreateOptions, PersistMode, Readable};

use crate::api::successor;
use crate::front::Database;
use crate::kv::{Changes, LastChange, Pair, Space, Span};
use crate::server::threads::give_way;
use crate::sync::{Mutex, MutexGuard};

use super::counts::KeyCount;
use super::error::{Failure, StoreError};
use super::event_packs::EventChange;
use super::marks::Directory;
use super::options::StoreOptions;
use super::{boundary, event_packs, marks};

/// The database, shared by the state thread and readers behind the front.
pub struct Tables {
    pub(super) keys: KeyCount,
    /// In the order of [`Space::ALL`].
    pub(super) spaces: Vec<Keyspace>,
    pub(super) database: fjall::Database,
    /// Held by every snapshot that was taken since [`Tables::earlier_snapshots`] was last called.
    recent_snapshots: Mutex<Arc<()>>,
    /// The first error, which poisoned the database. Later errors follow from it.
    failure: OnceLock<Failure>,
    /// When fjall has let go of its files.
    pub(super) farewell: Farewell,
    /// Released when all else is.
    _lock: File,
    /// Dropped after it.
    lock_held: Arc<()>,
}

impl Tables {
    /// Of the database that was opened in `directory`.
    pub(super) fn new(
        directory: Directory,
        (database, spaces): (fjall::Database, Vec<Keyspace>),
    ) -> Self {
        Self {
            keys: KeyCount::default(),
            spaces,
            database,
            recent_snapshots: Mutex::default(),
            failure: OnceLock::new(),
            farewell: Farewell {
                path: directory.path().to_owned(),
                mark: Mutex::default(),
            },
            _lock: directory.into_lock(),
            lock_held: Arc::default(),
        }
    }

    /// Gone once the database is closed and its lock released.
    pub(super) fn lock_held(&self) -> Weak<()> {
        Arc::downgrade(&self.lock_held)
    }

    /// One of its keyspaces.
    pub(super) fn space(&self, space: Space) -> &Keyspace {
        &self.spaces[space.slot()]
    }

    /// The snapshots that were taken before this call, or during it.
    pub(super) fn earlier_snapshots(&self) -> EarlierSnapshots {
        let mut recent = self.recent_snapshots.lock();
        EarlierSnapshots(mem::take(&mut *recent))
    }

    /// The size of the tables on disk, in bytes, without the journals.
    pub(super) fn table_bytes(&self) -> u64 {
        self.spaces.iter().map(Keyspace::disk_space).sum()
    }

    /// Writes `changes` to the database, all or none. `what` describes the operation in errors.
    pub(super) fn commit<'a>(
        &self,
        what: &'static str,
        changes: impl Iterator<Item = LastChange<'a>>,
    ) -> Result<(), StoreError> {
        commit(&self.database, &self.spaces, what, changes)
    }

    pub(super) fn check_poison(&self) -> Result<(), StoreError> {
        self.failure
            .get()
            .map_or(Ok(()), |failure| Err(StoreError::Poisoned(failure.clone())))
    }

    pub(super) fn poison_on_error<T>(
        &self,
        result: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Err(error) = &result {
            self.failure.get_or_init(|| Failure::of(error));
            *self.farewell.mark() = None;
        }
        result
    }
}

/// Writes `changes` to a database with these `spaces`, all or none. For one thread at a time.
pub(super) fn commit<'a>(
    database: &fjall::Database,
    spaces: &[Keyspace],
    what: &'static str,
    changes: impl Iterator<Item = LastChange<'a>>,
) -> Result<(), StoreError> {
    let mut batch = database.batch();
    let mut events = Vec::new();
    for (space, key, record) in changes {
        let keyspace = &spaces[space.slot()];
        match record {
            record if space == Space::Events => events.push((key, record)),
            Some(record) => batch.insert(keyspace, key.clone(), record.clone()),
            None => batch.remove(keyspace, key.clone()),
        }
    }
    let keyspace = &spaces[Space::Events.slot()];
    for (key, pack) in repacked(&database.snapshot(), keyspace, &events)? {
        match pack {
            Some(pack) => batch.insert(keyspace, key, pack),
            None => batch.remove(keyspace, key),
        }
    }
    let committed = batch.commit();
    committed.map_err(|error| StoreError::from_fjall(what, error))
}

/// What becomes of the packs in `keyspace`; see [`event_packs`].
fn repacked(
    at: &fjall::Snapshot,
    keyspace: &Keyspace,
    changes: &[EventChange<'_>],
) -> Result<Changes, StoreError> {
    let (Some((first, _)), Some((last, _))) = (changes.first(), changes.last()) else {
        return Ok(Changes::new());
    };
    let from = pack_of(at, keyspace, first)?;
    let stored = at.range::<&[u8], _>(keyspace, from.as_ref()..=last.as_ref());
    let stored = stored.map(read_pair).collect::<Result<_, _>>();
    Ok(event_packs::repacked(stored.map_err(unread)?, changes)?)
}

/// The key of the last pack that begins at or before `event`; `event` itself if there is none.
fn pack_of(at: &fjall::Snapshot, keyspace: &Keyspace, event: &Bytes) -> Result<Bytes, StoreError> {
    let earlier = event_packs::earliest(event)..=event.as_ref();
    match at.range::<&[u8], _>(keyspace, earlier).next_back() {
        Some(pack) => Ok(pack.key().map_err(unread)?.into()),
        None => Ok(event.clone()),
    }
}

fn read_pair(guard: fjall::Guard) -> fjall::Result<Pair> {
    let (key, record) = guard.into_inner()?;
    Ok((key.into(), record.into()))
}

fn unread(error: fjall::Error) -> StoreError {
    StoreError::from_fjall("reading the state", error)
}

/// A snapshot of all keyspaces.
pub struct TablesSnapshot {
    snapshot: fjall::Snapshot,
    /// Dropped after it.
    _held: Arc<()>,
}

/// Some snapshots; see [`Tables::earlier_snapshots`].
pub(super) struct EarlierSnapshots(Arc<()>);

impl EarlierSnapshots {
    /// Whether none of them is held any more.
    pub(super) fn are_dropped(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some()
    }
}

impl Database for Tables {
    type Error = StoreError;
    type Snapshot = TablesSnapshot;

    fn snapshot(&self) -> TablesSnapshot {
        // Before the snapshot: one that holds the newer mark sees all that was written before the marks changed.
        let held = Arc::clone(&self.recent_snapshots.lock());
        TablesSnapshot {
            snapshot: self.database.snapshot(),
            _held: held,
        }
    }

    fn get(
        &self,
        at: &TablesSnapshot,
        space: Space,
        key: &[u8],
    ) -> Result<Option<Bytes>, StoreError> {
        if space == Space::Events {
            let event = Span::between(Bytes::copy_from_slice(key), successor(key));
            let mut found = self.range(at, space, &event);
            return Ok(found.next().transpose()?.map(|(_, record)| record));
        }
        let read = at.snapshot.get(self.space(space), key);
        let read = read.map(|record| record.map(Bytes::from));
        self.poison_on_error(read.map_err(unread))
    }

    fn range<'a>(
        &'a self,
        at: &'a TablesSnapshot,
        space: Space,
        span: &Span,
    ) -> impl Iterator<Item = Result<Pair, StoreError>> + use<'a> {
        let keyspace = self.space(space);
        let mut stored = span.clone();
        let mut failure = None;
        if space == Space::Events {
            match pack_of(&at.snapshot, keyspace, span.from()) {
                Ok(pack) => stored = Span::new(pack, span.until().cloned()),
                Err(error) => failure = Some(Err(error)),
            }
        }
        let records = at.snapshot.range::<&[u8], _>(keyspace, stored.bounds());
        let records = records.map(|pair| read_pair(pair).map_err(unread));
        let (packs, records) = match space {
            Space::Events => (Some(event_packs::unpacked(records, span.clone())), None),
            _ => (None, Some(records)),
        };
        let records = records.into_iter().flatten();
        let found = records.chain(packs.into_iter().flatten());
        let found = failure.into_iter().chain(found);
        found.map(|pair| self.poison_on_error(pair))
    }

    fn write<'c>(&self, changes: impl Iterator<Item = LastChange<'c>>) -> Result<(), StoreError> {
        self.commit("writing the state", changes)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.database
            .persist(PersistMode::SyncAll)
            .map_err(|error| StoreError::from_fjall("syncing the state", error))
    }
}

/// Marks a clean stop, once the database is closed and its files no longer change.
pub(super) struct Farewell {
    pub(super) path: PathBuf,
    mark: Mutex<Option<marks::CleanMark>>,
}

impl Farewell {
    pub(super) fn mark(&self) -> MutexGuard<'_, Option<marks::CleanMark>> {
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
            // Without the mark the next start verifies everything.
            tracing::warn!(
                %error,
                "cannot record the clean stop of the state; the next start will verify all of it"
            );
        }
    }
}

/// The number of fjall's worker threads. The first leaves merges to the others, so that it can flush
/// memtables meanwhile. A single worker (as on one core of a control group) does both in turn, and writes
/// wait for merges. The first requeues a merge until another worker takes it, so with only one other
/// worker it would spin for as long as that one merges.
fn worker_threads() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    cores.clamp(WORKER_THREADS_MIN, WORKER_THREADS_MAX)
}

pub(super) const WORKER_THREADS_MIN: usize = 3;
const WORKER_THREADS_MAX: usize = 4;

/// `meta` consists of a few records that are overwritten often; a small memtable is flushed early, so that
/// it does not keep old journals from being deleted.
const META_MEMTABLE_BYTES: u64 = 2 << 20;

/// Opens the database in `directory`, or creates an empty one, with all its keyspaces in the order of
/// [`Space::ALL`].
pub(super) fn open_database(
    directory: &Directory,
    options: &StoreOptions,
) -> Result<(fjall::Database, Vec<Keyspace>), StoreError> {
    let (path, options) = (directory.database(), *options);
    boundary::expendable(move || {
        // A thread inherits niceness from its creator, which cannot lower its own again.
        give_way();
        open_on_this_thread(&path, &options)
    })
}

fn open_on_this_thread(
    path: &Path,
    options: &StoreOptions,
) -> Result<(fjall::Database, Vec<Keyspace>), StoreError> {
    let database = fjall::Database::builder(path)
        .cache_size(options.block_cache_bytes)
        .max_journaling_size(options.journal_bytes)
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
