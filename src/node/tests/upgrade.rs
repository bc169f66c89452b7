//! Nodes of two releases beside each other: what the cluster agrees on, and when.

use super::*;
use crate::raft::{Change, JoinRole};
use crate::types::VersionRange;

/// The release before the first, which knows nothing that is in a log today; and the one after it.
const OLD: VersionRange = VersionRange {
    oldest: 0,
    newest: 0,
};
const NEW: VersionRange = VersionRange {
    oldest: 0,
    newest: 1,
};

impl World {
    /// A cluster of version 0 whose nodes know these.
    fn of_releases(releases: &[VersionRange]) -> Self {
        let mut world = Self::new(releases.len() as u64);
        for (id, versions) in (1..).map(NodeId).zip(releases) {
            world.becomes(id, *versions, 0);
        }
        world
    }

    /// The node is of this release from here on, in a cluster of this version, and has told nobody.
    fn becomes(&mut self, id: NodeId, versions: VersionRange, cluster: u16) {
        let replica = self.nodes.remove(&id).expect("it exists");
        let node = replica.node.with_versions(versions, cluster);
        self.nodes.insert(id, Replica { node, ..replica });
    }

    /// Everybody hears what the node knows.
    fn tells(&mut self, id: NodeId, versions: Option<VersionRange>) {
        let others: Vec<NodeId> = self.nodes.keys().copied().filter(|to| *to != id).collect();
        for to in others {
            self.give(to, Input::PeerVersions(id, versions));
        }
        self.settle();
    }

    fn versions(&self) -> Vec<u16> {
        let nodes = self.nodes.values();
        nodes
            .map(|replica| replica.node.cluster_version())
            .collect()
    }
}

#[test]
fn the_version_waits_until_the_last_member_supports_it() {
    let mut world = World::of_releases(&[NEW, NEW, OLD]);
    world.leader();
    for (id, versions) in [(1, NEW), (2, NEW), (3, OLD)] {
        world.tells(NodeId(id), Some(versions));
    }
    world.advance(1_000);
    assert_eq!(world.versions(), [0, 0, 0]);

    // The last one is stopped, and comes back as the new release.
    world.tells(NodeId(3), None);
    world.advance(1_000);
    assert_eq!(world.versions(), [0, 0, 0]);
    world.becomes(NodeId(3), NEW, 0);
    world.tells(NodeId(3), Some(NEW));
    world.advance(1_000);
    assert_eq!(world.versions(), [1, 1, 1]);
    for replica in world.nodes.values() {
        assert_eq!(crate::kv::cluster_version(&replica.store).unwrap(), 1);
    }
}

/// Until the last member knows the new version, those that do can go back to the release before.
#[test]
fn a_member_goes_back_to_the_old_release_before_the_version_is_raised() {
    let mut world = World::of_releases(&[NEW, NEW, OLD]);
    world.leader();
    for (id, versions) in [(1, NEW), (2, NEW), (3, OLD)] {
        world.tells(NodeId(id), Some(versions));
    }
    world.advance(1_000);
    world.tells(NodeId(2), None);
    world.becomes(NodeId(2), OLD, 0);
    world.tells(NodeId(2), Some(OLD));
    // The one that is newer now waits for two.
    world.becomes(NodeId(3), NEW, 0);
    world.tells(NodeId(3), Some(NEW));
    world.advance(1_000);
    assert_eq!(world.versions(), [0, 0, 0]);
    world.leader();
    world.becomes(NodeId(2), NEW, 0);
    world.tells(NodeId(2), Some(NEW));
    world.advance(1_000);
    assert_eq!(world.versions(), [1, 1, 1]);
}

#[test]
fn a_member_that_is_not_connected_may_be_of_any_release() {
    let mut world = World::of_releases(&[NEW, NEW, NEW]);
    world.leader();
    world.tells(NodeId(1), Some(NEW));
    world.tells(NodeId(2), Some(NEW));
    world.advance(1_000);
    assert_eq!(world.versions(), [0, 0, 0], "the third has said nothing");
    world.tells(NodeId(3), Some(NEW));
    world.advance(1_000);
    assert_eq!(world.versions(), [1, 1, 1]);
}

#[test]
fn a_learner_has_to_know_it_too() {
    let mut world = World::of_releases(&[NEW, NEW, NEW]);
    for id in 1..=3 {
        world.tells(NodeId(id), None);
    }
    let leader = world.leader();
    let change = Change::Add {
        member: NodeId(9),
        details: bytes::Bytes::new(),
        role: JoinRole::Learner,
    };
    // What it is sent is of no interest here.
    world.cut.push(NodeId(9));
    world.give(leader, Input::Change(change));
    world.advance(500);
    let has_learner = |world: &World| {
        let configuration = world.nodes[&leader].node.consensus().configuration();
        configuration.learners.contains(&NodeId(9))
    };
    assert!(has_learner(&world));
    for id in 1..=3 {
        world.tells(NodeId(id), Some(NEW));
    }
    world.advance(1_000);
    assert_eq!(world.versions(), [0, 0, 0]);
    for id in 1..=3 {
        world.give(NodeId(id), Input::PeerVersions(NodeId(9), Some(NEW)));
    }
    world.advance(1_000);
    assert_eq!(world.versions(), [1, 1, 1]);
}

#[test]
fn the_next_leader_proposes_what_the_one_before_could_not_commit() {
    let mut world = World::of_releases(&[NEW, NEW, NEW]);
    let first = world.leader();
    world.cut.push(first);
    for id in 1..=3 {
        world.tells(NodeId(id), Some(NEW));
    }
    let second = world.leader();
    assert_ne!(first, second);
    world.advance(1_000);
    assert_eq!(world.nodes[&second].node.cluster_version(), 1);
    assert_eq!(
        world.nodes[&first].node.cluster_version(),
        0,
        "its proposal was never committed"
    );
    world.cut.clear();
    world.advance(2_000);
    assert_eq!(world.versions(), [1, 1, 1]);
}

#[test]
fn a_release_that_knows_more_than_one_version_goes_as_far_as_all_can() {
    let newest = VersionRange {
        oldest: 0,
        newest: 7,
    };
    let middle = VersionRange {
        oldest: 0,
        newest: 4,
    };
    let mut world = World::of_releases(&[newest, middle, newest]);
    world.leader();
    for (id, versions) in [(1, newest), (2, middle), (3, newest)] {
        world.tells(NodeId(id), Some(versions));
    }
    world.advance(1_000);
    assert_eq!(world.versions(), [4, 4, 4]);
    // No way down.
    world.tells(NodeId(2), Some(OLD));
    world.advance(1_000);
    assert_eq!(world.versions(), [4, 4, 4]);
}
