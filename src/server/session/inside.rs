//! Requests of the node itself: of its admin port, of its probes, and of its drain. They go through
//! consensus like every other request, without a connection and in the node's own name, so no rules
//! apply to them; the admin port decides who may make them.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::pending::timeout;
use super::refusals::{behind, not_readable, read_aborted};
use super::shared::Sessions;
use crate::api;
use crate::api::{
    Call, Consistency, Error, ErrorKind, RangeCount, RangeRequest, Request, Response, ResponseBody,
    SnapshotCall, SnapshotReply,
};
use crate::kv::access::Author;
use crate::node::{Captured, Demand, ReadBuffer, ReadResult};
use crate::raft::{Configuration, ReadPermit};
use crate::server::disk::store::StoreError;
use crate::server::mail::Mail;
use crate::server::mail::outbox::{Delivery, Outbox};
use crate::server::metrics::stopwatch;
use crate::server::session::lease_query;
use crate::server::session::lease_query::LeaseQuestion;
use crate::types::NodeId;
use crate::wire::RequestContext;

/// What this node asks for itself.
fn question(request: Request, consistency: Consistency, patience: Duration) -> Call {
    Call {
        timeout_ms: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
        consistency,
        min_revision: 0,
        session: None,
        request,
    }
}

/// How much longer than its deadline a request is waited for: the driver may have ended.
const GRACE: Duration = Duration::from_millis(500);
/// How long a leader may take to let this node hear of it: without a quorum none does, and what waits for it
/// holds a place among the requests of this node.
const HEAR_PATIENCE: Duration = Duration::from_secs(1);

impl Sessions {
    /// Makes a request that consensus or the lease table answers, within `patience`.
    ///
    /// # Errors
    /// As a client would get them; `Unsupported` for what only a client's stream answers.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        request: Request,
        consistency: Consistency,
        patience: Duration,
    ) -> Result<Response, Error> {
        self.make(question(request, consistency, patience)).await
    }

    /// [`Sessions::ask`] with all that a call may say.
    ///
    /// # Errors
    /// As those of [`Sessions::ask`].
    pub(super) async fn make(self: &Arc<Self>, call: Call) -> Result<Response, Error> {
        api::validate(&call.request, &self.limits.requests)?;
        let (question, patience) = (LeaseQuestion::of(&call), timeout(&call));
        match (self.hand_in(call, patience).await?, question) {
            (Delivery::Reply(result), _) => {
                result.map_err(|error| self.node.with_leader_address(error))
            }
            (Delivery::Leases(permit, asked), Some(question)) => {
                if !self.node.is_readable() {
                    return Err(not_readable());
                }
                let sessions = Arc::clone(self);
                let read = move || lease_query::answer(&sessions, None, permit, &asked, &question);
                match tokio::task::spawn_blocking(read).await {
                    Ok(Ok(result)) => result,
                    Ok(Err(error)) => Err(self.fail(error)),
                    Err(_) => Err(read_aborted()),
                }
            }
            _ => Err(Error::not_applied(
                ErrorKind::Unsupported,
                "this request is only answered for clients",
            )),
        }
    }

    /// Puts a question to the leader that it answers for any member.
    ///
    /// # Errors
    /// No leader answered, or as the leader refused it.
    pub(crate) async fn ask_leader(
        self: &Arc<Self>,
        request: Request,
        consistency: Consistency,
        patience: Duration,
    ) -> Result<Response, Error> {
        let call = question(request, consistency, patience);
        self.relay(call, RequestContext::default()).await
    }

    /// [`Sessions::ask_leader`] with all that a call and its context may say.
    ///
    /// # Errors
    /// As those of [`Sessions::ask_leader`].
    pub(super) async fn relay(
        self: &Arc<Self>,
        call: Call,
        context: RequestContext,
    ) -> Result<Response, Error> {
        let patience = timeout(&call);
        let outbox = Arc::new(Outbox::default());
        let mail = Mail::Request {
            call: call.clone(),
            arrived: stopwatch(),
            author: Some(Author::Node),
            context,
            outbox: outbox.clone(),
            frame: 0,
        };
        let own = match &self.forwarder {
            Some(forwarder) => forwarder.forward(mail),
            None => Some(mail),
        };
        if own.is_some() {
            // This node leads by now, or knows of no leader.
            return self.make(call).await;
        }
        let mut answers = Vec::new();
        let waited = tokio::time::timeout(patience + GRACE, outbox.take(&mut answers));
        match (waited.await, answers.pop()) {
            (Ok(()), Some((_, Delivery::Reply(result), _))) => result,
            _ => Err(Error::not_applied(
                ErrorKind::QuorumTimeout,
                "the leader did not answer a question of this node in time",
            )),
        }
    }

    /// Puts a question about itself to another member: [`Request::Status`] or
    /// [`Request::LeaderLeaseReport`].
    ///
    /// # Errors
    /// It is not connected, or did not answer in time.
    pub(crate) async fn ask_member(
        &self,
        member: NodeId,
        request: Request,
        patience: Duration,
    ) -> Result<Response, Error> {
        let call = question(request, Consistency::Linearizable, patience);
        let asked = async {
            let forwarder = self.forwarder.as_ref()?;
            forwarder.ask_member(member, call).await
        };
        let answered = tokio::time::timeout(patience, asked).await;
        answered.ok().flatten().unwrap_or_else(|| {
            Err(Error::not_applied(
                ErrorKind::Unavailable,
                "it does not answer this node, or is not connected to it",
            ))
        })
    }

    /// How much time the leader gives the lease `id`, in milliseconds; `None` if there is no such lease.
    ///
    /// # Errors
    /// No leader answered.
    pub(crate) async fn ask_leader_for_lease(
        self: &Arc<Self>,
        id: i64,
        patience: Duration,
    ) -> Result<Option<u64>, Error> {
        let request = Request::LeaseTimeToLive { id, keys: false };
        let answered = self
            .ask_leader(request, Consistency::Linearizable, patience)
            .await;
        match answered {
            Ok(Response {
                body: ResponseBody::LeaseTimeToLive(info),
                ..
            }) => match info.remaining_ms {
                Some(left) => Ok(Some(left)),
                // It led no more when it answered.
                None => Err(self.node.not_leader()),
            },
            Err(error) if error.kind == ErrorKind::LeaseNotFound => Ok(None),
            Err(error) => Err(error),
            Ok(_) => Err(Error::not_applied(
                ErrorKind::Internal,
                "the leader answered a question about a lease with something else",
            )),
        }
    }

    /// Whether this node would serve a linearizable read now: under its lease, or on a permit of the
    /// leader once it has applied what that demands. For probes, which read nothing.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn confirm(&self, patience: Duration) -> Result<(), Error> {
        let lease = self.node.published.lease();
        if lease.is_some_and(|cell| cell.is_valid(self.node.clock.now())) {
            return Ok(());
        }
        self.ask_for_permit(Consistency::Linearizable, patience)
            .await
            .map(drop)
    }

    /// Waits until `leader` leads a quorum after this was called, at most [`HEAR_PATIENCE`].
    ///
    /// # Errors
    /// Another member leads, or none that this node hears of in time.
    pub(super) async fn hear_of(
        self: &Arc<Self>,
        leader: NodeId,
        patience: Duration,
    ) -> Result<(), Error> {
        let patience = patience.min(HEAR_PATIENCE);
        self.ask_for_permit(Consistency::LinearizableQuorum, patience)
            .await?;
        match self.node.published.leader() == Some(leader) {
            true => Ok(()),
            false => Err(self.node.not_leader()),
        }
    }

    /// That no other member leads than `leader`, as far as this node knows.
    ///
    /// # Errors
    /// One does.
    pub(super) fn may_lead(&self, leader: NodeId) -> Result<(), Error> {
        match self.node.published.leader() {
            Some(other) if other != leader => Err(self.node.not_leader()),
            _ => Ok(()),
        }
    }

    /// Asks the driver for the permit of a linearizable read. It comes once this node has applied what
    /// the permit demands.
    async fn ask_for_permit(
        &self,
        consistency: Consistency,
        patience: Duration,
    ) -> Result<ReadPermit, Error> {
        let range = RangeRequest {
            key: b"leasehold".as_slice().into(),
            count: RangeCount::Only,
            ..RangeRequest::default()
        };
        let call = Call {
            timeout_ms: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
            consistency,
            min_revision: 0,
            session: None,
            request: Request::Range(range),
        };
        match self.hand_in(call, patience).await? {
            Delivery::Permit(permit) => Ok(permit),
            Delivery::Reply(Err(error)) => Err(self.node.with_leader_address(error)),
            _ => Err(Error::not_applied(
                ErrorKind::Internal,
                "a linearizable read was answered without a permit",
            )),
        }
    }

    /// Does what `call` asks of a snapshot. A new snapshot contains every write that was acknowledged
    /// before.
    ///
    /// # Errors
    /// As a client would get them.
    pub(crate) async fn export(
        self: &Arc<Self>,
        call: SnapshotCall,
        patience: Duration,
    ) -> Result<SnapshotReply, Error> {
        if call != SnapshotCall::Begin {
            // A chunk is as old as its snapshot, whatever the state is by now.
            return self
                .with_scan_permit(move |node| {
                    let snapshot = node.serving.store.snapshot()?;
                    let (exports, origins) = (&node.serving.exports, &node.serving.origins);
                    exports.answer(call, snapshot, origins)
                })
                .await;
        }
        if let Some(reply) = self
            .with_scan_permit(|node| node.begin_export(None))
            .await?
        {
            return Ok(reply);
        }
        let permit = self
            .ask_for_permit(Consistency::Linearizable, patience)
            .await?;
        let begun = self.with_scan_permit(move |node| node.begin_export(Some(permit)));
        begun.await?.ok_or_else(behind)
    }

    /// Begins an export by the steps of a leased read: under this node's lease, or on `permit`. `None`
    /// if neither lets the snapshot be answered from.
    fn begin_export(
        &self,
        permit: Option<ReadPermit>,
    ) -> Result<Result<Option<SnapshotReply>, Error>, StoreError> {
        if !self.node.is_readable() {
            return Ok(Err(not_readable()));
        }
        let demand = Demand {
            consistency: match planted!(ExportUnconfirmed) {
                true => Consistency::Serializable,
                false => Consistency::Linearizable,
            },
            min_revision: 0,
        };
        let (published, buffer) = (&self.node.published, ReadBuffer::default());
        let captured = match permit {
            None => {
                let shown = self.serving.store.shown();
                Captured::of(slice::from_ref(&demand), shown, published, buffer)
            }
            permit => Captured::released(&demand, permit, published, buffer),
        };
        let ReadResult::Answer(answer) = self.look_at_snapshot(captured)? else {
            return Ok(Ok(None));
        };
        let (exports, origins) = (&self.serving.exports, &self.serving.origins);
        let reply = exports.answer(SnapshotCall::Begin, answer.into_found(), origins)?;
        Ok(reply.map(Some))
    }

    /// Reads the store on a thread that may block, in turn with the scans of clients.
    async fn with_scan_permit<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Self) -> Result<Result<T, Error>, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        let permit = self.limits.scans.clone().acquire_owned().await;
        let sessions = Arc::clone(self);
        let read = move || {
            let _permit = permit;
            if !sessions.node.integrity.is_sound() {
                return Ok(Err(sessions.node.integrity.refusal()));
            }
            read(&sessions)
        };
        match tokio::task::spawn_blocking(read).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(self.fail(error)),
            Err(_) => Err(read_aborted()),
        }
    }

    /// The configuration that is in force as far as this node knows it to be committed; `None` while
    /// that is unknown.
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
            context: RequestContext::default(),
            outbox: outbox.clone(),
            frame: 0,
        });
        let mut answers = Vec::new();
        // The driver may have ended.
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
