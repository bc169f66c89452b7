//! When each other node was last heard of.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Instant;
use crate::types::NodeId;

/// Interval between samples.
const INTERVAL: Duration = Duration::from_millis(500);

/// The nodes that have said something.
#[derive(Debug, Default)]
pub(crate) struct LastMessages {
    by_node: BTreeMap<NodeId, Instant>,
    sampled: Option<Instant>,
}

impl LastMessages {
    /// A message of `node` is handled.
    pub(crate) fn note(&mut self, node: NodeId, now: Instant) {
        self.by_node.insert(node, now);
    }

    /// When each was last heard of, if that is due to be reported.
    pub(crate) fn sample(&mut self, now: Instant) -> Option<&BTreeMap<NodeId, Instant>> {
        let is_close = |sampled: Instant| now.at_least_since(sampled) < INTERVAL;
        if self.sampled.is_some_and(is_close) {
            return None;
        }
        self.sampled = Some(now);
        Some(&self.by_node)
    }

    /// Forgets who is none of `nodes`.
    pub(crate) fn keep(&mut self, nodes: impl Fn(NodeId) -> bool) {
        self.by_node.retain(|node, _| nodes(*node));
    }

    /// The clock ran backwards: it reads `now`, and how long ago anything was is not known.
    pub(crate) fn clock_went_back(&mut self, now: Instant) {
        self.by_node.values_mut().for_each(|last| *last = now);
        self.sampled = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn the_last_message_of_each_counts_and_is_told_twice_a_second() {
        let mut heard = LastMessages::default();
        for (node, millis) in [(2, 0), (3, 100), (2, 200)] {
            heard.note(NodeId(node), at(millis));
        }
        let all = [(NodeId(2), at(200)), (NodeId(3), at(100))].into();
        assert_eq!(heard.sample(at(300)), Some(&all));
        assert_eq!(heard.sample(at(799)), None);
        heard.keep(|node| node == NodeId(3));
        let rest = [(NodeId(3), at(100))].into();
        assert_eq!(heard.sample(at(800)), Some(&rest));
        heard.clock_went_back(at(40));
        let reset = [(NodeId(3), at(40))].into();
        assert_eq!(heard.sample(at(50)), Some(&reset));
    }
}
