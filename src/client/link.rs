//! One connection to one node, shared by any number of requests.
//!
//! A request is encoded into a buffer that all requests share, and one task writes whatever has
//! gathered there: under load, many requests become one write and share their packets. Replies
//! come back in any order and find their request by number. Large requests and ranges have a
//! stream of their own, so that nothing small waits behind them.
//!
//! A node that has died does not say so. So while requests wait, the packets of the connection
//! are watched: if ours go out and nothing at all comes back, the link is given up for lost, and
//! requests that may be sent again are told at once instead of at their deadline.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::Notify;
use tokio::sync::Semaphore;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::Error;
use crate::api::KeyRange;
use crate::api::Request;
use crate::api::Response;
use crate::transport::CloseCode;
use crate::transport::Connection;
use crate::transport::FrameReceiver;
use crate::transport::FrameSender;
use crate::transport::FrameStream;
use crate::transport::Lost;
use crate::transport::StreamError;
use crate::types::NodeId;
use crate::wire::FrameLimits;
use crate::wire::WireError;
use crate::wire::client::ClientFrame;
use crate::wire::client::ServerFrame;
use crate::wire::encode;

/// Requests under way at one time; the server takes as many from a connection.
const IN_FLIGHT_MAX: usize = 4096;
/// A value from here on is large, and travels beside the small ones.
const LARGE_BYTES: usize = 32 << 10;
/// How often a link with waiting requests is looked at.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);
/// After so many looks in which packets went out and none came in, the link is given up.
const SILENT_LOOKS_MAX: u32 = 2;

/// Why a request got no reply from this link.
#[derive(Clone, Debug)]
pub(super) struct Broken {
    /// The request may have reached the node.
    pub(super) sent: bool,
    pub(super) cause: BrokenCause,
}

/// What happened to the link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BrokenCause {
    #[error("{0}")]
    Lost(Lost),
    #[error("it has fallen silent")]
    Silent,
    #[error("it sent what is no reply")]
    Malformed,
    #[error("it ended the stream of requests")]
    Ended,
    #[error("it did not answer in time")]
    OutOfTime,
    #[error("{0}")]
    TooLong(WireError),
}

impl From<StreamError> for BrokenCause {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Lost(lost) => Self::Lost(lost),
            StreamError::Malformed(_) => Self::Malformed,
            StreamError::Finished | StreamError::Stopped => Self::Ended,
        }
    }
}

/// A connection that has been greeted.
#[derive(Debug)]
pub(super) struct Link {
    connection: Connection,
    member_id: NodeId,
    small: Arc<Lane>,
    large: Arc<Lane>,
    suspect: Arc<AtomicBool>,
    /// Ends with the link.
    _tasks: JoinSet<()>,
}

impl Link {
    /// Puts a greeted connection to work: `first` carries the small requests, `second` the large.
    pub(super) fn new(
        connection: Connection,
        member_id: NodeId,
        first: FrameStream,
        second: FrameStream,
        limits: FrameLimits,
    ) -> Arc<Self> {
        let busy = Arc::new(Notify::new());
        let suspect = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        let mut lane = |stream: FrameStream| {
            let lane = Arc::new(Lane::new(limits, Arc::clone(&busy)));
            let (sender, receiver) = stream.split();
            tasks.spawn(send(Arc::clone(&lane), sender));
            tasks.spawn(receive(Arc::clone(&lane), receiver));
            lane
        };
        let small = lane(first);
        let large = lane(second);
        tasks.spawn(watch(
            connection.clone(),
            [Arc::clone(&small), Arc::clone(&large)],
            busy,
            Arc::clone(&suspect),
        ));
        Arc::new(Self {
            connection,
            member_id,
            small,
            large,
            suspect,
            _tasks: tasks,
        })
    }

    /// Which member is at the other end.
    pub(super) fn member_id(&self) -> NodeId {
        self.member_id
    }

    /// Whether requests have a good chance here.
    pub(super) fn is_usable(&self) -> bool {
        !self.suspect.load(Ordering::Relaxed) && !self.small.is_over() && !self.large.is_over()
    }

    /// Sends a request and waits for its reply, at most until `deadline`. `movable`: it may be sent
    /// again elsewhere, so it wants to know early if this link falls silent.
    ///
    /// # Cancel safety
    /// Safe; but what was sent stays sent, and a write may take effect.
    pub(super) async fn call(
        &self,
        frame: &mut ClientFrame,
        movable: bool,
        deadline: Instant,
    ) -> Result<Result<Response, Error>, Broken> {
        let lane = if is_large(&frame.call.request) {
            &self.large
        } else {
            &self.small
        };
        lane.call(frame, movable, deadline).await
    }

    pub(super) fn close(&self) {
        self.connection.close(CloseCode::Done);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

fn is_large(request: &Request) -> bool {
    match request {
        Request::Put(put) => put.value.len() >= LARGE_BYTES,
        Request::Range(range) => range.range != KeyRange::Single && !range.count_only,
        Request::DeleteRange(delete) => delete.range != KeyRange::Single,
        Request::OpenSession
        | Request::Status
        | Request::MoveLeader { .. }
        | Request::Compact(_)
        | Request::LeaderLeaseReport => false,
    }
}

/// One stream of requests.
#[derive(Debug)]
struct Lane {
    state: Mutex<LaneState>,
    /// There is something to write.
    filled: Notify,
    /// There is something to watch.
    busy: Arc<Notify>,
    room: Semaphore,
    limits: FrameLimits,
}

#[derive(Debug, Default)]
struct LaneState {
    slots: Vec<Slot>,
    free: Vec<u32>,
    waiting: usize,
    out: BytesMut,
    /// Requests written into `out` so far, and how many of them the writer has taken.
    encoded: u64,
    taken: u64,
    over: Option<BrokenCause>,
}

/// Where a request waits. Its number on the wire is its place here, with the count of requests
/// that the place has had above it: a late reply to a request that was given up finds nobody.
#[derive(Debug, Default)]
struct Slot {
    turn: u32,
    waiter: Option<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    reply: oneshot::Sender<Result<Result<Response, Error>, Broken>>,
    movable: bool,
    /// Which of the encoded requests it is.
    order: u64,
}

impl Lane {
    fn new(limits: FrameLimits, busy: Arc<Notify>) -> Self {
        Self {
            state: Mutex::default(),
            filled: Notify::new(),
            busy,
            room: Semaphore::new(IN_FLIGHT_MAX),
            limits,
        }
    }

    async fn call(
        &self,
        frame: &mut ClientFrame,
        movable: bool,
        deadline: Instant,
    ) -> Result<Result<Response, Error>, Broken> {
        let room = tokio::time::timeout_at(deadline, self.room.acquire());
        let Ok(permit) = room.await else {
            return Err(Broken {
                sent: false,
                cause: BrokenCause::OutOfTime,
            });
        };
        let permit = permit.expect("the semaphore is never closed");
        let (reply, receiver) = oneshot::channel();
        let waiting = self.enter(frame, reply, movable)?;
        let result = tokio::time::timeout_at(deadline, receiver).await;
        drop(waiting);
        drop(permit);
        match result {
            Ok(Ok(result)) => result,
            // Every waiter is answered before it is dropped, so this cannot happen; were it to,
            // the honest answer is that nothing is known.
            Ok(Err(_)) => Err(Broken {
                sent: true,
                cause: BrokenCause::Ended,
            }),
            // Even if it has not left yet: it lies among others that wait to be written, and goes
            // with them.
            Err(_) => Err(Broken {
                sent: true,
                cause: BrokenCause::OutOfTime,
            }),
        }
    }

    /// Takes a place and writes the request.
    fn enter(
        &self,
        frame: &mut ClientFrame,
        reply: oneshot::Sender<Result<Result<Response, Error>, Broken>>,
        movable: bool,
    ) -> Result<Waiting<'_>, Broken> {
        let unsent = |cause| Broken { sent: false, cause };
        let mut guard = self.lock();
        let state = &mut *guard;
        if let Some(cause) = &state.over {
            return Err(unsent(cause.clone()));
        }
        let place = state.free.pop().unwrap_or_else(|| {
            state.slots.push(Slot::default());
            u32::try_from(state.slots.len() - 1).expect("places are bounded by the semaphore")
        });
        let slot = &mut state.slots[place as usize];
        slot.turn = slot.turn.wrapping_add(1);
        frame.request_id = number_of(place, slot.turn);
        if let Err(error) = encode(frame, &self.limits, &mut state.out) {
            state.free.push(place);
            return Err(unsent(BrokenCause::TooLong(error)));
        }
        state.encoded += 1;
        slot.waiter = Some(Waiter {
            reply,
            movable,
            order: state.encoded,
        });
        state.waiting += 1;
        let first = state.waiting == 1;
        drop(guard);
        self.filled.notify_one();
        if first {
            self.busy.notify_one();
        }
        Ok(Waiting {
            lane: self,
            request_id: frame.request_id,
        })
    }

    /// Hands out the replies of one batch.
    fn answer(&self, replies: &mut Vec<ServerFrame>) {
        let mut state = self.lock();
        let found: Vec<_> = replies
            .drain(..)
            .filter_map(|frame| Some((state.leave(frame.request_id)?, frame.result)))
            .collect();
        drop(state);
        for (waiter, result) in found {
            // Whoever gave up meanwhile does not want it.
            let _ = waiter.reply.send(Ok(result));
        }
    }

    /// Ends the lane: every waiter is told.
    fn end(&self, cause: &BrokenCause) {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.over.is_none() {
            state.over = Some(cause.clone());
        }
        let taken = state.taken;
        // What has not left by now never will: so it is certain that it was not sent.
        state.out.clear();
        let waiters = state.leave_all(|_| true);
        drop(guard);
        tell(waiters, taken, cause);
    }

    /// Tells those who may go elsewhere that they should.
    fn give_up_movable(&self) {
        let mut state = self.lock();
        // What waits to be written leaves all the same, should the link come back to life.
        let encoded = state.encoded;
        let waiters = state.leave_all(|waiter| waiter.movable);
        drop(state);
        tell(waiters, encoded, &BrokenCause::Silent);
    }

    fn is_over(&self) -> bool {
        self.lock().over.is_some()
    }

    fn waiting(&self) -> usize {
        self.lock().waiting
    }

    fn lock(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LaneState {
    fn leave(&mut self, request_id: u64) -> Option<Waiter> {
        let (place, turn) = place_of(request_id);
        let slot = self.slots.get_mut(place as usize)?;
        if slot.turn != turn {
            return None;
        }
        let waiter = slot.waiter.take()?;
        self.free.push(place);
        self.waiting -= 1;
        Some(waiter)
    }

    fn leave_all(&mut self, wanted: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let mut left = Vec::new();
        for (place, slot) in (0..).zip(&mut self.slots) {
            if let Some(waiter) = slot.waiter.take_if(|waiter| wanted(waiter)) {
                self.free.push(place);
                self.waiting -= 1;
                left.push(waiter);
            }
        }
        left
    }
}

fn tell(waiters: Vec<Waiter>, taken: u64, cause: &BrokenCause) {
    for waiter in waiters {
        let _ = waiter.reply.send(Err(Broken {
            sent: waiter.order <= taken,
            cause: cause.clone(),
        }));
    }
}

fn number_of(place: u32, turn: u32) -> u64 {
    u64::from(turn) << 32 | u64::from(place)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the two halves of the number are wanted"
)]
fn place_of(request_id: u64) -> (u32, u32) {
    (request_id as u32, (request_id >> 32) as u32)
}

/// A place in a lane, given up when dropped.
struct Waiting<'a> {
    lane: &'a Lane,
    request_id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.lane.lock().leave(self.request_id);
    }
}

async fn send(lane: Arc<Lane>, mut sender: FrameSender) {
    loop {
        lane.filled.notified().await;
        // Whoever is ready to add a request does so first: it rides along.
        tokio::task::yield_now().await;
        let batch = {
            let mut state = lane.lock();
            if state.over.is_some() {
                return;
            }
            state.taken = state.encoded;
            state.out.split().freeze()
        };
        if batch.is_empty() {
            continue;
        }
        if let Err(error) = sender.write(batch).await {
            lane.end(&error.into());
            return;
        }
    }
}

async fn receive(lane: Arc<Lane>, mut receiver: FrameReceiver) {
    let mut frames = Vec::new();
    let mut replies = Vec::new();
    loop {
        let mut read = receiver.read_batch(&mut frames).await;
        for frame in frames.drain(..) {
            match receiver.decode(&frame) {
                Ok(reply) => replies.push(reply),
                Err(error) => {
                    read = Err(error);
                    break;
                }
            }
        }
        lane.answer(&mut replies);
        if let Err(error) = read {
            lane.end(&error.into());
            return;
        }
    }
}

/// Watches the packets while requests wait.
async fn watch(
    connection: Connection,
    lanes: [Arc<Lane>; 2],
    busy: Arc<Notify>,
    suspect: Arc<AtomicBool>,
) {
    let mut silent_looks = 0;
    let mut before = connection.datagrams();
    loop {
        if lanes.iter().all(|lane| lane.waiting() == 0) {
            busy.notified().await;
            before = connection.datagrams();
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
        let now = connection.datagrams();
        if now.received > before.received {
            silent_looks = 0;
        } else if now.sent > before.sent {
            silent_looks += 1;
        }
        before = now;
        if silent_looks >= SILENT_LOOKS_MAX {
            suspect.store(true, Ordering::Relaxed);
            for lane in &lanes {
                lane.give_up_movable();
            }
            silent_looks = 0;
        }
    }
}
