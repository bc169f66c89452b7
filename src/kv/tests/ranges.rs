//! Ranges: which keys, in which order, how many, as of when, and by which steps.

use super::programs::{a_key, a_range};
use super::*;
use std::cell::Cell;

use crate::api::{RangeCount, SortOrder, SortTarget, successor};

fn three_keys() -> Machine {
    let mut machine = Machine::default();
    for key in ["a", "ab", "b"] {
        machine.put(key, &"v".repeat(100));
    }
    machine
}

fn read(machine: &Machine, request: &RangeRequest, reply_bytes_max: usize) -> RangeResponse {
    let limits = Limits {
        reply_bytes_max,
        ..Limits::DEFAULT
    };
    range(&machine.store, request, &limits)
        .expect("memory does not fail")
        .expect("the revision can be read")
}

#[test]
fn a_range_stops_at_its_limit_says_more_and_counts_all() {
    let machine = three_keys();
    for (limit, returned, more) in [(0, 3, false), (1, 1, true), (2, 2, true), (3, 3, false)] {
        let request = RangeRequest {
            range: KeyRange::Prefix,
            limit,
            ..RangeRequest::default()
        };
        let response = read(&machine, &request, 1 << 20);
        assert_eq!(
            (response.kvs.len(), response.more, response.count),
            (returned, more, 3),
            "limit {limit}"
        );
    }
}

#[test]
fn a_range_stops_before_its_reply_is_too_large_but_always_gets_on() {
    let machine = three_keys();
    let request = RangeRequest {
        range: KeyRange::Prefix,
        ..RangeRequest::default()
    };
    for (bytes, returned) in [(0, 1), (512 + 310, 2), (512 + 460, 3)] {
        let response = read(&machine, &request, bytes);
        assert_eq!(response.kvs.len(), returned, "{bytes} bytes");
        assert_eq!(response.more, returned < 3);
        assert_eq!(response.count, 3);
    }
    // What is estimated per key is never less than what its encoding takes.
    let widest = KeyValue {
        key: Bytes::from(vec![b'k'; 8 << 10]),
        value: Bytes::from(vec![b'v'; 1 << 20]),
        create_revision: i64::MIN,
        mod_revision: i64::MIN,
        version: i64::MIN,
        lease: i64::MIN,
    };
    let encoded = postcard::to_stdvec(&widest).unwrap().len();
    assert!(encoded <= widest.key.len() + widest.value.len() + 50);
}

#[test]
fn keys_only_and_count_only_leave_out_what_they_say() {
    let machine = three_keys();
    let request = RangeRequest {
        range: KeyRange::Prefix,
        keys_only: true,
        ..RangeRequest::default()
    };
    let keys = read(&machine, &request, 1 << 20);
    assert!(keys.kvs.iter().all(|kv| kv.value.is_empty()));
    assert_eq!(keys.kvs[1], kv("ab", "", 3, 3, 1));
    for (range, count) in [(KeyRange::Single, 1), (KeyRange::Prefix, 2)] {
        let request = RangeRequest {
            key: text("a"),
            range,
            count: RangeCount::Only,
            ..RangeRequest::default()
        };
        let counted = read(&machine, &request, 1 << 20);
        assert_eq!((counted.kvs.len(), counted.count), (0, count));
        assert!(!counted.more);
    }
}

#[test]
fn an_inverted_range_finds_nothing() {
    let machine = three_keys();
    assert_eq!(machine.range("b", KeyRange::Until(text("a"))).count, 0);
}

// What people get wrong about etcd's Range.

fn all() -> RangeRequest {
    RangeRequest {
        range: KeyRange::Prefix,
        ..RangeRequest::default()
    }
}

fn whole(machine: &Machine, request: &RangeRequest) -> RangeResponse {
    read(machine, request, 1 << 20)
}

fn names(response: &RangeResponse) -> Vec<String> {
    let name = |kv: &KeyValue| String::from_utf8(kv.key.to_vec()).unwrap();
    response.kvs.iter().map(name).collect()
}

/// Keys whose versions, ages and values are in different orders.
fn various() -> Machine {
    let mut machine = Machine::default();
    machine.put("c", "9"); // create 2
    machine.put("a", "5"); // create 3
    machine.put("b", "7"); // create 4
    machine.put("a", "6"); // mod 5, version 2
    machine.put("c", "1"); // mod 6, version 2
    machine.put("a", "6"); // mod 7, version 3
    machine
}

#[test]
fn the_limit_is_applied_after_sort_and_filters() {
    let machine = various();
    let newest = RangeRequest {
        limit: 1,
        sort_target: SortTarget::ModRevision,
        sort_order: SortOrder::Descend,
        ..all()
    };
    let response = whole(&machine, &newest);
    assert_eq!(names(&response), ["a"]);
    assert!(response.more);
    let filtered = RangeRequest {
        limit: 1,
        min_create_revision: 4,
        ..all()
    };
    let response = whole(&machine, &filtered);
    assert_eq!(names(&response), ["b"], "`a` does not use the limit up");
    assert!(!response.more, "`c` was created before");
    let two = RangeRequest {
        limit: 1,
        max_create_revision: 3,
        ..all()
    };
    assert!(whole(&machine, &two).more);
}

#[test]
fn the_count_is_of_the_range_before_limit_and_filters() {
    let machine = various();
    for request in [
        RangeRequest { limit: 1, ..all() },
        RangeRequest {
            min_mod_revision: 7,
            ..all()
        },
        RangeRequest {
            max_mod_revision: 1,
            ..all()
        },
        RangeRequest {
            max_mod_revision: 1,
            count: RangeCount::Only,
            ..all()
        },
        RangeRequest {
            limit: 2,
            sort_target: SortTarget::Value,
            ..all()
        },
    ] {
        assert_eq!(whole(&machine, &request).count, 3, "{request:?}");
    }
}

#[test]
fn sorting_by_anything_but_the_key_means_ascending_unless_told_otherwise() {
    let machine = various();
    for (target, ascending) in [
        (SortTarget::Key, ["a", "b", "c"]),
        (SortTarget::Version, ["b", "c", "a"]),
        (SortTarget::CreateRevision, ["c", "a", "b"]),
        (SortTarget::ModRevision, ["b", "c", "a"]),
        (SortTarget::Value, ["c", "a", "b"]),
    ] {
        let sorted = |sort_order| {
            let request = RangeRequest {
                sort_target: target,
                sort_order,
                ..all()
            };
            names(&whole(&machine, &request))
        };
        assert_eq!(sorted(SortOrder::None), ascending, "{target:?}");
        assert_eq!(sorted(SortOrder::Ascend), ascending, "{target:?}");
        let mut descending = ascending;
        descending.reverse();
        assert_eq!(sorted(SortOrder::Descend), descending, "{target:?}");
    }
}

/// As etcd does it, whose clients find the same here. `c` sorts first by its value and is not among them.
#[test]
fn without_an_order_the_limit_is_applied_before_what_it_leaves_is_sorted() {
    let mut machine = Machine::default();
    for (key, value) in [("a", "3"), ("b", "2"), ("c", "1")] {
        machine.put(key, value);
    }
    let request = |sort_order, min_mod_revision| RangeRequest {
        limit: 1,
        sort_target: SortTarget::Value,
        sort_order,
        min_mod_revision,
        ..all()
    };
    let found = whole(&machine, &request(SortOrder::None, 0));
    assert_eq!(
        (names(&found), found.more, found.count),
        (vec!["b".to_owned()], true, 3)
    );
    let found = whole(&machine, &request(SortOrder::Ascend, 0));
    assert_eq!(
        (names(&found), found.more, found.count),
        (vec!["c".to_owned()], true, 3)
    );
    // A filter has to see all of them in any case.
    let found = whole(&machine, &request(SortOrder::None, 1));
    assert_eq!(
        (names(&found), found.more, found.count),
        (vec!["c".to_owned()], true, 3)
    );
}

#[test]
fn keys_only_may_still_be_sorted_by_the_value() {
    let machine = various();
    let request = RangeRequest {
        sort_target: SortTarget::Value,
        keys_only: true,
        ..all()
    };
    let response = whole(&machine, &request);
    assert_eq!(names(&response), ["c", "a", "b"]);
    assert!(response.kvs.iter().all(|kv| kv.value.is_empty()));
}

#[test]
fn a_read_at_the_compact_revision_is_allowed_and_below_it_is_not() {
    let mut machine = various();
    machine.delete("b", KeyRange::Single);
    let operation = Operation::Compact(CompactionRequest::at(6));
    machine.write(operation);
    for swept in [false, true] {
        let at = |revision, range| {
            let request = RangeRequest {
                key: text("a"),
                range,
                revision,
                ..RangeRequest::default()
            };
            super::range(&machine.store, &request, &Limits::DEFAULT).unwrap()
        };
        for range in [KeyRange::Single, KeyRange::From] {
            let compacted = at(5, range.clone()).unwrap_err();
            let compact_revision = 6;
            assert_eq!(compacted.kind, ErrorKind::Compacted { compact_revision });
            assert_eq!(compacted.outcome, Outcome::NotApplied);
            let future = at(9, range).unwrap_err();
            assert_eq!(future.kind, ErrorKind::FutureRevision);
        }
        let found = at(6, KeyRange::From).unwrap();
        let expected = [
            kv("a", "6", 3, 5, 2),
            kv("b", "7", 4, 4, 1),
            kv("c", "1", 2, 6, 2),
        ];
        assert_eq!(found.kvs, expected, "swept: {swept}");
        assert_eq!(at(6, KeyRange::Single).unwrap().kvs, expected[..1]);
        assert_eq!(names(&at(8, KeyRange::From).unwrap()), ["a", "c"]);
        let everything = CompactionBudget {
            events: usize::MAX,
            bytes: usize::MAX,
        };
        compact_step(&mut machine.store, &everything).unwrap();
    }
}

#[test]
fn pages_at_a_fixed_revision_do_not_see_what_is_written_between_them() {
    // How Kubernetes lists: a limit, then on from the last key and a zero byte, at the revision of
    // the first page.
    let mut machine = Machine::default();
    for key in ["a", "b", "c", "d"] {
        machine.put(key, "old");
    }
    let revision = machine.progress().revision;
    let mut key = text("");
    let mut seen = Vec::new();
    loop {
        let request = RangeRequest {
            key: key.clone(),
            range: KeyRange::From,
            limit: 1,
            revision,
            ..RangeRequest::default()
        };
        let page = whole(&machine, &request);
        seen.extend(names(&page));
        assert_eq!(
            page.count,
            5 - seen.len() as u64,
            "what is left, this page included"
        );
        assert!(page.kvs.iter().all(|kv| kv.value == "old"));
        if !page.more {
            break;
        }
        key = successor(&page.kvs.last().unwrap().key);
        machine.put("ab", "new");
        machine.put("c", "new");
        machine.delete("d", KeyRange::Single);
    }
    assert_eq!(seen, ["a", "b", "c", "d"]);
}

#[test]
fn a_point_is_one_key_as_it_is_now_and_nothing_else() {
    let point = RangeRequest {
        key: text("a"),
        limit: 3,
        count: RangeCount::Only,
        keys_only: true,
        sort_order: SortOrder::Descend,
        ..RangeRequest::default()
    };
    assert!(point.is_point());
    let others = [
        RangeRequest {
            revision: 1,
            ..point.clone()
        },
        RangeRequest {
            min_mod_revision: 1,
            ..point.clone()
        },
        RangeRequest {
            max_mod_revision: 1,
            ..point.clone()
        },
        RangeRequest {
            min_create_revision: 1,
            ..point.clone()
        },
        RangeRequest {
            max_create_revision: 1,
            ..point.clone()
        },
        RangeRequest {
            range: KeyRange::Prefix,
            ..point
        },
    ];
    for other in others {
        assert!(!other.is_point(), "{other:?}");
    }
}

// Steps.

/// A store that counts what is read of it.
struct Counting<'a> {
    store: &'a MemStore,
    records: Cell<usize>,
    ranges: Cell<usize>,
}

impl<'a> Counting<'a> {
    fn new(store: &'a MemStore) -> Self {
        Self {
            store,
            records: Cell::new(0),
            ranges: Cell::new(0),
        }
    }
}

impl<'a> View for Counting<'a> {
    type Error = Fault;

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        self.store.get(space, key)
    }

    fn range(
        &self,
        space: Space,
        span: &Span,
    ) -> impl Iterator<Item = Result<Pair, Fault>> + use<'_, 'a> {
        self.ranges.set(self.ranges.get() + 1);
        self.store
            .range(space, span)
            .inspect(|_| self.records.set(self.records.get() + 1))
    }
}

/// What `get_stream` reads: what a page costs does not depend on how many keys there are.
#[test]
fn a_page_that_counts_nothing_looks_at_little_more_than_it_has() {
    let mut machine = Machine::default();
    for key in 0..3_000 {
        machine.put(&format!("k/{key:04}"), "v");
    }
    let request = RangeRequest {
        key: Bytes::from_static(b"k/"),
        range: KeyRange::Prefix,
        limit: 500,
        ..RangeRequest::default()
    };
    let store = Counting::new(&machine.store);
    let found = page(&store, &request, &Limits::DEFAULT).unwrap().unwrap();
    assert_eq!(found.kvs.len(), 500);
    // It looks in steps of 128 keys, and at one record more than it takes.
    assert!(store.records.get() <= 640, "{}", store.records.get());
}

#[test]
fn a_range_that_is_not_counted_looks_at_one_key_beyond_its_limit() {
    let mut machine = Machine::default();
    for key in 0..3_000 {
        machine.put(&format!("k/{key:04}"), "v");
    }
    let mut counts = RangeCounts::default();
    let now = progress(&machine.store).unwrap().revision;
    // Now and in the past, which are found elsewhere; what a reply of few bytes holds is no limit of the request.
    for (limit, revision, reply_bytes_max, held) in [
        (500, 0, 1 << 20, 500),
        (500, now - 1, 1 << 20, 500),
        (0, 0, 10_000, 166),
        (0, 0, 1 << 20, 3_000),
    ] {
        let request = RangeRequest {
            key: Bytes::from_static(b"k/"),
            range: KeyRange::Prefix,
            limit,
            revision,
            count: RangeCount::ToLimit,
            ..RangeRequest::default()
        };
        let limits = Limits {
            reply_bytes_max,
            ..Limits::DEFAULT
        };
        let store = Counting::new(&machine.store);
        // Not even if it is known how many there are: a reply follows from the state alone.
        let found = counted_range(&store, &request, &limits, Some(3_000)).unwrap();
        let found = found.unwrap();
        assert_eq!(found.kvs.len(), held);
        assert_eq!((found.count, found.more), (held as u64, held < 3_000));
        let most = match limit {
            0 => held + 1_024,
            _ => held + 2,
        };
        assert!(store.records.get() <= most, "{}", store.records.get());
        counts.note(&request, now, &found);
    }
    let whole = RangeRequest {
        key: Bytes::from_static(b"k/"),
        range: KeyRange::Prefix,
        ..RangeRequest::default()
    };
    assert_eq!(counts.get(&whole, now), Some(3_000));
    assert_eq!(
        counts.get(
            &RangeRequest {
                revision: now - 1,
                ..whole
            },
            now
        ),
        None
    );
}

#[test]
fn a_list_in_pages_costs_one_walk_and_each_page_counts_what_is_left() {
    let mut machine = Machine::default();
    for key in 0..3_000 {
        machine.put(&format!("k/{key:04}"), "v");
    }
    let mut counts = RangeCounts::default();
    let mut next = RangeRequest {
        key: Bytes::from_static(b"k/"),
        range: KeyRange::Prefix,
        limit: 500,
        ..RangeRequest::default()
    };
    let (mut seen, mut walked) = (0, Vec::new());
    loop {
        let store = Counting::new(&machine.store);
        let current = progress(&machine.store).unwrap().revision;
        let known = counts.get(&next, current);
        let found = counted_range(&store, &next, &Limits::DEFAULT, known).unwrap();
        let page = found.unwrap();
        walked.push(store.records.get());
        counts.note(&next, current, &page);
        let revision = match next.revision {
            0 => current,
            first => first,
        };
        assert_eq!(page.count, 3_000 - seen);
        seen += page.kvs.len() as u64;
        assert_eq!(page.more, seen < 3_000);
        let Some(last) = page.kvs.last().filter(|_| page.more) else {
            break;
        };
        next = RangeRequest {
            key: successor(&last.key),
            range: KeyRange::Until(Bytes::from_static(b"k0")),
            revision,
            ..next
        };
        // What is written meanwhile is of a later revision.
        machine.put("k/0000", "later");
        machine.put(&format!("k/new{seen}"), "later");
    }
    // A step looks at one record more than it takes, and a key has two once it was written again.
    let pages = walked.split_off(1);
    assert!((3_000..3_010).contains(&walked[0]), "{walked:?}");
    assert_eq!(pages.len(), 5);
    assert!(pages.iter().all(|walked| *walked <= 502), "{pages:?}");
    let counted = RangeRequest {
        count: RangeCount::Only,
        revision: next.revision,
        ..next
    };
    let store = Counting::new(&machine.store);
    let known = counts.get(&counted, counted.revision);
    let found = counted_range(&store, &counted, &Limits::DEFAULT, known).unwrap();
    assert_eq!(found.unwrap().count, 500);
    assert!(store.records.get() <= 1, "{}", store.records.get());
}

#[test]
fn a_read_of_the_past_leaps_over_long_runs_of_versions() {
    let mut machine = Machine::default();
    for version in 0..1000 {
        machine.put("a", &version.to_string());
        machine.put("b", &version.to_string());
    }
    let request = RangeRequest {
        revision: 1001,
        ..all()
    };
    let view = Counting::new(&machine.store);
    let found = range(&view, &request, &Limits::DEFAULT).unwrap().unwrap();
    assert_eq!(
        found.kvs,
        [kv("a", "499", 2, 1000, 500), kv("b", "499", 3, 1001, 500)]
    );
    let (records, ranges) = (view.records.get(), view.ranges.get());
    assert!(records < 100, "{records} records were read");
    assert!(ranges < 10, "{ranges} times something was looked for");
}

#[test]
fn a_step_goes_through_no_more_than_its_budget() {
    let mut machine = Machine::default();
    for number in 0..100 {
        machine.put(&format!("{number:03}"), &"v".repeat(100));
    }
    machine.delete("05", KeyRange::Prefix);
    for revision in [0, 101] {
        let request = RangeRequest { revision, ..all() };
        let view = Counting::new(&machine.store);
        for (budget, keys) in [
            (
                ScanBudget {
                    keys: 7,
                    bytes: usize::MAX,
                },
                7..=7,
            ),
            (
                ScanBudget {
                    keys: usize::MAX,
                    bytes: 1000,
                },
                5..=8,
            ),
            (ScanBudget { keys: 0, bytes: 0 }, 1..=1),
        ] {
            let mut scan = Scan::begin(&view, &request).unwrap().unwrap();
            let mut found = 0;
            loop {
                view.records.set(0);
                let chunk = scan.step(&view, &budget).unwrap().unwrap();
                found += chunk.kvs.len();
                let looked_at = view.records.get();
                assert!(looked_at <= 2 * chunk.keys + 1, "{looked_at} for {chunk:?}");
                if chunk.finished {
                    break;
                }
                assert!(keys.contains(&chunk.keys), "{chunk:?}");
            }
            let there = if revision == 0 { 90 } else { 100 };
            assert_eq!((found, scan.count()), (there, there as u64));
        }
    }
}

/// A key may have been written very often since the revision that is read: leaping over that counts
/// as one look at it, or a step of one key would begin with the same key for ever.
#[test]
fn a_step_of_one_key_gets_past_a_key_that_was_written_often_since() {
    let mut machine = various();
    machine.put("often", "then");
    let mut scan = Scan::begin(&machine.store, &all()).unwrap().unwrap();
    for _ in 0..40 {
        machine.put("often", "since");
    }
    let one = ScanBudget {
        keys: 1,
        bytes: 100,
    };
    let mut found = Vec::new();
    for _ in 0..100 {
        let chunk = scan.step(&machine.store, &one).unwrap().unwrap();
        assert_eq!(chunk.keys, usize::from(!chunk.finished || chunk.keys > 0));
        found.extend(chunk.kvs);
        if chunk.finished {
            let often = found.iter().filter(|kv| kv.key == "often");
            let values: Vec<_> = often.map(|kv| kv.value.clone()).collect();
            assert_eq!(values, ["then"]);
            return;
        }
    }
    panic!("the scan does not end");
}

#[test]
fn a_scan_that_compaction_overtakes_says_so() {
    let mut machine = various();
    let mut scan = Scan::begin(&machine.store, &all()).unwrap().unwrap();
    let one = ScanBudget { keys: 1, bytes: 0 };
    assert_eq!(
        scan.step(&machine.store, &one).unwrap().unwrap().kvs.len(),
        1
    );
    machine.put("z", "1");
    machine.write(Operation::Compact(CompactionRequest::at(7)));
    assert_eq!(
        scan.step(&machine.store, &one).unwrap().unwrap().kvs.len(),
        1
    );
    machine.write(Operation::Compact(CompactionRequest::at(8)));
    let refusal = scan.step(&machine.store, &one).unwrap().unwrap_err();
    let compact_revision = 8;
    assert_eq!(refusal.kind, ErrorKind::Compacted { compact_revision });
}

#[test]
fn a_scan_that_is_shown_an_older_store_says_so() {
    let mut machine = various();
    let old = machine.store.clone();
    machine.put("z", "1");
    let mut scan = Scan::begin(&machine.store, &all()).unwrap().unwrap();
    let refusal = scan
        .step(&old, &ScanBudget { keys: 1, bytes: 0 })
        .unwrap()
        .unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::FutureRevision);
}

// Against the model.

fn a_sort() -> impl Strategy<Value = (SortTarget, SortOrder)> {
    let target = prop_oneof![
        4 => Just(SortTarget::Key),
        1 => Just(SortTarget::Version),
        1 => Just(SortTarget::CreateRevision),
        1 => Just(SortTarget::ModRevision),
        1 => Just(SortTarget::Value),
    ];
    let order = prop_oneof![
        Just(SortOrder::None),
        Just(SortOrder::Ascend),
        Just(SortOrder::Descend),
    ];
    (target, order)
}

pub(super) fn a_count() -> impl Strategy<Value = RangeCount> {
    prop_oneof![
        Just(RangeCount::All),
        Just(RangeCount::Only),
        Just(RangeCount::ToLimit),
    ]
}

/// Mostly 0, which leaves it open.
fn a_bound() -> impl Strategy<Value = i64> {
    prop_oneof![4 => Just(0i64), 1 => 1i64..40]
}

pub(super) fn a_range_request() -> impl Strategy<Value = RangeRequest> {
    let bounds = (a_bound(), a_bound(), a_bound(), a_bound());
    (
        (a_key(), a_range()),
        prop_oneof![Just(0u64), 1u64..5],
        (any::<bool>(), a_count()),
        prop_oneof![Just(0i64), 0i64..45],
        a_sort(),
        bounds,
    )
        .prop_map(
            |((key, range), limit, (keys_only, count), revision, sort, bounds)| RangeRequest {
                key,
                range,
                limit,
                keys_only,
                count,
                revision,
                sort_target: sort.0,
                sort_order: sort.1,
                min_mod_revision: bounds.0,
                max_mod_revision: bounds.1,
                min_create_revision: bounds.2,
                max_create_revision: bounds.3,
            },
        )
}

fn kind(error: Error) -> ErrorKind {
    assert_eq!(error.outcome, Outcome::NotApplied);
    error.kind
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_range_of_any_program_is_what_the_model_finds(
        steps in programs(50),
        requests in prop::collection::vec(a_range_request(), 1..20),
        swept in 0usize..20,
    ) {
        let (mut store, model) = run(&steps);
        let budget = CompactionBudget { events: swept, bytes: usize::MAX };
        compact_step(&mut store, &budget).unwrap();
        for request in requests {
            let found = range(&store, &request, &Limits::DEFAULT).unwrap();
            prop_assert_eq!(found.map_err(kind), model.read(&request), "{:?}", request);
        }
    }

    /// Whatever is asked: who knows how many keys a range holds gives the reply that a walk gives.
    #[test]
    fn a_count_that_is_known_changes_no_reply(
        before in programs(60),
        request in a_range_request(),
        bytes in prop_oneof![Just(1usize << 20), 512usize..1500],
    ) {
        let (store, _) = run(&before);
        let limits = Limits { reply_bytes_max: bytes, ..Limits::DEFAULT };
        let Ok(walked) = range(&store, &request, &limits).unwrap() else {
            return Ok(());
        };
        let known = Some(walked.count);
        let found = counted_range(&store, &request, &limits, known).unwrap().unwrap();
        prop_assert_eq!(found, walked);
    }

    /// However small the steps are, and whatever is written and removed between them: a scan finds
    /// the range at its revision, or that it is compacted.
    #[test]
    fn a_scan_goes_on_at_its_revision_while_the_store_goes_on(
        before in programs(40),
        after in programs(40),
        request in a_range_request(),
        budgets in prop::collection::vec((0usize..4, 0usize..80, 0usize..4), 1..8),
    ) {
        let steps: Vec<Step> = before.iter().chain(&after).cloned().collect();
        let program = entries(&steps);
        let mut later = program[before.len()..].iter();
        let (mut store, mut model) = run(&before);
        let request = RangeRequest {
            sort_target: SortTarget::Key,
            sort_order: SortOrder::None,
            ..request
        };
        let expected = model.read(&request);
        let mut scan = match Scan::begin(&store, &request).unwrap() {
            Ok(scan) => scan,
            Err(refusal) => {
                prop_assert_eq!(Err(kind(refusal)), expected);
                return Ok(());
            }
        };
        let mut found = RangeResponse::default();
        for (keys, bytes, events) in budgets.iter().cycle() {
            let chunk = match scan.step(&store, &ScanBudget { keys: *keys, bytes: *bytes }).unwrap() {
                Ok(chunk) => chunk,
                Err(refusal) => {
                    let compact_revision = model.compact_revision();
                    prop_assert!(compact_revision > scan.revision());
                    prop_assert_eq!(kind(refusal), ErrorKind::Compacted { compact_revision });
                    return Ok(());
                }
            };
            found.kvs.extend(chunk.kvs);
            if chunk.finished {
                break;
            }
            for (id, command) in later.by_ref().take(2) {
                apply(&mut store, *id, command.as_deref()).unwrap();
                let _ = model.apply(*id, command.as_ref());
            }
            compact_step(&mut store, &CompactionBudget { events: *events, bytes: 0 }).unwrap();
        }
        found.count = scan.count();
        found.more = scan.more();
        prop_assert_eq!(Ok(found), expected);
    }

    /// A reply that is full holds the first ones of the order asked for, as many as fit, and no
    /// other.
    #[test]
    fn a_full_reply_holds_the_first_that_fit_however_they_are_sorted(
        writes in prop::collection::vec(("[a-e]{1,2}", 0usize..60), 1..40),
        (target, order) in a_sort(),
        limit in prop_oneof![Just(0u64), 1u64..30],
        bytes in 0usize..1500,
    ) {
        let mut machine = Machine::default();
        for (key, length) in &writes {
            machine.put(key, &"v".repeat(*length));
        }
        let request = RangeRequest { sort_target: target, sort_order: order, limit, ..all() };
        let everything = RangeRequest { limit: 0, ..request.clone() };
        let mut sorted = whole(&machine, &everything).kvs;
        if order == SortOrder::None && target != SortTarget::Key && limit > 0 {
            let by_key = names(&whole(&machine, &all()));
            let first = &by_key[..by_key.len().min(limit as usize + 1)];
            sorted.retain(|kv| first.iter().any(|key| *key == kv.key));
        }
        let found = read(&machine, &request, 512 + bytes);
        let limit = if limit == 0 { usize::MAX } else { limit as usize };
        let mut left = bytes;
        let mut expected = Vec::new();
        for kv in &sorted {
            let weight = kv.key.len() + kv.value.len() + 50;
            if expected.len() == limit || weight > left && !expected.is_empty() {
                break;
            }
            left = left.saturating_sub(weight);
            expected.push(kv.clone());
        }
        prop_assert_eq!(found.more, expected.len() < sorted.len());
        prop_assert_eq!(found.kvs, expected);
    }
}

/// The store and the model after a program.
fn run(steps: &[Step]) -> (MemStore, Model) {
    let mut store = MemStore::new();
    let mut model = Model::new();
    for (id, command) in entries(steps) {
        apply(&mut store, id, command.as_deref()).unwrap();
        let _ = model.apply(id, command.as_ref());
    }
    (store, model)
}
