//! The queue from the watch thread to the task that sends for a connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use crate::sync::{Mutex, MutexGuard};
use crate::transport::Connection;
use crate::watch::{WatcherEvent, WatcherId};

/// Sends batches to the task of one connection.
pub(crate) struct WatchSender {
    id: u64,
    /// The client's name, and its address when it connected.
    client: Arc<str>,
    address: Option<SocketAddr>,
    /// Number of watches of the connection. Changed by the watch thread alone.
    pub(super) watches: AtomicUsize,
    /// The connection has ended, so nothing can be sent.
    is_over: AtomicBool,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
pub(super) struct Inbox {
    pub(super) batches: Vec<WatchBatch>,
    /// Watchers whose streams are writable again.
    pub(super) woken: Vec<WatcherId>,
    pub(super) taker: Option<Waker>,
}

/// One step for the stream of a watch.
pub(super) enum WatchBatch {
    /// A new watch.
    Open {
        id: WatcherId,
        watch_id: u64,
        revision: i64,
    },
    /// Events for a watcher. Once they are sent, [`Order::Sent`](super::Order::Sent) reports it.
    Events {
        id: WatcherId,
        events: Vec<WatcherEvent>,
        /// When the change was applied, if it is recent.
        since: Option<std::time::Instant>,
    },
    /// The client has cancelled the watch.
    Close { id: WatcherId },
    /// All watches of the client have been handed everything up to this revision. Only for clients that
    /// ask for it by [`Order::ProgressOfAll`](super::Order::ProgressOfAll).
    Synced { revision: i64 },
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

    /// That of a client inside of this process, whose watches are [`LocalWatches`](super::LocalWatches),
    /// if it has any.
    pub(crate) fn local(client: &str, address: SocketAddr) -> Arc<Self> {
        Self::with(client, Some(address))
    }

    /// One without a connection, for tests.
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

    /// The client's name.
    pub(super) fn client(&self) -> &Arc<str> {
        &self.client
    }

    /// The client's address when it connected.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The number of the connection within the process.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The connection has ended. Called before the watch thread learns of it, so that it refuses the
    /// requests that streams of the connection have already sent.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Appends batches to the queue, all at once.
    pub(super) fn hand(&self, batches: &mut Vec<WatchBatch>) {
        let mut inbox = self.lock();
        inbox.batches.append(batches);
        let taker = inbox.taker.take();
        drop(inbox);
        if let Some(taker) = taker {
            taker.wake();
        }
    }

    /// Takes the queued batches, for tests in place of the task.
    #[cfg(test)]
    pub(super) fn handed(&self) -> Vec<WatchBatch> {
        std::mem::take(&mut self.lock().batches)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inbox> {
        // A panic elsewhere cannot leave a Vec half pushed.
        self.inbox.lock()
    }
}
