//! Transactions: what is compared with what, what is seen by whom, and what is refused.

use super::*;
use crate::api::{CasResult, Compare, CompareOp, TxnOp, TxnOpResponse, TxnRequest, TxnResponse};

impl Machine {
    fn try_txn(&mut self, txn: TxnRequest) -> (i64, Result<TxnResponse, ErrorKind>) {
        let reply = self.run(&Command::Write {
            author: None,
            session: None,
            operation: Operation::Txn(txn),
        });
        let result = match reply.result {
            Ok(Some(ResponseBody::Txn(response))) => Ok(response),
            Ok(other) => panic!("not an answer to a transaction: {other:?}"),
            Err(error) => {
                assert_eq!(error.outcome, Outcome::NotApplied);
                Err(error.kind)
            }
        };
        (reply.revision, result)
    }

    fn txn(&mut self, txn: TxnRequest) -> (i64, TxnResponse) {
        let (revision, result) = self.try_txn(txn);
        (revision, result.expect("it is allowed"))
    }

    /// Whether a comparison holds.
    fn holds(&mut self, compare: Compare) -> bool {
        self.txn(TxnRequest::new().when([compare])).1.succeeded
    }
}

fn all() -> RangeRequest {
    RangeRequest {
        range: KeyRange::Prefix,
        ..RangeRequest::default()
    }
}

fn delete_prefix(key: &str) -> TxnOp {
    TxnOp::DeleteRange(DeleteRangeRequest {
        key: text(key),
        range: KeyRange::Prefix,
        prev_kv: false,
    })
}

fn keys_of(response: &TxnOpResponse) -> Vec<String> {
    match response {
        TxnOpResponse::Range(range) => range
            .kvs
            .iter()
            .map(|kv| String::from_utf8(kv.key.to_vec()).unwrap())
            .collect(),
        other => panic!("not an answer to a range: {other:?}"),
    }
}

#[test]
fn all_writes_share_one_revision_in_the_order_they_were_given() {
    let mut machine = Machine::default();
    machine.put("old", "1");
    machine.put("older", "1");
    let txn = TxnRequest::new().and_then([
        TxnOp::put("b", "1"),
        TxnOp::put("a", "1"),
        delete_prefix("old"),
        TxnOp::put("c", "1"),
    ]);
    let (revision, response) = machine.txn(txn);
    assert_eq!(revision, 4);
    assert_eq!(response.responses.len(), 4);
    let changed: Vec<(i64, u32, Bytes)> = machine
        .store
        .range(Space::Events, &Span::all())
        .map(|pair| {
            let (key, record) = pair.unwrap();
            let place = keys::event_revision(&key).unwrap();
            (place.main, place.sub, record.slice(9..))
        })
        .skip(2)
        .collect();
    let expected = [
        (4, 0, text("b")),
        (4, 1, text("a")),
        (4, 2, text("old")),
        (4, 3, text("older")),
        (4, 4, text("c")),
    ];
    assert_eq!(changed, expected);
    assert_eq!(machine.get("a"), Some(kv("a", "1", 4, 4, 1)));
    assert_eq!(machine.put("d", "1").0, 5);
}

#[test]
fn a_transaction_that_changes_nothing_leaves_the_revision_alone() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    let nothing = [
        TxnRequest::new(),
        TxnRequest::new().and_then([TxnOp::get("a"), TxnOp::Range(all())]),
        TxnRequest::new().and_then([TxnOp::delete("no such key")]),
        TxnRequest::new()
            .when([Compare::version("a", CompareOp::Equal, 9)])
            .and_then([TxnOp::put("a", "2")]),
    ];
    for txn in nothing {
        assert_eq!(machine.txn(txn).0, 2);
    }
    assert_eq!(machine.put("a", "2").0, 3);
}

#[test]
fn a_missing_key_is_zero_in_everything_and_has_no_value() {
    let mut machine = Machine::default();
    let zero = |number| {
        [
            Compare::version("no", CompareOp::Equal, number),
            Compare::create_revision("no", CompareOp::Equal, number),
            Compare::mod_revision("no", CompareOp::Equal, number),
            Compare::lease("no", CompareOp::Equal, number),
        ]
    };
    for compare in zero(0) {
        assert!(machine.holds(compare.clone()), "{compare:?}");
        assert!(machine.holds(compare.with_range(KeyRange::Prefix)));
    }
    for compare in zero(1) {
        assert!(!machine.holds(compare.clone()), "{compare:?}");
    }
    for op in [
        CompareOp::Equal,
        CompareOp::NotEqual,
        CompareOp::Less,
        CompareOp::Greater,
    ] {
        let compare = Compare::value("no", op, "");
        assert!(!machine.holds(compare.clone()), "{op:?}");
        assert!(!machine.holds(compare.with_range(KeyRange::Prefix)));
    }
}

#[test]
fn what_is_there_stands_left_of_what_is_given() {
    let mut machine = Machine::default();
    machine.put("z", "0");
    machine.put("a", "m");
    machine.put("a", "m");
    machine.put("a", "m"); // create 3, mod 5, version 3
    type Make = fn(i64, CompareOp) -> Compare;
    let targets: [(Make, i64); 4] = [
        (|n, op| Compare::version("a", op, n), 3),
        (|n, op| Compare::create_revision("a", op, n), 3),
        (|n, op| Compare::mod_revision("a", op, n), 5),
        (|n, op| Compare::lease("a", op, n), 0),
    ];
    let rows = [
        // op, given is one less, the same, one more
        (CompareOp::Equal, [false, true, false]),
        (CompareOp::NotEqual, [true, false, true]),
        (CompareOp::Less, [false, false, true]),
        (CompareOp::Greater, [true, false, false]),
    ];
    for (op, expected) in rows {
        for (make, there) in targets {
            let found = [-1, 0, 1].map(|more| machine.holds(make(there + more, op)));
            assert_eq!(found, expected, "{op:?} {:?}", make(there, op));
        }
        let found = ["l", "m", "n"].map(|value| machine.holds(Compare::value("a", op, value)));
        assert_eq!(found, expected, "{op:?} of values");
    }
    assert!(machine.holds(Compare::value("a", CompareOp::Greater, "")));
}

#[test]
fn a_comparison_of_a_range_holds_if_it_holds_for_every_key() {
    let mut machine = Machine::default();
    for key in ["a1", "a2", "b1"] {
        machine.put(key, "x");
    }
    machine.put("a2", "x");
    let version = |op, number| Compare::version("a", op, number).with_range(KeyRange::Prefix);
    assert!(machine.holds(version(CompareOp::Greater, 0)));
    assert!(machine.holds(version(CompareOp::Less, 3)));
    assert!(!machine.holds(version(CompareOp::Equal, 1)));
    assert!(!machine.holds(version(CompareOp::Equal, 2)));
    assert!(!machine.holds(version(CompareOp::NotEqual, 2)));
    let values = Compare::value("a", CompareOp::Equal, "x").with_range(KeyRange::From);
    assert!(machine.holds(values.clone()));
    machine.put("z", "y");
    assert!(!machine.holds(values));
}

#[test]
fn all_comparisons_must_hold() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    let right = Compare::version("a", CompareOp::Equal, 1);
    let wrong = Compare::version("a", CompareOp::Equal, 2);
    for (compares, expected) in [
        (vec![], true),
        (vec![right.clone()], true),
        (vec![right.clone(), right.clone()], true),
        (vec![right.clone(), wrong.clone()], false),
        (vec![wrong, right], false),
    ] {
        let txn = TxnRequest::new()
            .when(compares)
            .and_then([TxnOp::get("a")])
            .or_else([TxnOp::get("b"), TxnOp::get("c")]);
        let (_, response) = machine.txn(txn);
        assert_eq!(response.succeeded, expected);
        assert_eq!(response.responses.len(), if expected { 1 } else { 2 });
    }
}

#[test]
fn a_read_sees_the_earlier_writes_of_its_transaction_and_no_later_ones() {
    let mut machine = Machine::default();
    machine.put("a", "old");
    machine.put("b", "old");
    let inside = TxnRequest::new().and_then([TxnOp::put("d", "new"), TxnOp::Range(all())]);
    let txn = TxnRequest::new().and_then([
        TxnOp::Range(all()),
        TxnOp::put("c", "new"),
        TxnOp::Range(all()),
        delete_prefix("a"),
        TxnOp::txn(inside),
        TxnOp::Range(all()),
        TxnOp::get("a"),
        TxnOp::get("c"),
        TxnOp::Range(RangeRequest {
            revision: 3,
            ..all()
        }),
        TxnOp::put("e", "new"),
    ]);
    let (revision, response) = machine.txn(txn);
    let answers = &response.responses;
    assert_eq!(keys_of(&answers[0]), ["a", "b"]);
    assert_eq!(keys_of(&answers[2]), ["a", "b", "c"]);
    let TxnOpResponse::Txn(inner) = &answers[4] else {
        panic!("{:?}", answers[4]);
    };
    assert_eq!(keys_of(&inner.responses[1]), ["b", "c", "d"]);
    assert_eq!(keys_of(&answers[5]), ["b", "c", "d"]);
    assert_eq!(keys_of(&answers[6]), [""; 0]);
    let TxnOpResponse::Range(found) = &answers[7] else {
        panic!("{:?}", answers[7]);
    };
    assert_eq!(found.kvs, [kv("c", "new", revision, revision, 1)]);
    assert_eq!(keys_of(&answers[8]), ["a", "b"], "the revision before");
}

#[test]
fn nested_comparisons_look_at_the_store_before_the_transaction() {
    let mut machine = Machine::default();
    machine.put("a", "old");
    let inner = TxnRequest::new()
        .when([Compare::value("a", CompareOp::Equal, "old")])
        .and_then([TxnOp::put("b", "then")])
        .or_else([TxnOp::put("b", "else")]);
    let txn = TxnRequest::new().and_then([TxnOp::put("a", "new"), TxnOp::txn(inner)]);
    machine.txn(txn);
    assert_eq!(machine.get("b").unwrap().value, "then");
}

#[test]
fn nested_transactions_take_their_own_branches() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    let is = |value: &str| Compare::value("a", CompareOp::Equal, value.to_owned());
    let deep = TxnRequest::new()
        .when([is("2")])
        .or_else([TxnOp::put("deep", "else")]);
    let inner = TxnRequest::new()
        .when([is("1")])
        .and_then([TxnOp::txn(deep), TxnOp::put("inner", "then")]);
    let (revision, response) = machine.txn(
        TxnRequest::new()
            .when([is("0")])
            .or_else([TxnOp::txn(inner), TxnOp::put("outer", "else")]),
    );
    assert_eq!(revision, 3);
    assert!(!response.succeeded);
    let TxnOpResponse::Txn(inner) = &response.responses[0] else {
        panic!("{response:?}");
    };
    assert!(inner.succeeded);
    let TxnOpResponse::Txn(deep) = &inner.responses[0] else {
        panic!("{response:?}");
    };
    assert!(!deep.succeeded);
    for key in ["deep", "inner", "outer"] {
        assert_eq!(machine.get(key).unwrap().mod_revision, 3, "{key}");
    }
}

#[test]
fn a_refusal_in_the_middle_takes_everything_back() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    machine.run(&Command::Write {
        author: None,
        session: None,
        operation: Operation::Compact(CompactionRequest::at(2)),
    });
    let read_at = |revision| TxnOp::Range(RangeRequest { revision, ..all() });
    let keep = TxnOp::Put(PutRequest {
        key: text("no such key"),
        ignore_value: true,
        ..PutRequest::default()
    });
    let compact_revision = 2;
    let refusals = [
        (read_at(1), ErrorKind::Compacted { compact_revision }),
        (read_at(3), ErrorKind::FutureRevision),
        (keep, ErrorKind::KeyNotFound),
        (TxnOp::put("b", "again"), ErrorKind::DuplicateKey),
        (TxnOp::put("", "no key"), ErrorKind::InvalidArgument),
    ];
    for (op, kind) in refusals {
        let before = machine.store.clone();
        let txn = TxnRequest::new().and_then([TxnOp::put("b", "1"), TxnOp::delete("a"), op]);
        assert_eq!(machine.try_txn(txn), (2, Err(kind)));
        for space in [Space::Current, Space::History, Space::Events] {
            let read = |store: &MemStore| -> Vec<Pair> {
                let pairs = store.range(space, &Span::all());
                pairs.map(Result::unwrap).collect()
            };
            assert_eq!(read(&machine.store), read(&before), "{space}");
        }
    }
    let refused_elsewhere = TxnRequest::new()
        .when([Compare::version("a", CompareOp::Equal, 1)])
        .and_then([TxnOp::put("b", "1")])
        .or_else([read_at(1)]);
    assert_eq!(
        machine.txn(refused_elsewhere).0,
        3,
        "a branch not taken reads nothing"
    );
}

#[test]
fn the_same_key_may_not_be_written_twice_even_where_it_would_not_be() {
    let mut machine = Machine::default();
    let twice = || vec![TxnOp::put("a", "1"), TxnOp::put("a", "2")];
    let deleted = || vec![TxnOp::put("ab", "1"), delete_prefix("a")];
    for ops in [twice(), deleted()] {
        let taken = TxnRequest::new().and_then(ops.clone());
        let not_taken = TxnRequest::new().or_else(ops);
        let nested = TxnRequest::new().or_else([TxnOp::txn(not_taken.clone())]);
        for txn in [taken, not_taken, nested] {
            let (revision, result) = machine.try_txn(txn);
            assert_eq!((revision, result), (1, Err(ErrorKind::DuplicateKey)));
        }
    }
    let overlapping = TxnRequest::new().and_then([delete_prefix("a"), delete_prefix("")]);
    assert!(
        machine.try_txn(overlapping).1.is_ok(),
        "deletes may overlap"
    );
}

#[test]
fn overlapping_deletes_delete_each_key_once() {
    let mut machine = Machine::default();
    for key in ["a", "ab", "b"] {
        machine.put(key, "1");
    }
    let txn = TxnRequest::new().and_then([delete_prefix("a"), delete_prefix("")]);
    let (_, response) = machine.txn(txn);
    let deleted: Vec<u64> = response
        .responses
        .iter()
        .map(|response| match response {
            TxnOpResponse::DeleteRange(delete) => delete.deleted,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(deleted, [2, 1]);
    assert_eq!(machine.store.count(Space::Events, &Span::all()), Ok(6));
}

#[test]
fn a_put_may_keep_the_value_that_is_there() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    let keep = |key: &str, value: &str| {
        Operation::Put(PutRequest {
            key: text(key),
            value: text(value),
            prev_kv: true,
            ignore_value: true,
            ignore_lease: false,
            lease: LeaseTarget::None,
        })
    };
    let (revision, _) = machine.write(keep("a", ""));
    assert_eq!(revision, 3);
    assert_eq!(machine.get("a"), Some(kv("a", "1", 2, 3, 2)));
    let run = |machine: &mut Machine, operation| {
        let reply = machine.run(&Command::Write {
            author: None,
            session: None,
            operation,
        });
        assert_eq!(reply.revision, 3);
        refusal(&reply).0
    };
    assert_eq!(run(&mut machine, keep("b", "")), ErrorKind::KeyNotFound);
    assert_eq!(
        run(&mut machine, keep("a", "2")),
        ErrorKind::InvalidArgument
    );
    let keep_lease = Operation::Put(PutRequest {
        key: text("b"),
        value: text("2"),
        ignore_lease: true,
        ..PutRequest::default()
    });
    assert_eq!(run(&mut machine, keep_lease), ErrorKind::KeyNotFound);
    assert_eq!(machine.get("b"), None);
}

#[test]
fn a_put_detaches_its_key_from_a_lease_unless_told_to_keep_it() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    machine.write(Operation::LeaseGrant(LeaseGrant {
        id: 77,
        ttl_ms: 1,
        leases_max: 1,
        keys_max: 1,
        ..LeaseGrant::default()
    }));
    machine.write(Operation::Put(PutRequest {
        key: text("a"),
        lease: LeaseTarget::Lease(LeaseRef::id(77)),
        ..PutRequest::default()
    }));
    assert!(machine.holds(Compare::lease("a", CompareOp::Equal, 77)));
    machine.write(Operation::Put(PutRequest {
        key: text("a"),
        value: text("2"),
        ignore_lease: true,
        ..PutRequest::default()
    }));
    assert_eq!(machine.get("a").unwrap().lease, 77);
    machine.put("a", "3");
    assert_eq!(machine.get("a").unwrap().lease, 0);
}

#[test]
fn what_a_transaction_goes_through_is_bounded_and_what_it_answers() {
    let mut machine = Machine::default();
    let value = "v".repeat(1000);
    for number in 0..1400 {
        machine.put(&format!("{number:04}"), &value);
    }
    let revision = machine.progress().revision;
    let write_too = |ops: Vec<TxnOp>| {
        TxnRequest::new()
            .and_then([TxnOp::put("new", "1")])
            .and_then(ops)
    };
    let too_large = |machine: &mut Machine, txn: TxnRequest| match machine.try_txn(txn) {
        (at, Err(ErrorKind::RequestTooLarge { limit, actual })) => {
            assert_eq!(at, revision, "nothing was changed");
            assert!(actual > limit);
            Some(limit)
        }
        (_, Ok(_)) => None,
        other => panic!("{other:?}"),
    };
    // One and a half megabytes of answer, at once or bit by bit.
    let half = |from: &str, limit| {
        TxnOp::Range(RangeRequest {
            key: text(from),
            range: KeyRange::From,
            limit,
            ..RangeRequest::default()
        })
    };
    let whole = write_too(vec![TxnOp::Range(all())]);
    assert_eq!(too_large(&mut machine, whole), Some(ANSWER_BYTES_MAX));
    let halves = write_too(vec![half("0000", 700), half("0700", 700)]);
    assert_eq!(too_large(&mut machine, halves), Some(ANSWER_BYTES_MAX));
    let deleted = write_too(vec![TxnOp::DeleteRange(DeleteRangeRequest {
        key: text("0"),
        range: KeyRange::Until(text("9")),
        prev_kv: true,
    })]);
    assert_eq!(too_large(&mut machine, deleted), Some(ANSWER_BYTES_MAX));
    // A hundred and twenty walks over everything, for one key each.
    let walks = write_too(vec![half("", 1); 120]);
    assert_eq!(too_large(&mut machine, walks), Some(WRITE_KEYS_MAX));
    let compares =
        vec![Compare::version("", CompareOp::Greater, 0).with_range(KeyRange::Prefix); 120];
    let compared = write_too(vec![]).when(compares);
    assert_eq!(too_large(&mut machine, compared), Some(WRITE_KEYS_MAX));
    let read_only = TxnRequest::new().and_then(vec![half("", 1); 120]);
    let looked = read_txn(&machine.store, &read_only).unwrap().unwrap_err();
    assert!(matches!(looked.kind, ErrorKind::RequestTooLarge { .. }));
    let allowed = write_too(vec![half("", 1); 60]);
    assert_eq!(machine.txn(allowed).0, revision + 1);
}

#[test]
fn the_shorthands_do_what_they_say() {
    let mut machine = Machine::default();
    let cas = |machine: &mut Machine, txn| {
        let (revision, response) = machine.txn(txn);
        (revision, response.into_cas())
    };
    let done = CasResult {
        succeeded: true,
        current: None,
    };
    let found = |current| CasResult {
        succeeded: false,
        current,
    };
    let one = Some(kv("a", "1", 2, 2, 1));
    assert_eq!(
        cas(&mut machine, TxnRequest::create("a", "1")),
        (2, done.clone())
    );
    assert_eq!(
        cas(&mut machine, TxnRequest::create("a", "2")),
        (2, found(one.clone()))
    );
    let swap = |revision, value: &'static str| TxnRequest::compare_and_swap("a", revision, value);
    assert_eq!(cas(&mut machine, swap(1, "2")), (2, found(one)));
    assert_eq!(cas(&mut machine, swap(2, "2")), (3, done.clone()));
    let delete = |revision| TxnRequest::compare_and_delete("a", revision);
    let two = Some(kv("a", "2", 2, 3, 2));
    assert_eq!(cas(&mut machine, delete(2)), (3, found(two)));
    assert_eq!(cas(&mut machine, delete(3)), (4, done));
    assert_eq!(cas(&mut machine, delete(3)), (4, found(None)));
    assert_eq!(cas(&mut machine, swap(4, "3")), (4, found(None)));
}

#[test]
fn the_four_transactions_of_kubernetes_work() {
    let mut machine = Machine::default();
    let create = TxnRequest::new()
        .when([Compare::mod_revision("k", CompareOp::Equal, 0)])
        .and_then([TxnOp::put("k", "1")]);
    assert!(machine.txn(create.clone()).1.succeeded);
    let (revision, again) = machine.txn(create);
    assert_eq!((revision, again), (2, TxnResponse::default()));
    let update = |revision, value: &'static str| {
        TxnRequest::new()
            .when([Compare::mod_revision("k", CompareOp::Equal, revision)])
            .and_then([TxnOp::put("k", value)])
            .or_else([TxnOp::get("k")])
    };
    let (_, stale) = machine.txn(update(1, "2"));
    assert_eq!(keys_of(&stale.responses[0]), ["k"]);
    assert_eq!(machine.txn(update(2, "2")).0, 3);
    let delete = TxnRequest::new()
        .when([Compare::mod_revision("k", CompareOp::Equal, 3)])
        .and_then([TxnOp::delete("k")])
        .or_else([TxnOp::get("k")]);
    assert_eq!(machine.txn(delete).0, 4);
    let marker = |version, value: &'static str| {
        TxnRequest::new()
            .when([Compare::version(
                "compact_rev_key",
                CompareOp::Equal,
                version,
            )])
            .and_then([TxnOp::put("compact_rev_key", value)])
            .or_else([TxnOp::get("compact_rev_key")])
    };
    assert!(machine.txn(marker(0, "4")).1.succeeded);
    assert!(machine.txn(marker(1, "5")).1.succeeded);
    assert!(!machine.txn(marker(1, "6")).1.succeeded);
}

#[test]
fn a_retried_transaction_returns_its_first_answer() {
    let mut machine = Machine::default();
    let id = machine.open();
    let swap = Operation::Txn(TxnRequest::compare_and_swap("a", 0, "1"));
    let first = machine.once(id, 1, 0, swap.clone());
    let again = machine.once(id, 1, 0, swap.clone());
    assert_eq!(
        again,
        repeated(&first),
        "the comparison is not made a second time"
    );
    let Ok(Some(ResponseBody::Txn(response))) = again.result else {
        panic!("{again:?}");
    };
    assert!(response.succeeded);
    machine.put("big", &"v".repeat(5000));
    let read = TxnRequest::new().and_then([TxnOp::get("big"), TxnOp::put("b", "1")]);
    let first = machine.once(id, 2, 0, Operation::Txn(read.clone()));
    assert!(first.result.is_ok());
    let retry = machine.once(id, 2, 0, Operation::Txn(read));
    assert_eq!(refusal(&retry), (ErrorKind::ReplyNotKept, Outcome::Applied));
    assert_eq!(machine.get("b").unwrap().version, 1);
}

#[test]
fn a_transaction_that_only_reads_is_the_same_from_a_view_and_from_the_log() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    machine.put("b", "2");
    let inner = TxnRequest::new()
        .when([Compare::version("a", CompareOp::Equal, 1)])
        .and_then([TxnOp::Range(all())]);
    let txn = TxnRequest::new()
        .when([Compare::value("b", CompareOp::Less, "3")])
        .and_then([
            TxnOp::get("a"),
            TxnOp::Range(RangeRequest {
                revision: 2,
                ..all()
            }),
            TxnOp::txn(inner),
        ]);
    assert!(txn.is_read_only());
    let looked = read_txn(&machine.store, &txn).unwrap().unwrap();
    assert_eq!(machine.txn(txn), (3, looked));
    let write = TxnRequest::new().and_then([TxnOp::put("a", "2")]);
    let refused = read_txn(&machine.store, &write).unwrap().unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Internal);
}
