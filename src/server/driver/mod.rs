//! The driver: one plain thread that gives the node its inputs and carries out its outputs.
//!
//! It takes one turn after the other, whose order is that of [`crate::node::turn`]. It never waits
//! for a client, a disk or a peer: every effect goes to a queue.

pub(crate) mod effects;
pub(crate) mod elections;
mod followers;
mod heard;
mod heartbeats;
pub(crate) mod lease_log;
pub(crate) mod observer;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::mail::{Mail, Mailbox};
use super::metrics::stopwatch;
use crate::api::Call;
use crate::node::turn::{Idle, Mark, Marks, TurnEffects};
use crate::node::{Input, LeaseCounts, MembersInForce, Node, NodeView, Output, StateCheck};
use crate::raft::{Entry, Message};
use crate::server::driver::effects::Effects;
use crate::server::driver::followers::FollowerSampler;
use crate::server::driver::heard::LastMessages;
use crate::server::driver::heartbeats::Heartbeats;
use crate::server::driver::observer::{Event, Observer};
use crate::server::mail::outbox::{Delivery, Outbox, Stages};
use crate::time::{Clock, Instant};
use crate::types::{LogIndex, RequestId};

/// The driver's state.
pub(crate) struct Driver<E, O> {
    node: Node,
    mailbox: Arc<Mailbox>,
    clock: Arc<dyn Clock>,
    effects: E,
    observer: O,
    /// The view of the node after the last turn.
    view: NodeView,
    /// What the data directory says.
    marks: Marks,
    pending: BTreeMap<RequestId, PendingRequest>,
    /// The last entry of each batch that was sent to be applied, and when; only of those not applied yet.
    commits: VecDeque<(LogIndex, std::time::Instant)>,
    next_request: u64,
    heartbeats: Heartbeats,
    heard: LastMessages,
    followers: FollowerSampler,
}

/// A request that is not answered yet.
struct PendingRequest {
    outbox: Arc<Outbox>,
    frame: u64,
    taken: std::time::Instant,
    /// Of a write: its place in the log.
    entry: Option<LogIndex>,
}

impl<E: Effects, O: Observer> Driver<E, O> {
    pub(crate) fn new(
        mut node: Node,
        mailbox: Arc<Mailbox>,
        clock: Arc<dyn Clock>,
        effects: E,
        observer: O,
        is_marked_unproven: bool,
    ) -> Self {
        let marks = Marks::new(&node, is_marked_unproven);
        // The members are news to the observer even where nothing has happened yet, and so is an alarm.
        let view = NodeView {
            members: MembersInForce::default(),
            state_check: StateCheck::default(),
            ..node.view()
        };
        Self {
            node,
            mailbox,
            clock,
            effects,
            observer,
            view,
            marks,
            pending: BTreeMap::new(),
            commits: VecDeque::new(),
            next_request: 1,
            heartbeats: Heartbeats::default(),
            heard: LastMessages::default(),
            followers: FollowerSampler::default(),
        }
    }

    /// Runs until [`Mail::Stop`].
    pub(crate) fn run(mut self) {
        let now = self.clock.now();
        self.observe(now);
        let (node, marks, mut effects) = self.parts(now);
        marks.carry_away(node, &mut effects);
        let mut idle = Idle::new(now);
        while let Some(next) = self.turn(idle) {
            idle = next;
        }
    }

    /// Takes one turn ([`crate::node::turn`]). Returns nothing once [`Mail::Stop`] has come.
    fn turn(&mut self, idle: Idle<Mail>) -> Option<Idle<Mail>> {
        let asleep = idle.sleep(&*self.clock, self.node.poll_timeout());
        let taken = asleep.take(|room, patience| self.mailbox.take(room, patience));
        let mut turn = taken.read(&*self.clock);
        if let Some(late) = turn.late() {
            self.observer.happened(Event::TimerDelayed(late));
        }
        // One reading for the requests of a batch: they are taken in together.
        let mut taken_in = None;
        while let Some(mail) = turn.next_mail() {
            match mail {
                Mail::Input(input) => {
                    self.note_answer(turn.now(), &input);
                    turn.handle(&mut self.node, input);
                }
                Mail::Request {
                    mut call,
                    arrived,
                    author,
                    context: _,
                    outbox,
                    frame,
                } => {
                    let taken = *taken_in.get_or_insert_with(stopwatch);
                    if spend(&mut call, taken.saturating_duration_since(arrived)) {
                        self.observer.happened(Event::RequestExpired);
                    }
                    let id = RequestId(self.next_request);
                    self.next_request += 1;
                    turn.handle(&mut self.node, Input::Request(id, call, author));
                    let pending = PendingRequest {
                        outbox,
                        frame,
                        taken,
                        entry: self.node.entry_of(id),
                    };
                    // An immediate answer is delivered with the rest of the batch, at the end of the turn.
                    self.pending.insert(id, pending);
                }
                Mail::ConfigurationAt(index, answer) => {
                    let found = self.node.consensus().configuration_at(index);
                    drop(answer.send(found));
                }
                // It fails if the receiver is gone, because its request was cancelled.
                Mail::Pulse(answer) => drop(answer.send(())),
                Mail::Stop => return None,
            }
        }
        let now = turn.now();
        let done = turn.tick(&mut self.node);
        self.observe(now);
        // Once for the whole batch: it costs one write to the log and one message to each follower.
        let (node, marks, mut effects) = self.parts(now);
        Some(done.carry_away(node, marks, &mut effects))
    }

    /// The node, what its directory says, and what carries out the effects of a turn that read `now`.
    fn parts(&mut self, now: Instant) -> (&mut Node, &mut Marks, Carrier<'_, E, O>) {
        let carrier = Carrier {
            now,
            effects: &mut self.effects,
            observer: &mut self.observer,
            pending: &mut self.pending,
            commits: &mut self.commits,
            heartbeats: &mut self.heartbeats,
        };
        (&mut self.node, &mut self.marks, carrier)
    }

    /// Reports what has changed since the last turn.
    fn observe(&mut self, now: Instant) {
        let counts = self.node.take_lease_counts();
        let new = self.node.view();
        let old = std::mem::replace(&mut self.view, new);
        if counts != LeaseCounts::default() {
            let event = Event::Leases(&counts, self.view.leases);
            self.observer.happened(event);
        }
        if old != self.view {
            self.observer.changed(now, &old, &self.view);
            if old.members != self.view.members {
                let members = self.view.members.configuration.members();
                self.heartbeats.keep(|peer| members.contains(&peer));
                self.heard.keep(|peer| members.contains(&peer));
            }
        }
        if old.clock_regressions != self.view.clock_regressions {
            self.heartbeats.clock_went_back();
            self.heard.clock_went_back(now);
            self.followers.clock_went_back();
        }
        if let Some(followers) = self.followers.sample(now, &self.node) {
            self.observer.happened(Event::Followers(followers));
        }
        if let Some(heard) = self.heard.sample(now) {
            self.observer.happened(Event::Heard(heard));
        }
    }

    /// Notes who has said something, and reports the round-trip time of a heartbeat, if this is the
    /// answer to one.
    fn note_answer(&mut self, now: Instant, input: &Input) {
        let Input::Message(envelope) = input else {
            return;
        };
        self.heard.note(envelope.from, now);
        if let Message::HeartbeatReply(reply) = &envelope.message {
            let round = reply.heard.round;
            if let Some(after) = self.heartbeats.answered(envelope.from, round, now) {
                let event = Event::HeartbeatAnswered(envelope.from, after);
                self.observer.happened(event);
            }
        }
    }
}

/// Carries out the effects of one turn.
struct Carrier<'a, E, O> {
    now: Instant,
    effects: &'a mut E,
    observer: &'a mut O,
    pending: &'a mut BTreeMap<RequestId, PendingRequest>,
    commits: &'a mut VecDeque<(LogIndex, std::time::Instant)>,
    heartbeats: &'a mut Heartbeats,
}

impl<E: Effects, O: Observer> TurnEffects for Carrier<'_, E, O> {
    fn mark(&mut self, mark: Mark) {
        self.effects.mark(mark);
        if mark == Mark::Proven {
            self.observer.happened(Event::Proven);
        }
    }

    fn output(&mut self, node: &Node, output: Output) {
        match output {
            Output::Persist(ticket, unsaved) => self.effects.persist(ticket, unsaved),
            Output::Send(envelope) => {
                if let Message::Heartbeat(heartbeat) = &envelope.message {
                    self.heartbeats.sent(envelope.to, heartbeat.round, self.now);
                }
                let dropped = self.effects.send(envelope);
                if let Some(dropped) = dropped
                    && matches!(dropped.message, Message::Heartbeat(_))
                {
                    self.observer.happened(Event::HeartbeatDropped(dropped.to));
                }
            }
            Output::Apply(entries) => {
                self.note_commit(node, &entries);
                self.effects.apply(entries);
            }
            Output::FindIdleSessions { unused_since } => {
                self.effects.find_idle_sessions(unused_since);
            }
            Output::Read(id, permit) => self.answer(id, Delivery::Permit(permit)),
            Output::CaughtUp(id) => self.answer(id, Delivery::CaughtUp),
            Output::ReadLeases(id, permit, asked) => {
                self.answer(id, Delivery::Leases(permit, asked));
            }
            Output::Reply(id, result) => self.answer(id, Delivery::Reply(result)),
            Output::SendSnapshot(peer) => self.effects.send_snapshot(peer),
            Output::Install(id) => self.effects.install(id),
            Output::DiscardSnapshot(id) => self.effects.discard_snapshot(id),
        }
    }
}

impl<E: Effects, O: Observer> Carrier<'_, E, O> {
    /// Records when entries were committed, while requests wait for them.
    fn note_commit(&mut self, node: &Node, entries: &[Entry]) {
        let applied = node.applied();
        while self
            .commits
            .front()
            .is_some_and(|(last, _)| *last <= applied)
        {
            self.commits.pop_front();
        }
        if let Some(last) = entries.last()
            && !self.pending.is_empty()
        {
            self.commits.push_back((last.id.index, stopwatch()));
        }
    }

    fn answer(&mut self, id: RequestId, delivery: Delivery) {
        if let Some(pending) = self.pending.remove(&id) {
            let stages = Stages {
                taken: Some(pending.taken),
                committed: pending.entry.and_then(|entry| self.committed(entry)),
                looked: None,
            };
            let outbox = pending.outbox;
            outbox.deliver_after(stages, pending.frame, delivery);
        }
    }

    /// When `entry` was sent to be applied, if it was and a request was waiting then.
    fn committed(&self, entry: LogIndex) -> Option<std::time::Instant> {
        let at = self.commits.partition_point(|(last, _)| *last < entry);
        self.commits.get(at).map(|(_, when)| *when)
    }
}

/// Subtracts the time that a request has already waited from its timeout. Returns whether none is left.
fn spend(call: &mut Call, waited: Duration) -> bool {
    let waited = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
    let had_time = call.timeout_ms > 0;
    call.timeout_ms = call.timeout_ms.saturating_sub(waited);
    had_time && call.timeout_ms == 0
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::raft::{Configuration, Envelope, Ticket, UnsavedState};
    use crate::types::{BootstrapId, LogId, NodeId, Role, Term};

    #[test]
    fn what_a_request_has_waited_is_taken_from_its_time() {
        let mut call = Call {
            timeout_ms: 100,
            consistency: crate::api::Consistency::default(),
            min_revision: 0,
            session: None,
            request: crate::api::Request::OpenSession,
        };
        assert!(!spend(&mut call, Duration::from_micros(99_900)));
        assert_eq!(call.timeout_ms, 1);
        assert!(spend(&mut call, Duration::from_secs(1 << 40)));
        assert_eq!(call.timeout_ms, 0);
        assert!(!spend(&mut call, Duration::ZERO), "it had none");
    }

    /// A clock that runs until it is told to step back, once.
    #[derive(Default)]
    struct SteppingClock {
        readings: AtomicU64,
    }

    impl Clock for SteppingClock {
        fn now(&self) -> Instant {
            let reading = self.readings.fetch_add(1, Ordering::Relaxed);
            let stepped = if reading > 300 { 1_500_000_000 } else { 0 };
            Instant::from_nanos(10_000_000_000 + reading * 20_000_000 - stepped)
        }
    }

    /// A clock that goes on by 5 ms whenever it is read.
    #[derive(Default)]
    struct Steady {
        readings: AtomicU64,
    }

    impl Clock for Steady {
        fn now(&self) -> Instant {
            let reading = self.readings.fetch_add(1, Ordering::Relaxed);
            Instant::from_nanos(10_000_000_000 + reading * 5_000_000)
        }
    }

    /// The only voter of its cluster.
    fn alone(now: Instant) -> Node {
        let restored = crate::raft::RestoredState {
            base_configuration: Configuration {
                voters: [NodeId(1)].into(),
                ..Configuration::default()
            },
            ..crate::raft::RestoredState::default()
        };
        Node::new(options(), restored, Some(BootstrapId(1)), 1, now)
    }

    fn options() -> crate::node::NodeOptions {
        crate::node::NodeOptions {
            cluster_id: crate::types::ClusterId(1),
            id: NodeId(1),
            members: Vec::new(),
            timing: crate::raft::Timing::default(),
            limits: crate::api::Limits::DEFAULT,
            waiting_max: 16,
            sessions_max: 16,
            session_idle_max: Duration::from_secs(3600),
            leases: crate::node::LeaseOptions::DEFAULT,
            auto_compaction: crate::node::AutoCompaction::Off,
            check_interval: None,
            seed: 1,
            bootstrap: BootstrapId(1),
        }
    }

    /// Effects of which a test looks at these, and that come to nothing otherwise.
    struct Script {
        persist: Box<dyn FnMut(Ticket, UnsavedState) + Send>,
        apply: Box<dyn FnMut(Vec<Entry>) + Send>,
        mark: Box<dyn FnMut(Mark) + Send>,
    }

    impl Script {
        fn new(persist: impl FnMut(Ticket, UnsavedState) + Send + 'static) -> Self {
            Self {
                persist: Box::new(persist),
                apply: Box::new(|_| ()),
                mark: Box::new(|_| ()),
            }
        }
    }

    impl Effects for Script {
        fn persist(&mut self, ticket: Ticket, unsaved: UnsavedState) {
            (self.persist)(ticket, unsaved);
        }
        fn send(&mut self, _: Envelope) -> Option<Envelope> {
            None
        }
        fn apply(&mut self, entries: Vec<Entry>) {
            (self.apply)(entries);
        }
        fn install(&mut self, _: LogId) {}
        fn discard_snapshot(&mut self, _: LogId) {}
        fn send_snapshot(&mut self, _: NodeId) {}
        fn find_idle_sessions(&mut self, _: LogIndex) {}
        fn mark(&mut self, mark: Mark) {
            (self.mark)(mark);
        }
    }

    /// Looks at what changes.
    struct ViewObserver<F>(F);

    impl<F: FnMut(&NodeView, &NodeView) + Send> Observer for ViewObserver<F> {
        fn changed(&mut self, _: Instant, old: &NodeView, new: &NodeView) {
            (self.0)(old, new);
        }
        fn happened(&mut self, _: Event<'_>) {}
    }

    /// A disk that answers until there is an entry to write, then stalls until leadership is given up.
    struct StallingDisk {
        mailbox: Arc<Mailbox>,
        owed: Option<Ticket>,
        is_over: bool,
        told: Vec<&'static str>,
    }

    impl StallingDisk {
        fn persist(&mut self, ticket: Ticket, unsaved: &UnsavedState) {
            if self.is_over || self.owed.is_none() && unsaved.entries.is_empty() {
                self.mailbox.send(Mail::Input(Input::Persisted(ticket)));
            } else {
                self.owed = Some(ticket);
            }
        }

        /// Whether it leads again.
        fn changed(&mut self, old: &NodeView, new: &NodeView) -> bool {
            match (old.disk_silent, new.disk_silent) {
                (None, Some(silent)) => {
                    assert!(silent > crate::raft::Timing::default().lease_duration);
                    self.told.push("stalled");
                }
                (Some(_), None) => self.told.push("answers"),
                _ => {}
            }
            let leads = |view: &NodeView| view.status.role == Role::Leader;
            match (leads(old), leads(new)) {
                (true, false) => {
                    self.told.push("gives up");
                    self.is_over = true;
                    let owed = self.owed.expect("it gave up because of it");
                    self.mailbox.send(Mail::Input(Input::Persisted(owed)));
                }
                (false, true) => {
                    self.told.push("leads");
                    if self.is_over {
                        self.mailbox.send(Mail::Stop);
                        return true;
                    }
                }
                _ => {}
            }
            false
        }
    }

    #[test]
    fn a_leader_whose_disk_stalls_says_so_gives_up_and_leads_again_once_it_answers() {
        let clock = Arc::new(Steady::default());
        let mailbox = Arc::new(Mailbox::default());
        let over = Arc::new(AtomicU64::new(0));
        let node = alone(clock.now());
        let disk = Arc::new(std::sync::Mutex::new(StallingDisk {
            mailbox: mailbox.clone(),
            owed: None,
            is_over: false,
            told: Vec::new(),
        }));
        let (waking, ended) = (mailbox.clone(), over.clone());
        let waker = std::thread::spawn(move || {
            while ended.load(Ordering::Relaxed) == 0 {
                waking.send(Mail::Input(Input::Tick));
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let writing = disk.clone();
        let effects = Script::new(move |ticket, unsaved| {
            writing.lock().unwrap().persist(ticket, &unsaved);
        });
        let watched = disk.clone();
        let observer = ViewObserver(move |old: &NodeView, new: &NodeView| {
            if watched.lock().unwrap().changed(old, new) {
                over.store(1, Ordering::Relaxed);
            }
        });
        // A driver that never leads again runs for ever.
        Driver::new(node, mailbox, clock, effects, observer, false).run();
        waker.join().unwrap();
        let disk = disk.lock().unwrap();
        assert_eq!(
            disk.told,
            ["leads", "stalled", "gives up", "answers", "leads"]
        );
    }

    /// Were it the other way round, a loss of power between the two would leave entries beside the
    /// mark, and the member would take them for the rest of a lost log.
    #[test]
    fn a_member_is_proven_before_its_first_entries_are_written() {
        let ids = [1, 2, 3].map(NodeId);
        let clock = Arc::new(SteppingClock::default());
        let mailbox = Arc::new(Mailbox::default());
        let restored = crate::raft::RestoredState {
            base_configuration: Configuration {
                voters: ids.into(),
                ..Configuration::default()
            },
            // It took part in the bootstrap.
            hard_state: crate::raft::HardState {
                term: Term(1),
                vote: Some(ids[0]),
                ..crate::raft::HardState::default()
            },
            unproven: true,
            ..crate::raft::RestoredState::default()
        };
        let options = crate::node::NodeOptions {
            id: ids[1],
            ..options()
        };
        let node = Node::new(options, restored, None, 1, clock.now());
        let heartbeat = crate::raft::Heartbeat {
            round: crate::raft::RoundId(1),
            promise: Duration::from_millis(500),
            commit: LogIndex(0),
            fresh: None,
        };
        let first = Entry {
            id: LogId::new(LogIndex(1), Term(1)),
            payload: crate::raft::Payload::Noop,
        };
        let append = crate::raft::Append {
            heartbeat,
            base: LogId::default(),
            base_checksum: None,
            entries: vec![first],
        };
        mailbox.send(Mail::Input(Input::Message(Envelope {
            from: ids[0],
            to: ids[1],
            term: Term(1),
            message: Message::Append(append),
        })));
        let (told, stopping) = (Arc::new(std::sync::Mutex::new(Vec::new())), mailbox.clone());
        let (writes, marks) = (told.clone(), told.clone());
        let mut effects = Script::new(move |_, unsaved| {
            if !unsaved.entries.is_empty() {
                writes.lock().unwrap().push("entries to write");
                stopping.send(Mail::Stop);
            }
        });
        effects.mark = Box::new(move |mark| {
            assert_eq!(mark, Mark::Proven);
            marks.lock().unwrap().push("proven");
        });
        let observer = ViewObserver(|_: &NodeView, _: &NodeView| ());
        Driver::new(node, mailbox, clock, effects, observer, true).run();
        assert_eq!(*told.lock().unwrap(), ["proven", "entries to write"]);
    }

    /// P37: two leaders of one term prove that something failed which leases rest on.
    #[test]
    fn a_lease_that_tripped_is_marked() {
        let ids = [1, 2, 3].map(NodeId);
        let clock = Arc::new(SteppingClock::default());
        let mailbox = Arc::new(Mailbox::default());
        let restored = crate::raft::RestoredState {
            base_configuration: Configuration {
                voters: ids.into(),
                ..Configuration::default()
            },
            ..crate::raft::RestoredState::default()
        };
        let node = Node::new(options(), restored, None, 1, clock.now());
        let heartbeat = crate::raft::Heartbeat {
            round: crate::raft::RoundId(1),
            promise: Duration::from_millis(500),
            commit: LogIndex(0),
            fresh: None,
        };
        for leader in [ids[1], ids[2]] {
            mailbox.send(Mail::Input(Input::Message(Envelope {
                from: leader,
                to: ids[0],
                term: Term(1),
                message: Message::Heartbeat(heartbeat),
            })));
        }
        let (marked, stopping) = (Arc::new(std::sync::Mutex::new(Vec::new())), mailbox.clone());
        let mut effects = Script::new(|_, _| ());
        let marks = marked.clone();
        effects.mark = Box::new(move |mark| marks.lock().unwrap().push(mark));
        let observer = ViewObserver(move |_: &NodeView, new: &NodeView| {
            if new.lease_tripped {
                stopping.send(Mail::Stop);
            }
        });
        Driver::new(node, mailbox, clock, effects, observer, false).run();
        assert_eq!(*marked.lock().unwrap(), [Mark::LeaseTripped]);
    }

    #[test]
    fn a_clock_that_steps_back_is_told_and_voids_the_lease() {
        let clock = Arc::new(SteppingClock::default());
        let mailbox = Arc::new(Mailbox::default());
        let heard = Arc::new(AtomicU64::new(0));
        let node = alone(clock.now());
        let published = node.published();
        let disk = mailbox.clone();
        let mut effects = Script::new(move |ticket, _| {
            disk.send(Mail::Input(Input::Persisted(ticket)));
        });
        let state = mailbox.clone();
        effects.apply = Box::new(move |entries| {
            let reply = crate::kv::Reply {
                revision: 1,
                result: Ok(None),
                leases: Vec::new(),
                is_repeat: false,
                lease_keys: 0,
                hash: None,
            };
            let replies = entries
                .into_iter()
                .map(|entry| (entry.id, reply.clone()))
                .collect();
            state.send(Mail::Input(Input::Applied(replies)));
        });
        let (hearing, ending) = (heard.clone(), mailbox.clone());
        let observer = ViewObserver(move |old: &NodeView, new: &NodeView| {
            if old.clock_regressions != new.clock_regressions {
                hearing.store(new.clock_regressions, Ordering::Relaxed);
                ending.send(Mail::Stop);
            }
        });
        // Mail keeps the driver from sleeping, so that readings, and with them time, go on.
        let (waking, over) = (mailbox.clone(), heard.clone());
        let waker = std::thread::spawn(move || {
            while over.load(Ordering::Relaxed) == 0 {
                waking.send(Mail::Input(Input::Tick));
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        // A driver that never hears of the step runs for ever.
        Driver::new(node, mailbox, clock, effects, observer, false).run();
        waker.join().unwrap();
        assert_eq!(heard.load(Ordering::Relaxed), 1);
        let counters = published.lease_counters();
        assert_eq!(
            counters.invalidations(crate::raft::Invalidation::ClockWentBack),
            1
        );
    }
}
