//! The watches of a connection: unidirectional streams that the node opens, each passed to the task
//! that opened its watch.
//!
//! A watch may be without events for hours, so a failed node would be noticed only at the
//! connection's idle timeout. While there are watches, the packets of the connection are monitored,
//! as they are while requests wait: keep-alives make sure that packets arrive every other second.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::api::WatchMessage;
use crate::sync::{Mutex, MutexGuard};
use crate::transport::{Connection, FrameReceiver, StreamError};
use crate::wire::Frame;

/// Watches that wait for their stream, and the signal that ends those which have one.
#[derive(Debug, Default)]
pub(super) struct PendingWatches {
    state: Mutex<State>,
    /// Signalled once the connection has fallen silent. Every stream holds a receiver.
    silent: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    last_id: u64,
    waiting: BTreeMap<u64, oneshot::Sender<WatchStream>>,
}

impl PendingWatches {
    /// A number for a new watch, and the receiver of its stream.
    pub(super) fn expect(self: &Arc<Self>) -> (Expectation, oneshot::Receiver<WatchStream>) {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        state.last_id += 1;
        let watch_id = state.last_id;
        state.waiting.insert(watch_id, sender);
        let expectation = Expectation {
            watch_id,
            expected: Arc::clone(self),
        };
        (expectation, receiver)
    }

    /// Whether any watch is open or waits for its stream.
    pub(super) fn are_open(&self) -> bool {
        self.silent.receiver_count() > 0 || !self.lock().waiting.is_empty()
    }

    /// Ends all watches: the node does not answer any more.
    pub(super) fn end_silent(&self) {
        self.silent.send_replace(());
    }

    fn arrived(&self, watch_id: u64, stream: WatchStream) {
        if let Some(waiting) = self.lock().waiting.remove(&watch_id) {
            // A receiver that is gone drops the stream, which ends the watch.
            let _ = waiting.send(stream);
        }
    }

    /// No more streams will arrive: every task that waits for one gets an error at once.
    fn give_up(&self) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        drop(waiting);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// A stream is expected for as long as this exists.
#[derive(Debug)]
pub(super) struct Expectation {
    pub(super) watch_id: u64,
    expected: Arc<PendingWatches>,
}

impl Drop for Expectation {
    fn drop(&mut self) {
        self.expected.lock().waiting.remove(&self.watch_id);
    }
}

/// The stream of a watch.
#[derive(Debug)]
pub(crate) struct WatchStream {
    receiver: FrameReceiver,
    /// Received, and not returned yet.
    arrived: std::vec::IntoIter<Frame>,
    silent: watch::Receiver<()>,
}

/// Why no more messages arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchLost {
    Stream(StreamError),
    Silent,
}

impl fmt::Display for WatchLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(error) => error.fmt(f),
            Self::Silent => f.write_str("the node stopped answering"),
        }
    }
}

impl WatchStream {
    /// The next message.
    ///
    /// # Errors
    /// The stream or the connection is over, or the bytes are not a valid message.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn next(&mut self) -> Result<WatchMessage, WatchLost> {
        loop {
            if let Some(frame) = self.arrived.next() {
                return self.receiver.decode(&frame).map_err(WatchLost::Stream);
            }
            let mut frames = Vec::new();
            tokio::select! {
                read = self.receiver.read_batch(&mut frames) => read.map_err(WatchLost::Stream)?,
                Ok(()) = self.silent.changed() => return Err(WatchLost::Silent),
            }
            self.arrived = frames.into_iter();
        }
    }
}

/// Accepts the streams that the node opens, until the connection is over.
pub(super) async fn accept(connection: Connection, expected: Arc<PendingWatches>) {
    let mut greetings = JoinSet::new();
    while let Ok(receiver) = connection.accept_receiver().await {
        let expected = Arc::clone(&expected);
        // In a task of its own: a stream without data delays no other.
        greetings.spawn(async move {
            let mut stream = WatchStream {
                receiver,
                arrived: Vec::new().into_iter(),
                silent: expected.silent.subscribe(),
            };
            // Only the first message identifies the watch.
            if let Ok(WatchMessage::Created { watch_id, .. }) = stream.next().await {
                expected.arrived(watch_id, stream);
            }
        });
        while greetings.try_join_next().is_some() {}
    }
    // Data that has arrived is still read. Each stream ends after that: it fails, as its connection
    // did.
    while greetings.join_next().await.is_some() {}
    expected.give_up();
}
