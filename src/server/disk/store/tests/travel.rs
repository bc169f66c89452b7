//! States that go out and come in.

use super::*;
use crate::raft::Configuration;
use crate::types::{ClusterId, NodeId};
use crate::wire::state::{CHUNK_BYTES_MAX, StateFault, StateSummary};

fn small() -> StoreOptions {
    StoreOptions {
        record_cache_bytes: 0,
        block_cache_bytes: 1 << 20,
        memtable_bytes: 1 << 20,
        ..StoreOptions::default()
    }
}

fn export(reader: &StateReader) -> Export {
    let origin = Origin {
        cluster: ClusterId(7),
        member: NodeId(3),
        configuration: Configuration {
            voters: [NodeId(3)].into(),
            ..Configuration::default()
        },
    };
    Export::new(reader.snapshot().unwrap(), origin).unwrap()
}

fn rest(export: &mut Export) -> Vec<Bytes> {
    std::iter::from_fn(|| export.next_chunk().unwrap()).collect()
}

fn import(path: &Path, chunks: &[Bytes]) -> Result<StateSummary, ImportError> {
    let mut import = Import::begin(path, &small())?;
    for chunk in chunks {
        import.take(chunk.clone())?;
    }
    import.finish()
}

/// Everything in `reader`, but what says something of its files alone.
fn contents(reader: &StateReader) -> Vec<(Space, Bytes, Bytes)> {
    let snapshot = reader.snapshot().unwrap();
    let mut all = Vec::new();
    for space in Space::ALL {
        for pair in snapshot.range(space, &Span::all()) {
            let (key, record) = pair.unwrap();
            if key != "garbage" {
                all.push((space, key, record));
            }
        }
    }
    all
}

/// A state of some chunks, a part of its compacted history removed.
fn filled(path: &Path) -> StateStore {
    let mut store = open(path);
    let mut entries = workload(200);
    for index in 201..=206 {
        let key = format!("long{index}");
        entries.push(put(index, key.as_bytes(), &vec![index as u8; 150_000]));
    }
    let compaction = Operation::Compact(CompactionRequest::at(90));
    entries.push(write(207, compaction));
    store.apply_batch(&entries).unwrap();
    let budget = CompactionBudget {
        events: 20,
        bytes: usize::MAX,
    };
    let gc_step = store.compaction_gc().step(&budget).unwrap();
    assert!(gc_step.step.removed > 0 && !gc_step.step.finished);
    store
}

#[test]
fn a_state_that_was_sent_is_the_same_state() {
    let (from, to) = (directory(), directory());
    let store = filled(from.path());
    let mut export = export(&store.reader());
    let before = contents(&store.reader());
    let chunks = rest(&mut export);
    assert!(chunks.len() > 6, "{}", chunks.len());
    assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK_BYTES_MAX));

    let path = to.path().join("state.next");
    let summary = import(&path, &chunks).unwrap();
    assert_eq!(&summary.header, export.header());
    assert_eq!(summary.header.base.id, LogId::new(LogIndex(207), Term(1)));
    // It is closed, so it may take its place.
    let place = to.path().join("state");
    fs::rename(&path, &place).unwrap();
    let mut received = open(&place);
    assert!(!received.needs_verification());
    assert!(received.reader().verify().unwrap().is_sound());
    assert!(contents(&received.reader()) == before);
    // The removal goes on where it was, and so does everything else.
    let budget = CompactionBudget {
        events: 1000,
        bytes: usize::MAX,
    };
    assert!(
        received
            .compaction_gc()
            .step(&budget)
            .unwrap()
            .step
            .finished
    );
    received.apply_batch(&[put(208, b"a", b"new")]).unwrap();
    assert!(received.reader().verify().unwrap().is_sound());
}

#[test]
fn what_is_written_meanwhile_does_not_go_with_it() {
    let (from, to) = (directory(), directory());
    let mut store = filled(from.path());
    let before = contents(&store.reader());
    let mut export = export(&store.reader());
    let mut chunks = vec![export.next_chunk().unwrap().unwrap()];
    let mut index = 208;
    while let Some(chunk) = export.next_chunk().unwrap() {
        chunks.push(chunk);
        let entry = put(index, b"long201", &index.to_be_bytes());
        store.apply_batch(&[entry]).unwrap();
        index += 1;
    }
    import(to.path(), &chunks).unwrap();
    assert!(contents(&open(to.path()).reader()) == before);
}

#[test]
fn it_goes_on_with_any_chunk() {
    let from = directory();
    let store = filled(from.path());
    let mut export = export(&store.reader());
    let chunks = rest(&mut export);
    for number in (0..=chunks.len()).rev().chain([3, 1, 6, 2, 99, 0]) {
        export.seek(number as u64).unwrap();
        let expected = chunks.get(number..).unwrap_or_default();
        assert!(rest(&mut export) == expected, "from chunk {number} on");
    }
    // Even where nothing is remembered any more.
    export.marks.clear();
    export.seek(4).unwrap();
    assert!(rest(&mut export) == chunks[4..]);
}

#[test]
fn an_empty_state_travels_too() {
    let (from, to) = (directory(), directory());
    let chunks = rest(&mut export(&open(from.path()).reader()));
    let summary = import(to.path(), &chunks).unwrap();
    assert_eq!(summary.header.base.id, LogId::default());
    assert!(contents(&open(to.path()).reader()).is_empty());
}

#[test]
fn a_state_that_came_damaged_is_never_one() {
    let (from, to) = (directory(), directory());
    let store = filled(from.path());
    let chunks = rest(&mut export(&store.reader()));
    let path = to.path().join("state.next");
    for broken in 0..chunks.len() {
        let mut damaged = chunks.clone();
        let mut bytes = damaged[broken].to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        damaged[broken] = bytes.into();
        let error = import(&path, &damaged).unwrap_err();
        let expected = broken as u64;
        assert!(
            matches!(error, ImportError::State(StateFault::Damaged { chunk, .. }) if chunk == expected),
            "{error}"
        );
        let cut = import(&path, &chunks[..broken]).unwrap_err();
        assert!(matches!(cut, ImportError::State(StateFault::Cut { .. })));
        assert!(!path.join("format").exists(), "it is no state");
    }
    // What was broken off is cleared away, and the next one begins anew.
    import(&path, &chunks).unwrap();
    let again = import(&path, &chunks).unwrap_err();
    assert!(matches!(again, ImportError::Occupied { .. }), "{again}");
    assert!(contents(&open(&path).reader()) == contents(&store.reader()));
}

#[test]
fn a_chunk_twice_or_too_early_is_told_and_does_no_harm() {
    let (from, to) = (directory(), directory());
    let store = filled(from.path());
    let chunks = rest(&mut export(&store.reader()));
    let mut import = Import::begin(to.path(), &small()).unwrap();
    for (number, chunk) in chunks.iter().enumerate() {
        assert_eq!(import.next_chunk(), number as u64);
        if let Some(early) = chunks.get(number + 1) {
            let error = import.take(early.clone()).unwrap_err();
            assert!(matches!(
                error,
                ImportError::State(StateFault::OutOfOrder { .. })
            ));
        }
        let is_last = import.take(chunk.clone()).unwrap();
        assert_eq!(is_last, number + 1 == chunks.len());
    }
    assert_eq!(import.header().unwrap().cluster, ClusterId(7));
    import.finish().unwrap();
    assert!(contents(&open(to.path()).reader()) == contents(&store.reader()));
}

/// A state that was wrong before it was read is found where it comes in.
#[test]
fn a_state_whose_disk_lied_is_not_taken_in() {
    let (from, to) = (directory(), directory());
    let store = filled(from.path());
    let chunks = {
        let mut batch = store.tables().database.batch();
        let history = &store.tables().spaces[Space::History.slot()];
        batch.insert(
            history,
            Bytes::from_static(b"odd"),
            Bytes::from_static(b"x"),
        );
        batch.commit().unwrap();
        rest(&mut export(&store.reader()))
    };
    let error = import(to.path(), &chunks).unwrap_err();
    assert!(
        matches!(error, ImportError::State(StateFault::WrongContent { .. })),
        "{error}"
    );
}
