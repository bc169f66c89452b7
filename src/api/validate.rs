//! The checks of a request that need no store.

use super::limits::{Limits, validate_delete, validate_put, validate_read};
use super::{
    Error, ErrorKind, LeaseTarget, RangeRequest, Request, TXN_DEPTH_MAX, auth, lease, member,
};

/// Checks the parts of a request that need no store: sizes and shapes.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] or [`ErrorKind::RequestTooLarge`], outcome *not applied*, with a
/// sentence that says what is allowed.
pub fn validate(request: &Request, limits: &Limits) -> Result<(), Error> {
    match request {
        Request::Range(range) => validate_read(range, limits),
        Request::DeleteRange(delete) => validate_delete(delete, limits),
        Request::RangePage(range) => validate_page(range, limits),
        Request::Put(put) => validate_put(put, limits),
        Request::Txn(txn) => {
            txn.validate(limits, TXN_DEPTH_MAX, limits.txn_ops_max, &mut 0)?;
            txn.check_keys()
        }
        Request::Compact(compaction) => {
            if compaction.revision < 1 {
                return Err(Error::not_applied(
                    ErrorKind::InvalidArgument,
                    format!(
                        "cannot compact to revision {}: revisions are positive",
                        compaction.revision
                    ),
                ));
            }
            Ok(())
        }
        Request::LeaseGrant(grant) => lease::validate_grant(grant),
        Request::LeaseRevoke(lease) => lease::validate_id(lease.id, false),
        Request::LeaseKeepAlive(leases) => lease::validate_keep_alive(leases),
        Request::LeaseTimeToLive { id, .. } => lease::validate_id(*id, false),
        Request::LeaseNamed { name } => lease::validate_name(name),
        Request::LeaseList(list) => lease::validate_id(list.after, true),
        Request::LeaseUpdateTtl { lease, ttl_ms } => {
            lease::validate_id(lease.id, false)?;
            lease::validate_ttl(*ttl_ms)
        }
        Request::PutWithNewLease(grant, put) => {
            lease::validate_grant(grant)?;
            if put.lease != LeaseTarget::None || put.ignore_lease {
                return Err(Error::not_applied(
                    ErrorKind::InvalidArgument,
                    "the put names a lease but is to be attached to the lease being granted: leave \
                     it out",
                ));
            }
            validate_put(put, limits)
        }
        Request::OpenSession
        | Request::Status
        | Request::MoveLeader { .. }
        | Request::LeaderLeaseReport
        | Request::ForwardToLeader { .. }
        | Request::WatchCancel { .. }
        | Request::WatchProgress { .. }
        | Request::Snapshot(_)
        | Request::MemberList
        | Request::MemberRemove { .. }
        | Request::MemberPromote { .. }
        | Request::AlarmList
        | Request::AlarmSet { .. } => Ok(()),
        Request::MemberAdd(add) => member::validate_add(add),
        Request::MemberUpdate(update) => member::validate_update(update),
        Request::Watch { watch, .. } => watch.validate(limits),
        Request::Auth(auth) => auth::validate(auth, limits),
    }
}

fn validate_page(range: &RangeRequest, limits: &Limits) -> Result<(), Error> {
    validate_read(range, limits)?;
    if range.is_count_only() || range.sort().is_some() {
        return Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            "a range read page by page is in key order and cannot be counted: request it in one \
             reply to sort or count it",
        ));
    }
    Ok(())
}
