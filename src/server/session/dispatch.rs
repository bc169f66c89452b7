//! The requests of one stream, other than reads of one key: each is answered here, or registered with
//! what it holds of the node and handed to the watch thread, to a scan, or to the driver.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::Semaphore;

use super::connection::ConnectionState;
use super::pending::{Arrival, PendingKind, PendingRequest, RequestTiming, call_of, timeout};
use super::refusals::{bootstraps_alone, not_readable, slow_down, stopping, too_many_requests};
use super::shared::Sessions;
use crate::api;
use crate::api::{
    AuthRequest, Call, Class, Consistency, Error, ErrorKind, Request, RequestKind, Response,
    ResponseBody,
};
use crate::kv::access::Author;
use crate::node::{ReadBuffer, wants_lease};
use crate::server::mail::Mail;
use crate::server::mail::outbox::{Completion, Delivery, HeldResources, Outbox};
use crate::server::metrics::{Rejection, stopwatch};
use crate::server::session::auth::{AuthorizationPoint, Note, Principal};
use crate::server::session::blocking_task::BlockingTask;
use crate::server::session::lease_query::LeaseQuestion;
use crate::server::session::scan::{Query, Scan, ScanAuthority};
use crate::server::session::traces::JoinedTrace;
use crate::server::session::{auth, lease_query, user_rates};
use crate::server::watch::{Control, Reply};
use crate::types::{NodeId, Role};
use crate::wire::client::ClientFrame;
use crate::wire::point::Record;
use crate::wire::{Frame, RequestContext, WireError};

/// Replies of so many bytes are written before more requests are read: a client that reads slowly
/// can make a stream hold this and one reply more.
pub(super) const REPLIES_BYTES: usize = 256 << 10;
/// What a request costs beside its bytes while it waits.
const REQUEST_BYTES: usize = 512;
/// When to ask again if the node holds too many bytes already.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// One stream of a client.
pub(super) struct Session {
    pub(super) shared: Arc<Sessions>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) connection: Arc<ConnectionState>,
    /// Requests of this stream that wait for an answer.
    pub(super) waiting: BTreeMap<u64, PendingRequest>,
    /// For the audit log, until the requests are answered.
    pub(super) notes: BTreeMap<u64, Note>,
    /// Requests that go to the driver when the batch is done.
    pub(super) leaving: Vec<Mail>,
    /// Answers that are not completed yet.
    pub(super) answers: Vec<Completion>,
    /// Encoded replies that are not written yet.
    pub(super) replies: BytesMut,
    /// Of the scans whose results are among the replies.
    pub(super) scan_permits: Vec<HeldResources>,
    /// Where the lookups of a batch put what they find.
    pub(super) found: ReadBuffer<Option<Record>>,
    /// Those lookups whose clients keep the traces that they are a part of, by frame of the batch.
    pub(super) joined_reads: BTreeMap<usize, JoinedTrace>,
}

impl Session {
    pub(super) fn new(shared: Arc<Sessions>, connection: Arc<ConnectionState>) -> Self {
        Self {
            shared,
            connection,
            outbox: Arc::default(),
            waiting: BTreeMap::new(),
            notes: BTreeMap::new(),
            leaving: Vec::new(),
            answers: Vec::new(),
            replies: BytesMut::new(),
            scan_permits: Vec::new(),
            found: ReadBuffer::default(),
            joined_reads: BTreeMap::new(),
        }
    }

    pub(super) fn principal(&self) -> &Arc<Principal> {
        &self.connection.principal
    }

    /// Whether what only the leader carries out is taken to it at the moment.
    pub(super) fn forwards(&self) -> bool {
        let leader = self.shared.node.published.leader();
        self.connection.forwarding.includes(leader)
    }

    /// Whether the state may be served: an unverified one never is.
    pub(super) fn is_readable(&self) -> bool {
        self.shared.node.is_readable()
    }

    /// The scan permits of this connection.
    pub(super) fn connection_scans(&self) -> Arc<Semaphore> {
        self.connection.scans.clone()
    }

    /// Starts a read of many keys.
    pub(super) fn scan(&mut self, frame: u64, query: Query, call: Call, arrival: Arrival) {
        let kind = PendingKind::read(query.clone(), &call);
        let timeout = timeout(&call);
        // A transaction that only reads is asked for as one thing, like a read of one key.
        let class = call.request.spec().class;
        let timing = RequestTiming::begin(arrival);
        self.run_scan(
            timing,
            frame,
            class,
            query,
            timeout,
            kind,
            ScanAuthority::Own(call),
        );
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "two kinds of scans, which differ in all of them"
    )]
    pub(super) fn run_scan(
        &mut self,
        timing: RequestTiming,
        frame: u64,
        class: Class,
        query: Query,
        left: Duration,
        kind: PendingKind,
        on: ScanAuthority,
    ) {
        let min_revision = match kind {
            PendingKind::Read { min_revision, .. } => min_revision,
            _ => 0,
        };
        let scan = Scan {
            shared: self.shared.clone(),
            principal: self.principal().clone(),
            outbox: self.outbox.clone(),
            frame,
            query,
            min_revision,
            began: timing.phases.accounted(),
            left,
            on,
        };
        // What it may find is what the node may have to hold.
        let bytes = self.shared.limits.requests.reply_bytes_max;
        if self.register(timing, frame, class, kind, bytes) {
            scan.spawn(self.connection.scans.clone());
        }
    }

    /// Puts a request among those that go to the driver when the batch is done.
    pub(super) fn enqueue(
        &mut self,
        frame: u64,
        call: Call,
        author: Option<Author>,
        arrival: Arrival,
    ) {
        let kind = match Query::of(&call.request) {
            Some(query) => PendingKind::read(query, &call),
            None => match LeaseQuestion::of(&call) {
                Some(question) => PendingKind::Leases(question),
                None => PendingKind::of(&call.request),
            },
        };
        let class = call.request.spec().class;
        let timing = RequestTiming::begin(arrival);
        if self.register(timing, frame, class, kind, arrival.bytes) {
            let outbox = self.outbox.clone();
            self.leaving.push(Mail::Request {
                call,
                arrived: timing.phases.began(),
                author,
                context: arrival.context_beyond(),
                outbox,
                frame,
            });
        }
    }

    /// Sends the enqueued requests to the driver, or the leader, in one step.
    pub(super) fn submit(&mut self) {
        if !self.leaving.is_empty() {
            let forwards = self.forwards();
            self.shared.send(self.leaving.drain(..), forwards);
        }
    }

    /// Registers a request whose answer comes later; false if nothing more is to be done. A client that
    /// reuses the number of a pending request gets one answer for both.
    #[must_use = "what is asked twice is done once"]
    pub(super) fn register(
        &mut self,
        timing: RequestTiming,
        frame: u64,
        class: Class,
        kind: PendingKind,
        bytes: usize,
    ) -> bool {
        let Entry::Vacant(entry) = self.waiting.entry(frame) else {
            return false;
        };
        if let Err(reason) = self.shared.check_ahead(class) {
            self.reject(frame, class, reason, &kind, RETRY_AFTER);
            return false;
        }
        let permit = match self
            .shared
            .limits
            .backlog
            .enter(class, timing.arrival.context.priority)
        {
            Ok(permit) => permit,
            Err(full) => {
                self.reject(frame, class, full.reason(), &kind, full.retry_after);
                return false;
            }
        };
        let bytes = bytes + REQUEST_BYTES;
        let reserved = self.connection.budget.take(bytes);
        let budget = &self.shared.limits.budget;
        let reserved = reserved.and_then(|connection| Some((connection, budget.take(bytes)?)));
        let Some((connection_bytes, node_bytes)) = reserved else {
            drop(permit);
            self.reject(frame, class, Rejection::Memory, &kind, RETRY_AFTER);
            return false;
        };
        entry.insert(PendingRequest {
            timing,
            kind,
            backlog_permit: Some(permit),
            node_bytes: Some(node_bytes),
            connection_bytes,
        });
        self.connection.in_flight.enter();
        self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Takes a request of `class` out of what its user may make in a second.
    ///
    /// # Errors
    /// Nothing is left: nothing has been done for it.
    pub(super) fn charge(&self, class: Class) -> Result<(), Error> {
        let Some(rates) = self.shared.limits.user_rates.as_ref() else {
            return Ok(());
        };
        let now = stopwatch();
        let name = self.principal().name();
        let user = rates.of(&name, now);
        rates.admit(&user, now).map_err(|wait| {
            let metrics = &self.shared.accounting.metrics.work;
            metrics.rejected[class][Rejection::User].increment(1);
            too_many_requests(&name, wait)
        })
    }

    /// Whether a request belongs to one that was charged. A read of an etcd client is of one revision, however
    /// many pages that takes: one that is refused half way would begin again, and be refused again.
    fn is_free(&self, request: &Request) -> bool {
        self.connection.has_free_pages && matches!(request, Request::RangePage(_))
    }

    /// Refuses a request of an overloaded node, for which nothing has been done.
    fn reject(
        &mut self,
        frame: u64,
        class: Class,
        reason: Rejection,
        kind: &PendingKind,
        retry_after: Duration,
    ) {
        let metrics = &self.shared.accounting.metrics.work;
        metrics.rejected[class][reason].increment(1);
        self.reply(frame, kind.method(), Err(slow_down(reason, retry_after)));
    }

    /// Records in the audit log that the outcome of unanswered requests is unknown.
    fn note_unanswered(&mut self) {
        let Some(audit) = &self.shared.accounting.audit else {
            return;
        };
        let unknown: Result<Response, Error> = Err(Error::unknown(
            ErrorKind::ConnectionLost,
            "the stream of the request was closed before it could be answered",
        ));
        for (frame, note) in std::mem::take(&mut self.notes) {
            if let Some(pending) = self.waiting.get(&frame) {
                let (principal, address) = (&self.connection.principal, self.connection.address);
                audit.record(principal, address, pending.kind.method(), &note, &unknown);
            }
        }
    }
}

impl Session {
    pub(super) fn dispatch(&mut self, frame: &Frame, is_stopping: bool) -> Result<(), WireError> {
        let (asked, context) = call_of(frame)?;
        let ClientFrame {
            request_id,
            mut call,
        } = asked;
        let spec = call.request.spec();
        let method = spec.name;
        // Another request waits under this number: its answer is for both, and its note stays.
        if self.waiting.contains_key(&request_id) {
            return Ok(());
        }
        if self.shared.accounting.audit.is_some() {
            self.notes.insert(request_id, Note::of(&call.request));
        }
        if user_rates::counts(spec)
            && !self.is_free(&call.request)
            && let Err(error) = self.charge(spec.class)
        {
            self.reply(request_id, method, Err(error));
            return Ok(());
        }
        // A node that is stopping still answers requests about itself.
        if is_stopping && spec.kind != RequestKind::Node {
            self.reply(request_id, method, Err(stopping()));
            return Ok(());
        }
        if let Err(error) = api::validate(&call.request, &self.shared.limits.requests) {
            self.reply(request_id, method, Err(error));
            return Ok(());
        }
        lease_query::stamp(&mut call.request);
        if AuthorizationPoint::of(spec.kind) == AuthorizationPoint::AtOnce
            && let Err(error) = self
                .shared
                .serving
                .access
                .admit_at_once(self.principal(), &call.request)
        {
            self.reply(request_id, method, Err(error));
            return Ok(());
        }
        let arrival = self.arrival(frame, context);
        if let Request::ForwardToLeader { leader } = call.request {
            self.forward_to(request_id, leader, &call, arrival);
            return Ok(());
        }
        if self.answer_at_once(request_id, &call.request) {
            return Ok(());
        }
        if let Err(refusal) = self.check_node(&call.request) {
            self.reply(request_id, method, Err(refusal));
            return Ok(());
        }
        let Some(call) = self.watch_control(request_id, call, arrival) else {
            return Ok(());
        };
        let is_own = call.consistency != Consistency::LinearizableQuorum;
        match Query::of(&call.request).filter(|_| is_own) {
            Some(query) if self.is_readable() => {
                self.scan(request_id, query, call, arrival);
            }
            // Under the lease, as a read of one key.
            Some(_) if !wants_lease(call.consistency) => {
                self.reply(request_id, method, Err(not_readable()));
            }
            _ => self.authorize(request_id, call, arrival),
        }
        Ok(())
    }

    /// How the request in `frame` came, which says `context` of itself.
    pub(super) fn arrival(&self, frame: &Frame, context: RequestContext) -> Arrival {
        let accounting = &self.shared.accounting;
        Arrival {
            bytes: frame.body.len(),
            context,
            joined: context.trace_parent.map(|parent| accounting.join(parent)),
        }
    }

    /// Whether this node may have `request` carried out for any client.
    fn check_node(&self, request: &Request) -> Result<(), Error> {
        let node = &self.shared.node;
        if !node.integrity.is_sound() && request.spec().kind != RequestKind::Transfer {
            return Err(node.integrity.refusal());
        }
        if self.shared.bootstraps_alone && matches!(request, Request::MemberAdd(_)) {
            return Err(bootstraps_alone());
        }
        Ok(())
    }

    /// Answers a request about the node or the connection itself, and a login that has to wait. Whether
    /// it did.
    fn answer_at_once(&mut self, request_id: u64, request: &Request) -> bool {
        let shared = self.shared.clone();
        let access = &shared.serving.access;
        let result = match request {
            Request::Auth(AuthRequest::UseToken { token }) => {
                let used = access.use_token(self.principal(), token);
                used.map(|used| Response {
                    header: shared.node.header(shared.serving.store.revision()),
                    body: ResponseBody::Auth(used),
                })
            }
            Request::Auth(AuthRequest::Authenticate { name, .. }) => {
                let Err(error) = access.may_try(self.principal(), name) else {
                    return false;
                };
                shared.accounting.count_rate_limited();
                Err(error)
            }
            request => match shared.of_itself(request) {
                Some(response) => Ok(response),
                None => return false,
            },
        };
        self.reply(request_id, request.method(), result);
        true
    }

    /// Finds the author of a request and sends it to the driver; slow work that it needs first runs in
    /// a [`BlockingTask`].
    fn authorize(&mut self, frame: u64, mut call: Call, arrival: Arrival) {
        let method = call.request.method();
        let author = match self
            .shared
            .serving
            .access
            .author(self.principal(), &call.request)
        {
            Ok(author) => author,
            Err(error) => return self.reply(frame, method, Err(error)),
        };
        match &mut call.request {
            Request::Auth(auth) if auth.spec().kind == RequestKind::Write => {
                if !auth::has_plain_password(auth) {
                    return match auth::prepare(auth) {
                        Ok(()) => self.enqueue(frame, call, author, arrival),
                        Err(error) => self.reply(frame, method, Err(error)),
                    };
                }
            }
            Request::LeaseKeepAlive(_) if self.shared.serving.access.rules().is_some() => {}
            request if self.asks_leader(request.spec().kind, call.consistency) => {
                return self.ask_leader(frame, call, arrival);
            }
            _ => return self.enqueue(frame, call, author, arrival),
        }
        // Hashing is slow, so it is not done for a request that would be refused. The state machine
        // still decides.
        if matches!(call.request, Request::Auth(_))
            && let Err(denied) = self
                .shared
                .serving
                .access
                .admit_at_once(self.principal(), &call.request)
        {
            // The rules of a follower may be old.
            let refusal = match self.shared.node.published.role() {
                Role::Leader => denied,
                _ if self.forwards() => denied,
                _ => self.shared.node.not_leader(),
            };
            return self.reply(frame, method, Err(refusal));
        }
        let class = call.request.spec().class;
        let timing = RequestTiming::begin(arrival);
        let kind = PendingKind::of(&call.request);
        if self.register(timing, frame, class, kind, arrival.bytes) {
            let task = BlockingTask {
                shared: self.shared.clone(),
                principal: self.principal().clone(),
                outbox: self.outbox.clone(),
                frame,
                author,
                context: arrival.context_beyond(),
                arrived: timing.phases.began(),
                forwards: self.forwards(),
            };
            task.spawn(call);
        }
    }

    /// Forwards requests of this connection to `leader` once that has been heard of.
    fn forward_to(&mut self, frame: u64, leader: NodeId, call: &Call, arrival: Arrival) {
        let spec = call.request.spec();
        if let Err(refusal) = self.shared.may_lead(leader) {
            return self.reply(frame, spec.name, Err(refusal));
        }
        let timing = RequestTiming::begin(arrival);
        let kind = PendingKind::Other(spec.name);
        if !self.register(timing, frame, spec.class, kind, arrival.bytes) {
            return;
        }
        let (shared, connection) = (self.shared.clone(), self.connection.clone());
        let (outbox, patience) = (self.outbox.clone(), timeout(call));
        tokio::spawn(async move {
            let heard = shared.hear_of(leader, patience).await;
            let result = heard.map(|()| {
                connection.forwarding.add(leader);
                Response {
                    header: shared.node.header(shared.serving.store.revision()),
                    body: ResponseBody::ForwardToLeader,
                }
            });
            outbox.deliver(frame, Delivery::Reply(result));
        });
    }

    /// Whether a request is a query of leases that the leader is asked in the client's place. Not one that
    /// may only be answered by the lease of the node that is asked.
    fn asks_leader(&self, kind: RequestKind, consistency: Consistency) -> bool {
        use Consistency::{LeaseOnly, Serializable};
        kind == RequestKind::LeaseRead
            && !matches!(consistency, Serializable | LeaseOnly)
            && self.forwards()
            && self.shared.node.published.role() != Role::Leader
    }

    /// Puts a query to the leader.
    fn ask_leader(&mut self, frame: u64, call: Call, arrival: Arrival) {
        let spec = call.request.spec();
        let timing = RequestTiming::begin(arrival);
        // What it may find is what the node may have to hold.
        let bytes = self.shared.limits.requests.reply_bytes_max;
        let kind = PendingKind::Other(spec.name);
        if !self.register(timing, frame, spec.class, kind, bytes) {
            return;
        }
        let (shared, outbox) = (self.shared.clone(), self.outbox.clone());
        let (principal, context) = (self.principal().clone(), arrival.context_beyond());
        tokio::spawn(async move {
            let result = shared.relay_lease_query(principal, call, context).await;
            outbox.deliver(frame, Delivery::Reply(result));
        });
    }

    /// Passes a request about a watch to the watch thread; returns any other.
    fn watch_control(&mut self, frame: u64, call: Call, arrival: Arrival) -> Option<Call> {
        let method = call.request.method();
        let (watch_id, control) = match call.request {
            Request::Watch { watch_id, watch } => (watch_id, Control::Watch(watch)),
            Request::WatchCancel { watch_id } => (watch_id, Control::Cancel),
            Request::WatchProgress { watch_id } => (watch_id, Control::Progress),
            _ => return Some(call),
        };
        if !self.is_readable() {
            self.reply(frame, method, Err(not_readable()));
        } else if self.register(
            RequestTiming::begin(arrival),
            frame,
            Class::Read,
            PendingKind::Other(method),
            arrival.bytes,
        ) {
            let reply = Reply {
                outbox: self.outbox.clone(),
                frame,
            };
            let watch_sender = &self.connection.watch_sender;
            let principal = self.connection.principal.identity();
            self.shared
                .serving
                .watches
                .control(watch_sender, watch_id, control, principal, reply);
        }
        None
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.connection.in_flight.leave(self.waiting.len());
        self.shared
            .in_flight
            .fetch_sub(self.waiting.len(), Ordering::Relaxed);
        self.note_unanswered();
        // These were not sent to the driver.
        for mail in self.leaving.drain(..) {
            if let Mail::Request { frame, .. } = mail {
                self.waiting.remove(&frame);
            }
        }
        // The others are being worked on, and hold what they hold until that is done.
        let waiting = std::mem::take(&mut self.waiting);
        let held = waiting.into_iter().filter_map(|(frame, pending)| {
            let held: HeldResources = Box::new((
                pending.backlog_permit?,
                pending.node_bytes,
                pending.connection_bytes,
            ));
            Some((frame, held))
        });
        self.outbox.abandon(held.collect());
    }
}
