//! How a leader is found: pre-votes, votes, and the gate before both.
//!
//! A node that would disturb a leader whose lease may hold is stopped four times by the same
//! question, [`VotePromise::may_support_election`](super::leader_lease::VotePromise): when it
//! grants a pre-vote, grants a vote, starts a pre-vote, and starts a campaign (P4, P7, P8). The
//! one way around it is a leader's own word that it has no lease any more: `transfer_from` names
//! the term just before the one campaigned for, and only that term's leader hands it out (P10).

use std::collections::BTreeSet;

use crate::raft::role::{Campaign, Follower, RoleState};
use crate::raft::{
    Ballot, Consensus, LogOrigin, Message, PROMISE_MAX, PreVote, PreVoteReply, Reason, TimeoutNow,
    Vote, VoteReply,
};
use crate::types::{LogId, LogIndex, NodeId, Term};

impl Consensus {
    pub(super) fn handle_pre_vote(&mut self, from: NodeId, term: Term, question: PreVote) {
        self.meet_candidate(question.last, question.origin);
        if question.last < self.log.last() {
            self.remind_members();
        }
        let ballot = match self.reason_against_pre_vote(term, &question) {
            None => Ballot::Granted,
            Some(reason) => Ballot::Withheld(reason),
        };
        let round = question.round;
        self.send(from, Message::PreVoteReply(PreVoteReply { round, ballot }));
    }

    fn reason_against_pre_vote(&self, term: Term, question: &PreVote) -> Option<Reason> {
        if !self.counts() {
            return Some(Reason::Quarantined);
        }
        if question.next_term <= self.hard.term || question.next_term <= term {
            return Some(Reason::Term);
        }
        if self.is_of_another_origin(question.last, question.origin) {
            return Some(Reason::Origin);
        }
        if self.stands_for_the_bootstrap() && !planted!(BootstrapsOverlap) {
            return Some(Reason::Voted);
        }
        self.reason_against_any_election()
            .filter(|_| !planted!(PreVoteUngated))
            .or_else(|| (question.last < self.log.last()).then_some(Reason::Log))
            .filter(|reason| *reason != Reason::Log || !planted!(LogIgnored))
    }

    /// Whether this replica may become the first leader by a vote that is still on its way (A25). Until it has given
    /// up it supports no other candidate, so an election on an empty log begins only when those before it are over, and the
    /// last one that a member voted in is the only one that can have made a leader.
    fn stands_for_the_bootstrap(&self) -> bool {
        matches!(self.role, RoleState::Candidate(_)) && self.is_at_origin()
    }

    pub(super) fn handle_vote(&mut self, from: NodeId, term: Term, question: Vote) {
        self.meet_candidate(question.last, question.origin);
        planted!(CandidateTrips => if term > self.hard.term
            && let RoleState::Leader(leader) = &self.role
            && leader.lease.is_live(self.now)
        {
            self.trip();
        });
        if let Some(reason) = self.reason_against_vote(from, term, &question) {
            let reply = VoteReply {
                round: question.round,
                ballot: Ballot::Withheld(reason),
                promised: false,
            };
            return self.send(from, Message::VoteReply(reply));
        }
        let before = self.hard;
        if self.unproven && question.last.index == self.origin.index {
            self.hard.bootstrap = term;
        }
        planted!(VoteIsProof => self.unproven = false);
        self.hard.vote = Some(from);
        // An authorised vote is a promise, too: the new leader may serve by it at once. What it
        // needs after a crash is written with the vote, before either is known to anyone.
        let promised = is_authorised(term, &question) && question.promise <= PROMISE_MAX;
        if promised {
            if !planted!(VoteFloorNotRaised) {
                self.hard.promise_floor = self.hard.promise_floor.max(question.promise);
            }
            if !planted!(VotePromiseNotMade) {
                self.promise.extend(self.now, question.promise, from, term);
            }
        }
        self.hard_unsaved |= self.hard != before;
        if !matches!(self.role, RoleState::Follower(_)) {
            self.role = RoleState::Follower(Follower::default());
        }
        self.restart_election_timer();
        let reply = VoteReply {
            round: question.round,
            ballot: Ballot::Granted,
            promised,
        };
        self.grant = Some(self.envelope(from, Message::VoteReply(reply)));
    }

    /// Why not to vote. Adopts the term where nothing protects the leader of the present one.
    fn reason_against_vote(&mut self, from: NodeId, term: Term, vote: &Vote) -> Option<Reason> {
        if term < self.hard.term {
            return Some(Reason::Term);
        }
        // The word of a leader frees from what was promised, and brings no vote back that was forgotten.
        let skips = planted!(AuthorisedSkipsSilence) && is_authorised(term, vote);
        if !self.counts() && !skips {
            return Some(Reason::Quarantined);
        }
        if !is_authorised(term, vote)
            && let Some(reason) = self.reason_against_any_election()
            && !planted!(PreVoteOnly)
        {
            return Some(reason);
        }
        if term > self.hard.term {
            self.adopt(term);
        }
        let free = match self.hard.vote {
            Some(choice) => choice == from,
            None => self.known_leader().is_none(),
        };
        if !free && !planted!(TwoVotes) {
            return Some(Reason::Voted);
        }
        if self.is_of_another_origin(vote.last, vote.origin) {
            return Some(Reason::Origin);
        }
        (vote.last < self.log.last() && !planted!(LogIgnored)).then_some(Reason::Log)
    }

    /// Whether the candidate was restored from other data than this replica, or only one of them was.
    fn is_of_another_origin(&self, last: LogId, origin: LogOrigin) -> bool {
        let is_at_ours = self.unproven && last.index == self.origin.index;
        is_at_ours && origin.hash != self.origin.hash && !planted!(RestoredOtherwise)
    }

    /// How this replica's log begins, as a candidate says it.
    fn log_origin(&self) -> LogOrigin {
        LogOrigin {
            first: self.log.first(),
            hash: match self.is_at_origin() {
                true => self.origin.hash,
                false => 0,
            },
        }
    }

    /// The gate before every election that no leader authorised.
    fn reason_against_any_election(&self) -> Option<Reason> {
        if !self.promise.may_support_election(self.now) {
            return Some(Reason::Promise);
        }
        match &self.role {
            RoleState::Leader(leader)
                if leader.lease.is_live(self.now) && !planted!(LeaderVotes) =>
            {
                Some(Reason::Leads)
            }
            _ => None,
        }
    }

    pub(super) fn handle_election_timeout(&mut self) {
        planted!(StickyTransferFlag => if let Some(from) = self.sticky_transfer {
            return self.campaign(Some(from));
        });
        if !self.promise.may_support_election(self.now) && !planted!(SelfCampaign) {
            let spread = self.timing.election_timeout_max - self.timing.election_timeout_min;
            self.election_due = self.promise.over_at() + self.up_to(spread);
            return;
        }
        self.restart_election_timer();
        self.note_bootstrap_awaits();
        // A vote that cannot be written is worth nothing, and would only raise the term.
        if self.disk_is_stalled(self.timing.lease_duration) {
            return;
        }
        self.become_pre_candidate();
    }

    fn become_pre_candidate(&mut self) {
        let round = self.fresh_round();
        let campaign = Campaign {
            round,
            created: self.now,
            granted: BTreeSet::from([self.id]),
            promised: BTreeSet::new(),
            transfer_from: None,
        };
        self.role = RoleState::PreCandidate(campaign);
        self.remind_members();
        let question = PreVote {
            round,
            next_term: self.hard.term.next(),
            last: self.log.last(),
            origin: self.log_origin(),
        };
        self.ask_voters(Message::PreVote(question));
        self.count_pre_votes();
    }

    pub(super) fn handle_pre_vote_reply(&mut self, from: NodeId, reply: PreVoteReply) {
        if let RoleState::PreCandidate(campaign) = &mut self.role
            && reply.round == campaign.round
            && reply.ballot == Ballot::Granted
        {
            campaign.granted.insert(from);
            self.count_pre_votes();
        }
    }

    /// `CandidacyGoesOn`
    #[cfg(leasehold_bugs)]
    pub(super) fn count_pre_vote_as_follower(&mut self, from: NodeId, message: &Message) {
        if let RoleState::Follower(_) = self.role
            && let Message::PreVoteReply(reply) = message
            && let Some(mut campaign) = self.candidacy.take()
        {
            let counts = reply.round == campaign.round && reply.ballot == Ballot::Granted;
            if counts && campaign.granted.insert(from) {
                let follower = std::mem::replace(&mut self.role, RoleState::PreCandidate(campaign));
                self.count_pre_votes();
                if let RoleState::Follower(_) = self.role {
                    self.role = follower;
                }
            } else {
                self.candidacy = Some(campaign);
            }
        }
    }

    fn count_pre_votes(&mut self) {
        if let RoleState::PreCandidate(campaign) = &self.role
            && self.elects(&campaign.granted)
        {
            // Much may have happened since the question was put.
            let free = self.promise.may_support_election(self.now) || planted!(UncheckedCampaign);
            if free || planted!(SelfCampaign) {
                self.campaign(None);
            } else {
                self.role = RoleState::Follower(Follower::default());
            }
        }
    }

    /// Stands for election. The votes are asked for while our own is being written; it counts
    /// once it is durable (P33). An answer is matched by the name of the round, so one to a
    /// campaign that a crash has undone can not count for the next.
    pub(super) fn campaign(&mut self, transfer_from: Option<Term>) {
        planted!(StickyTransferFlag => self.sticky_transfer = transfer_from);
        self.adopt(self.hard.term.next());
        self.hard.vote = Some(self.id);
        if self.is_at_origin() {
            self.hard.bootstrap = self.hard.term;
        }
        let round = self.fresh_round();
        self.role = RoleState::Candidate(Campaign {
            round,
            created: self.now,
            granted: BTreeSet::new(),
            promised: BTreeSet::new(),
            transfer_from,
        });
        self.restart_election_timer();
        self.ask_voters(Message::Vote(Vote {
            round,
            last: self.log.last(),
            origin: self.log_origin(),
            promise: self.timing.lease_duration,
            transfer_from,
        }));
        planted!(OwnVoteBeforeSync => self.count_own_vote());
    }

    /// Our own vote has become durable.
    pub(super) fn count_own_vote(&mut self) {
        let id = self.id;
        if let RoleState::Candidate(campaign) = &mut self.role
            && campaign.granted.insert(id)
        {
            self.count_votes();
        }
    }

    pub(super) fn handle_vote_reply(&mut self, from: NodeId, reply: VoteReply) {
        let RoleState::Candidate(campaign) = &mut self.role else {
            return;
        };
        if reply.round != campaign.round {
            return;
        }
        if reply.ballot == Ballot::Granted {
            campaign.granted.insert(from);
            if reply.promised || planted!(VotesArePromises) {
                campaign.promised.insert(from);
            }
            self.count_votes();
        } else if self.needs_everyone() {
            // It is in vain, so another may have this one's support at once.
            self.role = RoleState::Follower(Follower::default());
        }
    }

    /// A vote counts for one election timeout after it was asked for. The voter may have forgotten it
    /// since, and is silent only until then (A23).
    fn count_votes(&mut self) {
        if let RoleState::Candidate(campaign) = &self.role
            && (self
                .now
                .certainly_before(campaign.created + self.timing.election_timeout_max)
                || planted!(LateVotesCount))
            && campaign.granted.contains(&self.id)
            && self.elects(&campaign.granted)
        {
            self.become_leader();
        }
    }

    /// An election on an empty log is the bootstrap, and needs all initial members (A25): one that ever stored
    /// an entry refuses, and one that is down may have stored some. So it is on a log that ends with what was
    /// restored (A26).
    fn needs_everyone(&self) -> bool {
        let by_majority = match self.origin.index {
            LogIndex(0) => planted!(BootstrapByMajority),
            _ => planted!(RestoredByMajority),
        };
        self.is_at_origin() && !by_majority
    }

    /// Whether those who granted it elect this node.
    fn elects(&self, granted: &BTreeSet<NodeId>) -> bool {
        let configuration = self.log.configuration();
        if self.needs_everyone() {
            return !configuration.voters.is_empty() && configuration.voters.is_subset(granted);
        }
        configuration.has_quorum(|id| granted.contains(&id))
    }

    /// If this was an attempt to bootstrap the cluster, it is over: whose vote was missing?
    fn note_bootstrap_awaits(&mut self) {
        self.bootstrap_awaits = match &self.role {
            RoleState::PreCandidate(campaign) | RoleState::Candidate(campaign)
                if self.is_at_origin() =>
            {
                &self.log.configuration().voters - &campaign.granted
            }
            _ => BTreeSet::new(),
        };
    }

    /// A candidate's log ends with `last`.
    fn meet_candidate(&mut self, last: LogId, origin: LogOrigin) {
        // Whether its first entry is that of the leader for whose bootstrap this replica voted.
        let ours = LogId::new(self.origin.index.next(), self.hard.bootstrap);
        let is_ours = self.hard.bootstrap > Term(0) && origin.first == ours;
        if last.index > self.origin.index && !is_ours {
            self.meet_an_older_cluster();
        }
    }

    /// The leader of this term hands over: it has no lease any more, so nothing need be waited
    /// for. A node of another term, or with another log, ignores it (P10).
    pub(super) fn handle_timeout_now(&mut self, from: NodeId, order: TimeoutNow) {
        let its = self.known_leader() == Some(from) || planted!(LateTransferWord);
        if !its || !self.may_campaign() {
            return;
        }
        let equal = order.last == self.log.last() && order.commit <= order.last.index;
        if !equal && !planted!(TransferUnequal) {
            return;
        }
        self.commit = self.commit.max(order.commit);
        planted!(TransferUnequal => self.commit = self.commit.min(self.log.last().index));
        self.campaign(Some(self.hard.term));
    }

    pub(super) fn handle_release(&mut self, from: NodeId, term: Term) {
        let released = self.promise.release(from, term);
        if term > self.hard.term {
            self.adopt(term);
        }
        if let RoleState::Follower(follower) = &mut self.role
            && follower.leader == Some(from)
            && term == self.hard.term
        {
            follower.leader = None;
        }
        if released {
            // One voter should campaign soon, and not all at once.
            let soon = self.timing.heartbeat_interval;
            let due = self.now + self.up_to(soon);
            self.election_due = self.election_due.min(due);
        }
    }

    fn ask_voters(&mut self, question: Message) {
        for peer in self.log.configuration().members() {
            if self.log.configuration().is_voter(peer) {
                self.send(peer, question.clone());
            }
        }
    }
}

/// Whether the leader of the term just before has handed over to this candidate.
fn is_authorised(term: Term, vote: &Vote) -> bool {
    vote.transfer_from
        .is_some_and(|from| from.0.checked_add(1) == Some(term.0) || planted!(StickyTransferFlag))
}
