//! Queries of client leases: the driver answers which leases, and their remaining time, with a permit;
//! the rest is read here, from a snapshot opened after that.

use std::sync::Arc;

use super::refusals::{behind, read_aborted};
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
use crate::wire::RequestContext;

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
    let bytes_max = shared.key_bytes_max();
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
            None => return Ok(Err(not_found())),
        },
    };
    Ok(Ok(Response { header, body }))
}

impl Sessions {
    /// Answers a query of leases by the leader's word, within its time. What the client may know is judged
    /// here, by rules that are no older than what the leader answered; the keys of a lease are read here, too.
    ///
    /// # Errors
    /// As the leader, or the rules, refuse it.
    pub(super) async fn relay_lease_query(
        self: &Arc<Self>,
        principal: Arc<Principal>,
        call: Call,
        context: RequestContext,
    ) -> Result<Response, Error> {
        let asked = match call.request {
            Request::LeaseTimeToLive { id, .. } => Request::LeaseTimeToLive { id, keys: false },
            ref other => other.clone(),
        };
        let asked = Call {
            request: asked,
            ..call.clone()
        };
        let Response { header, body } = self.relay(asked, context).await?;
        let turn = self.limits.scans.clone().acquire_owned().await;
        let node = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            node.add_keys(&principal, &call.request, body)
        });
        match read.await {
            Ok(Ok(body)) => body.map(|body| Response { header, body }),
            Ok(Err(error)) => Err(self.fail(error)),
            Err(_) => Err(read_aborted()),
        }
    }

    /// What the leader answered to `request`, with the keys of the lease if it asks for them, if `principal`
    /// may know it. This node has applied what the leader had applied.
    fn add_keys(
        &self,
        principal: &Principal,
        request: &Request,
        mut body: ResponseBody,
    ) -> Result<Result<ResponseBody, Error>, StoreError> {
        let snapshot = self.serving.store.snapshot()?;
        let admitted = self
            .serving
            .access
            .admit(principal, &snapshot, || request.clone())?;
        if let Err(refusal) = admitted {
            return Ok(Err(refusal));
        }
        if let (Request::LeaseTimeToLive { keys: true, .. }, ResponseBody::LeaseTimeToLive(info)) =
            (request, &mut body)
        {
            let bytes_max = self.key_bytes_max();
            match kv::lease_info(&snapshot, info.id, true, bytes_max)? {
                Some(found) if found.grant_index == info.grant_index => {
                    **info = LeaseInfo {
                        remaining_ms: info.remaining_ms,
                        renewals: info.renewals,
                        is_extended: info.is_extended,
                        ..found
                    };
                }
                // It has ended since.
                _ => return Ok(Err(not_found())),
            }
        }
        Ok(Ok(body))
    }

    /// The bytes of keys for which a reply has room, beside its header and fields.
    fn key_bytes_max(&self) -> usize {
        let reply_bytes_max = self.limits.requests.reply_bytes_max;
        reply_bytes_max.saturating_sub(2 << 10)
    }
}

fn not_found() -> Error {
    Error::not_applied(
        ErrorKind::LeaseNotFound,
        "there is no such lease: it was never granted, or has ended",
    )
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
