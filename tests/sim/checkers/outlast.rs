//! L4: a lease ends no later than L after a quorum's round was *created*, and before any promise of
//! that quorum can.
//!
//! Two checks at every renewal, both from outside. The first asks for the age: what the leader
//! publishes is compared with the reading at which it first named the newest round that a majority
//! has promised on (P1, P25, P26). The second asks for the time left, in real time, by each
//! machine's own clocks at their present rates: while the lease can still be trusted, a majority is
//! bound by a promise, or down and so bound by the silence after its start (P2, P18), or has lost
//! its memory and so waits until it is whole (A23).

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::raft::{Ballot, Configuration, Envelope, Message, RoundId};
use leasehold::time::Instant;
use leasehold::types::Term;

use super::logs::halves;
use super::promises::Promises;
use super::{Violation, id, majority, violation};
use crate::clock::Nanos;
use crate::machine::Machine;
use crate::marks::{Mark, Marks};
use crate::world::place;

/// Rounds that are remembered; more than a leader remembers.
const ROUNDS_MAX: usize = 512;

/// See the module.
pub(crate) struct Outlast {
    leaders: Vec<Leadership>,
}

/// What one node has asked as leader or candidate of one term, and was promised.
#[derive(Clone, Default)]
struct Leadership {
    term: Term,
    /// The reading at which each round was first named.
    named: BTreeMap<RoundId, Instant>,
    newest: RoundId,
    /// The newest round that each node promised on.
    promised: Vec<Option<RoundId>>,
    /// The round of the campaign, if it was authorised by a transfer.
    transfer: Option<RoundId>,
    judged: Instant,
    /// L, by the timing that the process started with.
    trusted: Duration,
    read: Instant,
}

impl Outlast {
    pub(crate) fn new(nodes: usize) -> Self {
        let leadership = Leadership {
            promised: vec![None; nodes],
            ..Leadership::default()
        };
        Self {
            leaders: vec![leadership; nodes],
        }
    }

    /// A process started with a lease of the length `trusted`, and remembers nothing.
    pub(crate) fn started(&mut self, node: usize, trusted: Duration) {
        self.leaders[node].begin(Term(0));
        self.leaders[node].trusted = trusted;
    }

    /// A message is about to be handled with the reading `now`.
    pub(crate) fn hears(&mut self, node: usize, now: Instant, envelope: &Envelope) {
        let leadership = &mut self.leaders[node];
        leadership.reads(now);
        let round = match &envelope.message {
            Message::HeartbeatReply(reply) if reply.heard.promised => reply.heard.round,
            Message::Appended(appended) if appended.heard.promised => appended.heard.round,
            Message::VoteReply(reply) if reply.promised && reply.ballot == Ballot::Granted => {
                reply.round
            }
            _ => return,
        };
        if envelope.term == leadership.term && leadership.named.contains_key(&round) {
            let promised = &mut leadership.promised[place(envelope.from)];
            *promised = (*promised).max(Some(round));
        }
    }

    /// A message is sent, handled with the reading `now`.
    pub(crate) fn says(&mut self, node: usize, now: Instant, envelope: &Envelope) {
        let (round, transfer) = match &envelope.message {
            Message::Heartbeat(heartbeat) => (heartbeat.round, false),
            Message::Append(append) => (append.heartbeat.round, false),
            Message::Vote(vote) => (vote.round, vote.transfer_from.is_some()),
            _ => return,
        };
        let leadership = &mut self.leaders[node];
        if leadership.term != envelope.term {
            leadership.begin(envelope.term);
        }
        if transfer {
            leadership.transfer = Some(round);
        }
        leadership.newest = leadership.newest.max(round);
        leadership.named.entry(round).or_insert(now);
        while leadership.named.len() > ROUNDS_MAX {
            leadership.named.pop_first();
        }
    }

    /// Whether `node` campaigned for `term` because leadership was handed over.
    pub(crate) fn was_handed_over(&self, node: usize, term: Term) -> bool {
        let leadership = &self.leaders[node];
        leadership.term == term && leadership.transfer.is_some()
    }

    /// A leader has handled something with the reading `now`: what does it publish?
    #[allow(clippy::too_many_arguments, reason = "one call, at one place")]
    pub(crate) fn judge(
        &mut self,
        real: Nanos,
        node: usize,
        now: Instant,
        machines: &[Machine],
        configuration: &Configuration,
        promises: &Promises,
        marks: &mut Marks,
    ) -> Result<(), Violation> {
        let leadership = &mut self.leaders[node];
        leadership.reads(now);
        let process = machines[node].process.as_ref();
        let cell = process.and_then(|process| process.lease.as_deref());
        let until = cell.map_or(Instant::ZERO, |cell| cell.until());
        if until == leadership.judged {
            return Ok(());
        }
        leadership.judged = until;
        if until == Instant::ZERO {
            return Ok(());
        }
        let halves = halves(configuration);
        let held = halves.iter().map(|half| leadership.held(node, half));
        let round = held.min().flatten();
        let alone = halves.iter().all(|half| half[..] == [node]);
        let created = match alone {
            true => Some(now),
            false => round.and_then(|round| leadership.named.get(&round).copied()),
        };
        let bound = created.map(|created| created + leadership.trusted);
        if bound.is_none_or(|bound| until.boot > bound.boot || until.raw > bound.raw) {
            let what = format!(
                "{} publishes a lease until {until}; its quorum has promised on {round:?}, \
                 created at {created:?}: L is {:?}",
                id(node),
                leadership.trusted
            );
            return violation("L4 a lease is as old as its round", what);
        }
        marks.hit(Mark::LeaseAgeJudged);
        if round.is_some() && round == leadership.transfer {
            marks.hit(Mark::TransferLeaseJudged);
        }
        let over = machines[node].clock.trusted_until(real, until);
        let bound_by = |other: usize| {
            let (promise, silence) = promises.bound_until(other);
            let clock = &machines[other].clock;
            let free = clock
                .over_at(real, promise)
                .max(clock.over_at(real, silence));
            // One that lost everything helps to elect nobody who has an entry, until it has got all
            // back and has outwaited what it forgot (A23).
            let is_lost =
                machines[other].process.is_none() || machines[other].disk.unproven.is_some();
            other == node || is_lost || free >= over
        };
        for half in &halves {
            let bound = half.iter().filter(|other| bound_by(**other)).count();
            if bound >= majority(half.len()) {
                continue;
            }
            let all: Vec<_> = (0..machines.len())
                .map(|other| {
                    let (promise, silence) = promises.bound_until(other);
                    let clock = &machines[other].clock;
                    let over = [promise, silence].map(|until| clock.over_at(real, until));
                    format!(
                        "{} until {promise} or {silence}, which is {over:?}",
                        id(other)
                    )
                })
                .collect();
            let what = format!(
                "{} may trust its lease until {over} ns of real time, and only {bound} of {half:?} \
                 are bound until then, now {real}: {all:?}",
                id(node)
            );
            return violation("L4 promises outlast the lease", what);
        }
        marks.hit(Mark::LeaseOutlastedJudged);
        Ok(())
    }
}

impl Leadership {
    fn begin(&mut self, term: Term) {
        *self = Self {
            term,
            promised: vec![None; self.promised.len()],
            read: self.read,
            trusted: self.trusted,
            ..Self::default()
        };
    }

    /// A clock that ran backwards makes every round worthless (A4).
    fn reads(&mut self, now: Instant) {
        if now.went_back_since(self.read) {
            // What was published before stands until consensus is told the time: what it is asked
            // that needs none, it answers without.
            let judged = self.judged;
            self.begin(self.term);
            self.judged = judged;
        }
        self.read = now;
    }

    /// The newest round that a majority of `voters` has promised on; `node` counts itself, if it is
    /// one of them.
    fn held(&self, node: usize, voters: &[usize]) -> Option<RoundId> {
        let promised = |voter: &usize| match *voter == node {
            true => Some(self.newest),
            false => self.promised[*voter],
        };
        let mut promised: Vec<_> = voters.iter().map(promised).collect();
        promised.sort_unstable_by(|a, b| b.cmp(a));
        promised[promised.len() / 2]
    }
}
