//! What stands in front of the database, between the thread that applies and all that read.
//!
//! The order of publication is what makes reads linearizable. A batch is put where every look at
//! the database finds it, then the cache is changed, then the revision is published, then the
//! applied index ([`Front::advance`]). A reader goes the other way ([`Front::get`]): applied index,
//! revision, lookup. So whoever sees an index applied sees everything up to it.
//! `tests/interleavings` tries the two against each other in every order.

use crate::kv::Progress;
use crate::sync::{AtomicI64, AtomicU64, Ordering};
use crate::types::LogIndex;

use super::Point;
use super::cache::{Cached, Lookup, RecordCache};

/// How far the state is, and what is known of its current records.
pub(super) struct Front {
    cache: RecordCache,
    revision: AtomicI64,
    /// Shown to people only: no read is judged by it.
    compact_revision: AtomicI64,
    applied: AtomicU64,
}

impl Front {
    /// In front of a state that is still to be published, with about `cache_bytes` for records.
    pub(super) fn new(cache_bytes: usize) -> Self {
        Self {
            cache: RecordCache::new(cache_bytes),
            revision: AtomicI64::new(0),
            compact_revision: AtomicI64::new(0),
            applied: AtomicU64::new(0),
        }
    }

    /// The last index applied. Any read that begins later contains it.
    pub(super) fn applied(&self) -> LogIndex {
        LogIndex(self.applied.load(Ordering::Acquire))
    }

    /// The store-wide revision.
    pub(super) fn revision(&self) -> i64 {
        self.revision.load(Ordering::Acquire)
    }

    /// The oldest revision that can be read.
    pub(super) fn compact_revision(&self) -> i64 {
        self.compact_revision.load(Ordering::Relaxed)
    }

    /// Publishes a batch that every look at the database finds by now: what it made of each key it
    /// changed, and how far the state is with it.
    ///
    /// # Errors
    /// The first of `changes` that is one; the state is then not published.
    pub(super) fn advance<K: AsRef<[u8]>, E>(
        &self,
        changes: impl Iterator<Item = Result<(K, Cached), E>>,
        progress: Progress,
    ) -> Result<(), E> {
        for change in changes {
            let (key, cached) = change?;
            self.cache.change(key.as_ref(), cached);
        }
        self.publish(progress);
        Ok(())
    }

    /// Publishes a state that was found, and that nobody has read yet.
    pub(super) fn publish(&self, progress: Progress) {
        self.compact_revision
            .store(progress.compact_revision, Ordering::Relaxed);
        self.revision.store(progress.revision, Ordering::Release);
        self.applied
            .store(progress.applied.index.0, Ordering::Release);
    }

    /// What is known of `key` as it was last published. For the thread that applies: nobody else
    /// changes it meanwhile.
    #[allow(dead_code, reason = "the interleavings read alone through it")]
    pub(super) fn known(&self, key: &[u8]) -> Option<Cached> {
        match self.cache.get(key) {
            Lookup::Found(cached) => Some(cached),
            Lookup::Missing(_) => None,
        }
    }

    /// Reads one key: from the cache if it is there, else by `read`, which looks at the database as
    /// it is by then.
    ///
    /// # Errors
    /// Those of `read`.
    pub(super) fn get<E>(
        &self,
        key: &[u8],
        read: impl FnOnce() -> Result<Cached, E>,
    ) -> Result<Point, E> {
        let applied = self.applied();
        let revision = self.revision();
        let cached = match self.cache.get(key) {
            Lookup::Found(cached) => cached,
            Lookup::Missing(ticket) => {
                let cached = read()?;
                self.cache.fill(ticket, key, cached.clone());
                cached
            }
        };
        Ok(match cached {
            Cached::Present(record) => Point {
                revision: revision.max(record.mod_revision()),
                record: Some(record),
                applied,
            },
            Cached::Absent { revision: absent } => Point {
                revision: revision.max(absent),
                record: None,
                applied,
            },
        })
    }
}
