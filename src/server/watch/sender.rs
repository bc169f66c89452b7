//! What the watch thread hands to a connection, for the connection's task to send.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use crate::sync::{Mutex, MutexGuard};
use crate::transport::Connection;
use crate::watch::{WatcherEvent, WatcherId};

/// The way to a connection's task.
pub(crate) struct WatchSender {
    id: u64,
    /// Whose connection it is, and where that was when it was made.
    client: Arc<str>,
    address: Option<SocketAddr>,
    /// Watches that the connection has. Changed by the watch thread alone.
    pub(super) watches: AtomicUsize,
    /// The connection is over, and nothing will be sent.
    is_over: AtomicBool,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
pub(super) struct Inbox {
    pub(super) batches: Vec<WatchBatch>,
    /// Streams that may take something again.
    pub(super) woken: Vec<WatcherId>,
    pub(super) taker: Option<Waker>,
}

/// What the watch sender is handed.
pub(super) enum WatchBatch {
    /// A new watch.
    Open {
        id: WatcherId,
        watch_id: u64,
        revision: i64,
    },
    /// What a watcher is told. Once it has been sent, the watch thread is told so.
    Carry {
        id: WatcherId,
        notices: Vec<WatcherEvent>,
        /// When it was applied, if it has just been.
        since: Option<std::time::Instant>,
    },
    /// The client has had enough.
    Close { id: WatcherId },
}

impl std::fmt::Debug for WatchSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WatchSender({})", self.id)
    }
}

impl WatchSender {
    /// The watch sender of a new connection; [`send`](super::send) is its task.
    pub(crate) fn of(connection: &Connection) -> Arc<Self> {
        Self::with(
            connection.identity().name(),
            Some(connection.remote_address()),
        )
    }

    /// One of a connection that is not there, for tests.
    #[cfg(test)]
    pub(crate) fn new() -> Arc<Self> {
        Self::with("tester", None)
    }

    fn with(client: &str, address: Option<SocketAddr>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            client: client.into(),
            address,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            watches: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            inbox: Mutex::default(),
        })
    }

    /// Whose connection it is.
    pub(super) fn client(&self) -> &Arc<str> {
        &self.client
    }

    /// Where that client was when it connected.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Which connection of the process it serves.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The connection is over. Before the watch thread is told so: what a stream of the connection
    /// asks for after that is refused.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Hands it batches, in one step.
    pub(super) fn hand(&self, batches: &mut Vec<WatchBatch>) {
        let mut inbox = self.lock();
        inbox.batches.append(batches);
        let taker = inbox.taker.take();
        drop(inbox);
        if let Some(taker) = taker {
            taker.wake();
        }
    }

    /// What has been handed to it, for tests that play its part.
    #[cfg(test)]
    pub(super) fn handed(&self) -> Vec<WatchBatch> {
        std::mem::take(&mut self.lock().batches)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inbox> {
        // A panic elsewhere cannot leave a Vec half pushed.
        self.inbox.lock()
    }
}
