//! A node between invented disks, peers and clients.

mod etcd_urls;
mod leases;
mod members;
mod proposals;
mod upgrade;

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use super::*;
use crate::api::{
    Consistency, Error, Outcome, PutRequest, RangeRequest, Response, ResponseBody, SessionCall,
};
use crate::kv::{MemStore, SpaceAlarm, apply};
use crate::raft::{Configuration, ReadPermit};
use crate::time::Clock;
use crate::types::{BootstrapId, Role, SessionId};

/// Nodes that hand each other messages; what they do not say stays in their hands.
struct World {
    nodes: BTreeMap<NodeId, Replica>,
    now: Instant,
    next_request: u64,
    answers: BTreeMap<RequestId, Answered>,
    /// Nodes whose messages, both ways, are lost.
    cut: Vec<NodeId>,
    /// Nodes that hear everybody, and whose own messages are lost.
    mute: Vec<NodeId>,
    /// Nodes whose state machine stands still.
    stalled: Vec<NodeId>,
    idle_asked: Vec<LogIndex>,
}

struct Replica {
    node: Node,
    store: MemStore,
    inputs: VecDeque<Input>,
    unapplied: VecDeque<Entry>,
}

#[derive(Debug)]
enum Answered {
    Reply(Box<Result<Response, Error>>),
    Permit(ReadPermit),
    CaughtUp,
    Leases(QueriedLeases),
}

impl Answered {
    fn error(&self) -> &Error {
        match self {
            Self::Reply(result) => result.as_ref().as_ref().expect_err("it must fail"),
            other => panic!("no error: {other:?}"),
        }
    }

    fn response(&self) -> &Response {
        match self {
            Self::Reply(result) => result.as_ref().as_ref().expect("it must succeed"),
            other => panic!("no response: {other:?}"),
        }
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl World {
    fn new(count: u64) -> Self {
        Self::with(count, |_| {})
    }

    fn with(count: u64, adjust: impl Fn(&mut NodeOptions)) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let ids: Vec<NodeId> = (1..=count).map(NodeId).collect();
        let restored = RestoredState {
            base_configuration: Configuration {
                voters: ids.iter().copied().collect(),
                ..Configuration::default()
            },
            ..RestoredState::default()
        };
        let replica = |id: NodeId| {
            let mut options = NodeOptions {
                cluster_id: ClusterId(7),
                id,
                members: Vec::new(),
                timing: Timing::default(),
                limits: Limits::DEFAULT,
                waiting_max: 100,
                sessions_max: 10,
                session_idle_max: Duration::from_secs(600),
                leases: LeaseOptions::DEFAULT,
                auto_compaction: AutoCompaction::Off,
                check_interval: None,
                seed: id.0,
                bootstrap: BootstrapId(u128::from(id.0)),
            };
            adjust(&mut options);
            let node = Node::new(options, restored.clone(), None, 1, now);
            let store = MemStore::new();
            (
                id,
                Replica {
                    node,
                    store,
                    inputs: VecDeque::new(),
                    unapplied: VecDeque::new(),
                },
            )
        };
        Self {
            nodes: ids.into_iter().map(replica).collect(),
            now,
            next_request: 1,
            answers: BTreeMap::new(),
            cut: Vec::new(),
            mute: Vec::new(),
            stalled: Vec::new(),
            idle_asked: Vec::new(),
        }
    }

    fn settle(&mut self) {
        loop {
            let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
            let mut busy = false;
            for id in ids {
                self.apply_what_may_be(id);
                let replica = self.nodes.get_mut(&id).expect("listed");
                while let Some(input) = replica.inputs.pop_front() {
                    replica.node.handle(self.now, input);
                    busy = true;
                }
                busy |= self.carry(id);
            }
            if !busy {
                return;
            }
        }
    }

    fn apply_what_may_be(&mut self, id: NodeId) {
        if self.stalled.contains(&id) {
            return;
        }
        let replica = self.nodes.get_mut(&id).expect("it exists");
        let mut replies = Vec::new();
        while let Some(entry) = replica.unapplied.pop_front() {
            let command = match &entry.payload {
                Payload::Command(bytes) => Some(bytes.as_ref()),
                _ => None,
            };
            let reply = apply(&mut replica.store, entry.id, command).expect("memory holds");
            replies.push((entry.id, reply));
        }
        if !replies.is_empty() {
            replica.inputs.push_back(Input::Applied(replies));
        }
    }

    fn carry(&mut self, id: NodeId) -> bool {
        let mut busy = false;
        while let Some(output) = self
            .nodes
            .get_mut(&id)
            .expect("it exists")
            .node
            .poll_output()
        {
            busy = true;
            match output {
                Output::Persist(ticket, _) => self.give(id, Input::Persisted(ticket)),
                Output::Send(envelope) => {
                    let cut = |id: &NodeId| self.cut.contains(id);
                    let lost = cut(&id) || cut(&envelope.to) || self.mute.contains(&id);
                    if !lost {
                        self.give(envelope.to, Input::Message(envelope));
                    }
                }
                Output::Apply(entries) => {
                    self.nodes
                        .get_mut(&id)
                        .expect("it exists")
                        .unapplied
                        .extend(entries);
                }
                Output::FindIdleSessions { unused_since } => self.idle_asked.push(unused_since),
                Output::Read(request, permit) => {
                    self.answers.insert(request, Answered::Permit(permit));
                }
                Output::ReadLeases(request, _, asked) => {
                    self.answers.insert(request, Answered::Leases(asked));
                }
                Output::CaughtUp(request) => {
                    self.answers.insert(request, Answered::CaughtUp);
                }
                Output::SendSnapshot(_) | Output::Install(_) | Output::DiscardSnapshot(_) => {
                    panic!("logs are whole here")
                }
                Output::Reply(request, result) => {
                    self.answers
                        .insert(request, Answered::Reply(Box::new(result)));
                }
            }
        }
        busy
    }

    fn give(&mut self, id: NodeId, input: Input) {
        self.nodes
            .get_mut(&id)
            .expect("it exists")
            .inputs
            .push_back(input);
    }

    fn advance(&mut self, millis: u64) {
        for _ in 0..millis.div_ceil(5) {
            self.now = self.now + ms(5);
            let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
            for id in ids {
                self.give(id, Input::Tick);
            }
            self.settle();
        }
    }

    fn leader(&mut self) -> NodeId {
        for _ in 0..1000 {
            self.advance(10);
            let leader = self.nodes.iter().find(|(id, replica)| {
                let status = replica.node.status();
                status.role == Role::Leader && status.ready && !self.cut.contains(id)
            });
            if let Some((id, _)) = leader {
                return *id;
            }
        }
        panic!("there is no leader");
    }

    fn ask(&mut self, node: NodeId, request: Request, consistency: Consistency) -> RequestId {
        self.ask_at(node, request, consistency, 0)
    }

    fn ask_at(
        &mut self,
        node: NodeId,
        request: Request,
        consistency: Consistency,
        min_revision: i64,
    ) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let call = Call {
            timeout_ms: 1000,
            consistency,
            min_revision,
            session: None,
            request,
        };
        self.give(node, Input::Request(id, call, None));
        self.settle();
        id
    }

    /// Moves leadership; the target need not have applied what it leads with.
    fn hand_over(&mut self, from: NodeId, to: NodeId) {
        let request = Request::MoveLeader { target: Some(to) };
        self.ask(from, request, Consistency::default());
        let leads = |world: &Self| world.nodes[&to].node.status().role == Role::Leader;
        for _ in 0..100 {
            if leads(self) {
                return;
            }
            self.advance(5);
        }
        panic!("{to} does not lead: {:?}", self.answers);
    }

    fn put(&mut self, node: NodeId) -> RequestId {
        let put = PutRequest {
            key: "k".into(),
            value: "v".into(),
            prev_kv: false,
            ..PutRequest::default()
        };
        self.ask(node, Request::Put(put), Consistency::default())
    }

    /// A write of a session.
    fn put_in(&mut self, node: NodeId, session: SessionCall) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let put = PutRequest {
            key: "k".into(),
            value: "v".into(),
            ..PutRequest::default()
        };
        let call = Call {
            timeout_ms: 1000,
            consistency: Consistency::default(),
            min_revision: 0,
            session: Some(session),
            request: Request::Put(put),
        };
        self.give(node, Input::Request(id, call, None));
        self.settle();
        id
    }

    fn get(&mut self, node: NodeId, consistency: Consistency) -> RequestId {
        self.get_at(node, consistency, 0)
    }

    fn get_at(&mut self, node: NodeId, consistency: Consistency, min_revision: i64) -> RequestId {
        let range = RangeRequest {
            key: "k".into(),
            ..RangeRequest::default()
        };
        self.ask_at(node, Request::Range(range), consistency, min_revision)
    }

    fn answer(&self, id: RequestId) -> &Answered {
        self.answers
            .get(&id)
            .unwrap_or_else(|| panic!("{id} is not answered"))
    }
}

#[test]
fn a_write_is_answered_when_it_is_applied_and_says_at_which_revision() {
    let mut world = World::new(3);
    let leader = world.leader();
    let put = world.put(leader);
    let response = world.answer(put).response();
    assert!(matches!(response.body, ResponseBody::Put(_)));
    assert_eq!(
        response.header.revision, 2,
        "an empty store is at revision 1"
    );
    assert_eq!(response.header.leader_id, Some(leader));

    world.stalled = vec![leader];
    let put = world.put(leader);
    assert!(
        !world.answers.contains_key(&put),
        "committed, and not applied"
    );
    world.stalled.clear();
    world.settle();
    assert_eq!(world.answer(put).response().header.revision, 3);
}

#[test]
fn a_follower_names_the_leader() {
    let mut world = World::new(3);
    let leader = world.leader();
    let follower = *world.nodes.keys().find(|id| **id != leader).unwrap();
    let put = world.put(follower);
    let error = world.answer(put).error();
    assert_eq!(error.outcome, Outcome::NotApplied);
    let ErrorKind::NotLeader { leader: named, .. } = &error.kind else {
        panic!("{error}")
    };
    assert_eq!(*named, Some(leader));
}

#[test]
fn a_follower_serves_reads_by_its_leaders_word_and_waits_for_what_it_names() {
    let mut world = World::new(3);
    let leader = world.leader();
    let follower = *world.nodes.keys().find(|id| **id != leader).unwrap();
    world.stalled = vec![follower];
    world.put(leader);
    let commit = world.nodes[&leader].node.published().commit();
    let modes = [
        (Consistency::Linearizable, true),
        (Consistency::MaxStaleness(ms(1)), true),
        (Consistency::LeaseOnly, true),
        (Consistency::LinearizableQuorum, false),
    ];
    let asked = modes.map(|(consistency, leased)| (world.get(follower, consistency), leased));
    world.advance(20);
    for (id, _) in asked {
        assert!(!world.answers.contains_key(&id), "the put is not applied");
    }
    world.stalled.clear();
    world.advance(100);
    for (id, leased) in asked {
        let Answered::Permit(permit) = world.answer(id) else {
            panic!("no permit")
        };
        assert!(permit.is_from_leader() && permit.index() >= commit);
        assert_eq!(permit.lease_remaining().is_some(), leased);
    }
}

#[test]
fn a_follower_that_hears_of_nobody_says_so_in_the_end() {
    let mut world = World::new(3);
    let leader = world.leader();
    let follower = *world.nodes.keys().find(|id| **id != leader).unwrap();
    world.cut = vec![follower];
    let first = world.get(follower, Consistency::Linearizable);
    world.advance(200);
    assert!(!world.answers.contains_key(&first), "an answer may come");
    world.advance(750);
    let later = world.get(follower, Consistency::Linearizable);
    world.advance(300);
    for id in [first, later] {
        let error = world.answer(id).error();
        assert_eq!(error.outcome, Outcome::NotApplied);
    }
    let last = world.get(follower, Consistency::Linearizable);
    assert_eq!(world.answer(last).error().kind, ErrorKind::NoLeader);
}

/// The deposed leader hears its successor, which hears nothing from it: the part of a read's time that
/// is left goes to another node.
#[test]
fn a_deposed_leader_whose_question_is_not_answered_sends_the_read_elsewhere() {
    let mut world = World::new(3);
    let deposed = world.leader();
    world.mute = vec![deposed];
    let leads = |world: &World| world.nodes[&deposed].node.status().role == Role::Leader;
    while leads(&world) || world.nodes[&deposed].node.status().leader.is_none() {
        world.advance(5);
    }
    let successor = world.nodes[&deposed].node.status().leader.unwrap();
    assert_ne!(successor, deposed);
    let consistencies = [
        Consistency::Linearizable,
        Consistency::LinearizableQuorum,
        Consistency::MaxStaleness(ms(1)),
    ];
    let reads = consistencies.map(|consistency| world.get(deposed, consistency));
    world.advance(245);
    for id in reads {
        assert!(!world.answers.contains_key(&id), "an answer may come");
    }
    world.advance(10);
    for id in reads {
        let error = world.answer(id).error();
        assert_eq!(error.kind, ErrorKind::QuorumTimeout, "{error}");
        assert_eq!(error.outcome, Outcome::NotApplied);
        assert!(error.is_retryable());
        assert!(error.detail.contains(&successor.to_string()), "{error}");
    }
    assert_eq!(world.nodes[&deposed].node.waiting(), 0);
}

#[test]
fn a_leader_gives_its_own_round_all_the_time_that_the_read_has() {
    let mut world = World::new(3);
    let leader = world.leader();
    world.cut = vec![leader];
    let read = world.get(leader, Consistency::LinearizableQuorum);
    world.advance(500);
    assert!(
        !world.answers.contains_key(&read),
        "nobody else could do better"
    );
    world.cut.clear();
    world.advance(200);
    assert!(matches!(world.answer(read), Answered::Permit(_)));
}

/// Where the permit was given and not who leads when the reply is written: of every reply that a node
/// makes by itself, those with reads are made by the session.
#[test]
fn a_reply_names_the_leadership_that_permitted_it() {
    let mut world = World::new(3);
    let first = world.leader();
    let follower = *world.nodes.keys().find(|id| **id != first).unwrap();
    let term = world.nodes[&follower].node.status().term;
    world.stalled = vec![follower];
    world.put(first);
    let list = world.ask(follower, Request::MemberList, Consistency::Linearizable);
    world.advance(20);
    world.hand_over(first, follower);
    assert!(world.nodes[&follower].node.status().term > term);
    assert!(!world.answers.contains_key(&list), "the put is not applied");
    world.stalled.clear();
    world.advance(20);
    let header = &world.answer(list).response().header;
    assert_eq!((header.raft_term, header.leader_id), (term, Some(first)));
    assert_eq!(header.member_id, follower);
    let later = world.ask(follower, Request::MemberList, Consistency::Linearizable);
    world.advance(20);
    let header = &world.answer(later).response().header;
    assert!(header.raft_term > term);
    assert_eq!(header.leader_id, Some(follower));
}

#[test]
fn a_read_waits_for_its_revision_and_says_why_it_failed() {
    let mut world = World::new(3);
    let leader = world.leader();
    for consistency in [
        Consistency::Linearizable,
        Consistency::LinearizableQuorum,
        Consistency::Serializable,
    ] {
        let revision = world.nodes[&leader].node.revision;
        let get = world.get_at(leader, consistency, revision + 1);
        world.advance(100);
        assert!(!world.answers.contains_key(&get), "{consistency:?}");
        world.put(leader);
        match world.answer(get) {
            Answered::Permit(_) => assert_ne!(consistency, Consistency::Serializable),
            Answered::CaughtUp => assert_eq!(consistency, Consistency::Serializable),
            other => panic!("{other:?}"),
        }
    }
    let get = world.get_at(leader, Consistency::Linearizable, 1_000);
    world.advance(945);
    assert!(!world.answers.contains_key(&get));
    world.advance(10);
    let error = world.answer(get).error();
    assert_eq!(error.kind, ErrorKind::FutureRevision);
    assert_eq!(error.outcome, Outcome::NotApplied);
    assert!(error.detail.contains("1000"), "{error}");
    assert_eq!(world.nodes[&leader].node.waiting(), 0);
}

#[test]
fn a_hand_over_that_comes_to_nothing_is_told_as_such() {
    let mut world = World::new(3);
    let leader = world.leader();
    let target = *world.nodes.keys().find(|id| **id != leader).unwrap();
    world.cut = vec![target];
    let request = Request::MoveLeader {
        target: Some(target),
    };
    let moved = world.ask(leader, request.clone(), Consistency::default());
    world.advance(1_200);
    let error = world.answer(moved).error();
    assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
    assert_eq!(world.nodes[&leader].node.status().role, Role::Leader);

    // Nor is one to a node that lags too far behind to be told.
    world.put(leader);
    let moved = world.ask(leader, request, Consistency::default());
    world.advance(995);
    assert!(!world.answers.contains_key(&moved), "it may catch up");
    world.advance(10);
    let error = world.answer(moved).error();
    assert!(error.detail.contains("did not become leader"), "{error}");
}

#[test]
fn a_write_in_doubt_is_unknown_when_time_runs_out_and_when_leadership_is_lost() {
    let mut world = World::new(3);
    let leader = world.leader();
    world.cut = vec![leader];
    let put = world.put(leader);
    let quorum = world.get(leader, Consistency::LinearizableQuorum);
    world.advance(900);
    let error = world.answer(put).error();
    assert_eq!(error.outcome, Outcome::Unknown);
    assert_eq!(
        error.kind,
        ErrorKind::LeaderChanged,
        "it stepped down without a quorum"
    );
    let error = world.answer(quorum).error();
    assert_eq!(
        error.outcome,
        Outcome::NotApplied,
        "a read is never in doubt"
    );

    let mut world = World::new(1);
    let leader = world.leader();
    world.stalled = vec![leader];
    let put = world.put(leader);
    world.advance(995);
    assert!(!world.answers.contains_key(&put));
    world.advance(10);
    let error = world.answer(put).error();
    assert_eq!(
        (&error.kind, error.outcome),
        (&ErrorKind::DeadlineExceeded, Outcome::Unknown)
    );
    assert_eq!(world.nodes[&leader].node.waiting(), 0);
}

#[test]
fn a_read_waits_until_the_state_machine_has_what_was_committed_before_it() {
    let mut world = World::new(3);
    let leader = world.leader();
    for consistency in [Consistency::Linearizable, Consistency::LinearizableQuorum] {
        world.stalled = vec![leader];
        world.put(leader);
        let commit = world.nodes[&leader].node.published().commit();
        let get = world.get(leader, consistency);
        assert!(
            !world.answers.contains_key(&get),
            "{consistency:?}: the put is not applied"
        );
        world.stalled.clear();
        world.settle();
        let Answered::Permit(permit) = world.answer(get) else {
            panic!("no permit")
        };
        assert!(permit.index() >= commit);
        let leased = permit.lease_remaining().is_some();
        assert_eq!(leased, consistency == Consistency::Linearizable);
    }
}

/// P21: a batch is being published, of which another read may have found something; the lease holds all the
/// same. What is committed and can be found nowhere yet is not waited for.
#[test]
fn a_leased_read_is_not_answered_from_a_state_that_lacks_what_a_read_before_it_may_have_found() {
    let mut world = World::new(3);
    let leader = world.leader();
    world.put(leader);
    world.stalled = vec![leader];
    world.put(leader);
    let published = world.nodes[&leader].node.published();
    let applied = world.nodes[&leader].node.applied();
    assert!(applied < published.commit());
    let demand = Demand {
        consistency: Consistency::LeaseOnly,
        min_revision: 0,
    };
    let reader = Reader {
        lease_margin: Duration::ZERO,
    };
    let read_at = |shown, applied| {
        let source = Source {
            found: (),
            applied,
            revision: 1,
        };
        let reads = std::slice::from_ref(&demand);
        let captured = Captured::of(reads, shown, &published, ReadBuffer::default());
        let looked = captured.look(|_| Ok::<_, ()>(ControlFlow::Break(source.clone())));
        let mut judged = looked.unwrap().judge(&At(world.now));
        let (_, result) = judged.next(&reader).expect("one read was captured");
        result
    };
    let shown = published.commit();
    assert!(matches!(read_at(shown, applied), ReadResult::Behind));
    assert!(matches!(read_at(shown, shown), ReadResult::Answer(_)));
    assert!(matches!(read_at(applied, applied), ReadResult::Answer(_)));
}

/// The driver has not looked at the clock since: by its word the lease holds, and the state is young.
#[test]
fn a_reader_whose_clock_ran_backwards_trusts_neither_lease_nor_age() {
    let mut world = World::new(3);
    let leader = world.leader();
    world.put(leader);
    world.advance(20);
    let published = world.nodes[&leader].node.published();
    let back = |millis: u64| Instant {
        raw: world.now.raw - millis * 1_000_000,
        ..world.now
    };
    let reader = Reader {
        lease_margin: Duration::ZERO,
    };
    let mut buffer = ReadBuffer::default();
    let mut is_answered = |now, consistency| {
        let demand = Demand {
            consistency,
            min_revision: 0,
        };
        let source = Source {
            found: (),
            applied: published.commit(),
            revision: 1,
        };
        let kept = std::mem::take(&mut buffer);
        let captured = Captured::of(std::slice::from_ref(&demand), LogIndex(0), &published, kept);
        let looked = captured.look(|_| Ok::<_, ()>(ControlFlow::Break(source.clone())));
        let mut judged = looked.unwrap().judge(&At(now));
        let (_, result) = judged.next(&reader).expect("one read was captured");
        buffer = judged.finish().1;
        matches!(result, ReadResult::Answer(_))
    };
    let leased = Consistency::LeaseOnly;
    let young = Consistency::MaxStaleness(Duration::from_secs(5));
    // What is asked for is of a moment ago, so another millisecond changes nothing.
    for (now, expected) in [
        (back(1), true),
        (world.now, true),
        (back(1), false),
        (world.now, false),
    ] {
        assert_eq!(is_answered(now, leased), expected, "{now}");
        assert_eq!(is_answered(now, young), expected, "{now}, age");
    }
}

/// A clock that stands still.
struct At(Instant);

impl Clock for At {
    fn now(&self) -> Instant {
        self.0
    }
}

#[test]
fn the_leader_alone_raises_the_alarm_and_turns_away_what_adds_before_it_is_in_the_log() {
    let mut world = World::new(3);
    let leader = world.leader();
    let follower = NodeId(1 + leader.0 % 3);
    let report = |used, alarm| space(used, 100, alarm);
    let tell = |world: &mut World, node, input| {
        world.give(node, input);
        world.settle();
        world.advance(100);
        world.nodes[&leader].node.status().last.index
    };
    let alarms = |world: &World| -> Vec<Option<SpaceAlarm>> {
        let stores = world.nodes.values().map(|replica| &replica.store);
        stores
            .map(|store| crate::kv::progress(store).unwrap().space_alarm)
            .collect()
    };
    let last = tell(&mut world, leader, report(9, None));
    assert_eq!(tell(&mut world, follower, report(20, None)), last);
    assert_eq!(alarms(&world), [None; 3]);

    assert_eq!(tell(&mut world, leader, report(20, None)), last.next());
    let raised = Some(SpaceAlarm {
        used: 20,
        quota: 10,
    });
    assert_eq!(alarms(&world), [raised; 3]);
    // Before the shell has seen it, it is refused at apply; after that, without an entry.
    let refused = world.put(leader);
    let no_space = ErrorKind::NoSpace {
        used: 20,
        quota: 10,
    };
    assert_eq!(world.answer(refused).error().kind, no_space);
    let last = tell(&mut world, leader, report(20, raised));
    let refused = world.put(leader);
    let error = world.answer(refused).error();
    assert_eq!(
        (&error.kind, error.outcome),
        (&no_space, Outcome::NotApplied)
    );
    assert_eq!(world.nodes[&leader].node.status().last.index, last);

    assert_eq!(tell(&mut world, leader, report(9, raised)), last.next());
    assert_eq!(alarms(&world), [None; 3]);
    tell(&mut world, leader, report(9, None));
    let taken = world.put(leader);
    world.answer(taken).response();
}

/// Of a quota and a reserve of 10, and a floor of 5.
fn space(used: u64, free: u64, alarm: Option<SpaceAlarm>) -> Input {
    Input::Space(SpaceReport {
        used,
        quota: 10,
        free,
        reserve: 10,
        floor: 5,
        alarm,
    })
}

/// With less space than the floor.
fn stuck() -> Input {
    space(1, 4, None)
}

#[test]
fn a_leader_that_can_apply_nothing_for_want_of_space_hands_leadership_over() {
    let mut world = World::new(3);
    let leader = world.leader();
    world.give(leader, stuck());
    world.settle();
    world.advance(1_000);
    assert_ne!(world.leader(), leader);
}

/// Its disk hangs, for example: until another leads, nobody applies anything (A11).
#[test]
fn a_leader_that_applies_nothing_for_seconds_hands_leadership_over() {
    let mut world = World::new(3);
    let leader = world.leader();
    let enough = || space(1, 100, None);
    world.give(leader, enough());
    world.stalled = vec![leader];
    let waiting = world.put(leader);
    for _ in 0..4 {
        world.give(leader, enough());
        world.advance(1_000);
        assert_eq!(world.leader(), leader, "it may be over in a moment");
    }
    world.advance(2_000);
    world.give(leader, enough());
    world.settle();
    world.advance(1_000);
    let next = world.leader();
    assert_ne!(next, leader);
    let taken = world.put(next);
    world.answer(taken).response();
    world.stalled.clear();
    world.settle();
    assert!(world.answers.contains_key(&waiting), "it was never lost");
}

/// A long queue is none that stands still.
#[test]
fn a_leader_that_applies_slowly_leads_on() {
    let mut world = World::new(3);
    let leader = world.leader();
    for _ in 0..10 {
        world.stalled = vec![leader];
        world.put(leader);
        world.give(leader, space(1, 100, None));
        world.advance(3_000);
        world.stalled.clear();
        world.settle();
    }
    assert_eq!(world.leader(), leader);
}

/// It could not even apply the first entry of its term, let alone what came later.
#[test]
fn a_node_with_a_full_disk_that_is_elected_hands_leadership_on_and_nothing_is_lost() {
    let mut world = World::new(3);
    let first = world.leader();
    let full = NodeId(first.0 % 3 + 1);
    world.stalled = vec![full];
    world.put(first);
    world.hand_over(first, full);
    world.put(full);
    assert!(!world.nodes[&full].node.status().ready);
    world.give(full, stuck());
    world.settle();
    world.advance(1_000);
    let last = world.leader();
    assert_ne!(last, full);
    let taken = world.put(last);
    world.answer(taken).response();
}

#[test]
fn alone_it_refuses_even_writes_of_sessions_of_which_nothing_is_known_then() {
    let mut world = World::new(1);
    let leader = world.leader();
    let opened = world.ask(leader, Request::OpenSession, Consistency::default());
    let ResponseBody::OpenSession { id } = world.answer(opened).response().body else {
        panic!("no session");
    };
    let write = |sequence| SessionCall {
        id,
        sequence,
        acknowledged: 0,
    };
    let first = world.put_in(leader, write(1));
    world.answer(first).response();
    world.give(leader, stuck());
    world.settle();
    let last = world.nodes[&leader].node.status().last.index;
    let refused = world.put_in(leader, write(2));
    let error = world.answer(refused).error();
    assert!(matches!(error.kind, ErrorKind::SlowDown { .. }), "{error}");
    assert_eq!(error.outcome, Outcome::NotApplied);
    assert_eq!(world.nodes[&leader].node.status().last.index, last);
    // With space above the floor it is for apply to judge.
    world.give(leader, space(1, 100, None));
    let taken = world.put_in(leader, write(2));
    assert!(world.answers.contains_key(&taken));
}

#[test]
fn a_full_node_asks_clients_to_slow_down() {
    let mut world = World::with(1, |options| options.waiting_max = 2);
    let leader = world.leader();
    world.stalled = vec![leader];
    let waiting = [world.put(leader), world.put(leader)];
    let third = world.put(leader);
    let error = world.answer(third).error();
    assert!(matches!(error.kind, ErrorKind::SlowDown { .. }), "{error}");
    assert_eq!(error.outcome, Outcome::NotApplied);
    world.stalled.clear();
    world.settle();
    for id in waiting {
        world.answer(id).response();
    }
    assert!(matches!(world.put(leader), id if world.answers.contains_key(&id)));
}

#[test]
fn a_node_full_of_writes_still_takes_renewals_in() {
    let mut world = World::with(1, |options| options.waiting_max = 8);
    let leader = world.leader();
    world.stalled = vec![leader];
    let is_refused = |world: &World, id: RequestId| match world.answers.get(&id) {
        Some(Answered::Reply(result)) => result
            .as_ref()
            .as_ref()
            .is_err_and(|error| matches!(error.kind, ErrorKind::SlowDown { .. })),
        _ => false,
    };
    for _ in 0..7 {
        let waiting = world.put(leader);
        assert!(!is_refused(&world, waiting));
    }
    let eighth = world.put(leader);
    assert!(is_refused(&world, eighth));
    let renewal = Request::LeaseKeepAlive(vec![crate::api::LeaseRef::id(1)]);
    let renewal = world.ask(leader, renewal, Consistency::default());
    assert!(!is_refused(&world, renewal));
}

#[test]
fn the_first_leader_bootstraps_the_cluster_once() {
    let mut world = World::new(3);
    let leader = world.leader();
    world.settle();
    let bootstrapped = crate::kv::cluster_info(&world.nodes[&leader].store).unwrap();
    assert_eq!(
        bootstrapped.expect("it is recorded").cluster_id,
        ClusterId(7)
    );
    world.advance(100);
    for replica in world.nodes.values() {
        let drawn = Some(BootstrapId(u128::from(leader.0)));
        assert_eq!(replica.node.bootstrap(), drawn, "the leader's own");
        assert_eq!(crate::kv::bootstrap(&replica.store), Ok(drawn));
    }
    let last = world.nodes[&leader].node.status().last.index;
    assert_eq!(last, LogIndex(1));
    world.advance(1000);
    assert_eq!(
        world.nodes[&leader].node.status().last.index,
        last,
        "nothing more is proposed"
    );
}

#[test]
fn sessions_that_nobody_uses_are_asked_for_and_forgotten() {
    let mut world = World::with(1, |options| {
        options.session_idle_max = Duration::from_secs(90)
    });
    let leader = world.leader();
    let opened = world.ask(leader, Request::OpenSession, Consistency::default());
    let ResponseBody::OpenSession { id } = world.answer(opened).response().body else {
        panic!("no session");
    };
    world.advance(85_000);
    assert!(
        world.idle_asked.is_empty(),
        "a session is never forgotten early"
    );
    world.advance(120_000);
    let unused_since = *world.idle_asked.last().expect("the leader asks in time");
    let idle = crate::kv::idle_sessions(&world.nodes[&leader].store, unused_since, 10).unwrap();
    assert_eq!(idle, [id]);
    world.give(
        leader,
        Input::IdleSessions {
            unused_since,
            sessions: idle,
        },
    );
    world.settle();
    let store = &world.nodes[&leader].store;
    let left = crate::kv::idle_sessions(store, LogIndex(u64::MAX), 10).unwrap();
    assert_eq!(left, Vec::<SessionId>::new());
}

#[test]
fn leadership_moves_to_the_node_that_was_named() {
    let mut world = World::new(3);
    let leader = world.leader();
    let target = *world.nodes.keys().find(|id| **id != leader).unwrap();
    let moved = world.ask(
        leader,
        Request::MoveLeader {
            target: Some(target),
        },
        Consistency::default(),
    );
    world.advance(100);
    assert!(matches!(
        world.answer(moved).response().body,
        ResponseBody::MoveLeader
    ));
    assert_eq!(world.nodes[&target].node.status().role, Role::Leader);
    let nobody = NodeId(99);
    let wrong = Request::MoveLeader {
        target: Some(nobody),
    };
    let refused = world.ask(target, wrong, Consistency::default());
    assert_eq!(
        world.answer(refused).error().kind,
        ErrorKind::InvalidArgument
    );
}
