//! The store against the one in memory, against crashes and against damage.

mod ahead;
mod compaction;
mod counts;
mod travel;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io, thread};

use bytes::Bytes;
use fjall::Keyspace;
use proptest::prelude::*;
use tempfile::TempDir;

use super::tables::WORKER_THREADS_MIN;
use super::*;
use crate::api::{
    CompactionRequest, DeleteRangeRequest, KeyRange, Limits, PutRequest, RangeRequest,
};
use crate::kv::tests::{entries, programs};
use crate::kv::{
    Command, CompactionBudget, ContentHash, MemStore, Operation, Pair, Space, Span, Store, View,
};
use crate::server::threads::priority::BACKGROUND_NICENESS;
use crate::types::{LogIndex, Term};

type Entry = (LogId, Option<Bytes>);

fn directory() -> TempDir {
    tempfile::tempdir().expect("there is room for a directory")
}

fn open(path: &Path) -> StateStore {
    let small = StoreOptions {
        record_cache_bytes: 256 << 10,
        block_cache_bytes: 1 << 20,
        memtable_bytes: 1 << 20,
        ..StoreOptions::default()
    };
    StateStore::open(path, &small).expect("it opens")
}

/// The niceness of every thread of this process that has that name.
#[cfg(target_os = "linux")]
fn nicenesses(name: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        // Threads of other tests come and go.
        let Ok(stat) = fs::read_to_string(task.unwrap().path().join("stat")) else {
            continue;
        };
        let (before, after) = stat.rsplit_once(") ").unwrap();
        if before.ends_with(&format!("({name}")) {
            // The nineteenth field of proc_pid_stat(5), the third of which comes first here.
            found.push(after.split(' ').nth(16).unwrap().parse().unwrap());
        }
    }
    found
}

#[cfg(target_os = "linux")]
#[test]
fn merging_of_tables_gives_way_to_everything_else_and_whoever_opens_a_state_does_not() {
    let folder = directory();
    let before = rustix::process::nice(0).unwrap();
    let _store = open(folder.path());
    assert_eq!(rustix::process::nice(0).unwrap(), before);
    let mut workers = Vec::new();
    // A thread gives itself its name once it runs.
    for _ in 0..10_000 {
        workers = nicenesses("fjall:worker");
        if workers.len() >= WORKER_THREADS_MIN {
            break;
        }
        thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(workers.len() >= WORKER_THREADS_MIN, "{workers:?}");
    let lower = (before + BACKGROUND_NICENESS).min(19);
    assert!(workers.iter().all(|worker| *worker == lower), "{workers:?}");
}

fn open_error(path: &Path) -> StoreError {
    match StateStore::open(path, &StoreOptions::default()) {
        Ok(_) => panic!("it opens"),
        Err(error) => error,
    }
}

fn put(index: u64, key: &[u8], value: &[u8]) -> Entry {
    let operation = Operation::Put(PutRequest {
        key: Bytes::copy_from_slice(key),
        value: Bytes::copy_from_slice(value),
        prev_kv: false,
        ..PutRequest::default()
    });
    write(index, operation)
}

fn delete(index: u64, key: &[u8]) -> Entry {
    let operation = Operation::DeleteRange(DeleteRangeRequest {
        key: Bytes::copy_from_slice(key),
        range: KeyRange::Single,
        prev_kv: false,
    });
    write(index, operation)
}

fn write(index: u64, operation: Operation) -> Entry {
    let command = Command::Write {
        author: None,
        session: None,
        operation,
    };
    let id = LogId::new(LogIndex(index), Term(1));
    (id, Some(command.encode()))
}

/// Entries that write a few keys over and over, with some deletes.
fn workload(length: u64) -> Vec<Entry> {
    (1..=length)
        .map(|index| {
            let key = format!("key{}", index % 7);
            match index % 5 {
                0 => delete(index, key.as_bytes()),
                _ => put(index, key.as_bytes(), &index.to_be_bytes()),
            }
        })
        .collect()
}

/// The state in memory after each number of `entries`, from none to all: its hash.
fn hashes(entries: &[Entry]) -> Vec<ContentHash> {
    let mut store = MemStore::new();
    let mut hashes = vec![ContentHash::default()];
    for (id, command) in entries {
        kv::apply(&mut store, *id, command.as_deref()).expect("memory does not fail");
        hashes.push(kv::content_hash(&store).expect("memory does not fail"));
    }
    hashes
}

fn kept_hash(reader: &StateReader) -> ContentHash {
    kv::content_hash(&reader.snapshot().unwrap()).unwrap()
}

fn applied(reader: &StateReader) -> usize {
    usize::try_from(reader.applied().0).unwrap()
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

fn files(path: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(path).unwrap().map(Result::unwrap).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if entry.file_type().unwrap().is_dir() {
            files(&entry.path(), found);
        } else if entry.metadata().unwrap().len() > 0 {
            found.push(entry.path());
        }
    }
}

/// Cuts off the 64 MiB that fjall allocates ahead, which would be copied many times.
fn shorten(path: &Path) {
    drop(open(path));
}

/// A file's length without the zeros at its end, where fjall has made room ahead.
/// Whether fjall keeps a list of tables in `file`. One byte of it, wrong, makes fjall panic with a
/// lock held that it wants again while it unwinds: the process is gone, and nothing in it can
/// report the damage. docs/decisions/state.md says what is done about it.
fn is_manifest(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.strip_prefix('v'))
        .is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn used_length(file: &Path) -> usize {
    let bytes = fs::read(file).unwrap();
    bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1
}

// The same state machine as in memory.

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 12,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn a_program_gives_the_same_replies_and_the_same_hash_as_in_memory(
        steps in programs(80),
        batch in 1usize..9,
    ) {
        let directory = directory();
        let mut memory = MemStore::new();
        let mut store = open(directory.path());
        let program = entries(&steps);
        for (turn, batch) in program.chunks(batch).enumerate() {
            let expected: Vec<AppliedEntry> = batch
                .iter()
                .map(|(id, command)| AppliedEntry {
                    id: *id,
                    reply: kv::apply(&mut memory, *id, command.as_deref()).unwrap(),
                })
                .collect();
            prop_assert_eq!(store.apply_batch(batch).unwrap(), expected);
            if turn == 4 {
                store.close().unwrap();
                store = open(directory.path());
                prop_assert!(!store.needs_verification());
            }
        }
        let reader = store.reader();
        let progress = kv::progress(&memory).unwrap();
        prop_assert_eq!(reader.applied(), progress.applied.index);
        prop_assert_eq!(reader.revision(), progress.revision);
        let report = reader.verify().unwrap();
        prop_assert!(report.is_sound());
        prop_assert_eq!(report.kept, kv::content_hash(&memory).unwrap());
        prop_assert_eq!(report.progress, progress);

        let snapshot = reader.snapshot().unwrap();
        let all = RangeRequest { range: KeyRange::Prefix, ..RangeRequest::default() };
        let expected = kv::range(&memory, &all, &Limits::DEFAULT).unwrap().unwrap();
        for kv in &expected.kvs {
            for _ in 0..2 {
                let point = reader.get(&kv.key).unwrap();
                prop_assert_eq!(point.key_value(), Some(kv.clone()));
                prop_assert_eq!(point.revision, progress.revision);
            }
        }
        prop_assert_eq!(kv::range(&snapshot, &all, &Limits::DEFAULT).unwrap().unwrap(), expected);
    }
}

#[test]
fn state_that_has_gone_into_tables_reads_like_state_in_memory() {
    let directory = directory();
    let mut store = open(directory.path());
    let mut memory = MemStore::new();
    let mut random = fastrand::Rng::with_seed(7);
    let mut index = 0;
    for _ in 0..60 {
        let mut batch = Vec::new();
        for _ in 0..20 {
            index += 1;
            let key = format!("key{}", random.u32(..400));
            let value: Vec<u8> = (0..4000).map(|_| random.u8(..)).collect();
            batch.push(put(index, key.as_bytes(), &value));
        }
        for (id, command) in &batch {
            kv::apply(&mut memory, *id, command.as_deref()).unwrap();
        }
        store.apply_batch(&batch).unwrap();
    }
    drop(store);
    let store = open(directory.path());
    assert_eq!(store.reader().applied(), LogIndex(index));
    assert!(store.needs_verification());
    assert!(store.reader().verify().unwrap().is_sound());
    assert_eq!(
        kept_hash(&store.reader()),
        kv::content_hash(&memory).unwrap()
    );
    let tables = store.tables().spaces.iter().map(Keyspace::table_count);
    assert!(tables.sum::<usize>() > 0, "or this shows nothing");
}

#[test]
fn an_inverted_span_is_empty_on_disk_too() {
    let directory = directory();
    let mut store = open(directory.path());
    store.apply_batch(&[put(1, b"b", b"1")]).unwrap();
    let snapshot = store.reader().snapshot().unwrap();
    for end in [b"b", b"a"] {
        let request = RangeRequest {
            key: Bytes::from_static(b"b"),
            range: KeyRange::Until(Bytes::from_static(end)),
            ..RangeRequest::default()
        };
        let response = kv::range(&snapshot, &request, &Limits::DEFAULT)
            .unwrap()
            .unwrap();
        assert_eq!(response.count, 0);
    }
}

// Reading.

#[test]
fn a_snapshot_stays_as_it_was_and_says_how_far_that_is() {
    let directory = directory();
    let mut store = open(directory.path());
    let reader = store.reader();
    store.apply_batch(&[put(1, b"k", b"1")]).unwrap();
    let before = reader.snapshot().unwrap();
    store
        .apply_batch(&[put(2, b"k", b"2"), (LogId::new(LogIndex(3), Term(4)), None)])
        .unwrap();
    let after = reader.snapshot().unwrap();
    assert_eq!(before.applied(), LogId::new(LogIndex(1), Term(1)));
    assert_eq!((before.revision(), after.revision()), (2, 3));
    assert_eq!(after.applied(), LogId::new(LogIndex(3), Term(4)));
    let value = |snapshot: &Snapshot| {
        let request = RangeRequest {
            key: Bytes::from_static(b"k"),
            ..RangeRequest::default()
        };
        let mut response = kv::range(snapshot, &request, &Limits::DEFAULT)
            .unwrap()
            .unwrap();
        response.kvs.pop().unwrap().value
    };
    assert_eq!(value(&before).as_ref(), b"1");
    assert_eq!(value(&after).as_ref(), b"2");
}

#[test]
fn a_point_read_tells_a_revision_at_which_it_was_so() {
    let directory = directory();
    let mut store = open(directory.path());
    let reader = store.reader();
    let never = reader.get(b"k").unwrap();
    assert_eq!((never.record, never.revision), (None, 1));
    store
        .apply_batch(&[put(1, b"k", b"1"), put(2, b"other", b"1")])
        .unwrap();
    let there = reader.get(b"k").unwrap();
    assert_eq!((there.revision, there.applied), (3, LogIndex(2)));
    assert_eq!(there.record.unwrap().mod_revision(), 2);
    store.apply_batch(&[delete(3, b"k")]).unwrap();
    for _ in 0..2 {
        let gone = reader.get(b"k").unwrap();
        assert_eq!((gone.record, gone.revision), (None, 4));
    }
    store.apply_batch(&[put(4, b"other", b"2")]).unwrap();
    assert_eq!(
        reader.get(b"k").unwrap().revision,
        5,
        "still gone, and later"
    );
    drop(reader);
    drop(store);
    let store = open(directory.path());
    for _ in 0..2 {
        let gone = store.reader().get(b"k").unwrap();
        assert_eq!((gone.record, gone.revision), (None, 5), "from disk");
    }
}

#[test]
fn a_second_read_of_a_key_shares_memory_and_asks_no_disk() {
    let directory = directory();
    let mut store = open(directory.path());
    store.apply_batch(&[put(1, b"k", b"value")]).unwrap();
    drop(store);
    let store = open(directory.path());
    let reader = store.reader();
    let first = reader.get(b"k").unwrap();
    assert_eq!(first.key_value().unwrap().value.as_ref(), b"value");
    let first = first.record.unwrap();
    let second = reader.get(b"k").unwrap().record.unwrap();
    let third = reader.get(b"k").unwrap().record.unwrap();
    assert_eq!(second.encoded().as_ptr(), third.encoded().as_ptr());
    assert_eq!(first.encoded().as_ptr(), third.encoded().as_ptr());
}

/// Every entry writes its own index, so what a read returns tells how old it is.
#[test]
fn a_read_contains_every_index_applied_before_it_began() {
    const WRITES: u64 = 1500;
    let directory = directory();
    let mut store = open(directory.path());
    store
        .apply_batch(&[put(1, b"a", &1u64.to_be_bytes())])
        .unwrap();
    let number = |value: &Bytes| u64::from_be_bytes(value.as_ref().try_into().unwrap());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            let reader = store.reader();
            let is_over = &is_over;
            scope.spawn(move || {
                let request = RangeRequest {
                    key: Bytes::from_static(b"a"),
                    ..RangeRequest::default()
                };
                let mut turn = 0u64;
                while !is_over.load(Ordering::Relaxed) {
                    turn += 1;
                    let before = reader.applied();
                    let (kv, revision, contains) = if turn.is_multiple_of(4) {
                        let snapshot = reader.snapshot().unwrap();
                        let kvs = kv::range(&snapshot, &request, &Limits::DEFAULT)
                            .unwrap()
                            .unwrap()
                            .kvs;
                        let kv = kvs.into_iter().next();
                        (kv, snapshot.revision(), snapshot.applied().index)
                    } else {
                        let point = reader.get(b"a").unwrap();
                        (point.key_value(), point.revision, point.applied)
                    };
                    let kv = kv.expect("it is never deleted");
                    assert!(number(&kv.value) >= before.0);
                    assert!(contains >= before);
                    assert!(revision >= kv.mod_revision);
                    assert!(revision > before.0 as i64, "each index is a revision");
                }
            });
        }
        for index in 2..=WRITES {
            let entry = put(index, b"a", &index.to_be_bytes());
            store.apply_batch(&[entry]).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

// Stopping and starting.

#[test]
fn only_a_clean_stop_spares_the_verification() {
    let directory = directory();
    let mut store = open(directory.path());
    assert!(!store.needs_verification(), "there is nothing to verify");
    store.apply_batch(&workload(10)).unwrap();
    let last = LogId::new(LogIndex(10), Term(1));
    assert_eq!(store.persist().unwrap().through(), last);
    drop(store);

    let mut store = open(directory.path());
    assert!(store.needs_verification(), "durable is not clean");
    let report = store.reader().verify().unwrap();
    let mut bad = report;
    bad.scanned.0 ^= 1;
    store.verified(&bad);
    assert!(
        store.needs_verification(),
        "an unsound report proves nothing"
    );
    store.verified(&report);
    assert_eq!(store.close().unwrap().through(), last);

    let store = open(directory.path());
    assert!(!store.needs_verification());
    drop(store);
    let store = open(directory.path());
    assert!(store.needs_verification(), "a mark is good for one start");
    store.close().unwrap();
    assert!(
        open(directory.path()).needs_verification(),
        "what was not verified is not marked clean"
    );
}

#[test]
fn a_mark_of_another_state_is_not_believed() {
    let directory = directory();
    let mark = directory.path().join("clean");
    let mut store = open(directory.path());
    store.apply_batch(&workload(10)).unwrap();
    store.close().unwrap();
    let old_mark = fs::read(&mark).unwrap();
    let mut store = open(directory.path());
    assert!(!mark.exists(), "taken at once");
    store.apply_batch(&[put(11, b"k", b"v")]).unwrap();
    drop(store);
    for wrong in [old_mark.as_slice(), b"", b"11 1 zz 0\n", b"11 1", b"\xff\n"] {
        fs::write(&mark, wrong).unwrap();
        assert!(open(directory.path()).needs_verification(), "{wrong:?}");
    }
}

/// The engine makes up for files that are gone or cut without a word, with an earlier state or an
/// emptier one. Then nothing may be served before everything was read.
#[test]
fn files_that_changed_while_the_state_was_closed_spare_it_no_verification() {
    let original = directory();
    let mut store = open(original.path());
    store.apply_batch(&workload(300)).unwrap();
    store.close().unwrap();
    drop(open(original.path()));
    let mut store = open(original.path());
    let report = store.reader().verify().unwrap();
    store.verified(&report);
    store.apply_batch(&[put(301, b"k", b"v")]).unwrap();
    store.close().unwrap();
    let mut files = Vec::new();
    let mut folders = vec![original.path().join("db")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    let proceeds = |spoil: &dyn Fn(&Path)| {
        for file in &files {
            let target = directory();
            copy(original.path(), target.path()).unwrap();
            let file = file.strip_prefix(original.path()).unwrap();
            spoil(&target.path().join(file));
            if let Ok(store) = StateStore::open(target.path(), &StoreOptions::default()) {
                let noticed = store.needs_verification();
                assert!(noticed, "{} was spoiled unnoticed", file.display());
            }
        }
    };
    assert!(files.len() > 10, "{files:?}");
    proceeds(&|file| fs::remove_file(file).unwrap());
    proceeds(&|file| {
        // An empty file has no end that could be cut off.
        let length = fs::metadata(file).unwrap().len();
        let file = File::options().write(true).open(file).unwrap();
        file.set_len(if length == 0 { 1 } else { length - 1 })
            .unwrap();
    });
    let target = directory();
    copy(original.path(), target.path()).unwrap();
    assert!(
        !open(target.path()).needs_verification(),
        "nothing was changed"
    );
}

#[test]
fn a_copy_taken_at_any_moment_is_an_earlier_state_that_the_log_completes() {
    const COPIES: usize = 6;
    let live = directory();
    let entries = workload(3000);
    let hashes = hashes(&entries);
    let mut store = open(live.path());
    let start = Barrier::new(2);
    let copies = thread::scope(|scope| {
        let copier = scope.spawn(|| {
            start.wait();
            let take = |_| {
                let target = directory();
                copy(live.path(), target.path()).unwrap();
                target
            };
            (0..COPIES).map(take).collect::<Vec<_>>()
        });
        start.wait();
        for batch in entries.chunks(3) {
            store.apply_batch(batch).unwrap();
        }
        copier.join().unwrap()
    });
    for copy in copies {
        let mut store = open(copy.path());
        let reader = store.reader();
        let at = applied(&reader);
        assert_eq!(kept_hash(&reader), hashes[at]);
        assert!(store.needs_verification());
        assert!(reader.verify().unwrap().is_sound());
        store.apply_batch(&entries[at..]).unwrap();
        assert_eq!(kept_hash(&reader), hashes[entries.len()]);
    }
}

#[test]
fn the_journal_is_synced_ahead_once_there_is_enough_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let mut journal = store.journal();
    journal.write_back().unwrap();
    assert_eq!(journal.write_back().unwrap(), 0, "nothing was written");
    // The journal is compressed: what says nothing takes up nothing.
    let mut random = fastrand::Rng::with_seed(1);
    let mut value = vec![0; 64 << 10];
    let mut synced = 0;
    for index in 1..=192 {
        random.fill(&mut value);
        store.apply_batch(&[put(index, b"key", &value)]).unwrap();
        synced += journal.write_back().unwrap();
    }
    assert!(synced >= 8 << 20, "{synced} bytes of twelve mebibytes");
    // The next journal is found when the database goes over to it.
    let before = synced;
    for index in 193..=1500 {
        random.fill(&mut value);
        store.apply_batch(&[put(index, b"key", &value)]).unwrap();
        if index % 32 == 0 {
            synced += journal.write_back().unwrap();
        }
    }
    assert!(synced - before >= 64 << 20, "{synced} bytes in all");
}

#[test]
fn a_journal_cut_anywhere_gives_an_earlier_state_that_the_log_completes() {
    let whole = directory();
    let entries = workload(60);
    let hashes = hashes(&entries);
    let mut store = open(whole.path());
    for batch in entries.chunks(4) {
        store.apply_batch(batch).unwrap();
    }
    store.close().unwrap();
    let length = used_length(&whole.path().join("db/0.jnl")) as u64;
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..12 {
        let cut = directory();
        copy(whole.path(), cut.path()).unwrap();
        let keep = random.u64(length / 4..length);
        let journal = File::options()
            .write(true)
            .open(cut.path().join("db/0.jnl"));
        journal.unwrap().set_len(keep).unwrap();
        let mut store = open(cut.path());
        let reader = store.reader();
        let at = applied(&reader);
        assert!(at < entries.len());
        assert_eq!(kept_hash(&reader), hashes[at]);
        assert!(store.needs_verification(), "the mark is of another state");
        assert!(reader.verify().unwrap().is_sound());
        store.apply_batch(&entries[at..]).unwrap();
        assert_eq!(kept_hash(&reader), hashes[entries.len()]);
    }
}

// Damage.

#[test]
fn a_flipped_bit_is_an_error_or_a_failed_verification_or_an_earlier_state() {
    const TRIALS: u32 = 40;
    let whole = directory();
    let mut entries = workload(200);
    for (number, index) in (201..=400u64).enumerate() {
        let value = vec![index as u8; 3000];
        entries.push(put(index, format!("big{number}").as_bytes(), &value));
    }
    let hashes = hashes(&entries);
    let mut store = open(whole.path());
    for batch in entries.chunks(10) {
        store.apply_batch(batch).unwrap();
    }
    // Half of the keyspaces in tables, the rest in the journal.
    for space in [Space::Current, Space::Events] {
        let keyspace = &store.tables().spaces[space.slot()];
        keyspace.rotate_memtable_and_wait().unwrap();
    }
    drop(store);
    shorten(whole.path());

    let mut random = fastrand::Rng::with_seed(11);
    let (mut refused, mut unsound, mut earlier) = (0, 0, 0);
    for trial in 0..TRIALS {
        let damaged = directory();
        copy(whole.path(), damaged.path()).unwrap();
        let mut candidates = Vec::new();
        files(&damaged.path().join("db"), &mut candidates);
        candidates.retain(|file| !is_manifest(file));
        // The journal is one of many files, and the one that forgets in silence.
        let journal = damaged.path().join("db/0.jnl");
        let file = match trial % 2 {
            0 => &journal,
            _ => &candidates[random.usize(..candidates.len())],
        };
        let mut bytes = fs::read(file).unwrap();
        let at = random.usize(..used_length(file));
        bytes[at] ^= 1 << random.u32(..8);
        fs::write(file, bytes).unwrap();

        let store = match StateStore::open(damaged.path(), &StoreOptions::default()) {
            Ok(store) => store,
            Err(error) => {
                assert!(
                    matches!(error, StoreError::Damaged { .. }),
                    "{}: {error}",
                    file.display()
                );
                refused += 1;
                continue;
            }
        };
        let reader = store.reader();
        assert!(store.needs_verification());
        match reader.verify() {
            Ok(report) if report.is_sound() => {
                assert_eq!(report.scanned, hashes[applied(&reader)]);
                earlier += 1;
            }
            Ok(_) => unsound += 1,
            Err(StoreError::Damaged { .. }) => refused += 1,
            Err(error) => panic!("{}: {error}", file.display()),
        }
    }
    assert_eq!(refused + unsound + earlier, TRIALS);
    assert!(refused > 0, "damage is met at all");
}

#[test]
fn a_journal_cut_below_what_has_gone_into_tables_is_found_by_verification() {
    let whole = directory();
    let entries = workload(60);
    let mut store = open(whole.path());
    for batch in entries.chunks(4) {
        store.apply_batch(batch).unwrap();
    }
    let current = &store.tables().spaces[Space::Current.slot()];
    current.rotate_memtable_and_wait().unwrap();
    drop(store);
    shorten(whole.path());
    let length = used_length(&whole.path().join("db/0.jnl")) as u64;
    for part in 0..8 {
        let cut = directory();
        copy(whole.path(), cut.path()).unwrap();
        let journal = File::options()
            .write(true)
            .open(cut.path().join("db/0.jnl"));
        journal.unwrap().set_len(length * part / 8).unwrap();
        let store = open(cut.path());
        let reader = store.reader();
        assert!(applied(&reader) < entries.len());
        assert!(store.needs_verification());
        assert!(!reader.verify().unwrap().is_sound());
    }
}

#[test]
fn a_record_lost_or_added_behind_our_back_is_found_by_verification() {
    let directory = directory();
    let mut store = open(directory.path());
    store.apply_batch(&workload(20)).unwrap();
    let current = &store.tables().spaces[Space::Current.slot()];
    let record = current.get("key2").unwrap().expect("it was written");
    current.remove("key2").unwrap();
    assert!(!store.reader().verify().unwrap().is_sound());
    current.insert("key2", record).unwrap();
    assert!(store.reader().verify().unwrap().is_sound());
    current.insert("stray", "x").unwrap();
    assert!(!store.reader().verify().unwrap().is_sound());
}

#[test]
fn after_one_error_every_call_fails() {
    let directory = directory();
    let mut store = open(directory.path());
    let reader = store.reader();
    store.apply_batch(&workload(3)).unwrap();
    let gap = store.apply_batch(&[put(5, b"k", b"v")]).unwrap_err();
    assert!(matches!(gap, StoreError::OutOfOrder { .. }), "{gap}");
    assert_eq!(reader.applied(), LogIndex(3), "nothing was published");
    let first = gap.to_string();
    // Whoever comes second may be the only one who gets to say anything: the process ends.
    let poisoned = |error: StoreError| {
        assert!(error.is_damage(), "{error}");
        matches!(&error, StoreError::Poisoned(_)) && error.to_string().starts_with(&first)
    };
    assert!(poisoned(
        store.apply_batch(&[put(4, b"k", b"v")]).unwrap_err()
    ));
    assert!(poisoned(store.persist().unwrap_err()));
    assert!(poisoned(reader.get(b"key1").unwrap_err()));
    assert!(poisoned(reader.snapshot().map(|_| ()).unwrap_err()));
    assert!(poisoned(reader.storage_bytes().unwrap_err()));
    assert!(poisoned(reader.verify().unwrap_err()));
    assert!(poisoned(store.close().unwrap_err()));
    assert!(!directory.path().join("clean").exists());
}

#[test]
fn a_batch_with_a_bad_entry_leaves_nothing_behind() {
    let directory = directory();
    let mut store = open(directory.path());
    store.apply_batch(&workload(3)).unwrap();
    let batch = [put(4, b"k", b"v"), put(4, b"k", b"v")];
    assert!(store.apply_batch(&batch).is_err());
    drop(store);
    let store = open(directory.path());
    assert_eq!(store.reader().applied(), LogIndex(3));
    assert_eq!(kept_hash(&store.reader()), hashes(&workload(3))[3]);
}

#[test]
fn a_record_that_does_not_read_is_damage() {
    let directory = directory();
    let store = open(directory.path());
    let current = &store.tables().spaces[Space::Current.slot()];
    current.insert("short", "x").unwrap();
    let error = store.reader().get(b"short").unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(matches!(
        store.reader().get(b"short").unwrap_err(),
        StoreError::Poisoned(_)
    ));
}

// Directories that are not ours to open.

#[test]
fn a_state_is_open_once() {
    let directory = directory();
    let store = open(directory.path());
    let error = open_error(directory.path());
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    let reader = store.reader();
    drop(store);
    assert!(
        matches!(open_error(directory.path()), StoreError::Locked { .. }),
        "a reader holds it too"
    );
    drop(reader);
    open(directory.path());
}

#[test]
fn a_foreign_directory_is_refused_and_left_alone() {
    let directory = directory();
    fs::write(directory.path().join("letter.txt"), "dear").unwrap();
    let error = open_error(directory.path());
    assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "not even a lock is put there");
}

#[test]
fn a_format_from_the_future_or_the_past_is_refused_with_both_versions_and_left_alone() {
    let directory = directory();
    drop(open(directory.path()));
    let format = directory.path().join("format");
    let ours = fs::read(&format).unwrap();
    fs::write(&format, "leasehold state 3\nchecksum: 4818654a\n").unwrap();
    let error = open_error(directory.path());
    assert!(
        matches!(
            error,
            StoreError::NewerFormat {
                found: 3,
                known: 2,
                ..
            }
        ),
        "{error}"
    );
    fs::write(&format, "leasehold state 1\n").unwrap();
    let error = open_error(directory.path());
    assert!(
        matches!(
            error,
            StoreError::OlderFormat {
                found: 1,
                known: 2,
                ..
            }
        ),
        "{error}"
    );
    let said = error.to_string();
    assert!(said.contains("start the release that wrote it"), "{said}");
    assert!(!error.is_damage(), "it is not set aside");
    fs::write(&format, ours).unwrap();
    open(directory.path());
}

#[test]
fn a_format_that_does_not_read_or_is_lost_is_damage_and_left_alone() {
    let directory = directory();
    drop(open(directory.path()));
    let format = directory.path().join("format");
    let ours = fs::read(&format).unwrap();
    for nonsense in [
        Some(""),
        Some("leasehold state x\n"),
        Some("leasehold state 3\n"),
        Some("\u{1F40C}"),
        None,
    ] {
        match nonsense {
            Some(text) => fs::write(&format, text).unwrap(),
            None => fs::remove_file(&format).unwrap(),
        }
        let error = open_error(directory.path());
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("its `format` file"), "{error}");
        assert!(StateStore::refuse_newer_format(directory.path()).is_ok());
        assert!(directory.path().join("db").exists());
    }
    fs::write(&format, ours).unwrap();
    open(directory.path());
}

#[test]
fn a_lost_database_is_damage_and_not_an_empty_state() {
    let directory = directory();
    drop(open(directory.path()));
    fs::remove_dir_all(directory.path().join("db")).unwrap();
    let error = open_error(directory.path());
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[test]
fn a_creation_cut_off_anywhere_is_begun_again() {
    let complete = directory();
    drop(open(complete.path()));
    // What is there when creation stops before, within and after the making of the database.
    for parts in [vec![], vec!["db/lock"], vec!["db"]] {
        let directory = directory();
        fs::write(directory.path().join("creating"), "").unwrap();
        for part in parts {
            let (from, to) = (complete.path().join(part), directory.path().join(part));
            if from.is_dir() {
                copy(&from, &to).unwrap();
            } else {
                fs::create_dir_all(to.parent().unwrap()).unwrap();
                fs::copy(from, to).unwrap();
            }
        }
        let mut store = open(directory.path());
        assert!(!directory.path().join("creating").exists());
        assert!(!store.needs_verification());
        store.apply_batch(&workload(3)).unwrap();
    }
    // And after everything but the last step.
    fs::write(complete.path().join("creating"), "").unwrap();
    let mut store = open(complete.path());
    assert!(!complete.path().join("creating").exists());
    store.apply_batch(&workload(3)).unwrap();
}

#[test]
fn a_full_disk_is_no_damage() {
    let full = StoreError::from_fjall(
        "writing",
        fjall::Error::Io(io::Error::from(io::ErrorKind::StorageFull)),
    );
    assert!(matches!(full, StoreError::Io { .. }), "{full}");
    assert!(!full.is_damage());
    let missing = StoreError::from_fjall(
        "reading",
        fjall::Error::Io(io::Error::from(io::ErrorKind::NotFound)),
    );
    assert!(matches!(missing, StoreError::Damaged { .. }));
    let tag = fjall::Error::Storage(fjall::LsmError::InvalidTrailer);
    assert!(matches!(
        StoreError::from_fjall("reading", tag),
        StoreError::Damaged { .. }
    ));
}

#[test]
fn memory_and_disk_hold_the_same_records_in_every_keyspace() {
    let directory = directory();
    let mut store = open(directory.path());
    let mut memory = MemStore::new();
    for (id, command) in workload(50) {
        kv::apply(&mut memory, id, command.as_deref()).unwrap();
    }
    store.apply_batch(&workload(50)).unwrap();
    let snapshot = store.reader().snapshot().unwrap();
    let mut read_back = MemStore::new();
    for space in Space::ALL {
        for pair in snapshot.range(space, &Span::all()) {
            let (key, record) = pair.unwrap();
            read_back.put(space, key, record);
        }
    }
    assert_eq!(read_back, memory);
}
