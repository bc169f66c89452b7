//! Compacted history.

use super::*;

fn compact(index: u64, revision: i64) -> Entry {
    write(index, Operation::Compact(CompactionRequest::at(revision)))
}

fn all_of(space: Space, reader: &StateReader) -> usize {
    let snapshot = reader.snapshot().unwrap();
    snapshot.range(space, &Span::all()).count()
}

fn bytes_on_disk(path: &Path) -> u64 {
    let mut found = Vec::new();
    files(path, &mut found);
    let bytes = found.iter().map(|file| used_length(file) as u64);
    bytes.sum()
}

const SMALL_STEP: CompactionBudget = CompactionBudget {
    events: 50,
    bytes: usize::MAX,
};

fn run_gc(compaction_gc: &mut CompactionGc) -> i64 {
    loop {
        let gc_step = compaction_gc.step(&SMALL_STEP).unwrap();
        if gc_step.step.finished {
            return gc_step.through;
        }
    }
}

/// Many versions of few keys, large enough to fill several tables.
fn overwritten(versions: u64) -> Vec<Entry> {
    let mut random = fastrand::Rng::with_seed(3);
    (1..=versions)
        .map(|index| {
            let value: Vec<u8> = (0..4000).map(|_| random.u8(..)).collect();
            put(index, format!("key{}", index % 10).as_bytes(), &value)
        })
        .collect()
}

#[test]
fn what_compaction_gives_up_leaves_the_disk_and_nothing_else_does() {
    let directory = directory();
    let mut store = open(directory.path());
    let entries = overwritten(4000);
    for batch in entries.chunks(100) {
        store.apply_batch(batch).unwrap();
    }
    let reader = store.reader();
    let history = store.tables().spaces[Space::History.slot()].clone();
    history.rotate_memtable_and_wait().unwrap();
    // Memtables before it are written out beside it.
    while history.sealed_memtable_count() > 0 {
        thread::sleep(std::time::Duration::from_millis(1));
    }
    let before = (history.disk_space(), kept_hash(&reader));
    assert!(before.0 > 15 << 20, "{} bytes of history", before.0);

    store.apply_batch(&[compact(4001, 4001)]).unwrap();
    assert_eq!(reader.compact_revision(), 4001);
    let hash = kept_hash(&reader);
    let mut compaction_gc = store.compaction_gc();
    assert_eq!(run_gc(&mut compaction_gc), 4001);
    assert_eq!(all_of(Space::History, &reader), 10);
    assert_eq!(all_of(Space::Events, &reader), 1);
    assert!(compaction_gc.garbage().unwrap() > 15 << 20);

    assert!(compaction_gc.reclaim(ReclaimScope::History).unwrap());
    assert_eq!(compaction_gc.garbage().unwrap(), 0);
    assert!(
        history.disk_space() < before.0 / 50,
        "{} bytes of history were {}",
        history.disk_space(),
        before.0
    );
    assert_eq!(kept_hash(&reader), hash);
    let report = reader.verify().unwrap();
    assert!(report.is_sound());
    // Not only by the engine's count, and not only once the process is gone.
    let tables = directory.path().join("db").join("keyspaces");
    let left = bytes_on_disk(&tables);
    assert!(left < 1 << 20, "{left} bytes are left");
    drop((history, compaction_gc, reader));
    drop(store);
    assert!(bytes_on_disk(&directory.path().join("db").join("keyspaces")) < 1 << 20);
    let store = open(directory.path());
    assert!(store.reader().verify().unwrap().is_sound());
    assert_eq!(all_of(Space::History, &store.reader()), 10);
}

#[test]
fn tables_are_merged_when_a_good_part_of_them_is_garbage() {
    let directory = directory();
    let mut store = open(directory.path());
    for batch in overwritten(6000).chunks(100) {
        store.apply_batch(batch).unwrap();
    }
    let mut compaction_gc = store.compaction_gc();
    // Some four megabytes of twenty-four.
    store.apply_batch(&[compact(6001, 1001)]).unwrap();
    run_gc(&mut compaction_gc);
    assert!(!compaction_gc.is_reclaim_due().unwrap());
    store.apply_batch(&[compact(6002, 6001)]).unwrap();
    run_gc(&mut compaction_gc);
    assert!(compaction_gc.is_reclaim_due().unwrap());
    drop(compaction_gc);
    store.close().unwrap();
    // How much there is to gain is not forgotten.
    let store = open(directory.path());
    let mut compaction_gc = store.compaction_gc();
    assert!(compaction_gc.is_reclaim_due().unwrap());
    assert!(compaction_gc.reclaim(ReclaimScope::History).unwrap());
    assert!(!compaction_gc.is_reclaim_due().unwrap());
}

/// The engine keeps what a snapshot can see, so a merge beside an older one would free nothing.
#[test]
fn tables_are_merged_once_no_snapshot_is_older_than_the_removal() {
    let directory = directory();
    let mut store = open(directory.path());
    for batch in overwritten(6000).chunks(100) {
        store.apply_batch(batch).unwrap();
    }
    let reader = store.reader();
    let backup = reader.snapshot().unwrap();
    store.apply_batch(&[compact(6001, 6001)]).unwrap();
    let mut compaction_gc = store.compaction_gc();
    run_gc(&mut compaction_gc);
    assert!(!compaction_gc.reclaim(ReclaimScope::History).unwrap());
    assert!(compaction_gc.is_reclaim_due().unwrap());

    // Snapshots that come and go do not hold it up.
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                assert!(all_of(Space::History, &reader) >= 10);
            }
        });
        drop(backup);
        let merged = compaction_gc.reclaim(ReclaimScope::History);
        over.store(true, Ordering::Relaxed);
        assert!(merged.unwrap());
    });
    assert!(!compaction_gc.is_reclaim_due().unwrap());
    let left = bytes_on_disk(&directory.path().join("db").join("keyspaces"));
    assert!(left < 1 << 20, "{left} bytes are left");
}

#[test]
fn the_removal_goes_on_where_a_crash_has_cut_it_off() {
    let directory = directory();
    let mut store = open(directory.path());
    store.apply_batch(&workload(900)).unwrap();
    let revision = store.reader().revision();
    store.apply_batch(&[compact(901, revision)]).unwrap();
    store.persist().unwrap();
    let mut compaction_gc = store.compaction_gc();
    assert!(!compaction_gc.step(&SMALL_STEP).unwrap().step.finished);
    let left = all_of(Space::Events, &store.reader());
    drop(compaction_gc);
    drop(store);

    let store = open(directory.path());
    assert!(store.needs_verification());
    assert!(store.reader().verify().unwrap().is_sound());
    let hash = kept_hash(&store.reader());
    let mut compaction_gc = store.compaction_gc();
    let gc_step = compaction_gc.step(&SMALL_STEP).unwrap();
    assert_eq!(gc_step.step.events, SMALL_STEP.events);
    assert!(all_of(Space::Events, &store.reader()) < left);
    assert_eq!(run_gc(&mut compaction_gc), revision);
    assert_eq!(all_of(Space::Events, &store.reader()), 1);
    assert!(store.reader().verify().unwrap().is_sound());
    assert_eq!(kept_hash(&store.reader()), hash);
}

/// The removal beside the thread that applies: the same replies and the same state as without it.
#[test]
fn apply_and_the_removal_do_not_meet() {
    let directory = directory();
    let mut store = open(directory.path());
    let mut memory = MemStore::new();
    let mut entries = workload(3000);
    for place in 1..30 {
        let (id, _) = entries[place * 100];
        entries[place * 100] = compact(id.index.0, place as i64 * 80);
    }
    let mut compaction_gc = store.compaction_gc();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let step = CompactionBudget {
                events: 7,
                bytes: usize::MAX,
            };
            while !is_over.load(Ordering::Relaxed) {
                compaction_gc.step(&step).unwrap();
            }
        });
        for batch in entries.chunks(9) {
            let expected: Vec<AppliedEntry> = batch
                .iter()
                .map(|(id, command)| AppliedEntry {
                    id: *id,
                    reply: kv::apply(&mut memory, *id, command.as_deref()).unwrap(),
                })
                .collect();
            assert_eq!(store.apply_batch(batch).unwrap(), expected);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    run_gc(&mut compaction_gc);
    let report = store.reader().verify().unwrap();
    assert!(report.is_sound());
    assert_eq!(report.kept, kv::content_hash(&memory).unwrap());
    let whole = CompactionBudget {
        events: usize::MAX,
        bytes: usize::MAX,
    };
    while !kv::compact_step(&mut memory, &whole).unwrap().finished {}
    for space in [Space::Current, Space::History, Space::Events] {
        let kept: Vec<Pair> = memory
            .range(space, &Span::all())
            .map(Result::unwrap)
            .collect();
        let snapshot = store.reader().snapshot().unwrap();
        let found: Vec<Pair> = snapshot
            .range(space, &Span::all())
            .map(Result::unwrap)
            .collect();
        assert_eq!(found, kept, "{space}");
    }
}
