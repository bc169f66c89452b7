//! A log whose committed part the leader contradicts (A27).
//!
//! The log of a leader holds every committed entry, so a follower is never asked for another entry at or below
//! its commit index. And a term has one leader, which writes one entry to a place, so entries of one place and term
//! say the same, committed or not. If either fails, a member has forgotten what it acknowledged (an older copy of its
//! data directory), and both histories have been acknowledged to clients. Which one is to stay only an operator can
//! say. So this replica keeps what it has, and counts for no quorum.

use crate::raft::role::RoleState;
use crate::raft::{Append, Consensus, Heard};
use crate::types::{LogId, LogIndex};

impl Consensus {
    /// The first entry known to be another one in the log of a leader though it is committed here, or of the same term.
    pub fn diverged(&self) -> Option<LogIndex> {
        self.diverged
    }

    /// Whether votes, promises and acknowledgements of this replica may count: it neither lacks what it has
    /// acknowledged, nor is its log at odds with that of a leader.
    pub(super) fn counts(&self) -> bool {
        self.quarantine.is_none() && (self.diverged.is_none() || planted!(DivergedCounts))
    }

    /// Whether `append`, of the present leader, contradicts what this replica may not give up; then it takes nothing of
    /// it, nor of any other.
    pub(super) fn diverges(&mut self, append: &Append) -> bool {
        if self.diverged.is_none() {
            self.diverged = self.contradiction(append);
        }
        if self.diverged.is_none() {
            return false;
        }
        if let RoleState::Follower(follower) = &mut self.role {
            follower.heard = Heard {
                promised: false,
                ..follower.heard
            };
        }
        true
    }

    /// The first entry at which `append` contradicts what is committed here, or an entry of the same term.
    fn contradiction(&self, append: &Append) -> Option<LogIndex> {
        planted!(DivergenceIgnored => return None);
        // From what a member was restored may be another history: it receives a whole state (A26).
        if self.quarantine.is_some() && self.holds_what_was_restored() {
            return None;
        }
        let is_committed_otherwise =
            |id: LogId| id.index <= self.commit && self.log.contradicts(id);
        let of_same_place_and_term = |id: LogId| {
            let ours = self.log.entry(id.index);
            ours.filter(|ours| ours.id == id && !planted!(RepeatedTermTaken))
        };
        let checksums = of_same_place_and_term(append.base).zip(append.base_checksum);
        if is_committed_otherwise(append.base)
            || checksums.is_some_and(|(ours, theirs)| ours.checksum() != theirs)
        {
            return Some(append.base.index);
        }
        let mut entries = append.entries.iter();
        let first = entries.find(|theirs| {
            is_committed_otherwise(theirs.id)
                || of_same_place_and_term(theirs.id).is_some_and(|ours| ours != *theirs)
        });
        first.map(|entry| entry.id.index)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::raft::{
        Ballot, Configuration, Entry, Envelope, HardState, Heartbeat, Input, LogOrigin, Message,
        Output, Payload, PreVote, RestoredState, RoundId, Timing, UnsavedState,
    };
    use crate::time::Instant;
    use crate::types::{NodeId, Term};

    const NOW: Instant = Instant::from_nanos(60_000_000_000);

    fn id(index: u64, term: u64) -> LogId {
        LogId::new(LogIndex(index), Term(term))
    }

    fn entry(id: LogId) -> Entry {
        Entry {
            id,
            payload: Payload::Noop,
        }
    }

    /// n2, which has applied 1@1 2@1 3@1 and holds 4@1; its log begins after `base`.
    fn follower(base: u64, diverged: Option<LogIndex>) -> Consensus {
        let restored = RestoredState {
            hard_state: HardState {
                term: Term(1),
                ..HardState::default()
            },
            base: match base {
                0 => LogId::default(),
                base => id(base, 1),
            },
            base_configuration: Configuration {
                voters: [NodeId(1), NodeId(2), NodeId(3)].into(),
                ..Default::default()
            },
            entries: (base + 1..=4).map(|index| entry(id(index, 1))).collect(),
            applied: LogIndex(3),
            diverged,
            ..RestoredState::default()
        };
        let start = Instant::from_nanos(1_000_000_000);
        let mut node = Consensus::new(NodeId(2), Timing::default(), restored, 7, start);
        settle(&mut node);
        node
    }

    /// Makes everything durable at once, and gives what is written and said.
    fn settle(node: &mut Consensus) -> (Vec<UnsavedState>, Vec<Message>) {
        let (mut written, mut said) = (Vec::new(), Vec::new());
        while let Some(output) = node.poll_output() {
            match output {
                Output::Persist(ticket, unsaved) => {
                    written.push(unsaved);
                    node.handle(NOW, Input::Persisted(ticket));
                }
                Output::Send(envelope) => said.push(envelope.message),
                _ => {}
            }
        }
        (written, said)
    }

    fn hears(
        node: &mut Consensus,
        term: u64,
        message: Message,
    ) -> (Vec<UnsavedState>, Vec<Message>) {
        let envelope = Envelope {
            from: NodeId(1),
            to: NodeId(2),
            term: Term(term),
            message,
        };
        node.handle(NOW, Input::Message(envelope));
        settle(node)
    }

    fn append(base: LogId, entries: &[LogId]) -> Message {
        Message::Append(Append {
            heartbeat: heartbeat(),
            base,
            base_checksum: Some(0),
            entries: entries.iter().copied().map(entry).collect(),
        })
    }

    fn heartbeat() -> Heartbeat {
        Heartbeat {
            round: RoundId(9),
            promise: Timing::default().lease_duration,
            commit: LogIndex(2),
            fresh: None,
        }
    }

    #[test]
    fn what_contradicts_a_committed_entry_is_seen_in_the_first_append_and_nothing_is_cut() {
        for (base, leaders_base, entries, found) in [
            // What is not committed here may be replaced.
            (0, id(3, 1), vec![id(4, 2)], None),
            (0, id(4, 2), vec![id(5, 2)], None),
            (0, id(1, 1), vec![id(2, 1), id(3, 1), id(4, 2)], None),
            // The base, an entry after it, and one where this log is cut at its beginning.
            (0, id(3, 2), vec![id(4, 2)], Some(3)),
            (0, id(1, 1), vec![id(2, 2)], Some(2)),
            (3, id(3, 2), vec![], Some(3)),
            (3, id(1, 1), vec![id(2, 2)], Some(2)),
            (3, id(1, 1), vec![id(2, 1), id(3, 1), id(4, 2)], None),
        ] {
            let mut node = follower(base, None);
            let log = node.log.between(LogIndex(0), LogIndex(9));
            let (written, _) = hears(&mut node, 2, append(leaders_base, &entries));
            let found = found.map(LogIndex);
            assert_eq!(node.diverged(), found, "{leaders_base} {entries:?}");
            if found.is_some() {
                assert_eq!(node.log.between(LogIndex(0), LogIndex(9)), log);
                assert!(written.iter().all(|unsaved| unsaved.entries.is_empty()));
            }
        }
    }

    /// The follower holds a `Noop` in each place.
    #[test]
    fn an_entry_of_the_same_place_and_term_says_the_same_committed_or_not() {
        let other = |id| Entry {
            payload: Payload::Command(Bytes::from_static(b"other")),
            ..entry(id)
        };
        for (base, entries, found) in [
            (entry(id(4, 1)), vec![other(id(5, 1))], None),
            (other(id(4, 1)), vec![], Some(4)),
            (other(id(2, 1)), vec![], Some(2)),
            (
                entry(id(2, 1)),
                vec![entry(id(3, 1)), other(id(4, 1))],
                Some(4),
            ),
            (entry(id(1, 1)), vec![other(id(2, 1))], Some(2)),
            // What is replaced was another leader's.
            (entry(id(3, 1)), vec![other(id(4, 2))], None),
            (other(id(4, 2)), vec![], None),
        ] {
            let mut append = Append {
                heartbeat: heartbeat(),
                base: base.id,
                base_checksum: Some(base.checksum()),
                entries,
            };
            let mut node = follower(0, None);
            hears(&mut node, 2, Message::Append(append.clone()));
            assert_eq!(node.diverged(), found.map(LogIndex), "{append:?}");

            // A leader whose log begins after the base cannot say what that is.
            append.base_checksum = None;
            let mut node = follower(0, None);
            hears(&mut node, 2, Message::Append(append.clone()));
            let found = found.filter(|_| !append.entries.is_empty());
            assert_eq!(node.diverged(), found.map(LogIndex), "{append:?}");
        }
    }

    #[test]
    fn a_member_that_diverged_takes_nothing_and_counts_for_nothing() {
        let mut node = follower(0, Some(LogIndex(2)));
        let wants = Message::PreVote(PreVote {
            round: RoundId(1),
            next_term: Term(2),
            last: id(9, 1),
            origin: LogOrigin::default(),
        });
        let (_, said) = hears(&mut node, 1, wants);
        let is_granted = |message: &Message| matches!(message, Message::PreVoteReply(reply) if reply.ballot == Ballot::Granted);
        assert!(!said.iter().any(is_granted), "{said:?}");

        // Even what would fit.
        for message in [
            Message::Heartbeat(heartbeat()),
            append(id(3, 1), &[id(4, 2)]),
        ] {
            let (written, said) = hears(&mut node, 2, message);
            assert!(written.iter().all(|unsaved| unsaved.entries.is_empty()));
            for message in said {
                match message {
                    Message::HeartbeatReply(reply) => assert!(!reply.heard.promised),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(node.status().last, id(4, 1));
        let read = node.read(NOW, crate::raft::ReadId(1), crate::raft::ReadMode::Any);
        assert!(read.is_err(), "{read:?}");
        let later = Instant::from_nanos(120_000_000_000);
        node.handle(later, Input::Tick);
        let (_, said) = settle(&mut node);
        assert_eq!(said, [], "it asks nobody for a vote");
    }
}
