//! What a leader of before still knows: how far each member acknowledged its log (A28).
//!
//! Within a term a log only grows. So a member that acknowledged an entry in some term, and has taken nothing from a
//! leader of a later one since, holds that entry: if its log ends before it, the member runs on an older copy of its
//! data directory, and its votes may be lost with its entries. A leader that still leads sees that from what the member
//! refuses (`progress.rs`). One that leads no more says it when it could matter: when somebody asks for votes.

use std::collections::BTreeMap;

use crate::raft::role::{Follower, RoleState};
use crate::raft::{Consensus, Invalidation, Message, Reminder};
use crate::types::{LogId, NodeId, Term};

impl Consensus {
    /// The leadership of this term ends: what others acknowledged in it is kept, until they acknowledge something in
    /// a later one.
    pub(super) fn keep_reminders(&mut self) {
        let RoleState::Leader(leader) = &self.role else {
            return;
        };
        let term = self.hard.term;
        let kept = leader.peers.iter().filter_map(|(peer, progress)| {
            let index = progress.matched;
            let last = LogId::new(index, self.log.term_at(index)?);
            (last.term > Term(0)).then_some((*peer, Reminder { term, last }))
        });
        let kept: BTreeMap<NodeId, Reminder> = kept.collect();
        self.reminders.extend(kept);
        let configuration = self.log.configuration();
        self.reminders
            .retain(|peer, _| configuration.is_member(*peer));
    }

    /// Tells each member what it acknowledged here. A candidate that lacks something is heard by this node and by
    /// those who might vote for it: a member that is told at once knows it before the vote is asked for.
    pub(super) fn remind_members(&mut self) {
        planted!(FormerLeaderSilent => return);
        for (peer, reminder) in self.reminders.clone() {
            self.send(peer, Message::Reminder(reminder));
        }
    }

    /// A leader of before says what this replica acknowledged to it. Only a leader of a later term can have replaced
    /// that. What this life has taken is known; an earlier one may have taken something in any term that it knew of. (That
    /// this replica has begun a later term itself since, or voted in one, replaces nothing.)
    pub(super) fn handle_reminder(&mut self, from: NodeId, term: Term, reminder: Reminder) {
        let is_plausible = reminder.term <= term && reminder.last.term <= reminder.term;
        if !is_plausible || !self.log.configuration().is_member(from) {
            return self.published.refuse_message();
        }
        let may_be_replaced = self.replaced_in > reminder.term && !planted!(ReminderOfAnyTerm);
        if may_be_replaced || reminder.last <= self.log.last() || !self.counts() {
            return;
        }
        self.leave_leadership(Invalidation::StepDown);
        self.role = RoleState::Follower(Follower::default());
        match self.unproven {
            true => self.meet_an_older_cluster(),
            false => self.forget_what_was_said(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::{
        Append, Configuration, Entry, Envelope, HardState, Heartbeat, Input, LogOrigin, Payload,
        RestoredState, RoundId, Timing, Vote,
    };
    use crate::time::Instant;
    use crate::types::LogIndex;

    const NOW: Instant = Instant::from_nanos(60_000_000_000);

    fn id(index: u64, term: u64) -> LogId {
        LogId::new(LogIndex(index), Term(term))
    }

    /// n2, started in this term with a log that ends so, has followed the leader of a later term if that is told, or has
    /// only heard of one; whether it knows after the reminder that it has forgotten something.
    fn forgets(term: u64, last: LogId, later: Later, from: u64, reminder: Reminder) -> bool {
        let entries = (1..=last.index.0).map(|index| Entry {
            id: id(
                index,
                if index == last.index.0 {
                    last.term.0
                } else {
                    1
                },
            ),
            payload: Payload::Noop,
        });
        let restored = RestoredState {
            hard_state: HardState {
                term: Term(term),
                ..HardState::default()
            },
            base_configuration: Configuration {
                voters: [NodeId(1), NodeId(2), NodeId(3)].into(),
                ..Default::default()
            },
            entries: entries.collect(),
            ..RestoredState::default()
        };
        let start = Instant::from_nanos(1_000_000_000);
        let mut node = Consensus::new(NodeId(2), Timing::default(), restored, 7, start);
        let mut hears = |from: u64, term: u64, message: Message| {
            let (from, to, term) = (NodeId(from), NodeId(2), Term(term));
            let envelope = Envelope {
                from,
                to,
                term,
                message,
            };
            node.handle(NOW, Input::Message(envelope));
        };
        match later {
            Later::Nothing => {}
            Later::Vote => hears(
                3,
                8,
                Message::Vote(Vote {
                    round: RoundId(1),
                    last: id(1, 1),
                    origin: LogOrigin::default(),
                    promise: Timing::default().lease_duration,
                    transfer_from: None,
                }),
            ),
            Later::Append => hears(
                3,
                8,
                Message::Append(Append {
                    heartbeat: Heartbeat {
                        round: RoundId(1),
                        promise: Timing::default().lease_duration,
                        commit: LogIndex(0),
                        fresh: None,
                    },
                    base: id(3, 1),
                    base_checksum: None,
                    entries: vec![Entry {
                        id: id(4, 2),
                        payload: Payload::Noop,
                    }],
                }),
            ),
        }
        hears(from, 9, Message::Reminder(reminder));
        let begun = if later == Later::Nothing { term } else { 8 };
        assert_eq!(node.status().term, Term(begun), "a reminder begins no term");
        node.was_told_that_it_forgot()
    }

    /// What a member heard of a later term.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Later {
        Nothing,
        Vote,
        Append,
    }

    #[test]
    fn what_a_later_leader_has_replaced_is_not_forgotten() {
        let acknowledged = |term: u64, last: LogId| Reminder {
            term: Term(term),
            last,
        };
        use Later::{Append, Nothing, Vote};
        for (term, last, later, from, reminder, expected) in [
            // It holds it, or more.
            (3, id(5, 3), Nothing, 1, acknowledged(3, id(5, 3)), false),
            (3, id(6, 3), Nothing, 1, acknowledged(3, id(5, 3)), false),
            // It does not: a shorter log, and a longer one of before. That somebody stood for a later term is no excuse.
            (3, id(4, 3), Nothing, 1, acknowledged(3, id(5, 3)), true),
            (2, id(8, 2), Nothing, 1, acknowledged(3, id(5, 3)), true),
            (3, id(4, 3), Vote, 1, acknowledged(3, id(5, 3)), true),
            // A later leader has cut it, now or perhaps in an earlier life, and has not sent yet what comes there.
            (3, id(5, 3), Append, 1, acknowledged(3, id(5, 3)), false),
            (4, id(4, 2), Nothing, 1, acknowledged(3, id(5, 3)), false),
            // Not from a member; of a term that the sender has not reached; of a later term than it was said in.
            (3, id(4, 3), Nothing, 7, acknowledged(3, id(5, 3)), false),
            (3, id(4, 3), Nothing, 1, acknowledged(10, id(5, 3)), false),
            (3, id(4, 3), Nothing, 1, acknowledged(3, id(5, 4)), false),
        ] {
            let found = forgets(term, last, later, from, reminder);
            assert_eq!(found, expected, "t{term} {last} {later:?} {reminder:?}");
        }
    }
}
