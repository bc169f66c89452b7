//! Counting the client writes of this node.
//!
//! Only the node that answers a write counts it: every replica applies it.

use super::Node;
use super::proposal_counts::Proposals;
use crate::raft::ProposalError;
use crate::types::{LogIndex, RequestId};

impl Node {
    /// Counters of client writes so far.
    pub fn proposals(&self) -> Proposals {
        Proposals {
            pending: self.pending.writes(),
            ..self.proposals
        }
    }

    /// The entry that a write waits for; `None` for other requests and for those that have ended.
    pub fn entry_of(&self, request: RequestId) -> Option<LogIndex> {
        self.pending.entry_of(request)
    }

    pub(super) fn note_refused_write(&mut self, refused: ProposalError) {
        // The client retries it at the leader.
        if !matches!(refused, ProposalError::NotLeader { .. }) {
            self.proposals.failed += 1;
        }
    }
}
