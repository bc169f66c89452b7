//! The thread that hands the database what was applied: later, and together.
//!
//! It lets changes gather for a while, so that the database takes in one large and sorted batch in place of
//! many small ones, and a key that is written often once. The state thread and readers never wait for it,
//! unless more than [`AHEAD_BYTES_MAX`] lies ahead: then the state thread lends a hand before it applies more. Before
//! that, from [`AHEAD_BYTES_FULL`] on, clients' writes are refused, so that renewals, the ends of leases and reads go on.
//!
//! A crash loses what lies ahead, and the log has it: it is cut only by what is durable.

use std::sync::Arc;
use std::time::Duration;

use crate::front::Growth;
use crate::server::disk::space::{Passage, SpaceGate};
use crate::server::disk::store::{HandOver, StoreError};
use crate::server::metrics::{Metrics, stopwatch};
use crate::server::threads::queue::BatchQueue;

/// For so long changes gather.
const GATHERING: Duration = Duration::from_millis(50);
/// From so many bytes on they are handed over at once.
const ENOUGH_BYTES: u64 = 4 << 20;
/// From so many bytes on clients' writes are refused.
pub(crate) const AHEAD_BYTES_FULL: u64 = 24 << 20;
/// From so many bytes on nothing more is applied until some are handed over.
pub(crate) const AHEAD_BYTES_MAX: u64 = 32 << 20;
/// While there is nothing to hand over.
const UNTIL_TOLD: Duration = Duration::from_secs(3600);

/// A message to the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandOverWork {
    /// There is something ahead of the database, after there was nothing.
    Begun,
    /// There is enough of it.
    Enough,
    /// End. The state thread hands over the rest.
    Stop,
}

impl HandOverWork {
    /// What to say after a batch.
    pub(crate) fn after(growth: Growth) -> Option<Self> {
        let Growth { before, after } = growth;
        if before < ENOUGH_BYTES && after >= ENOUGH_BYTES {
            return Some(Self::Enough);
        }
        (before == 0 && after > 0).then_some(Self::Begun)
    }
}

/// Has the calling thread hand over, each piece once the disk has room for it, while `is_due` says so; or
/// until the node ends.
///
/// # Errors
/// Every error is fatal.
pub(crate) fn hand_over_while(
    is_due: impl Fn(&HandOver) -> Result<bool, StoreError>,
    hand_over: &HandOver,
    space: &SpaceGate,
) -> Result<Passage, StoreError> {
    while is_due(hand_over)? {
        if space.wait() == Passage::Ended {
            return Ok(Passage::Ended);
        }
        hand_over.step()?;
    }
    Ok(Passage::Open)
}

/// Waits until there is room for what the next batch adds; or until the node ends.
///
/// # Errors
/// As [`hand_over_while`].
pub(crate) fn make_room(hand_over: &HandOver, space: &SpaceGate) -> Result<Passage, StoreError> {
    if planted!(AheadUnbounded) {
        return Ok(Passage::Open);
    }
    let is_full = |it: &HandOver| Ok(it.ahead_bytes() >= AHEAD_BYTES_MAX);
    hand_over_while(is_full, hand_over, space)
}

/// What the thread starts from.
pub(crate) struct HandOverThread {
    pub(crate) hand_over: HandOver,
    pub(crate) work: Arc<BatchQueue<HandOverWork>>,
    pub(crate) metrics: Arc<Metrics>,
    /// Holds up what would be written to a full disk.
    pub(crate) space: Arc<SpaceGate>,
}

impl HandOverThread {
    /// Hands over until it is stopped.
    pub(crate) fn run(&mut self) -> Result<(), StoreError> {
        let mut told = Vec::new();
        loop {
            self.work.take(&mut told, UNTIL_TOLD);
            let mut is_enough = told.contains(&HandOverWork::Enough);
            // What lies ahead now is so old at least.
            let mut since = stopwatch();
            loop {
                if told.contains(&HandOverWork::Stop) {
                    return Ok(());
                }
                told.clear();
                let rest = GATHERING.saturating_sub(since.elapsed());
                if !is_enough && !rest.is_zero() {
                    self.work.take(&mut told, rest);
                    is_enough = told.contains(&HandOverWork::Enough);
                    continue;
                }
                if self.space.wait() == Passage::Ended {
                    return Ok(());
                }
                let began = stopwatch();
                let handed = self.hand_over.step()?;
                let metrics = &self.metrics.storage;
                metrics.ahead_seconds.record(since.elapsed().as_secs_f64());
                metrics
                    .hand_over_seconds
                    .record(began.elapsed().as_secs_f64());
                metrics.handed_over_bytes.increment(handed.bytes);
                if handed.rest == 0 {
                    break;
                }
                // Most of the rest has come during the step.
                since = began;
                is_enough = handed.rest >= ENOUGH_BYTES;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::PutRequest;
    use crate::kv::{Command, Operation};
    use crate::server::disk::store::{StateStore, StoreOptions};
    use crate::types::{LogId, LogIndex, Term};

    #[test]
    fn no_more_is_applied_than_what_may_lie_ahead() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let mut store = StateStore::open(&path, &StoreOptions::default()).unwrap();
        let space = SpaceGate::without_floor(folder.path());
        let hand_over = store.hand_over();
        let mut most = 0;
        for index in 1..=40 {
            assert_eq!(make_room(&hand_over, &space).unwrap(), Passage::Open);
            let operation = Operation::Put(PutRequest {
                key: vec![index].into(),
                value: vec![index; 1 << 20].into(),
                ..PutRequest::default()
            });
            let command = Command::Write {
                author: None,
                session: None,
                operation,
            };
            let id = LogId::new(LogIndex(u64::from(index)), Term(1));
            let applied = store.apply_ahead(&[(id, Some(command.encode()))], false);
            applied.unwrap();
            most = most.max(hand_over.ahead_bytes());
        }
        assert!(most > AHEAD_BYTES_MAX, "{most}: the bound was met");
        let batch = store.growth().after - store.growth().before;
        assert!(most <= AHEAD_BYTES_MAX + 2 * batch, "{most}");
        let any = |it: &HandOver| Ok(it.ahead_bytes() > 0);
        hand_over_while(any, &hand_over, &space).unwrap();
        assert!(hand_over.has(LogIndex(40)).unwrap());
    }

    #[test]
    fn the_thread_is_told_of_the_first_bytes_and_when_there_are_enough_and_no_more() {
        let after = |before, after| HandOverWork::after(Growth { before, after });
        assert_eq!(after(0, 0), None);
        assert_eq!(after(0, 1), Some(HandOverWork::Begun));
        assert_eq!(after(1, 2), None);
        assert_eq!(after(1, ENOUGH_BYTES), Some(HandOverWork::Enough));
        assert_eq!(after(0, ENOUGH_BYTES), Some(HandOverWork::Enough));
        assert_eq!(after(ENOUGH_BYTES, ENOUGH_BYTES + 1), None);
    }
}
