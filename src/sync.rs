//! What threads of a node have in common is made of these.
//!
//! They are the standard library's, and a slot of `arc-swap`. The names are kept in one place so
//! that `tests/loom` and `tests/shuttle` can compile the very files that use them against a model
//! checker's own, and try every order in which threads may come to them. Nothing here is switched
//! by a feature or a flag.

#![allow(
    unused_imports,
    reason = "the pure base uses less of it than the server"
)]

pub(crate) use std::hash::RandomState as Hashing;
pub(crate) use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub(crate) use std::thread;

/// A shared value that is replaced as a whole.
pub(crate) type Slot<T> = arc_swap::ArcSwapOption<T>;

/// A count for metrics. Nothing rests on its order, so no model looks at it.
pub(crate) type Count = AtomicU64;
