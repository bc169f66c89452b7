//! What can be told of a watcher to whoever looks after a node.

use bytes::Bytes;

use super::{Hub, Phase, WatcherId};

/// One watcher, as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatcherView {
    /// The first key that it is about.
    pub from: Bytes,
    /// The first key behind the last; `None` if there is none.
    pub until: Option<Bytes>,
    /// What is being done for it: `current`, `behind`, `listing`, `future` or `ended`.
    pub phase: &'static str,
    /// The revision that it is to be given next; `None` while it is given its initial state, and when
    /// it is over.
    pub next_revision: Option<i64>,
    /// How many revisions it has not been given yet, of those that there are.
    pub lag: i64,
    /// Notices that wait for its client.
    pub waiting_notices: usize,
    /// Their bytes.
    pub waiting_bytes: usize,
}

impl Hub {
    /// How a watcher stands; `None` if there is no such one.
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
        let (waiting_notices, waiting_bytes) = watcher.queue.load();
        Some(WatcherView {
            from: group.spec.from.clone(),
            until: group.spec.until.clone(),
            phase,
            next_revision,
            lag: next_revision.map_or(0, |next| (self.revision + 1 - next).max(0)),
            waiting_notices,
            waiting_bytes,
        })
    }
}
