//! Where etcd's clients reach the members, as the log says it.

use super::*;

/// What each replica has recorded, which is the same.
fn recorded(world: &World) -> Vec<(u64, String)> {
    let all = world.nodes.values();
    let mut all = all.map(|replica| crate::kv::etcd_urls(&replica.store).unwrap());
    let first = all.next().unwrap();
    assert!(all.all(|other| other == first));
    first.into_iter().map(|(id, url)| (id.0, url)).collect()
}

fn says(world: &mut World, to: NodeId, from: u64, url: &str) {
    world.give(to, Input::EtcdUrl(NodeId(from), Some(url.to_owned())));
    // The others hear with the next heartbeat that it is committed.
    world.advance(1_000);
}

#[test]
fn the_leader_has_logged_what_members_say_and_keeps_that_of_those_that_are_silent() {
    let mut world = World::new(3);
    let first = world.leader();
    let end = |world: &World| world.nodes[&first].node.applied();
    let before = end(&world);
    for member in 1..=3 {
        says(&mut world, first, member, "");
    }
    assert_eq!(end(&world), before, "nothing is logged that says nothing");
    for (member, url) in [(1, "a"), (2, "b"), (3, "c")] {
        says(&mut world, first, member, url);
    }
    let url = |id: u64, url: &str| (id, url.to_owned());
    let all = vec![url(1, "a"), url(2, "b"), url(3, "c")];
    assert_eq!(recorded(&world), all);
    let before = end(&world);
    says(&mut world, first, 3, "c");
    assert_eq!(end(&world), before, "nothing new is logged");
    // Another leader has heard of itself alone.
    let second = NodeId(1 + first.0 % 3);
    world.give(second, Input::EtcdUrl(second, Some("d".to_owned())));
    world.hand_over(first, second);
    world.advance(1_000);
    let mut expected = BTreeMap::from_iter(all);
    expected.insert(second.0, "d".to_owned());
    assert_eq!(recorded(&world), Vec::from_iter(expected.clone()));
    // One moves, and one has its port no more.
    says(&mut world, second, first.0, "e");
    says(&mut world, second, second.0, "");
    expected.insert(first.0, "e".to_owned());
    expected.remove(&second.0);
    assert_eq!(recorded(&world), Vec::from_iter(expected));
}

/// What a leader heard before a member was disconnected is older than what that has told the next one.
#[test]
fn a_leader_does_not_log_what_it_heard_of_one_that_has_gone_since() {
    let mut world = World::new(3);
    let first = world.leader();
    let second = NodeId(1 + first.0 % 3);
    let third = NodeId(1 + second.0 % 3);
    says(&mut world, first, third.0, "old");
    world.give(first, Input::EtcdUrl(third, None));
    world.hand_over(first, second);
    says(&mut world, second, third.0, "new");
    world.hand_over(second, first);
    says(&mut world, first, first.0, "own");
    let url = |id: NodeId, url: &str| (id.0, url.to_owned());
    let mut expected = vec![url(first, "own"), url(third, "new")];
    expected.sort();
    assert_eq!(recorded(&world), expected);
}
