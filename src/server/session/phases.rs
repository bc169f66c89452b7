//! Where the time of one request went.
//!
//! The time of a request is cut where it passes from one thread to another, and each piece belongs to one
//! [`Phase`]: so the pieces add up to all of its time. The clock is read once where a request arrives and
//! once where it is answered; in between, each thread reads the clock once for a whole batch
//! ([`Stages`]).

use std::time::{Duration, Instant};

use crate::server::mail::outbox::Stages;
use crate::server::metrics::{Phase, PhaseMetrics};
use crate::server::session::traces::Stretch;

/// No request has more: a read waits for its turn, for a quorum, for its turn to scan, and for the store.
const STRETCHES_MAX: usize = 5;

/// What the time of a request has gone to so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phases {
    began: Instant,
    /// Up to here it is accounted for.
    last: Instant,
    /// The pieces in their order, those that took no time left out.
    stretches: [Stretch; STRETCHES_MAX],
    count: usize,
}

impl Phases {
    /// Of a request that arrives now.
    pub(super) fn begin(now: Instant) -> Self {
        Self {
            began: now,
            last: now,
            stretches: [NOTHING; STRETCHES_MAX],
            count: 0,
        }
    }

    /// When it arrived.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// Up to when its time is accounted for.
    pub(super) fn accounted(&self) -> Instant {
        self.last
    }

    /// How long it has taken, up to what is accounted for.
    pub(super) fn total(&self) -> Duration {
        self.last.saturating_duration_since(self.began)
    }

    /// How much of that went to `phase`.
    pub(super) fn spent(&self, phase: Phase) -> Duration {
        let stretches = self.stretches().iter();
        let of_it = stretches.filter(|stretch| stretch.phase == phase);
        of_it.map(|stretch| stretch.spent).sum()
    }

    /// The stretches in order, from its arrival.
    pub(super) fn stretches(&self) -> &[Stretch] {
        &self.stretches[..self.count]
    }

    /// What came after the last piece, up to `then`, went to `phase`. A reading from before that adds
    /// nothing: a time that was taken for a whole batch may be earlier.
    pub(super) fn until(&mut self, phase: Phase, then: Instant) {
        let then = then.max(self.last);
        self.add(phase, then.saturating_duration_since(self.last));
        self.last = then;
    }

    fn add(&mut self, phase: Phase, spent: Duration) {
        if spent.is_zero() {
            return;
        }
        let last = self.stretches[..self.count].last_mut();
        if let Some(last) = last
            && (last.phase == phase || self.count == STRETCHES_MAX)
        {
            last.spent += spent;
            return;
        }
        self.stretches[self.count] = Stretch { phase, spent };
        self.count += 1;
    }

    /// Its answer is here `now`, after these stages.
    pub(super) fn answered(&mut self, stages: &Stages, now: Instant) {
        let Stages {
            taken,
            committed,
            looked,
        } = *stages;
        if let Some(looked) = looked {
            self.until(Phase::Queue, looked);
            return self.until(Phase::Storage, now);
        }
        let Some(taken) = taken else {
            // The driver has not taken it.
            return self.until(Phase::Queue, now);
        };
        self.until(Phase::Queue, taken);
        match committed {
            Some(committed) => {
                self.until(Phase::Quorum, committed);
                self.until(Phase::Apply, now);
            }
            None => self.until(Phase::Quorum, now),
        }
    }

    /// Adds what there is to the histograms; a phase that it did not have is not among them.
    pub(super) fn report(&self, metrics: &PhaseMetrics) {
        for phase in Phase::ALL {
            let spent = self.spent(phase);
            if spent > Duration::ZERO {
                metrics.spent(phase, spent);
            }
        }
    }
}

const NOTHING: Stretch = Stretch {
    phase: Phase::Queue,
    spent: Duration::ZERO,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::metrics::stopwatch;

    const MS: Duration = Duration::from_millis(1);

    fn spent(phases: &Phases) -> [u128; 4] {
        Phase::ALL.map(|phase| phases.spent(phase).as_millis())
    }

    #[test]
    fn a_write_waits_to_be_proposed_then_committed_then_applied() {
        let begin = stopwatch();
        let mut phases = Phases::begin(begin);
        let stages = Stages {
            taken: Some(begin + MS),
            committed: Some(begin + 10 * MS),
            looked: None,
        };
        phases.answered(&stages, begin + 15 * MS);
        assert_eq!(spent(&phases), [1, 9, 5, 0]);
        assert_eq!(phases.total(), 15 * MS);
    }

    #[test]
    fn what_was_never_committed_was_waiting_for_that_to_the_end() {
        let begin = stopwatch();
        let mut phases = Phases::begin(begin);
        let stages = Stages {
            taken: Some(begin + 2 * MS),
            ..Stages::default()
        };
        phases.answered(&stages, begin + 30 * MS);
        assert_eq!(spent(&phases), [2, 28, 0, 0]);
        let mut refused = Phases::begin(begin);
        refused.answered(&Stages::default(), begin + 4 * MS);
        assert_eq!(spent(&refused), [4, 0, 0, 0]);
    }

    #[test]
    fn a_read_that_asks_a_quorum_waits_for_it_then_for_its_turn_then_for_the_store() {
        let begin = stopwatch();
        let mut phases = Phases::begin(begin);
        let permitted = Stages {
            taken: Some(begin + MS),
            ..Stages::default()
        };
        phases.answered(&permitted, begin + 5 * MS);
        let looked = Stages {
            looked: Some(begin + 8 * MS),
            ..Stages::default()
        };
        phases.answered(&looked, begin + 28 * MS);
        assert_eq!(spent(&phases), [1 + 3, 4, 0, 20]);
        let pieces: Duration = Phase::ALL.map(|phase| phases.spent(phase)).iter().sum();
        assert_eq!(pieces, phases.total());
        let way = phases.stretches().iter();
        let way: Vec<_> = way.map(|it| (it.phase, it.spent.as_millis())).collect();
        assert_eq!(
            way,
            [
                (Phase::Queue, 1),
                (Phase::Quorum, 4),
                (Phase::Queue, 3),
                (Phase::Storage, 20),
            ]
        );
    }

    #[test]
    fn however_a_way_goes_its_pieces_are_all_of_its_time() {
        let begin = stopwatch();
        let mut phases = Phases::begin(begin);
        let mut at = begin;
        for turn in 1..20u32 {
            let phase = Phase::ALL[turn as usize % Phase::ALL.len()];
            at += turn * MS;
            phases.until(phase, at);
            phases.until(phase, at + MS);
            at += MS;
        }
        let pieces: Duration = phases.stretches().iter().map(|it| it.spent).sum();
        assert_eq!(pieces, phases.total());
        assert_eq!(phases.stretches().len(), STRETCHES_MAX);
    }

    #[test]
    fn readings_that_come_in_another_order_leave_the_whole_as_it_is() {
        let begin = stopwatch();
        let mut phases = Phases::begin(begin + 2 * MS);
        let stages = Stages {
            taken: Some(begin),
            committed: Some(begin + 9 * MS),
            looked: None,
        };
        phases.answered(&stages, begin + 6 * MS);
        assert_eq!(spent(&phases), [0, 7, 0, 0]);
        assert_eq!(phases.total(), 7 * MS);
    }
}
