//! Transactions.
//!
//! A read of an empty range is replaced by one that counts a key, and its answer is made empty again
//! ([`TxnPlan::answer`]). A delete of one is left out, and answered there: that the client may make it is asked
//! before ([`TxnPlan::empty_deletes`]). A comparison of an empty range is decided here: it is that of a key which
//! does not exist, and one that has the same outcome for every key stands for it. So each asks for the
//! permissions that it needs.

use bytes::Bytes;

use super::{DeletePlan, Keys, RangePlan, delete_response, put, put_response, range_response};
use crate::api;
use crate::api::{
    CompareOp, DeleteRangeRequest, KeyRange, TXN_PARTS_MAX, TxnOp, TxnOpResponse, TxnRequest,
    TxnResponse,
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
    /// What stands for its deletes of empty ranges: who may make these may make those.
    pub(crate) empty_deletes: Vec<DeleteRangeRequest>,
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
    /// A delete of an empty range, which is not asked.
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

/// Whether a transaction may be answered from a stale state: it does nothing but read, and each of its reads says
/// so. As in etcd, one with a nested transaction may not; one without a read, which etcd answers so, says nothing.
pub(crate) fn is_serializable(txn: &proto::TxnRequest) -> bool {
    let mut ops = txn.success.iter().chain(&txn.failure).peekable();
    ops.peek().is_some()
        && ops.all(|op| match &op.request {
            Some(RequestUnion::RequestRange(range)) => range.serializable,
            _ => false,
        })
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
        empty_deletes: Vec::new(),
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
            let (op, shape) = op_plan(op, ops_max - longest, &mut plan.empty_deletes)?;
            request.extend(op);
            shapes.push(shape);
        }
    }
    for compare in &txn.compare {
        plan.request.compare.push(compare_plan(compare)?);
    }
    Ok(plan)
}

/// What is asked for an operation, if anything is.
fn op_plan(
    op: &proto::RequestOp,
    ops_max: usize,
    empty_deletes: &mut Vec<DeleteRangeRequest>,
) -> Result<(Option<TxnOp>, OpShape), Status> {
    let (op, shape) = match op.request.as_ref().ok_or(KEY_NOT_FOUND)? {
        RequestUnion::RequestRange(range) => {
            let plan = RangePlan::of(range)?;
            let shape = match plan.is_empty {
                true => OpShape::EmptyRange,
                false => OpShape::Plain,
            };
            (TxnOp::Range(plan.request), shape)
        }
        RequestUnion::RequestPut(request) => (TxnOp::Put(put(request)?), OpShape::Plain),
        RequestUnion::RequestDeleteRange(delete) => {
            let DeletePlan { request, is_empty } = DeletePlan::of(delete)?;
            if is_empty {
                empty_deletes.push(request);
                return Ok((None, OpShape::EmptyDelete));
            }
            (TxnOp::DeleteRange(request), OpShape::Plain)
        }
        RequestUnion::RequestTxn(txn) => {
            let plan = txn_plan(txn, ops_max)?;
            empty_deletes.extend(plan.empty_deletes);
            (TxnOp::Txn(plan.request), OpShape::Txn(plan.branches))
        }
    };
    Ok((Some(op), shape))
}

/// A comparison.
fn compare_plan(compare: &proto::Compare) -> Result<api::Compare, Status> {
    let range = match Keys::of(&compare.key, &compare.range_end) {
        Keys::Some(range) => range,
        Keys::None => {
            let holds = one_compare(compare, KeyRange::Single)?.holds(None);
            // No key has been written less than zero times.
            let op = match holds {
                true => CompareOp::NotEqual,
                false => CompareOp::Equal,
            };
            return Ok(api::Compare::version(compare.key.clone(), op, -1));
        }
    };
    one_compare(compare, range)
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
        let mut answered = response.responses.into_iter();
        let responses = shapes.iter().map_while(|shape| {
            let response = match shape {
                OpShape::EmptyDelete => {
                    let nothing = api::DeleteRangeResponse::default();
                    ResponseUnion::ResponseDeleteRange(delete_response(self.header(), nothing))
                }
                shape => self.op(shape, answered.next()?),
            };
            Some(proto::ResponseOp {
                response: Some(response),
            })
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
            (_, TxnOpResponse::Txn(txn)) => {
                ResponseUnion::ResponseTxn(self.txn(&Branches::default(), txn))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::permissions_to_delete;
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

    #[test]
    fn a_transaction_may_be_stale_if_each_of_its_operations_is_a_read_that_may() {
        let stale = || {
            op(RequestUnion::RequestRange(proto::RangeRequest {
                serializable: true,
                ..proto::RangeRequest::default()
            }))
        };
        let both = |success, failure| proto::TxnRequest {
            compare: Vec::new(),
            success,
            failure,
        };
        let txn = |txn| op(RequestUnion::RequestTxn(txn));
        assert!(is_serializable(&both(vec![stale()], vec![])));
        assert!(is_serializable(&both(vec![], vec![stale()])));
        assert!(is_serializable(&both(vec![stale()], vec![stale()])));
        assert!(!is_serializable(&both(vec![], vec![])));
        let nested = txn(both(vec![stale()], vec![]));
        for other in [range("a", ""), put_op("a"), nested] {
            assert!(!is_serializable(&both(
                vec![stale(), other.clone()],
                vec![]
            )));
            assert!(!is_serializable(&both(vec![stale()], vec![other])));
        }
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
        assert_eq!(plan.request.success.len(), 3);
        let asked: Vec<&Bytes> = plan.empty_deletes.iter().map(|it| &it.key).collect();
        assert_eq!(asked, ["x"]);
        let response = TxnResponse {
            succeeded: true,
            responses: vec![
                TxnOpResponse::Range(RangeResponse::default()),
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
    fn deletes_of_empty_ranges_are_gathered_at_every_depth() {
        let delete = |key: &'static str| {
            op(RequestUnion::RequestDeleteRange(
                proto::DeleteRangeRequest {
                    key: Bytes::from_static(key.as_bytes()),
                    range_end: Bytes::from_static(b"a"),
                    prev_kv: true,
                },
            ))
        };
        let nested = op(RequestUnion::RequestTxn(proto::TxnRequest {
            failure: vec![delete("z"), put_op("b")],
            ..proto::TxnRequest::default()
        }));
        let txn = proto::TxnRequest {
            success: vec![delete("x"), nested],
            failure: vec![delete("y")],
            ..proto::TxnRequest::default()
        };
        let plan = txn_plan(&txn, 128).unwrap();
        let asked: Vec<&Bytes> = plan.empty_deletes.iter().map(|it| &it.key).collect();
        assert_eq!(asked, ["x", "z", "y"]);
        assert!(plan.empty_deletes.iter().all(|it| it.prev_kv));
        let asked = permissions_to_delete(&plan.empty_deletes, 2);
        let counts: Vec<_> = asked.iter().map(|txn| txn.failure.len()).collect();
        assert_eq!(counts, [2, 1]);
        assert!(
            asked
                .iter()
                .all(|txn| txn.compare.is_empty() && txn.success.is_empty())
        );
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
        let there = api::KeyValue::default();
        let holds = |compare: &proto::Compare| {
            let plan = compare_plan(compare).unwrap();
            // The key may be there all the same.
            let outcome = plan.holds(None);
            assert_eq!(plan.holds(Some(&there)), outcome);
            outcome
        };
        assert!(holds(&compare(proto::CompareTarget::Version, None)));
        let one = Some(CompareUnion::Version(1));
        assert!(!holds(&compare(proto::CompareTarget::Version, one)));
        assert!(!holds(&compare(proto::CompareTarget::Value, None)));
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
