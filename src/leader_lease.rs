//! A leader lease by itself: for a program that runs its own rounds of heartbeats and wants to know
//! whether it may answer alone.
//!
//! [`LeaderLease`] is the lease that consensus keeps (`raft/leader_lease.rs`), with a clock of its
//! own. It has the operations of the `LeaderLease` class that the pattern is described with, under
//! their names, and differs where that description would be unsafe:
//!
//! - It is counted from when the heartbeats *left* ([`LeaderLease::renew_at`]), never from when
//!   their answers came: a voter's promise begins between the two.
//! - "Skew" is not how far two machines' clocks are apart, which does not matter, but how much
//!   faster one may run than another while a lease lasts, plus scheduling delay. The name is kept.
//!   [`Timing`] refuses a skew that is too small for the drift.
//! - Time is a pair of clocks ([`Instant`]): the lease is over as soon as either says so, and
//!   exactly at the bound it is over.
//! - A clock that ran backwards voids the lease, and is counted.
//!
//! Its user must provide the other half: voters that promise to elect no other leader for
//! [`Timing::lease_duration`](crate::raft::TimingOptions::lease_duration) from when they hear a
//! heartbeat, across their own restarts too; and [`LeaderLease::invalidate`] before anything is done
//! or said that ends leadership.

use std::fmt;
use std::sync::Arc;

use crate::raft;
use crate::raft::{Invalidation, LeaseCell, LeaseCounters, RoundId, Timing};
use crate::sync::{Mutex, MutexGuard};
use crate::time::{Clock, Instant};
use crate::types::{LogIndex, Term};

/// A lease with a clock. All of its operations may be called from any thread; those that only ask
/// take no lock while the lease is valid.
pub struct LeaderLease<C> {
    clock: C,
    timing: Timing,
    cell: Arc<LeaseCell>,
    counters: Arc<LeaseCounters>,
    kept: Mutex<LockedState>,
}

struct LockedState {
    lease: raft::LeaderLease,
    /// When the lease that is in force began; `None` while it is void.
    start: Option<Instant>,
    rounds: u64,
    /// What the counters said when they were last reset.
    before: Counts,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    renewals: u64,
    expirations: u64,
    rejections: u64,
}

impl<C: Clock> LeaderLease<C> {
    /// A lease that is void until it is first renewed. That the settings fit each other has been
    /// checked where `config` was built.
    pub fn new(config: Timing, clock: C) -> Self {
        let counters = Arc::new(LeaseCounters::default());
        let cell = LeaseCell::new(
            Term(0),
            LogIndex(0),
            config.trusted_lease(),
            counters.clone(),
        );
        let lease = raft::LeaderLease::new(cell, config.trusted_lease(), clock.now());
        Self {
            clock,
            timing: config,
            cell: lease.cell().clone(),
            counters,
            kept: Mutex::new(LockedState {
                lease,
                start: None,
                rounds: 0,
                before: Counts::default(),
            }),
        }
    }

    /// A majority has answered heartbeats that all left after `sent_at`, read from this lease's
    /// clock before the first of them could leave: the newest such reading. Extends the lease to
    /// `sent_at` plus the lease duration, less the skew; never shortens it. Says whether it did.
    pub fn renew_at(&self, sent_at: Instant) -> bool {
        let now = self.clock.now();
        let mut kept = self.lock();
        if now.went_back_since(sent_at) {
            self.clock_went_back(&mut kept);
            return false;
        }
        let later = |start: Instant| sent_at.certainly_after(start) && sent_at != start;
        if !kept.start.is_none_or(later) {
            return false;
        }
        kept.rounds += 1;
        let round = RoundId(kept.rounds);
        kept.lease.begin(round, sent_at);
        kept.lease.recompute(now, Some(round), true);
        kept.start = Some(sent_at);
        true
    }

    /// [`Self::renew_at`] now: right only for a holder that is a majority alone.
    pub fn renew(&self) -> bool {
        self.renew_at(self.clock.now())
    }

    /// Whether the lease holds: by both clocks, `now + max_clock_skew < start + lease_duration`.
    /// Ask after the request has arrived for which it is to hold, and never keep the answer.
    pub fn is_valid(&self) -> bool {
        // The bound first: then the clock cannot read less than when the lease began, unless it
        // ran backwards.
        let until = self.cell.until();
        let now = self.clock.now();
        if until == Instant::ZERO {
            return false;
        }
        let longest = self.timing.trusted_lease();
        if until.at_most_since(now) > longest {
            self.clock_went_back(&mut self.lock());
            return false;
        }
        now.certainly_before(until)
    }

    /// As [`Self::is_valid`], and counts a refusal.
    pub fn can_serve_read(&self) -> bool {
        let valid = self.is_valid();
        if !valid {
            self.counters.rejected();
        }
        valid
    }

    /// When the lease ends, or ended; `None` while it is void: never renewed, or invalidated.
    pub fn expires_at(&self) -> Option<Instant> {
        let until = self.cell.until();
        (until != Instant::ZERO).then_some(until)
    }

    /// What is left, in nanoseconds, by the clock that says less; zero or negative once it is over,
    /// zero while it is void.
    pub fn remaining_nanos(&self) -> i64 {
        let Some(until) = self.expires_at() else {
            return 0;
        };
        let now = self.clock.now();
        let left = |until: u64, now: u64| {
            let left = i128::from(until) - i128::from(now);
            i64::try_from(left).unwrap_or(if left < 0 { i64::MIN } else { i64::MAX })
        };
        left(until.boot, now.boot).min(left(until.raw, now.raw))
    }

    /// The same in milliseconds, rounded down: never more than there is.
    pub fn remaining_ms(&self) -> i64 {
        self.remaining_nanos().div_euclid(1_000_000)
    }

    /// How often it was extended since [`Self::reset_stats`].
    pub fn renewal_count(&self) -> u64 {
        let before = self.lock().before.renewals;
        self.counters.renewals() - before
    }

    /// The number of expirations since [`Self::reset_stats`]; each lapse counts once.
    pub fn expiration_count(&self) -> u64 {
        let mut kept = self.lock();
        self.notice_lapse(&mut kept);
        self.counters.expirations() - kept.before.expirations
    }

    /// How often [`Self::can_serve_read`] said no since [`Self::reset_stats`].
    pub fn rejection_count(&self) -> u64 {
        let before = self.lock().before.rejections;
        self.counters.rejections() - before
    }

    /// How often a clock was seen to run backwards. Not reset.
    pub fn clock_regression_count(&self) -> u64 {
        self.counters.clock_regressions()
    }

    /// Counts from zero again. What is exported as a metric goes on.
    pub fn reset_stats(&self) {
        let mut kept = self.lock();
        self.notice_lapse(&mut kept);
        kept.before = Counts {
            renewals: self.counters.renewals(),
            expirations: self.counters.expirations(),
            rejections: self.counters.rejections(),
        };
    }

    /// Takes the lease back: every later check finds that it is over. Call it before leadership
    /// is given up, a vote is granted, or a message says either.
    pub fn invalidate(&self) {
        let now = self.clock.now();
        let mut kept = self.lock();
        self.notice_lapse(&mut kept);
        kept.lease.void(now, Invalidation::StepDown);
        kept.start = None;
    }

    /// When the lease in force began, by the clock that counts suspended time; 0 while it is void.
    pub fn lease_start_nanos(&self) -> u64 {
        self.lock().start.map_or(0, |start| start.boot)
    }

    /// For how long voters promise.
    pub fn lease_duration_nanos(&self) -> u64 {
        nanos(self.timing.lease_duration)
    }

    /// How much earlier the lease ends than the promises that it rests on.
    pub fn max_clock_skew_nanos(&self) -> u64 {
        nanos(self.timing.max_clock_skew)
    }

    /// Every count since it was made: what metrics are made of.
    pub fn counters(&self) -> &Arc<LeaseCounters> {
        &self.counters
    }

    fn clock_went_back(&self, kept: &mut LockedState) {
        // Another thread may have noticed first.
        if kept.start.take().is_some() {
            kept.lease.clock_went_back(self.clock.now());
            self.counters.clock_went_back();
        }
    }

    fn notice_lapse(&self, kept: &mut LockedState) {
        kept.lease.count_lapse(self.clock.now());
    }

    fn lock(&self) -> MutexGuard<'_, LockedState> {
        self.kept.lock()
    }
}

impl<C: Clock> fmt::Debug for LeaderLease<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderLease")
            .field("expires_at", &self.expires_at())
            .field("remaining_ms", &self.remaining_ms())
            .finish_non_exhaustive()
    }
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// One test for each row of the class's documentation, in its order.
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::raft::TimingOptions;

    /// Two hands that a test moves.
    #[derive(Debug)]
    struct Hands {
        boot: AtomicU64,
        raw: AtomicU64,
    }

    impl Clock for Arc<Hands> {
        fn now(&self) -> Instant {
            Instant {
                boot: self.boot.load(Ordering::Relaxed),
                raw: self.raw.load(Ordering::Relaxed),
            }
        }
    }

    impl Hands {
        fn set(&self, millis: u64) {
            let now = at(millis);
            self.boot.store(now.boot, Ordering::Relaxed);
            self.raw.store(now.raw, Ordering::Relaxed);
        }
    }

    fn at(millis: u64) -> Instant {
        Instant {
            boot: millis * 1_000_000,
            raw: (millis + 5_000) * 1_000_000,
        }
    }

    /// P 500 ms, M 50 ms; the clock stands at 1000.
    fn lease() -> (LeaderLease<Arc<Hands>>, Arc<Hands>) {
        let hands = Arc::new(Hands {
            boot: AtomicU64::new(0),
            raw: AtomicU64::new(0),
        });
        hands.set(1000);
        (LeaderLease::new(Timing::default(), hands.clone()), hands)
    }

    #[test]
    fn a_new_lease_is_void() {
        let (lease, _) = lease();
        assert!(!lease.is_valid());
        assert_eq!(lease.expires_at(), None);
        assert_eq!(lease.lease_start_nanos(), 0);
    }

    #[test]
    fn a_renewal_counts_from_when_the_heartbeats_left_and_never_goes_back() {
        let (lease, hands) = lease();
        let sent = at(1000);
        hands.set(1300);
        assert!(lease.renew_at(sent));
        assert_eq!(lease.expires_at(), Some(at(1450)), "not 1750");
        assert!(!lease.renew_at(at(900)), "older");
        assert!(!lease.renew_at(sent), "no news");
        let mixed = Instant {
            boot: at(1200).boot,
            raw: at(900).raw,
        };
        assert!(!lease.renew_at(mixed), "older by one of the clocks");
        assert_eq!(lease.expires_at(), Some(at(1450)));
        assert!(lease.renew());
        assert_eq!(lease.expires_at(), Some(at(1750)));
        assert_eq!(lease.renewal_count(), 2);
    }

    #[test]
    fn it_is_valid_strictly_before_the_bound_by_both_clocks() {
        let (lease, hands) = lease();
        lease.renew();
        hands.set(1449);
        assert!(lease.is_valid());
        hands.set(1450);
        assert!(!lease.is_valid(), "exactly at the bound it is over");
        hands.set(1449);
        hands.boot.store(at(1450).boot, Ordering::Relaxed);
        assert!(!lease.is_valid(), "it slept: the raw clock stood still");
    }

    #[test]
    fn a_read_that_may_not_be_served_is_counted_and_a_question_is_not() {
        let (lease, hands) = lease();
        assert!(!lease.is_valid());
        assert_eq!(lease.rejection_count(), 0);
        assert!(!lease.can_serve_read());
        lease.renew();
        assert!(lease.can_serve_read());
        hands.set(1450);
        assert!(!lease.can_serve_read());
        assert_eq!(lease.rejection_count(), 2);
    }

    #[test]
    fn expires_at_is_none_while_void_and_stays_once_it_is_past() {
        let (lease, hands) = lease();
        lease.renew();
        hands.set(9000);
        assert_eq!(lease.expires_at(), Some(at(1450)));
        lease.invalidate();
        assert_eq!(lease.expires_at(), None);
    }

    #[test]
    fn what_remains_keeps_its_sign_and_is_rounded_down() {
        let (lease, hands) = lease();
        assert_eq!((lease.remaining_nanos(), lease.remaining_ms()), (0, 0));
        lease.renew();
        assert_eq!(lease.remaining_nanos(), 450_000_000);
        hands.boot.fetch_add(1, Ordering::Relaxed);
        assert_eq!(lease.remaining_ms(), 449);
        hands.set(1450);
        assert_eq!(lease.remaining_nanos(), 0);
        hands.set(1460);
        hands.raw.fetch_sub(20_000_000, Ordering::Relaxed);
        assert_eq!(lease.remaining_ms(), -10, "the clock that says less");
    }

    #[test]
    fn what_remains_is_bounded_whatever_the_clock_says() {
        let (lease, hands) = lease();
        lease.renew();
        let set = |both: u64| {
            hands.boot.store(both, Ordering::Relaxed);
            hands.raw.store(both, Ordering::Relaxed);
        };
        set(u64::MAX);
        assert_eq!(lease.remaining_nanos(), i64::MIN);
        lease.renew();
        set(0);
        assert_eq!(lease.remaining_nanos(), i64::MAX);
    }

    #[test]
    fn it_is_printed_with_its_end_and_what_is_left() {
        let (lease, _) = lease();
        lease.renew();
        let printed = format!("{lease:?}");
        assert!(printed.contains("expires_at: Some("), "{printed}");
        assert!(printed.contains("remaining_ms: 450"), "{printed}");
    }

    #[test]
    fn an_expiry_is_counted_once_per_lapse() {
        let (lease, hands) = lease();
        lease.renew();
        hands.set(1500);
        for _ in 0..5 {
            lease.can_serve_read();
            assert_eq!(lease.expiration_count(), 1);
        }
        lease.renew();
        assert_eq!(lease.expiration_count(), 1);
        hands.set(3000);
        lease.invalidate();
        assert_eq!(lease.expiration_count(), 2, "it had run out before");
        hands.set(3100);
        lease.renew();
        lease.invalidate();
        hands.set(9000);
        assert_eq!(lease.expiration_count(), 2, "given up, not run out");
    }

    #[test]
    fn statistics_are_reset_and_metrics_go_on() {
        let (lease, hands) = lease();
        lease.renew();
        hands.set(1500);
        lease.can_serve_read();
        lease.reset_stats();
        let counts = (
            lease.renewal_count(),
            lease.expiration_count(),
            lease.rejection_count(),
        );
        assert_eq!(counts, (0, 0, 0));
        assert_eq!(lease.counters().renewals(), 1);
        assert_eq!(lease.counters().expirations(), 1);
        lease.renew();
        assert_eq!(lease.renewal_count(), 1);
    }

    #[test]
    fn an_invalidated_lease_is_over_at_once_until_it_is_renewed() {
        let (lease, hands) = lease();
        lease.renew();
        lease.invalidate();
        assert!(!lease.is_valid());
        assert_eq!(lease.lease_start_nanos(), 0);
        let stepped_down = lease.counters().invalidations(Invalidation::StepDown);
        assert_eq!(stepped_down, 1);
        hands.set(1010);
        assert!(lease.renew());
        assert!(lease.is_valid());
    }

    #[test]
    fn start_duration_and_skew_are_told_in_nanoseconds() {
        let (lease, hands) = lease();
        hands.set(1100);
        lease.renew();
        assert_eq!(lease.lease_start_nanos(), at(1100).boot);
        assert_eq!(lease.lease_duration_nanos(), 500_000_000);
        assert_eq!(lease.max_clock_skew_nanos(), 50_000_000);
    }

    /// A lease longer than the voters wait, or a skew too small for the drift, can not be built.
    #[test]
    fn settings_that_do_not_fit_are_refused_where_they_are_built() {
        let too_long = TimingOptions {
            lease_duration: Duration::from_millis(550),
            max_clock_skew: Duration::from_millis(60),
            ..TimingOptions::default()
        };
        assert!(Timing::new(too_long).is_err());
        let too_near = TimingOptions {
            max_clock_skew: Duration::from_micros(21_999),
            ..TimingOptions::default()
        };
        assert!(Timing::new(too_near).is_err());
    }

    #[test]
    fn a_clock_that_runs_back_voids_the_lease_and_is_counted() {
        let (lease, hands) = lease();
        lease.renew();
        hands.set(999);
        assert!(!lease.is_valid(), "no lease is known to be so young");
        assert!(!lease.is_valid());
        assert_eq!(lease.clock_regression_count(), 1);
        hands.set(1100);
        assert!(!lease.is_valid(), "it stays void");
        assert!(lease.renew());
        assert!(lease.is_valid());
        // Or it is seen by what was sent.
        hands.set(1050);
        assert!(!lease.renew_at(at(1080)));
        assert!(!lease.is_valid());
        assert_eq!(lease.clock_regression_count(), 2);
    }

    #[test]
    fn threads_may_ask_while_another_renews() {
        let (lease, hands) = lease();
        lease.renew();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        assert!(lease.is_valid());
                    }
                });
            }
            for millis in 1001..1400 {
                hands.set(millis);
                lease.renew();
            }
        });
        assert_eq!(lease.clock_regression_count(), 0);
    }
}
