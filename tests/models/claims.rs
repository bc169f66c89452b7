//! What must hold in every state: the claims that all of this exists for, by their names in the
//! documents.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use leasehold::raft::{
    Ballot, Configuration, Envelope, Message, PreVoteReply, Reason, UnsavedState, Verdict,
    VoteReply,
};
use leasehold::types::{LogId, LogIndex, NodeId, Role, Term};

use crate::marks::Mark;
use crate::replica::Replica;
use crate::scope::{QUANTUM, QUANTUM_DIVISOR, Scope};
use crate::world::{NODES_MAX, World};

/// What has happened, as far as a claim rests on it.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Ledger {
    /// Who was elected, in the order of terms.
    pub(crate) leaders: Vec<(Term, NodeId)>,
    /// The latest vote that each replica is known to have given.
    pub(crate) granted: [Option<(Term, NodeId)>; NODES_MAX],
    /// What was committed after the base.
    pub(crate) committed: Vec<Committed>,
    /// The highest index that anybody can have seen applied.
    pub(crate) exposed: LogIndex,
    /// The same at the end of each quantum, in models in which a state has an age.
    pub(crate) exposed_by: Vec<LogIndex>,
    /// The terms whose leader has told another to campaign: their leases are gone for good.
    pub(crate) told: Vec<Term>,
}

/// One committed entry.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Committed {
    id: LogId,
    content: u64,
    /// The term in which it was first known to be committed.
    term: Term,
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl World {
    /// What must hold when a message leaves (R9): whatever it says must be durable.
    pub(crate) fn check_message(&mut self, scope: &Scope, n: usize, envelope: &Envelope) {
        let replica = self.replicas[n].clone();
        let id = replica.id;
        let Envelope {
            to, term, message, ..
        } = envelope;
        let (to, term) = (*to, *term);
        let hard = replica.disk.hard;
        match message {
            Message::VoteReply(reply) if reply.ballot == Ballot::Granted => {
                scope.marks.note(Mark::Vote);
                if hard.term != term || hard.vote != Some(to) {
                    self.fail(format!(
                        "R9: {id} votes for {to} in {term}, and its disk says {} {:?}",
                        hard.term, hard.vote
                    ));
                }
                let before = self.ledger.granted[n];
                let other = before.is_some_and(|(before, choice)| {
                    before > term || before == term && choice != to
                });
                if let Some((earlier, choice)) = before
                    && other
                {
                    self.fail(format!(
                        "R6: {id} votes for {to} in {term} after it voted for {choice} in {earlier}"
                    ));
                }
                self.ledger.granted[n] = Some((term, to));
            }
            Message::VoteReply(VoteReply { ballot, .. })
            | Message::PreVoteReply(PreVoteReply { ballot, .. })
                if *ballot == Ballot::Withheld(Reason::Promise) =>
            {
                scope.marks.note(match replica.life {
                    1 => Mark::PromiseKept,
                    _ => Mark::Silence,
                });
            }
            Message::Heartbeat(heartbeat)
                if heartbeat.fresh.is_some_and(|it| it.grant.is_some()) =>
            {
                scope.marks.note(Mark::Granted);
            }
            Message::Heartbeat(_) | Message::Append(_)
                if hard.term != term || hard.vote != Some(id) =>
            {
                self.fail(format!(
                    "P33: {id} leads {term}, and its disk says {} {:?}",
                    hard.term, hard.vote
                ));
            }
            Message::HeartbeatReply(reply) if reply.heard.promised => {
                let asked = self.replicas[self.place(to)].timing.lease_duration;
                if hard.term < term || hard.promise_floor < asked {
                    self.fail(format!(
                        "R9: {id} promises in {term}, and its disk says {} and {:?}",
                        hard.term, hard.promise_floor
                    ));
                }
            }
            Message::Appended(reply) => {
                let asked = self.replicas[self.place(to)].timing.lease_duration;
                if reply.heard.promised && (hard.term < term || hard.promise_floor < asked) {
                    self.fail(format!(
                        "R9: {id} promises in {term}, and its disk says {} and {:?}",
                        hard.term, hard.promise_floor
                    ));
                }
                if let Verdict::Durable(through) = reply.verdict {
                    let through = replica.disk.through(through);
                    let (log, disk) = (replica.log(), &replica.disk.entries);
                    if log
                        .get(..through)
                        .is_none_or(|told| disk.get(..through) != Some(told))
                    {
                        self.fail(format!(
                            "R9: {id} acknowledges {through}, which it has not written"
                        ));
                    }
                }
            }
            Message::TimeoutNow(_) if !self.ledger.told.contains(&term) => {
                self.ledger.told.push(term);
            }
            Message::Release => {
                self.released = true;
                scope.marks.note(Mark::Release);
            }
            Message::Returned(_) => scope.marks.note(Mark::Returned),
            _ => {}
        }
    }

    /// R5: nobody cuts what is committed.
    pub(crate) fn check_write(&mut self, n: usize, unsaved: &UnsavedState) {
        let Some(first) = unsaved.entries.first() else {
            return;
        };
        let replica = self.replicas[n].clone();
        let from = replica.disk.through(first.id.index) - 1;
        for (position, committed) in self.ledger.committed.iter().enumerate().skip(from) {
            let old = replica.disk.entries.get(position).map(hash_of);
            let new = unsaved.entries.get(position - from).map(hash_of);
            if old == Some(committed.content) && new != old {
                let (id, lost) = (replica.id, committed.id);
                return self.fail(format!("R5: {id} cuts {lost}, which is committed"));
            }
        }
    }

    /// What must hold after each step; `touched` is whose turn it was.
    pub(crate) fn check(&mut self, scope: &Scope, touched: Option<usize>) {
        if let Some(n) = touched {
            self.check_commitment(scope, n);
            self.check_election(scope, n);
        }
        for n in 0..self.replicas.len() {
            self.check_lease(scope, n);
            self.check_age(scope, n);
            if scope.has_holders() {
                self.check_holder(scope, n);
                self.watch_leader(scope, n);
            }
        }
    }

    /// R4: nobody commits anything else at the same place. R7: and what is committed is on the
    /// disks of a quorum.
    fn check_commitment(&mut self, scope: &Scope, n: usize) {
        let replica = &self.replicas[n];
        let status = replica.core.status();
        if status.commit == replica.looked_at {
            return;
        }
        let log = replica.log();
        let commit = replica.disk.through(status.commit);
        Arc::make_mut(&mut self.replicas[n]).looked_at = status.commit;
        let id = self.replicas[n].id;
        if log.len() < commit {
            let end = log.len();
            return self.fail(format!(
                "R5: {id} has committed {commit}, and its log ends at {end}"
            ));
        }
        for (position, entry) in log.iter().take(commit).enumerate() {
            let content = hash_of(entry);
            match self.ledger.committed.get(position) {
                Some(committed) if committed.content == content => {}
                Some(committed) => {
                    let other = committed.id;
                    return self.fail(format!(
                        "R4: {id} commits {} where {other} was committed",
                        entry.id
                    ));
                }
                None => {
                    // What a member acknowledged before it was wiped still counts: no quorum does without those
                    // who have it until it has everything back.
                    let has = |other: &Replica| {
                        other.disk.entry(entry.id.index) == Some(entry) || other.disk.wiped
                    };
                    if !self.is_quorum(self.replicas[n].core.configuration(), has) {
                        return self.fail(format!(
                            "R7: {id} commits {}, which no quorum holds durably",
                            entry.id
                        ));
                    }
                    scope.marks.note(Mark::Commit);
                    let without = |other: &Arc<Replica>| {
                        other.timing.read_lease_enabled
                            && other.disk.entry(entry.id.index).is_none()
                    };
                    if self.replicas.iter().any(without) {
                        scope.marks.note(Mark::CommitWithoutHolder);
                    }
                    self.ledger.committed.push(Committed {
                        id: entry.id,
                        content,
                        term: status.term,
                    });
                }
            }
        }
    }

    /// Whether those of whom `agrees` holds are a majority of the voters, and of those before while they change.
    fn is_quorum(&self, configuration: &Configuration, agrees: impl Fn(&Replica) -> bool) -> bool {
        let agree: Vec<NodeId> = self
            .replicas
            .iter()
            .filter(|replica| agrees(replica))
            .map(|replica| replica.id)
            .collect();
        let mut majorities = [Some(&configuration.voters), configuration.outgoing.as_ref()]
            .into_iter()
            .flatten();
        majorities.all(|voters| {
            let agree = voters.iter().filter(|voter| agree.contains(voter));
            agree.count() * 2 > voters.len()
        })
    }

    /// R1: one leader in a term. R3: it holds whatever was committed in the terms before.
    fn check_election(&mut self, scope: &Scope, n: usize) {
        let replica = self.replicas[n].clone();
        let published = replica.core.published();
        if published.role() != Role::Leader {
            return;
        }
        let (id, term) = (replica.id, published.term());
        match self
            .ledger
            .leaders
            .binary_search_by_key(&term, |leader| leader.0)
        {
            Ok(at) => {
                let first = self.ledger.leaders[at].1;
                if first != id {
                    self.fail(format!("R1: {first} and {id} both lead {term}"));
                }
                return;
            }
            Err(at) => self.ledger.leaders.insert(at, (term, id)),
        }
        if term > Term(1) {
            scope.marks.note(Mark::LaterLeader);
        }
        if self.ledger.told.iter().any(|told| told.next() == term) {
            scope.marks.note(Mark::HandedOver);
        }
        let log = replica.log();
        for (position, committed) in self.ledger.committed.iter().enumerate() {
            let held = log.get(position).map(hash_of) == Some(committed.content);
            if !held && committed.term < term {
                let lost = committed.id;
                return self.fail(format!("R3: {id} is elected in {term} without {lost}"));
            }
        }
    }

    /// L8: no state is older than is said of it.
    fn check_age(&mut self, scope: &Scope, n: usize) {
        let replica = &self.replicas[n];
        if !scope.ages {
            return;
        }
        let Some(staleness) = replica.core.published().staleness() else {
            return;
        };
        let Some(bound) = staleness.bound(replica.clock) else {
            return;
        };
        if replica.applied < bound.index() {
            return;
        }
        scope.marks.note(Mark::Age);
        let (id, index) = (replica.id, bound.index());
        for (quantum, exposed) in (0..).zip(self.ledger.exposed_by.clone()) {
            let ago = QUANTUM * u32::from(self.time - quantum);
            if ago > bound.staleness() * QUANTUM_DIVISOR && exposed > index {
                let staleness = bound.staleness();
                self.fail(format!(
                    "L8: the state of {id} is said to be {staleness:?} old at most, and lacks {exposed}, which had been seen before"
                ));
                return;
            }
        }
    }

    /// O2 (Theorem 1 of the lease protocol): where a lease check of term T succeeds, nobody has
    /// become the leader of a later term. P9: nor has the leader of T told another to campaign.
    /// L2: and what the check permits to be read misses nothing that anyone could have seen.
    /// P37: and nobody had reason to think otherwise.
    fn check_lease(&mut self, scope: &Scope, n: usize) {
        let replica = self.replicas[n].clone();
        let id = replica.id;
        if replica.core.lease_tripped() {
            self.fail(format!(
                "P37: {id} saw that an assumption failed, and none did"
            ));
        }
        let Some(cell) = &replica.cell else {
            return;
        };
        if !cell.is_valid(replica.clock) {
            return;
        }
        let held = cell.term;
        scope.marks.note(match held {
            Term(1) => Mark::Lease,
            _ => Mark::LaterLease,
        });
        if let Some((term, leader)) = self.ledger.leaders.last()
            && *term > held
        {
            let (term, leader) = (*term, *leader);
            return self.fail(format!(
                "O2: {id} holds a lease of {held} while {leader} leads {term}"
            ));
        }
        if self.ledger.told.contains(&held) {
            return self.fail(format!(
                "P9: {id} holds a lease of {held} after it told another to campaign"
            ));
        }
        // A read that begins now loads the lease object that is published now.
        let published = replica.core.published();
        if published.lease().is_none_or(|now| !Arc::ptr_eq(&now, cell)) {
            return;
        }
        if let Some(permit) = cell.permit(replica.clock, replica.applied)
            && permit.index() < self.ledger.exposed
        {
            let (index, exposed) = (permit.index(), self.ledger.exposed);
            self.fail(format!(
                "L2: {id} may answer from {index}, and {exposed} has been seen"
            ));
        }
    }
}
