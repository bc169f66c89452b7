//! Checkpoints of leases in the log: the remaining time of long ones, and its removal (T9, A13).

use std::ops::Bound;
use std::time::Duration;

use super::{LEASE_BATCH_MAX, LeaseTracker, VISITS_MAX, millis_up, restart_ms};
use crate::kv::{LeaseMark, LeaseMarkKind};
use crate::time::Instant;
use crate::types::LogIndex;

impl LeaseTracker {
    /// What is to be noted of leases: checkpoints to clear before renewals, and, now and then,
    /// checkpoints to make (T9). Of each lease one mark at most is under way (A14).
    pub fn take_marks(&mut self, now: Instant) -> Vec<LeaseMark> {
        let mut marks = Vec::new();
        let Some(promotion) = &mut self.promotion else {
            return marks;
        };
        while marks.len() < LEASE_BATCH_MAX
            && let Some(lease) = promotion.clears.pop_front()
        {
            let known = self.leases.get(&lease.id);
            let waits = known.is_some_and(|known| known.terms.is_checkpointed);
            if waits && !promotion.marking.contains(&lease.id) {
                let kind = LeaseMarkKind::Clear;
                marks.push(LeaseMark { lease, kind });
            }
        }
        if !marks.is_empty() || !promotion.mark_flights.is_empty() {
            return marks;
        }
        if !now.certainly_after(promotion.checkpoint_due) {
            return marks;
        }
        let from = match promotion.checkpoint_from {
            Some(last) => Bound::Excluded(last),
            None => Bound::Unbounded,
        };
        let mut visits = VISITS_MAX;
        let mut last = None;
        for &id in self.long.range((from, Bound::Unbounded)) {
            if visits == 0 || marks.len() == LEASE_BATCH_MAX {
                break;
            }
            visits -= 1;
            last = Some(id);
            let tracked = &self.leases[&id];
            let is_expiring = promotion.expiring.contains_key(&id);
            if is_expiring || tracked.terms.ending.is_some() || promotion.marking.contains(&id) {
                continue;
            }
            let deadline = tracked.deadline_in(
                self.epoch,
                promotion,
                restart_ms(self.restart_min_ms, &tracked.terms),
            );
            // By the clock that says more: a new leader must not end it sooner than this one (A14).
            let left = match planted!(CheckpointByFasterClock) {
                true => deadline.at_least_since(now),
                false => deadline.at_most_since(now),
            };
            let left_ms = millis_up(left) + 1;
            let stale_ms = restart_ms(self.restart_min_ms, &tracked.terms).saturating_sub(left_ms);
            if stale_ms >= millis_up(self.options.checkpoint_interval) / 2 {
                let kind = LeaseMarkKind::Remaining(left_ms);
                let lease = tracked.terms.lease;
                marks.push(LeaseMark { lease, kind });
            }
        }
        let at_end = last.is_none_or(|last| self.long.last() == Some(&last));
        promotion.checkpoint_from = if at_end { None } else { last };
        if at_end {
            promotion.checkpoint_due = now + self.options.checkpoint_interval;
        }
        self.counts.checkpoints += marks.len() as u64;
        if at_end && marks.is_empty() {
            marks = self.take_settled(now);
        }
        marks
    }

    /// Leases whose current deadline is now the latest that any client was promised (A13).
    fn take_settled(&mut self, now: Instant) -> Vec<LeaseMark> {
        let Some(promotion) = &self.promotion else {
            return Vec::new();
        };
        let settled = self.outlasting.iter().filter_map(|id| {
            let tracked = self.leases.get(id)?;
            let since = match tracked.epoch == self.epoch {
                true => tracked.changed,
                false => promotion.began,
            };
            let over = since + Duration::from_millis(tracked.terms.restart_ms);
            let is_over = now.certainly_after(over) && !tracked.terms.is_checkpointed;
            (is_over && !promotion.marking.contains(id)).then_some(LeaseMark {
                lease: tracked.terms.lease,
                kind: LeaseMarkKind::Settle {
                    ttl_ms: tracked.terms.ttl_ms,
                },
            })
        });
        settled.take(LEASE_BATCH_MAX).collect()
    }

    /// These marks stand in the log at `index`.
    pub fn marked(&mut self, index: LogIndex, marks: Vec<LeaseMark>) {
        if let Some(promotion) = &mut self.promotion {
            promotion
                .marking
                .extend(marks.iter().map(|mark| mark.lease.id));
            promotion.mark_flights.insert(index, marks);
        }
    }
}
