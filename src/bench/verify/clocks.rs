//! How fast the clocks of nodes run against each other, from readings that travelled.
//!
//! A node reads its clocks while it answers; we read ours before we ask and after we are answered.
//! Its reading was taken somewhere in between: so the offset of its clock to ours is known to
//! within half the round trip, and how it changes tells the difference of their rates, the more
//! exactly the longer one looks and the quicker the quickest answers were. Offsets themselves mean
//! nothing: each clock counts from the start of its own machine.

use std::time::Duration;

use serde::Serialize;

use crate::api::ClockReading;

/// One reading of a node's clocks, between two of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Our clocks before we asked.
    pub sent: ClockReading,
    /// Our clocks once we were answered.
    pub received: ClockReading,
    /// The node's clocks in between.
    pub node: ClockReading,
}

/// Which clock of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// `CLOCK_BOOTTIME`.
    Boot,
    /// `CLOCK_MONOTONIC_RAW`.
    Raw,
}

impl Which {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Boot, Self::Raw];

    fn of(self, reading: ClockReading) -> i128 {
        i128::from(match self {
            Self::Boot => reading.boot,
            Self::Raw => reading.raw,
        })
    }
}

/// How much faster one clock runs than another, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rate {
    /// The estimate; positive where the first clock is the faster.
    pub ppm: f64,
    /// The truth is no further from it than this.
    pub error_ppm: f64,
}

impl Rate {
    /// The largest that the difference may truly be.
    pub fn bound(self) -> f64 {
        self.ppm.abs() + self.error_ppm
    }

    /// This clock against `other`, where both were compared with the same third one.
    #[must_use]
    pub fn against(self, other: Self) -> Self {
        Self {
            ppm: self.ppm - other.ppm,
            error_ppm: self.error_ppm + other.error_ppm,
        }
    }
}

/// A clock's offset to ours at one moment, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Offset {
    at: i128,
    offset: i128,
    /// Half the round trip, rounded up.
    error: i128,
}

impl Offset {
    fn of(sample: &Sample, which: Which) -> Self {
        let (sent, received) = (which.of(sample.sent), which.of(sample.received));
        let at = i128::midpoint(sent, received);
        Self {
            at,
            offset: which.of(sample.node) - at,
            error: (received - sent + 1) / 2,
        }
    }
}

/// All readings of one node, in order.
#[derive(Clone, Debug, Default)]
pub struct Track {
    samples: Vec<Sample>,
}

impl Track {
    /// Adds a reading.
    pub fn push(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.samples.len()
    }

    /// How much faster the node's clock ran than ours, from the quickest answers of the first and
    /// of the last third. Nothing if there are too few, or no time lies between them.
    pub fn rate(&self, which: Which) -> Option<Rate> {
        let third = self.samples.len() / 3;
        let quickest = |samples: &[Sample]| {
            let offsets = samples.iter().map(|sample| Offset::of(sample, which));
            offsets.min_by_key(|offset| offset.error)
        };
        let first = quickest(&self.samples[..third])?;
        let last = quickest(&self.samples[self.samples.len() - third..])?;
        let between = last.at - first.at;
        if between <= 0 {
            return None;
        }
        let ppm = |nanos: i128| nanos as f64 * 1e6 / between as f64;
        Some(Rate {
            ppm: ppm(last.offset - first.offset),
            error_ppm: ppm(last.error + first.error),
        })
    }

    /// How much faster the node's boot clock ran than its raw one: what NTP does to it. Needs no
    /// journey, so it is exact to a microsecond over the whole.
    pub fn slew(&self) -> Option<Rate> {
        let (first, last) = (self.samples.first()?.node, self.samples.last()?.node);
        let raw = Which::Raw.of(last) - Which::Raw.of(first);
        let boot = Which::Boot.of(last) - Which::Boot.of(first);
        (raw > 0).then(|| Rate {
            ppm: (boot - raw) as f64 * 1e6 / raw as f64,
            error_ppm: 1e3 * 1e6 / raw as f64,
        })
    }

    /// Over how many spans of at least `length` the node's clock certainly ran faster or slower
    /// than ours by more than `allowed_ppm`: steps, suspends, and clocks that are out of order.
    pub fn excesses(&self, which: Which, length: Duration, allowed_ppm: f64) -> usize {
        let length = i128::try_from(length.as_nanos()).unwrap_or(i128::MAX);
        let offsets: Vec<Offset> = self
            .samples
            .iter()
            .map(|sample| Offset::of(sample, which))
            .collect();
        let mut from = 0;
        let mut found = 0;
        for to in 0..offsets.len() {
            // The shortest span that ends here and is long enough.
            while from + 1 < to && offsets[to].at - offsets[from + 1].at >= length {
                from += 1;
            }
            let (first, last) = (offsets[from], offsets[to]);
            let between = last.at - first.at;
            if between < length {
                continue;
            }
            let certain = (last.offset - first.offset).abs() - last.error - first.error;
            found += usize::from(certain as f64 * 1e6 > allowed_ppm * between as f64);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node whose clocks run faster than ours by so many millionths, asked every 10 ms; answers
    /// take between 100 µs and 4 ms, and no two halves of a journey are alike.
    fn track(boot_ppm: f64, raw_ppm: f64, seconds: u64) -> Track {
        let mut random = fastrand::Rng::with_seed(5);
        let mut track = Track::default();
        for tick in 0..seconds * 100 {
            let sent = 1_000_000_000 + tick * 10_000_000;
            let there = random.u64(50_000..2_000_000);
            let back = random.u64(50_000..2_000_000);
            let node = |ppm: f64| {
                let elapsed = (tick * 10_000_000 + there) as f64;
                77_000_000_000 + (elapsed * (1.0 + ppm / 1e6)) as u64
            };
            let ours = |at: u64| ClockReading { boot: at, raw: at };
            track.push(Sample {
                sent: ours(sent),
                received: ours(sent + there + back),
                node: ClockReading {
                    boot: node(boot_ppm),
                    raw: node(raw_ppm),
                },
            });
        }
        track
    }

    #[test]
    fn rates_are_found_within_the_error_that_is_told() {
        for (boot, raw) in [(0.0, 0.0), (120.0, -35.0), (-20_000.0, 20_000.0)] {
            let track = track(boot, raw, 30);
            for (which, truth) in [(Which::Boot, boot), (Which::Raw, raw)] {
                let rate = track.rate(which).unwrap();
                assert!(
                    (rate.ppm - truth).abs() <= rate.error_ppm,
                    "{which:?}: {rate:?}"
                );
                assert!(
                    rate.error_ppm < 60.0,
                    "quick answers are there to be found: {rate:?}"
                );
            }
            let slew = track.slew().unwrap();
            let truth = ((1.0 + boot / 1e6) / (1.0 + raw / 1e6) - 1.0) * 1e6;
            assert!((slew.ppm - truth).abs() < 0.1, "{slew:?} for {truth}");
        }
    }

    #[test]
    fn too_little_says_nothing() {
        assert_eq!(Track::default().rate(Which::Raw), None);
        assert_eq!(Track::default().slew(), None);
        let mut two = Track::default();
        for sample in &track(0.0, 0.0, 1).samples[..2] {
            two.push(*sample);
        }
        assert_eq!(two.rate(Which::Raw), None);
        assert_eq!(two.excesses(Which::Raw, Duration::from_millis(500), 0.0), 0);
    }

    #[test]
    fn a_step_is_found_and_slow_journeys_are_no_step() {
        let length = Duration::from_millis(500);
        let mut track = track(100.0, 0.0, 10);
        for which in Which::BOTH {
            assert_eq!(track.excesses(which, length, 20_000.0), 0, "{which:?}");
        }
        // The machine was suspended for 30 ms: the raw clock stood still.
        for sample in &mut track.samples[500..] {
            sample.node.raw -= 30_000_000;
        }
        assert_eq!(track.excesses(Which::Boot, length, 20_000.0), 0);
        let found = track.excesses(Which::Raw, length, 20_000.0);
        assert!((40..=51).contains(&found), "every span across it: {found}");
        assert!(
            track.excesses(Which::Raw, Duration::from_secs(5), 20_000.0) == 0,
            "30 ms of 5 s"
        );
    }

    #[test]
    fn two_nodes_are_compared_by_way_of_us() {
        let (fast, slow) = (
            Rate {
                ppm: 40.0,
                error_ppm: 3.0,
            },
            Rate {
                ppm: -20.0,
                error_ppm: 4.0,
            },
        );
        let between = fast.against(slow);
        assert_eq!(
            (between.ppm, between.error_ppm, between.bound()),
            (60.0, 7.0, 67.0)
        );
    }
}
