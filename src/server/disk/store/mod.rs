//! The state on fjall: what the state machine has applied so far.
//!
//! Nothing here is synced while the node works. Every batch carries the applied entry with what it
//! changed, so a crash takes the state back to some earlier moment of itself, and the Raft log,
//! which is synced, replays the rest. [`StateStore::persist`] makes it durable where that matters:
//! before the log is cut, and at a graceful stop.
//!
//! What the disk gives back is not trusted blindly (D1). After anything but a clean stop
//! [`StateStore::needs_verification`] is set, and [`StateReader::verify`] reads everything and
//! compares it with the content hash; a state that fails is rebuilt, never served. fjall may panic
//! on damaged tables, so opening and verifying run inside a boundary ([`contains_panic`]).
//!
//! One thread owns the [`StateStore`] and applies, one [`CompactionGc`] beside it removes compacted history,
//! and any number read through [`StateReader`]s. Point
//! reads come from a bounded cache of current records where they can; whatever
//! needs more than one record takes a [`Snapshot`].
//!
//! How a batch is published and a key is read is not decided here: fjall is the database ([`Tables`])
//! behind the [front](crate::front), which is what makes this linearizable.
//!
//! A whole state goes out as chunks by an [`Export`], and comes in by an [`Import`] into a directory of
//! its own. From there it takes the place of this one while all of these go on (`replace.rs`).
//!
//! Every error is fatal: the store is poisoned by it and answers nothing any more, but what it was.
//!
//! On disk, under the directory given: `format` (which version wrote this), `lock` (held while
//! open), `clean` (present after a clean stop; says of which state), `db` (fjall's own).

mod boundary;
mod compaction_gc;
mod counts;
mod error;
mod export;
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

use crate::front::{Batch, Durable, Front, Writer};
use crate::kv;
use crate::kv::access::Policy;
use crate::kv::{Change, Reply};
use crate::types::LogId;

use marks::{CleanMark, Directory};
use reader::Current;
use tables::open_database;

pub use crate::front::Point;
pub use boundary::contains_panic;
pub use compaction_gc::{CompactionGc, GcStep};
pub use counts::Operations;
pub use error::{Failure, StoreError};
pub use export::{Export, Origin};
pub use import::{Import, ImportError};
pub use journal::Journal;
pub use keeper::Keeper;
pub use key_counter::KeyCounter;
pub use options::StoreOptions;
pub use reader::{Gate, HashReport, Snapshot, StateReader};
pub use replace::RetiredStore;
pub use tables::Tables;

/// The state, in the hands of the one thread that applies.
pub struct StateStore {
    writer: Writer<Tables>,
    /// For all who read.
    current: Current,
    needs_verification: bool,
}

/// One entry of a batch, applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedEntry {
    /// The entry.
    pub id: LogId,
    /// Its answer.
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

    /// Opens the state in `directory`, or makes an empty one there.
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

        // A state at entry 0 is not new for that: its journal may be lost, and its tables not.
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

    /// Whether the last stop was not a clean one: then [`StateReader::verify`] must have passed
    /// before anything is served from here.
    pub fn needs_verification(&self) -> bool {
        self.needs_verification
    }

    /// A handle for reading.
    pub fn reader(&self) -> StateReader {
        StateReader {
            current: self.current.clone(),
        }
    }

    /// Applies entries in their order, all or none, publishes the state they lead to and hands it
    /// to the database. `None` is an entry without a command. Not synced.
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

    /// As [`StateStore::apply_batch`], but the database is not given the changes yet: readers find
    /// them ahead of it until [`StateStore::settle`]. So answers need not wait for it. If `tells`, it
    /// also says what was changed, for watches.
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
            self.writer.settle()?;
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

    /// Hands the database what was last applied ahead of it. Whatever writes to the database by
    /// another way does this first.
    ///
    /// # Errors
    /// Every error is fatal.
    pub fn settle(&mut self) -> Result<(), StoreError> {
        self.tables().check_poison()?;
        let result = self.writer.settle();
        self.tables().poison_on_error(result)
    }

    /// Makes everything applied so far durable.
    ///
    /// # Errors
    /// Every error is fatal: after a failed sync it is unknown what is on the disk.
    pub fn persist(&mut self) -> Result<Durable, StoreError> {
        self.tables().check_poison()?;
        let result = self.writer.persist();
        self.tables().poison_on_error(result)
    }

    /// Makes everything durable and has it noted that the stop was clean, so that the next start need
    /// not verify. It is noted, and the directory unlocked, when the last reader and snapshot are gone.
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
        // A state that was not proved good must not look good to the next start.
        if !self.needs_verification {
            let mark = clean_mark(&self.writer.front().snapshot()?)?;
            *self.tables().farewell.mark() = Some(mark);
        }
        Ok(durable)
    }

    /// Takes note of what [`StateReader::verify`] has found: a sound state needs no further
    /// verification, and may be marked clean when it is closed.
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
