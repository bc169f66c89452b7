//! The state in use, where every handle of it finds it.

use std::ops::Deref;
use std::sync::Arc;

use crate::front::{Front, Handle};

use super::counts::Operations;
use super::gate::Gate;
use super::tables::Tables;

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
