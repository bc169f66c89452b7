//! The status of a watcher, for operators.

use bytes::Bytes;

use super::{Hub, Phase, WatcherId};

/// The status of one watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatcherView {
    /// The first key of its range.
    pub from: Bytes,
    /// The end of the range, exclusive; `None` if it has no end.
    pub until: Option<Bytes>,
    /// Its phase: `current`, `behind`, `listing`, `future` or `ended`.
    pub phase: &'static str,
    /// The next revision that it needs; `None` while it receives its initial state, and after it
    /// was cancelled.
    pub next_revision: Option<i64>,
    /// How many existing revisions it has not received yet.
    pub lag: i64,
    /// The number of queued events.
    pub waiting_events: usize,
    /// Their bytes.
    pub waiting_bytes: usize,
}

impl Hub {
    /// The status of a watcher; `None` if it does not exist.
    pub fn view(&self, id: WatcherId) -> Option<WatcherView> {
        let watcher = self.watcher(self.slot(id)?);
        let group = self.groups.get(watcher.group.0 as usize)?.as_ref()?;
        let (phase, next_revision) = match &watcher.phase {
            Phase::Listing(_) => ("listing", None),
            Phase::Behind(next) => ("behind", Some(*next)),
            Phase::Current => ("current", Some(self.revision + 1)),
            Phase::Future(start) => ("future", Some(*start)),
            Phase::Ended(_) => ("ended", None),
        };
        let (waiting_events, waiting_bytes) = watcher.queue.load();
        Some(WatcherView {
            from: group.spec.from.clone(),
            until: group.spec.until.clone(),
            phase,
            next_revision,
            lag: next_revision.map_or(0, |next| (self.revision + 1 - next).max(0)),
            waiting_events,
            waiting_bytes,
        })
    }
}
