//! Decides when the log is truncated, and the thread that does it.
//!
//! The log is truncated when it holds more applied entries, or more bytes of them, than configured. A
//! tail is kept for followers that are slightly behind; a follower that needs truncated entries receives
//! a snapshot. While a snapshot is sent, the entries after it are kept up to a bound, so that its
//! receiver can go on from it.
//!
//! Before an entry leaves the log, the state that contains it is durable: this thread syncs it, beside
//! the one that applies ([`Keeper`]), and only then informs consensus.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::node::Input;
use crate::server::config::SnapshotConfig;
use crate::server::disk::store::{Keeper, StoreError};
use crate::server::mail::{Mail, Mailbox};
use crate::server::metrics::{Metrics, stopwatch};
use crate::server::threads::queue::BatchQueue;
use crate::sync::{Mutex, MutexGuard};
use crate::types::LogIndex;

/// Interval between checks of the log's length, and so the shortest between syncs of the state.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The size of a run of entries, in bytes and in entries, above which a new run begins.
const MARK_BYTES: u64 = 1 << 20;
const MARK_ENTRIES: u64 = 1_024;
/// The log may grow to this multiple of its bytes while a snapshot is sent.
const HELD_FACTOR: u64 = 4;

/// The applied entries in the log and their bytes, by which truncation is decided.
#[derive(Debug)]
pub(crate) struct LogUse {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The entry after which the log begins, or will begin once a truncation is complete.
    base: LogIndex,
    applied: LogIndex,
    /// Runs of applied entries: the last of each, and its bytes.
    runs: VecDeque<(LogIndex, u64)>,
    bytes: u64,
    /// Snapshots being sent: the last entry of each, and the number of its holds.
    held: BTreeMap<u64, (LogIndex, usize)>,
}

impl LogUse {
    /// For a log that begins after `base`.
    pub(crate) fn new(base: LogIndex) -> Self {
        Self {
            inner: Mutex::new(Inner {
                base,
                applied: base,
                ..Inner::default()
            }),
        }
    }

    /// Records that entries up to `last`, of `bytes` together, were applied.
    pub(crate) fn applied(&self, last: LogIndex, bytes: u64) {
        let mut inner = self.lock();
        if last <= inner.applied {
            return;
        }
        let begins = match inner.runs.len() {
            0 | 1 => inner.base,
            runs => inner.runs[runs - 2].0,
        };
        match inner.runs.back_mut() {
            Some((end, run)) if *run < MARK_BYTES && last.0 - begins.0 <= MARK_ENTRIES => {
                *end = last;
                *run += bytes;
            }
            _ => inner.runs.push_back((last, bytes)),
        }
        inner.applied = last;
        inner.bytes += bytes;
    }

    /// Records that a snapshot that ends with `last` replaced the log and the state.
    pub(crate) fn installed(&self, last: LogIndex) {
        let mut inner = self.lock();
        let held = std::mem::take(&mut inner.held);
        *inner = Inner {
            base: last,
            applied: last,
            held,
            ..Inner::default()
        };
    }

    /// Keeps the entries after `last` while a snapshot that ends with it is sent: its receiver needs them.
    pub(crate) fn hold(&self, export: u64, last: LogIndex) {
        self.lock().held.entry(export).or_insert((last, 0)).1 += 1;
    }

    /// Releases one [`LogUse::hold`].
    pub(crate) fn let_go(&self, export: u64) {
        let mut inner = self.lock();
        if let Some((_, times)) = inner.held.get_mut(&export) {
            *times -= 1;
            if *times == 0 {
                inner.held.remove(&export);
            }
        }
    }

    /// The last entry to truncate now, if any.
    fn due(&self, options: &SnapshotConfig) -> Option<LogIndex> {
        let inner = self.lock();
        let entries = inner.applied.0 - inner.base.0;
        let too_many = entries >= options.entries.saturating_add(options.catchup_entries);
        if !too_many && inner.bytes < options.log_bytes {
            return None;
        }
        let kept = options.catchup_entries.min(entries);
        let mut through = LogIndex(inner.applied.0 - kept);
        let mut bytes = inner.bytes;
        for (last, run) in &inner.runs {
            if bytes <= options.log_bytes / 2 {
                break;
            }
            bytes -= run;
            through = through.max(*last);
        }
        let is_bearable = inner.bytes < options.log_bytes.saturating_mul(HELD_FACTOR);
        let held = inner.held.values().map(|(last, _)| *last).min();
        if let Some(held) = held.filter(|_| is_bearable) {
            through = through.min(held);
        }
        (through > inner.base).then_some(through)
    }

    /// The log has been truncated through `through`.
    fn truncated(&self, through: LogIndex) {
        let mut inner = self.lock();
        inner.base = inner.base.max(through);
        while let Some((last, bytes)) = inner.runs.front().copied() {
            if last > through {
                break;
            }
            inner.runs.pop_front();
            inner.bytes -= bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before the lock is released.
        self.inner.lock()
    }
}

/// Requests the end of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StopCompactor;

/// The configuration and handles of the thread.
pub(crate) struct LogCompactor {
    pub(crate) options: SnapshotConfig,
    pub(crate) log_use: Arc<LogUse>,
    pub(crate) keeper: Keeper,
    pub(crate) work: Arc<BatchQueue<StopCompactor>>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) metrics: Arc<Metrics>,
}

impl LogCompactor {
    /// Truncates the log whenever it exceeds its limits, until stopped.
    pub(crate) fn run(&mut self) -> Result<(), StoreError> {
        let mut stops = Vec::new();
        loop {
            self.work.take(&mut stops, LOOK_INTERVAL);
            if !stops.is_empty() {
                return Ok(());
            }
            let Some(through) = self.log_use.due(&self.options) else {
                continue;
            };
            let began = stopwatch();
            let durable = self.keeper.persist()?;
            let truncation = durable.truncation(through);
            let through = truncation.through();
            self.log_use.truncated(through);
            self.mailbox.send(Mail::Input(Input::Compact(truncation)));
            let metrics = &self.metrics.storage;
            metrics.log_compactions.increment(1);
            let took = began.elapsed();
            metrics.log_compaction_seconds.record(took.as_secs_f64());
            tracing::debug!(%through, ?took, "log truncated");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: SnapshotConfig = SnapshotConfig {
        entries: 100,
        catchup_entries: 50,
        log_bytes: 16 << 20,
        send_bytes_per_second: 1,
    };

    fn apply(log: &LogUse, entries: std::ops::RangeInclusive<u64>, bytes: u64) {
        for index in entries {
            log.applied(LogIndex(index), bytes);
        }
    }

    #[test]
    fn a_tail_is_kept_and_the_log_grows_by_the_rest_before_it_is_cut_again() {
        let log = LogUse::new(LogIndex(7));
        apply(&log, 8..=156, 10);
        assert_eq!(log.due(&OPTIONS), None);
        apply(&log, 157..=157, 10);
        assert_eq!(log.due(&OPTIONS), Some(LogIndex(107)));
        log.truncated(LogIndex(107));
        assert_eq!(log.due(&OPTIONS), None);
        apply(&log, 158..=257, 10);
        assert_eq!(log.due(&OPTIONS), Some(LogIndex(207)));
    }

    #[test]
    fn few_large_entries_are_cut_by_their_bytes() {
        let log = LogUse::new(LogIndex(0));
        apply(&log, 1..=15, 1 << 20);
        assert_eq!(log.due(&OPTIONS), None);
        apply(&log, 16..=16, 1 << 20);
        assert_eq!(log.due(&OPTIONS), Some(LogIndex(8)), "half is kept");
        log.truncated(LogIndex(8));
        assert_eq!(log.due(&OPTIONS), None);
    }

    #[test]
    fn what_follows_a_state_on_its_way_is_kept_up_to_a_bound() {
        let log = LogUse::new(LogIndex(0));
        apply(&log, 1..=200, 10);
        log.hold(2, LogIndex(120));
        log.hold(3, LogIndex(90));
        log.hold(3, LogIndex(90));
        log.let_go(3);
        assert_eq!(log.due(&OPTIONS), Some(LogIndex(90)));
        log.truncated(LogIndex(90));
        apply(&log, 201..=300, 10);
        assert_eq!(log.due(&OPTIONS), None, "it is still needed");
        log.let_go(3);
        assert_eq!(log.due(&OPTIONS), Some(LogIndex(120)));
        apply(&log, 301..=364, 1 << 20);
        let due = log.due(&OPTIONS);
        assert!(due > Some(LogIndex(350)), "memory is not for ever: {due:?}");
    }

    #[test]
    fn a_state_that_was_installed_begins_the_count_anew() {
        let log = LogUse::new(LogIndex(0));
        apply(&log, 1..=200, 10);
        log.installed(LogIndex(1_000));
        assert_eq!(log.due(&OPTIONS), None);
        apply(&log, 1_001..=1_150, 10);
        assert_eq!(log.due(&OPTIONS), Some(LogIndex(1_100)));
    }
}
