//! Transactions.
//!
//! An operation on an empty range is replaced by one that counts a key, so that every operation
//! keeps its place, and its answer is made empty again ([`TxnPlan::answer`]). A comparison of an empty
//! range is decided here: it is that of a key which does not exist.

use bytes::Bytes;

use super::{Keys, RangePlan, delete_plan, delete_response, put, put_response, range_response};
use crate::api;
use crate::api::{
    CompareOp, KeyRange, RangeRequest, TXN_PARTS_MAX, TxnOp, TxnOpResponse, TxnRequest, TxnResponse,
};
use crate::etcd::errors::{EMPTY_KEY, KEY_NOT_FOUND, TOO_MANY_OPS};
use crate::etcd::proto;
use crate::etcd::proto::{CompareUnion, RequestUnion, ResponseUnion};
use crate::etcd::status::{Code, Status};

/// A transaction, and what becomes of its answer.
#[derive(Clone, Debug)]
pub(crate) struct TxnPlan {
    /// What is asked.
    pub(crate) request: TxnRequest,
    branches: Branches,
}

/// Of both branches, what each operation was.
#[derive(Clone, Debug, Default)]
struct Branches {
    success: Vec<OpShape>,
    failure: Vec<OpShape>,
}

#[derive(Clone, Debug)]
enum OpShape {
    /// As it stands.
    Plain,
    /// A read of an empty range.
    EmptyRange,
    /// A delete of an empty range.
    EmptyDelete,
    Txn(Branches),
}

/// Before a transaction is decoded: that it has no more parts than one may have.
pub(crate) fn check_txn(encoded: &[u8]) -> Result<(), Status> {
    match proto::txn_parts(encoded, TXN_PARTS_MAX) > TXN_PARTS_MAX {
        true => Err(TOO_MANY_OPS),
        false => Ok(()),
    }
}

/// Of a request. `ops_max` is how many comparisons or operations a list may have.
///
/// # Errors
/// As etcd refuses it.
pub(crate) fn txn_plan(txn: &proto::TxnRequest, ops_max: usize) -> Result<TxnPlan, Status> {
    let lists = [txn.compare.len(), txn.success.len(), txn.failure.len()];
    let longest = lists.into_iter().max().unwrap_or_default();
    if longest > ops_max {
        return Err(TOO_MANY_OPS);
    }
    if txn.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(EMPTY_KEY);
    }
    let mut plan = TxnPlan {
        request: TxnRequest::default(),
        branches: Branches::default(),
    };
    for (ops, request, shapes) in [
        (
            &txn.success,
            &mut plan.request.success,
            &mut plan.branches.success,
        ),
        (
            &txn.failure,
            &mut plan.request.failure,
            &mut plan.branches.failure,
        ),
    ] {
        for op in ops {
            let (op, shape) = op_plan(op, ops_max - longest)?;
            request.push(op);
            shapes.push(shape);
        }
    }
    for compare in &txn.compare {
        plan.request.compare.extend(compare_plan(compare)?);
    }
    Ok(plan)
}

fn op_plan(op: &proto::RequestOp, ops_max: usize) -> Result<(TxnOp, OpShape), Status> {
    Ok(match op.request.as_ref().ok_or(KEY_NOT_FOUND)? {
        RequestUnion::RequestRange(range) => {
            let plan = RangePlan::of(range)?;
            let shape = match plan.is_empty {
                true => OpShape::EmptyRange,
                false => OpShape::Plain,
            };
            (TxnOp::Range(plan.request), shape)
        }
        RequestUnion::RequestPut(request) => (TxnOp::Put(put(request)?), OpShape::Plain),
        RequestUnion::RequestDeleteRange(delete) => match delete_plan(delete)? {
            Some(request) => (TxnOp::DeleteRange(request), OpShape::Plain),
            None => (TxnOp::Range(count(&delete.key)), OpShape::EmptyDelete),
        },
        RequestUnion::RequestTxn(txn) => {
            let plan = txn_plan(txn, ops_max)?;
            (TxnOp::Txn(plan.request), OpShape::Txn(plan.branches))
        }
    })
}

/// Stands for an operation on an empty range.
fn count(key: &Bytes) -> RangeRequest {
    RangeRequest {
        key: key.clone(),
        count_only: true,
        ..RangeRequest::default()
    }
}

/// A comparison; none if it always holds.
fn compare_plan(compare: &proto::Compare) -> Result<Option<api::Compare>, Status> {
    let range = match Keys::of(&compare.key, &compare.range_end) {
        Keys::Some(range) => range,
        Keys::None => {
            let holds = one_compare(compare, KeyRange::Single)?.holds(None);
            return Ok(match holds {
                true => None,
                // No key has been written less than zero times.
                false => Some(api::Compare::version(
                    compare.key.clone(),
                    CompareOp::Less,
                    0,
                )),
            });
        }
    };
    one_compare(compare, range).map(Some)
}

fn one_compare(compare: &proto::Compare, range: KeyRange) -> Result<api::Compare, Status> {
    let unknown = |_| Status::new(Code::InvalidArgument, "etcdserver: unknown comparison");
    let op = match proto::CompareResult::try_from(compare.result).map_err(unknown)? {
        proto::CompareResult::Equal => CompareOp::Equal,
        proto::CompareResult::Greater => CompareOp::Greater,
        proto::CompareResult::Less => CompareOp::Less,
        proto::CompareResult::NotEqual => CompareOp::NotEqual,
    };
    // A value of another kind than the target's counts as none, which is zero or empty.
    let given = compare.target_union.as_ref();
    let number = |of: fn(&CompareUnion) -> Option<i64>| given.and_then(of).unwrap_or_default();
    let target = match proto::CompareTarget::try_from(compare.target).map_err(unknown)? {
        proto::CompareTarget::Version => api::CompareTarget::Version(number(|given| match given {
            CompareUnion::Version(version) => Some(*version),
            _ => None,
        })),
        proto::CompareTarget::Create => {
            api::CompareTarget::CreateRevision(number(|given| match given {
                CompareUnion::CreateRevision(revision) => Some(*revision),
                _ => None,
            }))
        }
        proto::CompareTarget::Mod => api::CompareTarget::ModRevision(number(|given| match given {
            CompareUnion::ModRevision(revision) => Some(*revision),
            _ => None,
        })),
        proto::CompareTarget::Lease => api::CompareTarget::Lease(number(|given| match given {
            CompareUnion::Lease(lease) => Some(*lease),
            _ => None,
        })),
        proto::CompareTarget::Value => api::CompareTarget::Value(match given {
            Some(CompareUnion::Value(value)) => value.clone(),
            _ => Bytes::new(),
        }),
    };
    let key = compare.key.clone();
    Ok(api::Compare {
        key,
        range,
        op,
        target,
    })
}

impl TxnPlan {
    /// The answer, given ours and the header of the whole.
    pub(crate) fn answer(
        &self,
        header: proto::ResponseHeader,
        response: TxnResponse,
    ) -> proto::TxnResponse {
        let changes = changes(&response);
        let mut view = View {
            before: header.revision - i64::from(changes),
            has_changed: false,
        };
        let answered = view.txn(&self.branches, response);
        proto::TxnResponse {
            header: Some(header),
            ..answered
        }
    }
}

/// Whether anything was written.
fn changes(response: &TxnResponse) -> bool {
    response.responses.iter().any(|response| match response {
        TxnOpResponse::Range(_) => false,
        TxnOpResponse::Put(_) => true,
        TxnOpResponse::DeleteRange(delete) => delete.deleted > 0,
        TxnOpResponse::Txn(txn) => changes(txn),
    })
}

/// The revision that each operation of a transaction saw or made.
struct View {
    /// That of the store before it.
    before: i64,
    /// An operation has changed something.
    has_changed: bool,
}

impl View {
    fn header(&self) -> proto::ResponseHeader {
        proto::ResponseHeader {
            revision: self.before + i64::from(self.has_changed),
            ..proto::ResponseHeader::default()
        }
    }

    fn txn(&mut self, branches: &Branches, response: TxnResponse) -> proto::TxnResponse {
        let shapes = match response.succeeded {
            true => &branches.success,
            false => &branches.failure,
        };
        let ops = shapes.iter().zip(response.responses);
        let responses = ops.map(|(shape, response)| proto::ResponseOp {
            response: Some(self.op(shape, response)),
        });
        proto::TxnResponse {
            // A nested one has a header without a revision.
            header: Some(proto::ResponseHeader::default()),
            succeeded: response.succeeded,
            responses: responses.collect(),
        }
    }

    fn op(&mut self, shape: &OpShape, response: TxnOpResponse) -> ResponseUnion {
        match (shape, response) {
            (OpShape::EmptyRange, _) => {
                let nothing = api::RangeResponse::default();
                ResponseUnion::ResponseRange(range_response(self.header(), nothing))
            }
            (OpShape::EmptyDelete, _) => {
                let nothing = api::DeleteRangeResponse::default();
                ResponseUnion::ResponseDeleteRange(delete_response(self.header(), nothing))
            }
            (_, TxnOpResponse::Range(range)) => {
                ResponseUnion::ResponseRange(range_response(self.header(), range))
            }
            (_, TxnOpResponse::Put(put)) => {
                self.has_changed = true;
                ResponseUnion::ResponsePut(put_response(self.header(), put))
            }
            (_, TxnOpResponse::DeleteRange(delete)) => {
                self.has_changed |= delete.deleted > 0;
                ResponseUnion::ResponseDeleteRange(delete_response(self.header(), delete))
            }
            (OpShape::Txn(branches), TxnOpResponse::Txn(txn)) => {
                ResponseUnion::ResponseTxn(self.txn(branches, txn))
            }
            (OpShape::Plain, TxnOpResponse::Txn(txn)) => {
                ResponseUnion::ResponseTxn(self.txn(&Branches::default(), txn))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{DeleteRangeResponse, PutResponse, RangeResponse};

    fn op(request: RequestUnion) -> proto::RequestOp {
        proto::RequestOp {
            request: Some(request),
        }
    }

    fn range(key: &'static str, end: &'static str) -> proto::RequestOp {
        op(RequestUnion::RequestRange(proto::RangeRequest {
            key: Bytes::from_static(key.as_bytes()),
            range_end: Bytes::from_static(end.as_bytes()),
            ..proto::RangeRequest::default()
        }))
    }

    fn put_op(key: &'static str) -> proto::RequestOp {
        op(RequestUnion::RequestPut(proto::PutRequest {
            key: Bytes::from_static(key.as_bytes()),
            ..proto::PutRequest::default()
        }))
    }

    fn revisions(txn: &proto::TxnResponse) -> Vec<i64> {
        let revision = |op: &proto::ResponseOp| match op.response.as_ref().unwrap() {
            ResponseUnion::ResponseRange(range) => range.header.unwrap().revision,
            ResponseUnion::ResponsePut(put) => put.header.unwrap().revision,
            ResponseUnion::ResponseDeleteRange(delete) => delete.header.unwrap().revision,
            ResponseUnion::ResponseTxn(txn) => txn.header.unwrap().revision,
        };
        txn.responses.iter().map(revision).collect()
    }

    #[test]
    fn each_operation_shows_the_revision_that_it_saw_or_made() {
        let delete = op(RequestUnion::RequestDeleteRange(
            proto::DeleteRangeRequest {
                key: Bytes::from_static(b"x"),
                range_end: Bytes::from_static(b"a"),
                prev_kv: false,
            },
        ));
        let txn = proto::TxnRequest {
            success: vec![range("a", ""), delete, put_op("b"), range("a", "")],
            ..proto::TxnRequest::default()
        };
        let plan = txn_plan(&txn, 128).unwrap();
        let response = TxnResponse {
            succeeded: true,
            responses: vec![
                TxnOpResponse::Range(RangeResponse::default()),
                TxnOpResponse::Range(RangeResponse {
                    count: 1,
                    ..RangeResponse::default()
                }),
                TxnOpResponse::Put(PutResponse::default()),
                TxnOpResponse::Range(RangeResponse::default()),
            ],
        };
        let header = proto::ResponseHeader {
            revision: 9,
            ..proto::ResponseHeader::default()
        };
        let answered = plan.answer(header, response);
        assert_eq!(revisions(&answered), [8, 8, 9, 9]);
        let second = answered.responses[1].response.as_ref().unwrap();
        let ResponseUnion::ResponseDeleteRange(delete) = second else {
            panic!("{second:?}");
        };
        assert_eq!(delete.deleted, 0);
    }

    #[test]
    fn a_transaction_that_changes_nothing_shows_the_current_revision() {
        let txn = proto::TxnRequest {
            failure: vec![op(RequestUnion::RequestDeleteRange(
                proto::DeleteRangeRequest {
                    key: Bytes::from_static(b"x"),
                    ..proto::DeleteRangeRequest::default()
                },
            ))],
            ..proto::TxnRequest::default()
        };
        let plan = txn_plan(&txn, 128).unwrap();
        let response = TxnResponse {
            succeeded: false,
            responses: vec![TxnOpResponse::DeleteRange(DeleteRangeResponse::default())],
        };
        let header = proto::ResponseHeader {
            revision: 9,
            ..proto::ResponseHeader::default()
        };
        assert_eq!(revisions(&plan.answer(header, response)), [9]);
    }

    #[test]
    fn a_comparison_of_an_empty_range_is_that_of_a_missing_key() {
        let compare = |target: proto::CompareTarget, given| proto::Compare {
            key: Bytes::from_static(b"x"),
            range_end: Bytes::from_static(b"a"),
            target: target as i32,
            target_union: given,
            ..proto::Compare::default()
        };
        let holds = compare(proto::CompareTarget::Version, None);
        assert_eq!(compare_plan(&holds).unwrap(), None);
        let fails = compare(
            proto::CompareTarget::Version,
            Some(CompareUnion::Version(1)),
        );
        let never = compare_plan(&fails).unwrap().unwrap();
        assert!(!never.holds(None));
        let value = compare(proto::CompareTarget::Value, None);
        assert!(compare_plan(&value).unwrap().is_some());
    }

    #[test]
    fn refusals_come_in_the_order_of_etcd() {
        let empty = proto::RequestOp { request: None };
        let txn = |success| proto::TxnRequest {
            success,
            ..proto::TxnRequest::default()
        };
        assert_eq!(
            txn_plan(&txn(vec![empty.clone(); 129]), 128).unwrap_err(),
            TOO_MANY_OPS
        );
        assert_eq!(txn_plan(&txn(vec![empty]), 128).unwrap_err(), KEY_NOT_FOUND);
        assert_eq!(
            txn_plan(&txn(vec![range("", "b")]), 128).unwrap_err(),
            EMPTY_KEY
        );
        let nested = op(RequestUnion::RequestTxn(txn(vec![put_op("a"); 3])));
        // What the outer one has takes from what the inner one may have.
        assert_eq!(
            txn_plan(&txn(vec![nested, put_op("b")]), 4).unwrap_err(),
            TOO_MANY_OPS
        );
    }

    #[test]
    fn a_transaction_of_a_million_empty_parts_is_not_decoded() {
        let encoded = [0x12, 0].repeat(1 << 20);
        assert_eq!(check_txn(&encoded), Err(TOO_MANY_OPS));
        assert_eq!(check_txn(&encoded[..256]), Ok(()));
    }
}
