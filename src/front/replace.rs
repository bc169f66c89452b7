//! Replacing the state while readers and the writer go on.
//!
//! All handles of a state look for the front in use at the beginning of each call ([`Handle`]), so from
//! one moment on they find the new one, with its cache, its revision and its applied index in one piece:
//! an old database is never taken for one that has applied more (A9). Who has begun on the old one
//! finishes there: it stays until its last reader is gone ([`RetiredState`]).

use std::ops::Deref;
use std::sync::Arc;

use crate::sync::Swap;

use super::database::Database;
use super::state::Front;

/// The front in use, for all who read one state.
pub struct Handle<D: Database> {
    front: Arc<Swap<Front<D>>>,
}

impl<D: Database> Clone for Handle<D> {
    fn clone(&self) -> Self {
        Self {
            front: Arc::clone(&self.front),
        }
    }
}

impl<D: Database> Handle<D> {
    pub(super) fn new(front: Arc<Front<D>>) -> Self {
        Self {
            front: Arc::new(Swap::new(front)),
        }
    }

    /// For a short look.
    pub fn load(&self) -> impl Deref<Target = Arc<Front<D>>> + use<D> {
        self.front.load()
    }

    /// For longer work.
    pub fn get(&self) -> Arc<Front<D>> {
        self.front.load_full()
    }

    pub(super) fn set(&self, front: Arc<Front<D>>) {
        self.front.store(front);
    }
}

/// A state that another one has taken the place of. Some may still read from it.
pub struct RetiredState<D: Database> {
    pub(super) front: Arc<Front<D>>,
}

impl<D: Database> RetiredState<D> {
    /// The front that was in use.
    pub fn front(&self) -> &Front<D> {
        &self.front
    }
}
