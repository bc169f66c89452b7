//! What a member has promised the others.

use std::time::Duration;

use crate::types::{NodeId, Term};

/// What a member has promised the others, besides its log (P33).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vote {
    /// The latest term this node has seen.
    pub term: Term,
    /// The candidate that it voted for in that term.
    pub voted_for: Option<NodeId>,
    /// The longest promise it ever made.
    pub promise_floor: Duration,
    /// The last term in which it voted for a candidate whose log was empty (A25); 0: none.
    pub bootstrap: Term,
}

impl Vote {
    /// Whether a node that said `self` may say `next`: a term never falls, and a vote once cast in
    /// a term stays.
    pub(super) fn allows(&self, next: &Self) -> bool {
        let same_vote = self.voted_for.is_none() || self.voted_for == next.voted_for;
        next.term > self.term || (next.term == self.term && same_vote)
    }
}
