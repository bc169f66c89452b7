//! The state as readers have it, on any number of threads: the front in use, and the rules of access
//! beside it.
//!
//! Rules are published before the state that brought them: a reader that looks at the state first and
//! at the rules afterwards has rules that are no older. They may be newer, and then they hold already.
//! While access is not controlled, finding that out is one relaxed load; that it is not an older one
//! than the state follows from the state's own publication, which the look has synchronised with.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;

use crate::front;
use crate::front::{Front, Handle, Point};
use crate::kv;
use crate::kv::access::Policy;
use crate::kv::{ContentHash, Progress};
use crate::types::LogIndex;

use super::boundary;
use super::counts::Operations;
use super::error::StoreError;
use super::tables::Tables;

/// A consistent look at the state.
pub type Snapshot = front::Snapshot<Tables>;

/// Reads the state. Cheap to clone. Each call looks at one state, even where another one takes its
/// place meanwhile, and later calls at no older one.
#[derive(Clone)]
pub struct StateReader {
    pub(super) current: Current,
}

impl StateReader {
    /// The last index applied. Any read that begins later contains it.
    pub fn applied(&self) -> LogIndex {
        self.current.load().applied()
    }

    /// The store-wide revision.
    pub fn revision(&self) -> i64 {
        self.current.load().revision()
    }

    /// The oldest revision that can be read; 0 while nothing was ever compacted.
    pub fn compact_revision(&self) -> i64 {
        self.current.load().compact_revision()
    }

    /// Reads one key: from the cache if it is there, else from disk. A key found in the cache
    /// shares its memory with it.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn get(&self, key: &[u8]) -> Result<Point, StoreError> {
        let front = self.current.load();
        front.database().check_poison()?;
        let result = front.get(key);
        front.database().poison_on_error(result)
    }

    /// The rules of access of this state, and of those that follow it.
    pub fn gate(&self) -> &Arc<Gate> {
        self.current.gate()
    }

    /// How many keys there are now; `None` until those that were found at the start are counted.
    pub fn keys(&self) -> Option<u64> {
        self.current.load().database().keys.get()
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
        let front = self.current.load();
        front.database().check_poison()?;
        let result = front.snapshot();
        front.database().poison_on_error(result)
    }

    /// Bytes of state on disk.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn storage_bytes(&self) -> Result<u64, StoreError> {
        let front = self.current.load();
        let tables = front.database();
        tables.check_poison()?;
        let bytes = tables.database.disk_space();
        let result = bytes.map_err(|error| StoreError::from_fjall("measuring the state", error));
        tables.poison_on_error(result)
    }

    /// Reads everything and compares it with the content hash. Takes time by the size of the
    /// state.
    ///
    /// # Errors
    /// Any is fatal, and means the same as a report that is not sound: rebuild.
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

/// The state in use, for all handles of it.
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

    /// The rules of access.
    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// What was done to keys.
    pub(super) fn operations(&self) -> &Operations {
        &self.operations
    }

    /// For a short look.
    pub(super) fn load(&self) -> impl Deref<Target = Arc<Front<Tables>>> + use<> {
        self.handle.load()
    }

    /// For longer work.
    pub(super) fn get(&self) -> Arc<Front<Tables>> {
        self.handle.get()
    }
}

/// The rules in force, for all who read. One for all states of a node, as they follow each other.
#[derive(Debug, Default)]
pub struct Gate {
    is_on: AtomicBool,
    policy: ArcSwap<Policy>,
}

impl Gate {
    /// The rules, if access is controlled. To be asked after the look at the state that they are to be
    /// applied to.
    pub fn rules(&self) -> Option<Arc<Policy>> {
        // Pairs with the store before the state was published, as the module says.
        if !self.is_on.load(Ordering::Relaxed) {
            return None;
        }
        let policy = self.policy.load_full();
        policy.status().enabled.then_some(policy)
    }

    /// The rules, whether they are enforced or not.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Puts these in force. Called before the state is published that they are part of.
    pub(super) fn publish(&self, policy: Arc<Policy>) {
        let is_on = policy.status().enabled;
        self.policy.store(policy);
        self.is_on.store(is_on, Ordering::Release);
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
