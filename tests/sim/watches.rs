//! The watch thread of a node: as `server/watch/thread.rs`, with the real hub, fed with what the
//! state thread has applied, and with invented delays.
//!
//! The state thread leaves what it has changed once it has published it, if somebody listens before
//! and after; now and then it keeps nothing, as when too much waits already, and the hub goes and
//! gets it from the store. A watcher has one batch on its way at most; what arises meanwhile waits
//! in its queue. Limits are small, so that each is met.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold::api::{Error, ErrorKind, WatchMessage, WatchRequest};
use leasehold::kv::Change;
use leasehold::node::STATE_DIFFERS;
use leasehold::raft::{Entry, Payload};
use leasehold::time::Instant;
use leasehold::types::LogId;
use leasehold::watch::{AppliedStep, CatchUpBudget, Hub, HubOptions, WatcherEvent, WatcherId};

use crate::clock::{MS, Nanos, SECOND, US, nanos, until};
use crate::marks::Mark;
use crate::options::Options;
use crate::state::Look;
use crate::world::{Event, Work, World};

/// The thread that owns the hub.
pub(crate) struct WatchThread {
    hub: Hub,
    /// Somebody watches: changes are worth telling.
    pub(crate) listening: bool,
    pub(crate) orders: Vec<Order>,
    busy: bool,
    routes: BTreeMap<WatcherId, Route>,
    /// Watchers by the streams that their clients read.
    streams: BTreeMap<u64, WatcherId>,
    /// When it looks at the time though nothing happens.
    alarm: Option<Nanos>,
    /// The state may not be shown.
    refused: bool,
}

/// What it is told.
pub(crate) enum Order {
    /// This was applied, and can be read.
    Applied(AppliedStep),
    /// A client wants to watch, and to be told on this stream.
    Watch {
        watcher: usize,
        stream: u64,
        request: WatchRequest,
    },
    /// It wants to know how far its watch is.
    Progress(u64),
    /// It has read all that was sent to it.
    Sent(WatcherId),
    /// It reads its stream no more.
    Gone(u64),
}

/// How a watcher is reached.
struct Route {
    watcher: usize,
    stream: u64,
    /// When the answer to its request has arrived: nothing may come before it.
    opened: Nanos,
    /// Something is on its way to it.
    is_served: bool,
    /// More waits for it meanwhile.
    is_ready: bool,
}

impl WatchThread {
    pub(crate) fn new(options: &Options, seed: u64, revision: i64) -> Self {
        let limits = &options.watch;
        let options = HubOptions {
            watchers_max: 64,
            queue_bytes_max: limits.queue_bytes,
            queue_events_max: limits.queue_events,
            memory_bytes_max: limits.memory_bytes,
            progress_interval: limits.progress,
            seed,
        };
        Self {
            hub: Hub::new(options, revision),
            listening: false,
            orders: Vec::new(),
            busy: false,
            routes: BTreeMap::new(),
            streams: BTreeMap::new(),
            alarm: None,
            refused: false,
        }
    }

    fn forget(&mut self, id: WatcherId) {
        if let Some(route) = self.routes.remove(&id) {
            self.streams.remove(&route.stream);
        }
    }
}

/// What is on its way to a watcher.
pub(crate) struct Parcel {
    pub(crate) id: WatcherId,
    pub(crate) messages: Vec<WatchMessage>,
}

/// What is to be told to clients once the thread has done its turn.
enum Word {
    Opened {
        watcher: usize,
        stream: u64,
        start: i64,
        answer: Result<i64, Error>,
    },
    Batch {
        id: WatcherId,
        events: Vec<WatcherEvent>,
    },
}

impl World {
    /// Tells the watch thread of `node` something, and wakes it.
    pub(crate) fn tell_watches(&mut self, node: usize, order: Order) {
        self.process(node).watches.orders.push(order);
        self.ring_watches(node);
    }

    fn ring_watches(&mut self, node: usize) {
        // Now and then it has no processor for long, and much gathers.
        let watches = &mut self.process(node).watches;
        if std::mem::replace(&mut watches.busy, true) {
            return;
        }
        let mut delay = self.watching.between(2 * US, 60 * US);
        if !self.healed && self.watching.chance(0.01) {
            self.judge.marks.hit(Mark::WatchesStalled);
            delay = self.watching.spread(MS, 500 * MS);
        }
        self.schedule_work(delay, node, Work::WatchTurn);
    }

    /// The state thread has applied something and published it; `changes` are what it changed, if
    /// somebody listened before.
    pub(crate) fn watches_hear(&mut self, node: usize, changes: Option<Vec<Change>>) {
        if !self.process(node).watches.listening {
            return;
        }
        let forgets = self.options.watch.forgets;
        let changes = changes.filter(|_| !self.watching.chance(forgets));
        if changes.is_none() {
            self.judge.marks.hit(Mark::ChangesNotKept);
        }
        let revision = self.machines[node].disk.state.front().revision();
        let applied = AppliedStep { revision, changes };
        self.tell_watches(node, Order::Applied(applied));
    }

    /// Whether the state of `node` may be shown has changed, or has not.
    pub(crate) fn watches_may_show(&mut self, node: usize, is_sound: bool) {
        let watches = &mut self.process(node).watches;
        if watches.refused != is_sound {
            return;
        }
        watches.refused = !is_sound;
        if !is_sound {
            watches.hub.end_all(&differs());
        }
        self.ring_watches(node);
    }

    /// One turn: deals with what it was told, and does one step of what can wait.
    pub(crate) fn watch_turn(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        let now = machine.clock.read(self.now);
        let look = machine.disk.state.look();
        let watches = &mut machine.process.as_mut().expect("it runs").watches;
        let orders = std::mem::take(&mut watches.orders);
        if orders
            .iter()
            .any(|order| matches!(order, Order::Watch { .. }))
        {
            watches.listening = true;
        }
        let (steps, orders) = apart(orders);
        let memory = "memory does not fail";
        watches.hub.feed(&look, steps).expect(memory);
        let mut words = Vec::new();
        let mut ready = BTreeSet::new();
        for order in orders {
            watches.obey(&look, now, order, &mut words, &mut ready);
        }
        let limits = &self.options.watch;
        let budget = CatchUpBudget {
            changes: limits.step_changes,
            bytes: limits.step_bytes,
        };
        if watches.hub.watchers_behind() > 0 {
            self.judge.marks.hit(Mark::WatchFedFromStore);
        }
        let more = watches.hub.catch_up(&look, &budget).expect(memory);
        watches.hub.tick(now);
        ready.extend(watches.hub.take_ready());
        watches.serve(ready, limits.parcel_bytes, &mut words);
        watches.listening = watches.hub.watchers() > 0;
        watches.busy = more;
        if more {
            let delay = self.watching.between(5 * US, 200 * US);
            self.schedule_work(delay, node, Work::WatchTurn);
        }
        self.set_watch_alarm(node, now);
        let applied = look.applied().index;
        for word in words {
            match word {
                Word::Opened {
                    watcher,
                    stream,
                    start,
                    answer,
                } => {
                    let refusal = answer.as_ref().err();
                    self.judge.watch_answered(node, applied, start, refusal);
                    self.watch_is_opened(node, watcher, stream, answer);
                }
                Word::Batch { id, events } => self.send_batch(node, id, events),
            }
        }
    }

    /// Sees to it that somebody who wants to be told so is told how far he is.
    fn set_watch_alarm(&mut self, node: usize, now: Instant) {
        let real = self.now;
        let watches = &mut self.process(node).watches;
        let next = watches.hub.next_tick();
        if watches.alarm.is_some_and(|alarm| alarm > real) || next == Instant::NEVER {
            return;
        }
        let wait = nanos(until(now, next)).clamp(MS, SECOND);
        watches.alarm = Some(real + wait);
        self.schedule_work(wait, node, Work::WatchAlarm);
    }

    /// Time has passed.
    pub(crate) fn watch_alarm(&mut self, node: usize) {
        self.ring_watches(node);
    }

    fn watch_is_opened(
        &mut self,
        node: usize,
        watcher: usize,
        stream: u64,
        answer: Result<i64, Error>,
    ) {
        let delay = self.watching.between(20 * US, 3 * MS);
        let arrives = self.now + delay;
        let watches = &mut self.process(node).watches;
        let id = watches.streams.get(&stream);
        if let Some(route) = id.and_then(|id| watches.routes.get_mut(id)) {
            route.opened = arrives;
        }
        if self.machines[node].client_cuts == 0 {
            let event = Event::WatchOpened(watcher, stream, Box::new(answer));
            self.schedule(delay, event);
        }
    }

    fn send_batch(&mut self, node: usize, id: WatcherId, events: Vec<WatcherEvent>) {
        let delay = self.watching.between(20 * US, 3 * MS);
        let splits = self.watching.chance(0.5);
        let real = self.now;
        let watches = &mut self.process(node).watches;
        let Some(route) = watches.routes.get(&id) else {
            return;
        };
        let delay = delay.max(route.opened.saturating_sub(real) + 1);
        let (watcher, stream) = (route.watcher, route.stream);
        let is_over = matches!(events.last(), Some(WatcherEvent::Canceled(_)));
        if is_over {
            watches.forget(id);
        }
        let messages = events.into_iter().flat_map(|event| messages(event, splits));
        let messages: Vec<WatchMessage> = messages.collect();
        if self.machines[node].client_cuts == 0 {
            let batch = Parcel { id, messages };
            let event = Event::WatchHears(watcher, stream, Box::new(batch));
            self.schedule(delay, event);
        } else {
            // Both sides find out in time that nothing arrives.
            let delay = self.watching.between(50 * MS, 600 * MS);
            self.schedule(delay, Event::WatchBreaks(watcher, stream));
            self.schedule_work(delay, node, Work::Watch(Box::new(Order::Gone(stream))));
        }
    }
}

impl WatchThread {
    fn obey(
        &mut self,
        look: &Look,
        now: Instant,
        order: Order,
        words: &mut Vec<Word>,
        ready: &mut BTreeSet<WatcherId>,
    ) {
        match order {
            Order::Applied(_) => unreachable!("the hub was fed with it"),
            Order::Watch {
                watcher,
                stream,
                request,
            } => {
                let start = request.start_revision;
                let answer = match self.refused {
                    true => Err(differs()),
                    false => {
                        let registered = self.hub.register(look, now, &request);
                        registered.expect("memory does not fail")
                    }
                };
                let answer = answer.map(|registered| {
                    let route = Route {
                        watcher,
                        stream,
                        opened: Nanos::MAX,
                        is_served: false,
                        is_ready: false,
                    };
                    self.streams.insert(stream, registered.id);
                    self.routes.insert(registered.id, route);
                    registered.revision
                });
                words.push(Word::Opened {
                    watcher,
                    stream,
                    start,
                    answer,
                });
            }
            Order::Progress(stream) => {
                if let Some(id) = self.streams.get(&stream) {
                    self.hub.request_progress(*id);
                }
            }
            Order::Sent(id) => {
                if let Some(route) = self.routes.get_mut(&id) {
                    route.is_served = false;
                    if std::mem::take(&mut route.is_ready) {
                        ready.insert(id);
                    }
                }
            }
            Order::Gone(stream) => {
                if let Some(id) = self.streams.get(&stream).copied() {
                    self.hub.cancel(id);
                    self.forget(id);
                }
            }
        }
    }

    /// Hands out what waits for those who may be handed something.
    fn serve(&mut self, ready: BTreeSet<WatcherId>, bytes_max: usize, words: &mut Vec<Word>) {
        for id in ready {
            let Some(route) = self.routes.get_mut(&id) else {
                continue;
            };
            if route.is_served {
                route.is_ready = true;
                continue;
            }
            let Some(taken) = self.hub.take(id, bytes_max) else {
                continue;
            };
            if taken.events.is_empty() {
                continue;
            }
            route.is_served = true;
            route.is_ready = taken.more;
            let events = taken.events;
            words.push(Word::Batch { id, events });
        }
    }
}

/// What was applied, and everything else.
fn apart(orders: Vec<Order>) -> (Vec<AppliedStep>, Vec<Order>) {
    let mut steps = Vec::new();
    let mut others = Vec::new();
    for order in orders {
        match order {
            Order::Applied(step) => steps.push(step),
            other => others.push(other),
        }
    }
    (steps, others)
}

/// What a client reads of an event: a revision in one message, or each change in its own.
fn messages(event: WatcherEvent, splits: bool) -> Vec<WatchMessage> {
    match event {
        WatcherEvent::State(state) => vec![WatchMessage::State {
            kvs: state.kvs().to_vec(),
        }],
        WatcherEvent::Synced(revision) => vec![WatchMessage::Synced { revision }],
        WatcherEvent::Progress(revision) => vec![WatchMessage::Progress { revision }],
        WatcherEvent::Canceled(cancel) => vec![WatchMessage::Canceled {
            error: cancel.error,
            resume_revision: cancel.resume_revision,
        }],
        WatcherEvent::Events(batch) => {
            let events = batch.events();
            let length = if splits { 1 } else { events.len().max(1) };
            let parts = events.len().div_ceil(length);
            let parts =
                events
                    .chunks(length)
                    .enumerate()
                    .map(|(place, part)| WatchMessage::Events {
                        revision: batch.revision(),
                        is_partial: place + 1 < parts,
                        events: part.to_vec(),
                    });
            parts.collect()
        }
    }
}

fn differs() -> Error {
    Error::not_applied(ErrorKind::Corrupt, STATE_DIFFERS)
}

/// What an entry says to the state machine.
pub(crate) fn command(entry: &Entry) -> (LogId, Option<bytes::Bytes>) {
    let command = match &entry.payload {
        Payload::Command(bytes) => Some(bytes.clone()),
        Payload::Noop | Payload::Configuration(_) => None,
    };
    (entry.id, command)
}

/// What watches may cost, and how they are fed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WatchLimits {
    pub(crate) queue_events: usize,
    pub(crate) queue_bytes: usize,
    /// For all watchers of a node.
    pub(crate) memory_bytes: usize,
    /// Changes and bytes of one step of catching up.
    pub(crate) step_changes: usize,
    pub(crate) step_bytes: usize,
    /// What is sent to one watcher at a time, about.
    pub(crate) parcel_bytes: usize,
    pub(crate) progress: Duration,
    /// How often what was applied is not kept for the hub.
    pub(crate) forgets: f64,
}

impl WatchLimits {
    pub(crate) const USUAL: Self = Self {
        queue_events: 16,
        queue_bytes: 4_000,
        memory_bytes: 64_000,
        step_changes: 5,
        step_bytes: 2_000,
        parcel_bytes: 300,
        progress: Duration::from_millis(500),
        forgets: 0.05,
    };
}
