//! Makes the state durable, concurrently with the state thread, so that the log can be truncated.
//!
//! fjall syncs its journal under the lock that every batch takes. So the file is first synced through a
//! separate handle (`journal.rs`), which keeps the sync under the lock short.

use super::error::StoreError;
use super::reader::Current;
use super::{Journal, StateStore};
use crate::front::Durable;

/// Makes the state durable; see the module.
pub struct Keeper {
    current: Current,
    journal: Journal,
}

impl StateStore {
    /// A keeper, for use beside the state thread.
    pub fn keeper(&self) -> Keeper {
        Keeper {
            current: self.current.clone(),
            journal: self.journal(),
        }
    }
}

impl Keeper {
    /// Makes everything durable that was handed over to the database. What is still ahead of it is not waited
    /// for: the log keeps that for as long.
    ///
    /// # Errors
    /// Every error is fatal: after a failed sync it is unknown what is on the disk.
    pub fn persist(&mut self) -> Result<Durable, StoreError> {
        let front = self.current.get();
        front.database().check_poison()?;
        self.journal.sync_all_new()?;
        let result = front.persist();
        front.database().poison_on_error(result)
    }
}
