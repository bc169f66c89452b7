//! What became of the writes that clients asked of this node, in numbers.
//!
//! Only the node that a client waits at counts: every replica applies a write, one answers it.

use super::Node;
use super::proposal_counts::Proposals;
use crate::raft::ProposalError;
use crate::types::{LogIndex, RequestId};

impl Node {
    /// What became of the writes of clients so far.
    pub fn proposals(&self) -> Proposals {
        Proposals {
            pending: self.pending.writes(),
            ..self.proposals
        }
    }

    /// The entry that a write waits for; `None` for what is no write, or does not wait (any more).
    pub fn entry_of(&self, request: RequestId) -> Option<LogIndex> {
        self.pending.entry_of(request)
    }

    pub(super) fn note_refused_write(&mut self, refused: ProposalError) {
        // That is a detour of its client, who finds the leader.
        if !matches!(refused, ProposalError::NotLeader { .. }) {
            self.proposals.failed += 1;
        }
    }
}
