//! The leader's table of lease deadlines (docs/protocol.md, T).
//!
//! Every replica keeps the list of leases, as applied entries make it. Deadlines exist on a leader
//! that has been *promoted*: one that has applied everything it was elected with (T1). Promotion
//! takes no time, however many leases there are: a lease not renewed since then is due at
//! *promotion + its time to live*, and the list is kept in that order, so it is walked only as far
//! as time has come (T11). A lease that was renewed, granted or changed since has a deadline of its
//! own, in a wheel of buckets of one tick; a renewal is one look-up and a number, and the lease
//! moves in the wheel when its old bucket comes round.
//!
//! A lease does not end with its deadline. A due lease is proposed for expiry; from the moment its
//! entry is in the log it is *expiring*: it can no longer be renewed (T4), and it is not reported
//! as ended until the entry has been applied (A15). A leader that steps down drops all of this.
//!
//! Pure: takes `now`, and returns what is due.

mod expiry;
mod marks;
mod options;
mod promotion;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use crate::api::{LeaseKept, LeaseRef};
use crate::kv::{HeldLeases, LeaseChange, LeaseEnd, LeaseTerms};
use crate::time::Instant;
use crate::types::{LogIndex, Term};

pub use options::LeaseOptions;

use promotion::{Promotion, TrackedLease, nanos, next_in};

/// Maximum number of leases that one entry expires, checkpoints or continues.
pub const LEASE_BATCH_MAX: usize = 512;
/// Maximum number of expiry entries in flight.
const FLIGHTS_MAX: usize = 2;
/// Maximum number of leases examined in one step, so that half a million due at once delay no
/// heartbeat.
const VISITS_MAX: usize = 4096;
/// Most leases whose keys are deleted further by one entry.
const CONTINUED_MAX: usize = 16;
/// How many ended leases are remembered with the reason.
const ENDED_MAX: usize = 4096;
/// How many of the leases that ended since the last call are named.
const ENDED_NAMED_MAX: usize = 16;
/// Of so many renewals one is measured, the first of them.
pub const RENEWALS_SAMPLED: u64 = 64;

/// The leases, and on a leader their deadlines.
#[derive(Debug)]
pub struct LeaseTracker {
    options: LeaseOptions,
    /// The minimum time that a lease with a checkpoint gets from a new leader.
    restart_min_ms: u64,
    leases: BTreeMap<i64, TrackedLease>,
    /// The number of keys attached to all of them.
    keys: u64,
    /// Every lease by what it gets from a new leader, in milliseconds.
    order: BTreeSet<(u64, i64)>,
    /// Leases that are long enough for checkpoints.
    long: BTreeSet<i64>,
    /// Leases to whom more may be promised than they have now.
    outlasting: BTreeSet<i64>,
    /// Ended leases whose keys are being deleted.
    revoking: BTreeSet<i64>,
    /// Of the leases that ended last: why, by id; and in their order.
    ended: BTreeMap<i64, (u64, LeaseEnd)>,
    ended_order: VecDeque<i64>,
    /// Rises with each promotion: what was noted of a lease in an earlier one is void.
    epoch: u64,
    promotion: Option<Promotion>,
    /// Renewals so far, of which some are measured.
    renewals: u64,
    counts: LeaseCounts,
}

/// What happened since the last call, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Leases granted: their times to live, in milliseconds.
    pub granted_ttl_ms: Vec<u64>,
    /// Leases that expired.
    pub expired: u64,
    /// Leases that were revoked.
    pub revoked: u64,
    /// Of each lease that expired under this leader: how long after it was due the entry was
    /// applied.
    pub late: Vec<Duration>,
    /// The first of those that ended, with the reason: enough for a log.
    pub ended: Vec<(LeaseRef, LeaseEnd)>,
    /// Of one renewal in [`RENEWALS_SAMPLED`]: which part of its time the lease still had, in
    /// thousandths.
    pub left_at_renewal: Vec<u64>,
    /// Checkpoints proposed.
    pub checkpoints: u64,
    /// Times this leader extended every lease to its full TTL, and why.
    pub lapses: Vec<Lapse>,
}

/// What a leader has seen of the renewals of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewals {
    /// How many there were since the lease was granted, or since all leases restarted last.
    pub count: u64,
    /// None, and the lease was granted before that: its deadline is from the restart.
    pub is_extended: bool,
}

/// Why a leader extended every lease to its full TTL (T15): its clients may have been unable to
/// renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lapse {
    /// It was paused for this long.
    StoodStill(Duration),
    /// One of its clocks went backwards.
    ClockWentBack,
    /// No quorum answered it for this long.
    NoQuorum(Duration),
}

impl LeaseTracker {
    /// Of no lease yet. A lease with a checkpoint gets at least `restart_min` from a new leader:
    /// time for its holder to find that leader.
    pub fn new(options: LeaseOptions, restart_min: Duration) -> Self {
        Self {
            options,
            restart_min_ms: millis_up(restart_min),
            leases: BTreeMap::new(),
            keys: 0,
            order: BTreeSet::new(),
            long: BTreeSet::new(),
            outlasting: BTreeSet::new(),
            revoking: BTreeSet::new(),
            ended: BTreeMap::new(),
            ended_order: VecDeque::new(),
            epoch: 0,
            promotion: None,
            renewals: 0,
            counts: LeaseCounts::default(),
        }
    }

    /// Takes in the leases that the store holds at the start.
    pub fn restore(&mut self, held: HeldLeases) {
        self.keys = held.keys;
        for terms in held.terms {
            self.insert(terms);
        }
        self.check();
    }

    /// How many leases there are.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// The number of keys attached to all of them.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// How many are due and have not been ended yet.
    pub fn expiring(&self) -> usize {
        let of = |promotion: &Promotion| {
            let flying: usize = promotion.flights.values().map(Vec::len).sum();
            promotion.due.len() + flying
        };
        self.promotion.as_ref().map_or(0, of)
    }

    /// What happened since the last call.
    pub fn take_counts(&mut self) -> LeaseCounts {
        std::mem::take(&mut self.counts)
    }

    /// Counts `lapse`, after which every lease starts with its full TTL.
    pub fn lapsed(&mut self, lapse: Lapse) {
        self.counts.lapses.push(lapse);
    }

    /// The term for which it keeps deadlines.
    pub fn promoted_in(&self) -> Option<Term> {
        self.promotion.as_ref().map(|promotion| promotion.term)
    }

    /// The leader of `term` has applied everything it was elected with, up to `applied` at least:
    /// every lease restarts with its full time to live. Called again in the same term after the leader
    /// was suspended (T15): leases that are already expiring stay so.
    pub fn promote(&mut self, now: Instant, term: Term, applied: LogIndex) {
        let before = self
            .promotion
            .take()
            .filter(|promotion| promotion.term == term);
        if !planted!(DeadlinesKept) {
            self.epoch += 1;
        }
        let mut promotion = Promotion {
            term,
            began: now,
            applied,
            walked: None,
            wheel: BTreeMap::new(),
            due: VecDeque::new(),
            expiring: BTreeMap::new(),
            flights: BTreeMap::new(),
            marking: BTreeSet::new(),
            mark_flights: BTreeMap::new(),
            clears: VecDeque::new(),
            continuing: None,
            checkpoint_due: now + self.options.checkpoint_interval,
            checkpoint_from: None,
            has_more: false,
        };
        if let Some(before) = before {
            promotion.expiring = before.expiring;
            promotion.flights = before.flights;
            promotion.marking = before.marking;
            promotion.mark_flights = before.mark_flights;
            promotion.continuing = before.continuing;
            for (id, at) in &promotion.expiring {
                let Some(tracked) = self.leases.get_mut(id) else {
                    continue;
                };
                let deadline = tracked.deadline;
                tracked.note(self.epoch, now);
                tracked.deadline = deadline;
                if at.is_none() {
                    tracked.is_queued = true;
                    promotion.due.push_back(tracked.terms.lease);
                }
            }
        }
        planted!(DeadlinesKept => for tracked in self.leases.values_mut() {
            if tracked.epoch == self.epoch {
                promotion.put_at(&self.options, tracked, tracked.deadline.boot);
            }
        });
        self.promotion = Some(promotion);
    }

    /// This node is no longer leader: drops the deadlines.
    pub fn demote(&mut self) {
        self.promotion = None;
    }

    /// Records the effect of an entry on a lease; `now` is a reading from after it was applied.
    pub fn apply(&mut self, now: Instant, change: LeaseChange) {
        match change {
            LeaseChange::Granted(terms) => {
                self.counts.granted_ttl_ms.push(terms.ttl_ms);
                self.insert(terms);
                let ttl = Duration::from_millis(terms.ttl_ms);
                self.give(terms.lease.id, now, now + ttl);
                if self.promotion.is_some()
                    && let Some(tracked) = self.leases.get_mut(&terms.lease.id)
                {
                    tracked.restart_renewals(self.epoch);
                }
            }
            LeaseChange::Changed(terms) => {
                // Its deadline is what it was, however the terms are now (A13).
                let deadline = self.deadline(terms.lease.id);
                #[cfg(leasehold_bugs)]
                let deadline = match planted!(NewTtlCountsAtOnce) {
                    true => deadline.map(|_| now + Duration::from_millis(terms.ttl_ms)),
                    false => deadline,
                };
                self.insert(terms);
                if let Some(deadline) = deadline {
                    self.give(terms.lease.id, now, deadline);
                }
            }
            LeaseChange::Ended(lease, cause) => {
                match cause {
                    LeaseEnd::Expired => {
                        self.counts.expired += 1;
                        if let Some(deadline) = self.deadline(lease.id) {
                            self.counts.late.push(now.at_least_since(deadline));
                        }
                    }
                    LeaseEnd::Revoked => self.counts.revoked += 1,
                }
                if self.counts.ended.len() < ENDED_NAMED_MAX {
                    self.counts.ended.push((lease, cause));
                }
                self.remove(lease.id);
                self.remember(lease, cause);
            }
        }
        self.check();
    }

    /// What must hold after every change of a lease.
    fn check(&self) {
        assert_eq!(
            self.order.len(),
            self.leases.len(),
            "every lease stands in the order once"
        );
        for part in [&self.long, &self.outlasting, &self.revoking] {
            assert!(
                part.len() <= self.leases.len(),
                "only leases that exist are looked after"
            );
        }
        assert_eq!(
            self.ended.len(),
            self.ended_order.len(),
            "every ended lease is remembered once"
        );
        assert!(
            self.ended.len() <= ENDED_MAX,
            "the memory of ended leases is bounded"
        );
    }

    /// An entry left so many more keys on leases; fewer, if negative.
    pub fn attached(&mut self, more: i64) {
        self.keys = self.keys.saturating_add_signed(more);
    }

    /// Renews a lease, if it can be. `now` is a reading from after the renewal arrived, and the
    /// caller has made sure that this node led then and still does, with all that was committed
    /// before the renewal applied if `is_caught_up`.
    pub fn renew(&mut self, now: Instant, lease: LeaseRef, is_caught_up: bool) -> LeaseKept {
        let deadline = self.deadline(lease.id);
        let Some(promotion) = &mut self.promotion else {
            return LeaseKept::Undecided;
        };
        let known = self.leases.get_mut(&lease.id);
        let known = known.filter(|known| lease.means(known.terms.lease.grant_index));
        let Some(tracked) = known else {
            return match self.ended.get(&lease.id) {
                Some((index, LeaseEnd::Expired)) if lease.means(*index) => LeaseKept::Expired,
                Some((index, LeaseEnd::Revoked)) if lease.means(*index) => LeaseKept::Revoked,
                _ if is_caught_up => LeaseKept::NotFound,
                _ => LeaseKept::Undecided,
            };
        };
        match tracked.terms.ending {
            Some(LeaseEnd::Expired) => return LeaseKept::Expired,
            Some(LeaseEnd::Revoked) => return LeaseKept::Revoked,
            None => {}
        }
        if promotion.expiring.contains_key(&lease.id) && !planted!(ExpiringRevived) {
            return LeaseKept::Undecided;
        }
        let in_flight = promotion.marking.contains(&lease.id);
        if (tracked.terms.is_checkpointed || in_flight) && !planted!(CheckpointNotCleared) {
            if !in_flight
                && !promotion
                    .clears
                    .iter()
                    .any(|waiting| waiting.id == lease.id)
            {
                promotion.clears.push_back(tracked.terms.lease);
            }
            return LeaseKept::Undecided;
        }
        let ttl_ms = tracked.terms.ttl_ms;
        let renewed = now + Duration::from_millis(ttl_ms);
        if self.renewals.is_multiple_of(RENEWALS_SAMPLED) {
            let left = deadline.map_or(0, |deadline| nanos(deadline.at_most_since(now)));
            let share = left / (ttl_ms.max(1) * 1_000);
            self.counts.left_at_renewal.push(share);
        }
        self.renewals += 1;
        // A shorter time to live than it was granted or renewed with takes nothing back (A13).
        let promised = deadline.filter(|_| !planted!(RenewalTakesBack));
        let renewed = promised.map_or(renewed, |promised| promised.max(renewed));
        let is_extended = tracked.restart_renewals(self.epoch);
        tracked.renewals += 1;
        tracked.note(self.epoch, now);
        tracked.deadline = renewed;
        promotion.put(&self.options, tracked);
        assert!(
            tracked.is_in_wheel,
            "the wheel comes by every renewed lease"
        );
        LeaseKept::Renewed {
            ttl_ms,
            grant_index: tracked.terms.lease.grant_index,
            is_extended,
        }
    }

    /// What this leader has seen of the renewals of a lease. `None` of an unknown one, and where no
    /// deadlines are kept.
    pub fn renewals(&self, id: i64) -> Option<Renewals> {
        self.promotion.as_ref()?;
        let tracked = self.leases.get(&id)?;
        let is_extended = tracked.renewals_epoch != self.epoch;
        Some(Renewals {
            count: if is_extended { 0 } else { tracked.renewals },
            is_extended,
        })
    }

    /// How long the lease has, by the slower clock; at least a millisecond while it exists. `None`
    /// where no deadlines are kept.
    pub fn remaining_ms(&self, now: Instant, id: i64) -> Option<u64> {
        let deadline = self.deadline(id)?;
        Some(millis_up(deadline.at_most_since(now)).max(1))
    }

    /// Leases after the id `after`, in order, at most `count_max`.
    pub fn after(&self, after: i64, count_max: usize) -> impl Iterator<Item = i64> {
        let span = (Bound::Excluded(after.max(0)), Bound::Unbounded);
        self.leases.range(span).take(count_max).map(|(id, _)| *id)
    }

    /// How many leases this promotion has noted anything of.
    #[cfg(test)]
    pub(super) fn touched(&self) -> usize {
        let noted = self
            .leases
            .values()
            .filter(|lease| lease.epoch == self.epoch);
        noted.count()
    }

    /// `ExpiryKept`: what this leadership has decided.
    #[cfg(leasehold_bugs)]
    pub(super) fn planted_decided(&self) -> Vec<(Term, LeaseRef)> {
        let Some(promotion) = &self.promotion else {
            return Vec::new();
        };
        let all = promotion
            .due
            .iter()
            .chain(promotion.flights.values().flatten());
        all.map(|lease| (promotion.term, *lease)).collect()
    }

    /// When to look again: not later, as far as leases are concerned.
    pub fn next_wakeup(&self) -> Instant {
        let Some(promotion) = &self.promotion else {
            return Instant::NEVER;
        };
        let has_room = promotion.flights.len() < FLIGHTS_MAX;
        if promotion.has_more
            || has_room && !promotion.due.is_empty()
            || !promotion.clears.is_empty()
        {
            return Instant::ZERO;
        }
        let boot = |boot| Instant {
            boot,
            ..Instant::NEVER
        };
        let tick = nanos(self.options.tick);
        let mut next = Instant::NEVER;
        if let Some((bucket, _)) = promotion.wheel.first_key_value() {
            next = boot(bucket.saturating_mul(tick));
        }
        if let Some((restart_ms, _)) = next_in(&self.order, promotion.walked) {
            let due = promotion.began + Duration::from_millis(restart_ms);
            next = next.min(boot(due.boot));
        }
        if !self.long.is_empty() || !self.outlasting.is_empty() {
            next = next.min(boot(promotion.checkpoint_due.boot));
        }
        next
    }

    /// When the lease is due; `None` of an unknown one, and where no deadlines are kept.
    fn deadline(&self, id: i64) -> Option<Instant> {
        let promotion = self.promotion.as_ref()?;
        let tracked = self.leases.get(&id)?;
        Some(tracked.deadline_in(
            self.epoch,
            promotion,
            restart_ms(self.restart_min_ms, &tracked.terms),
        ))
    }

    fn insert(&mut self, terms: LeaseTerms) {
        let id = terms.lease.id;
        let before = self.leases.remove(&id);
        if let Some(before) = &before {
            self.order
                .remove(&(restart_ms(self.restart_min_ms, &before.terms), id));
        }
        self.order
            .insert((restart_ms(self.restart_min_ms, &terms), id));
        keep(
            &mut self.long,
            id,
            terms.ttl_ms >= millis_up(self.options.checkpoint_min_ttl),
        );
        keep(&mut self.outlasting, id, terms.outlasts_ttl);
        keep(&mut self.revoking, id, terms.ending.is_some());
        let same = before.filter(|before| before.terms.lease == terms.lease);
        let tracked = match same {
            Some(before) => TrackedLease { terms, ..before },
            None => TrackedLease {
                terms,
                epoch: 0,
                deadline: Instant::ZERO,
                changed: Instant::ZERO,
                is_in_wheel: false,
                is_queued: false,
                renewals: 0,
                renewals_epoch: 0,
            },
        };
        self.leases.insert(id, tracked);
    }

    /// Gives the lease a deadline of its own, if deadlines are kept.
    fn give(&mut self, id: i64, now: Instant, deadline: Instant) {
        let (Some(promotion), Some(tracked)) = (&mut self.promotion, self.leases.get_mut(&id))
        else {
            return;
        };
        tracked.note(self.epoch, now);
        tracked.deadline = deadline;
        tracked.changed = now;
        promotion.put(&self.options, tracked);
    }

    fn remove(&mut self, id: i64) {
        let Some(tracked) = self.leases.remove(&id) else {
            return;
        };
        self.order
            .remove(&(restart_ms(self.restart_min_ms, &tracked.terms), id));
        self.long.remove(&id);
        self.outlasting.remove(&id);
        self.revoking.remove(&id);
        if let Some(promotion) = &mut self.promotion {
            promotion.expiring.remove(&id);
        }
    }

    fn remember(&mut self, lease: LeaseRef, cause: LeaseEnd) {
        let before = self.ended.insert(lease.id, (lease.grant_index, cause));
        if before.is_none() {
            self.ended_order.push_back(lease.id);
        }
        if self.ended_order.len() > ENDED_MAX
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }
}

fn keep(set: &mut BTreeSet<i64>, id: i64, belongs: bool) {
    match belongs {
        true => set.insert(id),
        false => set.remove(&id),
    };
}

fn millis_up(duration: Duration) -> u64 {
    nanos(duration).div_ceil(1_000_000)
}

/// What a lease gets from a new leader, if it has a checkpoint at least `min_ms`. Spread by up to a
/// tenth, so that those that were granted together are not due together (T10).
fn restart_ms(min_ms: u64, terms: &LeaseTerms) -> u64 {
    if terms.is_checkpointed {
        return terms.restart_ms.max(min_ms);
    }
    let id = terms.lease.id.to_be_bytes();
    let spread = xxhash_rust::xxh3::xxh3_64(&id) % 1024;
    let tenth = terms.restart_ms / 10;
    terms
        .restart_ms
        .saturating_add(tenth.saturating_mul(spread) / 1024)
}
