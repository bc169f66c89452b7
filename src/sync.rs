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
pub(crate) use std::sync::Condvar;
pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::MutexGuard;
pub(crate) use std::sync::RwLock;
pub(crate) use std::sync::RwLockReadGuard;
pub(crate) use std::sync::RwLockWriteGuard;
pub(crate) use std::sync::atomic::AtomicI64;
pub(crate) use std::sync::atomic::AtomicU8;
pub(crate) use std::sync::atomic::AtomicU64;
pub(crate) use std::sync::atomic::AtomicUsize;
pub(crate) use std::sync::atomic::Ordering;
pub(crate) use std::thread;

/// A shared value that is replaced as a whole.
pub(crate) type Slot<T> = arc_swap::ArcSwapOption<T>;

/// A count for metrics. Nothing rests on its order, so no model looks at it.
pub(crate) type Count = AtomicU64;
