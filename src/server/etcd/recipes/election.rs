//! Elections.

use std::time::Duration;

use hyper::Response;
use tokio::sync::mpsc;

use super::line;
use super::line::Place;
use crate::api::{EventKind, KeyRange, WatchRequest};
use crate::etcd::convert;
use crate::etcd::errors::{NO_ELECTED, NO_LEADER_KEY, NOT_ELECTED, of_observer};
use crate::etcd::proto;
use crate::etcd::proto::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};
use crate::etcd::status::Status;
use crate::server::etcd::body::RequestBody;
use crate::server::etcd::caller::Caller;
use crate::server::etcd::grpc::{Reply, StreamFrame, message_frame, streaming};
use crate::server::etcd::lease;
use crate::server::etcd::stream::{Requests, send_answers};

/// Answers that may wait until the client reads.
const WAITING_MAX: usize = 4;
/// A lease is renewed after this part of its time to live.
const RENEWALS: u32 = 3;
/// How long to wait before a renewal is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// Campaign: answers once the client leads, with the header of when it joined, as etcd does. Its lease is renewed
/// meanwhile.
pub(in crate::server::etcd) async fn campaign(
    caller: Caller,
    request: CampaignRequest,
) -> Result<CampaignResponse, Status> {
    let lease = line::lease_or_new(&caller, request.lease).await?;
    let prefix = line::prefix(&request.name);
    let (mut place, found) = Place::take(&caller, &prefix, lease, request.value.clone()).await?;
    // A key that was put there without the lease stays when that ends.
    let ends_with_lease = found.as_ref().is_none_or(|kv| kv.lease == lease);
    if found.is_some_and(|kv| kv.value != request.value) {
        let put = line::put(&place.key, request.value, lease);
        let changed = line::when_created(&caller, &place.key, place.revision, put, None).await;
        if !changed.as_ref().is_ok_and(|changed| changed.succeeded) {
            place.leave().await;
            return changed.and(Err(NOT_ELECTED));
        }
    }
    let won = tokio::select! {
        won = place.wait(&prefix) => won?,
        () = renew(&caller, lease), if ends_with_lease => None,
    };
    won.ok_or(NOT_ELECTED)?;
    let header = place.header;
    let leader = LeaderKey {
        name: request.name,
        key: place.key.clone(),
        rev: place.revision,
        lease,
    };
    place.keep();
    Ok(CampaignResponse {
        header,
        leader: Some(leader),
    })
}

/// Renews a lease until it has ended.
async fn renew(caller: &Caller, lease: i64) {
    loop {
        let renewed = lease::renew(&caller.again(), &[lease]).await;
        let wait = match renewed.map(|renewed| renewed.ttls.first().copied().unwrap_or_default()) {
            Ok(ttl) if ttl < 1 => return,
            Ok(ttl) => Duration::from_secs(ttl.unsigned_abs()) / RENEWALS,
            Err(_) => RETRY,
        };
        tokio::time::sleep(wait).await;
    }
}

/// Proclaim.
pub(in crate::server::etcd) async fn proclaim(
    caller: Caller,
    request: ProclaimRequest,
) -> Result<ProclaimResponse, Status> {
    let leader = request.leader.ok_or(NO_LEADER_KEY)?;
    let put = line::put(&leader.key, request.value, leader.lease);
    let put = line::when_created(&caller, &leader.key, leader.rev, put, None).await?;
    match put.succeeded {
        true => Ok(ProclaimResponse { header: put.header }),
        false => Err(NOT_ELECTED),
    }
}

/// Resign. Who leads no more has resigned already.
pub(in crate::server::etcd) async fn resign(
    caller: Caller,
    request: ResignRequest,
) -> Result<ResignResponse, Status> {
    let leader = request.leader.ok_or(NO_LEADER_KEY)?;
    let delete = line::delete(&leader.key);
    let deleted = line::when_created(&caller, &leader.key, leader.rev, delete, None);
    let header = deleted.await?.header;
    Ok(ResignResponse { header })
}

/// Leader.
pub(in crate::server::etcd) async fn leader(
    caller: Caller,
    request: LeaderRequest,
) -> Result<LeaderResponse, Status> {
    let first = line::by_creation(&line::prefix(&request.name));
    let (header, first) = line::read_first(&caller, first).await?;
    Ok(LeaderResponse {
        header: Some(header),
        kv: Some(convert::key_value(first.ok_or(NO_ELECTED)?)),
    })
}

/// Observe: who leads and what that leader says, now and whenever it changes.
pub(in crate::server::etcd) fn observe(caller: Caller, body: RequestBody) -> Response<Reply> {
    send_answers(
        caller,
        WAITING_MAX,
        streaming,
        |caller, answers| async move { tell(&caller, body, &answers).await },
    )
}

/// Tells the client of leaders, until it is gone; else, how that ended.
async fn tell(
    caller: &Caller,
    body: RequestBody,
    answers: &mpsc::Sender<StreamFrame>,
) -> Option<Result<(), Status>> {
    let mut requests = Requests::new(caller.clone(), body);
    let request: LeaderRequest = match requests.only().await {
        Ok(request) => request,
        Err(status) => return Some(Err(status)),
    };
    let prefix = line::prefix(&request.name);
    // What the client was told last: a key, and its revision. The next leader's may be older.
    let mut told = None;
    loop {
        let read = line::read_first(&caller.again(), line::by_creation(&prefix)).await;
        let (header, first) = match read {
            Ok(read) => read,
            Err(status) => return Some(of_observer(status)),
        };
        let Some(leader) = first else {
            let any = WatchRequest {
                range: KeyRange::Prefix,
                no_delete: true,
                ..line::watch(&prefix, header.revision)
            };
            line::events(caller, any).await;
            continue;
        };
        let key = leader.key.clone();
        let newest = Some((key.clone(), leader.mod_revision));
        if told != newest {
            told = newest;
            let kv = convert::key_value(leader);
            send(answers, header, kv).await?;
        }
        let mut next = header.revision;
        let mut leads = true;
        while leads {
            let batches = line::events(caller, line::watch(&key, next)).await;
            leads = !batches.is_empty();
            for batch in &batches {
                next = batch.revision();
                for event in batch.events() {
                    if event.kind == EventKind::Delete {
                        leads = false;
                    } else if leads {
                        told = Some((key.clone(), next));
                        let header = proto::ResponseHeader {
                            revision: next,
                            ..header
                        };
                        send(answers, header, convert::key_value(event.kv.clone())).await?;
                    }
                }
            }
        }
    }
}

/// None once the client is gone.
async fn send(
    answers: &mpsc::Sender<StreamFrame>,
    header: proto::ResponseHeader,
    kv: proto::KeyValue,
) -> Option<()> {
    let leader = LeaderResponse {
        header: Some(header),
        kv: Some(kv),
    };
    answers.send(message_frame(&leader)).await.ok()
}
