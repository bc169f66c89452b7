//! One stream of requests.
//!
//! A request is encoded into a buffer that all requests of the stream share, and one task writes
//! its whole contents: under load, many requests become one write and share their packets. Replies
//! arrive in any order and find their request by number, in the slot where its caller waits; the
//! caller decodes them.
//!
//! A request is reported as *not sent* only if its bytes can no longer be sent. So a request that
//! is cancelled before it was written is removed from the buffer, and one that was passed to the
//! connection counts as sent forever.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::broken::{BrokenCause, LinkFailure};
use crate::sync::{Mutex, MutexGuard};
use crate::transport::{FrameReceiver, FrameSender};
use crate::wire::point::answered_request;
use crate::wire::{Frame, FrameLimits, Kind, WireError};

/// Requests in flight at one time; the server accepts as many from a connection.
const IN_FLIGHT_MAX: usize = 4096;
/// Buffer memory for requests is allocated in pieces of this many bytes.
const PIECE_BYTES: usize = 8 << 10;
/// Bytes of requests cancelled before they were written, above which they are removed at once and
/// not only when the rest is written.
const WITHDRAWN_BYTES_MAX: usize = 64 << 10;

/// Signals from the streams of a connection to its tasks.
#[derive(Debug, Default)]
pub(super) struct Signals {
    /// A request waits for a reply.
    pub(super) busy: Notify,
    /// A new deadline is earlier than all others.
    pub(super) earlier: Notify,
}

/// The result of a request: a reply, which is not decoded yet.
pub(super) type Outcome = Result<Frame, LinkFailure>;

#[derive(Debug)]
pub(super) struct Lane {
    state: Mutex<State>,
    /// Mirrors `State::over`, for callers that need only a flag.
    is_over: AtomicBool,
    /// The buffer is not empty.
    filled: Notify,
    signals: Arc<Signals>,
    room: Semaphore,
    limits: FrameLimits,
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<Slot>,
    free: Vec<u32>,
    waiting: usize,
    out: Out,
    /// A lower bound of the tracked deadlines.
    first_deadline: Option<Instant>,
    over: Option<BrokenCause>,
}

/// A waiting request. Its number on the wire is the index of its slot, with the count of requests
/// that the slot has had in the high bits: a late reply to a cancelled request finds no waiter.
#[derive(Debug, Default)]
struct Slot {
    turn: u32,
    content: Content,
}

#[derive(Debug, Default)]
enum Content {
    #[default]
    Free,
    Waiting(Waiter),
    /// It is complete, and its caller has been woken to fetch this.
    Done(Outcome),
}

#[derive(Debug)]
struct Waiter {
    waker: Option<Waker>,
    movable: bool,
    deadline: Instant,
    /// Its position among the encoded requests.
    order: u64,
}

impl Lane {
    pub(super) fn new(limits: FrameLimits, signals: Arc<Signals>) -> Self {
        Self {
            state: Mutex::default(),
            is_over: AtomicBool::new(false),
            filled: Notify::new(),
            signals,
            room: Semaphore::new(IN_FLIGHT_MAX),
            limits,
        }
    }

    /// Sends the request that `encode` appends under the number it receives.
    pub(super) async fn call(
        &self,
        movable: bool,
        deadline: Instant,
        encode: impl FnOnce(u64, &FrameLimits, &mut BytesMut) -> Result<(), WireError>,
    ) -> Outcome {
        let permit = match self.room.try_acquire() {
            Ok(permit) => permit,
            Err(_) => self.wait_for_room(deadline).await?,
        };
        let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let outcome = self.enter(waker, movable, deadline, encode)?.await;
        drop(permit);
        outcome
    }

    async fn wait_for_room(&self, deadline: Instant) -> Result<SemaphorePermit<'_>, LinkFailure> {
        let room = tokio::time::timeout_at(deadline, self.room.acquire());
        let Ok(permit) = room.await else {
            return Err(LinkFailure {
                sent: false,
                cause: BrokenCause::OutOfTime,
            });
        };
        Ok(permit.expect("the semaphore is never closed"))
    }

    /// Takes a slot and encodes the request, whose caller is woken by `waker`.
    fn enter(
        &self,
        waker: Waker,
        movable: bool,
        deadline: Instant,
        encode: impl FnOnce(u64, &FrameLimits, &mut BytesMut) -> Result<(), WireError>,
    ) -> Result<PendingRequest<'_>, LinkFailure> {
        let unsent = |cause| LinkFailure { sent: false, cause };
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
        let turn = slot.turn;
        let number = number_of(place, turn);
        // The request that filled it has told the writer, which takes all of it.
        let is_filled = !state.out.queued.is_empty();
        let order = match state.out.append(|out| encode(number, &self.limits, out)) {
            Ok(order) => order,
            Err(error) => {
                state.free.push(place);
                return Err(unsent(BrokenCause::TooLong(error)));
            }
        };
        slot.content = Content::Waiting(Waiter {
            waker: Some(waker),
            movable,
            deadline,
            order,
        });
        state.waiting += 1;
        let is_first = state.waiting == 1;
        let is_earlier = state.first_deadline.is_none_or(|first| deadline < first);
        if is_earlier {
            state.first_deadline = Some(deadline);
        }
        drop(guard);
        if !is_filled {
            self.filled.notify_one();
        }
        if is_first {
            self.signals.busy.notify_one();
        }
        if is_earlier {
            self.signals.earlier.notify_one();
        }
        Ok(PendingRequest {
            lane: self,
            place,
            turn,
            stage: Stage::New,
        })
    }

    /// Delivers the replies of one batch, up to the first frame that is none.
    fn answer(&self, frames: &mut Vec<Frame>, wakers: &mut Vec<Waker>) -> Result<(), WireError> {
        let mut state = self.lock();
        let mut result = Ok(());
        for frame in frames.drain(..) {
            let Some(number) = answered_request(&frame).filter(|_| frame.kind == Kind::Reply)
            else {
                result = Err(WireError::Body(frame.kind));
                break;
            };
            // A caller that was cancelled meanwhile does not need it.
            let (place, turn) = place_of(number);
            if state.slot(place, turn).is_some() {
                wakers.extend(state.finish(place, Ok(frame)));
            }
        }
        drop(state);
        wakers.drain(..).for_each(Waker::wake);
        result
    }

    /// Ends the stream: every waiter gets an error.
    fn end(&self, cause: &BrokenCause) {
        let mut state = self.lock();
        self.is_over.store(true, Ordering::Relaxed);
        if state.over.is_none() {
            state.over = Some(cause.clone());
        }
        let wakers = state.break_off(cause, |_| true);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        // The writer has no work left.
        self.filled.notify_one();
    }

    /// Fails the requests that may go to another node.
    pub(super) fn give_up_movable(&self) {
        let wakers = self
            .lock()
            .break_off(&BrokenCause::Silent, |waiter| waiter.movable);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Fails all requests: those that may not go to another node, too.
    pub(super) fn give_up_all(&self) {
        let wakers = self.lock().break_off(&BrokenCause::Silent, |_| true);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Fails the requests whose deadline was `now` or before.
    pub(super) fn end_overdue(&self, now: Instant) {
        let mut state = self.lock();
        let wakers = state.break_off(&BrokenCause::OutOfTime, |waiter| waiter.deadline <= now);
        let deadlines = state.slots.iter().filter_map(|slot| match &slot.content {
            Content::Waiting(waiter) => Some(waiter.deadline),
            Content::Free | Content::Done(_) => None,
        });
        state.first_deadline = deadlines.min();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Before this time, no request can be overdue.
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.lock().first_deadline
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(super) fn waiting(&self) -> usize {
        self.lock().waiting
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// The slot at `place`, if it is still this `turn`'s.
    fn slot(&mut self, place: u32, turn: u32) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(place as usize)?;
        (slot.turn == turn).then_some(slot)
    }

    /// Stores the outcome for the waiter at `place`, and returns its waker.
    fn finish(&mut self, place: u32, outcome: Outcome) -> Option<Waker> {
        let slot = &mut self.slots[place as usize];
        let Content::Waiting(waiter) = &mut slot.content else {
            return None;
        };
        let waker = waiter.waker.take();
        slot.content = Content::Done(outcome);
        self.waiting -= 1;
        waker
    }

    /// Fails the requests that are `wanted`, and returns their wakers. Requests that were not
    /// written yet never will be.
    fn break_off(&mut self, cause: &BrokenCause, wanted: impl Fn(&Waiter) -> bool) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for place in 0..self.slots.len() {
            let Content::Waiting(waiter) = &self.slots[place].content else {
                continue;
            };
            if !wanted(waiter) {
                continue;
            }
            let broken = LinkFailure {
                sent: !self.out.withdraw(waiter.order),
                cause: cause.clone(),
            };
            let place = u32::try_from(place).expect("places are bounded by the semaphore");
            wakers.extend(self.finish(place, Err(broken)));
        }
        wakers
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

/// A request whose outcome is awaited. Dropped before that, it is cancelled.
struct PendingRequest<'a> {
    lane: &'a Lane,
    place: u32,
    turn: u32,
    stage: Stage,
}

/// At which the state of the stream need not be locked: the lock is what a request costs most here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not polled yet: its slot has the waker already.
    New,
    Waiting,
    /// The outcome was fetched, and the slot left.
    Over,
}

impl Future for PendingRequest<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        if self.stage == Stage::New {
            self.stage = Stage::Waiting;
            return Poll::Pending;
        }
        let lane = self.lane;
        let mut state = lane.lock();
        let slot = state
            .slot(self.place, self.turn)
            .expect("the place is ours until we leave it");
        match &mut slot.content {
            Content::Waiting(waiter) => {
                match &mut waiter.waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            content => {
                let Content::Done(outcome) = std::mem::take(content) else {
                    panic!("a future is not polled when it is over");
                };
                state.free.push(self.place);
                self.stage = Stage::Over;
                Poll::Ready(outcome)
            }
        }
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if self.stage == Stage::Over {
            return;
        }
        let mut guard = self.lane.lock();
        let state = &mut *guard;
        let Some(slot) = state.slot(self.place, self.turn) else {
            return;
        };
        match std::mem::take(&mut slot.content) {
            Content::Free => return,
            Content::Waiting(waiter) => {
                state.out.withdraw(waiter.order);
                state.waiting -= 1;
            }
            Content::Done(_) => {}
        }
        state.free.push(self.place);
    }
}

/// Encoded requests that wait to be written.
#[derive(Debug, Default)]
struct Out {
    bytes: BytesMut,
    /// One for each request in `bytes`, the oldest first.
    queued: VecDeque<QueuedRequest>,
    /// Requests that were written, cancelled ones included.
    taken: u64,
    withdrawn_bytes: usize,
}

#[derive(Debug)]
struct QueuedRequest {
    bytes: usize,
    withdrawn: bool,
}

impl Out {
    /// Appends a request, and returns its position among all.
    fn append(
        &mut self,
        encode: impl FnOnce(&mut BytesMut) -> Result<(), WireError>,
    ) -> Result<u64, WireError> {
        if self.bytes.capacity() - self.bytes.len() < PIECE_BYTES / 16 {
            self.bytes.reserve(PIECE_BYTES);
        }
        let before = self.bytes.len();
        encode(&mut self.bytes)?;
        self.queued.push_back(QueuedRequest {
            bytes: self.bytes.len() - before,
            withdrawn: false,
        });
        Ok(self.taken + self.queued.len() as u64)
    }

    /// Removes a request that has not been taken; false if it has been. A removed one is not
    /// written.
    fn withdraw(&mut self, order: u64) -> bool {
        let Some(behind) = order.checked_sub(self.taken + 1) else {
            return false;
        };
        let at = usize::try_from(behind).expect("the queue is in memory");
        let queued = &mut self.queued[at];
        if !std::mem::replace(&mut queued.withdrawn, true) {
            self.withdrawn_bytes += queued.bytes;
        }
        let most = WITHDRAWN_BYTES_MAX.max(self.bytes.len() / 2);
        if self.withdrawn_bytes > most {
            self.compact();
        }
        true
    }

    /// Takes everything that is to be written.
    fn take(&mut self) -> Bytes {
        self.compact();
        self.taken += self.queued.len() as u64;
        self.queued.clear();
        self.bytes.split().freeze()
    }

    /// Removes cancelled requests.
    fn compact(&mut self) {
        if self.withdrawn_bytes == 0 {
            return;
        }
        let mut kept = BytesMut::with_capacity(self.bytes.len() - self.withdrawn_bytes);
        let mut rest = &self.bytes[..];
        for queued in &mut self.queued {
            let (request, later) = rest.split_at(queued.bytes);
            if queued.withdrawn {
                queued.bytes = 0;
            } else {
                kept.extend_from_slice(request);
            }
            rest = later;
        }
        self.bytes = kept;
        self.withdrawn_bytes = 0;
    }
}

pub(super) async fn send(lane: Arc<Lane>, mut sender: FrameSender) {
    loop {
        lane.filled.notified().await;
        // Tasks that are ready to add a request run first: their requests join this write. A single
        // request has none to wait for.
        if lane.waiting() > 1 {
            tokio::task::yield_now().await;
        }
        let batch = {
            let mut state = lane.lock();
            if state.over.is_some() {
                return;
            }
            state.out.take()
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

pub(super) async fn receive(lane: Arc<Lane>, mut receiver: FrameReceiver) {
    let mut frames = Vec::new();
    let mut wakers = Vec::new();
    loop {
        let mut read = receiver.read_batch(&mut frames).await;
        if let Err(error) = lane.answer(&mut frames, &mut wakers) {
            read = Err(receiver.malformed(error));
        }
        if let Err(error) = read {
            lane.end(&error.into());
            return;
        }
    }
}
