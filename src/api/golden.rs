//! The bytes of every request, reply and error, for ever: variants are only appended.

use bytes::Bytes;
use serde::Serialize;

use super::*;
use crate::types::{Incarnation, NodeId, SessionId};

fn hex<T: Serialize>(value: &T) -> String {
    let bytes = postcard::to_stdvec(value).unwrap();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// Compares all at once, so that one run shows everything that has changed.
fn check<T: Serialize>(golden: &[(T, &str)]) {
    let found: Vec<String> = golden.iter().map(|(value, _)| hex(value)).collect();
    let expected: Vec<String> = golden.iter().map(|(_, hex)| hex.replace(' ', "")).collect();
    assert_eq!(found, expected);
}

fn key_value() -> KeyValue {
    KeyValue {
        key: text("k"),
        value: text("v"),
        create_revision: 1,
        mod_revision: 2,
        version: 3,
        lease: 4,
    }
}

#[test]
fn the_bytes_of_every_request_are_pinned() {
    let range = RangeRequest {
        key: text("k"),
        range: KeyRange::Until(text("m")),
        limit: 7,
        keys_only: true,
        count: RangeCount::All,
        revision: 10,
        sort_target: SortTarget::Value,
        sort_order: SortOrder::Descend,
        min_mod_revision: 1,
        max_mod_revision: 2,
        min_create_revision: 3,
        max_create_revision: 4,
    };
    let counting = |count| {
        let key = text("k");
        Request::Range(RangeRequest {
            key,
            count,
            ..RangeRequest::default()
        })
    };
    let put = PutRequest {
        key: text("k"),
        value: text("v"),
        prev_kv: true,
        ignore_value: false,
        ignore_lease: true,
        lease: LeaseTarget::Name("n".into()),
    };
    let delete = DeleteRangeRequest {
        key: text("k"),
        range: KeyRange::From,
        prev_kv: true,
    };
    let compare = |range, op, target| Compare {
        key: text("k"),
        range,
        op,
        target,
    };
    let txn = TxnRequest {
        compare: vec![
            compare(
                KeyRange::Single,
                CompareOp::Equal,
                CompareTarget::Version(1),
            ),
            compare(
                KeyRange::Single,
                CompareOp::Greater,
                CompareTarget::CreateRevision(2),
            ),
            compare(
                KeyRange::Prefix,
                CompareOp::Less,
                CompareTarget::ModRevision(3),
            ),
            compare(
                KeyRange::Until(text("m")),
                CompareOp::NotEqual,
                CompareTarget::Value(text("v")),
            ),
            compare(KeyRange::From, CompareOp::Equal, CompareTarget::Lease(4)),
        ],
        success: vec![TxnOp::put("k", "v"), TxnOp::delete("k")],
        failure: vec![TxnOp::get("k"), TxnOp::txn(TxnRequest::new())],
    };
    let lease = LeaseRef {
        id: 2,
        grant_index: 3,
    };
    let grant = LeaseGrantRequest {
        id: 2,
        ttl_ms: 1_500,
        name: "n".into(),
        owner: "o".into(),
        granted_at_ms: 5,
    };
    check(&[
        (
            Request::Range(range),
            "00 016b 02016d 07 01 00 14 04 02 02 04 06 08",
        ),
        (
            counting(RangeCount::Only),
            "00 016b 00 00 00 01 00 00 00 00 00 00 00",
        ),
        (
            counting(RangeCount::ToLimit),
            "00 016b 00 00 00 02 00 00 00 00 00 00 00",
        ),
        (Request::Put(put), "01 016b 0176 01 00 01 02016e"),
        (Request::DeleteRange(delete), "02 016b 03 01"),
        (Request::OpenSession, "03"),
        (Request::Status, "04"),
        (
            Request::MoveLeader {
                target: Some(NodeId(3)),
            },
            "05 0103",
        ),
        (Request::Compact(CompactionRequest::at(5)), "06 0a 00"),
        (Request::LeaderLeaseReport, "07"),
        (Request::ForwardToLeader { leader: NodeId(3) }, "1d 03"),
        (Request::LeaseNamed { name: "n".into() }, "1e 01 6e"),
        (
            Request::RangePage(RangeRequest::default()),
            "10 00 00 00 00 00 00 00 00 00 00 00 00",
        ),
        (
            Request::Txn(txn),
            "08 05 016b 00 00 00 02 016b 00 01 01 04 016b 01 02 02 06 016b 02016d 03 03 0176 \
             016b 03 00 04 08 02 01 016b 0176 00 00 00 00 02 016b 00 00 02 00 016b 00 00 00 00 00 00 \
             00 00 00 00 00 03 00 00 00",
        ),
        (
            Request::LeaseGrant(grant.clone()),
            "09 04 b817 016e 016f 0a",
        ),
        (Request::LeaseRevoke(LeaseRef::id(2)), "0a 04 00"),
        (
            Request::LeaseKeepAlive(vec![LeaseRef::id(2), lease]),
            "0b 02 04 00 04 03",
        ),
        (Request::LeaseTimeToLive { id: 2, keys: true }, "0c 04 01"),
        (
            Request::LeaseList(LeaseListRequest {
                after: 2,
                limit: 3,
                owner: "o".into(),
                name_prefix: "n".into(),
            }),
            "0d 04 03 016f 016e",
        ),
        (Request::LeaseUpdateTtl { lease, ttl_ms: 5 }, "0e 04 03 0a"),
        (
            Request::PutWithNewLease(grant, PutRequest::default()),
            "0f 04 b817 016e 016f 0a 00 00 00 00 00 00",
        ),
    ]);
}

#[test]
fn the_bytes_of_every_reply_are_pinned() {
    let range = RangeResponse {
        kvs: vec![key_value()],
        more: true,
        count: 9,
    };
    let put = PutResponse {
        prev_kv: Some(key_value()),
    };
    let delete = DeleteRangeResponse {
        deleted: 2,
        prev_kvs: vec![key_value()],
    };
    let status = Box::new(StatusResponse::default());
    let txn = TxnResponse {
        succeeded: true,
        responses: vec![
            TxnOpResponse::Range(RangeResponse::default()),
            TxnOpResponse::Put(PutResponse::default()),
            TxnOpResponse::DeleteRange(DeleteRangeResponse {
                deleted: 3,
                prev_kvs: vec![],
            }),
            TxnOpResponse::Txn(TxnResponse::default()),
        ],
    };
    check(&[
        (ResponseBody::Range(range), "00 01 016b 0176 02040608 01 09"),
        (ResponseBody::Put(put), "01 01 016b 0176 02040608"),
        (
            ResponseBody::DeleteRange(delete),
            "02 02 01 016b 0176 02040608",
        ),
        (ResponseBody::OpenSession { id: SessionId(6) }, "03 06"),
        (
            ResponseBody::Status(status),
            "04 00 00 00 00 00 00 00 00 0000 0000 0000 000000 00 00 00 00 00 00 0000000000 00",
        ),
        (ResponseBody::MoveLeader, "05"),
        (ResponseBody::Compact, "06"),
        (
            ResponseBody::Txn(txn),
            "08 01 04 00 00 00 00 01 00 02 03 00 03 00 00",
        ),
        (
            ResponseBody::LeaseNamed(LeaseRef {
                id: 2,
                grant_index: 3,
            }),
            "19 04 03",
        ),
    ]);
}

#[test]
fn the_bytes_of_every_error_are_pinned() {
    let not_leader = ErrorKind::NotLeader {
        leader: None,
        address: None,
    };
    let too_large = ErrorKind::RequestTooLarge {
        limit: 1,
        actual: 2,
    };
    check(&[
        (ErrorKind::InvalidArgument, "00"),
        (too_large, "01 01 02"),
        (not_leader, "02 00 00"),
        (ErrorKind::NoLeader, "03"),
        (ErrorKind::LeaderChanged, "04"),
        (ErrorKind::LeaseInvalid, "05"),
        (ErrorKind::QuorumTimeout, "06"),
        (ErrorKind::DeadlineExceeded, "07"),
        (ErrorKind::SlowDown { retry_after_ms: 5 }, "08 05"),
        (ErrorKind::SessionExpired, "09"),
        (ErrorKind::StaleSequence, "0a"),
        (ErrorKind::NoSpace { used: 9, quota: 8 }, "0b 09 08"),
        (ErrorKind::Corrupt, "0c"),
        (ErrorKind::Unavailable, "0d"),
        (ErrorKind::ClusterMismatch, "0e"),
        (ErrorKind::TlsHandshake, "0f"),
        (ErrorKind::ConnectionLost, "10"),
        (ErrorKind::ConnectFailed, "11"),
        (ErrorKind::Unsupported, "12"),
        (ErrorKind::Internal, "13"),
        (ErrorKind::ReplyNotKept, "14"),
        (
            ErrorKind::Compacted {
                compact_revision: 3,
            },
            "15 06",
        ),
        (ErrorKind::FutureRevision, "16"),
        (ErrorKind::KeyNotFound, "17"),
        (ErrorKind::TxnTooLarge, "18"),
        (ErrorKind::DuplicateKey, "19"),
        (ErrorKind::LeaseNotFound, "1a"),
        (ErrorKind::LeaseExists, "1b"),
        (ErrorKind::LeaseExpired, "1c"),
        (ErrorKind::TtlOutOfRange { ttl_max_ms: 1 }, "1d01"),
        (ErrorKind::LeaseLimit { limit: 2 }, "1e02"),
        (
            ErrorKind::ResponseTooLarge {
                limit: 1,
                actual: 2,
            },
            "1f0102",
        ),
        (ErrorKind::SlowWatcher, "20"),
        (ErrorKind::WatchNotFound, "21"),
        (ErrorKind::WatchExists, "22"),
        (ErrorKind::Fenced { current: 1 }, "2302"),
        (ErrorKind::SnapshotGone, "24"),
        (ErrorKind::MemberExists, "25"),
        (ErrorKind::MemberNotFound, "26"),
        (ErrorKind::UnsafeReconfiguration, "27"),
        (ErrorKind::LearnerNotReady, "28"),
        (ErrorKind::Unauthenticated, "29"),
        (ErrorKind::TokenExpired, "2a"),
        (ErrorKind::PermissionDenied, "2b"),
        (ErrorKind::UserNotFound, "2c"),
        (ErrorKind::UserExists, "2d"),
        (ErrorKind::RoleNotFound, "2e"),
        (ErrorKind::RoleExists, "2f"),
        (ErrorKind::Conflict { attempts: 5 }, "3005"),
        (ErrorKind::TooOld { age_ms: 300 }, "31 ac02"),
        (ErrorKind::QuotaExceeded { limit: 2 }, "32 02"),
    ]);
    check(&[
        (Outcome::NotApplied, "00"),
        (Outcome::Applied, "01"),
        (Outcome::Unknown, "02"),
    ]);
}

#[test]
fn the_bytes_of_snapshots_are_pinned() {
    let chunk = SnapshotCall::Chunk { id: 300, number: 2 };
    check(&[
        (Request::Snapshot(SnapshotCall::Begin), "14 00"),
        (Request::Snapshot(chunk), "14 01 ac02 02"),
        (
            Request::Snapshot(SnapshotCall::End { id: 300 }),
            "14 02 ac02",
        ),
    ]);
    let reply = SnapshotReply {
        id: 300,
        chunk: text("c"),
    };
    check(&[(ResponseBody::Snapshot(reply), "14 ac02 0163")]);
}

#[test]
fn the_bytes_of_members_are_pinned() {
    let add = MemberAddRequest {
        name: "n4".into(),
        peer_address: "a:1".into(),
        client_address: String::new(),
        learner: true,
        replaces: Some(NodeId(9)),
    };
    let update = MemberUpdateRequest {
        id: NodeId(9),
        peer_address: Some("a:2".into()),
        client_address: None,
    };
    check(&[
        (Request::MemberList, "15"),
        (Request::MemberAdd(add), "16 026e34 03613a31 00 01 01 09"),
        (Request::MemberRemove { id: NodeId(9) }, "17 09"),
        (Request::MemberPromote { id: NodeId(9) }, "18 09"),
        (Request::MemberUpdate(update), "19 09 01 03613a32 00"),
    ]);
    let member = |membership| Member {
        info: MemberInfo {
            id: NodeId(9),
            name: "n4".into(),
            peer_address: "a:1".into(),
            client_address: String::new(),
        },
        incarnation: Incarnation(5),
        membership,
    };
    let joining = Membership::Joining {
        replaces: Some(NodeId(8)),
    };
    let members = MembersResponse {
        members: vec![
            member(Membership::Voter),
            member(Membership::Learner),
            member(joining),
            member(Membership::Leaving),
        ],
        changed: Some(NodeId(9)),
        settled: true,
    };
    let one = "09 026e34 03613a31 00 05";
    check(&[(
        ResponseBody::Members(Box::new(members)),
        &format!("15 04 {one} 00 {one} 01 {one} 02 01 08 {one} 03 01 09 01"),
    )]);
    let details = MemberDetails {
        name: "n4".into(),
        incarnation: Incarnation(300),
        peer_address: "a:1".into(),
        client_address: "b:2".into(),
    };
    check(&[(details, "026e34 ac02 03613a31 03623a32")]);
}

#[test]
fn the_bytes_of_watches_and_events_are_pinned() {
    let request = WatchRequest {
        key: text("k"),
        range: KeyRange::Prefix,
        start_revision: 5,
        initial_state: false,
        prev_kv: true,
        no_put: false,
        no_delete: true,
        progress_notify: true,
    };
    check(&[
        (
            Request::Watch {
                watch_id: 300,
                watch: request,
            },
            "11 ac02 016b 01 0a 00 01 00 01 01",
        ),
        (Request::WatchCancel { watch_id: 300 }, "12 ac02"),
        (Request::WatchProgress { watch_id: 1 }, "13 01"),
    ]);
    check(&[
        (ResponseBody::Watch, "11"),
        (ResponseBody::WatchCancel, "12"),
        (ResponseBody::WatchProgress, "13"),
    ]);
    let put = Event {
        kind: EventKind::Put,
        kv: key_value(),
        prev_kv: Some(key_value()),
    };
    let delete = Event {
        kind: EventKind::Delete,
        kv: KeyValue {
            key: text("k"),
            mod_revision: 3,
            ..KeyValue::default()
        },
        prev_kv: None,
    };
    let pinned_put = "00 016b 0176 02040608 01 016b 0176 02040608";
    check(&[
        (put.clone(), pinned_put),
        (delete, "01 016b 00 00060000 00"),
    ]);
    let canceled = WatchMessage::Canceled {
        error: Error::not_applied(ErrorKind::SlowWatcher, "no"),
        resume_revision: Some(7),
    };
    check(&[
        (
            WatchMessage::Created {
                watch_id: 300,
                revision: 5,
            },
            "00 ac02 0a",
        ),
        (
            WatchMessage::State {
                kvs: vec![key_value()],
            },
            "01 01 016b 0176 02040608",
        ),
        (WatchMessage::Synced { revision: 5 }, "02 0a"),
        (
            WatchMessage::Events {
                revision: 5,
                is_partial: true,
                events: vec![put],
            },
            &format!("03 0a 01 01 {pinned_put}"),
        ),
        (WatchMessage::Progress { revision: 5 }, "04 0a"),
        (canceled, "05 20 00 026e6f 01 0e"),
    ]);
}

#[test]
fn the_bytes_of_alarms_are_pinned() {
    let set = Request::AlarmSet {
        member: NodeId(300),
        is_raised: true,
    };
    check(&[(Request::AlarmList, "1b"), (set, "1c ac02 01")]);
    let alarms = AlarmsResponse {
        measured: true,
        members: vec![NodeId(0), NodeId(9)],
    };
    check(&[(ResponseBody::Alarms(alarms), "17 01 02 00 09")]);
}

#[test]
fn the_bytes_of_users_and_roles_are_pinned() {
    let pinned = [
        "1a 00 036b6579",
        "1a 01",
        "1a 02",
        "1a 03 056f74686572 0178",
        "1a 04 0178",
        "1a 05 056f74686572 02 0178",
        "1a 06 056f74686572",
        "1a 07",
        "1a 08 056f74686572",
        "1a 09 056f74686572 02 0178",
        "1a 0a 056f74686572 067468656972 73",
        "1a 0b 056f74686572 067468656972 73",
        "1a 0c 067468656972 73",
        "1a 0d 067468656972 73",
        "1a 0e",
        "1a 0f 067468656972 73",
        "1a 10 067468656972 73 00 016b 01",
        "1a 11 067468656972 73 016b 01",
    ];
    for (request, golden) in fixtures::every_auth_request().into_iter().zip(pinned) {
        check(&[(Request::Auth(request), golden)]);
    }
    check(&[
        (Password::None, "00"),
        (Password::Plain(Secret::new("x")), "01 0178"),
    ]);
    let kinds = [
        (PermissionKind::Read, "00"),
        (PermissionKind::Write, "01"),
        (PermissionKind::ReadWrite, "02"),
    ];
    check(&kinds);
    let answers = [
        (AuthResponse::Done, "16 00"),
        (
            AuthResponse::Status(AuthStatus {
                enabled: true,
                revision: 300,
            }),
            "16 01 01 ac02",
        ),
        (
            AuthResponse::Token {
                token: Secret::new("x"),
                ttl_ms: 300,
            },
            "16 02 0178 ac02",
        ),
        (AuthResponse::NotEnabled, "16 03"),
        (
            AuthResponse::User(UserInfo {
                name: "a".into(),
                roles: vec!["r".into()],
                has_password: true,
            }),
            "16 04 0161 01 0172 01",
        ),
        (AuthResponse::Users(vec!["a".into()]), "16 05 01 0161"),
        (
            AuthResponse::Role(RoleInfo {
                name: "r".into(),
                permissions: Vec::new(),
            }),
            "16 06 0172 00",
        ),
        (AuthResponse::Roles(vec!["r".into()]), "16 07 01 0172"),
    ];
    for (answer, golden) in answers {
        check(&[(ResponseBody::Auth(answer), golden)]);
    }
}
