//! The driver: one plain thread that gives the node its inputs and carries its outputs away.
//!
//! It takes one turn after the other, whose order is that of [`crate::node::turn`]. It never waits
//! for a client, a disk or a peer: every effect goes to a queue.

pub(crate) mod effects;
mod elections;
mod heartbeats;
pub(crate) mod lease_log;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::oneshot;

use super::metrics::stopwatch;
use crate::api::Call;
use crate::kv::access::Author;
use crate::node::turn::Idle;
use crate::node::{Consistency, Input, LeaseCounts, Node, Output, Proposals};
use crate::raft::{Configuration, Entry, Envelope, Message, Status, Ticket, Unsaved};
use crate::server::driver::elections::Elections;
use crate::server::driver::heartbeats::Heartbeats;
use crate::server::session::outbox::{Delivery, Outbox, Stages};
use crate::server::threads::queue::BatchQueue;
use crate::time::{Clock, Instant};
use crate::types::{LogId, LogIndex, NodeId, RequestId, Role, Term};

/// Renewals that are closer than this count as one: where reads wait for rounds there may be
/// thousands a second.
const RENEWAL_MIN: Duration = Duration::from_millis(10);
/// How often it is told what the followers lack.
const LAG_INTERVAL: Duration = Duration::from_millis(100);

/// What is sent to the driver.
#[derive(Debug)]
pub(crate) enum Mail {
    /// Something for the node.
    Input(Input),
    /// A client's request, and where its answer goes.
    Request {
        call: Call,
        /// When it was taken in: from then on its time runs.
        arrived: std::time::Instant,
        /// In whose name it is to be carried out, if that has to be known.
        author: Option<Author>,
        outbox: Arc<Outbox>,
        frame: u64,
    },
    /// Whoever holds the other end wants to know the configuration in force at this entry; `None` if
    /// the log does not hold it any more.
    ConfigurationAt(LogIndex, oneshot::Sender<Option<Configuration>>),
    /// Whoever holds the other end wants to know whether the thread turns.
    Pulse(oneshot::Sender<()>),
    /// End the thread.
    Stop,
}

/// The driver's only way in. Never blocks the sender.
pub(crate) type Mailbox = BatchQueue<Mail>;

/// Where the driver's outputs go. None of these may block.
pub(crate) trait Sinks: Send {
    /// To the log thread.
    fn persist(&mut self, ticket: Ticket, unsaved: Unsaved);
    /// To the peers.
    fn send(&mut self, envelope: Envelope);
    /// To the state thread.
    fn apply(&mut self, entries: Vec<Entry>);
    /// To the state thread, in order with what is to be applied.
    fn install(&mut self, id: LogId);
    /// The state that was received and ends with `id` is not needed.
    fn discard_snapshot(&mut self, id: LogId);
    /// This member is to be sent the whole state; to be reported when that has ended.
    fn send_snapshot(&mut self, peer: NodeId);
    /// To the state thread.
    fn find_idle_sessions(&mut self, unused_since: LogIndex);
    /// Another configuration is in force, or it is committed now. `index` is where it stands.
    fn members_changed(&mut self, index: LogIndex, is_committed: bool, members: &Configuration) {
        let _ = (index, is_committed, members);
    }
    /// It is committed that this node is no member any more. Called once, and not while it leads.
    fn removed(&mut self) {}
    /// Consensus stands differently than before.
    fn status_changed(&mut self, before: &Status, now: &Status);
    /// A leader lease was given, or renewed so long after the one before began. It may be trusted
    /// for `left` from now on.
    fn lease_renewed(&mut self, interval: Option<Duration>, left: Duration);
    /// This member has answered a heartbeat after so long.
    fn heartbeat_answered(&mut self, _peer: NodeId, _after: Duration) {}
    /// As leader: so many entries of the log each other member has not acknowledged. Nobody off the
    /// leader.
    fn followers_lack(&mut self, _entries: &[(NodeId, u64)]) {}
    /// An election in which this node stood is over, after so long.
    fn election_over(&mut self, _after: Duration) {}
    /// The node acted so much later on what was due than it was due.
    fn timer_delayed(&mut self, by: Duration);
    /// The disk owes an answer for longer than a promise lasts, for so long by now; or, with none, has
    /// answered again.
    fn disk_stalled(&mut self, silent: Option<Duration>) {
        let _ = silent;
    }
    /// A clock of this machine ran backwards, for the `times`th time (A4).
    fn clock_went_back(&mut self, times: u64);
    /// This member took part in the founding, or took everything anew. Called at most once.
    fn proven(&mut self);
    /// Proof came that an assumption about clocks failed (P37). Called once.
    fn lease_tripped(&mut self);
    /// The cluster is of this version from here on.
    fn version_raised(&mut self, _version: u16) {}
    /// Client leases were granted, renewed or ended, or are others than before.
    fn leases_changed(&mut self, _counts: &LeaseCounts, _held: LeasesHeld) {}
    /// What became of the writes of clients is more than before.
    fn proposals_changed(&mut self, _proposals: &Proposals) {}
    /// The deadline of a request was over before it was looked at.
    fn request_expired(&mut self) {}
    /// The state was compared with the others': what is known by now, and how often they agreed.
    fn compared(&mut self, consistency: Consistency, agreed: u64) {
        let _ = (consistency, agreed);
    }
}

/// The client leases of a node, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeasesHeld {
    /// How many there are.
    pub(crate) leases: usize,
    /// How many keys hang on them.
    pub(crate) keys: u64,
    /// How many are due and not gone yet; none off the leader.
    pub(crate) expiring: usize,
}

/// The loop's state.
pub(crate) struct Driver<S> {
    node: Node,
    mailbox: Arc<Mailbox>,
    clock: Arc<dyn Clock>,
    sinks: S,
    status: Arc<ArcSwap<Status>>,
    pending: BTreeMap<RequestId, Pending>,
    /// Up to where entries were handed on to be applied, and when; only those that are not applied yet.
    commits: VecDeque<(LogIndex, std::time::Instant)>,
    next_request: u64,
    lease_tripped: bool,
    /// See [`crate::raft::Restored::unproven`].
    unproven: bool,
    clock_regressions: u64,
    /// The disk owed an answer for too long, by the last look.
    disk_stalled: bool,
    /// What the comparisons with other nodes have shown, and how often they agreed.
    compared: (Consistency, u64),
    /// What became of writes, by the last look.
    proposals: Proposals,
    /// What client leases there were, by the last look.
    leases_held: LeasesHeld,
    /// When the lease ended, by the last look.
    lease_until: Option<Instant>,
    /// Which configuration was in force by the last look: where it stands, in which term that was, and
    /// whether it was committed.
    members: Option<(LogIndex, Term, bool)>,
    removed: bool,
    /// What the cluster was, by the last look.
    cluster_version: u16,
    heartbeats: Heartbeats,
    elections: Elections,
    /// What the followers lacked, by the last look, and when that was.
    followers_lack: (Option<Instant>, Vec<(NodeId, u64)>),
}

/// A request that is not answered yet.
struct Pending {
    outbox: Arc<Outbox>,
    frame: u64,
    taken: std::time::Instant,
    /// Of a write: its place in the log.
    entry: Option<LogIndex>,
}

impl<S: Sinks> Driver<S> {
    pub(crate) fn new(
        node: Node,
        mailbox: Arc<Mailbox>,
        clock: Arc<dyn Clock>,
        sinks: S,
        status: Arc<ArcSwap<Status>>,
        unproven: bool,
    ) -> Self {
        status.store(Arc::new(node.status()));
        Self {
            lease_tripped: node.consensus().lease_tripped(),
            unproven,
            clock_regressions: 0,
            disk_stalled: false,
            compared: (Consistency::default(), 0),
            proposals: Proposals::default(),
            leases_held: LeasesHeld::default(),
            lease_until: None,
            members: None,
            removed: false,
            cluster_version: node.cluster_version(),
            heartbeats: Heartbeats::default(),
            elections: Elections::default(),
            followers_lack: (None, Vec::new()),
            node,
            mailbox,
            clock,
            sinks,
            status,
            pending: BTreeMap::new(),
            commits: VecDeque::new(),
            next_request: 1,
        }
    }

    /// Runs until [`Mail::Stop`].
    pub(crate) fn run(mut self) {
        let now = self.clock.now();
        self.carry_away(now);
        self.tell_members();
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
            self.sinks.timer_delayed(late);
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
                    outbox,
                    frame,
                } => {
                    let taken = *taken_in.get_or_insert_with(stopwatch);
                    if spend(&mut call, taken.saturating_duration_since(arrived)) {
                        self.sinks.request_expired();
                    }
                    let id = RequestId(self.next_request);
                    self.next_request += 1;
                    let input = match author {
                        None => Input::Request(id, call),
                        Some(author) => Input::RequestAs(id, call, author),
                    };
                    turn.handle(&mut self.node, input);
                    let pending = Pending {
                        outbox,
                        frame,
                        taken,
                        entry: self.node.entry_of(id),
                    };
                    // What was answered at once is carried away with the rest of the batch.
                    self.pending.insert(id, pending);
                }
                Mail::ConfigurationAt(index, answer) => {
                    let found = self.node.consensus().configuration_at(index);
                    drop(answer.send(found));
                }
                // Nobody listens any more: then nobody needs to know.
                Mail::Pulse(answer) => drop(answer.send(())),
                Mail::Stop => return None,
            }
        }
        let now = turn.now();
        let idle = turn.tick(&mut self.node);
        // Effects are carried away once for the whole batch, so that it costs one write to the log and
        // one message to each follower.
        self.prove();
        // Before anything is sent to whoever is new.
        self.tell_members();
        self.carry_away(now);
        self.publish_status(now);
        Some(idle)
    }

    /// Has the mark of an unproven member removed. Before anything that shows it to be proven is
    /// written or said: with the mark, an entry in its log would be taken for the rest of a lost
    /// one at the next start, and members enough that lost their power in between would wait for
    /// each other for ever.
    fn prove(&mut self) {
        let consensus = self.node.consensus();
        if self.unproven && !consensus.is_unproven() && !consensus.is_quarantined() {
            self.unproven = false;
            self.sinks.proven();
        }
    }

    fn carry_away(&mut self, now: Instant) {
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Persist(ticket, unsaved) => self.sinks.persist(ticket, unsaved),
                Output::Send(envelope) => {
                    if let Message::Heartbeat(heartbeat) = &envelope.message {
                        self.heartbeats.sent(envelope.to, heartbeat.round, now);
                    }
                    self.sinks.send(envelope);
                }
                Output::Apply(entries) => {
                    self.note_commit(&entries);
                    self.sinks.apply(entries);
                }
                Output::FindIdleSessions { unused_since } => {
                    self.sinks.find_idle_sessions(unused_since);
                }
                Output::Read(id, permit) => self.answer(id, Delivery::Permit(permit)),
                Output::CaughtUp(id) => self.answer(id, Delivery::CaughtUp),
                Output::ReadLeases(id, permit, asked) => {
                    self.answer(id, Delivery::Leases(permit, asked));
                }
                Output::Reply(id, result) => self.answer(id, Delivery::Reply(result)),
                Output::SendSnapshot(peer) => self.sinks.send_snapshot(peer),
                Output::Install(id) => self.sinks.install(id),
                Output::DiscardSnapshot(id) => self.sinks.discard_snapshot(id),
            }
        }
    }

    /// Remembers when entries were committed, for as long as somebody waits for them.
    fn note_commit(&mut self, entries: &[Entry]) {
        let applied = self.node.applied();
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

    /// When `entry` was handed on to be applied, if it was and somebody waited then.
    fn committed(&self, entry: LogIndex) -> Option<std::time::Instant> {
        let at = self.commits.partition_point(|(last, _)| *last < entry);
        self.commits.get(at).map(|(_, when)| *when)
    }

    fn publish_status(&mut self, now: Instant) {
        self.note_renewal(now);
        let regressions = self.node.published().lease_counters().clock_regressions();
        if regressions > self.clock_regressions {
            self.clock_regressions = regressions;
            self.heartbeats.clock_went_back();
            self.followers_lack.0 = None;
            self.sinks.clock_went_back(regressions);
        }
        let silent = self.node.consensus().stalled_disk(now);
        if silent.is_some() != self.disk_stalled {
            self.disk_stalled = silent.is_some();
            self.sinks.disk_stalled(silent);
        }
        if !self.lease_tripped && self.node.consensus().lease_tripped() {
            self.lease_tripped = true;
            self.sinks.lease_tripped();
        }
        let counts = self.node.take_lease_counts();
        let tracker = self.node.lease_tracker();
        let held = LeasesHeld {
            leases: tracker.len(),
            keys: tracker.keys(),
            expiring: tracker.expiring(),
        };
        if counts != LeaseCounts::default() || held != self.leases_held {
            self.leases_held = held;
            self.sinks.leases_changed(&counts, held);
        }
        let proposals = self.node.proposals();
        if self.proposals != proposals {
            self.proposals = proposals;
            self.sinks.proposals_changed(&proposals);
        }
        let compared = (self.node.consistency(), self.node.checks_agreed());
        if self.compared != compared {
            self.compared = compared;
            self.sinks.compared(compared.0, compared.1);
        }
        if !self.removed && self.node.consensus().is_removed() {
            // Who removed itself leads until another has taken over.
            self.removed = self.node.status().role != Role::Leader;
            if self.removed {
                self.sinks.removed();
            }
        }
        let version = self.node.cluster_version();
        if self.cluster_version != version {
            self.cluster_version = version;
            self.sinks.version_raised(version);
        }
        self.tell_followers(now);
        let status = self.node.status();
        let before = self.status.load();
        if let Some(after) = self.elections.look(now, &before, &status) {
            self.sinks.election_over(after);
        }
        if **before != status {
            self.sinks.status_changed(&before, &status);
            self.status.store(Arc::new(status));
        }
    }

    /// Says who the members are, if they are others than before.
    fn tell_members(&mut self) {
        let consensus = self.node.consensus();
        let (index, committed) = (
            consensus.configuration_index(),
            consensus.is_configuration_committed(),
        );
        let members = (index, self.node.published().term(), committed);
        if self.members != Some(members) {
            self.members = Some(members);
            let configuration = consensus.configuration();
            let members = configuration.members();
            self.heartbeats.keep(|peer| members.contains(&peer));
            self.sinks.members_changed(index, committed, configuration);
        }
    }

    /// Says how long a heartbeat took there and back, if this is the answer to one.
    fn note_answer(&mut self, now: Instant, input: &Input) {
        if let Input::Message(envelope) = input
            && let Message::HeartbeatReply(reply) = &envelope.message
        {
            let round = reply.heard.round;
            if let Some(after) = self.heartbeats.answered(envelope.from, round, now) {
                self.sinks.heartbeat_answered(envelope.from, after);
            }
        }
    }

    /// Says what the followers lack: now and then, and at once when this node leads no more.
    fn tell_followers(&mut self, now: Instant) {
        let (told, lacked) = &mut self.followers_lack;
        let leads = self.node.published().role() == Role::Leader;
        let is_close = |told: Instant| now.at_least_since(told) < LAG_INTERVAL;
        if leads && told.is_some_and(is_close) || !leads && lacked.is_empty() {
            return;
        }
        *told = leads.then_some(now);
        let last = self.node.status().last.index;
        let followers = self.node.consensus().followers();
        let lack = followers.map(|(peer, held)| (peer, last.0.saturating_sub(held.0)));
        let lack: Vec<_> = lack.collect();
        if lack != *lacked {
            self.sinks.followers_lack(&lack);
            *lacked = lack;
        }
    }

    /// Says how far apart the leases of one leadership were, and what was left of each.
    fn note_renewal(&mut self, now: Instant) {
        let lease = self.node.published().lease();
        let until = lease.map(|lease| lease.until());
        let Some(until) = until.filter(|until| *until != Instant::ZERO) else {
            self.lease_until = None;
            return;
        };
        let interval = self.lease_until.map(|last| until.at_least_since(last));
        if interval.is_some_and(|interval| interval < RENEWAL_MIN) {
            return;
        }
        self.sinks
            .lease_renewed(interval, until.at_least_since(now));
        self.lease_until = Some(until);
    }
}

/// Takes what a request has waited already from the time that it has; whether nothing is left.
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
    struct Stepping {
        readings: AtomicU64,
    }

    impl Clock for Stepping {
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
        let restored = crate::raft::Restored {
            base_configuration: Configuration {
                voters: [NodeId(1)].into(),
                ..Configuration::default()
            },
            ..crate::raft::Restored::default()
        };
        Node::new(options(), restored, true, 1, now)
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
        }
    }

    /// Hands everything back to the mailbox, as disks and a state machine that are done at once.
    struct Echo {
        mailbox: Arc<Mailbox>,
        heard: Arc<AtomicU64>,
    }

    impl Sinks for Echo {
        fn persist(&mut self, ticket: Ticket, _: Unsaved) {
            self.mailbox.send(Mail::Input(Input::Persisted(ticket)));
        }
        fn send(&mut self, _: Envelope) {}
        fn apply(&mut self, entries: Vec<Entry>) {
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
            self.mailbox.send(Mail::Input(Input::Applied(replies)));
        }
        fn install(&mut self, _: LogId) {}
        fn discard_snapshot(&mut self, _: LogId) {}
        fn send_snapshot(&mut self, _: NodeId) {}
        fn find_idle_sessions(&mut self, _: LogIndex) {}
        fn status_changed(&mut self, _: &Status, _: &Status) {}
        fn lease_renewed(&mut self, _: Option<Duration>, _: Duration) {}
        fn timer_delayed(&mut self, _: Duration) {}
        fn clock_went_back(&mut self, times: u64) {
            self.heard.store(times, Ordering::Relaxed);
            self.mailbox.send(Mail::Stop);
        }
        fn proven(&mut self) {}
        fn lease_tripped(&mut self) {}
    }

    /// A disk that answers until there is an entry to write, then stalls until leadership is given up.
    struct Stalling {
        mailbox: Arc<Mailbox>,
        owed: Option<Ticket>,
        is_over: bool,
        told: Arc<std::sync::Mutex<Vec<&'static str>>>,
        over: Arc<AtomicU64>,
    }

    impl Stalling {
        fn tell(&self, what: &'static str) {
            self.told.lock().unwrap().push(what);
        }
    }

    impl Sinks for Stalling {
        fn persist(&mut self, ticket: Ticket, unsaved: Unsaved) {
            if self.is_over || self.owed.is_none() && unsaved.entries.is_empty() {
                self.mailbox.send(Mail::Input(Input::Persisted(ticket)));
            } else {
                self.owed = Some(ticket);
            }
        }
        fn send(&mut self, _: Envelope) {}
        fn apply(&mut self, _: Vec<Entry>) {}
        fn install(&mut self, _: LogId) {}
        fn discard_snapshot(&mut self, _: LogId) {}
        fn send_snapshot(&mut self, _: NodeId) {}
        fn find_idle_sessions(&mut self, _: LogIndex) {}
        fn status_changed(&mut self, before: &Status, now: &Status) {
            use crate::types::Role::Leader;
            match (before.role, now.role) {
                (Leader, role) if role != Leader => {
                    self.tell("gives up");
                    self.is_over = true;
                    let owed = self.owed.expect("it gave up because of it");
                    self.mailbox.send(Mail::Input(Input::Persisted(owed)));
                }
                (role, Leader) if role != Leader => {
                    self.tell("leads");
                    if self.is_over {
                        self.over.store(1, Ordering::Relaxed);
                        self.mailbox.send(Mail::Stop);
                    }
                }
                _ => {}
            }
        }
        fn lease_renewed(&mut self, _: Option<Duration>, _: Duration) {}
        fn timer_delayed(&mut self, _: Duration) {}
        fn clock_went_back(&mut self, _: u64) {}
        fn proven(&mut self) {}
        fn lease_tripped(&mut self) {}
        fn disk_stalled(&mut self, silent: Option<Duration>) {
            match silent {
                Some(silent) => {
                    assert!(silent > crate::raft::Timing::default().lease_duration);
                    self.tell("stalled");
                }
                None => self.tell("answers"),
            }
        }
    }

    #[test]
    fn a_leader_whose_disk_stalls_says_so_gives_up_and_leads_again_once_it_answers() {
        let clock = Arc::new(Steady::default());
        let mailbox = Arc::new(Mailbox::default());
        let told = Arc::default();
        let over = Arc::new(AtomicU64::new(0));
        let node = alone(clock.now());
        let sinks = Stalling {
            mailbox: mailbox.clone(),
            owed: None,
            is_over: false,
            told: Arc::clone(&told),
            over: over.clone(),
        };
        let (waking, ended) = (mailbox.clone(), over.clone());
        let waker = std::thread::spawn(move || {
            while ended.load(Ordering::Relaxed) == 0 {
                waking.send(Mail::Input(Input::Tick));
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let status = Arc::new(ArcSwap::from_pointee(Status::default()));
        // A driver that never leads again runs for ever.
        Driver::new(node, mailbox, clock, sinks, status, false).run();
        waker.join().unwrap();
        let told = told.lock().unwrap();
        assert_eq!(*told, ["leads", "stalled", "gives up", "answers", "leads"]);
    }

    /// Notes in which order it is told what.
    struct Notes {
        mailbox: Arc<Mailbox>,
        told: Arc<std::sync::Mutex<Vec<&'static str>>>,
    }

    impl Sinks for Notes {
        fn persist(&mut self, _: Ticket, unsaved: Unsaved) {
            if !unsaved.entries.is_empty() {
                self.told.lock().unwrap().push("entries to write");
                self.mailbox.send(Mail::Stop);
            }
        }
        fn send(&mut self, _: Envelope) {}
        fn apply(&mut self, _: Vec<Entry>) {}
        fn install(&mut self, _: LogId) {}
        fn discard_snapshot(&mut self, _: LogId) {}
        fn send_snapshot(&mut self, _: NodeId) {}
        fn find_idle_sessions(&mut self, _: LogIndex) {}
        fn status_changed(&mut self, _: &Status, _: &Status) {}
        fn clock_went_back(&mut self, _: u64) {}
        fn proven(&mut self) {
            self.told.lock().unwrap().push("proven");
        }
        fn lease_renewed(&mut self, _: Option<Duration>, _: Duration) {}
        fn timer_delayed(&mut self, _: Duration) {}
        fn lease_tripped(&mut self) {}
    }

    /// Were it the other way round, a loss of power between the two would leave entries beside the
    /// mark, and the member would take them for the rest of a lost log.
    #[test]
    fn a_member_is_proven_before_its_first_entries_are_written() {
        let ids = [1, 2, 3].map(NodeId);
        let clock = Arc::new(Stepping::default());
        let mailbox = Arc::new(Mailbox::default());
        let told = Arc::default();
        let restored = crate::raft::Restored {
            base_configuration: Configuration {
                voters: ids.into(),
                ..Configuration::default()
            },
            unproven: true,
            ..crate::raft::Restored::default()
        };
        let options = crate::node::NodeOptions {
            id: ids[1],
            ..options()
        };
        let node = Node::new(options, restored, false, 1, clock.now());
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
            entries: vec![first],
        };
        mailbox.send(Mail::Input(Input::Message(Envelope {
            from: ids[0],
            to: ids[1],
            term: Term(1),
            message: Message::Append(append),
        })));
        let sinks = Notes {
            mailbox: mailbox.clone(),
            told: Arc::clone(&told),
        };
        let status = Arc::new(ArcSwap::from_pointee(Status::default()));
        Driver::new(node, mailbox, clock, sinks, status, true).run();
        assert_eq!(*told.lock().unwrap(), ["proven", "entries to write"]);
    }

    #[test]
    fn a_clock_that_steps_back_is_told_and_voids_the_lease() {
        let clock = Arc::new(Stepping::default());
        let mailbox = Arc::new(Mailbox::default());
        let heard = Arc::new(AtomicU64::new(0));
        let node = alone(clock.now());
        let published = node.published();
        let sinks = Echo {
            mailbox: mailbox.clone(),
            heard: heard.clone(),
        };
        let status = Arc::new(ArcSwap::from_pointee(Status::default()));
        // Mail keeps the driver from sleeping, so that readings, and with them time, go on.
        let (waking, over) = (mailbox.clone(), heard.clone());
        let waker = std::thread::spawn(move || {
            while over.load(Ordering::Relaxed) == 0 {
                waking.send(Mail::Input(Input::Tick));
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        // A driver that never hears of the step runs for ever.
        Driver::new(node, mailbox, clock, sinks, status, false).run();
        waker.join().unwrap();
        assert_eq!(heard.load(Ordering::Relaxed), 1);
        let counters = published.lease_counters();
        assert_eq!(
            counters.invalidations(crate::raft::Invalidation::ClockWentBack),
            1
        );
    }
}
