//! Client leases in the state machine, rule by rule: the rows of S and X that are decided at
//! apply, and T3, T6, T7, T8, T10 and T14.

use super::*;
use crate::kv::lease::Lease;

fn grant_of(id: i64, name: &str) -> LeaseGrant {
    LeaseGrant {
        id,
        ttl_ms: 1_000,
        requested_ttl_ms: 1_000,
        name: name.to_owned(),
        owner: "o".to_owned(),
        granted_at_ms: 5,
        leases_max: 1_000,
        keys_max: LEASE_KEYS_MAX,
        per_user_max: 0,
    }
}

fn grant(id: i64, name: &str) -> Operation {
    Operation::LeaseGrant(grant_of(id, name))
}

fn put_on(key: &str, lease: i64) -> Operation {
    put_to(key, LeaseTarget::Lease(LeaseRef::id(lease)))
}

fn put_to(key: &str, lease: LeaseTarget) -> Operation {
    Operation::Put(PutRequest {
        key: text(key),
        value: text("v"),
        lease,
        ..PutRequest::default()
    })
}

impl Machine {
    fn grant(&mut self, id: i64, name: &str) -> LeaseGrantResponse {
        match self.write(grant(id, name)).1 {
            ResponseBody::LeaseGrant(response) => response,
            other => panic!("not a grant: {other:?}"),
        }
    }

    fn revoke(&mut self, id: i64) -> LeaseRevokeResponse {
        match self.write(Operation::LeaseRevoke(LeaseRef::id(id))).1 {
            ResponseBody::LeaseRevoke(response) => response,
            other => panic!("not a revocation: {other:?}"),
        }
    }

    fn refused(&mut self, operation: Operation) -> ErrorKind {
        let reply = self.run(&Command::Write {
            author: None,
            session: None,
            operation,
        });
        let (kind, outcome) = refusal(&reply);
        assert_eq!(outcome, Outcome::NotApplied);
        kind
    }

    fn expire(&mut self, leases: &[LeaseRef]) -> Reply {
        self.run(&Command::ExpireLeases {
            term: Term(1),
            leases: leases.to_vec(),
        })
    }

    fn is_sound(&self) {
        assert!(leases_are_sound(&self.store, &self.progress()).unwrap());
        assert_eq!(content_hash(&self.store), scan(&self.store));
    }
}

#[test]
fn x1_a_grant_answers_its_id_and_both_times_to_live() {
    let mut machine = Machine::default();
    machine.put("a", "1");
    let granted = machine.grant(0, "");
    assert_eq!(granted.id, 2, "the log index of its grant");
    assert_eq!(granted.grant_index, 2);
    assert_eq!((granted.ttl_ms, granted.requested_ttl_ms), (1_000, 1_000));
    assert_eq!(machine.grant(70, "server1Lease").id, 70);
    let info = lease_info(&machine.store, 70, true, 1 << 20)
        .unwrap()
        .unwrap();
    assert_eq!((&*info.name, &*info.owner), ("server1Lease", "o"));
    assert_eq!(machine.progress().revision, 2, "a lease is no key");
    machine.is_sound();
}

#[test]
fn s3_of_two_grants_of_one_name_or_id_the_first_in_the_log_succeeds() {
    let mut machine = Machine::default();
    machine.grant(7, "n");
    assert_eq!(machine.refused(grant(7, "")), ErrorKind::LeaseExists);
    assert_eq!(machine.refused(grant(8, "n")), ErrorKind::LeaseExists);
    assert!(
        Lease::read_for_test(&machine.store, 8).is_none(),
        "nothing is left of it"
    );
    machine.revoke(7);
    machine.grant(8, "n");
    machine.is_sound();
}

#[test]
fn t14_a_name_finds_the_grant_that_has_it_now() {
    let mut machine = Machine::default();
    let named = |machine: &Machine, name: &str| named_lease(&machine.store, name).unwrap();
    assert_eq!(
        named(&machine, "n").unwrap_err().kind,
        ErrorKind::LeaseNotFound
    );
    let first = machine.grant(7, "n");
    machine.grant(8, "nn");
    let lease = LeaseRef {
        id: 7,
        grant_index: first.grant_index,
    };
    assert_eq!(named(&machine, "n"), Ok(lease));
    machine.revoke(7);
    assert!(named(&machine, "n").is_err(), "a prefix is not the name");
    let second = machine.grant(7, "n");
    let again = named(&machine, "n").unwrap();
    assert_eq!(again.grant_index, second.grant_index);
    assert_ne!(again, lease, "of the same id and name");
}

#[test]
fn an_id_that_a_client_took_before_is_not_given_by_the_log() {
    let mut machine = Machine::default();
    machine.grant(2, "");
    let second = machine.grant(0, "");
    assert_ne!(second.id, 2);
    assert_eq!(second.grant_index, 2);
    machine.is_sound();
}

#[test]
fn s16_a_put_on_no_lease_is_refused_and_changes_nothing() {
    let mut machine = Machine::default();
    machine.put("k", "1");
    for operation in [
        put_on("k", 9),
        put_to("k", LeaseTarget::Name("none".into())),
    ] {
        assert_eq!(machine.refused(operation), ErrorKind::LeaseNotFound);
    }
    assert_eq!(machine.get("k").unwrap().value, text("1"));
    machine.grant(9, "n");
    machine.write(put_to("k", LeaseTarget::Name("n".into())));
    assert_eq!(machine.get("k").unwrap().lease, 9);
    machine.is_sound();
}

#[test]
fn s17_x7_a_key_dies_with_its_current_lease_only() {
    let mut machine = Machine::default();
    machine.grant(1001, "");
    machine.grant(1002, "");
    machine.write(put_on("k", 1001));
    machine.write(put_on("k", 1002));
    machine.expire(&[LeaseRef::id(1001)]);
    assert_eq!(machine.get("k").map(|kv| kv.lease), Some(1002));
    machine.is_sound();
    machine.expire(&[LeaseRef::id(1002)]);
    assert_eq!(machine.get("k"), None);
    machine.is_sound();
}

#[test]
fn s18_a_put_without_a_lease_detaches_and_one_that_ignores_leases_does_not() {
    let mut machine = Machine::default();
    machine.grant(5, "");
    machine.write(put_on("a", 5));
    machine.write(put_on("b", 5));
    let keep = PutRequest {
        key: text("b"),
        value: text("2"),
        ignore_lease: true,
        ..PutRequest::default()
    };
    machine.write(Operation::Put(keep));
    machine.put("a", "1");
    assert_eq!(machine.revoke(5).deleted, 1);
    assert!(machine.get("a").is_some());
    assert!(machine.get("b").is_none());
    machine.is_sound();
}

#[test]
fn s4_a_lease_tells_all_its_keys_once_however_often_they_were_put() {
    let mut machine = Machine::default();
    machine.grant(5, "");
    for key in ["b", "a", "b", "b"] {
        machine.write(put_on(key, 5));
    }
    let info = lease_info(&machine.store, 5, true, 1 << 20)
        .unwrap()
        .unwrap();
    assert_eq!(info.keys, [text("a"), text("b")]);
    assert_eq!(info.key_count, 2);
    machine.delete("a", KeyRange::Single);
    let info = lease_info(&machine.store, 5, true, 1 << 20)
        .unwrap()
        .unwrap();
    assert_eq!(info.keys, [text("b")]);
}

#[test]
fn x2_revoking_takes_keys_and_lease_in_one_revision() {
    let mut machine = Machine::default();
    assert_eq!(
        machine.refused(Operation::LeaseRevoke(LeaseRef::id(5))),
        ErrorKind::LeaseNotFound
    );
    machine.grant(5, "");
    assert_eq!(machine.revoke(5), LeaseRevokeResponse::default());
    assert_eq!(machine.progress().revision, 1, "no key, no revision");
    machine.grant(5, "");
    machine.write(put_on("b", 5));
    machine.write(put_on("a", 5));
    assert_eq!(machine.revoke(5).deleted, 2);
    assert_eq!(machine.progress().revision, 4);
    assert_eq!(machine.progress().leases, 0);
    machine.is_sound();
}

/// S11, S12: each deletion is an event like any other, and all have one revision.
#[test]
fn s12_the_keys_of_an_expired_lease_are_delete_events_of_one_revision() {
    let mut machine = Machine::default();
    machine.grant(5, "");
    machine.write(put_on("b", 5));
    machine.write(put_on("a", 5));
    let reply = machine.expire(&[LeaseRef::id(5)]);
    assert_eq!(reply.revision, 4);
    assert_eq!(
        reply.leases,
        [LeaseChange::Ended(
            LeaseRef {
                id: 5,
                grant_index: 1
            },
            LeaseEnd::Expired
        )]
    );
    let events: Vec<_> = machine.store.range(Space::Events, &Span::all()).collect();
    assert_eq!(events.len(), 4, "two puts, two deletes");
    let before = RangeRequest {
        range: KeyRange::Prefix,
        revision: 3,
        ..RangeRequest::default()
    };
    let before = range(&machine.store, &before, &Limits::DEFAULT);
    assert_eq!(before.unwrap().unwrap().kvs.len(), 2);
}

#[test]
fn t3_the_expiry_of_another_term_changes_nothing() {
    let mut machine = Machine::default();
    machine.grant(5, "");
    machine.write(put_on("k", 5));
    for term in [0, 2] {
        let reply = machine.run(&Command::ExpireLeases {
            term: Term(term),
            leases: vec![LeaseRef::id(5)],
        });
        assert_eq!(reply.leases, []);
    }
    assert!(machine.get("k").is_some());
    assert_eq!(machine.expire(&[LeaseRef::id(5)]).leases.len(), 1);
}

#[test]
fn t6_a_put_after_the_expiry_is_refused_and_one_before_it_dies_with_it() {
    let mut machine = Machine::default();
    machine.grant(5, "");
    machine.write(put_on("before", 5));
    machine.expire(&[LeaseRef::id(5)]);
    assert_eq!(
        machine.refused(put_on("after", 5)),
        ErrorKind::LeaseNotFound
    );
    assert_eq!(machine.range("", KeyRange::Prefix).count, 0);
    machine.is_sound();
}

#[test]
fn t14_what_is_meant_for_an_earlier_lease_of_the_id_does_not_hit_the_next() {
    let mut machine = Machine::default();
    let first = machine.grant(5, "");
    let first = LeaseRef {
        id: 5,
        grant_index: first.grant_index,
    };
    machine.revoke(5);
    machine.grant(5, "");
    machine.write(put_on("k", 5));
    assert_eq!(machine.expire(&[first]).leases, []);
    assert_eq!(
        machine.refused(Operation::LeaseRevoke(first)),
        ErrorKind::LeaseNotFound
    );
    assert_eq!(
        machine.refused(put_to("k", LeaseTarget::Lease(first))),
        ErrorKind::LeaseNotFound
    );
    assert!(machine.get("k").is_some());
}

/// After the largest id there is no other, and what hangs on its lease is found all the same: read
/// along with the lease, or by itself where that is too much.
#[test]
fn the_lease_with_the_largest_id_ends_like_any_other() {
    let (last, before) = (LeaseRef::id(i64::MAX), LeaseRef::id(i64::MAX - 1));
    for count in [1u64, 20] {
        let mut machine = Machine::default();
        let fill = |machine: &mut Machine| {
            assert_eq!(machine.grant(last.id, "").id, last.id);
            for key in 0..count {
                machine.write(put_on(&format!("last/{key:02}"), last.id));
            }
        };
        fill(&mut machine);
        machine.grant(before.id, "");
        machine.write(put_on("before", before.id));
        let info = lease_info(&machine.store, last.id, true, 1 << 20)
            .unwrap()
            .unwrap();
        assert_eq!((info.keys.len() as u64, info.key_count), (count, count));
        machine.is_sound();

        let reply = machine.expire(&[last]);
        assert!(matches!(
            reply.leases[..],
            [LeaseChange::Ended(ended, LeaseEnd::Expired)] if ended.id == last.id
        ));
        assert_eq!(machine.range("last/", KeyRange::Prefix).count, 0);
        assert!(machine.get("before").is_some());
        machine.is_sound();

        fill(&mut machine);
        let revoked = LeaseRevokeResponse {
            deleted: count,
            is_partial: false,
        };
        assert_eq!(machine.revoke(last.id), revoked);
        assert_eq!(machine.range("last/", KeyRange::Prefix).count, 0);
        assert_eq!(machine.expire(&[last, before]).leases.len(), 1);
        assert_eq!(machine.range("", KeyRange::Prefix).count, 0);
        machine.is_sound();
    }
}

/// A lease with more keys than one step deletes: each step is one revision, and in between it is
/// neither renewed nor attached to (T10, A16).
#[test]
fn t10_a_lease_with_very_many_keys_ends_in_steps() {
    let mut machine = Machine::default();
    machine.grant(5, "n");
    let many = END_KEYS_MAX * 2 + 1;
    for key in 0..many {
        machine.write(put_on(&format!("{key:05}"), 5));
    }
    let before = machine.progress().revision;
    let reply = machine.expire(&[LeaseRef::id(5)]);
    assert_eq!(reply.revision, before + 1);
    assert!(matches!(
        reply.leases[..],
        [LeaseChange::Changed(LeaseTerms {
            ending: Some(LeaseEnd::Expired),
            ..
        })]
    ));
    assert_eq!(machine.refused(put_on("x", 5)), ErrorKind::LeaseExpired);
    assert_eq!(machine.refused(grant(6, "n")), ErrorKind::LeaseExists);
    let go_on = Command::ContinueLeaseEnds {
        leases: vec![LeaseRef::id(5)],
    };
    machine.run(&go_on);
    assert_eq!(machine.range("", KeyRange::Prefix).count, 1);
    let last = machine.run(&go_on);
    assert!(matches!(
        last.leases[..],
        [LeaseChange::Ended(_, LeaseEnd::Expired)]
    ));
    assert_eq!(machine.progress().revision, before + 3);
    machine.is_sound();
    assert_eq!(machine.run(&go_on).leases, [], "it is over");
}

/// An entry ends no further lease once it has deleted very many keys or bytes: what it leaves out is
/// proposed again, and what is left of those that it began is continued in entries that are bounded
/// alike (T10).
#[test]
fn t10_an_entry_that_has_deleted_very_many_keys_leaves_the_rest_of_its_leases_alone() {
    use crate::api::{TxnOp, TxnRequest};
    let mut machine = Machine::default();
    let each = END_KEYS_MAX + 1;
    let fitting = lease_end::ENTRY_KEYS_MAX.div_ceil(END_KEYS_MAX);
    let all: Vec<LeaseRef> = (1..=fitting as i64 + 2)
        .map(|id| LeaseRef::id(1 << 40 | id))
        .collect();
    for lease in &all {
        machine.grant(lease.id, "");
        let put = |number: usize| {
            TxnOp::Put(PutRequest {
                key: text(&format!("{}/{number}", lease.id)),
                lease: LeaseTarget::Lease(*lease),
                ..PutRequest::default()
            })
        };
        for some in (0..each).collect::<Vec<_>>().chunks(120) {
            let puts = some.iter().map(|number| put(*number));
            machine.write(Operation::Txn(TxnRequest::new().and_then(puts)));
        }
    }
    let mut left = all.len() * each;
    let mut deleted = |machine: &Machine| {
        let before = left;
        left = usize::try_from(machine.range("", KeyRange::Prefix).count).unwrap();
        before - left
    };
    assert_eq!(machine.expire(&all).leases.len(), fitting);
    assert_eq!(deleted(&machine), fitting * END_KEYS_MAX);
    assert_eq!(machine.expire(&all).leases.len(), 2);
    assert_eq!(deleted(&machine), 2 * END_KEYS_MAX);
    machine.is_sound();
    let go_on = Command::ContinueLeaseEnds { leases: all };
    assert_eq!(machine.run(&go_on).leases.len(), fitting + 2);
    assert_eq!(deleted(&machine), fitting + 2);
    machine.is_sound();
}

#[test]
fn t10_an_entry_that_has_deleted_very_many_bytes_leaves_the_rest_of_its_leases_alone() {
    let mut machine = Machine::default();
    let all: Vec<LeaseRef> = (1..=12).map(LeaseRef::id).collect();
    for lease in &all {
        machine.grant(lease.id, "");
        let put = PutRequest {
            key: text(&format!("{:02}", lease.id)),
            value: vec![0; 1 << 20].into(),
            lease: LeaseTarget::Lease(*lease),
            ..PutRequest::default()
        };
        machine.write(Operation::Put(put));
    }
    let fitting = lease_end::END_BYTES_MAX >> 20;
    assert_eq!(machine.expire(&all).leases.len(), fitting);
    assert_eq!(machine.expire(&all).leases.len(), all.len() - fitting);
    assert_eq!(machine.range("", KeyRange::Prefix).count, 0);
    machine.is_sound();
}

/// Neither does one step delete very many bytes at once.
#[test]
fn t10_a_lease_with_very_large_keys_ends_in_steps() {
    let mut machine = Machine::default();
    machine.grant(5, "");
    for number in 0..12 {
        let put = PutRequest {
            key: text(&format!("{number:02}")),
            value: vec![0; 1 << 20].into(),
            lease: LeaseTarget::Lease(LeaseRef::id(5)),
            ..PutRequest::default()
        };
        machine.write(Operation::Put(put));
    }
    machine.expire(&[LeaseRef::id(5)]);
    assert_eq!(machine.range("", KeyRange::Prefix).count, 4);
    machine.run(&Command::ContinueLeaseEnds {
        leases: vec![LeaseRef::id(5)],
    });
    assert_eq!(machine.range("", KeyRange::Prefix).count, 0);
    machine.is_sound();
}

#[test]
fn every_entry_says_how_many_keys_it_left_on_leases() {
    use crate::api::{TxnOp, TxnRequest};
    let mut machine = Machine::default();
    machine.grant(5, "");
    machine.grant(6, "");
    let mut more = |operation| {
        let session = None;
        machine
            .run(&Command::Write {
                author: None,
                session,
                operation,
            })
            .lease_keys
    };
    assert_eq!(more(put_on("a", 5)), 1);
    assert_eq!(more(put_on("a", 5)), 0, "it hangs there already");
    assert_eq!(more(put_on("a", 6)), 0, "it moves");
    assert_eq!(more(put("a", "v")), -1, "it is let go");
    let put_both = ["a", "b"].map(|key| {
        TxnOp::Put(PutRequest {
            key: text(key),
            lease: LeaseTarget::Lease(LeaseRef::id(5)),
            ..PutRequest::default()
        })
    });
    assert_eq!(
        more(Operation::Txn(TxnRequest::new().and_then(put_both))),
        2
    );
    let delete = TxnRequest::new().and_then([TxnOp::delete("a"), TxnOp::put("c", "v")]);
    assert_eq!(more(Operation::Txn(delete)), -1);
    assert_eq!(more(put_on("x", 7)), 0, "a refusal changes nothing");
    assert_eq!(held_leases(&machine.store).unwrap().keys, 1);
    assert_eq!(machine.expire(&[LeaseRef::id(5)]).lease_keys, -1);
    assert_eq!(held_leases(&machine.store).unwrap().keys, 0);
}

#[test]
fn there_are_so_many_leases_and_keys_on_a_lease_and_no_more() {
    let mut machine = Machine::default();
    machine.grant(5, "");
    let full = LeaseGrant {
        leases_max: 1,
        ..grant_of(6, "")
    };
    assert_eq!(
        machine.refused(Operation::LeaseGrant(full)),
        ErrorKind::LeaseLimit { limit: 1 }
    );
    // A hundred thousand puts would take seconds: the record says how many there are.
    let mut lease = Lease::read_for_test(&machine.store, 5).unwrap();
    lease.keys = LEASE_KEYS_MAX;
    let mut hashed = hash::HashedStore::begin(&mut machine.store).unwrap();
    lease.write(&mut hashed, 5).unwrap();
    hashed.finish();
    assert_eq!(
        machine.refused(put_on("k", 5)),
        ErrorKind::LeaseLimit {
            limit: LEASE_KEYS_MAX
        }
    );
}

/// T8: a limit that its grant says holds as long as the lease, whatever replicas are set to.
#[test]
fn a_lease_has_as_many_keys_as_its_grant_allows_whoever_is_asked_later() {
    let mut machine = Machine::default();
    let two = LeaseGrant {
        keys_max: 2,
        ..grant_of(5, "")
    };
    machine.write(Operation::LeaseGrant(two.clone()));
    let many = LeaseGrant {
        keys_max: 2 * LEASE_KEYS_MAX,
        ..grant_of(6, "")
    };
    machine.write(Operation::LeaseGrant(many));
    machine.write(put_on("a", 5));
    machine.write(put_on("b", 5));
    let full = ErrorKind::LeaseLimit { limit: 2 };
    assert_eq!(machine.refused(put_on("c", 5)), full);
    machine.write(put_on("b", 5));
    machine.write(put_on("c", 6));
    assert_eq!(machine.refused(put_on("c", 5)), full, "nor moves one there");
    // A key that goes makes room.
    machine.write(put_on("a", 6));
    machine.write(put_on("c", 5));
    let none = LeaseGrant {
        keys_max: 0,
        ..grant_of(7, "")
    };
    let both = Operation::PutWithNewLease {
        grant: Box::new(none),
        put: PutRequest {
            key: text("d"),
            ..PutRequest::default()
        },
    };
    assert_eq!(machine.refused(both), ErrorKind::LeaseLimit { limit: 0 });
    // The record keeps it beside the name of an owner, too.
    for (creator, keys_max) in [("", 2), ("anna", 2), ("", LEASE_KEYS_MAX), ("anna", 1)] {
        let lease = Lease {
            keys_max,
            creator: creator.to_owned(),
            ..Lease::for_test(9, 1)
        };
        assert_eq!(Lease::decode(&lease.encode()).unwrap(), lease);
    }
}

#[test]
fn a_grant_with_a_put_does_both_or_neither() {
    let mut machine = Machine::default();
    let both = |key: &str, grant| Operation::PutWithNewLease {
        grant: Box::new(grant),
        put: PutRequest {
            key: text(key),
            value: text("v"),
            ..PutRequest::default()
        },
    };
    let (revision, body) = machine.write(both("k", grant_of(0, "")));
    let ResponseBody::PutWithNewLease(done) = body else {
        panic!("not an answer to it: {body:?}");
    };
    assert_eq!(revision, 2);
    assert_eq!(machine.get("k").map(|kv| kv.lease), Some(done.grant.id));
    assert_eq!(
        machine.refused(both("", grant_of(9, ""))),
        ErrorKind::InvalidArgument
    );
    assert!(Lease::read_for_test(&machine.store, 9).is_none());
    assert_eq!(
        machine.refused(both("other", grant_of(done.grant.id, ""))),
        ErrorKind::LeaseExists
    );
    assert!(machine.get("other").is_none());
    machine.is_sound();
}

#[test]
fn a_retried_grant_is_one_grant() {
    let mut machine = Machine::default();
    let session = machine.open();
    let first = machine.once(session, 1, 0, grant(0, "n"));
    assert_eq!(first.leases.len(), 1);
    let retry = machine.once(session, 1, 0, grant(0, "n"));
    assert_eq!(retry.result, first.result);
    assert_eq!(retry.leases, [], "nothing happened");
    assert_eq!(machine.progress().leases, 1);
}

#[test]
fn x16_a13_a_shorter_time_to_live_remembers_what_was_promised_until_it_is_settled() {
    let mut machine = Machine::default();
    machine.grant(5, "");
    let lease = LeaseRef::id(5);
    let mut update = |ttl_ms| {
        machine.write(Operation::LeaseUpdateTtl { lease, ttl_ms });
        held_leases(&machine.store).unwrap().terms[0]
    };
    let shorter = update(100);
    assert_eq!((shorter.ttl_ms, shorter.restart_ms), (100, 1_000));
    assert!(shorter.outlasts_ttl);
    assert_eq!(update(50).restart_ms, 1_000);
    let longer = update(2_000);
    assert_eq!((longer.restart_ms, longer.outlasts_ttl), (2_000, false));
    update(100);
    for (ttl_ms, restart_ms) in [(99, 2_000), (100, 100)] {
        machine.run(&Command::MarkLeases {
            term: Term(1),
            marks: vec![LeaseMark {
                lease,
                kind: LeaseMarkKind::Settle { ttl_ms },
            }],
        });
        assert_eq!(
            held_leases(&machine.store).unwrap().terms[0].restart_ms,
            restart_ms
        );
    }
    assert_eq!(
        machine.refused(Operation::LeaseUpdateTtl {
            lease: LeaseRef::id(6),
            ttl_ms: 1
        }),
        ErrorKind::LeaseNotFound
    );
}

#[test]
fn t9_a_checkpoint_shortens_what_a_new_leader_gives_until_it_is_cleared() {
    let mut machine = Machine::default();
    machine.grant(5, "");
    let mut mark = |term, kind| {
        let lease = LeaseRef::id(5);
        let marks = vec![LeaseMark { lease, kind }];
        let term = Term(term);
        machine.run(&Command::MarkLeases { term, marks });
        let terms = held_leases(&machine.store).unwrap().terms[0];
        (terms.restart_ms, terms.is_checkpointed)
    };
    assert_eq!(mark(2, LeaseMarkKind::Remaining(300)), (1_000, false));
    assert_eq!(mark(1, LeaseMarkKind::Remaining(300)), (300, true));
    assert_eq!(mark(1, LeaseMarkKind::Clear), (1_000, false));
}

#[test]
fn transactions_compare_and_attach_leases() {
    use crate::api::{Compare, CompareOp, TxnOp, TxnRequest};
    let mut machine = Machine::default();
    machine.grant(5, "");
    machine.write(put_on("k", 5));
    let on_lease = |key: &str, lease| {
        TxnOp::Put(PutRequest {
            key: text(key),
            lease: LeaseTarget::Lease(LeaseRef::id(lease)),
            ..PutRequest::default()
        })
    };
    let holds = TxnRequest::new()
        .when([Compare::lease("k", CompareOp::Equal, 5)])
        .and_then([on_lease("l", 5), TxnOp::delete("k")]);
    machine.write(Operation::Txn(holds));
    let info = lease_info(&machine.store, 5, true, 1 << 20)
        .unwrap()
        .unwrap();
    assert_eq!(info.keys, [text("l")]);
    let half = TxnRequest::new().and_then([TxnOp::put("m", "1"), on_lease("n", 6)]);
    assert_eq!(
        machine.refused(Operation::Txn(half)),
        ErrorKind::LeaseNotFound
    );
    assert!(machine.get("m").is_none());
    machine.is_sound();
}
