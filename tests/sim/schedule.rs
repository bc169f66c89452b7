//! Schedules: which faults a run gets, drawn from its seed before it begins.
//!
//! Evenly random faults find little: a stale lease is masked by fresher
//! logs, a forgotten promise by the others'. So most schedules are made of *plays*, small scripts
//! of two or three faults that coincide where the protocol could break, with quiet before them.

use crate::clock::{MS, Nanos, SECOND, US, nanos};
use crate::dice::Dice;
use crate::disk::Ending;
use crate::machine::Thread;
use crate::nemesis::{Fault, Planned, Target, Way, When};
use crate::network::{Aim, Kind, Quality};
use crate::options::{Options, Profile};

/// The schedule of a run.
pub(crate) fn draw(options: &Options, dice: &mut Dice) -> Vec<Planned> {
    let mut plan = Plan {
        play: options.play,
        promise: nanos(options.timing.lease_duration),
        election: nanos(options.timing.election_timeout_max),
        nodes: options.nodes,
        end: options.faulty_for,
        lines: Vec::new(),
    };
    match options.profile {
        Profile::Calm => {}
        Profile::Swarm => plan.swarm(dice),
        Profile::Targeted => plan.plays(dice, false),
        Profile::Storm => {
            plan.swarm(dice);
            plan.plays(dice, false);
        }
        Profile::Frozen => plan.plays(dice, true),
    }
    if options.moves {
        let dice = &mut Dice::new(options.seed, "members", 1);
        plan.members(dice, options.profile != Profile::Calm);
    }
    // A play is looked at by itself.
    let dice = &mut Dice::new(options.seed, "copies", 0);
    let is_alone = options.play.is_some() || options.profile == Profile::Calm;
    if !is_alone && dice.chance(0.4) {
        plan.older_copies(dice);
    }
    if options.restored && !is_alone {
        plan.restores(&mut Dice::new(options.seed, "restores", 0));
    }
    plan.lines
}

struct Plan {
    /// The only play, if there is but one.
    play: Option<u64>,
    /// P: everything about leases happens within a few of these.
    promise: Nanos,
    /// E_max.
    election: Nanos,
    nodes: usize,
    end: Nanos,
    lines: Vec<Planned>,
}

impl Plan {
    fn at(&mut self, at: Nanos, lasts: Nanos, fault: Fault) {
        let when = When::At(at);
        self.lines.push(Planned { when, lasts, fault });
    }

    fn on(&mut self, armed: Nanos, kind: Kind, after: Nanos, lasts: Nanos, fault: Fault) {
        let when = When::Seen { armed, kind, after };
        self.lines.push(Planned { when, lasts, fault });
    }

    /// Each kind of fault on or off; those that are on come at times of their own.
    fn swarm(&mut self, dice: &mut Dice) {
        for kind in 0..KINDS {
            if dice.chance(0.5) {
                continue;
            }
            self.now_and_then(dice, |plan, dice| plan.any(dice, kind));
        }
    }

    /// Faults at times of their own, as often as the dice say.
    fn now_and_then(
        &mut self,
        dice: &mut Dice,
        fault: impl Fn(&Self, &mut Dice) -> (Nanos, Fault),
    ) {
        let gap = dice.spread(SECOND, 8 * SECOND);
        let mut at = dice.between(self.election, self.election + gap);
        while at < self.end {
            let (lasts, fault) = fault(self, dice);
            self.at(at, lasts, fault);
            at += dice.between(gap / 4, 2 * gap);
        }
    }

    fn any(&self, dice: &mut Dice, kind: u64) -> (Nanos, Fault) {
        let p = self.promise;
        let who = self.someone(dice);
        let brief = dice.spread(p / 20, 3 * p);
        let down = dice.spread(100 * US, 3 * p);
        match kind {
            0 => (down, Fault::Crash(who, ending(dice))),
            1 => (brief, Fault::Pause(who)),
            2 => (brief, Fault::Stall(who, *dice.pick(&THREADS))),
            3 => (brief, Fault::Suspend(who)),
            4 => (0, self.step(dice, who)),
            5 => (brief, Fault::Cut(self.someone(dice), who)),
            6 => (brief, Fault::Isolate(who, way(dice), dice.chance(0.2))),
            7 => (brief, Fault::Split(dice.number() as u32)),
            8 => (brief, Fault::Travel(Quality::draw(dice))),
            9 => (brief, Fault::Delay(self.aim(dice))),
            10 => (brief, Fault::SlowDisk(who, dice.spread(MS, 2 * p))),
            11 => (0, Fault::FailDisk(who)),
            12 => (brief, Fault::FillDisk(who)),
            13 => (brief, Fault::SlowApply(who, dice.spread(MS, p))),
            14 => (0, Fault::Transfer(self.to(dice))),
            15 => (dice.spread(MS, p), Fault::Retire(who)),
            16 => (dice.spread(p, 6 * p), Fault::Quiet),
            17 => (down, Fault::Rot(who)),
            18 => (down, Fault::Wipe(who)),
            19 => {
                let other = self.someone(dice);
                let (up, off) = (dice.spread(25 * MS, SECOND), dice.spread(25 * MS, SECOND));
                let lasts = dice.spread(p, 12 * p);
                (lasts, Fault::Flap(other, who, up, off))
            }
            _ => (down, Fault::CrashAll(ending(dice))),
        }
    }

    /// Members come and go; and some of the time somebody is struck just then.
    fn members(&mut self, dice: &mut Dice, strikes: bool) {
        let gap = dice.spread(20 * MS, 3 * SECOND);
        let mut at = dice.between(self.election, 3 * self.election);
        while at < self.end {
            let node = Target::Node(dice.between(0, self.nodes as u64 - 1) as usize);
            let other = self.someone(dice);
            let fault = match dice.between(0, 9) {
                0..=3 => Fault::Add(node, true),
                4 => Fault::Add(node, false),
                5 => Fault::Promote(node),
                6 => Fault::Replace(other, node),
                7 => Fault::Remove(Target::Leader),
                _ => Fault::Remove(other),
            };
            self.at(at, 0, fault);
            if strikes && dice.chance(0.5) {
                let who = self.someone(dice);
                let strike = match dice.between(0, 3) {
                    0 => Fault::Crash(who, ending(dice)),
                    1 => Fault::Split(dice.number() as u32),
                    2 => Fault::Isolate(who, way(dice), false),
                    _ => Fault::Transfer(self.to(dice)),
                };
                let lasts = dice.spread(MS, 3 * self.promise);
                let soon = at + dice.spread(US, 20 * MS);
                match dice.chance(0.5) {
                    true => self.at(soon, lasts, strike),
                    false => self.on(at, Kind::Append, dice.spread(US, 5 * MS), lasts, strike),
                }
            }
            at += dice.between(gap / 4, 2 * gap);
        }
    }

    /// Members come back with older copies of their data directories, or with states that do not open.
    fn older_copies(&mut self, dice: &mut Dice) {
        self.now_and_then(dice, |plan, dice| {
            let who = plan.someone(dice);
            match dice.chance(0.7) {
                true => (dice.spread(10 * MS, 3 * SECOND), Fault::SetBack(who)),
                false => {
                    let down = dice.spread(100 * US, 3 * plan.promise);
                    (down, Fault::BreakState(who))
                }
            }
        });
    }

    /// Now and then somebody types the line again that restored a member.
    fn restores(&mut self, dice: &mut Dice) {
        self.now_and_then(dice, |plan, dice| {
            let down = dice.spread(100 * US, 3 * plan.promise);
            (down, Fault::Restore(plan.someone(dice)))
        });
    }

    /// One play after the other, with some peace between them.
    fn plays(&mut self, dice: &mut Dice, freeze: bool) {
        let mut at = dice.between(self.election, 3 * self.election);
        while at < self.end {
            if dice.chance(0.6) {
                let before = dice.spread(MS, self.promise);
                let lasts = dice.spread(self.promise, 8 * self.promise);
                self.at(at, lasts, Fault::Quiet);
                at += before;
            }
            if freeze && dice.chance(0.5) {
                let lasts = dice.spread(self.promise, 4 * self.promise);
                self.at(at, lasts, Fault::Freeze(Target::Leader));
                at += lasts;
            } else {
                at = self.play(dice, at);
            }
            at += dice.spread(self.promise / 4, 4 * self.election);
        }
    }

    /// One play that begins at `at`; gives when it is over.
    fn play(&mut self, dice: &mut Dice, at: Nanos) -> Nanos {
        let p = self.promise;
        // The time of a lease and a bit: what is decided within it decides about stale reads.
        let about = |dice: &mut Dice| p / 2 + dice.between(0, p);
        let cut_off = dice.spread(p / 2, 3 * p);
        let which = dice.between(0, PLAYS - 1);
        match self.play.unwrap_or(which) {
            0 => {
                // A follower's promise lapses, the others forget theirs, the leader is cut off.
                let lapsed = p + dice.between(p / 20, p);
                let follower = Target::Follower(dice.number() as usize % 8);
                let lasts = lapsed + cut_off;
                self.at(at, lasts, Fault::Cut(Target::Leader, follower));
                let down = dice.spread(100 * US, 5 * MS);
                self.at(at + lapsed, down, Fault::CrashFollowers(ending(dice)));
                let isolated = at + lapsed + dice.spread(10 * US, 20 * MS);
                let fault = Fault::Isolate(Target::Leader, way(dice), false);
                self.at(isolated, cut_off, fault);
                at + lasts
            }
            1 => {
                // The leader is cut off, and heard again at about the end of its lease.
                let lasts = about(dice);
                self.at(at, lasts, Fault::Isolate(Target::Leader, way(dice), false));
                at + lasts
            }
            2 => {
                // Whoever votes, or says it would, forgets it at once.
                let kind = *dice.pick(&[Kind::PreVoteReply, Kind::VoteReply, Kind::Vote]);
                let who = *dice.pick(&[Target::Sender, Target::Receiver]);
                let down = dice.spread(100 * US, 10 * MS);
                let after = dice.spread(US, 5 * MS);
                self.on(at, kind, after, down, Fault::Crash(who, ending(dice)));
                self.at(
                    at,
                    cut_off,
                    Fault::Isolate(Target::Leader, way(dice), false),
                );
                at + cut_off
            }
            3 => {
                // A transfer whose word is late, from a leader that is cut off meanwhile.
                let aim = Aim {
                    kind: Kind::TimeoutNow,
                    chance: 0.7,
                    delay_min: MS,
                    delay_max: 5 * p / 2,
                };
                self.at(at, 4 * p, Fault::Delay(aim));
                self.at(at + MS, 0, Fault::Transfer(self.to(dice)));
                let isolated = at + MS + dice.spread(MS, 2 * p);
                let fault = Fault::Isolate(Target::Leader, way(dice), false);
                self.at(isolated, cut_off, fault);
                at + 4 * p
            }
            4 => {
                // The leader is struck just as it hands over.
                self.at(at, 0, Fault::Transfer(self.to(dice)));
                let who = *dice.pick(&[Target::Sender, Target::Receiver]);
                let fault = match dice.between(0, 2) {
                    0 => Fault::Isolate(who, way(dice), false),
                    1 => Fault::Crash(who, ending(dice)),
                    _ => Fault::Pause(who),
                };
                let after = dice.spread(US, 5 * MS);
                self.on(at, Kind::TimeoutNow, after, cut_off, fault);
                at + cut_off
            }
            5 => {
                // The leader sleeps through the end of its lease, whole or in part.
                let lasts = about(dice);
                let fault = match dice.between(0, 3) {
                    0 => Fault::Suspend(Target::Leader),
                    1 => Fault::Stall(Target::Leader, Thread::Driver),
                    2 => Fault::Stall(Target::Leader, Thread::Sessions),
                    _ => Fault::Pause(Target::Leader),
                };
                self.at(at, lasts, fault);
                at + lasts
            }
            6 => {
                // Answers to the leader are late, then it is cut off.
                for kind in [Kind::HeartbeatReply, Kind::Appended] {
                    let aim = Aim {
                        kind,
                        chance: 0.5,
                        delay_min: p / 20,
                        delay_max: 5 * p / 2,
                    };
                    self.at(at, 3 * p, Fault::Delay(aim));
                }
                let isolated = at + dice.between(p / 4, 3 * p);
                let fault = Fault::Isolate(Target::Leader, Way::Out, false);
                self.at(isolated, cut_off, fault);
                at + 3 * p + cut_off
            }
            7 => {
                // A follower's promise lapses; it asks for votes just as it hears the leader again.
                let follower = dice.number() as usize % 8;
                let lapsed = p + dice.between(p / 50, self.election);
                let one = Target::Follower(follower);
                self.at(at, lapsed, Fault::Cut(Target::Leader, one));
                if dice.chance(0.5) {
                    let other = Target::Follower(follower + 1);
                    let later = dice.spread(US, p / 10);
                    self.at(at, lapsed + later, Fault::Cut(Target::Leader, other));
                }
                let kind = *dice.pick(&[Kind::PreVote, Kind::PreVoteReply, Kind::Vote]);
                let fault = Fault::Isolate(Target::Leader, way(dice), false);
                let after = dice.spread(US, p / 10);
                self.on(at + lapsed / 2, kind, after, cut_off, fault);
                at + lapsed + cut_off
            }
            8 => {
                // Votes take long to write down, while the old leader is heard again.
                for which in 0..self.nodes {
                    let by = dice.spread(MS, p / 4);
                    self.at(at, 6 * p, Fault::SlowDisk(Target::Node(which), by));
                }
                let lasts = about(dice) + p / 2;
                self.at(at, lasts, Fault::Isolate(Target::Leader, way(dice), false));
                at + lasts
            }
            9 => {
                // The next leader applies slowly, and the old one is gone.
                for which in 0..self.nodes {
                    let by = dice.spread(MS, p);
                    self.at(at, 4 * p, Fault::SlowApply(Target::Node(which), by));
                }
                let fault = match dice.between(0, 1) {
                    0 => Fault::Crash(Target::Leader, ending(dice)),
                    _ => Fault::Transfer(self.to(dice)),
                };
                self.at(at + dice.between(MS, p), cut_off, fault);
                at + 4 * p
            }
            10 => {
                // The leader retires; what it says last is late, or it comes back at once.
                if dice.chance(0.5) {
                    let aim = Aim {
                        kind: Kind::Release,
                        chance: 1.0,
                        delay_min: p / 10,
                        delay_max: 2 * p,
                    };
                    self.at(at, 3 * p, Fault::Delay(aim));
                }
                let lasts = dice.spread(100 * US, p);
                self.at(at + MS, lasts, Fault::Retire(Target::Leader));
                at + 2 * p
            }
            11 => {
                // A clock jumps, and soon after the leader is cut off.
                let who = *dice.pick(&[Target::Leader, Target::Leader, Target::Follower(0)]);
                self.at(at, 0, self.step(dice, who));
                let isolated = at + dice.spread(MS, p);
                let fault = Fault::Isolate(Target::Leader, way(dice), false);
                self.at(isolated, cut_off, fault);
                at + p + cut_off
            }
            12 => {
                // All at once.
                let down = dice.spread(100 * US, 2 * p);
                self.at(at, down, Fault::CrashAll(ending(dice)));
                at + down
            }
            13 | 14 => {
                // Some have long heard nothing, though nothing was written either, and ask again
                // and again; then nobody hears the leader, and the others' promises run out.
                let long = dice.between(2 * self.election, 4 * self.election);
                self.at(at, long + 3 * p, Fault::Quiet);
                let deaf = at + dice.between(p / 4, p / 2);
                for which in 0..self.nodes.saturating_sub(1) / 2 {
                    let one = Target::Follower(which);
                    self.at(deaf, long + 2 * p, Fault::Cut(Target::Leader, one));
                }
                let fault = Fault::Isolate(Target::Leader, Way::Both, false);
                self.at(deaf + long, 2 * p, fault);
                deaf + long + 2 * p
            }
            15 => {
                // One of those who hold what was committed loses it, and the leader is gone.
                let which = Target::Follower(dice.number() as usize % 8);
                let down = dice.spread(100 * US, p);
                self.at(at, down, Fault::Rot(which));
                let fault = match dice.between(0, 1) {
                    0 => Fault::Crash(Target::Leader, ending(dice)),
                    _ => Fault::Isolate(Target::Leader, Way::Both, false),
                };
                self.at(at + dice.spread(US, 2 * p), cut_off, fault);
                at + 2 * p + cut_off
            }
            16 => {
                // Leaders fall one after the other, each while its first entries are on their way
                // (Raft, figure 8).
                let falls = dice.between(3, 8);
                let mut next = at;
                for _ in 0..falls {
                    let after = dice.spread(US, 4 * MS);
                    let down = dice.between(p / 2, 3 * self.election);
                    let fault = Fault::Crash(Target::Sender, ending(dice));
                    self.on(next, Kind::Append, after, down, fault);
                    next += dice.between(p, 2 * self.election);
                }
                next
            }
            17 => {
                // The leader is not heard for a while. One moves on to a new term, and its question
                // is late; who is asked hears the leader again first, and of the new term.
                let one = dice.number() as usize % 8;
                let lapsed = p + dice.between(p / 20, p / 2);
                let deaf = Target::Follower(one);
                self.at(at, lapsed + 4 * p, Fault::Cut(Target::Leader, deaf));
                self.at(at, lapsed + 4 * p, Fault::Cut(deaf, Target::Leader));
                let again = lapsed + dice.spread(US, p / 2);
                let other = Target::Follower(one + 1);
                self.at(at, again, Fault::Cut(Target::Leader, other));
                for (kind, by) in [(Kind::Vote, 2 * p), (Kind::PreVoteReply, p)] {
                    let aim = Aim {
                        kind,
                        chance: 0.8,
                        delay_min: p / 20,
                        delay_max: by,
                    };
                    self.at(at, lapsed + 2 * p, Fault::Delay(aim));
                }
                at + lapsed + 4 * p
            }
            18 => {
                // Nobody hears the leader for a while; who asks around hears it again before the
                // answers.
                let lapsed = p + dice.between(p / 20, p / 2);
                for which in 0..self.nodes.saturating_sub(1) {
                    let one = Target::Follower(which);
                    let again = lapsed + dice.spread(US, p / 4);
                    self.at(at, again, Fault::Cut(Target::Leader, one));
                }
                let aim = Aim {
                    kind: Kind::PreVoteReply,
                    chance: 0.9,
                    delay_min: p / 50,
                    delay_max: p,
                };
                self.at(at, lapsed + p, Fault::Delay(aim));
                at + lapsed + p
            }
            19 => {
                // Leadership is handed over once more before the first word of it arrives.
                let aim = Aim {
                    kind: Kind::TimeoutNow,
                    chance: 0.5,
                    delay_min: self.election,
                    delay_max: self.election + 3 * p,
                };
                let end = 4 * self.election;
                self.at(at, end, Fault::Quiet);
                self.at(at, end, Fault::Delay(aim));
                let mut next = at + MS;
                while next < at + end {
                    self.at(next, 0, Fault::Transfer(self.to(dice)));
                    next += self.election + dice.spread(MS, p);
                }
                at + end
            }
            20 => {
                // The leader is the last to apply what others show already.
                let lasts = dice.between(p, 4 * p);
                let by = dice.spread(MS, p);
                self.at(at, lasts, Fault::SlowApply(Target::Leader, by));
                at + lasts
            }
            21 => {
                // Whoever is elected by a transfer is cut off as soon as it has the votes.
                self.at(at, 4 * p, Fault::Quiet);
                self.at(at, 0, Fault::Transfer(self.to(dice)));
                let after = dice.spread(US, p / 10);
                let fault = Fault::Isolate(Target::Receiver, Way::Both, false);
                self.on(at, Kind::VoteReply, after, 3 * p, fault);
                at + 4 * p
            }
            22 => {
                // Heartbeats are late; what else the leader sends to one does not fit, and the
                // others have not heard it for long.
                let one = dice.number() as usize % 8;
                let away = dice.between(p / 4, p);
                let deaf = Target::Follower(one);
                self.at(at, away, Fault::Cut(Target::Leader, deaf));
                let aim = Aim {
                    kind: Kind::Heartbeat,
                    chance: 0.95,
                    delay_min: 2 * p,
                    delay_max: 4 * p,
                };
                self.at(at + away / 2, 3 * p, Fault::Delay(aim));
                for which in 1..self.nodes.saturating_sub(1) {
                    let other = Target::Follower(one + which);
                    self.at(at + away / 2, 3 * p, Fault::Cut(Target::Leader, other));
                }
                at + away + 3 * p
            }
            23 => {
                // Leadership goes to and fro while answers to the leader are late; then it is cut
                // off.
                for kind in [Kind::HeartbeatReply, Kind::Appended] {
                    let aim = Aim {
                        kind,
                        chance: 0.5,
                        delay_min: p / 20,
                        delay_max: 2 * p,
                    };
                    self.at(at, 4 * p, Fault::Delay(aim));
                }
                self.at(at, 4 * p, Fault::Quiet);
                let mut next = at + MS;
                for _ in 0..dice.between(2, 8) {
                    self.at(next, 0, Fault::Transfer(self.to(dice)));
                    next += dice.between(p / 20, p / 3);
                }
                let fault = Fault::Isolate(Target::Leader, way(dice), false);
                self.at(next, cut_off, fault);
                next + cut_off
            }
            24 => {
                // Votes take long to write down; the voter hears the old leader again meanwhile,
                // and the candidate does not.
                let one = dice.number() as usize % 8;
                let (deaf, voter) = (Target::Follower(one), Target::Follower(one + 1));
                let lapsed = p + dice.between(p / 20, p / 2);
                let end = lapsed + 3 * p;
                self.at(at, end, Fault::Cut(Target::Leader, deaf));
                self.at(at, end, Fault::Cut(deaf, Target::Leader));
                self.at(at, lapsed, Fault::Cut(Target::Leader, voter));
                let by = dice.between(p / 20, p / 2);
                self.at(at + p, end - p, Fault::SlowDisk(voter, by));
                at + end
            }
            25 => {
                // The cluster falls apart for about as long as an election takes.
                let lasts = dice.between(p, 2 * self.election);
                self.at(at, lasts, Fault::Split(dice.number() as u32));
                at + lasts
            }
            26 => {
                // A voter whose word is still on its way forgets everything, and comes back to ask.
                let aim = Aim {
                    kind: Kind::VoteReply,
                    chance: 0.5,
                    delay_min: MS,
                    delay_max: 2 * self.election,
                };
                self.at(at, self.election, Fault::Delay(aim));
                let down = dice.spread(100 * US, p / 10);
                let after = dice.spread(US, 5 * MS);
                let fault = Fault::Wipe(Target::Sender);
                self.on(at, Kind::VoteReply, after, down, fault);
                let lasts = about(dice) + p / 2;
                self.at(at, lasts, Fault::Isolate(Target::Leader, way(dice), false));
                at + lasts + self.election
            }
            27 => {
                // Links of the leader come and go, about as fast as a lease or an election.
                let lasts = dice.between(self.election, 4 * self.election);
                for which in 0..dice.between(1, self.nodes.max(2) as u64 - 1) as usize {
                    let (up, down) = (dice.spread(25 * MS, 2 * p), dice.spread(25 * MS, 2 * p));
                    let one = Target::Follower(which);
                    self.at(at, lasts, Fault::Flap(Target::Leader, one, up, down));
                }
                at + lasts
            }
            _ => {
                // Two of anything, together.
                for _ in 0..2 {
                    let kind = dice.between(0, KINDS - 1);
                    let (lasts, fault) = self.any(dice, kind);
                    self.at(at + dice.spread(US, p), lasts, fault);
                }
                at + p
            }
        }
    }

    fn someone(&self, dice: &mut Dice) -> Target {
        match dice.between(0, 2) {
            0 => Target::Leader,
            1 => Target::Follower(dice.number() as usize % 8),
            _ => Target::Node(dice.between(0, self.nodes as u64 - 1) as usize),
        }
    }

    fn to(&self, dice: &mut Dice) -> Option<usize> {
        let node = dice.between(0, self.nodes as u64 - 1) as usize;
        dice.chance(0.5).then_some(node)
    }

    /// One clock jumps, forward or back; the other stays as it is, which keeps A1.
    fn step(&self, dice: &mut Dice, who: Target) -> Fault {
        let by = dice.spread(MS, 3 * self.promise) as i64;
        let by = if dice.chance(0.5) { by } else { -by };
        Fault::StepClock(who, by)
    }

    fn aim(&self, dice: &mut Dice) -> Aim {
        Aim {
            kind: *dice.pick(&AIMED),
            chance: dice.between(1, 10) as f64 / 10.0,
            delay_min: MS,
            delay_max: dice.spread(2 * MS, 3 * self.promise),
        }
    }
}

/// How many plays there are. `bugs.rs` aims at them by number, so new ones come last but one.
pub(crate) const PLAYS: u64 = 29;
/// How many kinds `Plan::any` knows.
const KINDS: u64 = 21;
const THREADS: [Thread; 4] = [Thread::Driver, Thread::Log, Thread::State, Thread::Sessions];
const AIMED: [Kind; 11] = [
    Kind::PreVote,
    Kind::PreVoteReply,
    Kind::Vote,
    Kind::VoteReply,
    Kind::Heartbeat,
    Kind::HeartbeatReply,
    Kind::Append,
    Kind::Appended,
    Kind::TimeoutNow,
    Kind::ReadIndex,
    Kind::ReadIndexReply,
];

fn ending(dice: &mut Dice) -> Ending {
    if dice.chance(0.5) {
        Ending::Kill
    } else {
        Ending::Power
    }
}

fn way(dice: &mut Dice) -> Way {
    *dice.pick(&[Way::Both, Way::Both, Way::In, Way::Out])
}
