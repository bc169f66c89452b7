//! The execution of transactions.
//!
//! First every comparison is judged, down to the nested ones of the branches that are taken,
//! against the store as it is: that makes a plan. Then the plan is executed in an overlay above the
//! store, where each operation sees the previous ones; only if nothing was refused do the changes
//! reach the store, all at once. A transaction that only reads needs no overlay and no log:
//! [`read_txn`].
//!
//! A transaction runs on the thread that applies entries, so the keys it covers are bounded
//! ([`WRITE_KEYS_MAX`], [`WRITE_BYTES_MAX`]), and so is its reply ([`ANSWER_BYTES_MAX`]); it is
//! never truncated, but refused.
//!
//! [`WRITE_KEYS_MAX`]: super::WRITE_KEYS_MAX
//! [`WRITE_BYTES_MAX`]: super::WRITE_BYTES_MAX

use crate::api::{
    Compare, CompareTarget, Error, ErrorKind, KeyRange, Limits, RangeRequest, RangeResponse, TxnOp,
    TxnOpResponse, TxnRequest, TxnResponse,
};

use super::hash::HashedStore;
use super::mvcc::{ANSWER_BYTES_MAX, Cost, Write};
use super::read::RangeReply;
use super::record::key_value;
use super::scan::Scan;
use super::store::{Overlay, Space, Store, View};
use super::{mvcc, read};

/// What `txn`, which only reads, finds in `view`.
///
/// # Errors
/// The outer error is the store's and is fatal for the reader. Inside, why the transaction is
/// refused; a transaction that could write is, with [`ErrorKind::Internal`].
pub fn read_txn<V: View>(
    view: &V,
    txn: &TxnRequest,
) -> Result<Result<TxnResponse, Error>, V::Error> {
    let mut cost = Cost::default();
    match Plan::make(view, &mut cost, txn)? {
        Ok(plan) => look(view, &mut cost, &plan),
        Err(refusal) => Ok(Err(refusal)),
    }
}

/// Executes `txn`, or changes nothing.
pub(super) fn execute<S: Store>(
    store: &mut HashedStore<'_, S>,
    write: &mut Write,
    txn: &TxnRequest,
) -> Result<Result<TxnResponse, Error>, S::Error> {
    // The proposer has checked this by the rules of its release, which may differ.
    if let Err(refusal) = txn.check_keys() {
        return Ok(Err(refusal));
    }
    let plan = match Plan::make(store, &mut write.cost, txn)? {
        Ok(plan) => plan,
        Err(refusal) => return Ok(Err(refusal)),
    };
    whole(store, write, |above, draft| carry_out(above, draft, &plan))
}

/// Applies all of `change`, or nothing if it is refused.
pub(super) fn whole<S: Store, T>(
    store: &mut HashedStore<'_, S>,
    write: &mut Write,
    change: impl FnOnce(
        &mut HashedStore<'_, Overlay<&HashedStore<'_, S>>>,
        &mut Write,
    ) -> Result<Result<T, Error>, S::Error>,
) -> Result<Result<T, Error>, S::Error> {
    let mut overlay = Overlay::new(&*store);
    let mut above = HashedStore::above(&mut overlay, store.sum());
    let mut draft = write.draft();
    let done = match change(&mut above, &mut draft)? {
        Ok(done) => done,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let (sum, lease_keys) = (above.sum(), above.lease_keys());
    let changes = overlay.into_changes().collect();
    store.adopt(changes, sum, lease_keys);
    *write = draft;
    Ok(Ok(done))
}

/// Which branches of a transaction are taken.
struct Plan<'a> {
    succeeded: bool,
    steps: Vec<Step<'a>>,
}

enum Step<'a> {
    Op(&'a TxnOp),
    Txn(Plan<'a>),
}

impl<'a> Plan<'a> {
    fn make<V: View>(
        view: &V,
        cost: &mut Cost,
        txn: &'a TxnRequest,
    ) -> Result<Result<Self, Error>, V::Error> {
        let mut succeeded = true;
        for compare in &txn.compare {
            match holds(view, cost, compare)? {
                Ok(true) => {}
                Ok(false) => {
                    succeeded = false;
                    break;
                }
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        let ops = if succeeded {
            &txn.success
        } else {
            &txn.failure
        };
        let mut steps = Vec::with_capacity(ops.len());
        for op in ops {
            steps.push(match op {
                TxnOp::Txn(txn) => match Self::make(view, cost, txn)? {
                    Ok(plan) => Step::Txn(plan),
                    Err(refusal) => return Ok(Err(refusal)),
                },
                op => Step::Op(op),
            });
        }
        Ok(Ok(Self { succeeded, steps }))
    }
}

/// Whether `compare` holds in `view`.
fn holds<V: View>(
    view: &V,
    cost: &mut Cost,
    compare: &Compare,
) -> Result<Result<bool, Error>, V::Error> {
    if compare.range == KeyRange::Single {
        let Some(record) = view.get(Space::Current, &compare.key)? else {
            return Ok(Ok(compare.holds(None)));
        };
        let counted = cost.visit(1, compare.key.len() + record.len());
        let kv = key_value(compare.key.clone(), record)?;
        return Ok(counted.map(|()| compare.holds(Some(&kv))));
    }
    let request = RangeRequest {
        key: compare.key.clone(),
        range: compare.range.clone(),
        keys_only: !matches!(compare.target, CompareTarget::Value(_)),
        ..RangeRequest::default()
    };
    let mut scan = Scan::inside(&request);
    loop {
        let chunk = match scan.step(view, &read::STEP)? {
            Ok(chunk) => chunk,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Err(refusal) = cost.visit(chunk.keys, chunk.bytes) {
            return Ok(Err(refusal));
        }
        if chunk.kvs.iter().any(|kv| !compare.holds(Some(kv))) {
            return Ok(Ok(false));
        }
        if chunk.finished {
            let is_empty = scan.count() == 0;
            return Ok(Ok(!is_empty || compare.holds(None)));
        }
    }
}

/// Executes `plan` on a store that may be discarded.
fn carry_out<S: Store>(
    store: &mut HashedStore<'_, S>,
    write: &mut Write,
    plan: &Plan<'_>,
) -> Result<Result<TxnResponse, Error>, S::Error> {
    let mut response = TxnResponse {
        succeeded: plan.succeeded,
        responses: Vec::with_capacity(plan.steps.len()),
    };
    for step in &plan.steps {
        let answer = match step {
            Step::Op(TxnOp::Put(put)) => {
                mvcc::put(store, write, put.clone())?.map(TxnOpResponse::Put)
            }
            Step::Op(TxnOp::DeleteRange(delete)) => {
                mvcc::delete_range(store, write, delete)?.map(TxnOpResponse::DeleteRange)
            }
            Step::Op(op) => look_at(store, &mut write.cost, op)?,
            Step::Txn(plan) => carry_out(store, write, plan)?.map(TxnOpResponse::Txn),
        };
        match answer {
            Ok(answer) => response.responses.push(answer),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
    Ok(Ok(response))
}

/// Executes `plan`, which only reads.
fn look<V: View>(
    view: &V,
    cost: &mut Cost,
    plan: &Plan<'_>,
) -> Result<Result<TxnResponse, Error>, V::Error> {
    let mut response = TxnResponse {
        succeeded: plan.succeeded,
        responses: Vec::with_capacity(plan.steps.len()),
    };
    for step in &plan.steps {
        let answer = match step {
            Step::Op(op) => look_at(view, cost, op)?,
            Step::Txn(plan) => look(view, cost, plan)?.map(TxnOpResponse::Txn),
        };
        match answer {
            Ok(answer) => response.responses.push(answer),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
    Ok(Ok(response))
}

fn look_at<V: View>(
    view: &V,
    cost: &mut Cost,
    op: &TxnOp,
) -> Result<Result<TxnOpResponse, Error>, V::Error> {
    match op {
        TxnOp::Range(request) => Ok(range(view, cost, request)?.map(TxnOpResponse::Range)),
        TxnOp::Put(_) | TxnOp::DeleteRange(_) | TxnOp::Txn(_) => Ok(Err(Error::not_applied(
            ErrorKind::Internal,
            "a transaction that may write was handed to the readers",
        ))),
    }
}

/// A range inside of a transaction: it sees what the transaction has written, and is answered whole.
fn range<V: View>(
    view: &V,
    cost: &mut Cost,
    request: &RangeRequest,
) -> Result<Result<RangeResponse, Error>, V::Error> {
    let mut scan = match Scan::begin_inside(view, request)? {
        Ok(scan) => scan,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut reply = RangeReply::new(request, &WHOLE);
    loop {
        let chunk = match scan.step(view, &read::STEP)? {
            Ok(chunk) => chunk,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Err(refusal) = cost.visit(chunk.keys, chunk.bytes) {
            return Ok(Err(refusal));
        }
        let finished = chunk.finished;
        reply.add(&mut scan, chunk);
        if finished {
            break;
        }
    }
    let response = reply.finish(&scan);
    for kv in &response.kvs {
        if let Err(refusal) = cost.answer(read::weight(kv)) {
            return Ok(Err(refusal));
        }
    }
    Ok(Ok(response))
}

/// What a range in a transaction may hold before it is counted: a little more than what is refused.
const WHOLE: Limits = Limits {
    reply_bytes_max: 2 * ANSWER_BYTES_MAX as usize,
    ..Limits::DEFAULT
};
