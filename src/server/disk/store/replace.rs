//! Another state takes the place of this one, while everybody goes on.
//!
//! A state that a peer has sent lies in a directory of its own and is opened there. All handles of the
//! state look for the one in use at the beginning of each call ([`Handle`]), so from one moment on they
//! find the new one. Who has begun on the old one finishes there: it stays until nobody looks at it any
//! more ([`RetiredStore`]).

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use crate::front;
use crate::front::{Front, Handle};

use super::{Gate, Operations, StateStore, Tables};

/// The state in use, for all handles of it.
#[derive(Clone)]
pub(super) struct Current {
    handle: Handle<Tables>,
    gate: Arc<Gate>,
    operations: Arc<Operations>,
}

impl Current {
    pub(super) fn new(handle: Handle<Tables>, gate: Gate) -> Self {
        Self {
            handle,
            gate: Arc::new(gate),
            operations: Arc::default(),
        }
    }

    /// The rules of access.
    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// What was done to keys.
    pub(super) fn operations(&self) -> &Operations {
        &self.operations
    }

    /// For a short look.
    pub(super) fn load(&self) -> impl Deref<Target = Arc<Front<Tables>>> + use<> {
        self.handle.load()
    }

    /// For longer work.
    pub(super) fn get(&self) -> Arc<Front<Tables>> {
        self.handle.get()
    }
}

/// A database that another one has taken the place of. Some may still read from it.
pub struct RetiredStore {
    state: front::Retired<Tables>,
}

impl StateStore {
    /// Puts `newer` in the place of this state: whoever looks from now on, by whatever handle, finds
    /// that one. `newer` has applied at least as much, and nobody has a handle of it yet.
    pub fn replace(&mut self, newer: Self) -> RetiredStore {
        // Before the state that they are part of.
        self.current.gate.publish(newer.current.gate.policy());
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
    /// Closes the database and removes it from the disk, unless somebody still looks at it: then it is
    /// given back. Takes a while.
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
