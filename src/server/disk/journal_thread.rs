//! The thread that syncs the state's journal ahead of the database: `disk/store/journal.rs` says why.
//!
//! While there is something to sync it looks often; else less and less, so that a node that does
//! nothing costs nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::server::disk::store::{Journal, StoreError};
use crate::server::threads::queue::BatchQueue;

/// Between two syncs: what has gathered until then is synced in a few milliseconds.
const INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Between two looks while nothing is written.
const INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The thread is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StopJournal;

/// What the thread starts from.
pub(crate) struct JournalThread {
    pub(crate) journal: Journal,
    pub(crate) work: Arc<BatchQueue<StopJournal>>,
}

impl JournalThread {
    /// Syncs until it is stopped.
    pub(crate) fn run(&mut self) -> Result<(), StoreError> {
        let mut told = Vec::new();
        let mut interval = INTERVAL_MAX;
        loop {
            self.work.take(&mut told, interval);
            if !told.is_empty() {
                return Ok(());
            }
            interval = match self.journal.write_back()? {
                0 => (interval * 2).min(INTERVAL_MAX),
                _ => INTERVAL_MIN,
            };
        }
    }
}
