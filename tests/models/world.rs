//! The state of a model, and every step that it can take.
//!
//! Three replicas, the messages between them, and what has happened so far that a claim may rest
//! on. A message that is never delivered is lost, and any may be delivered before any other; so
//! neither loss nor reordering needs a step of its own.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use leasehold::raft::{
    Ballot, Envelope, Input, LogBase, Message, Output, PreVoteReply, ReadId, ReadMode, RoundId,
    UnsavedState,
};
use leasehold::time::Instant;
use leasehold::types::{LogIndex, NodeId, Role};

use crate::claims::Ledger;
use crate::marks::Mark;
use crate::replica::{Disk, NOTHING, Replica, Session};
use crate::scope::Scope;

/// How many replicas a model has at most.
pub(crate) const NODES_MAX: usize = 4;

/// A message on its way.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) envelope: Envelope,
    digest: u64,
}

impl Parcel {
    fn new(envelope: Envelope) -> Arc<Self> {
        let mut hasher = DefaultHasher::new();
        envelope.hash(&mut hasher);
        let digest = hasher.finish();
        Arc::new(Self { envelope, digest })
    }
}

/// How often each may yet happen: what keeps a model small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Left {
    /// Quanta of time.
    pub(crate) passes: u8,
    /// Election timers that run out.
    pub(crate) timeouts: u8,
    /// Rounds that a leader begins after its first.
    pub(crate) rounds: u8,
    /// Messages that arrive and yet stay.
    pub(crate) duplicates: u8,
    /// Messages that are handled together with another.
    pub(crate) batches: u8,
    pub(crate) restarts: u8,
    pub(crate) handovers: u8,
    pub(crate) retirements: u8,
    /// Holders of read leases that stop and begin again.
    pub(crate) stops: u8,
    /// Changes of members.
    pub(crate) changes: u8,
    pub(crate) proposals: u8,
    /// Reads under the lease, whose check comes later than their snapshot.
    pub(crate) reads: u8,
    /// Reads by quorum.
    pub(crate) quorum_reads: u8,
    /// Clocks that step back.
    pub(crate) steps_back: u8,
    /// Members that lose everything on their disks.
    pub(crate) wipes: u8,
    /// Times that are so long that nothing of before binds or counts any more.
    pub(crate) waits: u8,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// The message at this place arrives.
    Deliver(usize),
    /// It arrives, and will once more.
    DeliverAndKeep(usize),
    /// The whole state at this place arrives.
    Receive(usize),
    /// Both arrive, and are handled as one batch.
    DeliverTogether(usize, usize),
    /// The oldest write of this replica is durable.
    Written(usize),
    /// What was handed out to this replica's state machine is applied.
    Applied(usize),
    /// A quantum of time passes for everybody.
    Pass,
    /// Its election timer runs out.
    TimeOut(usize),
    /// It looks at its clock.
    Tick(usize),
    /// Its process ends, and another begins at once with what is on the disk.
    Restart(usize),
    /// Its process ends, everything on its disk is gone, and another begins at once, as when it was new.
    Wipe(usize),
    /// A long time passes for everybody.
    Wait,
    /// It is asked to hand over.
    HandOver(usize, usize),
    /// It is asked to stop.
    Retire(usize),
    /// It stops as it was asked to, and another process begins at once.
    Stop(usize),
    /// It is asked to change the members.
    Change(usize),
    /// It is asked to append a command.
    Propose(usize),
    /// A session loads the lease, captures the commit index and opens its snapshot.
    BeginRead(usize),
    /// It checks the lease, and answers if it may.
    EndRead(usize),
    /// It is asked for a read by quorum.
    Ask(usize),
    /// These of its clocks run backwards by a quantum, and it sees that.
    StepBack(usize, Clocks),
}

impl Action {
    /// Whose turn it is, in the world before.
    pub(crate) fn replica(self, before: &World) -> Option<usize> {
        match self {
            Self::Deliver(at) | Self::DeliverAndKeep(at) | Self::DeliverTogether(at, _) => {
                Some(before.place(before.wire[at].envelope.to))
            }
            Self::Receive(at) => Some(before.place(before.states[at].0)),
            Self::Written(n)
            | Self::Applied(n)
            | Self::TimeOut(n)
            | Self::Tick(n)
            | Self::Restart(n)
            | Self::Wipe(n)
            | Self::HandOver(n, _)
            | Self::Retire(n)
            | Self::Stop(n)
            | Self::Change(n)
            | Self::Propose(n)
            | Self::Ask(n)
            | Self::StepBack(n, _) => Some(n),
            Self::Pass | Self::Wait | Self::BeginRead(_) | Self::EndRead(_) => None,
        }
    }
}

/// Which of the two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Clocks {
    Boot,
    Raw,
    Both,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) replicas: Vec<Arc<Replica>>,
    /// In the order of their digests, so that their order says nothing.
    pub(crate) wire: Vec<Arc<Parcel>>,
    /// Whole states on their way, and to whom.
    pub(crate) states: Vec<(NodeId, LogBase)>,
    pub(crate) left: Left,
    pub(crate) ledger: Ledger,
    /// Quanta that have passed.
    pub(crate) time: u8,
    /// Which of the possible clocks these are.
    clocks: usize,
    /// The steps that led here from the beginning.
    pub(crate) steps: u8,
    /// In the step that led here, a leader beat.
    beat: bool,
    /// In the step that led here, promises were released.
    pub(crate) released: bool,
    /// The claim that does not hold.
    pub(crate) broken: Option<Arc<str>>,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for replica in &self.replicas {
            state.write_u64(replica.digest);
        }
        state.write_usize(self.wire.len());
        for parcel in &self.wire {
            state.write_u64(parcel.digest);
        }
        self.states.hash(state);
        state.write_usize(self.clocks);
        self.left.hash(state);
        self.ledger.hash(state);
        self.broken.hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        let digest = |world: &Self| {
            let mut hasher = DefaultHasher::new();
            world.hash(&mut hasher);
            hasher.finish()
        };
        digest(self) == digest(other)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("left", &self.left)
            .field("ledger", &self.ledger)
            .finish_non_exhaustive()
    }
}

impl World {
    /// A world in which everybody has just started, and nothing may happen yet.
    pub(crate) fn new(scope: &Scope, clocks: usize) -> Self {
        let replicas = (1..).zip(&scope.timings).map(|(number, timing)| {
            let id = NodeId(number);
            // No two machines started together, and no two clocks of one machine.
            let clock = Instant {
                boot: number * 1_000_000_000_000,
                raw: number * 777_000_000_000,
            };
            let (disk, applied) = (Disk::after(scope.base), scope.base.index);
            let members = &scope.configuration;
            let replica = Replica::start(id, *timing, members, disk, applied, clock, 1);
            Arc::new(replica)
        });
        let mut world = Self {
            replicas: replicas.collect(),
            wire: Vec::new(),
            states: Vec::new(),
            left: Left::default(),
            ledger: Ledger::default(),
            time: 0,
            clocks,
            steps: 0,
            beat: false,
            released: false,
            broken: None,
        };
        for n in 0..world.replicas.len() {
            world.absorb(scope, n);
        }
        world
    }

    /// Everything that may happen next.
    pub(crate) fn actions(&self, scope: &Scope, actions: &mut Vec<Action>) {
        if self.broken.is_some() {
            return;
        }
        let left = &self.left;
        for (at, parcel) in self.wire.iter().enumerate() {
            // Of equal messages, any is as good as another.
            if at > 0 && self.wire[at - 1].digest == parcel.digest {
                continue;
            }
            actions.push(Action::Deliver(at));
            if left.duplicates > 0 {
                actions.push(Action::DeliverAndKeep(at));
            }
            if left.batches > 0 {
                let others = self.wire.iter().enumerate();
                let others = others.filter(|(other, _)| *other != at);
                let same = others.filter(|(_, other)| other.envelope.to == parcel.envelope.to);
                actions.extend(same.map(|(other, _)| Action::DeliverTogether(at, other)));
            }
        }
        actions.extend((0..self.states.len()).map(Action::Receive));
        if left.passes > 0 {
            actions.push(Action::Pass);
        }
        if left.waits > 0 {
            actions.push(Action::Wait);
        }
        for (n, replica) in self.replicas.iter().enumerate() {
            let leads = replica.core.published().role() == Role::Leader;
            if !replica.writes.is_empty() {
                actions.push(Action::Written(n));
            }
            if replica.to_apply > replica.applied {
                actions.push(Action::Applied(n));
            }
            if left.timeouts > 0 && !leads && scope.may_time_out(self, n) {
                actions.push(Action::TimeOut(n));
            }
            if leads {
                actions.push(Action::Tick(n));
            }
            if left.restarts > 0 && scope.restarted.contains(&n) {
                actions.push(Action::Restart(n));
            }
            if left.wipes > 0 && scope.wiped.contains(&n) {
                actions.push(Action::Wipe(n));
            }
            if left.handovers > 0 && leads {
                let others = scope.heirs.iter().filter(|other| **other != n);
                actions.extend(others.map(|other| Action::HandOver(n, *other)));
            }
            if left.retirements > 0 && leads {
                actions.push(Action::Retire(n));
            }
            if left.stops > 0 && !leads && scope.asks_to_hold(n) {
                actions.push(Action::Stop(n));
            }
            if left.changes > 0 && leads {
                actions.push(Action::Change(n));
            }
            if left.proposals > 0 && leads {
                actions.push(Action::Propose(n));
            }
            let may_read = match scope.has_holders() {
                true => replica.read_cell.is_some(),
                false => replica.cell.is_some(),
            };
            if left.reads > 0 && replica.session.is_none() && may_read {
                actions.push(Action::BeginRead(n));
            }
            if replica.session.is_some() {
                actions.push(Action::EndRead(n));
            }
            if left.quorum_reads > 0 && (leads || scope.follower_reads) && replica.asked.is_none() {
                actions.push(Action::Ask(n));
            }
            if left.steps_back > 0 {
                let clocks = [Clocks::Boot, Clocks::Raw, Clocks::Both];
                actions.extend(clocks.map(|clocks| Action::StepBack(n, clocks)));
            }
        }
    }

    /// The world after `action`; `None` if it changes nothing.
    pub(crate) fn after(&self, scope: &Scope, action: Action) -> Option<Self> {
        #[cfg(leasehold_bugs)]
        crate::bugs::plant_here(scope);
        let mut next = Self {
            beat: false,
            released: false,
            steps: self.steps.saturating_add(1),
            ..self.clone()
        };
        scope.marks.begin_step(next.steps);
        let changed = caught(|| next.perform(scope, action));
        match changed {
            Ok(false) => return None,
            Ok(true) => next.check(scope, action.replica(self)),
            Err(claim) => {
                // What the core says of itself is a claim, too.
                next = self.clone();
                next.fail(format!("the core stops: {claim}"));
            }
        }
        #[cfg(leasehold_bugs)]
        if crate::bugs::all_reached(scope) {
            scope.marks.note_all_reached();
        }
        Some(next)
    }

    /// Whether anything changed.
    // Long: one arm for each action.
    fn perform(&mut self, scope: &Scope, action: Action) -> bool {
        match action {
            Action::Deliver(at) => {
                let parcel = self.wire.remove(at);
                self.receive(scope, &[parcel])
            }
            Action::DeliverAndKeep(at) => {
                self.left.duplicates -= 1;
                let parcel = self.wire[at].clone();
                self.receive(scope, &[parcel])
            }
            Action::DeliverTogether(first, second) => {
                self.left.batches -= 1;
                let parcels = [self.wire[first].clone(), self.wire[second].clone()];
                self.wire.remove(first.max(second));
                self.wire.remove(first.min(second));
                self.receive(scope, &parcels)
            }
            Action::Receive(at) => {
                let (to, base) = self.states.remove(at);
                let n = self.place(to);
                self.input(scope, n, Input::SnapshotReceived(base));
                true
            }
            Action::Written(n) => {
                self.written(n);
                self.absorb(scope, n);
                true
            }
            Action::Applied(n) => {
                self.apply(n);
                self.absorb(scope, n);
                true
            }
            Action::Pass => {
                self.left.passes -= 1;
                self.time += 1;
                if scope.ages {
                    self.ledger.exposed_by.push(self.ledger.exposed);
                }
                for n in 0..self.replicas.len() {
                    let rate = scope.clocks[self.clocks][n];
                    let replica = Arc::make_mut(&mut self.replicas[n]);
                    replica.clock.boot += rate.boot;
                    replica.clock.raw += rate.raw;
                    replica.seal(scope.steps_back(&self.left));
                }
                true
            }
            Action::TimeOut(n) => {
                self.left.timeouts -= 1;
                let term = self.replicas[n].core.published().term();
                self.step(scope, n, |replica| {
                    let now = replica.clock;
                    replica.core().time_out(now);
                    let published = replica.core.published();
                    let stands = published.role() == Role::PreCandidate || published.term() > term;
                    if scope.lapses && !stands {
                        replica.lapse();
                        let now = replica.clock;
                        replica.core().time_out(now);
                    }
                })
            }
            Action::Tick(n) => {
                let changed = self.input(scope, n, Input::Tick);
                // Beating costs, stepping down does not.
                if self.beat {
                    let Some(left) = self.left.rounds.checked_sub(1) else {
                        return false;
                    };
                    self.left.rounds = left;
                }
                changed
            }
            Action::Restart(n) => {
                self.left.restarts -= 1;
                self.restart(scope, n);
                true
            }
            Action::Wipe(n) => {
                self.left.wipes -= 1;
                scope.marks.note(Mark::Wiped);
                let old = &self.replicas[n];
                let disk = Disk {
                    wiped: old.disk.wiped || !old.disk.entries.is_empty(),
                    ..Disk::after(scope.base)
                };
                let (timing, applied) = (old.timing, scope.base.index);
                let members = &scope.configuration;
                let (clock, life) = (old.clock, old.life + 1);
                let new = Replica::start(old.id, timing, members, disk, applied, clock, life);
                self.replicas[n] = Arc::new(new);
                // It cannot keep a vote that it has forgotten: what follows from that is judged by the others.
                self.ledger.granted[n] = None;
                self.absorb(scope, n);
                true
            }
            Action::Wait => {
                self.left.waits -= 1;
                for replica in &mut self.replicas {
                    let replica = Arc::make_mut(replica);
                    replica.lapse();
                    replica.seal(scope.steps_back(&self.left));
                }
                true
            }
            Action::HandOver(n, target) => {
                self.left.handovers -= 1;
                let target = self.replicas[target].id;
                self.step(scope, n, |replica| {
                    let now = replica.clock;
                    let _refused = replica.core().transfer(now, Some(target));
                })
            }
            Action::Retire(n) => {
                self.left.retirements -= 1;
                let changed = self.retire(scope, n);
                if !self.released {
                    scope.marks.note(Mark::ReleaseWithheld);
                }
                changed
            }
            Action::Stop(n) => {
                self.left.stops -= 1;
                self.retire(scope, n);
                self.restart(scope, n);
                true
            }
            Action::Change(n) => {
                self.left.changes -= 1;
                let change = scope.change.as_ref().expect("the scope says which");
                self.step(scope, n, |replica| {
                    let now = replica.clock;
                    let _refused = replica.core().change(now, change);
                })
            }
            Action::Propose(n) => {
                self.left.proposals -= 1;
                let command = scope.command(self.left.proposals);
                self.step(scope, n, |replica| {
                    let now = replica.clock;
                    let _refused = replica.core().propose(now, command);
                })
            }
            Action::BeginRead(n) => {
                let exposed = self.ledger.exposed;
                let replica = Arc::make_mut(&mut self.replicas[n]);
                let published = replica.core.published();
                let (own, held) = (published.lease(), published.read_lease());
                let captured = match own {
                    Some(_) => replica.applied,
                    None => replica.applied.max(published.last()),
                };
                let Some(cell) = own.or(held) else {
                    return false;
                };
                self.left.reads -= 1;
                replica.session = Some(Session {
                    cell,
                    captured,
                    snapshot: replica.applied,
                    exposed,
                });
                replica.seal(scope.steps_back(&self.left));
                true
            }
            Action::EndRead(n) => {
                let replica = Arc::make_mut(&mut self.replicas[n]);
                let Some(session) = replica.session.take() else {
                    return false;
                };
                if session.cell.is_read_lease() {
                    replica.seal(scope.steps_back(&self.left));
                    self.end_held_read(scope, n, &session);
                    return true;
                }
                let permit = session.cell.permit(replica.clock, session.snapshot);
                replica.seal(scope.steps_back(&self.left));
                if permit.is_some_and(|permit| session.snapshot < permit.index()) {
                    scope.marks.note(Mark::SnapshotTooOld);
                } else if permit.is_some() {
                    scope.marks.note(Mark::LateAnswer);
                    if session.snapshot < session.exposed {
                        let (id, snapshot, exposed) =
                            (self.replicas[n].id, session.snapshot, session.exposed);
                        self.fail(format!(
                            "L2: {id} answers from {snapshot}, and {exposed} had been seen before it was asked"
                        ));
                    }
                }
                true
            }
            Action::Ask(n) => {
                self.left.quorum_reads -= 1;
                let exposed = self.ledger.exposed;
                self.step(scope, n, |replica| {
                    let now = replica.clock;
                    if replica.core().read(now, READ, ReadMode::Quorum).is_ok() {
                        replica.asked = Some(exposed);
                    }
                })
            }
            Action::StepBack(n, clocks) => {
                self.left.steps_back -= 1;
                let back = scope.step_back;
                if clocks == Clocks::Both {
                    // Neither clock tells how much time has passed: no lease survives that but by
                    // noticing, so it must have read them shortly before (A4).
                    self.input(scope, n, LOOK);
                }
                let replica = Arc::make_mut(&mut self.replicas[n]);
                if clocks != Clocks::Raw {
                    replica.clock.boot -= back;
                }
                if clocks != Clocks::Boot {
                    replica.clock.raw -= back;
                }
                self.input(scope, n, LOOK);
                // How far clocks may yet step back decides what of the past matters.
                for n in 0..self.replicas.len() {
                    Arc::make_mut(&mut self.replicas[n]).seal(scope.steps_back(&self.left));
                }
                true
            }
        }
    }

    /// What replica `n` has applied is cut from its log.
    pub(crate) fn cut_log(&mut self, scope: &Scope, n: usize) {
        let applied = self.replicas[n].applied;
        self.input(scope, n, Input::Compact(applied));
    }

    fn retire(&mut self, scope: &Scope, n: usize) -> bool {
        self.step(scope, n, |replica| {
            let now = replica.clock;
            replica.core().retire(now);
        })
    }

    fn restart(&mut self, scope: &Scope, n: usize) {
        let old = &self.replicas[n];
        if !old.writes.is_empty() {
            scope.marks.note(Mark::WriteLost);
        }
        let (timing, disk, applied) = (old.timing, old.disk.clone(), old.applied);
        let members = &scope.configuration;
        let (clock, life) = (old.clock, old.life + 1);
        let new = Replica::start(old.id, timing, members, disk, applied, clock, life);
        self.replicas[n] = Arc::new(new);
        self.absorb(scope, n);
    }

    pub(crate) fn place(&self, id: NodeId) -> usize {
        let place = self.replicas.iter().position(|replica| replica.id == id);
        place.expect("nobody writes to strangers")
    }

    fn receive(&mut self, scope: &Scope, parcels: &[Arc<Parcel>]) -> bool {
        let n = self.place(parcels[0].envelope.to);
        self.step(scope, n, |replica| {
            for parcel in parcels {
                if scope.lapses && is_ballot(&parcel.envelope) {
                    replica.lapse();
                }
                let input = Input::Message(parcel.envelope.clone());
                let now = replica.clock;
                replica.core().handle(now, input);
            }
        })
    }

    fn input(&mut self, scope: &Scope, n: usize, input: Input) -> bool {
        self.step(scope, n, |replica| {
            let now = replica.clock;
            replica.core().handle(now, input);
        })
    }

    /// Lets something happen at one replica, and carries out what it wants. Whether anything
    /// changed: what changes nothing need not be looked at, for the message that did it is as
    /// well lost.
    fn step(&mut self, scope: &Scope, n: usize, happen: impl FnOnce(&mut Replica)) -> bool {
        let before = self.replicas[n].digest;
        let said = self.wire.len();
        let mut replica = self.replicas[n].fork();
        happen(&mut replica);
        self.replicas[n] = Arc::new(replica);
        self.absorb(scope, n);
        self.replicas[n].digest != before || self.wire.len() != said
    }

    fn written(&mut self, n: usize) {
        let mut replica = self.replicas[n].fork();
        if let Some((ticket, unsaved)) = replica.writes.pop_front() {
            self.check_write(n, &unsaved);
            replica.disk.write(&unsaved);
            let now = replica.clock;
            replica.core().handle(now, Input::Persisted(ticket));
        }
        self.replicas[n] = Arc::new(replica);
    }

    fn apply(&mut self, n: usize) {
        let mut replica = self.replicas[n].fork();
        replica.applied = replica.to_apply;
        let (now, index) = (replica.clock, replica.applied);
        replica.core().handle(now, Input::Applied(index));
        self.ledger.exposed = self.ledger.exposed.max(index);
        self.replicas[n] = Arc::new(replica);
    }

    fn own(&mut self, n: usize) -> &mut Replica {
        Arc::get_mut(&mut self.replicas[n]).expect("forked before it is stepped")
    }

    /// Carries out what replica `n` wants, which is this world's own.
    fn absorb(&mut self, scope: &Scope, n: usize) {
        let mut asked = Vec::new();
        loop {
            let replica = self.own(n);
            let now = replica.clock;
            let Some(output) = replica.core().poll_output() else {
                let Some((peer, round)) = asked.pop() else {
                    break;
                };
                let granted = granted_pre_vote(peer, replica, round);
                replica.core().handle(now, Input::Message(granted));
                continue;
            };
            match output {
                Output::Persist(ticket, unsaved) if scope.slow_disks => {
                    replica.writes.push_back((ticket, unsaved));
                }
                Output::Persist(ticket, unsaved) => {
                    self.check_write(n, &unsaved);
                    self.begin_after(n, &unsaved);
                    let replica = self.own(n);
                    replica.disk.write(&unsaved);
                    replica.core().handle(now, Input::Persisted(ticket));
                }
                Output::Commit(entries) => {
                    let last = entries.last().expect("never empty").id.index;
                    let held = entries
                        .iter()
                        .all(|entry| replica.disk.entry(entry.id.index) == Some(entry));
                    if !held {
                        let id = replica.id;
                        self.fail(format!("A11: {id} applies {last}, which it does not hold"));
                    }
                    self.hand_out(scope, n, last);
                }
                Output::Send(envelope) => {
                    self.check_message(scope, n, &envelope);
                    self.beat |= matches!(envelope.message, Message::Heartbeat(_));
                    match &envelope.message {
                        Message::PreVote(question) if scope.pre_votes_granted => {
                            // With its own, one more is a quorum; but a bootstrap takes all of them.
                            if scope.base != NOTHING && scope.change.is_none() {
                                asked.clear();
                            }
                            asked.push((envelope.to, question.round));
                        }
                        // No disk is set back here, so it says what is known, or is lost.
                        Message::Reminder(_) => {}
                        _ => self.post(scope, envelope),
                    }
                }
                Output::Permit(_, permit) => {
                    let (id, asked) = (replica.id, replica.asked.take());
                    scope.marks.note(Mark::QuorumRead);
                    if asked.is_none_or(|exposed| permit.index() < exposed) {
                        let index = permit.index();
                        self.fail(format!(
                            "L2: {id} may answer from {index}, and {asked:?} had been seen before it was asked"
                        ));
                    }
                }
                Output::RefuseRead(..) => replica.asked = None,
                Output::SendSnapshot(peer) => {
                    let index = replica.applied;
                    let id = replica.disk.entry(index).expect("nothing is cut here").id;
                    let configuration = replica.core.configuration_at(index).expect("it is held");
                    replica.core().handle(now, Input::SnapshotSent(peer));
                    self.states.push((peer, LogBase { id, configuration }));
                }
                Output::Install(id) => {
                    scope.marks.note(Mark::Installed);
                    self.hand_out(scope, n, id.index);
                }
                Output::DiscardSnapshot(_) => {}
            }
        }
        let steps_back = scope.steps_back(&self.left);
        let replica = self.own(n);
        replica.disk.unproven &= replica.core.is_unproven() || replica.core.is_quarantined();
        replica.disk.wiped &= replica.disk.unproven;
        replica.still();
        match scope.names_matter() {
            true => {}
            false if scope.asks_to_hold(n) => replica.core().forget_proofs(),
            false => replica.core().forget_ages(),
        }
        replica.note_cells();
        replica.seal(steps_back);
    }

    /// What is committed up to `last` is handed out at replica `n`, to be applied.
    fn hand_out(&mut self, scope: &Scope, n: usize, last: LogIndex) {
        let replica = self.own(n);
        let now = replica.clock;
        replica.to_apply = last;
        if !scope.slow_apply.contains(&n) {
            replica.applied = last;
            replica.core().handle(now, Input::Applied(last));
            self.ledger.exposed = self.ledger.exposed.max(last);
        }
    }

    /// A log that begins after a whole state is written down with the entries that led to it, as one that was never
    /// cut: so the claims find every entry at its place.
    fn begin_after(&mut self, n: usize, unsaved: &UnsavedState) {
        let Some(id) = unsaved.base.as_ref().map(|base| base.id) else {
            return;
        };
        let holds = |disk: &Disk| disk.entry(id.index).is_some_and(|entry| entry.id == id);
        if holds(&self.replicas[n].disk) {
            return;
        }
        let holder = self.replicas.iter().find(|other| holds(&other.disk));
        let disk = &holder
            .expect("the leader that sent the state holds it")
            .disk;
        let entries = disk.entries[..disk.through(id.index)].to_vec();
        self.own(n).disk.entries = entries;
    }

    fn post(&mut self, scope: &Scope, mut envelope: Envelope) {
        if let Message::Heartbeat(heartbeat) = &mut envelope.message
            && !scope.names_matter()
        {
            // Nobody asks how old a state is; but who holds a read lease has it from such an answer.
            let holds = scope.asks_to_hold(self.place(envelope.to));
            heartbeat.fresh = heartbeat.fresh.filter(|_| holds);
            if let Some(fresh) = &mut heartbeat.fresh {
                fresh.index = LogIndex(0);
            }
        }
        if (scope.loses)(&envelope) || self.is_idle(&envelope) {
            return;
        }
        let parcel = Parcel::new(envelope);
        let at = self
            .wire
            .partition_point(|other| other.digest < parcel.digest);
        self.wire.insert(at, parcel);
    }

    /// Whether a message can do nothing where it goes: a refused ballot, of a term that the
    /// candidate can not fall behind.
    fn is_idle(&self, envelope: &Envelope) -> bool {
        let withheld = match &envelope.message {
            Message::PreVoteReply(reply) => reply.ballot != Ballot::Granted,
            Message::VoteReply(reply) => reply.ballot != Ballot::Granted,
            _ => false,
        };
        withheld && envelope.term <= self.replicas[self.place(envelope.to)].disk.hard.term
    }

    pub(crate) fn fail(&mut self, claim: String) {
        if self.broken.is_none() {
            self.broken = Some(claim.into());
        }
    }

    /// Delivers whatever is on its way, and everything that follows, oldest sender first: how a
    /// scope gets to where it begins.
    pub(crate) fn settle(&mut self, scope: &Scope) {
        loop {
            let mut actions = Vec::new();
            self.actions(scope, &mut actions);
            let next = actions.into_iter().find_map(|action| match action {
                Action::Deliver(_) | Action::Written(_) | Action::Applied(_) => {
                    let next = self.after(scope, action);
                    if next.is_none()
                        && let Action::Deliver(at) = action
                    {
                        let mut without = self.clone();
                        without.wire.remove(at);
                        return Some(without);
                    }
                    next
                }
                _ => None,
            });
            match next {
                Some(next) => *self = next,
                None => return,
            }
        }
    }
}

/// At most one waits at a time.
const READ: ReadId = ReadId(1);

/// Lets a core read its clock, and do nothing else.
const LOOK: Input = Input::Applied(LogIndex(0));

/// Whether a message asks for a vote.
fn is_ballot(envelope: &Envelope) -> bool {
    matches!(envelope.message, Message::PreVote(_) | Message::Vote(_))
}

/// As if `peer` were ready to vote for `replica`: to rest on the contrary is no safety.
fn granted_pre_vote(peer: NodeId, replica: &Replica, round: RoundId) -> Envelope {
    Envelope {
        from: peer,
        to: replica.id,
        term: replica.core.published().term(),
        message: Message::PreVoteReply(PreVoteReply {
            round,
            ballot: Ballot::Granted,
        }),
    }
}

thread_local! {
    static STEPPING: Cell<bool> = const { Cell::new(false) };
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a step; if the core stops, why.
fn caught<T>(step: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if STEPPING.get() {
                SAID.set(panic.to_string().replace('\n', " "));
            } else {
                usual(panic);
            }
        }));
    });
    STEPPING.set(true);
    let result = std::panic::catch_unwind(AssertUnwindSafe(step));
    STEPPING.set(false);
    result.map_err(|_| SAID.take())
}
