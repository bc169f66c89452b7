//! One replica's consensus among peers that may say anything, on a disk that forgets what was not
//! reported, with a clock that jumps.
//!
//! The input plays peers, disk, state machine and clock. The replica's own assertions are on
//! (`check_invariants` runs after every input), and beside them this watches from outside what a
//! hostile peer must never bring about: a second vote in a term, a vote or an acknowledgement that
//! is not on disk, an entry applied twice or changed after it was, a term or commit index that goes
//! back, a lease that reaches further than promises do.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use leasehold::raft::{
    Ballot, Change, Consensus, Entry, Envelope, Input, JoinRole, Message, Output, ReadId,
    RestoredState, Ticket, Timing, TimingOptions, UnsavedState, Verdict,
};
use leasehold::time::Instant;
use leasehold::types::{LogIndex, NodeId, Role, Term};

use super::disk::{Disk, place};
use super::draw::Draw;
use super::peer::{NODE, Peers, mode, voters};
use super::trace::say;

/// Steps of one input; what follows is not read.
const STEPS_MAX: usize = 400;

/// Effects of one input at most: to two or three honest peers a window of appends each, and to
/// whoever a hostile configuration names.
const EFFECTS_MAX: usize = 600;

/// See the module.
pub fn raft_inputs(data: &[u8]) {
    let mut draw = Draw::new(data);
    let mut world = World::begin(&mut draw);
    for _ in 0..STEPS_MAX {
        if draw.is_over() {
            break;
        }
        world.step(&mut draw);
    }
    world.drain();
}

struct World {
    node: Consensus,
    timing: Timing,
    disk: Disk,
    peers: Peers,
    now: Instant,
    seed: u64,
    /// Handed out to be applied, in this life or before; never again, and never otherwise.
    committed: Vec<Entry>,
    applied: LogIndex,
    /// Whom this node has voted for, by term.
    votes: BTreeMap<Term, NodeId>,
    term: Term,
    commit: LogIndex,
    issued: Ticket,
    reads: u64,
}

impl World {
    fn begin(draw: &mut Draw<'_>) -> Self {
        let shape = draw.byte();
        let options = TimingOptions {
            lease_enabled: shape & 1 == 0,
            ..TimingOptions::default()
        };
        let timing = Timing::new(options).expect("the defaults fit each other");
        let now = Instant::from_nanos(match shape >> 1 & 3 {
            0 => 1_000_000_000,
            1 => 0,
            2 => u64::MAX - 5_000_000_000,
            _ => u64::MAX / 2,
        });
        let alone = shape >> 3 & 3 == 3;
        let restored = RestoredState {
            base_configuration: voters(1..=if alone { 1 } else { 3 }),
            unproven: shape >> 5 & 1 == 1,
            restored_from: None,
            ..RestoredState::default()
        };
        Self {
            node: Consensus::new(NODE, timing, restored, 1, now),
            timing,
            disk: Disk::default(),
            peers: Peers::default(),
            now,
            seed: 1,
            committed: Vec::new(),
            applied: LogIndex(0),
            votes: BTreeMap::new(),
            term: Term(0),
            commit: LogIndex(0),
            issued: Ticket(0),
            reads: 0,
        }
    }

    /// The node is told something.
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
            4 => {
                self.now = strange(draw, self.now);
                self.handle(Input::Tick);
            }
            5..=8 => {
                for _ in 0..=draw.below(4) {
                    if let Some(ticket) = self.disk.settle_one() {
                        self.handle(Input::Persisted(ticket));
                    }
                }
            }
            9 | 10 => {
                let last = self
                    .committed
                    .last()
                    .map_or(LogIndex(0), |entry| entry.id.index);
                self.applied = last;
                self.handle(Input::Applied(last));
            }
            11..=15 => {
                if let Some(envelope) = self.peers.answer(draw) {
                    self.handle(Input::Message(envelope));
                }
            }
            16..=22 => {
                let envelope = self.peers.lie(draw, &self.node);
                self.handle(Input::Message(envelope));
            }
            23 | 24 => {
                let command = Bytes::copy_from_slice(draw.bytes(8));
                let _ = self.node.propose(self.now, command);
            }
            25 | 26 => {
                self.reads += 1;
                let _ = self.node.read(self.now, ReadId(self.reads), mode(draw));
            }
            27 => {
                let target = draw.of(&[None, Some(NodeId(2)), Some(NodeId(1)), Some(NodeId(9))]);
                let _ = self.node.transfer(self.now, target);
            }
            28 => self.restart(draw),
            29 => self.node.clear_lease_tripwire(),
            30 if draw.one_in(8) => self.node.retire(self.now),
            31 => {
                let _ = self.node.change(self.now, &change(draw));
            }
            _ => {}
        }
        let _ = self.node.poll_timeout();
        self.look();
        // Sometimes several inputs are one batch.
        if choice & 0x20 == 0 {
            self.drain();
        }
    }

    /// The process dies and comes back with what the disk has.
    fn restart(&mut self, draw: &mut Draw<'_>) {
        self.drain();
        for _ in 0..draw.below(4) {
            // Some of what was under way may have got through.
            self.disk.settle_one();
        }
        self.disk.writing.clear();
        self.seed += 1;
        if draw.one_in(4) {
            // The machine was started anew, and its clocks with it.
            self.now = Instant::from_nanos(u64::from(draw.byte()) << 30);
        }
        let restored = RestoredState {
            hard_state: self.disk.hard_state,
            base_configuration: voters(1..=3),
            entries: self.disk.entries.clone(),
            applied: self.applied.min(self.disk.last()),
            quarantined: draw.one_in(8),
            lease_tripped: draw.one_in(8),
            ..RestoredState::default()
        };
        self.applied = restored.applied;
        self.committed.truncate(self.applied.0 as usize);
        self.commit = LogIndex(0);
        self.term = self.disk.hard_state.term;
        self.issued = Ticket(0);
        self.peers.log.clone_from(&self.disk.entries);
        say(format_args!("{} starts with {restored:?}", self.now));
        self.node = Consensus::new(NODE, self.timing, restored, self.seed, self.now);
    }

    /// What must hold at every moment.
    fn look(&mut self) {
        let status = self.node.status();
        say(format_args!("  {status:?}"));
        assert!(status.term >= self.term, "a term went back");
        assert!(status.commit >= self.commit, "a commit index went back");
        assert!(
            status.commit <= status.last.index,
            "nothing is committed that is not there"
        );
        (self.term, self.commit) = (status.term, status.commit);
        // A candidate asks before its own vote is on disk, and counts it after that.
        if status.role == Role::Leader {
            self.vote(status.term, NODE);
        }
        let published = self.node.published();
        assert_eq!(published.commit(), status.commit);
        let Some(cell) = published.lease() else {
            return;
        };
        assert_eq!(status.role, Role::Leader, "only a leader has a lease");
        // A round was created by now at the latest, so no lease reaches further than this.
        let furthest = self.now + self.timing.trusted_lease();
        let until = cell.until();
        assert!(until.boot <= furthest.boot && until.raw <= furthest.raw);
        if cell.is_valid(self.now) {
            assert!(self.timing.lease_enabled && !self.node.lease_tripped());
            assert!(status.ready, "a lease holds from the first own entry on");
        }
    }

    /// Carries out what the node wants done.
    fn drain(&mut self) {
        let mut effects = 0;
        while let Some(output) = self.node.poll_output() {
            effects += 1;
            say(format_args!("  {output:?}"));
            assert!(effects <= EFFECTS_MAX, "one batch had too many effects");
            match output {
                Output::Persist(ticket, unsaved) => self.persist(ticket, unsaved),
                Output::Send(envelope) => self.send(&envelope),
                Output::Commit(entries) => self.commit(entries),
                // A leader may know of more than we do, and be believed: the read waits for it.
                Output::Permit(_, permit) => {
                    assert!(permit.is_from_leader() || permit.index() <= self.node.status().commit)
                }
                Output::RefuseRead(..) => {}
                Output::SendSnapshot(peer) => assert_ne!(peer, NODE),
                Output::Install(_) | Output::DiscardSnapshot(_) => {
                    panic!("no state was received")
                }
            }
        }
        self.look();
    }

    fn persist(&mut self, ticket: Ticket, unsaved: UnsavedState) {
        assert_eq!(ticket.0, self.issued.0 + 1, "tickets rise by one");
        self.issued = ticket;
        self.peers.write(&unsaved);
        self.disk.writing.push_back((ticket, unsaved));
    }

    fn commit(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            let next = self.committed.len() as u64 + 1;
            assert_eq!(entry.id.index.0, next, "handed out once, and in order");
            let durable = self.disk.entries.get(place(entry.id.index));
            assert_eq!(
                durable,
                Some(&entry),
                "nothing is applied that is not durable"
            );
            self.committed.push(entry);
        }
    }

    fn send(&mut self, envelope: &Envelope) {
        assert_eq!(envelope.from, NODE);
        assert_ne!(envelope.to, NODE);
        match &envelope.message {
            Message::VoteReply(reply) if reply.ballot == Ballot::Granted => {
                let durable = self.disk.hard_state;
                assert_eq!(
                    durable.term, envelope.term,
                    "a vote leaves when it is on disk"
                );
                assert_eq!(durable.vote, Some(envelope.to));
                self.vote(envelope.term, envelope.to);
            }
            Message::Appended(reply) => {
                if let Verdict::Durable(through) | Verdict::Held(through) = reply.verdict {
                    assert!(through <= self.disk.last(), "acknowledged and not on disk");
                }
            }
            Message::Heartbeat(heartbeat) => {
                assert!(heartbeat.promise <= Duration::from_secs(60));
            }
            _ => {}
        }
        self.peers.hear(envelope);
    }

    fn vote(&mut self, term: Term, choice: NodeId) {
        let first = *self.votes.entry(term).or_insert(choice);
        assert_eq!(first, choice, "two votes in {term}");
    }
}

/// A clock that does what no clock should.
fn strange(draw: &mut Draw<'_>, now: Instant) -> Instant {
    let step = u64::from(draw.byte()) << 26;
    let other = Instant {
        boot: now.boot.saturating_sub(step),
        raw: now.raw.saturating_add(step),
    };
    match draw.below(5) {
        0 => Instant {
            boot: other.boot,
            ..now
        },
        1 => Instant {
            raw: other.raw,
            ..now
        },
        2 => other,
        3 => Instant::ZERO,
        _ => Instant::from_nanos(u64::MAX - step),
    }
}

fn change(draw: &mut Draw<'_>) -> Change {
    let member = NodeId(u64::from(draw.byte() % 6));
    let details = Bytes::copy_from_slice(draw.bytes(8));
    match draw.below(5) {
        0 => {
            let roles = [
                JoinRole::Learner,
                JoinRole::Voter,
                JoinRole::InPlaceOf(NodeId(2)),
            ];
            Change::Add {
                member,
                details,
                role: draw.of(&roles),
            }
        }
        1 => Change::Promote(member),
        2 => Change::Update { member, details },
        _ => Change::Remove(member),
    }
}
