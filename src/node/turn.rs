//! One turn of the driver, the loop that owns a [`Node`], as steps that can be taken in one order only.
//!
//! The core takes time as an argument, and leases need fresh readings of the clocks. Both hold under
//! one law: **take the mail that has gathered, read the clock pair once, handle every mail of the batch
//! with that reading, the tick last, and carry nothing away before the reading.** Then the reading is
//! not older than anything in the batch, so a promise, a lease check and a TTL may count from it, and
//! not newer than any message that follows from it, so a round may count from it, too. And what has
//! arrived is heard before the time is judged (A2): a follower that was paused hears the heartbeats
//! that wait for it before it asks whether its leader is gone.
//!
//! ```text
//! Idle ──sleep──▶ Asleep ──take──▶ TakenMail ──read──▶ StampedMail ──tick──▶ Done ──carry_away──▶ Idle
//!                                                         │   ▲
//!                                                         └───┘ next_mail, handle, carry_away
//! ```
//!
//! Each type is made only from the one before, so a reading that is older than the mail, or a tick
//! before the mail, does not compile. The server's thread takes the steps in a loop, and carries the
//! effects of the whole batch away after the tick, so that they cost one write to the log and one
//! message to each follower. The simulator takes the same steps with time passing between any two of
//! them, as when the thread is preempted, and carries away after each input, which the law allows.
//!
//! The effects have one order, too ([`Marks::carry_away`]): what is marked goes before what is written,
//! but that a quarantine is over, which follows from the writes.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Input, Node, Output, StateCheck};
use crate::time::{Clock, Instant};
use crate::types::{BootstrapId, LogIndex};

/// The shortest sleep: it keeps a deadline that only one of the two clocks has reached from turning
/// the loop into a busy one.
const SLEEP_MIN: Duration = Duration::from_micros(200);
/// The longest sleep; every wake-up is otherwise for a reason.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Between two turns.
#[derive(Debug)]
pub struct Idle<M> {
    /// Empty; kept for the next batch.
    room: Vec<M>,
    /// The reading of the last turn.
    last: Instant,
}

/// The driver waits for mail, for so long.
#[derive(Debug)]
pub struct Asleep<M> {
    idle: Idle<M>,
    /// When the node has to be given a tick.
    due: Instant,
    /// The reading that `patience` was counted from. It is older than the mail, and must not be used
    /// for any.
    since: Instant,
    patience: Duration,
}

/// The mail that had gathered. The clock has not been read since.
#[derive(Debug)]
pub struct TakenMail<M> {
    asleep: Asleep<M>,
    mail: VecDeque<M>,
}

/// The mail, and the one reading that all of it is handled with.
#[derive(Debug)]
pub struct StampedMail<M> {
    mail: VecDeque<M>,
    now: Instant,
    late: Option<Duration>,
}

/// The tick is over. What the turn has caused is still to be carried away.
#[derive(Debug)]
pub struct Done<M> {
    idle: Idle<M>,
}

/// What a data directory says of its member beside its log.
///
/// Each but [`Mark::QuarantineOver`] is durable before anything that is persisted after it. The
/// server carries them out on a thread that may wait for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The member has shown that it forgot nothing, or has received everything again: what that rests on
    /// was durable before.
    Proven,
    /// The replica holds again all that its log had lost. Durable after all that was persisted before.
    QuarantineOver,
    /// A lease outlasted its leadership: leased reads stay off after a restart, too (P37).
    LeaseTripped,
    /// A leader has said that the member lacks what it acknowledged (A28). Durable before anything that is persisted
    /// after it.
    Forgotten,
    /// The state differs from that of a majority, and is rebuilt at the next start.
    StateCorrupt,
    /// A leader contradicts this entry: nothing of this member counts until an operator has decided
    /// which history stays (A27).
    Diverged(LogIndex),
    /// The member comes from this bootstrap of its cluster (A25).
    Bootstrap(BootstrapId),
}

/// Carries out the effects of a turn, in the order in which it is given them. May not block.
pub trait TurnEffects {
    /// Changes what the data directory says.
    fn mark(&mut self, mark: Mark);
    /// Carries out one output of `node`.
    fn output(&mut self, node: &Node, output: Output);
}

/// What the data directory of a node says, as far as its marks can still change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The member may have lost everything ([`crate::raft::RestoredState::unproven`]).
    is_unproven: bool,
    is_quarantined: bool,
    is_tripped: bool,
    is_corrupt: bool,
    diverged: Option<LogIndex>,
    bootstrap: Option<BootstrapId>,
}

impl Marks {
    /// Those of a node that starts, whose directory says which bootstrap it comes from if the node knows;
    /// `is_unproven` is whether it has the mark for that.
    pub fn new(node: &Node, is_unproven: bool) -> Self {
        Self {
            is_unproven,
            ..Self::required_by(node)
        }
    }

    fn required_by(node: &Node) -> Self {
        let consensus = node.consensus();
        Self {
            is_unproven: consensus.is_unproven() || consensus.is_quarantined(),
            is_quarantined: consensus.is_quarantined(),
            is_tripped: consensus.lease_tripped(),
            is_corrupt: matches!(node.state_check(), StateCheck::Corrupt(_)),
            diverged: consensus.diverged(),
            bootstrap: node.bootstrap(),
        }
    }

    /// Carries away everything that `node` has to do since the last time.
    ///
    /// The mark that the member is proven goes before the writes. Were it the other way round, a loss
    /// of power in between would leave an entry beside the mark, which the next start would take for
    /// the rest of a lost log (A23); and if that happened to enough members, they would wait for each
    /// other for ever. That a lease tripped goes before the writes because it is known from a message
    /// only: once the later term is durable, no node says again what proved it (P37). That the log has
    /// diverged is known from a message, too (A27), and that the state is corrupt rests on no write. That
    /// the quarantine is over does, so it goes after them.
    pub fn carry_away(&mut self, node: &mut Node, effects: &mut impl TurnEffects) {
        let required = Self::required_by(node);
        let was_told = node.consensus().was_told_that_it_forgot();
        let before = *self;
        *self = Self {
            // A directory without this mark gets it while the node runs only if a leader says so.
            is_unproven: required.is_unproven && (before.is_unproven || was_told),
            ..required
        };
        if self.is_unproven && !before.is_unproven && !planted!(OlderCopyUnmarked) {
            effects.mark(Mark::Forgotten);
        }
        let is_proven = before.is_unproven && !self.is_unproven;
        if is_proven && !planted!(ProvenMarkAfterWrites) {
            effects.mark(Mark::Proven);
        }
        if !before.is_tripped && self.is_tripped && !planted!(TripwireUnmarked) {
            effects.mark(Mark::LeaseTripped);
        }
        if !before.is_corrupt && self.is_corrupt {
            effects.mark(Mark::StateCorrupt);
        }
        if before.diverged.is_none()
            && let Some(index) = self.diverged
        {
            effects.mark(Mark::Diverged(index));
        }
        if let (None, Some(bootstrap)) = (before.bootstrap, self.bootstrap) {
            effects.mark(Mark::Bootstrap(bootstrap));
        }
        while let Some(output) = node.poll_output() {
            effects.output(node, output);
        }
        planted!(ProvenMarkAfterWrites => if is_proven {
            effects.mark(Mark::Proven);
        });
        if before.is_quarantined && !self.is_quarantined {
            effects.mark(Mark::QuarantineOver);
        }
    }
}

impl<M> Idle<M> {
    /// Before the first turn of a node that was made with the reading `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            room: Vec::new(),
            last: now,
        }
    }

    /// Decides for how long to wait for mail: until the first of the two clocks reaches `due`, which
    /// is [`Node::poll_timeout`].
    pub fn sleep(self, clock: &(impl Clock + ?Sized), due: Instant) -> Asleep<M> {
        let since = clock.now();
        Asleep {
            idle: self,
            due,
            since,
            patience: until(since, due).clamp(SLEEP_MIN, SLEEP_MAX),
        }
    }
}

impl<M> Asleep<M> {
    /// How long to wait at most.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Takes all that has gathered. `mailbox` puts it into the empty vector that it is given, and
    /// waits for so long if there is nothing yet.
    pub fn take(mut self, mailbox: impl FnOnce(&mut Vec<M>, Duration)) -> TakenMail<M> {
        mailbox(&mut self.idle.room, self.patience);
        let mail = std::mem::take(&mut self.idle.room).into();
        TakenMail { asleep: self, mail }
    }
}

impl<M> TakenMail<M> {
    /// Reads the clock: the only reading that this batch is handled with.
    pub fn read(self, clock: &(impl Clock + ?Sized)) -> StampedMail<M> {
        let Asleep {
            idle, due, since, ..
        } = self.asleep;
        let now = match planted!(CachedNow) {
            true => since,
            false => clock.now(),
        };
        // What was overdue at the last tick was handled then, whatever the node still says.
        let is_late = now.certainly_after(due) && !idle.last.certainly_after(due);
        StampedMail {
            mail: self.mail,
            now,
            late: is_late.then(|| now.at_least_since(due)),
        }
    }
}

impl<M> StampedMail<M> {
    /// The reading of this turn.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// How much later than it was due the node is given its tick, if it is late.
    pub fn late(&self) -> Option<Duration> {
        self.late
    }

    /// The next mail of the batch, in the order in which it arrived.
    pub fn next_mail(&mut self) -> Option<M> {
        self.mail.pop_front()
    }

    /// Gives the node what the last mail turned out to be.
    pub fn handle(&self, node: &mut Node, input: Input) {
        planted!(TimeFirst => node.handle(self.now, Input::Tick));
        node.handle(self.now, input);
    }

    /// Carries away what the inputs so far have caused. May be left to the end of the turn.
    pub fn carry_away(&self, node: &mut Node, marks: &mut Marks, effects: &mut impl TurnEffects) {
        marks.carry_away(node, effects);
    }

    /// Gives the node its tick, the last input of the turn.
    ///
    /// # Panics
    /// If mail is left: the node would handle it after it had read the clock.
    pub fn tick(self, node: &mut Node) -> Done<M> {
        assert!(self.mail.is_empty(), "A2: the tick comes after all mail");
        node.handle(self.now, Input::Tick);
        let idle = Idle {
            // Empty, so this only keeps the memory.
            room: self.mail.into(),
            last: self.now,
        };
        Done { idle }
    }
}

impl<M> Done<M> {
    /// Carries away what the turn has caused, which ends it.
    pub fn carry_away(
        self,
        node: &mut Node,
        marks: &mut Marks,
        effects: &mut impl TurnEffects,
    ) -> Idle<M> {
        marks.carry_away(node, effects);
        self.idle
    }
}

/// How long to sleep: until the first of the two clocks reaches the deadline.
fn until(now: Instant, deadline: Instant) -> Duration {
    let boot = deadline.boot.saturating_sub(now.boot);
    let raw = deadline.raw.saturating_sub(now.raw);
    Duration::from_nanos(boot.min(raw))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::api::Limits;
    use crate::node::{AutoCompaction, LeaseOptions, NodeOptions};
    use crate::raft::{
        Configuration, Envelope, Heartbeat, Message, RestoredState, RoundId, Ticket, Timing,
    };
    use crate::types::{ClusterId, LogIndex, NodeId, Term};

    /// A clock that stands still but for the milliseconds that a test lets pass.
    #[derive(Default)]
    struct StillClock(AtomicU64);

    impl StillClock {
        fn pass(&self, millis: u64) {
            self.0.fetch_add(millis, Ordering::Relaxed);
        }
    }

    impl Clock for StillClock {
        fn now(&self) -> Instant {
            Instant::from_nanos(self.0.load(Ordering::Relaxed) * 1_000_000)
        }
    }

    /// One voter of three, which has kept its silence after the start.
    fn follower(clock: &StillClock) -> Node {
        let restored = RestoredState {
            base_configuration: Configuration {
                voters: [1, 2, 3].map(NodeId).into(),
                ..Configuration::default()
            },
            ..RestoredState::default()
        };
        clock.pass(10_000);
        let node = Node::new(options(), restored, Some(BootstrapId(1)), 1, clock.now());
        clock.pass(600);
        node
    }

    fn options() -> NodeOptions {
        NodeOptions {
            cluster_id: ClusterId(1),
            id: NodeId(1),
            members: Vec::new(),
            timing: Timing::default(),
            limits: Limits::DEFAULT,
            waiting_max: 16,
            sessions_max: 16,
            session_idle_max: Duration::from_secs(3600),
            leases: LeaseOptions::DEFAULT,
            auto_compaction: AutoCompaction::Off,
            check_interval: None,
            seed: 1,
            bootstrap: BootstrapId(1),
        }
    }

    fn heartbeat(round: u64) -> Input {
        Input::Message(Envelope {
            from: NodeId(2),
            to: NodeId(1),
            term: Term(1),
            message: Message::Heartbeat(Heartbeat {
                round: RoundId(round),
                promise: Duration::from_millis(500),
                commit: LogIndex(0),
                fresh: None,
            }),
        })
    }

    #[derive(Default)]
    struct Disk {
        written: Vec<Ticket>,
        /// Whether the node has asked for votes.
        asks: bool,
    }

    impl TurnEffects for Disk {
        fn mark(&mut self, _: Mark) {}
        fn output(&mut self, _: &Node, output: Output) {
            match output {
                Output::Persist(ticket, _) => self.written.push(ticket),
                Output::Send(envelope) => {
                    self.asks |= matches!(envelope.message, Message::PreVote(_));
                }
                _ => {}
            }
        }
    }

    /// A turn in which `mail` arrives after `waited` milliseconds; and whether the node asks for votes
    /// in it. Its disk writes at once.
    fn turn(
        idle: Idle<Input>,
        clock: &StillClock,
        node: &mut Node,
        waited: u64,
        mail: Vec<Input>,
    ) -> (Idle<Input>, bool) {
        let asleep = idle.sleep(clock, node.poll_timeout());
        let taken = asleep.take(|room, _| {
            clock.pass(waited);
            *room = mail;
        });
        let mut stamped = taken.read(clock);
        while let Some(input) = stamped.next_mail() {
            stamped.handle(node, input);
        }
        let now = stamped.now();
        let mut marks = Marks::new(node, false);
        let mut disk = Disk::default();
        let idle = stamped.tick(node).carry_away(node, &mut marks, &mut disk);
        // Its disk answers at once, and what follows from that is of this turn.
        while let Some(ticket) = disk.written.pop() {
            node.handle(now, Input::Persisted(ticket));
            marks.carry_away(node, &mut disk);
        }
        (idle, disk.asks)
    }

    /// Were it older, the promise to the leader would be over too early: the follower would stand
    /// while the lease that its promise is for still holds.
    #[test]
    fn a_promise_counts_from_a_reading_that_is_not_older_than_the_message() {
        let clock = StillClock::default();
        let mut node = follower(&clock);
        let idle = Idle::new(clock.now());
        // Longer than any election timeout.
        let (idle, asks) = turn(idle, &clock, &mut node, 2_000, vec![heartbeat(1)]);
        assert!(!asks, "it hears its leader");
        assert_eq!(node.status().leader, Some(NodeId(2)));
        let (idle, asks) = turn(idle, &clock, &mut node, 499, vec![]);
        assert!(!asks, "it has promised 500 ms from the heartbeat on");
        let (_, asks) = turn(idle, &clock, &mut node, 5_000, vec![]);
        assert!(asks, "silence");
    }

    /// A node paused for longer than an election timeout has heartbeats waiting.
    #[test]
    fn what_has_arrived_is_heard_before_the_time_is_looked_at() {
        let clock = StillClock::default();
        let mut node = follower(&clock);
        let idle = Idle::new(clock.now());
        let (idle, _) = turn(idle, &clock, &mut node, 1, vec![heartbeat(1)]);
        let (idle, asks) = turn(idle, &clock, &mut node, 5_000, vec![heartbeat(2)]);
        assert!(!asks, "it has heard its leader");
        let (_, asks) = turn(idle, &clock, &mut node, 5_000, vec![]);
        assert!(asks, "silence");
    }

    #[test]
    fn a_tick_is_late_once() {
        let clock = StillClock::default();
        let due = Instant::from_nanos(5_000_000);
        let late = |last: u64, millis: u64| {
            let idle: Idle<()> = Idle::new(Instant::from_nanos(last * 1_000_000));
            clock.0.store(millis, Ordering::Relaxed);
            idle.sleep(&clock, due).take(|_, _| ()).read(&clock).late()
        };
        assert_eq!(late(0, 4), None);
        assert_eq!(late(0, 7), Some(Duration::from_millis(2)));
        assert_eq!(late(6, 7), None, "it was handled at 6");
    }

    #[test]
    fn sleep_ends_with_the_first_clock_to_reach_the_deadline() {
        let now = Instant { boot: 100, raw: 10 };
        let deadline = Instant { boot: 150, raw: 90 };
        assert_eq!(until(now, deadline), Duration::from_nanos(50));
        assert_eq!(until(deadline, now), Duration::ZERO);
    }
}
