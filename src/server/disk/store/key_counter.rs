//! Counts the keys of a state once, after it was opened.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::kv::{Space, Span, View};

use super::{Snapshot, StateStore, StoreError};

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
    /// Every error is fatal.
    pub fn uncounted(&mut self) -> Result<KeyCounter, StoreError> {
        // Nothing is applied between the two, because that needs this store mutably.
        let tables = self.tables();
        let since = tables.keys.since.load(Ordering::Relaxed);
        let snapshot = tables.poison_on_error(self.writer.front().snapshot())?;
        Ok(KeyCounter { snapshot, since })
    }
}

impl KeyCounter {
    /// Counts all keys, which takes a second or so for each million, unless `is_over` says that the
    /// number is not needed any more. Readers see the number once it is known.
    ///
    /// # Errors
    /// Every error is fatal.
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
