//! The read lease of one replica, as it holds it.

use std::sync::Arc;

use crate::raft::RoundId;
use crate::raft::digest::Digest;
use crate::raft::published::LeaseCell;

/// The read lease of this replica, and which grants it does not accept.
#[derive(Clone, Debug)]
pub(in crate::raft) struct Holder {
    /// Whether this replica asks for one.
    pub(super) asks: bool,
    /// What readers share while it holds one: one object for each tenure, whose floor never changes.
    pub(super) cell: Option<Arc<LeaseCell>>,
    /// No grant is accepted for this name or one before: one was accepted for it, or given back since (RL7).
    pub(super) accepted: RoundId,
}

impl Holder {
    /// That of a replica that starts.
    pub(in crate::raft) fn new(asks: bool) -> Self {
        Self {
            asks,
            cell: None,
            accepted: RoundId(0),
        }
    }

    /// Gives this replica, which is a copy of another, a cell of its own.
    pub(in crate::raft) fn detach(&mut self) -> Option<&Arc<LeaseCell>> {
        if let Some(cell) = &mut self.cell {
            *cell = Arc::new(cell.fork());
        }
        self.cell.as_ref()
    }

    /// Adds every field that future behaviour depends on.
    pub(in crate::raft) fn digest(&self, digest: &mut Digest) {
        let Self {
            asks,
            cell,
            accepted,
        } = self;
        digest.value(&(asks, accepted, cell.is_some()));
        if let Some(cell) = cell {
            digest.value(&(cell.term, cell.floor, cell.longest()));
            digest.deadline(cell.until());
        }
    }
}
