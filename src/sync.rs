//! What threads of a node have in common is made of these.
//!
//! They are the standard library's, and two of `arc-swap`. The names are kept in one place so
//! that `tests/loom` and `tests/shuttle` can compile the very files that use them against a model
//! checker's own, and try every order in which threads may come to them. Nothing here is switched
//! by a feature or a flag.

#![allow(
    dead_code,
    unused_imports,
    reason = "the pure base uses less of it than the server"
)]

pub(crate) use foldhash::quality::RandomState as Hashing;
pub(crate) use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
pub(crate) use std::thread;

use std::sync::PoisonError;
use std::time::Duration;

/// A shared value that is replaced as a whole.
pub(crate) type Slot<T> = arc_swap::ArcSwapOption<T>;

/// The same, of which there always is one.
pub(crate) type Swap<T> = arc_swap::ArcSwap<T>;

/// A count for metrics. Nothing rests on its order, so no model looks at it.
pub(crate) type Count = AtomicU64;

/// A lock that goes on though a thread panicked while it held it. What each of them guards is whole between
/// any two statements, and a thread that the node cannot do without ends the node with its panic.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As [`Mutex`], for many readers.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where threads wait that share a [`Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Condvar(std::sync::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Waits while `is_waiting` says so.
    pub(crate) fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        is_waiting: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_while(guard, is_waiting);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `is_waiting` says so, and no longer than `patience`.
    pub(crate) fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        patience: Duration,
        is_waiting: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_timeout_while(guard, patience, is_waiting);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_lock_that_was_held_in_a_panic_is_taken_again() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(1));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _held = (mutex.lock(), lock.write());
            panic!("with both of them");
        }));
        assert!(panicked.is_err());
        *mutex.lock() += 1;
        *lock.write() += 1;
        assert_eq!((*mutex.lock(), *lock.read()), (2, 2));
        let waited = Condvar::new().wait_timeout_while(mutex.lock(), Duration::ZERO, |_| true);
        assert_eq!(*waited, 2);
    }
}
