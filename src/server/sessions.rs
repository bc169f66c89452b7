//! Client connections: decode a batch, answer what may be answered here, hand on the rest.
//!
//! The leased read lives and ends in this file. Its steps, in the order that makes it linearizable
//! (lease-protocol 5.5, P20, A1, A7): the batch is closed; the commit index is captured and the
//! lease of the current leadership loaded; the store is read; *then* the clock pair is read, once
//! for the whole batch, and the lease is asked. What it does not cover, because it is void or
//! because the state machine is not there yet, goes to the driver as an ordinary request. No other
//! thread, no peer and no disk write takes part.
//!
//! Reads that may be old go the same way: what is known of the state's age is loaded before the
//! store is read, and judged by the same reading of the clock after it, so that the state is at
//! least as young as it is said to be. What cannot be proved young enough is asked for like any
//! linearizable read.

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
use crate::api;
use crate::api::Call;
use crate::api::Consistency;
use crate::api::Error;
use crate::api::ErrorKind;
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
use crate::node::path_of;
use crate::raft;
use crate::raft::Published;
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

/// What a read found, or why it may not look.
type Found = Result<RangeResponse, Error>;

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

    fn respond(&self, answer: Answer<Found>) -> Result<Response, Error> {
        let mut header = self.header(answer.revision);
        header.read = Some(answer.read);
        answer.found.map(|found| Response {
            header,
            body: ResponseBody::Range(found),
        })
    }

    /// Reads one key, as `range` asks for it.
    fn read_point(&self, range: &RangeRequest) -> Result<Source<Found>, StoreError> {
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
            found: Ok(RangeResponse {
                kvs,
                more: false,
                count,
            }),
            applied: point.applied,
            revision: point.revision,
        })
    }

    /// Whether a snapshot opened now will contain what `authority` demands, at `min_revision` at
    /// least.
    fn has(&self, authority: Authority, min_revision: i64) -> bool {
        let index = match authority {
            Authority::Permit(permit) => permit.index(),
            Authority::Bounded(bound) => bound.index(),
            Authority::Serializable(_) => LogIndex(0),
        };
        self.store.applied() >= index && self.store.revision() >= min_revision
    }

    /// Answers a read of many keys from a snapshot opened now, on a thread that may wait for the
    /// disk, and delivers it to `outbox`.
    fn scan(
        self: &Arc<Self>,
        authority: Authority,
        min_revision: i64,
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
                    .answer(authority, min_revision, source)
                    .map(|answer| scanning.respond(answer)))
            })
            .await;
            let result = match scanned {
                Ok(Ok(Some(result))) => result,
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

    fn status_response(&self) -> Response {
        let status = self.status.load();
        let lease = self.published.lease();
        let now = self.clock.now();
        let counters = self.published.lease_counters();
        let body = StatusResponse {
            name: self.name.clone(),
            version: crate::version::VERSION.to_owned(),
            role: status.role,
            last_index: status.last.index,
            commit_index: self.published.commit(),
            applied_index: self.store.applied(),
            storage_bytes: self.store.storage_bytes().unwrap_or_default(),
            leader_lease: api::LeaderLeaseStatus {
                is_valid: lease.as_ref().is_some_and(|cell| cell.is_valid(now)),
                remaining: lease
                    .as_ref()
                    .and_then(|cell| cell.remaining(now))
                    .unwrap_or_default(),
                lease_duration: self.lease_duration,
                max_clock_skew: self.reader.lease_margin,
                renewals: counters.renewals(),
                expirations: counters.expirations(),
                rejections: counters.rejections(),
            },
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
        min_revision: i64,
    },
    Other(&'static str),
}

/// A read of this batch that may be answered here: by the lease, or because it may be old.
struct Candidate {
    frame: u64,
    call: Call,
    /// What a point read found; `None` for a scan, which opens its snapshot once permitted.
    source: Option<Source<Found>>,
}

impl Candidate {
    /// Whether it may be served from this node's own state, however that is confirmed.
    fn may_be_old(&self) -> bool {
        matches!(
            self.call.consistency,
            Consistency::Serializable | Consistency::MaxStaleness(_)
        )
    }
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
                Request::Range(_) => match call.consistency {
                    Consistency::LinearizableQuorum => handed.push((request_id, call)),
                    _ => candidates.push(Candidate {
                        frame: request_id,
                        call,
                        source: None,
                    }),
                },
                _ => handed.push((request_id, call)),
            }
        }
        if !candidates.is_empty() {
            self.read_here(candidates, &mut handed);
        }
        self.hand_on(handed);
        Ok(())
    }

    /// Answers what the lease covers, and what may be as old as this node's state can be; the rest
    /// goes to `handed`, or is refused if it insists.
    fn read_here(&mut self, mut candidates: Vec<Candidate>, handed: &mut Vec<(u64, Call)>) {
        let shared = self.shared.clone();
        if !shared.readable.load(Ordering::Acquire) {
            // A lease says nothing about a state that has not been compared with its hash yet.
            for Candidate { frame, call, .. } in candidates {
                match call.consistency {
                    Consistency::Serializable => self.reply(frame, "range", Err(not_readable())),
                    _ => handed.push((frame, call)),
                }
            }
            return;
        }
        let arrived = stopwatch();
        // The batch is closed. Capture what the reads must see, this leadership's lease, and what
        // is known of the state's age.
        let commit = shared.published.commit();
        let lease = shared.published.lease();
        let may_be_old = candidates.iter().any(Candidate::may_be_old);
        let freshness = may_be_old.then(|| shared.published.freshness()).flatten();
        for candidate in &mut candidates {
            if let Request::Range(range) = &candidate.call.request
                && range.is_point()
                && (lease.is_some() || candidate.may_be_old())
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
        // Only now the clock: one reading and one check for the whole batch.
        let leasable =
            |candidate: &Candidate| candidate.call.consistency != Consistency::Serializable;
        let now = (lease.is_some() || freshness.is_some()).then(|| shared.clock.now());
        let permit = lease
            .as_deref()
            .filter(|_| candidates.iter().any(leasable))
            .zip(now)
            .and_then(|(lease, now)| lease.permit(now, commit));
        let bound = freshness.zip(now).map(|(fresh, now)| fresh.bound(now));
        let (mut by_lease, mut by_nobody) = (0, 0);
        for Candidate {
            frame,
            call,
            source,
        } in candidates
        {
            let Some(authority) = Authority::for_read(call.consistency, permit, bound) else {
                self.fall_back(frame, call, lease.is_some(), handed);
                continue;
            };
            let served = match &authority {
                Authority::Permit(_) => &mut by_lease,
                _ => &mut by_nobody,
            };
            match (source, &call.request) {
                (Some(source), _) => {
                    match shared.reader.answer(authority, call.min_revision, source) {
                        Some(answer) => {
                            *served += 1;
                            let result = shared.respond(answer);
                            self.reply(frame, "range", result);
                        }
                        None => self.wait_for_apply(frame, call, handed),
                    }
                }
                (None, Request::Range(range)) if shared.has(authority, call.min_revision) => {
                    if self.remember(frame, What::Other("range")) {
                        *served += 1;
                        let (range, outbox) = (range.clone(), self.outbox.clone());
                        shared.scan(authority, call.min_revision, range, outbox, frame);
                    }
                }
                (None, _) => self.wait_for_apply(frame, call, handed),
            }
        }
        let total = |path| shared.metrics.reads.total(path);
        total(ReadPath::Lease).increment(by_lease);
        if may_be_old {
            total(ReadPath::Serializable).increment(by_nobody);
        }
        if shared.sampler.take(by_lease + by_nobody) {
            let took = arrived.elapsed().as_secs_f64();
            let path = match by_lease {
                0 => ReadPath::Serializable,
                _ => ReadPath::Lease,
            };
            shared.metrics.reads.duration_seconds(path).record(took);
            shared
                .metrics
                .requests
                .duration_seconds("range")
                .record(took);
            if let Some(bound) = bound.filter(|_| by_nobody > 0) {
                let staleness = bound.staleness().as_secs_f64();
                shared.metrics.reads.staleness_seconds.record(staleness);
            }
        }
        if let Some(remaining) = permit.and_then(|permit| permit.lease_remaining()) {
            shared
                .metrics
                .leader_lease
                .read_margin_seconds
                .record(remaining.as_secs_f64());
        }
    }

    /// A read that neither the lease nor the state's age covers.
    fn fall_back(&mut self, frame: u64, call: Call, leads: bool, handed: &mut Vec<(u64, Call)>) {
        if call.consistency == Consistency::LeaseOnly && leads {
            return self.reply(frame, "range", Err(lease_invalid()));
        }
        let bounded = matches!(call.consistency, Consistency::MaxStaleness(_));
        if leads || bounded {
            let reason = match leads {
                false => ReadFallback::TooOld,
                true if self.shared.lease_enabled => ReadFallback::LeaseInvalid,
                true => ReadFallback::Disabled,
            };
            self.shared.metrics.reads.fallbacks(reason).increment(1);
        }
        handed.push((frame, call));
    }

    /// A read whose index or revision the state machine has not reached: it waits at the driver.
    fn wait_for_apply(&mut self, frame: u64, call: Call, handed: &mut Vec<(u64, Call)>) {
        let reason = match call.min_revision > self.shared.store.revision() {
            true => ReadFallback::Revision,
            false => ReadFallback::Behind,
        };
        self.shared.metrics.reads.fallbacks(reason).increment(1);
        handed.push((frame, call));
    }

    /// Sends requests to the driver in one step.
    fn hand_on(&mut self, mut handed: Vec<(u64, Call)>) {
        handed.retain(|(frame, call)| {
            let remembered = match &call.request {
                Request::Range(range) => What::Read {
                    range: range.clone(),
                    min_revision: call.min_revision,
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
            (
                Delivery::Permit(permit),
                What::Read {
                    range,
                    min_revision,
                },
            ) => {
                self.read_with(
                    arrived,
                    frame,
                    Authority::Permit(permit),
                    range,
                    min_revision,
                );
            }
            (
                Delivery::CaughtUp,
                What::Read {
                    range,
                    min_revision,
                },
            ) => {
                let authority = Authority::Serializable(None);
                self.read_with(arrived, frame, authority, range, min_revision);
            }
            (Delivery::Permit(_) | Delivery::CaughtUp, What::Other(method)) => {
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
        authority: Authority,
        range: RangeRequest,
        min_revision: i64,
    ) {
        let shared = self.shared.clone();
        if !shared.readable.load(Ordering::Acquire) {
            return self.reply(frame, "range", Err(not_readable()));
        }
        let path = match &authority {
            Authority::Permit(permit) => path_of(permit),
            _ => ReadPath::Serializable,
        };
        shared.metrics.reads.total(path).increment(1);
        if !range.is_point() {
            if self.remember(frame, What::Other("range")) {
                shared.scan(authority, min_revision, range, self.outbox.clone(), frame);
            }
            return;
        }
        let result = match shared.read_point(&range) {
            Ok(source) => match shared.reader.answer(authority, min_revision, source) {
                Some(answer) => shared.respond(answer),
                None => Err(Error::not_applied(
                    ErrorKind::Internal,
                    "the store is behind what consensus reported as applied",
                )),
            },
            Err(error) => Err(shared.fail(error)),
        };
        if shared.sampler.take(1) {
            let took = arrived.elapsed().as_secs_f64();
            shared.metrics.reads.duration_seconds(path).record(took);
        }
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
