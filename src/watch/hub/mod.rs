//! The hub: the watchers of a node, or of a part of it. `feed` contains how they are fed.

mod feed;
mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::api::{Error, ErrorKind, RangeRequest, WatchRequest};
use crate::kv;
use crate::kv::{Progress, Scan, View};
use crate::time::Instant;

use super::group::{Group, GroupId, Spec};
use super::index::Index;
use super::queue::{Cancel, Meter, Queue, TakenEvents, WatcherEvent};
pub use feed::AppliedStep;
pub use shown::WatcherView;

/// The limits of watchers.
#[derive(Clone, Copy, Debug)]
pub struct HubOptions {
    /// Maximum number of watchers.
    pub watchers_max: usize,
    /// Maximum number of bytes queued for one watcher; a single event may be larger.
    pub queue_bytes_max: usize,
    /// Maximum number of events queued for one watcher.
    pub queue_events_max: usize,
    /// Maximum number of bytes queued for all watchers, shared data counted once. Above it, slow
    /// watchers are cancelled.
    pub memory_bytes_max: usize,
    /// Interval between progress notifications to watchers that requested them and have no events.
    pub progress_interval: Duration,
    /// Seed of the index, so that clients cannot choose its shape by their choice of keys.
    pub seed: u64,
}

/// How much one [`Hub::catch_up`] may do.
#[derive(Clone, Copy, Debug)]
pub struct CatchUpBudget {
    /// Maximum number of changes, or keys of an initial state, to examine, unless one revision has
    /// more.
    pub changes: usize,
    /// From this many bytes on the step ends, at the next revision.
    pub bytes: usize,
}

/// A watcher of a hub. Never used for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatcherId {
    slot: u32,
    generation: u32,
}

impl WatcherId {
    /// A small number, unique among the existing watchers.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// The result of opening a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewWatcher {
    /// The watcher.
    pub id: WatcherId,
    /// The store's revision. A watch from now on receives all later ones.
    pub revision: i64,
}

/// All watchers, and what they wait for.
#[derive(Debug)]
pub struct Hub {
    options: HubOptions,
    /// The revision up to which watchers that keep up have been fed.
    revision: i64,
    slots: Vec<Slot>,
    free: Vec<u32>,
    watchers: usize,
    groups: Vec<Option<Group>>,
    free_groups: Vec<GroupId>,
    by_spec: BTreeMap<Spec, GroupId>,
    index: Index,
    /// Watchers with a start revision in the future, by that revision.
    future: BTreeSet<(i64, u32)>,
    /// Watchers that catch up and have room in their queues, by the revision they need next.
    behind: BTreeSet<(i64, u32)>,
    /// The watcher that was caught up last.
    turn: (i64, u32),
    /// Watchers that receive their initial state and have room in their queues.
    listing: BTreeSet<u32>,
    /// The watcher whose initial state was continued last.
    listing_turn: u32,
    /// Whether the last step was for an initial state.
    listed_last: bool,
    /// Watchers that would catch up or list, but have no room in their queues.
    stalled: BTreeSet<u32>,
    /// The due times of progress notifications.
    due: BTreeSet<(u64, u32)>,
    ready: Vec<WatcherId>,
    meter: Meter,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    watcher: Option<Watcher>,
}

/// One watcher. There may be very many.
#[derive(Debug)]
struct Watcher {
    group: GroupId,
    /// Its index among the watchers of its group that keep up.
    group_index: u32,
    phase: Phase,
    queue: Queue,
    /// It was reported as ready, and its queue has not been emptied since.
    is_ready: bool,
    /// It requested a progress notification, which has not been sent.
    is_asking: bool,
    /// It requested periodic progress notifications.
    notify: Option<Notify>,
}

#[derive(Debug)]
enum Phase {
    /// It receives its initial state.
    Listing(Box<Scan>),
    /// It needs changes from this revision on from the store.
    Behind(i64),
    /// It has received everything up to the hub's revision.
    Current,
    /// It starts with this revision, which does not exist yet.
    Future(i64),
    /// It was cancelled; the reason is queued.
    Ended(Box<Cancel>),
}

#[derive(Clone, Copy, Debug)]
struct Notify {
    due: u64,
    /// It received something since its last due time.
    is_fresh: bool,
}

impl Hub {
    /// The memory of a watcher with an empty queue in a group with others.
    pub const BYTES_PER_WATCHER: usize = size_of::<Slot>() + size_of::<u32>();

    /// A hub without watchers, which will be fed with the changes after `revision`.
    pub fn new(options: HubOptions, revision: i64) -> Self {
        Self {
            index: Index::new(options.seed),
            options,
            revision,
            slots: Vec::new(),
            free: Vec::new(),
            watchers: 0,
            groups: Vec::new(),
            free_groups: Vec::new(),
            by_spec: BTreeMap::new(),
            future: BTreeSet::new(),
            behind: BTreeSet::new(),
            turn: (0, 0),
            listing: BTreeSet::new(),
            listing_turn: 0,
            listed_last: false,
            stalled: BTreeSet::new(),
            due: BTreeSet::new(),
            ready: Vec::new(),
            meter: Meter::default(),
        }
    }

    /// The last revision it was fed with.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// How many watchers there are.
    pub fn watchers(&self) -> usize {
        self.watchers
    }

    /// How many of them lag behind: they need [`Hub::catch_up`], or their queues are full.
    pub fn watchers_behind(&self) -> usize {
        self.behind.len() + self.listing.len() + self.stalled.len()
    }

    /// The number of bytes queued or being sent.
    pub fn queued_bytes(&self) -> usize {
        self.meter.bytes()
    }

    /// The number of queued events, counted per watcher.
    pub fn queued_events(&self) -> usize {
        self.meter.events()
    }

    /// Opens a watch for `request`. `view` is the current store, and may be ahead of what the hub
    /// was fed with.
    ///
    /// # Errors
    /// Outside, the store's own, which is fatal. Inside, why the watch is refused:
    /// [`ErrorKind::Compacted`], or [`ErrorKind::SlowDown`] if there are too many.
    pub fn register<V: View>(
        &mut self,
        view: &V,
        now: Instant,
        request: &WatchRequest,
    ) -> Result<Result<NewWatcher, Error>, V::Error> {
        if self.watchers >= self.options.watchers_max {
            return Ok(Err(Error::not_applied(
                ErrorKind::SlowDown {
                    retry_after_ms: 1000,
                },
                format!(
                    "{} watches are open on this node, the most that are allowed: watch a prefix \
                     instead of many keys, or use another node",
                    self.watchers
                ),
            )));
        }
        let progress = kv::progress(view)?;
        let start = request.start_revision;
        if start != 0 && start < progress.compact_revision && !planted!(CompactedStart) {
            return Ok(Err(compacted(start, &progress)));
        }
        let now_revision = progress.revision.max(self.revision);
        let phase = if request.initial_state {
            let state = RangeRequest {
                key: request.key.clone(),
                range: request.range.clone(),
                ..RangeRequest::default()
            };
            match Scan::begin(view, &state)? {
                Ok(scan) => Phase::Listing(Box::new(scan)),
                Err(refusal) => return Ok(Err(refusal)),
            }
        } else {
            self.phase_from(match start {
                0 => now_revision + 1,
                start => start,
            })
        };
        let notify = request.progress_notify.then(|| Notify {
            due: (now + self.options.progress_interval).boot,
            is_fresh: false,
        });
        let group = self.join_group(request);
        let slot = self.occupy(Watcher {
            group,
            group_index: 0,
            phase: Phase::Current,
            queue: Queue::default(),
            is_ready: false,
            is_asking: false,
            notify,
        });
        if let Some(notify) = notify {
            self.due.insert((notify.due, slot));
        }
        self.enter(slot, phase);
        self.check();
        Ok(Ok(NewWatcher {
            id: self.id(slot),
            revision: now_revision,
        }))
    }

    /// Removes a watcher without a message. Returns whether it existed.
    pub fn cancel(&mut self, id: WatcherId) -> bool {
        match self.slot(id) {
            Some(slot) => {
                self.remove(slot);
                self.check();
                true
            }
            None => false,
        }
    }

    /// Cancels all watchers with this error and discards their queues. The message names no
    /// revision to resume from, because this node's revisions may differ from those of the others.
    pub fn end_all(&mut self, error: &Error) {
        let meter = self.meter.clone();
        for slot in 0..number(self.slots.len()) {
            self.end_at(slot, error, &meter);
        }
    }

    /// Cancels one watcher with this error, like [`Hub::end_all`].
    pub fn end_one(&mut self, id: WatcherId, error: &Error) {
        if let Some(slot) = self.slot(id) {
            let meter = self.meter.clone();
            self.end_at(slot, error, &meter);
        }
    }

    fn end_at(&mut self, slot: u32, error: &Error, meter: &Meter) {
        let Some(watcher) = &mut self.slots[slot as usize].watcher else {
            return;
        };
        if matches!(watcher.phase, Phase::Ended(_)) {
            return;
        }
        let _ = watcher.queue.abandon(meter);
        let cancel = Cancel {
            error: error.clone(),
            resume_revision: None,
        };
        self.end(slot, cancel);
    }

    /// Handles timers: queues progress notifications for watchers that requested them and had no
    /// events.
    pub fn tick(&mut self, now: Instant) {
        while let Some((due, slot)) = self.due.first().copied() {
            if due > now.boot {
                break;
            }
            self.due.remove(&(due, slot));
            let revision = self.revision;
            let next = (now + self.options.progress_interval).boot;
            let watcher = self.watcher_mut(slot);
            let Some(notify) = &mut watcher.notify else {
                continue;
            };
            let is_fresh = std::mem::take(&mut notify.is_fresh);
            notify.due = next;
            let keeps_up = matches!(watcher.phase, Phase::Current) || planted!(ProgressAhead);
            let is_over = matches!(watcher.phase, Phase::Ended(_));
            if keeps_up && !is_fresh && watcher.queue.is_empty() {
                self.push(slot, WatcherEvent::Progress(revision));
                if let Some(notify) = &mut self.watcher_mut(slot).notify {
                    notify.is_fresh = false;
                }
            }
            if !is_over {
                self.due.insert((next, slot));
            }
        }
    }

    /// When [`Hub::tick`] has something to do.
    pub fn next_tick(&self) -> Instant {
        match self.due.first() {
            Some((boot, _)) => Instant {
                boot: *boot,
                ..Instant::NEVER
            },
            None => Instant::NEVER,
        }
    }

    /// Queues a progress notification for a watcher once it has received everything. Returns
    /// whether the watcher exists.
    pub fn request_progress(&mut self, id: WatcherId) -> bool {
        let Some(slot) = self.slot(id) else {
            return false;
        };
        self.watcher_mut(slot).is_asking = true;
        self.answer(slot);
        true
    }

    /// The revision up to which all of these watchers have received everything, with empty queues;
    /// `None` if one of them has not.
    pub fn synced_revision(&self, ids: &[WatcherId]) -> Option<i64> {
        let is_synced = |id: &WatcherId| {
            let watcher = self.slot(*id).map(|slot| self.watcher(slot));
            watcher.is_some_and(|watcher| {
                matches!(watcher.phase, Phase::Current) && watcher.queue.is_empty()
            })
        };
        ids.iter().all(is_synced).then_some(self.revision)
    }

    /// Watchers whose queues have become non-empty since the last call.
    pub fn take_ready(&mut self) -> Vec<WatcherId> {
        std::mem::take(&mut self.ready)
    }

    /// Takes events from a watcher's queue, about `bytes_max` and at least one. `None` if the
    /// watcher does not exist; taking [`WatcherEvent::Canceled`] removes it.
    pub fn take(&mut self, id: WatcherId, bytes_max: usize) -> Option<TakenEvents> {
        let slot = self.slot(id)?;
        let meter = self.meter.clone();
        let watcher = self.watcher_mut(slot);
        let mut taken = TakenEvents::default();
        let mut bytes = 0;
        while let Some((event, more)) = watcher.queue.pop(&meter) {
            taken.events.push(event);
            bytes += more;
            if bytes >= bytes_max {
                break;
            }
        }
        if !watcher.queue.is_empty() {
            taken.more = true;
        } else if let Phase::Ended(cancel) = &watcher.phase {
            taken
                .events
                .push(WatcherEvent::Canceled((**cancel).clone()));
            self.remove(slot);
            return Some(taken);
        } else {
            watcher.is_ready = false;
        }
        if self.stalled.contains(&slot) && self.has_room(slot) {
            self.stalled.remove(&slot);
            self.resume(slot);
        }
        self.check();
        Some(taken)
    }

    /// What must hold after every call that adds, moves or removes watchers.
    fn check(&self) {
        assert!(
            self.watchers <= self.options.watchers_max,
            "the number of watchers is bounded"
        );
        assert_eq!(
            self.slots.len(),
            self.watchers + self.free.len(),
            "a slot has a watcher or is free"
        );
        assert_eq!(
            self.groups.len(),
            self.by_spec.len() + self.free_groups.len(),
            "a group is found by what it watches or is free"
        );
        let placed =
            self.behind.len() + self.listing.len() + self.stalled.len() + self.future.len();
        assert!(
            placed <= self.watchers,
            "a watcher waits in one set at most"
        );
        assert!(
            self.due.len() <= self.watchers,
            "a watcher has one progress timer at most"
        );
    }
}

// Adding, moving and removing watchers.

impl Hub {
    fn join_group(&mut self, request: &WatchRequest) -> GroupId {
        let spec = Spec::of(request);
        if let Some(group) = self.by_spec.get(&spec).copied() {
            self.group_mut(group).watchers += 1;
            return group;
        }
        let made = Group {
            spec: spec.clone(),
            current: Vec::new(),
            watchers: 1,
        };
        let group = match self.free_groups.pop() {
            Some(group) => {
                self.groups[group.0 as usize] = Some(made);
                group
            }
            None => {
                self.groups.push(Some(made));
                GroupId(number(self.groups.len() - 1))
            }
        };
        self.index.insert(group, &spec);
        self.by_spec.insert(spec, group);
        group
    }

    fn leave_group(&mut self, group: GroupId) {
        let left = self.group_mut(group);
        left.watchers -= 1;
        if left.watchers > 0 {
            return;
        }
        if let Some(empty) = self.groups[group.0 as usize].take() {
            self.by_spec.remove(&empty.spec);
            self.index.remove(group, &empty.spec);
            self.free_groups.push(group);
        }
    }

    fn occupy(&mut self, watcher: Watcher) -> u32 {
        self.watchers += 1;
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize].watcher = Some(watcher);
                slot
            }
            None => {
                self.slots.push(Slot {
                    generation: 0,
                    watcher: Some(watcher),
                });
                number(self.slots.len() - 1)
            }
        }
    }

    fn remove(&mut self, slot: u32) {
        self.withdraw(slot);
        let entry = &mut self.slots[slot as usize];
        entry.generation = entry.generation.wrapping_add(1);
        let Some(mut watcher) = entry.watcher.take() else {
            return;
        };
        let _ = watcher.queue.abandon(&self.meter);
        if let Some(notify) = watcher.notify {
            self.due.remove(&(notify.due, slot));
        }
        self.leave_group(watcher.group);
        self.free.push(slot);
        self.watchers -= 1;
    }

    /// Removes a watcher from all sets that feed it.
    fn withdraw(&mut self, slot: u32) {
        self.stalled.remove(&slot);
        match self.watcher(slot).phase {
            Phase::Listing(_) => {
                self.listing.remove(&slot);
            }
            Phase::Behind(next) => {
                self.behind.remove(&(next, slot));
            }
            Phase::Future(start) => {
                self.future.remove(&(start, slot));
            }
            Phase::Current => {
                let Watcher {
                    group, group_index, ..
                } = *self.watcher(slot);
                let current = &mut self.group_mut(group).current;
                current.swap_remove(group_index as usize);
                if let Some(moved) = current.get(group_index as usize).copied() {
                    self.watcher_mut(moved).group_index = group_index;
                }
            }
            Phase::Ended(_) => {}
        }
    }

    /// The phase of a watcher that needs changes from `next` on.
    fn phase_from(&self, next: i64) -> Phase {
        if next <= self.revision {
            Phase::Behind(next)
        } else if next == self.revision + 1 || planted!(FutureAtOnce) {
            Phase::Current
        } else {
            Phase::Future(next)
        }
    }

    /// Moves a watcher without a phase into one.
    fn enter(&mut self, slot: u32, phase: Phase) {
        let is_current = matches!(phase, Phase::Current);
        let future = match phase {
            Phase::Future(start) => Some(start),
            _ => None,
        };
        self.watcher_mut(slot).phase = phase;
        if is_current {
            let group = self.watcher(slot).group;
            let current = &mut self.group_mut(group).current;
            current.push(slot);
            let group_index = number(current.len() - 1);
            self.watcher_mut(slot).group_index = group_index;
            self.answer(slot);
        } else if let Some(start) = future {
            self.future.insert((start, slot));
        } else {
            self.line_up(slot);
        }
    }

    /// Schedules a watcher that lists or is behind, or parks it until its queue has room.
    fn line_up(&mut self, slot: u32) {
        if !self.has_room(slot) {
            self.stalled.insert(slot);
            return;
        }
        match self.watcher(slot).phase {
            Phase::Listing(_) => {
                self.listing.insert(slot);
            }
            Phase::Behind(next) => {
                self.behind.insert((next, slot));
            }
            Phase::Current | Phase::Future(_) | Phase::Ended(_) => {}
        }
    }

    /// The queue of a parked watcher has room again.
    fn resume(&mut self, slot: u32) {
        match self.watcher(slot).phase {
            Phase::Behind(next) => {
                let phase = self.phase_from(next);
                self.enter(slot, phase);
            }
            _ => self.line_up(slot),
        }
    }

    /// Whether more may be read for a watcher: half of its queue is reserved for changes that occur
    /// meanwhile.
    fn has_room(&self, slot: u32) -> bool {
        let (events, bytes) = self.watcher(slot).queue.load();
        events == 0
            || 2 * events < self.options.queue_events_max
                && 2 * bytes < self.options.queue_bytes_max
    }

    fn end(&mut self, slot: u32, cancel: Cancel) {
        self.withdraw(slot);
        let watcher = self.watcher_mut(slot);
        watcher.phase = Phase::Ended(Box::new(cancel));
        self.mark_ready(slot);
    }

    /// Cancels a slow watcher. `next` is the first revision that is not in its queue.
    fn end_slow(&mut self, slot: u32, next: Option<i64>) {
        let meter = self.meter.clone();
        let resume_revision = match self.watcher_mut(slot).queue.abandon(&meter) {
            Ok(first) if planted!(ResumeTooLate) => first.or(next).map(|revision| revision + 1),
            Ok(first) => first.or(next),
            Err(()) => None,
        };
        let detail = match resume_revision {
            Some(revision) => format!(
                "the watch read events more slowly than they occurred: resume from revision \
                 {revision}"
            ),
            None => {
                "the watch read its initial state more slowly than changes occurred: start over"
                    .to_owned()
            }
        };
        let cancel = Cancel {
            error: Error::not_applied(ErrorKind::SlowWatcher, detail),
            resume_revision,
        };
        self.end(slot, cancel);
    }

    /// Frees memory when too much is queued: cancels watchers that do not read.
    fn relieve(&mut self) {
        while self.is_overfull() {
            let Some(slot) = self.stalled.first().copied() else {
                break;
            };
            let next = match self.watcher(slot).phase {
                Phase::Behind(next) => Some(next),
                _ => None,
            };
            self.end_slow(slot, next);
        }
    }

    fn is_overfull(&self) -> bool {
        self.meter.bytes() > self.options.memory_bytes_max
    }
}

// Access helpers.

impl Hub {
    fn id(&self, slot: u32) -> WatcherId {
        WatcherId {
            slot,
            generation: self.slots[slot as usize].generation,
        }
    }

    fn slot(&self, id: WatcherId) -> Option<u32> {
        let slot = self.slots.get(id.slot as usize)?;
        let is_there = slot.generation == id.generation && slot.watcher.is_some();
        is_there.then_some(id.slot)
    }

    fn watcher(&self, slot: u32) -> &Watcher {
        let watcher = &self.slots[slot as usize].watcher;
        watcher.as_ref().expect("its slot is in some set")
    }

    fn watcher_mut(&mut self, slot: u32) -> &mut Watcher {
        let watcher = &mut self.slots[slot as usize].watcher;
        watcher.as_mut().expect("its slot is in some set")
    }

    fn group(&self, group: GroupId) -> &Group {
        let group = &self.groups[group.0 as usize];
        group.as_ref().expect("it has watchers, or is in the index")
    }

    fn group_mut(&mut self, group: GroupId) -> &mut Group {
        let group = &mut self.groups[group.0 as usize];
        group.as_mut().expect("it has watchers, or is in the index")
    }
}

fn compacted(revision: i64, progress: &Progress) -> Error {
    let compact_revision = progress.compact_revision;
    Error::not_applied(
        ErrorKind::Compacted { compact_revision },
        format!(
            "changes at revision {revision} are compacted: read the keys, then watch from revision \
             {compact_revision} on"
        ),
    )
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("there are fewer watchers than that")
}
