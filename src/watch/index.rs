//! The index from keys to groups.
//!
//! Groups of a single key are found by the key. Groups of a range are kept in a treap, ordered by
//! start, in which each node knows the furthest end below it: finding those that contain a key
//! takes O(log n) plus one step per match, however they overlap. The treap draws its priorities
//! from a seed, so that clients cannot choose its shape by their choice of keys.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::group::{GroupId, Spec};

/// From keys to groups.
#[derive(Debug)]
pub(super) struct Index {
    singles: BTreeMap<Bytes, Vec<GroupId>>,
    ranges: Treap,
}

impl Index {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            singles: BTreeMap::new(),
            ranges: Treap {
                nodes: Vec::new(),
                free: Vec::new(),
                root: NONE,
                dice: seed,
            },
        }
    }

    pub(super) fn insert(&mut self, group: GroupId, spec: &Spec) {
        if spec.is_single() {
            self.singles
                .entry(spec.from.clone())
                .or_default()
                .push(group);
        } else {
            self.ranges.insert(group, spec);
        }
    }

    pub(super) fn remove(&mut self, group: GroupId, spec: &Spec) {
        if !spec.is_single() {
            return self.ranges.remove(group, spec);
        }
        if let Some(groups) = self.singles.get_mut(&spec.from) {
            groups.retain(|other| *other != group);
            if groups.is_empty() {
                self.singles.remove(&spec.from);
            }
        }
    }

    /// Adds the groups that contain `key` to `found`.
    pub(super) fn find(&self, key: &[u8], found: &mut Vec<GroupId>) {
        found.clear();
        if let Some(groups) = self.singles.get(key) {
            found.extend_from_slice(groups);
        }
        self.ranges.find(self.ranges.root, key, found);
    }
}

/// No node.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Treap {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
    dice: u64,
}

#[derive(Debug)]
struct Node {
    from: Bytes,
    until: Option<Bytes>,
    group: GroupId,
    priority: u64,
    left: u32,
    right: u32,
    /// The furthest end in this node and below it; `None` has no end.
    reach: Option<Bytes>,
}

impl Treap {
    fn insert(&mut self, group: GroupId, spec: &Spec) {
        let node = Node {
            from: spec.from.clone(),
            until: spec.until.clone(),
            group,
            priority: self.roll(),
            left: NONE,
            right: NONE,
            reach: spec.until.clone(),
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("there are fewer watchers than that")
            }
        };
        let (before, after) = self.split(self.root, &spec.from, group);
        let before = self.join(before, at);
        self.root = self.join(before, after);
    }

    fn remove(&mut self, group: GroupId, spec: &Spec) {
        self.root = self.without(self.root, &spec.from, group);
    }

    /// The tree at `at` without the node of `group`, which begins at `from`.
    fn without(&mut self, at: u32, from: &Bytes, group: GroupId) -> u32 {
        if at == NONE {
            return NONE;
        }
        let node = &self.nodes[at as usize];
        let (left, right) = (node.left, node.right);
        match (from, group).cmp(&(&node.from, node.group)) {
            std::cmp::Ordering::Less => {
                let left = self.without(left, from, group);
                self.nodes[at as usize].left = left;
            }
            std::cmp::Ordering::Greater => {
                let right = self.without(right, from, group);
                self.nodes[at as usize].right = right;
            }
            std::cmp::Ordering::Equal => {
                self.free.push(at);
                // Lets go of the keys.
                let node = &mut self.nodes[at as usize];
                (node.from, node.until, node.reach) = (Bytes::new(), None, None);
                return self.join(left, right);
            }
        }
        self.refresh(at);
        at
    }

    /// Splits the tree at (`from`, `group`).
    fn split(&mut self, at: u32, from: &Bytes, group: GroupId) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        let node = &self.nodes[at as usize];
        if (&node.from, node.group) < (from, group) {
            let (before, after) = self.split(node.right, from, group);
            self.nodes[at as usize].right = before;
            self.refresh(at);
            (at, after)
        } else {
            let (before, after) = self.split(node.left, from, group);
            self.nodes[at as usize].left = after;
            self.refresh(at);
            (before, at)
        }
    }

    /// Joins two trees, the first of which precedes the second.
    fn join(&mut self, before: u32, after: u32) -> u32 {
        if before == NONE {
            return after;
        }
        if after == NONE {
            return before;
        }
        if self.nodes[before as usize].priority > self.nodes[after as usize].priority {
            let right = self.join(self.nodes[before as usize].right, after);
            self.nodes[before as usize].right = right;
            self.refresh(before);
            before
        } else {
            let left = self.join(before, self.nodes[after as usize].left);
            self.nodes[after as usize].left = left;
            self.refresh(after);
            after
        }
    }

    fn refresh(&mut self, at: u32) {
        let node = &self.nodes[at as usize];
        let mut reach = node.until.clone();
        for below in [node.left, node.right] {
            if below == NONE {
                continue;
            }
            reach = match (reach, &self.nodes[below as usize].reach) {
                (Some(reach), Some(other)) => Some(reach.max(other.clone())),
                _ => None,
            };
        }
        self.nodes[at as usize].reach = reach;
    }

    fn find(&self, at: u32, key: &[u8], found: &mut Vec<GroupId>) {
        let Some(node) = self.nodes.get(at as usize) else {
            return;
        };
        let ends_after = |end: &Option<Bytes>| end.as_ref().is_none_or(|end| key < end.as_ref());
        if !ends_after(&node.reach) {
            return;
        }
        self.find(node.left, key, found);
        if node.from.as_ref() <= key {
            if ends_after(&node.until) {
                found.push(node.group);
            }
            self.find(node.right, key, found);
        }
    }

    /// The next priority (splitmix64).
    fn roll(&mut self) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.dice;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{KeyRange, WatchRequest};
    use proptest::prelude::*;

    fn spec(key: &Bytes, range: &KeyRange) -> Spec {
        Spec::of(&WatchRequest {
            key: key.clone(),
            range: range.clone(),
            ..WatchRequest::default()
        })
    }

    fn a_key() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xff)], 0..4)
            .prop_map(Bytes::from)
    }

    fn a_range() -> impl Strategy<Value = KeyRange> {
        prop_oneof![
            Just(KeyRange::Single),
            Just(KeyRange::Prefix),
            a_key().prop_map(KeyRange::Until),
            Just(KeyRange::From),
        ]
    }

    fn depth(treap: &Treap, at: u32) -> usize {
        match treap.nodes.get(at as usize) {
            None => 0,
            Some(node) => 1 + depth(treap, node.left).max(depth(treap, node.right)),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_key_finds_exactly_the_groups_whose_keys_hold_it(
            steps in prop::collection::vec((a_key(), a_range(), any::<bool>(), 0usize..20), 1..40),
            keys in prop::collection::vec(a_key(), 1..10),
            seed in any::<u64>(),
        ) {
            let mut index = Index::new(seed);
            let mut there: Vec<(GroupId, Spec)> = Vec::new();
            for (number, (key, range, removes, which)) in (0u32..).zip(steps) {
                if removes && !there.is_empty() {
                    let (group, spec) = there.remove(which % there.len());
                    index.remove(group, &spec);
                    // What is not there is not removed again.
                    index.remove(group, &spec);
                } else {
                    let spec = spec(&key, &range);
                    index.insert(GroupId(number), &spec);
                    there.push((GroupId(number), spec));
                }
                let mut found = Vec::new();
                for key in &keys {
                    index.find(key, &mut found);
                    found.sort();
                    let expected: Vec<GroupId> = there
                        .iter()
                        .filter(|(_, spec)| spec.holds(key))
                        .map(|(group, _)| *group)
                        .collect();
                    prop_assert_eq!(&found, &expected, "{:?}", key);
                }
            }
            for (group, spec) in there {
                index.remove(group, &spec);
            }
            prop_assert_eq!(index.ranges.root, NONE);
            prop_assert!(index.singles.is_empty());
        }
    }

    #[test]
    fn the_treap_stays_flat_however_its_keys_are_chosen() {
        let mut index = Index::new(7);
        for number in 0..10_000u32 {
            let key = Bytes::from(format!("{number:08}"));
            index.insert(GroupId(number), &spec(&key, &KeyRange::Prefix));
        }
        let depth = depth(&index.ranges, index.ranges.root);
        assert!(depth < 60, "{depth}");
        let mut found = Vec::new();
        index.find(b"00001234/x", &mut found);
        assert_eq!(found, [GroupId(1234)]);
    }
}
