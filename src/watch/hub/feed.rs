//! Feeding watchers: from the changes just applied, or from the store.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::{CatchUpBudget, Group, GroupId, Hub, Phase, compacted};
use crate::api::Event;
use crate::kv;
use crate::kv::{Change, Progress, ScanBudget, View};
use crate::watch::queue::{Batch, Cancel, State, WatcherEvent};

/// The result of one apply step.
#[derive(Clone, Debug)]
pub struct AppliedStep {
    /// The store's revision after it.
    pub revision: i64,
    /// Its changes, in order; `None` if they were not kept and must be read from the store.
    pub changes: Option<Vec<Change>>,
}

impl Hub {
    /// Feeds the hub with all steps since the last call, in order and after they can be read:
    /// `view` contains them, and may contain more. A hub without watchers skips to the revision of
    /// `view`, because there is nothing to deliver.
    ///
    /// # Errors
    /// The store's own, which is fatal.
    pub fn feed<V: View>(
        &mut self,
        view: &V,
        steps: impl IntoIterator<Item = AppliedStep>,
    ) -> Result<(), V::Error> {
        let mut pending: Vec<Change> = Vec::new();
        for step in steps {
            match step.changes {
                Some(changes) => pending.extend(changes),
                None => {
                    self.publish(view, &std::mem::take(&mut pending))?;
                    self.skip_to(step.revision);
                }
            }
        }
        self.publish(view, &pending)?;
        if self.watchers() == 0 {
            self.skip_to(kv::progress(view)?.revision);
        }
        self.check();
        Ok(())
    }

    /// Feeds the hub with applied changes, in order and after they can be read: `view` contains
    /// them. Changes already fed are skipped. If there is a gap, all watchers read the missing
    /// changes from the store.
    ///
    /// # Errors
    /// The store's own, which is fatal.
    pub(in crate::watch) fn publish<V: View>(
        &mut self,
        view: &V,
        changes: &[Change],
    ) -> Result<(), V::Error> {
        debug_assert!(
            changes.is_sorted_by_key(Change::revision),
            "changes are fed in the order of their revisions"
        );
        for changes in changes.chunk_by(|one, next| one.revision() == next.revision()) {
            let revision = changes[0].revision();
            if revision <= self.revision {
                continue;
            }
            if revision > self.revision + 1 {
                self.skip_to(revision - 1);
            }
            let mut found = Vec::new();
            let mut wanted = GroupEvents::default();
            for change in changes {
                self.index.find(change.key(), &mut found);
                for group in &found {
                    let is_heard = |group: &Group| {
                        !group.current.is_empty() && group.spec.wants(change.kind())
                    };
                    if is_heard(self.group(*group)) {
                        wanted.add(*group, change, self.group(*group).spec.prev_kv, view)?;
                    }
                }
                wanted.next_change();
            }
            for (group, events) in wanted.take() {
                let batch = Arc::new(Batch::new(revision, events, &self.meter));
                self.relieve();
                self.deliver(group, &batch);
            }
            self.advance(revision);
        }
        Ok(())
    }

    /// Reports that the store is at `revision` and the changes up to it will not be fed, as after
    /// installing a snapshot: watchers read them from the store.
    pub fn skip_to(&mut self, revision: i64) {
        if revision <= self.revision {
            return;
        }
        planted!(SkipForgets => return self.advance(revision));
        let next = self.revision + 1;
        for group in 0..self.groups.len() {
            let current = match &mut self.groups[group] {
                Some(group) => std::mem::take(&mut group.current),
                None => continue,
            };
            for slot in current {
                let watcher = self.watcher_mut(slot);
                watcher.phase = Phase::Behind(next);
                self.line_up(slot);
            }
        }
        self.advance(revision);
    }

    /// Feeds watchers that are behind from the store, within `budget`. Returns whether more can be
    /// done at once. `view` is the current store.
    ///
    /// # Errors
    /// The store's own, which is fatal.
    pub fn catch_up<V: View>(
        &mut self,
        view: &V,
        budget: &CatchUpBudget,
    ) -> Result<bool, V::Error> {
        self.relieve();
        let lists = !self.listing.is_empty() && (self.behind.is_empty() || !self.listed_last);
        self.listed_last = lists;
        if lists {
            self.list(view, budget)?;
        } else if !self.behind.is_empty() {
            self.replay(view, budget)?;
        }
        self.check();
        Ok(!self.listing.is_empty() || !self.behind.is_empty())
    }
}

impl Hub {
    /// Queues a batch for every watcher of a group that keeps up.
    fn deliver(&mut self, group: GroupId, batch: &Arc<Batch>) {
        let current = std::mem::take(&mut self.group_mut(group).current);
        let mut slow = Vec::new();
        let is_overfull = self.is_overfull();
        for slot in &current {
            if self.fits(*slot, batch.bytes(), is_overfull) {
                self.push(*slot, WatcherEvent::Events(batch.clone()));
            } else {
                slow.push(*slot);
            }
        }
        self.group_mut(group).current = current;
        for slot in slow {
            planted!(SlowSilently => continue);
            self.end_slow(slot, Some(batch.revision()));
        }
    }

    /// Whether an event may be queued. An empty queue accepts any.
    fn fits(&self, slot: u32, bytes: usize, is_overfull: bool) -> bool {
        let queue = &self.watcher(slot).queue;
        let (events, queued) = queue.load();
        queue.is_empty()
            || !is_overfull
                && events < self.options.queue_events_max
                && queued + bytes <= self.options.queue_bytes_max
    }

    pub(super) fn push(&mut self, slot: u32, event: WatcherEvent) {
        let meter = self.meter.clone();
        let watcher = self.watcher_mut(slot);
        watcher.queue.push(event, &meter);
        if let Some(notify) = &mut watcher.notify {
            notify.is_fresh = true;
        }
        self.mark_ready(slot);
    }

    pub(super) fn mark_ready(&mut self, slot: u32) {
        let watcher = self.watcher_mut(slot);
        if !watcher.is_ready {
            watcher.is_ready = true;
            let id = self.id(slot);
            self.ready.push(id);
        }
    }

    /// The hub has been fed up to `revision`.
    fn advance(&mut self, revision: i64) {
        assert!(
            revision > self.revision,
            "the hub is fed each revision once"
        );
        self.revision = revision;
        while let Some((start, slot)) = self.future.first().copied() {
            if start > revision + 1 {
                break;
            }
            self.future.remove(&(start, slot));
            let phase = self.phase_from(start);
            self.enter(slot, phase);
        }
    }

    /// Sends the progress notification that a watcher requested, as soon as it is true.
    pub(super) fn answer(&mut self, slot: u32) {
        let revision = self.revision;
        let watcher = self.watcher_mut(slot);
        if !watcher.is_asking || !matches!(watcher.phase, Phase::Current) {
            return;
        }
        watcher.is_asking = false;
        // A later notification replaces an earlier one if nothing is queued between them.
        match watcher.queue.last_mut() {
            Some(WatcherEvent::Progress(last)) => *last = revision,
            _ => self.push(slot, WatcherEvent::Progress(revision)),
        }
    }

    /// One step of listing a watcher's initial state.
    fn list<V: View>(&mut self, view: &V, budget: &CatchUpBudget) -> Result<(), V::Error> {
        let after = (Bound::Excluded(self.listing_turn), Bound::Unbounded);
        let next = self.listing.range(after).next();
        let Some(slot) = next.or_else(|| self.listing.first()).copied() else {
            return Ok(());
        };
        self.listing.remove(&slot);
        self.listing_turn = slot;
        let budget = ScanBudget {
            keys: budget.changes,
            bytes: budget.bytes.min(self.options.queue_bytes_max / 2),
        };
        let Phase::Listing(scan) = &mut self.watcher_mut(slot).phase else {
            return Ok(());
        };
        let revision = scan.revision();
        let chunk = match scan.step(view, &budget)? {
            Ok(chunk) => chunk,
            Err(error) => {
                let resume_revision = None;
                self.end(
                    slot,
                    Cancel {
                        error,
                        resume_revision,
                    },
                );
                return Ok(());
            }
        };
        if !chunk.kvs.is_empty() {
            let state = Arc::new(State::new(chunk.kvs, &self.meter));
            self.push(slot, WatcherEvent::State(state));
        }
        if chunk.finished || planted!(SyncedEarly) {
            self.push(slot, WatcherEvent::Synced(revision));
            self.go_on(slot, revision + 1);
        } else {
            self.line_up(slot);
        }
        Ok(())
    }

    /// Places a watcher that needs changes from `next` on: it keeps up, if its queue has room.
    fn go_on(&mut self, slot: u32, next: i64) {
        if self.has_room(slot) {
            let phase = self.phase_from(next);
            self.enter(slot, phase);
        } else {
            self.watcher_mut(slot).phase = Phase::Behind(next);
            self.stalled.insert(slot);
        }
    }

    /// One scan of past changes, for the watcher whose turn it is and all those that need nearly
    /// the same revisions.
    fn replay<V: View>(&mut self, view: &V, budget: &CatchUpBudget) -> Result<(), V::Error> {
        let progress = kv::progress(view)?;
        self.end_compacted(&progress);
        let after = (Bound::Excluded(self.turn), Bound::Unbounded);
        let lead = self.behind.range(after).next();
        let Some(lead) = lead.or_else(|| self.behind.first()).copied() else {
            return Ok(());
        };
        let from = lead.0;
        let through = self.revision.min(progress.revision);
        if through < from {
            // The view is older than the last feed; try again with the next one.
            return Ok(());
        }
        let (changes, mut through) = kv::changes_from(view, from, through, budget.changes)?;

        let mut walkers: BTreeMap<GroupId, Vec<Arc<Batch>>> = BTreeMap::new();
        for (_, slot) in self.behind.range((from, 0)..=(through, u32::MAX)) {
            walkers.entry(self.watcher(*slot).group).or_default();
        }
        let mut bytes = 0;
        for changes in changes.chunk_by(|one, next| one.revision() == next.revision()) {
            let revision = changes[0].revision();
            if bytes > 0 && bytes >= budget.bytes {
                through = revision - 1;
                break;
            }
            let mut wanted = GroupEvents::default();
            for change in changes {
                for group in self.listeners(change.key(), &walkers) {
                    let spec = &self.group(group).spec;
                    if spec.wants(change.kind()) {
                        wanted.add(group, change, spec.prev_kv, view)?;
                    }
                }
                wanted.next_change();
            }
            for (group, events) in wanted.take() {
                let batch = Arc::new(Batch::new(revision, events, &self.meter));
                bytes += batch.bytes();
                walkers.entry(group).or_default().push(batch);
            }
        }
        // A watcher that was served goes to the end of the round.
        self.turn = (through.saturating_add(1), u32::MAX);
        let walked: Vec<(i64, u32)> = self
            .behind
            .range((from, 0)..=(through, u32::MAX))
            .copied()
            .collect();
        for (next, slot) in walked {
            self.behind.remove(&(next, slot));
            let batches = &walkers[&self.watcher(slot).group];
            self.hand_over(slot, next, through, batches);
        }
        Ok(())
    }

    /// The groups among `walkers` that `key` concerns.
    fn listeners(&self, key: &[u8], walkers: &BTreeMap<GroupId, Vec<Arc<Batch>>>) -> Vec<GroupId> {
        if walkers.len() <= FEW {
            let holds = |group: &&GroupId| self.group(**group).spec.holds(key);
            return walkers.keys().filter(holds).copied().collect();
        }
        let mut found = Vec::new();
        self.index.find(key, &mut found);
        found.retain(|group| walkers.contains_key(group));
        found
    }

    /// Queues as many of `batches`, which reach up to `through`, as a watcher has room for.
    fn hand_over(&mut self, slot: u32, next: i64, through: i64, batches: &[Arc<Batch>]) {
        // Changes that can be read again later leave room for current ones.
        let is_overfull = 2 * self.meter.bytes() > self.options.memory_bytes_max;
        let first = batches.partition_point(|batch| batch.revision() < next);
        for batch in &batches[first..] {
            if !self.fits(slot, batch.bytes(), is_overfull) {
                self.watcher_mut(slot).phase = Phase::Behind(batch.revision());
                self.stalled.insert(slot);
                return;
            }
            self.push(slot, WatcherEvent::Events(batch.clone()));
        }
        planted!(HandOverGap => return self.go_on(slot, self.revision + 1));
        self.go_on(slot, through + 1);
    }

    /// Cancels watchers whose next revision is compacted.
    fn end_compacted(&mut self, progress: &Progress) {
        planted!(CompactedUnnoticed => return);
        while let Some((next, slot)) = self.behind.first().copied() {
            if next >= progress.compact_revision {
                break;
            }
            let cancel = Cancel {
                error: compacted(next, progress),
                resume_revision: None,
            };
            self.end(slot, cancel);
        }
    }
}

/// Up to this many groups are matched one by one, which is faster than the index.
const FEW: usize = 8;

/// The events of one revision by group, each encoded once.
#[derive(Default)]
struct GroupEvents {
    events: BTreeMap<GroupId, Vec<Event>>,
    /// The current change, without and with the previous value.
    made: [Option<Event>; 2],
}

impl GroupEvents {
    fn add<V: View>(
        &mut self,
        group: GroupId,
        change: &Change,
        prev_kv: bool,
        view: &V,
    ) -> Result<(), V::Error> {
        let event = match &self.made[usize::from(prev_kv)] {
            Some(event) => event.clone(),
            None => {
                let event = change.event(view, prev_kv)?;
                self.made[usize::from(prev_kv)] = Some(event.clone());
                event
            }
        };
        self.events.entry(group).or_default().push(event);
        Ok(())
    }

    fn next_change(&mut self) {
        self.made = [None, None];
    }

    fn take(self) -> BTreeMap<GroupId, Vec<Event>> {
        self.events
    }
}
