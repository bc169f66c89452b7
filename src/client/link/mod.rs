//! One connection to one node, shared by any number of requests.
//!
//! Large requests and ranges have a stream of their own, so that small requests do not wait behind
//! them; each stream is a [`Lane`].
//!
//! A failed node does not announce it. So while requests wait, the packets of the connection are
//! monitored: if packets are sent and none is received, the connection counts as lost, and requests
//! that may be retried fail at once instead of at their deadline. With open watches the same is
//! done, with a longer timeout: no request waits for an answer. A write that may not be retried waits
//! longer still, because a node that only stood still may yet answer it; but it does not use up a
//! long deadline at a node that is gone.

mod broken;
mod lane;
mod watches;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::{
    Call, Consistency, Error, ErrorKind, Outcome, Priority, Request, Response, ResponseBody,
    WatchRequest,
};
use crate::client::deadline::now;
use crate::client::measure::Presence;
use crate::client::newest::NewestRevision;
use crate::client::response::unexpected_response;
use crate::client::throttle::Throttle;
use crate::transport::{CloseCode, Connection, ConnectionFacts, FrameStream};
use crate::types::{BootstrapId, NodeId};
use crate::wire::client::{ClientFrame, KnownLeader, ServerFrame, Welcome, encode_call};
use crate::wire::point::{PointCall, PointReply, Projection, encode_point_call};
use crate::wire::{Frame, FrameLimits, RequestContext};

pub(super) use broken::{BrokenCause, LinkFailure};
use lane::{Lane, Signals};
pub(super) use watches::WatchStream;

/// Interval of the packet check while there are waiting requests or watches.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);
/// After this many checks in which nothing was sent while a watch is open, its node is asked whether it is there.
const QUIET_LOOKS_MAX: u32 = 1;
/// The key that it is asked for: none has it by accident, and whatever it answers, it is there.
const PRESENCE_KEY: &[u8] = b"\0";
/// After this many checks in which packets were sent and none received, the connection is lost.
const SILENT_LOOKS_MAX: u32 = 2;
/// How long packets may be sent without any being received before watches, for which no request
/// waits, move to another node, or two round trips. Packets are sent after [`QUIET_LOOKS_MAX`] checks at the latest: so
/// an idle watch leaves a node that is gone within a second.
const WATCH_SILENCE: Duration = Duration::from_millis(400);
/// A question is sent, the next check sees that it was, and none that follows sees anything received.
const _: () = assert!(
    WATCH_INTERVAL.as_millis() * (QUIET_LOOKS_MAX as u128 + 2) + WATCH_SILENCE.as_millis() <= 1_000
);
/// The same for requests that may not be retried. A leader that was silent for so long has a
/// successor by the usual timeouts, and could itself no longer say what became of a write.
const GONE_SILENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
thread_local! {
    /// Connections made on this thread are not closed for silence: a node that shares its machine
    /// with many tests may be slow, and is not gone.
    pub(super) static MAY_BE_SILENT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[cfg(test)]
fn may_be_silent() -> bool {
    MAY_BE_SILENT.get()
}

#[cfg(not(test))]
fn may_be_silent() -> bool {
    false
}

/// A connection after hello and welcome.
#[derive(Debug)]
pub(super) struct Link {
    connection: Connection,
    member_id: NodeId,
    bootstrap: Option<BootstrapId>,
    newest: Arc<NewestRevision>,
    leader: Option<KnownLeader>,
    serves_reads: bool,
    small: Arc<Lane>,
    large: Arc<Lane>,
    suspect: Arc<AtomicBool>,
    was_silent: AtomicBool,
    /// Whether its round trips mean something: in a test of many nodes on one machine all are equally near.
    is_measured: bool,
    watches: Arc<watches::PendingWatches>,
    /// Whether the node has authenticated the client beyond its certificate.
    is_logged_in: AtomicBool,
    /// The leader to which the node takes requests of this connection; 0 for none.
    forwards_to: AtomicU64,
    throttle: Throttle,
    /// The same of requests of low priority, whose refusals say nothing about the others.
    low_throttle: Throttle,
    _presence: Presence,
    /// Ends with the link.
    _tasks: JoinSet<()>,
}

impl Link {
    /// Starts the tasks of a connection to the node that said `welcome`: `first` carries the small requests,
    /// `second` the large.
    pub(super) fn new(
        connection: Connection,
        welcome: Welcome,
        newest: Arc<NewestRevision>,
        (first, second): (FrameStream, FrameStream),
        limits: FrameLimits,
    ) -> Arc<Self> {
        let signals = Arc::new(Signals::default());
        let suspect = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        let mut lane = |stream: FrameStream| {
            let lane = Arc::new(Lane::new(limits, Arc::clone(&signals)));
            let (sender, receiver) = stream.split();
            tasks.spawn(lane::send(Arc::clone(&lane), sender));
            tasks.spawn(lane::receive(Arc::clone(&lane), receiver));
            lane
        };
        let small = lane(first);
        let large = lane(second);
        let lanes = || [Arc::clone(&small), Arc::clone(&large)];
        let watches = Arc::<watches::PendingWatches>::default();
        if !may_be_silent() {
            tasks.spawn(watch(
                connection.clone(),
                lanes(),
                Arc::clone(&watches),
                Arc::clone(&signals),
                Arc::clone(&suspect),
            ));
        }
        tasks.spawn(keep_deadlines(lanes(), signals));
        tasks.spawn(watches::accept(connection.clone(), Arc::clone(&watches)));
        Arc::new(Self {
            connection,
            member_id: welcome.member_id,
            bootstrap: welcome.bootstrap,
            newest,
            leader: welcome.leader,
            serves_reads: welcome.serves_reads,
            small,
            large,
            suspect,
            was_silent: AtomicBool::new(false),
            is_measured: !may_be_silent(),
            watches,
            is_logged_in: AtomicBool::new(false),
            forwards_to: AtomicU64::new(0),
            throttle: Throttle::default(),
            low_throttle: Throttle::default(),
            _presence: Presence::connection(),
            _tasks: tasks,
        })
    }

    /// Statistics of the connection.
    #[allow(dead_code, reason = "the command line alone asks")]
    pub(super) fn facts(&self) -> ConnectionFacts {
        self.connection.facts()
    }

    /// Which bootstrap of its cluster the node at the other end comes from, if it knew when it was connected.
    pub(super) fn bootstrap(&self) -> Option<BootstrapId> {
        self.bootstrap
    }

    /// The newest revision that this client has seen of that bootstrap.
    pub(super) fn newest(&self) -> &NewestRevision {
        &self.newest
    }

    /// Who led when it was connected, as far as the node at the other end knew.
    pub(super) fn leader(&self) -> Option<&KnownLeader> {
        self.leader.as_ref()
    }

    /// Whether the node at the other end asked for read leases when it was connected.
    pub(super) fn serves_reads(&self) -> bool {
        self.serves_reads
    }

    /// The member at the other end.
    pub(super) fn member_id(&self) -> NodeId {
        self.member_id
    }

    /// What throttles requests of this priority on this connection.
    pub(super) fn throttle(&self, priority: Priority) -> &Throttle {
        match priority {
            Priority::Low => &self.low_throttle,
            Priority::Normal => &self.throttle,
        }
    }

    /// Whether the node has authenticated the client beyond its certificate.
    pub(super) fn is_logged_in(&self) -> bool {
        self.is_logged_in.load(Ordering::Relaxed)
    }

    /// Records that the node has authenticated the client.
    pub(super) fn logged_in(&self) {
        self.is_logged_in.store(true, Ordering::Relaxed);
    }

    /// Whether the node takes requests to `leader` for this connection, while that leads.
    pub(super) fn forwards_to(&self, leader: NodeId) -> bool {
        self.forwards_to.load(Ordering::Relaxed) == leader.0
    }

    /// The node has named `leader` instead of taking a request to it: it does not forward there, or no more.
    pub(super) fn names_instead(&self, leader: NodeId) {
        let to = &self.forwards_to;
        // It may have been agreed meanwhile to forward to another one.
        let _ = to.compare_exchange(leader.0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Has the node take requests to `leader` from now on, which cannot be reached from here.
    ///
    /// # Errors
    /// The node has not heard of that leader until `deadline`, or another one leads.
    ///
    /// # Cancel safety
    /// Safe: the node may do so without this link knowing, and is asked again.
    pub(super) async fn forward_to(&self, leader: NodeId, deadline: Instant) -> Result<(), Error> {
        let request = Request::ForwardToLeader { leader };
        self.control(request, deadline).await?;
        self.forwards_to.store(leader.0, Ordering::Relaxed);
        Ok(())
    }

    /// Whether this is the first report of the connection's silence: every waiting request reports
    /// it.
    pub(super) fn is_first_silence(&self) -> bool {
        !self.was_silent.swap(true, Ordering::Relaxed)
    }

    /// Whether requests on this connection are likely to succeed.
    pub(super) fn is_usable(&self) -> bool {
        !self.suspect.load(Ordering::Relaxed) && !self.small.is_over() && !self.large.is_over()
    }

    /// Sends a request, which says `context` of itself, and waits for its reply, at most until `deadline`. `movable`: it may be
    /// retried elsewhere, so it should fail early if this connection falls silent.
    ///
    /// # Cancel safety
    /// Safe; but what was sent stays sent, and a write may take effect.
    pub(super) async fn call(
        &self,
        context: &RequestContext,
        frame: &mut ClientFrame,
        movable: bool,
        deadline: Instant,
    ) -> Result<Result<Response, Error>, LinkFailure> {
        let lane = if frame.call.request.is_large() {
            &self.large
        } else {
            &self.small
        };
        let reply = lane.call(movable, deadline, |number, limits, out| {
            frame.request_id = number;
            encode_call(context, frame, limits, out)
        });
        self.decode(&reply.await?)
    }

    /// Like [`Link::call`], for a read of one key.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn read_point(
        &self,
        call: &PointCall<'_>,
        deadline: Instant,
    ) -> Result<Result<PointReply, Error>, LinkFailure> {
        let reply = self.small.call(true, deadline, |number, limits, out| {
            encode_point_call(number, call, limits, out)
        });
        let reply = reply.await?;
        match PointReply::of(&reply) {
            Some(found) => Ok(Ok(found)),
            None => Ok(self
                .decode(&reply)?
                .and_then(|response| match response.body {
                    ResponseBody::Range(range) => Ok(PointReply {
                        header: response.header,
                        count: range.count,
                        kv: range.kvs.into_iter().next(),
                    }),
                    other => Err(unexpected_response(&other, Outcome::NotApplied)),
                })),
        }
    }

    /// Opens a watch: returns its id at the client, the node's revision, and its stream.
    ///
    /// # Cancel safety
    /// Safe: its stream is dropped when it comes, and the node then ends the watch.
    pub(super) async fn open_watch(
        &self,
        watch: WatchRequest,
        deadline: Instant,
    ) -> Result<(u64, i64, WatchStream), Error> {
        let (expectation, coming) = self.watches.expect();
        let watch_id = expectation.watch_id;
        let request = Request::Watch { watch_id, watch };
        let revision = self.control(request, deadline).await?;
        match tokio::time::timeout_at(deadline, coming).await {
            Ok(Ok(stream)) => Ok((watch_id, revision, stream)),
            _ => {
                // It has no reader.
                let _ = self
                    .control(Request::WatchCancel { watch_id }, deadline)
                    .await;
                Err(Error::not_applied(
                    ErrorKind::ConnectionLost,
                    "the node opened the watch but not its stream",
                ))
            }
        }
    }

    /// Sends a request about a watch, or for one. Returns the node's revision.
    ///
    /// # Cancel safety
    /// Safe; what was sent stays sent.
    pub(super) async fn control(&self, request: Request, deadline: Instant) -> Result<i64, Error> {
        let answer = self
            .send(request, Consistency::Serializable, deadline)
            .await;
        answer.map(|response| response.header.revision)
    }

    /// Sends a request to this node, whether or not it is the leader.
    ///
    /// # Cancel safety
    /// Safe; what was sent stays sent.
    pub(super) async fn ask(&self, request: Request, deadline: Instant) -> Result<Response, Error> {
        self.send(request, Consistency::Linearizable, deadline)
            .await
    }

    async fn send(
        &self,
        request: Request,
        consistency: Consistency,
        deadline: Instant,
    ) -> Result<Response, Error> {
        let left = deadline.saturating_duration_since(now());
        let mut frame = ClientFrame {
            request_id: 0,
            call: Call {
                timeout_ms: u32::try_from(left.as_millis()).unwrap_or(u32::MAX),
                consistency,
                min_revision: 0,
                session: None,
                request,
            },
        };
        match self
            .call(&RequestContext::default(), &mut frame, true, deadline)
            .await
        {
            Ok(answer) => answer,
            Err(broken) => Err(Error::not_applied(
                ErrorKind::ConnectionLost,
                format!("no answer: {}", broken.cause),
            )),
        }
    }

    fn decode(&self, reply: &Frame) -> Result<Result<Response, Error>, LinkFailure> {
        match reply.decode::<ServerFrame>() {
            Ok(reply) => Ok(reply.result),
            Err(error) => {
                self.connection.close_malformed(&error);
                Err(LinkFailure {
                    sent: true,
                    cause: BrokenCause::Malformed,
                })
            }
        }
    }

    pub(super) fn close(&self) {
        self.connection.close(CloseCode::Done);
    }

    /// Whether it is over.
    pub(super) fn is_lost(&self) -> bool {
        self.connection.is_lost()
    }

    /// The measured round trip to the node.
    pub(super) fn round_trip(&self) -> Duration {
        match self.is_measured {
            true => self.connection.round_trip(),
            false => Duration::ZERO,
        }
    }

    /// Packets sent so far.
    pub(super) fn packets_sent(&self) -> u64 {
        self.connection.datagrams().sent
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// Monitors the packets while requests wait, or there are watches.
async fn watch(
    connection: Connection,
    lanes: [Arc<Lane>; 2],
    watches: Arc<watches::PendingWatches>,
    signals: Arc<Signals>,
    suspect: Arc<AtomicBool>,
) {
    let is_waiting = || lanes.iter().any(|lane| lane.waiting() > 0);
    let (mut silent_looks, mut quiet_looks) = (0, 0);
    // Time since the check that saw packets sent, if none were received after that.
    let mut silent_for: Option<Duration> = None;
    let mut before = connection.datagrams();
    loop {
        if !is_waiting() && !watches.are_open() {
            // A watch is opened by a request.
            signals.busy.notified().await;
            before = connection.datagrams();
            silent_for = None;
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
        let now = connection.datagrams();
        let is_sent = now.sent > before.sent;
        if now.received > before.received {
            silent_looks = 0;
            silent_for = None;
        } else {
            silent_looks += u32::from(is_sent && is_waiting());
            silent_for = match silent_for {
                None => is_sent.then_some(Duration::ZERO),
                Some(silent) => Some(silent + WATCH_INTERVAL),
            };
        }
        before = now;
        quiet_looks = if is_sent { 0 } else { quiet_looks + 1 };
        if quiet_looks >= QUIET_LOOKS_MAX && watches.are_open() {
            quiet_looks = 0;
            tokio::spawn(ask_for_presence(Arc::clone(&lanes[0])));
        }
        if silent_looks >= SILENT_LOOKS_MAX {
            suspect.store(true, Ordering::Relaxed);
            for lane in &lanes {
                lane.give_up_movable();
            }
            silent_looks = 0;
        }
        if silent_for >= Some(WATCH_SILENCE.max(2 * connection.round_trip())) {
            suspect.store(true, Ordering::Relaxed);
            watches.end_silent();
        }
        if silent_for >= Some(GONE_SILENCE) {
            for lane in &lanes {
                lane.give_up_all();
            }
        }
    }
}

/// Sends a small question, so that there is something to acknowledge. The answer says nothing more.
async fn ask_for_presence(lane: Arc<Lane>) {
    let call = PointCall {
        timeout_ms: u32::try_from(WATCH_SILENCE.as_millis()).unwrap_or(u32::MAX),
        consistency: Consistency::Serializable,
        min_revision: 0,
        key: PRESENCE_KEY,
        wanted: Projection::Count,
        limit: 0,
    };
    let deadline = now() + WATCH_SILENCE;
    let encode = |number, limits: &FrameLimits, out: &mut bytes::BytesMut| {
        encode_point_call(number, &call, limits, out)
    };
    let _ = lane.call(true, deadline, encode).await;
}

/// Fails requests at their deadlines. One timer serves them all: nearly every request is answered
/// long before its deadline, and a timer per request would cost more than everything else here.
async fn keep_deadlines(lanes: [Arc<Lane>; 2], signals: Arc<Signals>) {
    loop {
        match lanes.iter().filter_map(|lane| lane.first_deadline()).min() {
            None => signals.earlier.notified().await,
            Some(first) => {
                let early = tokio::time::timeout_at(first, signals.earlier.notified()).await;
                if early.is_err() {
                    for lane in &lanes {
                        lane.end_overdue(first);
                    }
                }
            }
        }
    }
}
