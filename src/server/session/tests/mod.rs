//! Sessions without a network: frames go in, replies and mail to the driver come out.

mod allocations;
mod contexts;
mod held;
mod inside;
mod pins;
mod slow_log;

pub(super) use held::guard;

use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use tempfile::TempDir;
use tokio::sync::Semaphore;

use super::connection::{ConnectionState, ForwardTarget};
use super::dispatch::{REPLIES_BYTES, Session};
use super::stream::BATCH_MAX;
use super::{Accounting, Latencies, Serving, SessionLimits, Sessions, SlowLog, StorageSize};
use crate::api::{
    Call, Compare, CompareOp, Consistency, Error, ErrorKind, KeyRange, LeaseRef, Limits, Outcome,
    PutRequest, RangeRequest, ReadPath, Request, Response, ResponseBody, TxnOp, TxnOpResponse,
    TxnRequest,
};
use crate::kv::{Command, Operation};
use crate::node::{
    Captured, Demand, Input, Node, NodeOptions, Output, ReadBuffer, ReadResult, Reader,
};
use crate::raft::{Configuration, Entry, Payload, RestoredState, Status, Timing};
use crate::server::config::AdmissionOptions;
use crate::server::disk::quota::Room;
use crate::server::disk::store::{StateStore, StoreOptions};
use crate::server::mail::Mail;
use crate::server::mail::outbox::{Delivery, Stages};
use crate::server::metrics::{Metrics, Sampler, stopwatch};
use crate::server::session::admission::Backlog;
use crate::server::session::auth::{Access, Audit, Principal};
use crate::server::session::budget::{ByteBudget, InFlight, SCANS_PER_CONNECTION_MAX};
use crate::server::session::origins::Origins;
use crate::server::session::point_read::IndexedRead;
use crate::server::session::user_rates::UserRates;
use crate::server::status::contacts::Contacts;
use crate::server::status::node_state::NodeState;
use crate::server::watch::WatchSender;
use crate::time::{Clock, Instant};
use crate::types::{BootstrapId, ClusterId, LogId, NodeId};
use crate::wire::client::{ClientFrame, ServerFrame};
use crate::wire::{Door, Frame, FrameLimits, FrameReader, Kind, RequestContext, WireError, encode};

/// A clock that is set by hand, and may do something whenever it is read.
struct TestClock {
    nanos: AtomicU64,
    when_read: Mutex<Option<Box<dyn FnMut() + Send>>>,
}

impl Clock for TestClock {
    fn now(&self) -> Instant {
        if let Some(hook) = &mut *self.when_read.lock().unwrap() {
            hook();
        }
        Instant::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}

/// A node that leads a cluster of one under a lease, and a session of it.
pub(super) struct World {
    node: Node,
    store: Arc<Mutex<StateStore>>,
    last: LogId,
    clock: Arc<TestClock>,
    pub(super) shared: Arc<Sessions>,
    session: Session,
    next_request: u64,
    _folder: TempDir,
}

impl World {
    pub(super) fn new() -> Self {
        let options = AdmissionOptions::DEFAULT;
        Self::with(options.bytes_max, options.waiting_max)
    }

    fn with(bytes_max: usize, waiting_max: usize) -> Self {
        Self::telling(bytes_max, waiting_max, None)
    }

    /// One that tells of requests that take so long.
    fn telling(bytes_max: usize, waiting_max: usize, slow: Option<Duration>) -> Self {
        Self::made(bytes_max, waiting_max, slow, false, None)
    }

    /// One that writes down who did what, in its folder.
    fn auditing() -> Self {
        let options = AdmissionOptions::DEFAULT;
        Self::made(options.bytes_max, options.waiting_max, None, true, None)
    }

    /// One in which a user may make so many requests, and no more come with time.
    fn rated(requests: u64) -> Self {
        let options = AdmissionOptions::DEFAULT;
        let never = stopwatch() + Duration::from_secs(1 << 20);
        let rates = UserRates::new(requests, never);
        Self::made(options.bytes_max, options.waiting_max, None, false, rates)
    }

    fn made(
        bytes_max: usize,
        waiting_max: usize,
        slow: Option<Duration>,
        has_audit: bool,
        user_rates: Option<UserRates>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(TestClock {
            nanos: AtomicU64::new(1_000_000_000),
            when_read: Mutex::default(),
        });
        let options = NodeOptions {
            cluster_id: ClusterId(1),
            id: NodeId(1),
            members: Vec::new(),
            timing: Timing::default(),
            limits: Limits::DEFAULT,
            waiting_max: 16,
            sessions_max: 16,
            session_idle_max: Duration::from_secs(3600),
            leases: crate::node::LeaseOptions::DEFAULT,
            auto_compaction: crate::node::AutoCompaction::Off,
            check_interval: None,
            seed: 1,
            bootstrap: BootstrapId(1),
        };
        let restored = RestoredState {
            base_configuration: Configuration {
                voters: [NodeId(1)].into(),
                ..Configuration::default()
            },
            ..RestoredState::default()
        };
        let node = Node::new(options, restored, Some(BootstrapId(1)), 0, clock.now());
        let store = StateStore::open(&folder.path().join("state"), &StoreOptions::default());
        let store = store.unwrap();
        let state = NodeState {
            cluster_id: ClusterId(1),
            member_id: NodeId(1),
            name: "n1".into(),
            timing: Timing::default(),
            clock: clock.clone(),
            status: Arc::new(ArcSwap::from_pointee(Status::default())),
            published: node.published(),
            cluster_version: Arc::default(),
            bootstrap: Arc::default(),
            directory: Arc::default(),
            integrity: Arc::default(),
            readable: Arc::new(AtomicBool::new(true)),
            lease_stats: Arc::default(),
            stopping: AtomicBool::new(false),
            contacts: Arc::new(Contacts::new(clock.now())),
            followers: Arc::default(),
            asks_for_read_leases: AtomicBool::new(false),
            doubles: Arc::default(),
            quarantined_at_start: None,
            start_warnings: Vec::new(),
        };
        let limits = SessionLimits {
            requests: Limits::DEFAULT,
            frames: FrameLimits::DEFAULT,
            in_flight_max: 4096,
            connection_bytes_max: bytes_max,
            budget: ByteBudget::new(bytes_max),
            backlog: Backlog::new(waiting_max),
            scans: SessionLimits::scan_permits(),
            keep_alives: SessionLimits::keep_alive_permits(),
            user_rates,
        };
        let origins = Origins::fixed(ClusterId(7), NodeId(1), Configuration::default());
        let serving = Serving {
            reader: Reader {
                lease_margin: Duration::from_millis(50),
            },
            store: store.reader(),
            counts: Default::default(),
            storage_size: StorageSize::default(),
            room: Arc::new(Room::new(crate::server::config::QuotaConfig {
                bytes: 1 << 30,
                warn_ratio: 0.8,
            })),
            removed: Arc::default(),
            access: Access::new(
                store.reader().gate().clone(),
                ClusterId(1),
                Duration::from_secs(300),
                None,
            ),
            watches: Arc::default(),
            exports: Arc::default(),
            origins: Arc::new(origins),
        };
        let accounting = Accounting {
            metrics: Metrics::new(),
            audit: has_audit.then(|| Audit::open(&folder.path().join("audit")).unwrap()),
            slow: SlowLog::new(slow),
            traces: None,
            sampler: Sampler::default(),
            latencies: Latencies::default(),
        };
        let shared = Arc::new(Sessions {
            node: Arc::new(state),
            limits,
            serving,
            accounting,
            mailbox: Arc::default(),
            forwarder: None,
            in_flight: AtomicUsize::new(0),
            bootstraps_alone: false,
            on_fatal: Box::new(|error| panic!("the store failed: {error}")),
        });
        let shares = shares(bytes_max);
        let mut world = Self {
            last: LogId::default(),
            node,
            store: Arc::new(Mutex::new(store)),
            clock,
            session: Session::new(shared.clone(), shares),
            shared,
            next_request: 1,
            _folder: folder,
        };
        while !world.has_lease() {
            world.pass(Duration::from_millis(50));
        }
        world
    }

    fn has_lease(&self) -> bool {
        let now = self.clock.now();
        let lease = self.shared.node.published.lease();
        lease.is_some_and(|lease| lease.is_valid(now))
    }

    /// Lets time pass and the node do what there is to do.
    fn pass(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap();
        self.clock.nanos.fetch_add(nanos, Ordering::Relaxed);
        let now = self.clock.now();
        self.node.handle(now, Input::Tick);
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Persist(ticket, _) => self.node.handle(now, Input::Persisted(ticket)),
                Output::Apply(entries) => {
                    for entry in &entries {
                        self.last = entry.id;
                    }
                    let commands: Vec<_> = entries.iter().map(|e| (e.id, command(e))).collect();
                    let applied = self.store.lock().unwrap().apply_batch(&commands).unwrap();
                    let replies = applied.into_iter().map(|a| (a.id, a.reply)).collect();
                    self.node.handle(now, Input::Applied(replies));
                }
                _ => {}
            }
        }
    }

    /// Writes behind the node's back: these tests are about reading.
    fn put(&mut self, key: &'static str, value: impl Into<Bytes>) {
        self.last.index = self.last.index.next();
        let entry = (self.last, Some(put(key, value.into())));
        self.store.lock().unwrap().apply_batch(&[entry]).unwrap();
    }

    fn frame(&mut self, consistency: Consistency, request: Request) -> Frame {
        // Its time passes while a machine is busy elsewhere.
        self.frame_within(3_600_000, consistency, request)
    }

    fn frame_within(
        &mut self,
        timeout_ms: u32,
        consistency: Consistency,
        request: Request,
    ) -> Frame {
        let call = Call {
            timeout_ms,
            consistency,
            min_revision: 0,
            session: None,
            request,
        };
        let request_id = self.next_request;
        self.next_request += 1;
        let mut bytes = BytesMut::new();
        let limits = FrameLimits::DEFAULT;
        encode(&ClientFrame { request_id, call }, &limits, &mut bytes).unwrap();
        let mut reader = FrameReader::new(Door::Server, limits);
        reader.push(bytes.freeze());
        reader.next_frame().unwrap().unwrap()
    }

    /// One batch, as the session's task takes it in; how much was there to be written at once.
    fn take_in(&mut self, frames: &[Frame]) -> (Vec<ServerFrame>, usize) {
        let mut reads: Vec<IndexedRead> = Vec::new();
        self.session.dispatch_batch(frames, &mut reads).unwrap();
        let (mut replies, mut most) = (Vec::new(), 0);
        let mut rest = &reads[..];
        loop {
            most = most.max(self.session.replies.len());
            replies.extend(self.replies());
            if rest.is_empty() {
                break;
            }
            let done = self.session.read_round(frames, rest).unwrap();
            rest = &rest[done..];
        }
        self.session.submit();
        (replies, most)
    }

    fn replies(&mut self) -> Vec<ServerFrame> {
        let mut reader = FrameReader::new(Door::Client, FrameLimits::DEFAULT);
        reader.push(self.session.replies.split().freeze());
        std::iter::from_fn(|| reader.next_frame().unwrap())
            .map(|frame| frame.decode().unwrap())
            .collect()
    }

    /// What is answered on the spot; `None` if the request went to the driver.
    fn ask(
        &mut self,
        consistency: Consistency,
        request: Request,
    ) -> Option<Result<Response, Error>> {
        let frame = self.frame(consistency, request);
        let (mut replies, _) = self.take_in(&[frame]);
        let mut mails = Vec::new();
        self.shared.mailbox.take(&mut mails, Duration::ZERO);
        assert_eq!(replies.len() + mails.len(), 1, "answered or handed on");
        replies.pop().map(|reply| reply.result)
    }

    fn get(
        &mut self,
        consistency: Consistency,
        key: &'static str,
    ) -> Option<Result<Response, Error>> {
        self.ask(consistency, get(key))
    }
}

/// What the streams of a connection share that may hold so many bytes.
fn shares(bytes_max: usize) -> Arc<ConnectionState> {
    Arc::new(ConnectionState {
        in_flight: Arc::new(InFlight::new(4096)),
        budget: ByteBudget::new(bytes_max),
        scans: Arc::new(Semaphore::new(SCANS_PER_CONNECTION_MAX)),
        watch_sender: WatchSender::new(),
        principal: Principal::new("tester", [127, 0, 0, 1].into()),
        address: ([127, 0, 0, 1], 1).into(),
        forwarding: ForwardTarget::none(),
        has_free_pages: false,
    })
}

fn command(entry: &Entry) -> Option<Bytes> {
    match &entry.payload {
        Payload::Command(bytes) => Some(bytes.clone()),
        _ => None,
    }
}

fn put(key: &'static str, value: Bytes) -> Bytes {
    Command::Write {
        author: None,
        session: None,
        operation: Operation::Put(PutRequest {
            key: Bytes::from_static(key.as_bytes()),
            value,
            prev_kv: false,
            ..PutRequest::default()
        }),
    }
    .encode()
}

fn get(key: &'static str) -> Request {
    Request::Range(RangeRequest {
        key: Bytes::from_static(key.as_bytes()),
        ..RangeRequest::default()
    })
}

fn everything() -> Request {
    Request::Range(RangeRequest {
        range: KeyRange::Prefix,
        ..RangeRequest::default()
    })
}

fn value(response: &Response) -> Bytes {
    match &response.body {
        ResponseBody::Range(range) => range.kvs[0].value.clone(),
        other => panic!("no range: {other:?}"),
    }
}

fn path(response: &Response) -> ReadPath {
    response.header.read.unwrap().path
}

const ALL: [Consistency; 4] = [
    Consistency::Linearizable,
    Consistency::LeaseOnly,
    Consistency::Serializable,
    Consistency::MaxStaleness(Duration::from_secs(1)),
];

#[test]
fn reads_of_one_key_are_answered_on_the_spot_while_the_lease_holds() {
    let mut world = World::new();
    world.put("k", "v");
    for consistency in ALL {
        let response = world.get(consistency, "k").unwrap().unwrap();
        assert_eq!(value(&response), "v");
        let expected = match consistency {
            Consistency::Serializable => ReadPath::Serializable,
            _ => ReadPath::Lease,
        };
        assert_eq!(path(&response), expected, "{consistency:?}");
        assert_eq!(
            response.header.revision,
            world.shared.serving.store.revision()
        );
    }
    assert!(world.get(Consistency::LinearizableQuorum, "k").is_none());
}

#[test]
fn a_lease_that_is_over_answers_nothing() {
    let mut world = World::new();
    world.put("k", "v");
    let later = Duration::from_secs(1).as_nanos() as u64;
    world.clock.nanos.fetch_add(later, Ordering::Relaxed);
    assert!(world.get(Consistency::Linearizable, "k").is_none());
    let refused = world.get(Consistency::LeaseOnly, "k").unwrap().unwrap_err();
    assert_eq!(refused.kind, ErrorKind::LeaseInvalid);
}

/// The order of a leased read (P20): a write that is applied while the clock is being read must not
/// be in the reply, because the store was read before.
#[test]
fn the_store_is_read_before_the_clock() {
    let mut world = World::new();
    world.put("k", "before");
    let (store, mut last) = (world.store.clone(), world.last);
    let write = move || {
        last.index = last.index.next();
        let entry = (last, Some(put("k", "after".into())));
        store.lock().unwrap().apply_batch(&[entry]).unwrap();
    };
    *world.clock.when_read.lock().unwrap() = Some(Box::new(write));
    let response = world.get(Consistency::LeaseOnly, "k").unwrap().unwrap();
    assert_eq!(value(&response), "before");
}

/// The same of a scan, whose snapshot must be older than the check.
#[tokio::test]
async fn a_scans_snapshot_is_opened_before_the_clock_is_read() {
    let mut world = World::new();
    world.put("k", "before");
    let (store, mut last) = (world.store.clone(), world.last);
    let write = move || {
        last.index = last.index.next();
        let entry = (last, Some(put("k", "after".into())));
        store.lock().unwrap().apply_batch(&[entry]).unwrap();
    };
    *world.clock.when_read.lock().unwrap() = Some(Box::new(write));
    let response = scanned(&mut world, Consistency::LeaseOnly).await.unwrap();
    assert_eq!(value(&response), "before");
    assert_eq!(path(&response), ReadPath::Lease);
}

/// Asks for everything and waits until the session has the answer.
async fn scanned(world: &mut World, consistency: Consistency) -> Result<Response, Error> {
    asked_aside(world, consistency, everything()).await
}

/// Asks for what is read beside the session, and waits until the session has the answer.
async fn asked_aside(
    world: &mut World,
    consistency: Consistency,
    request: Request,
) -> Result<Response, Error> {
    let frame = world.frame(consistency, request);
    let (replies, _) = world.take_in(&[frame]);
    assert!(replies.is_empty());
    let mut deliveries = Vec::new();
    world.session.outbox.take(&mut deliveries).await;
    for answered in deliveries {
        world.session.complete(answered);
    }
    let result = world.replies().pop().unwrap().result;
    world.session.written();
    result
}

/// What is sent to the driver from beside the session.
pub(super) async fn sent_to_the_driver(world: &World) -> Vec<Mail> {
    let mut mails = Vec::new();
    let come = async {
        while mails.is_empty() {
            tokio::task::yield_now().await;
            world.shared.mailbox.take(&mut mails, Duration::ZERO);
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), come).await;
    waited.expect("nothing was sent to the driver within a minute");
    mails
}

#[tokio::test]
async fn a_scan_that_the_lease_does_not_cover_goes_to_the_driver_and_comes_back() {
    let mut world = World::new();
    world.put("k", "v");
    let later = Duration::from_secs(1).as_nanos() as u64;
    world.clock.nanos.fetch_add(later, Ordering::Relaxed);
    let frame = world.frame(Consistency::Linearizable, everything());
    assert!(world.take_in(&[frame]).0.is_empty());
    let mut mails = sent_to_the_driver(&world).await;
    let Some(Mail::Request { outbox, frame, .. }) = mails.pop() else {
        panic!("the scan itself must come");
    };
    // As for a serializable read that has waited: on nobody's word.
    outbox.deliver(frame, Delivery::CaughtUp);
    let mut deliveries = Vec::new();
    for _ in 0..2 {
        outbox.take(&mut deliveries).await;
        for answered in deliveries.drain(..) {
            world.session.complete(answered);
        }
    }
    let response = world.replies().pop().unwrap().result.unwrap();
    assert_eq!(path(&response), ReadPath::Serializable);
    assert_eq!(world.shared.in_flight(), 0);
}

fn txn(success: Vec<TxnOp>) -> Request {
    let compare = Compare::version("k", CompareOp::Greater, 0);
    Request::Txn(TxnRequest::new().when([compare]).and_then(success))
}

/// A transaction that only reads makes no log entry, and is served on the word that any read is.
#[tokio::test]
async fn a_transaction_that_only_reads_is_a_read() {
    let mut world = World::new();
    world.put("k", "v");
    let gets = || txn(vec![TxnOp::get("k"), TxnOp::txn(TxnRequest::new())]);
    for consistency in [
        Consistency::Linearizable,
        Consistency::LeaseOnly,
        Consistency::Serializable,
    ] {
        let response = asked_aside(&mut world, consistency, gets()).await.unwrap();
        let expected = match consistency {
            Consistency::Serializable => ReadPath::Serializable,
            _ => ReadPath::Lease,
        };
        assert_eq!(path(&response), expected);
        let ResponseBody::Txn(txn) = &response.body else {
            panic!("no transaction: {response:?}");
        };
        assert!(txn.succeeded);
        let TxnOpResponse::Range(range) = &txn.responses[0] else {
            panic!("no range: {txn:?}");
        };
        assert_eq!(range.kvs[0].value, "v");
    }
    // What a quorum must confirm, and what may write, is the driver's at once.
    assert!(world.ask(Consistency::LinearizableQuorum, gets()).is_none());
    let puts = txn(vec![TxnOp::get("k"), TxnOp::put("a", "1")]);
    for consistency in ALL {
        assert!(world.ask(consistency, puts.clone()).is_none());
    }
    // And without a lease, a permit decides.
    let later = Duration::from_secs(1).as_nanos() as u64;
    world.clock.nanos.fetch_add(later, Ordering::Relaxed);
    let refused = asked_aside(&mut world, Consistency::LeaseOnly, gets()).await;
    assert_eq!(refused.unwrap_err().kind, ErrorKind::LeaseInvalid);
    let frame = world.frame(Consistency::Linearizable, gets());
    assert!(world.take_in(&[frame]).0.is_empty());
    assert_eq!(sent_to_the_driver(&world).await.len(), 1);
}

#[test]
fn what_no_transaction_may_be_is_refused_on_the_spot() {
    let mut world = World::new();
    let twice = txn(vec![TxnOp::put("a", "1"), TxnOp::put("a", "2")]);
    let many = txn(vec![TxnOp::get("k"); 129]);
    let empty = txn(vec![TxnOp::get("")]);
    for (request, kind) in [
        (twice, ErrorKind::DuplicateKey),
        (many, ErrorKind::TxnTooLarge),
        (empty, ErrorKind::InvalidArgument),
    ] {
        let error = world.ask(Consistency::Linearizable, request);
        let error = error.unwrap().unwrap_err();
        assert_eq!((error.kind, error.outcome), (kind, Outcome::NotApplied));
    }
}

/// D1: after an unclean stop the state is compared with its hash before it serves
/// anything, whatever the lease says.
#[tokio::test]
async fn an_unverified_state_is_never_served() {
    let mut world = World::new();
    world.put("k", "v");
    world.shared.node.readable.store(false, Ordering::Release);
    assert!(world.has_lease());
    for request in [get("k"), everything(), txn(vec![TxnOp::get("k")])] {
        for consistency in ALL {
            match world.ask(consistency, request.clone()) {
                // Linearizable reads wait at the driver.
                None => assert_ne!(consistency, Consistency::Serializable),
                Some(answer) => {
                    assert_eq!(answer.unwrap_err().kind, ErrorKind::Unavailable);
                    assert_eq!(consistency, Consistency::Serializable);
                }
            }
        }
    }
    // And they are refused if the driver lets them go too early.
    let waiting: Vec<u64> = (1..world.next_request).collect();
    for frame in waiting {
        let caught_up = (frame, Delivery::CaughtUp, Stages::default());
        world.session.complete(caught_up);
    }
    let replies = world.replies();
    assert_eq!(replies.len(), 9);
    for reply in replies {
        let kind = reply.result.unwrap_err().kind;
        assert!(
            matches!(kind, ErrorKind::Unavailable | ErrorKind::LeaseInvalid),
            "{kind:?}"
        );
    }
}

/// A few bytes may ask for a megabyte: what is found is written before more is looked up.
#[test]
fn the_replies_of_one_batch_are_bounded() {
    const VALUE: usize = 100 << 10;
    let mut world = World::new();
    world.put("k", vec![7; VALUE]);
    let frames: Vec<_> = (0..BATCH_MAX)
        .map(|_| world.frame(Consistency::Linearizable, get("k")))
        .collect();
    let (replies, most) = world.take_in(&frames);
    assert_eq!(replies.len(), BATCH_MAX);
    assert!(replies.iter().all(|reply| reply.result.is_ok()));
    assert!(most >= REPLIES_BYTES, "several are written together");
    let one_more = VALUE + 1024;
    assert!(most < REPLIES_BYTES + one_more, "{most} bytes at once");
}

#[test]
fn a_request_beyond_the_budget_is_told_to_slow_down_and_those_before_are_not_lost() {
    let mut world = World::with(3000, 16);
    let put = || {
        Request::Put(PutRequest {
            key: Bytes::from_static(b"k"),
            value: vec![7; 1000].into(),
            prev_kv: false,
            ..PutRequest::default()
        })
    };
    assert!(world.ask(Consistency::Linearizable, put()).is_none());
    let refused = world
        .ask(Consistency::Linearizable, put())
        .unwrap()
        .unwrap_err();
    assert!(matches!(
        refused.kind,
        ErrorKind::SlowDown {
            retry_after_ms: 1..
        }
    ));
    assert_eq!(refused.outcome, Outcome::NotApplied);
    // Reads that are answered at once hold nothing.
    assert!(world.get(Consistency::Linearizable, "k").unwrap().is_ok());
    let reply = Delivery::Reply(Err(refused));
    world.session.complete((1, reply, Stages::default()));
    assert_eq!(world.replies().len(), 1);
    assert_eq!(world.shared.limits.budget.taken(), 0);
    assert!(world.ask(Consistency::Linearizable, put()).is_none());
    assert_eq!(world.shared.in_flight(), 1);
}

/// What is left to the driver, of as many as are sent.
fn in_flight(world: &mut World, request: &Request) -> usize {
    let before = world.shared.in_flight();
    for _ in 0..40 {
        let frame = world.frame(Consistency::LinearizableQuorum, request.clone());
        let (replies, _) = world.take_in(&[frame]);
        for reply in replies {
            let error = reply.result.unwrap_err();
            assert!(matches!(
                error.kind,
                ErrorKind::SlowDown {
                    retry_after_ms: 1..
                }
            ));
            assert_eq!(error.outcome, Outcome::NotApplied);
        }
    }
    // Nobody drives a node here: what was left to it is forgotten.
    world.shared.mailbox.take(&mut Vec::new(), Duration::ZERO);
    world.shared.in_flight() - before
}

#[test]
fn scans_writes_reads_and_keep_alives_are_taken_in_up_to_their_marks() {
    let mut world = World::with(1 << 30, 32);
    let put = Request::Put(PutRequest {
        key: Bytes::from_static(b"k"),
        ..PutRequest::default()
    });
    let renewal = Request::LeaseKeepAlive(vec![LeaseRef::id(1)]);
    assert_eq!(in_flight(&mut world, &everything()), 8);
    assert_eq!(in_flight(&mut world, &put), 8);
    assert_eq!(in_flight(&mut world, &get("k")), 8);
    assert_eq!(in_flight(&mut world, &renewal), 8);
    assert_eq!(world.shared.in_flight(), 32);
    // A read that the lease covers waits nowhere.
    assert!(world.get(Consistency::Linearizable, "k").unwrap().is_ok());
    let rendered = world.shared.accounting.metrics.render(|_| {});
    for class in ["scan", "write", "read", "keep_alive"] {
        let line =
            format!("leasehold_requests_rejected_total{{class=\"{class}\",reason=\"waiting\"}} 32");
        assert!(rendered.contains(&line), "{line} in:\n{rendered}");
    }
    // One is answered: a renewal has its place, and nobody else.
    let answered = Delivery::Reply(Err(Error::not_applied(ErrorKind::NoLeader, "none")));
    world.session.complete((1, answered, Stages::default()));
    world.replies();
    for request in [everything(), put, get("k")] {
        assert_eq!(in_flight(&mut world, &request), 0, "{request:?}");
    }
    assert_eq!(in_flight(&mut world, &renewal), 1);
}

#[test]
fn a_connection_holds_no_more_bytes_than_its_share_and_others_go_on() {
    let mut world = World::with(100_000, 1000);
    let put = || {
        Request::Put(PutRequest {
            key: Bytes::from_static(b"k"),
            value: vec![7; 1000].into(),
            ..PutRequest::default()
        })
    };
    world.session = Session::new(world.shared.clone(), shares(3000));
    assert!(world.ask(Consistency::Linearizable, put()).is_none());
    let refused = world.ask(Consistency::Linearizable, put()).unwrap();
    let kind = refused.unwrap_err().kind;
    assert!(matches!(kind, ErrorKind::SlowDown { .. }), "{kind:?}");
    world.session = Session::new(world.shared.clone(), shares(3000));
    assert!(world.ask(Consistency::Linearizable, put()).is_none());
}

#[tokio::test]
async fn a_scan_whose_deadline_is_over_when_its_turn_comes_is_not_made() {
    let mut world = World::new();
    world.put("k", "v");
    let frame = world.frame_within(0, Consistency::Serializable, everything());
    world.take_in(&[frame]);
    let mut deliveries = Vec::new();
    world.session.outbox.take(&mut deliveries).await;
    let Some((_, Delivery::Scanned(Err(error), _), _)) = deliveries.pop() else {
        panic!("it is refused");
    };
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
    assert_eq!(error.outcome, Outcome::NotApplied);
    let rendered = world.shared.accounting.metrics.render(|_| {});
    let expired = "leasehold_requests_expired_total{phase=\"scan\"} 1";
    assert!(rendered.contains(expired), "{rendered}");
}

/// The places of a connection bound the results that wait for a client who does not read.
#[tokio::test]
async fn a_scan_keeps_its_place_until_its_result_is_written() {
    let mut world = World::new();
    world.put("k", "v");
    let frames: Vec<_> = (0..SCANS_PER_CONNECTION_MAX + 2)
        .map(|_| world.frame(Consistency::Serializable, everything()))
        .collect();
    world.take_in(&frames);
    let mut deliveries = Vec::new();
    while deliveries.len() < SCANS_PER_CONNECTION_MAX {
        world.session.outbox.take(&mut deliveries).await;
    }
    for answered in deliveries.drain(..) {
        world.session.complete(answered);
    }
    // The results are encoded and not written: the others have to wait.
    let more = tokio::time::timeout(Duration::from_millis(200), async {
        world.session.outbox.take(&mut deliveries).await;
    });
    assert!(more.await.is_err());
    world.session.written();
    while deliveries.len() < 2 {
        world.session.outbox.take(&mut deliveries).await;
    }
}

#[test]
fn what_is_no_request_is_an_error_whatever_else_the_batch_holds() {
    let mut world = World::new();
    let good = world.frame(Consistency::Linearizable, get("k"));
    let mut bad = good.clone();
    bad.body = bad.body.slice(..bad.body.len() - 1);
    assert!(
        world
            .session
            .dispatch_batch(&[good, bad], &mut Vec::new())
            .is_err()
    );
}

#[test]
fn a_stopping_node_refuses_reads_too() {
    let mut world = World::new();
    world.shared.node.stopping.store(true, Ordering::Relaxed);
    let refused = world
        .get(Consistency::Linearizable, "k")
        .unwrap()
        .unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable);
}

#[test]
fn keys_that_are_not_allowed_are_refused_with_a_sentence() {
    let mut world = World::new();
    let empty = world
        .get(Consistency::Linearizable, "")
        .unwrap()
        .unwrap_err();
    assert_eq!(empty.kind, ErrorKind::InvalidArgument);
    let long = Request::Range(RangeRequest {
        key: vec![b'k'; Limits::DEFAULT.key_bytes_max + 1].into(),
        ..RangeRequest::default()
    });
    let long = world
        .ask(Consistency::Linearizable, long)
        .unwrap()
        .unwrap_err();
    assert!(matches!(long.kind, ErrorKind::RequestTooLarge { .. }));
}

#[test]
fn a_reply_longer_than_a_frame_says_how_much_too_long_it_is() {
    let mut world = World::new();
    let error = WireError::TooLong {
        kind: Kind::Reply,
        bytes: 2_000_000,
        bytes_max: 1_500_000,
    };
    for (applied, outcome) in [(false, Outcome::NotApplied), (true, Outcome::Applied)] {
        world.session.refuse_too_long(9, applied, error);
        let reply = world.replies().pop().unwrap();
        assert_eq!(reply.request_id, 9);
        let refusal = reply.result.unwrap_err();
        let kind = ErrorKind::ResponseTooLarge {
            limit: 1_500_000,
            actual: 2_000_000,
        };
        assert_eq!((refusal.kind, refusal.outcome), (kind, outcome));
    }
}

#[test]
fn a_state_that_differs_from_others_is_shown_to_nobody() {
    let mut world = World::new();
    world.put("k", "v");
    assert!(
        world
            .ask(Consistency::Linearizable, get("k"))
            .unwrap()
            .is_ok()
    );
    let put = Request::Put(PutRequest {
        key: "k".into(),
        ..PutRequest::default()
    });
    let differs = crate::node::StateCheck::Undecided(crate::types::LogIndex(3));
    world.shared.node.integrity.set(differs, 0);
    for request in [get("k"), everything(), put] {
        for consistency in ALL {
            let refused = world
                .ask(consistency, request.clone())
                .unwrap()
                .unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Corrupt);
        }
    }
    let status = world.ask(Consistency::Linearizable, Request::Status);
    let ResponseBody::Status(status) = status.unwrap().unwrap().body else {
        panic!("no status");
    };
    assert!(status.warnings[0].contains("ALARM CORRUPT"));
    world
        .shared
        .node
        .integrity
        .set(crate::node::StateCheck::Sound, 1);
    assert!(
        world
            .ask(Consistency::Linearizable, get("k"))
            .unwrap()
            .is_ok()
    );
}

/// Between the judgement of a batch and its replies another leader may be elected.
#[test]
fn a_reply_names_the_leadership_that_permitted_the_read_whoever_leads_later() {
    let mut world = World::new();
    let published = world.shared.node.published.clone();
    let term = published.term();
    let demand = Demand {
        consistency: Consistency::LeaseOnly,
        min_revision: 0,
    };
    let shown = world.shared.serving.store.shown();
    let captured = Captured::of(
        slice::from_ref(&demand),
        shown,
        &published,
        ReadBuffer::default(),
    );
    let result = world.shared.look_at_snapshot(captured).unwrap();
    let ReadResult::Answer(answer) = result else {
        panic!("the lease holds: {:?}", published.lease());
    };
    world.node.handle(world.clock.now(), Input::Retire);
    assert_eq!(published.leader(), None, "it leads no more");
    let header = world.shared.node.header_of(&answer);
    assert_eq!(header.raft_term, term);
    assert_eq!(header.leader_id, Some(NodeId(1)));
}

/// Reads of one key, which take a way of their own, and all others; renewals and status are never refused.
#[test]
fn a_user_who_makes_too_many_requests_is_refused_and_renews_its_leases() {
    let mut world = World::rated(3);
    world.put("k", "v");
    world.get(Consistency::Linearizable, "k").unwrap().unwrap();
    assert!(world.ask(Consistency::Linearizable, a_put()).is_none());
    world.get(Consistency::Serializable, "k").unwrap().unwrap();
    let quorum = Consistency::LinearizableQuorum;
    let all = (Consistency::Serializable, everything());
    for (consistency, request) in [
        (Consistency::Linearizable, get("k")),
        (quorum, get("k")),
        (Consistency::Linearizable, a_put()),
        all,
    ] {
        let refused = world.ask(consistency, request).unwrap().unwrap_err();
        let wait = refused.retry_after().expect("when to come back");
        assert!(
            !wait.is_zero() && wait <= Duration::from_secs(1),
            "{wait:?}"
        );
        assert_eq!(refused.outcome, Outcome::NotApplied);
        assert!(refused.detail.contains("limits.max_request_rate_per_user"));
    }
    let renewal = Request::LeaseKeepAlive(vec![LeaseRef::id(1)]);
    assert!(world.ask(Consistency::Linearizable, renewal).is_none());
    let status = world.ask(Consistency::Linearizable, Request::Status);
    assert!(status.unwrap().is_ok());
}

/// One call of an etcd client reads a range of any size; a native client asks for each page itself.
#[tokio::test]
async fn a_read_of_an_etcd_client_is_charged_once_whatever_pages_it_takes() {
    let mut world = World::rated(2);
    world.put("k", "v");
    let (client, session) = world
        .shared
        .connect_local("anna", ([127, 0, 0, 1], 1).into());
    tokio::spawn(session);
    let call = |request| Call {
        timeout_ms: 3_600_000,
        consistency: Consistency::Serializable,
        min_revision: 0,
        session: None,
        request,
    };
    let Request::Range(range) = everything() else {
        panic!("a range");
    };
    let page = Request::RangePage(range);
    for _ in 0..2 {
        client
            .ask(RequestContext::default(), call(everything()))
            .await
            .unwrap();
        client
            .ask(RequestContext::default(), call(page.clone()))
            .await
            .unwrap();
        client
            .ask(RequestContext::default(), call(page.clone()))
            .await
            .unwrap();
    }
    let refused = client
        .ask(RequestContext::default(), call(everything()))
        .await
        .unwrap_err();
    assert!(refused.retry_after().is_some());
    for _ in 0..2 {
        asked_aside(&mut world, Consistency::Serializable, page.clone())
            .await
            .unwrap();
    }
    let refused = world.ask(Consistency::Serializable, page).unwrap();
    assert!(refused.unwrap_err().retry_after().is_some());
}

fn a_put() -> Request {
    Request::Put(PutRequest {
        key: Bytes::from_static(b"k"),
        ..PutRequest::default()
    })
}
