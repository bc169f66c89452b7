//! Whether this replica's state is the others' (D1).
//!
//! Now and then the leader has an entry logged at which every replica notes the content hash of its
//! state and tells it to the others. All of them have applied the same entries then, so the hashes
//! are equal unless a disk, a machine or this program has done something wrong. A replica whose hash
//! a majority of the voters contradicts is *corrupt*: it serves no more, does not lead, and its state
//! is built anew at its next start. Where no majority agrees nobody can tell who is right, so nobody
//! serves until more reports settle it.
//!
//! The hash is the one that every change keeps up to date. So what this finds is a state that took
//! another way; a record that a disk has changed since is found when it is next read by a change, or
//! by the scan after an unclean stop.
//!
//! Reports may be lost and come in any order: they are sent again a few times, the last few are
//! kept, and what is not settled at one check may be at the next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::{Node, Output};
use crate::kv::{Command, ContentHash};
use crate::raft::{Envelope, Message, StateHash};
use crate::time::Instant;
use crate::types::{LogIndex, NodeId};

/// What is known of this replica's state against the others'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Nothing speaks against it.
    #[default]
    Sound,
    /// At this entry replicas differ, and no majority of the voters agrees.
    Undecided(LogIndex),
    /// At this entry a majority of the voters has another state.
    Corrupt(LogIndex),
}

impl Consistency {
    /// The state may be served.
    pub fn is_sound(self) -> bool {
        self == Self::Sound
    }
}

/// Checks of one replica that are kept.
const CHECKS_MAX: usize = 8;
/// How often a report is sent, in all, and how long between.
const SENDS: u32 = 4;
const SEND_INTERVAL: Duration = Duration::from_millis(500);
/// For how long replicas may differ without a majority before it counts: reports are under way.
const GRACE: Duration = Duration::from_secs(2);

/// Compares reports.
#[derive(Debug, Default)]
pub(super) struct Referee {
    /// The last reports of each replica, this one's among them, the oldest first.
    reports: BTreeMap<NodeId, VecDeque<StateHash>>,
    /// Since when replicas differ without a majority, and where.
    differ: Option<(Instant, LogIndex)>,
    verdict: Consistency,
    /// There is a report that has not been judged.
    is_news: bool,
    /// When this node, as leader, last had a check logged.
    proposed: Option<Instant>,
    sends_left: u32,
    send_after: Option<Instant>,
    /// Checks of this replica that a majority has agreed with.
    agreed: u64,
    agreed_at: LogIndex,
}

impl Referee {
    fn note(&mut self, of: NodeId, report: StateHash) {
        let reports = self.reports.entry(of).or_default();
        if reports.contains(&report) {
            return;
        }
        self.is_news = true;
        // A process that was restarted may report what it has reported before.
        reports.retain(|known| known.index != report.index);
        reports.push_back(report);
        if reports.len() > CHECKS_MAX {
            reports.pop_front();
        }
    }

    /// What the reports say at `index`: the hash that a majority of `voters` has, and whether any
    /// two differ.
    fn count(&self, voters: &BTreeSet<NodeId>, index: LogIndex) -> (Option<u128>, bool) {
        let mut counts: BTreeMap<u128, usize> = BTreeMap::new();
        for voter in voters {
            let reports = self.reports.get(voter).into_iter().flatten();
            if let Some(report) = reports.clone().find(|report| report.index == index) {
                *counts.entry(report.hash).or_default() += 1;
            }
        }
        let majority = counts
            .iter()
            .find(|(_, count)| **count > voters.len() / 2)
            .map(|(hash, _)| *hash);
        (majority, counts.len() > 1)
    }

    /// Judges the replica `own` by the newest check that says something.
    fn judge(&mut self, now: Instant, own: NodeId, voters: &BTreeSet<NodeId>) {
        self.is_news = false;
        planted!(NeverCompared => return);
        if let Consistency::Corrupt(_) = self.verdict {
            self.differ = None;
            return;
        }
        let reports: Vec<StateHash> = self
            .reports
            .get(&own)
            .into_iter()
            .flatten()
            .copied()
            .collect();
        for report in reports.into_iter().rev() {
            match self.count(voters, report.index) {
                (Some(majority), _) if majority == report.hash => {
                    if report.index > self.agreed_at {
                        self.agreed += 1;
                        self.agreed_at = report.index;
                    }
                    self.differ = None;
                    self.verdict = Consistency::Sound;
                    return;
                }
                (Some(_), _) if planted!(DifferenceForgiven) => {}
                (Some(_), _) => {
                    self.differ = None;
                    self.verdict = Consistency::Corrupt(report.index);
                    return;
                }
                (None, true) => {
                    let (since, index) = *self.differ.get_or_insert((now, report.index));
                    if now.certainly_after(since + GRACE) {
                        self.verdict = Consistency::Undecided(index);
                    }
                    return;
                }
                // Nobody has said anything yet that would not agree.
                (None, false) => {}
            }
        }
    }
}

impl Node {
    /// What is known of this replica's state against the others'.
    pub fn consistency(&self) -> Consistency {
        self.referee.verdict
    }

    /// How many checks of this replica a majority of the voters has agreed with.
    pub fn checks_agreed(&self) -> u64 {
        self.referee.agreed
    }

    /// This replica has applied a check.
    pub(super) fn note_own_hash(&mut self, now: Instant, index: LogIndex, hash: ContentHash) {
        let report = StateHash {
            index,
            hash: hash.0,
        };
        self.referee.note(self.options.id, report);
        self.referee.sends_left = SENDS;
        self.referee.send_after = None;
        self.send_report(now);
    }

    /// Another replica has.
    pub(super) fn hear_hash(&mut self, from: NodeId, report: StateHash) {
        if self.consensus.configuration().is_member(from) {
            self.referee.note(from, report);
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
        let proposed = self.referee.proposed;
        if proposed.is_some_and(|last| !now.certainly_after(last + interval)) {
            return;
        }
        // A refusal is no loss: the next tick tries again.
        if (self.consensus.propose(now, Command::CheckHash.encode())).is_ok() {
            self.referee.proposed = Some(now);
        }
    }

    /// Judges what has been reported. A replica that is wrong lets go of leadership for good: its
    /// log is as good as any, so it follows and votes on.
    pub(super) fn judge(&mut self, now: Instant) {
        if !self.referee.is_news && self.referee.differ.is_none() {
            return;
        }
        let before = self.referee.verdict;
        let voters = &self.consensus.configuration().voters;
        let voters: BTreeSet<NodeId> = voters.iter().copied().collect();
        self.referee.judge(now, self.options.id, &voters);
        let is_new = before != self.referee.verdict;
        if is_new && matches!(self.referee.verdict, Consistency::Corrupt(_)) {
            self.consensus.retire(now);
        }
    }

    fn send_report(&mut self, now: Instant) {
        let referee = &mut self.referee;
        let is_due = referee
            .send_after
            .is_none_or(|after| now.certainly_after(after));
        if referee.sends_left == 0 || !is_due {
            return;
        }
        referee.sends_left -= 1;
        referee.send_after = Some(now + SEND_INTERVAL);
        let own = self.options.id;
        let Some(report) = referee
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000 * (1_000 + millis))
    }

    fn report(index: u64, hash: u128) -> StateHash {
        StateHash {
            index: LogIndex(index),
            hash,
        }
    }

    /// The verdict of node 1 of `voters` on these reports, given over time.
    fn verdict(voters: u64, reports: &[(u64, u64, u128)]) -> Consistency {
        let voters: BTreeSet<NodeId> = (1..=voters).map(NodeId).collect();
        let mut referee = Referee::default();
        for (node, index, hash) in reports {
            referee.note(NodeId(*node), report(*index, *hash));
            referee.judge(at(0), NodeId(1), &voters);
        }
        referee.judge(at(10_000), NodeId(1), &voters);
        referee.verdict
    }

    #[test]
    fn the_minority_is_wrong_and_only_it() {
        assert_eq!(
            verdict(3, &[(1, 5, 7), (2, 5, 7), (3, 5, 8)]),
            Consistency::Sound
        );
        assert_eq!(
            verdict(3, &[(1, 5, 7), (3, 5, 8), (2, 5, 7)]),
            Consistency::Sound
        );
        let corrupt = Consistency::Corrupt(LogIndex(5));
        assert_eq!(verdict(3, &[(1, 5, 8), (2, 5, 7), (3, 5, 7)]), corrupt);
        assert_eq!(verdict(3, &[(2, 5, 7), (3, 5, 7), (1, 5, 8)]), corrupt);
        assert_eq!(verdict(1, &[(1, 5, 8)]), Consistency::Sound);
    }

    #[test]
    fn without_a_majority_nobody_serves_until_there_is_one() {
        let undecided = Consistency::Undecided(LogIndex(5));
        assert_eq!(verdict(3, &[(1, 5, 7), (2, 5, 8)]), undecided);
        assert_eq!(verdict(2, &[(1, 5, 7), (2, 5, 8)]), undecided);
        assert_eq!(verdict(3, &[(1, 5, 7), (2, 5, 8), (3, 5, 9)]), undecided);
        assert_eq!(
            verdict(
                3,
                &[(1, 5, 7), (2, 5, 8), (1, 9, 70), (2, 9, 80), (3, 9, 70)]
            ),
            Consistency::Sound
        );
    }

    #[test]
    fn reports_that_are_still_under_way_are_waited_for() {
        let voters: BTreeSet<NodeId> = (1..=3).map(NodeId).collect();
        let mut referee = Referee::default();
        referee.note(NodeId(1), report(5, 7));
        referee.note(NodeId(2), report(5, 8));
        referee.judge(at(0), NodeId(1), &voters);
        referee.judge(at(1_500), NodeId(1), &voters);
        assert_eq!(referee.verdict, Consistency::Sound);
        referee.judge(at(2_500), NodeId(1), &voters);
        assert_eq!(referee.verdict, Consistency::Undecided(LogIndex(5)));
        referee.note(NodeId(3), report(5, 7));
        referee.judge(at(2_600), NodeId(1), &voters);
        assert_eq!((referee.verdict, referee.agreed), (Consistency::Sound, 1));
    }

    #[test]
    fn one_who_is_alone_or_hears_of_other_entries_goes_on() {
        assert_eq!(verdict(3, &[(1, 5, 7)]), Consistency::Sound);
        assert_eq!(
            verdict(3, &[(1, 5, 7), (2, 6, 8), (3, 6, 8)]),
            Consistency::Sound
        );
        // Not a voter, and so not counted.
        assert_eq!(
            verdict(3, &[(1, 5, 7), (2, 5, 7), (9, 5, 8)]),
            Consistency::Sound
        );
    }

    #[test]
    fn wrong_once_is_wrong_for_good_and_memory_is_bounded() {
        let corrupt = Consistency::Corrupt(LogIndex(5));
        let reports = [
            (1, 5, 8),
            (2, 5, 7),
            (3, 5, 7),
            (1, 6, 1),
            (2, 6, 1),
            (3, 6, 1),
        ];
        assert_eq!(verdict(3, &reports), corrupt);
        let mut referee = Referee::default();
        for index in 0..1_000 {
            referee.note(NodeId(2), report(index, 1));
        }
        assert_eq!(referee.reports[&NodeId(2)].len(), CHECKS_MAX);
    }
}
