//! The followers of a leader, sampled at intervals.

use std::time::Duration;

use crate::node::Node;
use crate::server::status::followers::Follower;
use crate::time::Instant;
use crate::types::{NodeId, Role};

/// Interval between samples.
const INTERVAL: Duration = Duration::from_millis(100);

/// What was seen last.
#[derive(Debug, Default)]
pub(crate) struct FollowerSampler {
    sampled: Option<Instant>,
    followers: Vec<(NodeId, Follower)>,
}

impl FollowerSampler {
    /// Returns each follower if any has changed. Sampled at intervals while this node leads; an empty list
    /// at once when it stops leading.
    pub(crate) fn sample(&mut self, now: Instant, node: &Node) -> Option<&[(NodeId, Follower)]> {
        let status = node.status();
        let leads = status.role == Role::Leader;
        let is_close = |sampled: Instant| now.at_least_since(sampled) < INTERVAL;
        if leads && self.sampled.is_some_and(is_close) || !leads && self.followers.is_empty() {
            return None;
        }
        self.sampled = leads.then_some(now);
        let last = status.last.index.0;
        let consensus = node.consensus();
        let followers = consensus.followers().map(|(peer, held)| {
            let follower = Follower {
                lag: last.saturating_sub(held.0),
                read_lease: consensus.read_lease_of(peer),
            };
            (peer, follower)
        });
        let followers: Vec<_> = followers.collect();
        if followers == self.followers {
            return None;
        }
        self.followers = followers;
        Some(&self.followers)
    }

    /// The clock ran backwards: what was seen may seem to lie ahead.
    pub(crate) fn clock_went_back(&mut self) {
        self.sampled = None;
    }
}
