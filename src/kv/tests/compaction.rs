//! Compaction: what is given up at once, what leaves later, and what no pace may change.

use super::*;

const WHOLE: CompactionBudget = CompactionBudget {
    events: usize::MAX,
    bytes: usize::MAX,
};

fn compaction(revision: i64) -> Command {
    Command::Write {
        author: None,
        session: None,
        operation: Operation::Compact(CompactionRequest::at(revision)),
    }
}

fn collect_garbage(store: &mut MemStore) {
    while !compact_step(store, &WHOLE).unwrap().finished {}
}

fn count(machine: &Machine, space: Space) -> u64 {
    machine.store.count(space, &Span::all()).unwrap()
}

#[test]
fn compaction_is_refused_at_or_below_the_last_one_and_above_the_current_revision() {
    let mut machine = Machine::default();
    for value in ["1", "2", "3"] {
        machine.put("a", value);
    }
    let compacted = |compact_revision| {
        let kind = ErrorKind::Compacted { compact_revision };
        (kind, Outcome::NotApplied)
    };
    assert_eq!(refusal(&machine.run(&compaction(0))), compacted(0));
    let done = machine.run(&compaction(3));
    assert_eq!(
        (done.revision, done.result),
        (4, Ok(Some(ResponseBody::Compact))),
        "the revision stays"
    );
    assert_eq!(refusal(&machine.run(&compaction(3))), compacted(3));
    assert_eq!(refusal(&machine.run(&compaction(2))), compacted(3));
    assert_eq!(refusal(&machine.run(&compaction(-1))), compacted(3));
    let future = machine.run(&compaction(5));
    assert_eq!(
        refusal(&future),
        (ErrorKind::FutureRevision, Outcome::NotApplied)
    );
    assert_eq!(machine.progress().compact_revision, 3);
    assert!(
        machine.run(&compaction(4)).result.is_ok(),
        "the current one"
    );
    assert_eq!(machine.put("a", "4").0, 5);
}

#[test]
fn a_retried_compaction_returns_its_first_answer() {
    let mut machine = Machine::default();
    let id = machine.open();
    machine.put("a", "1");
    let operation = Operation::Compact(CompactionRequest::at(2));
    let first = machine.once(id, 1, 0, operation.clone());
    assert_eq!(first.result, Ok(Some(ResponseBody::Compact)));
    assert_eq!(machine.once(id, 1, 0, operation), repeated(&first));
}

#[test]
fn the_command_removes_nothing_and_the_steps_remove_it_all() {
    let mut machine = Machine::default();
    for value in ["1", "2", "3"] {
        machine.put("a", value);
        machine.put("b", value);
    }
    machine.delete("b", KeyRange::Single);
    machine.put("c", "1");
    assert_eq!(machine.progress().revision, 9);
    let before = (
        count(&machine, Space::Events),
        count(&machine, Space::History),
    );
    assert_eq!(before, (8, 8));
    machine.run(&compaction(8));
    let hash = content_hash(&machine.store);
    let after = (
        count(&machine, Space::Events),
        count(&machine, Space::History),
    );
    assert_eq!(after, before);

    let step = compact_step(&mut machine.store, &WHOLE).unwrap();
    assert_eq!((step.events, step.finished), (7, true));
    // The delete at 8 and the put at 9.
    assert_eq!(count(&machine, Space::Events), 2);
    // The newest value of `a`, and `c`.
    assert_eq!(count(&machine, Space::History), 2);
    assert_eq!(step.removed, 6 + 6);
    assert_eq!(content_hash(&machine.store), hash);
    assert_eq!(scan(&machine.store), hash);
    let again = compact_step(&mut machine.store, &WHOLE).unwrap();
    let nothing = CompactionStep {
        finished: true,
        ..CompactionStep::default()
    };
    assert_eq!(again, nothing);
}

#[test]
fn the_latest_value_of_each_live_key_survives_however_old() {
    let mut machine = Machine::default();
    machine.put("old", "1");
    for _ in 0..10 {
        machine.put("new", "1");
    }
    machine.run(&compaction(12));
    collect_garbage(&mut machine.store);
    assert_eq!(machine.get("old"), Some(kv("old", "1", 2, 2, 1)));
    assert_eq!(machine.get("new"), Some(kv("new", "1", 3, 12, 10)));
    assert_eq!(count(&machine, Space::History), 2);
}

#[test]
fn a_deleted_key_leaves_nothing_behind() {
    let mut machine = Machine::default();
    for _ in 0..3 {
        machine.put("a", "1");
        machine.put("a", "2");
        machine.delete("a", KeyRange::Single);
    }
    machine.put("other", "1");
    machine.run(&compaction(machine.progress().revision));
    collect_garbage(&mut machine.store);
    assert_eq!(count(&machine, Space::History), 1, "the other key's");
    assert_eq!(count(&machine, Space::Events), 1);
    assert_eq!(machine.get("a"), None);
}

#[test]
fn a_step_does_no_more_than_its_budget() {
    let mut machine = Machine::default();
    for _ in 0..50 {
        machine.put("a", &"v".repeat(100));
    }
    machine.run(&compaction(51));
    let few = CompactionBudget {
        events: 8,
        bytes: usize::MAX,
    };
    let step = compact_step(&mut machine.store, &few).unwrap();
    assert_eq!((step.events, step.finished), (8, false));
    let small = CompactionBudget {
        events: usize::MAX,
        bytes: 500,
    };
    let step = compact_step(&mut machine.store, &small).unwrap();
    assert!((1..=5).contains(&step.events), "{step:?}");
    let none = CompactionBudget {
        events: 0,
        bytes: 0,
    };
    let step = compact_step(&mut machine.store, &none).unwrap();
    assert_eq!(step.events, 1, "there is always progress");
    assert_eq!(content_hash(&machine.store), scan(&machine.store));
    let mut steps = 0;
    while !compact_step(&mut machine.store, &none).unwrap().finished {
        steps += 1;
        assert!(steps < 100);
    }
    assert_eq!(count(&machine, Space::History), 1);
}

#[test]
fn a_compaction_that_overtakes_another_leaves_nothing_of_it() {
    // The first one stops among the events of its own revision, which stay for watches.
    let mut machine = Machine::default();
    for key in ["a", "b", "c", "d"] {
        machine.put(key, "1");
    }
    machine.delete("", KeyRange::Prefix);
    machine.put("e", "1");
    machine.run(&compaction(6));
    let few = CompactionBudget {
        events: 6,
        bytes: usize::MAX,
    };
    assert!(!compact_step(&mut machine.store, &few).unwrap().finished);
    assert!(!compacted(&machine.store).unwrap().is_settled);
    machine.run(&compaction(7));
    collect_garbage(&mut machine.store);
    assert_eq!(count(&machine, Space::Events), 1);
    assert_eq!(count(&machine, Space::History), 1);
    let state = compacted(&machine.store).unwrap();
    assert_eq!((state.through, state.is_settled), (7, true));
}

#[test]
fn a_damaged_record_of_the_removal_is_noticed() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    machine.put("a", "2");
    machine.run(&compaction(3));
    collect_garbage(&mut machine.store);
    let (key, record) = machine
        .store
        .range(Space::Local, &Span::all())
        .next()
        .unwrap()
        .unwrap();
    for bit in 0..record.len() * 8 {
        let mut damaged = record.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let mut store = machine.store.clone();
        store.put(Space::Local, key.clone(), damaged.into());
        assert!(scan(&store).is_err(), "bit {bit}");
        assert!(compact_step(&mut store, &WHOLE).is_err());
    }
}

#[test]
fn damage_to_any_record_that_is_left_is_found_as_before() {
    let mut machine = Machine::default();
    for value in ["1", "2", "3"] {
        machine.put("a", value);
        machine.put("b", value);
    }
    machine.run(&compaction(5));
    collect_garbage(&mut machine.store);
    let kept = content_hash(&machine.store).unwrap();
    for space in [Space::Current, Space::History, Space::Events] {
        let pairs: Vec<Pair> = machine
            .store
            .range(space, &Span::all())
            .map(Result::unwrap)
            .collect();
        assert!(!pairs.is_empty());
        for (key, _) in pairs {
            let mut lost = machine.store.clone();
            lost.delete(space, key);
            assert_ne!(scan(&lost).unwrap(), kept, "{space}");
        }
    }
}

/// When a replica does steps of which size, after each entry.
fn paces(length: usize) -> impl Strategy<Value = Vec<Vec<(usize, usize)>>> {
    let step = (
        1usize..5,
        prop_oneof![Just(0usize), Just(64), Just(usize::MAX)],
    );
    prop::collection::vec(
        prop_oneof![
            2 => Just(vec![]),
            1 => prop::collection::vec(step, 0..4),
        ],
        length,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The heart of the matter: two replicas that remove at different paces, one of which falls
    /// back to earlier moments of itself and applies the log again from there, agree after every
    /// entry, and each is what its own hash says.
    #[test]
    fn replicas_agree_whatever_the_pace_of_their_removal(
        steps in programs(60),
        one in paces(60),
        two in paces(60),
        crashes in prop::collection::vec((0usize..60, 0usize..20), 0..3),
    ) {
        let program = entries(&steps);
        let mut model = Model::new();
        let mut replicas = [MemStore::new(), MemStore::new()];
        let mut saved = vec![MemStore::new()];
        for (at, (id, command)) in program.iter().enumerate() {
            let expected = model.apply(*id, command.as_ref());
            for (store, pace) in replicas.iter_mut().zip([&one, &two]) {
                let reply = apply(store, *id, command.as_deref()).unwrap();
                prop_assert_eq!(verdict(reply), expected.clone());
                for &(events, bytes) in &pace[at] {
                    compact_step(store, &CompactionBudget { events, bytes }).unwrap();
                    prop_assert_eq!(content_hash(store), scan(store));
                }
            }
            saved.push(replicas[1].clone());
            for (_, back) in crashes.iter().filter(|(when, _)| *when == at) {
                // What was not synced is lost, in one piece; the log brings the entries back.
                let from = (at + 1).saturating_sub(*back);
                let mut store = saved[from].clone();
                for (id, command) in &program[from..=at] {
                    apply(&mut store, *id, command.as_deref()).unwrap();
                }
                replicas[1] = store;
            }
            prop_assert_eq!(content_hash(&replicas[0]), content_hash(&replicas[1]));
            for store in &replicas {
                model.check(store);
            }
        }
        for store in &mut replicas {
            prop_assert_eq!(content_hash(store), scan(store));
            collect_garbage(store);
            prop_assert_eq!(content_hash(store), scan(store));
            model.check(store);
            model.check_compacted(store);
        }
        prop_assert_eq!(compacted(&replicas[0]), compacted(&replicas[1]));
    }
}
