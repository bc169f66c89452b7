//! One stream of a client: what arrives is taken in, what was answered is sent.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::phases::Phases;
use super::{ConnectionState, Sessions, bootstraps_alone, lease_invalid, not_readable, stopping};
use crate::api;
use crate::api::{
    AuthRequest, Call, Class, Consistency, Error, ErrorKind, Outcome, ReadPath, Request,
    RequestKind, Response, ResponseBody,
};
use crate::kv::access::Author;
use crate::node::{ReadBuffer, path_of, wants_lease};
use crate::raft::ReadPermit;
use crate::server::mail::Mail;
use crate::server::mail::outbox::{Completion, Delivery, HeldResources, Outbox, Stages};
use crate::server::metrics::{Phase, Rejection, stopwatch};
use crate::server::session::admission::BacklogPermit;
use crate::server::session::auth::{AuthorizationPoint, Note, Principal};
use crate::server::session::blocking_task::BlockingTask;
use crate::server::session::budget::ReservedBytes;
use crate::server::session::lease_query::LeaseQuestion;
use crate::server::session::point_read::{IndexedRead, PointRequest};
use crate::server::session::scan::{Query, Scan, ScanAuthority};
use crate::server::session::slow_log::{Outcome as RequestOutcome, Summary};
use crate::server::session::{auth, lease_query};
use crate::server::watch::{Control, Reply};
use crate::transport::{FrameReceiver, FrameStream, StreamError};
use crate::types::Role;
use crate::wire::client::{ClientFrame, ServerFrame};
use crate::wire::point::{PointRead, Record, Wanted};
use crate::wire::{Frame, WireError};

/// Requests in one batch: so long may those behind wait for a lookup that has to ask the disk.
pub(super) const BATCH_MAX: usize = 128;
/// The bytes of replies from which on they are written at once, before more is taken in: what a
/// client that reads slowly can make a stream hold is this and one reply more.
pub(super) const REPLIES_BYTES: usize = 256 << 10;
/// How long a client may take to make room for so many bytes of replies. Nobody has to be fast, but who
/// reads nothing makes the node hold what it has done for him, and has his stream ended.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);
const WRITE_BYTES: usize = 32 << 10;
/// The longest that a request waits here, ten minutes, whatever it asks for: what its client has long
/// forgotten would otherwise take up room for weeks.
const TIMEOUT_MS_MAX: u32 = 10 * 60 * 1000;
/// What a request costs beside its bytes while it waits.
const REQUEST_BYTES: usize = 512;
/// When to ask again if the node holds too many bytes already.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// One stream of a client.
pub(super) struct Session {
    pub(super) shared: Arc<Sessions>,
    pub(super) outbox: Arc<Outbox>,
    connection: Arc<ConnectionState>,
    /// Requests of this stream that were handed on.
    waiting: BTreeMap<u64, PendingRequest>,
    /// What is to be written down of requests once they are answered.
    notes: BTreeMap<u64, Note>,
    /// Requests on their way to the driver, once the batch is done.
    leaving: Vec<Mail>,
    /// Answers that have come and are not given out yet.
    answers: Vec<Completion>,
    /// Encoded replies that are not written yet.
    pub(super) replies: BytesMut,
    /// Of the scans whose results are among them.
    scan_permits: Vec<HeldResources>,
    /// Where the lookups of a batch put what they find.
    pub(super) found: ReadBuffer<Option<Record>>,
}

/// A request that was handed on.
struct PendingRequest {
    timing: RequestTiming,
    kind: PendingKind,
    /// Until its work is done: its answer may have to wait for the client.
    backlog_permit: Option<BacklogPermit>,
    /// Of the bytes that the node may hold: as long, or until the result of a scan is taken.
    node_bytes: Option<ReservedBytes>,
    /// Of those of its connection: until its answer is given out.
    connection_bytes: ReservedBytes,
}

/// The way of a request through the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTiming {
    pub(super) phases: Phases,
    /// How large it came from the wire.
    pub(super) bytes: usize,
}

/// What its answer needs of it.
pub(super) enum PendingKind {
    Read {
        query: Query,
        consistency: Consistency,
        min_revision: i64,
        /// How long the client waits for it.
        timeout: Duration,
    },
    Leases(LeaseQuestion),
    /// Of so many leases.
    Renewal(u64),
    Other(&'static str),
}

/// Serves the stream until the client ends it or the connection breaks. How it ended is no news:
/// malformed frames are counted where they are found.
pub(super) async fn serve(
    shared: Arc<Sessions>,
    connection: Arc<ConnectionState>,
    mut stream: FrameStream,
) {
    let mut session = Session::new(shared, connection);
    let Err(end) = session.run(&mut stream).await;
    // Its requests come too slowly, or its replies are not read.
    if end == StreamError::TooSlow {
        tracing::debug!(address = %session.connection.address, "a stream of a client was abandoned");
        stream.sender.reset();
    }
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
        }
    }

    async fn run(&mut self, stream: &mut FrameStream) -> Result<Infallible, StreamError> {
        let mut frames = Vec::new();
        let mut deliveries = Vec::new();
        let mut reads = Vec::new();
        loop {
            let receiver = &mut stream.receiver;
            poll_fn(|cx| self.poll_work(cx, receiver, &mut frames)).await?;
            for batch in frames.chunks(BATCH_MAX) {
                let taken = self.dispatch_batch(batch, &mut reads);
                taken.map_err(|error| stream.receiver.malformed(error))?;
                self.submit();
                self.flush(stream, REPLIES_BYTES).await?;
                let mut rest = &reads[..];
                while !rest.is_empty() {
                    let done = self.read_round(batch, rest);
                    rest = &rest[done.map_err(|error| stream.receiver.malformed(error))?..];
                    self.submit();
                    self.flush(stream, REPLIES_BYTES).await?;
                }
            }
            frames.clear();
            std::mem::swap(&mut deliveries, &mut self.answers);
            for answered in deliveries.drain(..) {
                self.complete(answered);
                self.flush(stream, REPLIES_BYTES).await?;
            }
            self.flush(stream, 1).await?;
        }
    }

    /// Ready when requests have arrived, or answers to earlier ones; takes both, the answers to
    /// `self.answers`.
    fn poll_work(
        &mut self,
        cx: &mut Context<'_>,
        receiver: &mut FrameReceiver,
        frames: &mut Vec<Frame>,
    ) -> Poll<Result<(), StreamError>> {
        self.collect_answers(cx);
        let mut is_ready = !self.answers.is_empty();
        if self.connection.in_flight.poll_room(cx) {
            if let Poll::Ready(read) = receiver.poll_read_batch(cx, frames) {
                read?;
                is_ready = true;
            }
        } else {
            receiver.excuse();
        }
        match is_ready {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    /// Takes the answers that have come, and says whether there were any; if not, the task is woken
    /// when there are. What was done for a request need not be held for it any more.
    fn collect_answers(&mut self, cx: &Context<'_>) -> bool {
        let known = self.answers.len();
        if !self.outbox.poll_take(cx, &mut self.answers) {
            return false;
        }
        let now = stopwatch();
        for (frame, delivery, stages) in &self.answers[known..] {
            if let Some(pending) = self.waiting.get_mut(frame) {
                pending.answered(delivery, stages, now);
            }
        }
        true
    }

    /// Writes the replies that have gathered, if they have `bytes` or more.
    async fn flush(&mut self, stream: &mut FrameStream, bytes: usize) -> Result<(), StreamError> {
        if self.replies.len() < bytes {
            return Ok(());
        }
        let mut replies = self.replies.split().freeze();
        while !replies.is_empty() {
            let piece = replies.split_to(replies.len().min(WRITE_BYTES));
            self.write(WRITE_PATIENCE, stream.sender.write(piece))
                .await?;
        }
        self.written();
        stream.receiver.excuse();
        Ok(())
    }

    /// Waits until the client has made room for what is being written, and goes on taking answers: what
    /// is done holds up no others, whether it is read or not.
    ///
    /// # Errors
    /// [`StreamError::TooSlow`]: his patience is over; otherwise, that of `writing`.
    pub(super) async fn write(
        &mut self,
        patience: Duration,
        writing: impl Future<Output = Result<(), StreamError>>,
    ) -> Result<(), StreamError> {
        let mut writing = pin!(tokio::time::timeout(patience, writing));
        let written = poll_fn(|cx| {
            let written = writing.as_mut().poll(cx);
            if written.is_pending() {
                while self.collect_answers(cx) {}
            }
            written
        });
        written.await.unwrap_or(Err(StreamError::TooSlow))
    }

    /// The client has been sent everything: the scans among it make room for others.
    pub(super) fn written(&mut self) {
        self.scan_permits.clear();
    }

    /// Takes in one closed batch of requests: leaves those of one key in `reads`, and has dealt with
    /// the others.
    pub(super) fn dispatch_batch(
        &mut self,
        frames: &[Frame],
        reads: &mut Vec<IndexedRead>,
    ) -> Result<(), WireError> {
        reads.clear();
        let is_stopping = self.shared.stopping.load(Ordering::Relaxed);
        let is_served = !is_stopping && self.shared.integrity.is_sound();
        for (number, frame) in frames.iter().enumerate() {
            match PointRead::of(frame).filter(|read| is_served && self.takes(read, frame)) {
                Some(read) => reads.push(IndexedRead {
                    frame: number,
                    read,
                }),
                None => self.dispatch(frame, is_stopping)?,
            }
        }
        Ok(())
    }

    /// Sends to the driver, in one step, what was left to it.
    pub(super) fn submit(&mut self) {
        if !self.leaving.is_empty() {
            self.shared.mailbox.send_all(self.leaving.drain(..));
        }
    }

    /// Whether a read of one key may be tried here. What is wrong with others is said where all
    /// requests are judged.
    fn takes(&self, read: &PointRead, frame: &Frame) -> bool {
        let key_bytes = read.key(frame).len();
        read.consistency != Consistency::LinearizableQuorum
            && key_bytes > 0
            && key_bytes <= self.shared.limits.key_bytes_max
    }

    fn dispatch(&mut self, frame: &Frame, is_stopping: bool) -> Result<(), WireError> {
        let ClientFrame {
            request_id,
            mut call,
        } = call_of(frame)?;
        let spec = call.request.spec();
        let method = spec.name;
        // Another request waits under this number: its answer is for both, and its note stays.
        if self.waiting.contains_key(&request_id) {
            return Ok(());
        }
        if self.shared.audit.is_some() {
            self.notes.insert(request_id, Note::of(&call.request));
        }
        // How it stands can be asked of a node that is out of service, too.
        if is_stopping && spec.kind != RequestKind::Node {
            self.reply(request_id, method, Err(stopping()));
            return Ok(());
        }
        if let Err(error) = api::validate(&call.request, &self.shared.limits) {
            self.reply(request_id, method, Err(error));
            return Ok(());
        }
        lease_query::stamp(&mut call.request);
        if AuthorizationPoint::of(spec.kind) == AuthorizationPoint::AtOnce
            && let Err(error) = self
                .shared
                .access
                .admit_at_once(self.principal(), &call.request)
        {
            self.reply(request_id, method, Err(error));
            return Ok(());
        }
        match &call.request {
            Request::Auth(AuthRequest::UseToken { token }) => {
                let used = self.shared.access.use_token(self.principal(), token);
                let header = self.shared.header(self.shared.store.revision());
                let response = used.map(|used| Response {
                    header,
                    body: ResponseBody::Auth(used),
                });
                self.reply(request_id, method, response);
                return Ok(());
            }
            Request::Auth(AuthRequest::Authenticate { name, .. }) => {
                if let Err(error) = self.shared.access.may_try(self.principal(), name) {
                    self.shared.count_rate_limited();
                    self.reply(request_id, method, Err(error));
                    return Ok(());
                }
            }
            Request::Status => {
                let response = self.shared.status_response();
                self.reply(request_id, method, Ok(response));
                return Ok(());
            }
            Request::LeaderLeaseReport => {
                let response = self.shared.lease_report_response();
                self.reply(request_id, method, Ok(response));
                return Ok(());
            }
            _ => {}
        }
        if !self.shared.integrity.is_sound() && spec.kind != RequestKind::Transfer {
            let refusal = self.shared.integrity.refusal();
            self.reply(request_id, method, Err(refusal));
            return Ok(());
        }
        if self.shared.bootstraps_alone && matches!(call.request, Request::MemberAdd(_)) {
            self.reply(request_id, method, Err(bootstraps_alone()));
            return Ok(());
        }
        let Some(call) = self.watch_control(request_id, call, frame.body.len()) else {
            return Ok(());
        };
        let is_own = call.consistency != Consistency::LinearizableQuorum;
        match Query::of(&call.request).filter(|_| is_own) {
            Some(query) if self.is_readable() => {
                self.scan(request_id, query, call, frame.body.len());
            }
            // Under the lease, as a read of one key.
            Some(_) if !wants_lease(call.consistency) => {
                self.reply(request_id, method, Err(not_readable()));
            }
            _ => self.authorize(request_id, call, frame.body.len()),
        }
        Ok(())
    }

    /// Says that `key` was not read because of who asks, and has it written down.
    pub(super) fn deny_read(&mut self, request_id: u64, key: &[u8], error: Error) {
        let denied = Err(error);
        if let Some(audit) = &self.shared.audit {
            let (principal, address) = (&self.connection.principal, self.connection.address);
            audit.record(principal, address, "range", &Note::of_read(key), &denied);
        }
        self.reply(request_id, "range", denied);
    }

    /// Who is at the other end of the connection.
    pub(super) fn principal(&self) -> &Arc<Principal> {
        &self.connection.principal
    }

    /// Leaves a request to the driver; before that, what of it takes time is done elsewhere.
    fn authorize(&mut self, frame: u64, mut call: Call, bytes: usize) {
        let method = call.request.method();
        let author = match self.shared.access.author(self.principal(), &call.request) {
            Ok(author) => author,
            Err(error) => return self.reply(frame, method, Err(error)),
        };
        match &mut call.request {
            Request::Auth(auth) if auth.spec().kind == RequestKind::Write => {
                if !auth::has_plain_password(auth) {
                    return match auth::prepare(auth) {
                        Ok(()) => self.enqueue(frame, call, author, bytes),
                        Err(error) => self.reply(frame, method, Err(error)),
                    };
                }
            }
            Request::LeaseKeepAlive(_) if self.shared.access.rules().is_some() => {}
            _ => return self.enqueue(frame, call, author, bytes),
        }
        // To hash is work: it is not done for whoever would be refused. What counts is still what the
        // state machine says.
        if matches!(call.request, Request::Auth(_))
            && let Err(denied) = self
                .shared
                .access
                .admit_at_once(self.principal(), &call.request)
        {
            // Who does not lead may have old rules.
            let refusal = match self.shared.published.role() {
                Role::Leader => denied,
                _ => self.shared.not_leader(),
            };
            return self.reply(frame, method, Err(refusal));
        }
        let class = call.request.spec().class;
        let timing = RequestTiming::begin(bytes);
        if self.register(timing, frame, class, PendingKind::of(&call.request), bytes) {
            let task = BlockingTask {
                shared: self.shared.clone(),
                principal: self.principal().clone(),
                outbox: self.outbox.clone(),
                frame,
                author,
                arrived: timing.phases.began(),
            };
            task.spawn(call);
        }
    }

    /// Leaves what is about a watch to the watch thread, which any node has; gives back what is not.
    fn watch_control(&mut self, frame: u64, call: Call, bytes: usize) -> Option<Call> {
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
            RequestTiming::begin(bytes),
            frame,
            Class::Read,
            PendingKind::Other(method),
            bytes,
        ) {
            let reply = Reply {
                outbox: self.outbox.clone(),
                frame,
            };
            let watch_sender = &self.connection.watch_sender;
            let principal = self.connection.principal.identity();
            self.shared
                .watches
                .control(watch_sender, watch_id, control, principal, reply);
        }
        None
    }

    /// Whether the state may be served: an unverified one never is.
    pub(super) fn is_readable(&self) -> bool {
        self.shared.readable.load(Ordering::Acquire)
    }

    /// Where scans of this connection wait for their turn.
    pub(super) fn connection_scans(&self) -> Arc<tokio::sync::Semaphore> {
        self.connection.scans.clone()
    }

    /// Has a read of many keys made.
    fn scan(&mut self, frame: u64, query: Query, call: Call, bytes: usize) {
        let kind = PendingKind::read(query.clone(), &call);
        let timeout = timeout(&call);
        // A transaction that only reads is asked for as one thing, like a read of one key.
        let class = call.request.spec().class;
        let timing = RequestTiming::begin(bytes);
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
    fn run_scan(
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
        let bytes = self.shared.limits.reply_bytes_max;
        if self.register(timing, frame, class, kind, bytes) {
            scan.spawn(self.connection.scans.clone());
        }
    }

    /// Puts a request of `bytes` among those that go to the driver when the batch is done.
    pub(super) fn enqueue(&mut self, frame: u64, call: Call, author: Option<Author>, bytes: usize) {
        let kind = match Query::of(&call.request) {
            Some(query) => PendingKind::read(query, &call),
            None => match LeaseQuestion::of(&call) {
                Some(question) => PendingKind::Leases(question),
                None => PendingKind::of(&call.request),
            },
        };
        let class = call.request.spec().class;
        let timing = RequestTiming::begin(bytes);
        if self.register(timing, frame, class, kind, bytes) {
            let outbox = self.outbox.clone();
            self.leaving.push(Mail::Request {
                call,
                arrived: timing.phases.began(),
                author,
                outbox,
                frame,
            });
        }
    }

    /// Notes a request whose answer comes later; false if nothing more is to be done. A client that
    /// uses a number again while the first use waits gets one answer for both.
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
        let permit = match self.shared.backlog.enter(class) {
            Ok(permit) => permit,
            Err(full) => {
                self.reject(frame, class, Rejection::Waiting, &kind, full.retry_after);
                return false;
            }
        };
        let bytes = bytes + REQUEST_BYTES;
        let taken = self.connection.budget.take(bytes);
        let taken =
            taken.and_then(|of_connection| Some((of_connection, self.shared.budget.take(bytes)?)));
        let Some((connection_bytes, node_bytes)) = taken else {
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

    /// There is too much to do for a request: nothing has been done for it.
    fn reject(
        &mut self,
        frame: u64,
        class: Class,
        reason: Rejection,
        kind: &PendingKind,
        retry_after: Duration,
    ) {
        let metrics = &self.shared.metrics.work;
        metrics.rejected[class][reason].increment(1);
        self.reply(frame, kind.method(), Err(slow_down(reason, retry_after)));
    }

    /// An answer came for a request that was handed on.
    pub(super) fn complete(&mut self, (frame, delivery, stages): Completion) {
        let Some(mut pending) = self.waiting.remove(&frame) else {
            return;
        };
        let now = stopwatch();
        pending.answered(&delivery, &stages, now);
        let PendingRequest {
            timing,
            kind,
            backlog_permit: _,
            node_bytes,
            connection_bytes,
        } = pending;
        drop((node_bytes, connection_bytes));
        self.connection.in_flight.leave(1);
        self.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        let method = kind.method();
        match delivery {
            Delivery::Permit(permit) => self.release(timing, frame, Some(permit), kind),
            Delivery::CaughtUp => self.release(timing, frame, None, kind),
            Delivery::Leases(permit, asked) => {
                if let PendingKind::Leases(question) = kind {
                    self.release_leases(timing, frame, permit, asked, question);
                }
            }
            Delivery::Reply(result) => {
                if matches!(kind, PendingKind::Read { .. }) {
                    let failures = &self.shared.metrics.reads.read_index_failures;
                    failures.increment(u64::from(result.is_err()));
                }
                let mut result = result.map_err(|error| self.shared.with_leader_address(error));
                if let Ok(response) = &mut result
                    && let ResponseBody::Members(list) = &mut response.body
                {
                    self.shared.directory.complete(&mut list.members);
                }
                if let PendingKind::Renewal(leases) = kind {
                    self.note_renewal(&timing, leases, &result);
                }
                self.finish(now, &timing, frame, method, result);
            }
            Delivery::Scanned(result, permit) => {
                self.scan_permits.push(permit);
                self.finish(now, &timing, frame, method, result);
            }
        }
    }

    /// The driver let a read go, and the store has applied what it must see.
    fn release(
        &mut self,
        mut timing: RequestTiming,
        frame: u64,
        permit: Option<ReadPermit>,
        kind: PendingKind,
    ) {
        let method = kind.method();
        let PendingKind::Read {
            query,
            consistency,
            min_revision,
            timeout,
        } = kind
        else {
            let error = Error::not_applied(ErrorKind::Internal, "a permit came for no read");
            return self.reply(frame, method, Err(error));
        };
        let is_leased = permit.is_some_and(|permit| permit.lease_remaining().is_some());
        if consistency == Consistency::LeaseOnly && !is_leased {
            return self.reply(frame, method, Err(lease_invalid()));
        }
        if !self.is_readable() {
            return self.reply(frame, method, Err(not_readable()));
        }
        if !self.shared.integrity.is_sound() {
            return self.reply(frame, method, Err(self.shared.integrity.refusal()));
        }
        let range = match query {
            Query::Range(range) if range.is_point() => range,
            query => {
                let left = timeout.saturating_sub(timing.phases.total());
                let kind = PendingKind::Read {
                    query: query.clone(),
                    consistency,
                    min_revision,
                    timeout,
                };
                // It has waited already: it is not turned away half way.
                let (class, on) = (Class::KeepAlive, ScanAuthority::Released(permit));
                return self.run_scan(timing, frame, class, query, left, kind, on);
            }
        };
        let request = PointRequest {
            request_id: frame,
            wanted: Wanted::of(range.keys_only, range.count_only),
            min_revision,
        };
        let before = self.replies.len();
        // What is read is not written down, and what is denied apart.
        self.notes.remove(&frame);
        let outcome = self.read_released(request, consistency, &range.key, permit);
        let path = permit.map_or(ReadPath::Serializable, |permit| path_of(&permit));
        let now = stopwatch();
        timing.phases.until(Phase::Storage, now);
        let took = timing.phases.total().as_secs_f64();
        let reads = &self.shared.metrics.reads;
        reads.duration_seconds[path].record(took);
        self.measure(&timing, method);
        self.account(now, &timing, method, outcome, before);
    }

    /// Answers a request that has come back, and accounts for its time.
    fn finish(
        &mut self,
        now: Instant,
        timing: &RequestTiming,
        frame: u64,
        method: &'static str,
        result: Result<Response, Error>,
    ) {
        self.measure(timing, method);
        let (before, outcome) = (self.replies.len(), RequestOutcome::of(&result));
        self.reply(frame, method, result);
        self.account(now, timing, method, outcome, before);
    }

    /// Accounts for the time of a request whose answer is all that was written since `before`.
    fn account(
        &self,
        now: Instant,
        timing: &RequestTiming,
        method: &'static str,
        outcome: RequestOutcome,
        before: usize,
    ) {
        self.shared.account(now, &timing.phases, 1, || Summary {
            method,
            outcome,
            request_bytes: timing.bytes,
            reply_bytes: self.replies.len() - before,
            beside: 0,
        });
    }

    fn note_renewal(&self, timing: &RequestTiming, leases: u64, result: &Result<Response, Error>) {
        let metrics = &self.shared.metrics.leases;
        match result {
            Ok(Response {
                body: ResponseBody::LeaseKeepAlive(kept),
                ..
            }) => metrics.kept(kept),
            Ok(_) => {}
            Err(error) => metrics.refused(leases, &error.kind),
        }
        metrics
            .renew_duration_seconds
            .record(timing.phases.total().as_secs_f64());
    }

    fn measure(&self, timing: &RequestTiming, method: &'static str) {
        let took = timing.phases.total().as_secs_f64();
        let requests = &self.shared.metrics.requests;
        requests.duration_seconds.of(method).record(took);
    }

    pub(super) fn reply(
        &mut self,
        request_id: u64,
        method: &'static str,
        result: Result<Response, Error>,
    ) {
        let metrics = &self.shared.metrics;
        match &result {
            Ok(_) => metrics.requests.succeeded(method).increment(1),
            Err(error) => metrics.request_failed(method, &error.kind),
        }
        if let Some(audit) = &self.shared.audit
            // The note of another request of this number, which still waits, is not of this one.
            && !self.waiting.contains_key(&request_id)
            && let Some(note) = self.notes.remove(&request_id)
        {
            let (principal, address) = (&self.connection.principal, self.connection.address);
            audit.record(principal, address, method, &note, &result);
        }
        let limits = &self.shared.frame_limits;
        let frame = ServerFrame { request_id, result };
        if let Err(error) = crate::wire::encode(&frame, limits, &mut self.replies) {
            let applied = frame
                .result
                .is_ok_and(|response| response.header.read.is_none());
            self.refuse_too_long(request_id, applied, error);
        }
    }

    /// Says that a reply is longer than a frame may be.
    pub(super) fn refuse_too_long(&mut self, request_id: u64, applied: bool, error: WireError) {
        let outcome = match applied {
            true => Outcome::Applied,
            false => Outcome::NotApplied,
        };
        let kind = match error {
            WireError::TooLong {
                bytes, bytes_max, ..
            } => ErrorKind::ResponseTooLarge {
                limit: bytes_max as u64,
                actual: bytes as u64,
            },
            _ => ErrorKind::Internal,
        };
        let refusal = Error {
            kind,
            outcome,
            detail: format!(
                "the reply is larger than a client accepts: {error}; request less at a time"
            ),
        };
        let frame = ServerFrame {
            request_id,
            result: Err(refusal),
        };
        crate::wire::encode(&frame, &self.shared.frame_limits, &mut self.replies)
            .expect("an error of one sentence fits into a frame");
    }
}

impl Session {
    /// Has it written down of what was asked and not answered that nobody here knows what became of it.
    fn note_unanswered(&mut self) {
        let Some(audit) = &self.shared.audit else {
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

impl Drop for Session {
    fn drop(&mut self) {
        self.connection.in_flight.leave(self.waiting.len());
        self.shared
            .in_flight
            .fetch_sub(self.waiting.len(), Ordering::Relaxed);
        self.note_unanswered();
        // For these nothing is done.
        for mail in self.leaving.drain(..) {
            if let Mail::Request { frame, .. } = mail {
                self.waiting.remove(&frame);
            }
        }
        // For the others somebody works, who does not know that nobody waits.
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

impl PendingRequest {
    /// What was done for it is done, and has come back this way; `now` it is known. Gives back what it
    /// held of the node for that. What a scan has found is counted until it is given out.
    fn answered(&mut self, delivery: &Delivery, stages: &Stages, now: Instant) {
        let Some(permit) = self.backlog_permit.take() else {
            return;
        };
        self.timing.phases.answered(stages, now);
        match delivery {
            // Refused at once: that says nothing about how long work takes.
            Delivery::Reply(Err(error)) if error.outcome == Outcome::NotApplied => drop(permit),
            _ => permit.served(now, self.timing.phases.total()),
        }
        if !matches!(delivery, Delivery::Scanned(..)) {
            self.node_bytes = None;
        }
    }
}

impl RequestTiming {
    /// Of a request that is taken in now.
    fn begin(bytes: usize) -> Self {
        Self {
            phases: Phases::begin(stopwatch()),
            bytes,
        }
    }
}

impl PendingKind {
    /// Of a read.
    fn read(query: Query, call: &Call) -> Self {
        Self::Read {
            query,
            consistency: call.consistency,
            min_revision: call.min_revision,
            timeout: timeout(call),
        }
    }

    /// Of a request that is neither read nor asked about leases.
    fn of(request: &Request) -> Self {
        match request {
            Request::LeaseKeepAlive(leases) => Self::Renewal(leases.len() as u64),
            request => Self::Other(request.method()),
        }
    }

    fn method(&self) -> &'static str {
        match self {
            Self::Read { query, .. } => query.method(),
            Self::Leases(question) => question.method(),
            Self::Renewal(_) => "lease_keep_alive",
            Self::Other(method) => method,
        }
    }
}

/// The request in a frame, which waits no longer than any may.
pub(super) fn call_of(frame: &Frame) -> Result<ClientFrame, WireError> {
    let mut asked: ClientFrame = frame.decode()?;
    asked.call.timeout_ms = asked.call.timeout_ms.min(TIMEOUT_MS_MAX);
    Ok(asked)
}

/// How long its client waits for it, from when it was taken in.
pub(super) fn timeout(call: &Call) -> Duration {
    Duration::from_millis(u64::from(call.timeout_ms))
}

fn slow_down(reason: Rejection, retry_after: Duration) -> Error {
    let detail = match reason {
        Rejection::Waiting => "this node is overloaded: retry later",
        Rejection::Memory => {
            "the memory budget for the requests of this node or connection is exhausted: retry \
             later"
        }
    };
    let retry_after_ms = u32::try_from(retry_after.as_millis()).unwrap_or(u32::MAX);
    Error::not_applied(ErrorKind::SlowDown { retry_after_ms }, detail)
}
