//! What threads of a node have in common is made of these.
//!
//! They are the standard library's, and a slot of `arc-swap`. The names are kept in one place so
//! that `tests/loom` and `tests/shuttle` can compile the very files that use them against a model
//! checker's own, and try every order in which threads may come to them. Nothing here is switched
//! by a feature or a flag.

pub(crate) use std::sync::atomic::AtomicU8;
pub(crate) use std::sync::atomic::AtomicU64;
pub(crate) use std::sync::atomic::Ordering;

/// A shared value that is replaced as a whole.
pub(crate) type Slot<T> = arc_swap::ArcSwapOption<T>;

/// A count for metrics. Nothing rests on its order, so no model looks at it.
pub(crate) type Count = std::sync::atomic::AtomicU64;
