//! A log without its beginning, and whole states in its place.
//!
//! What lies at or below the base is committed and in the state machine, durably; so the log agrees
//! there with that of every leader, and a follower that needs truncated entries receives a snapshot
//! instead. A leader never waits for that: it orders the transfer and goes on replicating.
//!
//! A state that was received is not consensus' to judge: the shell has checked that it is whole and
//! durable. What is decided here is whether it may take the place of what this replica has:
//!
//! - never if it would take the state machine back;
//! - the log stays if it holds the very entry that the state ends with, for what follows it may be
//!   acknowledged; any other log is either all before that entry or not of a leader's log there;
//! - the new base is durable before anything is acknowledged that rests on it, and a crash between
//!   base and state leaves a replica that knows it has no state ([`RestoredState::applied`] before its
//!   base): it follows, votes by its log, and asks for a state again.
//!
//! [`RestoredState::applied`]: crate::raft::RestoredState::applied

use crate::raft::role::RoleState;
use crate::raft::{Consensus, LogBase, Message, Output};
use crate::types::{LogIndex, NodeId};

impl Consensus {
    /// The state machine's entries up to here need no log any more.
    pub(super) fn compact(&mut self, through: LogIndex) {
        let through = through.min(self.log.durable());
        let through = if planted!(CompactsUnapplied) {
            through
        } else {
            through.min(self.applied)
        };
        self.log.compact(through);
    }

    /// Whether the state machine lacks entries that the log does not hold: nothing can be applied
    /// here before a state was installed.
    pub(super) fn lacks_state(&self) -> bool {
        self.handed_out < self.log.base().index
    }

    pub(super) fn snapshot_received(&mut self, base: LogBase) {
        let id = base.id;
        let leads = matches!(self.role, RoleState::Leader(_));
        let is_news = id.index > self.handed_out || planted!(SnapshotGoesBack);
        // Older than what a log without a beginning needs to go on.
        let helps = id.index >= self.log.base().index;
        let is_held = self.log.agrees(id) && !planted!(SnapshotDropsLog);
        let unfit = leads || !helps || id.term > self.hard.term;
        let unfit = unfit || self.diverged.is_some();
        if unfit || is_held && !is_news || self.installing.is_some() {
            if is_held {
                self.holds_state(id.index);
            }
            return self.outputs.push_back(Output::DiscardSnapshot(id));
        }
        self.meet_an_older_cluster();
        if !is_held {
            // Its sender may lead a term that is not known here yet.
            self.replaced_in = self.hard.term.next();
            self.log.begin_after(base);
            planted!(SnapshotBaseUnsynced => self.log.trust_base());
        }
        self.commit = self.commit.max(id.index);
        self.holds_state(id.index);
        self.installing = Some(id);
    }

    /// The log holds, or begins with, what a state ends with. Who sent it does not know that, or
    /// has forgotten, and will say nothing else until it does.
    fn holds_state(&mut self, index: LogIndex) {
        if let RoleState::Follower(follower) = &mut self.role {
            // Committed, so it is in the log of every later leader.
            follower.verified = follower.verified.max(index);
            follower.owes_acknowledgement = Some(follower.verified);
            follower.owes_conflict = None;
        }
    }

    /// Hands out the state that was accepted once the log agrees with it durably. Any earlier, a
    /// crash could leave a state machine beside a log that says something else.
    pub(super) fn hand_out_state(&mut self) {
        let durable = self.log.durable();
        let Some(id) = self.installing.take_if(|id| id.index <= durable) else {
            return;
        };
        if id.index > self.handed_out || planted!(SnapshotGoesBack) {
            self.handed_out = id.index;
            self.outputs.push_back(Output::Install(id));
        } else {
            // The state machine is as far already: it was the log alone that lacked it.
            self.outputs.push_back(Output::DiscardSnapshot(id));
        }
    }

    /// As leader: what was ordered for `peer` is over. It has an election timeout to say that it
    /// helped before another is sent.
    pub(super) fn snapshot_sent(&mut self, peer: NodeId) {
        let until = self.now + self.timing.election_timeout_max;
        if let RoleState::Leader(leader) = &mut self.role
            && let Some(progress) = leader.peers.get_mut(&peer)
        {
            progress.snapshot_sent(until);
        }
    }

    pub(super) fn handle_need_state(&mut self, from: NodeId) {
        if let RoleState::Leader(leader) = &mut self.role
            && let Some(progress) = leader.peers.get_mut(&from)
        {
            progress.needs_state = true;
        }
    }

    /// As follower: says so, as often as it answers, while it has no state.
    pub(super) fn ask_for_state(&mut self, leader: NodeId) {
        if self.lacks_state() && self.installing.is_none() && self.diverged.is_none() {
            self.send(leader, Message::NeedState);
        }
    }
}
