//! Makes the state durable beside the thread that applies, so that the log may begin later.
//!
//! fjall syncs its journal under the lock that every batch takes; so the file is synced first through
//! a handle of its own (`journal.rs`), and little is left for the moment in which batches wait.

use super::error::StoreError;
use super::reader::Current;
use super::{Journal, StateStore};
use crate::front::Durable;

/// See the module.
pub struct Keeper {
    current: Current,
    journal: Journal,
}

impl StateStore {
    /// Makes the state durable beside the thread that applies.
    pub fn keeper(&self) -> Keeper {
        Keeper {
            current: self.current.clone(),
            journal: self.journal(),
        }
    }
}

impl Keeper {
    /// Makes the state durable, as far as the database has it.
    ///
    /// # Errors
    /// Any is fatal: after a failed sync it is unknown what is on the disk.
    pub fn persist(&mut self) -> Result<Durable, StoreError> {
        let front = self.current.get();
        front.database().check_poison()?;
        self.journal.sync_all_new()?;
        let result = front.persist();
        front.database().poison_on_error(result)
    }
}
