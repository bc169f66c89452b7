//! L5, P4 to P8: a promise is kept. No vote and no pre-vote is given, and none asked for, while
//! one made holds, nor for the longest that can have been made before a start; and no promise is
//! made that a restart would forget (P3).
//!
//! The promises are mirrored from outside: a leader's message is heard, the answer to it says that
//! the promise was made, and the reading with which it was handled says from when.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use leasehold::raft::{Ballot, Envelope, HardState, Heard, Message, RoundId, Status, Verdict};
use leasehold::time::Instant;
use leasehold::types::{NodeId, Term};

use super::{Counts, Violation, id, violation};
use crate::marks::{Mark, Marks};

/// What every node has promised.
pub(crate) struct Promises {
    pub(crate) marks: Marks,
    nodes: Vec<Voter>,
}

#[derive(Clone, Default)]
struct Voter {
    until: Instant,
    to: Option<(NodeId, Term)>,
    silent_until: Instant,
    /// Until then a vote may still count that it has forgotten; and how long that is from a start.
    outwaits_until: Instant,
    outwaits: Duration,
    /// The longest promise that it can have made.
    longest: Duration,
    /// What a leader's message asks for, until it is known whether it was accepted.
    asked: Option<(NodeId, Term, RoundId, Duration)>,
    /// What was accepted, by term and round: the names of another leader's rounds may be lower.
    offered: BTreeMap<(Term, RoundId), Promise>,
    /// What an authorised vote asks for, and what was given to each, if it was: a vote that is asked
    /// for once more is given once more.
    asked_by_vote: Option<(NodeId, Term, Duration)>,
    offered_by_vote: BTreeMap<(NodeId, Term), Promise>,
    released: Option<(NodeId, Term)>,
    /// The leader and the term that gave this voter free. What was promised to it may be told only
    /// after that, when the vote that carries it is on disk.
    freed_by: Option<(NodeId, Term)>,
    /// The message being handled hands leadership over, or asks for a vote because it was.
    authorised: bool,
    /// As leader of this term it has told another to campaign, so it has no lease any more, and may
    /// campaign for the next term itself.
    burned: Option<Term>,
    vote: Option<(Term, NodeId)>,
    read: Instant,
}

#[derive(Clone, Copy)]
struct Promise {
    length: Duration,
    until: Instant,
    to: (NodeId, Term),
}

impl Promises {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            marks: Marks::default(),
            nodes: vec![Voter::default(); nodes],
        }
    }

    /// A process started, and remembers no promise but the longest it can have made; where it has
    /// made none, as long as it would ask for itself.
    pub(crate) fn started(&mut self, node: usize, now: Instant, hard: HardState, own: Duration) {
        let longest = hard.promise_floor.max(own);
        self.nodes[node] = Voter {
            silent_until: now + longest,
            longest,
            vote: hard.vote.map(|candidate| (hard.term, candidate)),
            read: now,
            ..Voter::default()
        };
    }

    /// The leader of `term` tells another to campaign.
    pub(crate) fn burns(&mut self, node: usize, term: Term) {
        self.nodes[node].burned = Some(term);
    }

    /// A message is about to be handled.
    pub(crate) fn hears(&mut self, node: usize, envelope: &Envelope) {
        let voter = &mut self.nodes[node];
        voter.asked_by_vote = None;
        voter.authorised = match &envelope.message {
            Message::TimeoutNow(_) => true,
            // P10: good for the very next term only.
            Message::Vote(vote) if vote.transfer_from.map(Term::next) == Some(envelope.term) => {
                voter.asked_by_vote = Some((envelope.from, envelope.term, vote.promise));
                true
            }
            _ => false,
        };
        let heartbeat = match &envelope.message {
            Message::Heartbeat(heartbeat) => heartbeat,
            Message::Append(append) => &append.heartbeat,
            Message::Release => {
                voter.released = Some((envelope.from, envelope.term));
                return;
            }
            _ => return,
        };
        let (round, promise) = (heartbeat.round, heartbeat.promise);
        voter.asked = Some((envelope.from, envelope.term, round, promise));
    }

    /// Something other than a message is about to be handled.
    pub(crate) fn hears_nothing(&mut self, node: usize) {
        self.nodes[node].authorised = false;
        self.nodes[node].asked_by_vote = None;
    }

    /// A vote was decided upon with the reading `now`. (It is said later, when it is durable, and
    /// by then the voter may have promised its candidate.)
    pub(crate) fn votes(
        &mut self,
        node: usize,
        now: Instant,
        hard: &HardState,
    ) -> Result<(), Violation> {
        let voter = &mut self.nodes[node];
        let vote = hard.vote.map(|candidate| (hard.term, candidate));
        if vote.is_none() || vote == voter.vote {
            return Ok(());
        }
        voter.vote = vote;
        self.has_outwaited(node, now, &vote)?;
        let voter = &self.nodes[node];
        let succeeds_itself = vote == voter.burned.map(|term| (term.next(), id(node)));
        if voter.authorised || succeeds_itself {
            return Ok(());
        }
        self.is_free(node, now, &vote)
    }

    /// It has been handled with the reading `now`.
    pub(crate) fn handled(&mut self, node: usize, now: Instant, before: &Status, after: &Status) {
        let voter = &mut self.nodes[node];
        if voter.read.certainly_after(voter.outwaits_until) {
            // What is over is over, wherever the clock goes.
            voter.outwaits_until = Instant::default();
        }
        if now.went_back_since(voter.read) {
            // A4: no promise need outlast the longest one, counted from the clock as it is now.
            voter.until = voter.until.min(now + voter.longest);
            voter.silent_until = voter.silent_until.min(now + voter.longest);
            voter.outwaits_until = voter.outwaits_until.min(now + voter.outwaits);
            // What has been accepted and not been told yet binds as what has.
            let rounds = voter.offered.values_mut();
            for promise in rounds.chain(voter.offered_by_vote.values_mut()) {
                let longest = voter.longest.max(promise.length);
                promise.until = promise.until.min(now + longest);
            }
        }
        voter.read = now;
        if let Some((from, term, round, length)) = voter.asked.take()
            && after.leader == Some(from)
            && after.term == term
        {
            voter.offered.entry((term, round)).or_insert(Promise {
                length,
                until: now + length,
                to: (from, term),
            });
            while voter.offered.len() > 64 {
                voter.offered.pop_first();
            }
        }
        if let Some((candidate, term, length)) = voter.asked_by_vote.take() {
            voter.offered_by_vote.retain(|(_, older), _| *older >= term);
            let promise = Promise {
                length,
                until: now + length,
                to: (candidate, term),
            };
            voter.offered_by_vote.insert(promise.to, promise);
        }
        // Once a leader is heard, promises to leaders of lower terms are over: its election says
        // that their leases are. So its own release frees the voter of those, too.
        if let Some((from, term)) = voter.released.take()
            && (voter.to == Some((from, term))
                || (before.leader == Some(from) && before.term == term))
        {
            voter.until = Instant::ZERO;
            voter.to = None;
            voter.freed_by = Some((from, term));
        }
    }

    /// A message is sent, handled with the reading `now`; `hard` is on disk.
    pub(crate) fn says(
        &mut self,
        node: usize,
        now: Instant,
        envelope: &Envelope,
        hard: HardState,
        counts: &mut Counts,
    ) -> Result<(), Violation> {
        let counts_for_a_leader = match &envelope.message {
            Message::HeartbeatReply(reply) => reply.heard.promised,
            Message::Appended(appended) => matches!(appended.verdict, Verdict::Durable(_)),
            _ => false,
        };
        if counts_for_a_leader {
            self.has_outwaited(node, now, envelope)?;
        }
        match &envelope.message {
            Message::HeartbeatReply(reply) => {
                self.promise_on_round(node, envelope.term, reply.heard, hard, counts)
            }
            Message::Appended(appended) => {
                self.promise_on_round(node, envelope.term, appended.heard, hard, counts)
            }
            Message::VoteReply(reply) if reply.ballot == Ballot::Granted => {
                counts.votes += 1;
                if !reply.promised {
                    return Ok(());
                }
                counts.transfer_votes += 1;
                let its = (envelope.to, envelope.term);
                let offered = self.nodes[node].offered_by_vote.get(&its).copied();
                offered.map_or(Ok(()), |promise| self.promise(node, promise, hard))
            }
            Message::PreVoteReply(reply) if reply.ballot == Ballot::Granted => {
                self.is_free(node, now, envelope)
            }
            Message::PreVote(_) => self.is_free(node, now, envelope),
            Message::Vote(vote) if vote.transfer_from.is_none() => {
                self.is_free(node, now, envelope)
            }
            _ => Ok(()),
        }
    }

    fn promise_on_round(
        &mut self,
        node: usize,
        term: Term,
        heard: Heard,
        hard: HardState,
        counts: &mut Counts,
    ) -> Result<(), Violation> {
        if !heard.promised {
            return Ok(());
        }
        counts.promises += 1;
        let offered = self.nodes[node].offered.get(&(term, heard.round)).copied();
        offered.map_or(Ok(()), |promise| self.promise(node, promise, hard))
    }

    /// The promise is told: it holds, and the next life of the process must know how long one can
    /// be (P3).
    fn promise(&mut self, node: usize, promise: Promise, hard: HardState) -> Result<(), Violation> {
        let voter = &mut self.nodes[node];
        if let Some((leader, term)) = voter.freed_by
            && (promise.to == (leader, term) || promise.to.1 < term)
        {
            return Ok(());
        }
        voter.until = voter.until.max(promise.until);
        voter.to = Some(promise.to);
        voter.longest = voter.longest.max(promise.length);
        if promise.length > hard.promise_floor {
            let what = format!(
                "{} promises {:?}, and its disk says that it never promised more than {:?}",
                id(node),
                promise.length,
                hard.promise_floor
            );
            return violation("P34 the longest promise is durable", what);
        }
        Ok(())
    }

    /// A member starts that has lost everything since it last voted: it outwaits the votes that it
    /// may have given.
    pub(crate) fn forgot_votes(&mut self, node: usize, now: Instant, outwaits: Duration) {
        let voter = &mut self.nodes[node];
        voter.outwaits_until = now + outwaits;
        voter.outwaits = outwaits;
    }

    /// Whether no vote counts any more that the node may have forgotten. Until then nothing does that
    /// it says, whoever asks for it.
    fn has_outwaited(&self, node: usize, now: Instant, what: &dyn Debug) -> Result<(), Violation> {
        let until = self.nodes[node].outwaits_until;
        if now.certainly_after(until) {
            return Ok(());
        }
        let what = format!(
            "{} says {what:?} at {now}, and a vote that it forgot may count until {until}",
            id(node)
        );
        violation("L5 forgotten votes are outwaited", what)
    }

    /// Until when the node keeps what it promised, and until when it is silent after a start.
    pub(crate) fn bound_until(&self, node: usize) -> (Instant, Instant) {
        let voter = &self.nodes[node];
        (voter.until, voter.silent_until)
    }

    /// Whether the node may support an election by the reading `now`.
    fn is_free(&mut self, node: usize, now: Instant, what: &dyn Debug) -> Result<(), Violation> {
        let voter = &self.nodes[node];
        if voter.until != Instant::ZERO {
            self.marks.hit(Mark::PromiseGateJudged);
        }
        if voter.until == Instant::ZERO {
            self.marks.hit(Mark::BlackoutGateJudged);
        }
        let kept = now.certainly_after(voter.until) && now.certainly_after(voter.silent_until);
        if kept {
            return Ok(());
        }
        let what = format!(
            "{} gives or asks {what:?} at {now}, promised until {} and silent until {}",
            id(node),
            voter.until,
            voter.silent_until
        );
        violation("L5 promises are kept", what)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold::raft::{
        Ballot, Envelope, HardState, LogOrigin, Message, PreVote, RoundId, Status, Vote, VoteReply,
    };
    use leasehold::time::Instant;
    use leasehold::types::{LogId, Term};

    use super::Promises;
    use crate::checkers::{Counts, Violation, id};

    const PROMISE: Duration = Duration::from_millis(500);

    /// Node 0 votes for node 1, which asks by its old leader's leave, in term 3; may hear that node
    /// 1 gives it free again; then says that it has voted; and asks for a pre-vote at once.
    fn asks_after_a_vote_is_told(released: bool) -> Result<(), Violation> {
        let now = Instant::from_nanos(10_000_000_000);
        let term = Term(3);
        let envelope = |from: usize, to: usize, message| Envelope {
            from: id(from),
            to: id(to),
            term,
            message,
        };
        let hard = HardState {
            term,
            vote: Some(id(1)),
            promise_floor: PROMISE,
            bootstrap: Term(0),
        };
        let round = RoundId(7);
        let mut promises = Promises::new(2);
        let mut counts = Counts::default();
        promises.started(0, Instant::ZERO, HardState::default(), PROMISE);
        let vote = Vote {
            round,
            last: LogId::default(),
            origin: LogOrigin::default(),
            promise: PROMISE,
            transfer_from: Some(Term(2)),
        };
        promises.hears(0, &envelope(1, 0, Message::Vote(vote)));
        promises.votes(0, now, &hard)?;
        let led = Status {
            term,
            leader: Some(id(1)),
            ..Status::default()
        };
        promises.handled(0, now, &Status::default(), &led);
        if released {
            promises.hears(0, &envelope(1, 0, Message::Release));
            promises.handled(
                0,
                now,
                &led,
                &Status {
                    leader: None,
                    ..led
                },
            );
        }
        let reply = VoteReply {
            round,
            ballot: Ballot::Granted,
            promised: true,
        };
        let told = envelope(0, 1, Message::VoteReply(reply));
        promises.says(0, now, &told, hard, &mut counts)?;
        let question = PreVote {
            round,
            next_term: Term(4),
            last: LogId::default(),
            origin: LogOrigin::default(),
        };
        let asked = envelope(0, 1, Message::PreVote(question));
        promises.says(0, now, &asked, hard, &mut counts)
    }

    #[test]
    fn a_promise_told_when_its_leader_has_given_it_back_binds_nobody() {
        assert!(asks_after_a_vote_is_told(true).is_ok());
        assert!(asks_after_a_vote_is_told(false).is_err());
    }
}
