//! What members say of where etcd's clients reach them.

use std::collections::BTreeMap;

use crate::types::{LogIndex, NodeId, Term};

/// What a node knows of these URLs.
#[derive(Debug, Default)]
pub(super) struct SaidUrls {
    /// What the members have said that are connected; empty if they have no such port.
    pub(super) said: BTreeMap<NodeId, String>,
    /// How often that has changed.
    pub(super) changes: u64,
    /// What was proposed last: as leader of which term, for which configuration, after how many changes.
    pub(super) proposed: Option<(Term, LogIndex, u64)>,
}

impl SaidUrls {
    /// A member, or this node, says where etcd's clients reach it; or is disconnected, and what was logged of it
    /// stays.
    pub(super) fn heard(&mut self, from: NodeId, url: Option<String>) {
        let Some(url) = url else {
            self.said.remove(&from);
            return;
        };
        let old = self.said.insert(from, url);
        let is_new = old.as_ref() != self.said.get(&from);
        self.changes += u64::from(is_new);
    }
}
