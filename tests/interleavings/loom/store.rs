//! What stands in front of the database: the thread that applies against readers that find a key in
//! the cache, or in the database, and fill it in.
//!
//! The database is a map that is read and written as a whole, since that is what fjall promises: who
//! takes a snapshot after a write sees it. So its lock is none of loom's; but another thread may come in
//! before each of the two.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::slice;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::api::{DeleteRangeRequest, PutRequest};
use crate::front::{Batch, Database, Front, Handle, Point, Writer};
use crate::kv;
use crate::kv::{Command, Fault, LastChange, MemStore, Operation, Pair, Space, Span, Store, View};
use crate::lease::{LINEARIZABLE, Leader, READER};
use crate::leased_read::{Captured, ReadBuffer, ReadResult, Source};
use crate::types::{LogId, LogIndex, Term};

const KEY: &[u8] = b"k";
const OTHER: &[u8] = b"other";
/// Room for everything that a model writes.
const ROOM: usize = 1 << 20;
/// No room at all, so that every read goes to the database.
const NO_ROOM: usize = 0;

#[derive(Default)]
struct Map {
    store: Mutex<Arc<MemStore>>,
    /// Where loom may switch to another thread.
    visits: AtomicU64,
}

impl Database for Map {
    type Error = Fault;
    type Snapshot = Arc<MemStore>;

    fn snapshot(&self) -> Arc<MemStore> {
        self.visits.fetch_add(1, Ordering::Relaxed);
        Arc::clone(&self.store.lock().unwrap())
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
        self.visits.fetch_add(1, Ordering::Relaxed);
        let mut store = self.store.lock().unwrap();
        let store = Arc::make_mut(&mut store);
        for (space, key, record) in changes {
            match record {
                Some(record) => store.put(space, key.clone(), record.clone()),
                None => store.delete(space, key.clone()),
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), Fault> {
        Ok(())
    }
}

/// What readers share with the thread that applies.
struct World {
    handle: Handle<Map>,
    /// Permits reads as its consensus does, which does nothing else here.
    leader: Leader,
}

/// The thread that applies.
struct Applier {
    world: Arc<World>,
    writer: Writer<Map>,
    applied: u64,
}

/// Each entry makes one revision, of its own number.
enum Entry {
    Nothing,
    Put(&'static [u8]),
    Delete(&'static [u8]),
}

impl Applier {
    /// A store with room for records in its cache, that has applied these entries.
    fn new(room: usize, entries: impl IntoIterator<Item = Entry>) -> Self {
        let front = Front::open(Map::default(), room).unwrap();
        let writer = Writer::new(front);
        let world = World {
            handle: writer.handle(),
            leader: Leader::with_lease(),
        };
        let mut this = Self {
            world: Arc::new(world),
            writer,
            applied: 0,
        };
        // Revisions begin at 1.
        for entry in std::iter::once(Entry::Nothing).chain(entries) {
            this.applies(entry);
        }
        this
    }

    /// The next entry is committed, applied and published.
    fn applies(&mut self, entry: Entry) {
        self.applied += 1;
        let operation = match entry {
            Entry::Nothing => None,
            Entry::Put(key) => Some(Operation::Put(PutRequest {
                key: Bytes::from_static(key),
                ..PutRequest::default()
            })),
            Entry::Delete(key) => Some(Operation::DeleteRange(DeleteRangeRequest {
                key: Bytes::from_static(key),
                ..DeleteRangeRequest::default()
            })),
        };
        let session = None;
        let command = operation.map(|operation| {
            Command::Write {
                author: None,
                session,
                operation,
            }
            .encode()
        });
        let id = LogId::new(LogIndex(self.applied), Term(1));
        let mut batch = Batch::begin(&mut self.writer).unwrap();
        batch.apply(id, command.as_deref()).unwrap();
        batch.show().unwrap().cache().unwrap().revise().publish();
    }

    fn world(&self) -> Arc<World> {
        Arc::clone(&self.world)
    }
}

impl World {
    /// Hands over the oldest batch.
    fn hands_one_over(&self) {
        self.handle.get().hand_over(1).unwrap();
    }

    /// Hands over all that is ahead of the database.
    fn hands_over(&self) {
        self.handle.get().hand_over(usize::MAX).unwrap();
    }

    fn get(&self) -> Point {
        self.handle.load().get(KEY).unwrap()
    }

    /// Reads the key as the server does. None while a batch is being published of which a read before
    /// this one may have found something.
    fn leased_get(&self) -> Option<Point> {
        let (get, published) = (LINEARIZABLE, self.leader.published());
        let shown = self.handle.load().shown();
        let reads = slice::from_ref(&get);
        let captured = Captured::of(reads, shown, &published, ReadBuffer::default());
        let looked = captured.look(|_| {
            let point = self.get();
            Ok::<_, Infallible>(ControlFlow::Continue(Source {
                applied: point.applied,
                revision: point.revision,
                found: point,
            }))
        });
        match looked.unwrap().judge(&self.leader).next(&READER)? {
            (_, ReadResult::Answer(answer)) => Some(answer.into_found()),
            _ => None,
        }
    }
}

/// The key is written at each revision up to `through`; each reader looks as often as it says.
fn writes_against_readers(room: usize, through: u64, readers: &[usize]) {
    let mut applier = Applier::new(room, []);
    let readers: Vec<_> = readers
        .iter()
        .map(|&times| {
            let world = applier.world();
            thread::spawn(move || {
                let mut last = 0;
                for _ in 0..times {
                    last = look(&world, last);
                }
            })
        })
        .collect();
    for _ in 2..=through {
        applier.applies(Entry::Put(KEY));
    }
    applier.writer.settle().unwrap();
    for reader in readers {
        reader.join().unwrap();
    }
    // Whoever has filled something in has not undone the last write.
    assert_eq!(look(&applier.world, 0), through);
}

/// What was published before the read began is in it (A7), the revision of the reply is one at
/// which it was so (A10), and no reader that is answered goes back behind what it has seen. That last
/// is not the cache's doing alone: one read may find in the database what the next does not find in the
/// cache yet. But then the entry was shown before the first, so the second has captured it, and
/// is not answered from a state without it (P21).
fn look(world: &World, last: u64) -> u64 {
    let Some(point) = world.leased_get() else {
        return last;
    };
    let found = point.record.map_or(1, |record| record.mod_revision());
    let revision = u64::try_from(point.revision).unwrap();
    let found = u64::try_from(found).unwrap();
    assert!(revision >= found);
    assert!(
        revision >= point.applied.0,
        "revision {revision} of entry {}",
        point.applied
    );
    assert!(
        found >= point.applied.0,
        "revision {found} is shown as what entry {} left",
        point.applied
    );
    assert!(found >= last, "{found} is shown after {last}");
    found
}

pub(crate) fn a_read_has_what_was_applied_before_it_from_the_cache() {
    writes_against_readers(ROOM, 3, &[2]);
}

pub(crate) fn a_read_has_what_was_applied_before_it_from_the_database() {
    writes_against_readers(NO_ROOM, 3, &[2]);
}

pub(crate) fn readers_that_fill_in_do_not_undo_a_write() {
    writes_against_readers(ROOM, 2, &[1, 1]);
}

/// What is applied is handed over to the database meanwhile: whoever reads finds it in
/// the one or the other.
pub(crate) fn a_read_during_a_hand_over_finds_what_was_applied() {
    let mut applier = Applier::new(NO_ROOM, [Entry::Put(KEY)]);
    let hands_over = thread::spawn({
        let world = applier.world();
        move || world.hands_over()
    });
    let reader = thread::spawn({
        let world = applier.world();
        move || {
            let point = world.get();
            let found = point.record.map_or(1, |record| record.mod_revision());
            assert!(
                found.unsigned_abs() >= point.applied.0,
                "revision {found} is shown as what entry {} left",
                point.applied
            );
        }
    });
    applier.applies(Entry::Put(KEY));
    hands_over.join().unwrap();
    reader.join().unwrap();
    assert_eq!(look(&applier.world, 0), 3);
}

/// A snapshot is of one moment, whatever is handed over and applied while it is taken: it has everything up
/// to its own applied index, and nothing that came later.
pub(crate) fn a_snapshot_during_a_hand_over_is_of_one_moment() {
    let mut applier = Applier::new(ROOM, [Entry::Put(KEY)]);
    let snapshot = thread::spawn({
        let world = applier.world();
        move || {
            let applied = world.handle.load().applied();
            let snapshot = world.handle.load().snapshot().unwrap();
            let at = snapshot.applied().index;
            assert!(at >= applied, "{at} after {applied} was published");
            let found = snapshot.range(Space::Events, &Span::all()).count() as u64;
            // The first entry has made no revision.
            assert_eq!(found, at.0 - 1, "events of {at} entries");
            assert_eq!(
                kv::content_hash(&snapshot).unwrap(),
                kv::scan(&snapshot).unwrap()
            );
        }
    });
    let hands_over = thread::spawn({
        let world = applier.world();
        move || {
            world.hands_one_over();
            world.hands_over();
        }
    });
    applier.applies(Entry::Put(OTHER));
    snapshot.join().unwrap();
    hands_over.join().unwrap();
}

/// The thread that applies merges what is ahead, and hands over itself where too much is, while another
/// thread hands over: each takes turns, and nothing is lost or handed over twice.
pub(crate) fn two_that_hand_over_and_one_that_merges_lose_nothing() {
    // With the first entry and the next there are as many as are merged.
    let mut applier = Applier::new(ROOM, [Entry::Put(KEY), Entry::Put(OTHER)]);
    let hands_over = thread::spawn({
        let world = applier.world();
        move || world.hands_one_over()
    });
    applier.applies(Entry::Put(KEY));
    applier.writer.merge_runs();
    applier.world.hands_one_over();
    hands_over.join().unwrap();
    let front = Arc::clone(applier.writer.front());
    assert_eq!(front.snapshot().unwrap().applied().index, LogIndex(4));
    applier.writer.settle().unwrap();
    let settled = front.settled().unwrap();
    assert_eq!(settled.applied().index, LogIndex(4));
    assert_eq!(settled.range(Space::Events, &Span::all()).count(), 3);
}

/// A10: another key is written, so only the revision tells of it. Whoever sees the entry applied
/// sees at least its revision.
pub(crate) fn a_reply_names_the_revision_of_what_was_applied() {
    let mut applier = Applier::new(ROOM, [Entry::Put(KEY)]);
    let reader = thread::spawn({
        let world = applier.world();
        move || {
            let point = world.get();
            assert!(point.revision >= i64::try_from(point.applied.0).unwrap());
        }
    });
    applier.applies(Entry::Put(OTHER));
    reader.join().unwrap();
}

/// A key that was written and is then deleted: the reader who fills in what it read before does not
/// bring it back.
pub(crate) fn a_deleted_key_is_not_brought_back_by_a_reader() {
    // It has left the cache by the time that it is read.
    let mut applier = Applier::new(ROOM, [Entry::Put(KEY)]);
    applier.writer.settle().unwrap();
    let store = MemStore::clone(&applier.writer.front().database().snapshot());
    applier.opens_anew(store);
    let reader = thread::spawn({
        let world = applier.world();
        move || {
            let point = world.get();
            assert!(
                point.applied < LogIndex(3) || point.record.is_none(),
                "it was deleted by entry 3"
            );
        }
    });
    applier.applies(Entry::Delete(KEY));
    reader.join().unwrap();
    assert!(applier.world.get().record.is_none());
}

/// A9: another state, with one entry more, takes the place of the one that a reader looks at: it finds
/// the one or the other, as a whole, and does not go back.
pub(crate) fn a_state_that_takes_the_place_of_another_is_found_as_a_whole() {
    let newer = Applier::new(ROOM, [Entry::Put(KEY), Entry::Put(KEY)]);
    let mut applier = Applier::new(ROOM, [Entry::Put(KEY)]);
    let reader = thread::spawn({
        let world = applier.world();
        move || {
            let mut before = LogIndex(0);
            for _ in 0..2 {
                let point = world.get();
                let found = point.record.map_or(1, |record| record.mod_revision());
                let (found, revision) = (found.unsigned_abs(), point.revision.unsigned_abs());
                assert_eq!((found, revision), (point.applied.0, point.applied.0));
                assert!(point.applied >= before);
                before = point.applied;
            }
        }
    });
    let _retired = applier.writer.replace(newer.writer);
    reader.join().unwrap();
    assert_eq!(applier.world.get().applied, LogIndex(3));
}

impl Applier {
    /// The process starts again, with this database and an empty cache.
    fn opens_anew(&mut self, store: MemStore) {
        let database = Map {
            store: Mutex::new(Arc::new(store)),
            visits: AtomicU64::new(0),
        };
        self.writer = Writer::new(Front::open(database, ROOM).unwrap());
        self.world = Arc::new(World {
            handle: self.writer.handle(),
            leader: Leader::with_lease(),
        });
    }
}
