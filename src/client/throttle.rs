//! Client-side throttling of requests that the node would refuse.
//!
//! A refusal costs a node nearly as much as a small write: both arrive, are decrypted, decoded and
//! answered. So a node that receives four times its capacity spends much of it on refusals, unless
//! its clients back off. This client does: each connection counts the results of its writes and
//! scans, and beyond a few a second it sends only [`OVERSEND`] times as many as were accepted
//! lately. The rest fails locally, with the error that the node would have returned. As more is
//! accepted again, more is sent, half as much again each second or so.
//!
//! Without refusals nothing is counted, and the only cost is a check of a flag.
//! The method is the adaptive throttling of Beyer et al., Site Reliability Engineering, chapter 21.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::deadline::now;
use crate::api::{Error, ErrorKind};
use crate::sync::Mutex;

/// How much more is sent than was accepted. With a factor of one the client would never learn that
/// a node has capacity again; two, the book's value, leaves as many refusals as answers.
const OVERSEND: f64 = 1.5;
/// Half-life of the counters' weights.
const HALF_LIFE: Duration = Duration::from_secs(1);
/// Never throttled: this many answers, by their remaining weight. About twenty a second.
const FREE: f64 = 30.0;
/// Below this weight of refusals, counting stops.
const FORGOTTEN: f64 = 0.5;

/// Recent results of one connection's requests that a node may refuse for lack of capacity.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Whether a request was refused lately.
    is_counting: AtomicBool,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// When the weights were last updated.
    at: Option<Instant>,
    /// Requests answered, or refused here.
    asked: f64,
    /// Of these, those that the node did not refuse.
    taken_in: f64,
    /// The wait that the node requested last.
    retry_after_ms: u32,
}

impl Counts {
    fn age(&mut self, now: Instant) {
        let since = self
            .at
            .map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.at = Some(now);
        let left = (-since.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2();
        self.asked *= left;
        self.taken_in *= left;
    }

    /// The fraction of requests that are refused here.
    fn share_held_back(&self) -> f64 {
        ((self.asked - OVERSEND * self.taken_in - FREE) / (self.asked + 1.0)).max(0.0)
    }
}

impl Throttle {
    /// Whether a request was refused lately. If not, everything may be sent.
    pub(super) fn is_counting(&self) -> bool {
        self.is_counting.load(Ordering::Relaxed)
    }

    /// Whether a request may be sent `now`, by a random number from 0 to 1; otherwise the error
    /// that it fails with here.
    pub(super) fn admit(&self, now: Instant, drawn: f64) -> Result<(), Error> {
        let mut counts = self.counts();
        counts.age(now);
        if drawn >= counts.share_held_back() {
            return Ok(());
        }
        counts.asked += 1.0;
        let retry_after_ms = counts.retry_after_ms;
        Err(Error::not_applied(
            ErrorKind::SlowDown { retry_after_ms },
            "throttled by this client: the node rejects most requests because it is overloaded; \
             send fewer requests, or give the node more resources",
        ))
    }

    /// Records that a request was answered.
    pub(super) fn answered(&self, refusal: Option<&Error>) {
        let is_slow_down = |error: &Error| matches!(error.kind, ErrorKind::SlowDown { .. });
        if self.is_counting() || refusal.is_some_and(is_slow_down) {
            self.count(now(), refusal);
        }
    }

    fn count(&self, now: Instant, refusal: Option<&Error>) {
        let asked_to_wait = match refusal.map(|error| &error.kind) {
            Some(ErrorKind::SlowDown { retry_after_ms }) => Some(*retry_after_ms),
            _ => None,
        };
        let mut counts = self.counts();
        counts.age(now);
        counts.asked += 1.0;
        match asked_to_wait {
            Some(retry_after_ms) => {
                counts.retry_after_ms = retry_after_ms;
                self.is_counting.store(true, Ordering::Relaxed);
            }
            None => {
                counts.taken_in += 1.0;
                if counts.asked - counts.taken_in < FORGOTTEN {
                    *counts = Counts::default();
                    self.is_counting.store(false, Ordering::Relaxed);
                }
            }
        }
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        // No update under this lock can be left half done.
        self.counts.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow_down() -> Error {
        Error::not_applied(ErrorKind::SlowDown { retry_after_ms: 40 }, "no room")
    }

    /// Ten seconds of `offered` requests a second at a node that takes in `capacity` of them; what was
    /// sent, taken in and held back in the last five.
    fn play(throttle: &Throttle, start: Instant, offered: u32, capacity: u32) -> [u32; 3] {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut sent, mut taken_in, mut held_back) = (0, 0, 0);
        // A hundredth of a second at a time.
        for step in 0..1000 {
            let now = start + Duration::from_millis(10) * step;
            let counts = step >= 500;
            let mut room = capacity / 100;
            for _ in 0..offered / 100 {
                if throttle.is_counting() && throttle.admit(now, random.f64()).is_err() {
                    held_back += u32::from(counts);
                    continue;
                }
                sent += u32::from(counts);
                let refusal = slow_down();
                let is_refused = room == 0;
                room = room.saturating_sub(1);
                taken_in += u32::from(counts && !is_refused);
                if is_refused || throttle.is_counting() {
                    throttle.count(now, is_refused.then_some(&refusal));
                }
            }
        }
        [sent, taken_in, held_back]
    }

    #[test]
    fn while_nobody_is_refused_nothing_is_held_back_or_counted() {
        let throttle = Throttle::default();
        let [sent, taken_in, held_back] = play(&throttle, now(), 10_000, 10_000);
        assert_eq!((sent, taken_in, held_back), (50_000, 50_000, 0));
        assert!(!throttle.is_counting());
        // Nor where a request fails for another reason.
        let other = Error::not_applied(ErrorKind::NoLeader, "none");
        throttle.answered(Some(&other));
        assert!(!throttle.is_counting());
    }

    #[test]
    fn a_node_asked_for_four_times_what_it_can_do_is_sent_little_more_than_that() {
        let throttle = Throttle::default();
        let start = now();
        let [sent, taken_in, held_back] = play(&throttle, start, 40_000, 10_000);
        assert_eq!(sent + held_back, 200_000);
        // All that it can do, and not much in vain.
        assert!(taken_in >= 49_000, "{taken_in}");
        assert!((70_000..=80_000).contains(&sent), "{sent}");

        // When it can do all of it again, so it is asked.
        let later = start + Duration::from_secs(10);
        let [sent, taken_in, held_back] = play(&throttle, later, 40_000, 40_000);
        assert_eq!((sent, taken_in, held_back), (200_000, 200_000, 0));
    }

    #[test]
    fn whoever_asks_seldom_is_never_held_back() {
        let throttle = Throttle::default();
        let mut now = now();
        for _ in 0..1000 {
            now += Duration::from_millis(60);
            throttle.admit(now, 0.0).unwrap();
            throttle.count(now, Some(&slow_down()));
        }
    }

    #[test]
    fn what_is_held_back_says_how_long_the_node_asked_to_wait() {
        let throttle = Throttle::default();
        let now = now();
        for _ in 0..100 {
            throttle.count(now, Some(&slow_down()));
        }
        let error = throttle.admit(now, 0.5).unwrap_err();
        assert_eq!(error.kind, ErrorKind::SlowDown { retry_after_ms: 40 });
        assert_eq!(error.outcome, crate::api::Outcome::NotApplied);
        // Seldom, but it may be sent.
        throttle.admit(now, 0.999).unwrap();
        // And after a while without a word all is forgotten.
        let later = now + Duration::from_secs(20);
        throttle.admit(later, 0.0).unwrap();
        throttle.count(later, None);
        assert!(!throttle.is_counting());
    }
}
