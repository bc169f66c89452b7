//! Requests that come from inside: of the admin port, and of the node when it stops. They take the
//! road of every other request, through consensus, without a connection. No rules hold for them: they
//! are in the node's own name, and who may ask for them is for the admin port to say.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::refusals::not_readable;
use super::shared::Sessions;
use crate::api;
use crate::api::{
    Call, Consistency, Error, ErrorKind, RangeRequest, Request, Response, SnapshotCall,
    SnapshotReply,
};
use crate::kv::access::Author;
use crate::raft::Configuration;
use crate::server::mail::Mail;
use crate::server::mail::outbox::{Delivery, Outbox};
use crate::server::metrics::stopwatch;
use crate::server::session::lease_query;
use crate::server::session::lease_query::LeaseQuestion;

/// What comes on top of a request's own deadline before it is given up: the driver may be gone.
const GRACE: Duration = Duration::from_millis(500);
/// How often it is looked whether the state has caught up.
const CATCH_UP_LOOK: Duration = Duration::from_millis(10);

impl Sessions {
    /// Asks for something that consensus or the table of leases answers, within `patience`.
    ///
    /// # Errors
    /// As a client would be told; `Unsupported` for what only a session of a client answers.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        request: Request,
        consistency: Consistency,
        patience: Duration,
    ) -> Result<Response, Error> {
        api::validate(&request, &self.limits.requests)?;
        let call = Call {
            timeout_ms: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
            consistency,
            min_revision: 0,
            session: None,
            request,
        };
        let question = LeaseQuestion::of(&call);
        match (self.hand_in(call, patience).await?, question) {
            (Delivery::Reply(result), _) => {
                result.map_err(|error| self.node.with_leader_address(error))
            }
            (Delivery::Leases(permit, asked), Some(question)) => {
                if !self
                    .node
                    .readable
                    .load(std::sync::atomic::Ordering::Acquire)
                {
                    return Err(not_readable());
                }
                let node = Arc::clone(self);
                let read = move || lease_query::answer(&node, None, permit, &asked, &question);
                match tokio::task::spawn_blocking(read).await {
                    Ok(Ok(result)) => result,
                    Ok(Err(error)) => Err(self.fail(error)),
                    Err(_) => Err(Error::not_applied(
                        ErrorKind::Internal,
                        "the read of the store was aborted",
                    )),
                }
            }
            _ => Err(Error::not_applied(
                ErrorKind::Unsupported,
                "this request is only answered for clients",
            )),
        }
    }

    /// Whether a linearizable read would be served here now: by the lease, or by the word of the
    /// leader, once this node has applied what it says.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn confirm(&self, patience: Duration) -> Result<(), Error> {
        let lease = self.node.published.lease();
        if lease.is_some_and(|cell| cell.is_valid(self.node.clock.now())) {
            return Ok(());
        }
        let range = RangeRequest {
            key: b"leasehold".as_slice().into(),
            count_only: true,
            ..RangeRequest::default()
        };
        let call = Call {
            timeout_ms: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
            consistency: Consistency::Linearizable,
            min_revision: 0,
            session: None,
            request: Request::Range(range),
        };
        match self.hand_in(call, patience).await? {
            Delivery::Reply(Err(error)) => Err(self.node.with_leader_address(error)),
            _ => Ok(()),
        }
    }

    /// Does what `call` asks of a snapshot. One that begins has all that was acknowledged before.
    ///
    /// # Errors
    /// As a client would be told.
    pub(crate) async fn export(
        self: &Arc<Self>,
        call: SnapshotCall,
        patience: Duration,
    ) -> Result<SnapshotReply, Error> {
        if call == SnapshotCall::Begin && !planted!(ExportUnconfirmed) {
            self.confirm(patience).await?;
            self.catch_up(patience).await?;
        }
        // In turn with those who scan.
        let turn = self.limits.scans.clone().acquire_owned().await;
        let node = Arc::clone(self);
        let read = move || {
            let _turn = turn;
            if !node.node.integrity.is_sound() {
                return Ok(Err(node.node.integrity.refusal()));
            }
            let snapshot = node.serving.store.snapshot()?;
            node.serving
                .exports
                .answer(call, snapshot, &node.serving.origins)
        };
        match tokio::task::spawn_blocking(read).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Err(self.fail(error)),
            Err(_) => Err(Error::not_applied(
                ErrorKind::Internal,
                "the read of the store was aborted",
            )),
        }
    }

    /// Waits until all that is committed by now, as far as this node knows, is applied and may be read.
    async fn catch_up(&self, patience: Duration) -> Result<(), Error> {
        let committed = self.node.published.commit();
        let is_there = || {
            self.serving.store.applied() >= committed
                && self
                    .node
                    .readable
                    .load(std::sync::atomic::Ordering::Acquire)
        };
        let waiting = async {
            while !is_there() {
                tokio::time::sleep(CATCH_UP_LOOK).await;
            }
        };
        match tokio::time::timeout(patience, waiting).await {
            Ok(()) => Ok(()),
            Err(_) => Err(Error::not_applied(
                ErrorKind::Unavailable,
                "this node has not yet applied everything it knows to be committed: use another \
                 node, or retry shortly",
            )),
        }
    }

    /// The configuration that is in force as far as this node knows it to be committed; `None` while
    /// nobody can say.
    pub(crate) async fn configuration(&self) -> Option<Configuration> {
        let (answer, answered) = oneshot::channel();
        let at = self.node.published.commit();
        self.mailbox.send(Mail::ConfigurationAt(at, answer));
        let patience = tokio::time::timeout(GRACE, answered).await;
        patience.ok()?.ok()?
    }

    async fn hand_in(&self, call: Call, patience: Duration) -> Result<Delivery, Error> {
        let outbox = Arc::new(Outbox::default());
        self.mailbox.send(Mail::Request {
            call,
            arrived: stopwatch(),
            // Without one a write would be refused for ever where access is controlled.
            author: Some(Author::Node),
            outbox: outbox.clone(),
            frame: 0,
        });
        let mut answers = Vec::new();
        // Should the driver have ended, nobody answers.
        let waited = tokio::time::timeout(patience + GRACE, outbox.take(&mut answers)).await;
        let answer = answers.pop().map(|(_, delivery, _)| delivery);
        match (waited, answer) {
            (Ok(()), Some(delivery)) => Ok(delivery),
            _ => Err(Error::unknown(
                ErrorKind::DeadlineExceeded,
                "this node did not answer its own request in time",
            )),
        }
    }
}
