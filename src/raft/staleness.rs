//! How old a node's own state can be: what it can prove by its own clock.
//!
//! A node reads its clock, draws a name, and sends the name to its leader. Whatever message the
//! leader creates after it has taken that name in, and while it is confirmed (by its lease, or by a
//! quorum round begun since), carries a commit index that covers everything acknowledged to anybody
//! before that moment, and so before the name was drawn: Theorem 2 of the lease protocol, with the
//! name in place of the read. So a state that contains the index is at most as old as the name, and
//! how long ago that was drawn is measured by the clock that drew it. How long any message took does
//! not matter; a late one only proves less. That is a [`Staleness`], and it stays true under
//! later leaders.
//!
//! Every heartbeat and every question of a follower carries a name, so in quiet times a follower's
//! state is known to be no older than two heartbeats. A leader needs no name: the round that a
//! quorum has answered was created when its own clock said (N1), and the leader at that moment
//! has committed, or was elected with, everything acknowledged before.
//!
//! Elapsed time is judged by the faster of the two clocks, and then stretched by what a clock may
//! be too slow (A1, A5). Where a machine stops both clocks unnoticed, the bound is wrong as a lease
//! would be.
//!
//! Each rule has its schedule: a name that could be used twice (by a restarted process, or a round
//! of the leader's in its place) makes a message to an earlier life look young; a name read from
//! the clock after the message left, a `fresh` said under a void lease, or an index not yet applied
//! make an old state look young.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::raft::digest::Digest;
use crate::raft::{RoundId, Timing};
use crate::sync::Slot;
use crate::time::Instant;
use crate::types::LogIndex;

/// Names whose answer is waited for. Older ones will prove nothing new.
const NAMES_MAX: usize = 64;

/// Every state that contains `index` contains everything that was acknowledged before `as_of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staleness {
    as_of: Instant,
    index: LogIndex,
    drift_ppm: u32,
    granularity: Duration,
    /// The node looks at its clock at least so often, and forgets all ages if that ran backwards.
    looks_every: Duration,
}

/// Proof that a state which contains an index is no older than a duration. Made only by
/// [`Staleness::bound`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StalenessBound {
    index: LogIndex,
    staleness: Duration,
}

impl Staleness {
    /// How old a state that contains the index can be at `now`, which was read after the state. `None`
    /// if that is before it all began: then a clock ran backwards since, and tells nothing (A4).
    pub fn bound(&self, now: Instant) -> Option<StalenessBound> {
        if now.went_back_since(self.as_of) && !planted!(AgeFromTheFuture) {
            return None;
        }
        let passed = now.at_most_since(self.as_of) + self.granularity;
        planted!(AgeBySlowerClock => return Some(StalenessBound {
            index: self.index,
            staleness: now.at_least_since(self.as_of),
        }));
        // A clock that is too slow has counted (1 - rho) of what passed.
        let slowest = u128::from(1_000_000_u32.saturating_sub(self.drift_ppm).max(1));
        let nanos = (passed.as_nanos() * 1_000_000).div_ceil(slowest);
        Some(StalenessBound {
            index: self.index,
            staleness: Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)),
        })
    }

    /// Who has seen the clock run backwards can count on it again after this time: then the node has seen
    /// it, too.
    pub fn is_looked_after_within(&self) -> Duration {
        self.looks_every
    }

    /// How old the state can be at `now`, for people to see. No read is answered on it.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.bound(now).map(|bound| bound.staleness)
    }
}

impl StalenessBound {
    /// The state must contain this index.
    pub fn index(&self) -> LogIndex {
        self.index
    }

    /// Everything acknowledged longer ago than this is in the state.
    pub fn staleness(&self) -> Duration {
        self.staleness
    }
}

/// What a node learns about the age of its state.
#[derive(Clone, Debug, Default)]
pub(super) struct StalenessTracker {
    /// Names that were drawn, and when, in order.
    names: VecDeque<(RoundId, Instant)>,
    /// The newest that is proved and applied.
    proved: Option<Staleness>,
    /// One that is proved and not yet applied. It is kept until it is, so that a state machine that
    /// always lags a little does not make every proof wait for the next.
    next: Option<Staleness>,
}

impl StalenessTracker {
    /// `name` was drawn at `now`, and leaves after that.
    pub(super) fn draw(&mut self, name: RoundId, now: Instant) {
        if self.names.len() == NAMES_MAX {
            self.names.pop_front();
        }
        self.names.push_back((name, now));
    }

    /// A confirmed leader had heard `name` when it said that `index` was committed.
    pub(super) fn heard(&mut self, name: RoundId, index: LogIndex, timing: &Timing) {
        let drawn = self.names.iter().position(|(drawn, _)| *drawn == name);
        // One of an earlier life, or too old to matter.
        let Some(position) = drawn else { return };
        let (_, as_of) = self.names[position];
        #[cfg(leasehold_bugs)]
        let as_of = match self.names.back() {
            Some((_, newest)) if planted!(AgeOfNewestName) => *newest,
            _ => as_of,
        };
        self.names.drain(..position);
        self.note(as_of, index, timing);
    }

    /// When `name` was drawn; `None` for one of an earlier life, or too old to matter.
    pub(super) fn drawn(&self, name: RoundId) -> Option<Instant> {
        let drawn = self.names.iter().find(|(drawn, _)| *drawn == name);
        drawn.map(|(_, at)| *at)
    }

    /// `AgeOfTheAnswer`: `name` might as well have been drawn now.
    #[cfg(leasehold_bugs)]
    pub(super) fn redraw(&mut self, name: RoundId, now: Instant) {
        if let Some(drawn) = self.names.iter_mut().find(|(drawn, _)| *drawn == name) {
            drawn.1 = now;
        }
    }

    /// Everything acknowledged before `as_of` is at or below `index`.
    pub(super) fn note(&mut self, as_of: Instant, index: LogIndex, timing: &Timing) {
        let newest = self.next.or(self.proved);
        // Finer steps than this cost more than they tell.
        let step = timing.heartbeat_interval / 8;
        if newest.is_some_and(|newest| as_of.at_least_since(newest.as_of) < step) {
            return;
        }
        let fresh = Staleness {
            as_of,
            index,
            drift_ppm: timing.max_drift_ppm,
            granularity: timing.clock_granularity,
            looks_every: timing.election_timeout_max,
        };
        if self.next.is_none_or(|next| index <= next.index) {
            self.next = Some(fresh);
        }
    }

    /// The state has applied up to `applied`.
    pub(super) fn settle(&mut self, applied: LogIndex, published: &Slot<Staleness>) {
        if let Some(next) = self
            .next
            .take_if(|next| next.index <= applied || planted!(AgeUnapplied))
        {
            self.proved = Some(next);
            published.store(Some(Arc::new(next)));
        }
    }

    /// Adds every field that future behaviour, or a bound already derived, depends on.
    pub(super) fn digest(&self, digest: &mut Digest) {
        let Self {
            names,
            proved,
            next,
        } = self;
        digest.value(&names.len());
        for (name, drawn) in names {
            digest.value(name);
            digest.age(*drawn);
        }
        for fresh in [proved, next] {
            digest.value(&fresh.is_some());
            if let Some(fresh) = fresh {
                let Staleness {
                    as_of,
                    index,
                    drift_ppm,
                    granularity,
                    looks_every,
                } = fresh;
                digest.age(*as_of);
                digest.value(&(index, drift_ppm, granularity, looks_every));
            }
        }
    }

    /// See [`Consensus::forget_proofs`](crate::raft::Consensus::forget_proofs).
    pub(super) fn forget_proofs(&mut self) {
        (self.proved, self.next) = (None, None);
    }

    /// The clock ran backwards: its earlier readings prove no age (A4).
    pub(super) fn forget(&mut self, published: &Slot<Staleness>) {
        planted!(AgeOverStepBack => return);
        *self = Self::default();
        published.store(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn known(published: &Slot<Staleness>) -> Option<(Instant, u64)> {
        let staleness = published.load_full();
        staleness.map(|staleness| (staleness.as_of, staleness.index.0))
    }

    #[test]
    fn a_state_is_as_old_as_the_name_and_not_as_the_answer() {
        let (mut ages, published) = (StalenessTracker::default(), Slot::default());
        let timing = Timing::default();
        ages.draw(RoundId(1), at(1000));
        ages.draw(RoundId(2), at(1100));
        ages.heard(RoundId(1), LogIndex(7), &timing);
        ages.settle(LogIndex(6), &published);
        assert_eq!(known(&published), None, "not applied yet");
        ages.settle(LogIndex(7), &published);
        assert_eq!(known(&published), Some((at(1000), 7)));
        ages.heard(RoundId(3), LogIndex(9), &timing);
        ages.settle(LogIndex(9), &published);
        assert_eq!(known(&published), Some((at(1000), 7)), "never drawn here");
        ages.heard(RoundId(2), LogIndex(9), &timing);
        ages.heard(RoundId(1), LogIndex(9), &timing);
        ages.settle(LogIndex(9), &published);
        assert_eq!(known(&published), Some((at(1100), 9)));
        ages.forget(&published);
        assert_eq!(known(&published), None);
    }

    #[test]
    fn an_age_is_that_of_the_faster_clock_stretched_by_the_drift() {
        let timing = Timing::default();
        let (mut ages, published) = (StalenessTracker::default(), Slot::default());
        ages.note(at(1000), LogIndex(1), &timing);
        ages.settle(LogIndex(1), &published);
        let staleness = published.load_full().expect("noted");
        let now = Instant {
            boot: at(1979).boot,
            raw: at(1500).raw,
        };
        // 979 ms and 1 ms of granularity, by a clock that may be 2 % slow.
        let bound = staleness.bound(now).expect("the clock goes on");
        assert_eq!(bound.staleness(), ms(1000));
        assert_eq!(bound.index(), LogIndex(1));
        // One of its clocks ran backwards, and the driver has not looked at them since.
        for back in [
            at(999),
            Instant { raw: 0, ..now },
            Instant { boot: 0, ..now },
        ] {
            assert_eq!(staleness.bound(back), None, "{back}");
        }
    }

    #[test]
    fn a_state_machine_that_always_lags_does_not_keep_its_age_from_being_known() {
        let (mut ages, published) = (StalenessTracker::default(), Slot::default());
        for beat in 1..100 {
            let fresh = LogIndex(10 * beat);
            ages.note(at(50 * beat), fresh, &Timing::default());
            ages.settle(LogIndex(10 * beat - 5), &published);
        }
        let (as_of, _) = known(&published).expect("it is known");
        assert!(as_of.certainly_after(at(50 * 97)), "{as_of}");
    }

    #[test]
    fn an_absurd_index_does_not_keep_better_ones_out() {
        let (mut ages, published) = (StalenessTracker::default(), Slot::default());
        let timing = Timing::default();
        ages.note(at(1000), LogIndex(u64::MAX), &timing);
        ages.note(at(1100), LogIndex(3), &timing);
        ages.settle(LogIndex(3), &published);
        assert_eq!(known(&published), Some((at(1100), 3)));
    }
}
