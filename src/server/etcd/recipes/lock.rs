//! Locks.

use bytes::Bytes;

use super::line;
use super::line::Place;
use crate::etcd::errors::SESSION_EXPIRED;
use crate::etcd::proto;
use crate::etcd::proto::{DeleteRangeRequest, LockRequest, LockResponse};
use crate::etcd::status::Status;
use crate::server::etcd::caller::Caller;
use crate::server::etcd::kv;

/// Lock: answers once the client has the lock. The lease is not renewed meanwhile.
pub(in crate::server::etcd) async fn lock(
    caller: Caller,
    request: LockRequest,
) -> Result<LockResponse, Status> {
    let lease = line::lease_or_new(&caller, request.lease).await?;
    let prefix = line::prefix(&request.name);
    let (mut place, _) = Place::take(&caller, &prefix, lease, Bytes::new()).await?;
    let header = place.wait(&prefix).await?.ok_or(SESSION_EXPIRED)?;
    let key = place.key.clone();
    place.keep();
    Ok(LockResponse {
        header: Some(header),
        key,
    })
}

/// Unlock.
pub(in crate::server::etcd) async fn unlock(
    caller: Caller,
    request: proto::UnlockRequest,
) -> Result<proto::UnlockResponse, Status> {
    let delete = DeleteRangeRequest {
        key: request.key,
        ..DeleteRangeRequest::default()
    };
    let header = kv::delete_range(caller, delete).await?.header;
    Ok(proto::UnlockResponse { header })
}
