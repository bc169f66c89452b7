//! Watches of clients: from what was applied to one one-way stream for each watch.
//!
//! One thread of the node owns the [`Hub`](crate::watch::Hub) ([`thread`]): it receives
//! applied changes from the state thread and requests of clients from sessions, and decides what each
//! watcher is sent next. Nothing waits for it: the state thread queues its changes and goes on (beyond a
//! bound it leaves them out, and the hub reads them from the store), sessions queue their requests.
//!
//! Each connection has one task that sends for all of its watches ([`send_task`]). At most one
//! batch of a watcher is being sent; later events wait in the hub, whose queues are bounded. A stream whose client does not read holds up no other stream.
//!
//! What is sent is encoded once for all watchers that want the same ([`frames`]).
//!
//! A client of another protocol takes the batches of its watches itself ([`local`]).

mod frames;
mod local;
mod send_task;
mod sender;
#[cfg(test)]
mod tests;
mod thread;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::oneshot;

use crate::api::{Error, WatchRequest};
use crate::kv::Change;
use crate::kv::access::Identity;
use crate::server::disk::apply_listener::ApplyListener;
use crate::server::mail::outbox::Outbox;
use crate::server::metrics::stopwatch;
use crate::server::threads::queue::BatchQueue;
use crate::watch::{WatcherId, WatcherView};

pub(crate) use local::{LocalWatches, WatchStep};
pub(crate) use send_task::send;
pub(crate) use sender::WatchSender;
pub(crate) use thread::WatchThread;

/// Maximum number of changes that wait for the watch thread; beyond, it reads them from the store.
const BACKLOG_CHANGES_MAX: usize = 100_000;
/// The same in bytes of keys and values.
const BACKLOG_BYTES_MAX: usize = 32 << 20;

/// The queue to the watch thread.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    orders: BatchQueue<Order>,
    /// Whether there are watches, so that changes are worth sending.
    listening: AtomicBool,
    backlog_changes: AtomicUsize,
    backlog_bytes: AtomicUsize,
    counts: Counts,
}

/// What a scrape shows.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Open watches.
    pub(crate) watchers: AtomicUsize,
    /// Connections that have any.
    pub(crate) streams: AtomicUsize,
    /// Watches that do not keep up.
    pub(crate) slow: AtomicUsize,
    /// Events that wait to be sent.
    pub(crate) pending: AtomicUsize,
    /// Bytes that wait to be sent, or are being sent.
    pub(crate) queued_bytes: AtomicUsize,
}

/// A message to the watch thread.
#[derive(Debug)]
enum Order {
    /// The state thread has applied this, and it can be read.
    Applied {
        revision: i64,
        /// The changes; `None` if there was no watch, or too many changes wait already.
        changes: Option<Vec<Change>>,
        bytes: usize,
        at: std::time::Instant,
    },
    /// A client wants to watch.
    Watch {
        watch_sender: Arc<WatchSender>,
        watch_id: u64,
        watch: WatchRequest,
        /// The client's identity, if it is known.
        who: Result<Arc<Identity>, Error>,
        reply: Reply,
    },
    Cancel {
        watch_sender: Arc<WatchSender>,
        watch_id: u64,
        reply: Reply,
    },
    Progress {
        watch_sender: Arc<WatchSender>,
        watch_id: u64,
        reply: Reply,
    },
    /// A client wants to be told once all its watches have been handed the same.
    ProgressOfAll(Arc<WatchSender>),
    /// The batches of these watchers have been sent.
    Sent(Vec<WatcherId>),
    /// The clients of these watchers have closed their streams.
    Gone {
        watchers: Vec<WatcherId>,
        reason: &'static str,
    },
    /// A connection has ended.
    Left(Arc<WatchSender>),
    /// No state may be shown from now on, for this reason; or it may again.
    Refuse(Option<Error>),
    /// The node has learned of a leader, or has lost it.
    Leader {
        is_known: bool,
    },
    /// The rules of access have changed: every watch has to be checked again.
    Judge,
    /// Asks for a list of the watches.
    List(oneshot::Sender<Vec<WatchInfo>>),
    Stop,
}

/// A watch, as it is listed.
#[derive(Clone, Debug)]
pub(crate) struct WatchInfo {
    /// The name in the client's certificate.
    pub(crate) client: Arc<str>,
    /// The client's address.
    pub(crate) address: Option<SocketAddr>,
    /// The id that the client chose.
    pub(crate) watch_id: u64,
    /// Its progress.
    pub(crate) view: WatcherView,
}

/// Maximum number of watches in a list.
const LISTED_MAX: usize = 1_000;

/// The request that an answer belongs to.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) frame: u64,
}

/// A client's request about a watch.
#[derive(Debug)]
pub(crate) enum Control {
    Watch(WatchRequest),
    Cancel,
    Progress,
}

impl Watches {
    fn has_room(&self) -> bool {
        self.backlog_changes.load(Ordering::Relaxed) < BACKLOG_CHANGES_MAX
            && self.backlog_bytes.load(Ordering::Relaxed) < BACKLOG_BYTES_MAX
    }

    /// A client's request about a watch of its connection.
    pub(crate) fn control(
        &self,
        watch_sender: &Arc<WatchSender>,
        watch_id: u64,
        control: Control,
        who: Result<Arc<Identity>, Error>,
        reply: Reply,
    ) {
        let watch_sender = Arc::clone(watch_sender);
        self.orders.send(match control {
            Control::Watch(watch) => Order::Watch {
                watch_sender,
                watch_id,
                watch,
                who,
                reply,
            },
            Control::Cancel => Order::Cancel {
                watch_sender,
                watch_id,
                reply,
            },
            Control::Progress => Order::Progress {
                watch_sender,
                watch_id,
                reply,
            },
        });
    }

    /// A connection has ended, and its watches with it.
    pub(crate) fn left(&self, watch_sender: Arc<WatchSender>) {
        watch_sender.end();
        self.orders.send(Order::Left(watch_sender));
    }

    /// No state may be shown from now on, for the reason given; or it may again.
    pub(crate) fn refuse(&self, reason: Option<Error>) {
        self.orders.send(Order::Refuse(reason));
    }

    /// The node has learned of a leader, or has lost it.
    pub(crate) fn leader(&self, is_known: bool) {
        self.orders.send(Order::Leader { is_known });
    }

    /// Lists the watches, a thousand at most; none if the thread has ended.
    pub(crate) async fn list(&self) -> Vec<WatchInfo> {
        let (answer, answered) = oneshot::channel();
        self.orders.send(Order::List(answer));
        answered.await.unwrap_or_default()
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.orders.send(Order::Stop);
    }

    /// What a scrape shows.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl ApplyListener for Watches {
    fn wants_changes(&self) -> bool {
        self.listening.load(Ordering::SeqCst)
    }

    // Whether there are watches is checked again: one that was opened since the changes were
    // collected started from a state that may be older than `revision`, and must get them.
    fn applied(&self, revision: i64, changes: Option<Vec<Change>>) {
        if !self.wants_changes() {
            return;
        }
        let bytes = changes.iter().flatten().map(Change::bytes).sum();
        let (count, changes) = match changes {
            Some(changes) if self.has_room() => (changes.len(), Some(changes)),
            _ => (0, None),
        };
        let bytes = if changes.is_some() { bytes } else { 0 };
        self.backlog_changes.fetch_add(count, Ordering::Relaxed);
        self.backlog_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.orders.send(Order::Applied {
            revision,
            changes,
            bytes,
            at: stopwatch(),
        });
    }

    fn rules_changed(&self) {
        self.orders.send(Order::Judge);
    }
}
