//! The newest revision that a client has seen, below which no read of it falls back.
//!
//! A linearizable read cannot: it sees what was acknowledged before. A serializable one is served by any node
//! from what that has applied, and the next by another that is behind the first. So the client remembers
//! the revisions of its replies and events, and where a reply is of an older state than one that it had when
//! it asked, it asks another node. The node is not told to wait: it may be cut off, and would have nothing
//! to say until the deadline.
//!
//! Revisions of two bootstraps of a cluster count different changes (A25), so each has a number of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::api::{Call, Consistency, Request, RequestKind};
use crate::sync::Mutex;
use crate::types::BootstrapId;

/// The newest revision of one bootstrap that was seen; 0 at first.
#[derive(Debug, Default)]
pub(super) struct NewestRevision(AtomicI64);

impl NewestRevision {
    pub(super) fn saw(&self, revision: i64) {
        if revision > self.get() {
            self.0.fetch_max(revision, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The oldest revision that a reply to what is sent now may show: any, unless the node could fall back.
    pub(super) fn least(&self, may_fall_back: bool) -> i64 {
        match may_fall_back {
            true => self.get(),
            false => 0,
        }
    }
}

/// The newest revisions of all bootstraps that a client met, the last one last.
#[derive(Debug, Default)]
pub(super) struct NewestRevisions {
    met: Mutex<Vec<(Option<BootstrapId>, Arc<NewestRevision>)>>,
}

/// So many are remembered.
const BOOTSTRAPS_MAX: usize = 8;

impl NewestRevisions {
    /// That of a node that comes from this bootstrap. One that does not know yet is new, and shares a number with
    /// those alone that were met right before it and do not know either, and with the bootstrap that they turn
    /// out to come from: it may be another than was known before.
    pub(super) fn of(&self, bootstrap: Option<BootstrapId>) -> Arc<NewestRevision> {
        let mut met = self.met.lock();
        let last = met.len().checked_sub(1);
        let unknown = last.filter(|last| met[*last].0.is_none());
        let known = bootstrap.and_then(|_| met.iter().position(|(id, _)| *id == bootstrap));
        let found = known.or(unknown);
        let (before, newest) = match found {
            Some(found) => met.remove(found),
            None => Default::default(),
        };
        met.push((bootstrap.or(before), Arc::clone(&newest)));
        if met.len() > BOOTSTRAPS_MAX {
            met.remove(0);
        }
        newest
    }
}

/// Whether a call may be answered with the state of a node that is behind others, and not with one that it
/// names itself.
pub(super) fn may_fall_back(call: &Call) -> bool {
    let is_current = match &call.request {
        Request::Range(range) | Request::RangePage(range) => range.revision == 0,
        Request::Snapshot(_) => false,
        other => matches!(
            other.spec().kind,
            RequestKind::Read | RequestKind::LeaseRead
        ),
    };
    is_current && may_be_old(call.consistency)
}

/// Whether a node may answer from what it has.
pub(super) fn may_be_old(consistency: Consistency) -> bool {
    matches!(
        consistency,
        Consistency::Serializable | Consistency::MaxStaleness(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bootstrap_has_its_own() {
        let all = NewestRevisions::default();
        let id = |number| Some(BootstrapId(number));
        let unknown = all.of(None);
        unknown.saw(5);
        assert_eq!(all.of(id(1)).get(), 5, "it turned out to be this one");
        all.of(id(1)).saw(9);
        all.of(id(1)).saw(7);
        assert_eq!(unknown.get(), 9);
        assert_eq!((unknown.least(true), unknown.least(false)), (9, 0));
        assert_eq!(all.of(id(2)).get(), 0);
        all.of(id(2)).saw(3);
        assert_eq!((all.of(id(1)).get(), all.of(id(2)).get()), (9, 3));
    }

    /// A cluster that was founded again counts from the start, also at a node that does not know it yet.
    #[test]
    fn a_node_that_does_not_know_its_bootstrap_has_nothing_of_the_one_before() {
        let all = NewestRevisions::default();
        let id = |number| Some(BootstrapId(number));
        all.of(id(1)).saw(1_000_000);
        let unknown = all.of(None);
        assert_eq!(unknown.get(), 0);
        unknown.saw(2);
        assert_eq!((all.of(None).get(), all.of(id(2)).get()), (2, 2));
        assert_eq!(all.of(id(1)).get(), 1_000_000);
    }
}
