//! What history a leader gives up by itself, and when.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Instant;

/// The automatic compaction of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoCompaction {
    /// None.
    #[default]
    Off,
    /// By age.
    Periodic {
        /// The minimum time for which a superseded revision can be read.
        retention: Duration,
    },
    /// By number of revisions.
    Revisions {
        /// How many.
        keep: u64,
    },
}

/// Records per retention period, which determine its precision.
pub(super) const NOTES: u32 = 10;
/// Minimum interval between records, however short the retention is.
pub(super) const NOTE_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Interval between checks for excess revisions.
pub(super) const REVISIONS_INTERVAL: Duration = Duration::from_secs(10);

/// When each revision was reached.
#[derive(Debug)]
pub(super) struct Compactor {
    pub(super) rule: AutoCompaction,
    /// The oldest first.
    pub(super) notes: VecDeque<(Instant, i64)>,
    /// The newest revision that was reached at least one retention period ago.
    pub(super) aged: i64,
    /// The last revision proposed here; none is proposed twice.
    pub(super) proposed: i64,
    pub(super) noted: Option<Instant>,
}

impl Compactor {
    pub(super) fn new(rule: AutoCompaction) -> Self {
        Self {
            rule,
            notes: VecDeque::new(),
            aged: 0,
            proposed: 0,
            noted: None,
        }
    }

    /// The interval between checks.
    pub(super) fn interval(&self) -> Option<Duration> {
        match self.rule {
            AutoCompaction::Off => None,
            AutoCompaction::Periodic { retention } => {
                Some((retention / NOTES).max(NOTE_INTERVAL_MIN))
            }
            AutoCompaction::Revisions { .. } => Some(REVISIONS_INTERVAL),
        }
    }

    /// Adds a record if it is time to, and returns the revision to compact to.
    pub(super) fn look(&mut self, now: Instant, revision: i64) -> Option<i64> {
        let interval = self.interval()?;
        let is_due = self
            .noted
            .is_none_or(|noted| now.certainly_after(noted + interval));
        if !is_due {
            return None;
        }
        self.noted = Some(now);
        let target = match self.rule {
            AutoCompaction::Off => return None,
            AutoCompaction::Revisions { keep } => {
                let keep = i64::try_from(keep).unwrap_or(i64::MAX);
                revision.saturating_sub(keep)
            }
            AutoCompaction::Periodic { retention } => {
                self.notes.push_back((now, revision));
                while let Some((noted, reached)) = self.notes.front().copied() {
                    if !now.certainly_after(noted + retention) {
                        break;
                    }
                    self.aged = reached;
                    self.notes.pop_front();
                }
                self.aged
            }
        };
        (target > self.proposed.max(1)).then_some(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 * (1 + seconds))
    }

    #[test]
    fn what_was_reached_a_retention_ago_may_go_and_nothing_younger() {
        let retention = Duration::from_secs(100);
        let mut compactor = Compactor::new(AutoCompaction::Periodic { retention });
        let mut given_up = Vec::new();
        for second in 0..400 {
            // One revision a second.
            let revision = 2 + second as i64;
            if let Some(target) = compactor.look(at(second), revision) {
                compactor.proposed = target;
                given_up.push((second, target));
            }
        }
        assert!(given_up.len() > 20, "{given_up:?}");
        for (second, target) in given_up {
            let age = second as i64 - (target - 2);
            assert!((100..=125).contains(&age), "{target} at {second}");
        }
    }

    #[test]
    fn nothing_new_is_not_proposed_again_and_a_refused_proposal_is() {
        let retention = Duration::from_secs(10);
        let mut compactor = Compactor::new(AutoCompaction::Periodic { retention });
        let looks = |compactor: &mut Compactor, seconds: std::ops::Range<u64>| {
            seconds
                .filter_map(|second| compactor.look(at(second), 7))
                .collect::<Vec<i64>>()
        };
        let asked = looks(&mut compactor, 0..30);
        assert!(asked.len() > 1 && asked.iter().all(|target| *target == 7));
        compactor.proposed = 7;
        assert_eq!(looks(&mut compactor, 30..90), Vec::<i64>::new());
    }

    #[test]
    fn by_revision_the_newest_are_kept() {
        let mut compactor = Compactor::new(AutoCompaction::Revisions { keep: 100 });
        assert_eq!(compactor.look(at(0), 90), None);
        assert_eq!(compactor.look(at(11), 150), Some(50));
        assert_eq!(compactor.look(at(12), 250), None, "not so soon");
        assert_eq!(compactor.look(at(30), 250), Some(150));
        compactor.proposed = 150;
        assert_eq!(compactor.look(at(50), 250), None);
        let mut all = Compactor::new(AutoCompaction::Revisions { keep: u64::MAX });
        assert_eq!(all.look(at(0), i64::MAX), None);
    }

    #[test]
    fn nothing_goes_where_it_is_off() {
        let mut compactor = Compactor::new(AutoCompaction::Off);
        assert_eq!(compactor.look(at(0), 1_000), None);
        assert_eq!(compactor.look(at(1_000_000), 2_000), None);
    }
}
