//! Rules against requests, on a store in memory.

use bytes::Bytes;

use super::records::{NamedRecord, Role, User};
use super::*;
use crate::api::fixtures::every_request;
use crate::api::{
    AuthRequest, AuthResponse, Compare, CompareOp, DeleteRangeRequest, Error, ErrorKind, KeyRange,
    LeaseGrantRequest, LeaseRef, LeaseTarget, Password, Permission, PermissionKind, PutRequest,
    ROOT, RangeRequest, Request, RequestKind, ResponseBody, Secret, SessionCall, TxnOp, TxnRequest,
};
use crate::kv;
use crate::kv::hash::HashedStore;
use crate::kv::{Command, LeaseGrant, MemStore, Operation, Space, Span, View};
use crate::types::{LogId, LogIndex, SessionId, Term};

/// A state machine, and who asks it.
#[derive(Clone, Default)]
struct Machine {
    store: MemStore,
    index: u64,
}

fn identity(name: &str) -> Identity {
    Identity {
        name: name.to_owned(),
        generation: None,
    }
}

impl Machine {
    /// Access is controlled: root may do all, `anna` reads what begins with `a/` and writes
    /// `a/w/`, `nobody` has a role that allows nothing.
    fn guarded() -> Self {
        let mut machine = Self::default();
        for name in [ROOT, "anna", "nobody", "bert"] {
            machine.auth_ok(AuthRequest::UserAdd {
                name: name.into(),
                password: Password::Hashed(Secret::new("hash")),
            });
        }
        for name in ["readers", "writers", "empty"] {
            machine.auth_ok(AuthRequest::RoleAdd { name: name.into() });
        }
        machine.permit("readers", PermissionKind::Read, "a/", KeyRange::Prefix);
        machine.permit("writers", PermissionKind::Write, "a/w/", KeyRange::Prefix);
        for (name, role) in [
            (ROOT, ROOT),
            ("anna", "readers"),
            ("anna", "writers"),
            ("bert", "writers"),
            ("nobody", "empty"),
        ] {
            machine.auth_ok(AuthRequest::UserGrantRole {
                name: name.into(),
                role: role.into(),
            });
        }
        machine.auth_ok(AuthRequest::Enable {
            token_key: Secret::new("key"),
        });
        machine
    }

    fn permit(&mut self, role: &str, kind: PermissionKind, key: &str, range: KeyRange) {
        self.auth_ok(AuthRequest::RoleGrantPermission {
            name: role.into(),
            permission: Permission {
                kind,
                key: Bytes::copy_from_slice(key.as_bytes()),
                range,
            },
        });
    }

    fn run(&mut self, command: &Command) -> Result<Option<ResponseBody>, Error> {
        self.index += 1;
        let id = LogId::new(LogIndex(self.index), Term(1));
        let reply = kv::apply(&mut self.store, id, Some(&command.encode())).unwrap();
        assert_eq!(kv::content_hash(&self.store), kv::scan(&self.store));
        reply.result
    }

    fn run_as(&mut self, name: &str, operation: Operation) -> Result<ResponseBody, Error> {
        let author = Some(Author::Client(identity(name)));
        let done = self.run(&Command::Write {
            author,
            session: None,
            operation,
        });
        done.map(|body| body.expect("a client is answered"))
    }

    fn auth(&mut self, name: &str, request: AuthRequest) -> Result<ResponseBody, Error> {
        self.run_as(name, Operation::Auth(request))
    }

    fn auth_ok(&mut self, request: AuthRequest) {
        let done = self.auth(ROOT, request);
        assert_eq!(done, Ok(ResponseBody::Auth(AuthResponse::Done)));
    }

    /// What a session would say about `request`, by rules and store as they are.
    fn judged(&self, name: &str, request: &Request) -> Result<(), Error> {
        let policy = Policy::of(&self.store).unwrap();
        let rules = policy.rules(&identity(name))?;
        judge(&self.store, rules, &needs(request)).unwrap()
    }
}

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind
}

fn put(key: &str) -> PutRequest {
    PutRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::from_static(b"v"),
        ..PutRequest::default()
    }
}

fn range(key: &str, range: KeyRange) -> RangeRequest {
    RangeRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        range,
        ..RangeRequest::default()
    }
}

fn grant(id: i64) -> LeaseGrant {
    LeaseGrant {
        id,
        ttl_ms: 1_000,
        requested_ttl_ms: 1_000,
        leases_max: 100,
        keys_max: 100,
        ..LeaseGrant::default()
    }
}

/// What asks for no permission: who asks is to be told who he is, or says how to be answered.
fn is_open(request: &Request) -> bool {
    matches!(
        request,
        Request::Auth(AuthRequest::Authenticate { .. } | AuthRequest::UseToken { .. })
            | Request::ForwardToLeader { .. }
    )
}

#[test]
fn there_are_so_many_users_roles_and_permissions_and_one_more_is_refused() {
    let mut machine = Machine::guarded();
    let mut store = HashedStore::begin(&mut machine.store).unwrap();
    let others = (0..10_000 - 5).map(|n| (format!("user-{n}"), User::default()));
    others.for_each(|(name, user)| user.write(&mut store, &name).unwrap());
    let others = (0..1_000 - 4).map(|n| (format!("role-{n}"), Role::default()));
    others.for_each(|(name, role)| role.write(&mut store, &name).unwrap());
    let anna = User {
        roles: (0..99).map(|n| format!("role-{n}")).collect(),
        ..User::read(&store, "anna").unwrap().unwrap()
    };
    anna.write(&mut store, "anna").unwrap();
    let readers = Role {
        permissions: (0..999).map(|n| to_read(&format!("key-{n}"))).collect(),
    };
    readers.write(&mut store, "readers").unwrap();
    store.finish();

    let add_user = |name: &str| AuthRequest::UserAdd {
        name: name.into(),
        password: Password::None,
    };
    let add_role = |name: &str| AuthRequest::RoleAdd { name: name.into() };
    let grant_role = |role: &str| AuthRequest::UserGrantRole {
        name: "anna".into(),
        role: role.into(),
    };
    let permit = |key: &str| AuthRequest::RoleGrantPermission {
        name: "readers".into(),
        permission: to_read(key),
    };
    for (last, one_more, limit) in [
        (add_user("last"), add_user("more"), "there are 10000 users"),
        (add_role("last"), add_role("more"), "there are 1000 roles"),
        (
            grant_role("last"),
            grant_role("empty"),
            "there are 100 roles",
        ),
        (permit("last"), permit("more"), "there are 1000 permissions"),
    ] {
        machine.auth_ok(last.clone());
        let refused = machine.auth(ROOT, one_more).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{limit}");
        assert!(refused.detail.starts_with(limit), "{}", refused.detail);
        // What is there already is no more.
        if !matches!(
            last,
            AuthRequest::UserAdd { .. } | AuthRequest::RoleAdd { .. }
        ) {
            machine.auth_ok(last);
        }
    }
}

fn to_read(key: &str) -> Permission {
    Permission {
        kind: PermissionKind::Read,
        key: Bytes::copy_from_slice(key.as_bytes()),
        range: KeyRange::Single,
    }
}

#[test]
fn whoever_has_nothing_may_do_nothing() {
    let mut machine = Machine::guarded();
    // So that there is a lease to ask for.
    let granted = machine.run_as(ROOT, Operation::LeaseGrant(grant(7)));
    assert!(granted.is_ok());
    for request in every_request() {
        let method = request.method();
        if is_open(&request) {
            assert_eq!(machine.judged("nobody", &request), Ok(()), "{method}");
            continue;
        }
        let denied = machine.judged("nobody", &request);
        assert_eq!(kind(denied), ErrorKind::PermissionDenied, "{method}");
        let unknown = machine.judged("stranger", &request);
        assert_eq!(kind(unknown), ErrorKind::Unauthenticated, "{method}");
        assert_eq!(machine.judged(ROOT, &request), Ok(()), "{method}");
    }
}

/// The same at apply, which has its own list of what there is.
#[test]
fn no_write_of_whoever_has_nothing_takes_effect() {
    let mut machine = Machine::guarded();
    assert!(
        machine
            .run_as(ROOT, Operation::LeaseGrant(grant(7)))
            .is_ok()
    );
    let before = kv::progress(&machine.store).unwrap();
    let lease = LeaseRef::id(7);
    let mut operations = vec![
        Operation::Put(put("k")),
        Operation::DeleteRange(DeleteRangeRequest {
            key: "k".into(),
            ..DeleteRangeRequest::default()
        }),
        Operation::Compact(crate::api::CompactionRequest::at(1)),
        Operation::Txn(TxnRequest::create("k", "v")),
        Operation::LeaseGrant(grant(8)),
        Operation::LeaseRevoke(lease),
        Operation::LeaseUpdateTtl { lease, ttl_ms: 5 },
        Operation::PutWithNewLease {
            grant: Box::new(grant(8)),
            put: put("k"),
        },
    ];
    let writes = every_request()
        .into_iter()
        .filter_map(|request| match request {
            Request::Auth(auth) if auth.spec().kind == RequestKind::Write => {
                Some(Operation::Auth(auth))
            }
            _ => None,
        });
    operations.extend(writes);
    for operation in operations {
        let shown = format!("{operation:?}");
        let denied = machine.run_as("nobody", operation.clone());
        assert_eq!(kind(denied), ErrorKind::PermissionDenied, "{shown}");
        let unknown = machine.run_as("stranger", operation);
        assert_eq!(kind(unknown), ErrorKind::Unauthenticated, "{shown}");
    }
    let session = machine.run(&Command::OpenSession {
        author: Some(Author::Client(identity("nobody"))),
        sessions_max: 9,
    });
    assert_eq!(kind(session), ErrorKind::PermissionDenied);
    let after = kv::progress(&machine.store).unwrap();
    assert_eq!(
        (after.revision, after.access),
        (before.revision, before.access)
    );
    assert_eq!(
        (after.leases, after.sessions),
        (before.leases, before.sessions)
    );
}

#[test]
fn a_range_must_lie_inside_of_what_is_granted() {
    let mut machine = Machine::guarded();
    let may = |machine: &Machine, key: &str, extent: KeyRange| {
        machine
            .judged("anna", &Request::Range(range(key, extent)))
            .is_ok()
    };
    assert!(may(&machine, "a/x", KeyRange::Single));
    assert!(may(&machine, "a/", KeyRange::Prefix));
    assert!(may(&machine, "a/b", KeyRange::Until("a/c".into())));
    assert!(!may(&machine, "a", KeyRange::Prefix));
    assert!(!may(&machine, "a/", KeyRange::From));
    assert!(!may(&machine, "a/", KeyRange::Until("a1".into())));
    assert!(!may(&machine, "b", KeyRange::Single));
    assert!(!may(&machine, "", KeyRange::Prefix));
    // What touches what is granted is one range with it.
    let more = KeyRange::Until("a9".into());
    machine.permit("readers", PermissionKind::ReadWrite, "a0", more);
    assert!(may(&machine, "a/", KeyRange::Until("a9".into())));
    assert!(!may(&machine, "a/", KeyRange::Until("aa".into())));
}

#[test]
fn one_forbidden_part_of_a_transaction_forbids_all_of_it_wherever_it_stands() {
    let mut machine = Machine::guarded();
    let allowed = || TxnOp::Put(put("a/w/1"));
    let forbidden = [
        TxnOp::Put(put("a/x")),
        TxnOp::Put(PutRequest {
            lease: LeaseTarget::Lease(LeaseRef::id(7)),
            ..put("a/w/2")
        }),
        TxnOp::Range(range("b", KeyRange::Single)),
        TxnOp::DeleteRange(DeleteRangeRequest {
            key: "a/w/".into(),
            range: KeyRange::From,
            ..DeleteRangeRequest::default()
        }),
        TxnOp::delete("c"),
    ];
    assert!(
        machine
            .run_as(ROOT, Operation::LeaseGrant(grant(7)))
            .is_ok()
    );
    let holds = || Compare::version("a/none", CompareOp::Equal, 0);
    let fine = TxnRequest::new().when([holds()]).and_then([allowed()]);
    assert!(machine.run_as("anna", Operation::Txn(fine)).is_ok());
    let before = kv::progress(&machine.store).unwrap().revision;
    for part in forbidden {
        let inner = |op: TxnOp| TxnRequest::new().when([holds()]).or_else([op]);
        let shapes = [
            // Taken, not taken, and deep down in a branch that is not taken.
            TxnRequest::new().and_then([allowed(), part.clone()]),
            TxnRequest::new()
                .and_then([allowed()])
                .or_else([part.clone()]),
            TxnRequest::new()
                .and_then([allowed()])
                .or_else([TxnOp::Txn(inner(TxnOp::Txn(inner(part.clone()))))]),
        ];
        for txn in shapes {
            let denied = machine.run_as("anna", Operation::Txn(txn.clone()));
            assert_eq!(kind(denied), ErrorKind::PermissionDenied, "{txn:?}");
            let judged = machine.judged("anna", &Request::Txn(txn));
            assert_eq!(kind(judged), ErrorKind::PermissionDenied);
        }
    }
    let peek = TxnRequest::new()
        .when([Compare::value("secret", CompareOp::Greater, "m")])
        .and_then([allowed()]);
    let denied = machine.run_as("anna", Operation::Txn(peek));
    assert_eq!(
        kind(denied),
        ErrorKind::PermissionDenied,
        "comparing is reading"
    );
    let after = kv::progress(&machine.store).unwrap().revision;
    assert_eq!(after, before, "nothing of any of them was done");
}

#[test]
fn what_a_write_answers_with_must_be_readable() {
    let mut machine = Machine::guarded();
    // Bert writes what he may not read.
    let write = |prev_kv| {
        Operation::Put(PutRequest {
            prev_kv,
            ..put("a/w/1")
        })
    };
    assert!(machine.run_as("bert", write(false)).is_ok());
    assert_eq!(
        kind(machine.run_as("bert", write(true))),
        ErrorKind::PermissionDenied
    );
    assert!(machine.run_as("anna", write(true)).is_ok());
    let delete = |prev_kv| {
        Operation::DeleteRange(DeleteRangeRequest {
            key: "a/w/".into(),
            range: KeyRange::Prefix,
            prev_kv,
        })
    };
    assert_eq!(
        kind(machine.run_as("bert", delete(true))),
        ErrorKind::PermissionDenied
    );
    assert!(machine.run_as("bert", delete(false)).is_ok());
}

/// At apply as where a request is judged before; a put with a lease of its own needs its key.
#[test]
fn a_lease_is_granted_to_whoever_may_write_some_key() {
    let mut machine = Machine::guarded();
    machine.auth_ok(AuthRequest::UserAdd {
        name: "reader".into(),
        password: Password::None,
    });
    machine.auth_ok(AuthRequest::UserGrantRole {
        name: "reader".into(),
        role: "readers".into(),
    });
    let asked = Request::LeaseGrant(LeaseGrantRequest {
        ttl_ms: 1_000,
        ..LeaseGrantRequest::default()
    });
    for (user, id) in [("bert", 71), ("anna", 72), (ROOT, 73)] {
        assert_eq!(machine.judged(user, &asked), Ok(()), "{user}");
        let granted = machine.run_as(user, Operation::LeaseGrant(grant(id)));
        assert!(granted.is_ok(), "{user}");
    }
    let denied = machine.judged("reader", &asked).unwrap_err();
    let said = "the user \"reader\" may not grant leases, for which it has to write some key: none of \
                its roles permits it";
    assert_eq!(denied.detail, said);
    let before = kv::progress(&machine.store).unwrap().leases;
    let both = |key| Operation::PutWithNewLease {
        grant: Box::new(grant(74)),
        put: put(key),
    };
    for operation in [Operation::LeaseGrant(grant(74)), both("a/1"), both("a/w/1")] {
        let denied = machine.run_as("reader", operation);
        assert_eq!(kind(denied), ErrorKind::PermissionDenied);
    }
    assert_eq!(kv::progress(&machine.store).unwrap().leases, before);
    // A role that lets it write one key is enough, and until it is taken away.
    let one = KeyRange::Single;
    machine.permit("readers", PermissionKind::Write, "own", one);
    assert!(
        machine
            .run_as("reader", Operation::LeaseGrant(grant(74)))
            .is_ok()
    );
}

/// Counted by whoever granted them, from the grant until the lease is gone, however it ends.
#[test]
fn a_user_has_so_many_leases_and_no_more_until_one_is_gone() {
    let mut machine = Machine::guarded();
    let of_two = |id| LeaseGrant {
        per_user_max: 2,
        ..grant(id)
    };
    let granted = |machine: &mut Machine, user, id| {
        let result = machine.run_as(user, Operation::LeaseGrant(of_two(id)));
        result.map(drop).map_err(|error| error.kind)
    };
    let full = Err(ErrorKind::QuotaExceeded { limit: 2 });
    let before = machine.store.clone();
    for id in [71, 72] {
        assert_eq!(granted(&mut machine, "anna", id), Ok(()));
    }
    assert_eq!(granted(&mut machine, "anna", 73), full);
    let both = Operation::PutWithNewLease {
        grant: Box::new(of_two(73)),
        put: put("a/w/1"),
    };
    assert_eq!(
        kind(machine.run_as("anna", both)),
        ErrorKind::QuotaExceeded { limit: 2 }
    );
    // Others have their own, and one that is refused for another reason counts nothing.
    assert_eq!(
        granted(&mut machine, "bert", 71),
        Err(ErrorKind::LeaseExists)
    );
    for id in [74, 75] {
        assert_eq!(granted(&mut machine, "bert", id), Ok(()));
    }
    assert_eq!(granted(&mut machine, "bert", 76), full);
    // Without a limit they count all the same, for when there is one.
    assert!(
        machine
            .run_as("anna", Operation::LeaseGrant(grant(77)))
            .is_ok()
    );
    let revoke = Operation::LeaseRevoke(LeaseRef::id(71));
    assert!(machine.run_as("anna", revoke).is_ok());
    assert_eq!(granted(&mut machine, "anna", 78), full);
    let expired = Command::ExpireLeases {
        term: Term(1),
        leases: vec![LeaseRef::id(72)],
    };
    machine.run(&expired).unwrap();
    assert_eq!(granted(&mut machine, "anna", 78), Ok(()));
    let progress = kv::progress(&machine.store).unwrap();
    assert_eq!(kv::leases_are_sound(&machine.store, &progress), Ok(true));
    // And nothing of it is left once they are gone.
    for id in [74, 75, 77, 78] {
        let revoke = Operation::LeaseRevoke(LeaseRef::id(id));
        assert!(machine.run_as(ROOT, revoke).is_ok());
    }
    let counts = |store: &MemStore| {
        let all = store.range(Space::Meta, &Span::all());
        let keys = all.map(|pair| pair.unwrap().0);
        keys.filter(|key| key.starts_with(b"leases_of/")).count()
    };
    assert_eq!((counts(&machine.store), counts(&before)), (0, 0));
}

#[test]
fn a_lease_is_his_who_granted_it() {
    let mut machine = Machine::guarded();
    let lease = LeaseRef::id(70);
    assert!(
        machine
            .run_as("anna", Operation::LeaseGrant(grant(70)))
            .is_ok()
    );
    let attach = |key: &str, target| {
        Operation::Put(PutRequest {
            lease: target,
            ..put(key)
        })
    };
    let by_id = LeaseTarget::Lease(lease);
    assert!(
        machine
            .run_as("anna", attach("a/w/1", by_id.clone()))
            .is_ok()
    );
    let uses = [
        Operation::LeaseRevoke(lease),
        Operation::LeaseUpdateTtl { lease, ttl_ms: 5 },
        attach("a/w/2", by_id.clone()),
    ];
    for operation in uses {
        let denied = machine.run_as("bert", operation.clone());
        assert_eq!(kind(denied), ErrorKind::PermissionDenied, "{operation:?}");
    }
    let renewal = Request::LeaseKeepAlive(vec![lease]);
    assert_eq!(
        kind(machine.judged("bert", &renewal)),
        ErrorKind::PermissionDenied
    );
    assert_eq!(machine.judged("anna", &renewal), Ok(()));
    assert_eq!(machine.judged(ROOT, &renewal), Ok(()));
    // What is attached must be hers to delete, too.
    assert!(machine.run_as(ROOT, attach("z", by_id)).is_ok());
    let revoke = Operation::LeaseRevoke(lease);
    assert_eq!(
        kind(machine.run_as("anna", revoke.clone())),
        ErrorKind::PermissionDenied
    );
    let keys = Request::LeaseTimeToLive { id: 70, keys: true };
    assert_eq!(
        kind(machine.judged("anna", &keys)),
        ErrorKind::PermissionDenied
    );
    assert!(machine.run_as(ROOT, revoke).is_ok());
    // Nobody is kept from being told that it is gone.
    assert_eq!(machine.judged("bert", &renewal), Ok(()));
}

#[test]
fn a_lease_from_before_is_anybodys_whose_keys_it_has() {
    let open = |operation| Command::Write {
        author: None,
        session: None,
        operation,
    };
    let lease = LeaseTarget::Name("old".into());
    let attach = |key: &str| {
        Operation::Put(PutRequest {
            lease: lease.clone(),
            ..put(key)
        })
    };
    let mut guarded = Machine::guarded();
    let anonymous = guarded.run(&open(attach("a/w/1")));
    assert_eq!(kind(anonymous), ErrorKind::Unavailable);
    guarded.auth_ok(AuthRequest::Disable);
    let named = LeaseGrant {
        name: "old".into(),
        ..grant(70)
    };
    assert!(guarded.run(&open(Operation::LeaseGrant(named))).is_ok());
    assert!(guarded.run(&open(attach("a/w/1"))).is_ok());
    guarded.auth_ok(AuthRequest::Enable {
        token_key: Secret::new("key"),
    });
    let renewal = Request::LeaseKeepAlive(vec![LeaseRef::id(70)]);
    assert_eq!(guarded.judged("bert", &renewal), Ok(()));
    assert!(guarded.run_as("bert", attach("a/w/2")).is_ok());
    assert!(guarded.run_as(ROOT, attach("z")).is_ok());
    assert_eq!(
        kind(guarded.run_as("bert", attach("a/w/3"))),
        ErrorKind::PermissionDenied
    );
    let revoke = Operation::LeaseRevoke(LeaseRef::id(70));
    assert_eq!(
        kind(guarded.run_as("bert", revoke)),
        ErrorKind::PermissionDenied
    );
}

#[test]
fn a_refusal_names_no_key_of_a_lease_that_may_not_be_read() {
    let mut machine = Machine::guarded();
    let attach = |key: &str, lease| {
        Operation::Put(PutRequest {
            lease: LeaseTarget::Lease(lease),
            ..put(key)
        })
    };
    // Her own, and one that nobody has to himself.
    let (own, shared) = (LeaseRef::id(70), LeaseRef::id(71));
    let granted = machine.run_as("anna", Operation::LeaseGrant(grant(own.id)));
    assert!(granted.is_ok());
    let granted = machine.run(&Command::Write {
        author: Some(Author::Node),
        session: None,
        operation: Operation::LeaseGrant(grant(shared.id)),
    });
    assert!(granted.is_ok());
    for lease in [own, shared] {
        let attached = machine.run_as(ROOT, attach(&format!("hidden/{}", lease.id), lease));
        assert!(attached.is_ok());
    }
    let keys = |id| Request::LeaseTimeToLive { id, keys: true };
    let refusals = [
        machine
            .run_as("anna", Operation::LeaseRevoke(own))
            .map(drop),
        machine
            .run_as("anna", Operation::LeaseRevoke(shared))
            .map(drop),
        machine.run_as("anna", attach("a/w/1", shared)).map(drop),
        machine.judged("anna", &Request::LeaseRevoke(own)),
        machine.judged("anna", &keys(own.id)),
        machine.judged("anna", &keys(shared.id)),
    ];
    for refusal in refusals {
        let error = refusal.unwrap_err();
        assert_eq!(error.kind, ErrorKind::PermissionDenied);
        assert!(!error.detail.contains("hidden"), "{error}");
        assert!(error.detail.contains("attached to the lease"), "{error}");
    }
    // What she may read, and not write, is named.
    assert!(machine.run_as(ROOT, attach("a/1", own)).is_ok());
    let error = machine
        .run_as("anna", Operation::LeaseRevoke(own))
        .unwrap_err();
    assert!(error.detail.contains("\"a/1\""), "{error}");
}

#[test]
fn a_session_is_his_who_opened_it_and_a_refusal_decides_nothing() {
    let mut machine = Machine::guarded();
    let open = |machine: &mut Machine, name: &str| {
        let opened = machine.run(&Command::OpenSession {
            author: Some(Author::Client(identity(name))),
            sessions_max: 9,
        });
        match opened {
            Ok(Some(ResponseBody::OpenSession { id })) => id,
            other => panic!("{other:?}"),
        }
    };
    let write = |machine: &mut Machine, name: &str, id: SessionId, key: &str| {
        machine.run(&Command::Write {
            author: Some(Author::Client(identity(name))),
            session: Some(SessionCall {
                id,
                sequence: 1,
                acknowledged: 0,
            }),
            operation: Operation::Put(PutRequest {
                prev_kv: name == "anna",
                ..put(key)
            }),
        })
    };
    let id = open(&mut machine, "anna");
    // A number that was refused can still be used.
    let denied = write(&mut machine, "anna", id, "b");
    assert_eq!(kind(denied), ErrorKind::PermissionDenied);
    let first = write(&mut machine, "anna", id, "a/w/1").unwrap();
    assert_eq!(write(&mut machine, "anna", id, "a/w/1").unwrap(), first);
    // Bert guesses the number of her session, and gets none of her replies.
    let guessed = write(&mut machine, "bert", id, "a/w/1");
    assert_eq!(kind(guessed), ErrorKind::SessionExpired);
    let ghost = machine.run(&Command::Write {
        author: None,
        session: Some(SessionCall {
            id,
            sequence: 1,
            acknowledged: 0,
        }),
        operation: Operation::Put(put("a/w/1")),
    });
    let error = ghost.unwrap_err();
    assert_eq!(
        error.kind,
        ErrorKind::Unavailable,
        "a leader that did not know yet"
    );
    assert!(error.is_retryable());
}

#[test]
fn the_cluster_goes_on_with_its_own_work() {
    let mut machine = Machine::guarded();
    assert!(machine.run_as(ROOT, Operation::Put(put("k"))).is_ok());
    let own = |operation| Command::Write {
        author: Some(Author::Node),
        session: None,
        operation,
    };
    let compact = Operation::Compact(crate::api::CompactionRequest::at(2));
    assert!(machine.run(&own(compact)).is_ok());
    // Whoever is on a node's machine has it end a lease, whosesoever that is.
    let granted = machine.run_as("anna", Operation::LeaseGrant(grant(70)));
    assert!(granted.is_ok());
    let revoke = Operation::LeaseRevoke(LeaseRef::id(70));
    assert!(machine.run(&own(revoke)).is_ok());
}

#[test]
fn it_is_not_turned_on_before_somebody_can_turn_it_off() {
    let mut machine = Machine::default();
    let enable = || AuthRequest::Enable {
        token_key: Secret::new("key"),
    };
    let add = |password| AuthRequest::UserAdd {
        name: ROOT.into(),
        password,
    };
    let root_role = || AuthRequest::UserGrantRole {
        name: ROOT.into(),
        role: ROOT.into(),
    };
    let refused = |machine: &mut Machine, kind| {
        let error = machine.auth("anna", enable()).unwrap_err();
        assert_eq!(error.kind, kind);
        error.detail
    };
    assert!(refused(&mut machine, ErrorKind::UserNotFound).contains("no user root"));
    machine.auth_ok(add(Password::None));
    assert!(refused(&mut machine, ErrorKind::RoleNotFound).contains("the role root"));
    machine.auth_ok(root_role());
    // Open as access is, the role can be taken from all who have it.
    let no_root_role = || AuthRequest::RoleDelete { name: ROOT.into() };
    machine.auth_ok(no_root_role());
    assert!(refused(&mut machine, ErrorKind::RoleNotFound).contains("the role root"));
    machine.auth_ok(root_role());
    assert!(refused(&mut machine, ErrorKind::InvalidArgument).contains("no password"));
    // Whoever has the certificate can get in with it.
    let mut by_certificate = machine.clone();
    assert!(by_certificate.auth(ROOT, enable()).is_ok());
    machine.auth_ok(AuthRequest::UserChangePassword {
        name: ROOT.into(),
        password: Password::Hashed(Secret::new("hash")),
    });
    assert!(machine.auth("anna", enable()).is_ok());
    // And it stays so while it is on.
    let revoke = AuthRequest::UserRevokeRole {
        name: ROOT.into(),
        role: ROOT.into(),
    };
    assert_eq!(kind(machine.auth(ROOT, revoke)), ErrorKind::InvalidArgument);
    let delete = AuthRequest::UserDelete { name: ROOT.into() };
    assert_eq!(kind(machine.auth(ROOT, delete)), ErrorKind::InvalidArgument);
    assert_eq!(
        kind(machine.auth(ROOT, no_root_role())),
        ErrorKind::InvalidArgument
    );
    let plain = add(Password::Plain(Secret::new("typed")));
    assert_eq!(
        kind(machine.auth(ROOT, plain)),
        ErrorKind::Internal,
        "never into the log"
    );
}

#[test]
fn another_password_voids_what_the_one_before_was_given() {
    let mut machine = Machine::guarded();
    let (_, generation) = password_hash(&machine.store, "anna").unwrap().unwrap();
    let by_token = Identity {
        name: "anna".into(),
        generation: Some(generation),
    };
    let known = |machine: &Machine| {
        let policy = Policy::of(&machine.store).unwrap();
        policy
            .rules(&by_token)
            .map(|_| ())
            .map_err(|error| error.kind)
    };
    assert_eq!(known(&machine), Ok(()));
    machine.auth_ok(AuthRequest::UserGrantRole {
        name: "anna".into(),
        role: "empty".into(),
    });
    assert_eq!(known(&machine), Ok(()), "another role is another matter");
    machine.auth_ok(AuthRequest::UserChangePassword {
        name: "anna".into(),
        password: Password::Hashed(Secret::new("other")),
    });
    assert_eq!(known(&machine), Err(ErrorKind::Unauthenticated));
    let author = Some(Author::Client(by_token.clone()));
    let late = machine.run(&Command::Write {
        author,
        session: None,
        operation: Operation::Put(put("a/w/1")),
    });
    assert_eq!(kind(late), ErrorKind::Unauthenticated, "at apply, too");
    // A user of the same name is another one.
    machine.auth_ok(AuthRequest::UserDelete {
        name: "anna".into(),
    });
    machine.auth_ok(AuthRequest::UserAdd {
        name: "anna".into(),
        password: Password::None,
    });
    assert_eq!(known(&machine), Err(ErrorKind::Unauthenticated));
}

#[test]
fn a_prefix_and_the_range_that_it_is_are_one_permission() {
    let mut machine = Machine::guarded();
    let until = |end: &'static str| KeyRange::Until(Bytes::from_static(end.as_bytes()));
    let permissions = |machine: &Machine| {
        let get = AuthRequest::RoleGet {
            name: "readers".into(),
        };
        match read(&machine.store, &get).unwrap().unwrap() {
            AuthResponse::Role(role) => role.permissions,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(permissions(&machine)[0].range, KeyRange::Prefix);
    machine.permit("readers", PermissionKind::Write, "a/", until("a0"));
    let granted = permissions(&machine);
    assert_eq!(granted.len(), 1, "it took the place of the other");
    assert_eq!(granted[0].kind, PermissionKind::Write);
    assert_eq!(granted[0].range, until("a0"), "as it was written");
    let revoke = |range| AuthRequest::RoleRevokePermission {
        name: "readers".into(),
        key: "a/".into(),
        range,
    };
    let other = machine.auth(ROOT, revoke(KeyRange::Single));
    assert_eq!(kind(other), ErrorKind::InvalidArgument);
    machine.auth_ok(revoke(KeyRange::Prefix));
    assert_eq!(permissions(&machine), []);
}

#[test]
fn rules_change_with_users_and_roles_and_so_does_their_revision() {
    let mut machine = Machine::guarded();
    let revision = |machine: &Machine| kv::progress(&machine.store).unwrap().access.revision;
    let before = revision(&machine);
    let read = Request::Range(range("a/x", KeyRange::Single));
    assert_eq!(machine.judged("anna", &read), Ok(()));
    // What changes nothing is no news.
    machine.permit("readers", PermissionKind::Read, "a/", KeyRange::Prefix);
    assert_eq!(revision(&machine), before);
    machine.auth_ok(AuthRequest::RoleRevokePermission {
        name: "readers".into(),
        key: "a/".into(),
        range: KeyRange::Prefix,
    });
    assert_eq!(revision(&machine), before + 1);
    assert_eq!(
        kind(machine.judged("anna", &read)),
        ErrorKind::PermissionDenied
    );
    machine.permit("readers", PermissionKind::Read, "a/", KeyRange::Prefix);
    machine.auth_ok(AuthRequest::RoleDelete {
        name: "readers".into(),
    });
    assert_eq!(
        kind(machine.judged("anna", &read)),
        ErrorKind::PermissionDenied
    );
    let AuthResponse::User(anna) = super::read(
        &machine.store,
        &AuthRequest::UserGet {
            name: "anna".into(),
        },
    )
    .unwrap()
    .unwrap() else {
        panic!("a user is a user");
    };
    assert_eq!(anna.roles, ["writers"]);
    let about = |name: &str| Request::Auth(AuthRequest::UserGet { name: name.into() });
    assert_eq!(machine.judged("anna", &about("anna")), Ok(()), "herself");
    assert!(machine.judged("anna", &about("bert")).is_err());
    let role = |name: &str| Request::Auth(AuthRequest::RoleGet { name: name.into() });
    assert_eq!(machine.judged("anna", &role("writers")), Ok(()), "her own");
    assert!(machine.judged("anna", &role("empty")).is_err());
    for name in ["x", "user/y"] {
        // The names in use cannot be told from keys of the store.
        let get = AuthRequest::UserGet { name: name.into() };
        let found = super::read(&machine.store, &get).unwrap();
        assert_eq!(kind(found), ErrorKind::UserNotFound);
    }
    machine.auth_ok(AuthRequest::Disable);
    let policy = Policy::of(&machine.store).unwrap();
    assert!(!policy.status().enabled);
    assert!(policy.token_key().is_none(), "tokens are void with that");
}
