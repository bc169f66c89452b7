//! What clients are told, literally as in etcd: they compare codes and texts. Beside each stands which request brings it;
//! what is decided here is shown, and what the port decides names where.

use super::convert::{RangePlan, grant_permission, member_add, put, txn_plan};
use super::errors::{
    DEADLINE, Method, NO_ELECTED, NO_LEADER_KEY, NOT_ELECTED, SESSION_EXPIRED, TEXTS,
    UNKNOWN_ACTION, status_of,
};
use super::proto;
use super::status::Status;
use crate::api::{Error, ErrorKind as Kind};

/// Which request brings a text.
enum Brought {
    /// One that is refused before it is made.
    Refused(fn() -> Status),
    /// One of this method, by a client that has a name, that failed so.
    Failed(Method, Kind),
    /// The same without a name.
    Nameless(Method, Kind),
    /// A write that may have been applied.
    InDoubt(Kind),
    /// What the port itself finds, and this is its text.
    Found(&'static str, Status),
    /// The same, of those whose texts begin as all of etcd's do.
    FoundBy(&'static str),
}

use Brought::{Failed, Found, FoundBy, InDoubt, Nameless, Refused};

/// Gives the rows their types.
macro_rules! table {
    ($($code:literal $text:literal: $brought:expr;)*) => {
        fn table() -> Vec<(i32, &'static str, Brought)> {
            vec![$(($code, $text, $brought)),*]
        }
    };
}

table! {
    3 "etcdserver: key is not provided": Refused(|| put(&proto::PutRequest::default()).unwrap_err());
    3 "etcdserver: key not found": Failed(Method::Put, Kind::KeyNotFound);
    3 "etcdserver: key not found": Refused(empty_operation);
    3 "etcdserver: value is provided": Refused(|| put(&ignoring(true, false)).unwrap_err());
    3 "etcdserver: lease is provided": Refused(|| put(&ignoring(false, true)).unwrap_err());
    3 "etcdserver: too many operations in txn request": Failed(Method::Txn, Kind::TxnTooLarge);
    3 "etcdserver: duplicate key given in txn request": Failed(Method::Txn, Kind::DuplicateKey);
    3 "etcdserver: invalid sort option": Refused(unknown_order);
    3 "etcdserver: request is too large": Failed(Method::Put, Kind::RequestTooLarge { limit: 1, actual: 2 });
    3 "etcdserver: given member URLs are invalid":
        Refused(|| member_add(&proto::MemberAddRequest::default()).unwrap_err());
    3 "etcdserver: user name is empty": Nameless(Method::Range, Kind::Unauthenticated);
    3 "etcdserver: role name is empty": FoundBy("RoleAdd without a name");
    3 "etcdserver: authentication failed, invalid user ID or password":
        Failed(Method::Authenticate, Kind::Unauthenticated);
    3 "etcdserver: permission not given":
        Refused(|| grant_permission(proto::AuthRoleGrantPermissionRequest::default()).unwrap_err());
    3 "etcdserver: invalid auth management": Failed(Method::Root, Kind::InvalidArgument);
    5 "etcdserver: requested lease not found": Failed(Method::Lease, Kind::LeaseNotFound);
    5 "etcdserver: member not found": Failed(Method::Member, Kind::MemberNotFound);
    7 "etcdserver: permission denied": Failed(Method::Range, Kind::PermissionDenied);
    8 "etcdserver: mvcc: database space exceeded": Failed(Method::Put, Kind::NoSpace { used: 1, quota: 1 });
    8 "etcdserver: too many requests": Failed(Method::Range, Kind::SlowDown { retry_after_ms: 1 });
    9 "etcdserver: lease already exists": Failed(Method::Lease, Kind::LeaseExists);
    9 "etcdserver: Peer URLs already exists": Failed(Method::Member, Kind::MemberExists);
    9 "etcdserver: re-configuration failed due to not enough started members":
        Failed(Method::Member, Kind::UnsafeReconfiguration);
    9 "etcdserver: can only promote a learner member": Failed(Method::MemberPromote, Kind::InvalidArgument);
    9 "etcdserver: can only promote a learner member which is in sync with leader":
        Failed(Method::MemberPromote, Kind::LearnerNotReady);
    9 "etcdserver: root user does not exist": Failed(Method::AuthEnable, Kind::UserNotFound);
    9 "etcdserver: root user does not have root role": Failed(Method::AuthEnable, Kind::RoleNotFound);
    9 "etcdserver: user name already exists": Failed(Method::Auth, Kind::UserExists);
    9 "etcdserver: user name not found": Failed(Method::Auth, Kind::UserNotFound);
    9 "etcdserver: role name already exists": Failed(Method::Auth, Kind::RoleExists);
    9 "etcdserver: role name not found": Failed(Method::Auth, Kind::RoleNotFound);
    9 "etcdserver: role is not granted to the user": Failed(Method::UserRevokeRole, Kind::RoleNotFound);
    9 "etcdserver: permission is not granted to the role":
        Failed(Method::RoleRevokePermission, Kind::InvalidArgument);
    9 "etcdserver: authentication is not enabled": FoundBy("Authenticate while access is open");
    9 "etcdserver: not leader": FoundBy("MoveLeader at a node that does not lead");
    9 "etcdserver: bad leader transferee": FoundBy("MoveLeader to a member that there is none of");
    9 "etcdserver: no inflight downgrade job": FoundBy("Downgrade, CANCEL");
    11 "etcdserver: mvcc: required revision has been compacted":
        Failed(Method::Range, Kind::Compacted { compact_revision: 3 });
    11 "etcdserver: mvcc: required revision is a future revision":
        Failed(Method::Range, Kind::FutureRevision);
    11 "etcdserver: too large lease TTL": Failed(Method::Lease, Kind::TtlOutOfRange { ttl_max_ms: 1 });
    14 "etcdserver: no leader": Failed(Method::Put, Kind::NoLeader);
    14 "etcdserver: leader changed": Failed(Method::Put, Kind::LeaderChanged);
    14 "etcdserver: server stopped": Failed(Method::Put, Kind::Unavailable);
    14 "etcdserver: request timed out": Failed(Method::Range, Kind::QuorumTimeout);
    14 "etcdserver: request timed out, possibly due to previous leader failure":
        InDoubt(Kind::LeaderChanged);
    14 "etcdserver: request timed out, possibly due to connection lost": InDoubt(Kind::ConnectionLost);
    15 "etcdserver: corrupt cluster": Failed(Method::Range, Kind::Corrupt);
    16 "etcdserver: invalid auth token": Failed(Method::Range, Kind::TokenExpired);
    4 "context deadline exceeded": Found("any call whose client's deadline passes", DEADLINE);
    2 "election: no leader": Found("Leader of an election without one", NO_ELECTED);
    2 "election: not leader": Found("Proclaim by who leads no more", NOT_ELECTED);
    2 "etcdserver: unknown method": Found("Downgrade with an action that there is none of", UNKNOWN_ACTION);
    2 "mutex: session is expired": Found("Lock whose lease ends meanwhile", SESSION_EXPIRED);
    2 "\"leader\" field must be provided": Found("Proclaim and Resign without a leader", NO_LEADER_KEY);
    // Beyond what clients compare.
    3 "etcdserver: invalid downgrade target version": FoundBy("Downgrade, all but CANCEL, to a version");
    3 "etcdserver: wrong downgrade target version format": FoundBy("Downgrade, all but CANCEL, to what is no version");
    3 "etcdserver: hashedPassword is not taken: send the password":
        FoundBy("UserAdd with a hashed password");
    9 "etcdserver: member ID already exist":
        FoundBy("MemberAdd of a name that is taken, at another address");
}

fn ignoring(ignore_value: bool, ignore_lease: bool) -> proto::PutRequest {
    proto::PutRequest {
        key: "k".into(),
        value: "v".into(),
        lease: 1,
        ignore_value,
        ignore_lease,
        ..proto::PutRequest::default()
    }
}

fn unknown_order() -> Status {
    let range = proto::RangeRequest {
        key: "k".into(),
        sort_order: 7,
        ..proto::RangeRequest::default()
    };
    RangePlan::of(&range).unwrap_err()
}

fn empty_operation() -> Status {
    let txn = proto::TxnRequest {
        success: vec![proto::RequestOp::default()],
        ..proto::TxnRequest::default()
    };
    txn_plan(&txn, 128).unwrap_err()
}

#[test]
fn codes_and_texts_are_etcd_s_and_each_has_its_request() {
    for (code, text, brought) in table() {
        let status = match brought {
            Refused(refuse) => refuse(),
            Failed(method, kind) => status_of(&Error::not_applied(kind, "found"), method, true),
            Nameless(method, kind) => status_of(&Error::not_applied(kind, "found"), method, false),
            InDoubt(kind) => status_of(&Error::unknown(kind, "found"), Method::Put, true),
            Found(request, status) => {
                assert!(!request.is_empty(), "{text}");
                status
            }
            FoundBy(request) => {
                let told = TEXTS.iter().find(|(_, status)| status.message == text);
                let (_, told) = told.unwrap_or_else(|| panic!("{request}: {text}"));
                (*told).clone()
            }
        };
        assert_eq!((status.code as i32, &*status.message), (code, text));
    }
}

#[test]
fn no_text_is_told_that_the_table_lacks() {
    let table = table();
    for (name, status) in TEXTS {
        let row = table.iter().find(|(_, text, _)| *text == status.message);
        assert!(row.is_some(), "{name}: {status:?}");
    }
}
