//! Another state takes the place of this one, while everybody goes on.
//!
//! A state that a peer has sent lies in a directory of its own and is opened there. All handles of the
//! state look for the database they work on at the beginning of each call ([`Current`]), so from one
//! moment on they find the new one, with its cache, its revision and its applied index in one piece: an
//! old database is never taken for one that has applied more (A9). Who has begun on the
//! old one finishes there: it stays until nobody looks at it any more ([`Retired`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use arc_swap::{ArcSwap, Guard};

use super::{Gate, Operations, Shared, StateStore};

/// The database in use, for all handles of one state.
#[derive(Clone)]
pub(super) struct Current {
    shared: Arc<ArcSwap<Shared>>,
    gate: Arc<Gate>,
    operations: Arc<Operations>,
}

impl Current {
    pub(super) fn new(shared: Arc<Shared>, gate: Gate) -> Self {
        Self {
            shared: Arc::new(ArcSwap::new(shared)),
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
    pub(super) fn load(&self) -> Guard<Arc<Shared>> {
        self.shared.load()
    }

    /// For longer work.
    pub(super) fn get(&self) -> Arc<Shared> {
        self.shared.load_full()
    }
}

/// A database that another one has taken the place of. Some may still read from it.
pub struct Retired {
    shared: Arc<Shared>,
}

impl StateStore {
    /// Puts `newer` in the place of this state: whoever looks from now on, by whatever handle, finds
    /// that one. `newer` has applied at least as much, and nobody has a handle of it yet.
    pub fn replace(&mut self, newer: Self) -> Retired {
        // Before the state that they are part of.
        self.current.gate.publish(newer.current.gate.policy());
        self.current.shared.store(Arc::clone(&newer.shared));
        self.needs_verification = newer.needs_verification;
        let shared = std::mem::replace(&mut self.shared, newer.shared);
        Retired { shared }
    }

    /// The directory that it lies in.
    pub fn path(&self) -> &Path {
        &self.shared.farewell.path
    }
}

impl Retired {
    /// Closes the database and removes it from the disk, unless somebody still looks at it: then it is
    /// given back. Takes a while.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(self) -> io::Result<Option<Self>> {
        let path: PathBuf = self.shared.farewell.path.clone();
        match Arc::try_unwrap(self.shared) {
            Ok(shared) => {
                drop(shared);
                fs::remove_dir_all(path)?;
                Ok(None)
            }
            Err(shared) => Ok(Some(Self { shared })),
        }
    }
}
