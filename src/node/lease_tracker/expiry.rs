//! Expiry: how due leases are found, proposed, retried and continued.

use std::time::Duration;

use super::promotion::{nanos, next_in};
use super::{CONTINUED_MAX, FLIGHTS_MAX, LEASE_BATCH_MAX, LeaseTracker, VISITS_MAX};
use crate::api::LeaseRef;
use crate::time::Instant;
use crate::types::LogIndex;

impl LeaseTracker {
    /// Finds the leases due at `now`. Examines at most some thousand; if there are more,
    /// [`Self::next_wakeup`] is now.
    pub fn tick(&mut self, now: Instant) {
        let Some(promotion) = &mut self.promotion else {
            return;
        };
        let mut visits = VISITS_MAX;
        promotion.has_more = false;
        let tick = nanos(self.options.tick);
        while let Some(mut bucket) = promotion.wheel.first_entry() {
            if bucket.key().saturating_mul(tick) > now.boot {
                break;
            }
            if visits == 0 {
                promotion.has_more = true;
                return;
            }
            let Some(lease) = bucket.get_mut().pop() else {
                bucket.remove();
                continue;
            };
            visits -= 1;
            let Some(tracked) = self.leases.get_mut(&lease.id) else {
                continue;
            };
            let is_same = tracked.terms.lease == lease && tracked.epoch == self.epoch;
            if !is_same {
                continue;
            }
            tracked.is_in_wheel = false;
            if now.certainly_after(tracked.deadline) {
                promotion.queue(tracked);
            } else {
                let left = tracked.deadline.at_most_since(now);
                promotion.put_at(&self.options, tracked, now.boot.saturating_add(nanos(left)));
            }
        }
        while let Some((restart_ms, id)) = next_in(&self.order, promotion.walked) {
            if !now.certainly_after(promotion.began + Duration::from_millis(restart_ms)) {
                break;
            }
            if visits == 0 {
                promotion.has_more = true;
                return;
            }
            visits -= 1;
            promotion.walked = Some((restart_ms, id));
            let tracked = self
                .leases
                .get_mut(&id)
                .expect("the order has what is there");
            let is_covered = tracked.terms.lease.grant_index <= promotion.applied.0;
            if tracked.epoch != self.epoch && is_covered {
                tracked.note(self.epoch, now);
                tracked.deadline = promotion.began + Duration::from_millis(restart_ms);
                promotion.queue(tracked);
            }
        }
    }

    /// The next leases whose expiry to propose; empty while enough proposals are in flight. The
    /// caller must report the outcome with [`Self::proposed`] or [`Self::not_proposed`].
    pub fn take_due(&mut self, now: Instant) -> Vec<LeaseRef> {
        let Some(promotion) = &mut self.promotion else {
            return Vec::new();
        };
        let mut batch = Vec::new();
        if promotion.flights.len() >= FLIGHTS_MAX {
            return batch;
        }
        while batch.len() < LEASE_BATCH_MAX
            && let Some(lease) = promotion.due.pop_front()
        {
            let Some(tracked) = self.leases.get_mut(&lease.id) else {
                continue;
            };
            if tracked.terms.lease != lease || tracked.epoch != self.epoch {
                continue;
            }
            tracked.is_queued = false;
            let is_expiring = promotion.expiring.contains_key(&lease.id);
            // It may have been renewed while it was queued.
            let is_due = is_expiring || now.certainly_after(tracked.deadline);
            if is_due && tracked.terms.ending.is_none() {
                batch.push(lease);
            }
        }
        assert!(
            batch.len() <= LEASE_BATCH_MAX,
            "one entry ends a bounded number of leases"
        );
        batch
    }

    /// The expiry of `batch` is in the log at `index`; these leases can no longer be renewed (A15).
    pub fn proposed(&mut self, index: LogIndex, batch: Vec<LeaseRef>) {
        let Some(promotion) = &mut self.promotion else {
            return;
        };
        let newest = promotion.flights.last_key_value();
        assert!(
            newest.is_none_or(|(newest, _)| *newest < index),
            "later proposals stand later in the log"
        );
        for lease in &batch {
            promotion.expiring.insert(lease.id, Some(index));
        }
        promotion.flights.insert(index, batch);
        assert!(
            promotion.flights.len() <= FLIGHTS_MAX,
            "expiries in flight are bounded"
        );
    }

    /// The expiry of `batch` could not be proposed: it is retried.
    pub fn not_proposed(&mut self, batch: Vec<LeaseRef>) {
        let Some(promotion) = &mut self.promotion else {
            return;
        };
        for lease in batch.into_iter().rev() {
            if let Some(tracked) = self.leases.get_mut(&lease.id) {
                tracked.is_queued = true;
                promotion.due.push_front(lease);
            }
        }
    }

    /// The entry at `index`, of this leadership, has been applied, and its changes taken in.
    pub fn landed(&mut self, index: LogIndex) {
        let Some(promotion) = &mut self.promotion else {
            return;
        };
        for lease in promotion.flights.remove(&index).unwrap_or_default() {
            let Some(tracked) = self.leases.get_mut(&lease.id) else {
                promotion.expiring.remove(&lease.id);
                continue;
            };
            let is_same = lease.means(tracked.terms.lease.grant_index);
            if !is_same || tracked.terms.ending.is_some() {
                promotion.expiring.remove(&lease.id);
                continue;
            }
            // A failed expiry is retried.
            promotion.expiring.insert(lease.id, None);
            if !tracked.is_queued {
                tracked.is_queued = true;
                promotion.due.push_back(lease);
            }
        }
        for mark in promotion.mark_flights.remove(&index).unwrap_or_default() {
            promotion.marking.remove(&mark.lease.id);
        }
        if promotion.continuing == Some(index) {
            promotion.continuing = None;
        }
    }

    /// Leases whose deletion to continue; empty while a continuation is in flight.
    pub fn to_continue(&self) -> Vec<LeaseRef> {
        match &self.promotion {
            Some(promotion) if promotion.continuing.is_none() => {
                let some = self.revoking.iter().take(CONTINUED_MAX);
                some.filter_map(|id| self.leases.get(id))
                    .map(|tracked| tracked.terms.lease)
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// The continuation is in the log at `index`.
    pub fn continued(&mut self, index: LogIndex) {
        if let Some(promotion) = &mut self.promotion {
            promotion.continuing = Some(index);
        }
    }
}
