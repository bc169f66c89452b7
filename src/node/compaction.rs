//! Giving up history without being asked: the leader proposes, by what is configured.
//!
//! Every node notes from time to time which revision it has reached, and only the one that leads
//! proposes. A follower has applied no more than was written by then, so whoever comes to lead may go
//! by its own notes: history is never given up early, and a change of leader does not start the
//! retention anew. A restart does, on that node.
//!
//! The notes are taken by the clock pair, on ticks, and nothing here is random: the simulator drives
//! it as the server does.

use super::Node;
use crate::api::CompactionRequest;
use crate::kv::access::Author;
use crate::kv::{Command, Operation};
use crate::time::Instant;

impl Node {
    /// Proposes to give up what is old enough, if this node leads.
    pub(super) fn compact_by_itself(&mut self, now: Instant) {
        let Some(revision) = self.compactor.look(now, self.revision) else {
            return;
        };
        if self.consensus.leads_in().is_none() || !self.consensus.status().ready {
            return;
        }
        let command = Command::WriteAs {
            author: Author::Node,
            session: None,
            operation: Operation::Compact(CompactionRequest::at(revision)),
        };
        // A refusal is no loss: the next look asks again.
        if self.consensus.propose(now, command.encode()).is_ok() {
            self.compactor.proposed = revision;
        }
    }
}
