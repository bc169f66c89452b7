//! One request of every kind, for tests that must leave none out.

use bytes::Bytes;

use super::*;
use crate::types::NodeId;

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
        Request::AlarmList,
        Request::AlarmSet {
            member: NodeId(7),
            is_raised: true,
        },
        Request::ForwardToLeader { leader: NodeId(7) },
        Request::LeaseNamed { name: "n".into() },
    ];
    all.extend(every_auth_request().into_iter().map(Request::Auth));
    all
}

/// One of each kind of error, with nothing in its fields.
pub(crate) fn every_error_kind() -> impl Iterator<Item = ErrorKind> {
    (0..0x80_u8).map_while(|number| postcard::from_bytes(&[number, 0, 0, 0, 0]).ok())
}

/// One of each request about users and roles; none concerns the requesting user.
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
