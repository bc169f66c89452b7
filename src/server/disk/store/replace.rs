//! Replaces the state by another one, without interrupting readers.
//!
//! A state received from a peer is opened in its own directory. Every handle looks up the current state at
//! the beginning of each call ([`Handle`](crate::front::Handle)), so all later calls use the new one. A read in progress
//! finishes on the old state, which is kept until its last reader is gone ([`RetiredStore`]).

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::front;

use super::{StateStore, Tables};

/// A database that has been replaced. It may still have readers.
pub struct RetiredStore {
    state: front::RetiredState<Tables>,
}

impl StateStore {
    /// Replaces this state by `newer` for all handles and all later reads. `newer` has applied at least
    /// as much, and has no handles yet.
    pub fn replace(&mut self, newer: Self) -> RetiredStore {
        // The rules of access are published before the state that contains them.
        self.current.gate().publish(newer.current.gate().policy());
        self.needs_verification = newer.needs_verification;
        RetiredStore {
            state: self.writer.replace(newer.writer),
        }
    }

    /// The directory of the database.
    pub fn path(&self) -> &Path {
        &self.tables().farewell.path
    }
}

impl RetiredStore {
    /// Closes the database and removes it from the disk; returns it if it still has readers. Slow.
    ///
    /// # Errors
    /// The directory cannot be removed.
    pub fn remove(self) -> io::Result<Option<Self>> {
        let path: PathBuf = self.state.front().database().farewell.path.clone();
        match self.state.into_database() {
            Ok(tables) => {
                drop(tables);
                fs::remove_dir_all(path)?;
                Ok(None)
            }
            Err(state) => Ok(Some(Self { state })),
        }
    }
}
