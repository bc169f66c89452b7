//! Slow work that a request needs before it goes to the driver, on a thread that may block: a password is
//! hashed, or the owners of the leases that it renews are looked up.

use std::sync::Arc;
use std::time::Instant;

use super::pending::timeout;
use super::shared::Sessions;
use crate::api::{Call, Error, ErrorKind, Request};
use crate::kv::access::Author;
use crate::server::disk::store::StoreError;
use crate::server::mail::Mail;
use crate::server::mail::outbox::{Delivery, Outbox};
use crate::server::metrics::{ExpiredIn, stopwatch};
use crate::server::session::auth;
use crate::server::session::auth::Principal;
use crate::wire::RequestContext;

/// A request that is on its way to the driver.
pub(super) struct BlockingTask {
    pub(super) shared: Arc<Sessions>,
    pub(super) principal: Arc<Principal>,
    /// Where its answer goes, and to which request.
    pub(super) outbox: Arc<Outbox>,
    pub(super) frame: u64,
    pub(super) author: Option<Author>,
    /// What the request says of itself.
    pub(super) context: RequestContext,
    /// When the request arrived: its timeout runs from then on.
    pub(super) arrived: Instant,
    /// Whether it may go to the leader.
    pub(super) forwards: bool,
}

impl BlockingTask {
    /// Does the work, then sends the request to the driver or delivers its refusal.
    pub(super) fn spawn(self, mut call: Call) {
        tokio::spawn(async move {
            let turn = match &call.request {
                Request::Auth(_) => self.shared.serving.access.hashing(),
                _ => self.shared.limits.keep_alives.clone(),
            };
            let turn = turn.acquire_owned().await;
            if stopwatch().saturating_duration_since(self.arrived) >= timeout(&call) {
                // The client has given up.
                let work = &self.shared.accounting.metrics.work;
                work.expired[ExpiredIn::Queue].increment(1);
                let refusal = Error::not_applied(
                    ErrorKind::DeadlineExceeded,
                    "the deadline passed while the request was queued: this node is overloaded",
                );
                return self
                    .outbox
                    .deliver(self.frame, Delivery::Reply(Err(refusal)));
            }
            let (shared, principal) = (self.shared.clone(), self.principal.clone());
            let done = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                let done = prepare(&shared, &principal, &mut call);
                done.map(|done| done.map(|()| call))
            });
            let refusal = match done.await {
                Ok(Ok(Ok(call))) => {
                    let mail = Mail::Request {
                        call,
                        arrived: self.arrived,
                        author: self.author,
                        context: self.context,
                        outbox: self.outbox,
                        frame: self.frame,
                    };
                    return self.shared.send([mail], self.forwards);
                }
                Ok(Ok(Err(refusal))) => refusal,
                Ok(Err(error)) => self.shared.fail(error),
                Err(_) => Error::not_applied(ErrorKind::Internal, "the request was aborted"),
            };
            self.outbox
                .deliver(self.frame, Delivery::Reply(Err(refusal)));
        });
    }
}

fn prepare(
    shared: &Sessions,
    principal: &Principal,
    call: &mut Call,
) -> Result<Result<(), Error>, StoreError> {
    if let Request::Auth(auth) = &mut call.request {
        return Ok(auth::prepare(auth));
    }
    let snapshot = shared.serving.store.snapshot()?;
    shared
        .serving
        .access
        .admit(principal, &snapshot, || call.request.clone())
}
