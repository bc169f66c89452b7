//! Deliberate bugs in what stands in for the server's threads and for the SDK: compiled under
//! `--cfg leasehold_bugs` only. Each takes a rule away that lives outside the library's pure base;
//! `leasehold::planted` has the list, `bugs.rs` insists that each is found.

use leasehold::api::{Error, Request, ResponseBody};
use leasehold::kv;
use leasehold::kv::{MemStore, Overlay};
use leasehold::node::{Answer, Source};
use leasehold::raft::{ReadPermit, Unsaved};
use leasehold::time::Instant;
use leasehold::types::{LogIndex, Role};
use leasehold::watch::Applied;

use crate::clock::MS;
use crate::machine::{Arrival, Batch, Candidate};
use crate::session::read_from;
use crate::watches::{Order, changes_of, command};
use crate::world::World;

/// What a session keeps from one batch to the next, and must not.
#[derive(Default)]
pub(crate) struct Kept {
    permit: Option<(Instant, ReadPermit)>,
    store: Option<MemStore>,
    commit: LogIndex,
}

impl World {
    fn kept(&mut self, node: usize, connection: usize) -> &mut Kept {
        let session = self.process(node).sessions.get_mut(&connection);
        &mut session.expect("it is busy").kept
    }

    /// `OlderCommit`: what the batch must see is what the one before it had to.
    pub(crate) fn planted_in_capture(
        &mut self,
        node: usize,
        connection: usize,
        commit: LogIndex,
    ) -> LogIndex {
        if planted!(CommitNotCaptured) {
            return LogIndex(0);
        }
        if planted!(OlderCommit) {
            return std::mem::replace(&mut self.kept(node, connection).commit, commit);
        }
        commit
    }

    /// `OlderSnapshot`: the store as the batch before saw it. `LateArrivals`: as this one sees it,
    /// for those who come later.
    pub(crate) fn planted_in_reading(
        &mut self,
        node: usize,
        connection: usize,
        request: &Request,
        source: Source<Result<ResponseBody, Error>>,
    ) -> Source<Result<ResponseBody, Error>> {
        if !planted!(OlderSnapshot) {
            return source;
        }
        let now = self.machines[node].disk.store.clone();
        let before = self.kept(node, connection).store.replace(now);
        before.map_or(source, |before| read_from(&before, request))
    }

    /// `LateArrivals`, first half: the batch's state is kept for them.
    pub(crate) fn planted_after_reading(&mut self, node: usize, connection: usize) {
        planted!(LateArrivals => {
            let now = self.machines[node].disk.store.clone();
            self.kept(node, connection).store = Some(now);
        });
    }

    /// `LateArrivals`, second half: they join the batch. `AppliedReadLater`: how far the store had
    /// applied when the batch read it is only asked now.
    pub(crate) fn planted_before_the_check(
        &mut self,
        node: usize,
        connection: usize,
        mut batch: Batch,
    ) -> Batch {
        if planted!(LateArrivals)
            && batch.lease.is_some()
            && let Some(store) = self.kept(node, connection).store.take()
        {
            let session = self.process(node).sessions.get_mut(&connection);
            let session = session.expect("it is busy");
            let (reads, others): (Vec<Arrival>, Vec<Arrival>) =
                std::mem::take(&mut session.arrived)
                    .into_iter()
                    .partition(|arrival| arrival.call.request.is_read());
            session.arrived = others;
            for arrival in reads {
                let source = Some(read_from(&store, &arrival.call.request));
                batch.candidates.push(Candidate { arrival, source });
            }
        }
        if planted!(AppliedReadLater) {
            let applied = self.applied(node);
            for source in batch.candidates.iter_mut().flat_map(|c| &mut c.source) {
                source.applied = applied;
            }
        }
        batch
    }

    /// `CachedCheckClock`: the driver has read the clock already.
    pub(crate) fn planted_clock(&mut self, node: usize, now: Instant) -> Instant {
        if planted!(CachedCheckClock) {
            return self.process(node).read;
        }
        now
    }

    /// `RevisionReadLater`: the store is asked for its revision once more.
    pub(crate) fn planted_in_answer<T>(&self, node: usize, mut answer: Answer<T>) -> Answer<T> {
        planted!(RevisionReadLater => {
            let progress = kv::progress(&self.machines[node].disk.store);
            answer.revision = progress.expect("memory does not fail").revision;
        });
        answer
    }

    /// `MemoizedCheck`: the lease was good a moment ago.
    pub(crate) fn planted_permit(
        &mut self,
        node: usize,
        connection: usize,
        now: Instant,
        permit: Option<ReadPermit>,
    ) -> Option<ReadPermit> {
        if !planted!(MemoizedCheck) {
            return permit;
        }
        let memo = &mut self.kept(node, connection).permit;
        match (permit, *memo) {
            (Some(permit), _) => *memo = Some((now, permit)),
            (None, Some((since, kept))) if now.at_most_since(since).as_nanos() < MEMO => {
                return Some(kept);
            }
            _ => {}
        }
        permit
    }
}

impl World {
    /// `UncommittedShown`: a leader tells its watchers what it is about to make durable.
    pub(crate) fn planted_before_the_sync(&mut self, node: usize, unsaved: &Unsaved) {
        let process = self.machines[node].process.as_ref().expect("it runs");
        let leads = process.status.role == Role::Leader && process.watches.listening;
        if !leads || !planted!(UncommittedShown) {
            return;
        }
        let store = &self.machines[node].disk.store;
        let mut overlay = Overlay::new(store);
        for (id, bytes) in unsaved.entries.iter().map(command) {
            if kv::apply(&mut overlay, id, bytes.as_deref()).is_err() {
                // Something before it is not applied yet.
                return;
            }
        }
        let revision = kv::progress(&overlay).expect("memory does not fail");
        let written: Vec<_> = overlay.into_changes().collect();
        let changes = changes_of(&written).ok();
        let revision = revision.revision;
        if changes.as_ref().is_some_and(|changes| !changes.is_empty()) {
            self.tell_watches(node, Order::Applied(Applied { revision, changes }));
        }
    }
}

/// For how long a permit is believed.
const MEMO: u128 = 100 * MS as u128;
