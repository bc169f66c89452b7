//! The state machine's applied state, stored in fjall.
//!
//! What is applied lies in memory, ahead of the database, until it is handed over ([`HandOver`]), several batches
//! together, and none of that is synced. The applied index is handed over together with the changes that it
//! stands for, so a crash returns the state to an earlier applied index, and the synced Raft log replays the rest.
//! [`StateStore::persist`] makes the state durable where that is required: before the log is truncated, and
//! at a graceful stop.
//!
//! Data read from disk is verified (D1). After an unclean stop [`StateStore::needs_verification`] is set,
//! and [`StateReader::verify`] reads everything and compares it with the content hash; a state that fails
//! is rebuilt, never served. fjall may panic on damaged tables, so opening and verifying run inside a
//! boundary ([`contains_panic`]).
//!
//! One thread owns the [`StateStore`] and applies, another hands over to the database what it has applied, one
//! [`CompactionGc`] beside them removes compacted history, and any number of threads read through [`StateReader`]s. Point reads use a bounded cache of current
//! records; a read of more than one record takes a [`Snapshot`].
//!
//! The [front](crate::front) decides how a batch is published and a key is read, and makes this
//! linearizable; fjall is the database ([`Tables`]) behind it.
//!
//! An [`Export`] sends a whole state as chunks, and an [`Import`] receives one into a separate directory.
//! The imported state then replaces this one without interrupting readers (`replace.rs`).
//!
//! Every error is fatal: it poisons the store, which then answers every call with that error.
//!
//! On disk, under the given directory: `format` (the version that wrote it), `lock` (held while open),
//! `clean` (present after a clean stop; identifies the state), `db` (fjall's files). In the database each record has
//! a place of its own, but for events (`event_packs.rs`).

mod boundary;
mod compaction_gc;
mod counts;
mod error;
mod event_packs;
mod export;
mod hand_over;
mod import;
mod journal;
mod keeper;
mod key_counter;
mod marks;
mod options;
mod reader;
mod replace;
mod tables;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use fjall::PersistMode;

use crate::front::{Batch, Durable, Front, Growth, Writer};
use crate::kv;
use crate::kv::access::Policy;
use crate::kv::{Change, Reply};
use crate::types::LogId;

use marks::{CleanMark, Directory};
use reader::Current;
use tables::open_database;

pub use crate::front::Point;
pub use boundary::contains_panic;
pub use compaction_gc::{CompactionGc, GcStep, ReclaimScope};
pub use counts::Operations;
pub use error::{Failure, StoreError};
pub use export::{Export, Origin};
pub use hand_over::HandOver;
pub use import::{Import, ImportError};
pub use journal::Journal;
pub use keeper::Keeper;
pub use key_counter::KeyCounter;
pub use options::StoreOptions;
pub use reader::{Gate, HashReport, Snapshot, StateReader};
pub use replace::RetiredStore;
pub use tables::Tables;

/// The state, owned by the thread that applies entries.
pub struct StateStore {
    writer: Writer<Tables>,
    /// Shared with all readers.
    current: Current,
    needs_verification: bool,
}

/// One entry of a batch, applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedEntry {
    /// The entry.
    pub id: LogId,
    /// Its reply.
    pub reply: Reply,
}

impl StateStore {
    /// Refuses a state that a later release wrote, before anything else of this node is touched.
    ///
    /// # Errors
    /// [`StoreError::NewerFormat`], and no other.
    pub fn refuse_newer_format(directory: &Path) -> Result<(), StoreError> {
        marks::refuse_newer_format(directory)
    }

    /// Opens the state in `directory`, or creates an empty one.
    ///
    /// # Errors
    /// The directory is in use, foreign, of a newer format, damaged, or cannot be read or written.
    pub fn open(directory: &Path, options: &StoreOptions) -> Result<Self, StoreError> {
        boundary::contain(|| Self::open_unguarded(directory, options))
    }

    fn open_unguarded(path: &Path, options: &StoreOptions) -> Result<Self, StoreError> {
        let directory = Directory::claim(path)?;
        let mark = marks::take_clean_mark(directory.path())?;
        let opened = open_database(&directory, options)?;
        directory.finish_creation(|| {
            opened
                .0
                .persist(PersistMode::SyncAll)
                .map_err(|error| StoreError::from_fjall("creating the state", error))
        })?;

        // Applied index 0 does not prove a new state: the journal may be lost and the tables left.
        let is_new = directory.is_new();
        let front = Front::open(Tables::new(directory, opened), options.record_cache_bytes)?;
        let snapshot = front.snapshot()?;
        let gate = Gate::default();
        gate.publish(Arc::new(Policy::of(&snapshot)?));

        let is_clean = mark == Some(clean_mark(&snapshot)?);
        let writer = Writer::new(front);
        Ok(Self {
            current: Current::new(writer.handle(), gate),
            writer,
            needs_verification: !is_clean && !is_new,
        })
    }

    fn tables(&self) -> &Tables {
        self.writer.front().database()
    }

    /// Whether the last stop was unclean: then [`StateReader::verify`] must succeed before the state is
    /// served.
    pub fn needs_verification(&self) -> bool {
        self.needs_verification
    }

    /// A handle for reading.
    pub fn reader(&self) -> StateReader {
        StateReader {
            current: self.current.clone(),
        }
    }

    /// Applies entries in order, all or none, publishes the resulting state and writes it to the
    /// database. `None` is an entry without a command. Not synced.
    ///
    /// # Errors
    /// Every error is fatal. [`StoreError::OutOfOrder`]: the entries do not follow what is applied.
    pub fn apply_batch(
        &mut self,
        entries: &[(LogId, Option<Bytes>)],
    ) -> Result<Vec<AppliedEntry>, StoreError> {
        let (applied, _) = self.apply_ahead(entries, false)?;
        self.settle()?;
        Ok(applied)
    }

    /// As [`StateStore::apply_batch`], but does not write to the database: readers find the changes ahead of
    /// it until they are handed over ([`HandOver`]). So nothing waits for the database. If `tells`, also
    /// returns the changes, for watches.
    ///
    /// # Errors
    /// Every error is fatal, and the state stays as it was published before. [`StoreError::OutOfOrder`]:
    /// the entries do not follow what is applied.
    pub fn apply_ahead(
        &mut self,
        entries: &[(LogId, Option<Bytes>)],
        tells: bool,
    ) -> Result<(Vec<AppliedEntry>, Option<Vec<Change>>), StoreError> {
        self.tables().check_poison()?;
        let result = self.apply_unguarded(entries, tells);
        self.tables().poison_on_error(result)
    }

    fn apply_unguarded(
        &mut self,
        entries: &[(LogId, Option<Bytes>)],
        tells: bool,
    ) -> Result<(Vec<AppliedEntry>, Option<Vec<Change>>), StoreError> {
        if entries.is_empty() {
            return Ok((Vec::new(), tells.then(Vec::new)));
        }
        let mut batch = Batch::begin(&mut self.writer)?;
        let mut applied = Vec::with_capacity(entries.len());
        for (id, command) in entries {
            let reply = batch.apply(*id, command.as_deref())?;
            applied.push(AppliedEntry { id: *id, reply });
        }
        let gate = self.current.gate();
        if gate.policy().status() != kv::progress(&batch)?.access {
            gate.publish(Arc::new(Policy::of(&batch)?));
        }
        let changes = tells.then(|| batch.changes()).transpose()?;
        let done = batch.key_changes()?;
        batch.show()?.cache()?.revise().publish();
        self.tables().keys.changed(done.more);
        self.current.operations().done(done);
        Ok((applied, changes))
    }

    /// What the last batch has added to what is ahead of the database.
    pub fn growth(&self) -> Growth {
        self.writer.growth()
    }

    /// Merges some of what is ahead of the database in memory, which keeps reads short. To be called after
    /// each [`StateStore::apply_ahead`], once the replies are out.
    pub fn merge_runs(&mut self) {
        self.writer.merge_runs();
    }

    /// Writes everything to the database that is ahead of it.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn settle(&mut self) -> Result<(), StoreError> {
        self.tables().check_poison()?;
        let result = self.writer.settle();
        self.tables().poison_on_error(result).map(|_| ())
    }

    /// Makes everything applied so far durable.
    ///
    /// # Errors
    /// Every error is fatal: after a failed sync the content of the disk is unknown.
    pub fn persist(&mut self) -> Result<Durable, StoreError> {
        self.tables().check_poison()?;
        let result = self.writer.persist();
        self.tables().poison_on_error(result)
    }

    /// Makes everything durable and marks the stop as clean, so that the next start need not verify. The
    /// mark is written, and the directory unlocked, when the last reader and snapshot are gone.
    ///
    /// # Errors
    /// As [`StateStore::persist`].
    pub fn close(mut self) -> Result<Durable, StoreError> {
        self.persist_clean()
    }

    /// As [`StateStore::close`], but the store stays open. Nothing may be applied to it after this.
    ///
    /// # Errors
    /// As [`StateStore::persist`].
    pub fn persist_clean(&mut self) -> Result<Durable, StoreError> {
        let durable = self.persist()?;
        // An unverified state must not pass as verified at the next start.
        if !self.needs_verification {
            let mark = clean_mark(&self.writer.front().snapshot()?)?;
            *self.tables().farewell.mark() = Some(mark);
        }
        Ok(durable)
    }

    /// Records the result of [`StateReader::verify`]: a sound state needs no further verification, and may
    /// be marked clean when it is closed.
    pub fn verified(&mut self, report: &HashReport) {
        if report.is_sound() {
            self.needs_verification = false;
        }
    }
}

fn clean_mark(snapshot: &Snapshot) -> Result<CleanMark, StoreError> {
    Ok(CleanMark {
        applied: snapshot.applied(),
        hash: kv::content_hash(snapshot)?,
    })
}
