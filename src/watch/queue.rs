//! The queues of watchers, and the total of what is queued.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::api::{Error, Event, KeyValue};

/// Counts all queued bytes; data shared by several queues counts once.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    bytes: AtomicUsize,
    events: AtomicUsize,
}

impl Meter {
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn events(&self) -> usize {
        self.0.events.load(Ordering::Relaxed)
    }

    /// An event was queued: its slot counts.
    fn enter(&self) {
        self.0.events.fetch_add(1, Ordering::Relaxed);
        self.add(size_of::<WatcherEvent>());
    }

    fn leave(&self, events: usize) {
        self.0.events.fetch_sub(events, Ordering::Relaxed);
        self.remove(events * size_of::<WatcherEvent>());
    }

    fn add(&self, bytes: usize) {
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove(&self, bytes: usize) {
        self.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes that count as queued while this lives.
#[derive(Debug)]
pub struct CountedBytes {
    bytes: usize,
    meter: Meter,
}

impl CountedBytes {
    fn new(bytes: usize, meter: &Meter) -> Self {
        meter.add(bytes);
        Self {
            bytes,
            meter: meter.clone(),
        }
    }

    /// The encoded form of what this counts.
    fn count(&self, made: Bytes) -> (Bytes, Arc<Self>) {
        let counted = Self::new(made.len(), &self.meter);
        (made, Arc::new(counted))
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.meter.remove(self.bytes);
    }
}

/// All changes of one revision that concern a group, shared by its watchers.
#[derive(Debug)]
pub struct Batch {
    revision: i64,
    events: Vec<Event>,
    counted: CountedBytes,
    encoded: [OnceLock<(Bytes, Arc<CountedBytes>)>; 2],
}

/// For whom events are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireFormat {
    /// Clients of our own protocol.
    Native,
    /// Clients of etcd.
    Etcd,
}

impl Batch {
    pub(super) fn new(revision: i64, events: Vec<Event>, meter: &Meter) -> Self {
        let bytes = size_of::<Self>() + events.iter().map(event_bytes).sum::<usize>();
        Self {
            revision,
            events,
            counted: CountedBytes::new(bytes, meter),
            encoded: Default::default(),
        }
    }

    /// The encoded form: created by `encode` on first use, once for each format, and shared from
    /// then on. The caller also keeps the counter while it sends, because the batch may be dropped
    /// earlier.
    pub fn encoded(
        &self,
        format: WireFormat,
        encode: impl FnOnce(&Self) -> Bytes,
    ) -> (Bytes, Arc<CountedBytes>) {
        let make = || self.counted.count(encode(self));
        let encoded = &self.encoded[format as usize];
        encoded.get_or_init(make).clone()
    }

    /// The revision.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Its changes, in the order they were made.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    pub(super) fn bytes(&self) -> usize {
        self.counted.bytes
    }
}

/// A part of an initial state.
#[derive(Debug)]
pub struct State {
    kvs: Vec<KeyValue>,
    counted: CountedBytes,
}

impl State {
    pub(super) fn new(kvs: Vec<KeyValue>, meter: &Meter) -> Self {
        let bytes = kvs.iter().map(key_value_bytes).sum();
        Self {
            kvs,
            counted: CountedBytes::new(bytes, meter),
        }
    }

    /// The encoded form and its counter, as for a [`Batch`].
    pub fn encoded(&self, encode: impl FnOnce(&Self) -> Bytes) -> (Bytes, Arc<CountedBytes>) {
        self.counted.count(encode(self))
    }

    /// The keys, in their order.
    pub fn kvs(&self) -> &[KeyValue] {
        &self.kvs
    }
}

/// The memory of `event`, without what it shares with the store.
fn event_bytes(event: &Event) -> usize {
    let previous = event.prev_kv.as_ref().map_or(0, key_value_bytes);
    size_of::<Event>() + key_value_bytes(&event.kv) + previous
}

fn key_value_bytes(kv: &KeyValue) -> usize {
    size_of::<KeyValue>() + kv.key.len() + kv.value.len()
}

/// A message for a watcher.
#[derive(Clone, Debug)]
pub enum WatcherEvent {
    /// A part of the initial state, in key order.
    State(Arc<State>),
    /// The initial state is complete; it has this revision.
    Synced(i64),
    /// All changes of a revision.
    Events(Arc<Batch>),
    /// All events up to this revision have been delivered.
    Progress(i64),
    /// The watch has ended; nothing follows, and the watcher is removed.
    Canceled(Cancel),
}

/// Why a watch has ended, and how to resume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// Why.
    pub error: Error,
    /// The revision from which a new watch misses and repeats nothing; `None` if it must start
    /// over.
    pub resume_revision: Option<i64>,
}

/// The result of [`super::Hub::take`].
#[derive(Clone, Debug, Default)]
pub struct TakenEvents {
    /// The messages for the watcher, in order.
    pub events: Vec<WatcherEvent>,
    /// More is queued: take again. Otherwise the watcher will be reported as ready once there is
    /// more.
    pub more: bool,
}

/// The queue of one watcher. The hub decides what may be queued.
#[derive(Debug, Default)]
pub(super) struct Queue {
    events: VecDeque<WatcherEvent>,
    bytes: usize,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The number of queued events and bytes.
    pub(super) fn load(&self) -> (usize, usize) {
        (self.events.len(), self.bytes)
    }

    /// `meter` counts the slot of an event; its contents are counted where they were created.
    pub(super) fn push(&mut self, event: WatcherEvent, meter: &Meter) {
        meter.enter();
        self.bytes += bytes(&event);
        self.events.push_back(event);
    }

    pub(super) fn pop(&mut self, meter: &Meter) -> Option<(WatcherEvent, usize)> {
        let event = self.events.pop_front()?;
        meter.leave(1);
        let bytes = bytes(&event);
        self.bytes -= bytes;
        if self.events.is_empty() {
            // Most watchers are idle most of the time, and should cost no memory then.
            self.events = VecDeque::new();
        }
        Some((event, bytes))
    }

    /// Clears the queue. `Ok` with the first revision whose changes it contained, if any; `Err` if
    /// it contained a part of an initial state.
    pub(super) fn abandon(&mut self, meter: &Meter) -> Result<Option<i64>, ()> {
        let events = std::mem::take(self).events;
        meter.leave(events.len());
        let mut first = None;
        for event in events {
            match event {
                WatcherEvent::State(_) | WatcherEvent::Synced(_) => return Err(()),
                WatcherEvent::Events(batch) => first = first.or_else(|| Some(batch.revision())),
                WatcherEvent::Progress(_) | WatcherEvent::Canceled(_) => {}
            }
        }
        Ok(first)
    }

    /// The last event in the queue.
    pub(super) fn last_mut(&mut self) -> Option<&mut WatcherEvent> {
        self.events.back_mut()
    }
}

fn bytes(event: &WatcherEvent) -> usize {
    match event {
        WatcherEvent::State(state) => state.counted.bytes,
        WatcherEvent::Events(batch) => batch.bytes(),
        WatcherEvent::Synced(_) | WatcherEvent::Progress(_) | WatcherEvent::Canceled(_) => 0,
    }
}
