//! Counts consecutive attempts to open a state that ended the process.
//!
//! Some damage aborts the process before it can be reported: a corrupt length in a table list requests
//! more memory than there is, at every start. So before a state is opened, a counter file is written beside
//! it, and removed when the attempt returns, with a state or an error. A counter found at the start is the
//! number of attempts in a row that did not return
//! ([`crate::node::recovery::LOST_OPENINGS_PROOF`]).

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::server::disk::marker::Marker;

/// An attempt to open a state that has not returned yet.
#[must_use]
pub(crate) struct Attempt {
    mark: PathBuf,
}

impl Attempt {
    /// The number of attempts in a row that did not return.
    pub(crate) fn lost(data_dir: &Path) -> io::Result<u32> {
        let count = Marker::StateOpening.read(data_dir)?;
        // An unreadable file was left by an attempt that did not return either.
        Ok(count.map_or(0, |count| count.trim().parse().unwrap_or(1)))
    }

    /// Begins an attempt after `lost` that did not return.
    pub(crate) fn begin(data_dir: &Path, lost: u32) -> io::Result<Self> {
        let mark = Marker::StateOpening.path(data_dir);
        // Not synced: the page cache survives the end of a process, and a crash of the machine proves
        // nothing about the state.
        fs::write(&mark, format!("{}\n", lost.saturating_add(1)))?;
        Ok(Self { mark })
    }

    /// Records that the attempt returned.
    pub(crate) fn end(self) -> io::Result<()> {
        fs::remove_file(&self.mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_never_came_back_are_counted_until_one_does() {
        let folder = tempfile::tempdir().unwrap();
        let lost = || Attempt::lost(folder.path()).unwrap();
        let begin = || Attempt::begin(folder.path(), lost()).unwrap();
        for before in 0..3 {
            assert_eq!(lost(), before);
            drop(begin());
        }
        begin().end().unwrap();
        assert_eq!(lost(), 0);
        fs::write(folder.path().join("state.opening"), "").unwrap();
        assert_eq!(lost(), 1);
    }
}
