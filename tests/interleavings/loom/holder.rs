//! A holder of a read lease, whose consensus runs on one thread, and a session that answers a read by
//! that lease on another. The leader that granted it is a third thread, or takes turns with the holder.
//! Between them are messages alone; between the holder and its session are what consensus publishes and
//! the store.
//!
//! What clients were told is a number, as in `lease.rs`: the leader stores it once it has applied a write,
//! and the session loads it before its read arrives.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::mpsc::channel;
use loom::thread;

use crate::lease::{Shared, answer, read_with};
use crate::leased_read::ReadBuffer;
use crate::raft::{
    Configuration, Consensus, Entry, Envelope, HardState, Input, LeaseCell, Message, Output,
    Payload, RestoredState, Timing, TimingOptions,
};
use crate::time::{Clock, Instant};
use crate::types::{LogId, LogIndex, NodeId, Role, Term};

/// Who leads, and grants.
const LEADER: NodeId = NodeId(1);
/// Who holds the read lease.
const HOLDER: NodeId = NodeId(2);
/// Who makes a majority with the leader, and holds nothing.
const PEER: NodeId = NodeId(3);

/// A heartbeat is certainly due after so long.
const BEAT_MILLIS: u64 = 52;
/// How long commits wait for a holder before it is recalled: as usual, and if nothing is to be recalled.
const IMPATIENT: Duration = Duration::from_millis(50);
const PATIENT: Duration = Duration::from_secs(60);

/// The thread of one member's consensus, and all around it that happens in its order.
struct Member {
    node: Consensus,
    sent: Vec<Envelope>,
    /// Handed out to be applied, and applied.
    committed: LogIndex,
    applied: LogIndex,
}

impl Member {
    /// A member that found one entry of the term before in its log, and has applied it.
    fn found(id: NodeId, asks: bool, max_write_delay: Duration, now: Instant) -> Self {
        let timing = Timing::new(TimingOptions {
            read_lease_enabled: asks,
            read_lease_max_write_delay: max_write_delay,
            ..TimingOptions::default()
        });
        let restored = RestoredState {
            hard_state: HardState {
                term: Term(1),
                ..HardState::default()
            },
            base_configuration: Configuration {
                voters: [LEADER, HOLDER, PEER].into(),
                ..Configuration::default()
            },
            entries: vec![Entry {
                id: LogId::new(LogIndex(1), Term(1)),
                payload: Payload::Noop,
            }],
            applied: LogIndex(1),
            ..RestoredState::default()
        };
        let mut member = Self {
            node: Consensus::new(id, timing.unwrap(), restored, 1, now),
            sent: Vec::new(),
            committed: LogIndex(1),
            applied: LogIndex(1),
        };
        member.drain(now);
        member
    }

    /// What is written is durable at once, what is sent and what is committed wait for their turn.
    fn drain(&mut self, now: Instant) {
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Persist(ticket, _) => self.node.handle(now, Input::Persisted(ticket)),
                Output::Send(envelope) => self.sent.push(envelope),
                Output::Commit(entries) => {
                    let last = entries.last().map(|entry| entry.id.index);
                    self.committed = last.unwrap_or(self.committed);
                }
                _ => {}
            }
        }
    }

    fn handle(&mut self, now: Instant, input: Input) {
        self.node.handle(now, input);
        self.drain(now);
    }

    fn hear(&mut self, now: Instant, messages: Vec<Envelope>) {
        for envelope in messages {
            self.handle(now, Input::Message(envelope));
        }
    }

    /// The state machine applies everything committed.
    fn apply(&mut self, now: Instant) {
        if self.applied < self.committed {
            self.applied = self.committed;
            self.handle(now, Input::Applied(self.applied));
        }
    }

    /// The same, and shows it to readers first.
    fn apply_and_show(&mut self, now: Instant, shared: &Shared) {
        shared.shown.store(self.committed.0, Ordering::Release);
        shared.applied.store(self.committed.0, Ordering::Release);
        self.apply(now);
    }

    /// Applies everything committed, and then tells its clients.
    fn apply_and_tell(&mut self, now: Instant, shared: &Shared) {
        if self.applied < self.committed {
            self.apply(now);
            shared.seen.store(self.applied.0, Ordering::Release);
        }
    }

    /// What it has sent to `to` leaves now.
    fn sent_to(&mut self, to: NodeId) -> Vec<Envelope> {
        let sent = std::mem::take(&mut self.sent);
        let (sent, others) = sent.into_iter().partition(|envelope| envelope.to == to);
        self.sent = others;
        sent
    }

    /// The peer answers what the leader has sent it.
    fn answered_by_peer(&mut self, now: Instant) {
        for envelope in self.sent_to(PEER) {
            let Some(message) = answer(&envelope.message) else {
                continue;
            };
            let envelope = Envelope {
                from: PEER,
                to: LEADER,
                term: envelope.term,
                message,
            };
            self.hear(now, vec![envelope]);
        }
    }
}

/// The leader and the holder, before they are on threads of their own.
struct Pair {
    leader: Member,
    holder: Member,
    now: Instant,
}

impl Pair {
    /// The holder has a read lease, and nothing is under way.
    fn with_read_lease(max_write_delay: Duration) -> Self {
        let start = Instant::from_nanos(1_000_000_000);
        let mut pair = Self {
            leader: Member::found(LEADER, false, max_write_delay, start),
            holder: Member::found(HOLDER, true, max_write_delay, start),
            // Past the silence after a start and the election timeout.
            now: start + Duration::from_secs(5),
        };
        pair.leader.handle(pair.now, Input::Tick);
        pair.exchange();
        assert_eq!(pair.leader.node.status().role, Role::Leader);
        for _ in 0..4 {
            pair.beat();
            pair.exchange();
        }
        assert!(pair.holds());
        pair
    }

    fn cell(&self) -> Arc<LeaseCell> {
        let published = self.holder.node.published();
        published.read_lease().unwrap()
    }

    fn holds(&self) -> bool {
        let cell = self.holder.node.published().read_lease();
        cell.is_some_and(|cell| cell.is_valid(self.now))
    }

    fn passes(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
        self.leader.handle(self.now, Input::Tick);
    }

    /// Time passes until the next heartbeat leaves.
    fn beat(&mut self) {
        self.passes(BEAT_MILLIS);
    }

    /// The holder is told whether to ask for read leases.
    fn asks(&mut self, asks: bool) {
        self.holder.node.ask_for_read_leases(self.now, asks);
        self.holder.drain(self.now);
    }

    /// Everything that is sent arrives, and everything committed is applied.
    fn exchange(&mut self) {
        while !self.leader.sent.is_empty() || !self.holder.sent.is_empty() {
            self.leader.answered_by_peer(self.now);
            let to_holder = self.leader.sent_to(HOLDER);
            self.holder.hear(self.now, to_holder);
            // It has nothing to say to the peer that matters here.
            self.holder.sent_to(PEER);
            let to_leader = self.holder.sent_to(LEADER);
            self.leader.hear(self.now, to_leader);
            self.leader.apply(self.now);
            self.holder.apply(self.now);
        }
    }

    /// A write comes to the leader. What it sends the holder because of it is returned: it is on its way.
    fn write(&mut self) -> (LogIndex, Vec<Envelope>) {
        let write = self
            .leader
            .node
            .propose(self.now, Bytes::from_static(b"x"))
            .unwrap();
        self.leader.drain(self.now);
        (write.index, self.leader.sent_to(HOLDER))
    }

    /// What the holder and its session share.
    fn shared(&self) -> Arc<Shared> {
        let applied = self.holder.applied.0;
        Arc::new(Shared {
            published: self.holder.node.published(),
            shown: AtomicU64::new(applied),
            applied: AtomicU64::new(applied),
            seen: AtomicU64::new(self.leader.applied.0),
        })
    }
}

/// A clock that all of them share: nothing here is about how fast clocks run.
struct Time(AtomicU64);

impl Time {
    fn at(now: Instant) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(now.boot)))
    }

    fn passes(&self, now: Instant) {
        self.0.store(now.boot, Ordering::Release);
    }
}

impl Clock for Time {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::Acquire))
    }
}

/// A session at the holder. It keeps its buffer from read to read, and the cell that it has loaded first.
struct Session {
    shared: Arc<Shared>,
    time: Arc<Time>,
    buffer: ReadBuffer<LogIndex>,
    held: Arc<LeaseCell>,
}

impl Session {
    /// One that has been served before.
    fn at(pair: &Pair, shared: &Arc<Shared>, time: &Arc<Time>) -> Self {
        let (served, buffer) = read_with(shared, &**time, ReadBuffer::default());
        assert_eq!(
            served,
            Some(pair.holder.applied),
            "there is a lease to lose"
        );
        Self {
            shared: Arc::clone(shared),
            time: Arc::clone(time),
            buffer,
            held: pair.cell(),
        }
    }

    /// A read that arrives now sees what any client was told before it, or is not served.
    fn read(&mut self) -> Option<LogIndex> {
        let seen = self.shared.seen.load(Ordering::Acquire);
        let buffer = std::mem::take(&mut self.buffer);
        let (served, buffer) = read_with(&self.shared, &*self.time, buffer);
        self.buffer = buffer;
        if let Some(served) = served {
            assert!(
                served.0 >= seen,
                "{served} is served, and clients were told of {seen} before"
            );
        }
        served
    }

    /// The same; and what was loaded of the first tenure is void once clients were told of `write`, of which
    /// the holder had not heard.
    fn read_after_first_tenure(&mut self, write: LogIndex) {
        if self.shared.seen.load(Ordering::Acquire) >= write.0 {
            let now = self.time.now();
            assert!(!self.held.is_valid(now), "a cell that is held is void");
        }
        self.read();
    }
}

/// RL4, RL5: a write is acknowledged by the peer and by the holder, committed and applied by the leader on
/// its own thread, and told to a client; the holder hears of that, and applies it, too. A read that arrives
/// at the holder meanwhile has it, if a client has heard of it before.
pub(crate) fn a_read_at_a_holder_sees_what_clients_were_told_before_it() {
    let mut pair = Pair::with_read_lease(IMPATIENT);
    let (shared, time) = (pair.shared(), Time::at(pair.now));
    let mut session = Session::at(&pair, &shared, &time);
    let (write, to_holder) = pair.write();
    let Pair {
        mut leader,
        mut holder,
        now,
    } = pair;

    let reads = thread::spawn(move || {
        session.read();
        session
    });
    let (to_leader, from_holder) = channel();
    let (notices, from_leader) = channel();
    let leads = thread::spawn({
        let shared = Arc::clone(&shared);
        move || {
            leader.answered_by_peer(now);
            leader.apply_and_tell(now, &shared);
            leader.hear(now, from_holder.recv().unwrap());
            leader.apply_and_tell(now, &shared);
            notices.send(leader.sent_to(HOLDER)).unwrap();
        }
    });
    holder.hear(now, to_holder);
    to_leader.send(holder.sent_to(LEADER)).unwrap();
    holder.hear(now, from_leader.recv().unwrap());
    holder.apply_and_show(now, &shared);

    leads.join().unwrap();
    let served = reads.join().unwrap().read();
    assert_eq!(served, Some(write), "it is served in the end");
}

/// RL6, RL7: a write does not reach the holder, and the leader recalls its read lease. The holder gives it
/// back, and only then the leader commits, on its own thread, and tells a client. The last grant is late: it
/// reaches the holder after it has given back.
pub(crate) fn a_read_lease_is_void_before_it_is_given_back() {
    let mut pair = Pair::with_read_lease(IMPATIENT);
    pair.beat();
    let late = pair.leader.sent_to(HOLDER);
    let (write, _lost) = pair.write();
    pair.leader.answered_by_peer(pair.now);
    pair.beat();
    let mut recall = pair.leader.sent_to(HOLDER);
    recall.retain(|envelope| envelope.message == Message::Recall);
    assert_eq!(recall.len(), 1);
    let (shared, time) = (pair.shared(), Time::at(pair.now));
    let mut session = Session::at(&pair, &shared, &time);
    let Pair {
        mut leader,
        mut holder,
        now,
    } = pair;

    let reads = thread::spawn(move || session.read_after_first_tenure(write));
    let (to_leader, from_holder) = channel();
    let leads = thread::spawn({
        let shared = Arc::clone(&shared);
        move || {
            leader.apply_and_tell(now, &shared);
            leader.hear(now, from_holder.recv().unwrap());
            leader.apply_and_tell(now, &shared);
            assert_eq!(leader.applied, write, "nothing is waited for any more");
        }
    });
    holder.hear(now, recall);
    to_leader.send(holder.sent_to(LEADER)).unwrap();
    holder.hear(now, late);

    reads.join().unwrap();
    leads.join().unwrap();
}

/// RL1, RL2: the last grant took long to arrive, and the leader does not hear its holder. A write does not
/// reach the holder either: the leader commits without it once the read lease is over, and tells a client. The
/// session may have looked at the state long before it reads the clock.
fn waits_a_read_lease_out(then_grants_another: bool) {
    let mut pair = Pair::with_read_lease(PATIENT);
    pair.beat();
    let granted = pair.now;
    let late = pair.leader.sent_to(HOLDER);
    while pair.now.at_least_since(granted) < Duration::from_millis(200) {
        pair.leader.answered_by_peer(pair.now);
        pair.beat();
        pair.leader.sent_to(HOLDER);
    }
    pair.holder.hear(pair.now, late);
    let question = pair.holder.sent_to(LEADER);
    let (write, to_holder) = pair.write();
    let (shared, time) = (pair.shared(), Time::at(pair.now));
    let mut session = Session::at(&pair, &shared, &time);

    let reads = thread::spawn(move || {
        session.read_after_first_tenure(write);
        session
    });
    while pair.leader.committed < write {
        pair.leader.answered_by_peer(pair.now);
        pair.beat();
        pair.leader.sent_to(HOLDER);
    }
    // What the clock said before then is for sessions that have heard of nothing.
    time.passes(pair.now);
    pair.leader.apply_and_tell(pair.now, &shared);
    if then_grants_another {
        begins_a_tenure(&mut pair, question);
        finds_the_write(&mut pair, to_holder, &shared);
    }

    let served = reads.join().unwrap().read();
    assert_eq!(served, then_grants_another.then_some(write), "in the end");
}

pub(crate) fn a_read_lease_is_over_before_its_leader_goes_on_without_it() {
    waits_a_read_lease_out(false);
}

/// RL2, RL5: then the two hear each other again, and another tenure begins, from what is committed now. The
/// write itself reaches the holder last.
pub(crate) fn a_tenure_is_not_taken_for_the_one_before() {
    waits_a_read_lease_out(true);
}

/// RL2, RL5, RL7: a holder is told to ask for read leases no more, and gives its own back; what the leader
/// commits without it is told to a client. The member is told to ask again: another tenure begins, from
/// what is committed now.
fn a_tenure_after_one_that_was_given_back(entries_come_first: bool) {
    let mut pair = Pair::with_read_lease(PATIENT);
    let (write, to_holder) = pair.write();
    pair.leader.answered_by_peer(pair.now);
    let (shared, time) = (pair.shared(), Time::at(pair.now));
    let mut session = Session::at(&pair, &shared, &time);

    let reads = thread::spawn(move || {
        session.read_after_first_tenure(write);
        session
    });
    pair.asks(false);
    let returned = pair.holder.sent_to(LEADER);
    pair.leader.hear(pair.now, returned);
    pair.leader.apply_and_tell(pair.now, &shared);
    assert_eq!(pair.leader.applied, write, "nothing is waited for any more");
    pair.asks(true);
    if entries_come_first {
        pair.holder.hear(pair.now, to_holder.clone());
    }
    let acknowledged = pair.holder.sent_to(LEADER);
    begins_a_tenure(&mut pair, acknowledged);
    finds_the_write(&mut pair, to_holder, &shared);

    let served = reads.join().unwrap().read();
    assert_eq!(served, Some(write), "it is served in the end");
}

/// The write itself reaches the holder after the grant: the floor alone tells of it.
pub(crate) fn a_tenure_serves_nothing_from_before_it_began() {
    a_tenure_after_one_that_was_given_back(false);
}

/// The write reaches the holder before the grant, and is not applied yet. A reader that finds the
/// lease of the new tenure finds that the log has the write.
pub(crate) fn who_finds_a_tenure_finds_what_its_holder_had_then() {
    a_tenure_after_one_that_was_given_back(true);
}

/// RL2, RL10: a member keeps up that has what was committed a little while ago. A write was committed since,
/// and told to a client; the grant reaches the member before the write does.
pub(crate) fn a_member_that_is_let_in_a_little_behind_serves_nothing_below_its_floor() {
    let mut pair = Pair::with_read_lease(IMPATIENT);
    let (shared, time) = (pair.shared(), Time::at(pair.now));
    let mut session = Session::at(&pair, &shared, &time);
    // It gives back what was granted for its last question, too, and then asks again.
    pair.beat();
    pair.asks(false);
    pair.exchange();
    pair.asks(true);
    pair.beat();
    pair.exchange();
    assert!(!pair.holds(), "its question is not answered yet");
    pair.passes(BEAT_MILLIS - 12);
    time.passes(pair.now);
    let (write, to_holder) = pair.write();

    let reads = thread::spawn(move || {
        session.read();
        session
    });
    pair.leader.answered_by_peer(pair.now);
    pair.leader.apply_and_tell(pair.now, &shared);
    assert_eq!(pair.leader.applied, write, "no read lease is waited for");
    pair.passes(12);
    let granted = pair.leader.sent_to(HOLDER);
    pair.holder.hear(pair.now, granted);
    assert!(pair.holds());
    finds_the_write(&mut pair, to_holder, &shared);

    let served = reads.join().unwrap().read();
    assert_eq!(served, Some(write), "it is served in the end");
}

/// The leader and the holder exchange heartbeats until the holder has a read lease again. `words` are on
/// their way to the leader. Entries stay away.
fn begins_a_tenure(pair: &mut Pair, words: Vec<Envelope>) {
    let mut words = words;
    for _ in 0..8 {
        pair.leader.hear(pair.now, words);
        pair.leader.answered_by_peer(pair.now);
        pair.beat();
        let mut heartbeats = pair.leader.sent_to(HOLDER);
        heartbeats.retain(|envelope| matches!(envelope.message, Message::Heartbeat(_)));
        pair.holder.hear(pair.now, heartbeats);
        words = pair.holder.sent_to(LEADER);
        if pair.holds() {
            return;
        }
    }
    panic!("nothing is granted");
}

/// The write, which has been on its way, reaches the holder; and then that it is committed.
fn finds_the_write(pair: &mut Pair, to_holder: Vec<Envelope>, shared: &Shared) {
    pair.holder.hear(pair.now, to_holder);
    let acknowledged = pair.holder.sent_to(LEADER);
    pair.leader.hear(pair.now, acknowledged);
    let notices = pair.leader.sent_to(HOLDER);
    pair.holder.hear(pair.now, notices);
    pair.holder.apply_and_show(pair.now, shared);
}
