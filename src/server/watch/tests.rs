//! The watch thread without a network: orders go in, batches for a watch sender and answers come out.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;

use super::thread::WatchState;
use super::*;
use crate::api::{Error, ErrorKind, KeyRange, PutRequest, Response, ResponseBody};
use crate::kv::{Command, Operation};
use crate::raft::Published;
use crate::server::config::WatchOptions;
use crate::server::disk::apply_listener::ApplyListener;
use crate::server::disk::store::{StateStore, StoreOptions};
use crate::server::mail::outbox::Delivery;
use crate::server::metrics::Metrics;
use crate::server::watch::send_task::WriteQueue;
use crate::server::watch::sender::WatchBatch;
use crate::time::{Clock, Instant};
use crate::types::{ClusterId, LogId, LogIndex, NodeId, Term};
use crate::watch::WatcherEvent;

#[derive(Default)]
struct StoppedClock(Mutex<u64>);

impl Clock for StoppedClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(*self.0.lock().unwrap())
    }
}

/// A store that applies, and the state of the watch thread.
struct World {
    store: StateStore,
    watches: Arc<Watches>,
    state: WatchState,
    next_index: u64,
    next_frame: u64,
    outbox: Arc<Outbox>,
    clock: Arc<StoppedClock>,
    _folder: TempDir,
}

impl World {
    fn new(options: WatchOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = StateStore::open(&folder.path().join("state"), &StoreOptions::default());
        let store = store.unwrap();
        let watches = Arc::new(Watches::default());
        let clock = Arc::<StoppedClock>::default();
        let state = WatchState::new(WatchThread {
            options,
            cluster_id: ClusterId(1),
            member_id: NodeId(1),
            watches: watches.clone(),
            store: store.reader(),
            published: Arc::new(Published::default()),
            clock: clock.clone(),
            metrics: Metrics::new(),
            seed: 1,
        });
        Self {
            store,
            watches,
            state,
            next_index: 1,
            next_frame: 1,
            outbox: Arc::default(),
            clock,
            _folder: folder,
        }
    }

    /// As the state thread does.
    fn put(&mut self, key: &str, value: &str) {
        let command = Command::Write {
            author: None,
            session: None,
            operation: Operation::Put(PutRequest {
                key: Bytes::copy_from_slice(key.as_bytes()),
                value: Bytes::copy_from_slice(value.as_bytes()),
                ..PutRequest::default()
            }),
        };
        let id = LogId::new(LogIndex(self.next_index), Term(1));
        self.next_index += 1;
        let tells = self.watches.wants_changes();
        let entries = [(id, Some(command.encode()))];
        let (_, changes) = self.store.apply_ahead(&entries, tells).unwrap();
        self.watches
            .applied(self.store.reader().revision(), changes);
    }

    /// Turns until nothing more is to be done at once.
    fn turn(&mut self) {
        let mut orders = Vec::new();
        loop {
            self.watches.orders.take(&mut orders, Duration::ZERO);
            let idle = orders.is_empty();
            let next = self.state.turn(&mut orders).unwrap().expect("it goes on");
            if idle && !next.is_zero() {
                return;
            }
        }
    }

    fn ask(
        &mut self,
        watch_sender: &Arc<WatchSender>,
        watch_id: u64,
        control: Control,
    ) -> Result<Response, Error> {
        let frame = self.next_frame;
        self.next_frame += 1;
        let reply = Reply {
            outbox: self.outbox.clone(),
            frame,
        };
        let who = crate::server::session::auth::Principal::new("tester", [127, 0, 0, 1].into())
            .identity();
        self.watches
            .control(watch_sender, watch_id, control, who, reply);
        self.turn();
        let cx = std::task::Context::from_waker(std::task::Waker::noop());
        let mut deliveries = Vec::new();
        self.outbox.poll_take(&cx, &mut deliveries);
        match deliveries.pop() {
            Some((answered, Delivery::Reply(result), _)) if answered == frame => result,
            other => panic!("{other:?}"),
        }
    }

    fn watch(&mut self, watch_sender: &Arc<WatchSender>, watch_id: u64, key: &'static str) -> i64 {
        let watch = Control::Watch(request(key, 0));
        let response = self.ask(watch_sender, watch_id, watch).unwrap();
        assert_eq!(response.body, ResponseBody::Watch);
        response.header.revision
    }

    /// What the watch sender was handed, as words; says of each watcher that it was sent.
    fn handed(&mut self, watch_sender: &WatchSender) -> Vec<String> {
        let mut words = Vec::new();
        let mut sent = Vec::new();
        for batch in watch_sender.handed() {
            match batch {
                WatchBatch::Open { watch_id, .. } => words.push(format!("open {watch_id}")),
                WatchBatch::Close { .. } => words.push("close".to_owned()),
                WatchBatch::Synced { revision } => words.push(format!("all {revision}")),
                WatchBatch::Events { id, events, .. } => {
                    sent.push(id);
                    words.extend(events.iter().map(word));
                }
            }
        }
        self.watches.orders.send(Order::Sent(sent));
        words
    }
}

fn word(event: &WatcherEvent) -> String {
    match event {
        WatcherEvent::Events(batch) => format!("{}", batch.revision()),
        WatcherEvent::Progress(revision) => format!("progress {revision}"),
        WatcherEvent::State(_) => "state".to_owned(),
        WatcherEvent::Synced(revision) => format!("synced {revision}"),
        WatcherEvent::Canceled(cancel) => {
            format!("{} {:?}", cancel.error.code(), cancel.resume_revision)
        }
    }
}

fn request(key: &'static str, start_revision: i64) -> WatchRequest {
    WatchRequest {
        key: key.into(),
        range: KeyRange::Prefix,
        start_revision,
        ..WatchRequest::default()
    }
}

#[test]
fn what_is_applied_reaches_who_watches_and_costs_nothing_if_nobody_does() {
    let mut world = World::new(WatchOptions::default());
    world.put("a", "1");
    assert!(!world.watches.wants_changes());
    let watch_sender = WatchSender::new();
    assert_eq!(world.watch(&watch_sender, 7, "a"), 2);
    assert!(world.watches.wants_changes());
    world.put("a", "2");
    world.put("b", "2");
    world.put("a", "3");
    world.turn();
    assert_eq!(world.handed(&watch_sender), ["open 7", "3", "5"]);
    assert!(world.ask(&watch_sender, 7, Control::Cancel).is_ok());
    assert_eq!(world.handed(&watch_sender), ["close"]);
    world.turn();
    assert!(!world.watches.wants_changes());
    // What nobody heard is fetched by whoever wants it.
    world.put("a", "4");
    let watch = Control::Watch(request("a", 3));
    assert!(world.ask(&watch_sender, 7, watch).is_ok());
    assert_eq!(world.handed(&watch_sender), ["open 7", "3", "5", "6"]);
}

#[test]
fn a_state_that_may_not_be_shown_is_shown_to_no_watch() {
    let mut world = World::new(WatchOptions::default());
    let watch_sender = WatchSender::new();
    world.watch(&watch_sender, 1, "a");
    assert_eq!(world.handed(&watch_sender), ["open 1"]);
    let reason = Error::not_applied(ErrorKind::Corrupt, "the state is not that of the others");
    world.watches.refuse(Some(reason));
    world.put("a", "1");
    world.turn();
    assert_eq!(world.handed(&watch_sender), ["LH-CORRUPT None"]);
    // Whoever was let in before the word was out is told as well.
    let watch = Control::Watch(request("a", 0));
    let refused = world.ask(&watch_sender, 2, watch).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Corrupt);
    world.watches.refuse(None);
    world.watch(&watch_sender, 3, "a");
    world.put("a", "2");
    world.turn();
    assert_eq!(world.handed(&watch_sender), ["open 3", "3"]);
}

#[test]
fn a_node_that_knows_no_leader_for_long_ends_its_watches_and_takes_none_in() {
    let options = WatchOptions::default();
    let patience = options.leaderless_max;
    let mut world = World::new(options);
    let pass = |world: &World, time: Duration| {
        *world.clock.0.lock().unwrap() += time.as_nanos() as u64;
    };
    let watch_sender = WatchSender::new();
    world.watches.leader(true);
    world.watch(&watch_sender, 1, "a");
    assert_eq!(world.handed(&watch_sender), ["open 1"]);
    // Elections happen, and nobody hears of them.
    for (value, told) in [("1", "2"), ("2", "3")] {
        world.watches.leader(false);
        world.turn();
        pass(&world, patience - Duration::from_millis(1));
        world.put("a", value);
        world.turn();
        world.watches.leader(true);
        world.turn();
        assert_eq!(world.handed(&watch_sender), [told]);
    }
    world.watches.leader(false);
    world.turn();
    let next = world.state.turn(&mut Vec::new()).unwrap().unwrap();
    assert!(next < 2 * patience, "it looks again by itself: {next:?}");
    pass(&world, next);
    world.turn();
    assert_eq!(world.handed(&watch_sender), ["LH-NO-LEADER None"]);
    let watch = Control::Watch(request("a", 4));
    let refused = world.ask(&watch_sender, 2, watch).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NoLeader);
    assert!(refused.detail.contains("another node"), "{refused}");
    // What happened meanwhile is told by whoever hears of it, first of all by this one.
    world.put("a", "3");
    world.watches.leader(true);
    let watch = Control::Watch(request("a", 4));
    assert!(world.ask(&watch_sender, 3, watch).is_ok());
    assert_eq!(world.handed(&watch_sender), ["open 3", "4"]);
}

/// Between the look whether anybody listens and the apply, somebody may have begun.
#[test]
fn what_was_applied_without_being_told_is_fetched() {
    let mut world = World::new(WatchOptions::default());
    let watch_sender = WatchSender::new();
    world.watch(&watch_sender, 1, "a");
    let id = LogId::new(LogIndex(1), Term(1));
    let command = Command::Write {
        author: None,
        session: None,
        operation: Operation::Put(PutRequest {
            key: "a".into(),
            ..PutRequest::default()
        }),
    };
    let entries = [(id, Some(command.encode()))];
    world.store.apply_ahead(&entries, false).unwrap();
    world.watches.applied(world.store.reader().revision(), None);
    world.turn();
    assert_eq!(world.handed(&watch_sender), ["open 1", "2"]);
}

#[test]
fn a_watch_sender_with_a_batch_under_way_is_given_more_once_it_was_sent() {
    let mut world = World::new(WatchOptions::default());
    let watch_sender = WatchSender::new();
    world.watch(&watch_sender, 1, "a");
    world.put("a", "1");
    world.turn();
    let first = watch_sender.handed();
    assert_eq!(first.len(), 2);
    world.put("a", "2");
    world.put("a", "3");
    world.turn();
    assert!(
        watch_sender.handed().is_empty(),
        "it has not sent the first one"
    );
    let WatchBatch::Events { id, .. } = first[1] else {
        panic!("an event was handed over");
    };
    world.watches.orders.send(Order::Sent(vec![id]));
    world.turn();
    assert_eq!(world.handed(&watch_sender), ["3", "4"]);
}

#[test]
fn what_a_watch_sender_has_to_write_is_counted_until_it_is_written() {
    let mut world = World::new(WatchOptions::default());
    let counted = |world: &mut World| {
        world.turn();
        world.watches.counts().queued_bytes.load(Ordering::Relaxed)
    };
    let watch_sender = WatchSender::new();
    world.watch(&watch_sender, 1, "a");
    world.put("a", "1");
    world.turn();
    let Some(WatchBatch::Events { events, .. }) = watch_sender.handed().pop() else {
        panic!("an event was handed over");
    };
    let mut queue = WriteQueue::new(Bytes::from_static(b"created"));
    queue.add(events);
    assert!(counted(&mut world) > 0, "the event itself");
    // As a stream takes them.
    queue.next().expect("the word that it was opened").clear();
    let chunks = queue.next().expect("the event");
    let bytes = chunks.iter().map(Bytes::len).sum::<usize>();
    assert!(bytes > 0);
    assert_eq!(counted(&mut world), bytes);
    queue.next().expect("the event, still").clear();
    assert_eq!(queue.next(), None);
    assert_eq!(counted(&mut world), 0);
}

#[test]
fn a_watch_sender_that_never_is_done_has_its_watcher_ended_and_told_where_to_resume() {
    let mut world = World::new(WatchOptions::default());
    let watch_sender = WatchSender::new();
    world.watch(&watch_sender, 1, "a");
    let mut stuck = None;
    for number in 0..1100 {
        world.put("a", &number.to_string());
        world.turn();
        stuck = stuck.or_else(|| watch_sender.handed().pop());
    }
    assert_eq!(world.watches.counts().watchers.load(Ordering::Relaxed), 1);
    let Some(WatchBatch::Events { id, .. }) = stuck else {
        panic!("the first event was handed over");
    };
    world.watches.orders.send(Order::Sent(vec![id]));
    world.turn();
    // The first was revision 2; then a queue was full of what is dropped now.
    assert_eq!(world.handed(&watch_sender), ["LH-SLOW-WATCHER Some(3)"]);
    world.turn();
    assert_eq!(world.watches.counts().watchers.load(Ordering::Relaxed), 0);
}

#[test]
fn names_are_of_one_connection_and_those_that_are_not_there_are_errors() {
    let mut world = World::new(WatchOptions {
        per_connection_max: 2,
        ..WatchOptions::default()
    });
    let (one, other) = (WatchSender::new(), WatchSender::new());
    world.watch(&one, 1, "a");
    world.watch(&other, 1, "a");
    let refusal = |result: Result<Response, Error>| result.unwrap_err().kind;
    let again = world.ask(&one, 1, Control::Watch(request("b", 0)));
    assert_eq!(refusal(again), ErrorKind::WatchExists);
    let missing = world.ask(&one, 2, Control::Cancel);
    assert_eq!(refusal(missing), ErrorKind::WatchNotFound);
    let missing = world.ask(&one, 2, Control::Progress);
    assert_eq!(refusal(missing), ErrorKind::WatchNotFound);
    world.watch(&one, 2, "a");
    let one_more = world.ask(&one, 3, Control::Watch(request("a", 0)));
    assert!(matches!(refusal(one_more), ErrorKind::SlowDown { .. }));
    assert_eq!(world.watches.counts().streams.load(Ordering::Relaxed), 2);
    // A connection that is over takes its watches with it, and no others.
    world.watches.left(one.clone());
    world.turn();
    assert_eq!(world.watches.counts().watchers.load(Ordering::Relaxed), 1);
    assert_eq!(world.watches.counts().streams.load(Ordering::Relaxed), 1);
    // A stream of it may still have something to ask.
    let late = world.ask(&one, 3, Control::Watch(request("a", 0)));
    assert_eq!(refusal(late), ErrorKind::ConnectionLost);
    assert_eq!(world.watches.counts().watchers.load(Ordering::Relaxed), 1);
    assert!(world.ask(&other, 1, Control::Progress).is_ok());
    assert_eq!(world.handed(&other), ["open 1", "progress 1"]);
}

#[test]
fn a_backlog_that_grows_too_long_is_fetched_from_the_store_instead() {
    let mut world = World::new(WatchOptions::default());
    let watch_sender = WatchSender::new();
    world.watch(&watch_sender, 1, "a");
    world
        .watches
        .backlog_bytes
        .store(BACKLOG_BYTES_MAX, Ordering::Relaxed);
    world.put("a", "1");
    world.put("a", "2");
    assert_eq!(world.watches.backlog_changes.load(Ordering::Relaxed), 0);
    world.turn();
    assert_eq!(world.handed(&watch_sender), ["open 1", "2", "3"]);
    world.watches.backlog_bytes.store(0, Ordering::Relaxed);
    world.put("a", "3");
    assert_eq!(world.watches.backlog_changes.load(Ordering::Relaxed), 1);
    world.turn();
    assert_eq!(world.handed(&watch_sender), ["4"]);
    assert_eq!(world.watches.backlog_changes.load(Ordering::Relaxed), 0);
    assert_eq!(world.watches.backlog_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_client_is_told_how_far_all_its_watches_are_once_none_lags_behind() {
    let mut world = World::new(WatchOptions::default());
    let watch_sender = WatchSender::new();
    let ask = |world: &mut World| {
        world
            .watches
            .orders
            .send(Order::ProgressOfAll(watch_sender.clone()));
        world.turn();
    };
    // None is open: it is told nothing, then or later.
    ask(&mut world);
    world.watch(&watch_sender, 1, "a");
    world.watch(&watch_sender, 2, "b");
    world.put("a", "1");
    assert_eq!(world.handed(&watch_sender), ["open 1", "open 2"]);
    ask(&mut world);
    // After what it tells of.
    assert_eq!(world.handed(&watch_sender), ["2", "all 2"]);
    // One that begins later holds it back.
    let later = Control::Watch(request("c", 4));
    world.ask(&watch_sender, 3, later).unwrap();
    world.handed(&watch_sender);
    ask(&mut world);
    assert_eq!(world.handed(&watch_sender), [""; 0]);
    // Until the next revision is the one that it begins with.
    world.put("x", "1");
    world.turn();
    assert_eq!(world.handed(&watch_sender), ["all 3"]);
    // It is said once, and not to who has left.
    world.put("x", "2");
    world.turn();
    assert_eq!(world.handed(&watch_sender), [""; 0]);
}

#[test]
fn watches_inside_of_the_process_come_as_steps_in_order() {
    let mut world = World::new(WatchOptions::default());
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut local = LocalWatches::new(world.watches.clone(), "tester", address);
    let who =
        || crate::server::session::auth::Principal::new("tester", [127, 0, 0, 1].into()).identity();
    let step = |local: &mut LocalWatches| {
        let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
        let mut next = std::pin::pin!(local.next());
        match next.as_mut().poll(cx) {
            std::task::Poll::Ready(step) => Some(step),
            std::task::Poll::Pending => None,
        }
    };
    local.open(7, request("a", 0), who());
    local.open(7, request("b", 0), who());
    world.turn();
    world.put("a", "1");
    world.turn();
    let mut words = Vec::new();
    let mut watchers = Vec::new();
    while let Some(step) = step(&mut local) {
        words.push(match step {
            WatchStep::Opened { watch, revision } => format!("open {watch} {revision}"),
            WatchStep::Refused { watch, error } => format!("refused {watch} {}", error.code()),
            WatchStep::Events {
                watch,
                watcher,
                events,
            } => {
                watchers.push(watcher);
                format!("{watch}: {}", events.iter().map(word).collect::<String>())
            }
            WatchStep::Synced { revision } => format!("synced {revision}"),
        });
    }
    words.sort();
    assert_eq!(words, ["7: 2", "open 7 1", "refused 7 LH-WATCH-EXISTS"]);
    // The next come once these are sent.
    world.put("a", "2");
    world.turn();
    assert!(step(&mut local).is_none());
    local.sent(vec![watchers[0]]);
    world.turn();
    let events = step(&mut local);
    assert!(matches!(events, Some(WatchStep::Events { watch: 7, .. })));
    local.cancel(7, who());
    world.turn();
    assert!(step(&mut local).is_none());
    // All end with it.
    local.open(8, request("a", 0), who());
    world.turn();
    drop(local);
    world.turn();
    world.turn();
    assert!(!world.watches.wants_changes());
}
