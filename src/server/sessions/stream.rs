//! One stream of a client: what arrives is taken in, what was answered is sent.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;
use std::time::Instant;

use bytes::BytesMut;

use super::Sessions;
use super::Shares;
use super::errand::Errand;
use super::founds_alone;
use super::lease_invalid;
use super::leased::Asked;
use super::leased::Wish;
use super::leased::wants_lease;
use super::leases;
use super::leases::LeaseQuestion;
use super::not_readable;
use super::scans::Query;
use super::scans::Scan;
use super::scans::ScanOn;
use crate::api;
use crate::api::AuthRequest;
use crate::api::Call;
use crate::api::Consistency;
use crate::api::Error;
use crate::api::ErrorKind;
use crate::api::Outcome;
use crate::api::ReadPath;
use crate::api::Request;
use crate::api::Response;
use crate::api::ResponseBody;
use crate::kv::access::Author;
use crate::node::path_of;
use crate::raft::ReadPermit;
use crate::server::access;
use crate::server::access::Judged;
use crate::server::access::Note;
use crate::server::access::Who;
use crate::server::admission::Class;
use crate::server::admission::Place;
use crate::server::budget::ScanPlace;
use crate::server::budget::Share;
use crate::server::disk::store::Point;
use crate::server::drain;
use crate::server::driver::Mail;
use crate::server::metrics::Rejection;
use crate::server::metrics::stopwatch;
use crate::server::outbox::Delivery;
use crate::server::outbox::Outbox;
use crate::server::watches::Control;
use crate::server::watches::Reply;
use crate::transport::FrameReceiver;
use crate::transport::FrameStream;
use crate::transport::StreamError;
use crate::wire::Frame;
use crate::wire::WireError;
use crate::wire::client::ClientFrame;
use crate::wire::client::ServerFrame;
use crate::wire::point::PointRead;
use crate::wire::point::Wanted;

/// Requests in one batch: so long may those behind wait for a lookup that has to ask the disk.
pub(super) const BATCH_MAX: usize = 128;
/// The bytes of replies from which on they are written at once, before more is taken in: what a
/// client that reads slowly can make a stream hold is this and one reply more.
pub(super) const REPLIES_BYTES: usize = 256 << 10;
/// What a request costs beside its bytes while it waits.
const REQUEST_BYTES: usize = 512;
/// When to ask again if the node holds too many bytes already.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// One stream of a client.
pub(super) struct Session {
    pub(super) shared: Arc<Sessions>,
    pub(super) outbox: Arc<Outbox>,
    shares: Arc<Shares>,
    /// Requests of this stream that were handed on.
    waiting: BTreeMap<u64, Handed>,
    /// What is to be written down of requests once they are answered.
    notes: BTreeMap<u64, Note>,
    /// Requests on their way to the driver, once the batch is done.
    leaving: Vec<Mail>,
    /// Encoded replies that are not written yet.
    pub(super) replies: BytesMut,
    /// Of the scans whose results are among them.
    places: Vec<ScanPlace>,
    /// What the lookups of a batch have found; empty between batches.
    pub(super) found: Vec<Option<Point>>,
}

/// A request that was handed on.
struct Handed {
    arrived: Instant,
    what: What,
    place: Place,
    _bytes: (Share, Share),
}

/// What its answer needs of it.
pub(super) enum What {
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
pub(super) async fn serve(shared: Arc<Sessions>, shares: Arc<Shares>, mut stream: FrameStream) {
    let mut session = Session::new(shared, shares);
    let Err(end) = session.run(&mut stream).await;
    if end == StreamError::TooSlow {
        stream.sender.reset();
    }
}

impl Session {
    pub(super) fn new(shared: Arc<Sessions>, shares: Arc<Shares>) -> Self {
        Self {
            shared,
            shares,
            outbox: Arc::default(),
            waiting: BTreeMap::new(),
            notes: BTreeMap::new(),
            leaving: Vec::new(),
            replies: BytesMut::new(),
            places: Vec::new(),
            found: Vec::new(),
        }
    }

    async fn run(&mut self, stream: &mut FrameStream) -> Result<Infallible, StreamError> {
        let mut frames = Vec::new();
        let mut deliveries = Vec::new();
        let mut reads = Vec::new();
        loop {
            let receiver = &mut stream.receiver;
            poll_fn(|cx| self.poll_work(cx, receiver, &mut frames, &mut deliveries)).await?;
            for batch in frames.chunks(BATCH_MAX) {
                let taken = self.take_in(batch, &mut reads);
                taken.map_err(|error| stream.receiver.malformed(error))?;
                self.send_off();
                let mut rest = &reads[..];
                while !rest.is_empty() {
                    let done = self.read_round(batch, rest);
                    rest = &rest[done.map_err(|error| stream.receiver.malformed(error))?..];
                    self.send_off();
                    self.flush(stream, REPLIES_BYTES).await?;
                }
            }
            frames.clear();
            for (frame, delivery) in deliveries.drain(..) {
                self.give_out(frame, delivery);
                self.flush(stream, REPLIES_BYTES).await?;
            }
            self.flush(stream, 1).await?;
        }
    }

    /// Ready when requests have arrived, or answers to earlier ones; takes both.
    fn poll_work(
        &mut self,
        cx: &mut Context<'_>,
        receiver: &mut FrameReceiver,
        frames: &mut Vec<Frame>,
        deliveries: &mut Vec<(u64, Delivery)>,
    ) -> Poll<Result<(), StreamError>> {
        let mut is_ready = self.outbox.poll_take(cx, deliveries);
        if self.shares.in_flight.poll_room(cx) {
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

    /// Writes the replies that have gathered, if they have `bytes` or more.
    async fn flush(&mut self, stream: &mut FrameStream, bytes: usize) -> Result<(), StreamError> {
        if self.replies.len() < bytes {
            return Ok(());
        }
        stream.write(self.replies.split()).await?;
        self.written();
        stream.receiver.excuse();
        Ok(())
    }

    /// The client has been sent everything: the scans among it make room for others.
    pub(super) fn written(&mut self) {
        self.places.clear();
    }

    /// Takes in one closed batch of requests: leaves those of one key in `reads`, and has dealt with
    /// the others.
    pub(super) fn take_in(
        &mut self,
        frames: &[Frame],
        reads: &mut Vec<Asked>,
    ) -> Result<(), WireError> {
        reads.clear();
        let stopping = self.shared.stopping.load(Ordering::Relaxed);
        let is_served = !stopping && self.shared.integrity.is_sound();
        for (number, frame) in frames.iter().enumerate() {
            match PointRead::of(frame).filter(|read| is_served && self.takes(read, frame)) {
                Some(read) => reads.push(Asked {
                    frame: number,
                    read,
                }),
                None => self.take_in_other(frame, stopping)?,
            }
        }
        Ok(())
    }

    /// Sends to the driver, in one step, what was left to it.
    pub(super) fn send_off(&mut self) {
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

    fn take_in_other(&mut self, frame: &Frame, stopping: bool) -> Result<(), WireError> {
        let ClientFrame {
            request_id,
            mut call,
        } = frame.decode()?;
        let method = call.request.method();
        if self.shared.audit.is_some() {
            self.notes.insert(request_id, Note::of(&call.request));
        }
        // How it stands can be asked of a node that is out of service, too.
        let is_about_node = matches!(call.request, Request::Status | Request::LeaderLeaseReport);
        if stopping && !is_about_node {
            self.reply(request_id, method, Err(drain::stopping()));
            return Ok(());
        }
        if let Err(error) = api::validate(&call.request, &self.shared.limits) {
            self.reply(request_id, method, Err(error));
            return Ok(());
        }
        leases::stamp(&mut call.request);
        if Judged::of(&call.request) == Judged::AtOnce
            && let Err(error) = self.shared.access.admit_at_once(self.who(), &call.request)
        {
            self.reply(request_id, method, Err(error));
            return Ok(());
        }
        match &call.request {
            Request::Auth(AuthRequest::UseToken { token }) => {
                let used = self.shared.access.use_token(self.who(), token);
                let header = self.shared.header(self.shared.store.revision());
                let response = used.map(|used| Response {
                    header,
                    body: ResponseBody::Auth(used),
                });
                self.reply(request_id, method, response);
                return Ok(());
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
        if !self.shared.integrity.is_sound() && !matches!(call.request, Request::MoveLeader { .. })
        {
            let refusal = self.shared.integrity.refusal();
            self.reply(request_id, method, Err(refusal));
            return Ok(());
        }
        if self.shared.founds_alone && matches!(call.request, Request::MemberAdd(_)) {
            self.reply(request_id, method, Err(founds_alone()));
            return Ok(());
        }
        let Some(call) = self.watch_control(request_id, call, frame.body.len()) else {
            return Ok(());
        };
        let is_own = call.consistency != Consistency::LinearizableQuorum;
        match Query::of(&call.request).filter(|_| is_own) {
            Some(query) if self.is_readable() => self.scan(request_id, query, call),
            // Under the lease, as a read of one key.
            Some(_) if !wants_lease(call.consistency) => {
                self.reply(request_id, method, Err(not_readable()));
            }
            _ => self.send_on(request_id, call, frame.body.len()),
        }
        Ok(())
    }

    /// Has it written down that `key` was not read.
    pub(super) fn note_read(&mut self, request_id: u64, key: &[u8]) {
        if self.shared.audit.is_some() {
            self.notes.insert(request_id, Note::of_read(key));
        }
    }

    /// Who is at the other end of the connection.
    pub(super) fn who(&self) -> &Arc<Who> {
        &self.shares.who
    }

    /// Leaves a request to the driver; before that, what of it takes time is done elsewhere.
    fn send_on(&mut self, frame: u64, mut call: Call, bytes: usize) {
        let method = call.request.method();
        let author = match self.shared.access.author(self.who(), &call.request) {
            Ok(author) => author,
            Err(error) => return self.reply(frame, method, Err(error)),
        };
        match &mut call.request {
            Request::Auth(auth) if auth.is_write() => {
                if !access::has_plain_password(auth) {
                    return match access::prepare(auth) {
                        Ok(()) => self.hand_on(frame, call, author, bytes),
                        Err(error) => self.reply(frame, method, Err(error)),
                    };
                }
            }
            Request::LeaseKeepAlive(_) if self.shared.access.rules().is_some() => {}
            _ => return self.hand_on(frame, call, author, bytes),
        }
        let class = Class::of(&call.request);
        if self.remember(frame, class, What::of(&call.request), bytes) {
            let errand = Errand {
                shared: self.shared.clone(),
                who: self.who().clone(),
                outbox: self.outbox.clone(),
                frame,
                author,
                arrived: stopwatch(),
            };
            errand.spawn(call);
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
        } else if self.remember(frame, Class::Read, What::Other(method), bytes) {
            let reply = Reply {
                outbox: self.outbox.clone(),
                frame,
            };
            let courier = &self.shares.courier;
            let who = self.shares.who.identity();
            self.shared
                .watches
                .control(courier, watch_id, control, who, reply);
        }
        None
    }

    /// Whether the state may be served: an unverified one never is.
    pub(super) fn is_readable(&self) -> bool {
        self.shared.readable.load(Ordering::Acquire)
    }

    /// Where scans of this connection wait for their turn.
    pub(super) fn scan_places(&self) -> Arc<tokio::sync::Semaphore> {
        self.shares.scans.clone()
    }

    /// Has a read of many keys made.
    fn scan(&mut self, frame: u64, query: Query, call: Call) {
        let what = What::read(query.clone(), &call);
        let timeout = timeout(&call);
        // A transaction that only reads is asked for as one thing, like a read of one key.
        let class = Class::of(&call.request);
        self.run_scan(frame, class, query, timeout, what, ScanOn::Own(call));
    }

    fn run_scan(
        &mut self,
        frame: u64,
        class: Class,
        query: Query,
        left: Duration,
        what: What,
        on: ScanOn,
    ) {
        let min_revision = match what {
            What::Read { min_revision, .. } => min_revision,
            _ => 0,
        };
        let scan = Scan {
            shared: self.shared.clone(),
            who: self.who().clone(),
            outbox: self.outbox.clone(),
            frame,
            query,
            min_revision,
            began: stopwatch(),
            left,
            on,
        };
        // What it may find is what the node may have to hold.
        let bytes = self.shared.limits.reply_bytes_max;
        if self.remember(frame, class, what, bytes) {
            scan.spawn(self.shares.scans.clone());
        }
    }

    /// Puts a request of `bytes` among those that go to the driver when the batch is done.
    pub(super) fn hand_on(&mut self, frame: u64, call: Call, author: Option<Author>, bytes: usize) {
        let what = match Query::of(&call.request) {
            Some(query) => What::read(query, &call),
            None => match LeaseQuestion::of(&call) {
                Some(question) => What::Leases(question),
                None => What::of(&call.request),
            },
        };
        let class = Class::of(&call.request);
        if self.remember(frame, class, what, bytes) {
            let outbox = self.outbox.clone();
            self.leaving.push(Mail::Request {
                call,
                arrived: stopwatch(),
                author,
                outbox,
                frame,
            });
        }
    }

    /// Notes a request whose answer comes later; false if nothing more is to be done. A client that
    /// uses a number again while the first use waits gets one answer for both.
    #[must_use = "what is asked twice is done once"]
    pub(super) fn remember(&mut self, frame: u64, class: Class, what: What, bytes: usize) -> bool {
        let Entry::Vacant(entry) = self.waiting.entry(frame) else {
            return false;
        };
        let place = match self.shared.backlog.enter(class) {
            Ok(place) => place,
            Err(full) => {
                self.reject(frame, class, Rejection::Waiting, &what, full.retry_after);
                return false;
            }
        };
        let bytes = bytes + REQUEST_BYTES;
        let shares = self.shares.budget.take(bytes);
        let shares = shares.and_then(|own| Some((own, self.shared.budget.take(bytes)?)));
        let Some(shares) = shares else {
            drop(place);
            self.reject(frame, class, Rejection::Memory, &what, RETRY_AFTER);
            return false;
        };
        entry.insert(Handed {
            arrived: stopwatch(),
            what,
            place,
            _bytes: shares,
        });
        self.shares.in_flight.enter();
        self.shared.handed_on.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// There is too much to do for a request: nothing has been done for it.
    fn reject(
        &mut self,
        frame: u64,
        class: Class,
        reason: Rejection,
        what: &What,
        retry_after: Duration,
    ) {
        let metrics = &self.shared.metrics.work;
        metrics.rejected(class, reason).increment(1);
        self.reply(frame, what.method(), Err(slow_down(reason, retry_after)));
    }

    /// An answer came for a request that was handed on.
    pub(super) fn give_out(&mut self, frame: u64, delivery: Delivery) {
        let Some(Handed {
            arrived,
            what,
            place,
            ..
        }) = self.waiting.remove(&frame)
        else {
            return;
        };
        match &delivery {
            // Refused at once: that says nothing about how long work takes.
            Delivery::Reply(Err(error)) if error.outcome == Outcome::NotApplied => drop(place),
            _ => place.served(stopwatch(), arrived.elapsed()),
        }
        self.shares.in_flight.leave(1);
        self.shared.handed_on.fetch_sub(1, Ordering::Relaxed);
        let method = what.method();
        match delivery {
            Delivery::Permit(permit) => self.release(arrived, frame, Some(permit), what),
            Delivery::CaughtUp => self.release(arrived, frame, None, what),
            Delivery::Leases(permit, asked) => {
                if let What::Leases(question) = what {
                    self.release_leases(frame, permit, asked, question);
                }
            }
            Delivery::Reply(result) => {
                if matches!(what, What::Read { .. }) {
                    let failures = &self.shared.metrics.reads.read_index_failures;
                    failures.increment(u64::from(result.is_err()));
                }
                let mut result = result.map_err(|error| self.shared.complete(error));
                if let Ok(response) = &mut result
                    && let ResponseBody::Members(list) = &mut response.body
                {
                    self.shared.directory.complete(&mut list.members);
                }
                if let What::Renewal(leases) = what {
                    self.note_renewal(arrived, leases, &result);
                }
                self.measure(arrived, method);
                self.reply(frame, method, result);
            }
            Delivery::Scanned(result, place) => {
                self.places.push(place);
                self.measure(arrived, method);
                self.reply(frame, method, result);
            }
        }
    }

    /// The driver let a read go, and the store has applied what it must see.
    fn release(&mut self, arrived: Instant, frame: u64, permit: Option<ReadPermit>, what: What) {
        let method = what.method();
        let What::Read {
            query,
            consistency,
            min_revision,
            timeout,
        } = what
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
                let left = timeout.saturating_sub(arrived.elapsed());
                let what = What::Read {
                    query: query.clone(),
                    consistency,
                    min_revision,
                    timeout,
                };
                // It has waited already: it is not turned away half way.
                let (class, on) = (Class::KeepAlive, ScanOn::Released(permit));
                return self.run_scan(frame, class, query, left, what, on);
            }
        };
        let wish = Wish {
            request_id: frame,
            wanted: Wanted::of(range.keys_only, range.count_only),
            min_revision,
        };
        self.read_released(wish, &range.key, permit);
        // What was read is not written down.
        self.notes.remove(&frame);
        let path = permit.map_or(ReadPath::Serializable, |permit| path_of(&permit));
        let took = arrived.elapsed().as_secs_f64();
        let reads = &self.shared.metrics.reads;
        reads.duration_seconds(path).record(took);
        self.measure(arrived, method);
    }

    fn note_renewal(&self, arrived: Instant, leases: u64, result: &Result<Response, Error>) {
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
            .record(arrived.elapsed().as_secs_f64());
    }

    fn measure(&self, arrived: Instant, method: &'static str) {
        let took = arrived.elapsed().as_secs_f64();
        let requests = &self.shared.metrics.requests;
        requests.duration_seconds(method).record(took);
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
            && let Some(note) = self.notes.remove(&request_id)
        {
            let (who, address) = (&self.shares.who, self.shares.address);
            audit.record(who, address, method, &note, &result);
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
                "the reply is larger than a client would take: {error}; ask for less at a time"
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

impl Drop for Session {
    fn drop(&mut self) {
        self.shares.in_flight.leave(self.waiting.len());
        self.shared
            .handed_on
            .fetch_sub(self.waiting.len(), Ordering::Relaxed);
    }
}

impl What {
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

fn timeout(call: &Call) -> Duration {
    Duration::from_millis(u64::from(call.timeout_ms))
}

fn slow_down(reason: Rejection, retry_after: Duration) -> Error {
    let detail = match reason {
        Rejection::Waiting => "this node has more to do than it can: ask again a little later",
        Rejection::Memory => {
            "this node holds as much for its clients, or for this connection, as it may: ask again a \
             little later"
        }
    };
    let retry_after_ms = u32::try_from(retry_after.as_millis()).unwrap_or(u32::MAX);
    Error::not_applied(ErrorKind::SlowDown { retry_after_ms }, detail)
}
