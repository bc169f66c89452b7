//! What is published and not yet in the database.
//!
//! Every batch that is shown becomes a [`Run`] on a [`Stack`], and every look at the state takes the stack
//! together with a snapshot of the database. A piece of the stack, its oldest runs, is handed over to the
//! database from time to time, as one: of a key that was written often the last change alone. It leaves
//! the stack when the database has it.
//!
//! Both halves of a look are taken under one lock, under which runs also come and go. So at that moment the
//! database has at least what has left the stack, and at most what is on it or has left it. Where the
//! database has a part of the stack already, the look finds the stack's own values above, which are the
//! same or newer; so it is of one moment, that of the newest run.
//!
//! So that a look need not search hundreds of runs, neighbours of one size are merged. Not those that are
//! just being handed over: what is merged with them would leave the stack with them, and be lost.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;

use crate::kv::{Changes, LastChange, Space, Span};
use crate::sync::{Count, Mutex};

/// So many runs of one level are merged into one of the next.
const MERGED_RUNS: usize = 4;
/// Larger runs do not come of merging: to merge them again would cost more than they do in a search.
const MERGED_BYTES_MAX: usize = 1 << 20;
/// What a change takes of memory beside its key and record.
const CHANGE_BYTES: usize = 128;

/// What becomes of keys, in their order: a record, or `None` where one is taken away.
type SortedChanges = Vec<(Bytes, Option<Bytes>)>;

/// The changes of a batch, or of several that follow each other.
pub(super) struct Run {
    /// In the order of [`Space::ALL`].
    spaces: [SortedChanges; Space::ALL.len()],
    bytes: usize,
    level: u32,
}

impl Run {
    /// Of one batch.
    pub(super) fn new(changes: impl Iterator<Item = (Space, Changes)>) -> Self {
        let mut spaces = <[SortedChanges; _]>::default();
        for (space, changes) in changes {
            spaces[space.slot()] = changes.into_iter().collect();
        }
        Self::of(spaces, 0)
    }

    fn of(spaces: [SortedChanges; Space::ALL.len()], level: u32) -> Self {
        let bytes = |(key, change): &(Bytes, Option<Bytes>)| {
            CHANGE_BYTES + key.len() + change.as_ref().map_or(0, Bytes::len)
        };
        let bytes = spaces.iter().flatten().map(bytes).sum();
        Self {
            spaces,
            bytes,
            level,
        }
    }

    /// Of some that follow each other, the oldest first.
    fn merged(runs: &[Arc<Self>]) -> Self {
        let runs = match planted!(MergeKeepsOlder) {
            true => runs.iter().rev().cloned().collect(),
            false => runs.to_vec(),
        };
        let level = runs.iter().map(|run| run.level).max();
        let runs = Runs(Arc::new(runs));
        let spaces = Space::ALL.map(|space| {
            let changes = runs.range(space, &Span::all());
            let changes = changes.map(|(key, change)| (key.clone(), change.clone()));
            changes.collect()
        });
        Self::of(spaces, level.map_or(0, |level| level + 1))
    }

    /// What it changes in `space`, in the order of the keys.
    pub(super) fn changes(&self, space: Space) -> &[(Bytes, Option<Bytes>)] {
        &self.spaces[space.slot()]
    }

    /// The change of `key`, if there is one.
    fn get(&self, space: Space, key: &[u8]) -> Option<&Option<Bytes>> {
        let changes = self.changes(space);
        let place = changes.binary_search_by(|(other, _)| other.as_ref().cmp(key));
        place.ok().map(|place| &changes[place].1)
    }

    /// The changes of the keys of `span`.
    fn range(&self, space: Space, span: &Span) -> &[(Bytes, Option<Bytes>)] {
        let changes = self.changes(space);
        let place = |end: &Bytes| changes.partition_point(|(key, _)| key < end);
        let until = span.until().map_or(changes.len(), place);
        &changes[place(span.from())..until]
    }
}

/// The runs of a stack at one moment, the oldest first.
#[derive(Clone, Default)]
pub(super) struct Runs(Arc<Vec<Arc<Run>>>);

impl Runs {
    /// The last change of `key`, if there is any.
    pub(super) fn get(&self, space: Space, key: &[u8]) -> Option<&Option<Bytes>> {
        if planted!(OlderRunWins) {
            let mut runs = self.0.iter();
            return runs.find_map(|run| run.get(space, key));
        }
        let mut newest_first = self.0.iter().rev();
        newest_first.find_map(|run| run.get(space, key))
    }

    /// The last change of each key of `span`, in order.
    pub(super) fn range(&self, space: Space, span: &Span) -> LastChanges<'_> {
        let newest_first = self.0.iter().rev().enumerate();
        let heads = newest_first.filter_map(|(age, run)| {
            let (next, rest) = run.range(space, span).split_first()?;
            Some(Head { next, age, rest })
        });
        LastChanges {
            heads: heads.collect(),
        }
    }

    /// The last change of each key.
    pub(super) fn last_changes(&self) -> impl Iterator<Item = LastChange<'_>> {
        Space::ALL.into_iter().flat_map(|space| {
            let changes = self.range(space, &Span::all());
            changes.map(move |(key, change)| (space, key, change.as_ref()))
        })
    }

    /// Those of them that came first, `count` in number.
    fn oldest(&self, count: usize) -> Self {
        Self(Arc::new(self.0[..count].to_vec()))
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|run| run.bytes).sum()
    }
}

/// See [`Runs::range`].
pub(super) struct LastChanges<'r> {
    heads: BinaryHeap<Head<'r>>,
}

/// The next change of one run, and those after it. Greater is what comes first: the smaller key, and of
/// two equal ones the newer.
struct Head<'r> {
    next: &'r (Bytes, Option<Bytes>),
    age: usize,
    rest: &'r [(Bytes, Option<Bytes>)],
}

impl<'r> LastChanges<'r> {
    fn step(&mut self) -> Option<(&'r Bytes, &'r Option<Bytes>)> {
        let mut head = self.heads.peek_mut()?;
        let (key, change) = head.next;
        match head.rest.split_first() {
            Some((next, rest)) => (head.next, head.rest) = (next, rest),
            None => {
                PeekMut::pop(head);
            }
        }
        Some((key, change))
    }
}

impl<'r> Iterator for LastChanges<'r> {
    type Item = (&'r Bytes, &'r Option<Bytes>);

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.step()?;
        while self.heads.peek().is_some_and(|head| head.next.0 == found.0) {
            self.step();
        }
        Some(found)
    }
}

impl Ord for Head<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = other.next.0.cmp(&self.next.0);
        by_key.then_with(|| other.age.cmp(&self.age))
    }
}

impl PartialOrd for Head<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Head<'_> {}

/// How many bytes lay ahead of the database before a batch was shown, and with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// Without the batch; 0 if there was nothing ahead.
    pub before: u64,
    /// With it.
    pub after: u64,
}

/// What a hand-over to the database has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandedOver {
    /// Bytes that were handed over, as they lay in memory.
    pub bytes: u64,
    /// Bytes that are ahead of the database still, or again.
    pub rest: u64,
}

/// What is ahead of a database; see the module.
#[derive(Default)]
pub(super) struct Stack {
    shown: Mutex<StackInner>,
    /// Held during a hand-over, and by others who write to the database.
    turn: Mutex<()>,
    /// As in `shown`, for those who want no more than a figure.
    bytes: Count,
}

#[derive(Default)]
struct StackInner {
    runs: Runs,
    /// So many of the oldest are being handed over.
    leaving: usize,
}

impl Stack {
    /// What lies ahead, with the `database` as it is at the same moment.
    pub(super) fn look<S>(&self, database: impl FnOnce() -> S) -> (Runs, S) {
        #[cfg(leasehold_bugs)]
        if planted!(LookTakesDatabaseFirst) {
            let database = database();
            return (self.shown.lock().runs.clone(), database);
        }
        let shown = self.shown.lock();
        let runs = shown.runs.clone();
        #[cfg(leasehold_bugs)]
        if planted!(LookTakesRunsFirst) {
            drop(shown);
            return (runs, database());
        }
        let database = database();
        drop(shown);
        (runs, database)
    }

    /// From here on every look finds this run, above all others.
    pub(super) fn push(&self, run: Arc<Run>) -> Growth {
        let added = run.bytes as u64;
        let mut shown = self.shown.lock();
        Arc::make_mut(&mut shown.runs.0).push(run);
        let after = self.count(&shown);
        Growth {
            before: after - added,
            after,
        }
    }

    /// Merges the newest runs where there are enough of one level. For the only thread that pushes.
    pub(super) fn merge(&self) {
        loop {
            let (runs, leaving) = {
                let shown = self.shown.lock();
                (shown.runs.clone(), shown.leaving)
            };
            let leaving = if planted!(LeavingRunMerged) {
                0
            } else {
                leaving
            };
            let staying = runs.0.get(leaving..).unwrap_or_default();
            let Some(newest) = staying.last_chunk::<MERGED_RUNS>() else {
                return;
            };
            let is_level = newest.iter().all(|run| run.level == newest[0].level);
            let bytes: usize = newest.iter().map(|run| run.bytes).sum();
            if !is_level || bytes > MERGED_BYTES_MAX {
                return;
            }
            let merged = Arc::new(Run::merged(newest));
            let mut shown = self.shown.lock();
            let mut runs = shown.runs.0.iter();
            let place = runs.position(|run| Arc::ptr_eq(run, &newest[0]));
            let is_staying = |place: &usize| *place >= shown.leaving || planted!(LeavingRunMerged);
            let Some(place) = place.filter(is_staying) else {
                // Their hand-over has begun meanwhile, or is over.
                return;
            };
            let below = shown.runs.0.iter().take(place).cloned();
            let merged = below.chain([merged]).collect();
            shown.runs = Runs(Arc::new(merged));
            self.count(&shown);
        }
    }

    /// Gives the oldest runs of at most `bytes_max` together, or the oldest alone, to `write`, and lets go
    /// of them once it has returned. Another that comes meanwhile waits for its turn.
    pub(super) fn hand_over<E>(
        &self,
        bytes_max: usize,
        write: impl FnOnce(&Runs) -> Result<(), E>,
    ) -> Result<HandedOver, E> {
        let _turn = self.turn.lock();
        let (runs, leaving) = {
            let mut shown = self.shown.lock();
            let mut bytes = 0;
            let fits = |run: &&Arc<Run>| {
                bytes += run.bytes;
                bytes <= bytes_max
            };
            let fitting = shown.runs.0.iter().take_while(fits).count();
            shown.leaving = fitting.max(1).min(shown.runs.0.len());
            (shown.runs.clone(), shown.leaving)
        };
        if leaving == 0 {
            return Ok(HandedOver::default());
        }
        let piece = runs.oldest(leaving);
        planted!(AheadEndsEarly => { self.let_go(leaving); });
        #[cfg(leasehold_bugs)]
        let piece = if planted!(ProgressAheadOfData) {
            let mut newest = Run::merged(&runs.0);
            for space in Space::ALL.into_iter().filter(|space| *space != Space::Meta) {
                newest.spaces[space.slot()].clear();
            }
            let newest = Arc::new(newest);
            Runs(Arc::new(piece.0.iter().cloned().chain([newest]).collect()))
        } else {
            piece
        };
        write(&piece)?;
        // Only now: a look in between finds the same in both.
        let leaving = if planted!(AheadEndsEarly) { 0 } else { leaving };
        Ok(HandedOver {
            bytes: piece.bytes() as u64,
            rest: self.let_go(leaving),
        })
    }

    /// Does `work` while nothing is handed over.
    pub(super) fn between_hand_overs<T>(&self, work: impl FnOnce() -> T) -> T {
        let _turn = self.turn.lock();
        work()
    }

    fn let_go(&self, count: usize) -> u64 {
        let mut shown = self.shown.lock();
        let rest = shown.runs.0.iter().skip(count).cloned().collect();
        shown.runs = Runs(Arc::new(rest));
        shown.leaving = 0;
        self.count(&shown)
    }

    /// Bytes of memory that are ahead.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    fn count(&self, shown: &StackInner) -> u64 {
        let bytes = shown.runs.bytes() as u64;
        self.bytes.store(bytes, Relaxed);
        bytes
    }
}
