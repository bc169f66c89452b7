//! What became of writes, in numbers.

use super::*;
use crate::api::SessionCall;

impl World {
    fn proposals(&self, node: NodeId) -> Proposals {
        self.nodes[&node].node.proposals()
    }
}

#[test]
fn a_retry_is_counted_where_it_is_answered_and_nowhere_else() {
    let mut world = World::new(3);
    let leader = world.leader();
    let opened = world.ask(leader, Request::OpenSession, Consistency::default());
    let ResponseBody::OpenSession { id } = world.answer(opened).response().body else {
        panic!("no session");
    };
    let session = SessionCall {
        id,
        sequence: 1,
        acknowledged: 0,
    };
    let first = world.put_in(leader, session);
    let revision = world.answer(first).response().header.revision;
    assert_eq!(world.proposals(leader).repeated, 0);
    let again = world.put_in(leader, session);
    assert_eq!(world.answer(again).response().header.revision, revision);
    assert_eq!(world.proposals(leader).repeated, 1);
    let nodes: Vec<NodeId> = world.nodes.keys().copied().collect();
    for node in nodes.into_iter().filter(|node| *node != leader) {
        world.advance(100);
        assert_eq!(world.proposals(node), Proposals::default());
    }
}

#[test]
fn a_write_is_pending_until_it_is_answered_and_failed_if_nobody_knows_what_became_of_it() {
    let mut world = World::new(3);
    let leader = world.leader();
    let done = world.put(leader);
    world.answer(done).response();
    assert_eq!(world.proposals(leader), Proposals::default());
    world.cut = world
        .nodes
        .keys()
        .copied()
        .filter(|id| *id != leader)
        .collect();
    let lost = world.put(leader);
    assert_eq!(world.proposals(leader).pending, 1);
    assert!(world.nodes[&leader].node.entry_of(lost).is_some());
    world.advance(1_500);
    assert_eq!(world.answer(lost).error().outcome, Outcome::Unknown);
    let expected = Proposals {
        failed: 1,
        ..Proposals::default()
    };
    assert_eq!(world.proposals(leader), expected);
    assert_eq!(world.nodes[&leader].node.entry_of(lost), None);
}

#[test]
fn who_asks_a_follower_has_not_failed_but_gone_astray() {
    let mut world = World::new(3);
    let leader = world.leader();
    let follower = *world.nodes.keys().find(|id| **id != leader).unwrap();
    let astray = world.put(follower);
    let error = world.answer(astray).error();
    assert!(matches!(error.kind, ErrorKind::NotLeader { .. }), "{error}");
    assert_eq!(world.proposals(follower), Proposals::default());
}
