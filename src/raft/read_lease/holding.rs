//! What a holder does about its read lease: which grants it accepts, and what ends it.

use std::sync::Arc;
use std::time::Duration;

use crate::raft::published::LeaseCell;
use crate::raft::role::RoleState;
use crate::raft::{Consensus, Fresh, Heartbeat, Invalidation, Message, ReadGrant, RoundId};
use crate::sync::Ordering;
use crate::time::Instant;
use crate::types::{LogIndex, NodeId};

impl Consensus {
    /// Whether this replica asks its leader for a read lease, and accepts one.
    pub(in crate::raft) fn wants_read_lease(&self) -> bool {
        let is_sound = self.counts() && !self.tripped && !self.retired;
        let has_state = !self.lacks_state() && self.installing.is_none();
        self.holder.asks && is_sound && has_state
    }

    /// Makes this replica ask for read leases, or stop asking: then it gives back what it holds and what is on
    /// its way, and its leader commits without it as soon as it has heard that.
    pub fn ask_for_read_leases(&mut self, now: Instant, asks: bool) {
        self.observe(now);
        if !asks {
            self.give_back_read_lease();
        }
        self.holder.asks = asks;
        self.settle();
    }

    /// Whether this replica asks for read leases ([`Consensus::ask_for_read_leases`]).
    pub fn asks_for_read_leases(&self) -> bool {
        self.holder.asks
    }

    /// The leader has answered the name that `fresh` gives back with a grant. It counts from when the name
    /// was drawn, and so never from later than what the leader looked at (RL1). Accepted is what was made
    /// for this life, later than any other, and not recalled since (RL6).
    pub(in crate::raft) fn accept_read_lease(&mut self, from: NodeId, message: Heartbeat) {
        let Some(Fresh { name, grant, .. }) = message.fresh else {
            return;
        };
        let Some(ReadGrant { length, floor }) = grant else {
            return;
        };
        if length >= message.promise {
            return self.published.refuse_message();
        }
        if name <= self.holder.accepted || !self.wants_read_lease() {
            return;
        }
        let Some(drawn) = self.staleness.drawn(name) else {
            return;
        };
        let drawn = match planted!(ReadLeaseFromReceipt) {
            true => self.now,
            false => drawn,
        };
        self.holder.accepted = name;
        self.hold_read_lease(from, drawn + length, message.promise, floor);
    }

    fn hold_read_lease(
        &mut self,
        leader: NodeId,
        until: Instant,
        longest: Duration,
        floor: LogIndex,
    ) {
        let term = self.hard.term;
        let is_same = |cell: &&Arc<LeaseCell>| {
            let is_one_tenure = cell.floor == floor || planted!(TenuresShareACell);
            cell.term == term && is_one_tenure && cell.longest() == longest
        };
        let counters = self.published.read_lease_counters();
        counters.renewals.fetch_add(1, Ordering::Relaxed);
        if let Some(cell) = self.holder.cell.as_ref().filter(is_same) {
            return cell.publish(cell.until().max(until));
        }
        // Another tenure: a reader that looks at the cell of the one before finds it void.
        if let Some(before) = self.holder.cell.take() {
            before.publish(Instant::ZERO);
        }
        let cell = LeaseCell {
            leader: Some(leader),
            ..LeaseCell::new(term, floor, longest, counters.clone())
        };
        cell.publish(until);
        let cell = Arc::new(cell);
        self.published.begin_read_lease(cell.clone());
        self.holder.cell = Some(cell);
    }

    /// Takes the read lease back: no reader that looks from now on is permitted by it.
    pub(in crate::raft) fn void_read_lease(&mut self, reason: Invalidation) {
        let Some(cell) = self.holder.cell.take() else {
            return;
        };
        if cell.is_valid(self.now) {
            let counters = self.published.read_lease_counters();
            counters.invalidations[reason as usize].fetch_add(1, Ordering::Relaxed);
        }
        if !planted!(OldCellHolds) {
            cell.publish(Instant::ZERO);
        }
        self.published.end_read_lease();
    }

    /// Gives up a read lease that this replica may not hold any more.
    pub(in crate::raft) fn check_read_lease(&mut self) {
        if self.holder.cell.is_some() && !self.wants_read_lease() {
            self.void_read_lease(Invalidation::Retired);
        }
    }

    /// Whether reads may be served here by a read lease.
    pub(in crate::raft) fn holds_read_lease(&self) -> bool {
        let cell = self.holder.cell.as_ref();
        cell.is_some_and(|cell| cell.is_valid(self.now))
    }

    /// The leader of this term says that everything up to `commit` is committed. If this replica holds a read
    /// lease, it has acknowledged that, or held none when it was committed (RL11).
    pub(in crate::raft) fn watch_over_read_lease(&mut self, commit: LogIndex) {
        planted!(HolderUnwatched => return);
        let last = self.log.last().index;
        let lacks =
            |cell: &Arc<LeaseCell>| commit > last.max(cell.floor) && cell.is_valid(self.now);
        if self.holder.cell.as_ref().is_some_and(lacks) {
            self.trip();
        }
    }

    /// The leader wants its read lease back, and whatever is on its way (RL7).
    pub(in crate::raft) fn handle_recall(&mut self, from: NodeId) {
        if let RoleState::Follower(follower) = &self.role
            && follower.leader == Some(from)
        {
            self.return_read_lease(from, Invalidation::Recalled);
        }
    }

    fn return_read_lease(&mut self, leader: NodeId, reason: Invalidation) {
        if !planted!(ReturnedStillServes) {
            self.void_read_lease(reason);
        }
        let newest = RoundId(self.next_name.saturating_sub(1));
        if !planted!(GrantAfterRecall) {
            self.holder.accepted = newest;
        }
        self.send(leader, Message::Returned(newest));
    }

    /// This replica stops: it gives its read lease back unasked, so that no commit waits for it.
    pub(in crate::raft) fn give_back_read_lease(&mut self) {
        if self.holder.asks
            && let RoleState::Follower(follower) = &self.role
            && let Some(leader) = follower.leader
        {
            self.return_read_lease(leader, Invalidation::Retired);
        }
    }
}
