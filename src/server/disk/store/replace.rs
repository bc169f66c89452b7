//! Another state takes the place of this one, while everybody goes on.
//!
//! A state that a peer has sent lies in a directory of its own and is opened there. All handles of the
//! state look for the one in use at the beginning of each call ([`Handle`](crate::front::Handle)), so from one moment on they
//! find the new one. A reader that has begun on the old one finishes there: it stays until it has no
//! readers any more ([`RetiredStore`]).

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::front;

use super::{StateStore, Tables};

/// A database that another one has taken the place of. Some may still read from it.
pub struct RetiredStore {
    state: front::RetiredState<Tables>,
}

impl StateStore {
    /// Replaces this state by `newer`: every later read finds that one, by any handle. `newer` has
    /// applied at least as much, and has no handles yet.
    pub fn replace(&mut self, newer: Self) -> RetiredStore {
        // Before the state that they are part of.
        self.current.gate().publish(newer.current.gate().policy());
        self.needs_verification = newer.needs_verification;
        RetiredStore {
            state: self.writer.replace(newer.writer),
        }
    }

    /// The directory that it lies in.
    pub fn path(&self) -> &Path {
        &self.tables().farewell.path
    }
}

impl RetiredStore {
    /// Closes the database and removes it from the disk, unless it still has readers: then it is
    /// returned. Takes a while.
    ///
    /// # Errors
    /// It cannot be removed.
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
