//! Counts consecutive attempts to open a state that ended the process.
//!
//! Before a state is opened, a counter file is written beside it, and removed when the attempt returns,
//! with a state or an error. A counter found at the start is the number of attempts in a row that did not
//! return. It proves nothing about the state: a large one takes time to open, and meanwhile a probe, a
//! memory limit or an operator may end the process, at every start and on every member. So the state is
//! opened again, however often that happened, and the operator is told how often ([`advice`]).

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

/// What an operator is told after `lost` attempts that did not return, to open the state in `state`.
pub(crate) fn advice(lost: u32, state: &Path) -> Option<String> {
    (lost > 0).then(|| {
        format!(
            "this process ended while it opened its state, {lost} times in a row; that is no sign of \
             damage, so the state is opened again: give it the time and the memory that it needs (a \
             startup probe, a memory limit); to have it rebuilt from the log or from a peer instead, \
             stop the node and move {} away",
            state.display()
        )
    })
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
        assert_eq!(advice(0, folder.path()), None);
        assert!(
            advice(3, folder.path())
                .unwrap()
                .contains("3 times in a row")
        );
    }
}
