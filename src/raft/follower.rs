//! A follower's handling of its leader's messages, and the answers that it owes.
//!
//! Every message of the present leader is promised on, whatever becomes of its entries (P27). An
//! answer leaves only when what it says is durable: term and promise floor for any of them, the
//! log as well for an acknowledgement. An owed answer is kept as a flag and reports the newest
//! state when it is sent, so a batch of messages costs one answer and no queue can grow.

use std::time::Duration;

use crate::raft::consensus::Quarantine;
use crate::raft::role::{Follower, RoleState};
use crate::raft::{
    Append, AppendReply, Consensus, Fresh, Heard, Heartbeat, HeartbeatReply, Message, Output,
    PROMISE_MAX, Payload, ReadIndex, ReadIndexReply, ReadMode, ReadPermit, ReadRefusal, Rejoin,
    RejoinReply, RoundId, Verdict,
};
use crate::time::Instant;
use crate::types::{LogIndex, NodeId, Term};

impl Consensus {
    pub(super) fn handle_heartbeat(&mut self, from: NodeId, term: Term, heartbeat: Heartbeat) {
        if let Some(follower) = self.follow(from, term, heartbeat) {
            follower.owes_reply = true;
            self.accept_read_lease(from, heartbeat);
            if let Some(Fresh { name, index, .. }) = heartbeat.fresh {
                planted!(AgeOfTheAnswer => self.staleness.redraw(name, self.now));
                self.staleness.heard(name, index, &self.timing);
            }
        }
        self.follow_commit();
    }

    pub(super) fn handle_append(&mut self, from: NodeId, term: Term, append: Append) {
        if !is_well_formed(term, &append) {
            return self.published.refuse_message();
        }
        #[cfg(leasehold_bugs)]
        let append = self.planted_in_append(append);
        if self.follow(from, term, append.heartbeat).is_none() || self.diverges(&append) {
            return;
        }
        let Append { base, entries, .. } = append;
        let RoleState::Follower(follower) = &mut self.role else {
            return;
        };
        if self.log.agrees(base) {
            let through = entries.last().map_or(base.index, |entry| entry.id.index);
            let keep = self.commit.max(follower.verified);
            self.replaced_in = self.hard.term;
            if self.log.accept(entries, keep).is_err() {
                return self.published.refuse_message();
            }
            // Below the base, agreement is known without having seen the entry.
            let through = through.min(self.log.last().index);
            follower.verified = follower.verified.max(through);
            follower.owes_acknowledgement = Some(follower.verified);
        } else if base.index > follower.verified {
            follower.owes_conflict = Some(self.log.conflict(base.index));
        }
        self.follow_commit();
    }

    /// Takes a message of the leader of `term` for what it is; returns what to note down if that
    /// is indeed our leader.
    fn follow(&mut self, from: NodeId, term: Term, message: Heartbeat) -> Option<&mut Follower> {
        planted!(VoteToctou => self.promise_beside_a_vote(from, term, message));
        planted!(CandidacyGoesOn => self.remember_candidacy());
        if term < self.hard.term {
            // The sender does not know yet that its term is over.
            let heard = Heard {
                round: message.round,
                promised: false,
            };
            let reply = HeartbeatReply {
                heard,
                verified: LogIndex(0),
                name: RoundId(0),
                wants_read_lease: false,
            };
            self.send(from, Message::HeartbeatReply(reply));
            return None;
        }
        if term > self.hard.term {
            let leads = matches!(&self.role, RoleState::Leader(leader)
                if leader.lease.is_live(self.now) && !leader.lease.is_burned());
            if leads || self.holds_read_lease() && !planted!(HolderUnwatched) {
                // No node can lead a later term while our lease holds. A candidate would be no
                // proof; a leader is (P37).
                self.trip();
            }
            self.adopt(term);
        }
        match &self.role {
            RoleState::Follower(follower) if follower.leader == Some(from) => {}
            RoleState::Follower(Follower { leader: None, .. })
            | RoleState::PreCandidate(_)
            | RoleState::Candidate(_) => {
                self.role = RoleState::Follower(Follower {
                    leader: Some(from),
                    ..Follower::default()
                });
                self.read_index.ask_again();
            }
            // Two leaders in one term: nothing that we rest on can be trusted.
            RoleState::Follower(_) | RoleState::Leader(_) => {
                self.trip();
                self.published.refuse_message();
                return None;
            }
        }
        // The first leader of a cluster has the votes of all its initial members.
        let is_no_sign = planted!(UnprovenPromises) && message.commit == LogIndex(0);
        if !self.has_elected(from) && !is_no_sign {
            self.meet_an_older_cluster();
        }
        self.restart_election_timer();
        self.heard_leader_at = self.now;
        self.watch_over_read_lease(message.commit);
        let promised = self.promise_leader(from, term, message.promise);
        let RoleState::Follower(follower) = &mut self.role else {
            return None;
        };
        // The reply names the newest round, even if an older one arrives after it.
        if !promised || !follower.heard.promised || message.round > follower.heard.round {
            follower.heard = Heard {
                round: message.round,
                promised,
            };
        }
        follower.leader_commit = follower.leader_commit.max(message.commit);
        Some(follower)
    }

    /// Promises exactly what is asked, or nothing.
    fn promise_leader(&mut self, leader: NodeId, term: Term, length: Duration) -> bool {
        // With a disk that does not answer, a promise would only keep a leader in office that can
        // commit nothing through us (P29).
        let stalled = self.disk_is_stalled(self.timing.lease_duration);
        if length > PROMISE_MAX || stalled && !planted!(SilentDiskPromises) {
            return false;
        }
        // The round that confirms a leader to a replica without memory must not rest on it.
        let forgot = |quarantine: &Quarantine| quarantine.forgot_votes && !planted!(WipedPromises);
        let is_void = self.diverged.is_some() && !planted!(DivergedCounts);
        if self.quarantine.as_ref().is_some_and(forgot) || is_void {
            return false;
        }
        if length > self.hard.promise_floor && !planted!(FloorNotRaised) {
            self.hard.promise_floor = length;
            self.hard_unsaved = true;
        }
        let length = if planted!(PromiseOwnLength) {
            self.timing.lease_duration
        } else {
            length
        };
        self.promise.extend(self.now, length, leader, term);
        true
    }

    /// Commits what the leader has committed, as far as our log is known to be its.
    fn follow_commit(&mut self) {
        if let RoleState::Follower(follower) = &self.role
            && self.diverged.is_none()
        {
            let known = follower.leader_commit.min(follower.verified);
            let known = if planted!(CommitUnverified) {
                follower.leader_commit.min(self.log.last().index)
            } else {
                known
            };
            self.commit = self.commit.max(known);
        }
    }

    pub(super) fn handle_rejoin_reply(&mut self, from: NodeId, reply: RejoinReply) {
        if self.known_leader() != Some(from) {
            return;
        }
        if let Some(quarantine) = &mut self.quarantine
            && quarantine.nonce == reply.nonce
        {
            quarantine.through = Some(reply.through);
        }
    }

    /// The leader of this term has an acknowledgement of this replica for what its log lacks (A28). A word that is
    /// older than this life's last answer is about an earlier one.
    pub(super) fn handle_forgotten(&mut self, from: NodeId, round: RoundId) {
        let RoleState::Follower(follower) = &mut self.role else {
            return;
        };
        let is_late = round < follower.heard.round;
        if follower.leader != Some(from) || is_late || !self.counts() {
            return;
        }
        if let RoleState::Follower(follower) = &mut self.role {
            follower.heard.promised = false;
        }
        self.forget_what_was_said();
    }

    /// This replica lacks what it has acknowledged. An earlier life of it had more, and its votes may be forgotten, too.
    pub(super) fn forget_what_was_said(&mut self) {
        let nonce = self.rng.u64(..);
        self.quarantine = Some(Quarantine {
            nonce,
            through: None,
            forgot_votes: true,
            was_told: true,
        });
        self.grant = None;
        // What is said from here on is said after the mark of it is durable.
        self.hard_unsaved = true;
    }

    /// Whether this replica is in quarantine because of what a leader has said.
    pub(crate) fn was_told_that_it_forgot(&self) -> bool {
        self.quarantine
            .as_ref()
            .is_some_and(|quarantine| quarantine.was_told)
    }

    /// Ends the quarantine once all is held that must be.
    pub(super) fn leave_quarantine(&mut self) {
        if let Some(quarantine) = &self.quarantine
            && let Some(through) = quarantine.through
            && self.commit >= through
            && self.log.durable() >= through
            && !self.holds_what_was_restored()
        {
            // A forgotten vote may still be on its way to a candidate. While it counts there, neither
            // another vote nor a promise nor an acknowledgement of this replica may count.
            let over = self.promise.earlier_votes_are_over(self.now) || planted!(WipedVotesAtOnce);
            if quarantine.forgot_votes && !over {
                return;
            }
            self.quarantine = None;
            self.restart_election_timer();
            if let RoleState::Follower(follower) = &mut self.role {
                follower.acknowledged = LogIndex(0);
                follower.owes_acknowledgement = Some(follower.verified);
            }
        }
    }

    /// Whether the state may still be the one that this replica was restored with: the cluster goes on
    /// without that, and from what it was restored is not known here.
    pub(super) fn holds_what_was_restored(&self) -> bool {
        self.origin.index > LogIndex(0) && self.applied < self.log.base().index
    }

    /// Pays what is owed, as far as it is durable.
    pub(super) fn flush_follower(&mut self) {
        if !self.hard_is_durable() && !planted!(PromiseBeforeSync) {
            return;
        }
        let wants_read_lease = self.wants_read_lease();
        let quarantine = self.quarantine.as_ref();
        let asks = quarantine.filter(|quarantine| quarantine.through.is_none());
        let asks = asks.map(|quarantine| quarantine.nonce);
        let counts = quarantine.is_none();
        let RoleState::Follower(follower) = &mut self.role else {
            return;
        };
        let Some(leader) = follower.leader else {
            return;
        };
        let heard = follower.heard;
        let verified = follower.verified;
        let replies = std::mem::take(&mut follower.owes_reply);
        let conflict = follower.owes_conflict.take();

        let through = follower.verified.min(self.log.durable());
        let through = if planted!(AckBeforeSync) {
            follower.verified
        } else {
            through
        };
        let owed = follower.owes_acknowledgement;
        let paid = owed.is_some_and(|owed| owed <= through);
        let stored = (paid || through > follower.acknowledged).then(|| {
            follower.acknowledged = through;
            if counts {
                Verdict::Durable(through)
            } else {
                Verdict::Held(through)
            }
        });
        if paid {
            follower.owes_acknowledgement = None;
        }

        if replies {
            let reply = HeartbeatReply {
                heard,
                verified,
                name: self.draw_name(),
                wants_read_lease,
            };
            self.send(leader, Message::HeartbeatReply(reply));
            if let Some(nonce) = asks {
                self.send(leader, Message::Rejoin(Rejoin { nonce }));
            }
        }
        if replies {
            self.ask_for_state(leader);
        }
        for verdict in stored.into_iter().chain(conflict.map(Verdict::Conflict)) {
            let answer = AppendReply { heard, verdict };
            self.send(leader, Message::Appended(answer));
        }
        self.put_questions(leader);
    }

    /// A name for a message that is sent after this: a reply with it was made after now.
    fn draw_name(&mut self) -> RoundId {
        let name = RoundId(self.next_name);
        self.next_name += 1;
        self.staleness.draw(name, self.now);
        name
    }

    // Reads of this follower.

    /// Asks the leader what the reads must see that have arrived.
    fn put_questions(&mut self, leader: NodeId) {
        let patience = self.timing.heartbeat_interval * 2;
        for mode in ReadMode::ALL {
            if self.read_index.wants_question(mode, self.now, patience) {
                let name = self.draw_name();
                self.read_index.put(mode, name, self.now);
                self.send(leader, Message::ReadIndex(ReadIndex { name, mode }));
            }
        }
    }

    /// The leader has answered. What it says was confirmed after every read had arrived that it is
    /// for, so it stays right whatever has happened to the leader since.
    pub(super) fn handle_read_index_reply(&mut self, from: NodeId, reply: ReadIndexReply) {
        if self.known_leader() != Some(from) {
            return;
        }
        let ReadIndexReply { name, mode, .. } = reply;
        if let Some(confirmed) = reply.confirmed {
            planted!(AgeOfTheAnswer => self.staleness.redraw(name, self.now));
            self.staleness.heard(name, confirmed.index, &self.timing);
        }
        while let Some(read) = self.read_index.pop_answered(mode, name) {
            self.outputs.push_back(match reply.confirmed {
                Some(confirmed) => {
                    let permit = ReadPermit::by_leader(confirmed, from, self.hard.term);
                    Output::Permit(read, permit)
                }
                None => Output::RefuseRead(read, ReadRefusal::LeaseVoid),
            });
        }
    }

    /// Until when reads wait here for the word of a leader.
    pub(super) fn reads_wait_until(&self) -> Instant {
        self.heard_leader_at + self.timing.election_timeout_max
    }

    /// No leader has been heard of for so long that one elsewhere may well be asked instead.
    pub(super) fn give_up_reads(&mut self) {
        let deserted = self.now.certainly_after(self.reads_wait_until());
        if self.read_index.is_empty() || !deserted && self.counts() {
            return;
        }
        for (_, read) in self.read_index.take_all() {
            let refusal = Output::RefuseRead(read, ReadRefusal::NotLeader);
            self.outputs.push_back(refusal);
        }
    }
}

#[cfg(leasehold_bugs)]
impl Consensus {
    /// `RejectUnpromised`: nothing is promised on what does not fit.
    fn planted_in_append(&self, mut append: Append) -> Append {
        if planted!(RejectUnpromised) && !self.log.agrees(append.base) {
            append.heartbeat.promise = Duration::ZERO;
        }
        append
    }

    /// `VoteToctou`: the term of a vote is adopted only once the vote is durable.
    fn promise_beside_a_vote(&mut self, from: NodeId, term: Term, message: Heartbeat) {
        if term.next() != self.hard.term || self.grant.is_none() {
            return;
        }
        self.promise.extend(self.now, message.promise, from, term);
        let heard = Heard {
            round: message.round,
            promised: true,
        };
        let verified = LogIndex(0);
        let name = self.draw_name();
        let reply = HeartbeatReply {
            heard,
            verified,
            name,
            wants_read_lease: false,
        };
        let mut envelope = self.envelope(from, Message::HeartbeatReply(reply));
        envelope.term = term;
        self.outputs.push_back(Output::Send(envelope));
    }

    /// `CandidacyGoesOn`: what others answer still counts.
    fn remember_candidacy(&mut self) {
        if let RoleState::PreCandidate(_) = self.role {
            let follower = RoleState::Follower(Follower::default());
            if let RoleState::PreCandidate(campaign) = std::mem::replace(&mut self.role, follower) {
                self.candidacy = Some(campaign);
            }
        }
    }
}

/// Whether an append is one that a leader of `term` can have sent.
fn is_well_formed(term: Term, append: &Append) -> bool {
    let mut last = append.base;
    if last.index == LogIndex(0) && last.term != Term(0) {
        return false;
    }
    for entry in &append.entries {
        // No entry is of term 0.
        let is_next = last.index.0.checked_add(1) == Some(entry.id.index.0);
        if !is_next || entry.id.term < last.term.max(Term(1)) {
            return false;
        }
        if let Payload::Configuration(configuration) = &entry.payload
            && !configuration.is_sound()
        {
            return false;
        }
        last = entry.id;
    }
    last.term <= term
}
