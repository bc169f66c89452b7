use super::*;

fn put(value: u64, invoked: u64, returned: u64, revision: Option<i64>) -> Operation {
    Operation::Put {
        key: 1,
        value,
        invoked,
        returned,
        revision,
        refused: false,
    }
}

fn get(invoked: u64, returned: u64, revision: i64, found: Option<(u64, i64)>) -> Operation {
    Operation::Get {
        key: 1,
        invoked,
        returned,
        revision,
        value: found.map(|(value, _)| value),
        mod_revision: found.map(|(_, revision)| revision),
    }
}

/// The rule that a history breaks, in whatever order it was recorded.
fn broken(operations: &[Operation]) -> Option<&'static str> {
    let findings = check(operations);
    let mut reversed = operations.to_vec();
    reversed.reverse();
    assert_eq!(
        check(&reversed).violations,
        findings.violations,
        "{operations:?}"
    );
    findings.described.first().map(|violation| violation.rule)
}

#[test]
fn histories_that_could_have_happened_are_let_through() {
    let nothing: [Operation; 0] = [];
    assert_eq!(broken(&nothing), None);
    assert_eq!(
        broken(&[put(1, 0, 10, Some(2)), get(11, 12, 2, Some((1, 2)))]),
        None
    );
    let overlapping = [
        put(1, 0, 10, Some(2)),
        put(2, 5, 20, Some(3)),
        get(6, 7, 2, Some((1, 2))),
        get(6, 30, 3, Some((2, 3))),
        get(8, 9, 2, Some((1, 2))),
    ];
    assert_eq!(
        broken(&overlapping),
        None,
        "a read may see a write that is not answered yet"
    );
    let absent = [
        get(0, 1, 1, None),
        put(1, 0, 10, Some(2)),
        get(2, 3, 1, None),
    ];
    assert_eq!(broken(&absent), None);
    let elsewhere = [
        put(1, 0, 1, Some(2)),
        get(2, 3, 7, Some((1, 2))),
        get(4, 5, 7, Some((1, 2))),
    ];
    assert_eq!(broken(&elsewhere), None, "other keys move the revision too");
    let meeting = [put(1, 0, 5, Some(2)), get(5, 6, 1, None)];
    assert_eq!(
        broken(&meeting),
        None,
        "who begins as another ends is concurrent with it"
    );
}

#[test]
fn what_has_no_answer_may_have_happened_or_not() {
    let seen = [
        put(1, 0, 1, Some(2)),
        put(2, 2, 100, None),
        get(3, 4, 2, Some((1, 2))),
        get(5, 6, 3, Some((2, 3))),
        get(7, 8, 3, Some((2, 3))),
    ];
    assert_eq!(broken(&seen), None);
    let never_seen = [
        put(1, 0, 1, Some(2)),
        put(2, 2, 100, None),
        get(200, 201, 2, Some((1, 2))),
    ];
    assert_eq!(broken(&never_seen), None);
    let late = [
        put(2, 2, 3, None),
        put(1, 10, 11, Some(2)),
        get(12, 13, 3, Some((2, 3))),
    ];
    assert_eq!(
        broken(&late),
        None,
        "it may take effect after it was given up"
    );
}

#[test]
fn a_stale_read_is_found() {
    let stale = [
        put(1, 0, 1, Some(2)),
        put(2, 2, 3, Some(3)),
        get(4, 5, 2, Some((1, 2))),
    ];
    assert_eq!(broken(&stale), Some("real time"));
    assert_eq!(
        broken(&[put(1, 0, 1, Some(2)), get(4, 5, 1, None)]),
        Some("real time")
    );
}

#[test]
fn a_read_behind_another_read_is_found() {
    let back = [
        put(1, 0, 1, Some(2)),
        put(2, 2, 30, Some(3)),
        get(4, 5, 3, Some((2, 3))),
        get(6, 7, 2, Some((1, 2))),
    ];
    assert_eq!(broken(&back), Some("real time"));
}

#[test]
fn an_old_value_under_a_new_revision_is_found() {
    let torn = [
        put(1, 0, 1, Some(2)),
        put(2, 2, 3, Some(3)),
        get(4, 5, 3, Some((1, 2))),
    ];
    assert_eq!(broken(&torn), Some("reads show the last write"));
    let lost = [put(1, 0, 1, Some(2)), get(4, 5, 2, None)];
    assert_eq!(broken(&lost), Some("reads show the last write"));
    let unanswered = [
        put(1, 0, 1, Some(2)),
        put(2, 2, 100, None),
        get(3, 4, 3, Some((2, 3))),
        get(5, 6, 4, Some((1, 2))),
    ];
    assert_eq!(broken(&unanswered), Some("reads show the last write"));
}

#[test]
fn a_write_that_is_ordered_before_what_was_answered_is_found() {
    let back = [put(1, 0, 1, Some(3)), put(2, 2, 3, Some(2))];
    assert_eq!(broken(&back), Some("real time"));
    let shared = [put(1, 0, 10, Some(2)), put(2, 1, 11, Some(2))];
    assert_eq!(broken(&shared), Some("one write per revision"));
}

#[test]
fn values_from_nowhere_and_from_refused_writes_are_found() {
    assert_eq!(
        broken(&[get(1, 2, 2, Some((9, 2)))]),
        Some("reads show writes")
    );
    let future = [put(1, 5, 10, Some(2)), get(1, 2, 2, Some((1, 2)))];
    assert_eq!(
        broken(&future),
        Some("reads show writes"),
        "it had not begun"
    );
    let other_key = [
        Operation::Put {
            key: 2,
            value: 1,
            invoked: 0,
            returned: 1,
            revision: Some(2),
            refused: false,
        },
        get(2, 3, 2, Some((1, 2))),
    ];
    assert_eq!(broken(&other_key), Some("reads show writes"));
    let refused = |returned| Operation::Put {
        key: 1,
        value: 1,
        invoked: 0,
        returned,
        revision: None,
        refused: true,
    };
    let shown = get(2, 3, 2, Some((1, 2)));
    assert_eq!(
        broken(&[refused(1), shown.clone()]),
        Some("refused writes are not visible")
    );
    assert_eq!(
        broken(&[refused(50), shown]),
        Some("refused writes are not visible")
    );
    assert_eq!(
        broken(&[put(1, 0, 1, Some(2)), get(2, 3, 2, Some((1, 3)))]),
        Some("no read from the future")
    );
}

#[test]
fn a_value_written_twice_makes_a_history_useless_and_is_said() {
    let twice = [put(1, 0, 1, Some(2)), put(1, 2, 3, Some(3))];
    assert_eq!(broken(&twice), Some("values are unique"));
}

/// A store that does everything right, asked by several clients at once; and the same with one
/// answer falsified, which must be found.
#[test]
fn random_histories_of_a_correct_store_pass_and_each_stale_answer_is_found() {
    let mut falsified = 0;
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut operations, mut stored) = (Vec::new(), BTreeMap::<u32, (u64, i64)>::new());
        let (mut revision, mut now) = (1, 0);
        // Each takes effect at once, somewhere between its beginning and its end.
        for number in 0..200_u64 {
            now += random.u64(1..20);
            let (invoked, returned) = (now - random.u64(0..now.min(30)), now + random.u64(0..30));
            let key = random.u32(0..3);
            if random.bool() {
                revision += 1;
                stored.insert(key, (number, revision));
                let is_known = random.u8(0..10) > 0;
                operations.push(Operation::Put {
                    key,
                    value: number,
                    invoked,
                    returned,
                    revision: is_known.then_some(revision),
                    refused: false,
                });
            } else {
                let found = stored.get(&key).copied();
                operations.push(Operation::Get {
                    key,
                    invoked,
                    returned,
                    revision,
                    value: found.map(|(value, _)| value),
                    mod_revision: found.map(|(_, written)| written),
                });
            }
        }
        let findings = check(&operations);
        assert_eq!(
            findings.violations, 0,
            "seed {seed}: {:?}",
            findings.described
        );

        // A read that goes back to what its key held before, long after that was overwritten.
        let of = |wanted: u32| {
            operations
                .iter()
                .enumerate()
                .filter_map(move |(place, operation)| match operation {
                    Operation::Put {
                        key,
                        value,
                        revision,
                        returned,
                        ..
                    } if *key == wanted => Some((place, *value, (*revision)?, *returned)),
                    _ => None,
                })
        };
        let victim = operations.iter().position(|operation| match operation {
            Operation::Get { key, invoked, .. } => {
                of(*key)
                    .filter(|(_, _, _, returned)| returned < invoked)
                    .count()
                    >= 2
            }
            Operation::Put { .. } => false,
        });
        let Some(victim) = victim else { continue };
        let Operation::Get { key, invoked, .. } = operations[victim].clone() else {
            unreachable!("only reads are victims");
        };
        let answered: Vec<_> = of(key)
            .filter(|(_, _, _, returned)| *returned < invoked)
            .collect();
        let (_, old_value, old_revision, _) = answered[answered.len() - 2];
        if let Operation::Get {
            value,
            mod_revision,
            ..
        } = &mut operations[victim]
        {
            *value = Some(old_value);
            *mod_revision = Some(old_revision);
        }
        assert!(
            check(&operations).violations > 0,
            "seed {seed}: a stale value passed"
        );
        falsified += 1;
    }
    assert!(
        falsified > 200,
        "only {falsified} histories had something to falsify"
    );
}

#[test]
fn a_recorded_history_comes_back_as_it_was_and_nonsense_is_named() {
    let operations = [
        put(1, 0, 1, Some(2)),
        put(2, 0, 1, None),
        get(2, 3, 2, Some((1, 2))),
        get(2, 3, 1, None),
    ];
    let mut text = String::new();
    for operation in &operations {
        text.push_str(&serde_json::to_string(operation).unwrap());
        text.push('\n');
    }
    assert_eq!(read(text.as_bytes()).unwrap(), operations);
    let error = read("\n{\"op\":\"put\"}\n".as_bytes()).unwrap_err();
    assert!(
        error.to_string().starts_with("line 2 is not an operation"),
        "{error}"
    );
    let unknown = text.replace("\"key\":1", "\"key\":1,\"x\":2");
    assert!(
        read(unknown.as_bytes()).is_err(),
        "what is not understood is not passed over"
    );
}

#[test]
fn a_history_that_follows_another_sees_nothing_from_before_it() {
    let audit_of = |operate: fn(&mut Audit)| {
        let mut audit = Audit::after(10);
        operate(&mut audit);
        let acknowledged = audit.acknowledged();
        (audit.finish().violations, acknowledged)
    };
    assert_eq!(
        audit_of(|audit| {
            let begun = audit.begin_read(1);
            let seen = Observation {
                revision: 9,
                found: None,
            };
            audit.end_read(begun, seen);
        }),
        (1, 10)
    );
    assert_eq!(
        audit_of(|audit| {
            let begun = audit.begin_write(1, 7);
            audit.end_write(begun, 7, Fate::Written(10));
        }),
        (1, 10)
    );
    assert_eq!(
        audit_of(|audit| {
            let begun = audit.begin_write(1, 7);
            audit.end_write(begun, 7, Fate::Written(11));
        }),
        (0, 11)
    );
}
