//! The watches of a link: one-way streams that the node opens, each handed to whoever opened its watch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::api::WatchMessage;
use crate::transport::Connection;
use crate::transport::FrameReceiver;
use crate::transport::StreamError;
use crate::wire::Frame;

/// Watches that wait for their stream.
#[derive(Debug, Default)]
pub(super) struct Expected {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_id: u64,
    waiting: BTreeMap<u64, oneshot::Sender<WatchStream>>,
}

impl Expected {
    /// A number for a new watch, and where its stream will come.
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

    fn arrived(&self, watch_id: u64, stream: WatchStream) {
        if let Some(waiting) = self.lock().waiting.remove(&watch_id) {
            // Whoever has given up meanwhile drops the stream, which ends the watch.
            let _ = waiting.send(stream);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream is expected for as long as this lives.
#[derive(Debug)]
pub(super) struct Expectation {
    pub(super) watch_id: u64,
    expected: Arc<Expected>,
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
    /// Arrived, and not given out.
    arrived: std::vec::IntoIter<Frame>,
}

impl WatchStream {
    /// The next message.
    ///
    /// # Errors
    /// The stream or the connection is over, or what came is no message.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn next(&mut self) -> Result<WatchMessage, StreamError> {
        loop {
            if let Some(frame) = self.arrived.next() {
                return self.receiver.decode(&frame);
            }
            let mut frames = Vec::new();
            self.receiver.read_batch(&mut frames).await?;
            self.arrived = frames.into_iter();
        }
    }
}

/// Takes in the streams that the node opens, until the connection is over.
pub(super) async fn accept(connection: Connection, expected: Arc<Expected>) {
    let mut greetings = JoinSet::new();
    while let Ok(receiver) = connection.accept_receiver().await {
        let expected = Arc::clone(&expected);
        // In a task of its own: a stream of which nothing arrives holds up no other.
        greetings.spawn(async move {
            let mut stream = WatchStream {
                receiver,
                arrived: Vec::new().into_iter(),
            };
            // The first message alone says which watch it is.
            if let Ok(WatchMessage::Created { watch_id, .. }) = stream.next().await {
                expected.arrived(watch_id, stream);
            }
        });
        while greetings.try_join_next().is_some() {}
    }
}
