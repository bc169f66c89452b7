//! The mark of a leader lease that was held while another node led (P37), and its end.

use std::path::PathBuf;

use super::{OfflineError, StoppedNode};
use crate::server::disk::marker::Marker;

impl StoppedNode {
    /// Where this node remembers that an assumption about clocks failed, if it does.
    pub fn tripwire(&self) -> Option<PathBuf> {
        Some(Marker::LeaseTripped.path(self.data_dir.path())).filter(|mark| mark.exists())
    }

    /// Has the node forget that, and serve reads under a lease again once it is started.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn clear_tripwire(&self) -> Result<(), OfflineError> {
        let folder = self.data_dir.path();
        // What comes back after a power cut only costs speed; but it was said to be gone.
        let cleared = Marker::LeaseTripped.remove(folder);
        cleared.map_err(|error| OfflineError::Io {
            path: Marker::LeaseTripped.path(folder),
            error,
        })
    }
}
