//! What may leave the log, because the state on the disk has it.

use std::sync::Arc;

use crate::types::{LogId, LogIndex};

use super::database::Database;
use super::state::Front;

/// The state on the disk has everything up to an entry, whatever happens: only syncing it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable {
    through: LogId,
}

impl Durable {
    /// The last entry that it contains.
    pub fn through(self) -> LogId {
        self.through
    }

    /// Up to where the log may be cut, if it is meant to be cut up to `wanted` (D1).
    pub fn may_cut(self, wanted: LogIndex) -> LogIndex {
        wanted.min(self.through.index)
    }
}

impl<D: Database> Front<D> {
    /// Makes durable what the database has. Goes on beside the thread that applies: what is shown ahead
    /// of the database does not count.
    ///
    /// # Errors
    /// Any is fatal: after a failed sync nobody knows what is on the disk.
    pub fn persist(self: &Arc<Self>) -> Result<Durable, D::Error> {
        // Looked at before the sync, which need not cover what is written meanwhile.
        let through = self.settled()?.applied();
        if !planted!(CutBeforeDurable) {
            self.database().sync()?;
        }
        Ok(Durable { through })
    }
}
