//! The properties of every request, in one table.
//!
//! The line of a request determines how it is named, sent, retried, throttled, admitted, served,
//! authorised and audited. What depends on the keys and values of a request is computed by
//! functions, to which a line refers as [`Weight::ByContent`] and [`Needs::WhatItNames`]. A request
//! without a line does not compile.

use super::{AuthRequest, KeyRange, Request, TxnOp, TxnRequest};

/// The properties of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its name in logs, metric labels and the audit file.
    pub name: &'static str,
    /// What serves it.
    pub kind: RequestKind,
    /// Its priority on an overloaded node.
    pub class: Class,
    /// How often it may be sent, if it is numbered: see [`Spec::safety`].
    safety: Safety,
    /// Whether it is sent on the stream of large requests: see [`Request::is_large`].
    weight: Weight,
    /// Whether a client throttles it while the node refuses most of what it receives. Renewals of
    /// leases and operators' requests are always sent.
    pub is_throttled: bool,
    /// The permissions it needs.
    pub needs: Needs,
}

/// What serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// The state machine: it becomes a log entry.
    Write,
    /// A state of the store, with a permit.
    Read,
    /// The leader's lease deadlines, and then a state of the store, with a permit.
    LeaseRead,
    /// The leader's lease deadlines, without a log entry.
    KeepAlive,
    /// The node's own configuration, with a permit.
    MemberList,
    /// The leader, by entries of its own.
    MemberChange,
    /// The leader: it transfers leadership.
    Transfer,
    /// The watch thread of the node that is asked; it concerns a watch of the same connection.
    Watch,
    /// The node that receives it, from local knowledge; also while it is drained.
    Node,
    /// The connection: it changes the user of the connection.
    Login,
}

/// The priority classes, highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Renewals of leases, and what an operator does to a cluster in trouble.
    KeepAlive,
    /// Reads of one key, queries about leases and watches, and a connection's wish to be forwarded for.
    Read,
    /// Everything that goes into the log.
    Write,
    /// Reads of many keys.
    Scan,
}

/// How often a request may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safety {
    /// It changes nothing (a session that is opened and not used changes nothing that matters).
    Repeatable,
    /// The cluster recognises a retry.
    Numbered,
    /// Retried only if it was certainly not applied.
    Once,
}

/// The size of a request and of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    Small,
    Large,
    ByContent,
}

/// The permissions that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// None: also allowed to unauthenticated clients.
    Nothing,
    /// Any permission at all.
    Anything,
    /// A permission to write some key.
    AnyWrite,
    /// The role [`ROOT`](super::ROOT).
    Root,
    /// Those for the keys, leases, users and roles that it names.
    WhatItNames,
}

/// Generates `Request::spec()` and the list of all lines.
macro_rules! table {
    ($requests:ty, $all:ident $(, $others:pat_param => $spec:expr)?;
     $($request:pat_param $(if $guard:expr)? => $name:literal $kind:ident $class:ident
       $safety:ident $weight:ident $is_throttled:literal $needs:ident;)+) => {
        impl $requests {
            /// The properties of this request.
            pub fn spec(&self) -> &'static Spec {
                match self {
                    $($request $(if $guard)? => &table!(
                        @line $name $kind $class $safety $weight $is_throttled $needs
                    ),)+
                    $($others => $spec,)?
                }
            }
        }

        const $all: &[Spec] = &[$(
            table!(@line $name $kind $class $safety $weight $is_throttled $needs),
        )+];
    };
    (@line $name:literal $kind:ident $class:ident $safety:ident $weight:ident
     $is_throttled:literal $needs:ident) => {
        Spec {
            name: $name,
            kind: RequestKind::$kind,
            class: Class::$class,
            safety: Safety::$safety,
            weight: Weight::$weight,
            is_throttled: $is_throttled,
            needs: Needs::$needs,
        }
    };
}

use AuthRequest as A;
use Request as R;

// Two lines if the content decides the properties.
table! {
    Request, REQUESTS, R::Auth(auth) => auth.spec();
    //                                      name                  kind         class     safety     weight    throttled needs
    R::Range(range) if range.is_point()  => "range"               Read         Read      Repeatable Small     false WhatItNames;
    R::Range(_)                          => "range"               Read         Scan      Repeatable ByContent true  WhatItNames;
    R::RangePage(_)                      => "range_page"          Read         Scan      Repeatable Large     true  WhatItNames;
    R::Put(_)                            => "put"                 Write        Write     Numbered   ByContent true  WhatItNames;
    R::DeleteRange(_)                    => "delete_range"        Write        Write     Numbered   ByContent true  WhatItNames;
    R::Txn(txn) if txn.is_read_only()    => "txn"                 Read         Read      Repeatable ByContent false WhatItNames;
    R::Txn(_)                            => "txn"                 Write        Write     Numbered   ByContent true  WhatItNames;
    R::Compact(_)                        => "compact"             Write        Write     Numbered   Small     false Root;
    R::OpenSession                       => "open_session"        Write        Write     Repeatable Small     false Anything;
    R::Snapshot(_)                       => "snapshot"            Read         Scan      Repeatable Large     false Root;
    R::Watch { .. }                      => "watch"               Watch        Read      Repeatable Small     false WhatItNames;
    R::WatchCancel { .. }                => "watch_cancel"        Watch        Read      Repeatable Small     false Anything;
    R::WatchProgress { .. }              => "watch_progress"      Watch        Read      Repeatable Small     false Anything;
    R::LeaseGrant(_)                     => "lease_grant"         Write        Write     Numbered   Small     true  AnyWrite;
    R::PutWithNewLease(..)               => "put_with_new_lease"  Write        Write     Numbered   ByContent true  WhatItNames;
    R::LeaseRevoke(_)                    => "lease_revoke"        Write        Write     Numbered   Small     false WhatItNames;
    R::LeaseUpdateTtl { .. }             => "lease_update_ttl"    Write        Write     Numbered   Small     false WhatItNames;
    // A thousand renewals are small compared with a large request, and must not wait behind one.
    R::LeaseKeepAlive(_)                 => "lease_keep_alive"    KeepAlive    KeepAlive Repeatable Small     false WhatItNames;
    R::LeaseTimeToLive { keys: false, .. } => "lease_time_to_live" LeaseRead   Read      Repeatable Small     false Anything;
    R::LeaseTimeToLive { .. }            => "lease_time_to_live"  LeaseRead    Read      Repeatable Large     false WhatItNames;
    R::LeaseList(_)                      => "lease_list"          LeaseRead    Scan      Repeatable Large     false Anything;
    R::LeaseNamed { .. }                 => "lease_named"         Read         Read      Repeatable Small     false Anything;
    R::Status                            => "status"              Node         KeepAlive Repeatable Small     false Anything;
    R::LeaderLeaseReport                 => "leader_lease_report" Node         KeepAlive Repeatable Small     false Anything;
    R::ForwardToLeader { .. }            => "forward_to_leader"   Node         Read      Repeatable Small     false Nothing;
    R::MoveLeader { .. }                 => "move_leader"         Transfer     KeepAlive Once       Small     false Root;
    R::MemberList                        => "member_list"         MemberList   KeepAlive Repeatable Small     false Anything;
    R::MemberAdd(_)                      => "member_add"          MemberChange KeepAlive Once       Small     false Root;
    R::MemberRemove { .. }               => "member_remove"       MemberChange KeepAlive Once       Small     false Root;
    R::MemberPromote { .. }              => "member_promote"      MemberChange KeepAlive Once       Small     false Root;
    R::MemberUpdate(_)                   => "member_update"       MemberChange KeepAlive Once       Small     false Root;
    R::AlarmList                         => "alarm_list"          Read         Read      Repeatable Small     false Anything;
    R::AlarmSet { .. }                   => "alarm_set"           Write        Write     Numbered   Small     false Root;
}

table! {
    AuthRequest, AUTH_REQUESTS;
    //                                name                     kind  class safety     weight throttled needs
    A::Enable { .. }               => "auth_enable"            Write Write Numbered   Small  false Root;
    A::Disable                     => "auth_disable"           Write Write Numbered   Small  false Root;
    A::Status                      => "auth_status"            Read  Read  Repeatable Small  false Anything;
    A::Authenticate { .. }         => "authenticate"           Read  Read  Repeatable Small  false Nothing;
    A::UseToken { .. }             => "use_token"              Login Read  Repeatable Small  false Nothing;
    A::UserAdd { .. }              => "user_add"               Write Write Numbered   Small  false Root;
    A::UserGet { .. }              => "user_get"               Read  Read  Repeatable Small  false WhatItNames;
    A::UserList                    => "user_list"              Read  Read  Repeatable Small  false Root;
    A::UserDelete { .. }           => "user_delete"            Write Write Numbered   Small  false Root;
    A::UserChangePassword { .. }   => "user_change_password"   Write Write Numbered   Small  false Root;
    A::UserGrantRole { .. }        => "user_grant_role"        Write Write Numbered   Small  false Root;
    A::UserRevokeRole { .. }       => "user_revoke_role"       Write Write Numbered   Small  false Root;
    A::RoleAdd { .. }              => "role_add"               Write Write Numbered   Small  false Root;
    A::RoleGet { .. }              => "role_get"               Read  Read  Repeatable Small  false WhatItNames;
    A::RoleList                    => "role_list"              Read  Read  Repeatable Small  false Root;
    A::RoleDelete { .. }           => "role_delete"            Write Write Numbered   Small  false Root;
    A::RoleGrantPermission { .. }  => "role_grant_permission"  Write Write Numbered   Small  false Root;
    A::RoleRevokePermission { .. } => "role_revoke_permission" Write Write Numbered   Small  false Root;
}

impl Spec {
    /// All lines. Those of one request follow each other.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        REQUESTS.iter().chain(AUTH_REQUESTS)
    }

    /// Whether it may use the reserve of an overloaded node: lease renewals, and operators'
    /// requests to a cluster in trouble.
    pub fn is_urgent(&self) -> bool {
        matches!(
            self.kind,
            RequestKind::KeepAlive
                | RequestKind::MemberList
                | RequestKind::MemberChange
                | RequestKind::Transfer
        )
    }

    /// How often it may be sent, with a sequence number in a session or without.
    pub fn safety(&self, is_numbered: bool) -> Safety {
        match self.safety {
            Safety::Numbered if !is_numbered => Safety::Once,
            safety => safety,
        }
    }
}

impl Class {
    /// Every class, in order.
    pub const ALL: [Self; 4] = [Self::KeepAlive, Self::Read, Self::Write, Self::Scan];

    /// Its name in metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::KeepAlive => "keep_alive",
            Self::Read => "read",
            Self::Write => "write",
            Self::Scan => "scan",
        }
    }
}

impl Request {
    /// The request's name in logs and metric labels.
    pub fn method(&self) -> &'static str {
        self.spec().name
    }

    /// Whether this request may change the store and so becomes a log entry.
    pub fn is_write(&self) -> bool {
        self.spec().kind == RequestKind::Write
    }

    /// Whether this only reads a state: it is served with a permit and without a log entry.
    pub fn is_read(&self) -> bool {
        matches!(
            self.spec().kind,
            RequestKind::Read | RequestKind::LeaseRead | RequestKind::MemberList
        )
    }

    /// Whether the request or its reply may be large: it uses a separate stream, so that small
    /// requests do not wait behind it.
    pub fn is_large(&self) -> bool {
        match self.spec().weight {
            Weight::Small => false,
            Weight::Large => true,
            Weight::ByContent => match self {
                Self::Put(put) | Self::PutWithNewLease(_, put) => put.value.len() >= LARGE_BYTES,
                Self::Range(range) => range.range != KeyRange::Single && !range.is_count_only(),
                Self::DeleteRange(delete) => delete.range != KeyRange::Single,
                Self::Txn(txn) => txn_weight(txn).is_none_or(|bytes| bytes >= LARGE_BYTES),
                _ => true,
            },
        }
    }
}

/// The size of a transaction and of its possible replies, in bytes; `None` if that is unknown: it
/// reads or deletes ranges, or returns values.
fn txn_weight(txn: &TxnRequest) -> Option<usize> {
    let compares = txn.compare.iter().map(|compare| compare.key.len()).sum();
    let branches = txn.success.iter().chain(&txn.failure);
    branches
        .map(op_weight)
        .try_fold(compares, |sum: usize, bytes| Some(sum + bytes?))
}

fn op_weight(op: &TxnOp) -> Option<usize> {
    match op {
        TxnOp::Put(put) => Some(put.key.len() + put.value.len()),
        TxnOp::Range(range) if range.range == KeyRange::Single => Some(range.key.len()),
        TxnOp::DeleteRange(delete) if delete.range == KeyRange::Single => Some(delete.key.len()),
        TxnOp::Txn(txn) => txn_weight(txn),
        TxnOp::Range(_) | TxnOp::DeleteRange(_) => None,
    }
}

/// From this size on a request is large, in bytes.
const LARGE_BYTES: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::fixtures::every_request;
    use crate::api::{PutRequest, RangeRequest};

    #[test]
    fn each_request_has_one_line_and_two_where_its_content_decides() {
        let lines: Vec<&str> = Spec::all().map(|spec| spec.name).collect();
        let mut names = lines.clone();
        names.dedup();
        let twice: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| lines.iter().filter(|line| line == &name).count() > 1)
            .collect();
        assert_eq!(twice, ["range", "txn", "lease_time_to_live"]);
        assert_eq!(lines.len(), names.len() + twice.len());
        // And there is no line without a request.
        let requests = every_request();
        let mut named: Vec<&str> = requests.iter().map(Request::method).collect();
        named.sort_unstable();
        names.sort_unstable();
        assert_eq!(named, names);
    }

    #[test]
    fn what_is_small_travels_with_the_small_and_what_nobody_can_tell_does_not() {
        let put = |bytes: usize| {
            Request::Put(PutRequest {
                value: vec![0; bytes].into(),
                ..PutRequest::default()
            })
        };
        let txn = |ops: Vec<TxnOp>| Request::Txn(TxnRequest::new().and_then(ops));
        let prefix = || RangeRequest {
            range: KeyRange::Prefix,
            ..RangeRequest::default()
        };
        let nested = |op| TxnOp::txn(TxnRequest::new().or_else([op]));
        let small = [
            put(LARGE_BYTES - 1),
            Request::Txn(TxnRequest::create("k", "v")),
            txn(vec![
                TxnOp::put("a", "1"),
                TxnOp::get("b"),
                TxnOp::delete("c"),
            ]),
            txn(vec![nested(TxnOp::put("a", "1"))]),
        ];
        for request in small {
            assert!(!request.is_large(), "{request:?}");
        }
        let large = [
            put(LARGE_BYTES),
            Request::Range(prefix()),
            Request::RangePage(prefix()),
            txn(vec![TxnOp::put("a", vec![0; LARGE_BYTES])]),
            txn(vec![TxnOp::put("a", vec![0; LARGE_BYTES / 2]); 2]),
            txn(vec![nested(TxnOp::Range(prefix()))]),
        ];
        for request in large {
            assert!(request.is_large(), "{}", request.method());
        }
    }
}
