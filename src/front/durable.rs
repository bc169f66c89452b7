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

    /// The truncation of the log that is allowed, if it is to be truncated through `wanted` (D1).
    pub fn truncation(self, wanted: LogIndex) -> Truncation {
        Truncation {
            through: wanted.min(self.through.index),
        }
    }
}

/// Permission to truncate the log: only [`Durable::truncation`] gives it, so no entry leaves the log
/// that the state on the disk does not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    through: LogIndex,
}

impl Truncation {
    /// The last entry that may leave the log.
    pub fn through(self) -> LogIndex {
        self.through
    }
}

impl<D: Database> Front<D> {
    /// Makes durable what the database has. Goes on beside the thread that applies: what is ahead of
    /// the database does not count.
    ///
    /// # Errors
    /// Any is fatal: after a failed sync the content of the disk is unknown.
    pub fn persist(self: &Arc<Self>) -> Result<Durable, D::Error> {
        // Looked at before the sync, which need not cover what is written meanwhile.
        let through = match planted!(CutByPublished) {
            true => self.newest()?.applied(),
            false => self.settled()?.applied(),
        };
        if !planted!(CutBeforeDurable) {
            self.database().sync()?;
        }
        Ok(Durable { through })
    }
}
