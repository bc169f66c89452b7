//! The mark of a leader lease that was held while another node led (P37), and its end.

use std::path::PathBuf;
use std::{fs, io};

use super::{OfflineError, StoppedNode};
use crate::server::run::start::tripwire_mark;

impl StoppedNode {
    /// Where this node remembers that an assumption about clocks failed, if it does.
    pub fn tripwire(&self) -> Option<PathBuf> {
        Some(tripwire_mark(self.data_dir.path())).filter(|mark| mark.exists())
    }

    /// Has the node forget that, and serve reads under a lease again once it is started.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn clear_tripwire(&self) -> Result<(), OfflineError> {
        let path = tripwire_mark(self.data_dir.path());
        let cleared = match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // What comes back after a power cut only costs speed; but it was said to be gone.
            removed => removed.and_then(|()| fs::File::open(self.data_dir.path())?.sync_all()),
        };
        cleared.map_err(|error| OfflineError::Io { path, error })
    }
}
