//! R1 election safety, and the parts of R6 that a node shows while it runs.

use std::collections::BTreeMap;

use leasehold::raft::Status;
use leasehold::types::Term;

use super::{Violation, id, violation};
use crate::disk::SimDisk;

/// Who was elected when.
#[derive(Default)]
pub(crate) struct Elections {
    leaders: BTreeMap<Term, usize>,
}

impl Elections {
    /// `node` leads from now on: R1, at most one leader in a term; and its own vote is durable
    /// before it counts (P33).
    pub(crate) fn elected(
        &mut self,
        node: usize,
        status: &Status,
        disk: &SimDisk,
        nodes: usize,
    ) -> Result<(), Violation> {
        let term = status.term;
        let first = *self.leaders.entry(term).or_insert(node);
        if first != node {
            let what = format!("{} and {} both lead in {term}", id(first), id(node));
            return violation("R1 election safety", what);
        }
        let hard = disk.hard();
        if nodes > 1 && (hard.term != term || hard.vote != Some(id(node))) {
            let what = format!(
                "{} leads in {term} on a vote not durable: {hard:?}",
                id(node)
            );
            return violation("R9 vote durable before it counts", what);
        }
        Ok(())
    }
}

/// R6: term and commit never go back; R8: commit lies within the log.
pub(crate) fn forward(node: usize, before: &Status, after: &Status) -> Result<(), Violation> {
    if after.term < before.term || after.commit < before.commit {
        let what = format!("{} went from {before:?} to {after:?}", id(node));
        return violation("R6 term and commit go forward", what);
    }
    if after.commit > after.last.index {
        let what = format!("{} commits beyond its log: {after:?}", id(node));
        return violation("R8 commit within the log", what);
    }
    Ok(())
}
