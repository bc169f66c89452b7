//! The replication lag of a leader's followers, sampled at intervals.

use std::time::Duration;

use crate::node::Node;
use crate::time::Instant;
use crate::types::{NodeId, Role};

/// Interval between samples.
const LAG_INTERVAL: Duration = Duration::from_millis(100);

/// What was seen last.
#[derive(Debug, Default)]
pub(crate) struct FollowerLag {
    sampled: Option<Instant>,
    entries: Vec<(NodeId, u64)>,
}

impl FollowerLag {
    /// Returns the number of unacknowledged entries of each follower if it has changed. Sampled at
    /// intervals while this node leads; an empty list at once when it stops leading.
    pub(crate) fn sample(&mut self, now: Instant, node: &Node) -> Option<&[(NodeId, u64)]> {
        let status = node.status();
        let leads = status.role == Role::Leader;
        let is_close = |sampled: Instant| now.at_least_since(sampled) < LAG_INTERVAL;
        if leads && self.sampled.is_some_and(is_close) || !leads && self.entries.is_empty() {
            return None;
        }
        self.sampled = leads.then_some(now);
        let last = status.last.index.0;
        let followers = node.consensus().followers();
        let lag = followers.map(|(peer, held)| (peer, last.saturating_sub(held.0)));
        let lag: Vec<_> = lag.collect();
        if lag == self.entries {
            return None;
        }
        self.entries = lag;
        Some(&self.entries)
    }

    /// The clock ran backwards: what was seen may seem to lie ahead.
    pub(crate) fn clock_went_back(&mut self) {
        self.sampled = None;
    }
}
