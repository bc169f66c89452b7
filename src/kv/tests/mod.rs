//! The state machine against a model: random programs over plain maps, and the rules one by one.

mod compaction;
mod leases;
pub(crate) mod model;
mod pages;
mod programs;
mod quota;
mod ranges;
mod txn;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::api::{
    AlarmsResponse, AuthRequest, ClusterInfo, CompactionRequest, DeleteRangeRequest,
    DeleteRangeResponse, Error, ErrorKind, KeyRange, KeyValue, LeaseGrantResponse, LeaseRef,
    LeaseRevokeResponse, LeaseTarget, Limits, MemberInfo, Outcome, PutRequest, PutResponse,
    PutWithNewLeaseResponse, RangeRequest, RangeResponse, ResponseBody, SessionCall,
};
use crate::types::{BootstrapId, ClusterId, LogId, LogIndex, NodeId, SessionId, Term};
use model::{Model, verdict};
pub(crate) use programs::{Step, entries, programs};

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A store with a hand for writing entries one after the other.
#[derive(Clone, Default)]
struct Machine {
    store: MemStore,
    next: u64,
}

impl Machine {
    fn entry(&mut self, command: Option<&[u8]>) -> Reply {
        self.next += 1;
        let id = LogId::new(LogIndex(self.next), Term(1));
        let reply = apply(&mut self.store, id, command).expect("memory does not fail");
        // A scan after each of thousands of entries would take seconds and show nothing new.
        if self.next <= 100 {
            assert_eq!(
                content_hash(&self.store),
                scan(&self.store),
                "the hash is kept by every entry"
            );
        }
        reply
    }

    fn run(&mut self, command: &Command) -> Reply {
        self.entry(Some(&command.encode()))
    }

    fn write(&mut self, operation: Operation) -> (i64, ResponseBody) {
        let reply = self.run(&Command::Write {
            author: None,
            session: None,
            operation,
        });
        let body = reply.result.expect("it is allowed");
        (reply.revision, body.expect("writes have an answer"))
    }

    fn put(&mut self, key: &str, value: &str) -> (i64, Option<KeyValue>) {
        match self.write(put(key, value)) {
            (revision, ResponseBody::Put(PutResponse { prev_kv })) => (revision, prev_kv),
            other => panic!("not an answer to a put: {other:?}"),
        }
    }

    fn delete(&mut self, key: &str, range: KeyRange) -> (i64, DeleteRangeResponse) {
        match self.write(delete(key, range)) {
            (revision, ResponseBody::DeleteRange(response)) => (revision, response),
            other => panic!("not an answer to a delete: {other:?}"),
        }
    }

    fn open(&mut self) -> SessionId {
        let reply = self.run(&Command::OpenSession {
            author: None,
            sessions_max: 100,
        });
        match reply.result {
            Ok(Some(ResponseBody::OpenSession { id })) => id,
            other => panic!("not a session: {other:?}"),
        }
    }

    fn once(&mut self, id: SessionId, sequence: u64, acknowledged: u64, op: Operation) -> Reply {
        self.run(&Command::Write {
            author: None,
            session: Some(SessionCall {
                id,
                sequence,
                acknowledged,
            }),
            operation: op,
        })
    }

    fn get(&self, key: &str) -> Option<KeyValue> {
        self.range(key, KeyRange::Single).kvs.pop()
    }

    fn range(&self, key: &str, range: KeyRange) -> RangeResponse {
        let request = RangeRequest {
            key: text(key),
            range,
            ..RangeRequest::default()
        };
        super::range(&self.store, &request, &Limits::DEFAULT)
            .expect("memory does not fail")
            .expect("the current revision can be read")
    }

    fn progress(&self) -> Progress {
        progress(&self.store).expect("memory does not fail")
    }
}

fn put(key: &str, value: &str) -> Operation {
    Operation::Put(PutRequest {
        key: text(key),
        value: text(value),
        prev_kv: true,
        ..PutRequest::default()
    })
}

fn delete(key: &str, range: KeyRange) -> Operation {
    Operation::DeleteRange(DeleteRangeRequest {
        key: text(key),
        range,
        prev_kv: true,
    })
}

fn kv(key: &str, value: &str, create: i64, modified: i64, version: i64) -> KeyValue {
    KeyValue {
        key: text(key),
        value: text(value),
        create_revision: create,
        mod_revision: modified,
        version,
        lease: 0,
    }
}

fn refusal(reply: &Reply) -> (ErrorKind, Outcome) {
    let error = reply.result.as_ref().expect_err("it is refused");
    (error.kind.clone(), error.outcome)
}

// etcd's rules about revisions.

#[test]
fn an_empty_store_is_at_revision_one_and_the_first_put_makes_it_two() {
    let mut machine = Machine::default();
    assert_eq!(machine.progress().revision, 1);
    assert_eq!(machine.put("a", "1"), (2, None));
    assert_eq!(machine.get("a"), Some(kv("a", "1", 2, 2, 1)));
}

#[test]
fn a_second_put_keeps_the_create_revision_and_raises_the_version() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    assert_eq!(machine.put("b", "x"), (3, None));
    assert_eq!(machine.put("a", "2"), (4, Some(kv("a", "1", 2, 2, 1))));
    assert_eq!(machine.get("a"), Some(kv("a", "2", 2, 4, 2)));
}

#[test]
fn the_same_value_again_is_a_write_all_the_same() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    machine.put("a", "1");
    assert_eq!(machine.get("a"), Some(kv("a", "1", 2, 3, 2)));
}

#[test]
fn previous_values_are_handed_out_only_when_asked_for() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    let silent_put = Operation::Put(PutRequest {
        key: text("a"),
        value: text("2"),
        prev_kv: false,
        ..PutRequest::default()
    });
    let put_answer = ResponseBody::Put(PutResponse { prev_kv: None });
    assert_eq!(machine.write(silent_put), (3, put_answer));
    let silent_delete = Operation::DeleteRange(DeleteRangeRequest {
        key: text("a"),
        range: KeyRange::Single,
        prev_kv: false,
    });
    let delete_answer = ResponseBody::DeleteRange(DeleteRangeResponse {
        deleted: 1,
        prev_kvs: vec![],
    });
    assert_eq!(machine.write(silent_delete), (4, delete_answer));
}

#[test]
fn deleting_nothing_does_not_raise_the_revision() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    for range in [KeyRange::Single, KeyRange::Prefix, KeyRange::From] {
        let (revision, response) = machine.delete("b", range);
        assert_eq!((revision, response.deleted), (2, 0));
    }
    assert_eq!(machine.put("c", "1").0, 3);
}

#[test]
fn a_key_made_again_starts_over() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    machine.put("a", "2");
    let (revision, response) = machine.delete("a", KeyRange::Single);
    assert_eq!(revision, 4);
    assert_eq!(response.prev_kvs, vec![kv("a", "2", 2, 3, 2)]);
    assert_eq!(machine.get("a"), None);
    assert_eq!(machine.put("a", "3"), (5, None));
    assert_eq!(machine.get("a"), Some(kv("a", "3", 5, 5, 1)));
}

#[test]
fn a_range_is_deleted_at_one_revision_with_an_event_for_each_key() {
    let mut machine = Machine::default();
    for key in ["a", "ab", "b", "c"] {
        machine.put(key, "1");
    }
    let (revision, response) = machine.delete("a", KeyRange::Until(text("c")));
    assert_eq!((revision, response.deleted), (6, 3));
    assert_eq!(machine.range("", KeyRange::Prefix).count, 1);
    let events: Vec<Pair> = machine
        .store
        .range(Space::Events, &Span::all())
        .map(Result::unwrap)
        .collect();
    let expected: Vec<(i64, u32, &[u8])> = vec![
        (2, 0, b"\x01\0\0\0\0\0\0\0\0a"),
        (3, 0, b"\x01\0\0\0\0\0\0\0\0ab"),
        (4, 0, b"\x01\0\0\0\0\0\0\0\0b"),
        (5, 0, b"\x01\0\0\0\0\0\0\0\0c"),
        (6, 0, b"\x00\0\0\0\0\0\0\0\x02a"),
        (6, 1, b"\x00\0\0\0\0\0\0\0\x03ab"),
        (6, 2, b"\x00\0\0\0\0\0\0\0\x04b"),
    ];
    let found: Vec<(i64, u32, &[u8])> = events
        .iter()
        .map(|(key, record)| {
            let main = i64::from_be_bytes(key[..8].try_into().unwrap());
            let sub = u32::from_be_bytes(key[8..].try_into().unwrap());
            (main, sub, record.as_ref())
        })
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn history_keeps_every_value_and_a_tombstone_for_every_delete() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    machine.put("a", "2");
    machine.delete("a", KeyRange::Single);
    let newest_first: Vec<Bytes> = machine
        .store
        .range(Space::History, &Span::all())
        .map(|pair| pair.unwrap().1)
        .collect();
    assert_eq!(newest_first.len(), 3);
    assert_eq!(newest_first[0].as_ref(), &[0], "the tombstone");
    let second = key_value(text("a"), newest_first[1].clone()).unwrap();
    assert_eq!(second, kv("a", "2", 2, 3, 2));
    let first = key_value(text("a"), newest_first[2].clone()).unwrap();
    assert_eq!(first, kv("a", "1", 2, 2, 1));
}

#[test]
fn keys_that_cannot_be_stored_are_refused_and_change_nothing() {
    let mut machine = Machine::default();
    let mut key = vec![0; KEY_BYTES_MAX];
    let longest = Operation::Put(PutRequest {
        key: Bytes::from(key.clone()),
        ..PutRequest::default()
    });
    machine.write(longest);
    let before = machine.progress().revision;
    key.push(0);
    for bad in [Bytes::new(), Bytes::from(key)] {
        let put = Operation::Put(PutRequest {
            key: bad.clone(),
            ..PutRequest::default()
        });
        let delete = Operation::DeleteRange(DeleteRangeRequest {
            key: bad,
            ..DeleteRangeRequest::default()
        });
        for operation in [put, delete] {
            let reply = machine.run(&Command::Write {
                author: None,
                session: None,
                operation,
            });
            assert_eq!(refusal(&reply).1, Outcome::NotApplied);
            assert_eq!(reply.revision, before);
        }
    }
}

#[test]
fn a_delete_beyond_its_bounds_is_refused_whole() {
    let mut machine = Machine::default();
    // Straight into the store: a hundred thousand entries would only make this slow.
    let record = {
        machine.put("a", "1");
        machine.store.get(Space::Current, b"a").unwrap().unwrap()
    };
    for number in 0..WRITE_KEYS_MAX {
        let key = Bytes::from(format!("many/{number:08}"));
        machine.store.put(Space::Current, key, record.clone());
    }
    machine.store.delete(Space::Current, text("a"));
    let mut sum_kept = machine.store.clone();
    sum_kept.put(
        Space::Meta,
        text("hash"),
        Bytes::copy_from_slice(&scan(&machine.store).unwrap().0.to_be_bytes()),
    );
    machine.store = sum_kept;

    let everything = |prev_kv| {
        Operation::DeleteRange(DeleteRangeRequest {
            key: Bytes::new(),
            range: KeyRange::Prefix,
            prev_kv,
        })
    };
    let all = |machine: &mut Machine, prev_kv| {
        machine.run(&Command::Write {
            author: None,
            session: None,
            operation: everything(prev_kv),
        })
    };
    let too_much = all(&mut machine, true);
    assert!(matches!(
        refusal(&too_much),
        (
            ErrorKind::RequestTooLarge {
                limit: ANSWER_BYTES_MAX,
                ..
            },
            Outcome::NotApplied
        )
    ));
    machine.put("one", "more");
    let too_many = all(&mut machine, false);
    assert!(matches!(
        refusal(&too_many),
        (
            ErrorKind::RequestTooLarge {
                limit: WRITE_KEYS_MAX,
                ..
            },
            Outcome::NotApplied
        )
    ));
    assert_eq!(
        machine.range("", KeyRange::Prefix).count,
        WRITE_KEYS_MAX + 1
    );
    machine.delete("one", KeyRange::Single);
    let answer = machine.write(everything(false)).1;
    let ResponseBody::DeleteRange(response) = answer else {
        panic!("not an answer to a delete: {answer:?}");
    };
    assert_eq!(response.deleted, WRITE_KEYS_MAX);
}

#[test]
fn one_large_value_is_handed_back_however_large() {
    let mut machine = Machine::default();
    let value = "v".repeat(2 * usize::try_from(ANSWER_BYTES_MAX).unwrap());
    machine.put("a", &value);
    let (_, response) = machine.delete("a", KeyRange::Prefix);
    assert_eq!(response.prev_kvs[0].value.len(), value.len());
}

// Entries as such.

#[test]
fn an_entry_that_does_not_follow_the_applied_one_is_a_fault() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    machine.put("a", "2");
    let before = machine.store.clone();
    let command = Command::Write {
        author: None,
        session: None,
        operation: put("a", "3"),
    }
    .encode();
    for (index, term) in [(1, 1), (2, 1), (2, 2), (4, 1), (3, 0)] {
        let given = LogId::new(LogIndex(index), Term(term));
        assert_eq!(
            apply(&mut machine.store, given, Some(&command)),
            Err(Fault::OutOfOrder {
                applied: LogId::new(LogIndex(2), Term(1)),
                given,
            })
        );
        assert_eq!(machine.store, before, "nothing is applied twice");
    }
}

#[test]
fn entries_without_a_readable_command_count_as_applied_and_change_nothing_else() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    let reply = machine.entry(None);
    assert_eq!((reply.revision, reply.result), (2, Ok(None)));
    let newer = machine.entry(Some(&[200, 1, 2, 3]));
    assert_eq!(
        refusal(&newer),
        (ErrorKind::Unsupported, Outcome::NotApplied)
    );
    let torn = machine.entry(Some(&[1, 0, 0, 0, 50]));
    assert_eq!(
        refusal(&torn),
        (ErrorKind::Unsupported, Outcome::NotApplied)
    );
    assert_eq!(machine.progress().applied.index, LogIndex(4));
    assert_eq!(machine.put("a", "2").0, 3);
}

#[test]
fn the_first_bootstrap_stands_and_does_not_raise_the_revision() {
    let mut machine = Machine::default();
    let info = |id| ClusterInfo {
        cluster_id: ClusterId(id),
        members: vec![MemberInfo::default()],
    };
    let drawn = |bootstrap| Command::BootstrapAs {
        bootstrap: BootstrapId(bootstrap),
        info: info(7),
    };
    assert_eq!(cluster_info(&machine.store), Ok(None));
    assert_eq!(bootstrap(&machine.store), Ok(None));
    let reply = machine.run(&drawn(1 << 100));
    assert_eq!((reply.revision, reply.result), (1, Ok(None)));
    assert_eq!(machine.run(&drawn(5)).result, Ok(None), "proposed twice");
    assert_eq!(bootstrap(&machine.store), Ok(Some(BootstrapId(1 << 100))));
    let other = machine.run(&Command::Bootstrap(info(8)));
    assert_eq!(
        refusal(&other),
        (ErrorKind::ClusterMismatch, Outcome::NotApplied)
    );
    assert_eq!(cluster_info(&machine.store), Ok(Some(info(7))));
    assert_eq!(machine.progress().revision, 1);
    // One that says nothing of it.
    let mut earlier = Machine::default();
    earlier.run(&Command::Bootstrap(info(7)));
    assert_eq!(bootstrap(&earlier.store), Ok(Some(BootstrapId(0))));
    assert_eq!(earlier.open(), SessionId(2));
}

#[test]
fn a_check_answers_with_the_hash_and_changes_nothing_but_the_place() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    let before = machine.progress();
    let reply = machine.run(&Command::CheckHash);
    assert_eq!(reply.hash, content_hash(&machine.store).ok());
    assert_eq!((reply.revision, reply.result), (before.revision, Ok(None)));
    assert_eq!(machine.progress().revision, before.revision);
    assert_eq!(
        machine
            .run(&Command::Write {
                author: None,
                session: None,
                operation: put("a", "2"),
            })
            .hash,
        None
    );
}

/// A machine that has stored something of every kind.
fn machine_with_everything() -> Machine {
    let mut machine = Machine::default();
    machine.run(&Command::Bootstrap(ClusterInfo {
        cluster_id: ClusterId(7),
        members: vec![MemberInfo {
            name: "n1".into(),
            ..MemberInfo::default()
        }],
    }));
    let id = machine.open();
    machine.put("a\0b", "1");
    machine.once(id, 1, 0, put("a\0b", "2"));
    machine.once(id, 2, 0, put("", ""));
    machine.put("large", &"v".repeat(5000));
    machine.once(id, 3, 0, put("large", "small"));
    machine.once(id, 5, 1, delete("a", KeyRange::Prefix));
    let grant = LeaseGrant {
        id: 70,
        ttl_ms: 1000,
        requested_ttl_ms: 1000,
        name: "name".to_owned(),
        owner: "owner".to_owned(),
        granted_at_ms: 5,
        leases_max: 9,
        keys_max: LEASE_KEYS_MAX,
        per_user_max: 0,
    };
    let leased = Operation::PutWithNewLease {
        grant: Box::new(grant),
        put: PutRequest {
            key: text("leased"),
            value: text("1"),
            ..PutRequest::default()
        },
    };
    machine.once(id, 6, 5, leased);
    machine
}

/// A state that has something in every keyspace, and all of its history.
pub(crate) fn uncompacted() -> MemStore {
    machine_with_everything().store
}

/// The same, with compacted history that is half removed.
pub(crate) fn everything() -> MemStore {
    let mut machine = machine_with_everything();
    machine.run(&Command::Write {
        author: None,
        session: None,
        operation: Operation::Compact(CompactionRequest::at(6)),
    });
    let budget = CompactionBudget {
        events: 2,
        bytes: usize::MAX,
    };
    let step = compact_step(&mut machine.store, &budget).expect("memory does not fail");
    assert!(step.removed > 0 && !step.finished);
    machine.store
}

/// The hash covers every byte of every record, so it pins the format of all of them. If this
/// fails, the state that older versions wrote no longer means the same: raise [`STATE_FORMAT`], and
/// only then put the new number here, beside the new format.
#[test]
fn the_stored_format_is_pinned() {
    let machine = machine_with_everything();
    let pinned = (2, ContentHash(0x8d49_2236_8308_3807_132d_66a3_f41c_5f13));
    let hash = content_hash(&machine.store).unwrap();
    assert_eq!((STATE_FORMAT, hash), pinned);
}

// Exactly once.

/// What a retry is answered that the first time was answered so.
fn repeated(first: &Reply) -> Reply {
    assert!(!first.is_repeat);
    Reply {
        is_repeat: true,
        ..first.clone()
    }
}

#[test]
fn a_retry_gets_the_first_reply_and_has_no_second_effect() {
    let mut machine = Machine::default();
    let id = machine.open();
    machine.put("a", "0");
    let first = machine.once(id, 1, 0, put("a", "1"));
    machine.put("a", "2");
    let retry = machine.once(id, 1, 0, put("a", "1"));
    assert_eq!(retry, repeated(&first));
    assert_eq!(first.revision, 3);
    assert_eq!(machine.get("a"), Some(kv("a", "2", 2, 4, 3)));
}

#[test]
fn numbers_are_remembered_one_by_one_in_any_order() {
    let mut machine = Machine::default();
    let id = machine.open();
    let third = machine.once(id, 3, 0, put("c", "1"));
    let first = machine.once(id, 1, 0, put("a", "1"));
    assert_eq!(third.revision, 2);
    assert_eq!(
        first.revision, 3,
        "a lower number that was not seen is no retry"
    );
    assert_eq!(machine.once(id, 3, 0, put("c", "1")), repeated(&third));
    assert_eq!(machine.once(id, 1, 0, put("a", "1")), repeated(&first));
}

#[test]
fn an_acknowledged_number_is_refused_and_never_applied() {
    let mut machine = Machine::default();
    let id = machine.open();
    machine.once(id, 1, 0, put("a", "1"));
    machine.once(id, 3, 2, put("a", "3"));
    let before = machine.get("a");
    for (sequence, acknowledged) in [(1, 0), (2, 0), (2, 1), (0, 0), (9, 9), (8, 9)] {
        let reply = machine.once(id, sequence, acknowledged, put("a", "again"));
        assert_eq!(
            refusal(&reply),
            (ErrorKind::StaleSequence, Outcome::Unknown),
            "number {sequence} with {acknowledged} acknowledged"
        );
    }
    assert_eq!(machine.get("a"), before);
    assert_eq!(
        machine.once(id, 4, 0, put("a", "4")).revision,
        4,
        "a refused call moves no mark"
    );
}

#[test]
fn acknowledged_replies_are_dropped_by_the_run_and_the_rest_is_kept() {
    let mut machine = Machine::default();
    let id = machine.open();
    let records = |machine: &Machine| {
        let count = machine.store.count(Space::Clients, &Span::all());
        count.unwrap() - 1
    };
    for sequence in 1..=400 {
        machine.once(id, sequence, 0, put("a", "1"));
    }
    assert_eq!(records(&machine), 26);
    machine.once(id, 401, 30, put("a", "1"));
    assert_eq!(records(&machine), 25, "the last of its run is missing");
    machine.once(id, 402, 31, put("a", "1"));
    assert_eq!(records(&machine), 24);
    machine.once(id, 403, 380, put("a", "1"));
    assert_eq!(records(&machine), 3, "many, by a scan");
    let reply = machine.once(id, 381, 380, put("a", "1"));
    assert_eq!(reply.revision, 382, "still the first reply");
    let stale = machine.once(id, 379, 0, put("a", "1"));
    assert_eq!(
        refusal(&stale).0,
        ErrorKind::StaleSequence,
        "acknowledged, though its run is still there"
    );
}

#[test]
fn an_unknown_or_forgotten_session_is_refused_with_outcome_unknown() {
    let mut machine = Machine::default();
    let never = machine.once(SessionId(99), 1, 0, put("a", "1"));
    assert_eq!(
        refusal(&never),
        (ErrorKind::SessionExpired, Outcome::Unknown)
    );
    let id = machine.open();
    machine.once(id, 1, 0, put("a", "1"));
    let used = machine.progress().applied.index;
    let forget = |unused_since| Command::ForgetSessions {
        sessions: vec![SessionId(77), id],
        unused_since,
    };
    machine.run(&forget(used.previous()));
    assert_eq!(
        machine.progress().sessions,
        1,
        "used after the decision: spared"
    );
    machine.run(&forget(used));
    assert_eq!(machine.progress().sessions, 0);
    assert_eq!(machine.store.count(Space::Clients, &Span::all()), Ok(0));
    let forgotten = machine.once(id, 1, 0, put("a", "1"));
    assert_eq!(
        refusal(&forgotten),
        (ErrorKind::SessionExpired, Outcome::Unknown)
    );
    assert_eq!(machine.get("a"), Some(kv("a", "1", 2, 2, 1)));
}

/// A25: the same members bootstrap their cluster again, with the same certificates. A client that was away
/// goes on in its session, whose place in the log another client's session has now.
#[test]
fn a_session_of_one_bootstrap_is_unknown_after_another() {
    let bootstrapped = |drawn| {
        let mut machine = Machine::default();
        machine.run(&Command::BootstrapAs {
            bootstrap: BootstrapId(drawn),
            info: ClusterInfo {
                cluster_id: ClusterId(7),
                members: vec![],
            },
        });
        let session = machine.open();
        (machine, session)
    };
    let (mut first, ours) = bootstrapped(0x1234_5678_9abc);
    first.once(ours, 1, 0, put("a", "ours"));
    let (mut second, theirs) = bootstrapped(0xcba9_8765_4321);
    assert_eq!(
        first.progress().applied.index.0,
        second.progress().applied.index.0 + 1
    );
    second.once(theirs, 2, 0, put("b", "theirs"));
    let refused = second.once(ours, 2, 1, put("a", "ours again"));
    assert_eq!(
        refusal(&refused),
        (ErrorKind::SessionExpired, Outcome::Unknown),
        "and not the reply to the write of the other client"
    );
    assert_eq!(second.get("a"), None);
    let kept = second.once(theirs, 2, 0, put("b", "theirs"));
    assert!(kept.is_repeat);
}

#[test]
fn forgetting_finds_kept_replies_wherever_the_mark_is() {
    let mut machine = Machine::default();
    let id = machine.open();
    machine.once(id, 1_000_000, 999_000, put("a", "1"));
    machine.run(&Command::ForgetSessions {
        sessions: vec![id],
        unused_since: LogIndex(u64::MAX),
    });
    assert_eq!(machine.store.count(Space::Clients, &Span::all()), Ok(0));
}

#[test]
fn a_refused_write_is_decided_once_too() {
    let mut machine = Machine::default();
    let id = machine.open();
    let first = machine.once(id, 1, 0, put("", "1"));
    assert_eq!(
        refusal(&first),
        (ErrorKind::InvalidArgument, Outcome::NotApplied)
    );
    let retry = machine.once(id, 1, 0, put("a", "1"));
    assert_eq!(retry, repeated(&first), "whatever the retry carries");
    assert_eq!(machine.get("a"), None);
}

#[test]
fn numbers_too_far_above_the_mark_wait_for_acknowledgements() {
    let mut machine = Machine::default();
    let id = machine.open();
    assert!(
        machine
            .once(id, OUTSTANDING_MAX, 0, put("a", "1"))
            .result
            .is_ok()
    );
    let far = machine.once(id, OUTSTANDING_MAX + 1, 0, put("a", "2"));
    assert!(matches!(
        refusal(&far),
        (ErrorKind::SlowDown { .. }, Outcome::NotApplied)
    ));
    assert!(
        machine
            .once(id, OUTSTANDING_MAX + 1, 1, put("a", "2"))
            .result
            .is_ok()
    );
    let retry = machine.once(id, OUTSTANDING_MAX, 1, put("a", "1"));
    assert_eq!(retry.revision, 2);
}

#[test]
fn large_previous_values_are_not_kept_and_the_retry_says_so() {
    let mut machine = Machine::default();
    let id = machine.open();
    machine.put("a", &"v".repeat(5000));
    let first = machine.once(id, 1, 0, put("a", "1"));
    assert!(matches!(
        &first.result,
        Ok(Some(ResponseBody::Put(PutResponse { prev_kv: Some(kv) }))) if kv.value.len() == 5000
    ));
    let retry = machine.once(id, 1, 0, put("a", "1"));
    assert_eq!(refusal(&retry), (ErrorKind::ReplyNotKept, Outcome::Applied));
    assert_eq!(retry.revision, first.revision);
    assert_eq!(machine.get("a").unwrap().version, 2);
}

#[test]
fn what_a_session_keeps_is_bounded_in_bytes() {
    let mut machine = Machine::default();
    let id = machine.open();
    let value = "v".repeat(4000);
    machine.put("a", &value);
    for sequence in 1..=OUTSTANDING_MAX {
        machine.once(id, sequence, 0, put("a", &value));
    }
    let kept: usize = machine
        .store
        .range(Space::Clients, &Span::all())
        .map(|pair| pair.unwrap().1.len())
        .sum();
    assert!(kept < 512 << 10, "{kept} bytes");
    let early = machine.once(id, 1, 0, put("a", "x"));
    assert!(early.result.is_ok(), "{early:?}");
    let late = machine.once(id, OUTSTANDING_MAX, 0, put("a", "x"));
    assert_eq!(refusal(&late), (ErrorKind::ReplyNotKept, Outcome::Applied));

    machine.once(id, OUTSTANDING_MAX + 1, OUTSTANDING_MAX, put("a", &value));
    let roomy = machine.once(id, OUTSTANDING_MAX + 1, OUTSTANDING_MAX, put("a", "x"));
    assert!(
        roomy.result.is_ok(),
        "what was acknowledged makes room again"
    );
}

#[test]
fn a_full_table_refuses_new_sessions_and_evicts_none() {
    let mut machine = Machine::default();
    let open = Command::OpenSession {
        author: None,
        sessions_max: 2,
    };
    let first = machine.open();
    machine.open();
    let refused = machine.run(&open);
    assert!(matches!(
        refusal(&refused),
        (ErrorKind::SlowDown { .. }, Outcome::NotApplied)
    ));
    assert_eq!(machine.progress().sessions, 2);
    assert!(machine.once(first, 1, 0, put("a", "1")).result.is_ok());
    machine.run(&Command::ForgetSessions {
        sessions: vec![first],
        unused_since: machine.progress().applied.index,
    });
    assert!(machine.run(&open).result.is_ok());
}

#[test]
fn idle_sessions_are_those_not_used_since() {
    let mut machine = Machine::default();
    let (first, second, third) = (machine.open(), machine.open(), machine.open());
    let since = machine.progress().applied.index;
    machine.once(second, 1, 0, put("a", "1"));
    machine.once(second, 1, 0, put("a", "1"));
    let idle = |count| idle_sessions(&machine.store, since, count).unwrap();
    assert_eq!(idle(10), vec![first, third]);
    assert_eq!(idle(1), vec![first]);
    let all = idle_sessions(&machine.store, machine.progress().applied.index, 10).unwrap();
    assert_eq!(all, vec![first, second, third]);
}

// Random programs.

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_programs_answer_and_store_what_the_model_does(steps in programs(60)) {
        let mut store = MemStore::new();
        let mut model = Model::new();
        let mut lease_keys = 0;
        for (id, command) in entries(&steps) {
            let reply = apply(&mut store, id, command.as_deref()).expect("memory does not fail");
            lease_keys += reply.lease_keys;
            prop_assert_eq!(verdict(reply), model.apply(id, command.as_ref()));
            prop_assert_eq!(content_hash(&store), scan(&store));
        }
        model.check(&store);
        model.check_uncompacted(&store);
        prop_assert_eq!(held_leases(&store).unwrap().keys as i64, lease_keys);
    }

    #[test]
    fn entries_applied_through_an_overlay_are_the_same_entries(
        steps in programs(40),
        batch in 1usize..9,
    ) {
        let program = entries(&steps);
        let mut one_by_one = MemStore::new();
        let mut batched = MemStore::new();
        for batch in program.chunks(batch) {
            let mut overlay = Overlay::new(batched.clone());
            for (id, command) in batch {
                let expected = apply(&mut one_by_one, *id, command.as_deref());
                prop_assert_eq!(apply(&mut overlay, *id, command.as_deref()), expected);
            }
            for (space, changes) in overlay.into_changes() {
                for (key, record) in changes {
                    match record {
                        Some(record) => batched.put(space, key, record),
                        None => batched.delete(space, key),
                    }
                }
            }
        }
        prop_assert_eq!(one_by_one, batched);
    }
}

#[test]
fn the_record_of_etcds_urls_has_the_members_that_there_are_and_what_each_said_last() {
    let mut machine = Machine::default();
    let mut record = |members: &[(u64, Option<&str>)]| {
        let member = |(id, said): &(u64, Option<&str>)| (NodeId(*id), said.map(str::to_owned));
        let before = machine.progress().revision;
        machine.run(&Command::SetEtcdUrls(members.iter().map(member).collect()));
        assert_eq!(machine.progress().revision, before);
        let found = etcd_urls(&machine.store).unwrap().into_iter();
        found.map(|(id, url)| (id.0, url)).collect::<Vec<_>>()
    };
    let all = [(1, "a".to_owned()), (2, "b".to_owned())];
    let said = [(1, Some("a")), (2, Some("b")), (3, Some("")), (4, None)];
    assert_eq!(record(&said), all);
    assert_eq!(record(&[(1, None), (2, None), (3, None)]), all);
    // One that has its port no more, one that is no member any more, and both again.
    assert_eq!(record(&[(1, Some("")), (2, None)]), all[1..]);
    assert_eq!(record(&[(1, Some("a"))]), all[..1]);
    assert_eq!(record(&[(1, None), (2, None)]), all[..1]);
    assert_eq!(record(&[]), []);
    // A state that becomes another cluster's has other members.
    machine.run(&Command::SetEtcdUrls(vec![(NodeId(1), Some("a".into()))]));
    reset_identity(&mut machine.store, 0).unwrap();
    assert!(etcd_urls(&machine.store).unwrap().is_empty());
}
