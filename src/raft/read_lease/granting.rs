//! What a leader does about read leases: what it may grant, and when it wants them back.

use super::grants::Terms;
use super::{GrantStanding, RecallReason};
use crate::raft::role::RoleState;
use crate::raft::{Consensus, Message, RoundId};
use crate::types::NodeId;

impl Consensus {
    /// What may be granted now, if anything may (RL2, RL8, RL9). What it rests on is promised by a quorum;
    /// [`Consensus::bind_by_grants`] binds this leader itself before a grant leaves (RL3).
    pub(in crate::raft) fn grant_terms(&self) -> Option<Terms> {
        let RoleState::Leader(leader) = &self.role else {
            return None;
        };
        let is_joint = self.log.configuration().is_joint() && !planted!(ChangeOverGrants);
        let hands_over = leader.transfer.is_some() && !planted!(TransferKeepsGrants);
        // Its own P_floor is durable: it was written with the vote for itself.
        if hands_over || is_joint || !self.hard_is_durable() {
            return None;
        }
        let cell = leader.lease.cell();
        let left = cell.remaining(self.now)?;
        let left = match () {
            () if planted!(LengthByLargerClock) => cell.until().at_most_since(self.now),
            () if planted!(GrantFullLength) => self.timing.trusted_lease(),
            () => left,
        };
        let length = left.saturating_sub(self.timing.clock_granularity * 2);
        let since = leader.lease.held_since()?;
        let promise = match planted!(GrantShortWait) {
            true => self.timing.lease_duration / 2,
            false => self.timing.lease_duration,
        };
        (!length.is_zero()).then_some(Terms {
            now: self.now,
            length,
            until: since + promise,
            commit: self.commit,
            patience: self.timing.heartbeat_interval * 2,
            stride: self.timing.read_lease_max_write_delay / 2,
        })
    }

    /// Whether no read lease of this node may be outstanding.
    pub(in crate::raft) fn has_no_grants(&self) -> bool {
        match &self.role {
            RoleState::Leader(leader) => leader.grants.is_empty(),
            _ => true,
        }
    }

    /// As leader: how `peer` stands with its read lease. `None` if it does not ask for one.
    pub fn read_lease_of(&self, peer: NodeId) -> Option<GrantStanding> {
        match &self.role {
            RoleState::Leader(leader) => {
                let progress = leader.peers.get(&peer);
                let asks = progress.is_some_and(|progress| progress.asked.since.is_some());
                leader.grants.standing(peer, asks, self.now)
            }
            _ => None,
        }
    }

    /// So many read leases are about to be granted: this leader promises, too. A quorum with its vote is one
    /// that the promises of its lease do not exclude (RL3).
    pub(in crate::raft) fn bind_by_grants(&mut self, granted: u64) {
        if !planted!(GranterMayVote) {
            let promise = self.timing.lease_duration;
            self.promise
                .extend(self.now, promise, self.id, self.hard.term);
        }
        self.published.grant_counters().granted(granted);
    }

    /// Forgets read leases that are over, and recalls those that are in the way: of a hand-over or a change
    /// of members, or of commits that have waited for too long.
    pub(in crate::raft) fn drive_read_leases(&mut self) {
        let counters = self.published.grant_counters();
        let is_joint = self.log.configuration().is_joint() && !planted!(ChangeOverGrants);
        let patience = self.timing.read_lease_max_write_delay;
        let now = self.now;
        let RoleState::Leader(leader) = &mut self.role else {
            return;
        };
        let hands_over = leader.transfer.is_some() && !planted!(TransferKeepsGrants);
        let (grants, leaving) = (&mut leader.grants, &leader.leaving);
        grants.expire(now, counters);
        let asked = if hands_over {
            grants.recall(RecallReason::Transfer, counters, |_| true)
        } else {
            let is_in_the_way = |holder| is_joint || leaving.contains_key(&holder);
            let mut asked = grants.recall(RecallReason::Configuration, counters, is_in_the_way);
            asked.extend(grants.recall_slow(now, patience, &leader.peers, counters));
            asked
        };
        for holder in asked {
            self.send(holder, Message::Recall);
        }
    }

    pub(in crate::raft) fn handle_returned(&mut self, from: NodeId, through: RoundId) {
        if let RoleState::Leader(leader) = &mut self.role {
            leader.grants.returned(from, through);
            if let Some(progress) = leader.peers.get_mut(&from) {
                progress.asked.decline(through);
            }
        }
    }
}
