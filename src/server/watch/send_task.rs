//! The task that sends for all watches of one connection.
//!
//! Each stream has its own waker, so a stream blocked by flow control does not delay the others. A
//! stream that stays blocked too long is reset, and a live client resumes from its last revision. The
//! same limit applies to a watch for which the client grants no stream.
//!
//! Queued events are encoded only after everything before them has been written, and count towards the
//! hub's limit on queued memory.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, Sleep};

use super::sender::{WatchBatch, WatchSender};
use super::{Order, Watches, frames};
use crate::api::WatchMessage;
use crate::server::metrics::Metrics;
use crate::transport::{Connection, ConnectionLost, FrameSender};
use crate::watch::{CountedBytes, WatcherEvent, WatcherId};

/// Maximum number of streams written per poll, so that other tasks of the runtime get their turn.
const STREAMS_PER_TURN: usize = 64;
/// Maximum time that a stream may stay blocked or unopened.
const STALLED_MAX: Duration = Duration::from_secs(30);
/// Interval between checks for stalled streams.
const STALLED_LOOK: Duration = Duration::from_secs(10);
/// Watches come after replies, because requests wait for those.
const PRIORITY: i32 = -1;
/// The delay of one in this many batches is recorded.
const SAMPLED: usize = 16;

/// Sends the batches of `watch_sender` until the connection ends.
pub(crate) async fn send(
    watch_sender: Arc<WatchSender>,
    connection: Connection,
    watches: Arc<Watches>,
    metrics: Arc<Metrics>,
) {
    let mut task = SendTask {
        watch_sender,
        connection,
        watches,
        metrics,
        streams: BTreeMap::new(),
        waiting: VecDeque::new(),
        opening: None,
        due: VecDeque::new(),
        sent: Vec::new(),
        gone: Vec::new(),
        stalled_look: None,
        samples: 0,
    };
    poll_fn(|cx| task.poll(cx)).await;
}

type Opening = Pin<Box<dyn Future<Output = Result<FrameSender, ConnectionLost>> + Send>>;

/// The state of the task.
struct SendTask {
    watch_sender: Arc<WatchSender>,
    connection: Connection,
    watches: Arc<Watches>,
    metrics: Arc<Metrics>,
    streams: BTreeMap<WatcherId, WatchStream>,
    /// Watches without a stream, because the client limits the number of streams.
    waiting: VecDeque<WatcherId>,
    opening: Option<Opening>,
    /// Watches whose stream is writable.
    due: VecDeque<WatcherId>,
    sent: Vec<WatcherId>,
    gone: Vec<WatcherId>,
    /// Time of the next check for stalled streams.
    stalled_look: Option<Pin<Box<Sleep>>>,
    samples: usize,
}

/// One watch, with its stream once that is open.
struct WatchStream {
    stream: Option<FrameSender>,
    queue: WriteQueue,
    waker: Waker,
    /// It is in [`SendTask::due`].
    is_due: bool,
    /// A batch was received and not reported as sent.
    has_batch: bool,
    since: Option<std::time::Instant>,
    /// The stream ends after what is queued.
    ends: bool,
    /// Start of the current wait, for the stream to open or to become writable.
    blocked_since: Option<Instant>,
}

impl WatchStream {
    /// A watch that waits for its stream; `first` is written first.
    fn new(first: Bytes, waker: Waker, now: Instant) -> Self {
        Self {
            stream: None,
            queue: WriteQueue::new(first),
            waker,
            is_due: false,
            has_batch: false,
            since: None,
            ends: false,
            blocked_since: Some(now),
        }
    }

    fn is_stalled(&self, now: Instant) -> bool {
        self.blocked_since
            .is_some_and(|since| now.duration_since(since) >= STALLED_MAX)
    }
}

/// The messages to be written to one stream.
pub(super) struct WriteQueue {
    /// Encoded frames.
    chunks: Vec<Bytes>,
    /// Count the bytes of `chunks` until all of them are written.
    counts: Vec<Arc<CountedBytes>>,
    /// Events that are not encoded yet.
    events: Vec<WatcherEvent>,
}

impl WriteQueue {
    /// A queue that begins with `first`.
    pub(super) fn new(first: Bytes) -> Self {
        Self {
            chunks: vec![first],
            counts: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Appends `events`.
    pub(super) fn add(&mut self, events: Vec<WatcherEvent>) {
        self.events.extend(events);
    }

    /// The bytes to write next, which the caller removes as it writes them; `None` once all are written.
    /// Encodes the next events only when all encoded bytes have been written.
    pub(super) fn next(&mut self) -> Option<&mut Vec<Bytes>> {
        if self.chunks.is_empty() {
            self.counts.clear();
            for event in std::mem::take(&mut self.events) {
                let (bytes, counted) = frames::of(&event);
                self.chunks.push(bytes);
                self.counts.extend(counted);
            }
        }
        (!self.chunks.is_empty()).then_some(&mut self.chunks)
    }
}

/// Wakes the task and records which stream became writable.
struct StreamWaker {
    id: WatcherId,
    watch_sender: Arc<WatchSender>,
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut inbox = self.watch_sender.lock();
        inbox.woken.push(self.id);
        let taker = inbox.taker.take();
        drop(inbox);
        if let Some(taker) = taker {
            taker.wake();
        }
    }
}

impl SendTask {
    /// Ready when the connection is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (batches, woken) = {
            let mut inbox = self.watch_sender.lock();
            inbox.taker = Some(cx.waker().clone());
            (
                std::mem::take(&mut inbox.batches),
                std::mem::take(&mut inbox.woken),
            )
        };
        for batch in batches {
            self.take(batch);
        }
        for id in woken {
            self.make_due(id);
        }
        if self.poll_opening(cx).is_ready() {
            return Poll::Ready(());
        }
        for _ in 0..STREAMS_PER_TURN {
            let Some(id) = self.due.pop_front() else {
                break;
            };
            if self.poll_stream(id).is_err() {
                self.streams.remove(&id);
                self.gone.push(id);
            }
        }
        self.poll_stalled(cx);
        self.report();
        if !self.due.is_empty() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn take(&mut self, batch: WatchBatch) {
        match batch {
            WatchBatch::Open {
                id,
                watch_id,
                revision,
            } => {
                let created = frames::one(&WatchMessage::Created { watch_id, revision });
                let watch_sender = Arc::clone(&self.watch_sender);
                let waker = Waker::from(Arc::new(StreamWaker { id, watch_sender }));
                self.streams
                    .insert(id, WatchStream::new(created, waker, now()));
                self.waiting.push_back(id);
            }
            WatchBatch::Events { id, events, since } => {
                let Some(watch) = self.streams.get_mut(&id) else {
                    // The client closed the stream; the watch thread learns of it by this task.
                    return;
                };
                watch.has_batch = true;
                watch.since = watch.since.or(since);
                watch.ends |= matches!(events.last(), Some(WatcherEvent::Canceled(_)));
                watch.queue.add(events);
                self.make_due(id);
            }
            // Clients of these streams ask for one watch at a time.
            WatchBatch::Synced { .. } => {}
            WatchBatch::Close { id } => {
                if let Some(WatchStream {
                    stream: Some(mut stream),
                    ..
                }) = self.streams.remove(&id)
                {
                    stream.reset();
                }
            }
        }
    }

    fn make_due(&mut self, id: WatcherId) {
        if let Some(watch) = self.streams.get_mut(&id)
            && watch.stream.is_some()
            && !watch.is_due
        {
            watch.is_due = true;
            self.due.push_back(id);
        }
    }

    /// Opens streams, one after the other. Ready if the connection is over.
    fn poll_opening(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            while let Some(id) = self.waiting.front()
                && !self.streams.contains_key(id)
            {
                self.waiting.pop_front();
            }
            if self.waiting.is_empty() {
                return Poll::Pending;
            }
            let connection = self.connection.clone();
            let opening = self.opening.get_or_insert_with(|| {
                Box::pin(async move { connection.open_sender(PRIORITY).await })
            });
            let Poll::Ready(opened) = opening.as_mut().poll(cx) else {
                return Poll::Pending;
            };
            self.opening = None;
            let (Ok(stream), Some(id)) = (opened, self.waiting.pop_front()) else {
                return Poll::Ready(());
            };
            if let Some(watch) = self.streams.get_mut(&id) {
                watch.stream = Some(stream);
                watch.blocked_since = None;
            }
            self.make_due(id);
        }
    }

    /// Writes to a stream until it blocks or its queue is empty.
    fn poll_stream(&mut self, id: WatcherId) -> Result<(), ()> {
        let Some(watch) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        watch.is_due = false;
        let Some(stream) = &mut watch.stream else {
            return Ok(());
        };
        let mut cx = Context::from_waker(&watch.waker);
        while let Some(chunks) = watch.queue.next() {
            match stream.poll_write(&mut cx, chunks) {
                Poll::Ready(Ok(())) => watch.blocked_since = None,
                Poll::Ready(Err(_)) => return Err(()),
                Poll::Pending => {
                    watch.blocked_since.get_or_insert_with(now);
                    return Ok(());
                }
            }
        }
        if watch.ends {
            stream.finish();
            self.streams.remove(&id);
            return Ok(());
        }
        if std::mem::take(&mut watch.has_batch) {
            self.sent.push(id);
            if let Some(since) = watch.since.take() {
                self.samples += 1;
                if self.samples.is_multiple_of(SAMPLED) {
                    let delay = since.elapsed().as_secs_f64();
                    self.metrics.watch.delivery_delay_seconds.record(delay);
                }
            }
        }
        Ok(())
    }

    /// Resets streams that have been blocked for [`STALLED_MAX`], and ends watches without a stream for as
    /// long.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) {
        let look = self
            .stalled_look
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(STALLED_LOOK)));
        while look.as_mut().poll(cx).is_ready() {
            let now = now();
            let stalled: Vec<WatcherId> = self
                .streams
                .iter()
                .filter(|(_, watch)| watch.is_stalled(now))
                .map(|(id, _)| *id)
                .collect();
            for id in &stalled {
                if let Some(WatchStream {
                    stream: Some(mut stream),
                    ..
                }) = self.streams.remove(id)
                {
                    stream.reset();
                }
            }
            if !stalled.is_empty() {
                self.watches.orders.send(Order::Gone {
                    watchers: stalled,
                    reason: "stalled",
                });
            }
            look.as_mut().reset(now + STALLED_LOOK);
        }
    }

    fn report(&mut self) {
        if !self.sent.is_empty() {
            let sent = std::mem::take(&mut self.sent);
            self.watches.orders.send(Order::Sent(sent));
        }
        if !self.gone.is_empty() {
            self.watches.orders.send(Order::Gone {
                watchers: std::mem::take(&mut self.gone),
                reason: "client",
            });
        }
    }
}

fn now() -> Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "how long a stream has stood still is no lease: plain elapsed time is enough"
    )]
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREATED: Bytes = Bytes::from_static(b"created");

    #[test]
    fn a_watch_whose_stream_is_never_opened_is_given_up_like_one_that_takes_nothing() {
        let order = now();
        let mut watch = WatchStream::new(CREATED, Waker::noop().clone(), order);
        let almost = STALLED_MAX - Duration::from_millis(1);
        assert!(!watch.is_stalled(order + almost));
        assert!(watch.is_stalled(order + STALLED_MAX));
        // Once it has been opened, it counts from when it takes nothing.
        watch.blocked_since = None;
        assert!(!watch.is_stalled(order + 2 * STALLED_MAX));
        let blocked = order + STALLED_MAX;
        watch.blocked_since = Some(blocked);
        assert!(!watch.is_stalled(blocked + almost));
        assert!(watch.is_stalled(blocked + STALLED_MAX));
    }

    #[test]
    fn nothing_is_made_into_bytes_before_what_is_there_has_been_written() {
        let mut queue = WriteQueue::new(CREATED);
        let both = [WatcherEvent::Progress(5), WatcherEvent::Synced(6)];
        queue.add(both.to_vec());
        for _ in 0..2 {
            assert_eq!(queue.next(), Some(&mut vec![CREATED]));
            assert_eq!(queue.events.len(), 2);
        }
        // As a stream takes them.
        queue.chunks.clear();
        let mut both: Vec<Bytes> = both.iter().map(|event| frames::of(event).0).collect();
        assert_eq!(queue.next(), Some(&mut both));
        assert!(queue.events.is_empty());
        queue.chunks.clear();
        assert_eq!(queue.next(), None);
    }
}
