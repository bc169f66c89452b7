//! Compaction: gives up old history and removes it from the store.
//!
//! It has two phases. The logged command moves the compact revision C, on every replica at the same
//! entry and at no cost: from then on reads below C are refused, and so are watches that start
//! below it. The records are removed later, in steps of bounded work ([`compact_step`]), at each
//! replica's own pace, between entries. No reply of apply or of a reader depends on the progress of
//! the removal.
//!
//! What stays: the events from C on, because a watch may begin at C; and of each key the newest
//! record at or below C, because a read at C is allowed, unless it is a tombstone. The steps follow
//! the events, oldest first, so their cost depends on what is removed and not on what is stored.
//! Each event at or below C names the revision that it superseded; that record is removed, and
//! after a delete the tombstone with it in the same step, so that no deleted key reappears in
//! between.
//!
//! The progress of a replica is stored in [`Space::Local`] with the sum of what it has removed: the
//! content hash still counts these records (`hash.rs`). Two replicas that have finished the same C
//! have removed the same records, so their sums must be equal.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use xxhash_rust::xxh3::xxh3_64;

use crate::api::{CompactionRequest, Error, ErrorKind, EventKind};

use super::keys::Revision;
use super::meta::Progress;
use super::record::EventRecord;
use super::record_hash::{ContentHash, RecordHasher};
use super::store::{Fault, Pair, Space, Span, Store, View};
use super::{keys, meta};

/// Moves the compact revision.
pub(super) fn compact(progress: &mut Progress, request: &CompactionRequest) -> Result<(), Error> {
    let revision = request.revision;
    if revision <= progress.compact_revision {
        return Err(already_compacted(revision, progress));
    }
    if revision > progress.revision {
        return Err(future_revision(revision, progress));
    }
    progress.compact_revision = revision;
    Ok(())
}

/// Why `revision` cannot be read, if it cannot. 0 stands for the current one.
pub(super) fn check_readable(revision: i64, progress: &Progress) -> Result<(), Error> {
    if revision == 0 {
        return Ok(());
    }
    if revision < progress.compact_revision && !planted!(CompactedRead) {
        return Err(already_compacted(revision, progress));
    }
    if revision > progress.revision && !planted!(FutureRead) {
        return Err(future_revision(revision, progress));
    }
    Ok(())
}

pub(super) fn already_compacted(revision: i64, progress: &Progress) -> Error {
    let compact_revision = progress.compact_revision;
    Error::not_applied(
        ErrorKind::Compacted { compact_revision },
        format!(
            "revision {revision} is compacted: history is kept from revision {compact_revision} on"
        ),
    )
}

fn future_revision(revision: i64, progress: &Progress) -> Error {
    Error::not_applied(
        ErrorKind::FutureRevision,
        format!(
            "revision {revision} does not exist yet: the store is at revision {}",
            progress.revision
        ),
    )
}

/// The bounds of one [`compact_step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionBudget {
    /// At most this many events, and as many records of history; at least one.
    pub events: usize,
    /// From this many bytes of removed records on, the step ends.
    pub bytes: usize,
}

/// The result of one [`compact_step`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionStep {
    /// Number of events examined.
    pub events: usize,
    /// Records removed, of any kind.
    pub removed: usize,
    /// Their size in bytes, keys included.
    pub bytes: usize,
    /// Nothing is left to remove at the current compact revision.
    pub finished: bool,
}

/// The progress of a replica in removing compacted history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionProgress {
    /// The history compacted at this revision has been removed completely.
    pub through: i64,
    /// The sum of the hashes of all that was removed so far. Equal on replicas whose `through` is
    /// equal, unless one of them has begun with a later compaction.
    pub removed: ContentHash,
    /// No later compaction has started to remove anything.
    pub is_settled: bool,
}

/// The progress of the replica of `view` in removing compacted history.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn compacted<V: View>(view: &V) -> Result<CompactionProgress, V::Error> {
    let gc = GcProgress::read(view)?;
    Ok(CompactionProgress {
        through: gc.through,
        removed: ContentHash(gc.removed),
        is_settled: gc.next == Revision::first(gc.through),
    })
}

/// The sum of what compaction has removed from `view`.
pub(super) fn removed<V: View>(view: &V) -> Result<ContentHash, V::Error> {
    GcProgress::read(view).map(|gc| ContentHash(gc.removed))
}

/// Removes some compacted history. Must be committed atomically: a part of it would leave an
/// inconsistent state.
///
/// # Errors
/// Those of the store. After an error `store` may contain part of the step: discard it.
pub fn compact_step<S: Store>(
    store: &mut S,
    budget: &CompactionBudget,
) -> Result<CompactionStep, S::Error> {
    let target = meta::progress(store)?.compact_revision;
    let mut gc = GcProgress::read(store)?;
    let mut step = CompactionStep::default();
    if gc.through == target {
        step.finished = true;
        return Ok(step);
    }
    gc.adopt(target);

    let span = Span::between(
        keys::event_key(gc.next),
        keys::event_key(Revision::first(target + 1)),
    );
    let events: Vec<Pair> = store
        .range(Space::Events, &span)
        .take(budget.events.max(1))
        .collect::<Result<_, _>>()?;
    let is_last = events.len() < budget.events.max(1);
    let mut remover = Remover {
        store,
        hasher: RecordHasher::default(),
        sum: gc.removed,
        removed: 0,
        bytes: 0,
    };
    let mut all = true;
    for (key, record) in events {
        if step.events > 0 && remover.bytes >= budget.bytes {
            all = false;
            break;
        }
        let place = keys::event_revision(&key)?;
        let event = EventRecord::decode(record.clone())?;
        remover.supersede(place, &event)?;
        if place.main < target {
            remover.remove(Space::Events, key, &record);
        }
        gc.next = place.next();
        step.events += 1;
    }
    step.removed = remover.removed;
    step.bytes = remover.bytes;
    gc.removed = remover.sum;
    if all && is_last {
        gc.finish(target);
        step.finished = true;
    }
    gc.write(store);
    Ok(step)
}

/// Removes records and sums up their hashes.
struct Remover<'a, S> {
    store: &'a mut S,
    hasher: RecordHasher,
    sum: u128,
    removed: usize,
    bytes: usize,
}

impl<S: Store> Remover<'_, S> {
    /// Removes the record that the change `event` at `place` superseded. Missing records are
    /// skipped: the next compaction meets the events at the compact revision again.
    fn supersede(&mut self, place: Revision, event: &EventRecord) -> Result<(), S::Error> {
        if event.previous > 0 {
            let span = keys::history_of(&event.key, event.previous);
            let found = self.store.range(Space::History, &span).next();
            if let Some((key, record)) = found.transpose()? {
                self.remove(Space::History, key, &record);
            }
        }
        if event.kind == EventKind::Delete || planted!(SweepTakesNewest) {
            let key = keys::history_key(&event.key, place);
            if let Some(record) = self.store.get(Space::History, &key)? {
                self.remove(Space::History, key, &record);
            }
        }
        Ok(())
    }

    fn remove(&mut self, space: Space, key: Bytes, record: &[u8]) {
        let hash = self.hasher.hash(space, &key, record);
        self.sum = self.sum.wrapping_add(hash);
        self.removed += 1;
        self.bytes += key.len() + record.len();
        // Copied, because a key read from disk may keep its whole block in memory.
        self.store.delete(space, Bytes::copy_from_slice(&key));
    }
}

/// The record of compaction in [`Space::Local`].
const SWEEP: &[u8] = b"compaction";
const SWEEP_BYTES: usize = 52;

/// The progress of the removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GcProgress {
    /// The compact revision that was last finished.
    through: i64,
    /// The one being worked on; `through` when none is.
    target: i64,
    /// The next event to process. Earlier ones are done for `target`.
    next: Revision,
    /// The sum of the hashes of what is gone.
    removed: u128,
}

impl GcProgress {
    fn read<V: View>(view: &V) -> Result<Self, V::Error> {
        match view.get(Space::Local, SWEEP)? {
            Some(record) => Ok(Self::decode(&record)?),
            None => Ok(Self::default()),
        }
    }

    /// Switches to `target`. The events at the previous compact revision were kept; now they may be
    /// removed.
    fn adopt(&mut self, target: i64) {
        if self.target != target {
            self.next = self.next.min(Revision::first(self.target));
            self.target = target;
        }
    }

    fn finish(&mut self, target: i64) {
        self.through = target;
        self.next = Revision::first(target);
    }

    fn write<S: Store>(&self, store: &mut S) {
        let mut bytes = BytesMut::with_capacity(SWEEP_BYTES);
        bytes.put_i64(self.through);
        bytes.put_i64(self.target);
        bytes.put_slice(&keys::event_key(self.next));
        bytes.put_u128(self.removed);
        // No content hash covers this record.
        bytes.put_u64(xxh3_64(&bytes));
        store.put(Space::Local, Bytes::from_static(SWEEP), bytes.freeze());
    }

    fn decode(record: &[u8]) -> Result<Self, Fault> {
        let damaged = Fault::Damaged {
            space: Space::Local,
            what: "a record of compaction that does not read",
        };
        if record.len() != SWEEP_BYTES {
            return Err(damaged);
        }
        let (mut fields, mut checksum) = record.split_at(SWEEP_BYTES - 8);
        if checksum.get_u64() != xxh3_64(fields) {
            return Err(damaged);
        }
        let (through, target) = (fields.get_i64(), fields.get_i64());
        let (next, mut removed) = fields.split_at(12);
        Ok(Self {
            through,
            target,
            next: keys::event_revision(next)?,
            removed: removed.get_u128(),
        })
    }
}
