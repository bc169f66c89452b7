//! The state of a promoted leader: its timer wheel of deadlines, and its decisions in flight.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use super::LeaseOptions;
use crate::api::LeaseRef;
use crate::kv::{LeaseMark, LeaseTerms};
use crate::time::Instant;
use crate::types::{LogIndex, Term};

#[derive(Debug)]
pub(super) struct TrackedLease {
    pub(super) terms: LeaseTerms,
    /// In which promotion the rest was noted.
    pub(super) epoch: u64,
    pub(super) deadline: Instant,
    /// When its terms changed last, in this promotion.
    pub(super) changed: Instant,
    pub(super) is_in_wheel: bool,
    /// It is queued to be proposed.
    pub(super) is_queued: bool,
    /// How often it was renewed, and in which promotion; 0 in the one in which it was granted, until it is.
    /// Apart from the rest, because a lease may get a deadline without being renewed.
    pub(super) renewals: u64,
    pub(super) renewals_epoch: u64,
}

/// What a promoted leader knows.
#[derive(Debug)]
pub(super) struct Promotion {
    pub(super) term: Term,
    pub(super) began: Instant,
    /// What was applied then: the rule of the order covers no later grants (A12).
    pub(super) applied: LogIndex,
    /// How far the order has been walked.
    pub(super) walked: Option<(u64, i64)>,
    /// Bucket of the boot clock → leases to look at then.
    pub(super) wheel: BTreeMap<u64, Vec<LeaseRef>>,
    /// Due leases to be proposed.
    pub(super) due: VecDeque<LeaseRef>,
    /// In an entry that has not been applied; `None` where that entry did not end it, and another
    /// will be proposed.
    pub(super) expiring: BTreeMap<i64, Option<LogIndex>>,
    /// Entries of expiries that have not been applied.
    pub(super) flights: BTreeMap<LogIndex, Vec<LeaseRef>>,
    /// Leases in an entry of marks that has not been applied.
    pub(super) marking: BTreeSet<i64>,
    pub(super) mark_flights: BTreeMap<LogIndex, Vec<LeaseMark>>,
    /// Renewals wait for these to lose their checkpoint.
    pub(super) clears: VecDeque<LeaseRef>,
    pub(super) continuing: Option<LogIndex>,
    /// When checkpoints are looked after next, and with which lease that goes on.
    pub(super) checkpoint_due: Instant,
    pub(super) checkpoint_from: Option<i64>,
    pub(super) has_more: bool,
}

impl TrackedLease {
    /// What was noted of it in an earlier promotion is void.
    pub(super) fn note(&mut self, epoch: u64, now: Instant) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.deadline = Instant::ZERO;
            self.changed = now;
            self.is_in_wheel = false;
            self.is_queued = false;
        }
    }

    /// Counts renewals from 0 again unless they are of this promotion already. Whether it did.
    pub(super) fn restart_renewals(&mut self, epoch: u64) -> bool {
        let is_due = self.renewals_epoch != epoch;
        if is_due {
            self.renewals = 0;
            self.renewals_epoch = epoch;
        }
        is_due
    }

    pub(super) fn deadline_in(
        &self,
        epoch: u64,
        promotion: &Promotion,
        restart_ms: u64,
    ) -> Instant {
        match self.epoch == epoch {
            true => self.deadline,
            false => promotion.began + Duration::from_millis(restart_ms),
        }
    }
}

impl Promotion {
    /// Has the wheel come by the lease at its deadline, unless it does so earlier already.
    pub(super) fn put(&mut self, options: &LeaseOptions, tracked: &mut TrackedLease) {
        if !tracked.is_in_wheel {
            let boot = tracked.deadline.boot;
            self.put_at(options, tracked, boot);
        }
    }

    /// Has the wheel come by the lease at `boot`, rounded up.
    pub(super) fn put_at(&mut self, options: &LeaseOptions, tracked: &mut TrackedLease, boot: u64) {
        tracked.is_in_wheel = true;
        let bucket = boot.div_ceil(nanos(options.tick).max(1));
        self.wheel
            .entry(bucket)
            .or_default()
            .push(tracked.terms.lease);
    }

    pub(super) fn queue(&mut self, tracked: &mut TrackedLease) {
        if !tracked.is_queued && tracked.terms.ending.is_none() {
            tracked.is_queued = true;
            self.due.push_back(tracked.terms.lease);
        }
    }
}

pub(super) fn next_in(
    order: &BTreeSet<(u64, i64)>,
    walked: Option<(u64, i64)>,
) -> Option<(u64, i64)> {
    let from = match walked {
        Some(last) => Bound::Excluded(last),
        None => Bound::Unbounded,
    };
    order.range((from, Bound::Unbounded)).next().copied()
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
