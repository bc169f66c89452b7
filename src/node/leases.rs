//! Client leases on a replica: answers renewals, and proposes the expiry of due leases.
//!
//! The rules are T and A12 to A16 of docs/protocol.md. A renewal is acknowledged only by a leader that
//! has been promoted (T1), and whose own lease holds at a reading from after the renewal arrived, or
//! that a quorum has confirmed since (T2). An expiry is proposed in the leader's term and nowhere
//! else (T3), in batches, and only while a quorum answers: a leader that is cut off would count its
//! own silence against its clients (T15). What is under way of expiries is bounded, so that half a
//! million leases that are due together neither hold up a heartbeat nor crowd out writes (T10).

use std::time::Duration;

use super::lease_queries::{LeaseQuery, QueriedLease, QueriedLeases};
use super::lease_tracker::{Lapse, LeaseCounts, LeaseTracker};
use super::{Node, Output};
use crate::api::{Call, ErrorKind, LEASE_PAGE_MAX, LeaseRef, Request, Response, ResponseBody};
use crate::kv::{Command, HeldLeases};
use crate::raft::ReadPermit;
use crate::time::Instant;
use crate::types::{LogId, RequestId, Term};

/// A leader that was paused or without a quorum for longer extends all leases to their full TTL
/// (T15).
const LAPSE_MAX: Duration = Duration::from_millis(500);
/// The maximum interval between clock readings of a leader, so that it notices a pause.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

impl Node {
    /// The same node with the leases that its store holds.
    #[must_use]
    pub fn with_leases(mut self, held: HeldLeases) -> Self {
        self.leases.tracker.restore(held);
        self
    }

    /// The leases, and on a leader their deadlines.
    pub fn lease_tracker(&self) -> &LeaseTracker {
        &self.leases.tracker
    }

    /// What happened to leases since this was asked last.
    pub fn take_lease_counts(&mut self) -> LeaseCounts {
        self.leases.tracker.take_counts()
    }

    /// A lease query, answered by the leader or, if it may be stale, by any node.
    pub(super) fn ask_leases(&mut self, now: Instant, id: RequestId, call: &Call) {
        let may_be_old = call.request.is_read() && call.consistency == SERIALIZABLE;
        if self.consensus.leads_in().is_none() && !may_be_old {
            return self.refuse_not_leader(id);
        }
        let question = match &call.request {
            Request::LeaseKeepAlive(leases) => {
                if self.leases.tracker.promoted_in().is_some() && self.holds_lease(now) {
                    let body = self.keep_alive(now, leases);
                    return self.reply_lease(id, body, None);
                }
                LeaseQuery::KeepAlive(leases.clone())
            }
            Request::LeaseTimeToLive { id, .. } => LeaseQuery::TimeToLive(*id),
            Request::LeaseList(list) => LeaseQuery::List {
                after: list.after,
                limit: list.limit,
            },
            _ => unreachable!("these are the questions"),
        };
        self.leases.queries.insert(id, question);
        self.start_read(now, id, call);
    }

    /// Whether this leader may trust its own lease at `now`, which was read after what is decided
    /// by it arrived.
    fn holds_lease(&self, now: Instant) -> bool {
        let lease = self.consensus.published().lease();
        lease.is_some_and(|lease| lease.is_valid(now)) || planted!(RenewedWithoutLease)
    }

    fn keep_alive(&mut self, now: Instant, leases: &[LeaseRef]) -> ResponseBody {
        // Everything committed before the renewal arrived has been applied (T5, T17).
        let is_caught_up = self.applied >= self.consensus.status().commit;
        let tracker = &mut self.leases.tracker;
        let kept = leases
            .iter()
            .map(|lease| tracker.renew(now, *lease, is_caught_up));
        ResponseBody::LeaseKeepAlive(kept.collect())
    }

    fn reply_lease(&mut self, id: RequestId, body: ResponseBody, permit: Option<ReadPermit>) {
        let header = self.header_under(permit);
        let reply = Ok(Response { header, body });
        self.outputs.push_back(Output::Reply(id, reply));
    }

    /// A permit came for a question, and everything it must see is applied. False if `id` is none.
    pub(super) fn answer_lease_question(
        &mut self,
        id: RequestId,
        permit: Option<ReadPermit>,
    ) -> bool {
        let Some(question) = self.leases.queries.remove(&id) else {
            return false;
        };
        let now = self.now;
        let tracker = &self.leases.tracker;
        let asked = |id: i64| QueriedLease {
            id,
            remaining_ms: tracker.remaining_ms(now, id),
            renewals: tracker.renewals(id),
        };
        let asked = match question {
            LeaseQuery::KeepAlive(leases) => {
                // By the word of the leadership that keeps the deadlines, and of no earlier one.
                let own = permit.filter(|permit| !permit.is_from_leader());
                let permitted_in = own.map(|permit| permit.term());
                if permitted_in.is_none() || tracker.promoted_in() != permitted_in {
                    self.refuse(
                        id,
                        ErrorKind::LeaderChanged,
                        "this node lost leadership before the leases were renewed",
                    );
                    return true;
                }
                let body = self.keep_alive(now, &leases);
                self.reply_lease(id, body, permit);
                return true;
            }
            LeaseQuery::TimeToLive(lease) => QueriedLeases {
                leases: vec![asked(lease)],
                next: None,
            },
            LeaseQuery::List { after, limit } => {
                let limit = match limit {
                    0 => LEASE_PAGE_MAX,
                    limit => limit.min(LEASE_PAGE_MAX),
                };
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                let mut leases: Vec<_> = tracker.after(after, limit + 1).map(asked).collect();
                let has_more = leases.len() > limit;
                leases.truncate(limit);
                let next = leases.last().map(|last| last.id).filter(|_| has_more);
                QueriedLeases { leases, next }
            }
        };
        self.outputs
            .push_back(Output::ReadLeases(id, permit, asked));
        true
    }

    /// Promotes and demotes. Deadlines begin when everything is applied that this leader was elected
    /// with (T1).
    pub(super) fn follow_leadership(&mut self, now: Instant) {
        let leads = self.consensus.leads_in();
        let promoted = self.leases.tracker.promoted_in();
        if leads == promoted {
            return;
        }
        let leads = leads.filter(|_| self.consensus.status().ready);
        planted!(ExpiryKept => self.leases.kept.extend(self.leases.tracker.planted_decided()));
        match leads {
            Some(term) if promoted != leads => self.promote(now, term),
            Some(_) => {}
            None => self.leases.tracker.demote(),
        }
    }

    fn promote(&mut self, now: Instant, term: Term) {
        self.leases.ticked = now;
        self.leases.confirmed = now;
        self.leases.tracker.promote(now, term, self.applied);
        #[cfg(leasehold_bugs)]
        for (decided, lease) in std::mem::take(&mut self.leases.kept) {
            let leases = vec![lease];
            let command = Command::ExpireLeases {
                term: decided,
                leases,
            };
            self.propose_for_leases(now, &command);
        }
    }

    /// Handles timers: proposes the expiry of leases that are due.
    pub(super) fn tend_leases(&mut self, now: Instant) {
        let Some(term) = self.leases.tracker.promoted_in() else {
            return;
        };
        let is_confirmed = self.consensus.has_quorum(now);
        // A lapse is looked for before anything that is due (A2).
        let stood_still = now.at_most_since(self.leases.ticked);
        let unheard = now.at_most_since(self.leases.confirmed);
        let lapse = if now.went_back_since(self.leases.ticked) {
            Some(Lapse::ClockWentBack)
        } else if stood_still > LAPSE_MAX {
            Some(Lapse::StoodStill(stood_still))
        } else if unheard > LAPSE_MAX && is_confirmed {
            Some(Lapse::NoQuorum(unheard))
        } else {
            None
        };
        if let Some(lapse) = lapse {
            self.promote(now, term);
            self.leases.tracker.lapsed(lapse);
        }
        self.leases.ticked = now;
        if is_confirmed {
            self.leases.confirmed = now;
        } else {
            return;
        }
        self.leases.tracker.tick(now);
        self.propose_expiries(now, term);
        self.propose_marks(now, term);
        let leases = self.leases.tracker.to_continue();
        if !leases.is_empty()
            && let Some(id) = self.propose_for_leases(now, &Command::ContinueLeaseEnds { leases })
        {
            self.leases.tracker.continued(id.index);
        }
    }

    fn propose_expiries(&mut self, now: Instant, term: Term) {
        loop {
            let leases = self.leases.tracker.take_due(now);
            if leases.is_empty() {
                return;
            }
            planted!(ExpiredBeforeCommit => for lease in &leases {
                let ended = crate::kv::LeaseChange::Ended(*lease, crate::kv::LeaseEnd::Expired);
                self.leases.tracker.apply(now, ended);
            });
            let command = Command::ExpireLeases {
                term,
                leases: leases.clone(),
            };
            match self.propose_for_leases(now, &command) {
                Some(id) => self.leases.tracker.proposed(id.index, leases),
                None => return self.leases.tracker.not_proposed(leases),
            }
        }
    }

    fn propose_marks(&mut self, now: Instant, term: Term) {
        let marks = self.leases.tracker.take_marks(now);
        if marks.is_empty() {
            return;
        }
        let command = Command::MarkLeases {
            term,
            marks: marks.clone(),
        };
        // A refusal is harmless: renewals and the next tick propose again.
        if let Some(id) = self.propose_for_leases(now, &command) {
            self.leases.tracker.marked(id.index, marks);
        }
    }

    fn propose_for_leases(&mut self, now: Instant, command: &Command) -> Option<LogId> {
        self.consensus.propose(now, command.encode()).ok()
    }

    /// When the leases next need a tick.
    pub(super) fn leases_due(&self) -> Instant {
        match self.leases.tracker.promoted_in() {
            Some(_) => {
                // What is due and cannot be proposed now is not asked for without a pause.
                let soonest = self.leases.ticked + self.leases.options.tick / 4;
                let next = self.leases.tracker.next_wakeup().max(soonest);
                next.min(self.leases.ticked + LOOK_INTERVAL)
            }
            None => Instant::NEVER,
        }
    }
}

const SERIALIZABLE: crate::api::Consistency = crate::api::Consistency::Serializable;
