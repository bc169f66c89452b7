//! How many bytes the state takes on disk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::server::disk::store::StateReader;
use crate::time::Instant;

/// How long a measured size is good enough.
const SIZE_LIFETIME: Duration = Duration::from_secs(5);

/// The size of the state on disk. The storage engine has to walk over all its tables to measure it, so
/// a measured size is kept for a while.
#[derive(Debug, Default)]
pub(crate) struct StorageSize {
    bytes: AtomicU64,
    /// When it was measured, by the clock that does not stop; 0 for never.
    measured: AtomicU64,
}

impl StorageSize {
    pub(super) fn bytes(&self, now: Instant, store: &StateReader) -> u64 {
        let measured = self.measured.load(Ordering::Relaxed);
        let age = Duration::from_nanos(now.boot.saturating_sub(measured));
        if measured == 0 || age >= SIZE_LIFETIME {
            // Of several callers that find it old, one measures.
            let mine = self.measured.compare_exchange(
                measured,
                now.boot,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if mine.is_ok() {
                let bytes = store.storage_bytes().unwrap_or_default();
                self.bytes.store(bytes, Ordering::Relaxed);
            }
        }
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::disk::store::{StateStore, StoreOptions};

    #[test]
    fn the_size_is_measured_now_and_then_and_not_for_everyone() {
        let folder = tempfile::tempdir().unwrap();
        let store = StateStore::open(&folder.path().join("state"), &StoreOptions::default());
        let reader = store.unwrap().reader();
        let size = StorageSize::default();
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let measured = |seconds: u64| {
            size.bytes(at(seconds), &reader);
            size.measured.load(Ordering::Relaxed) / 1_000_000_000
        };
        assert_eq!(measured(100), 100);
        assert_eq!(measured(104), 100);
        assert_eq!(measured(105), 105);
        assert_eq!(measured(106), 105);
    }
}
