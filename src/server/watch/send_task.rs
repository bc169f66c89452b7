//! The task that sends for all watches of one connection.
//!
//! A stream that takes nothing, because its client does not read, has a waker of its own and is left
//! alone until it takes something again; the others go on. One that takes nothing for long is given
//! up: its client goes on from where it is, if it still lives. So is a watch whose client lets no stream
//! be opened for it.
//!
//! What waits here is made into bytes only when all before it has been written, and is within the hub's
//! bound on what waits for all watchers together.

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
use crate::transport::{Connection, FrameSender, Lost};
use crate::watch::{Counted, WatcherEvent, WatcherId};

/// Streams that are written to before others of the runtime have their turn.
const STREAMS_PER_TURN: usize = 64;
/// How long a stream may take nothing, or not be opened.
const STALLED_MAX: Duration = Duration::from_secs(30);
/// Interval between checks for that.
const STALLED_LOOK: Duration = Duration::from_secs(10);
/// Watches come after replies, because requests wait for those.
const PRIORITY: i32 = -1;
/// The delay of one in this many batches is recorded.
const SAMPLED: usize = 16;

/// Sends what `watch sender` is handed until the connection is over.
pub(crate) async fn send(
    watch_sender: Arc<WatchSender>,
    connection: Connection,
    watches: Arc<Watches>,
    metrics: Arc<Metrics>,
) {
    let mut round = Round {
        watch_sender,
        connection,
        watches,
        metrics,
        lines: BTreeMap::new(),
        waiting: VecDeque::new(),
        opening: None,
        due: VecDeque::new(),
        sent: Vec::new(),
        gone: Vec::new(),
        stalled: None,
        samples: 0,
    };
    poll_fn(|cx| round.poll(cx)).await;
}

type Opening = Pin<Box<dyn Future<Output = Result<FrameSender, Lost>> + Send>>;

/// The state of the task.
struct Round {
    watch_sender: Arc<WatchSender>,
    connection: Connection,
    watches: Arc<Watches>,
    metrics: Arc<Metrics>,
    lines: BTreeMap<WatcherId, Line>,
    /// Watches without a stream: the client allows only so many.
    waiting: VecDeque<WatcherId>,
    opening: Option<Opening>,
    /// Watches that may be written to.
    due: VecDeque<WatcherId>,
    sent: Vec<WatcherId>,
    gone: Vec<WatcherId>,
    /// When to look for streams that take nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    samples: usize,
}

/// One watch.
struct Line {
    stream: Option<FrameSender>,
    load: Load,
    waker: Waker,
    /// It is among those that may be written to.
    is_due: bool,
    /// A batch was received and not reported as sent.
    carries: bool,
    since: Option<std::time::Instant>,
    /// The stream ends after what is queued.
    ends: bool,
    /// Since when it has waited for its stream, or that has taken nothing.
    blocked_since: Option<Instant>,
}

impl Line {
    /// A line that waits for its stream, to write this first.
    fn new(first: Bytes, waker: Waker, now: Instant) -> Self {
        Self {
            stream: None,
            load: Load::new(first),
            waker,
            is_due: false,
            carries: false,
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

/// What is still to be written to a stream.
pub(super) struct Load {
    /// Encoded, and not written.
    chunks: Vec<Bytes>,
    /// Counts those bytes until all of them are written.
    counts: Vec<Arc<Counted>>,
    /// Not encoded yet.
    notices: Vec<WatcherEvent>,
}

impl Load {
    /// This comes first.
    pub(super) fn new(first: Bytes) -> Self {
        Self {
            chunks: vec![first],
            counts: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// These come after what is there.
    pub(super) fn add(&mut self, notices: Vec<WatcherEvent>) {
        self.notices.extend(notices);
    }

    /// The bytes to write next, which the caller removes as it writes them; `None` once all are written.
    /// Nothing is encoded before the encoded bytes have been written.
    pub(super) fn next(&mut self) -> Option<&mut Vec<Bytes>> {
        if self.chunks.is_empty() {
            self.counts.clear();
            for notice in std::mem::take(&mut self.notices) {
                let (bytes, counted) = frames::of(&notice);
                self.chunks.push(bytes);
                self.counts.extend(counted);
            }
        }
        (!self.chunks.is_empty()).then_some(&mut self.chunks)
    }
}

/// Wakes the task, and says for which stream.
struct LineWaker {
    id: WatcherId,
    watch_sender: Arc<WatchSender>,
}

impl Wake for LineWaker {
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

impl Round {
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
            if self.poll_line(id).is_err() {
                self.lines.remove(&id);
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
                let waker = Waker::from(Arc::new(LineWaker { id, watch_sender }));
                self.lines.insert(id, Line::new(created, waker, now()));
                self.waiting.push_back(id);
            }
            WatchBatch::Carry { id, notices, since } => {
                let Some(line) = self.lines.get_mut(&id) else {
                    // The client closed the stream; the watch thread learns of it by this task.
                    return;
                };
                line.carries = true;
                line.since = line.since.or(since);
                line.ends |= matches!(notices.last(), Some(WatcherEvent::Canceled(_)));
                line.load.add(notices);
                self.make_due(id);
            }
            WatchBatch::Close { id } => {
                if let Some(Line {
                    stream: Some(mut stream),
                    ..
                }) = self.lines.remove(&id)
                {
                    stream.reset();
                }
            }
        }
    }

    fn make_due(&mut self, id: WatcherId) {
        if let Some(line) = self.lines.get_mut(&id)
            && line.stream.is_some()
            && !line.is_due
        {
            line.is_due = true;
            self.due.push_back(id);
        }
    }

    /// Opens streams, one after the other. Ready if the connection is over.
    fn poll_opening(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            while let Some(id) = self.waiting.front()
                && !self.lines.contains_key(id)
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
            if let Some(line) = self.lines.get_mut(&id) {
                line.stream = Some(stream);
                line.blocked_since = None;
            }
            self.make_due(id);
        }
    }

    /// Writes what a stream takes.
    fn poll_line(&mut self, id: WatcherId) -> Result<(), ()> {
        let Some(line) = self.lines.get_mut(&id) else {
            return Ok(());
        };
        line.is_due = false;
        let Some(stream) = &mut line.stream else {
            return Ok(());
        };
        let mut cx = Context::from_waker(&line.waker);
        while let Some(chunks) = line.load.next() {
            match stream.poll_write(&mut cx, chunks) {
                Poll::Ready(Ok(())) => line.blocked_since = None,
                Poll::Ready(Err(_)) => return Err(()),
                Poll::Pending => {
                    line.blocked_since.get_or_insert_with(now);
                    return Ok(());
                }
            }
        }
        if line.ends {
            stream.finish();
            self.lines.remove(&id);
            return Ok(());
        }
        if std::mem::take(&mut line.carries) {
            self.sent.push(id);
            if let Some(since) = line.since.take() {
                self.samples += 1;
                if self.samples.is_multiple_of(SAMPLED) {
                    let delay = since.elapsed().as_secs_f64();
                    self.metrics.watch.delivery_delay_seconds.record(delay);
                }
            }
        }
        Ok(())
    }

    /// Gives up streams that have taken nothing for long, and watches that have had none for as long.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) {
        let look = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(STALLED_LOOK)));
        while look.as_mut().poll(cx).is_ready() {
            let now = now();
            let stalled: Vec<WatcherId> = self
                .lines
                .iter()
                .filter(|(_, line)| line.is_stalled(now))
                .map(|(id, _)| *id)
                .collect();
            for id in &stalled {
                if let Some(Line {
                    stream: Some(mut stream),
                    ..
                }) = self.lines.remove(id)
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
        let mut line = Line::new(CREATED, Waker::noop().clone(), order);
        let almost = STALLED_MAX - Duration::from_millis(1);
        assert!(!line.is_stalled(order + almost));
        assert!(line.is_stalled(order + STALLED_MAX));
        // Once it has been opened, it counts from when it takes nothing.
        line.blocked_since = None;
        assert!(!line.is_stalled(order + 2 * STALLED_MAX));
        let blocked = order + STALLED_MAX;
        line.blocked_since = Some(blocked);
        assert!(!line.is_stalled(blocked + almost));
        assert!(line.is_stalled(blocked + STALLED_MAX));
    }

    #[test]
    fn nothing_is_made_into_bytes_before_what_is_there_has_been_written() {
        let mut load = Load::new(CREATED);
        let both = [WatcherEvent::Progress(5), WatcherEvent::Synced(6)];
        load.add(both.to_vec());
        for _ in 0..2 {
            assert_eq!(load.next(), Some(&mut vec![CREATED]));
            assert_eq!(load.notices.len(), 2);
        }
        // As a stream takes them.
        load.chunks.clear();
        let mut both: Vec<Bytes> = both.iter().map(|notice| frames::of(notice).0).collect();
        assert_eq!(load.next(), Some(&mut both));
        assert!(load.notices.is_empty());
        load.chunks.clear();
        assert_eq!(load.next(), None);
    }
}
