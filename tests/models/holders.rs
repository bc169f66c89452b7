//! What must hold of read leases (RL1 to RL11 in docs/protocol.md): the claims, and what is noted of how they
//! came about.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::time::Duration;

use leasehold::api::Consistency;
use leasehold::node::{Captured, Demand, ReadBuffer, ReadResult, Reader, Source};
use leasehold::raft::Published;
use leasehold::time::{Clock, Instant};
use leasehold::types::{LogIndex, NodeId, Role, Term};

use crate::marks::Mark;
use crate::replica::{Replica, Session};
use crate::scope::Scope;
use crate::world::World;

/// A clock that reads what it read.
struct Reading(Instant);

impl Clock for Reading {
    fn now(&self) -> Instant {
        self.0
    }
}

/// From which state a read is answered that arrives now and takes no time, in the product's own steps; `None` if
/// it is not answered here.
fn read_now(replica: &Replica, published: &Published) -> Option<LogIndex> {
    let read = [Demand {
        consistency: Consistency::LeaseOnly,
        min_revision: 0,
    }];
    let state = || Source {
        found: (),
        applied: replica.applied,
        revision: 0,
    };
    let buffer = ReadBuffer::default();
    let captured = Captured::of(&read[..], replica.applied, published, buffer);
    let looked = captured.look(|_| Ok::<_, Infallible>(ControlFlow::Break(state())));
    let Ok(looked) = looked;
    let mut judged = looked.judge(&Reading(replica.clock));
    let reader = Reader {
        lease_margin: Duration::ZERO,
    };
    match judged.next(&reader) {
        Some((_, ReadResult::Answer(answer))) => Some(answer.read().applied_index),
        _ => None,
    }
}

impl World {
    /// O2 (Theorem 5): where the check of a read lease of term T succeeds, no replica leads a later term. L2 (Theorem
    /// 6): and a read that begins now is answered from no state that lacks what anybody could have seen. P37: and
    /// no replica had reason to think otherwise, which [`World::check_lease`] looks at.
    pub(crate) fn check_holder(&mut self, scope: &Scope, n: usize) {
        let replica = self.replicas[n].clone();
        let Some(cell) = &replica.read_cell else {
            return;
        };
        if !cell.is_valid(replica.clock) {
            return;
        }
        let (id, held) = (replica.id, cell.term);
        scope.marks.note(Mark::ReadLease);
        if let Some((term, leader)) = self.ledger.leaders.last()
            && *term > held
        {
            let (term, leader) = (*term, *leader);
            return self.fail(format!(
                "O2: {id} holds a read lease of {held} while {leader} leads {term}"
            ));
        }
        let published = replica.core.published();
        if published.read_lease().is_none() {
            return;
        }
        let Some(applied) = read_now(&replica, &published) else {
            return scope.marks.note(Mark::HeldReadWaits);
        };
        scope.marks.note(Mark::HeldRead);
        let exposed = self.ledger.exposed;
        if applied < exposed {
            self.fail(format!(
                "L2: {id} answers by its read lease from {applied}, and {exposed} has been seen"
            ));
        }
    }

    /// L2 for a read at a holder that took its time: it looked at the state when it had captured what it must see,
    /// or looks only now.
    pub(crate) fn end_held_read(&mut self, scope: &Scope, n: usize, session: &Session) {
        let replica = self.replicas[n].clone();
        let (id, exposed) = (replica.id, session.exposed);
        let Some(permit) = session.cell.permit(replica.clock, session.captured) else {
            return;
        };
        for state in [session.snapshot, replica.applied] {
            if state < permit.index() {
                scope.marks.note(Mark::SnapshotTooOld);
                continue;
            }
            scope.marks.note(Mark::LateAnswer);
            if state < exposed {
                return self.fail(format!(
                    "L2: {id} answers by its read lease from {state}, and {exposed} had been seen before it was asked"
                ));
            }
        }
    }

    /// L9: the leader of a term commits nothing that a holder of a read lease of it has not on its disk, or that was
    /// committed before its tenure. And what waits at the leader, for nothing but a holder.
    pub(crate) fn watch_leader(&mut self, scope: &Scope, n: usize) {
        let leader = self.replicas[n].clone();
        let status = leader.core.status();
        if status.role != Role::Leader {
            return;
        }
        let (id, term, commit) = (leader.id, status.term, status.commit);
        for other in self.replicas.clone() {
            let cell = other.read_cell.as_ref();
            let cell = cell.filter(|cell| cell.term == term && cell.is_valid(other.clock));
            let Some(cell) = cell else {
                continue;
            };
            let holds = commit <= other.disk.base.index || other.disk.entry(commit).is_some();
            if !holds && cell.floor < commit {
                let (holder, floor) = (other.id, cell.floor);
                return self.fail(format!(
                    "L9: {id} commits {commit} without {holder}, which holds a read lease from {floor} on"
                ));
            }
        }
        self.note_what_waits(scope, &leader, term);
    }

    fn note_what_waits(&self, scope: &Scope, leader: &Replica, term: Term) {
        let status = leader.core.status();
        let configuration = leader.core.configuration();
        let stored = |voter: NodeId| {
            if voter == leader.id {
                return LogIndex(leader.disk.base.index.0 + leader.disk.entries.len() as u64);
            }
            let mut followers = leader.core.followers();
            let known = followers.find(|(peer, _)| *peer == voter);
            known.map_or(LogIndex(0), |(_, matched)| matched)
        };
        let mut voters: Vec<LogIndex> = configuration.voters.iter().map(|v| stored(*v)).collect();
        voters.sort_unstable();
        let all = voters.first().copied().unwrap_or_default();
        let quorum = voters[(voters.len() - 1) / 2];
        let is_own = |index| {
            leader
                .disk
                .entry(index)
                .is_some_and(|entry| entry.id.term == term)
        };
        if quorum > status.commit && is_own(quorum) && !configuration.is_joint() {
            scope.marks.note(Mark::HeldBack);
        }
        let is_applied = status.commit == status.last.index && leader.applied == status.last.index;
        let is_told = self.ledger.told.contains(&term);
        if leader.core.is_handing_over() && !is_told && is_applied && all == status.last.index {
            scope.marks.note(Mark::TransferWaits);
        }
        if configuration.is_joint() && leader.core.is_configuration_committed() {
            scope.marks.note(Mark::ChangeWaits);
        }
    }
}
