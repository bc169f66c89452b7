//! The steps one by one, over a map that knows what was synced.

use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::*;
use crate::api::{DeleteRangeRequest, PutRequest};
use crate::kv;
use crate::kv::{Command, Fault, LastChange, MemStore, Operation, Pair, Space, Span, Store, View};
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

    fn write<'c>(&self, changes: impl Iterator<Item = LastChange<'c>>) -> Result<(), Fault> {
        self.interrupt();
        let mut written = self.written.lock().unwrap();
        let store = Arc::make_mut(&mut written);
        for (space, key, record) in changes {
            match record {
                Some(record) => store.put(space, key.clone(), record.clone()),
                None => store.delete(space, key.clone()),
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
        let (shown, applied) = (front.shown().0, front.applied().0);
        (shown, look, found, front.revision(), applied)
    };
    assert_eq!(seen(), (1, 2, Some(2), 2, 1));
    let batch = batch(&mut writer, 2);
    assert_eq!(seen(), (1, 2, Some(2), 2, 1), "nobody sees it");
    let shown = batch.show().unwrap();
    assert_eq!(seen(), (2, 3, Some(2), 2, 1), "looks find it, and say so");
    let cached = shown.cache().unwrap();
    assert_eq!(seen(), (2, 3, Some(3), 2, 1), "so does the cache");
    let revised = cached.revise();
    assert_eq!(seen(), (2, 3, Some(3), 3, 1), "its revision");
    assert_eq!(revised.publish().progress().applied.index, LogIndex(2));
    assert_eq!(seen(), (2, 3, Some(3), 3, 2), "and all of it");
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
    publish(&mut writer, 1);
    publish(&mut writer, 2);
    writer.settle().unwrap();
    publish(&mut writer, 3);
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

/// What a look finds, as a store.
fn found(view: &impl View<Error = Fault>) -> MemStore {
    let mut found = MemStore::new();
    for space in Space::ALL {
        for pair in view.range(space, &Span::all()) {
            let (key, record) = pair.unwrap();
            let alone = view.get(space, &key).unwrap();
            assert_eq!(alone.as_ref(), Some(&record), "{space:?} {key:?}");
            found.put(space, key, record);
        }
    }
    found
}

/// A program that writes few keys often and deletes them, and what the state is after each of its entries.
fn program() -> (Vec<(LogId, Option<Bytes>)>, Vec<MemStore>) {
    let mut states = vec![MemStore::new()];
    let entries: Vec<_> = (1..=120_u64)
        .map(|index| {
            let key = Bytes::from(vec![b'a' + (index * index % 7) as u8]);
            let operation = match index % 5 {
                0 => Operation::DeleteRange(DeleteRangeRequest {
                    key,
                    ..DeleteRangeRequest::default()
                }),
                _ => Operation::Put(PutRequest {
                    key,
                    value: Bytes::from(vec![0; (index % 11) as usize]),
                    ..PutRequest::default()
                }),
            };
            let command = Command::Write {
                author: None,
                session: None,
                operation,
            };
            let entry = (LogId::new(LogIndex(index), Term(1)), Some(command.encode()));
            let mut state = states.last().unwrap().clone();
            kv::apply(&mut state, entry.0, entry.1.as_deref()).unwrap();
            states.push(state);
            entry
        })
        .collect();
    (entries, states)
}

fn apply(writer: &mut Writer<Map>, (id, command): &(LogId, Option<Bytes>)) {
    let mut batch = Batch::begin(writer).unwrap();
    batch.apply(*id, command.as_deref()).unwrap();
    let shown = batch.show().unwrap();
    shown.cache().unwrap().revise().publish();
}

#[test]
fn whatever_is_merged_and_handed_over_a_look_finds_the_newest_of_each_key() {
    let (entries, states) = program();
    // Each of these has the database lag in another way.
    for (merges_every, hands_every, bytes) in [(1, 1, 1), (1, 7, 900), (2, 40, 5_000), (1, 1000, 0)]
    {
        let mut writer = writer_with_cache(0);
        let front = Arc::clone(writer.front());
        let mut looks = Vec::new();
        for (place, entry) in entries.iter().enumerate() {
            apply(&mut writer, entry);
            if place % merges_every == 0 {
                writer.merge_runs();
            }
            if place % hands_every == hands_every - 1 {
                front.hand_over(bytes).unwrap();
            }
            let look = front.snapshot().unwrap();
            assert_eq!(found(&look), states[place + 1], "after {}", entry.0);
            looks.push(look);
        }
        writer.settle().unwrap();
        assert_eq!(front.ahead_bytes(), 0);
        assert_eq!(found(&front.settled().unwrap()), states[entries.len()]);
        for (look, state) in looks.iter().zip(&states[1..]) {
            assert_eq!(&found(look), state, "what was looked at before stays");
        }
    }
}

#[test]
fn after_each_hand_over_the_database_is_as_it_was_after_some_batch() {
    let (entries, states) = program();
    let mut writer = writer();
    let front = Arc::clone(writer.front());
    for entry in &entries {
        apply(&mut writer, entry);
        writer.merge_runs();
    }
    let mut before = 0;
    loop {
        let handed = front.hand_over(1).unwrap();
        let in_database = found(&front.settled().unwrap());
        let through = kv::progress(&in_database).unwrap().applied.index.0 as usize;
        assert!(through > before, "{through} after {before}");
        assert!(in_database == states[through], "as it was after {through}");
        before = through;
        if handed.rest == 0 {
            break;
        }
    }
    assert_eq!(before, entries.len());
    assert_eq!(front.hand_over(1).unwrap(), HandedOver::default());
}

#[test]
fn what_is_published_and_merged_during_a_hand_over_stays() {
    let (entries, states) = program();
    let mut writer = writer();
    let front = Arc::clone(writer.front());
    // With the one that is leaving there are as many as are merged.
    for entry in &entries[..4] {
        apply(&mut writer, entry);
    }
    let during = entries[4..20].to_vec();
    front.database().interrupt_with(move || {
        for entry in &during {
            writer.merge_runs();
            apply(&mut writer, entry);
        }
        writer.merge_runs();
    });
    let handed = front.hand_over(1).unwrap();
    assert_eq!(handed.rest, front.ahead_bytes());
    let see = |look: Snapshot<Map>| (look.applied().index.0 as usize, found(&look));
    let (through, state) = see(front.snapshot().unwrap());
    assert_eq!(through, 20);
    assert!(state == states[20]);
    let (through, state) = see(front.settled().unwrap());
    assert_eq!(through, 1);
    assert!(state == states[1]);
    front.hand_over(usize::MAX).unwrap();
    assert!(see(front.settled().unwrap()).1 == states[20]);
}

#[test]
fn a_batch_says_what_it_adds_to_what_is_ahead() {
    let mut writer = writer();
    publish(&mut writer, 1);
    let first = writer.growth();
    assert_eq!(first.before, 0);
    publish(&mut writer, 2);
    let second = writer.growth();
    assert!(second.before == first.after && second.after > first.after);
    let front = Arc::clone(writer.front());
    let handed = front.hand_over(1).unwrap();
    assert_eq!(
        (handed.bytes, handed.rest),
        (first.after, second.after - first.after)
    );
    assert_eq!(writer.settle().unwrap().rest, 0);
    publish(&mut writer, 3);
    assert_eq!(writer.growth().before, 0);
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
