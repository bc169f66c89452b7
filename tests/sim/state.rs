//! The state of a machine: the library's own front (`leasehold::front`) over a map.
//!
//! A map keeps two things: what the system was given, which a process that is killed leaves behind, and
//! how to go back to what was synced, which is all that is certain after a loss of power. What lies ahead of
//! the map goes with the process. How far the map is behind what is published, dice say: of some machines a
//! batch or none, of others nearly all that they ever apply.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use leasehold::front::{
    Batch, CachedBatch, Database, Durable, Front, Handle, RevisedBatch, ShownBatch, Snapshot,
    Writer,
};
use leasehold::kv;
use leasehold::kv::{
    Change, CompactionBudget, CompactionStep, Fault, LastChange, MemStore, Overlay, Pair, Reply,
    Space, Span, Store, View,
};
use leasehold::types::{LogId, LogIndex};

use crate::checkers::Judge;
use crate::dice::Dice;

/// The database of a machine.
pub(crate) struct Map {
    files: Mutex<Files>,
}

struct Files {
    /// What the system was given. It is copied when it changes while somebody looks at it.
    written: Arc<MemStore>,
    /// What was there before each change since the last sync, oldest first: to keep this costs less than to
    /// copy all of it at each sync.
    unsynced: Vec<(Space, Bytes, Option<Bytes>)>,
}

impl Map {
    /// A database that was synced as it is.
    fn new(store: MemStore) -> Self {
        let files = Files {
            written: Arc::new(store),
            unsynced: Vec::new(),
        };
        Self {
            files: Mutex::new(files),
        }
    }

    fn written(&self) -> Arc<MemStore> {
        Arc::clone(&self.files.lock().unwrap().written)
    }

    /// What would be found after a loss of power.
    fn synced(&self) -> MemStore {
        let files = self.files.lock().unwrap();
        let mut store = MemStore::clone(&files.written);
        for (space, key, before) in files.unsynced.iter().rev() {
            set(&mut store, *space, key, before.as_ref());
        }
        store
    }
}

fn set(store: &mut MemStore, space: Space, key: &Bytes, record: Option<&Bytes>) {
    match record {
        Some(record) => store.put(space, key.clone(), record.clone()),
        None => store.delete(space, key.clone()),
    }
}

impl Database for Map {
    type Error = Fault;
    type Snapshot = Arc<MemStore>;

    fn snapshot(&self) -> Arc<MemStore> {
        self.written()
    }

    fn get(&self, at: &Arc<MemStore>, space: Space, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        at.get(space, key)
    }

    fn range<'a>(
        &'a self,
        at: &'a Arc<MemStore>,
        space: Space,
        span: &Span,
    ) -> impl Iterator<Item = Result<Pair, Fault>> + use<'a> {
        MemStore::range(at, space, span)
    }

    fn write<'c>(&self, changes: impl Iterator<Item = LastChange<'c>>) -> Result<(), Fault> {
        let mut files = self.files.lock().unwrap();
        let Files { written, unsynced } = &mut *files;
        let store = Arc::make_mut(written);
        for (space, key, record) in changes {
            unsynced.push((space, key.clone(), store.get(space, key)?));
            set(store, space, key, record);
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), Fault> {
        self.files.lock().unwrap().unsynced.clear();
        Ok(())
    }
}

/// A look at the state of a machine.
pub(crate) type Look = Snapshot<Map>;

/// See the module.
pub(crate) struct State {
    reader: Handle<Map>,
    publication: Publication,
    /// How likely it is that the map is given something after a batch.
    diligence: f64,
    dice: Dice,
}

/// How far the thread that applies has come with its batch.
enum Publication {
    Published(Box<Writer<Map>>),
    Applied(Box<Batch<Box<Writer<Map>>, Map>>),
    Shown(ShownBatch<Box<Writer<Map>>>),
    Cached(CachedBatch<Box<Writer<Map>>>),
    Revised(RevisedBatch<Box<Writer<Map>>>),
    /// A step is being taken right now, or one has failed, which ends the run.
    Underway,
}

/// What a batch has come to.
pub(crate) struct Applied {
    pub(crate) replies: Vec<(LogId, Reply)>,
    /// What it changed, if somebody listens.
    pub(crate) changes: Option<Vec<Change>>,
}

/// Room for all that a run writes: what is evicted would depend on how keys are hashed, and that differs
/// from process to process.
const CACHE_BYTES: usize = 16 << 20;

impl State {
    /// An empty one.
    pub(crate) fn new(dice: Dice) -> Self {
        Self::over(MemStore::new(), dice)
    }

    fn over(store: MemStore, mut dice: Dice) -> Self {
        // Some have no cache at all, so that each read of one key looks at the map.
        let cache_bytes = if dice.chance(0.2) { 0 } else { CACHE_BYTES };
        let diligence = *dice.pick(&[0.05, 0.3, 0.8]);
        let writer = open(store, cache_bytes);
        Self {
            reader: writer.handle(),
            publication: Publication::Published(Box::new(writer)),
            diligence,
            dice,
        }
    }

    /// The front in use.
    pub(crate) fn front(&self) -> Arc<Front<Map>> {
        self.reader.get()
    }

    /// A look at all of it.
    pub(crate) fn look(&self) -> Look {
        certain(self.front().snapshot())
    }

    /// The last index that is published as applied.
    pub(crate) fn applied(&self) -> LogIndex {
        self.front().applied()
    }

    /// The last index of which a look may have found something.
    pub(crate) fn shown(&self) -> LogIndex {
        self.front().shown()
    }

    /// Applies entries, and leaves them to be published; `listening` wants to know what they change.
    pub(crate) fn apply(
        &mut self,
        node: usize,
        entries: &[(LogId, Option<Bytes>)],
        listening: bool,
        judge: &mut Judge,
    ) -> Result<Applied, Fault> {
        let mut batch = Batch::begin(self.take_writer())?;
        let mut replies = Vec::with_capacity(entries.len());
        for (id, command) in entries {
            replies.push((*id, batch.apply(*id, command.as_deref())?));
            judge.applied(node, *id, kv::content_hash(&batch)?.0);
        }
        let changes = listening.then(|| batch.changes()).transpose()?;
        self.publication = Publication::Applied(Box::new(batch));
        Ok(Applied { replies, changes })
    }

    /// Takes the next step of publishing what was applied; true if that was the last one.
    pub(crate) fn publish_next(&mut self) -> Result<bool, Fault> {
        use Publication as At;
        self.publication = match std::mem::replace(&mut self.publication, At::Underway) {
            At::Applied(batch) => At::Shown(batch.show()?),
            At::Shown(shown) => At::Cached(shown.cache()?),
            At::Cached(cached) => At::Revised(cached.revise()),
            At::Revised(revised) => At::Published(revised.publish().into_writer()),
            At::Published(_) | At::Underway => unreachable!("there is something to publish"),
        };
        Ok(matches!(self.publication, At::Published(_)))
    }

    /// The map is given some of what was published, or all of it, or is left behind for longer.
    pub(crate) fn hands_over_perhaps(&mut self) {
        let Publication::Published(writer) = &mut self.publication else {
            return;
        };
        if self.dice.chance(0.7) {
            writer.merge_runs();
        }
        if self.dice.chance(self.diligence) {
            let bytes = match self.dice.chance(0.5) {
                true => usize::MAX,
                false => self.dice.between(1, 20_000) as usize,
            };
            certain(writer.front().hand_over(bytes));
        }
    }

    /// The map is given all that was published.
    pub(crate) fn hands_over(&self) {
        certain(self.front().hand_over(usize::MAX));
    }

    /// Makes durable what the map has.
    pub(crate) fn persist(&self) -> Durable {
        certain(self.front().persist())
    }

    /// The system writes out what it was given, of its own accord.
    pub(crate) fn write_back(&self) {
        certain(self.front().database().sync());
    }

    /// Removes some compacted history, beside the thread that applies.
    pub(crate) fn sweep(&self, budget: &CompactionBudget) -> CompactionStep {
        let front = self.front();
        front.between_hand_overs(|| {
            let mut overlay = Overlay::new(certain(front.settled()));
            let step = certain(kv::compact_step(&mut overlay, budget));
            certain(front.database().write(overlay.last_changes()));
            step
        })
    }

    /// The process is killed: what lies ahead of the map is lost.
    pub(crate) fn kill(&mut self) {
        let written = self.front().database().written();
        self.begin_with(MemStore::clone(&written));
    }

    /// Power is lost: what was not synced is lost.
    pub(crate) fn lose_power(&mut self) {
        let synced = self.front().database().synced();
        self.begin_with(synced);
    }

    /// All of it is lost.
    pub(crate) fn lose_all(&mut self) {
        self.begin_with(MemStore::new());
    }

    fn begin_with(&mut self, store: MemStore) {
        *self = Self::over(store, self.dice.clone());
    }

    /// A state that was received takes the place of this one, while all go on.
    pub(crate) fn replace(&mut self, newer: MemStore) {
        let mut writer = self.take_writer();
        // Whoever still reads the old one goes on with it.
        drop(writer.replace(open(newer, CACHE_BYTES)));
        self.publication = Publication::Published(writer);
    }

    /// What is published, to be sent to another member.
    pub(crate) fn copy(&self) -> MemStore {
        let look = self.look();
        let mut copy = MemStore::new();
        for space in Space::ALL {
            for pair in look.range(space, &Span::all()) {
                let (key, record) = certain(pair);
                copy.put(space, key, record);
            }
        }
        copy
    }

    fn take_writer(&mut self) -> Box<Writer<Map>> {
        match std::mem::replace(&mut self.publication, Publication::Underway) {
            Publication::Published(writer) => writer,
            _ => unreachable!("one batch is published before the next one is begun"),
        }
    }
}

fn open(store: MemStore, cache_bytes: usize) -> Writer<Map> {
    Writer::new(certain(Front::open(Map::new(store), cache_bytes)))
}

fn certain<T>(result: Result<T, Fault>) -> T {
    result.expect("memory does not fail")
}
