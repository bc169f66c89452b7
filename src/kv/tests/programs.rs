//! Random programs: commands of every kind, as a log might hold them.

use super::*;
use crate::api::Compare;
use crate::api::CompareOp;
use crate::api::CompareTarget;
use crate::api::TxnOp;
use crate::api::TxnRequest;

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
    Noop,
    Garbage(Vec<u8>),
}

/// The entries of the log that `steps` make, from index 1.
pub(crate) fn entries(steps: &[Step]) -> Vec<(LogId, Option<Bytes>)> {
    let mut opened = vec![0u64];
    let pick = |opened: &[u64], which: usize| SessionId(opened[which % opened.len()]);
    let mut entries = Vec::new();
    for (index, step) in (1u64..).zip(steps) {
        let command = match step {
            Step::Write { session, operation } => Some(Command::Write {
                session: session.map(|(which, sequence, acknowledged)| SessionCall {
                    id: pick(&opened, which),
                    sequence,
                    acknowledged,
                }),
                operation: operation.clone(),
            }),
            Step::Open => {
                opened.push(index);
                Some(Command::OpenSession { sessions_max: 3 })
            }
            Step::Forget { which, back } => Some(Command::ForgetSessions {
                sessions: vec![pick(&opened, *which)],
                unused_since: LogIndex(index.saturating_sub(*back)),
            }),
            Step::Bootstrap(id) => Some(Command::Bootstrap(ClusterInfo {
                cluster_id: ClusterId(*id),
                members: vec![],
            })),
            Step::Noop | Step::Garbage(_) => None,
        };
        let bytes = match step {
            Step::Garbage(bytes) => Some(Bytes::from(bytes.clone())),
            _ => command.map(|command| command.encode()),
        };
        // A new term now and then, as leaders come and go.
        let id = LogId::new(LogIndex(index), Term(1 + index / 10));
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
    (a_key(), a_key(), any::<bool>(), flag(), flag()).prop_map(
        |(key, value, prev_kv, ignore_value, ignore_lease)| PutRequest {
            key,
            value,
            prev_kv,
            ignore_value,
            ignore_lease,
        },
    )
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
        (0i64..2).prop_map(CompareTarget::Lease),
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

fn an_operation() -> impl Strategy<Value = Operation> {
    let compact =
        (0i64..30).prop_map(|revision| Operation::Compact(CompactionRequest::at(revision)));
    prop_oneof![
        10 => a_put().prop_map(Operation::Put),
        4 => a_delete().prop_map(Operation::DeleteRange),
        6 => a_txn(2).prop_map(Operation::Txn),
        1 => compact,
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
        1 => (0u128..2).prop_map(Step::Bootstrap),
        1 => Just(Step::Noop),
        1 => prop::collection::vec(any::<u8>(), 0..12).prop_map(Step::Garbage),
    ];
    prop::collection::vec(step, 0..length)
}
