//! Removes compacted history from the disk, beside the thread that applies.
//!
//! [`kv::compact_step`] says which records go; here they are taken out, each step one atomic batch.
//! That a second thread writes is safe because the two never write the same record: a step touches
//! only events and history that the compact revision has given up, and its own place in
//! [`Space::Local`]; apply adds events and history above that revision and reads none below it. So
//! neither waits for the other, but for the moment in which the engine takes one batch in.
//!
//! Taking out does not make a file smaller: an engine of this kind writes down that a record is
//! gone, and drops both when it merges tables. It merges by what is written, so what was given up
//! would stay until as much again was written. [`CompactionGc::reclaim`] has the tables merged at once. It
//! costs reading and writing all the history that is left, so it is done when a good part of the
//! tables is known to be garbage: then the work is a fixed multiple of what it frees. How much
//! garbage there is stands beside the place of the removal and survives restarts.

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
/// Tables are merged from this part of them on: one in so many bytes is garbage.
const RECLAIM_PART: u64 = 4;
/// Interval between checks whether the engine has written a memtable out.
const FLUSH_POLL: Duration = Duration::from_millis(20);
/// Number of times that the removal of merged files is triggered.
const RELEASES: usize = 3;
/// The record of [`Space::Local`] that counts bytes removed since tables were last merged for them.
pub(super) const GARBAGE: &[u8] = b"garbage";
/// The keyspaces that compaction removes from.
const GC_SPACES: [Space; 2] = [Space::History, Space::Events];

/// Removes what is compacted. One at most may be at work on a store.
pub struct CompactionGc {
    current: Current,
}

/// What it works on, for one call.
struct Work {
    front: Arc<Front<Tables>>,
}

/// What one [`CompactionGc::step`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcStep {
    /// What was looked at and removed.
    pub step: CompactionStep,
    /// Everything is removed that the compaction at this revision gave up.
    pub through: i64,
}

impl StateStore {
    /// Removes compacted history. At most one may be at work at a time.
    pub fn compaction_gc(&self) -> CompactionGc {
        CompactionGc {
            current: self.current.clone(),
        }
    }
}

impl CompactionGc {
    /// Removes some of what is compacted, and says whether there is more. A crash takes back whole
    /// steps, never a part of one.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn step(&mut self, budget: &CompactionBudget) -> Result<GcStep, StoreError> {
        self.run(|work| work.step(budget))
    }

    /// Everything is removed that the compaction at this revision gave up.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn through(&self) -> Result<i64, StoreError> {
        let compacted = self.run(|work| kv::compacted(&work.front.settled()?));
        Ok(compacted?.through)
    }

    /// Whether so much was removed that [`CompactionGc::reclaim`] is worth its work.
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

    /// Merges the tables of history and events, so that what was removed leaves the disk. Blocks the
    /// caller by the size of these tables; others may read and write meanwhile. What is removed
    /// while it runs counts for the next time.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn reclaim(&mut self) -> Result<(), StoreError> {
        self.run(|work| boundary::contain(|| work.reclaim()))
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
        let changes: Vec<_> = overlay.into_changes().collect();
        let changes = changes.iter().map(|(space, changes)| (*space, changes));
        self.front
            .database()
            .commit("removing compacted history", changes)?;
        Ok(GcStep { step, through })
    }

    fn garbage(&self) -> Result<u64, StoreError> {
        read_garbage(&self.front.settled()?)
    }

    fn reclaim(&self) -> Result<(), StoreError> {
        let garbage = self.garbage()?;
        let merging = |error| StoreError::from_fjall("merging tables", error);
        // Where nothing is written any more because there is no room, no merge would ever come by
        // that drops deleted keys: they are what was deleted to make room.
        let is_full = self.front.settled()?.space_alarm().is_some();
        let full = is_full.then_some(Space::Current);
        let merged = || GC_SPACES.into_iter().chain(full);
        for space in merged() {
            let keyspace = self.front.database().space(space);
            keyspace.rotate_memtable().map_err(merging)?;
        }
        // The journals hold what was removed, too. They go when everyone's memtable has.
        for (slot, keyspace) in self.front.database().spaces.iter().enumerate() {
            if merged().all(|space| space.slot() != slot) {
                keyspace.rotate_memtable().map_err(merging)?;
            }
        }
        for space in merged() {
            let keyspace = self.front.database().space(space);
            // What is not in a table yet is not merged.
            while keyspace.sealed_memtable_count() > 0 {
                // An engine that has failed flushes nothing any more, and says so to writers.
                self.set_garbage(garbage)?;
                thread::sleep(FLUSH_POLL);
            }
            keyspace.major_compact().map_err(merging)?;
        }
        // The engine keeps the files that it has merged for those who may still read them, and looks
        // whether anybody does when a memtable is written out: so one is, and again for those who
        // were just reading.
        for _ in 0..RELEASES {
            // Only now: what a crash leaves unmerged is still counted.
            self.set_garbage(0)?;
            let local = self.front.database().space(Space::Local);
            local.rotate_memtable().map_err(merging)?;
            thread::sleep(FLUSH_POLL);
        }
        Ok(())
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
