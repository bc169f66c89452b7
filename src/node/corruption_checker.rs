//! Comparison of the replicas' state hashes (D1).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::raft::StateHash;
use crate::time::Instant;
use crate::types::{LogIndex, NodeId};

/// The result of comparing this replica's state with the others'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateCheck {
    /// No report contradicts it.
    #[default]
    Sound,
    /// At this entry replicas differ, and no majority of the voters agrees.
    Undecided(LogIndex),
    /// At this entry a majority of the voters has a different state.
    Corrupt(LogIndex),
    /// The leader has another entry in this place, though this one is committed here or of the same term (A27).
    Diverged(LogIndex),
}

impl StateCheck {
    /// The state may be served.
    pub fn is_sound(self) -> bool {
        self == Self::Sound
    }
}

/// Number of reports kept per replica.
pub(super) const CHECKS_MAX: usize = 8;
/// How long replicas may differ without a majority before it counts, because reports may be in
/// flight.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// Compares reports.
#[derive(Debug, Default)]
pub(super) struct CorruptionChecker {
    /// The last reports of each replica, this one's among them, the oldest first.
    pub(super) reports: BTreeMap<NodeId, VecDeque<StateHash>>,
    /// Since when, and at which entry, replicas differ without a majority.
    pub(super) differ: Option<(Instant, LogIndex)>,
    pub(super) verdict: StateCheck,
    /// There is a report that has not been evaluated.
    pub(super) is_news: bool,
    /// When this node, as leader, last proposed a check.
    pub(super) proposed: Option<Instant>,
    pub(super) sends_left: u32,
    pub(super) send_after: Option<Instant>,
    /// Checks of this replica that a majority has agreed with.
    pub(super) agreed: u64,
    pub(super) agreed_at: LogIndex,
}

impl CorruptionChecker {
    pub(super) fn note(&mut self, of: NodeId, report: StateHash) {
        let reports = self.reports.entry(of).or_default();
        if reports.contains(&report) {
            return;
        }
        self.is_news = true;
        // A restarted process may repeat an earlier report.
        reports.retain(|known| known.index != report.index);
        reports.push_back(report);
        if reports.len() > CHECKS_MAX {
            reports.pop_front();
        }
    }

    /// What the reports say at `index`: the hash that a majority of `voters` has, and whether any
    /// two differ.
    pub(super) fn count(&self, voters: &BTreeSet<NodeId>, index: LogIndex) -> (Option<u128>, bool) {
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
    pub(super) fn judge(&mut self, now: Instant, own: NodeId, voters: &BTreeSet<NodeId>) {
        self.is_news = false;
        planted!(NeverCompared => return);
        if let StateCheck::Corrupt(_) = self.verdict {
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
                    self.verdict = StateCheck::Sound;
                    return;
                }
                (Some(_), _) if planted!(DifferenceForgiven) => {}
                (Some(_), _) => {
                    self.differ = None;
                    self.verdict = StateCheck::Corrupt(report.index);
                    return;
                }
                (None, true) => {
                    let (since, index) = *self.differ.get_or_insert((now, report.index));
                    if now.certainly_after(since + GRACE) {
                        self.verdict = StateCheck::Undecided(index);
                    }
                    return;
                }
                // No report has contradicted it yet.
                (None, false) => {}
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
    fn verdict(voters: u64, reports: &[(u64, u64, u128)]) -> StateCheck {
        let voters: BTreeSet<NodeId> = (1..=voters).map(NodeId).collect();
        let mut checker = CorruptionChecker::default();
        for (node, index, hash) in reports {
            checker.note(NodeId(*node), report(*index, *hash));
            checker.judge(at(0), NodeId(1), &voters);
        }
        checker.judge(at(10_000), NodeId(1), &voters);
        checker.verdict
    }

    #[test]
    fn the_minority_is_wrong_and_only_it() {
        assert_eq!(
            verdict(3, &[(1, 5, 7), (2, 5, 7), (3, 5, 8)]),
            StateCheck::Sound
        );
        assert_eq!(
            verdict(3, &[(1, 5, 7), (3, 5, 8), (2, 5, 7)]),
            StateCheck::Sound
        );
        let corrupt = StateCheck::Corrupt(LogIndex(5));
        assert_eq!(verdict(3, &[(1, 5, 8), (2, 5, 7), (3, 5, 7)]), corrupt);
        assert_eq!(verdict(3, &[(2, 5, 7), (3, 5, 7), (1, 5, 8)]), corrupt);
        assert_eq!(verdict(1, &[(1, 5, 8)]), StateCheck::Sound);
    }

    #[test]
    fn without_a_majority_nobody_serves_until_there_is_one() {
        let undecided = StateCheck::Undecided(LogIndex(5));
        assert_eq!(verdict(3, &[(1, 5, 7), (2, 5, 8)]), undecided);
        assert_eq!(verdict(2, &[(1, 5, 7), (2, 5, 8)]), undecided);
        assert_eq!(verdict(3, &[(1, 5, 7), (2, 5, 8), (3, 5, 9)]), undecided);
        assert_eq!(
            verdict(
                3,
                &[(1, 5, 7), (2, 5, 8), (1, 9, 70), (2, 9, 80), (3, 9, 70)]
            ),
            StateCheck::Sound
        );
    }

    #[test]
    fn reports_that_are_still_under_way_are_waited_for() {
        let voters: BTreeSet<NodeId> = (1..=3).map(NodeId).collect();
        let mut checker = CorruptionChecker::default();
        checker.note(NodeId(1), report(5, 7));
        checker.note(NodeId(2), report(5, 8));
        checker.judge(at(0), NodeId(1), &voters);
        checker.judge(at(1_500), NodeId(1), &voters);
        assert_eq!(checker.verdict, StateCheck::Sound);
        checker.judge(at(2_500), NodeId(1), &voters);
        assert_eq!(checker.verdict, StateCheck::Undecided(LogIndex(5)));
        checker.note(NodeId(3), report(5, 7));
        checker.judge(at(2_600), NodeId(1), &voters);
        assert_eq!((checker.verdict, checker.agreed), (StateCheck::Sound, 1));
    }

    #[test]
    fn one_who_is_alone_or_hears_of_other_entries_goes_on() {
        assert_eq!(verdict(3, &[(1, 5, 7)]), StateCheck::Sound);
        assert_eq!(
            verdict(3, &[(1, 5, 7), (2, 6, 8), (3, 6, 8)]),
            StateCheck::Sound
        );
        // Not a voter, and so not counted.
        assert_eq!(
            verdict(3, &[(1, 5, 7), (2, 5, 7), (9, 5, 8)]),
            StateCheck::Sound
        );
    }

    #[test]
    fn wrong_once_is_wrong_for_good_and_memory_is_bounded() {
        let corrupt = StateCheck::Corrupt(LogIndex(5));
        let reports = [
            (1, 5, 8),
            (2, 5, 7),
            (3, 5, 7),
            (1, 6, 1),
            (2, 6, 1),
            (3, 6, 1),
        ];
        assert_eq!(verdict(3, &reports), corrupt);
        let mut checker = CorruptionChecker::default();
        for index in 0..1_000 {
            checker.note(NodeId(2), report(index, 1));
        }
        assert_eq!(checker.reports[&NodeId(2)].len(), CHECKS_MAX);
    }
}
