//! Remembers attempts to open a state that never came back.
//!
//! Some damage ends the process before anybody can report it: a length in a table list that asks for
//! more memory than there is aborts, and so would every start after it. So before a state is opened
//! a mark is left beside it, which counts, and which is taken away when the opening came back, with
//! a state or with an error. Whoever finds a count knows that nobody came back so many times.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// So many openings in a row that never came back prove damage. One may as well have been killed.
pub(crate) const PROOF: u32 = 2;

/// An attempt to open a state, begun and not back yet.
#[must_use]
pub(crate) struct Attempt {
    mark: PathBuf,
}

impl Attempt {
    /// Begins one. Also says how many before it, in a row, never came back.
    pub(crate) fn begin(state: &Path) -> io::Result<(Self, u32)> {
        let mark = state.with_extension("opening");
        let lost = match fs::read_to_string(&mark) {
            // A mark that does not read was left by somebody who got no further either.
            Ok(count) => count.trim().parse().unwrap_or(1),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        // Not synced: what ends a process does not empty the page cache, and a machine that stops
        // is no proof of anything.
        fs::write(&mark, format!("{}\n", u32::saturating_add(lost, 1)))?;
        Ok((Self { mark }, lost))
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
        let state = folder.path().join("state");
        for lost in 0..3 {
            let (attempt, before) = Attempt::begin(&state).unwrap();
            assert_eq!(before, lost);
            drop(attempt);
        }
        Attempt::begin(&state).unwrap().0.end().unwrap();
        let (attempt, before) = Attempt::begin(&state).unwrap();
        assert_eq!(before, 0);
        drop(attempt);
        fs::write(folder.path().join("state.opening"), "").unwrap();
        assert_eq!(Attempt::begin(&state).unwrap().1, 1);
    }
}
