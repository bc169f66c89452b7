//! Read access to the state from any number of threads: the current front, and the access rules.
//!
//! Rules are published before the state that contains them, so a reader that loads the state first and the
//! rules second has rules that are at least as new. Newer rules are already in force. While access control
//! is disabled, the check is one relaxed load; it is ordered after the state's publication, with which the
//! load of the state has synchronised.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use bytes::Bytes;

use crate::front;
use crate::front::{Front, Handle, Point};
use crate::kv;
use crate::kv::access::Policy;
use crate::kv::{ContentHash, Progress, Space};
use crate::types::LogIndex;

use super::boundary;
use super::counts::Operations;
use super::error::StoreError;
use super::tables::Tables;

/// A consistent view of the state.
pub type Snapshot = front::Snapshot<Tables>;

/// Reads the state. Cheap to clone. Each call reads one state, even if it is replaced meanwhile, and later
/// calls never read an older one.
#[derive(Clone)]
pub struct StateReader {
    pub(super) current: Current,
}

impl StateReader {
    /// The last index applied. Any read that begins later contains it.
    pub fn applied(&self) -> LogIndex {
        self.current.load().applied()
    }

    /// Gone once the database of this state is closed, and can be opened again.
    pub(crate) fn lock_held(&self) -> Weak<()> {
        self.current.get().database().lock_held()
    }

    /// The last index of which any look may have found something (P21).
    pub fn shown(&self) -> LogIndex {
        self.current.load().shown()
    }

    /// The store-wide revision.
    pub fn revision(&self) -> i64 {
        self.current.load().revision()
    }

    /// The oldest revision that can be read; 0 while nothing was ever compacted.
    pub fn compact_revision(&self) -> i64 {
        self.current.load().compact_revision()
    }

    /// How many alarms operators have raised.
    pub fn raised_alarms(&self) -> u64 {
        self.current.load().raised_alarms()
    }

    /// Reads one key: from the cache if it is there, else from disk. A key found in the cache
    /// shares its memory with it.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn get(&self, key: &[u8]) -> Result<Point, StoreError> {
        let front = self.current.load();
        front.database().check_poison()?;
        let result = front.get(key);
        front.database().poison_on_error(result)
    }

    /// The access rules of this state and its successors.
    pub fn gate(&self) -> &Arc<Gate> {
        self.current.gate()
    }

    /// The number of keys now; `None` until the keys found at the start are counted.
    pub fn keys(&self) -> Option<u64> {
        self.current.load().database().keys.get()
    }

    /// Operations on keys since the process started.
    pub fn operations(&self) -> &Operations {
        self.current.operations()
    }

    /// A consistent view of everything, for ranges. Later writes do not change it; while it is held,
    /// records replaced since are not removed.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let front = self.current.load();
        front.database().check_poison()?;
        let result = front.snapshot();
        front.database().poison_on_error(result)
    }

    /// Bytes of memory that are applied and not yet in the database.
    pub fn ahead_bytes(&self) -> u64 {
        self.current.load().ahead_bytes()
    }

    /// Bytes of state on disk.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn storage_bytes(&self) -> Result<u64, StoreError> {
        let front = self.current.load();
        let tables = front.database();
        tables.check_poison()?;
        let bytes = tables.database.disk_space();
        let result = bytes.map_err(|error| StoreError::from_fjall("measuring the state", error));
        tables.poison_on_error(result)
    }

    /// The size of the tables on disk, in bytes: what a merge of all of them would write.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn table_bytes(&self) -> Result<u64, StoreError> {
        let front = self.current.load();
        let tables = front.database();
        tables.check_poison()?;
        Ok(tables.table_bytes())
    }

    /// Has the engine remove tables that were merged and that no reader uses any more. It looks for them
    /// when it flushes a memtable, so it is given one with as good as nothing in it.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn release_merged(&self) -> Result<(), StoreError> {
        let front = self.current.get();
        let tables = front.database();
        tables.check_poison()?;
        let releasing = |error| StoreError::from_fjall("removing merged tables", error);
        let local = tables.space(Space::Local);
        let mut batch = tables.database.batch();
        // There is no such record, and none comes of this.
        batch.remove(local, Bytes::from_static(b"released"));
        let released = batch.commit().and_then(|()| local.rotate_memtable());
        tables.poison_on_error(released.map(|_| ()).map_err(releasing))
    }

    /// Reads everything and compares it with the content hash. Takes time proportional to the size of
    /// the state.
    ///
    /// # Errors
    /// Every error is fatal, and requires a rebuild, like a report that is not sound.
    pub fn verify(&self) -> Result<HashReport, StoreError> {
        let front = self.current.get();
        front.database().check_poison()?;
        let result = boundary::contain(|| {
            let snapshot = front.snapshot()?;
            Ok(HashReport {
                progress: snapshot.progress(),
                kept: kv::content_hash(&snapshot)?,
                scanned: kv::scan(&snapshot)?,
            })
        });
        front.database().poison_on_error(result)
    }
}

/// The current state, shared by all handles.
#[derive(Clone)]
pub(super) struct Current {
    handle: Handle<Tables>,
    gate: Arc<Gate>,
    operations: Arc<Operations>,
}

impl Current {
    pub(super) fn new(handle: Handle<Tables>, gate: Gate) -> Self {
        Self {
            handle,
            gate: Arc::new(gate),
            operations: Arc::default(),
        }
    }

    /// The access rules.
    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Operations on keys.
    pub(super) fn operations(&self) -> &Operations {
        &self.operations
    }

    /// For a short access.
    pub(super) fn load(&self) -> impl Deref<Target = Arc<Front<Tables>>> + use<> {
        self.handle.load()
    }

    /// For longer work.
    pub(super) fn get(&self) -> Arc<Front<Tables>> {
        self.handle.get()
    }
}

/// The rules in force, for all readers. One instance serves all successive states of a node.
#[derive(Debug, Default)]
pub struct Gate {
    is_on: AtomicBool,
    policy: ArcSwap<Policy>,
}

impl Gate {
    /// The rules, if access control is enabled. Call it after loading the state to which they apply.
    pub fn rules(&self) -> Option<Arc<Policy>> {
        // Pairs with the store that precedes the publication of the state, as the module explains.
        if !self.is_on.load(Ordering::Relaxed) {
            return None;
        }
        let policy = self.policy.load_full();
        policy.status().enabled.then_some(policy)
    }

    /// The rules, even if access control is disabled.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Publishes these rules. Called before the state that contains them is published.
    pub(super) fn publish(&self, policy: Arc<Policy>) {
        let is_on = policy.status().enabled;
        self.policy.store(policy);
        self.is_on.store(is_on, Ordering::Release);
    }
}

/// The result of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashReport {
    /// The progress of the verified state.
    pub progress: Progress,
    /// The hash maintained by every change.
    pub kept: ContentHash,
    /// The hash of the stored records.
    pub scanned: ContentHash,
}

impl HashReport {
    /// Whether the hashes agree. Otherwise the state must be rebuilt and never served.
    pub fn is_sound(&self) -> bool {
        self.kept == self.scanned
    }
}
