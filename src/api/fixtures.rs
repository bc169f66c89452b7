//! One request of every kind, for tests that must leave none out.

use bytes::Bytes;

use super::*;

/// One of each, on the key `k` and the lease 7; none of them is meant to succeed.
pub(crate) fn every_request() -> Vec<Request> {
    let key = Bytes::from_static(b"k");
    let range = RangeRequest {
        key: key.clone(),
        ..RangeRequest::default()
    };
    let put = PutRequest {
        key: key.clone(),
        ..PutRequest::default()
    };
    let grant = LeaseGrantRequest {
        ttl_ms: 1_000,
        ..LeaseGrantRequest::default()
    };
    let lease = LeaseRef::id(7);
    let mut all = vec![
        Request::Range(range.clone()),
        Request::Put(put.clone()),
        Request::DeleteRange(DeleteRangeRequest {
            key: key.clone(),
            ..DeleteRangeRequest::default()
        }),
        Request::OpenSession,
        Request::Status,
        Request::MoveLeader { target: None },
        Request::Compact(CompactionRequest::at(1)),
        Request::LeaderLeaseReport,
        Request::Txn(TxnRequest::create("k", "v")),
        Request::LeaseGrant(grant.clone()),
        Request::LeaseRevoke(lease),
        Request::LeaseKeepAlive(vec![lease]),
        Request::LeaseTimeToLive { id: 7, keys: true },
        Request::LeaseList(LeaseListRequest::default()),
        Request::LeaseUpdateTtl { lease, ttl_ms: 5 },
        Request::PutWithNewLease(grant, put),
        Request::RangePage(range),
        Request::Watch {
            watch_id: 1,
            watch: WatchRequest {
                key,
                ..WatchRequest::default()
            },
        },
        Request::WatchCancel { watch_id: 1 },
        Request::WatchProgress { watch_id: 1 },
        Request::Snapshot(SnapshotCall::Begin),
        Request::MemberList,
        Request::MemberAdd(MemberAddRequest::default()),
        Request::MemberRemove { id: NodeId(7) },
        Request::MemberPromote { id: NodeId(7) },
        Request::MemberUpdate(MemberUpdateRequest::default()),
    ];
    all.extend(every_auth_request().into_iter().map(Request::Auth));
    all
}

/// One of each about users and roles, none of which is about whoever asks.
pub(crate) fn every_auth_request() -> Vec<AuthRequest> {
    let (name, role) = ("other".to_owned(), "theirs".to_owned());
    let (key, range) = (Bytes::from_static(b"k"), KeyRange::Prefix);
    let password = Password::Hashed(Secret::new("x"));
    vec![
        AuthRequest::Enable {
            token_key: Secret::new("key"),
        },
        AuthRequest::Disable,
        AuthRequest::Status,
        AuthRequest::Authenticate {
            name: name.clone(),
            password: Secret::new("x"),
        },
        AuthRequest::UseToken {
            token: Secret::new("x"),
        },
        AuthRequest::UserAdd {
            name: name.clone(),
            password: password.clone(),
        },
        AuthRequest::UserGet { name: name.clone() },
        AuthRequest::UserList,
        AuthRequest::UserDelete { name: name.clone() },
        AuthRequest::UserChangePassword {
            name: name.clone(),
            password,
        },
        AuthRequest::UserGrantRole {
            name: name.clone(),
            role: role.clone(),
        },
        AuthRequest::UserRevokeRole {
            name,
            role: role.clone(),
        },
        AuthRequest::RoleAdd { name: role.clone() },
        AuthRequest::RoleGet { name: role.clone() },
        AuthRequest::RoleList,
        AuthRequest::RoleDelete { name: role.clone() },
        AuthRequest::RoleGrantPermission {
            name: role.clone(),
            permission: Permission {
                kind: PermissionKind::Read,
                key: key.clone(),
                range: range.clone(),
            },
        },
        AuthRequest::RoleRevokePermission {
            name: role,
            key,
            range,
        },
    ]
}

/// The place of a request's kind. Without a default: a kind that is added must be added here, and
/// [`every_request`] has to have it.
fn place(request: &Request) -> usize {
    match request {
        Request::Range(_) => 0,
        Request::Put(_) => 1,
        Request::DeleteRange(_) => 2,
        Request::OpenSession => 3,
        Request::Status => 4,
        Request::MoveLeader { .. } => 5,
        Request::Compact(_) => 6,
        Request::LeaderLeaseReport => 7,
        Request::Txn(_) => 8,
        Request::LeaseGrant(_) => 9,
        Request::LeaseRevoke(_) => 10,
        Request::LeaseKeepAlive(_) => 11,
        Request::LeaseTimeToLive { .. } => 12,
        Request::LeaseList(_) => 13,
        Request::LeaseUpdateTtl { .. } => 14,
        Request::PutWithNewLease(..) => 15,
        Request::RangePage(_) => 16,
        Request::Watch { .. } => 17,
        Request::WatchCancel { .. } => 18,
        Request::WatchProgress { .. } => 19,
        Request::Snapshot(_) => 20,
        Request::MemberList => 21,
        Request::MemberAdd(_) => 22,
        Request::MemberRemove { .. } => 23,
        Request::MemberPromote { .. } => 24,
        Request::MemberUpdate(_) => 25,
        Request::Auth(auth) => {
            26 + match auth {
                AuthRequest::Enable { .. } => 0,
                AuthRequest::Disable => 1,
                AuthRequest::Status => 2,
                AuthRequest::Authenticate { .. } => 3,
                AuthRequest::UseToken { .. } => 4,
                AuthRequest::UserAdd { .. } => 5,
                AuthRequest::UserGet { .. } => 6,
                AuthRequest::UserList => 7,
                AuthRequest::UserDelete { .. } => 8,
                AuthRequest::UserChangePassword { .. } => 9,
                AuthRequest::UserGrantRole { .. } => 10,
                AuthRequest::UserRevokeRole { .. } => 11,
                AuthRequest::RoleAdd { .. } => 12,
                AuthRequest::RoleGet { .. } => 13,
                AuthRequest::RoleList => 14,
                AuthRequest::RoleDelete { .. } => 15,
                AuthRequest::RoleGrantPermission { .. } => 16,
                AuthRequest::RoleRevokePermission { .. } => 17,
            }
        }
    }
}

/// How many kinds there are: one more than the last place above.
const KINDS: usize = 26 + 18;

#[test]
fn there_is_one_of_every_kind() {
    let places: Vec<usize> = every_request().iter().map(place).collect();
    assert_eq!(places, (0..KINDS).collect::<Vec<_>>());
    let mut methods: Vec<&str> = every_request().iter().map(Request::method).collect();
    methods.sort_unstable();
    methods.dedup();
    assert_eq!(methods.len(), KINDS, "each has a name of its own");
}
