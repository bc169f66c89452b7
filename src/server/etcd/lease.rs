//! The service of leases.

use std::time::Duration;

use super::caller::Caller;
use super::pages::unexpected;
use crate::api::{
    Consistency, LeaseGrantRequest, LeaseKept, LeaseListRequest, LeaseRef, Request, Response,
    ResponseBody, ResponseHeader,
};
use crate::etcd::errors::{LEASE_EXISTS, LEASE_NOT_FOUND, Method, TTL_TOO_LARGE, is_worth_waiting};
use crate::etcd::proto;
use crate::etcd::status::Status;
use crate::kv;

/// The shortest and the longest time to live that etcd grants, in seconds.
const TTL_MIN: i64 = 2;
const TTL_MAX: i64 = 9_000_000_000;
/// How often it is looked whether all keys of a lease are gone.
const REVOKED_EVERY: Duration = Duration::from_millis(20);
/// How long to wait before a renewal that was not decided is asked for again.
const UNDECIDED_PAUSE: Duration = Duration::from_millis(20);

/// LeaseGrant.
pub(super) async fn grant(
    caller: Caller,
    grant: proto::LeaseGrantRequest,
) -> Result<proto::LeaseGrantResponse, Status> {
    if grant.ttl > TTL_MAX {
        return Err(TTL_TOO_LARGE);
    }
    if grant.id < 0 {
        return Err(LEASE_NOT_FOUND);
    }
    loop {
        // A log index would meet the ids that clients choose.
        let id = match grant.id {
            0 => fastrand::i64(1..),
            given => given,
        };
        let request = Request::LeaseGrant(LeaseGrantRequest {
            id,
            ttl_ms: grant.ttl.max(TTL_MIN) * 1_000,
            ..LeaseGrantRequest::default()
        });
        let Response { header, body } = match ask(&caller, request).await {
            Err(status) if status == LEASE_EXISTS && grant.id == 0 => continue,
            answered => answered?,
        };
        let ResponseBody::LeaseGrant(granted) = body else {
            return Err(unexpected());
        };
        return Ok(proto::LeaseGrantResponse {
            header: Some(caller.header(&header)),
            id: granted.id,
            ttl: seconds(granted.ttl_ms),
            error: String::new(),
        });
    }
}

/// LeaseRevoke: answers once all keys of the lease are gone at this node, also if it was revoked before.
pub(super) async fn revoke(
    caller: Caller,
    revoke: proto::LeaseRevokeRequest,
) -> Result<proto::LeaseRevokeResponse, Status> {
    let id = known(revoke.id)?;
    let request = Request::LeaseRevoke(LeaseRef::id(id));
    let Response { mut header, body } = match ask(&caller, request).await {
        Err(status) if status == LEASE_NOT_FOUND => {
            gone(&caller, id).await?;
            return Err(status);
        }
        answered => answered?,
    };
    let ResponseBody::LeaseRevoke(revoked) = body else {
        return Err(unexpected());
    };
    if revoked.is_partial {
        // That of the first keys alone was there before.
        let revision = gone(&caller, id).await?;
        header = caller.sessions.node.header(revision);
    }
    Ok(proto::LeaseRevokeResponse {
        header: Some(caller.header(&header)),
    })
}

/// Waits until a lease that has ended is gone at this node, with its keys, and returns the revision of the state that
/// shows it: what the store says of itself may be one behind it. The deadline of the call ends this.
async fn gone(caller: &Caller, id: i64) -> Result<i64, Status> {
    let mut first = None;
    loop {
        let found =
            caller.look(move |view| Ok((kv::lease_info(view, id, false, 0)?, view.revision())));
        let (lease, revision) = found.await?;
        let granted = lease.map(|lease| lease.grant_index);
        // Another one may have its id by then.
        if granted.is_none_or(|granted| *first.get_or_insert(granted) != granted) {
            return Ok(revision);
        }
        tokio::time::sleep(REVOKED_EVERY).await;
    }
}

/// Requests of LeaseKeepAlive, which are renewed together. Answers the first of them that are decided.
pub(super) async fn keep_alive(
    caller: Caller,
    renewals: Vec<proto::LeaseKeepAliveRequest>,
) -> Result<Vec<proto::LeaseKeepAliveResponse>, Status> {
    // The revision is that from before the renewal.
    let node = &caller.sessions.node;
    let before = node.header(caller.sessions.serving.store.revision());
    let ids: Vec<i64> = renewals.iter().map(|renewal| renewal.id).collect();
    let Renewals { ttls, header } = renew(&caller, &ids).await?;
    let header = caller.header_at(header.as_ref().unwrap_or(&before), before.revision);
    let answer = |(id, ttl)| proto::LeaseKeepAliveResponse {
        header: Some(header),
        id,
        ttl,
    };
    Ok(ids.into_iter().zip(ttls).map(answer).collect())
}

/// What came of renewals.
pub(super) struct Renewals {
    /// How many seconds each lease has, in their order, up to the first that is not decided yet: one that has ended,
    /// or never was, has zero.
    pub(super) ttls: Vec<i64>,
    /// The leader's, if it was asked: of the leadership that permitted them.
    header: Option<ResponseHeader>,
}

/// Renews these leases. Waits until one is decided.
///
/// # Errors
/// As etcd refuses one of them. Others may have been renewed.
pub(super) async fn renew(caller: &Caller, ids: &[i64]) -> Result<Renewals, Status> {
    let is_id = |id: &&i64| **id > 0;
    loop {
        let leases: Vec<LeaseRef> = ids
            .iter()
            .filter(is_id)
            .map(|id| LeaseRef::id(*id))
            .collect();
        let (mut kept, mut header) = (Vec::new(), None);
        if !leases.is_empty() {
            let answered = ask(caller, Request::LeaseKeepAlive(leases)).await?;
            let ResponseBody::LeaseKeepAlive(answers) = answered.body else {
                return Err(unexpected());
            };
            (kept, header) = (answers, Some(answered.header));
        }
        let mut kept = kept.into_iter();
        let mut ttls = Vec::new();
        for id in ids {
            let result = match is_id(&id) {
                true => kept.next(),
                false => Some(LeaseKept::NotFound),
            };
            match result {
                Some(LeaseKept::Renewed { ttl_ms, .. }) => ttls.push(seconds(ttl_ms)),
                Some(LeaseKept::NotFound | LeaseKept::Expired | LeaseKept::Revoked) => ttls.push(0),
                Some(LeaseKept::Undecided) | None => break,
            }
        }
        if !ttls.is_empty() || ids.is_empty() {
            return Ok(Renewals { ttls, header });
        }
        tokio::time::sleep(UNDECIDED_PAUSE).await;
    }
}

/// LeaseTimeToLive: the leader's word. A lease that is not there, or is ending, has a time to live of -1.
pub(super) async fn time_to_live(
    caller: Caller,
    query: proto::LeaseTimeToLiveRequest,
) -> Result<proto::LeaseTimeToLiveResponse, Status> {
    let gone = |header| proto::LeaseTimeToLiveResponse {
        header: Some(header),
        id: query.id,
        ttl: -1,
        ..proto::LeaseTimeToLiveResponse::default()
    };
    let node = &caller.sessions.node;
    let current = || node.header(caller.sessions.serving.store.revision());
    if query.id < 1 {
        return Ok(gone(caller.header(&current())));
    }
    let request = Request::LeaseTimeToLive {
        id: query.id,
        keys: query.keys,
    };
    let (header, info, left) = loop {
        let Response { header, body } = match ask_here(&caller, request.clone()).await {
            Err(status) if status == LEASE_NOT_FOUND => {
                // It may have been granted elsewhere, and not be known here yet.
                let before = current();
                match remaining_at_leader(&caller, query.id).await? {
                    None if node.published.term() == before.raft_term => {
                        return Ok(gone(caller.header(&before)));
                    }
                    // The answer does not say which of the terms it is of.
                    None => {}
                    Some(_) => tokio::time::sleep(UNDECIDED_PAUSE).await,
                }
                continue;
            }
            answered => answered?,
        };
        let ResponseBody::LeaseTimeToLive(info) = body else {
            return Err(unexpected());
        };
        // Only the leader knows how much is left.
        let left = match info.remaining_ms {
            Some(left) => Some(left),
            None => remaining_at_leader(&caller, query.id).await?,
        };
        break (header, info, left);
    };
    let Some(left) = left.filter(|_| !info.is_revoking) else {
        return Ok(gone(caller.header(&header)));
    };
    Ok(proto::LeaseTimeToLiveResponse {
        header: Some(caller.header(&header)),
        id: info.id,
        ttl: i64::try_from(left / 1_000).unwrap_or(i64::MAX),
        granted_ttl: seconds(info.granted_ttl_ms),
        keys: info.keys,
    })
}

/// How much time the leader gives a lease that this node may show to the caller; `None` if it is gone there.
async fn remaining_at_leader(caller: &Caller, id: i64) -> Result<Option<u64>, Status> {
    loop {
        let patience = caller.left();
        let error = match caller.sessions.ask_leader_for_lease(id, patience).await {
            Ok(left) => return Ok(left),
            Err(error) => error,
        };
        if !is_worth_waiting(&error) {
            return Err(caller.status_of(&error, Method::Lease));
        }
        // The deadline of the call ends this.
        tokio::time::sleep(UNDECIDED_PAUSE).await;
    }
}

/// LeaseLeases: the ids of all, as this node knows them.
pub(super) async fn leases(
    caller: Caller,
    _: proto::LeaseLeasesRequest,
) -> Result<proto::LeaseLeasesResponse, Status> {
    let mut leases = Vec::new();
    let mut after = 0;
    loop {
        let request = Request::LeaseList(LeaseListRequest {
            after,
            ..LeaseListRequest::default()
        });
        let Response { header, body } = ask_here(&caller, request).await?;
        let ResponseBody::LeaseList(page) = body else {
            return Err(unexpected());
        };
        let ids = page.leases.iter().map(|lease| lease.id);
        leases.extend(ids.map(|id| proto::LeaseStatus { id }));
        match page.next {
            Some(next) => after = next,
            None => {
                return Ok(proto::LeaseLeasesResponse {
                    header: Some(caller.header(&header)),
                    leases,
                });
            }
        }
    }
}

/// An id that a lease may have.
fn known(id: i64) -> Result<i64, Status> {
    match id > 0 {
        true => Ok(id),
        false => Err(LEASE_NOT_FOUND),
    }
}

/// A time to live as etcd gives it: rounded down, at least one second.
fn seconds(ttl_ms: u64) -> i64 {
    i64::try_from(ttl_ms / 1_000).unwrap_or(i64::MAX).max(1)
}

async fn ask(caller: &Caller, request: Request) -> Result<Response, Status> {
    caller
        .ask(request, Consistency::Linearizable, Method::Lease)
        .await
}

/// A question about the leases that this node has applied.
async fn ask_here(caller: &Caller, request: Request) -> Result<Response, Status> {
    caller
        .ask(request, Consistency::Serializable, Method::Lease)
        .await
}
