//! A leader, whose consensus runs on one thread, and a session that answers a leased read on
//! another, with nothing between them but what consensus publishes and the store.
//!
//! Whoever else there is (a follower that has served a read, a next leader that has acknowledged a
//! write) is a number that the leader's thread stores *after* a message has left it, and that the
//! session loads *before* its read arrives: so everything that an answer must reflect.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::api::Consistency;
use crate::leased_read::{Captured, Demand, ReadBuffer, ReadResult, Reader, Source};
use crate::raft::{
    AppendReply, Ballot, Configuration, Consensus, Entry, Envelope, HardState, Heard,
    HeartbeatReply, Input, LeaseCell, Message, Output, Payload, PreVoteReply, Published,
    RestoredState, Timing, Verdict, VoteReply,
};
use crate::time::{Clock, Instant};
use crate::types::{LogId, LogIndex, NodeId, Role, Term};

/// The leader.
const NODE: NodeId = NodeId(1);
/// The follower that makes its majority.
const PEER: NodeId = NodeId(2);

/// What the leader's thread and the session's share.
pub(crate) struct Shared {
    pub(crate) published: Arc<Published>,
    /// What a look at the store may find, and what is applied, as the state thread publishes them.
    pub(crate) shown: AtomicU64,
    pub(crate) applied: AtomicU64,
    /// The last index that anybody outside of this node has seen the effect of.
    pub(crate) seen: AtomicU64,
}

/// A leader's thread, and all around it that happens in its order: the disk, the state machine, and
/// the messages of its followers.
pub(crate) struct Leader {
    node: Consensus,
    now: Instant,
    sent: VecDeque<Envelope>,
    /// Handed out to be applied.
    committed: LogIndex,
}

impl Leader {
    /// A node that found `entries` of the term before in its log, of which it has applied
    /// `applied`.
    fn found(entries: u64, applied: u64) -> Self {
        let start = Instant::from_nanos(1_000_000_000);
        let entry = |index| Entry {
            id: LogId::new(LogIndex(index), Term(1)),
            payload: Payload::Noop,
        };
        let restored = RestoredState {
            hard_state: HardState {
                term: Term(1),
                ..HardState::default()
            },
            base_configuration: Configuration {
                voters: [NODE, PEER, NodeId(3)].into(),
                ..Configuration::default()
            },
            entries: (1..=entries).map(entry).collect(),
            applied: LogIndex(applied),
            ..RestoredState::default()
        };
        let mut leader = Self {
            node: Consensus::new(NODE, Timing::default(), restored, 1, start),
            now: start,
            sent: VecDeque::new(),
            committed: LogIndex(applied),
        };
        leader.drain();
        leader
    }

    /// Has itself elected. Its first entry is written and not committed.
    fn be_elected(&mut self) {
        // Past the silence after a start and the election timeout.
        self.now = self.now + Duration::from_secs(5);
        self.node.handle(self.now, Input::Tick);
        self.drain();
        self.answer_all();
        self.answer_all();
        assert_eq!(self.node.status().role, Role::Leader);
    }

    /// Everything that is sent and can be answered is, by the peer, as a sound follower would.
    fn answer_all(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        for envelope in sent.into_iter().filter(|envelope| envelope.to == PEER) {
            if let Some(message) = answer(&envelope.message) {
                self.hear(envelope.term, message);
                self.drain();
            }
        }
    }

    fn hear(&mut self, term: Term, message: Message) {
        let envelope = Envelope {
            from: PEER,
            to: NODE,
            term,
            message,
        };
        self.node.handle(self.now, Input::Message(envelope));
    }

    /// Carries out what consensus wants: what is written is durable at once, what is sent waits for
    /// an answer, what is committed for the state machine.
    fn drain(&mut self) {
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Persist(ticket, _) => self.node.handle(self.now, Input::Persisted(ticket)),
                Output::Send(envelope) => self.sent.push_back(envelope),
                Output::Commit(entries) => {
                    self.committed = entries
                        .last()
                        .map_or(self.committed, |entry| entry.id.index);
                }
                _ => {}
            }
        }
    }

    /// Begins a round, and whether its followers are told to commit `index`.
    fn tells_in_next_round(&mut self, index: LogIndex) -> bool {
        self.sent.clear();
        self.now = self.now + Duration::from_millis(60);
        self.node.handle(self.now, Input::Tick);
        self.drain();
        self.sent.iter().any(|envelope| match &envelope.message {
            Message::Heartbeat(heartbeat) => heartbeat.commit >= index,
            Message::Append(append) => append.heartbeat.commit >= index,
            _ => false,
        })
    }

    /// The state machine applies everything committed and publishes it; only then consensus hears
    /// of it.
    fn apply(&mut self, shared: &Shared) {
        shared.shown.store(self.committed.0, Ordering::Release);
        shared.applied.store(self.committed.0, Ordering::Release);
        self.node.handle(self.now, Input::Applied(self.committed));
        self.drain();
    }

    /// A leader with a lease that has applied everything.
    pub(crate) fn with_lease() -> Self {
        let mut leader = Self::found(1, 1);
        leader.be_elected();
        leader.answer_all();
        leader.answer_all();
        leader
            .node
            .handle(leader.now, Input::Applied(leader.committed));
        leader.drain();
        leader
    }

    pub(crate) fn published(&self) -> Arc<Published> {
        self.node.published()
    }

    fn shared(&self, seen: u64) -> Arc<Shared> {
        Arc::new(Shared {
            published: self.node.published(),
            shown: AtomicU64::new(self.committed.0),
            applied: AtomicU64::new(self.committed.0),
            seen: AtomicU64::new(seen),
        })
    }
}

/// What a sound follower answers.
pub(crate) fn answer(message: &Message) -> Option<Message> {
    Some(match message {
        Message::PreVote(question) => Message::PreVoteReply(PreVoteReply {
            round: question.round,
            ballot: Ballot::Granted,
        }),
        Message::Vote(question) => Message::VoteReply(VoteReply {
            round: question.round,
            ballot: Ballot::Granted,
            promised: false,
        }),
        Message::Heartbeat(heartbeat) => Message::HeartbeatReply(HeartbeatReply {
            heard: Heard {
                round: heartbeat.round,
                promised: true,
            },
            verified: LogIndex(0),
            name: heartbeat.round,
            wants_read_lease: false,
        }),
        Message::Append(append) => {
            let through = append.entries.last().map_or(append.base, |entry| entry.id);
            Message::Appended(AppendReply {
                heard: Heard {
                    round: append.heartbeat.round,
                    promised: true,
                },
                verdict: Verdict::Durable(through.index),
            })
        }
        _ => return None,
    })
}

/// A clock that stands still.
struct At(Instant);

impl Clock for At {
    fn now(&self) -> Instant {
        self.0
    }
}

impl Clock for Leader {
    fn now(&self) -> Instant {
        self.now
    }
}

/// What is asked for.
pub(crate) const LINEARIZABLE: Demand = Demand {
    consistency: Consistency::Linearizable,
    min_revision: 0,
};
/// What answers.
pub(crate) const READER: Reader = Reader {
    lease_margin: Duration::ZERO,
};

/// What a session answers a read with, if it does: the state that it looked at.
fn leased_read(shared: &Shared, now: Instant) -> Option<LogIndex> {
    read_with(shared, &At(now), ReadBuffer::default()).0
}

/// The same, with the buffer of a read before, and the buffer for the next.
pub(crate) fn read_with(
    shared: &Shared,
    clock: &dyn Clock,
    buffer: ReadBuffer<LogIndex>,
) -> (Option<LogIndex>, ReadBuffer<LogIndex>) {
    let get = LINEARIZABLE;
    let captured = Captured::of(
        slice::from_ref(&get),
        LogIndex(shared.shown.load(Ordering::Acquire)),
        &shared.published,
        buffer,
    );
    let looked = captured.look(|_| {
        let applied = LogIndex(shared.applied.load(Ordering::Acquire));
        Ok::<_, Infallible>(ControlFlow::Continue(Source {
            found: applied,
            applied,
            revision: 1,
        }))
    });
    let mut judged = looked.unwrap().judge(clock);
    let served = match judged.next(&READER) {
        Some((_, ReadResult::Answer(answer))) => Some(answer.into_found()),
        _ => None,
    };
    (served, judged.finish().1)
}

/// P20, P21, A11: a write is committed, and a follower hears of that with one of the next messages and
/// shows the write to somebody; a read that arrives here after that, under the lease, sees it as well.
pub(crate) fn a_read_sees_what_anybody_has_seen_before_it_arrived() {
    let mut leader = Leader::with_lease();
    let write = leader
        .node
        .propose(leader.now, Bytes::from_static(b"x"))
        .unwrap();
    leader.drain();
    let shared = leader.shared(0);
    let now = leader.now;

    let session = thread::spawn({
        let shared = Arc::clone(&shared);
        move || {
            let seen = shared.seen.load(Ordering::Acquire);
            let answered = leased_read(&shared, now);
            if let Some(applied) = answered {
                assert!(
                    applied.0 >= seen,
                    "{applied} is shown, and {seen} was seen before"
                );
            }
        }
    });

    leader.answer_all();
    if leader.tells_in_next_round(write.index) {
        shared.seen.store(write.index.0, Ordering::Release);
    }
    leader.apply(&shared);
    assert!(leader.tells_in_next_round(write.index));
    shared.seen.store(write.index.0, Ordering::Release);
    session.join().unwrap();
}

/// A5, A6: a lease is renewed while a session asks it at a time that only the renewed one covers. The
/// two halves of its end are two atomics, so the session may see one of them and not the other; it
/// may say yes only when it sees both, and then whatever the renewal rests on has happened for it
/// too.
pub(crate) fn a_renewal_holds_whole_and_after_what_it_rests_on() {
    let mut leader = Leader::with_lease();
    let shared = leader.shared(0);
    let cell: Arc<LeaseCell> = shared.published.lease().unwrap();
    let before = cell.until();
    let now = before + Duration::from_millis(1);
    assert!(!cell.is_valid(now), "only a renewal reaches that far");

    let session = thread::spawn({
        let (shared, cell) = (Arc::clone(&shared), Arc::clone(&cell));
        move || {
            if cell.is_valid(now) {
                // Nothing orders this but the lease itself.
                let heard = shared.seen.load(Ordering::Relaxed);
                assert_eq!(heard, 1, "a renewal is seen before its quorum was heard");
            }
        }
    });

    leader.now = leader.now + Duration::from_millis(60);
    leader.node.handle(leader.now, Input::Tick);
    leader.drain();
    shared.seen.store(1, Ordering::Relaxed);
    leader.answer_all();
    assert!(cell.is_valid(now), "it was renewed");
    session.join().unwrap();
}

/// P23, P36: a leader retires, and its word sets the voters free; what the next leader acknowledges
/// then is not in this node's store, so no read may be permitted here any more, not even to a
/// session that holds the cell since before.
pub(crate) fn a_lease_is_void_before_its_end_is_told() {
    let mut leader = Leader::with_lease();
    let shared = leader.shared(0);
    let now = leader.now;
    let cell: Arc<LeaseCell> = shared.published.lease().unwrap();
    assert!(cell.is_valid(now), "there is a lease to lose");

    let session = thread::spawn({
        let shared = Arc::clone(&shared);
        move || {
            if shared.seen.load(Ordering::Acquire) > 0 {
                assert!(!cell.is_valid(now), "a cell that is held is void");
                assert_eq!(leased_read(&shared, now), None, "and nothing is served");
            } else {
                let _ = leased_read(&shared, now);
            }
        }
    });

    leader.node.retire(leader.now);
    while let Some(output) = leader.node.poll_output() {
        if let Output::Send(envelope) = output
            && envelope.message == Message::Release
        {
            shared.seen.store(100, Ordering::Release);
        }
    }
    session.join().unwrap();
}

/// A7: entries 2 and 3 were committed and acknowledged by the leader before; this one was elected
/// with them, but its state machine has applied only 1. Its cell is loaded while it is void, and
/// the store looked at; then everything is applied and the lease published, and only then the
/// session asks it.
pub(crate) fn a_new_leadership_serves_nothing_below_its_floor() {
    let mut leader = Leader::found(3, 1);
    leader.be_elected();
    let shared = leader.shared(3);
    let now = leader.now;

    let session = thread::spawn({
        let shared = Arc::clone(&shared);
        move || {
            let seen = shared.seen.load(Ordering::Acquire);
            if let Some(applied) = leased_read(&shared, now) {
                assert!(
                    applied.0 >= seen,
                    "{applied} is shown, and {seen} was seen before"
                );
            }
        }
    });

    leader.answer_all();
    leader.answer_all();
    leader.apply(&shared);
    session.join().unwrap();
    assert!(
        leased_read(&shared, now) >= Some(LogIndex(4)),
        "the lease is served from in the end"
    );
}
