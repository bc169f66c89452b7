//! The watches of a client inside of this process: what the watch thread hands over is taken by the
//! client's own task, which sends it in its own protocol.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::sender::{WatchBatch, WatchSender};
use super::{Control, Order, Reply, Watches};
use crate::api::{Error, WatchRequest};
use crate::kv::access::Identity;
use crate::server::mail::outbox::{Completion, Delivery, Outbox};
use crate::watch::{WatcherEvent, WatcherId};

/// The number under which orders go whose answer is not needed: watches have others.
const UNHEARD: u64 = u64::MAX;

/// Watches that share one queue. They end when this is dropped.
pub(crate) struct LocalWatches {
    watches: Arc<Watches>,
    watch_sender: Arc<WatchSender>,
    answers: Arc<Outbox>,
    /// The numbers of the watches that are open.
    names: BTreeMap<WatcherId, u64>,
    batches: VecDeque<WatchBatch>,
    answered: Vec<Completion>,
}

/// What happens next to the watches of a client.
#[derive(Debug)]
pub(crate) enum WatchStep {
    /// The watch is open, and gets all changes that it asks for and all above this revision.
    Opened { watch: u64, revision: i64 },
    /// The watch was not opened.
    Refused { watch: u64, error: Error },
    /// Events of the watch. The next come once [`LocalWatches::sent`] has been told of these.
    Events {
        watch: u64,
        watcher: WatcherId,
        events: Vec<WatcherEvent>,
    },
    /// Everything up to this revision has been handed over, for all watches.
    Synced { revision: i64 },
}

impl LocalWatches {
    /// None yet, of the client `name` at `address`.
    pub(crate) fn new(watches: Arc<Watches>, name: &str, address: SocketAddr) -> Self {
        Self {
            watches,
            watch_sender: WatchSender::local(name, address),
            answers: Arc::default(),
            names: BTreeMap::new(),
            batches: VecDeque::new(),
            answered: Vec::new(),
        }
    }

    /// Opens a watch under the number `watch`, which no other one of this client has had. It is judged by
    /// what `who` may read.
    pub(crate) fn open(
        &self,
        watch: u64,
        request: WatchRequest,
        who: Result<Arc<Identity>, Error>,
    ) {
        self.control(watch, Control::Watch(request), who, watch);
    }

    /// Ends a watch. Events of it that are on the way still come.
    pub(crate) fn cancel(&self, watch: u64, who: Result<Arc<Identity>, Error>) {
        self.control(watch, Control::Cancel, who, UNHEARD);
    }

    /// Asks for [`WatchStep::Synced`]. It does not come if there is no watch.
    pub(crate) fn ask_progress(&self) {
        let asks = Order::ProgressOfAll(self.watch_sender.clone());
        self.watches.orders.send(asks);
    }

    /// What came last for these watchers has been sent.
    pub(crate) fn sent(&self, watchers: Vec<WatcherId>) {
        self.watches.orders.send(Order::Sent(watchers));
    }

    /// The next step. Steps come in the order in which the watch thread made them, refusals aside.
    ///
    /// # Cancel safety
    /// No step is lost.
    pub(crate) async fn next(&mut self) -> WatchStep {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next step, if it is there already.
    pub(crate) async fn next_if_ready(&mut self) -> Option<WatchStep> {
        poll_fn(|cx| match self.poll_next(cx) {
            Poll::Ready(step) => Poll::Ready(Some(step)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    fn control(&self, watch: u64, control: Control, who: Result<Arc<Identity>, Error>, frame: u64) {
        let reply = Reply {
            outbox: self.answers.clone(),
            frame,
        };
        self.watches
            .control(&self.watch_sender, watch, control, who, reply);
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<WatchStep> {
        loop {
            while let Some(batch) = self.batches.pop_front() {
                if let Some(step) = self.step(batch) {
                    return Poll::Ready(step);
                }
            }
            while let Some((watch, delivery, _)) = self.answered.pop() {
                if let Delivery::Reply(Err(error)) = delivery
                    && watch != UNHEARD
                {
                    return Poll::Ready(WatchStep::Refused { watch, error });
                }
            }
            let mut inbox = self.watch_sender.lock();
            self.batches.extend(inbox.batches.drain(..));
            inbox.taker = Some(cx.waker().clone());
            drop(inbox);
            let is_answered = self.answers.poll_take(cx, &mut self.answered);
            if self.batches.is_empty() && !is_answered {
                return Poll::Pending;
            }
        }
    }

    fn step(&mut self, batch: WatchBatch) -> Option<WatchStep> {
        match batch {
            WatchBatch::Open {
                id,
                watch_id,
                revision,
            } => {
                self.names.insert(id, watch_id);
                Some(WatchStep::Opened {
                    watch: watch_id,
                    revision,
                })
            }
            WatchBatch::Events { id, events, .. } => {
                let ends = matches!(events.last(), Some(WatcherEvent::Canceled(_)));
                let watch = match ends {
                    true => self.names.remove(&id)?,
                    false => *self.names.get(&id)?,
                };
                Some(WatchStep::Events {
                    watch,
                    watcher: id,
                    events,
                })
            }
            WatchBatch::Close { id } => {
                self.names.remove(&id);
                None
            }
            WatchBatch::Synced { revision } => Some(WatchStep::Synced { revision }),
        }
    }
}

impl Drop for LocalWatches {
    fn drop(&mut self) {
        self.watches.left(self.watch_sender.clone());
    }
}
