//! The steps of publication, each made only from the one before.

use std::ops::DerefMut;
use std::sync::Arc;

use bytes::Bytes;

use crate::kv;
use crate::kv::{
    Change, KeyChanges, LoadRefusal, LoadedPart, Overlay, Pair, Progress, Reply, Space, Span, View,
};
use crate::types::LogId;
use crate::wire::point::Record;

use super::ahead::{Growth, HandedOver, Run};
use super::cache::CachedKey;
use super::database::Database;
use super::durable::Durable;
use super::state::{Front, Handle, Snapshot};

/// The right to change a state: there is one of it, for the one thread that applies.
pub struct Writer<D: Database> {
    front: Arc<Front<D>>,
    /// The same, for all who read.
    handle: Handle<D>,
    /// By the last batch.
    growth: Growth,
}

impl<D: Database> Writer<D> {
    /// For the database behind `front`, of which this is the only writer.
    pub fn new(front: Arc<Front<D>>) -> Self {
        let handle = Handle::new(Arc::clone(&front));
        Self {
            front,
            handle,
            growth: Growth::default(),
        }
    }

    /// The front of the state in use.
    pub fn front(&self) -> &Arc<Front<D>> {
        &self.front
    }

    /// For those who read.
    pub fn handle(&self) -> Handle<D> {
        self.handle.clone()
    }

    /// Hands the database everything that is ahead of it.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn settle(&mut self) -> Result<HandedOver, D::Error> {
        self.front.hand_over(usize::MAX)
    }

    /// What the last batch has added to what is ahead of the database. If there was nothing before it, a
    /// thread that hands over is to be told.
    pub fn growth(&self) -> Growth {
        self.growth
    }

    /// Merges some of what is ahead of the database, so that looks need not search many batches. To be
    /// called after every batch, once its writers are answered.
    pub fn merge_runs(&mut self) {
        self.front.merge_runs();
    }

    /// Makes everything applied so far durable.
    ///
    /// # Errors
    /// Any is fatal: after a failed sync the content of the disk is unknown.
    pub fn persist(&mut self) -> Result<Durable, D::Error> {
        self.settle()?;
        self.front.persist()
    }

    /// Puts `newer` in the place of this state: every later read, by any handle, finds
    /// that one. `newer` has applied at least as much, and has no other handle yet.
    pub fn replace(&mut self, newer: Self) -> RetiredState<D> {
        self.handle.set(Arc::clone(&newer.front));
        let front = std::mem::replace(&mut self.front, newer.front);
        RetiredState { front }
    }
}

/// A state that another one has taken the place of. A reader that has begun on it finishes there, so it
/// stays until its last reader is gone.
pub struct RetiredState<D: Database> {
    front: Arc<Front<D>>,
}

impl<D: Database> RetiredState<D> {
    /// The front that was in use.
    pub fn front(&self) -> &Front<D> {
        &self.front
    }

    /// The database, unless a reader still holds it.
    ///
    /// # Errors
    /// A reader does.
    pub fn into_database(self) -> Result<D, Self> {
        Front::into_database(self.front).map_err(|front| Self { front })
    }
}

/// What a batch is applied to: the state as it is, its current records from the cache where they are.
/// Finding one there costs a fraction of what a database asks for it.
struct Base<D: Database> {
    snapshot: Snapshot<D>,
}

impl<D: Database> View for Base<D> {
    type Error = D::Error;

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, D::Error> {
        if space == Space::Current {
            match self.snapshot.front().known(key) {
                Some(CachedKey::Present(record)) => {
                    let mut kv = record.to_key_value();
                    kv.version += i64::from(planted!(StateDiverges));
                    return Ok(Some(kv::record_of(&kv)));
                }
                Some(CachedKey::Absent { .. }) => return Ok(None),
                None => {}
            }
        }
        self.snapshot.get(space, key)
    }

    fn range(
        &self,
        space: Space,
        span: &Span,
    ) -> impl Iterator<Item = Result<Pair, D::Error>> + use<'_, D> {
        self.snapshot.range(space, span)
    }
}

/// Entries that are being applied. Their changes are visible through this value alone; dropped, it
/// was never there.
#[must_use = "nobody sees what was applied until it is published"]
pub struct Batch<W, D: Database> {
    writer: W,
    overlay: Overlay<Base<D>>,
}

impl<W, D> Batch<W, D>
where
    W: DerefMut<Target = Writer<D>>,
    D: Database,
{
    /// Begins a batch above everything that was published before.
    ///
    /// # Errors
    /// Any is fatal.
    pub fn begin(writer: W) -> Result<Self, D::Error> {
        let snapshot = writer.front.newest()?;
        let overlay = Overlay::new(Base { snapshot });
        Ok(Self { writer, overlay })
    }

    /// Applies the next entry. `command` is `None` for an entry without one.
    ///
    /// # Errors
    /// Those of [`kv::apply`]: fatal, and this batch is to be dropped.
    pub fn apply(&mut self, id: LogId, command: Option<&[u8]>) -> Result<Reply, D::Error> {
        let reply = kv::apply(&mut self.overlay, id, command)?;
        planted!(AppliedBeforeShown => self.writer.front.set_applied(id.index));
        Ok(reply)
    }

    /// Makes of a state that was taken from a backup the one that a new cluster begins with
    /// ([`kv::reset_identity`]).
    ///
    /// # Errors
    /// Fatal, and this batch is to be dropped.
    pub fn reset_identity(&mut self, leap: i64) -> Result<Progress, D::Error> {
        kv::reset_identity(&mut self.overlay, leap)
    }

    /// Adds what comes from another store ([`kv::load`]).
    ///
    /// # Errors
    /// The outer error is fatal; after either, this batch is to be dropped.
    pub fn load(&mut self, part: LoadedPart) -> Result<Result<Progress, LoadRefusal>, D::Error> {
        kv::load(&mut self.overlay, part)
    }

    /// What was changed so far, for watches.
    ///
    /// # Errors
    /// Fatal: what was written does not read.
    pub fn changes(&self) -> Result<Vec<Change>, D::Error> {
        let events = self.overlay.changes(Space::Events);
        let history = self.overlay.changes(Space::History);
        Ok(kv::changes_of(events, history)?)
    }

    /// How many keys were written and deleted so far.
    ///
    /// # Errors
    /// Fatal: what was written does not read.
    pub fn key_changes(&self) -> Result<KeyChanges, D::Error> {
        Ok(kv::key_changes(self.overlay.changes(Space::Events))?)
    }

    /// Puts the changes where every look at the database finds them.
    ///
    /// # Errors
    /// Any is fatal, and nothing is shown.
    pub fn show(self) -> Result<ShownBatch<W>, D::Error> {
        let Self {
            mut writer,
            overlay,
        } = self;
        let progress = kv::progress(&overlay)?;
        let run = Arc::new(Run::new(overlay.into_changes()));
        let through = progress.applied.index;
        writer.growth = writer.front.show(Arc::clone(&run), through);
        Ok(ShownBatch {
            writer,
            run,
            progress,
        })
    }
}

impl<W, D: Database> View for Batch<W, D> {
    type Error = D::Error;

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, D::Error> {
        self.overlay.get(space, key)
    }

    fn range(
        &self,
        space: Space,
        span: &Span,
    ) -> impl Iterator<Item = Result<Pair, D::Error>> + use<'_, W, D> {
        self.overlay.range(space, span)
    }
}

/// A batch that every look at the database finds. The cache may still have what was there before.
#[must_use = "nobody may rely on what was applied until it is published"]
pub struct ShownBatch<W> {
    writer: W,
    run: Arc<Run>,
    progress: Progress,
}

impl<W, D> ShownBatch<W>
where
    W: DerefMut<Target = Writer<D>>,
    D: Database,
{
    /// Changes the cache.
    ///
    /// # Errors
    /// Any is fatal: what was written does not read.
    pub fn cache(self) -> Result<CachedBatch<W>, D::Error> {
        let Self {
            writer,
            run,
            progress,
        } = self;
        for (key, record) in run.changes(Space::Current) {
            let known = match record {
                Some(record) => {
                    let kv = kv::key_value(key.clone(), record.clone())?;
                    CachedKey::Present(Record::new(&kv))
                }
                None => CachedKey::Absent {
                    revision: progress.revision,
                },
            };
            writer.front.change(key, known);
        }
        Ok(CachedBatch { writer, progress })
    }
}

/// A batch whose keys the cache knows as they are now. Readers see no revision and no index of
/// it yet.
#[must_use = "nobody may rely on what was applied until it is published"]
pub struct CachedBatch<W> {
    writer: W,
    progress: Progress,
}

impl<W, D> CachedBatch<W>
where
    W: DerefMut<Target = Writer<D>>,
    D: Database,
{
    /// Publishes the revision (A10).
    pub fn revise(self) -> RevisedBatch<W> {
        let Self { writer, progress } = self;
        match planted!(RevisionAfterApplied) {
            true => writer.front.set_applied(progress.applied.index),
            false => writer.front.set_revision(&progress),
        }
        RevisedBatch { writer, progress }
    }
}

/// A batch whose revision readers see.
#[must_use = "nobody may rely on what was applied until it is published"]
pub struct RevisedBatch<W> {
    writer: W,
    progress: Progress,
}

impl<W, D> RevisedBatch<W>
where
    W: DerefMut<Target = Writer<D>>,
    D: Database,
{
    /// Publishes the applied index: from here on whatever waits for these entries may be answered.
    pub fn publish(self) -> PublishedBatch<W> {
        let Self { writer, progress } = self;
        match planted!(RevisionAfterApplied) {
            true => writer.front.set_revision(&progress),
            false => writer.front.set_applied(progress.applied.index),
        }
        PublishedBatch { writer, progress }
    }
}

/// A batch that every read which begins from here on contains.
pub struct PublishedBatch<W> {
    writer: W,
    progress: Progress,
}

impl<W> PublishedBatch<W> {
    /// The progress of the state with it.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// For the next batch.
    pub fn into_writer(self) -> W {
        self.writer
    }
}
