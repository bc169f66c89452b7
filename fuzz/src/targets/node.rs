//! One whole replica among hostile peers and with clients: who asks is answered once, and told the
//! truth about what became of his write.
//!
//! Every write carries its request's number as its value, so that what is applied says whose it is:
//! an answer *applied* must be for something that was, and after *not applied* it must never be.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use leasehold::api::{
    Call, CompactionRequest, Consistency, DeleteRangeRequest, Error, KeyRange, Limits, Outcome,
    PutRequest, RangeRequest, Request, Response, ResponseBody, SessionCall, TxnOp, TxnRequest,
};
use leasehold::kv;
use leasehold::kv::{Command, Fault, MemStore, Operation};
use leasehold::node::{Input, Node, NodeOptions, Output};
use leasehold::raft::{Entry, Payload, RestoredState, Timing};
use leasehold::time::Instant;
use leasehold::types::{BootstrapId, ClusterId, LogIndex, NodeId, RequestId, SessionId};

use super::disk::Disk;
use super::draw::Draw;
use super::peer::{NODE, Peers, voters};
use super::trace::say;

/// Steps of one input; what follows is not read.
const STEPS_MAX: usize = 400;

/// Requests that may wait inside the node.
const WAITING_MAX: usize = 8;

/// See the module.
pub fn node_inputs(data: &[u8]) {
    let mut draw = Draw::new(data);
    let mut world = World::begin(&mut draw);
    for _ in 0..STEPS_MAX {
        if draw.is_over() || world.is_over {
            break;
        }
        world.step(&mut draw);
    }
    world.end();
}

struct World {
    node: Node,
    disk: Disk,
    peers: Peers,
    now: Instant,
    lives: u64,
    members: u64,
    store: MemStore,
    /// Handed out to be applied, and not yet applied.
    applying: VecDeque<Vec<Entry>>,
    idle: Option<LogIndex>,
    requests: u64,
    /// Asked in this life and not answered.
    waiting: BTreeSet<RequestId>,
    /// The requests whose writes were applied, and those that were told that theirs never will be.
    applied: BTreeSet<u64>,
    not_applied: BTreeSet<u64>,
    /// A damaged log was rebuilt from a hostile leader: state and log need not fit together.
    was_damaged: bool,
    is_over: bool,
}

impl World {
    fn begin(draw: &mut Draw<'_>) -> Self {
        let members = if draw.one_in(4) { 1 } else { 3 };
        let now = Instant::from_nanos(1_000_000_000);
        let restored = RestoredState {
            base_configuration: voters(1..=members),
            ..RestoredState::default()
        };
        Self {
            node: Node::new(options(1), restored, None, 1, now),
            disk: Disk::default(),
            peers: Peers::default(),
            now,
            lives: 1,
            members,
            store: MemStore::new(),
            applying: VecDeque::new(),
            idle: None,
            requests: 0,
            waiting: BTreeSet::new(),
            applied: BTreeSet::new(),
            not_applied: BTreeSet::new(),
            was_damaged: false,
            is_over: false,
        }
    }

    fn handle(&mut self, input: Input) {
        say(format_args!("{} {input:?}", self.now));
        self.node.handle(self.now, input);
    }

    fn step(&mut self, draw: &mut Draw<'_>) {
        let choice = draw.byte();
        match choice & 0x1f {
            0..=3 => {
                self.now = self.now + draw.pause();
                self.handle(Input::Tick);
            }
            4..=7 => {
                for _ in 0..=draw.below(4) {
                    if let Some(ticket) = self.disk.settle_one() {
                        self.handle(Input::Persisted(ticket));
                    }
                }
            }
            8..=10 => self.apply(),
            11..=15 => {
                if let Some(envelope) = self.peers.answer(draw) {
                    self.handle(Input::Message(envelope));
                }
            }
            16..=20 => {
                let envelope = self.peers.lie(draw, self.node.consensus());
                self.handle(Input::Message(envelope));
            }
            21..=27 => {
                self.requests += 1;
                let id = RequestId(self.requests);
                let call = self.call(draw);
                self.waiting.insert(id);
                self.handle(Input::Request(id, call, None));
            }
            28 => self.restart(draw),
            29 => self.report_idle(),
            30 if draw.one_in(8) => self.handle(Input::Retire),
            _ => {}
        }
        let _ = self.node.poll_timeout();
        if choice & 0x20 == 0 {
            self.drain();
        }
    }

    fn call(&self, draw: &mut Draw<'_>) -> Call {
        let mine = Bytes::copy_from_slice(&self.requests.to_be_bytes());
        let key = Bytes::copy_from_slice(draw.of(&[b"a", b"b"]));
        let request = match draw.below(10) {
            0..=2 => Request::Put(PutRequest {
                key,
                value: mine,
                prev_kv: draw.bool(),
                ..PutRequest::default()
            }),
            3 => Request::DeleteRange(DeleteRangeRequest {
                key,
                range: KeyRange::Prefix,
                prev_kv: draw.bool(),
            }),
            4 => Request::OpenSession,
            5 => Request::MoveLeader {
                target: draw.of(&[None, Some(NodeId(2)), Some(NODE), Some(NodeId(9))]),
            },
            6 => Request::Status,
            7 => Request::Compact(CompactionRequest {
                revision: draw.of(&[2, 1, i64::MAX]),
                physical: false,
            }),
            8 => {
                let expected = draw.of(&[0, 2, 3]);
                Request::Txn(TxnRequest::compare_and_swap(key, expected, mine))
            }
            _ => Request::Range(RangeRequest {
                key,
                ..RangeRequest::default()
            }),
        };
        Call {
            timeout_ms: draw.of(&[5_000, 500, 0, u32::MAX]),
            min_revision: draw.of(&[0, 0, 2, 3, i64::MAX, i64::MIN]),
            consistency: draw.of(&[
                Consistency::Linearizable,
                Consistency::LinearizableQuorum,
                Consistency::LeaseOnly,
                Consistency::Serializable,
                Consistency::MaxStaleness(Duration::MAX),
            ]),
            session: draw.bool().then(|| SessionCall {
                id: SessionId(draw.number(&[2, 3])),
                sequence: draw.number(&[1, 2]),
                acknowledged: draw.number(&[0]),
            }),
            request,
        }
    }

    /// The state machine takes the next batch.
    fn apply(&mut self) {
        let Some(entries) = self.applying.pop_front() else {
            return;
        };
        let mut replies = Vec::new();
        for entry in entries {
            let command = match &entry.payload {
                Payload::Command(bytes) => Some(bytes.as_ref()),
                _ => None,
            };
            match kv::apply(&mut self.store, entry.id, command) {
                Ok(reply) => {
                    if let Ok(body) = &reply.result {
                        self.note_applied(command, body.as_ref());
                    }
                    replies.push((entry.id, reply));
                }
                Err(Fault::OutOfOrder { .. }) if self.was_damaged => {
                    self.is_over = true;
                    return;
                }
                Err(fault) => panic!("{fault}"),
            }
        }
        self.handle(Input::Applied(replies));
    }

    fn note_applied(&mut self, command: Option<&[u8]>, body: Option<&ResponseBody>) {
        let Some(Ok(Command::Write { operation, .. })) = command.map(Command::decode) else {
            return;
        };
        let put = match (&operation, body) {
            (Operation::Put(put), _) => Some(put),
            (Operation::Txn(txn), Some(ResponseBody::Txn(done))) if done.succeeded => {
                txn.success.iter().find_map(|op| match op {
                    TxnOp::Put(put) => Some(put),
                    _ => None,
                })
            }
            _ => None,
        };
        if let Some(put) = put
            && let Ok(number) = <[u8; 8]>::try_from(put.value.as_ref())
        {
            let number = u64::from_be_bytes(number);
            assert!(
                !self.not_applied.contains(&number),
                "r{number} was told that it took no effect and will take none"
            );
            self.applied.insert(number);
        }
    }

    fn report_idle(&mut self) {
        if let Some(unused_since) = self.idle.take() {
            let sessions = kv::idle_sessions(&self.store, unused_since, 4);
            self.handle(Input::IdleSessions {
                unused_since,
                sessions: sessions.expect("memory does not fail"),
            });
        }
    }

    /// The process dies, and those who asked it learn nothing.
    fn restart(&mut self, draw: &mut Draw<'_>) {
        self.drain();
        for _ in 0..draw.below(4) {
            self.disk.settle_one();
        }
        self.disk.writing.clear();
        self.applying.clear();
        self.waiting.clear();
        self.idle = None;
        self.lives += 1;
        let quarantined = draw.one_in(8);
        self.was_damaged |= quarantined;
        let progress = kv::progress(&self.store).expect("memory does not fail");
        let restored = RestoredState {
            hard_state: self.disk.hard_state,
            base_configuration: voters(1..=self.members),
            entries: self.disk.entries.clone(),
            applied: progress.applied.index,
            quarantined,
            ..RestoredState::default()
        };
        let bootstrap = kv::bootstrap(&self.store).expect("memory does not fail");
        self.peers.log.clone_from(&self.disk.entries);
        say(format_args!("{} starts with {restored:?}", self.now));
        self.node = Node::new(
            options(self.lives),
            restored,
            bootstrap,
            progress.revision,
            self.now,
        );
    }

    fn drain(&mut self) {
        while let Some(output) = self.node.poll_output() {
            say(format_args!("  {output:?}"));
            match output {
                Output::Persist(ticket, unsaved) => {
                    self.peers.write(&unsaved);
                    self.disk.writing.push_back((ticket, unsaved));
                }
                Output::Send(envelope) => self.peers.hear(&envelope),
                Output::Apply(entries) => self.applying.push_back(entries),
                Output::Read(id, permit) => {
                    let applied = kv::progress(&self.store).expect("memory does not fail");
                    assert!(
                        permit.index() <= applied.applied.index,
                        "a read is let go too early"
                    );
                    self.answered(id);
                }
                Output::CaughtUp(id) | Output::ReadLeases(id, ..) => self.answered(id),
                Output::FindIdleSessions { unused_since } => self.idle = Some(unused_since),
                Output::Reply(id, result) => self.reply(id, &result),
                Output::SendSnapshot(peer) => assert!((2..=self.members).contains(&peer.0)),
                Output::Install(_) | Output::DiscardSnapshot(_) => {
                    panic!("no state was received")
                }
            }
        }
        assert!(self.node.waiting() <= WAITING_MAX);
    }

    fn answered(&mut self, id: RequestId) {
        assert!(
            self.waiting.remove(&id),
            "{id} was answered twice, or never asked"
        );
    }

    fn reply(&mut self, id: RequestId, result: &Result<Response, Error>) {
        self.answered(id);
        match result {
            Err(error) if error.outcome == Outcome::NotApplied => {
                assert!(
                    !self.applied.contains(&id.0),
                    "{id} took effect, and is told it did not"
                );
                self.not_applied.insert(id.0);
            }
            _ => {}
        }
    }

    /// Time runs out for everybody who waits.
    fn end(&mut self) {
        if self.is_over {
            return;
        }
        self.drain();
        self.now = self.now + Duration::from_millis(u64::from(u32::MAX) + 1);
        self.handle(Input::Tick);
        self.drain();
        assert_eq!(self.waiting, BTreeSet::new(), "every request is answered");
        assert_eq!(self.node.waiting(), 0);
    }
}

fn options(life: u64) -> NodeOptions {
    NodeOptions {
        cluster_id: ClusterId(7),
        id: NODE,
        members: Vec::new(),
        timing: Timing::default(),
        limits: Limits::DEFAULT,
        waiting_max: WAITING_MAX,
        sessions_max: 2,
        session_idle_max: Duration::from_secs(120),
        leases: leasehold::node::LeaseOptions::DEFAULT,
        auto_compaction: leasehold::node::AutoCompaction::Off,
        check_interval: None,
        seed: life,
        bootstrap: BootstrapId(1),
    }
}
