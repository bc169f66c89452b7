//! Questions about client leases: which ones, and how long they have, comes from the driver, with a
//! permit; the rest is read here, from a snapshot opened after that.

use std::sync::Arc;

use super::stream::{PendingKind, RequestTiming, Session};
use super::{Sessions, not_readable};
use crate::api::{
    Class, Consistency, Error, ErrorKind, LeaseInfo, LeaseListResponse, Request, RequestKind,
    Response, ResponseBody,
};
use crate::kv;
use crate::node::{Captured, Demand, QueriedLeases, ReadBuffer, ReadResult};
use crate::raft::ReadPermit;
use crate::server::disk::store::StoreError;
use crate::server::mail::outbox::{Delivery, Stages};
use crate::server::metrics::stopwatch;
use crate::server::session::auth::Principal;
use crate::server::session::budget::ScanPermit;
use crate::server::session::point_read::behind;

/// What a question about leases wants to know.
#[derive(Clone, Debug)]
pub(super) struct LeaseQuestion {
    request: Request,
    consistency: Consistency,
    min_revision: i64,
}

impl LeaseQuestion {
    /// The question that `call` asks, if it is one that a snapshot answers.
    pub(super) fn of(call: &crate::api::Call) -> Option<Self> {
        let asks = call.request.spec().kind == RequestKind::LeaseRead;
        asks.then(|| Self {
            request: call.request.clone(),
            consistency: call.consistency,
            min_revision: call.min_revision,
        })
    }

    pub(super) fn method(&self) -> &'static str {
        self.request.method()
    }
}

impl Session {
    /// The driver let a question go: the store is read on a thread of its own, because a page, or
    /// the keys of one lease, may be many.
    pub(super) fn release_leases(
        &mut self,
        timing: RequestTiming,
        frame: u64,
        permit: Option<ReadPermit>,
        asked: QueriedLeases,
        question: LeaseQuestion,
    ) {
        let method = question.method();
        let is_leased = permit.is_some_and(|permit| permit.lease_remaining().is_some());
        if question.consistency == Consistency::LeaseOnly && !is_leased {
            return self.reply(frame, method, Err(super::lease_invalid()));
        }
        if !self.is_readable() {
            return self.reply(frame, method, Err(not_readable()));
        }
        let bytes = self.shared.limits.reply_bytes_max;
        // It has waited already: it is not turned away half way.
        if !self.register(
            timing,
            frame,
            Class::KeepAlive,
            PendingKind::Other(method),
            bytes,
        ) {
            return;
        }
        let (shared, outbox) = (self.shared.clone(), self.outbox.clone());
        let principal = self.principal().clone();
        let places = self.connection_scans();
        tokio::spawn(async move {
            let place = ScanPermit::take(places).await;
            let slot = shared.scans.clone().acquire_owned().await;
            let node = shared.clone();
            let read = tokio::task::spawn_blocking(move || {
                let _slot = slot;
                let looked = Some(stopwatch());
                (
                    looked,
                    answer(&node, Some(&principal), permit, &asked, &question),
                )
            });
            let mut stages = Stages::default();
            let read = read.await.map(|(looked, result)| {
                stages.looked = looked;
                result
            });
            let result = match read {
                Ok(Ok(result)) => result,
                Ok(Err(error)) => Err(shared.fail(error)),
                Err(_) => Err(Error::not_applied(
                    ErrorKind::Internal,
                    "the read of the store was aborted",
                )),
            };
            outbox.deliver_after(stages, frame, Delivery::Scanned(result, Box::new(place)));
        });
    }
}

/// To `who`, or to the node itself.
pub(super) fn answer(
    shared: &Arc<Sessions>,
    principal: Option<&Principal>,
    permit: Option<ReadPermit>,
    asked: &QueriedLeases,
    question: &LeaseQuestion,
) -> Result<Result<Response, Error>, StoreError> {
    let demand = Demand {
        consistency: question.consistency,
        min_revision: question.min_revision,
    };
    let captured = Captured::released(&demand, permit, &shared.published, ReadBuffer::default());
    let ReadResult::Answer(answer) = shared.look_at_snapshot(captured)? else {
        return Ok(Err(behind()));
    };
    let (header, path) = (shared.header_of(&answer), answer.read().path);
    let snapshot = answer.into_found();
    let request = || question.request.clone();
    if let Some(principal) = principal
        && let Err(refusal) = shared.access.admit(principal, &snapshot, request)?
    {
        return Ok(Err(refusal));
    }
    shared.metrics.reads.total[path].increment(1);
    let wants_keys = matches!(
        question.request,
        Request::LeaseTimeToLive { keys: true, .. }
    );
    // Header and fields around the keys.
    let bytes_max = shared.limits.reply_bytes_max.saturating_sub(2 << 10);
    let mut found = Vec::new();
    for lease in &asked.leases {
        if let Some(info) = kv::lease_info(&snapshot, lease.id, wants_keys, bytes_max)? {
            found.push(LeaseInfo {
                remaining_ms: lease.remaining_ms,
                ..info
            });
        }
    }
    let body = match &question.request {
        Request::LeaseList(list) => {
            let wanted = |info: &LeaseInfo| {
                (list.owner.is_empty() || list.owner == info.owner)
                    && info.name.starts_with(&list.name_prefix)
            };
            found.retain(wanted);
            ResponseBody::LeaseList(LeaseListResponse {
                leases: found,
                next: asked.next,
            })
        }
        _ => match found.pop() {
            Some(info) => ResponseBody::LeaseTimeToLive(Box::new(info)),
            None => {
                return Ok(Err(Error::not_applied(
                    ErrorKind::LeaseNotFound,
                    "there is no such lease: it was never granted, or has ended",
                )));
            }
        },
    };
    Ok(Ok(Response { header, body }))
}

/// Notes when a lease was asked for, to be shown: whatever the client says, and nothing depends on
/// it.
pub(super) fn stamp(request: &mut Request) {
    if let Request::LeaseGrant(grant) | Request::PutWithNewLease(grant, _) = request {
        grant.granted_at_ms = millis_since_1970();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "shown to people, and nothing is decided by it"
)]
fn millis_since_1970() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}
