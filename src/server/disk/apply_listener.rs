//! Notifications by the state thread about each applied batch.

use crate::kv::Change;

/// Receives applied changes once they can be read. No method may block.
pub(crate) trait ApplyListener: Send + Sync {
    /// Whether changes are needed; otherwise they are not collected.
    fn wants_changes(&self) -> bool;
    /// The state is at `revision` now. `changes` are those of the last step; none if they were not
    /// collected or are not known.
    fn applied(&self, revision: i64, changes: Option<Vec<Change>>);
    /// The rules of access have changed.
    fn rules_changed(&self);
}
