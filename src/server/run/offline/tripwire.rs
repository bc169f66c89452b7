//! The mark of a leader lease that was held while another node led (P37), and its end.

use std::path::PathBuf;

use super::{OfflineError, StoppedNode};
use crate::server::disk::marker::Marker;

impl StoppedNode {
    /// The file that records a failed assumption about clocks, if it exists.
    pub fn tripwire(&self) -> Option<PathBuf> {
        Some(Marker::LeaseTripped.path(self.data_dir.path())).filter(|mark| mark.exists())
    }

    /// Removes the mark, so that the node serves leased reads again after its next start.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn clear_tripwire(&self) -> Result<(), OfflineError> {
        let folder = self.data_dir.path();
        // A mark that reappears after a power failure only costs speed, but its removal was reported.
        let cleared = Marker::LeaseTripped.remove(folder);
        cleared.map_err(|error| OfflineError::Io {
            path: Marker::LeaseTripped.path(folder),
            error,
        })
    }
}
