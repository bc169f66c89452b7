//! The thread that takes compacted history off this node's disk.
//!
//! It works in bounded steps with pauses between them, so that a writer waits for one step's
//! batch at most, and the disk is never its own for long. It works beside the state thread
//! (`disk/store/compaction_gc.rs` says why that is safe) and remembers in the store how far it is, so a
//! restart goes on where it stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::kv::CompactionBudget;
use crate::server::disk::hand_over_thread::hand_over_while;
use crate::server::disk::space::{Passage, SpaceGate, merge_beyond_floor};
use crate::server::disk::store::{CompactionGc, HandOver, ReclaimScope, StoreError};
use crate::server::metrics::{Metrics, stopwatch};
use crate::server::threads::queue::BatchQueue;

/// Bytes of removed records from which on a step ends.
const STEP_BYTES_MAX: usize = 1 << 20;
/// While there is nothing to do until the next message.
const UNTIL_TOLD: Duration = Duration::from_secs(3600);
/// Until merging tables is tried again for which there was no room.
const RECLAIM_AGAIN: Duration = Duration::from_secs(10);

/// A message to the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GcWork {
    /// There may be something to remove: the state may be read now, or a compaction was applied.
    Look,
    /// A compaction was applied that wants the space given back, however little it is.
    Reclaim,
    /// End.
    Stop,
}

/// How fast history is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Events of one step at most.
    pub(crate) batch_limit: usize,
    /// The rest after a step. One that took longer is rested from for as long as it took, so that
    /// the removal never has more than half of a disk that is slow.
    pub(crate) sleep_interval: Duration,
}

/// The progress of the removal.
#[derive(Debug, Default)]
pub(crate) struct GcProgress {
    through: AtomicI64,
}

impl GcProgress {
    /// Everything that compactions up to this revision gave up is gone.
    pub(crate) fn through(&self) -> i64 {
        self.through.load(Ordering::Relaxed)
    }
}

/// What the thread starts from.
pub(crate) struct GcThread {
    pub(crate) compaction_gc: CompactionGc,
    pub(crate) hand_over: HandOver,
    pub(crate) work: Arc<BatchQueue<GcWork>>,
    pub(crate) pace: Pace,
    pub(crate) removed: Arc<GcProgress>,
    pub(crate) metrics: Arc<Metrics>,
    /// Holds up what would be written to a full disk.
    pub(crate) space: Arc<SpaceGate>,
}

impl GcThread {
    /// Removes what it may until it is stopped. It does nothing before the first [`GcWork::Look`].
    pub(crate) fn run(&mut self) -> Result<(), StoreError> {
        let mut taken = Vec::new();
        let mut rest = UNTIL_TOLD;
        let mut due = None;
        let budget = CompactionBudget {
            events: self.pace.batch_limit,
            bytes: STEP_BYTES_MAX,
        };
        loop {
            self.work.take(&mut taken, rest);
            if taken.contains(&GcWork::Stop) {
                return Ok(());
            }
            if taken.contains(&GcWork::Reclaim) {
                due = Some(ReclaimScope::All);
            }
            if !taken.is_empty() && self.catch_up()? == Passage::Ended {
                return Ok(());
            }
            taken.clear();
            if self.removed.through() == 0 {
                let through = self.compaction_gc.through()?;
                self.removed.through.store(through, Ordering::Relaxed);
            }
            if self.space.wait() == Passage::Ended {
                return Ok(());
            }
            let began = stopwatch();
            let gc_step = self.compaction_gc.step(&budget)?;
            let took = began.elapsed();
            let metrics = &self.metrics.history;
            metrics.step_seconds.record(took.as_secs_f64());
            metrics
                .removed_records
                .increment(gc_step.step.removed as u64);
            if !gc_step.step.finished {
                rest = self.pace.sleep_interval.max(took);
                continue;
            }
            rest = UNTIL_TOLD;
            if due.is_none() && self.compaction_gc.is_reclaim_due()? {
                due = Some(ReclaimScope::History);
            }
            if let Some(scope) = due {
                if self.reclaim(scope)? {
                    due = None;
                } else {
                    rest = RECLAIM_AGAIN;
                }
            }
            let before = self
                .removed
                .through
                .swap(gc_step.through, Ordering::Relaxed);
            if gc_step.through > before {
                self.metrics.history.compactions.increment(1);
                tracing::info!(revision = gc_step.through, "compacted history removed");
            }
        }
    }

    /// Hands over to the database what was applied when the message came: the removal goes by what the
    /// database has, and the next message may be long in coming.
    fn catch_up(&self) -> Result<Passage, StoreError> {
        let applied = self.hand_over.applied();
        let lacks_it = |it: &HandOver| Ok(!it.has(applied)?);
        hand_over_while(lacks_it, &self.hand_over, &self.space)
    }

    /// Merges the tables, if the disk has room for what that writes and no long reader keeps what would be
    /// freed. Whether it did.
    fn reclaim(&mut self, scope: ReclaimScope) -> Result<bool, StoreError> {
        let needed = merge_beyond_floor(self.compaction_gc.reclaim_bytes()?);
        if !self.space.has(needed) {
            tracing::warn!(
                needed,
                "the disk has no room to merge tables, which would give the space of compacted \
                 history back: it is tried again"
            );
            return Ok(false);
        }
        let began = stopwatch();
        if !self.compaction_gc.reclaim(scope)? {
            tracing::info!(
                "a backup or another long read uses what compaction has removed: tables are merged after it"
            );
            return Ok(false);
        }
        tracing::info!(
            took = ?began.elapsed(),
            "disk space of compacted history reclaimed"
        );
        Ok(true)
    }
}
