//! What etcd calls what went wrong: a code and a text, which clients compare.
//!
//! One [`ErrorKind`] stands for several texts, so the request is asked as well. What may have taken
//! effect never gets a code that says otherwise: it is *unavailable*, with a text of a timeout.

use std::borrow::Cow;

use super::status::{Code, Status};
use crate::api::{Error, ErrorKind, Outcome};

/// The request that failed, as far as texts depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Range.
    Range,
    /// Put.
    Put,
    /// DeleteRange.
    Delete,
    /// Txn.
    Txn,
    /// Compact.
    Compact,
    /// About leases.
    Lease,
    /// About the node.
    Node,
    /// About users and roles.
    Auth,
    /// AuthEnable.
    AuthEnable,
    /// Authenticate.
    Authenticate,
    /// UserRevokeRole.
    UserRevokeRole,
    /// RoleRevokePermission.
    RoleRevokePermission,
    /// A change of the user or the role root.
    Root,
    /// About members.
    Member,
    /// MemberPromote.
    MemberPromote,
}

macro_rules! texts {
    ($($name:ident = $code:ident, $text:literal;)*) => {
        $(
            #[doc = $text]
            pub(crate) const $name: Status =
                Status::new(Code::$code, concat!("etcdserver: ", $text));
        )*
        #[cfg(test)]
        pub(super) const TEXTS: &[(&str, &Status)] = &[$((stringify!($name), &$name)),*];
    };
}

texts! {
    EMPTY_KEY = InvalidArgument, "key is not provided";
    KEY_NOT_FOUND = InvalidArgument, "key not found";
    VALUE_PROVIDED = InvalidArgument, "value is provided";
    LEASE_PROVIDED = InvalidArgument, "lease is provided";
    TOO_MANY_OPS = InvalidArgument, "too many operations in txn request";
    DUPLICATE_KEY = InvalidArgument, "duplicate key given in txn request";
    INVALID_SORT_OPTION = InvalidArgument, "invalid sort option";
    REQUEST_TOO_LARGE = InvalidArgument, "request is too large";
    INVALID_DOWNGRADE = InvalidArgument, "invalid downgrade target version";
    DOWNGRADE_FORMAT = InvalidArgument, "wrong downgrade target version format";
    BAD_MEMBER_URLS = InvalidArgument, "given member URLs are invalid";
    USER_EMPTY = InvalidArgument, "user name is empty";
    ROLE_EMPTY = InvalidArgument, "role name is empty";
    AUTH_FAILED = InvalidArgument, "authentication failed, invalid user ID or password";
    PERMISSION_NOT_GIVEN = InvalidArgument, "permission not given";
    INVALID_AUTH_MANAGEMENT = InvalidArgument, "invalid auth management";
    // Not etcd's, which overwrites it.
    HASHED_PASSWORD = InvalidArgument, "hashedPassword is not taken: send the password";
    LEASE_NOT_FOUND = NotFound, "requested lease not found";
    MEMBER_NOT_FOUND = NotFound, "member not found";
    PERMISSION_DENIED = PermissionDenied, "permission denied";
    NO_SPACE = ResourceExhausted, "mvcc: database space exceeded";
    TOO_MANY_REQUESTS = ResourceExhausted, "too many requests";
    LEASE_EXISTS = FailedPrecondition, "lease already exists";
    MEMBER_EXISTS = FailedPrecondition, "member ID already exist";
    PEER_URL_EXISTS = FailedPrecondition, "Peer URLs already exists";
    NOT_ENOUGH_MEMBERS = FailedPrecondition,
        "re-configuration failed due to not enough started members";
    NO_LEARNER = FailedPrecondition, "can only promote a learner member";
    LEARNER_NOT_READY = FailedPrecondition,
        "can only promote a learner member which is in sync with leader";
    ROOT_USER_MISSING = FailedPrecondition, "root user does not exist";
    ROOT_ROLE_MISSING = FailedPrecondition, "root user does not have root role";
    USER_EXISTS = FailedPrecondition, "user name already exists";
    USER_NOT_FOUND = FailedPrecondition, "user name not found";
    ROLE_EXISTS = FailedPrecondition, "role name already exists";
    ROLE_NOT_FOUND = FailedPrecondition, "role name not found";
    ROLE_NOT_GRANTED = FailedPrecondition, "role is not granted to the user";
    PERMISSION_NOT_GRANTED = FailedPrecondition, "permission is not granted to the role";
    AUTH_NOT_ENABLED = FailedPrecondition, "authentication is not enabled";
    NOT_LEADER = FailedPrecondition, "not leader";
    BAD_TRANSFEREE = FailedPrecondition, "bad leader transferee";
    NO_DOWNGRADE = FailedPrecondition, "no inflight downgrade job";
    COMPACTED = OutOfRange, "mvcc: required revision has been compacted";
    FUTURE_REVISION = OutOfRange, "mvcc: required revision is a future revision";
    TTL_TOO_LARGE = OutOfRange, "too large lease TTL";
    NO_LEADER = Unavailable, "no leader";
    LEADER_CHANGED = Unavailable, "leader changed";
    STOPPED = Unavailable, "server stopped";
    TIMEOUT = Unavailable, "request timed out";
    TIMEOUT_LEADER_LOST = Unavailable,
        "request timed out, possibly due to previous leader failure";
    TIMEOUT_CONNECTION_LOST = Unavailable, "request timed out, possibly due to connection lost";
    CORRUPT = DataLoss, "corrupt cluster";
    INVALID_AUTH_TOKEN = Unauthenticated, "invalid auth token";
}

/// The lease of a lock ended before the lock was had.
pub(crate) const SESSION_EXPIRED: Status = Status::new(Code::Unknown, "mutex: session is expired");
/// An election has no leader.
pub(crate) const NO_ELECTED: Status = Status::new(Code::Unknown, "election: no leader");
/// The client does not lead, or no more.
pub(crate) const NOT_ELECTED: Status = Status::new(Code::Unknown, "election: not leader");
/// A request of a leader does not say what the leader holds.
pub(crate) const NO_LEADER_KEY: Status =
    Status::new(Code::Unknown, "\"leader\" field must be provided");

/// What a lock or an election is refused with. In etcd these are clients of the server, and what that refuses them with
/// has lost its code when they hand it on. What passes by itself keeps it here, so that clients try again.
pub(crate) fn of_recipe(status: Status) -> Status {
    let status = without_room(status);
    match status.code {
        Code::Unavailable | Code::DeadlineExceeded => status,
        _ => Status {
            code: Code::Unknown,
            ..status
        },
    }
}

/// A node has room again by and by.
fn without_room(status: Status) -> Status {
    match status == TOO_MANY_REQUESTS {
        true => Status {
            code: Code::Unavailable,
            ..status
        },
        false => status,
    }
}

/// How an Observe ends whose reads are refused with this. etcd says nothing of a client that may not read, or has shown
/// no valid token: that ends as if all was told.
pub(crate) fn of_observer(status: Status) -> Result<(), Status> {
    match status.code {
        Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated => Ok(()),
        _ => Err(without_room(status)),
    }
}

/// A downgrade of which it is not known what to do.
pub(crate) const UNKNOWN_ACTION: Status = Status::new(Code::Unknown, "etcdserver: unknown method");

/// Why a watch is cancelled as soon as it is created: its range ends before it begins.
pub(crate) const EMPTY_WATCH: &str = "mvcc: watcher range is empty";
/// It has the number of another one.
pub(crate) const DUPLICATE_WATCH: &str = "mvcc: duplicate watch ID provided on the WatchStream";
/// It begins below zero.
pub(crate) const COMPACTED_REASON: &str = "mvcc: required revision has been compacted";

/// The client's own deadline passed.
pub(crate) const DEADLINE: Status =
    Status::new(Code::DeadlineExceeded, "context deadline exceeded");

/// The code and text for `error`, with which a request of `method` failed. `has_name`: the client has
/// shown who it is.
pub(crate) fn status_of(error: &Error, method: Method, has_name: bool) -> Status {
    if error.outcome != Outcome::NotApplied {
        return in_doubt(&error.kind);
    }
    match &error.kind {
        ErrorKind::RequestTooLarge { .. } => REQUEST_TOO_LARGE,
        // What a write would return is too much, and it was not applied; of a read, ask for less.
        ErrorKind::ResponseTooLarge { .. } if method == Method::Range => reply_too_large(error),
        ErrorKind::ResponseTooLarge { .. } => REQUEST_TOO_LARGE,
        ErrorKind::KeyNotFound => KEY_NOT_FOUND,
        ErrorKind::TxnTooLarge => TOO_MANY_OPS,
        ErrorKind::DuplicateKey => DUPLICATE_KEY,
        ErrorKind::LeaseNotFound | ErrorKind::LeaseExpired => LEASE_NOT_FOUND,
        ErrorKind::LeaseExists => LEASE_EXISTS,
        ErrorKind::TtlOutOfRange { .. } => TTL_TOO_LARGE,
        ErrorKind::Compacted { .. } => COMPACTED,
        ErrorKind::FutureRevision => FUTURE_REVISION,
        ErrorKind::NoSpace { .. } => NO_SPACE,
        ErrorKind::SlowDown { .. } => TOO_MANY_REQUESTS,
        ErrorKind::PermissionDenied => PERMISSION_DENIED,
        ErrorKind::Unauthenticated if method == Method::Authenticate => AUTH_FAILED,
        ErrorKind::Unauthenticated if !has_name => USER_EMPTY,
        // A name that no user has may do nothing.
        ErrorKind::Unauthenticated if method != Method::Node => PERMISSION_DENIED,
        ErrorKind::Unauthenticated | ErrorKind::TokenExpired => INVALID_AUTH_TOKEN,
        ErrorKind::Corrupt => CORRUPT,
        ErrorKind::NoLeader | ErrorKind::NotLeader { .. } => NO_LEADER,
        ErrorKind::LeaderChanged => LEADER_CHANGED,
        ErrorKind::Unavailable => STOPPED,
        ErrorKind::LeaseInvalid
        | ErrorKind::QuorumTimeout
        | ErrorKind::DeadlineExceeded
        | ErrorKind::ConnectionLost => TIMEOUT,
        ErrorKind::UserNotFound
        | ErrorKind::UserExists
        | ErrorKind::RoleNotFound
        | ErrorKind::RoleExists => name_status(&error.kind, method),
        ErrorKind::MemberExists => PEER_URL_EXISTS,
        ErrorKind::MemberNotFound => MEMBER_NOT_FOUND,
        ErrorKind::UnsafeReconfiguration => NOT_ENOUGH_MEMBERS,
        ErrorKind::LearnerNotReady => LEARNER_NOT_READY,
        ErrorKind::InvalidArgument => invalid(error, method),
        // etcd knows no quotas of users, and no limits of leases and their keys.
        ErrorKind::QuotaExceeded { .. } | ErrorKind::LeaseLimit { .. } => {
            with_detail(Code::ResourceExhausted, error)
        }
        ErrorKind::Unsupported => with_detail(Code::Unimplemented, error),
        _ => with_detail(Code::Unknown, error),
    }
}

/// For names of users and roles.
fn name_status(kind: &ErrorKind, method: Method) -> Status {
    match (kind, method) {
        (ErrorKind::UserNotFound, Method::AuthEnable) => ROOT_USER_MISSING,
        (ErrorKind::UserNotFound, _) => USER_NOT_FOUND,
        (ErrorKind::UserExists, _) => USER_EXISTS,
        (ErrorKind::RoleNotFound, Method::AuthEnable) => ROOT_ROLE_MISSING,
        (ErrorKind::RoleNotFound, Method::UserRevokeRole) => ROLE_NOT_GRANTED,
        (ErrorKind::RoleExists, _) => ROLE_EXISTS,
        _ => ROLE_NOT_FOUND,
    }
}

/// For what the request itself makes impossible. Before it is made, the door has refused what etcd
/// refuses.
fn invalid(error: &Error, method: Method) -> Status {
    match method {
        Method::RoleRevokePermission => PERMISSION_NOT_GRANTED,
        Method::Root => INVALID_AUTH_MANAGEMENT,
        Method::Member => BAD_MEMBER_URLS,
        Method::MemberPromote => NO_LEARNER,
        _ => with_detail(Code::InvalidArgument, error),
    }
}

/// For a request that may have taken effect.
fn in_doubt(kind: &ErrorKind) -> Status {
    match kind {
        ErrorKind::LeaderChanged | ErrorKind::NoLeader => TIMEOUT_LEADER_LOST,
        ErrorKind::ConnectionLost => TIMEOUT_CONNECTION_LOST,
        _ => TIMEOUT,
    }
}

fn reply_too_large(error: &Error) -> Status {
    with_detail(Code::ResourceExhausted, error)
}

/// Where etcd has no text, ours says what to do.
fn with_detail(code: Code, error: &Error) -> Status {
    Status {
        code,
        message: Cow::Owned(format!("etcdserver: {}", error.detail)),
    }
}

/// What asks for no more time than this passes by itself: a leader that hands leadership over, or whose log
/// is being written. A node that is overloaded asks for more, and then clients are told.
const MOMENT_MS: u32 = 20;

/// Whether a request that failed so was certainly not applied, and may succeed later or elsewhere: as
/// etcd does, the door waits instead of telling the client.
pub(crate) fn is_worth_waiting(error: &Error) -> bool {
    let passes = match error.kind {
        ErrorKind::NoLeader
        | ErrorKind::NotLeader { .. }
        | ErrorKind::LeaderChanged
        | ErrorKind::QuorumTimeout => true,
        ErrorKind::SlowDown { retry_after_ms } => retry_after_ms <= MOMENT_MS,
        _ => false,
    };
    passes && error.outcome == Outcome::NotApplied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_begins_as_etcd_s_do_and_stands_once() {
        for (at, (name, status)) in TEXTS.iter().enumerate() {
            assert!(status.message.starts_with("etcdserver: "), "{name}");
            let others = TEXTS[at + 1..].iter();
            assert!(others.clone().all(|(_, other)| other != status), "{name}");
        }
    }

    #[test]
    fn a_kind_and_its_request_have_one_code_and_text() {
        let table: &[(ErrorKind, Method, bool, Status)] = &[
            (ErrorKind::KeyNotFound, Method::Put, true, KEY_NOT_FOUND),
            (ErrorKind::TxnTooLarge, Method::Txn, true, TOO_MANY_OPS),
            (ErrorKind::DuplicateKey, Method::Txn, true, DUPLICATE_KEY),
            (ErrorKind::LeaseNotFound, Method::Put, true, LEASE_NOT_FOUND),
            (ErrorKind::LeaseExpired, Method::Txn, true, LEASE_NOT_FOUND),
            (ErrorKind::LeaseExists, Method::Put, true, LEASE_EXISTS),
            (
                ErrorKind::TtlOutOfRange { ttl_max_ms: 1 },
                Method::Put,
                true,
                TTL_TOO_LARGE,
            ),
            (
                ErrorKind::Compacted {
                    compact_revision: 3,
                },
                Method::Range,
                true,
                COMPACTED,
            ),
            (
                ErrorKind::FutureRevision,
                Method::Compact,
                true,
                FUTURE_REVISION,
            ),
            (
                ErrorKind::NoSpace { used: 1, quota: 1 },
                Method::Put,
                true,
                NO_SPACE,
            ),
            (
                ErrorKind::SlowDown { retry_after_ms: 1 },
                Method::Range,
                true,
                TOO_MANY_REQUESTS,
            ),
            (
                ErrorKind::RequestTooLarge {
                    limit: 1,
                    actual: 2,
                },
                Method::Put,
                true,
                REQUEST_TOO_LARGE,
            ),
            (
                ErrorKind::ResponseTooLarge {
                    limit: 1,
                    actual: 2,
                },
                Method::Txn,
                true,
                REQUEST_TOO_LARGE,
            ),
            (
                ErrorKind::ResponseTooLarge {
                    limit: 1,
                    actual: 2,
                },
                Method::Delete,
                true,
                REQUEST_TOO_LARGE,
            ),
            (
                ErrorKind::ResponseTooLarge {
                    limit: 1,
                    actual: 2,
                },
                Method::Range,
                true,
                Status::new(Code::ResourceExhausted, "etcdserver: found"),
            ),
            (
                ErrorKind::PermissionDenied,
                Method::Range,
                true,
                PERMISSION_DENIED,
            ),
            (ErrorKind::Unauthenticated, Method::Range, false, USER_EMPTY),
            (
                ErrorKind::Unauthenticated,
                Method::Range,
                true,
                PERMISSION_DENIED,
            ),
            (
                ErrorKind::Unauthenticated,
                Method::Node,
                true,
                INVALID_AUTH_TOKEN,
            ),
            (
                ErrorKind::TokenExpired,
                Method::Put,
                true,
                INVALID_AUTH_TOKEN,
            ),
            (ErrorKind::Corrupt, Method::Range, true, CORRUPT),
            (ErrorKind::NoLeader, Method::Put, true, NO_LEADER),
            (ErrorKind::LeaderChanged, Method::Put, true, LEADER_CHANGED),
            (ErrorKind::Unavailable, Method::Range, true, STOPPED),
            (ErrorKind::QuorumTimeout, Method::Range, true, TIMEOUT),
            (ErrorKind::DeadlineExceeded, Method::Range, true, TIMEOUT),
            (ErrorKind::LeaseInvalid, Method::Range, true, TIMEOUT),
            (
                ErrorKind::InvalidArgument,
                Method::Put,
                true,
                Status::new(Code::InvalidArgument, "etcdserver: found"),
            ),
            (
                ErrorKind::Unsupported,
                Method::Node,
                true,
                Status::new(Code::Unimplemented, "etcdserver: found"),
            ),
            (
                ErrorKind::Internal,
                Method::Put,
                true,
                Status::new(Code::Unknown, "etcdserver: found"),
            ),
        ];
        for (kind, method, has_name, expected) in table {
            let error = Error::not_applied(kind.clone(), "found");
            let status = status_of(&error, *method, *has_name);
            assert_eq!(status, *expected, "{kind:?} of {method:?}");
        }
    }

    #[test]
    fn a_kind_has_another_text_for_another_request() {
        use ErrorKind as K;
        let table: &[(ErrorKind, Method, Status)] = &[
            (K::Unauthenticated, Method::Authenticate, AUTH_FAILED),
            (K::UserNotFound, Method::AuthEnable, ROOT_USER_MISSING),
            (K::UserNotFound, Method::Auth, USER_NOT_FOUND),
            (K::UserNotFound, Method::UserRevokeRole, USER_NOT_FOUND),
            (K::UserExists, Method::Auth, USER_EXISTS),
            (K::RoleNotFound, Method::AuthEnable, ROOT_ROLE_MISSING),
            (K::RoleNotFound, Method::UserRevokeRole, ROLE_NOT_GRANTED),
            (K::RoleNotFound, Method::Auth, ROLE_NOT_FOUND),
            (
                K::RoleNotFound,
                Method::RoleRevokePermission,
                ROLE_NOT_FOUND,
            ),
            (K::RoleExists, Method::Auth, ROLE_EXISTS),
            (
                K::InvalidArgument,
                Method::RoleRevokePermission,
                PERMISSION_NOT_GRANTED,
            ),
            (K::InvalidArgument, Method::Root, INVALID_AUTH_MANAGEMENT),
            (K::InvalidArgument, Method::Member, BAD_MEMBER_URLS),
            (K::InvalidArgument, Method::MemberPromote, NO_LEARNER),
            (K::MemberExists, Method::Member, PEER_URL_EXISTS),
            (K::MemberNotFound, Method::Member, MEMBER_NOT_FOUND),
            (K::LearnerNotReady, Method::MemberPromote, LEARNER_NOT_READY),
            (K::UnsafeReconfiguration, Method::Member, NOT_ENOUGH_MEMBERS),
        ];
        for (kind, method, expected) in table {
            let error = Error::not_applied(kind.clone(), "found");
            let status = status_of(&error, *method, true);
            assert_eq!(status, *expected, "{kind:?} of {method:?}");
        }
    }

    /// Clients try again what has code 14, and nothing else that a lock or an election is refused with.
    #[test]
    fn what_passes_by_itself_is_told_apart_where_etcd_tells_nothing_apart() {
        let with = |code, status: Status| Status { code, ..status };
        let room = with(Code::Unavailable, TOO_MANY_REQUESTS);
        for (found, of_a_lock, of_an_observer) in [
            (NO_LEADER, NO_LEADER, Err(NO_LEADER)),
            (TOO_MANY_REQUESTS, room.clone(), Err(room)),
            (NO_SPACE, with(Code::Unknown, NO_SPACE), Err(NO_SPACE)),
            (
                PERMISSION_DENIED,
                with(Code::Unknown, PERMISSION_DENIED),
                Ok(()),
            ),
        ] {
            assert_eq!(of_recipe(found.clone()), of_a_lock);
            assert_eq!(of_observer(found), of_an_observer);
        }
    }

    #[test]
    fn a_limit_that_etcd_does_not_have_says_what_to_do() {
        for kind in [
            ErrorKind::QuotaExceeded { limit: 1 },
            ErrorKind::LeaseLimit { limit: 1 },
        ] {
            let error = Error::not_applied(kind, "use another lease");
            let status = status_of(&error, Method::Put, true);
            assert_eq!(status.code, Code::ResourceExhausted);
            assert_eq!(status.message, "etcdserver: use another lease");
        }
    }

    #[test]
    fn a_leader_that_hands_over_is_waited_for_and_an_overloaded_node_is_not() {
        let slow = |retry_after_ms| {
            let kind = ErrorKind::SlowDown { retry_after_ms };
            is_worth_waiting(&Error::not_applied(kind, "found"))
        };
        assert!(slow(10));
        assert!(slow(MOMENT_MS));
        assert!(!slow(MOMENT_MS + 1));
        let changed = Error::not_applied(ErrorKind::LeaderChanged, "found");
        assert!(is_worth_waiting(&changed));
        assert!(!is_worth_waiting(&Error::not_applied(
            ErrorKind::KeyNotFound,
            "found"
        )));
    }

    #[test]
    fn what_may_have_been_applied_gets_no_definite_code_and_is_not_repeated() {
        for kind in [
            ErrorKind::LeaderChanged,
            ErrorKind::ConnectionLost,
            ErrorKind::DeadlineExceeded,
            ErrorKind::QuorumTimeout,
            ErrorKind::SlowDown { retry_after_ms: 10 },
            ErrorKind::Internal,
            ErrorKind::KeyNotFound,
        ] {
            let error = Error::unknown(kind.clone(), "found");
            let status = status_of(&error, Method::Put, true);
            assert_eq!(status.code, Code::Unavailable, "{kind:?}");
            assert!(status.message.contains("timed out"), "{kind:?}");
            assert!(!is_worth_waiting(&error), "{kind:?}");
        }
    }
}
