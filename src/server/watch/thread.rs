//! The watch thread: the only owner of the hub, which decides what each watcher is sent next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{LISTED_MAX, Order, Reply, WatchInfo, Watches};
use crate::api::{
    AuthStatus, Error, ErrorKind, Response, ResponseBody, ResponseHeader, WatchRequest,
};
use crate::kv::access::{Identity, Need, Policy};
use crate::raft::Published;
use crate::server::config::WatchOptions;
use crate::server::disk::store::{Snapshot, StateReader, StoreError};
use crate::server::mail::outbox::Delivery;
use crate::server::metrics::Metrics;
use crate::server::watch::sender::{WatchBatch, WatchSender};
use crate::time::{Clock, Instant};
use crate::types::{ClusterId, NodeId};
use crate::watch::{AppliedStep, CatchUpBudget, Hub, HubOptions, WatcherEvent, WatcherId};

/// Watches of a node: beyond, it is memory that runs out.
const WATCHERS_MAX: usize = 100_000;
/// What may wait for one watcher, beside what is being sent to it.
const QUEUE_BYTES_MAX: usize = 4 << 20;
const QUEUE_EVENTS_MAX: usize = 1024;
/// What a watch sender is handed at once for one watcher, about.
const BATCH_BYTES: usize = 64 << 10;
/// One step of catching up: so long do the others wait.
const CATCH_UP: CatchUpBudget = CatchUpBudget {
    changes: 1000,
    bytes: 1 << 20,
};
/// What ends watches, as the metric of their ends says.
const ENDS: [&str; 8] = [
    "client",
    "compacted",
    "denied",
    "disconnected",
    "no_leader",
    "other",
    "slow",
    "stalled",
];
/// While nothing is due.
const IDLE: Duration = Duration::from_secs(3600);
/// Delay of the check for a leader beyond the time at which it is due.
const CUT_OFF_LOOK: Duration = Duration::from_millis(20);
/// Interval between counts of what waits to be sent: a connection that ends drops its batches without
/// a report.
const COUNT_LOOK: Duration = Duration::from_secs(1);
/// Retry delay for clients that have too many watches.
const RETRY_AFTER_MS: u32 = 1000;

/// What the watch thread starts from.
pub(crate) struct WatchThread {
    pub(crate) options: WatchOptions,
    pub(crate) cluster_id: ClusterId,
    pub(crate) member_id: NodeId,
    pub(crate) watches: Arc<Watches>,
    pub(crate) store: StateReader,
    pub(crate) published: Arc<Published>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    /// Random, so that clients cannot shape the hub's index by the keys that they choose.
    pub(crate) seed: u64,
}

impl WatchThread {
    /// Serves watches until [`Watches::stop`].
    pub(crate) fn run(self) -> Result<(), StoreError> {
        let mut state = WatchState::new(self);
        let mut orders = Vec::new();
        let mut patience = IDLE;
        loop {
            let watches = Arc::clone(&state.thread.watches);
            watches.orders.take(&mut orders, patience);
            match state.turn(&mut orders)? {
                Some(next) => patience = next,
                None => return Ok(()),
            }
        }
    }
}

/// The state of the thread.
pub(super) struct WatchState {
    thread: WatchThread,
    hub: Hub,
    /// Indexed by the slot of their watcher.
    routes: Vec<Option<Route>>,
    /// Watchers by connection and the watch id that the client chose.
    names: BTreeMap<(u64, u64), WatcherId>,
    /// Watchers that have events to send.
    ready: Vec<WatcherId>,
    /// Clients that want to know how far all their watches are.
    asking: BTreeMap<u64, Arc<WatchSender>>,
    /// Batches that are sent at the end of the turn, by connection.
    batches: BTreeMap<u64, (Arc<WatchSender>, Vec<WatchBatch>)>,
    /// Why new watches are refused, if they are.
    refused: Option<Error>,
    /// Since when the node has known no leader.
    leaderless_since: Option<Instant>,
    /// The rules of the last check of who may watch.
    judged: AuthStatus,
}

/// A watch that a client wants.
struct WatchOrder {
    watch_sender: Arc<WatchSender>,
    watch_id: u64,
    watch: WatchRequest,
    who: Result<Arc<Identity>, Error>,
}

/// The connection of a watcher.
struct Route {
    id: WatcherId,
    watch_sender: Arc<WatchSender>,
    watch_id: u64,
    watch: WatchRequest,
    who: Result<Arc<Identity>, Error>,
    /// A batch of it is being sent.
    is_served: bool,
    /// It has more events, to be sent after that batch.
    is_ready: bool,
}

impl WatchState {
    pub(super) fn new(thread: WatchThread) -> Self {
        let options = HubOptions {
            watchers_max: WATCHERS_MAX,
            queue_bytes_max: QUEUE_BYTES_MAX,
            queue_events_max: QUEUE_EVENTS_MAX,
            memory_bytes_max: thread.options.memory_bytes_max,
            progress_interval: thread.options.progress_interval,
            seed: thread.seed,
        };
        let revision = thread.store.revision();
        for reason in ENDS {
            // The series exists before the first watch ends for this reason.
            thread.metrics.watch.canceled(reason).increment(0);
        }
        Self {
            // A node that starts knows no leader yet.
            leaderless_since: Some(thread.clock.now()),
            hub: Hub::new(options, revision),
            thread,
            routes: Vec::new(),
            names: BTreeMap::new(),
            ready: Vec::new(),
            asking: BTreeMap::new(),
            batches: BTreeMap::new(),
            refused: None,
            judged: AuthStatus::default(),
        }
    }

    /// Handles `orders`, and does one step of what can wait. Returns how long to wait for the next
    /// turn; `None` if this was the last one.
    pub(super) fn turn(&mut self, orders: &mut Vec<Order>) -> Result<Option<Duration>, StoreError> {
        let now = self.thread.clock.now();
        let opens_watch = |order: &Order| matches!(order, Order::Watch { .. });
        if orders.iter().any(opens_watch) {
            // Before the snapshot: whatever is applied after it is reported to this thread.
            self.thread.watches.listening.store(true, Ordering::SeqCst);
        }
        let view = self.thread.store.snapshot()?;
        let since = self.feed(&view, orders)?;
        for order in orders.drain(..) {
            if matches!(order, Order::Stop) {
                return Ok(None);
            }
            self.handle(&view, now, order)?;
        }
        if self.is_cut_off(now) {
            self.hub.end_all(&self.no_leader());
        }
        self.judge();
        let more = self.hub.catch_up(&view, &CATCH_UP)?;
        drop(view);
        self.hub.tick(now);
        self.send_ready(since);
        self.count();
        Ok(Some(match more {
            true => Duration::ZERO,
            // A watch sender that has sent its batch wakes this thread by an order.
            false => until(now, self.hub.next_tick())
                .min(self.until_cut_off(now))
                .min(self.until_counted()),
        }))
    }

    fn handle(&mut self, view: &Snapshot, now: Instant, order: Order) -> Result<(), StoreError> {
        match order {
            // Fed to the hub before; and the rules are compared in every turn.
            Order::Applied { .. } | Order::Judge => {}
            Order::Watch {
                watch_sender,
                watch_id,
                watch,
                who,
                reply,
            } => {
                let order = WatchOrder {
                    watch_sender,
                    watch_id,
                    watch,
                    who,
                };
                self.open(view, now, order, &reply)?;
            }
            Order::Cancel {
                watch_sender,
                watch_id,
                reply,
            } => {
                let found = self.find(&watch_sender, watch_id);
                let result = found.map(|id| {
                    self.end(id, "client");
                    self.post(&watch_sender, WatchBatch::Close { id });
                    ResponseBody::WatchCancel
                });
                self.answer(&reply, self.hub.revision(), result);
            }
            Order::Progress {
                watch_sender,
                watch_id,
                reply,
            } => {
                let found = self.find(&watch_sender, watch_id);
                let result = found.map(|id| {
                    self.hub.request_progress(id);
                    ResponseBody::WatchProgress
                });
                self.answer(&reply, self.hub.revision(), result);
            }
            Order::ProgressOfAll(watch_sender) => {
                self.asking.insert(watch_sender.id(), watch_sender);
            }
            Order::Sent(watchers) => watchers.into_iter().for_each(|id| self.served(id)),
            Order::Gone { watchers, reason } => {
                watchers.into_iter().for_each(|id| self.end(id, reason));
            }
            Order::Left(watch_sender) => self.leave(&watch_sender),
            Order::Refuse(reason) => {
                if let Some(reason) = &reason {
                    self.hub.end_all(reason);
                }
                self.refused = reason;
            }
            Order::Leader { is_known: true } => self.leaderless_since = None,
            Order::Leader { is_known: false } => {
                self.leaderless_since.get_or_insert(now);
            }
            // The receiver is gone if the request was cancelled.
            Order::List(answer) => drop(answer.send(self.list())),
            Order::Stop => unreachable!("it ends the turn"),
        }
        Ok(())
    }

    /// Hands over what is ready, one call for each connection. `since` is when the last of it was
    /// applied.
    fn send_ready(&mut self, since: Option<std::time::Instant>) {
        self.ready.extend(self.hub.take_ready());
        for id in std::mem::take(&mut self.ready) {
            self.serve(id, since);
        }
        self.answer_asking();
        for (watch_sender, mut batches) in std::mem::take(&mut self.batches).into_values() {
            watch_sender.hand(&mut batches);
        }
    }

    /// Tells clients that asked how far all their watches are, once that is the same for all: what was
    /// handed over before comes before it.
    fn answer_asking(&mut self) {
        for (sender_id, watch_sender) in std::mem::take(&mut self.asking) {
            let ids: Vec<WatcherId> = self.watches_of(sender_id).collect();
            match self.hub.synced_revision(&ids) {
                _ if ids.is_empty() => {}
                Some(revision) => self.post(&watch_sender, WatchBatch::Synced { revision }),
                None => drop(self.asking.insert(sender_id, watch_sender)),
            }
        }
    }

    fn watches_of(&self, sender_id: u64) -> impl Iterator<Item = WatcherId> {
        let ours = (sender_id, 0)..=(sender_id, u64::MAX);
        self.names.range(ours).map(|(_, id)| *id)
    }

    /// Whether the node has known no leader for so long that it may miss changes, so that watches here
    /// would be silent without the client noticing.
    fn is_cut_off(&self, now: Instant) -> bool {
        let patience = self.thread.options.leaderless_max;
        self.leaderless_since
            .is_some_and(|since| now.certainly_after(since + patience))
    }

    /// How long to wait before watches may have to be ended for that.
    fn until_cut_off(&self, now: Instant) -> Duration {
        match self.leaderless_since {
            Some(since) if self.hub.watchers() > 0 && !self.is_cut_off(now) => {
                // A little later both clocks agree that it is over.
                until(now, since + self.thread.options.leaderless_max) + CUT_OFF_LOOK
            }
            _ => IDLE,
        }
    }

    /// How long to wait before the counts of queued events have to be refreshed.
    fn until_counted(&self) -> Duration {
        match self.hub.queued_bytes() {
            0 => IDLE,
            _ => COUNT_LOOK,
        }
    }

    fn no_leader(&self) -> Error {
        Error::not_applied(
            ErrorKind::NoLeader,
            format!(
                "this node has had no leader for {:?} and may be missing changes: watch at another \
                 node, or wait until there is a leader",
                self.thread.options.leaderless_max
            ),
        )
    }

    /// Ends the watches that their clients may no longer read, if the rules have changed since the last
    /// check. Done before events are sent, so the rules are no older than the changes of this turn.
    fn judge(&mut self) {
        let policy = self.thread.store.gate().policy();
        if policy.status() == self.judged {
            return;
        }
        self.judged = policy.status();
        if !policy.status().enabled {
            return;
        }
        let mut refused = Vec::new();
        for route in self.routes.iter().flatten() {
            if let Err(error) = may_watch(&policy, route.who.as_ref(), &route.watch) {
                refused.push((route.id, error));
            }
        }
        for (id, error) in refused {
            self.hub.end_one(id, &error);
        }
    }

    /// Feeds the applied changes to the hub. Returns when the last of them was applied.
    fn feed(
        &mut self,
        view: &Snapshot,
        orders: &mut [Order],
    ) -> Result<Option<std::time::Instant>, StoreError> {
        let mut since = None;
        let mut steps = Vec::new();
        for order in orders {
            let Order::Applied {
                revision,
                changes,
                bytes,
                at,
            } = order
            else {
                continue;
            };
            let watches = &self.thread.watches;
            watches.backlog_bytes.fetch_sub(*bytes, Ordering::Relaxed);
            since = Some(*at);
            let changes = changes.take();
            let count = changes.as_ref().map_or(0, Vec::len);
            watches.backlog_changes.fetch_sub(count, Ordering::Relaxed);
            let revision = *revision;
            steps.push(AppliedStep { revision, changes });
        }
        self.hub.feed(view, steps)?;
        Ok(since)
    }

    fn open(
        &mut self,
        view: &Snapshot,
        now: Instant,
        order: WatchOrder,
        reply: &Reply,
    ) -> Result<(), StoreError> {
        let WatchOrder {
            watch_sender,
            watch_id,
            watch,
            who,
        } = order;
        // The rules may have changed since the session looked at them.
        let rules = self.thread.store.gate().rules();
        let denied = rules.and_then(|policy| may_watch(&policy, who.as_ref(), &watch).err());
        let cut_off = self.is_cut_off(now).then(|| self.no_leader());
        let refused = self.refused.clone().or(cut_off).or(denied);
        let opened = match refused.or_else(|| self.refusal(&watch_sender, watch_id)) {
            Some(error) => Err(error),
            None => self.hub.register(view, now, &watch)?,
        };
        let registered = match opened {
            Ok(registered) => registered,
            Err(error) => {
                self.answer(reply, view.revision(), Err(error));
                return Ok(());
            }
        };
        let id = registered.id;
        if id.slot() >= self.routes.len() {
            self.routes.resize_with(id.slot() + 1, || None);
        }
        if watch_sender.watches.fetch_add(1, Ordering::Relaxed) == 0 {
            let streams = &self.thread.watches.counts.streams;
            streams.fetch_add(1, Ordering::Relaxed);
        }
        self.names.insert((watch_sender.id(), watch_id), id);
        self.answer(reply, registered.revision, Ok(ResponseBody::Watch));
        self.post(
            &watch_sender,
            WatchBatch::Open {
                id,
                watch_id,
                revision: registered.revision,
            },
        );
        self.routes[id.slot()] = Some(Route {
            id,
            watch_sender,
            watch_id,
            watch,
            who,
            is_served: false,
            is_ready: false,
        });
        Ok(())
    }

    /// Why a connection is refused this watch, if it is.
    fn refusal(&self, watch_sender: &WatchSender, watch_id: u64) -> Option<Error> {
        if watch_sender.is_over() {
            let detail = "the connection has ended";
            return Some(Error::not_applied(ErrorKind::ConnectionLost, detail));
        }
        if self.names.contains_key(&(watch_sender.id(), watch_id)) {
            return Some(Error::not_applied(
                ErrorKind::WatchExists,
                format!("this connection already has a watch {watch_id}: choose another id"),
            ));
        }
        let watches = watch_sender.watches.load(Ordering::Relaxed);
        (watches >= self.thread.options.per_connection_max).then(|| {
            Error::not_applied(
                ErrorKind::SlowDown {
                    retry_after_ms: RETRY_AFTER_MS,
                },
                format!(
                    "this connection has {watches} watches, the most that are allowed: watch a \
                     prefix instead of many keys, or raise watch.max_per_connection"
                ),
            )
        })
    }

    fn find(&self, watch_sender: &WatchSender, watch_id: u64) -> Result<WatcherId, Error> {
        let id = self.names.get(&(watch_sender.id(), watch_id)).copied();
        id.ok_or_else(|| {
            Error::not_applied(
                ErrorKind::WatchNotFound,
                format!(
                    "this connection has no watch {watch_id}: it has ended or was never opened"
                ),
            )
        })
    }

    fn answer(&self, reply: &Reply, revision: i64, result: Result<ResponseBody, Error>) {
        let header = ResponseHeader {
            cluster_id: self.thread.cluster_id.short(),
            member_id: self.thread.member_id,
            revision,
            raft_term: self.thread.published.term(),
            leader_id: self.thread.published.leader(),
            read: None,
        };
        let result = result.map(|body| Response { header, body });
        reply.outbox.deliver(reply.frame, Delivery::Reply(result));
    }

    fn post(&mut self, watch_sender: &Arc<WatchSender>, batch: WatchBatch) {
        let post = self.batches.entry(watch_sender.id());
        let (_, batches) = post.or_insert_with(|| (Arc::clone(watch_sender), Vec::new()));
        batches.push(batch);
    }

    /// Sends the events of a watcher, unless an earlier batch is still being sent.
    fn serve(&mut self, id: WatcherId, since: Option<std::time::Instant>) {
        let Some(route) = self.route_mut(id) else {
            return;
        };
        if route.is_served {
            route.is_ready = true;
            return;
        }
        let watch_sender = Arc::clone(&route.watch_sender);
        let Some(taken) = self.hub.take(id, BATCH_BYTES) else {
            return;
        };
        if taken.events.is_empty() {
            return;
        }
        let events = taken.events.iter().map(|event| match event {
            WatcherEvent::Events(batch) => batch.events().len() as u64,
            _ => 0,
        });
        self.thread.metrics.watch.events.increment(events.sum());
        match taken.events.last() {
            Some(WatcherEvent::Canceled(cancel)) => {
                let reason = match cancel.error.kind {
                    ErrorKind::SlowWatcher => "slow",
                    ErrorKind::Compacted { .. } => "compacted",
                    ErrorKind::NoLeader => "no_leader",
                    ErrorKind::PermissionDenied | ErrorKind::Unauthenticated => "denied",
                    _ => "other",
                };
                self.forget(id, reason);
            }
            _ => {
                if let Some(route) = self.route_mut(id) {
                    route.is_served = true;
                    route.is_ready = taken.more;
                }
            }
        }
        let events = taken.events;
        self.post(&watch_sender, WatchBatch::Events { id, events, since });
    }

    /// The last batch of a watcher has been sent.
    fn served(&mut self, id: WatcherId) {
        if let Some(route) = self.route_mut(id) {
            route.is_served = false;
            if std::mem::take(&mut route.is_ready) {
                self.ready.push(id);
            }
        }
    }

    /// Ends a watch without an event to its client.
    fn end(&mut self, id: WatcherId, reason: &'static str) {
        if self.hub.cancel(id) {
            self.forget(id, reason);
        }
    }

    /// A watcher is gone from the hub.
    fn forget(&mut self, id: WatcherId, reason: &'static str) {
        let Some(slot) = self.routes.get_mut(id.slot()) else {
            return;
        };
        if slot.as_ref().is_some_and(|route| route.id == id)
            && let Some(route) = slot.take()
        {
            self.names
                .remove(&(route.watch_sender.id(), route.watch_id));
            if route.watch_sender.watches.fetch_sub(1, Ordering::Relaxed) == 1 {
                let streams = &self.thread.watches.counts.streams;
                streams.fetch_sub(1, Ordering::Relaxed);
            }
            self.thread.metrics.watch.canceled(reason).increment(1);
        }
    }

    /// A connection has ended.
    fn leave(&mut self, watch_sender: &WatchSender) {
        let ids: Vec<WatcherId> = self.watches_of(watch_sender.id()).collect();
        for id in ids {
            self.end(id, "disconnected");
        }
        self.asking.remove(&watch_sender.id());
        self.batches.remove(&watch_sender.id());
    }

    /// All watches, ordered by connection.
    fn list(&self) -> Vec<WatchInfo> {
        let shown = self.names.values().filter_map(|id| {
            let route = self.routes.get(id.slot())?.as_ref()?;
            Some(WatchInfo {
                client: Arc::clone(route.watch_sender.client()),
                address: route.watch_sender.address(),
                watch_id: route.watch_id,
                view: self.hub.view(*id)?,
            })
        });
        shown.take(LISTED_MAX).collect()
    }

    fn route_mut(&mut self, id: WatcherId) -> Option<&mut Route> {
        let route = self.routes.get_mut(id.slot())?.as_mut()?;
        (route.id == id).then_some(route)
    }

    fn count(&self) {
        let counts = &self.thread.watches.counts;
        let watchers = self.hub.watchers();
        counts.watchers.store(watchers, Ordering::Relaxed);
        let slow = self.hub.watchers_behind();
        counts.slow.store(slow, Ordering::Relaxed);
        let pending = self.hub.queued_events();
        counts.pending.store(pending, Ordering::Relaxed);
        let bytes = self.hub.queued_bytes();
        counts.queued_bytes.store(bytes, Ordering::Relaxed);
        if watchers == 0 {
            self.thread.watches.listening.store(false, Ordering::SeqCst);
        }
    }
}

/// Whether the client may read what it wants to watch.
fn may_watch(
    policy: &Policy,
    who: Result<&Arc<Identity>, &Error>,
    watch: &WatchRequest,
) -> Result<(), Error> {
    let identity = who.map_err(Error::clone)?;
    policy
        .rules(identity)?
        .judge_at_once(&[Need::Read(&watch.key, &watch.range)])
}

/// How long to wait for a deadline of the clock that does not stop.
fn until(now: Instant, deadline: Instant) -> Duration {
    Duration::from_nanos(deadline.boot.saturating_sub(now.boot)).min(IDLE)
}
