//! The service of keys.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::caller::{Caller, PATIENCE};
use super::grpc::Pieces;
use super::large::PIECE_BYTES;
use super::pages;
use super::pages::{WholeRange, unexpected};
use crate::api;
use crate::api::{Consistency, Request, Response, ResponseBody};
use crate::etcd::convert;
use crate::etcd::convert::{DeletePlan, RangePlan};
use crate::etcd::errors::{COMPACTED, Method, STOPPED, TIMEOUT};
use crate::etcd::proto;
use crate::etcd::status::Status;

/// How often it is looked whether compacted history is gone.
const REMOVED_EVERY: Duration = Duration::from_millis(10);

/// Range.
pub(super) async fn range(caller: Caller, range: proto::RangeRequest) -> Result<Pieces, Status> {
    let plan = RangePlan::of(&range)?;
    let consistency = caller.consistency(range.serializable);
    let WholeRange {
        header,
        range,
        held,
    } = pages::read(&caller, &plan, consistency).await?;
    let header = caller.header(&header);
    let Some(held) = held else {
        return Ok(convert::range_response(header, range).into());
    };
    // It takes its time, and other calls of the connection do not wait for it.
    let encode = move || in_pieces(convert::range_response(header, range));
    let pieces = tokio::task::spawn_blocking(encode).await;
    Ok(Pieces {
        pieces: pieces.map_err(|_| STOPPED)?,
        held: Some(held),
    })
}

/// The encoding of `response`, which is that of its parts one after the other.
fn in_pieces(response: proto::RangeResponse) -> VecDeque<Bytes> {
    let proto::RangeResponse {
        header,
        kvs,
        more,
        count,
    } = response;
    let mut pieces = VecDeque::new();
    let mut part = proto::RangeResponse {
        header,
        ..proto::RangeResponse::default()
    };
    let mut bytes = 0;
    for kv in kvs {
        bytes += kv.key.len() + kv.value.len();
        part.kvs.push(kv);
        if bytes >= PIECE_BYTES {
            pieces.push_back(Bytes::from(part.encode_to_vec()));
            (part, bytes) = (proto::RangeResponse::default(), 0);
        }
    }
    (part.more, part.count) = (more, count);
    pieces.push_back(Bytes::from(part.encode_to_vec()));
    pieces
}

/// Put.
pub(super) async fn put(
    caller: Caller,
    put: proto::PutRequest,
) -> Result<proto::PutResponse, Status> {
    let request = Request::Put(convert::put(&put)?);
    let Response { header, body } = write(&caller, request, Method::Put).await?;
    let ResponseBody::Put(put) = body else {
        return Err(unexpected());
    };
    Ok(convert::put_response(caller.header(&header), put))
}

/// DeleteRange.
pub(super) async fn delete_range(
    caller: Caller,
    delete: proto::DeleteRangeRequest,
) -> Result<proto::DeleteRangeResponse, Status> {
    let DeletePlan { request, is_empty } = DeletePlan::of(&delete)?;
    if is_empty {
        let header = caller.header(&may_delete(&caller, &[request]).await?);
        let nothing = api::DeleteRangeResponse::default();
        return Ok(convert::delete_response(header, nothing));
    }
    let request = Request::DeleteRange(request);
    let Response { header, body } = write(&caller, request, Method::Delete).await?;
    let ResponseBody::DeleteRange(deleted) = body else {
        return Err(unexpected());
    };
    Ok(convert::delete_response(caller.header(&header), deleted))
}

/// That the caller may make these deletes, of which none is made. The header says where the keys are then.
async fn may_delete(
    caller: &Caller,
    deletes: &[api::DeleteRangeRequest],
) -> Result<api::ResponseHeader, Status> {
    let ops_max = caller.sessions.limits.requests.txn_ops_max;
    let mut header = api::ResponseHeader::default();
    for txn in convert::permissions_to_delete(deletes, ops_max) {
        header = write(caller, Request::Txn(txn), Method::Delete)
            .await?
            .header;
    }
    Ok(header)
}

/// Txn.
pub(super) async fn txn(
    caller: Caller,
    txn: proto::TxnRequest,
) -> Result<proto::TxnResponse, Status> {
    let plan = convert::txn_plan(&txn, caller.sessions.limits.requests.txn_ops_max)?;
    if !plan.empty_deletes.is_empty() {
        may_delete(&caller, &plan.empty_deletes).await?;
    }
    let consistency = caller.consistency(convert::is_serializable(&txn));
    let request = Request::Txn(plan.request.clone());
    let Response { header, body } = caller.ask(request, consistency, Method::Txn).await?;
    let ResponseBody::Txn(response) = body else {
        return Err(unexpected());
    };
    Ok(plan.answer(caller.header(&header), response))
}

/// Compact.
pub(super) async fn compact(
    caller: Caller,
    compaction: proto::CompactionRequest,
) -> Result<proto::CompactionResponse, Status> {
    if compaction.revision < 1 {
        return Err(COMPACTED);
    }
    let request = Request::Compact(api::CompactionRequest::at(compaction.revision));
    // Only what is waited for afterwards may take longer than other calls.
    let response = tokio::time::timeout(PATIENCE, write(&caller, request, Method::Compact));
    let response = response.await.unwrap_or(Err(TIMEOUT))?;
    if compaction.physical {
        let removed = &caller.sessions.serving.removed;
        // The deadline of the call ends this.
        while removed.through() < compaction.revision {
            tokio::time::sleep(REMOVED_EVERY).await;
        }
    }
    Ok(proto::CompactionResponse {
        header: Some(caller.header(&response.header)),
    })
}

async fn write(caller: &Caller, request: Request, method: Method) -> Result<Response, Status> {
    caller.ask(request, Consistency::Linearizable, method).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_encoding_of_the_whole() {
        let kv = |number: u8| proto::KeyValue {
            key: Bytes::from(vec![number]),
            value: Bytes::from(vec![number; PIECE_BYTES / 3]),
            ..proto::KeyValue::default()
        };
        let response = proto::RangeResponse {
            header: Some(proto::ResponseHeader::default()),
            kvs: (0..8).map(kv).collect(),
            more: true,
            count: 9,
        };
        let pieces = in_pieces(response.clone());
        assert!(pieces.len() > 2);
        let whole: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        assert_eq!(whole, response.encode_to_vec());
    }
}
