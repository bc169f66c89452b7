//! How far the start of a node is, from opening its ports for probes until it has caught up.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::node_state::NodeState;
use crate::types::{LogIndex, Role};

/// What a node that starts is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Startup {
    /// Log and state are being opened.
    Opening,
    /// The state is compared with its hash, because the last stop was not clean.
    Verifying,
    /// There is no state: it comes from a peer.
    Receiving,
    /// The log was damaged, or is new while the cluster is older: it is copied from the peers.
    Rebuilding,
    /// No leader has been heard of.
    Joining,
    /// The log is applied: so many entries of so many since the start.
    Replaying {
        /// Applied since the start.
        done: u64,
        /// What there was to apply when this was asked.
        total: u64,
    },
    /// It has caught up with its leader once since its start.
    Serving,
}

impl Startup {
    /// As a document.
    pub(crate) fn document(self) -> Value {
        match self {
            Self::Opening => json!({"phase": "opening"}),
            Self::Verifying => json!({"phase": "verifying"}),
            Self::Receiving => json!({"phase": "receiving"}),
            Self::Rebuilding => json!({"phase": "rebuilding"}),
            Self::Joining => json!({"phase": "joining"}),
            Self::Replaying { done, total } => {
                json!({"phase": "replaying", "done": done, "total": total})
            }
            Self::Serving => json!({"phase": "serving"}),
        }
    }
}

/// What a start began with, and whether it is over.
#[derive(Debug)]
pub(crate) struct StartupProgress {
    /// How far the state was.
    pub(crate) applied: LogIndex,
    /// The state ended before the log began.
    pub(crate) lacks_state: bool,
    /// It has caught up once, and that stays so.
    pub(crate) has_caught_up: AtomicBool,
}

impl StartupProgress {
    /// How far the start is.
    pub(crate) fn stands(&self, node: &NodeState, applied: LogIndex) -> Startup {
        if self.has_caught_up.load(Ordering::Relaxed) {
            return Startup::Serving;
        }
        let status = node.status.load();
        if !node.is_readable() {
            return match self.lacks_state {
                true => Startup::Receiving,
                false => Startup::Verifying,
            };
        }
        if status.role == Role::Quarantined {
            return Startup::Rebuilding;
        }
        // What proves how old the state is can only have been learned since this process began.
        if node.published.staleness().is_some() {
            self.has_caught_up.store(true, Ordering::Relaxed);
            return Startup::Serving;
        }
        if status.leader.is_none() {
            return Startup::Joining;
        }
        let known = status.last.index.max(node.published.commit());
        Startup::Replaying {
            done: applied.0.saturating_sub(self.applied.0),
            total: known.max(applied).0.saturating_sub(self.applied.0),
        }
    }
}
