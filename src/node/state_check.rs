//! The comparison of this replica's state with the others' (D1).
//!
//! Periodically the leader proposes an entry at which every replica records the content hash of its
//! state and reports it to the others. All have applied the same entries then, so the hashes are
//! equal unless a disk, a machine or this program is faulty. A replica whose hash a majority of the
//! voters contradicts is *corrupt*: it stops serving, does not lead, and rebuilds its state at the
//! next start. If no majority agrees, the correct state is unknown, so no replica
//! serves until further reports decide.
//!
//! The hash is the one that every change updates. So this detects states that diverged; a record
//! that a disk has altered is detected when a change next reads it, or by the scan after an unclean
//! stop.
//!
//! Reports may be lost or reordered: they are sent a few times, the last few are kept, and what one
//! check leaves undecided the next may decide.

use std::collections::BTreeSet;
use std::time::Duration;

use super::corruption_checker::StateCheck;
use super::{Node, Output};
use crate::kv::{Command, ContentHash};
use crate::raft::{Envelope, Message, StateHash};
use crate::time::Instant;
use crate::types::{LogIndex, NodeId};

/// How many times a report is sent, and the interval.
const SENDS: u32 = 4;
const SEND_INTERVAL: Duration = Duration::from_millis(500);

impl Node {
    /// The result of comparing this replica's state, and its log, with the others'.
    pub fn state_check(&self) -> StateCheck {
        match self.consensus.diverged() {
            Some(index) => StateCheck::Diverged(index),
            None => self.checker.verdict,
        }
    }

    /// How many checks of this replica a majority of the voters has agreed with.
    pub fn checks_agreed(&self) -> u64 {
        self.checker.agreed
    }

    /// This replica has applied a check.
    pub(super) fn note_own_hash(&mut self, now: Instant, index: LogIndex, hash: ContentHash) {
        let report = StateHash {
            index,
            hash: hash.0,
        };
        self.checker.note(self.options.id, report);
        self.checker.sends_left = SENDS;
        self.checker.send_after = None;
        self.send_report(now);
    }

    /// Another replica has.
    pub(super) fn hear_hash(&mut self, from: NodeId, report: StateHash) {
        if self.consensus.configuration().is_member(from) {
            self.checker.note(from, report);
        }
    }

    /// What is due: a check, a report, a verdict.
    pub(super) fn compare_states(&mut self, now: Instant) {
        self.send_report(now);
        self.judge(now);
        let Some(interval) = self.options.check_interval else {
            return;
        };
        if self.consensus.leads_in().is_none() || !self.consensus.status().ready {
            return;
        }
        let proposed = self.checker.proposed;
        if proposed.is_some_and(|last| !now.certainly_after(last + interval)) {
            return;
        }
        // A refusal is no loss: the next tick tries again.
        if (self.consensus.propose(now, Command::CheckHash.encode())).is_ok() {
            self.checker.proposed = Some(now);
        }
    }

    /// Evaluates the reports. A corrupt replica gives up leadership for good: its log is intact, so
    /// it still follows and votes.
    pub(super) fn judge(&mut self, now: Instant) {
        if !self.checker.is_news && self.checker.differ.is_none() {
            return;
        }
        let before = self.checker.verdict;
        let voters = &self.consensus.configuration().voters;
        let voters: BTreeSet<NodeId> = voters.iter().copied().collect();
        self.checker.judge(now, self.options.id, &voters);
        let is_new = before != self.checker.verdict;
        if is_new && matches!(self.checker.verdict, StateCheck::Corrupt(_)) {
            self.consensus.retire(now);
        }
    }

    fn send_report(&mut self, now: Instant) {
        let checker = &mut self.checker;
        let is_due = checker
            .send_after
            .is_none_or(|after| now.certainly_after(after));
        if checker.sends_left == 0 || !is_due {
            return;
        }
        checker.sends_left -= 1;
        checker.send_after = Some(now + SEND_INTERVAL);
        let own = self.options.id;
        let Some(report) = checker
            .reports
            .get(&own)
            .and_then(|all| all.back())
            .copied()
        else {
            return;
        };
        let term = self.consensus.status().term;
        for peer in self.consensus.configuration().members() {
            if peer != own {
                self.outputs.push_back(Output::Send(Envelope {
                    from: own,
                    to: peer,
                    term,
                    message: Message::StateHash(report),
                }));
            }
        }
    }
}
