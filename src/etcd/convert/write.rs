//! Puts and deletes.

use super::{Keys, key_value};
use crate::api;
use crate::api::{KeyRange, LeaseRef, LeaseTarget};
use crate::etcd::errors::{EMPTY_KEY, LEASE_PROVIDED, VALUE_PROVIDED};
use crate::etcd::proto;
use crate::etcd::status::Status;

/// A put.
///
/// # Errors
/// As etcd refuses it.
pub(crate) fn put(put: &proto::PutRequest) -> Result<api::PutRequest, Status> {
    if put.key.is_empty() {
        return Err(EMPTY_KEY);
    }
    if put.ignore_value && !put.value.is_empty() {
        return Err(VALUE_PROVIDED);
    }
    if put.ignore_lease && put.lease != 0 {
        return Err(LEASE_PROVIDED);
    }
    Ok(api::PutRequest {
        key: put.key.clone(),
        value: put.value.clone(),
        prev_kv: put.prev_kv,
        ignore_value: put.ignore_value,
        ignore_lease: put.ignore_lease,
        lease: match put.lease {
            0 => LeaseTarget::None,
            // Refused when it is carried out, as in etcd: there never was such a lease.
            id if id < 0 => LeaseTarget::Lease(LeaseRef {
                id: 1,
                grant_index: u64::MAX,
            }),
            id => LeaseTarget::Lease(LeaseRef::id(id)),
        },
    })
}

/// The answer to a put.
pub(crate) fn put_response(
    header: proto::ResponseHeader,
    put: api::PutResponse,
) -> proto::PutResponse {
    proto::PutResponse {
        header: Some(header),
        prev_kv: put.prev_kv.map(key_value),
    }
}

/// A delete, as far as it is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeletePlan {
    /// What is asked. Of a range without keys, what its client has to be permitted: its first key.
    pub(crate) request: api::DeleteRangeRequest,
    /// The range has no keys: nothing is to be deleted.
    pub(crate) is_empty: bool,
}

impl DeletePlan {
    /// Of a request.
    ///
    /// # Errors
    /// As etcd refuses it.
    pub(crate) fn of(delete: &proto::DeleteRangeRequest) -> Result<Self, Status> {
        if delete.key.is_empty() {
            return Err(EMPTY_KEY);
        }
        let (range, is_empty) = match Keys::of(&delete.key, &delete.range_end) {
            Keys::None => (KeyRange::Single, true),
            Keys::Some(range) => (range, false),
        };
        let request = api::DeleteRangeRequest {
            key: delete.key.clone(),
            range,
            prev_kv: delete.prev_kv,
        };
        Ok(Self { request, is_empty })
    }
}

/// Transactions that delete nothing, and are permitted to whom these deletes are: each has some of them in the
/// branch that is not taken. At most `ops_max` operations each.
pub(crate) fn permissions_to_delete(
    deletes: &[api::DeleteRangeRequest],
    ops_max: usize,
) -> Vec<api::TxnRequest> {
    let some = deletes.chunks(ops_max.max(1));
    let txn = |some: &[api::DeleteRangeRequest]| api::TxnRequest {
        failure: some.iter().cloned().map(api::TxnOp::DeleteRange).collect(),
        ..api::TxnRequest::default()
    };
    some.map(txn).collect()
}

/// The answer to a delete.
pub(crate) fn delete_response(
    header: proto::ResponseHeader,
    delete: api::DeleteRangeResponse,
) -> proto::DeleteRangeResponse {
    proto::DeleteRangeResponse {
        header: Some(header),
        deleted: i64::try_from(delete.deleted).unwrap_or(i64::MAX),
        prev_kvs: delete.prev_kvs.into_iter().map(key_value).collect(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn puts_are_refused_as_etcd_refuses_them() {
        let key = Bytes::from_static(b"k");
        let base = proto::PutRequest {
            key: key.clone(),
            ..proto::PutRequest::default()
        };
        assert_eq!(put(&proto::PutRequest::default()), Err(EMPTY_KEY));
        let with_value = proto::PutRequest {
            ignore_value: true,
            value: key.clone(),
            ..base.clone()
        };
        assert_eq!(put(&with_value), Err(VALUE_PROVIDED));
        let with_lease = proto::PutRequest {
            ignore_lease: true,
            lease: 7,
            ..base.clone()
        };
        assert_eq!(put(&with_lease), Err(LEASE_PROVIDED));
        let negative = proto::PutRequest { lease: -1, ..base };
        let LeaseTarget::Lease(lease) = put(&negative).unwrap().lease else {
            panic!("it names a lease");
        };
        assert!(!lease.means(7), "{lease:?}");
    }
}
