//! How fast a peer's clocks run against ours, from readings that it sends along.
//!
//! A reading is as old as its journey when it arrives, so the peer's clock looks slower than it is
//! by that much, never faster. Of the readings of some seconds the one that looks the fastest had
//! the quickest journey; how it moves from one such span to a later one tells the difference of the
//! rates, as exactly as quickest journeys are alike. Nothing is decided by it: it warns an operator
//! before the drift that the lease allows for (A1, A5) is used up.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Instant;
use crate::wire::peer::PeerClock;

/// How often a reading is sent.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);
/// The best reading of each span is kept.
const SPAN_NANOS: i128 = 10_000_000_000;
/// Number of complete spans before a rate is reported.
const SPANS_MIN: usize = 3;
/// Spans that are looked back over: five minutes.
const SPANS_MAX: usize = 31;

/// The readings of one connection; after a reconnect the machine may have been restarted.
#[derive(Debug, Default)]
pub(super) struct Drift {
    boot: Track,
    raw: Track,
}

/// The same of one clock.
#[derive(Debug, Default)]
struct Track {
    /// The quickest reading of each span, the oldest first; the last span is still going on.
    spans: VecDeque<Span>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    began: i128,
    /// Our clock at the reading that looked the fastest.
    at: i128,
    /// The peer's clock less ours, then.
    ahead: i128,
}

impl Drift {
    /// A reading of the peer's clocks arrived when ours said `now`. Returns by how much the peer's
    /// clocks run faster than ours, of the two differences the greater: 1e-6 is a microsecond a
    /// second, a slower one is negative. Nothing until half a minute has been seen.
    pub(super) fn heard(&mut self, theirs: PeerClock, now: Instant) -> Option<f64> {
        let boot = self.boot.heard(theirs.boot, now.boot);
        let raw = self.raw.heard(theirs.raw, now.raw);
        let (boot, raw) = (boot?, raw?);
        Some(if boot.abs() >= raw.abs() { boot } else { raw })
    }
}

impl Track {
    fn heard(&mut self, theirs: u64, ours: u64) -> Option<f64> {
        let (theirs, at) = (i128::from(theirs), i128::from(ours));
        let span = Span {
            began: at,
            at,
            ahead: theirs - at,
        };
        match self.spans.back_mut() {
            // Our clock ran backwards, or one of the two leapt ahead, as after a suspend or where the hypervisor
            // has disrupted it: earlier readings cannot be compared with later ones.
            Some(last) if at < last.at || (span.ahead - last.ahead).abs() > SPAN_NANOS => {
                self.spans.clear();
            }
            Some(last) if at - last.began < SPAN_NANOS => {
                if span.ahead >= last.ahead {
                    (last.at, last.ahead) = (at, span.ahead);
                }
                return self.rate();
            }
            _ => {}
        }
        if self.spans.len() == SPANS_MAX {
            self.spans.pop_front();
        }
        self.spans.push_back(span);
        self.rate()
    }

    /// From the first span to the last that is over.
    fn rate(&self) -> Option<f64> {
        let over = self.spans.len().saturating_sub(1);
        if over < SPANS_MIN {
            return None;
        }
        let (first, last) = (self.spans[0], self.spans[over - 1]);
        let between = last.at - first.at;
        (between >= SPAN_NANOS).then(|| (last.ahead - first.ahead) as f64 / between as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told at the end, of a peer whose clocks run faster by so much, and whose readings
    /// take between 0.1 and 5 ms.
    fn told(boot: f64, raw: f64, seconds: u64) -> Option<f64> {
        let mut random = fastrand::Rng::with_seed(3);
        let mut drift = Drift::default();
        let mut told = None;
        for second in 1..=seconds {
            let sent = second * 1_000_000_000;
            let at = |rate: f64| 5_000_000_000 + (sent as f64 * (1.0 + rate)) as u64;
            let theirs = PeerClock {
                boot: at(boot),
                raw: at(raw),
            };
            let now = Instant::from_nanos(sent + random.u64(100_000..5_000_000));
            told = drift.heard(theirs, now);
        }
        told
    }

    #[test]
    fn the_difference_of_two_rates_is_found_through_unequal_journeys() {
        for (boot, raw, truth) in [
            (0.0, 0.0, 0.0),
            (40e-6, 10e-6, 40e-6),
            (-5e-6, -300e-6, -300e-6),
            (0.02, 0.02, 0.02),
        ] {
            let told = told(boot, raw, 300).unwrap();
            assert!((told - truth).abs() < 1e-5, "{told} for {truth}");
        }
    }

    #[test]
    fn nothing_is_told_of_a_short_acquaintance() {
        assert_eq!(told(0.5, 0.5, 29), None);
        assert!(told(0.5, 0.5, 40).is_some());
    }

    /// P17: time that only the boot clock counts is no drift.
    #[test]
    fn a_clock_that_leaps_ahead_is_watched_from_there_on_and_drifts_no_more_than_before() {
        let mut drift = Drift::default();
        for second in 1..=300_u64 {
            let nanos = |seconds: u64| seconds * 1_000_000_000;
            let leap = if second < 100 { 0 } else { 30 * 24 * 3_600 };
            let theirs = PeerClock {
                boot: nanos(second + leap),
                raw: nanos(second),
            };
            let told = drift.heard(theirs, Instant::from_nanos(nanos(second)));
            assert!(told.is_none_or(|told| told.abs() < 1e-9), "{told:?}");
            match second {
                99 | 300 => assert!(told.is_some()),
                100 => assert!(told.is_none()),
                _ => {}
            }
        }
    }

    #[test]
    fn our_own_step_back_begins_anew_and_absurd_readings_do_no_harm() {
        let mut drift = Drift::default();
        let mut hear = |theirs: u64, ours: u64| {
            let theirs = PeerClock {
                boot: theirs,
                raw: theirs,
            };
            drift.heard(theirs, Instant::from_nanos(ours * 1_000_000_000))
        };
        for second in 100..200 {
            hear(second * 1_000_000_000, second);
        }
        assert_eq!(hear(50_000_000_000, 50), None);
        for (second, theirs) in (51..200).zip([0, u64::MAX].into_iter().cycle()) {
            let told = hear(theirs, second);
            assert!(told.is_none_or(f64::is_finite));
        }
    }
}
