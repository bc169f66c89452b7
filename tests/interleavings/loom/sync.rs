//! `src/sync.rs`, with loom's types in place of the real ones.

use std::sync::Arc;

pub(crate) use loom::sync::atomic::AtomicU8;
pub(crate) use loom::sync::atomic::AtomicU64;
pub(crate) use loom::sync::atomic::Ordering;

/// Not modelled.
pub(crate) type Count = std::sync::atomic::AtomicU64;

/// `ArcSwapOption`, as a lock: it loads and stores a value as a whole, and what came before a store
/// comes before a load that sees it.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    value: loom::sync::Mutex<Option<Arc<T>>>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self {
            value: loom::sync::Mutex::new(None),
        }
    }
}

impl<T> Slot<T> {
    pub(crate) fn store(&self, value: Option<Arc<T>>) {
        *self.value.lock().unwrap() = value;
    }

    pub(crate) fn load_full(&self) -> Option<Arc<T>> {
        self.value.lock().unwrap().clone()
    }
}
