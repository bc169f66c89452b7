//! Automatic compaction: the leader proposes it, as configured.
//!
//! Every node periodically records which revision it has reached, and only the leader proposes. A
//! follower has applied no more than was written by then, so a new leader may use its own records:
//! history is never compacted early, and a change of leader does not restart the retention. A
//! restart does, on that node.
//!
//! The records use the clock pair, on ticks, and nothing here is random: the simulator drives it as
//! the server does.

use super::Node;
use crate::api::CompactionRequest;
use crate::kv::access::Author;
use crate::kv::{Command, Operation};
use crate::time::Instant;

impl Node {
    /// Proposes a compaction of old revisions, if this node is leader.
    pub(super) fn compact_by_itself(&mut self, now: Instant) {
        let Some(revision) = self.compactor.look(now, self.revision) else {
            return;
        };
        if self.consensus.leads_in().is_none() || !self.consensus.status().ready {
            return;
        }
        let command = Command::Write {
            author: Some(Author::Node),
            session: None,
            operation: Operation::Compact(CompactionRequest::at(revision)),
        };
        // A refusal is harmless: the next check proposes again.
        if self.consensus.propose(now, command.encode()).is_ok() {
            self.compactor.proposed = revision;
        }
    }
}
