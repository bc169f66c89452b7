//! What the state thread reports of each batch that it has applied.

use crate::kv::Change;

/// Learns what was applied, once it can be read. None of these may block.
pub(crate) trait ApplyListener: Send + Sync {
    /// Whether anything is done with changes, so that they are worth collecting.
    fn wants_changes(&self) -> bool;
    /// The state is at `revision` now. `changes` are those of the last step; none if they were not
    /// collected or are not known.
    fn applied(&self, revision: i64, changes: Option<Vec<Change>>);
    /// The rules of access have changed.
    fn rules_changed(&self);
}
