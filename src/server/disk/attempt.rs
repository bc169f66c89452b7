//! Counts the attempts to open a state from which no process came back.
//!
//! Some damage ends the process before it can be reported: a length in a table list that asks for
//! more memory than there is aborts, and so would every start after it. So before a state is opened
//! a mark is left beside it, which counts, and which is taken away when the opening came back, with
//! a state or with an error. A count that is found says how many openings in a row never came back
//! ([`crate::node::recovery::LOST_OPENINGS_PROOF`]).

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::server::disk::marker::Marker;

/// An attempt to open a state, begun and not back yet.
#[must_use]
pub(crate) struct Attempt {
    mark: PathBuf,
}

impl Attempt {
    /// How many in a row never came back.
    pub(crate) fn lost(data_dir: &Path) -> io::Result<u32> {
        let count = Marker::StateOpening.read(data_dir)?;
        // A mark that does not read was left by a process that got no further either.
        Ok(count.map_or(0, |count| count.trim().parse().unwrap_or(1)))
    }

    /// Begins one, after `lost` that never came back.
    pub(crate) fn begin(data_dir: &Path, lost: u32) -> io::Result<Self> {
        let mark = Marker::StateOpening.path(data_dir);
        // Not synced: what ends a process does not empty the page cache, and a machine that stops
        // is no proof of anything.
        fs::write(&mark, format!("{}\n", lost.saturating_add(1)))?;
        Ok(Self { mark })
    }

    /// It came back.
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
