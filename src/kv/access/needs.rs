//! The permissions that each request needs for what it names; those that do not depend on its
//! arguments are in its [`Spec`](crate::api::Spec).
//!
//! A request without an entry here needs the role root. A transaction needs the permissions of all
//! its comparisons and of both branches at every depth: whether it is allowed must not depend on
//! the contents of the store.

use crate::api::{
    AuthRequest, Compare, DeleteRangeRequest, Error, KeyRange, LeaseTarget, Needs, PutRequest,
    RangeRequest, Request, TxnOp, TxnRequest, WatchRequest,
};
use crate::kv::command::Operation;
use crate::kv::store::View;

use super::Identity;
use super::need::Need;
use super::policy::{Rules, judge};

/// What `request` needs.
pub fn needs(request: &Request) -> Vec<Need<'_>> {
    match request.spec().needs {
        Needs::WhatItNames => of_named(request),
        fixed => vec![of_fixed(fixed)],
    }
}

/// What a request needs for the keys, leases, users and roles that it names.
fn of_named(request: &Request) -> Vec<Need<'_>> {
    let mut needs = Vec::new();
    match request {
        Request::Range(range) | Request::RangePage(range) => of_range(range, &mut needs),
        Request::Put(put) | Request::PutWithNewLease(_, put) => of_put(put, &mut needs),
        Request::DeleteRange(delete) => of_delete(delete, &mut needs),
        Request::Txn(txn) => of_txn(txn, &mut needs),
        Request::Watch { watch, .. } => of_watch(watch, &mut needs),
        Request::LeaseRevoke(lease) => needs.push(Need::LeaseEnd(*lease)),
        Request::LeaseUpdateTtl { lease, .. } => needs.push(Need::LeaseUse(*lease)),
        Request::LeaseKeepAlive(leases) => {
            needs.push(Need::Anything);
            needs.extend(leases.iter().map(|lease| Need::LeaseUse(*lease)));
        }
        Request::LeaseTimeToLive { id, .. } => {
            needs.extend([Need::Anything, Need::LeaseKeys(*id)]);
        }
        Request::Auth(auth) => of_auth(auth, &mut needs),
        _ => needs.push(of_fixed(Needs::WhatItNames)),
    }
    needs
}

/// Whether `identity` may execute `operation`, by the rules in `view`.
///
/// # Errors
/// The outer error is the store's; the inner one is the reason for a refusal.
pub(in crate::kv) fn permit<V: View>(
    view: &V,
    identity: &Identity,
    operation: &Operation,
) -> Result<Result<(), Error>, V::Error> {
    let rules = match Rules::of(view, identity)? {
        Ok(rules) => rules,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut needs = Vec::new();
    match operation {
        Operation::Put(put) => of_put(put, &mut needs),
        Operation::DeleteRange(delete) => of_delete(delete, &mut needs),
        Operation::Compact(_) | Operation::SetAlarm { .. } => needs.push(Need::Root),
        Operation::Txn(txn) => of_txn(txn, &mut needs),
        Operation::LeaseGrant(_) => needs.push(Need::AnyWrite),
        Operation::LeaseRevoke(lease) => needs.push(Need::LeaseEnd(*lease)),
        Operation::LeaseUpdateTtl { lease, .. } => needs.push(Need::LeaseUse(*lease)),
        Operation::PutWithNewLease { put, .. } => of_put(put, &mut needs),
        Operation::Auth(auth) => of_auth(auth, &mut needs),
    }
    judge(view, &rules, &needs)
}

/// Whether `identity` may open a session, by the rules in `view`.
///
/// # Errors
/// The outer error is the store's; the inner one is the reason for a refusal.
pub(in crate::kv) fn permit_session<V: View>(
    view: &V,
    identity: &Identity,
) -> Result<Result<(), Error>, V::Error> {
    match Rules::of(view, identity)? {
        Ok(rules) => judge(view, &rules, &needs(&Request::OpenSession)),
        Err(refusal) => Ok(Err(refusal)),
    }
}

fn of_range<'a>(range: &'a RangeRequest, needs: &mut Vec<Need<'a>>) {
    needs.push(Need::Read(&range.key, &range.range));
}

fn of_put<'a>(put: &'a PutRequest, needs: &mut Vec<Need<'a>>) {
    needs.push(Need::Write(&put.key, &KeyRange::Single));
    if put.prev_kv {
        needs.push(Need::Read(&put.key, &KeyRange::Single));
    }
    match &put.lease {
        LeaseTarget::None => {}
        LeaseTarget::Lease(lease) => needs.push(Need::LeaseAttach(*lease)),
        LeaseTarget::Name(name) => needs.push(Need::LeaseAttachNamed(name)),
    }
}

fn of_delete<'a>(delete: &'a DeleteRangeRequest, needs: &mut Vec<Need<'a>>) {
    needs.push(Need::Write(&delete.key, &delete.range));
    if delete.prev_kv {
        needs.push(Need::Read(&delete.key, &delete.range));
    }
}

fn of_watch<'a>(watch: &'a WatchRequest, needs: &mut Vec<Need<'a>>) {
    needs.push(Need::Read(&watch.key, &watch.range));
}

/// The needs of the comparisons and of both branches, at every depth, which decoding has bounded.
fn of_txn<'a>(txn: &'a TxnRequest, needs: &mut Vec<Need<'a>>) {
    // Even an empty transaction needs a user with some permission.
    needs.push(Need::Anything);
    let compared = |compare: &'a Compare| Need::Read(&compare.key, &compare.range);
    needs.extend(txn.compare.iter().map(compared));
    for op in txn.success.iter().chain(&txn.failure) {
        match op {
            TxnOp::Range(range) => of_range(range, needs),
            TxnOp::Put(put) => of_put(put, needs),
            TxnOp::DeleteRange(delete) => of_delete(delete, needs),
            TxnOp::Txn(txn) => of_txn(txn, needs),
        }
    }
}

fn of_auth<'a>(auth: &'a AuthRequest, needs: &mut Vec<Need<'a>>) {
    needs.push(match (auth.spec().needs, auth) {
        (Needs::WhatItNames, AuthRequest::UserGet { name }) => Need::User(name),
        (Needs::WhatItNames, AuthRequest::RoleGet { name }) => Need::Role(name),
        (fixed, _) => of_fixed(fixed),
    });
}

fn of_fixed(needs: Needs) -> Need<'static> {
    match needs {
        Needs::Nothing => Need::Nothing,
        Needs::Anything => Need::Anything,
        Needs::AnyWrite => Need::AnyWrite,
        // Default to root, so that a forgotten request is not open to everyone.
        Needs::Root | Needs::WhatItNames => Need::Root,
    }
}
