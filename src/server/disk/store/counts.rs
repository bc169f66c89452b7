//! The number of keys, and of operations on keys, kept without scanning.
//!
//! The replicated state contains no count: replicas would have to agree on one more value on which no
//! decision depends. So a node counts the keys once in the background after it opens a state
//! ([`KeyCounter`](super::KeyCounter)), and then adjusts the count by the events of each batch: a put of a new key
//! adds one, a delete subtracts one. Both start from the same state, so their sum is exact.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::kv::KeyChanges;

/// The number of keys of one state.
#[derive(Debug, Default)]
pub(super) struct KeyCount {
    /// The number of keys when the state was opened; unset until they are counted.
    pub(super) found: OnceLock<i64>,
    /// Keys added since, less those removed.
    pub(super) since: AtomicI64,
}

impl KeyCount {
    /// Adds the change of one applied batch; negative if it removed more keys than it added.
    pub(super) fn changed(&self, more: i64) {
        self.since.fetch_add(more, Ordering::Relaxed);
    }

    /// The number of keys now.
    pub(super) fn get(&self) -> Option<u64> {
        let found = *self.found.get()?;
        let keys = found + self.since.load(Ordering::Relaxed);
        Some(u64::try_from(keys).unwrap_or(0))
    }
}

/// Operations on keys since the process started, across replaced states.
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
