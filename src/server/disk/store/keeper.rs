//! Makes the state durable beside the thread that applies, so that the log may begin later.
//!
//! fjall syncs its journal under the lock that every batch takes; so the file is synced first through
//! a handle of its own (`journal.rs`), and little is left for the moment in which batches wait.

use super::error::StoreError;
use super::replace::Current;
use super::{Journal, Snapshot, StateStore};
use crate::types::LogId;

/// See the module.
pub struct Keeper {
    current: Current,
    journal: Journal,
}

impl StateStore {
    /// The one that makes it durable beside the thread that applies.
    pub fn keeper(&self) -> Keeper {
        Keeper {
            current: self.current.clone(),
            journal: self.journal(),
        }
    }
}

impl Keeper {
    /// Makes the state durable, and says up to which entry it is: the log may be cut there.
    ///
    /// # Errors
    /// Any is fatal: after a failed sync nobody knows what is on the disk.
    pub fn persist(&mut self) -> Result<LogId, StoreError> {
        let shared = self.current.get();
        shared.check_poison()?;
        self.journal.sync_all_new()?;
        // What is published ahead of the database is not in its journal.
        let result = Snapshot::settled(&shared).and_then(|snapshot| {
            shared.sync()?;
            Ok(snapshot.progress.applied)
        });
        shared.poison_on_error(result)
    }
}
