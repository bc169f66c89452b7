//! How many keys there are, as it is counted and as it is.

use super::*;

/// How many a look at all of them finds.
fn looked_for(reader: &StateReader) -> u64 {
    let snapshot = reader.snapshot().unwrap();
    let all = Span::all();
    let keys = snapshot.range(Space::Current, &all);
    keys.map(Result::unwrap).count() as u64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever is written and deleted, in one batch or in many, and whenever it is counted.
    #[test]
    fn the_count_is_what_there_is(
        steps in programs(60),
        begun in 0_usize..40,
        counted in 0_usize..40,
    ) {
        let directory = directory();
        let mut store = open(directory.path());
        let reader = store.reader();
        let program = entries(&steps);
        let batches: Vec<_> = program.chunks(3).collect();
        let (begun, counted) = (begun.min(batches.len()), (begun + counted).min(batches.len()));
        let mut uncounted = None;
        for at in 0..=batches.len() {
            if at == begun {
                uncounted = Some(store.uncounted().unwrap());
            }
            if at == counted {
                let uncounted = uncounted.take().expect("it has begun");
                uncounted.count(|| false).unwrap();
            }
            if at >= counted {
                prop_assert_eq!(reader.keys(), Some(looked_for(&reader)));
            } else {
                prop_assert_eq!(reader.keys(), None);
            }
            if let Some(batch) = batches.get(at) {
                store.apply_ahead(batch, at % 2 == 0).unwrap();
            }
        }
    }
}

#[test]
fn a_state_that_takes_another_ones_place_is_counted_anew_and_operations_go_on() {
    let (first, second) = (directory(), directory());
    let mut store = open(first.path());
    let reader = store.reader();
    store.uncounted().unwrap().count(|| false).unwrap();
    store
        .apply_batch(&[put(1, b"a", b"1"), put(2, b"a", b"2"), delete(3, b"a")])
        .unwrap();
    assert_eq!(reader.keys(), Some(0));
    let done = |reader: &StateReader| {
        let operations = reader.operations();
        (operations.puts(), operations.deletes())
    };
    assert_eq!(done(&reader), (2, 1));

    let mut newer = open(second.path());
    let more = [put(1, b"a", b"1"), put(2, b"b", b"1"), delete(3, b"none")];
    newer.apply_batch(&more).unwrap();
    drop(store.replace(newer));
    assert_eq!(reader.keys(), None, "nobody has counted these");
    assert_eq!(
        done(&reader),
        (2, 1),
        "what was done in the other is not ours"
    );
    store.uncounted().unwrap().count(|| false).unwrap();
    assert_eq!(reader.keys(), Some(2));
    store.apply_batch(&[put(4, b"d", b"1")]).unwrap();
    assert_eq!(reader.keys(), Some(3));
    assert_eq!(done(&reader), (3, 1));
}

#[test]
fn a_count_that_nobody_wants_ends_early_and_tells_nothing() {
    let directory = directory();
    let mut store = open(directory.path());
    let keys: Vec<Entry> = (1..=5_000_u64)
        .map(|index| put(index, &index.to_be_bytes(), b""))
        .collect();
    store.apply_batch(&keys).unwrap();
    let looks = AtomicBool::new(false);
    let is_over = || {
        looks.store(true, Ordering::Relaxed);
        true
    };
    store.uncounted().unwrap().count(is_over).unwrap();
    assert!(looks.load(Ordering::Relaxed));
    assert_eq!(store.reader().keys(), None);
}
