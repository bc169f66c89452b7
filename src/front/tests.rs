//! The steps one by one, over a map that knows what was synced.

use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::*;
use crate::api::PutRequest;
use crate::kv;
use crate::kv::{Changes, Command, Fault, MemStore, Operation, Pair, Space, Span, Store, View};
use crate::types::{LogId, LogIndex, Term};

/// Something that another thread does.
type Interruption = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Map {
    written: Mutex<Arc<MemStore>>,
    synced: Mutex<Arc<MemStore>>,
    /// What happens before the next record is read or the next batch written.
    interruption: Mutex<Option<Interruption>>,
}

impl Map {
    fn interrupt(&self) {
        let interruption = self.interruption.lock().unwrap().take();
        if let Some(interruption) = interruption {
            interruption();
        }
    }

    fn interrupt_with(&self, interruption: impl FnOnce() + Send + 'static) {
        *self.interruption.lock().unwrap() = Some(Box::new(interruption));
    }
}

impl Database for Map {
    type Error = Fault;
    type Snapshot = Arc<MemStore>;

    fn snapshot(&self) -> Arc<MemStore> {
        Arc::clone(&self.written.lock().unwrap())
    }

    fn get(&self, at: &Arc<MemStore>, space: Space, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        self.interrupt();
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

    fn write<'c>(&self, changes: impl Iterator<Item = (Space, &'c Changes)>) -> Result<(), Fault> {
        self.interrupt();
        let mut written = self.written.lock().unwrap();
        let store = Arc::make_mut(&mut written);
        for (space, changes) in changes {
            for (key, change) in changes {
                match change {
                    Some(record) => store.put(space, key.clone(), record.clone()),
                    None => store.delete(space, key.clone()),
                }
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), Fault> {
        *self.synced.lock().unwrap() = self.snapshot();
        Ok(())
    }
}

fn writer() -> Writer<Map> {
    writer_with_cache(1 << 20)
}

fn writer_with_cache(bytes: usize) -> Writer<Map> {
    Writer::new(Front::open(Map::default(), bytes).unwrap())
}

/// A batch of one entry, which writes `k`.
fn batch(writer: &mut Writer<Map>, index: u64) -> Batch<&mut Writer<Map>, Map> {
    let operation = Operation::Put(PutRequest {
        key: Bytes::from_static(b"k"),
        ..PutRequest::default()
    });
    let session = None;
    let command = Command::Write {
        author: None,
        session,
        operation,
    }
    .encode();
    let mut batch = Batch::begin(writer).unwrap();
    let id = LogId::new(LogIndex(index), Term(1));
    batch.apply(id, Some(&command)).unwrap();
    batch
}

fn publish(writer: &mut Writer<Map>, index: u64) {
    let shown = batch(writer, index).show().unwrap();
    shown.cache().unwrap().revise().publish();
}

#[test]
fn each_step_of_publication_shows_what_the_one_before_has_prepared() {
    let mut writer = writer();
    publish(&mut writer, 1);
    let front = Arc::clone(writer.front());
    // What a look finds, what one key is, and what is published.
    let seen = || {
        let point = front.get(b"k").unwrap();
        let found = point.record.map(|record| record.mod_revision());
        let look = front.snapshot().unwrap().revision();
        (look, found, front.revision(), front.applied())
    };
    assert_eq!(seen(), (2, Some(2), 2, LogIndex(1)));
    let batch = batch(&mut writer, 2);
    assert_eq!(seen(), (2, Some(2), 2, LogIndex(1)), "nobody sees it");
    let shown = batch.show().unwrap();
    assert_eq!(seen(), (3, Some(2), 2, LogIndex(1)), "looks find it");
    let cached = shown.cache().unwrap();
    assert_eq!(seen(), (3, Some(3), 2, LogIndex(1)), "so does the cache");
    let revised = cached.revise();
    assert_eq!(seen(), (3, Some(3), 3, LogIndex(1)), "its revision");
    assert_eq!(revised.publish().progress().applied.index, LogIndex(2));
    assert_eq!(seen(), (3, Some(3), 3, LogIndex(2)), "and all of it");
}

/// A7, A10: a batch that is published while a key is read is in the answer as a whole, or not at all.
#[test]
fn a_key_read_during_a_publication_is_of_the_index_and_revision_before_it() {
    let mut writer = writer_with_cache(0);
    publish(&mut writer, 1);
    // From here on the record is in the database, and each read looks there.
    writer.settle().unwrap();
    let front = Arc::clone(writer.front());
    front
        .database()
        .interrupt_with(move || publish(&mut writer, 2));
    let point = front.get(b"k").unwrap();
    let found = point.record.map(|record| record.mod_revision());
    assert_eq!(
        (found, point.revision, point.applied),
        (Some(2), 2, LogIndex(1))
    );
    let point = front.get(b"k").unwrap();
    assert_eq!((point.revision, point.applied), (3, LogIndex(2)));
}

/// A reader has looked at the database, and the key changes before it fills in what it found.
#[test]
fn a_record_that_a_reader_fills_in_does_not_replace_a_newer_one() {
    let mut writer = writer();
    publish(&mut writer, 1);
    writer.settle().unwrap();
    let database = Map::default();
    *database.written.lock().unwrap() = writer.front().database().snapshot();
    // Nothing is cached yet.
    let mut writer = Writer::new(Front::open(database, 1 << 20).unwrap());
    let front = Arc::clone(writer.front());
    front
        .database()
        .interrupt_with(move || publish(&mut writer, 2));
    let found = || {
        let point = front.get(b"k").unwrap();
        point.record.map(|record| record.mod_revision())
    };
    assert_eq!(found(), Some(2), "it has looked before the write");
    assert_eq!(found(), Some(3), "the write stays");
}

#[test]
fn a_look_finds_a_batch_while_the_database_takes_it_in() {
    let mut writer = writer();
    publish(&mut writer, 1);
    let front = Arc::clone(writer.front());
    let (seen, looks) = (Arc::new(Mutex::new(None)), Arc::clone(&front));
    front.database().interrupt_with({
        let seen = Arc::clone(&seen);
        move || *seen.lock().unwrap() = Some(looks.snapshot().unwrap().revision())
    });
    writer.settle().unwrap();
    assert_eq!(*seen.lock().unwrap(), Some(2));
}

#[test]
fn the_log_may_be_cut_by_what_was_synced_and_by_nothing_else() {
    let mut writer = writer();
    for index in 1..=3 {
        publish(&mut writer, index);
    }
    let front = Arc::clone(writer.front());
    let synced = |durable: Durable| {
        let store = Arc::clone(&front.database().synced.lock().unwrap());
        assert_eq!(durable.through(), kv::progress(&*store).unwrap().applied);
        durable.through().index
    };
    let durable = front.persist().unwrap();
    assert_eq!(
        synced(durable),
        LogIndex(2),
        "the third is ahead of the map"
    );
    assert_eq!(durable.truncation(LogIndex(3)).through(), LogIndex(2));
    assert_eq!(durable.truncation(LogIndex(1)).through(), LogIndex(1));
    assert_eq!(synced(writer.persist().unwrap()), LogIndex(3));
}

#[test]
fn a_state_that_was_replaced_stays_until_nobody_looks_at_it() {
    let (mut old, mut new) = (writer(), writer());
    publish(&mut old, 1);
    publish(&mut new, 1);
    publish(&mut new, 2);
    let handle = old.handle();
    let look = handle.load().snapshot().unwrap();
    let retired = old.replace(new);
    assert_eq!(handle.load().applied(), LogIndex(2));
    assert_eq!(look.applied().index, LogIndex(1));
    let Err(retired) = retired.into_database() else {
        panic!("somebody looks at it");
    };
    drop(look);
    assert!(retired.into_database().is_ok());
    publish(&mut old, 3);
    assert_eq!(handle.load().applied(), LogIndex(3));
}
