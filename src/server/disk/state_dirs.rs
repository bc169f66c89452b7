//! The directories of a member's states: the one in use, and one that is received from a peer.
//!
//! The state in use lies in `state`. One that comes in lies in `state-1` (or another number): it is
//! opened where it is, because the database in use may be read until long after; so a small file,
//! `state.current`, says which one is in use. At the next start, with nothing open, that one is
//! renamed to `state` and the file goes. Whatever the moment of a crash, the directory that is in use
//! is whole, and the one it takes the place of is removed only afterwards.
//!
//! A state that is complete has a file `received` in it, which names the entry that it ends with.
//! Whether it counts depends on the log: only if the log begins after that very entry has consensus
//! accepted it, and anything else is removed ([`StateDirs::accepted`]).
//!
//! A state that is damaged is set aside, as `state.damaged-1` (or another number). Where no member can
//! lead without it, it is put back once, and opened again ([`StateDirs::reopen`]).

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::server::disk::durable::sync_folder;
use crate::server::disk::marker::Marker;
use crate::types::{LogId, LogIndex, Term};

const STATE: &str = "state";
const PREFIX: &str = "state-";
const ASIDE: &str = "state.damaged-";
const UNUSED: &str = "state.unused-";

/// See the module.
#[derive(Clone, Debug)]
pub struct StateDirs {
    root: PathBuf,
}

impl StateDirs {
    /// Those in a data directory.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Where the state in use lies once [`StateDirs::settle`] has run.
    pub fn state(&self) -> PathBuf {
        self.root.join(STATE)
    }

    /// Finishes what a process before this one has begun: the state that it used last lies in its
    /// usual place afterwards. To be called before anything is opened.
    ///
    /// # Errors
    /// A folder cannot be read, renamed or removed.
    pub fn settle(&self) -> io::Result<()> {
        let Some(name) = Marker::StateInUse.read(&self.root)? else {
            return Ok(());
        };
        let used = self.root.join(name.trim());
        // If it is gone, it was renamed already.
        if number_of(name.trim()).is_some() && used.try_exists()? {
            remove(&self.state())?;
            fs::rename(&used, self.state())?;
            sync_folder(&self.root)?;
        }
        Marker::StateInUse.remove(&self.root)
    }

    /// The state that was received whole and accepted, if the log begins after `base`: it is to be used
    /// unless the state in use has come as far.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn accepted(&self, base: LogId) -> io::Result<Option<PathBuf>> {
        for path in self.incoming()? {
            if read_mark(&path)? == Some(base) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Makes the state at `path` the one in use, for this process and every later one.
    ///
    /// # Errors
    /// It cannot be written down; then it is as before.
    pub fn adopt(&self, path: &Path) -> io::Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Marker::StateInUse.write(&self.root, &format!("{name}\n"))
    }

    /// Removes every state that is not in use. To be called before anything comes in.
    ///
    /// # Errors
    /// A folder cannot be removed.
    pub fn clear(&self) -> io::Result<()> {
        for path in self.incoming()? {
            remove(&path)?;
        }
        Ok(())
    }

    /// Where the next state may come in: a folder that does not exist.
    ///
    /// # Errors
    /// The data directory cannot be read.
    pub fn next(&self) -> io::Result<PathBuf> {
        let numbers = self.incoming()?;
        let numbers = numbers.iter().filter_map(|path| number(path));
        let next = numbers.max().unwrap_or(0) + 1;
        Ok(self.root.join(format!("{PREFIX}{next}")))
    }

    /// Notes that the state at `path` is whole and durable, and ends with `id`.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn complete(&self, path: &Path, id: LogId) -> io::Result<()> {
        // The folder's own name first.
        sync_folder(&self.root)?;
        let text = format!("{} {}\n", id.index.0, id.term.0);
        Marker::StateReceived.write(path, &text)
    }

    /// Sets the state in use aside; returns where it lies then. It may be there already, if an earlier
    /// start was interrupted.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub fn set_aside(&self) -> io::Result<PathBuf> {
        self.move_state(ASIDE)
    }

    /// The state that was set aside last, unless it was opened again since.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn last_aside(&self) -> io::Result<Option<PathBuf>> {
        let last = self.free_number(ASIDE)? - 1;
        let last = self.root.join(format!("{ASIDE}{last}"));
        let is_new = last.try_exists()? && !Marker::StateReopened.is_set(&last)?;
        Ok(is_new.then_some(last))
    }

    /// Has the next start open the state at `aside` again.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn ask_to_reopen(&self, aside: &Path) -> io::Result<()> {
        let name = aside.file_name().unwrap_or_default().to_string_lossy();
        Marker::StateReopen.write(&self.root, &format!("{name}\n"))
    }

    /// The state that is to be opened again.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn to_reopen(&self) -> io::Result<Option<PathBuf>> {
        let Some(name) = Marker::StateReopen.read(&self.root)? else {
            return Ok(None);
        };
        let aside = self.root.join(name.trim());
        let is_one = name.trim().strip_prefix(ASIDE);
        let is_one = is_one.is_some_and(|number| number.parse::<u64>().is_ok());
        Ok((is_one && aside.try_exists()?).then_some(aside))
    }

    /// Puts it in the place of the one in use, which nothing may have open. Once: if it is set aside
    /// again, it stays there.
    ///
    /// # Errors
    /// A folder cannot be renamed.
    pub fn reopen(&self) -> io::Result<()> {
        if let Some(aside) = self.to_reopen()? {
            Marker::StateReopened.write(&aside, "")?;
            self.move_state(UNUSED)?;
            fs::rename(&aside, self.state())?;
            sync_folder(&self.root)?;
        }
        Marker::StateReopen.remove(&self.root)
    }

    /// The first number, from 1 on, that no folder with `prefix` has.
    fn free_number(&self, prefix: &str) -> io::Result<u64> {
        let mut number = 1;
        while self.root.join(format!("{prefix}{number}")).try_exists()? {
            number += 1;
        }
        Ok(number)
    }

    fn move_state(&self, prefix: &str) -> io::Result<PathBuf> {
        let number = self.free_number(prefix)?;
        let place = self.root.join(format!("{prefix}{number}"));
        match fs::rename(self.state(), &place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        Ok(place)
    }

    fn incoming(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let path = entry?.path();
            if number(&path).is_some() {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }
}

/// Removes a folder, if it is there.
///
/// # Errors
/// It cannot be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn number(path: &Path) -> Option<u64> {
    number_of(path.file_name()?.to_str()?)
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

fn read_mark(path: &Path) -> io::Result<Option<LogId>> {
    let text = Marker::StateReceived.read(path)?;
    let id = text.as_deref().and_then(|text| {
        let text = text.strip_suffix('\n')?;
        let (index, term) = text.split_once(' ')?;
        let index = LogIndex(index.parse().ok()?);
        Some(LogId::new(index, Term(term.parse().ok()?)))
    });
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u64) -> LogId {
        LogId::new(LogIndex(index), Term(3))
    }

    fn make(path: &Path, content: &str) {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("content"), content).unwrap();
    }

    fn content(state_dirs: &StateDirs) -> String {
        fs::read_to_string(state_dirs.state().join("content")).unwrap()
    }

    #[test]
    fn a_state_that_is_complete_counts_if_the_log_begins_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let state_dirs = StateDirs::new(folder.path());
        make(&state_dirs.state(), "old");
        let half = state_dirs.next().unwrap();
        make(&half, "half");
        let whole = state_dirs.next().unwrap();
        assert_ne!(half, whole);
        make(&whole, "whole");
        state_dirs.complete(&whole, id(9)).unwrap();
        assert_eq!(state_dirs.accepted(id(8)).unwrap(), None);
        assert_eq!(state_dirs.accepted(id(9)).unwrap(), Some(whole));
        state_dirs.settle().unwrap();
        assert_eq!(content(&state_dirs), "old", "nobody has adopted it");
        state_dirs.clear().unwrap();
        assert_eq!(state_dirs.accepted(id(9)).unwrap(), None);
        assert_eq!(content(&state_dirs), "old");
    }

    #[test]
    fn a_state_that_was_set_aside_is_put_back_once() {
        let folder = tempfile::tempdir().unwrap();
        let state_dirs = StateDirs::new(folder.path());
        assert_eq!(state_dirs.last_aside().unwrap(), None);
        make(&state_dirs.state(), "first");
        state_dirs.set_aside().unwrap();
        make(&state_dirs.state(), "second");
        let aside = state_dirs.set_aside().unwrap();
        assert_eq!(state_dirs.last_aside().unwrap(), Some(aside.clone()));
        make(&state_dirs.state(), "lacks everything");
        assert_eq!(state_dirs.to_reopen().unwrap(), None);
        state_dirs.ask_to_reopen(&aside).unwrap();
        assert_eq!(state_dirs.to_reopen().unwrap(), Some(aside.clone()));
        for _ in 0..2 {
            state_dirs.reopen().unwrap();
            assert_eq!(content(&state_dirs), "second");
            assert_eq!(state_dirs.to_reopen().unwrap(), None);
        }
        assert_eq!(state_dirs.set_aside().unwrap(), aside);
        assert_eq!(state_dirs.last_aside().unwrap(), None);
        // What is no name of such a state names none.
        for name in ["../elsewhere", "log", "state.damaged-x"] {
            Marker::StateReopen.write(folder.path(), name).unwrap();
            assert_eq!(state_dirs.to_reopen().unwrap(), None, "{name}");
        }
    }

    #[test]
    fn a_swap_is_finished_whatever_step_it_was_at() {
        // What may lie there after a crash during the swap: the old state, whole, in part or gone;
        // the new one in its own place or in the old one's.
        for step in 0..4 {
            let folder = tempfile::tempdir().unwrap();
            let state_dirs = StateDirs::new(folder.path());
            make(&state_dirs.state(), "old");
            let new = state_dirs.next().unwrap();
            make(&new, "new");
            state_dirs.complete(&new, id(9)).unwrap();
            state_dirs.adopt(&new).unwrap();
            match step {
                0 => {}
                1 => fs::remove_file(state_dirs.state().join("content")).unwrap(),
                2 => remove(&state_dirs.state()).unwrap(),
                _ => {
                    remove(&state_dirs.state()).unwrap();
                    fs::rename(&new, state_dirs.state()).unwrap();
                }
            }
            for _ in 0..2 {
                state_dirs.settle().unwrap();
                assert_eq!(content(&state_dirs), "new", "step {step}");
            }
            state_dirs.clear().unwrap();
            assert_eq!(content(&state_dirs), "new", "step {step}");
        }
    }

    #[test]
    fn a_state_that_was_adopted_and_went_on_is_still_the_one_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let state_dirs = StateDirs::new(folder.path());
        make(&state_dirs.state(), "old");
        let first = state_dirs.next().unwrap();
        make(&first, "first");
        state_dirs.adopt(&first).unwrap();
        let second = state_dirs.next().unwrap();
        make(&second, "second");
        state_dirs.adopt(&second).unwrap();
        state_dirs.settle().unwrap();
        assert_eq!(content(&state_dirs), "second");
        state_dirs.clear().unwrap();
        assert!(!first.exists());
    }
}
