//! What is published before the database has it.

use super::*;
use crate::api::RangeResponse;

fn all(snapshot: &Snapshot) -> RangeResponse {
    let request = RangeRequest {
        range: KeyRange::Prefix,
        ..RangeRequest::default()
    };
    kv::range(snapshot, &request, &Limits::DEFAULT)
        .unwrap()
        .unwrap()
}

/// A store that keeps no records, so that every read looks at the database.
fn open_uncached(path: &Path) -> StateStore {
    let options = StoreOptions {
        record_cache_bytes: 0,
        ..StoreOptions::default()
    };
    StateStore::open(path, &options).expect("it opens")
}

#[test]
fn whoever_reads_sees_what_is_ahead_and_the_same_once_it_is_settled() {
    let directory = directory();
    let mut store = open_uncached(directory.path());
    let reader = store.reader();
    let program = workload(60);
    let hashes = hashes(&program);
    let mut memory = MemStore::new();
    let mut looks = Vec::new();
    for batch in program.chunks(4) {
        store.apply_ahead(batch, false).unwrap();
        for (id, command) in batch {
            kv::apply(&mut memory, *id, command.as_deref()).unwrap();
        }
        let at = applied(&reader);
        let look = reader.snapshot().unwrap();
        for key in (0..7).map(|number| format!("key{number}")) {
            let ahead = reader.get(key.as_bytes()).unwrap();
            let expected = memory.get(Space::Current, key.as_bytes()).unwrap();
            let expected =
                expected.map(|record| kv::key_value(key.clone().into(), record).unwrap());
            assert_eq!(ahead.key_value(), expected, "{key} after {at}, ahead");
            store.settle().unwrap();
            assert_eq!(
                reader.get(key.as_bytes()).unwrap(),
                ahead,
                "{key} after {at}, settled"
            );
        }
        assert_eq!(kept_hash(&reader), hashes[at]);
        looks.push((at, look, all(&reader.snapshot().unwrap())));
    }
    for (at, look, settled) in looks {
        assert_eq!(look.applied().index, LogIndex(at as u64));
        assert_eq!(all(&look), settled, "a look taken while {at} was ahead");
        assert_eq!(kv::content_hash(&look).unwrap(), hashes[at]);
        assert_eq!(kv::scan(&look).unwrap(), hashes[at]);
    }
}

#[test]
fn what_was_never_settled_is_an_earlier_state_that_the_log_completes() {
    let directory = directory();
    let program = workload(12);
    let mut store = open(directory.path());
    store.apply_batch(&program[..5]).unwrap();
    store.apply_ahead(&program[5..9], false).unwrap();
    assert_eq!(store.reader().applied(), LogIndex(9));
    drop(store);
    let mut store = open(directory.path());
    assert_eq!(store.reader().applied(), LogIndex(5));
    store.apply_batch(&program[5..]).unwrap();
    assert_eq!(kept_hash(&store.reader()), hashes(&program)[12]);
    assert!(store.reader().verify().unwrap().is_sound());
}

#[test]
fn a_hand_over_persisting_and_closing_give_the_database_what_is_ahead() {
    let directory = directory();
    let program = workload(12);
    let mut store = open(directory.path());
    let in_database = |store: &StateStore| {
        let meta = &store.tables().spaces[Space::Meta.slot()];
        let record = meta.get("progress").unwrap();
        record.map(|record| u64::from_be_bytes(record[..8].try_into().unwrap()))
    };
    store.apply_ahead(&program[..3], false).unwrap();
    store.apply_ahead(&program[3..5], false).unwrap();
    assert_eq!(in_database(&store), None);
    let hand_over = store.hand_over();
    assert_eq!(hand_over.ahead_bytes(), store.growth().after);
    assert!(!hand_over.has(hand_over.applied()).unwrap());
    assert_eq!(hand_over.step().unwrap().rest, 0);
    assert!(hand_over.has(hand_over.applied()).unwrap());
    assert_eq!(in_database(&store), Some(5));
    store.apply_ahead(&program[5..6], false).unwrap();
    assert_eq!(in_database(&store), Some(5));
    assert_eq!(
        store.keeper().persist().unwrap().through().index,
        LogIndex(5)
    );
    assert_eq!(store.persist().unwrap().through().index, LogIndex(6));
    assert_eq!(in_database(&store), Some(6));
    store.apply_ahead(&program[6..], false).unwrap();
    drop(hand_over);
    assert_eq!(store.close().unwrap().through().index, LogIndex(12));
    let store = open(directory.path());
    assert!(!store.needs_verification());
    assert_eq!(kept_hash(&store.reader()), hashes(&program)[12]);
}

/// One thread applies, one hands over, one looks: each look is of one moment.
#[test]
fn looks_during_hand_overs_are_of_one_moment() {
    let directory = directory();
    let mut store = open_uncached(directory.path());
    let program = workload(400);
    let hashes = hashes(&program);
    let (hand_over, reader) = (store.hand_over(), store.reader());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                hand_over.step().unwrap();
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let look = reader.snapshot().unwrap();
                let at = look.applied().index.0 as usize;
                assert_eq!(kv::content_hash(&look).unwrap(), hashes[at]);
                assert_eq!(kv::scan(&look).unwrap(), hashes[at]);
            }
        });
        for batch in program.chunks(3) {
            store.apply_ahead(batch, false).unwrap();
            store.merge_runs();
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn the_events_of_a_hand_over_share_records_of_the_database_and_each_is_found() {
    let directory = directory();
    let mut store = open(directory.path());
    let puts: Vec<Entry> = (1..=1000)
        .map(|index| put(index, format!("key{}", index % 7).as_bytes(), b"v"))
        .collect();
    store.apply_batch(&puts[..900]).unwrap();
    // Of one that gives the database a change or two, the events stand alone.
    for entry in &puts[900..] {
        store.apply_batch(std::slice::from_ref(entry)).unwrap();
    }
    let events = &store.tables().spaces[Space::Events.slot()];
    let records = events.iter().count();
    assert!(records < 900 / 50 + 100, "{records} records");
    let mut memory = MemStore::new();
    for (id, command) in &puts {
        kv::apply(&mut memory, *id, command.as_deref()).unwrap();
    }
    let snapshot = store.reader().snapshot().unwrap();
    let all: Vec<Pair> = memory
        .range(Space::Events, &Span::all())
        .map(Result::unwrap)
        .collect();
    for (number, (key, record)) in all.iter().enumerate() {
        let found = snapshot.get(Space::Events, key).unwrap();
        assert_eq!(found.as_ref(), Some(record));
        let rest = Span::from_key(key.clone());
        let rest = snapshot.range(Space::Events, &rest);
        let rest: Vec<Pair> = rest.take(3).map(Result::unwrap).collect();
        assert_eq!(rest, all[number..all.len().min(number + 3)]);
    }
}
