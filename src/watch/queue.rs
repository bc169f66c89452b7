//! What waits to be sent to a watcher, and how much that is in all.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::api::{Error, Event, KeyValue};

/// Counts the bytes of everything that is queued, each thing once however many queues share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    bytes: AtomicUsize,
    notices: AtomicUsize,
}

impl Meter {
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn notices(&self) -> usize {
        self.0.notices.load(Ordering::Relaxed)
    }

    /// A notice was put into a queue: its place counts.
    fn enter(&self) {
        self.0.notices.fetch_add(1, Ordering::Relaxed);
        self.add(size_of::<Notice>());
    }

    fn leave(&self, notices: usize) {
        self.0.notices.fetch_sub(notices, Ordering::Relaxed);
        self.remove(notices * size_of::<Notice>());
    }

    fn add(&self, bytes: usize) {
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove(&self, bytes: usize) {
        self.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes that are counted among those that wait, for as long as this lives.
#[derive(Debug)]
pub struct Counted {
    bytes: usize,
    meter: Meter,
}

impl Counted {
    fn new(bytes: usize, meter: &Meter) -> Self {
        meter.add(bytes);
        Self {
            bytes,
            meter: meter.clone(),
        }
    }

    /// These bytes were made of what this counts.
    fn count(&self, made: Bytes) -> (Bytes, Arc<Self>) {
        let counted = Self::new(made.len(), &self.meter);
        (made, Arc::new(counted))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.meter.remove(self.bytes);
    }
}

/// All changes of one revision that concern a group, shared by its watchers.
#[derive(Debug)]
pub struct Batch {
    revision: i64,
    events: Vec<Event>,
    counted: Counted,
    encoded: OnceLock<(Bytes, Arc<Counted>)>,
}

impl Batch {
    pub(super) fn new(revision: i64, events: Vec<Event>, meter: &Meter) -> Self {
        let bytes = size_of::<Self>() + events.iter().map(event_bytes).sum::<usize>();
        Self {
            revision,
            events,
            counted: Counted::new(bytes, meter),
            encoded: OnceLock::new(),
        }
    }

    /// What `encode` makes of it: once, whoever asks, and shared by all from then on. Whoever has it to
    /// send keeps with it what counts it: the batch may be gone before.
    pub fn encoded(&self, encode: impl FnOnce(&Self) -> Bytes) -> (Bytes, Arc<Counted>) {
        let make = || self.counted.count(encode(self));
        self.encoded.get_or_init(make).clone()
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
    counted: Counted,
}

impl State {
    pub(super) fn new(kvs: Vec<KeyValue>, meter: &Meter) -> Self {
        let bytes = kvs.iter().map(key_value_bytes).sum();
        Self {
            kvs,
            counted: Counted::new(bytes, meter),
        }
    }

    /// What `encode` makes of it, and what counts that, as of a [`Batch`].
    pub fn encoded(&self, encode: impl FnOnce(&Self) -> Bytes) -> (Bytes, Arc<Counted>) {
        self.counted.count(encode(self))
    }

    /// The keys, in their order.
    pub fn kvs(&self) -> &[KeyValue] {
        &self.kvs
    }
}

/// What `event` takes of memory, beside what it shares with the store.
fn event_bytes(event: &Event) -> usize {
    let previous = event.prev_kv.as_ref().map_or(0, key_value_bytes);
    size_of::<Event>() + key_value_bytes(&event.kv) + previous
}

fn key_value_bytes(kv: &KeyValue) -> usize {
    size_of::<KeyValue>() + kv.key.len() + kv.value.len()
}

/// What a watcher is told next.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A part of the initial state, in key order.
    State(Arc<State>),
    /// The initial state is complete; it is of this revision.
    Synced(i64),
    /// All changes of a revision.
    Events(Arc<Batch>),
    /// Everything up to this revision has been told.
    Progress(i64),
    /// The watch is over; nothing follows, and the watcher is gone.
    Canceled(Cancel),
}

/// Why a watch is over, and how to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// Why.
    pub error: Error,
    /// Where a new watch must start to miss nothing and be told nothing twice; `None` if it must
    /// begin anew.
    pub resume_revision: Option<i64>,
}

/// What [`super::Hub::take`] hands out.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// What to tell the watcher, in this order.
    pub notices: Vec<Notice>,
    /// More is there already: take again. If not, the watcher will be reported as ready once there is.
    pub more: bool,
}

/// The queue of one watcher. What may go in is the hub's decision.
#[derive(Debug, Default)]
pub(super) struct Queue {
    notices: VecDeque<Notice>,
    bytes: usize,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.notices.is_empty()
    }

    /// How many notices and bytes wait.
    pub(super) fn load(&self) -> (usize, usize) {
        (self.notices.len(), self.bytes)
    }

    /// `meter` counts the place that a notice takes; what it says is counted where it was made.
    pub(super) fn push(&mut self, notice: Notice, meter: &Meter) {
        meter.enter();
        self.bytes += bytes(&notice);
        self.notices.push_back(notice);
    }

    pub(super) fn pop(&mut self, meter: &Meter) -> Option<(Notice, usize)> {
        let notice = self.notices.pop_front()?;
        meter.leave(1);
        let bytes = bytes(&notice);
        self.bytes -= bytes;
        if self.notices.is_empty() {
            // Most watchers wait most of the time, and should cost nothing meanwhile.
            self.notices = VecDeque::new();
        }
        Some((notice, bytes))
    }

    /// Lets go of everything. `Ok` with the first revision whose changes were in it, if there was any;
    /// `Err` if a part of an initial state was.
    pub(super) fn abandon(&mut self, meter: &Meter) -> Result<Option<i64>, ()> {
        let notices = std::mem::take(self).notices;
        meter.leave(notices.len());
        let mut first = None;
        for notice in notices {
            match notice {
                Notice::State(_) | Notice::Synced(_) => return Err(()),
                Notice::Events(batch) => first = first.or_else(|| Some(batch.revision())),
                Notice::Progress(_) | Notice::Canceled(_) => {}
            }
        }
        Ok(first)
    }

    /// The last notice that was put in and not taken out.
    pub(super) fn last_mut(&mut self) -> Option<&mut Notice> {
        self.notices.back_mut()
    }
}

fn bytes(notice: &Notice) -> usize {
    match notice {
        Notice::State(state) => state.counted.bytes,
        Notice::Events(batch) => batch.bytes(),
        Notice::Synced(_) | Notice::Progress(_) | Notice::Canceled(_) => 0,
    }
}
