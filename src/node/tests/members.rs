//! Changes of members as clients ask for them: what is refused and why, who gets which name, and when
//! it is answered.

use super::*;
use crate::api::{
    Member, MemberAddRequest, MemberDetails, MemberUpdateRequest, MembersResponse, Membership,
};
use crate::raft::{Change, MEMBERS_MAX};
use crate::types::Incarnation;

/// Far longer than a change takes between nodes that answer at once.
const DONE: u64 = 500;

fn peer_address(number: u64) -> String {
    format!("10.0.0.{number}:7401")
}

fn add(name: &str, number: u64) -> MemberAddRequest {
    MemberAddRequest {
        name: name.to_owned(),
        peer_address: peer_address(number),
        learner: true,
        ..MemberAddRequest::default()
    }
}

impl World {
    /// A cluster whose members have names and addresses, as a bootstrapped one has.
    fn of_named(count: u64) -> (Self, NodeId) {
        let mut world = Self::new(count);
        let leader = world.leader();
        for number in 1..=count {
            let details = MemberDetails {
                name: format!("n{number}"),
                incarnation: Incarnation(0),
                peer_address: peer_address(number),
                client_address: String::new(),
            };
            let member = NodeId(number);
            let details = bytes::Bytes::from(details.encode());
            world.give(leader, Input::Change(Change::Update { member, details }));
            world.advance(DONE);
        }
        assert_eq!(world.leader(), leader);
        (world, leader)
    }

    /// Asks for a change, and waits as long as it takes. Nobody runs the members that are new.
    fn change(&mut self, node: NodeId, request: Request) -> Result<MembersResponse, Error> {
        let request = self.ask(node, request, Consistency::Linearizable);
        self.advance(DONE);
        match self.answer(request) {
            Answered::Reply(result) => match result.as_ref() {
                Ok(response) => match &response.body {
                    ResponseBody::Members(members) => Ok(members.as_ref().clone()),
                    other => panic!("a change of members is answered by {other:?}"),
                },
                Err(error) => Err(error.clone()),
            },
            other => panic!("a change of members is answered by {other:?}"),
        }
    }

    /// Nobody runs the member that this would be.
    fn add(&mut self, node: NodeId, add: MemberAddRequest) -> Result<MembersResponse, Error> {
        let place = self.nodes[&node].node.consensus().status().last.index;
        for ahead in 1..=3 {
            let incarnation = Incarnation(place.0 + ahead);
            let member = NodeId::derive(ClusterId(7), &add.name, incarnation);
            self.cut.push(member);
        }
        self.change(node, Request::MemberAdd(add))
    }

    fn refusal(&mut self, node: NodeId, request: Request) -> (ErrorKind, String) {
        let refused = match request {
            Request::MemberAdd(request) => self.add(node, request),
            other => self.change(node, other),
        };
        let error = refused.expect_err("it must be refused");
        assert_eq!(error.outcome, Outcome::NotApplied, "{error}");
        (error.kind, error.detail)
    }
}

fn by_name<'a>(response: &'a MembersResponse, name: &str) -> &'a Member {
    let mut members = response.members.iter();
    let found = members.find(|member| member.info.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {response:?}"))
}

#[test]
fn a_change_is_answered_with_all_members_once_it_is_complete() {
    let (mut world, leader) = World::of_named(3);
    let place = world.nodes[&leader].node.consensus().status().last.index;
    let added = world.add(leader, add("n4", 4)).unwrap();
    let new = by_name(&added, "n4");
    assert_eq!(new.membership, Membership::Learner);
    assert_eq!(
        new.incarnation,
        Incarnation(place.0 + 1),
        "a name for each life"
    );
    let id = NodeId::derive(ClusterId(7), "n4", new.incarnation);
    assert_eq!((new.info.id, added.changed), (id, Some(id)));
    assert!(added.settled);
    let names: Vec<&str> = added.members.iter().map(|m| m.info.name.as_str()).collect();
    assert_eq!(names, ["n1", "n2", "n3", "n4"]);

    let update = MemberUpdateRequest {
        id,
        peer_address: None,
        client_address: Some("n4:7400".to_owned()),
    };
    let moved = world.change(leader, Request::MemberUpdate(update)).unwrap();
    let new = by_name(&moved, "n4");
    assert_eq!(new.info.client_address, "n4:7400");
    assert_eq!(
        new.info.peer_address,
        peer_address(4),
        "what was not named stays"
    );
    assert_eq!(new.info.id, id);

    let removed = world.change(leader, Request::MemberRemove { id }).unwrap();
    assert_eq!(removed.changed, Some(id));
    assert_eq!(removed.members.len(), 3);
    // The same name again is somebody else.
    let again = world.add(leader, add("n4", 4)).unwrap();
    assert_ne!(by_name(&again, "n4").info.id, id);
}

#[test]
fn a_voter_leaves_in_two_steps_and_is_gone_when_that_is_answered() {
    let (mut world, leader) = World::of_named(3);
    let id = NodeId(leader.0 % 3 + 1);
    let removed = world.change(leader, Request::MemberRemove { id }).unwrap();
    assert!(removed.settled);
    assert!(removed.members.iter().all(|member| member.info.id != id));
    let configuration = world.nodes[&leader].node.consensus().configuration();
    assert!(!configuration.is_joint() && !configuration.details.contains_key(&id));
}

#[test]
fn names_and_addresses_are_one_members_each() {
    let (mut world, leader) = World::of_named(3);
    let known = |kind, detail: &str| (kind, detail.to_owned());
    assert_eq!(
        world.refusal(leader, Request::MemberAdd(add("n2", 9))),
        known(
            ErrorKind::MemberExists,
            "n2 is already a member (n2): give the new one another name, or replace it"
        )
    );
    assert_eq!(
        world.refusal(leader, Request::MemberAdd(add("n9", 2))),
        known(
            ErrorKind::MemberExists,
            "n2 already has the address 10.0.0.2:7401 (n2): members cannot share an address"
        )
    );
    let update = |id, number| {
        Request::MemberUpdate(MemberUpdateRequest {
            id: NodeId(id),
            peer_address: Some(peer_address(number)),
            client_address: None,
        })
    };
    assert_eq!(
        world.refusal(leader, update(1, 2)),
        known(
            ErrorKind::MemberExists,
            "n2 already has the address 10.0.0.2:7401 (n2)"
        )
    );
    let own = world.change(leader, update(2, 2)).unwrap();
    assert_eq!(
        own.changed,
        Some(NodeId(2)),
        "its own address is nobody else's"
    );
    // Who takes a place may have its name and its address.
    let other = NodeId(leader.0 % 3 + 1);
    let rebuilt = MemberAddRequest {
        learner: false,
        replaces: Some(other),
        ..add(&format!("n{other}", other = other.0), other.0)
    };
    let joins = world.nodes[&leader].node.consensus().status().last.index;
    world.cut.push(NodeId::derive(
        ClusterId(7),
        &rebuilt.name,
        Incarnation(joins.0 + 1),
    ));
    let joining = world.change(leader, Request::MemberAdd(rebuilt)).unwrap();
    let lives: Vec<Membership> = joining
        .members
        .iter()
        .filter(|member| member.info.name == format!("n{}", other.0))
        .map(|member| member.membership)
        .collect();
    assert_eq!(lives.len(), 2, "{joining:?}");
    assert!(lives.contains(&Membership::Joining {
        replaces: Some(other)
    }));
    assert!(!joining.settled, "it has not joined yet");
}

#[test]
fn what_would_not_be_safe_or_means_nothing_is_refused_and_says_why() {
    let (mut world, leader) = World::of_named(3);
    let (other, third) = (NodeId(leader.0 % 3 + 1), NodeId((leader.0 + 1) % 3 + 1));
    let nobody = NodeId(77);
    let replace = |name: &str, number, replaces| {
        Request::MemberAdd(MemberAddRequest {
            learner: false,
            replaces: Some(replaces),
            ..add(name, number)
        })
    };
    let update = |id| {
        Request::MemberUpdate(MemberUpdateRequest {
            id,
            peer_address: Some(peer_address(50)),
            client_address: None,
        })
    };
    let learner = world.add(leader, add("learner", 40)).unwrap();
    let learner = learner.changed.expect("it was added");
    let own_name = format!("n{}", leader.0);
    let cases = [
        (
            Request::MemberRemove { id: nobody },
            ErrorKind::MemberNotFound,
            "there is no such member: see `leasehold member list`",
        ),
        (
            update(nobody),
            ErrorKind::MemberNotFound,
            "there is no such member: see `leasehold member list`",
        ),
        (
            Request::MemberPromote { id: nobody },
            ErrorKind::MemberNotFound,
            "there is no such member: see `leasehold member list`",
        ),
        (
            Request::MemberPromote { id: other },
            ErrorKind::InvalidArgument,
            "it is already a voter: only a learner can be promoted",
        ),
        (
            Request::MemberPromote { id: learner },
            ErrorKind::LearnerNotReady,
            "the learner has not connected yet",
        ),
        (
            replace("n9", 9, nobody),
            ErrorKind::UnsafeReconfiguration,
            "the member to replace is not a voter",
        ),
        (
            replace("n9", 9, learner),
            ErrorKind::UnsafeReconfiguration,
            "the member to replace is not a voter",
        ),
        (
            replace(&own_name, leader.0, leader),
            ErrorKind::UnsafeReconfiguration,
            "is the leader: transfer leadership to another member first",
        ),
    ];
    for (request, kind, reason) in cases {
        let what = format!("{request:?}");
        let (found, said) = world.refusal(leader, request);
        assert_eq!(found, kind, "{what}: {said}");
        assert!(said.contains(reason), "{what}: {said}");
    }
    // With one of three gone for longer than elections take, the others are needed.
    world.cut.push(third);
    world.advance(2_000);
    let (kind, said) = world.refusal(leader, Request::MemberRemove { id: other });
    assert_eq!(kind, ErrorKind::UnsafeReconfiguration);
    assert!(
        said.contains("only 1 of the future voters answer and 2 are needed"),
        "{said}"
    );
    let (kind, said) = world.refusal(leader, replace(&format!("n{}", other.0), other.0, other));
    assert_eq!(kind, ErrorKind::UnsafeReconfiguration);
    assert!(said.contains("too few voters would answer"), "{said}");
    // Whom nobody hears may be removed.
    let removed = world.change(leader, Request::MemberRemove { id: third });
    assert_eq!(removed.unwrap().changed, Some(third));
}

#[test]
fn a_member_of_whom_nothing_is_known_is_to_be_removed_and_added_anew() {
    let mut world = World::new(3);
    let leader = world.leader();
    let update = MemberUpdateRequest {
        id: NodeId(2),
        peer_address: Some(peer_address(2)),
        client_address: None,
    };
    let (kind, said) = world.refusal(leader, Request::MemberUpdate(update));
    assert_eq!(kind, ErrorKind::MemberNotFound);
    assert_eq!(
        said,
        "the name of n2 is not known: remove it, and add it again"
    );
}

#[test]
fn the_last_voter_stays_and_there_is_a_bound_to_members() {
    let (mut world, leader) = World::of_named(1);
    let (kind, said) = world.refusal(leader, Request::MemberRemove { id: leader });
    assert_eq!(kind, ErrorKind::UnsafeReconfiguration);
    assert!(said.contains("the last voter"), "{said}");
    for number in 2..=MEMBERS_MAX as u64 {
        let added = world.add(leader, add(&format!("n{number}"), number));
        assert_eq!(added.unwrap().members.len() as u64, number);
    }
    let (kind, said) = world.refusal(leader, Request::MemberAdd(add("more", 200)));
    assert_eq!(kind, ErrorKind::UnsafeReconfiguration);
    assert!(said.contains("the maximum number of members"), "{said}");
}

#[test]
fn a_follower_names_the_leader_and_the_second_of_two_changes_waits() {
    let (mut world, leader) = World::of_named(3);
    let follower = NodeId(leader.0 % 3 + 1);
    let (kind, _) = world.refusal(follower, Request::MemberAdd(add("n4", 4)));
    let ErrorKind::NotLeader { leader: named, .. } = kind else {
        panic!("{kind:?}");
    };
    assert_eq!(named, Some(leader));

    // No other member hears of the first change.
    for id in 1..=3 {
        if id != leader.0 {
            world.cut.push(NodeId(id));
        }
    }
    let update = |number| {
        Request::MemberUpdate(MemberUpdateRequest {
            id: NodeId(1),
            peer_address: Some(peer_address(number)),
            client_address: None,
        })
    };
    let first = world.ask(leader, update(31), Consistency::Linearizable);
    let second = world.ask(leader, update(32), Consistency::Linearizable);
    let error = world.answer(second).error().clone();
    assert_eq!(error.kind, ErrorKind::UnsafeReconfiguration);
    assert!(
        error.detail.contains("another membership change"),
        "{error}"
    );
    assert!(!world.answers.contains_key(&first), "it is not complete");

    // The leader gives up, and cannot know what becomes of it.
    world.advance(900);
    let error = world.answer(first).error().clone();
    assert_eq!(error.kind, ErrorKind::LeaderChanged);
    assert_eq!(error.outcome, Outcome::Unknown);
    assert!(error.detail.contains("check the member list"), "{error}");
}

#[test]
fn the_list_is_a_read_like_any_other() {
    let (mut world, leader) = World::of_named(3);
    let follower = NodeId(leader.0 % 3 + 1);
    for node in [leader, follower] {
        let list = world.change(node, Request::MemberList).unwrap();
        assert_eq!(list.changed, None);
        assert!(list.settled);
        let names: Vec<&str> = list.members.iter().map(|m| m.info.name.as_str()).collect();
        assert_eq!(names, ["n1", "n2", "n3"]);
    }
    // Nobody who is alone knows who the members are by now.
    world.cut.push(leader);
    world.advance(2_000);
    let (kind, _) = world.refusal(leader, Request::MemberList);
    assert!(
        matches!(
            kind,
            ErrorKind::NotLeader { .. } | ErrorKind::NoLeader | ErrorKind::QuorumTimeout
        ),
        "{kind:?}"
    );
}
