//! How many keys there are, and what was done to them, without looking for it.
//!
//! The state carries no count: all replicas would have to agree on one more value, and no decision
//! depends on it. So a node counts what it finds when it opens a state, once, beside its work
//! ([`KeyCounter`](super::KeyCounter)), and from then on goes by the events that each batch leaves: a put that replaced
//! nothing is one key more, a delete one less. Both begin at the same state, so their sum is exact.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::kv::KeyChanges;

/// Keys of one state.
#[derive(Debug, Default)]
pub(super) struct KeyCount {
    /// What there was when it was opened; nothing until that is counted.
    pub(super) found: OnceLock<i64>,
    /// Keys added since, less those removed.
    pub(super) since: AtomicI64,
}

impl KeyCount {
    /// A batch was applied that added this many keys; negative if it removed more.
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
