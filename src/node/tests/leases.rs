//! Client leases on replicas: who may renew and end them, and when. Named by the rows
//! S and X and the rules T and A of docs/protocol.md.

use super::*;
use crate::api::LeaseKept::{Expired, NotFound, Renewed, Revoked, Undecided};
use crate::api::{KeyRange, LeaseGrantRequest, LeaseGrantResponse, LeaseKept};
use crate::api::{LeaseListRequest, LeaseRef, LeaseTarget};
use crate::kv;
use crate::node::Lapse;
use crate::types::Term;

/// What an expiry may take beyond the time to live, in milliseconds: a tick of the wheel, and the
/// steps of this world's clock.
const LATE_MAX: u64 = 20;

impl World {
    fn grant_with(&mut self, node: NodeId, grant: LeaseGrantRequest) -> RequestId {
        self.ask(node, Request::LeaseGrant(grant), Consistency::default())
    }

    fn grant(&mut self, node: NodeId, ttl_ms: i64) -> LeaseGrantResponse {
        let request = LeaseGrantRequest {
            ttl_ms,
            ..LeaseGrantRequest::default()
        };
        let id = self.grant_with(node, request);
        match &self.answer(id).response().body {
            ResponseBody::LeaseGrant(granted) => granted.clone(),
            other => panic!("not a grant: {other:?}"),
        }
    }

    fn attach(&mut self, node: NodeId, key: &'static str, lease: i64) -> RequestId {
        let put = PutRequest {
            key: key.into(),
            lease: LeaseTarget::Lease(LeaseRef::id(lease)),
            ..PutRequest::default()
        };
        self.ask(node, Request::Put(put), Consistency::default())
    }

    fn renew_all(&mut self, node: NodeId, leases: &[i64]) -> RequestId {
        let leases = leases.iter().map(|id| LeaseRef::id(*id)).collect();
        self.ask(
            node,
            Request::LeaseKeepAlive(leases),
            Consistency::default(),
        )
    }

    fn kept(&self, id: RequestId) -> Vec<LeaseKept> {
        match &self.answer(id).response().body {
            // Which grant it was, only the tests of T14 ask.
            ResponseBody::LeaseKeepAlive(kept) => kept.iter().map(nameless).collect(),
            other => panic!("not a renewal: {other:?}"),
        }
    }

    fn renew(&mut self, node: NodeId, lease: i64) -> LeaseKept {
        let id = self.renew_all(node, &[lease]);
        self.kept(id)[0]
    }

    fn has(&self, node: NodeId, lease: i64) -> bool {
        let info = kv::lease_info(&self.nodes[&node].store, lease, false, 0);
        info.unwrap().is_some()
    }

    fn keys(&self, node: NodeId) -> u64 {
        let all = RangeRequest {
            range: KeyRange::Prefix,
            ..RangeRequest::default()
        };
        let found = kv::range(&self.nodes[&node].store, &all, &Limits::DEFAULT);
        found.unwrap().unwrap().count
    }

    fn terms(&self, node: NodeId) -> kv::LeaseTerms {
        kv::held_leases(&self.nodes[&node].store).unwrap().terms[0]
    }

    /// Why `node` gave every lease all its time again since this was asked last.
    fn lapses(&mut self, node: NodeId) -> Vec<Lapse> {
        let replica = self.nodes.get_mut(&node).unwrap();
        replica.node.take_lease_counts().lapses
    }

    fn replicas_agree(&self) {
        let hash = |node: &Replica| kv::content_hash(&node.store).unwrap();
        let first = hash(self.nodes.values().next().unwrap());
        assert!(self.nodes.values().all(|node| hash(node) == first));
    }
}

fn for_ms(ttl_ms: i64) -> LeaseGrantRequest {
    LeaseGrantRequest {
        ttl_ms,
        ..LeaseGrantRequest::default()
    }
}

#[test]
fn s1_a_grant_is_answered_when_it_is_committed_and_applied() {
    let mut world = World::new(3);
    let leader = world.leader();
    world.stalled = vec![leader];
    let id = world.grant_with(leader, for_ms(5_000));
    assert!(!world.answers.contains_key(&id), "committed, not applied");
    world.stalled.clear();
    world.settle();
    assert!(matches!(
        world.answer(id).response().body,
        ResponseBody::LeaseGrant(_)
    ));
    world.cut = vec![leader];
    let id = world.grant_with(leader, for_ms(5_000));
    world.advance(100);
    assert!(!world.answers.contains_key(&id), "not committed");
}

#[test]
fn s2_of_two_grants_of_one_name_under_way_together_one_succeeds() {
    let mut world = World::new(3);
    let leader = world.leader();
    world.stalled = vec![leader];
    let request = LeaseGrantRequest {
        name: "server1Lease".into(),
        ..for_ms(5_000)
    };
    let ids = [(); 2].map(|()| world.grant_with(leader, request.clone()));
    world.stalled.clear();
    world.settle();
    assert!(world.answer(ids[0]).response().header.read.is_none());
    assert_eq!(world.answer(ids[1]).error().kind, ErrorKind::LeaseExists);
}

/// S5, S6, T1: the next leader knows the lease, and gives it all its time from its own clock.
#[test]
fn s6_t1_a_new_leader_begins_every_lease_anew() {
    let mut world = World::new(3);
    let first = world.leader();
    let lease = world.grant(first, 3_000).id;
    world.attach(first, "k", lease);
    world.advance(2_000);
    world.cut = vec![first];
    let second = world.leader();
    assert_ne!(first, second);
    assert!(world.has(second, lease));
    world.advance(2_900);
    assert!(world.has(second, lease), "early");
    world.advance(100 + 300 + LATE_MAX);
    assert!(!world.has(second, lease), "late");
    assert_eq!(world.keys(second), 0);
    world.cut.clear();
    world.advance(1_000);
    assert!(!world.has(first, lease));
    world.replicas_agree();
}

/// T1: a leader that has not applied all it was elected with keeps no deadlines yet: it renews nothing
/// and expires nothing, and every lease begins when it has.
#[test]
fn t1_deadlines_begin_when_all_is_applied_that_the_leader_was_elected_with() {
    let mut world = World::new(3);
    let first = world.leader();
    let followers = world.nodes.keys().copied().filter(|id| *id != first);
    // Whoever leads next has the grant in its log, and has not applied it.
    world.stalled = followers.collect();
    let lease = world.grant(first, 1_000).id;
    world.advance(100);
    world.cut = vec![first];
    world.advance(2_500);
    let leads = |replica: &Replica| replica.node.status().role == Role::Leader;
    let others = world.nodes.iter().filter(|(id, _)| **id != first);
    let mut leading = others.filter(|(_, replica)| leads(replica));
    let (&second, replica) = leading.next().expect("one of them leads");
    assert_eq!(replica.node.lease_tracker().promoted_in(), None);
    let early = world.renew_all(second, &[lease]);
    assert!(
        !world.answers.contains_key(&early),
        "it may know too little"
    );
    // Longer than the lease lasts, and all of it in this term.
    world.advance(900);
    assert!(!world.answers.contains_key(&early));
    world.stalled.clear();
    world.settle();
    assert!(
        world.nodes[&second]
            .node
            .lease_tracker()
            .promoted_in()
            .is_some()
    );
    assert_eq!(world.kept(early), [renewed(1_000)]);
    let other = world.grant(second, 1_000).id;
    world.advance(990);
    assert!(world.has(second, lease), "it has all its time");
    assert!(world.has(second, other));
    world.advance(110 + LATE_MAX);
    assert!(!world.has(second, lease));
    assert!(!world.has(second, other));
}

/// S7: deadlines are the leader's alone.
#[test]
fn s7_who_does_not_lead_any_more_proposes_no_expiry() {
    let mut world = World::new(3);
    let first = world.leader();
    let lease = world.grant(first, 3_000).id;
    world.cut = vec![first];
    let second = world.leader();
    world.renew(second, lease);
    world.advance(1_000);
    assert_eq!(world.nodes[&first].node.lease_tracker().promoted_in(), None);
    world.renew(second, lease);
    world.advance(1_500);
    world.cut.clear();
    world.advance(500);
    assert!(world.has(second, lease));
    world.replicas_agree();
}

#[test]
fn s8_an_expiry_is_never_early_and_late_by_a_tick_at_most() {
    let mut world = World::new(3);
    let leader = world.leader();
    let lease = world.grant(leader, 1_000).id;
    for _ in 0..5 {
        world.advance(600);
        assert_eq!(world.renew(leader, lease), renewed(1_000));
    }
    world.advance(990);
    assert!(world.has(leader, lease));
    world.advance(10 + LATE_MAX);
    assert!(!world.has(leader, lease));
    let node = &mut world.nodes.get_mut(&leader).unwrap().node;
    let counts = node.take_lease_counts();
    let late = counts.late;
    assert!(late.len() == 1 && late[0] <= ms(LATE_MAX), "{late:?}");
    // One renewal of 64 is measured: the first, when 400 of 1,000 ms were left.
    assert_eq!(counts.left_at_renewal, [400]);
    assert_eq!(counts.granted_ttl_ms, [1_000]);
    assert_eq!(counts.ended.len(), 1);
    assert_eq!(counts.ended[0].1, kv::LeaseEnd::Expired);
}

/// A suspended machine counts by one clock only, and that is not enough.
#[test]
fn s9_t21_a_lease_is_due_when_both_clocks_say_so() {
    let mut tracker = tracker_with(&[(5, 1_000)]);
    let mut now = START + ms(999);
    now.boot += 5_000_000_000;
    tracker.tick(now);
    assert_eq!(tracker.take_due(now), []);
    now.raw += 2_000_000;
    tracker.tick(now + ms(20));
    assert_eq!(tracker.take_due(now + ms(20)).len(), 1);
}

/// S10, A15: the leader is deposed between its decision and the commit. The lease lives everywhere,
/// and nobody was told otherwise.
#[test]
fn s10_an_expiry_that_is_not_committed_ends_nothing() {
    let mut world = World::new(3);
    let first = world.leader();
    let lease = world.grant(first, 1_000).id;
    world.attach(first, "k", lease);
    world.advance(985);
    world.cut = vec![first];
    world.advance(50);
    let node = &world.nodes[&first].node;
    assert_eq!(node.lease_tracker().expiring(), 1, "it is in the log");
    assert!(world.has(first, lease));
    // Its own lease still holds: it would renew any other.
    assert_eq!(world.renew(first, lease), Undecided);
    let second = world.leader();
    world.renew(second, lease);
    world.cut.clear();
    world.advance(800);
    for node in world.nodes.keys() {
        assert!(world.has(*node, lease));
        assert_eq!(world.keys(*node), 1);
    }
    world.replicas_agree();
}

#[test]
fn s11_an_expiry_takes_the_keys_on_every_replica() {
    let mut world = World::new(3);
    let leader = world.leader();
    let lease = world.grant(leader, 1_000).id;
    world.attach(leader, "a", lease);
    world.attach(leader, "b", lease);
    world.advance(1_000 + LATE_MAX + 100);
    assert!(world.nodes.keys().all(|node| world.keys(*node) == 0));
    world.replicas_agree();
}

#[test]
fn s13_x10_a_renewal_is_renewed_not_found_or_expired_and_makes_no_entry() {
    let mut world = World::new(3);
    let leader = world.leader();
    let lease = world.grant(leader, 1_000).id;
    let last = world.nodes[&leader].node.status().last;
    assert_eq!(world.renew(leader, lease), renewed(1_000));
    assert_eq!(world.renew(leader, 999), NotFound);
    assert_eq!(world.nodes[&leader].node.status().last, last);
    world.advance(1_000 + LATE_MAX + 10);
    assert_eq!(world.renew(leader, lease), Expired);
    let other = world.grant(leader, 1_000).id;
    let revoke = Request::LeaseRevoke(LeaseRef::id(other));
    world.ask(leader, revoke, Consistency::default());
    assert_eq!(world.renew(leader, other), Revoked);
}

#[test]
fn s14_t18_a_follower_sends_renewals_to_the_leader() {
    let mut world = World::new(3);
    let leader = world.leader();
    let lease = world.grant(leader, 1_000).id;
    let follower = *world.nodes.keys().find(|id| **id != leader).unwrap();
    let id = world.renew_all(follower, &[lease]);
    let ErrorKind::NotLeader { leader: named, .. } = world.answer(id).error().kind else {
        panic!("{:?}", world.answer(id));
    };
    assert_eq!(named, Some(leader));
}

/// The frame of the issue: ten thousand ids, some bad, one result each.
#[test]
fn x3_bad_ids_among_ten_thousand_cost_the_others_nothing() {
    let mut world = World::new(3);
    let leader = world.leader();
    let lease = world.grant(leader, 1_000).id;
    let mut ids = vec![lease; 10_000];
    ids[7] = i64::MAX;
    ids[9_999] = 12_345;
    let id = world.renew_all(leader, &ids);
    let kept = world.kept(id);
    assert_eq!(kept.len(), ids.len());
    let bad = (0..ids.len()).filter(|place| kept[*place] == NotFound);
    assert_eq!(bad.collect::<Vec<_>>(), [7, 9_999]);
}

/// A refused proposal is no loss: the lease stays due, and is proposed again.
#[test]
fn x9_an_expiry_that_could_not_be_proposed_is_tried_again() {
    let mut world = World::new(3);
    let leader = world.leader();
    let lease = world.grant(leader, 1_000).id;
    let target = *world.nodes.keys().find(|id| **id != leader).unwrap();
    world.advance(900);
    // While leadership is handed over, to somebody who does not hear, nothing can be proposed.
    world.cut = vec![target];
    let target = Some(target);
    world.ask(
        leader,
        Request::MoveLeader { target },
        Consistency::default(),
    );
    world.advance(150);
    assert!(world.has(leader, lease), "nothing could be proposed");
    world.advance(6_000);
    let leader = world.leader();
    assert!(!world.has(leader, lease));
}

#[test]
fn x5_t16_a_lease_tells_what_is_left_of_it_where_deadlines_are_kept() {
    let mut world = World::new(3);
    let leader = world.leader();
    let lease = world.grant(leader, 1_000).id;
    world.advance(400);
    let ask = |world: &mut World, node, consistency| {
        let request = Request::LeaseTimeToLive {
            id: lease,
            keys: false,
        };
        let id = world.ask(node, request, consistency);
        match world.answers.remove(&id).unwrap() {
            Answered::Leases(asked) => Ok(asked.leases[0].remaining_ms),
            Answered::Reply(result) => Err(result.unwrap_err().kind),
            other => panic!("{other:?}"),
        }
    };
    let linearizable = ask(&mut world, leader, Consistency::Linearizable);
    assert_eq!(linearizable, Ok(Some(600)));
    let follower = *world.nodes.keys().find(|id| **id != leader).unwrap();
    let refused = ask(&mut world, follower, Consistency::Linearizable);
    assert!(matches!(refused, Err(ErrorKind::NotLeader { .. })));
    let old = ask(&mut world, follower, Consistency::Serializable);
    assert_eq!(old, Ok(None));
}

#[test]
fn x6_leases_are_listed_in_pages() {
    let mut world = World::new(1);
    let leader = world.leader();
    let granted: Vec<i64> = (0..7).map(|_| world.grant(leader, 9_000).id).collect();
    let mut after = 0;
    let mut found = Vec::new();
    loop {
        let list = LeaseListRequest {
            after,
            limit: 3,
            ..LeaseListRequest::default()
        };
        let id = world.ask(leader, Request::LeaseList(list), Consistency::default());
        let Some(Answered::Leases(page)) = world.answers.remove(&id) else {
            panic!("no page");
        };
        assert!(page.leases.len() <= 3);
        found.extend(page.leases.iter().map(|lease| lease.id));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(found, granted);
}

#[test]
fn the_time_to_live_is_clamped_below_and_refused_above() {
    let mut world = World::new(1);
    let leader = world.leader();
    let short = world.grant(leader, 1);
    assert_eq!((short.ttl_ms, short.requested_ttl_ms), (500, 1));
    let id = world.grant_with(leader, for_ms(i64::MAX));
    assert_eq!(
        world.answer(id).error().kind,
        ErrorKind::TtlOutOfRange {
            ttl_max_ms: 9_000_000_000_000
        }
    );
}

/// Of grants and of changes alike; what a lease has already it keeps.
#[test]
fn the_longest_time_to_live_and_the_most_keys_are_those_that_the_leader_is_set_to() {
    let mut world = World::with(1, |options| {
        options.leases.ttl_max = ms(60_000);
        options.leases.keys_max = 1;
    });
    let leader = world.leader();
    let limit = ErrorKind::TtlOutOfRange { ttl_max_ms: 60_000 };
    let too_long = world.grant_with(leader, for_ms(60_001));
    assert_eq!(world.answer(too_long).error().kind, limit);
    let longest = world.grant(leader, 60_000);
    assert_eq!(longest.ttl_ms, 60_000);
    let lease = LeaseRef::id(longest.id);
    let update = |ttl_ms| Request::LeaseUpdateTtl { lease, ttl_ms };
    let longer = world.ask(leader, update(60_001), Consistency::default());
    assert_eq!(world.answer(longer).error().kind, limit);
    let put = |key: &'static str| {
        Request::Put(PutRequest {
            key: key.into(),
            lease: LeaseTarget::Lease(lease),
            ..PutRequest::default()
        })
    };
    world.ask(leader, put("a"), Consistency::default());
    world.advance(100);
    let second = world.ask(leader, put("b"), Consistency::default());
    world.advance(100);
    let limit = ErrorKind::LeaseLimit { limit: 1 };
    assert_eq!(world.answer(second).error().kind, limit);
}

/// A leader that is cut off answers no renewal once its own lease is over.
#[test]
fn t2_a_leader_without_a_lease_renews_nothing() {
    let mut world = World::new(3);
    let first = world.leader();
    let lease = world.grant(first, 2_000).id;
    world.cut = vec![first];
    world.advance(460);
    let id = world.renew_all(first, &[lease]);
    assert!(!world.answers.contains_key(&id), "it waits for a quorum");
    world.advance(1_000);
    assert_eq!(world.answer(id).error().outcome, Outcome::NotApplied);
}

fn without_leader_lease(options: &mut NodeOptions) {
    options.timing = Timing::new(raft::TimingOptions {
        lease_enabled: false,
        ..raft::TimingOptions::default()
    })
    .unwrap();
}

/// A leader whose own lease is off asks a quorum instead.
#[test]
fn t2_without_a_lease_of_its_own_a_leader_renews_by_a_quorum() {
    let mut world = World::with(3, without_leader_lease);
    let leader = world.leader();
    let lease = world.grant(leader, 1_000).id;
    for _ in 0..5 {
        world.advance(600);
        let id = world.renew_all(leader, &[lease]);
        world.advance(50);
        assert_eq!(world.kept(id), [renewed(1_000)]);
    }
    world.advance(1_100);
    assert!(!world.has(leader, lease), "and leases end all the same");
}

/// T2: deadlines are kept by one leadership, and the word of an earlier one renews none of them.
#[test]
fn t2_a_permit_of_an_earlier_leadership_renews_nothing() {
    let mut world = World::with(3, without_leader_lease);
    let leader = world.leader();
    let lease = world.grant(leader, 9_000).id;
    world.stalled = vec![leader];
    world.put(leader);
    let renewal = RequestId(1_000);
    let call = Call {
        timeout_ms: 60_000,
        consistency: Consistency::default(),
        min_revision: 0,
        session: None,
        request: Request::LeaseKeepAlive(vec![LeaseRef::id(lease)]),
    };
    world.give(leader, Input::Request(renewal, call, None));
    world.advance(20);
    world.cut = vec![leader];
    let other = world.leader();
    world.cut.clear();
    world.advance(100);
    world.hand_over(other, leader);
    assert!(!world.answers.contains_key(&renewal), "it waits");
    world.stalled.clear();
    world.advance(20);
    let error = world.answer(renewal).error();
    assert_eq!(error.kind, ErrorKind::LeaderChanged);
    world.advance(20);
    let again = world.renew_all(leader, &[lease]);
    world.advance(50);
    assert_eq!(world.kept(again), [renewed(9_000)]);
}

/// T4: from the moment the expiry is in the log, nobody is told that the lease goes on, and nobody
/// that it is gone, until it is decided.
#[test]
fn t4_a15_an_expiring_lease_is_not_renewed_and_not_denied() {
    let mut world = World::new(3);
    let leader = world.leader();
    let lease = world.grant(leader, 1_000).id;
    world.advance(985);
    world.stalled = vec![leader];
    world.advance(50);
    assert!(world.has(leader, lease), "committed, not applied");
    assert_eq!(world.renew(leader, lease), Undecided);
    world.stalled.clear();
    world.settle();
    assert_eq!(world.renew(leader, lease), Expired);
}

#[test]
fn t5_a_grant_that_is_not_applied_yet_is_not_denied() {
    let mut world = World::new(3);
    let leader = world.leader();
    world.stalled = vec![leader];
    let request = LeaseGrantRequest {
        id: 77,
        ..for_ms(1_000)
    };
    world.grant_with(leader, request);
    assert_eq!(world.renew(leader, 77), Undecided);
    world.stalled.clear();
    world.settle();
    assert_eq!(world.renew(leader, 77), renewed(1_000));
}

/// T17: slow apply makes no lease end. What is known lives, whatever is still to be applied.
#[test]
fn t17_a_lease_that_is_known_is_renewed_while_apply_lags() {
    let mut world = World::new(3);
    let leader = world.leader();
    let lease = world.grant(leader, 1_000).id;
    world.stalled = vec![leader];
    let late = LeaseGrantRequest {
        id: 77,
        ..for_ms(5_000)
    };
    world.grant_with(leader, late);
    for _ in 0..4 {
        world.advance(400);
        assert_eq!(world.renew(leader, lease), renewed(1_000));
    }
    assert!(!world.has(leader, 77), "it is not applied");
    assert!(world.has(leader, lease));
}

/// T8: the members are set differently, and what holds is what whoever proposed it was set to.
#[test]
fn t8_times_to_live_and_limits_are_those_of_the_proposer_on_every_replica() {
    let mut world = World::with(3, |options| {
        options.leases.ttl_min = ms(options.id.0 * 60_000);
        options.leases.leases_max = 2 * options.id.0;
    });
    let first = world.leader();
    let mut held = 0;
    let mut fill = |world: &mut World, leader: NodeId| {
        while held < 2 * leader.0 {
            assert_eq!(world.grant(leader, 1).ttl_ms, leader.0 * 60_000);
            held += 1;
        }
        let refused = world.grant_with(leader, for_ms(600_000));
        let limit = ErrorKind::LeaseLimit {
            limit: 2 * leader.0,
        };
        assert_eq!(world.answer(refused).error().kind, limit);
        world.advance(100);
    };
    fill(&mut world, first);
    world.replicas_agree();
    let update = Request::LeaseUpdateTtl {
        lease: LeaseRef::id(world.terms(first).lease.id),
        ttl_ms: 1,
    };
    world.ask(first, update, Consistency::default());
    world.advance(100);
    for node in world.nodes.keys() {
        assert_eq!(world.terms(*node).ttl_ms, first.0 * 60_000, "{node}");
    }
    world.cut = vec![first];
    let second = world.leader();
    fill(&mut world, second);
    world.cut.clear();
    world.advance(1_000);
    world.replicas_agree();
}

/// T15, A2: the leader stood still for so long that its clients could not reach it; they get all
/// their time again, before anything is found to be due.
#[test]
fn t15_a_leader_that_stood_still_gives_all_time_again() {
    let mut world = World::new(1);
    let leader = world.leader();
    let lease = world.grant(leader, 1_000).id;
    world.advance(500);
    world.now = world.now + ms(700);
    world.give(leader, Input::Tick);
    world.settle();
    let lapses = world.lapses(leader);
    assert!(
        matches!(lapses[..], [Lapse::StoodStill(stood)] if stood >= ms(700)),
        "{lapses:?}"
    );
    world.advance(900);
    assert!(world.has(leader, lease));
    world.advance(200 + LATE_MAX);
    assert!(!world.has(leader, lease));
    assert_eq!(world.lapses(leader), []);
}

/// T15: its own lease lapsed for a while, in which no client can have renewed anything.
#[test]
fn t15_a_leader_that_nobody_answered_gives_all_time_again() {
    // Nobody gives up so soon, and nobody else stands for election.
    let patient = |options: &mut NodeOptions| {
        options.timing = Timing::new(raft::TimingOptions {
            election_timeout_min: ms(1_900),
            election_timeout_max: ms(2_000),
            step_down_after: ms(2_000),
            ..raft::TimingOptions::default()
        })
        .unwrap();
    };
    let mut world = World::with(3, patient);
    let leader = world.leader();
    let lease = world.grant(leader, 1_000).id;
    world.advance(400);
    let followers = world.nodes.keys().copied().filter(|id| *id != leader);
    world.cut = followers.collect();
    world.advance(1_100);
    assert!(world.has(leader, lease), "nothing is proposed unheard");
    world.cut.clear();
    world.advance(900);
    assert_eq!(world.leader(), leader);
    assert!(
        world.has(leader, lease),
        "it has all its time, from then on"
    );
    let lapses = world.lapses(leader);
    assert!(matches!(lapses[..], [Lapse::NoQuorum(_)]), "{lapses:?}");
    world.advance(100 + 100 + LATE_MAX);
    assert!(!world.has(leader, lease));
}

/// T9: a checkpoint is cleared before a renewal is acknowledged, so that no leader can know of the
/// checkpoint and not of the renewal.
#[test]
fn t9_a14_a_checkpoint_shortens_a_restart_and_a_renewal_clears_it_first() {
    let mut world = World::new(3);
    let leader = world.leader();
    let lease = world.grant(leader, 300_000).id;
    world.advance(130_000);
    let noted = world.terms(leader);
    assert!(noted.is_checkpointed);
    assert!((170_000..=241_000).contains(&noted.restart_ms), "{noted:?}");
    assert_eq!(world.renew(leader, lease), Undecided);
    world.advance(10);
    assert!(!world.terms(leader).is_checkpointed);
    assert_eq!(world.renew(leader, lease), renewed(300_000));
    world.advance(200_000);
    let noted = world.terms(leader);
    assert!(
        noted.is_checkpointed && noted.restart_ms <= 170_000,
        "{noted:?}"
    );
    world.cut = vec![leader];
    let second = world.leader();
    world.advance(noted.restart_ms - 1_000);
    assert!(world.has(second, lease));
    world.advance(1_000 + LATE_MAX);
    assert!(!world.has(second, lease), "not all its time again");
}

/// A13: who counts on the longer time keeps it, also under the next leader.
#[test]
fn a13_a_shorter_time_to_live_takes_nothing_back() {
    let mut world = World::new(3);
    let leader = world.leader();
    let lease = world.grant(leader, 3_000).id;
    let update = Request::LeaseUpdateTtl {
        lease: LeaseRef::id(lease),
        ttl_ms: 500,
    };
    world.ask(leader, update, Consistency::default());
    world.cut = vec![leader];
    let second = world.leader();
    world.advance(2_900);
    assert!(world.has(second, lease));
    assert_eq!(world.renew(second, lease), renewed(500));
}

/// A13: a renewal with the shorter time takes nothing of the longer one that was promised before. Its
/// leader looks at the lease in between, when it would have been due without any of that.
#[test]
fn a13_a_renewal_after_a_shorter_time_to_live_takes_nothing_back() {
    let mut world = World::new(3);
    let leader = world.leader();
    let lease = world.grant(leader, 2_000).id;
    for (ttl_ms, kept) in [(6_000, renewed(6_000)), (500, renewed(500))] {
        let update = Request::LeaseUpdateTtl {
            lease: LeaseRef::id(lease),
            ttl_ms,
        };
        world.ask(leader, update, Consistency::default());
        assert_eq!(world.renew(leader, lease), kept);
    }
    world.advance(5_800);
    assert!(world.has(leader, lease), "it was promised 6 s");
    assert_eq!(world.renew(leader, lease), renewed(500));
    world.advance(500 + LATE_MAX);
    assert!(!world.has(leader, lease), "from here on it is the shorter");
}

/// A16: what a leader began, the next one finishes.
#[test]
fn a16_the_end_of_a_lease_with_many_keys_is_continued_by_whoever_leads() {
    let mut world = World::new(3);
    let leader = world.leader();
    let lease = world.grant(leader, 60_000).id;
    let many = kv::END_KEYS_MAX + 200;
    for chunk in (0..many).collect::<Vec<_>>().chunks(100) {
        let puts = chunk.iter().map(|number| {
            crate::api::TxnOp::Put(PutRequest {
                key: format!("{number:05}").into(),
                lease: LeaseTarget::Lease(LeaseRef::id(lease)),
                ..PutRequest::default()
            })
        });
        let txn = crate::api::TxnRequest::new().and_then(puts);
        world.ask(leader, Request::Txn(txn), Consistency::default());
    }
    assert_eq!(world.keys(leader), many as u64);
    // Whoever leads next has it applied, and the one who began it does not go on.
    world.stalled = vec![leader];
    let revoke = Request::LeaseRevoke(LeaseRef::id(lease));
    world.ask(leader, revoke, Consistency::default());
    world.advance(100);
    world.cut = vec![leader];
    let second = world.leader();
    assert!(world.keys(second) <= 200);
    world.advance(100);
    assert_eq!(world.keys(second), 0);
    assert!(!world.has(second, lease));
    world.stalled.clear();
    world.cut.clear();
    world.advance(1_000);
    world.replicas_agree();
}

const START: Instant = Instant::from_nanos(1_000_000_000);

/// A tracker that was promoted at the start, with leases granted before: id and time to live.
fn tracker_with(leases: &[(i64, u64)]) -> LeaseTracker {
    let mut tracker = LeaseTracker::new(LeaseOptions::DEFAULT, ms(1_500));
    let terms = leases.iter().map(|(id, ttl_ms)| living(*id, *ttl_ms));
    tracker.restore(held(terms));
    tracker.promote(START, Term(1), LogIndex(u64::MAX));
    // Up to a tenth is added at a promotion: a renewal makes it exact.
    for (id, _) in leases {
        tracker.apply(START, kv::LeaseChange::Granted(living(*id, leases[0].1)));
    }
    tracker
}

fn renewed(ttl_ms: u64) -> LeaseKept {
    Renewed {
        ttl_ms,
        grant_index: 0,
        is_extended: false,
    }
}

/// The same, whichever grant it is, and whatever a leader gave it before.
fn nameless(kept: &LeaseKept) -> LeaseKept {
    match kept {
        Renewed { ttl_ms, .. } => renewed(*ttl_ms),
        kept => *kept,
    }
}

fn held(terms: impl Iterator<Item = kv::LeaseTerms>) -> kv::HeldLeases {
    kv::HeldLeases {
        terms: terms.collect(),
        keys: 0,
    }
}

fn living(id: i64, ttl_ms: u64) -> kv::LeaseTerms {
    let lease = LeaseRef {
        id,
        grant_index: id as u64,
    };
    kv::LeaseTerms {
        lease,
        ttl_ms,
        restart_ms: ttl_ms,
        is_checkpointed: false,
        outlasts_ttl: false,
        ending: None,
    }
}

/// T1, T9, T15: renewals are counted by who answers them, and whose time a leader restarted is told so,
/// also if the lease got a deadline of its own meanwhile.
#[test]
fn renewals_are_counted_since_the_grant_or_the_last_restart_which_the_next_one_tells() {
    let mut tracker = tracker_with(&[(1, 1_000)]);
    let lease = LeaseRef::id(1);
    let seen = |tracker: &LeaseTracker| {
        let seen = tracker.renewals(1);
        seen.map(|renewals| (renewals.count, renewals.is_extended))
    };
    let renewal = |tracker: &mut LeaseTracker| match tracker.renew(START, lease, true) {
        Renewed { is_extended, .. } => is_extended,
        kept => panic!("{kept:?}"),
    };
    assert_eq!(seen(&tracker), Some((0, false)), "granted by this leader");
    assert!(!renewal(&mut tracker));
    assert!(!renewal(&mut tracker));
    assert_eq!(seen(&tracker), Some((2, false)));
    for (term, applied) in [(Term(1), LogIndex(9)), (Term(2), LogIndex(10))] {
        tracker.promote(START, term, applied);
        assert_eq!(seen(&tracker), Some((0, true)));
        let mark = kv::LeaseChange::Changed(living(1, 1_000));
        tracker.apply(START, mark);
        assert_eq!(seen(&tracker), Some((0, true)), "that was no renewal");
        assert!(renewal(&mut tracker));
        assert_eq!(seen(&tracker), Some((1, false)));
        assert!(!renewal(&mut tracker));
    }
    tracker.demote();
    assert_eq!(seen(&tracker), None);
    // A lease of the same id, granted while another node led, was renewed by nobody here.
    let lease = LeaseRef {
        id: 1,
        grant_index: 7,
    };
    let ended = kv::LeaseChange::Ended(living(1, 1_000).lease, kv::LeaseEnd::Revoked);
    tracker.apply(START, ended);
    let again = kv::LeaseTerms {
        lease,
        ..living(1, 1_000)
    };
    tracker.apply(START, kv::LeaseChange::Granted(again));
    assert_eq!(seen(&tracker), None);
    tracker.promote(START, Term(3), LogIndex(11));
    assert_eq!(seen(&tracker), Some((0, true)));
}

/// Half a million leases that are due in the same moment: every step stays bounded, nothing is
/// forgotten, and no more than two entries wait to be applied.
#[test]
fn t10_t11_a_great_many_leases_end_in_bounded_steps() {
    let many: u64 = 500_000;
    let mut tracker = LeaseTracker::new(LeaseOptions::DEFAULT, ms(1_500));
    tracker.restore(held((1..=many).map(|number| living(number as i64, 1_000))));
    let mut now = START;
    tracker.promote(now, Term(1), LogIndex(many));
    for number in (1..=many).step_by(2) {
        let lease = LeaseRef::id(number as i64);
        let kept = tracker.renew(now + ms(5), lease, true);
        assert_eq!(nameless(&kept), renewed(1_000));
    }
    now = now + ms(999);
    tracker.tick(now);
    assert_eq!(tracker.take_due(now), [], "early");
    now = now + ms(300);
    let (mut index, mut ended, mut steps) = (many, 0, 0);
    while ended < many {
        steps += 1;
        assert!(steps < 10 * many / 512, "it does not come to an end");
        tracker.tick(now);
        let mut entries = Vec::new();
        loop {
            let batch = tracker.take_due(now);
            if batch.is_empty() {
                break;
            }
            assert!(batch.len() <= LEASE_BATCH_MAX);
            index += 1;
            tracker.proposed(LogIndex(index), batch.clone());
            entries.push((LogIndex(index), batch));
        }
        assert!(entries.len() <= 2);
        for (index, batch) in entries {
            for lease in batch {
                ended += 1;
                tracker.apply(now, kv::LeaseChange::Ended(lease, kv::LeaseEnd::Expired));
            }
            tracker.landed(index);
        }
    }
    assert!(tracker.is_empty());
    assert_eq!(tracker.expiring(), 0);
}

/// T1: deadlines are a leader's. Without being promoted, a tracker ends, marks and renews nothing, whatever it is
/// told.
#[test]
fn t1_who_was_not_promoted_decides_nothing() {
    let mut tracker = LeaseTracker::new(LeaseOptions::DEFAULT, ms(1_500));
    tracker.restore(held([living(1, 1_000)].into_iter()));
    let (lease, now) = (LeaseRef::id(1), START + ms(3_600_000));
    tracker.tick(now);
    assert_eq!(tracker.take_due(now), []);
    assert_eq!(tracker.take_marks(now), []);
    assert_eq!(tracker.to_continue(), []);
    tracker.proposed(LogIndex(5), vec![lease]);
    tracker.not_proposed(vec![lease]);
    tracker.landed(LogIndex(5));
    tracker.continued(LogIndex(6));
    assert_eq!(tracker.renew(now, lease, true), Undecided);
    assert_eq!(tracker.remaining_ms(now, 1), None);
    assert_eq!(tracker.renewals(1), None);
    assert_eq!(tracker.promoted_in(), None);
    assert_eq!(tracker.next_wakeup(), Instant::NEVER);
    assert_eq!((tracker.len(), tracker.expiring()), (1, 0));
    // What was said before it was promoted is forgotten.
    tracker.promote(now, Term(1), LogIndex(9));
    assert_eq!(tracker.take_due(now), []);
    assert_eq!(tracker.expiring(), 0);
}

/// A13: that a longer TTL may still be promised is taken back in the log once it is over, and not before.
#[test]
fn a13_a_longer_promise_is_settled_once_it_is_over() {
    let mut tracker = LeaseTracker::new(LeaseOptions::DEFAULT, ms(1_500));
    let outlasting = kv::LeaseTerms {
        restart_ms: 120_000,
        outlasts_ttl: true,
        ..living(1, 1_000)
    };
    tracker.restore(held([outlasting].into_iter()));
    tracker.promote(START, Term(1), LogIndex(9));
    assert_eq!(tracker.take_marks(START + ms(61_000)), [], "not over");
    let settle = [kv::LeaseMark {
        lease: outlasting.lease,
        kind: kv::LeaseMarkKind::Settle { ttl_ms: 1_000 },
    }];
    let marks = tracker.take_marks(START + ms(122_000));
    assert_eq!(marks, settle);
    tracker.marked(LogIndex(10), marks);
    let later = START + ms(200_000);
    assert_eq!(tracker.take_marks(later), [], "it is on its way");
    tracker.landed(LogIndex(10));
    assert_eq!(tracker.take_marks(later), settle, "it had no effect");
    let change = kv::LeaseChange::Changed(living(1, 1_000));
    tracker.apply(later, change);
    assert_eq!(tracker.take_marks(START + ms(300_000)), [], "it is settled");
}

/// T11: the next look is when a lease can be due, and none is needed while what is due is on its way.
#[test]
fn t11_the_next_look_is_when_a_lease_can_be_due() {
    let tick = ms(10);
    let mut tracker = tracker_with(&[(1, 2_000)]);
    assert_eq!(tracker.next_wakeup().boot, (START + ms(2_000)).boot);
    let kept = tracker.renew(START + ms(1_000), LeaseRef::id(1), true);
    assert_eq!(nameless(&kept), renewed(2_000));
    // The lease moves in the wheel when its old place comes round.
    let now = START + ms(2_500);
    tracker.tick(now);
    assert_eq!(tracker.take_due(now), [], "it was renewed");
    let due = START + ms(3_000);
    let next = tracker.next_wakeup();
    assert!(next.boot >= due.boot, "not before it is due");
    assert!(next.boot <= (due + tick).boot, "and a tick later at most");
    let now = due + tick + ms(1);
    tracker.tick(now);
    assert_eq!(
        tracker.next_wakeup(),
        Instant::ZERO,
        "one is to be proposed"
    );
    assert_eq!(tracker.expiring(), 1);
    let batch = tracker.take_due(now);
    tracker.not_proposed(batch);
    assert_eq!(tracker.next_wakeup(), Instant::ZERO, "it is tried again");
    let batch = tracker.take_due(now);
    assert_eq!(batch.len(), 1);
    tracker.proposed(LogIndex(9), batch.clone());
    assert_eq!(tracker.next_wakeup(), Instant::NEVER, "it is on its way");
    for lease in batch {
        tracker.apply(now, kv::LeaseChange::Ended(lease, kv::LeaseEnd::Expired));
    }
    tracker.landed(LogIndex(9));
    assert_eq!(tracker.next_wakeup(), Instant::NEVER);
    assert!(tracker.is_empty());
}

/// A lease may be renewed while it waits for its turn to be proposed, and then it has all its time.
#[test]
fn t4_a_lease_that_is_renewed_while_it_waits_to_be_proposed_lives() {
    let many: Vec<(i64, u64)> = (1..=3 * LEASE_BATCH_MAX as i64)
        .map(|id| (id, 1_000))
        .collect();
    let mut tracker = tracker_with(&many);
    let now = START + ms(1_010);
    tracker.tick(now);
    let mut flights = Vec::new();
    for index in [9, 10] {
        let batch = tracker.take_due(now);
        tracker.proposed(LogIndex(index), batch.clone());
        flights.extend(batch);
    }
    assert_eq!(tracker.take_due(now), [], "enough is under way");
    let waiting = many.iter().map(|(id, _)| *id);
    let waiting: Vec<i64> = waiting
        .filter(|id| flights.iter().all(|lease| lease.id != *id))
        .collect();
    assert_eq!(waiting.len(), LEASE_BATCH_MAX);
    let waits = LeaseRef::id(waiting[0]);
    let kept = tracker.renew(now, waits, true);
    assert_eq!(nameless(&kept), renewed(1_000));
    for lease in flights {
        tracker.apply(now, kv::LeaseChange::Ended(lease, kv::LeaseEnd::Expired));
    }
    tracker.landed(LogIndex(9));
    let batch = tracker.take_due(now);
    assert_eq!(batch.len(), LEASE_BATCH_MAX - 1);
    assert!(batch.iter().all(|lease| lease.id != waits.id));
    tracker.proposed(LogIndex(11), batch);
    tracker.landed(LogIndex(10));
    let later = now + ms(1_010);
    tracker.tick(later);
    let due: Vec<i64> = tracker
        .take_due(later)
        .iter()
        .map(|lease| lease.id)
        .collect();
    assert_eq!(due, [waits.id], "and it ends when that is over");
}

/// T11: a promotion touches no lease, however many there are. They are looked at when they are due.
#[test]
fn t11_a_promotion_touches_no_lease() {
    let mut tracker = LeaseTracker::new(LeaseOptions::DEFAULT, ms(1_500));
    tracker.restore(held((1..=1_000).map(|id| living(id, 60_000))));
    for term in 1..=3 {
        let now = START + ms(1_000 * term);
        tracker.promote(now, Term(term), LogIndex(1_000));
        assert_eq!(tracker.touched(), 0);
        tracker.renew(now, LeaseRef::id(7), true);
        assert_eq!(tracker.touched(), 1);
        tracker.demote();
    }
}

/// A14: of each lease one mark is under way at most, and a renewal is not acknowledged while one is,
/// nor before one that stands is cleared; whether it stands in the state or only in the log.
#[test]
fn a14_of_a_lease_one_mark_is_under_way_and_renewals_wait_for_it() {
    let ttl_ms = 600_000;
    let mut tracker = tracker_with(&[(5, ttl_ms)]);
    let lease = LeaseRef::id(5);
    let now = START + ms(120_000);
    let marks = tracker.take_marks(now);
    let kinds = |marks: &[kv::LeaseMark]| marks.iter().map(|mark| mark.kind).collect::<Vec<_>>();
    // The larger view of the two clocks, rounded up, and a millisecond.
    assert_eq!(kinds(&marks), [kv::LeaseMarkKind::Remaining(480_001)]);
    tracker.marked(LogIndex(9), marks);
    assert_eq!(tracker.renew(now, lease, true), Undecided);
    let later = now + ms(300_000);
    assert_eq!(tracker.take_marks(later), [], "the first is under way");
    let with = |restart_ms, is_checkpointed| kv::LeaseTerms {
        restart_ms,
        is_checkpointed,
        ..living(5, ttl_ms)
    };
    tracker.apply(later, kv::LeaseChange::Changed(with(480_001, true)));
    tracker.landed(LogIndex(9));
    // Several renewals ask for it, and it is cleared once.
    for _ in 0..3 {
        assert_eq!(tracker.renew(later, lease, true), Undecided);
    }
    let marks = tracker.take_marks(later);
    assert_eq!(kinds(&marks), [kv::LeaseMarkKind::Clear]);
    tracker.marked(LogIndex(10), marks);
    assert_eq!(tracker.renew(later, lease, true), Undecided);
    assert_eq!(tracker.take_marks(later), []);
    tracker.apply(later, kv::LeaseChange::Changed(with(ttl_ms, false)));
    tracker.landed(LogIndex(10));
    assert_eq!(
        nameless(&tracker.renew(later, lease, true)),
        renewed(ttl_ms)
    );
}

/// A14: the next leader goes by what is noted, so the clock decides that says that more is left.
#[test]
fn a14_a_checkpoint_notes_the_larger_of_what_the_two_clocks_say_is_left() {
    for (boot_s, raw_s) in [(120, 150), (150, 120)] {
        let mut tracker = tracker_with(&[(5, 600_000)]);
        let now = Instant {
            boot: START.boot + boot_s * 1_000_000_000,
            raw: START.raw + raw_s * 1_000_000_000,
        };
        let marks = tracker.take_marks(now);
        let kinds: Vec<_> = marks.iter().map(|mark| mark.kind).collect();
        assert_eq!(kinds, [kv::LeaseMarkKind::Remaining(480_001)]);
    }
}

/// A14: a mark that could not be proposed is asked for again, and one that is applied to a lease that
/// is over acknowledges nothing.
#[test]
fn a14_a_clear_that_was_refused_is_asked_for_again_and_one_for_an_ended_lease_renews_nothing() {
    let mut tracker = tracker_with(&[(5, 600_000)]);
    let lease = living(5, 600_000).lease;
    let checkpointed = kv::LeaseTerms {
        restart_ms: 300_000,
        is_checkpointed: true,
        ..living(5, 600_000)
    };
    let now = START + ms(100);
    tracker.apply(now, kv::LeaseChange::Changed(checkpointed));
    for _ in 0..2 {
        assert_eq!(tracker.renew(now, lease, true), Undecided);
        assert_eq!(tracker.take_marks(now).len(), 1, "and it was not proposed");
    }
    assert_eq!(tracker.renew(now, lease, true), Undecided);
    let marks = tracker.take_marks(now);
    tracker.marked(LogIndex(9), marks);
    tracker.apply(now, kv::LeaseChange::Ended(lease, kv::LeaseEnd::Revoked));
    tracker.landed(LogIndex(9));
    assert_eq!(tracker.renew(now, lease, true), Revoked);
    assert_eq!(tracker.take_marks(now), []);
}

/// An entry that ended only some of its leases, because they had so many keys: the others are
/// proposed again, and are not renewed in between; neither if the leader was not itself meanwhile.
#[test]
fn x9_t4_what_an_entry_left_over_is_proposed_again() {
    let mut tracker = tracker_with(&[(5, 1_000)]);
    let lease = living(5, 1_000).lease;
    let now = START + ms(1_010);
    tracker.tick(now);
    assert_eq!(tracker.take_due(now), [lease]);
    tracker.proposed(LogIndex(9), vec![lease]);
    tracker.promote(now, Term(1), LogIndex(8));
    assert_eq!(tracker.renew(now, lease, true), Undecided);
    tracker.landed(LogIndex(9));
    assert_eq!(tracker.renew(now, lease, true), Undecided);
    assert_eq!(tracker.take_due(now), [lease]);
    tracker.demote();
    tracker.promote(now, Term(2), LogIndex(9));
    assert_eq!(nameless(&tracker.renew(now, lease, true)), renewed(1_000));
}

/// A12: a lease that was granted after the promotion is due by its own deadline alone.
#[test]
fn a12_the_rule_of_the_promotion_covers_no_later_grant() {
    let mut tracker = LeaseTracker::new(LeaseOptions::DEFAULT, ms(1_500));
    tracker.promote(START, Term(1), LogIndex(4));
    let granted = START + ms(5_000);
    tracker.apply(granted, kv::LeaseChange::Granted(living(5, 1_000)));
    tracker.tick(granted + ms(900));
    assert_eq!(tracker.take_due(granted + ms(900)), []);
    tracker.tick(granted + ms(1_010));
    assert_eq!(tracker.take_due(granted + ms(1_010)).len(), 1);
}
