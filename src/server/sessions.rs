//! Client connections: decode a batch, answer what may be answered here, hand on the rest.
//!
//! The leased read lives and ends in this file. Its steps, in the order that makes it linearizable
//! (lease-protocol 5.5, P20, A1, A7): the batch is closed; the commit index is captured and the
//! lease of the current leadership loaded; the store is read; *then* the clock pair is read, once
//! for the whole batch, and the lease is asked. What it does not cover, because it is void or
//! because the state machine is not there yet, goes to the driver as an ordinary request. No other
//! thread, no peer and no disk write takes part.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use arc_swap::ArcSwap;
use bytes::BytesMut;
use tokio::sync::Notify;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::directory::Directory;
use super::disk::store::StateReader;
use super::disk::store::StoreError;
use super::driver::Mail;
use super::driver::Mailbox;
use super::metrics::Metrics;
use super::metrics::ReadFallback;
use super::metrics::Sampler;
use super::metrics::stopwatch;
use super::outbox::Delivery;
use super::outbox::Outbox;
use super::vitals::Vitals;
use crate::api;
use crate::api::Call;
use crate::api::Consistency;
use crate::api::Error;
use crate::api::ErrorKind;
use crate::api::KeyRange;
use crate::api::Limits;
use crate::api::Outcome;
use crate::api::RangeRequest;
use crate::api::RangeResponse;
use crate::api::ReadPath;
use crate::api::Request;
use crate::api::Response;
use crate::api::ResponseBody;
use crate::api::ResponseHeader;
use crate::api::StatusResponse;
use crate::node::Answer;
use crate::node::Authority;
use crate::node::Reader;
use crate::node::Source;
use crate::raft;
use crate::raft::LeaseCell;
use crate::raft::Published;
use crate::raft::ReadPermit;
use crate::raft::Timing;
use crate::time::Clock;
use crate::transport::ClientConnection;
use crate::transport::ClientListener;
use crate::transport::FrameStream;
use crate::transport::StreamError;
use crate::types::ClusterId;
use crate::types::LogIndex;
use crate::types::NodeId;
use crate::types::Role;
use crate::wire::Frame;
use crate::wire::FrameLimits;
use crate::wire::client::ClientFrame;
use crate::wire::client::ServerFrame;

/// Scans that may run at the same time on one node; more wait their turn.
const SCANS_MAX: usize = 4;
/// Requests in one batch, and the bytes of replies from which on they are written at once: between
/// them they bound what a client that reads slowly can make a stream hold.
const BATCH_MAX: usize = 32;
const REPLIES_BYTES: usize = 256 << 10;

/// What every session of a node shares.
pub(crate) struct Sessions {
    pub(crate) cluster_id: ClusterId,
    pub(crate) member_id: NodeId,
    pub(crate) name: String,
    pub(crate) limits: Limits,
    pub(crate) frame_limits: FrameLimits,
    /// Requests of one connection that may be outstanding; its streams are not read beyond.
    pub(crate) in_flight_max: usize,
    pub(crate) reader: Reader,
    pub(crate) store: StateReader,
    /// The store may be read: it was closed cleanly, or its content has been verified.
    pub(crate) readable: Arc<AtomicBool>,
    pub(crate) published: Arc<Published>,
    pub(crate) status: Arc<ArcSwap<raft::Status>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) metrics: Arc<Metrics>,
    /// New work is refused: the node is stopping.
    pub(crate) stopping: AtomicBool,
    pub(crate) scans: Arc<Semaphore>,
    /// What the lease rests on.
    pub(crate) timing: Timing,
    /// How well the lease is kept alive.
    pub(crate) vitals: Arc<Vitals>,
    pub(crate) lease_duration: Duration,
    pub(crate) lease_enabled: bool,
    /// Requests handed to the driver or to a scan and not answered yet, of all connections.
    pub(crate) handed_on: AtomicUsize,
    /// Which leased reads are measured.
    pub(crate) sampler: Sampler,
    /// What `endpoint status` says while the log is being taken anew.
    pub(crate) quarantine_warning: Option<String>,
    /// Sentences for `endpoint status`.
    pub(crate) warnings: Vec<String>,
    /// Called when the store fails; the process must end.
    pub(crate) on_fatal: Box<dyn Fn(StoreError) + Send + Sync>,
}

impl Sessions {
    /// How many scans may run at once.
    pub(crate) fn scan_slots() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(SCANS_MAX))
    }

    /// Accepts connections until the listener is closed. The connections end with it.
    pub(crate) async fn accept(self: Arc<Self>, listener: Arc<ClientListener>) {
        let mut connections = JoinSet::new();
        while let Some(connection) = listener.accept().await {
            connections.spawn(self.clone().serve_connection(connection));
            while connections.try_join_next().is_some() {}
        }
        while connections.join_next().await.is_some() {}
    }

    async fn serve_connection(self: Arc<Self>, mut connection: ClientConnection) {
        tracing::debug!(
            client = %connection.identity().name(),
            address = %connection.remote_address(),
            "client connected"
        );
        let outstanding = Arc::new(InFlight::default());
        let mut streams = JoinSet::new();
        while let Ok(stream) = connection.accept_stream().await {
            let session = Session {
                shared: self.clone(),
                outbox: Arc::new(Outbox::default()),
                outstanding: outstanding.clone(),
                waiting: BTreeMap::new(),
                replies: BytesMut::new(),
            };
            // How a stream ended is no news: malformed frames are counted where they are found.
            streams.spawn(session.serve(stream));
            while streams.try_join_next().is_some() {}
        }
    }

    /// Requests taken in and not answered yet, those aside that were answered on the spot.
    pub(crate) fn handed_on(&self) -> usize {
        self.handed_on.load(Ordering::Relaxed)
    }

    fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster_id.short(),
            member_id: self.member_id,
            revision,
            raft_term: self.published.term(),
            leader_id: self.published.leader(),
            read: None,
        }
    }

    fn respond(&self, answer: Answer) -> Response {
        let mut header = self.header(answer.revision);
        header.read = Some(answer.read);
        Response {
            header,
            body: ResponseBody::Range(answer.found),
        }
    }

    /// Reads one key, as `range` asks for it.
    fn read_point(&self, range: &RangeRequest) -> Result<Source<RangeResponse>, StoreError> {
        let point = self.store.get(&range.key)?;
        let count = u64::from(point.kv.is_some());
        let kvs = match point.kv {
            Some(_) if range.count_only => Vec::new(),
            Some(mut kv) => {
                if range.keys_only {
                    kv.value = bytes::Bytes::new();
                }
                vec![kv]
            }
            None => Vec::new(),
        };
        Ok(Source {
            found: RangeResponse {
                kvs,
                more: false,
                count,
            },
            applied: point.applied,
            revision: point.revision,
        })
    }

    /// Answers a read of many keys from a snapshot opened now, on a thread that may wait for the
    /// disk, and delivers it to `outbox`.
    fn scan(
        self: &Arc<Self>,
        authority: Authority,
        range: RangeRequest,
        outbox: Arc<Outbox>,
        frame: u64,
    ) {
        let shared = self.clone();
        let snapshot = match self.store.snapshot() {
            Ok(snapshot) => snapshot,
            Err(error) => {
                let refusal = Delivery::Reply(Err(self.fail(error)));
                return outbox.deliver(frame, refusal);
            }
        };
        tokio::spawn(async move {
            let slot = shared.scans.clone().acquire_owned().await;
            let scanning = shared.clone();
            let scanned = tokio::task::spawn_blocking(move || {
                let _slot = slot;
                let found = crate::kv::range(&snapshot, &range, &scanning.limits)?;
                let applied = snapshot.applied().index;
                let source = Source {
                    found,
                    applied,
                    revision: snapshot.revision(),
                };
                Ok(scanning
                    .reader
                    .answer(authority, source)
                    .map(|answer| scanning.respond(answer)))
            })
            .await;
            let result = match scanned {
                Ok(Ok(Some(response))) => Ok(response),
                Ok(Ok(None)) => Err(Error::not_applied(
                    ErrorKind::LeaseInvalid,
                    "the store has not applied what the read must see: ask again",
                )),
                Ok(Err(error)) => Err(shared.fail(error)),
                Err(_) => Err(Error::not_applied(
                    ErrorKind::Internal,
                    "the scan was cut short",
                )),
            };
            outbox.deliver(frame, Delivery::Reply(result));
        });
    }

    /// The store failed: this node is over. What whoever asked is told.
    fn fail(&self, error: StoreError) -> Error {
        (self.on_fatal)(error);
        Error::not_applied(
            ErrorKind::Internal,
            "the store of this node failed: ask another one",
        )
    }

    fn lease_status(&self, now: crate::time::Instant) -> api::LeaderLeaseStatus {
        let lease = self.published.lease();
        let remaining = lease.as_ref().and_then(|cell| cell.remaining(now));
        let counters = self.published.lease_counters();
        api::LeaderLeaseStatus {
            is_valid: remaining.is_some(),
            remaining: remaining.unwrap_or_default(),
            lease_duration: self.lease_duration,
            max_clock_skew: self.reader.lease_margin,
            renewals: counters.renewals(),
            expirations: counters.expirations(),
            rejections: counters.rejections(),
        }
    }

    fn lease_report_response(&self) -> Response {
        let role = self.status.load().role;
        let (timing, vitals) = (&self.timing, &self.vitals);
        let mut body = api::LeaderLeaseReport {
            name: self.name.clone(),
            role,
            clock: api::ClockReading::default(),
            lease: api::LeaderLeaseStatus::default(),
            timing: api::LeaseTiming {
                heartbeat_interval: timing.heartbeat_interval,
                election_timeout_min: timing.election_timeout_min,
                election_timeout_max: timing.election_timeout_max,
                step_down_after: timing.step_down_after,
                max_drift_ppm: timing.max_drift_ppm,
                clock_granularity: timing.clock_granularity,
            },
            renew_interval: vitals.renew_interval.read(),
            round_trip: vitals.round_trip.read(),
            timer_delay: vitals.timer_delay.read(),
            warnings: self.all_warnings(role),
        };
        // Last, so that little lies between the reading and its way out.
        let now = self.clock.now();
        body.lease = self.lease_status(now);
        body.clock = api::ClockReading {
            boot: now.boot,
            raw: now.raw,
        };
        Response {
            header: self.header(self.store.revision()),
            body: ResponseBody::LeaderLeaseReport(Box::new(body)),
        }
    }

    fn status_response(&self) -> Response {
        let status = self.status.load();
        let body = StatusResponse {
            name: self.name.clone(),
            version: crate::version::VERSION.to_owned(),
            role: status.role,
            last_index: status.last.index,
            commit_index: self.published.commit(),
            applied_index: self.store.applied(),
            storage_bytes: self.store.storage_bytes().unwrap_or_default(),
            leader_lease: self.lease_status(self.clock.now()),
            members: self.directory.members(),
            warnings: self.all_warnings(status.role),
        };
        Response {
            header: self.header(self.store.revision()),
            body: ResponseBody::Status(Box::new(body)),
        }
    }

    fn all_warnings(&self, role: Role) -> Vec<String> {
        let quarantined = self
            .quarantine_warning
            .iter()
            .filter(|_| role == Role::Quarantined);
        quarantined.chain(&self.warnings).cloned().collect()
    }

    /// Fills in where clients reach the leader: the node knows only who it is.
    fn complete(&self, error: Error) -> Error {
        let ErrorKind::NotLeader {
            leader: Some(leader),
            address: None,
        } = error.kind
        else {
            return error;
        };
        let member = self.directory.member(leader);
        let detail = match &member {
            Some(member) => format!("this node does not lead: ask {}", member.name),
            None => error.detail,
        };
        let address = member
            .map(|member| member.client_address)
            .filter(|address| !address.is_empty());
        Error {
            kind: ErrorKind::NotLeader {
                leader: Some(leader),
                address,
            },
            detail,
            ..error
        }
    }
}

/// Requests of one connection that are not answered yet. Its streams share the room, so whoever
/// waits for some must be told when another stream leaves some.
#[derive(Default)]
struct InFlight {
    count: AtomicUsize,
    left: Notify,
}

impl InFlight {
    fn enter(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn leave(&self, count: usize) {
        self.count.fetch_sub(count, Ordering::Relaxed);
        self.left.notify_waiters();
    }
}

/// One stream of a client.
struct Session {
    shared: Arc<Sessions>,
    outbox: Arc<Outbox>,
    /// Requests of the whole connection that are not answered yet.
    outstanding: Arc<InFlight>,
    /// Requests of this stream that were handed on.
    waiting: BTreeMap<u64, Handed>,
    replies: BytesMut,
}

/// A request that was handed on.
struct Handed {
    arrived: Instant,
    what: What,
}

/// What its answer needs of it.
enum What {
    Read {
        range: RangeRequest,
        consistency: Consistency,
    },
    Other(&'static str),
}

/// A read of this batch that the lease may cover.
struct Candidate {
    frame: u64,
    call: Call,
    /// What a point read found; `None` for a scan, which opens its snapshot once permitted.
    source: Option<Source<RangeResponse>>,
}

impl Session {
    /// Serves the stream until the client ends it or the connection breaks.
    async fn serve(mut self, mut stream: FrameStream) -> Result<(), StreamError> {
        let mut frames = Vec::new();
        let mut deliveries = Vec::new();
        loop {
            let outstanding = self.outstanding.clone();
            // Made before the look, so that whoever leaves after it is noticed.
            let left = outstanding.left.notified();
            let room = outstanding.count.load(Ordering::Relaxed) < self.shared.in_flight_max;
            tokio::select! {
                read = stream.read_batch(&mut frames), if room => read?,
                () = self.outbox.take(&mut deliveries) => {}
                () = left, if !room => {}
            }
            self.outbox.try_take(&mut deliveries);
            // In small batches, each closed for itself: a few bytes may ask for a megabyte.
            while !frames.is_empty() {
                let count = frames.len().min(BATCH_MAX);
                let batch: Vec<Frame> = frames.drain(..count).collect();
                self.take_in(&stream, batch)?;
                self.flush(&mut stream, REPLIES_BYTES).await?;
            }
            for (frame, delivery) in deliveries.drain(..) {
                self.give_out(frame, delivery);
                self.flush(&mut stream, REPLIES_BYTES).await?;
            }
            self.flush(&mut stream, 1).await?;
        }
    }

    /// Writes the replies that have gathered, if they have `bytes` or more.
    async fn flush(&mut self, stream: &mut FrameStream, bytes: usize) -> Result<(), StreamError> {
        if self.replies.len() < bytes {
            return Ok(());
        }
        stream.write(self.replies.split()).await
    }

    /// Takes in one closed batch of requests.
    fn take_in(&mut self, stream: &FrameStream, frames: Vec<Frame>) -> Result<(), StreamError> {
        let mut candidates = Vec::new();
        let mut handed = Vec::new();
        let stopping = self.shared.stopping.load(Ordering::Relaxed);
        for frame in frames {
            let ClientFrame { request_id, call } = stream.receiver.decode(&frame)?;
            if stopping {
                let error = Error::not_applied(
                    ErrorKind::Unavailable,
                    "this node is stopping: ask another one",
                );
                self.reply(request_id, call.request.method(), Err(error));
                continue;
            }
            if let Err(error) = api::validate(&call.request, &self.shared.limits) {
                self.reply(request_id, call.request.method(), Err(error));
                continue;
            }
            match &call.request {
                Request::Status => {
                    let response = self.shared.status_response();
                    self.reply(request_id, "status", Ok(response));
                }
                Request::LeaderLeaseReport => {
                    let response = self.shared.lease_report_response();
                    self.reply(request_id, "leader_lease_report", Ok(response));
                }
                Request::Range(range) => match call.consistency {
                    Consistency::Serializable => self.read_serializable(request_id, range),
                    Consistency::Linearizable | Consistency::LeaseOnly => {
                        candidates.push(Candidate {
                            frame: request_id,
                            call,
                            source: None,
                        });
                    }
                    Consistency::LinearizableQuorum => handed.push((request_id, call)),
                },
                _ => handed.push((request_id, call)),
            }
        }
        if !candidates.is_empty() {
            self.read_under_lease(candidates, &mut handed);
        }
        self.hand_on(handed);
        Ok(())
    }

    /// Answers what the lease covers; the rest goes to `handed`, or is refused if it insists.
    fn read_under_lease(&mut self, mut candidates: Vec<Candidate>, handed: &mut Vec<(u64, Call)>) {
        let shared = self.shared.clone();
        if !shared.readable.load(Ordering::Acquire) {
            // A lease says nothing about a state that has not been compared with its hash yet.
            handed.extend(candidates.into_iter().map(|c| (c.frame, c.call)));
            return;
        }
        let arrived = stopwatch();
        // The batch is closed. Capture what the reads must see, and this leadership's lease.
        let commit = shared.published.commit();
        let lease = shared.published.lease();
        if lease.is_some() {
            for candidate in &mut candidates {
                if let Request::Range(range) = &candidate.call.request
                    && range.range == KeyRange::Single
                {
                    match shared.read_point(range) {
                        Ok(source) => candidate.source = Some(source),
                        Err(error) => {
                            let refusal = shared.fail(error);
                            for candidate in candidates {
                                self.reply(candidate.frame, "range", Err(refusal.clone()));
                            }
                            return;
                        }
                    }
                }
            }
        }
        // Only now the clock: one reading and one check for the whole batch.
        let permit = lease
            .as_deref()
            .and_then(|lease| check(lease, &*shared.clock, commit));
        let mut served = 0;
        for Candidate {
            frame,
            call,
            source,
        } in candidates
        {
            let Some(permit) = permit else {
                self.fall_back(frame, call, lease.is_some(), handed);
                continue;
            };
            let authority = Authority::Permit(permit);
            match (source, &call.request) {
                (Some(source), _) => match shared.reader.answer(authority, source) {
                    Some(answer) => {
                        served += 1;
                        let response = shared.respond(answer);
                        self.reply(frame, "range", Ok(response));
                    }
                    None => self.wait_for_apply(frame, call, handed),
                },
                (None, Request::Range(range)) if shared.store.applied() >= permit.index() => {
                    if self.remember(frame, What::Other("range")) {
                        served += 1;
                        shared.scan(authority, range.clone(), self.outbox.clone(), frame);
                    }
                }
                (None, _) => self.wait_for_apply(frame, call, handed),
            }
        }
        shared
            .metrics
            .reads
            .total(ReadPath::Lease)
            .increment(served);
        if shared.sampler.take(served) {
            let took = arrived.elapsed().as_secs_f64();
            shared
                .metrics
                .reads
                .duration_seconds(ReadPath::Lease)
                .record(took);
            shared
                .metrics
                .requests
                .duration_seconds("range")
                .record(took);
        }
        if let Some(remaining) = permit.and_then(|permit| permit.lease_remaining()) {
            shared
                .metrics
                .leader_lease
                .read_margin_seconds
                .record(remaining.as_secs_f64());
        }
    }

    /// A read that the lease does not cover.
    fn fall_back(&mut self, frame: u64, call: Call, leads: bool, handed: &mut Vec<(u64, Call)>) {
        if call.consistency == Consistency::LeaseOnly && leads {
            return self.reply(frame, "range", Err(lease_invalid()));
        }
        if leads {
            let reason = if self.shared.lease_enabled {
                ReadFallback::LeaseInvalid
            } else {
                ReadFallback::Disabled
            };
            self.shared.metrics.reads.fallbacks(reason).increment(1);
        }
        handed.push((frame, call));
    }

    /// A read whose index the state machine has not reached: it waits at the driver.
    fn wait_for_apply(&mut self, frame: u64, call: Call, handed: &mut Vec<(u64, Call)>) {
        self.shared
            .metrics
            .reads
            .fallbacks(ReadFallback::Behind)
            .increment(1);
        handed.push((frame, call));
    }

    fn read_serializable(&mut self, frame: u64, range: &RangeRequest) {
        let shared = self.shared.clone();
        if !shared.readable.load(Ordering::Acquire) {
            return self.reply(frame, "range", Err(not_readable()));
        }
        shared
            .metrics
            .reads
            .total(ReadPath::Serializable)
            .increment(1);
        if range.range != KeyRange::Single {
            if self.remember(frame, What::Other("range")) {
                shared.scan(
                    Authority::Serializable,
                    range.clone(),
                    self.outbox.clone(),
                    frame,
                );
            }
            return;
        }
        match shared.read_point(range) {
            Ok(source) => {
                let answer = shared
                    .reader
                    .answer(Authority::Serializable, source)
                    .expect("a serializable read demands no index");
                self.reply(frame, "range", Ok(shared.respond(answer)));
            }
            Err(error) => self.reply(frame, "range", Err(shared.fail(error))),
        }
    }

    /// Sends requests to the driver in one step.
    fn hand_on(&mut self, mut handed: Vec<(u64, Call)>) {
        handed.retain(|(frame, call)| {
            let remembered = match &call.request {
                Request::Range(range) => What::Read {
                    range: range.clone(),
                    consistency: call.consistency,
                },
                other => What::Other(other.method()),
            };
            self.remember(*frame, remembered)
        });
        if handed.is_empty() {
            return;
        }
        let outbox = &self.outbox;
        self.shared
            .mailbox
            .send_all(handed.into_iter().map(|(frame, call)| Mail::Request {
                call,
                outbox: outbox.clone(),
                frame,
            }));
    }

    /// Notes a request whose answer comes later. A client that uses a number again while the
    /// first use waits gets one answer for both.
    #[must_use = "what is asked twice is done once"]
    fn remember(&mut self, frame: u64, what: What) -> bool {
        let handed = Handed {
            arrived: stopwatch(),
            what,
        };
        let Entry::Vacant(place) = self.waiting.entry(frame) else {
            return false;
        };
        place.insert(handed);
        self.outstanding.enter();
        self.shared.handed_on.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// An answer came for a request that was handed on.
    fn give_out(&mut self, frame: u64, delivery: Delivery) {
        let Some(Handed { arrived, what }) = self.waiting.remove(&frame) else {
            return;
        };
        self.outstanding.leave(1);
        self.shared.handed_on.fetch_sub(1, Ordering::Relaxed);
        match (delivery, what) {
            (Delivery::Reply(result), What::Read { .. }) => {
                let result = result.map_err(|error| self.shared.complete(error));
                self.reply_after(arrived, frame, "range", result);
            }
            (Delivery::Reply(result), What::Other(method)) => {
                let result = result.map_err(|error| self.shared.complete(error));
                self.reply_after(arrived, frame, method, result);
            }
            (Delivery::Permit(permit), What::Read { range, consistency }) => {
                self.read_with(arrived, frame, permit, range, consistency);
            }
            (Delivery::Permit(_), What::Other(method)) => {
                let error = Error::not_applied(ErrorKind::Internal, "a permit came for no read");
                self.reply(frame, method, Err(error));
            }
        }
    }

    /// The driver permitted a read, and the store has applied what it must see.
    fn read_with(
        &mut self,
        arrived: Instant,
        frame: u64,
        permit: ReadPermit,
        range: RangeRequest,
        consistency: Consistency,
    ) {
        let shared = self.shared.clone();
        if consistency == Consistency::LeaseOnly && permit.lease_remaining().is_none() {
            return self.reply(frame, "range", Err(lease_invalid()));
        }
        if !shared.readable.load(Ordering::Acquire) {
            return self.reply(frame, "range", Err(not_readable()));
        }
        let path = if permit.lease_remaining().is_some() {
            ReadPath::Lease
        } else {
            ReadPath::ReadIndex
        };
        shared.metrics.reads.total(path).increment(1);
        if range.range != KeyRange::Single {
            if self.remember(frame, What::Other("range")) {
                shared.scan(Authority::Permit(permit), range, self.outbox.clone(), frame);
            }
            return;
        }
        let result = match shared.read_point(&range) {
            Ok(source) => match shared.reader.answer(Authority::Permit(permit), source) {
                Some(answer) => Ok(shared.respond(answer)),
                None => Err(Error::not_applied(
                    ErrorKind::Internal,
                    "the store is behind what consensus reported as applied",
                )),
            },
            Err(error) => Err(shared.fail(error)),
        };
        shared
            .metrics
            .reads
            .duration_seconds(path)
            .record(arrived.elapsed().as_secs_f64());
        self.reply_after(arrived, frame, "range", result);
    }

    /// Replies to a request that was handed on, and records how long it took.
    fn reply_after(
        &mut self,
        arrived: Instant,
        frame: u64,
        method: &'static str,
        result: Result<Response, Error>,
    ) {
        let took = arrived.elapsed().as_secs_f64();
        self.shared
            .metrics
            .requests
            .duration_seconds(method)
            .record(took);
        self.reply(frame, method, result);
    }

    fn reply(&mut self, request_id: u64, method: &'static str, result: Result<Response, Error>) {
        match &result {
            Ok(_) => self.shared.metrics.requests.succeeded(method).increment(1),
            Err(error) => self.shared.metrics.request_failed(method, &error.kind),
        }
        let limits = &self.shared.frame_limits;
        let frame = ServerFrame { request_id, result };
        if let Err(error) = crate::wire::encode(&frame, limits, &mut self.replies) {
            let applied = frame
                .result
                .is_ok_and(|response| response.header.read.is_none());
            let outcome = if applied {
                Outcome::Applied
            } else {
                Outcome::NotApplied
            };
            let detail = format!("the reply is larger than a client would take: {error}");
            let refusal = Error {
                kind: ErrorKind::Internal,
                outcome,
                detail,
            };
            let frame = ServerFrame {
                request_id,
                result: Err(refusal),
            };
            crate::wire::encode(&frame, limits, &mut self.replies)
                .expect("an error of one sentence fits into a frame");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.outstanding.leave(self.waiting.len());
        self.shared
            .handed_on
            .fetch_sub(self.waiting.len(), Ordering::Relaxed);
    }
}

/// Asks the lease, with a reading taken here and now: after the store was read.
fn check(lease: &LeaseCell, clock: &dyn Clock, commit: LogIndex) -> Option<ReadPermit> {
    lease.permit(clock.now(), commit)
}

fn lease_invalid() -> Error {
    Error::not_applied(
        ErrorKind::LeaseInvalid,
        "the leader's lease is void at the moment: ask again shortly, or allow a quorum read",
    )
}

fn not_readable() -> Error {
    Error::not_applied(
        ErrorKind::Unavailable,
        "this node was not stopped cleanly and is comparing its state with its hash: ask another \
         node, or again shortly",
    )
}
