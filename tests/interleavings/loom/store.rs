//! What stands in front of the database: the thread that applies against readers that find a key in
//! the cache, or on disk, and fill it in.
//!
//! The database is one number for each key, read and written as a whole, since that is what fjall
//! promises: who reads after a commit sees it.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

#[path = "../../../src/server/disk/store/cache.rs"]
#[allow(dead_code, reason = "compiled as it is")]
mod cache;
#[path = "../../../src/server/disk/store/front.rs"]
#[allow(dead_code, reason = "compiled as it is")]
mod front;

use cache::Cached;
use front::Front;

use crate::api::KeyValue;
use crate::kv::Progress;
use crate::types::{LogId, LogIndex, Term};
use crate::wire::point::Record;

/// As in `store.rs`, whose file knows disks.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub record: Option<Record>,
    pub revision: i64,
    pub applied: LogIndex,
}

const KEY: &[u8] = b"k";
/// Room for everything that a model writes.
const ROOM: usize = 1 << 20;
/// No room at all, so that every read goes to the disk.
const NO_ROOM: usize = 0;

struct World {
    front: Front,
    /// The revision of the key on disk; 0 if it is not there.
    disk: Mutex<i64>,
    /// What consensus has published as committed, in entries.
    commit: AtomicU64,
}

impl World {
    /// A store at entry and revision 1, without the key.
    fn new(room: usize) -> Arc<Self> {
        let front = Front::new(room);
        front.publish(progress(1, 1));
        Arc::new(Self {
            front,
            disk: Mutex::new(0),
            commit: AtomicU64::new(1),
        })
    }

    /// The state thread commits a batch that leaves the key at `revision`, or deleted by it, and
    /// publishes it as entry `revision`.
    fn advance(&self, revision: i64, deleted: bool) {
        let entry = revision.unsigned_abs();
        self.commit.store(entry, Ordering::Release);
        *self.disk.lock().unwrap() = if deleted { 0 } else { revision };
        let change = match deleted {
            true => Cached::Absent { revision },
            false => cached(revision),
        };
        let changes = std::iter::once(Ok::<_, Infallible>((KEY, change)));
        let progress = progress(entry, revision);
        self.front.advance(changes, progress).unwrap();
    }

    fn get(&self) -> Point {
        let read = || {
            // The disk's own snapshot may be older than the reply's revision, never younger than
            // the lookup.
            let revision = *self.disk.lock().unwrap();
            Ok::<_, Infallible>(match revision {
                0 => Cached::Absent { revision: 1 },
                revision => cached(revision),
            })
        };
        self.front.get(KEY, read).unwrap()
    }
}

fn progress(index: u64, revision: i64) -> Progress {
    Progress {
        applied: LogId::new(LogIndex(index), Term(1)),
        revision,
        ..Progress::default()
    }
}

fn cached(revision: i64) -> Cached {
    Cached::Present(Record::new(&KeyValue {
        key: Bytes::from_static(KEY),
        mod_revision: revision,
        ..KeyValue::default()
    }))
}

/// The key is written at each revision up to `through`; each reader looks as often as it says.
fn writes_against_readers(room: usize, through: i64, readers: &[usize]) {
    let world = World::new(room);
    let readers: Vec<_> = readers
        .iter()
        .map(|&times| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let mut last = 0;
                for _ in 0..times {
                    last = look(&world, last);
                }
            })
        })
        .collect();
    for revision in 2..=through {
        world.advance(revision, false);
    }
    for reader in readers {
        reader.join().unwrap();
    }
    // Whoever has filled something in has not undone the last write.
    assert_eq!(look(&world, 0), through);
}

/// What was published before the read began is in it (A7), the revision of the reply is one at
/// which it was so (A10), and nobody who is answered goes back behind what he has seen. That last
/// is not the cache's doing alone: one read may find on disk what the next does not find in the
/// cache yet. But then the entry was committed before the first, so the second has captured it, and
/// is not answered from a state without it (P21).
fn look(world: &World, last: i64) -> i64 {
    let captured = match planted!(CommitNotCaptured) {
        true => 0,
        false => world.commit.load(Ordering::Acquire),
    };
    let applied = world.front.applied();
    let revision = world.front.revision();
    let point = world.get();
    let found = point.record.map_or(1, |record| record.mod_revision());
    assert!(point.applied >= applied);
    assert!(point.revision >= revision);
    assert!(point.revision >= found);
    assert!(
        point.revision >= i64::try_from(applied.0).unwrap(),
        "revision {} of entry {applied}",
        point.revision
    );
    assert!(
        found >= i64::try_from(point.applied.0).unwrap(),
        "revision {found} is shown as what entry {} left",
        point.applied
    );
    if point.applied.0 < captured {
        return last;
    }
    assert!(found >= last, "{found} is shown after {last}");
    found
}

pub(crate) fn a_read_has_what_was_applied_before_it_from_the_cache() {
    writes_against_readers(ROOM, 3, &[2]);
}

pub(crate) fn a_read_has_what_was_applied_before_it_from_the_disk() {
    writes_against_readers(NO_ROOM, 3, &[2]);
}

pub(crate) fn readers_that_fill_in_do_not_undo_a_write() {
    writes_against_readers(ROOM, 2, &[1, 1]);
}

/// A10: another key is written, so only the revision tells of it. Whoever sees the entry applied
/// sees at least its revision.
pub(crate) fn a_reply_names_the_revision_of_what_was_applied() {
    let world = World::new(ROOM);
    let reader = thread::spawn({
        let world = Arc::clone(&world);
        move || {
            let point = world.get();
            assert!(point.revision >= i64::try_from(point.applied.0).unwrap());
        }
    });
    let change = Ok::<_, Infallible>((b"other", cached(2)));
    let changes = std::iter::once(change);
    world.front.advance(changes, progress(2, 2)).unwrap();
    reader.join().unwrap();
}

/// A key that was written and is then deleted: the reader who fills in what it read before does not
/// bring it back.
pub(crate) fn a_deleted_key_is_not_brought_back_by_a_reader() {
    let world = World::new(ROOM);
    *world.disk.lock().unwrap() = 1;
    let reader = thread::spawn({
        let world = Arc::clone(&world);
        move || {
            let point = world.get();
            assert!(
                point.applied < LogIndex(2) || point.record.is_none(),
                "it was deleted by entry 2"
            );
        }
    });
    world.advance(2, true);
    reader.join().unwrap();
    assert!(world.get().record.is_none());
}
