//! Counts the keys of a state once after it is opened.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::kv::{Space, Span, View};

use super::{Snapshot, StateStore, StoreError};

/// A snapshot whose keys are to be counted. While it lives, its records are not removed.
pub struct KeyCounter {
    snapshot: Snapshot,
    /// The sum of changes before the snapshot.
    since: i64,
}

/// Number of keys counted between pauses, which leave the disk to others.
const STEP_KEYS: usize = 4096;
/// The duration of a pause.
const REST: Duration = Duration::from_millis(1);

impl StateStore {
    /// A snapshot of the present state, to be counted on another thread.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn uncounted(&mut self) -> Result<KeyCounter, StoreError> {
        // Nothing is applied between the two reads, because that needs `&mut self`.
        let tables = self.tables();
        let since = tables.keys.since.load(Ordering::Relaxed);
        let snapshot = tables.poison_on_error(self.writer.front().snapshot())?;
        Ok(KeyCounter { snapshot, since })
    }
}

impl KeyCounter {
    /// Counts all keys, which takes about a second per million, and stops early if `is_over` returns that
    /// the number is no longer needed. Readers see the number once it is known.
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
        // A second count would set the same number.
        let _ = self.snapshot.front().database().keys.found.set(found);
        Ok(())
    }
}
