//! A line of keys below a prefix, each with a lease; the oldest is the first. The keys are those that
//! etcd's own recipes write, so that these and others meet in one line.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::api;
use crate::api::{Consistency, KeyRange, RangeRequest, SortOrder, SortTarget, WatchRequest};
use crate::etcd::convert::RangePlan;
use crate::etcd::errors::STOPPED;
use crate::etcd::proto;
use crate::etcd::proto::{
    Compare, CompareTarget, CompareUnion, DeleteRangeRequest, LeaseGrantRequest, PutRequest,
    RequestOp, RequestUnion, ResponseHeader, ResponseUnion, TxnRequest, TxnResponse,
};
use crate::etcd::status::Status;
use crate::server::etcd::caller::{Caller, PATIENCE};
use crate::server::etcd::pages::unexpected;
use crate::server::etcd::{kv, lease, pages};
use crate::server::watch::WatchStep;
use crate::watch::{Batch, WatcherEvent};

/// The time to live of a lease that the client leaves to us, in seconds.
const TTL: i64 = 60;
/// How long to wait before a watch is tried again that the node could not serve.
const RETRY: Duration = Duration::from_millis(100);

/// Below what the keys of `name` are.
pub(super) fn prefix(name: &[u8]) -> Bytes {
    [name, b"/"].concat().into()
}

/// The lease `given`, or a new one if none is.
pub(super) async fn lease_or_new(caller: &Caller, given: i64) -> Result<i64, Status> {
    if given != 0 {
        return Ok(given);
    }
    let grant = LeaseGrantRequest { ttl: TTL, id: 0 };
    Ok(lease::grant(caller.clone(), grant).await?.id)
}

/// A place in a line. Given up when dropped, unless it is kept. One that was there before this call is kept as long
/// as it is not known to wait behind others: an earlier call may hold it, and goes on holding it.
pub(super) struct Place {
    caller: Caller,
    pub(super) key: Bytes,
    /// When the key was created.
    pub(super) revision: i64,
    /// Of the answer to joining the line.
    pub(super) header: Option<ResponseHeader>,
    is_kept: bool,
}

impl Place {
    /// Joins the line below `prefix` with `value`. A lease has one place: if it is in the line already, its
    /// record is given as well.
    pub(super) async fn take(
        caller: &Caller,
        prefix: &Bytes,
        lease: i64,
        value: Bytes,
    ) -> Result<(Self, Option<proto::KeyValue>), Status> {
        let key = Bytes::from([&prefix[..], format!("{lease:x}").as_bytes()].concat());
        let put = put(&key, value, lease);
        let get = RequestUnion::RequestRange(proto::RangeRequest {
            key: key.clone(),
            ..proto::RangeRequest::default()
        });
        let (told, taken) = oneshot::channel::<Result<(Self, Option<proto::KeyValue>), Status>>();
        let caller = caller.clone();
        // Apart: it is done even if the caller goes meanwhile, and then the place is not taken over, and is given up.
        tokio::spawn(async move {
            let mut told = told;
            let mut joined = std::pin::pin!(when_created(&caller, &key, 0, put, Some(get)));
            let joined = tokio::select! {
                joined = joined.as_mut() => joined,
                () = told.closed() => match tokio::time::timeout(PATIENCE, joined).await {
                    Ok(joined) => joined,
                    // It was not made, or the lease ends it.
                    Err(_) => return,
                },
            };
            let _ = told.send(joined.and_then(|joined| {
                let found = found(&joined)?;
                let revision = match &found {
                    Some(kv) => kv.create_revision,
                    None => joined.header.map_or(0, |header| header.revision),
                };
                let place = Self {
                    caller: caller.clone(),
                    key: key.clone(),
                    revision,
                    header: joined.header,
                    is_kept: found.is_some(),
                };
                Ok((place, found))
            }));
        });
        taken.await.unwrap_or(Err(STOPPED))
    }

    /// Waits until all that were there before are gone. The header of the look that showed it, if the place
    /// is still there: it is gone if its lease has ended.
    pub(super) async fn wait(&mut self, prefix: &Bytes) -> Result<Option<ResponseHeader>, Status> {
        loop {
            let caller = &self.caller;
            let earlier = RangeRequest {
                max_create_revision: self.revision - 1,
                sort_order: SortOrder::Descend,
                ..by_creation(prefix)
            };
            let (header, earlier) = read_first(caller, earlier).await?;
            let Some(earlier) = earlier else {
                break;
            };
            // No call holds it.
            self.is_kept = false;
            let gone = WatchRequest {
                no_put: true,
                ..watch(&earlier.key, header.revision)
            };
            events(&self.caller, gone).await;
        }
        let own = RangeRequest {
            key: self.key.clone(),
            ..RangeRequest::default()
        };
        let (header, own) = read_first(&self.caller, own).await?;
        let is_there = own.is_some_and(|kv| kv.create_revision == self.revision);
        Ok(is_there.then_some(header))
    }

    /// Gives it up, and is back once it is gone.
    pub(super) async fn leave(mut self) {
        let caller = self.caller.again();
        // If it fails, the lease ends it. Who goes meanwhile leaves it to the drop.
        self.is_kept = false;
        let _ = when_created(&caller, &self.key, self.revision, delete(&self.key), None).await;
        self.is_kept = true;
    }

    /// It stays until its lease ends, or the client gives it up.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let (caller, key) = (self.caller.again(), self.key.clone());
        let revision = self.revision;
        let deadline = caller.deadline();
        tokio::spawn(async move {
            let deleted = when_created(&caller, &key, revision, delete(&key), None);
            // If it fails, the lease ends it.
            let _ = tokio::time::timeout_at(deadline, deleted).await;
        });
    }
}

/// Does `then` if `key` was created at this revision, 0 if it is not there; else `otherwise`.
pub(super) async fn when_created(
    caller: &Caller,
    key: &Bytes,
    revision: i64,
    then: RequestUnion,
    otherwise: Option<RequestUnion>,
) -> Result<TxnResponse, Status> {
    let op = |request| RequestOp {
        request: Some(request),
    };
    let txn = TxnRequest {
        compare: vec![Compare {
            target: CompareTarget::Create as i32,
            key: key.clone(),
            target_union: Some(CompareUnion::CreateRevision(revision)),
            ..Compare::default()
        }],
        success: vec![op(then)],
        failure: otherwise.map(op).into_iter().collect(),
    };
    kv::txn(caller.clone(), txn).await
}

pub(super) fn put(key: &Bytes, value: Bytes, lease: i64) -> RequestUnion {
    RequestUnion::RequestPut(PutRequest {
        key: key.clone(),
        value,
        lease,
        ..PutRequest::default()
    })
}

pub(super) fn delete(key: &Bytes) -> RequestUnion {
    RequestUnion::RequestDeleteRange(DeleteRangeRequest {
        key: key.clone(),
        ..DeleteRangeRequest::default()
    })
}

/// What the read of [`Place::take`] found; none if it was not made.
fn found(joined: &TxnResponse) -> Result<Option<proto::KeyValue>, Status> {
    if joined.succeeded {
        return Ok(None);
    }
    match joined.responses.first().and_then(|op| op.response.as_ref()) {
        Some(ResponseUnion::ResponseRange(range)) if !range.kvs.is_empty() => {
            Ok(range.kvs.first().cloned())
        }
        _ => Err(unexpected()),
    }
}

/// The key below `prefix` that was created first.
pub(super) fn by_creation(prefix: &Bytes) -> RangeRequest {
    RangeRequest {
        key: prefix.clone(),
        range: KeyRange::Prefix,
        limit: 1,
        sort_target: SortTarget::CreateRevision,
        sort_order: SortOrder::Ascend,
        ..RangeRequest::default()
    }
}

/// The first record that a linearizable read finds.
pub(super) async fn read_first(
    caller: &Caller,
    request: RangeRequest,
) -> Result<(ResponseHeader, Option<api::KeyValue>), Status> {
    let plan = RangePlan {
        request,
        is_empty: false,
    };
    let read = pages::read(caller, &plan, Consistency::Linearizable).await?;
    let first = read.range.kvs.into_iter().next();
    Ok((caller.header(&read.header), first))
}

/// A watch of a key after what a read saw.
pub(super) fn watch(key: &Bytes, revision: i64) -> WatchRequest {
    WatchRequest {
        key: key.clone(),
        start_revision: revision + 1,
        ..WatchRequest::default()
    }
}

/// Waits for events of a watch; none if the node could not serve it, and the state is to be looked at
/// again.
pub(super) async fn events(caller: &Caller, request: WatchRequest) -> Vec<std::sync::Arc<Batch>> {
    let mut watches = caller.client().watches(&caller.sessions.serving.watches);
    watches.open(1, request, caller.identity());
    loop {
        match watches.next().await {
            WatchStep::Opened { .. } | WatchStep::Synced { .. } => {}
            WatchStep::Refused { .. } => break,
            WatchStep::Events {
                watcher, events, ..
            } => {
                let batches = events.into_iter().filter_map(|event| match event {
                    WatcherEvent::Events(batch) => Some(batch),
                    _ => None,
                });
                let batches: Vec<_> = batches.collect();
                if batches.is_empty() {
                    break;
                }
                watches.sent(vec![watcher]);
                return batches;
            }
        }
    }
    tokio::time::sleep(RETRY).await;
    Vec::new()
}
