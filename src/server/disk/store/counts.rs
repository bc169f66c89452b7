//! How many keys there are, and what was done to them, without looking for it.
//!
//! The state carries no count: it would be one more thing that all replicas must agree on, for a figure
//! that nobody decides by. So a node counts what it finds when it opens a state, once, beside its work
//! ([`KeyCounter`]), and from then on goes by the events that each batch leaves: a put that replaced
//! nothing is one key more, a delete one less. Both begin at the same state, so their sum is exact.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::kv::{KeyChanges, Space, Span, View};

use super::{Snapshot, StateStore, StoreError};

/// Keys of one state.
#[derive(Debug, Default)]
pub(super) struct KeyCount {
    /// What there was when it was opened; nothing until that is counted.
    found: OnceLock<i64>,
    /// So many more have come since than have gone.
    since: AtomicI64,
}

impl KeyCount {
    /// A batch was applied that left so many more keys; negative if fewer.
    pub(super) fn changed(&self, more: i64) {
        self.since.fetch_add(more, Ordering::Relaxed);
    }

    /// How many there are.
    pub(super) fn get(&self) -> Option<u64> {
        let found = *self.found.get()?;
        let keys = found + self.since.load(Ordering::Relaxed);
        Some(u64::try_from(keys).unwrap_or(0))
    }
}

/// What was done to keys since the process began, whichever state was in use.
#[derive(Debug, Default)]
pub struct Operations {
    puts: AtomicU64,
    deletes: AtomicU64,
}

impl Operations {
    /// Keys written.
    pub fn puts(&self) -> u64 {
        self.puts.load(Ordering::Relaxed)
    }

    /// Keys deleted.
    pub fn deletes(&self) -> u64 {
        self.deletes.load(Ordering::Relaxed)
    }

    pub(super) fn done(&self, changes: KeyChanges) {
        self.puts.fetch_add(changes.puts, Ordering::Relaxed);
        self.deletes.fetch_add(changes.deletes, Ordering::Relaxed);
    }
}

/// A state whose keys are to be counted. While it lives, nothing that it shows is cleaned up.
pub struct KeyCounter {
    snapshot: Snapshot,
    /// What had changed before it.
    since: i64,
}

/// Keys that are counted before others may have their turn at the disk.
const STEP_KEYS: usize = 4096;
/// How long they may.
const REST: Duration = Duration::from_millis(1);

impl StateStore {
    /// The present state, to be counted by another thread.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn uncounted(&mut self) -> Result<KeyCounter, StoreError> {
        // Nothing is applied between the two: whoever could holds this store.
        let tables = self.tables();
        let since = tables.keys.since.load(Ordering::Relaxed);
        let snapshot = tables.poison_on_error(self.writer.front().snapshot())?;
        Ok(KeyCounter { snapshot, since })
    }
}

impl KeyCounter {
    /// Counts all keys, which takes a second or so for each million, unless `is_over` says that nobody
    /// wants to know any more. Readers are told how many there are from then on.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn count(self, is_over: impl Fn() -> bool) -> Result<(), StoreError> {
        let mut keys = 0_usize;
        let all = Span::all();
        for pair in self.snapshot.range(Space::Current, &all) {
            pair?;
            keys += 1;
            if keys.is_multiple_of(STEP_KEYS) {
                if is_over() {
                    return Ok(());
                }
                std::thread::sleep(REST);
            }
        }
        let found = i64::try_from(keys).unwrap_or(i64::MAX) - self.since;
        // Counted twice, it comes to the same.
        let _ = self.snapshot.front().database().keys.found.set(found);
        Ok(())
    }
}
