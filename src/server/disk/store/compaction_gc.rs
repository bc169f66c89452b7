//! Removes compacted history from the disk, concurrently with the state thread.
//!
//! [`kv::compact_step`] selects the records; here each step deletes them in one atomic batch. A second
//! writer is safe because the two never change the same record: a step touches only events and history
//! obsolete at the compact revision, and its own progress in [`Space::Local`]; apply adds events and history
//! above that revision and reads none below it. A step goes by the compaction that the database has, which may
//! be behind the one that is applied, and takes turns with the hand-overs of what is ahead of the database.
//! Events share records there (`event_packs.rs`), but a hand-over adds none to a record that is there.
//!
//! Deletion does not free disk space: an LSM engine writes a tombstone, and drops both when it merges
//! tables. It merges in proportion to writes, so deleted records would stay until as much again was
//! written. [`CompactionGc::reclaim`] merges the tables at once. That reads and writes all remaining
//! history, so it runs only when a large part of the tables is garbage: then its work is a fixed multiple
//! of the space it frees. The amount of garbage is stored beside the progress and survives restarts.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;

use super::error::StoreError;
use super::reader::Current;
use super::{StateStore, Tables, boundary};
use crate::front::Front;
use crate::kv;
use crate::kv::{CompactionBudget, CompactionStep, Fault, Overlay, Space, View};

/// Tables are not merged for less garbage than this.
const RECLAIM_BYTES_MIN: u64 = 16 << 20;
/// Tables are merged when at least one in this many bytes is garbage.
const RECLAIM_PART: u64 = 4;
/// Interval between checks of whether the engine has flushed a memtable.
const FLUSH_POLL: Duration = Duration::from_millis(20);
/// Interval between checks of whether older snapshots are still held.
const SNAPSHOT_POLL: Duration = Duration::from_millis(5);
/// How often that is checked at most.
const SNAPSHOT_POLLS: u32 = 1000;
/// The record of [`Space::Local`] that counts bytes removed since tables were last merged for them.
pub(super) const GARBAGE: &[u8] = b"garbage";
/// The keyspaces that compaction removes from.
const GC_SPACES: [Space; 2] = [Space::History, Space::Events];

/// Removes compacted history. At most one may run on a store.
pub struct CompactionGc {
    current: Current,
}

/// The state that one call works on.
struct Work {
    front: Arc<Front<Tables>>,
}

/// What [`CompactionGc::reclaim`] merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimScope {
    /// The tables of history and events, which compaction removes from.
    History,
    /// Those of current records, too: the engine may still hold values there that were replaced.
    All,
}

/// The result of one [`CompactionGc::step`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcStep {
    /// The records examined and removed.
    pub step: CompactionStep,
    /// The revision through which compaction has removed everything.
    pub through: i64,
}

impl StateStore {
    /// A collector of compacted history. At most one may run at a time.
    pub fn compaction_gc(&self) -> CompactionGc {
        CompactionGc {
            current: self.current.clone(),
        }
    }
}

impl CompactionGc {
    /// Removes some compacted history, and returns whether there is more. A crash undoes whole steps,
    /// never a part of one.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn step(&mut self, budget: &CompactionBudget) -> Result<GcStep, StoreError> {
        self.run(|work| work.front.between_hand_overs(|| work.step(budget)))
    }

    /// The revision through which compaction has removed everything.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn through(&self) -> Result<i64, StoreError> {
        let compacted = self.run(|work| kv::compacted(&work.front.settled()?));
        Ok(compacted?.through)
    }

    /// Whether there is enough garbage for [`CompactionGc::reclaim`].
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn is_reclaim_due(&self) -> Result<bool, StoreError> {
        self.run(|work| {
            let garbage = work.garbage()?;
            let spaces = &work.front.database().spaces;
            let tables = GC_SPACES
                .iter()
                .map(|space| spaces[space.slot()].disk_space());
            let tables: u64 = tables.sum();
            Ok(garbage >= RECLAIM_BYTES_MIN && garbage >= tables / RECLAIM_PART)
        })
    }

    /// How many bytes [`CompactionGc::reclaim`] may write before it gives any back.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn reclaim_bytes(&self) -> Result<u64, StoreError> {
        self.run(|work| {
            let tables = work.front.database().table_bytes();
            Ok(tables.saturating_sub(work.garbage()?))
        })
    }

    /// Merges tables, which frees the space of removed records. Blocks the caller
    /// in proportion to the size of these tables; other threads can read and write meanwhile. Records
    /// removed while it runs count for the next time. Returns false, and has merged nothing, if a snapshot
    /// from before this call is held for more than a few seconds, as backups do: then nothing would be freed.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn reclaim(&mut self, scope: ReclaimScope) -> Result<bool, StoreError> {
        self.run(|work| boundary::contain(|| work.reclaim(scope)))
    }

    #[cfg(test)]
    pub(super) fn garbage(&self) -> Result<u64, StoreError> {
        self.run(Work::garbage)
    }

    fn run<T>(&self, work: impl FnOnce(&Work) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let front = self.current.get();
        front.database().check_poison()?;
        let this = Work { front };
        let result = work(&this);
        this.front.database().poison_on_error(result)
    }
}

impl Work {
    fn step(&self, budget: &CompactionBudget) -> Result<GcStep, StoreError> {
        let mut overlay = Overlay::new(self.front.settled()?);
        let step = kv::compact_step(&mut overlay, budget)?;
        let through = kv::compacted(&overlay)?.through;
        if step.bytes > 0 {
            let garbage = read_garbage(&overlay)?.saturating_add(step.bytes as u64);
            write_garbage(&mut overlay, garbage);
        }
        self.front
            .database()
            .commit("removing compacted history", overlay.last_changes())?;
        Ok(GcStep { step, through })
    }

    fn garbage(&self) -> Result<u64, StoreError> {
        read_garbage(&self.front.settled()?)
    }

    fn reclaim(&self, scope: ReclaimScope) -> Result<bool, StoreError> {
        let garbage = self.garbage()?;
        // The engine keeps what the last write before a snapshot has replaced, so this one comes between.
        self.set_garbage(garbage)?;
        if !self.wait_for_earlier_snapshots() {
            return Ok(false);
        }
        let merging = |error| StoreError::from_fjall("merging tables", error);
        // On a full disk writes are refused, so no merge would ever drop the keys that were deleted to
        // make room.
        let is_full = self.front.settled()?.space_alarm().is_some();
        let current = (is_full || scope == ReclaimScope::All).then_some(Space::Current);
        let merged = || GC_SPACES.into_iter().chain(current);
        // The journals contain the removed records, too. They are deleted once every memtable is flushed. The
        // first to go tells the engine which versions the flushes of the others need not keep.
        for (slot, keyspace) in self.front.database().spaces.iter().enumerate() {
            if merged().all(|space| space.slot() != slot) {
                keyspace.rotate_memtable().map_err(merging)?;
            }
        }
        for space in merged() {
            let keyspace = self.front.database().space(space);
            keyspace.rotate_memtable().map_err(merging)?;
        }
        for space in merged() {
            let keyspace = self.front.database().space(space);
            // Only records in tables are merged.
            while keyspace.sealed_memtable_count() > 0 {
                // A failed engine flushes nothing more, and reports the error to writers.
                self.set_garbage(garbage)?;
                thread::sleep(FLUSH_POLL);
            }
            keyspace.major_compact().map_err(merging)?;
        }
        // Reset last, so that after a crash the unmerged garbage is still counted.
        self.set_garbage(0)?;
        // The engine keeps merged files for their readers, and checks for readers when it flushes a
        // memtable. Those of longer readers go with a later one.
        self.wait_for_earlier_snapshots();
        let local = self.front.database().space(Space::Local);
        local.rotate_memtable().map_err(merging)?;
        Ok(true)
    }

    /// Whether they are all dropped. Waits for that, but not for long.
    fn wait_for_earlier_snapshots(&self) -> bool {
        let mut earlier = self.front.database().earlier_snapshots();
        (0..SNAPSHOT_POLLS).any(|poll| {
            if poll > 0 {
                thread::sleep(SNAPSHOT_POLL);
            }
            earlier.are_dropped()
        })
    }

    fn set_garbage(&self, garbage: u64) -> Result<(), StoreError> {
        let tables = self.front.database();
        let mut batch = tables.database.batch();
        let local = tables.space(Space::Local);
        batch.insert(local, Bytes::from_static(GARBAGE), garbage_record(garbage));
        batch
            .commit()
            .map_err(|error| StoreError::from_fjall("removing compacted history", error))
    }
}

fn read_garbage<V: View>(view: &V) -> Result<u64, V::Error> {
    let Some(record) = view.get(Space::Local, GARBAGE)? else {
        return Ok(0);
    };
    let bytes = <[u8; 8]>::try_from(record.as_ref()).map_err(|_| Fault::Damaged {
        space: Space::Local,
        what: "a count of removed bytes of the wrong size",
    })?;
    Ok(u64::from_be_bytes(bytes))
}

fn write_garbage(store: &mut impl kv::Store, garbage: u64) {
    store.put(
        Space::Local,
        Bytes::from_static(GARBAGE),
        garbage_record(garbage),
    );
}

fn garbage_record(garbage: u64) -> Bytes {
    Bytes::copy_from_slice(&garbage.to_be_bytes())
}
