//! Queries of client leases: the driver answers which leases, and their remaining time, with a permit;
//! the rest is read here, from a snapshot opened after that.

use super::refusals::behind;
use super::shared::Sessions;
use crate::api::{
    Call, Consistency, Error, ErrorKind, LeaseInfo, LeaseListResponse, Request, RequestKind,
    Response, ResponseBody,
};
use crate::kv;
use crate::node::{Captured, Demand, QueriedLeases, ReadBuffer, ReadResult};
use crate::raft::ReadPermit;
use crate::server::disk::store::StoreError;
use crate::server::session::auth::Principal;

/// What a question about leases wants to know.
#[derive(Clone, Debug)]
pub(super) struct LeaseQuestion {
    request: Request,
    pub(super) consistency: Consistency,
    min_revision: i64,
}

impl LeaseQuestion {
    /// The question that `call` asks, if it is one that a snapshot answers.
    pub(super) fn of(call: &Call) -> Option<Self> {
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

/// Answers `principal`, or the node itself.
pub(super) fn answer(
    shared: &Sessions,
    principal: Option<&Principal>,
    permit: Option<ReadPermit>,
    asked: &QueriedLeases,
    question: &LeaseQuestion,
) -> Result<Result<Response, Error>, StoreError> {
    let demand = Demand {
        consistency: question.consistency,
        min_revision: question.min_revision,
    };
    let (published, buffer) = (&shared.node.published, ReadBuffer::default());
    let captured = Captured::released(&demand, permit, published, buffer);
    let ReadResult::Answer(answer) = shared.look_at_snapshot(captured)? else {
        return Ok(Err(behind()));
    };
    let (header, path) = (shared.node.header_of(&answer), answer.read().path);
    let snapshot = answer.into_found();
    let request = || question.request.clone();
    if let Some(principal) = principal
        && let Err(refusal) = shared.serving.access.admit(principal, &snapshot, request)?
    {
        return Ok(Err(refusal));
    }
    shared.accounting.metrics.reads.total[path].increment(1);
    let wants_keys = matches!(
        question.request,
        Request::LeaseTimeToLive { keys: true, .. }
    );
    // Header and fields around the keys.
    let reply_bytes_max = shared.limits.requests.reply_bytes_max;
    let bytes_max = reply_bytes_max.saturating_sub(2 << 10);
    let mut found = Vec::new();
    for lease in &asked.leases {
        if let Some(info) = kv::lease_info(&snapshot, lease.id, wants_keys, bytes_max)? {
            found.push(LeaseInfo {
                remaining_ms: lease.remaining_ms,
                renewals: lease.renewals.map(|renewals| renewals.count),
                is_extended: lease.renewals.is_some_and(|renewals| renewals.is_extended),
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

/// Stamps the request for a lease with the time, which is shown to operators and decides nothing; what
/// the client sent is overwritten.
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
