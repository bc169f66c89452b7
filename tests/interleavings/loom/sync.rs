//! `src/sync.rs`, with loom's types in place of the real ones, and some that can be made weaker
//! than they are: a model that does not notice has not looked.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use loom::sync::atomic::Ordering;
pub(crate) use loom::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use super::notify::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::planted::is_on;

/// The same in every run, as loom must have it.
pub(crate) type Hashing = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// Not modelled.
pub(crate) type Count = std::sync::atomic::AtomicU64;

/// What `wanted` is worth.
fn order(wanted: Ordering) -> Ordering {
    match is_on("OrderRelaxed") {
        true => Ordering::Relaxed,
        false => wanted,
    }
}

macro_rules! atomics {
    ($($name:ident of $value:ty)*) => { $(
        #[derive(Debug, Default)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        #[allow(dead_code, reason = "each has what any of them needs")]
        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            pub(crate) fn load(&self, wanted: Ordering) -> $value {
                self.0.load(order(wanted))
            }

            pub(crate) fn store(&self, value: $value, wanted: Ordering) {
                self.0.store(value, order(wanted));
            }

            pub(crate) fn fetch_add(&self, value: $value, wanted: Ordering) -> $value {
                self.0.fetch_add(value, order(wanted))
            }

            pub(crate) fn fetch_sub(&self, value: $value, wanted: Ordering) -> $value {
                self.0.fetch_sub(value, order(wanted))
            }

            pub(crate) fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.0.fetch_update(order(set), order(fetch), change)
            }
        }
    )* };
}

atomics! {
    AtomicU8 of u8
    AtomicU64 of u64
    AtomicI64 of i64
    AtomicUsize of usize
}

#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

#[derive(Debug)]
pub(crate) struct RwLock<T>(loom::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap()
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Nobody's patience ends: a notice that is lost is a deadlock, which loom tells.
#[derive(Debug)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        if !is_on("NoticeLost") {
            self.0.notify_one();
        }
    }

    pub(crate) fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        _: Duration,
        mut is_waiting: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while is_waiting(&mut guard) {
            guard = self.0.wait(guard).unwrap();
        }
        guard
    }
}

/// `ArcSwapOption`, as a lock: it loads and stores a value as a whole, and what came before a store
/// comes before a load that sees it.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    value: Mutex<Option<Arc<T>>>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self {
            value: Mutex::new(None),
        }
    }
}

impl<T> Slot<T> {
    #[allow(dead_code, reason = "as `load_full`, where it is called")]
    pub(crate) fn new(value: Option<Arc<T>>) -> Self {
        Self {
            value: Mutex::new(value),
        }
    }

    pub(crate) fn store(&self, value: Option<Arc<T>>) {
        *self.value.lock() = value;
    }

    pub(crate) fn load_full(&self) -> Option<Arc<T>> {
        self.value.lock().clone()
    }

    /// A loan of the value, which here is as good as the value.
    #[allow(dead_code, reason = "as `load_full`, where it is called")]
    pub(crate) fn load(&self) -> Loan<T> {
        Loan(self.load_full())
    }
}

/// `ArcSwap`, as a lock: as [`Slot`].
#[derive(Debug)]
pub(crate) struct Swap<T> {
    value: Mutex<Arc<T>>,
}

impl<T> Swap<T> {
    pub(crate) fn new(value: Arc<T>) -> Self {
        Self {
            value: Mutex::new(value),
        }
    }

    pub(crate) fn store(&self, value: Arc<T>) {
        *self.value.lock() = value;
    }

    pub(crate) fn load_full(&self) -> Arc<T> {
        Arc::clone(&self.value.lock())
    }

    /// A loan of the value, which here is as good as the value.
    pub(crate) fn load(&self) -> Owned<T> {
        Owned(self.load_full())
    }
}

pub(crate) struct Owned<T>(Arc<T>);

impl<T> Deref for Owned<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

pub(crate) struct Loan<T>(Option<Arc<T>>);

impl<T> Deref for Loan<T> {
    type Target = Option<Arc<T>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
