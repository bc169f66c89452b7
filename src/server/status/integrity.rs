//! Whether this node's state may be served: the result of comparing it with that of the other nodes.
//!
//! The driver writes it; every reader of the state checks it first.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::api::{Error, ErrorKind};
use crate::node::{STATE_DIFFERS, StateCheck};
use crate::types::LogIndex;

/// What is known, for all threads.
#[derive(Debug, Default)]
pub(crate) struct Integrity {
    state: AtomicU8,
    index: AtomicU64,
    agreed: AtomicU64,
    differed: AtomicU64,
}

const SOUND: u8 = 0;
const UNDECIDED: u8 = 1;
const CORRUPT: u8 = 2;
const DIVERGED: u8 = 3;

impl Integrity {
    /// Notes what the driver knows by now.
    pub(crate) fn set(&self, consistency: StateCheck, agreed: u64) {
        let (state, index) = match consistency {
            StateCheck::Sound => (SOUND, LogIndex(0)),
            StateCheck::Undecided(index) => (UNDECIDED, index),
            StateCheck::Corrupt(index) => (CORRUPT, index),
            StateCheck::Diverged(index) => (DIVERGED, index),
        };
        self.index.store(index.0, Ordering::Relaxed);
        let before = self.state.swap(state, Ordering::Release);
        if before == SOUND && state != SOUND {
            self.differed.fetch_add(1, Ordering::Relaxed);
        }
        self.agreed.store(agreed, Ordering::Relaxed);
    }

    /// The state may be served.
    pub(crate) fn is_sound(&self) -> bool {
        self.state.load(Ordering::Acquire) == SOUND
    }

    /// Comparisons that agreed, and those that did not.
    pub(crate) fn checks(&self) -> (u64, u64) {
        let agreed = self.agreed.load(Ordering::Relaxed);
        (agreed, self.differed.load(Ordering::Relaxed))
    }

    /// The alarm, if there is one.
    pub(crate) fn warning(&self) -> Option<String> {
        let index = self.index.load(Ordering::Relaxed);
        match self.state.load(Ordering::Acquire) {
            CORRUPT => Some(format!(
                "ALARM CORRUPT: at entry {index} the state of this node differs from that of a \
                 majority of the nodes: it serves no requests, does not lead, and rebuilds the \
                 state from its log at the next start; check its disk and memory for the cause \
                 before you restart it"
            )),
            UNDECIDED => Some(format!(
                "ALARM CORRUPT: at entry {index} the states of the nodes differ and no majority \
                 agrees, so the correct one is unknown: this node serves no requests until it has \
                 compared with the others; start the nodes that are down"
            )),
            DIVERGED => Some(format!(
                "ALARM CORRUPT: entry {index} was acknowledged by this node, and the leader has another one in its \
                 place: a member was started on an older copy of its data directory, so there are two \
                 histories, and both were acknowledged to clients. This node serves no requests and counts for \
                 no quorum. It keeps what it has, which the others may lack: stop it and read that with \
                 `leasehold offline dump-kv` and `dump-log`, or start a cluster from it with `leasehold offline \
                 force-new-cluster`. To give it up, move the data directory away and start the node on an \
                 empty one with cluster.state = \"existing\""
            )),
            _ => None,
        }
    }

    /// The refusal of every request while the state may not be served.
    pub(crate) fn refusal(&self) -> Error {
        Error::not_applied(ErrorKind::Corrupt, STATE_DIFFERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_corrupt(integrity: &Integrity) -> bool {
        integrity.state.load(Ordering::Acquire) == CORRUPT
    }

    #[test]
    fn what_differs_is_not_served_and_says_so() {
        let integrity = Integrity::default();
        assert!(integrity.is_sound() && integrity.warning().is_none());
        integrity.set(StateCheck::Undecided(LogIndex(7)), 3);
        assert!(!integrity.is_sound() && !is_corrupt(&integrity));
        assert!(integrity.warning().unwrap().contains("entry 7"));
        integrity.set(StateCheck::Corrupt(LogIndex(9)), 3);
        assert!(is_corrupt(&integrity));
        assert!(integrity.warning().unwrap().contains("entry 9"));
        assert_eq!(integrity.checks(), (3, 1));
        integrity.set(StateCheck::Sound, 4);
        assert!(integrity.is_sound());
        assert_eq!(integrity.checks(), (4, 1));
        integrity.set(StateCheck::Diverged(LogIndex(8)), 4);
        assert!(!integrity.is_sound());
        let warning = integrity.warning().unwrap();
        assert!(warning.contains("entry 8") && warning.contains("offline dump-kv"));
    }
}
