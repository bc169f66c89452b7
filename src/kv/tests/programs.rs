//! Random programs: commands of every kind, as a log might hold them.

use super::*;
use crate::api::{Compare, CompareOp, CompareTarget, TxnOp, TxnRequest};

/// One step of a random program.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write {
        /// Which of the sessions opened before, its number, and the mark.
        session: Option<(usize, u64, u64)>,
        operation: Operation,
    },
    Open,
    Forget {
        which: usize,
        back: u64,
    },
    Bootstrap(u128),
    /// By the leader of the entry's term, or of the one before.
    Expire {
        leases: Vec<LeaseRef>,
        deposed: bool,
    },
    Mark {
        marks: Vec<LeaseMark>,
        deposed: bool,
    },
    EtcdUrls(Vec<(NodeId, Option<String>)>),
    Noop,
    Garbage(Vec<u8>),
}

/// The entries of the log that `steps` make, from index 1.
pub(crate) fn entries(steps: &[Step]) -> Vec<(LogId, Option<Bytes>)> {
    let mut bootstrap = None;
    let mut opened = vec![SessionId(0)];
    let pick = |opened: &[SessionId], which: usize| opened[which % opened.len()];
    let mut entries = Vec::new();
    for (index, step) in (1u64..).zip(steps) {
        // A new term now and then, as leaders come and go.
        let term = 1 + index / 10;
        let command = match step {
            Step::Write { session, operation } => Some(Command::Write {
                author: None,
                session: session.map(|(which, sequence, acknowledged)| SessionCall {
                    id: pick(&opened, which),
                    sequence,
                    acknowledged,
                }),
                operation: operation.clone(),
            }),
            Step::Open => {
                let bootstrap = bootstrap.unwrap_or_default();
                opened.push(SessionId::new(LogIndex(index), bootstrap));
                Some(Command::OpenSession {
                    author: None,
                    sessions_max: 3,
                })
            }
            Step::Forget { which, back } => Some(Command::ForgetSessions {
                sessions: vec![pick(&opened, *which)],
                unused_since: LogIndex(index.saturating_sub(*back)),
            }),
            Step::Bootstrap(id) => {
                let drawn = BootstrapId(*id << 40);
                bootstrap = bootstrap.or(Some(drawn));
                let info = ClusterInfo {
                    cluster_id: ClusterId(*id),
                    members: vec![],
                };
                Some(match drawn {
                    BootstrapId(0) => Command::Bootstrap(info),
                    bootstrap => Command::BootstrapAs { bootstrap, info },
                })
            }
            Step::Expire { leases, deposed } => Some(Command::ExpireLeases {
                term: Term(term - u64::from(*deposed)),
                leases: leases.clone(),
            }),
            Step::Mark { marks, deposed } => Some(Command::MarkLeases {
                term: Term(term - u64::from(*deposed)),
                marks: marks.clone(),
            }),
            Step::EtcdUrls(members) => Some(Command::SetEtcdUrls(members.clone())),
            Step::Noop | Step::Garbage(_) => None,
        };
        let bytes = match step {
            Step::Garbage(bytes) => Some(Bytes::from(bytes.clone())),
            _ => command.map(|command| command.encode()),
        };
        let id = LogId::new(LogIndex(index), Term(term));
        entries.push((id, bytes));
    }
    entries
}

pub(super) fn a_key() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(prop_oneof![Just(0u8), Just(b'a'), Just(0xff)], 0..4)
        .prop_map(Bytes::from)
}

pub(super) fn a_range() -> impl Strategy<Value = KeyRange> {
    prop_oneof![
        3 => Just(KeyRange::Single),
        1 => Just(KeyRange::Prefix),
        1 => a_key().prop_map(KeyRange::Until),
        1 => Just(KeyRange::From),
    ]
}

fn a_put() -> impl Strategy<Value = PutRequest> {
    let flag = || prop_oneof![5 => Just(false), 1 => Just(true)];
    let lease = prop_oneof![
        4 => Just(LeaseTarget::None),
        4 => a_lease().prop_map(LeaseTarget::Lease),
        1 => a_name().prop_map(LeaseTarget::Name),
    ];
    (a_key(), a_key(), any::<bool>(), flag(), flag(), lease).prop_map(
        |(key, value, prev_kv, ignore_value, ignore_lease, lease)| PutRequest {
            key,
            value,
            prev_kv,
            ignore_value,
            ignore_lease,
            lease,
        },
    )
}

/// One that a grant may have chosen, or the index of an early entry, or the last that there can be;
/// now and then only if it was granted there.
fn a_lease() -> impl Strategy<Value = LeaseRef> {
    let id = prop_oneof![8 => 1i64..9, 1 => Just(i64::MAX)];
    let grant_index = prop_oneof![4 => Just(0u64), 1 => 1u64..20];
    (id, grant_index).prop_map(|(id, grant_index)| LeaseRef { id, grant_index })
}

fn a_name() -> impl Strategy<Value = String> {
    prop_oneof![Just("n".to_owned()), Just("m".to_owned())]
}

fn a_grant() -> impl Strategy<Value = LeaseGrant> {
    let name = prop_oneof![3 => Just(String::new()), 1 => a_name()];
    let id = prop_oneof![8 => 0i64..7, 1 => Just(i64::MAX)];
    let limits = (3u64..6, prop_oneof![1u64..3, Just(LEASE_KEYS_MAX)]);
    (id, 1u64..99, name, limits).prop_map(|(id, ttl_ms, name, limits)| LeaseGrant {
        id,
        ttl_ms,
        requested_ttl_ms: ttl_ms,
        name,
        leases_max: limits.0,
        keys_max: limits.1,
        ..LeaseGrant::default()
    })
}

fn a_mark() -> impl Strategy<Value = LeaseMark> {
    let kind = prop_oneof![
        (1u64..50).prop_map(LeaseMarkKind::Remaining),
        Just(LeaseMarkKind::Clear),
        (1u64..9).prop_map(|ttl_ms| LeaseMarkKind::Settle { ttl_ms }),
    ];
    (a_lease(), kind).prop_map(|(lease, kind)| LeaseMark { lease, kind })
}

fn a_delete() -> impl Strategy<Value = DeleteRangeRequest> {
    (a_key(), a_range(), any::<bool>()).prop_map(|(key, range, prev_kv)| DeleteRangeRequest {
        key,
        range,
        prev_kv,
    })
}

fn a_compare() -> impl Strategy<Value = Compare> {
    let op = prop_oneof![
        Just(CompareOp::Equal),
        Just(CompareOp::Greater),
        Just(CompareOp::Less),
        Just(CompareOp::NotEqual),
    ];
    let target = prop_oneof![
        (0i64..4).prop_map(CompareTarget::Version),
        (0i64..40).prop_map(CompareTarget::CreateRevision),
        (0i64..40).prop_map(CompareTarget::ModRevision),
        a_key().prop_map(CompareTarget::Value),
        (0i64..9).prop_map(CompareTarget::Lease),
    ];
    (a_key(), a_range(), op, target).prop_map(|(key, range, op, target)| Compare {
        key,
        range,
        op,
        target,
    })
}

fn a_txn(depth: usize) -> BoxedStrategy<TxnRequest> {
    let op = || {
        let flat = prop_oneof![
            4 => a_put().prop_map(TxnOp::Put),
            2 => a_delete().prop_map(TxnOp::DeleteRange),
            3 => ranges::a_range_request().prop_map(TxnOp::Range),
        ];
        match depth {
            0 => flat.boxed(),
            _ => prop_oneof![4 => flat, 1 => a_txn(depth - 1).prop_map(TxnOp::Txn)].boxed(),
        }
    };
    (
        prop::collection::vec(a_compare(), 0..3),
        prop::collection::vec(op(), 0..4),
        prop::collection::vec(op(), 0..4),
    )
        .prop_map(|(compare, success, failure)| TxnRequest {
            compare,
            success,
            failure,
        })
        .boxed()
}

/// Mostly cleared, so that most writes are not refused.
fn an_alarm() -> impl Strategy<Value = Operation> {
    let is_raised = prop_oneof![1 => Just(true), 7 => Just(false)];
    (0u64..2, is_raised).prop_map(|(member, is_raised)| Operation::SetAlarm {
        member: NodeId(member),
        is_raised,
    })
}

/// One of a few, and what it says.
fn a_member() -> impl Strategy<Value = (NodeId, Option<String>)> {
    let said = prop_oneof![
        Just(None),
        Just(Some(String::new())),
        Just(Some("u".to_owned()))
    ];
    (0u64..3, said).prop_map(|(id, said)| (NodeId(id), said))
}

fn an_operation() -> impl Strategy<Value = Operation> {
    let compact =
        (0i64..30).prop_map(|revision| Operation::Compact(CompactionRequest::at(revision)));
    prop_oneof![
        10 => a_put().prop_map(Operation::Put),
        4 => a_delete().prop_map(Operation::DeleteRange),
        6 => a_txn(2).prop_map(Operation::Txn),
        1 => compact,
        5 => a_grant().prop_map(Operation::LeaseGrant),
        2 => a_lease().prop_map(Operation::LeaseRevoke),
        1 => (a_lease(), 1u64..9)
            .prop_map(|(lease, ttl_ms)| Operation::LeaseUpdateTtl { lease, ttl_ms }),
        2 => (a_grant(), a_put())
            .prop_map(|(grant, put)| Operation::PutWithNewLease { grant: Box::new(grant), put }),
        1 => an_alarm(),
    ]
}

/// Random programs: mostly writes, with and without a session.
pub(crate) fn programs(length: usize) -> impl Strategy<Value = Vec<Step>> {
    let plain = an_operation().prop_map(|operation| Step::Write {
        session: None,
        operation,
    });
    let numbered = (0usize..5, 0u64..8, 0u64..6, an_operation()).prop_map(
        |(which, sequence, acknowledged, operation)| Step::Write {
            session: Some((which, sequence, acknowledged)),
            operation,
        },
    );
    let step = prop_oneof![
        6 => plain,
        6 => numbered,
        2 => Just(Step::Open),
        1 => (0usize..5, 0u64..10).prop_map(|(which, back)| Step::Forget { which, back }),
        2 => (prop::collection::vec(a_lease(), 1..4), any::<bool>())
            .prop_map(|(leases, deposed)| Step::Expire { leases, deposed }),
        1 => (prop::collection::vec(a_mark(), 1..4), any::<bool>())
            .prop_map(|(marks, deposed)| Step::Mark { marks, deposed }),
        1 => (0u128..2).prop_map(Step::Bootstrap),
        1 => prop::collection::vec(a_member(), 0..3).prop_map(Step::EtcdUrls),
        1 => Just(Step::Noop),
        1 => prop::collection::vec(any::<u8>(), 0..12).prop_map(Step::Garbage),
    ];
    prop::collection::vec(step, 0..length)
}
