//! The network between nodes: it delays, drops, doubles, reorders and cuts, one way or both.
//!
//! Messages are values; nothing keeps them in order. Cuts are counted, so that faults which overlap
//! end each on its own. An *aim* holds back one kind of message, because a protocol breaks where a
//! particular answer comes late, and evenly bad luck rarely finds the place.

use leasehold::raft::{Envelope, Message};

use crate::clock::{MS, Nanos, US};
use crate::dice::Dice;
use crate::marks::{Mark, Marks};
use crate::world::place;

/// The kinds of message that an aim tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    PreVote,
    PreVoteReply,
    Vote,
    VoteReply,
    Heartbeat,
    HeartbeatReply,
    Append,
    Appended,
    TimeoutNow,
    Release,
    Rejoin,
    ReadIndex,
    ReadIndexReply,
    StateHash,
    NeedState,
    Forgotten,
    ReadLease,
    Reminder,
}

impl Kind {
    /// The kind of `message`.
    pub(crate) fn of(message: &Message) -> Self {
        match message {
            Message::PreVote(_) => Self::PreVote,
            Message::PreVoteReply(_) => Self::PreVoteReply,
            Message::Vote(_) => Self::Vote,
            Message::VoteReply(_) => Self::VoteReply,
            Message::Heartbeat(_) => Self::Heartbeat,
            Message::HeartbeatReply(_) => Self::HeartbeatReply,
            Message::Append(_) => Self::Append,
            Message::Appended(_) => Self::Appended,
            Message::TimeoutNow(_) => Self::TimeoutNow,
            Message::Release => Self::Release,
            Message::Rejoin(_) | Message::RejoinReply(_) => Self::Rejoin,
            Message::ReadIndex(_) => Self::ReadIndex,
            Message::ReadIndexReply(_) => Self::ReadIndexReply,
            Message::StateHash(_) => Self::StateHash,
            Message::NeedState => Self::NeedState,
            Message::Forgotten(_) => Self::Forgotten,
            Message::Recall | Message::Returned(_) => Self::ReadLease,
            Message::Reminder(_) => Self::Reminder,
        }
    }
}

/// How well messages travel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Quality {
    /// The shortest way.
    pub(crate) delay_min: Nanos,
    /// The usual longest.
    pub(crate) delay_max: Nanos,
    /// How often a message is lost.
    pub(crate) loss: f64,
    /// How often it comes twice.
    pub(crate) double: f64,
    /// How often it takes up to `late_max` instead.
    pub(crate) late: f64,
    /// See `late`.
    pub(crate) late_max: Nanos,
}

impl Quality {
    /// A quiet local network: every message takes a millisecond.
    pub(crate) const STILL: Self = Self {
        delay_min: MS,
        delay_max: MS,
        loss: 0.0,
        double: 0.0,
        late: 0.0,
        late_max: MS,
    };

    /// Drawn for one run.
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let delay_min = dice.spread(50 * US, 2 * MS);
        let sometimes = |dice: &mut Dice, p, most: f64| {
            if dice.chance(p) {
                most * dice.between(1, 100) as f64 / 100.0
            } else {
                0.0
            }
        };
        Self {
            delay_min,
            delay_max: delay_min + dice.spread(50 * US, 8 * MS),
            loss: sometimes(dice, 0.5, 0.15),
            double: sometimes(dice, 0.5, 0.3),
            late: sometimes(dice, 0.5, 0.05),
            late_max: dice.spread(50 * MS, 3_000 * MS),
        }
    }
}

/// Holds back one kind of message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Aim {
    pub(crate) kind: Kind,
    /// How often it hits.
    pub(crate) chance: f64,
    pub(crate) delay_min: Nanos,
    pub(crate) delay_max: Nanos,
}

/// How often a message arrives, and after how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    None,
    One(Nanos),
    Two(Nanos, Nanos),
}

/// A link that comes and goes.
#[derive(Clone, Copy, Debug)]
struct Flapping {
    name: u64,
    from: usize,
    to: usize,
    since: Nanos,
    up: Nanos,
    down: Nanos,
}

/// The links between all nodes; node numbers count from 0.
pub(crate) struct Network {
    nodes: usize,
    cuts: Vec<u32>,
    pub(crate) quality: Quality,
    aims: Vec<(u64, Aim)>,
    flapping: Vec<Flapping>,
    /// What is sent on this link takes so long.
    pub(crate) slow: Option<((usize, usize), Nanos)>,
    pub(crate) marks: Marks,
    dice: Dice,
}

impl Network {
    /// `nodes` nodes, all connected.
    pub(crate) fn new(nodes: usize, quality: Quality, dice: Dice) -> Self {
        Self {
            nodes,
            cuts: vec![0; nodes * nodes],
            quality,
            aims: Vec::new(),
            flapping: Vec::new(),
            slow: None,
            marks: Marks::default(),
            dice,
        }
    }

    /// Nothing gets from `from` to `to` until as many [`Self::join`] follow.
    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        self.cuts[from * self.nodes + to] += 1;
    }

    /// Takes one [`Self::cut`] back.
    pub(crate) fn join(&mut self, from: usize, to: usize) {
        let cut = &mut self.cuts[from * self.nodes + to];
        *cut = cut.saturating_sub(1);
    }

    /// Whether a message passes that arrives now.
    pub(crate) fn passes(&mut self, now: Nanos, from: usize, to: usize) -> bool {
        if self.cuts[from * self.nodes + to] > 0 {
            self.marks.hit(Mark::MessageCutOff);
            return false;
        }
        let down = self.flapping.iter().any(|link| {
            let ours = (link.from, link.to) == (from, to) || (link.to, link.from) == (from, to);
            ours && (now - link.since) % (link.up + link.down) >= link.up
        });
        if down {
            self.marks.hit(Mark::MessageCutByFlapping);
        }
        !down
    }

    /// The link between two nodes comes and goes from now on, until [`Self::steady`] with the same
    /// name.
    pub(crate) fn flap(
        &mut self,
        name: u64,
        now: Nanos,
        link: (usize, usize),
        up: Nanos,
        down: Nanos,
    ) {
        self.flapping.push(Flapping {
            name,
            from: link.0,
            to: link.1,
            since: now,
            up: up.max(1),
            down,
        });
    }

    /// Ends a [`Self::flap`].
    pub(crate) fn steady(&mut self, name: u64) {
        self.flapping.retain(|link| link.name != name);
    }

    /// Holds a kind of message back, until [`Self::drop_aim`] with the same name.
    pub(crate) fn aim(&mut self, name: u64, aim: Aim) {
        self.aims.push((name, aim));
    }

    /// Takes an aim back.
    pub(crate) fn drop_aim(&mut self, name: u64) {
        self.aims.retain(|(other, _)| *other != name);
    }

    /// No cut, no loss, no aim.
    pub(crate) fn heal(&mut self) {
        self.cuts.fill(0);
        self.aims.clear();
        self.flapping.clear();
        self.slow = None;
        self.quality = Quality {
            loss: 0.0,
            double: 0.0,
            late: 0.0,
            ..self.quality
        };
    }

    /// What becomes of `envelope`, sent now.
    pub(crate) fn carry(&mut self, envelope: &Envelope) -> Copies {
        let link = (place(envelope.from), place(envelope.to));
        if let Some((_, delay)) = self.slow.filter(|(slow, _)| *slow == link) {
            self.marks.hit(Mark::MessageHeldBack);
            return Copies::One(delay);
        }
        if self.dice.chance(self.quality.loss) {
            self.marks.hit(Mark::MessageLost);
            return Copies::None;
        }
        let doubled = self.dice.chance(self.quality.double);
        let kind = Kind::of(&envelope.message);
        let first = self.delay(kind);
        if doubled {
            self.marks.hit(Mark::MessageDoubled);
            Copies::Two(first, self.delay(kind))
        } else {
            Copies::One(first)
        }
    }

    fn delay(&mut self, kind: Kind) -> Nanos {
        let quality = self.quality;
        for index in 0..self.aims.len() {
            let (_, aim) = self.aims[index];
            if aim.kind == kind && self.dice.chance(aim.chance) {
                self.marks.hit(Mark::MessageHeldBack);
                return self.dice.between(aim.delay_min, aim.delay_max);
            }
        }
        if self.dice.chance(quality.late) {
            self.marks.hit(Mark::MessageLate);
            return self.dice.spread(quality.delay_max, quality.late_max);
        }
        if quality.delay_min == quality.delay_max {
            return quality.delay_min;
        }
        self.dice.between(quality.delay_min, quality.delay_max)
    }
}
