//! Watches against the log: what every watcher is told, whatever happens on the way.

use bytes::Bytes;
use proptest::prelude::*;

use super::group::Spec;
use super::*;
use crate::api::{ErrorKind, Event, EventKind, KeyRange, KeyValue, WatchRequest};
use crate::kv;
use crate::kv::tests::model::Model;
use crate::kv::tests::{entries, programs};
use crate::kv::{Change, Changes, CompactionBudget, MemStore, Overlay, Space, Store};
use crate::time::Instant;
use crate::types::LogId;

mod rules;

const OPTIONS: HubOptions = HubOptions {
    watchers_max: 1000,
    queue_bytes_max: 1 << 20,
    queue_events_max: 1000,
    memory_bytes_max: 1 << 30,
    progress_interval: std::time::Duration::from_secs(10),
    seed: 1,
};

const EVERYTHING: CatchUpBudget = CatchUpBudget {
    changes: usize::MAX,
    bytes: usize::MAX,
};

/// One replica: what it has applied, and its watchers.
struct Node {
    store: MemStore,
    hub: Hub,
    /// Applied, and not told to the hub yet.
    pending: Vec<Change>,
}

impl Node {
    fn new(options: HubOptions) -> Self {
        let store = MemStore::new();
        let revision = kv::progress(&store).unwrap().revision;
        Self {
            store,
            hub: Hub::new(options, revision),
            pending: Vec::new(),
        }
    }

    fn revision(&self) -> i64 {
        kv::progress(&self.store).unwrap().revision
    }

    fn compact_revision(&self) -> i64 {
        kv::progress(&self.store).unwrap().compact_revision
    }

    /// Applies an entry, as a store on disk does: above itself, and then in one piece.
    fn apply(&mut self, id: LogId, command: Option<&Bytes>) {
        let mut overlay = Overlay::new(&self.store);
        kv::apply(&mut overlay, id, command.map(|bytes| bytes.as_ref())).unwrap();
        let written: Vec<(Space, Changes)> = overlay.into_changes().collect();
        let space = |wanted| {
            let found = written.iter().find(|(space, _)| *space == wanted);
            &found.unwrap().1
        };
        let changes = kv::changes_of(space(Space::Events), space(Space::History)).unwrap();
        for (space, changes) in written {
            for (key, record) in changes {
                match record {
                    Some(record) => self.store.put(space, key, record),
                    None => self.store.delete(space, key),
                }
            }
        }
        self.pending.extend(changes);
    }

    fn publish(&mut self) {
        let changes = Some(std::mem::take(&mut self.pending));
        self.feed(changes);
    }

    /// The changes were not kept: the hub must get them from the store.
    fn skip(&mut self) {
        self.pending.clear();
        self.feed(None);
    }

    fn feed(&mut self, changes: Option<Vec<Change>>) {
        let revision = self.revision();
        let step = AppliedStep { revision, changes };
        self.hub.feed(&self.store, [step]).unwrap();
    }

    fn sweep(&mut self, events: usize) {
        let budget = CompactionBudget {
            events,
            bytes: usize::MAX,
        };
        kv::compact_step(&mut self.store, &budget).unwrap();
    }

    /// Tells every watcher everything that it has room for.
    fn settle(&mut self) {
        self.publish();
        while self.hub.catch_up(&self.store, &EVERYTHING).unwrap() {}
    }

    fn watch(&mut self, request: &WatchRequest) -> NewWatcher {
        let registered = self.hub.register(&self.store, Instant::ZERO, request);
        registered.unwrap().expect("it may be watched")
    }

    fn refusal(&mut self, request: &WatchRequest) -> ErrorKind {
        let registered = self.hub.register(&self.store, Instant::ZERO, request);
        registered.unwrap().expect_err("it may not be watched").kind
    }

    fn take(&mut self, id: WatcherId) -> Vec<WatcherEvent> {
        let taken = self.hub.take(id, usize::MAX).expect("it is there");
        assert!(!taken.more);
        taken.events
    }
}

/// What a log says a watcher must be told.
struct Expected<'a> {
    model: &'a Model,
    spec: Spec,
}

impl Expected<'_> {
    /// The first revision above `after` that concerns the watcher, with its events; `None` where
    /// nothing does.
    fn next(&self, after: i64) -> Option<(i64, Vec<Event>)> {
        let changes = self.model.changes();
        let from = changes.partition_point(|change| change.main <= after);
        let wanted = |change: &&kv::tests::model::Change| {
            let kind = match change.after {
                Some(_) => EventKind::Put,
                None => EventKind::Delete,
            };
            self.spec.holds(&change.key) && self.spec.wants(kind)
        };
        let revision = changes[from..].iter().find(wanted)?.main;
        let events = changes[from..]
            .iter()
            .filter(|change| change.main == revision)
            .filter(wanted)
            .map(|change| match &change.after {
                Some(kv) => Event {
                    kind: EventKind::Put,
                    kv: kv.clone(),
                    prev_kv: change.before.clone(),
                },
                None => Event {
                    kind: EventKind::Delete,
                    kv: KeyValue {
                        key: change.key.clone(),
                        mod_revision: change.main,
                        ..KeyValue::default()
                    },
                    prev_kv: change.before.clone(),
                },
            })
            .collect();
        Some((revision, events))
    }
}

/// One who watches, through any number of watchers one after the other, and believes nothing.
struct Reader {
    request: WatchRequest,
    node: usize,
    id: Option<WatcherId>,
    /// Told everything up to here; before the initial state is complete, nothing is known.
    told: i64,
    state: Option<Vec<KeyValue>>,
    /// It has ended for good: by its own wish, or because history is gone.
    is_over: bool,
    events: usize,
}

impl Reader {
    /// Checks what it is told against the log. Says where to go on, if its watcher is gone.
    fn hear(&mut self, model: &Model, node: &Node, event: &WatcherEvent) -> Option<Option<i64>> {
        let spec = Spec::of(&self.request);
        let expected = Expected { model, spec };
        match event {
            WatcherEvent::State(state) => {
                let known = self.state.as_mut().expect("the state comes first");
                known.extend_from_slice(state.kvs());
            }
            WatcherEvent::Synced(revision) => {
                let known = self.state.take().expect("and is complete once");
                let mut there = model.state_at(*revision);
                there.retain(|kv| expected.spec.holds(&kv.key));
                assert_eq!(known, there, "the initial state at {revision}");
                self.told = *revision;
            }
            WatcherEvent::Events(batch) => {
                assert!(self.state.is_none(), "changes come after the state");
                let next = expected.next(self.told);
                let (revision, events) = next.expect("nothing more is to be told");
                assert_eq!(batch.revision(), revision, "after {}", self.told);
                self.compare(node, batch, &events);
                self.told = revision;
                self.events += events.len();
            }
            WatcherEvent::Progress(revision) => {
                assert!(*revision >= self.told, "progress never goes back");
                let skipped = expected.next(self.told).map(|(next, _)| next);
                assert!(
                    skipped.is_none_or(|next| next > *revision),
                    "{skipped:?} was not told, and progress says {revision}"
                );
                self.told = *revision;
            }
            WatcherEvent::Canceled(cancel) => {
                self.id = None;
                match (&cancel.error.kind, cancel.resume_revision) {
                    (ErrorKind::SlowWatcher, Some(resume)) => {
                        assert!(self.state.is_none());
                        let skipped = expected.next(self.told).map(|(next, _)| next);
                        assert!(resume > self.told, "nothing is told twice");
                        assert!(skipped.is_none_or(|next| next >= resume), "no gap");
                    }
                    (ErrorKind::SlowWatcher, None) => {
                        assert!(self.request.initial_state, "only a state begins anew");
                    }
                    (ErrorKind::Compacted { compact_revision }, None) => {
                        assert_eq!(*compact_revision, node.compact_revision());
                        assert!(self.state.is_some() || self.told + 1 < *compact_revision);
                        self.is_over = true;
                    }
                    other => panic!("{other:?}"),
                }
                return Some(cancel.resume_revision);
            }
        }
        None
    }

    fn compare(&self, node: &Node, batch: &Batch, expected: &[Event]) {
        assert_eq!(batch.events().len(), expected.len(), "a revision is whole");
        for (event, expected) in batch.events().iter().zip(expected) {
            assert_eq!((event.kind, &event.kv), (expected.kind, &expected.kv));
            let made = expected.kv.create_revision == expected.kv.mod_revision;
            let is_put = expected.kind == EventKind::Put;
            assert_eq!(event.is_create(), is_put && made);
            assert_eq!(event.is_modify(), is_put && !made);
            if self.request.prev_kv && event.prev_kv.is_some() {
                assert_eq!(event.prev_kv, expected.prev_kv);
            } else if self.request.prev_kv {
                let is_compacted = batch.revision() <= node.compact_revision();
                assert!(expected.prev_kv.is_none() || is_compacted);
            } else {
                assert_eq!(event.prev_kv, None, "not asked for");
            }
        }
    }
}

/// Something that happens. Numbers choose among what is there.
#[derive(Clone, Debug)]
enum Act {
    Apply(usize, usize),
    Publish(usize),
    /// What was applied is never told to the hub: a state was taken over.
    Skip(usize),
    Sweep(usize, usize),
    CatchUp(usize, usize, usize),
    Watch(usize, WatchRequest),
    Take(usize, usize),
    Cancel(usize),
    Ask(usize),
    Tick(usize),
}

fn a_key() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(prop_oneof![Just(0u8), Just(b'a'), Just(0xff)], 0..3)
        .prop_map(Bytes::from)
}

fn a_watch() -> impl Strategy<Value = WatchRequest> {
    let range = prop_oneof![
        2 => Just(KeyRange::Single),
        3 => Just(KeyRange::Prefix),
        1 => a_key().prop_map(KeyRange::Until),
        1 => Just(KeyRange::From),
    ];
    let start = prop_oneof![2 => Just(0i64), 3 => 1i64..40];
    let rarely = || prop_oneof![5 => Just(false), 1 => Just(true)];
    (
        (a_key(), range),
        start,
        any::<(bool, bool, bool)>(),
        rarely(),
        rarely(),
    )
        .prop_map(
            |((key, range), start_revision, flags, no_put, no_delete)| WatchRequest {
                key,
                range,
                start_revision,
                initial_state: flags.0 && start_revision == 0,
                prev_kv: flags.1,
                no_put,
                no_delete,
                progress_notify: flags.2,
            },
        )
}

fn an_act() -> impl Strategy<Value = Act> {
    let node = || 0usize..2;
    prop_oneof![
        8 => (node(), 1usize..6).prop_map(|(node, count)| Act::Apply(node, count)),
        6 => node().prop_map(Act::Publish),
        1 => node().prop_map(Act::Skip),
        2 => (node(), 1usize..20).prop_map(|(node, events)| Act::Sweep(node, events)),
        8 => (node(), 0usize..4, prop_oneof![Just(0usize), Just(300), Just(usize::MAX)])
            .prop_map(|(node, changes, bytes)| Act::CatchUp(node, changes, bytes)),
        5 => (node(), a_watch()).prop_map(|(node, watch)| Act::Watch(node, watch)),
        10 => (any::<usize>(), 0usize..600).prop_map(|(which, bytes)| Act::Take(which, bytes)),
        1 => any::<usize>().prop_map(Act::Cancel),
        2 => any::<usize>().prop_map(Act::Ask),
        2 => (0usize..20).prop_map(Act::Tick),
    ]
}

/// Two replicas of one log, and those who read from them.
struct World {
    program: Vec<(LogId, Option<Bytes>)>,
    model: Model,
    nodes: Vec<Node>,
    applied: Vec<usize>,
    readers: Vec<Reader>,
    seconds: u64,
}

impl World {
    fn new(program: Vec<(LogId, Option<Bytes>)>, options: HubOptions) -> Self {
        let mut model = Model::new();
        for (id, command) in &program {
            let _ = model.apply(*id, command.as_ref());
        }
        Self {
            program,
            model,
            nodes: vec![Node::new(options), Node::new(options)],
            applied: vec![0, 0],
            readers: Vec::new(),
            seconds: 0,
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Apply(node, count) => {
                for _ in 0..count {
                    self.apply_next(node);
                }
            }
            Act::Publish(node) => self.nodes[node].publish(),
            Act::Skip(node) => self.nodes[node].skip(),
            Act::Sweep(node, events) => self.nodes[node].sweep(events),
            Act::CatchUp(node, changes, bytes) => {
                let node = &mut self.nodes[node];
                let budget = CatchUpBudget { changes, bytes };
                node.hub.catch_up(&node.store, &budget).unwrap();
            }
            Act::Watch(node, request) => {
                let reader = Reader {
                    request,
                    node,
                    id: None,
                    told: 0,
                    state: None,
                    is_over: false,
                    events: 0,
                };
                self.readers.push(reader);
                let which = self.readers.len() - 1;
                let start = self.readers[which].request.start_revision;
                self.begin(which, start);
            }
            Act::Take(which, bytes) => {
                if let Some(which) = which.checked_rem(self.readers.len()) {
                    self.take(which, bytes);
                }
            }
            Act::Cancel(which) => {
                if let Some(which) = which.checked_rem(self.readers.len()) {
                    let reader = &mut self.readers[which];
                    reader.is_over = true;
                    if let Some(id) = reader.id.take() {
                        let hub = &mut self.nodes[reader.node].hub;
                        assert!(hub.cancel(id));
                        assert!(!hub.cancel(id), "and it is gone");
                        assert!(hub.take(id, 1).is_none());
                    }
                }
            }
            Act::Ask(which) => {
                if let Some(which) = which.checked_rem(self.readers.len()) {
                    let reader = &self.readers[which];
                    if let Some(id) = reader.id {
                        assert!(self.nodes[reader.node].hub.request_progress(id));
                    }
                }
            }
            Act::Tick(seconds) => {
                self.seconds += seconds as u64;
                let now = Instant::from_nanos(self.seconds * 1_000_000_000);
                for node in &mut self.nodes {
                    node.hub.tick(now);
                    assert!(now.certainly_before(node.hub.next_tick()));
                }
            }
        }
    }

    fn apply_next(&mut self, node: usize) {
        if let Some((id, command)) = self.program.get(self.applied[node]) {
            self.nodes[node].apply(*id, command.as_ref());
            self.applied[node] += 1;
        }
    }

    /// Watches from `start` on, at the reader's node.
    fn begin(&mut self, which: usize, start: i64) {
        let reader = &mut self.readers[which];
        let node = &mut self.nodes[reader.node];
        let request = WatchRequest {
            start_revision: start,
            initial_state: reader.request.initial_state && start == 0,
            ..reader.request.clone()
        };
        let now = Instant::from_nanos(self.seconds * 1_000_000_000);
        match node.hub.register(&node.store, now, &request).unwrap() {
            Ok(NewWatcher { id, revision }) => {
                assert!(revision >= node.revision());
                reader.id = Some(id);
                reader.state = request.initial_state.then(Vec::new);
                if request.initial_state {
                    return;
                }
                reader.told = match start {
                    0 => revision,
                    start => start - 1,
                };
            }
            Err(error) => {
                let compact_revision = node.compact_revision();
                assert_eq!(error.kind, ErrorKind::Compacted { compact_revision });
                assert!(start < compact_revision);
                reader.is_over = true;
            }
        }
    }

    fn take(&mut self, which: usize, bytes: usize) {
        let reader = &mut self.readers[which];
        let Some(id) = reader.id else {
            return;
        };
        let taken = self.nodes[reader.node].hub.take(id, bytes).unwrap();
        for event in &taken.events {
            let gone = reader.hear(&self.model, &self.nodes[reader.node], event);
            if let Some(resume) = gone
                && !reader.is_over
            {
                // It goes on at the other node.
                reader.node = 1 - reader.node;
                self.begin(which, resume.unwrap_or(0));
                return;
            }
        }
    }

    /// Everything is applied and everybody listens until nobody has anything more to say.
    fn finish(mut self) -> usize {
        for node in 0..2 {
            while self.applied[node] < self.program.len() {
                self.apply_next(node);
            }
            self.nodes[node].publish();
        }
        let mut rounds = 0;
        let mut quiet = 0;
        while quiet < 2 {
            let before: usize = self.readers.iter().map(|reader| reader.events).sum();
            let mut busy = false;
            for node in &mut self.nodes {
                node.hub.skip_to(node.revision());
                busy |= node.hub.catch_up(&node.store, &EVERYTHING).unwrap();
            }
            for which in 0..self.readers.len() {
                self.take(which, usize::MAX);
            }
            let after: usize = self.readers.iter().map(|reader| reader.events).sum();
            let behind: usize = self
                .nodes
                .iter()
                .map(|node| node.hub.watchers_behind())
                .sum();
            quiet = if busy || after > before || behind > 0 {
                0
            } else {
                quiet + 1
            };
            rounds += 1;
            assert!(rounds < 10_000, "somebody never gets to the end");
        }
        let last = self.model.revision();
        for reader in self.readers.iter().filter(|reader| !reader.is_over) {
            assert!(reader.state.is_none(), "the initial state is complete");
            let expected = Expected {
                model: &self.model,
                spec: Spec::of(&reader.request),
            };
            let missing = expected.next(reader.told);
            assert_eq!(missing, None, "{:?}", reader.request);
            if reader.told <= last {
                let hub = &self.nodes[reader.node].hub;
                let id = reader.id.expect("it watches");
                assert_eq!(hub.synced_revision(&[id]), Some(last));
            }
        }
        for node in &self.nodes {
            assert_eq!(node.hub.queued_bytes(), 0, "nothing is left behind");
        }
        self.readers.iter().map(|reader| reader.events).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// W1 to W11, all at once: ordered, once, no gap, a revision whole, resumable
    /// on any node, progress true, filters, previous values, creation told from change, starts in
    /// the future and below the compact revision, and who lags is told.
    #[test]
    fn whatever_happens_every_change_is_told_once_and_in_order(
        steps in programs(60),
        acts in prop::collection::vec(an_act(), 0..120),
        queue_bytes_max in prop_oneof![Just(0usize), Just(600), Just(3000), Just(1 << 20)],
        queue_events_max in prop_oneof![Just(1usize), Just(3), Just(1000)],
        memory_bytes_max in prop_oneof![Just(0usize), Just(2000), Just(1 << 20)],
    ) {
        let options = HubOptions {
            queue_bytes_max,
            queue_events_max,
            memory_bytes_max,
            ..OPTIONS
        };
        let mut world = World::new(entries(&steps), options);
        for act in acts {
            world.act(act);
        }
        world.finish();
    }
}
