//! Compaction: history that nobody may ask for any more is given up, and leaves the store.
//!
//! These are two things at two times. The logged command moves the compact revision C, on every
//! replica at the same entry and in no time: from then on reads below C are refused, and so are
//! watches that begin below it. The records go later, in steps of bounded work
//! ([`compact_step`]), at each replica's own pace, between entries. Nothing that apply or a reader
//! answers depends on how far that is.
//!
//! What stays: the events from C on, because a watch may begin at C; and of each key the newest
//! record at or below C, because a read at C is allowed, unless it is a tombstone. The steps walk
//! along the events, oldest first, so they cost by what is given up and not by what is stored. Each
//! event at or below C names the revision that it superseded; that record goes, and after a delete
//! the tombstone with it, in the same step, so that no key comes back to life between.
//!
//! How far a replica is stands in [`Space::Local`] with the sum of what it has removed: the content
//! hash still counts these records (`hash.rs`). Once two replicas are through with the same C they
//! have removed the same, so their sums must be equal then.

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

/// What is wrong with reading at `revision`, if anything. 0 stands for the current one.
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

/// How much one [`compact_step`] may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionBudget {
    /// At most this many events, and as many records of history; at least one.
    pub events: usize,
    /// From this many bytes of removed records on, the step ends.
    pub bytes: usize,
}

/// What one [`compact_step`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionStep {
    /// Events looked at.
    pub events: usize,
    /// Records removed, of any kind.
    pub removed: usize,
    /// The bytes of these, keys included.
    pub bytes: usize,
    /// Nothing is left to remove at the compact revision of this moment.
    pub finished: bool,
}

/// How far a replica has removed what is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Everything that the compaction at this revision gives up has been removed.
    pub through: i64,
    /// The sum of the hashes of all that was removed so far. Equal on replicas whose `through` is
    /// equal, unless one of them has begun with a later compaction.
    pub removed: ContentHash,
    /// No later compaction has begun to remove anything.
    pub is_settled: bool,
}

/// How far `view`'s replica has removed what is compacted.
///
/// # Errors
/// The store's own; fatal for whoever reads it.
pub fn compacted<V: View>(view: &V) -> Result<Compacted, V::Error> {
    let sweep = Sweep::read(view)?;
    Ok(Compacted {
        through: sweep.through,
        removed: ContentHash(sweep.removed),
        is_settled: sweep.next == Revision::first(sweep.through),
    })
}

/// The sum of what compaction has removed from `view`.
pub(super) fn removed<V: View>(view: &V) -> Result<ContentHash, V::Error> {
    Sweep::read(view).map(|sweep| ContentHash(sweep.removed))
}

/// Removes some of what is compacted. To be committed in one piece: a part of it would leave a
/// state that was never whole.
///
/// # Errors
/// Those of the store. After an error `store` may hold half of the step: discard it.
pub fn compact_step<S: Store>(
    store: &mut S,
    budget: &CompactionBudget,
) -> Result<CompactionStep, S::Error> {
    let target = meta::progress(store)?.compact_revision;
    let mut sweep = Sweep::read(store)?;
    let mut step = CompactionStep::default();
    if sweep.through == target {
        step.finished = true;
        return Ok(step);
    }
    sweep.adopt(target);

    let span = Span::between(
        keys::event_key(sweep.next),
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
        sum: sweep.removed,
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
        sweep.next = place.next();
        step.events += 1;
    }
    step.removed = remover.removed;
    step.bytes = remover.bytes;
    sweep.removed = remover.sum;
    if all && is_last {
        sweep.finish(target);
        step.finished = true;
    }
    sweep.write(store);
    Ok(step)
}

/// Takes records away and adds them up.
struct Remover<'a, S> {
    store: &'a mut S,
    hasher: RecordHasher,
    sum: u128,
    removed: usize,
    bytes: usize,
}

impl<S: Store> Remover<'_, S> {
    /// Removes what the change `event` at `place` made superfluous. What is gone already is passed
    /// over: events at the compact revision are met again by the next compaction.
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
        // A copy, because a key read from disk may hold on to the whole block it came from.
        self.store.delete(space, Bytes::copy_from_slice(&key));
    }
}

/// The one record of [`Space::Local`] that is ours.
const SWEEP: &[u8] = b"compaction";
const SWEEP_BYTES: usize = 52;

/// How far the removal is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sweep {
    /// The compact revision that was last finished.
    through: i64,
    /// The one being worked on; `through` when none is.
    target: i64,
    /// The next event to look at. Those before it have been dealt with, as far as `target` goes.
    next: Revision,
    /// The sum of the hashes of what is gone.
    removed: u128,
}

impl Sweep {
    fn read<V: View>(view: &V) -> Result<Self, V::Error> {
        match view.get(Space::Local, SWEEP)? {
            Some(record) => Ok(Self::decode(&record)?),
            None => Ok(Self::default()),
        }
    }

    /// Works for `target` from here on. The events at the compact revision before it stayed; now
    /// they may go.
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
