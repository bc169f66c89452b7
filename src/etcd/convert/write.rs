//! Puts and deletes.

use super::{Keys, key_value};
use crate::api;
use crate::api::{LeaseRef, LeaseTarget};
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

/// A delete; `None` if its range has no keys.
///
/// # Errors
/// As etcd refuses it.
pub(crate) fn delete_plan(
    delete: &proto::DeleteRangeRequest,
) -> Result<Option<api::DeleteRangeRequest>, Status> {
    if delete.key.is_empty() {
        return Err(EMPTY_KEY);
    }
    Ok(match Keys::of(&delete.key, &delete.range_end) {
        Keys::None => None,
        Keys::Some(range) => Some(api::DeleteRangeRequest {
            key: delete.key.clone(),
            range,
            prev_kv: delete.prev_kv,
        }),
    })
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
