//! The two halves of a leader lease: what a voter promises, and what a leader may trust.
//!
//! A leader starts a *round* by reading its clock and naming the reading; every message that it
//! sends from then on carries the name. A voter that processes such a message promises, from that
//! moment, to support no other candidate for P ([`VotePromise`]). When a quorum has echoed a
//! round, the leader may answer reads alone until L = P - M after the round's *creation*
//! ([`LeaderLease`]): it started its interval before any voter started its own, and ends it
//! earlier by more than their clocks can differ. How long the echo took does not matter (P1).
//!
//! What the leader trusts is published as one [`LeaseCell`] per leadership: two atomics, one per
//! clock, that any thread may check with a fresh reading. The cell is zeroed *before* anything
//! that ends the lease is done or said (P23), and never comes back to life.
//!
//! Left out: a failed assumption about clocks is not detected here. The tripwire (P37) can only
//! detect it afterwards.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::raft::RoundId;
use crate::raft::digest::Digest;
use crate::raft::published::{Invalidation, LeaseCell};
use crate::sync::Ordering;
use crate::time::Instant;
use crate::types::{NodeId, Term};

/// Rounds that a leader remembers. Older ones were answered long ago or never will be.
pub(super) const ROUNDS_MAX: usize = 256;

/// What this voter has promised. It outlives roles and terms, and ends only by time or by the
/// word of the leader that it was made to (P6).
#[derive(Clone, Debug)]
pub(super) struct VotePromise {
    until: Instant,
    to: Option<(NodeId, Term)>,
    /// Promises made before this process started are not remembered, so it keeps silent for the
    /// longest that it can have made (P2, P3, A3).
    silent_until: Instant,
    /// Until when a candidate may count a vote that was given before this process started.
    votes_until: Instant,
    /// For how long after the start that is.
    votes_count: Duration,
}

impl VotePromise {
    /// At the start of the process, read after the data directory was locked. No promise made before
    /// was for longer than `longest`, and no vote given before counts for longer than `votes_count`.
    pub(super) fn at_start(now: Instant, longest: Duration, votes_count: Duration) -> Self {
        Self {
            until: Instant::ZERO,
            to: None,
            silent_until: now + longest,
            votes_until: now + votes_count,
            votes_count,
        }
    }

    /// The one gate (P4): whether this node may grant a vote or pre-vote, or start one.
    pub(super) fn may_support_election(&self, now: Instant) -> bool {
        let over = now.certainly_after(self.until)
            || planted!(EitherClockEndsPromise) && now.possibly_after(self.until);
        over && now.certainly_after(self.silent_until)
    }

    /// Whether no candidate counts a vote any more that was given before this process started (A23).
    pub(super) fn earlier_votes_are_over(&self, now: Instant) -> bool {
        now.certainly_after(self.votes_until)
    }

    /// When that is.
    pub(super) fn earlier_votes_until(&self) -> Instant {
        self.votes_until
    }

    /// When the gate opens.
    pub(super) fn over_at(&self) -> Instant {
        self.until.max(self.silent_until)
    }

    /// Promises `leader` of `term` to support no election for `length` from now on. Never shortens
    /// what was promised before.
    pub(super) fn extend(&mut self, now: Instant, length: Duration, leader: NodeId, term: Term) {
        self.until = self.until.max(now + length);
        planted!(PromiseShortened => self.until = now + length);
        self.to = Some((leader, term));
    }

    /// `leader` of `term` has no lease any more, and says so (P36). Whether the promise was its.
    pub(super) fn release(&mut self, leader: NodeId, term: Term) -> bool {
        let its = self.to == Some((leader, term)) || planted!(ReleaseByAnybody);
        planted!(ReleaseEndsBlackout => self.silent_until = Instant::ZERO);
        if its {
            self.until = Instant::ZERO;
            self.to = None;
        }
        its
    }

    /// Adds every field that future behaviour depends on.
    pub(super) fn digest(&self, digest: &mut Digest) {
        let Self {
            until,
            to,
            silent_until,
            votes_until,
            votes_count,
        } = self;
        digest.deadline(*until);
        digest.value(&(to, votes_count));
        digest.deadline(*silent_until);
        digest.deadline(*votes_until);
    }

    /// The clock ran backwards to `now`. No promise was for longer than `longest`, none was made and
    /// no vote given after `now`, so none need last longer from here.
    pub(super) fn clock_went_back(&mut self, now: Instant, longest: Duration) {
        self.until = self.until.min(now + longest);
        self.silent_until = self.silent_until.min(now + longest);
        let votes_count = match planted!(SilenceCutByStepBack) {
            true => longest,
            false => self.votes_count,
        };
        self.votes_until = self.votes_until.min(now + votes_count);
    }
}

/// The moments at which this leadership created its rounds; a bounded run of consecutive names.
#[derive(Clone, Debug, Default)]
struct Rounds {
    first: u64,
    created: VecDeque<Instant>,
}

impl Rounds {
    fn push(&mut self, round: RoundId, created: Instant) {
        if self.first + self.created.len() as u64 != round.0 {
            self.created.clear();
        }
        if self.created.is_empty() {
            self.first = round.0;
        }
        if self.created.len() == ROUNDS_MAX {
            self.created.pop_front();
            self.first += 1;
        }
        self.created.push_back(created);
    }

    fn digest(&self, digest: &mut Digest) {
        let Self { first, created } = self;
        digest.value(&(first, created.len()));
        for created in created {
            digest.since(*created);
        }
    }

    /// When `round` was created; `None` for a name that is not one of ours, or too old (P25).
    fn created(&self, round: RoundId) -> Option<Instant> {
        let offset = round.0.checked_sub(self.first)?;
        self.created.get(usize::try_from(offset).ok()?).copied()
    }

    #[cfg(leasehold_bugs)]
    fn stamp(&mut self, round: Option<RoundId>, at: Instant) {
        let place = round.and_then(|round| round.0.checked_sub(self.first));
        if let Some(created) = place.and_then(|place| self.created.get_mut(place as usize)) {
            *created = at;
        }
    }
}

/// A leadership's own view of its lease.
#[derive(Clone, Debug)]
pub(crate) struct LeaderLease {
    cell: Arc<LeaseCell>,
    rounds: Rounds,
    /// L = P - M
    trusted: Duration,
    /// The newest round that a quorum of the configuration in force has promised.
    held: Option<RoundId>,
    /// When that round was created.
    held_since: Option<Instant>,
    /// When the newest round was created that a quorum ever promised; before that, the election.
    quorum_at: Instant,
    /// What the cell says.
    until: Instant,
    /// For good: leadership was offered to another (P9).
    pub(super) burned: bool,
    /// The lease ran out, and that has been counted.
    lapsed: bool,
}

impl LeaderLease {
    /// The lease of a leadership that begins now, still void.
    pub(crate) fn new(cell: LeaseCell, trusted: Duration, now: Instant) -> Self {
        Self {
            cell: Arc::new(cell),
            rounds: Rounds::default(),
            trusted,
            held: None,
            held_since: None,
            quorum_at: now,
            until: Instant::ZERO,
            burned: false,
            lapsed: false,
        }
    }

    /// What readers share.
    pub(crate) fn cell(&self) -> &Arc<LeaseCell> {
        &self.cell
    }

    /// The newest round that a quorum has promised.
    pub(super) fn held(&self) -> Option<RoundId> {
        self.held
    }

    /// When the newest round was created that a quorum has promised: at that moment this node led,
    /// and no other node had been elected.
    pub(super) fn held_since(&self) -> Option<Instant> {
        self.held_since
    }

    /// Whether readers may trust it at `now`.
    pub(super) fn is_live(&self, now: Instant) -> bool {
        now.certainly_before(self.until)
    }

    /// Whether this leadership's lease is gone for good.
    pub(super) fn is_burned(&self) -> bool {
        self.burned
    }

    /// When readers stop trusting it; `None` while it is void, or has run out and that is known.
    pub(super) fn runs_out_at(&self) -> Option<Instant> {
        (self.until != Instant::ZERO && !self.lapsed).then_some(self.until)
    }

    /// The moment of the last quorum: how stale this leadership may be.
    pub(super) fn quorum_at(&self) -> Instant {
        self.quorum_at
    }

    /// Gives this leadership, which is a copy of another, a cell of its own.
    pub(super) fn detach(&mut self) -> &Arc<LeaseCell> {
        self.cell = Arc::new(self.cell.fork());
        &self.cell
    }

    /// Adds every field that future behaviour depends on.
    pub(super) fn digest(&self, digest: &mut Digest) {
        let Self {
            cell,
            rounds,
            trusted,
            held,
            held_since,
            quorum_at,
            until,
            burned,
            lapsed,
        } = self;
        let LeaseCell {
            term,
            floor,
            leader: _,
            // As `trusted`.
            longest: _,
            until_boot: _,
            until_raw: _,
            counters: _,
        } = &**cell;
        rounds.digest(digest);
        digest.since(*quorum_at);
        digest.value(&held_since.is_some());
        if let Some(since) = held_since {
            digest.since(*since);
        }
        for until in [*until, cell.until()] {
            digest.value(&(until == Instant::ZERO));
            digest.deadline(until);
        }
        digest.value(&(term, floor, trusted, held, burned, lapsed));
    }

    /// Whether a quorum answers: readers could trust it, were it not burned or otherwise void.
    pub(super) fn has_quorum(&self, now: Instant) -> bool {
        let trusted = |since: Instant| now.certainly_before(since + self.trusted);
        self.held_since.is_some_and(trusted)
    }

    #[cfg(leasehold_bugs)]
    pub(super) fn heard_a_quorum(&mut self, now: Instant) {
        self.quorum_at = now;
    }

    /// A round was created at `now`, before anybody could see its name (N1).
    pub(crate) fn begin(&mut self, round: RoundId, created: Instant) {
        self.rounds.push(round, created);
    }

    /// When `round` was created, if it is one of this leadership's and not too old to matter.
    pub(super) fn created(&self, round: RoundId) -> Option<Instant> {
        self.rounds.created(round)
    }

    /// Whether `round` is one of this leadership's, and not too old to matter.
    pub(super) fn knows(&self, round: RoundId) -> bool {
        self.rounds.created(round).is_some()
    }

    /// Publishes what the quorum of `held` is worth, or nothing if the lease may not be trusted.
    /// A smaller value than before is published, too (P13).
    pub(crate) fn recompute(&mut self, now: Instant, held: Option<RoundId>, trustworthy: bool) {
        planted!(AckTime => if held > self.held {
            self.rounds.stamp(held, now);
        });
        let created = held.and_then(|round| self.rounds.created(round));
        self.held = if created.is_some() { held } else { None };
        self.held_since = created;
        if let Some(created) = created {
            self.quorum_at = self.quorum_at.max(created);
        }
        self.count_lapse(now);
        match created {
            Some(created) if trustworthy && !self.burned => self.publish(created + self.trusted),
            _ if planted!(KeepExpiry) && trustworthy && !self.burned => {}
            _ => self.void(now, Invalidation::ConfigurationChanged),
        }
        self.count_lapse(now);
    }

    /// Takes the lease back: no reader that looks from now on is permitted by it.
    pub(crate) fn void(&mut self, now: Instant, reason: Invalidation) {
        if self.until == Instant::ZERO {
            return;
        }
        self.cell.publish(Instant::ZERO);
        if self.is_live(now) {
            let counter = &self.cell.counters.invalidations[reason as usize];
            counter.fetch_add(1, Ordering::Relaxed);
        }
        self.until = Instant::ZERO;
    }

    /// Takes it back for the rest of the term.
    pub(super) fn burn(&mut self, now: Instant) {
        self.burned = true;
        self.void(now, Invalidation::Transfer);
    }

    /// The clock ran backwards to `now`: no round is known to have begun when it says (A4).
    pub(crate) fn clock_went_back(&mut self, now: Instant) {
        // Judged by the clock as it was: whatever it says now, the lease held.
        self.void(Instant::ZERO, Invalidation::ClockWentBack);
        self.rounds = Rounds::default();
        self.held = None;
        self.held_since = None;
        self.quorum_at = self.quorum_at.min(now);
    }

    fn publish(&mut self, until: Instant) {
        if until == self.until || planted!(KeepExpiry) && until.certainly_before(self.until) {
            return;
        }
        let later = until.boot > self.until.boot || until.raw > self.until.raw;
        if later {
            let renewals = &self.cell.counters.renewals;
            renewals.fetch_add(1, Ordering::Relaxed);
            self.lapsed = false;
        }
        self.until = until;
        self.cell.publish(until);
    }

    /// Counts a lease that ran out unrenewed, once.
    pub(crate) fn count_lapse(&mut self, now: Instant) {
        if self.until != Instant::ZERO && !self.lapsed && !self.is_live(now) {
            self.lapsed = true;
            let expirations = &self.cell.counters.expirations;
            expirations.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::published::LeaseCounters;
    use crate::types::LogIndex;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn lease() -> LeaderLease {
        let counters = Arc::new(LeaseCounters::default());
        let cell = LeaseCell::new(Term(1), LogIndex(4), ms(450), counters);
        LeaderLease::new(cell, ms(450), at(1000))
    }

    #[test]
    fn a_lease_lasts_from_the_creation_of_its_round_and_not_from_the_echo() {
        let mut lease = lease();
        lease.begin(RoundId(7), at(1000));
        lease.recompute(at(1300), Some(RoundId(7)), true);
        assert!(lease.cell().is_valid(at(1449)));
        assert!(!lease.cell().is_valid(at(1450)), "the bound itself is over");
        assert_eq!(lease.cell().remaining(at(1400)), Some(ms(50)));
        assert_eq!(lease.cell().remaining(at(1450)), None);
    }

    #[test]
    fn a_clock_that_ran_backwards_makes_no_lease_longer_than_it_was() {
        let mut lease = lease();
        lease.begin(RoundId(7), at(1000));
        lease.recompute(at(1000), Some(RoundId(7)), true);
        assert!(lease.cell().is_valid(at(1000)), "all of it is left");
        // It is over, and a successor may have been elected; then the clock says less than at its beginning.
        assert!(!lease.cell().is_valid(at(1450)));
        assert!(!lease.cell().is_valid(at(999)));
        assert_eq!(lease.cell().permit(at(999), LogIndex(9)), None);
    }

    #[test]
    fn a_permit_reaches_the_floor_and_a_refusal_is_counted() {
        let mut lease = lease();
        lease.begin(RoundId(7), at(1000));
        assert_eq!(lease.cell().permit(at(1000), LogIndex(9)), None);
        lease.recompute(at(1000), Some(RoundId(7)), true);
        let index = |captured| {
            let permit = lease.cell().permit(at(1001), LogIndex(captured));
            permit.map(|permit| permit.index().0)
        };
        assert_eq!(index(2), Some(4));
        assert_eq!(index(9), Some(9));
        assert_eq!(lease.cell().counters.rejections(), 1);
    }

    #[test]
    fn a_lapse_is_counted_once_and_a_renewal_ends_it() {
        let mut lease = lease();
        let held = |round: u64| Some(RoundId(round));
        lease.begin(RoundId(7), at(1000));
        lease.recompute(at(1000), held(7), true);
        for late in [1450, 1460, 1470] {
            lease.recompute(at(late), held(7), true);
        }
        let counters = lease.cell().counters.clone();
        assert_eq!(counters.expirations(), 1);
        lease.begin(RoundId(8), at(1480));
        lease.recompute(at(1490), held(8), true);
        assert!(lease.is_live(at(1490)));
        lease.recompute(at(1930), held(8), true);
        assert_eq!(counters.expirations(), 2);
        assert_eq!(counters.renewals(), 2);
    }

    #[test]
    fn a_smaller_value_is_published_too() {
        let mut lease = lease();
        lease.begin(RoundId(7), at(1000));
        lease.begin(RoundId(8), at(1100));
        lease.recompute(at(1110), Some(RoundId(8)), true);
        lease.recompute(at(1120), Some(RoundId(7)), true);
        assert_eq!(lease.cell().until(), at(1450));
        lease.recompute(at(1130), None, true);
        assert_eq!(lease.cell().until(), Instant::ZERO);
        let changed = Invalidation::ConfigurationChanged;
        assert_eq!(lease.cell().counters.invalidations(changed), 1);
    }

    #[test]
    fn a_burned_lease_never_comes_back() {
        let mut lease = lease();
        lease.begin(RoundId(7), at(1000));
        lease.recompute(at(1000), Some(RoundId(7)), true);
        lease.burn(at(1001));
        lease.begin(RoundId(8), at(1010));
        lease.recompute(at(1020), Some(RoundId(8)), true);
        assert!(!lease.cell().is_valid(at(1020)));
        assert_eq!(
            lease.held(),
            Some(RoundId(8)),
            "rounds still count for reads"
        );
    }

    #[test]
    fn unknown_rounds_are_worth_nothing_and_the_memory_is_bounded() {
        let mut lease = lease();
        for round in 0..ROUNDS_MAX as u64 + 10 {
            lease.begin(RoundId(100 + round), at(1000 + round));
        }
        assert!(!lease.knows(RoundId(109)), "forgotten");
        assert!(lease.knows(RoundId(110)));
        assert!(
            !lease.knows(RoundId(100 + ROUNDS_MAX as u64 + 10)),
            "to come"
        );
        assert!(!lease.knows(RoundId(0)));
        assert!(!lease.knows(RoundId(u64::MAX)));
        assert_eq!(lease.rounds.created.len(), ROUNDS_MAX);
    }

    #[test]
    fn a_promise_is_never_shortened_except_by_whom_it_was_made_to() {
        let mut promise = VotePromise::at_start(at(0), ms(500), ms(2000));
        assert!(
            !promise.may_support_election(at(499)),
            "silent after a start"
        );
        assert!(promise.may_support_election(at(500)));
        promise.extend(at(600), ms(500), NodeId(1), Term(1));
        promise.extend(at(700), ms(100), NodeId(2), Term(2));
        assert!(!promise.may_support_election(at(1099)));
        assert!(!promise.release(NodeId(1), Term(1)), "made to n2 by now");
        assert!(!promise.release(NodeId(2), Term(1)));
        assert!(promise.release(NodeId(2), Term(2)));
        assert!(promise.may_support_election(at(700)));
    }

    #[test]
    fn a_release_does_not_end_the_silence_after_a_start() {
        let mut promise = VotePromise::at_start(at(0), ms(500), ms(2000));
        promise.extend(at(10), ms(500), NodeId(1), Term(1));
        assert!(promise.release(NodeId(1), Term(1)));
        assert!(!promise.may_support_election(at(499)));
    }

    #[test]
    fn a_step_back_of_the_clock_shortens_no_silence_that_is_longer_than_any_promise() {
        let mut promise = VotePromise::at_start(at(5000), ms(500), ms(2000));
        assert!(!promise.earlier_votes_are_over(at(6999)));
        assert!(promise.earlier_votes_are_over(at(7000)));
        promise.clock_went_back(at(4900), ms(500));
        assert!(promise.may_support_election(at(5400)));
        assert!(!promise.earlier_votes_are_over(at(6899)), "2 s from here");
        assert!(promise.earlier_votes_are_over(at(6900)));
    }

    #[test]
    fn after_a_step_back_of_the_clock_a_promise_lasts_no_longer_than_any_can() {
        let mut promise = VotePromise::at_start(at(0), ms(500), ms(2000));
        promise.extend(at(1_000_000), ms(500), NodeId(1), Term(1));
        promise.clock_went_back(at(2000), ms(500));
        assert!(!promise.may_support_election(at(2499)));
        assert!(promise.may_support_election(at(2500)));
    }
}
