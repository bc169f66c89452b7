//! The nemesis: what it can do, and how it does it to the world.
//!
//! A run's faults are a list, made before the run begins (`schedule.rs`), so that a schedule can be
//! printed, shortened and replayed. Who is hit may be left open until then: *the leader* is whoever
//! leads at that moment. A fault may also lie in wait for a kind of message and strike its sender
//! or its receiver: a protocol breaks at its own moments, not at round numbers of milliseconds.

use leasehold::api::{Call, Consistency, Request};
use leasehold::raft::{Ballot, Envelope, Message};
use leasehold::types::NodeId;

use crate::clock::{Nanos, SECOND};
use crate::dice::Dice;
use crate::disk::{Ending, OlderCopy};
use crate::machine::{Mail, Thread};
use crate::marks::Mark;
use crate::network::{Aim, Kind, Quality};
use crate::options::Options;
use crate::world::{Event, Work, World, place};
use crate::{members, schedule, script};

/// Who is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// This one.
    Node(usize),
    /// Whoever leads in the highest term, else the first node.
    Leader,
    /// The so-manieth of those who do not lead.
    Follower(usize),
    /// Of the message that was waited for.
    Sender,
    /// Of the message that was waited for.
    Receiver,
}

/// Which way is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Both,
    In,
    Out,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// The process ends, and starts again when the fault ends.
    Crash(Target, Ending),
    /// As above, every process but the leader's.
    CrashFollowers(Ending),
    /// As above, every process.
    CrashAll(Ending),
    /// Nothing of the process runs; the clocks do.
    Pause(Target),
    /// One thread of the process does not run.
    Stall(Target, Thread),
    /// The machine sleeps: only the boot clock runs. (Where that one is not steady, a pause.)
    Suspend(Target),
    /// The machine is stopped from outside, and its clocks with it: breaks assumption A1.
    Freeze(Target),
    /// The less steady of the two clocks jumps by so many nanoseconds.
    StepClock(Target, i64),
    /// One way between two nodes is cut.
    Cut(Target, Target),
    /// A node is cut off from all others, and perhaps from clients.
    Isolate(Target, Way, bool),
    /// The link between two nodes comes and goes: up for so long, then down for so long.
    Flap(Target, Target, Nanos, Nanos),
    /// The nodes of this set are cut off from the rest, and the rest from them.
    Split(u32),
    /// Messages travel like this.
    Travel(Quality),
    /// A kind of message is held back.
    Delay(Aim),
    /// Syncs take up to so long.
    SlowDisk(Target, Nanos),
    /// The next sync fails, which ends the process.
    FailDisk(Target),
    /// There is no space, which ends the process.
    FillDisk(Target),
    /// The process ends, its log rots, and it starts again. Not while another is damaged: what is
    /// committed is to be found on some whole disk.
    Rot(Target),
    /// The process ends, all that its machine remembered is gone, and it starts again. Not while
    /// another is damaged, or has never held anything: what is committed is to be found on some
    /// whole disk.
    Wipe(Target),
    /// The process ends, its machine is restored once more from what all were restored from, and it starts again.
    /// Under the same conditions, and where they were restored at all.
    Restore(Target),
    /// A copy of the data directory is made, and when the fault ends the process ends and starts again on it. Not
    /// while another is damaged, nor if it forgets a vote, or what a majority does not hold without it. Plain logs alone.
    SetBack(Target),
    /// The process ends, and its state does not open again, and is set aside. Not while another is damaged, unless the
    /// log has everything.
    BreakState(Target),
    /// Applying takes up to so long.
    SlowApply(Target, Nanos),
    /// Leadership is handed over.
    Transfer(Option<usize>),
    /// The process is stopped gracefully.
    Retire(Target),
    /// A new member, which becomes a voter by itself, or stays a learner.
    Add(Target, bool),
    /// A learner is to vote.
    Promote(Target),
    /// A member is none any more. Its process goes on, and may come back.
    Remove(Target),
    /// The second takes the place of the first.
    Replace(Target, Target),
    /// Nobody writes.
    Quiet,
}

/// When a fault begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum When {
    At(Nanos),
    /// So long after the first message of this kind that is sent after `armed`. A reply with a
    /// ballot counts only if it grants.
    Seen {
        armed: Nanos,
        kind: Kind,
        after: Nanos,
    },
}

/// One line of a schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Planned {
    pub(crate) when: When,
    pub(crate) lasts: Nanos,
    pub(crate) fault: Fault,
}

/// The schedule, and what of it is under way.
pub(crate) struct Nemesis {
    pub(crate) planned: Vec<Planned>,
    /// Lines that wait for a message.
    waiting: Vec<usize>,
    /// By line: what was cut, who was hit, in which message's name.
    under_way: Vec<UnderWay>,
}

#[derive(Clone, Default)]
struct UnderWay {
    begun: bool,
    seen: Option<(usize, usize)>,
    node: Option<usize>,
    cuts: Vec<(usize, usize)>,
    clients: bool,
    copy: Option<OlderCopy>,
}

impl Nemesis {
    /// The schedule that the seed draws.
    pub(crate) fn new(options: &Options) -> Self {
        let planned = match &options.schedule {
            Some(planned) => planned.clone(),
            None => schedule::draw(options, &mut Dice::new(options.seed, "nemesis", 0)),
        };
        Self {
            waiting: Vec::new(),
            under_way: vec![UnderWay::default(); planned.len()],
            planned,
        }
    }
}

impl World {
    /// Plans everything that has a time; what lies in wait is armed.
    pub(crate) fn nemesis_starts(&mut self) {
        for line in 0..self.nemesis.planned.len() {
            if !self.options.without.contains(&line) {
                self.plan(line);
            }
        }
    }

    /// Adds a line to the schedule.
    pub(crate) fn inflict(&mut self, when: When, lasts: Nanos, fault: Fault) {
        self.nemesis.planned.push(Planned { when, lasts, fault });
        self.nemesis.under_way.push(UnderWay::default());
        self.plan(self.nemesis.planned.len() - 1);
    }

    /// Does something at once.
    pub(crate) fn inflict_now(&mut self, lasts: Nanos, fault: Fault) {
        let when = When::At(self.now);
        self.nemesis.planned.push(Planned { when, lasts, fault });
        self.nemesis.under_way.push(UnderWay::default());
        self.fault_begins(self.nemesis.planned.len() - 1);
    }

    fn plan(&mut self, line: usize) {
        match self.nemesis.planned[line].when {
            When::At(at) => self.schedule(at.saturating_sub(self.now), Event::FaultBegins(line)),
            When::Seen { .. } => self.nemesis.waiting.push(line),
        }
    }

    /// A message is sent: perhaps one that a fault waits for.
    pub(crate) fn nemesis_sees_message(&mut self, from: usize, envelope: &Envelope) {
        if self.nemesis.waiting.is_empty() {
            return;
        }
        let sent = Kind::of(&envelope.message);
        let withheld = match &envelope.message {
            Message::VoteReply(reply) => reply.ballot != Ballot::Granted,
            Message::PreVoteReply(reply) => reply.ballot != Ballot::Granted,
            _ => false,
        };
        if withheld {
            return;
        }
        let now = self.now;
        let mut struck = Vec::new();
        self.nemesis
            .waiting
            .retain(|line| match self.nemesis.planned[*line].when {
                When::Seen { armed, kind, after } if kind == sent && armed <= now => {
                    struck.push((*line, after));
                    false
                }
                _ => true,
            });
        for (line, after) in struck {
            self.nemesis.under_way[line].seen = Some((from, place(envelope.to)));
            self.schedule(after, Event::FaultBegins(line));
        }
    }

    /// A line of the schedule begins.
    pub(crate) fn fault_begins(&mut self, line: usize) {
        if self.healed {
            return;
        }
        let now = self.now;
        let Planned { lasts, fault, .. } = self.nemesis.planned[line];
        self.nemesis.under_way[line].begun = true;
        self.trace.line(now, None, || {
            let planned = &self.nemesis.planned[line];
            format!("fault: {}", script::fault_line(planned))
        });
        match fault {
            Fault::Crash(who, ending) => {
                let node = self.resolve(line, who);
                if Some(node) == self.leader() {
                    self.judge.marks.hit(Mark::LeaderCrashed);
                }
                self.stop(node, ending);
            }
            Fault::CrashFollowers(ending) => {
                let leader = self.leader();
                for node in (0..self.machines.len()).filter(|node| Some(*node) != leader) {
                    self.stop(node, ending);
                    self.schedule(lasts, Event::Start(node));
                }
            }
            Fault::CrashAll(ending) => {
                self.judge.marks.hit(Mark::AllCrashed);
                for node in 0..self.machines.len() {
                    self.stop(node, ending);
                    self.schedule(lasts, Event::Start(node));
                }
            }
            Fault::Pause(who) => {
                let node = self.resolve(line, who);
                let machine = &mut self.machines[node];
                machine.paused_until = machine.paused_until.max(now + lasts);
            }
            Fault::Stall(who, thread) => {
                let node = self.resolve(line, who);
                self.machines[node].stalled_until[thread as usize] = now + lasts;
            }
            Fault::Suspend(who) | Fault::Freeze(who) => {
                let node = self.resolve(line, who);
                let machine = &mut self.machines[node];
                machine.paused_until = machine.paused_until.max(now + lasts);
                match fault {
                    Fault::Suspend(_) => {
                        self.judge.marks.hit(Mark::Suspended);
                        machine.clock.suspend(now);
                    }
                    _ => {
                        self.judge.marks.hit(Mark::Frozen);
                        machine.clock.freeze(now);
                    }
                }
            }
            Fault::StepClock(who, by) => {
                let node = self.resolve(line, who);
                self.machines[node].clock.jump(now, by);
            }
            Fault::Cut(from, to) => {
                let (from, to) = (self.resolve(line, from), self.resolve(line, to));
                self.cut_for(line, [(from, to)]);
            }
            Fault::Flap(from, to, up, down) => {
                let link = (self.resolve(line, from), self.resolve(line, to));
                self.network.flap(line as u64, now, link, up, down);
            }
            Fault::Isolate(who, way, clients) => {
                let node = self.resolve(line, who);
                let others = (0..self.machines.len()).filter(move |other| *other != node);
                let ways = others.flat_map(|other| match way {
                    Way::Both => vec![(node, other), (other, node)],
                    Way::In => vec![(other, node)],
                    Way::Out => vec![(node, other)],
                });
                self.cut_for(line, ways);
                if clients {
                    self.nemesis.under_way[line].clients = true;
                    self.machines[node].client_cuts += 1;
                }
            }
            Fault::Split(set) => {
                let nodes = self.machines.len();
                let side = |node: usize| set >> node & 1;
                let ways = (0..nodes * nodes)
                    .map(|pair| (pair / nodes, pair % nodes))
                    .filter(|(from, to)| side(*from) != side(*to));
                self.cut_for(line, ways);
            }
            Fault::Travel(quality) => self.network.quality = quality,
            Fault::Delay(aim) => self.network.aim(line as u64, aim),
            Fault::SlowDisk(who, by) => {
                let node = self.resolve(line, who);
                self.machines[node].disk.slow_down(now + lasts, by);
            }
            Fault::FailDisk(who) => {
                let node = self.resolve(line, who);
                self.machines[node].disk.fails = true;
            }
            Fault::FillDisk(who) => {
                let node = self.resolve(line, who);
                self.machines[node].disk.full_until = now + lasts;
            }
            Fault::Rot(who) => {
                let node = self.resolve(line, who);
                if self.others_are_whole(node) {
                    self.stop(node, Ending::Kill);
                    if let Err(found) = self.machines[node].disk.rot() {
                        let what = format!("n{}: {found}", node + 1);
                        self.judge.fail("A21 damage is noticed", what);
                    }
                    self.judge.stopped(node, &self.machines[node].disk);
                }
            }
            Fault::Wipe(who) | Fault::Restore(who) => {
                let node = self.resolve(line, who);
                let is_restored = matches!(fault, Fault::Restore(_));
                let may_be = !is_restored || self.backup.is_some();
                if may_be && self.others_are_whole(node) {
                    self.stop(node, Ending::Kill);
                    if is_restored {
                        self.restore(node);
                        // What it acknowledged and voted since is gone.
                        self.machines[node].disk.wiped = true;
                    } else {
                        self.machines[node].disk.wipe(node);
                    }
                    self.machines[node].tripped = false;
                    self.judge.stopped(node, &self.machines[node].disk);
                }
            }
            Fault::SetBack(who) => {
                let node = self.resolve(line, who);
                self.nemesis.under_way[line].copy = self.machines[node].disk.copy();
            }
            Fault::BreakState(who) => {
                let node = self.resolve(line, who);
                let log_has_all = self.machines[node].disk.base().index.0 == 0;
                if log_has_all || self.others_are_whole(node) {
                    self.stop(node, Ending::Kill);
                    self.machines[node].disk.break_state();
                }
            }
            Fault::SlowApply(who, by) => {
                let node = self.resolve(line, who);
                self.machines[node].apply_slow = (now + lasts, by);
            }
            Fault::Transfer(to) => self.move_leader(to),
            Fault::Retire(who) => {
                let node = self.resolve(line, who);
                if self.machines[node].process.is_some() {
                    self.judge.marks.hit(Mark::Retired);
                    self.schedule_work(0, node, Work::Retire);
                    let life = self.machines[node].life;
                    self.schedule(lasts, Event::Retired(node, life));
                }
            }
            Fault::Add(who, votes) => {
                let node = self.resolve(line, who);
                self.changes_members(members::added(node, votes));
            }
            Fault::Promote(who) => {
                let node = self.resolve(line, who);
                self.changes_members(members::promoted(node));
            }
            Fault::Remove(who) => {
                let node = self.resolve(line, who);
                self.changes_members(members::removed(node));
            }
            Fault::Replace(who, by) => {
                let (one, other) = (self.resolve(line, who), self.resolve(line, by));
                self.changes_members(members::replaced(one, other));
            }
            Fault::Quiet => self.workload.quiet_until = now + lasts,
        }
        self.schedule(lasts, Event::FaultEnds(line));
    }

    /// A line of the schedule ends.
    pub(crate) fn fault_ends(&mut self, line: usize) {
        let now = self.now;
        let fault = self.nemesis.planned[line].fault;
        let UnderWay {
            node,
            cuts,
            clients,
            copy,
            ..
        } = std::mem::take(&mut self.nemesis.under_way[line]);
        if !self.healed {
            for (from, to) in cuts {
                self.network.join(from, to);
            }
        }
        match (fault, node) {
            (
                Fault::Crash(..)
                | Fault::Rot(_)
                | Fault::Wipe(_)
                | Fault::Restore(_)
                | Fault::BreakState(_),
                Some(node),
            ) => self.start(node),
            (Fault::SetBack(_), Some(node)) if !self.healed => self.set_back(node, copy),
            (Fault::Suspend(_) | Fault::Freeze(_), Some(node)) => {
                self.machines[node].clock.resume(now);
            }
            (Fault::Isolate(..), Some(node)) if clients && !self.healed => {
                self.machines[node].client_cuts -= 1;
            }
            (Fault::Travel(_), _) if !self.healed => {
                self.network.quality = self.options.quality;
            }
            (Fault::Flap(..), _) => self.network.steady(line as u64),
            (Fault::Delay(_), _) => self.network.drop_aim(line as u64),
            _ => {}
        }
    }

    /// Ends all faults: from here on nothing new goes wrong.
    pub(crate) fn heal(&mut self) {
        self.healed = true;
        self.trace.line(self.now, None, || "all heals".to_owned());
        self.network.heal();
        for node in 0..self.machines.len() {
            let machine = &mut self.machines[node];
            machine.disk.heal();
            machine.client_cuts = 0;
            machine.apply_slow = (0, 0);
            machine.stalled_until = [0; 5];
            machine.paused_until = 0;
            machine.clock.resume(self.now);
            self.start(node);
            if let Some(process) = self.machines[node].process.as_mut() {
                process.agreed_when_healed = process.node.checks_agreed();
            }
        }
        self.options.preempt = 0.0;
    }

    /// The process on `node` ends, and starts again on `copy` of its data directory, if that may be.
    fn set_back(&mut self, node: usize, copy: Option<OlderCopy>) {
        self.stop(node, Ending::Kill);
        if let Some(copy) = copy
            && self.may_be_set_back(node, &copy)
        {
            self.judge.marks.hit(Mark::MemberSetBack);
            self.machines[node].disk.set_back(&copy);
            self.judge.stopped(node, &self.machines[node].disk);
        }
        self.start(node);
    }

    /// Whether `node` forgets with `copy` what it acknowledged, but no vote and nothing that is not held by a majority
    /// without it. More than that is known to nobody once its leader is gone (A28).
    fn may_be_set_back(&self, node: usize, copy: &OlderCopy) -> bool {
        let disk = &self.machines[node].disk;
        let holds = |other: &&usize| {
            **other != node
                && self.machines[**other]
                    .disk
                    .entries()
                    .starts_with(disk.entries())
        };
        let founders = (0..self.options.founders).collect();
        let known = (0..self.machines.len()).flat_map(|of| self.judge.voters_known_to(of));
        let mut halves = known.chain([founders]);
        let is_held =
            halves.all(|half: Vec<usize>| half.iter().filter(&holds).count() > half.len() / 2);
        disk.forgets_entries_alone(copy) && self.others_are_whole(node) && is_held
    }

    /// Whether what is committed is to be found without `node`: of the voters that anybody counts
    /// with it, nobody else is damaged, nor lacks its state, nor has never held anything, which looks
    /// the same from outside.
    pub(crate) fn others_are_whole(&self, node: usize) -> bool {
        let whole = |other: &usize| {
            let disk = &self.machines[*other].disk;
            let holds = *other == node || !disk.entries().is_empty();
            let lacks_state = disk.lacks_state() || disk.will_lack_state();
            let lacks = disk.is_damaged() || lacks_state || disk.lacks_what_it_had();
            holds && !lacks && disk.unproven.is_none()
        };
        // Founders that have lost everything could found the cluster again, members or not.
        let founders = (0..self.options.founders).collect();
        let known = (0..self.machines.len()).flat_map(|of| self.judge.voters_known_to(of));
        let mut halves = known.chain([founders]);
        // Whoever is no voter may be one soon: by a leader that has not heard yet what it lost, or
        // with a quarantine that ended a moment ago, and is there again after the next crash.
        halves.all(|mut half: Vec<usize>| {
            if !half.contains(&node) {
                half.push(node);
            }
            half.len() > 2 && half.iter().all(whole)
        })
    }

    /// Asks whoever leads to hand over to `to`, or to anyone.
    pub(crate) fn move_leader(&mut self, to: Option<usize>) {
        let Some(leader) = self.leader() else { return };
        self.judge.marks.hit(Mark::TransferAsked);
        let call = Call {
            timeout_ms: 1_000,
            consistency: Consistency::default(),
            min_revision: 0,
            session: None,
            request: Request::MoveLeader {
                target: to.map(|node| NodeId(node as u64 + 1)),
            },
        };
        // Nobody waits at this connection for the answer.
        self.mail(leader, Mail::Request(Box::new(call), usize::MAX, 0));
    }

    fn cut_for(&mut self, line: usize, ways: impl IntoIterator<Item = (usize, usize)>) {
        for (from, to) in ways {
            if from != to {
                self.network.cut(from, to);
                self.nemesis.under_way[line].cuts.push((from, to));
            }
        }
    }

    fn resolve(&mut self, line: usize, target: Target) -> usize {
        let nodes = self.machines.len();
        let leader = self.leader().unwrap_or_default();
        let (sender, receiver) = self.nemesis.under_way[line]
            .seen
            .unwrap_or((leader, leader));
        let node = match target {
            Target::Node(node) => node % nodes,
            Target::Leader => leader,
            Target::Follower(which) if nodes > 1 => (leader + 1 + which % (nodes - 1)) % nodes,
            Target::Follower(_) => leader,
            Target::Sender => sender,
            Target::Receiver => receiver,
        };
        self.nemesis.under_way[line].node = Some(node);
        node
    }
}

/// How long everything must be well again after the faults.
pub(crate) const WELL_WITHIN: Nanos = 10 * SECOND;
