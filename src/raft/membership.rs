//! Changes of members, by joint consensus (thesis, section 4.3; Raft, section 6).
//!
//! A change of voters takes two entries. The first, in force from its append on, is *joint*: every
//! decision needs a majority of the old voters and one of the new. Once it is committed the leader
//! appends the second by itself, which leaves the new alone. So two majorities that know nothing of
//! each other never exist, whatever the change is and whichever nodes know of it; and the same holds
//! for a lease, which counts a round only if both majorities have promised it (P13). Any set of
//! voters may follow any other, which makes the replacement of a member one step.
//!
//! A new member begins as a learner: it receives the log, promises like any other (it may be a voter
//! in a configuration that it has not heard of yet) and counts for nothing (P14). One that is to
//! become a voter is promoted by its leader, once it lacks little. It may also be asked for its vote
//! before it knows that it has one, and grants it: the candidate decides which votes count.
//!
//! Refused changes, with reasons:
//!
//! - a change while another is not committed, or while the configuration is joint: then majorities
//!   of the two need not meet;
//! - a change before this leader has committed an entry of its own term: until then it cannot know
//!   whether an earlier leader's change is committed (M1);
//! - a change after which fewer voters answer than are needed to decide anything.
//!
//! A leader that removes itself leads until that is committed, counting others alone. Then it gives
//! its lease up, transfers leadership, and steps down. Any other removed member is notified for a
//! while, because it no longer receives the log. One that does not learn of its removal cannot
//! disturb: voters have promised not to elect it, and its log is shorter than theirs.

use bytes::Bytes;

use crate::raft::leader::unknown_peers;
use crate::raft::quorum::DETAILS_BYTES_MAX;
use crate::raft::role::RoleState;
use crate::raft::{
    Change, Configuration, Consensus, Invalidation, JoinRole, MEMBERS_MAX, MembershipError,
    Message, Payload, ProposalError,
};
use crate::time::Instant;
use crate::types::{LogId, NodeId};

/// How many entries a learner may lack when it becomes a voter. Commitment may have to wait for it
/// from then on, so this is what a follower makes up for in a moment.
const LAG_MAX: u64 = 4_096;

impl Consensus {
    /// Changes the members, as leader. The place that is returned is that of the first entry; the
    /// change is complete once [`Consensus::configuration`] is at or after it, not joint, and
    /// committed.
    ///
    /// # Errors
    /// Refused changes change nothing.
    pub fn change(&mut self, now: Instant, change: &Change) -> Result<LogId, ProposalError> {
        self.observe(now);
        self.may_change()?;
        let joint = self.log.configuration().is_joint();
        if joint && !planted!(ChangesOverlap) {
            return Err(ProposalError::Membership(MembershipError::InProgress));
        }
        let next = self.changed(change).map_err(ProposalError::Membership)?;
        let id = self.append_next(next);
        self.settle();
        Ok(id)
    }

    /// Whether a configuration may follow the one in force.
    pub(super) fn may_change(&self) -> Result<(), ProposalError> {
        let RoleState::Leader(leader) = &self.role else {
            let leader = self.known_leader();
            return Err(ProposalError::NotLeader { leader });
        };
        if leader.transfer.is_some() {
            return Err(ProposalError::Transferring);
        }
        let own = self.log.term_at(self.commit) == Some(self.hard.term);
        if !own && !planted!(ChangeBeforeOwnCommit) {
            return Err(ProposalError::Membership(MembershipError::NotSettled));
        }
        if !self.is_configuration_committed() && !planted!(ChangesOverlap) {
            return Err(ProposalError::Membership(MembershipError::InProgress));
        }
        Ok(())
    }

    /// What `change` makes of the configuration in force.
    fn changed(&self, change: &Change) -> Result<Configuration, MembershipError> {
        let now = self.log.configuration();
        let mut next = now.clone();
        match change {
            Change::Add {
                member,
                details,
                role,
            } => {
                if now.is_member(*member) || *member == NodeId(0) {
                    return Err(MembershipError::Member);
                }
                if now.members().len() >= MEMBERS_MAX {
                    return Err(MembershipError::TooMany);
                }
                next.learners.insert(*member);
                match role {
                    JoinRole::Learner => {}
                    JoinRole::Voter => _ = next.joining.insert(*member, None),
                    JoinRole::InPlaceOf(voter) if now.voters.contains(voter) => {
                        next.joining.insert(*member, Some(*voter));
                    }
                    JoinRole::InPlaceOf(_) => return Err(MembershipError::NoVoter),
                }
                keep(&mut next, *member, details)?;
            }
            Change::Promote(member) => return self.promoted(*member, None),
            Change::Remove(member) if now.voters.contains(member) => {
                next.voters.remove(member);
                if next.voters.is_empty() {
                    return Err(MembershipError::LastVoter);
                }
                for place in next.joining.values_mut() {
                    place.take_if(|voter| *voter == *member);
                }
                return self.after(next);
            }
            Change::Remove(member) => {
                if !next.learners.remove(member) {
                    return Err(MembershipError::NoMember);
                }
                next.joining.remove(member);
                next.details.remove(member);
            }
            Change::Update { member, details } => {
                if !now.is_member(*member) {
                    return Err(MembershipError::NoMember);
                }
                keep(&mut next, *member, details)?;
            }
        }
        Ok(next)
    }

    /// The configuration in which the learner `member` votes, in the place of `replaced`.
    fn promoted(
        &self,
        member: NodeId,
        replaced: Option<NodeId>,
    ) -> Result<Configuration, MembershipError> {
        let now = self.log.configuration();
        if !now.is_member(member) {
            return Err(MembershipError::NoMember);
        }
        if !now.learners.contains(&member) {
            return Err(MembershipError::NoLearner);
        }
        // While it catches up this is asked at every acknowledgement: nothing is copied before.
        let lag = self.lag_of(member);
        if lag.is_none_or(|lag| lag > LAG_MAX) && !planted!(PromotedUnready) {
            return Err(MembershipError::Behind(lag));
        }
        let mut next = now.clone();
        next.learners.remove(&member);
        next.joining.remove(&member);
        next.voters.insert(member);
        if let Some(replaced) = replaced {
            next.voters.remove(&replaced);
        }
        self.after(next)
    }

    /// `next`, whose voters are others, as what follows the configuration in force: joint. Refused
    /// if too few of them answer, for then nothing would be decided any more.
    fn after(&self, mut next: Configuration) -> Result<Configuration, MembershipError> {
        let reachable = next.voters.iter().filter(|voter| self.answers(**voter));
        let (reachable, needed) = (reachable.count(), next.voters.len() / 2 + 1);
        if reachable < needed {
            return Err(MembershipError::Unreachable { reachable, needed });
        }
        next.outgoing = Some(self.log.configuration().voters.clone());
        planted!(NoJoint => next.outgoing = None);
        Ok(next)
    }

    /// How many entries `member` lacks, or has not acknowledged. `None` if it has acknowledged none,
    /// or promised nothing: one that has lost its memory does neither until it is whole (A23). Nor
    /// of one that has lost it since: what it said before is no reason to count on it.
    fn lag_of(&self, member: NodeId) -> Option<u64> {
        let RoleState::Leader(leader) = &self.role else {
            return None;
        };
        let progress = leader.peers.get(&member)?;
        let whole = progress.is_whole();
        whole.then(|| self.log.last().index.0.saturating_sub(progress.matched.0))
    }

    /// Whether `voter` has promised so lately that it can be taken for alive, and has a state, as
    /// far as is known: without one it could not lead.
    fn answers(&self, voter: NodeId) -> bool {
        let RoleState::Leader(leader) = &self.role else {
            return false;
        };
        if voter == self.id {
            return true;
        }
        let whole = leader.peers.get(&voter).filter(|peer| !peer.needs_state);
        let ack = whole.and_then(|progress| progress.ack);
        let created = ack.and_then(|round| leader.lease.created(round));
        let longest = self.timing.election_timeout_max;
        created.is_some_and(|created| self.now.certainly_before(created + longest))
    }

    /// As leader: whether those voters that answer can decide without `member`.
    pub fn has_quorum_without(&self, member: NodeId) -> bool {
        let configuration = self.log.configuration();
        configuration.has_quorum(|voter| voter != member && self.answers(voter))
    }

    /// Appends a configuration, which is in force from this moment on: for replication, commitment,
    /// and the lease, before anybody hears of it (P13).
    fn append_next(&mut self, mut next: Configuration) -> LogId {
        let members = next.members();
        next.details.retain(|member, _| members.contains(member));
        let payload = Payload::Configuration(Box::new(next));
        let id = self.log.append(self.hard.term, payload);
        self.meet_configuration();
        self.unflushed = true;
        id
    }

    /// Appends any configuration whatever.
    #[cfg(test)]
    pub(super) fn append_configuration(&mut self, configuration: Configuration) {
        assert!(matches!(self.role, RoleState::Leader(_)));
        self.append_next(configuration);
        self.settle();
    }

    /// Brings the set of peers in line with the configuration in force. A new peer has promised
    /// nothing (P15); a removed peer is notified for a while.
    fn meet_configuration(&mut self) {
        let members = self.log.configuration().members();
        let last = self.log.last().index.previous();
        let mut fresh = unknown_peers(members.iter().copied(), self.id, last, self);
        let now = self.now;
        if let RoleState::Leader(leader) = &mut self.role {
            leader.leaving.retain(|peer, _| !members.contains(peer));
            for peer in leader.peers.keys() {
                if fresh.remove(peer).is_none() {
                    leader.leaving.entry(*peer).or_insert(now);
                }
            }
            planted!(AckFromEntry => for peer in fresh.values_mut() {
                peer.ack = Some(crate::raft::RoundId(self.next_round - 1));
            });
            leader.peers.append(&mut fresh);
        }
    }

    // What the leader does by itself.

    /// As leader: the next step of a change that is under way.
    pub(super) fn drive_change(&mut self) {
        let configuration = self.log.configuration();
        if configuration.is_joint() {
            self.complete_change();
        } else if !configuration.joining.is_empty() {
            self.promote_who_has_caught_up();
        }
        if self.is_deposed() {
            self.hand_over_for_good();
        }
    }

    /// Leaves the old voters behind, once nothing can be decided without the new.
    fn complete_change(&mut self) {
        // What was granted under the configuration before the joint one rests on its majority alone (RL9).
        let is_clear = self.has_no_grants() || planted!(ChangeOverGrants);
        if self.may_change().is_ok() && is_clear {
            let mut next = self.log.configuration().clone();
            next.outgoing = None;
            self.append_next(next);
        }
    }

    fn promote_who_has_caught_up(&mut self) {
        if self.may_change().is_err() {
            return;
        }
        let joining = &self.log.configuration().joining;
        let promoted = joining.iter().find_map(|(member, place)| {
            let voter = place.filter(|voter| self.log.configuration().voters.contains(voter));
            self.promoted(*member, voter).ok()
        });
        if let Some(next) = promoted {
            self.append_next(next);
        }
    }

    /// As leader: whether it is committed that this node is no voter.
    pub(super) fn is_deposed(&self) -> bool {
        let configuration = self.log.configuration();
        !configuration.is_voter(self.id) && self.is_configuration_committed()
    }

    /// A leader that is no voter any more gives leadership to one that is: by a hand-over, so that
    /// no election has to wait until its promises end.
    fn hand_over_for_good(&mut self) {
        let RoleState::Leader(leader) = &self.role else {
            return;
        };
        let burned = leader.lease.is_burned();
        if leader.transfer.is_none() && (burned || self.begin_transfer(None, false).is_err()) {
            self.resign();
        }
    }

    /// Steps down, and then releases the voters from their promises (P36).
    pub(super) fn resign(&mut self) {
        let is_clear = self.has_no_grants() || planted!(ReleaseKeepsGrants);
        self.leave_leadership(Invalidation::ConfigurationChanged);
        if !is_clear {
            return;
        }
        for peer in self.log.configuration().members() {
            self.send(peer, Message::Release);
        }
    }

    /// Stops notifying removed peers that know, or that have not answered for long.
    pub(super) fn forget_who_left(&mut self) {
        let settled = self.is_configuration_committed();
        let (now, patience) = (self.now, self.timing.election_timeout_max);
        let RoleState::Leader(leader) = &mut self.role else {
            return;
        };
        let peers = &mut leader.peers;
        leader.leaving.retain(|peer, since| {
            if !settled {
                *since = now;
            }
            let gone = now.certainly_after(*since + patience);
            if gone {
                peers.remove(peer);
            }
            !gone
        });
    }
}

fn keep(next: &mut Configuration, member: NodeId, details: &Bytes) -> Result<(), MembershipError> {
    if details.len() > DETAILS_BYTES_MAX {
        return Err(MembershipError::TooLarge);
    }
    next.details.insert(member, details.clone());
    Ok(())
}
