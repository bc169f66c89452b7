//! What was asked and what came of it, counted.
//!
//! Latencies go into histograms with three significant digits, whatever their size, so nothing is
//! averaged away; tallies of threads and rounds add up without loss.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::store::{Answer, Trouble};
use crate::api::ReadPath;

/// Significant digits of every latency.
const DIGITS: u8 = 3;

/// How long things took, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Self {
        // An hour, beyond any deadline: then recording never has to grow it.
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000_000, DIGITS);
        Self {
            histogram: histogram.expect("bounds and digits are within what a histogram takes"),
        }
    }
}

impl Latencies {
    /// Takes one down.
    pub fn record(&mut self, taken: Duration) {
        let nanos = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record(nanos);
    }

    /// Takes over all of another.
    pub fn add(&mut self, other: &Self) {
        self.histogram
            .add(&other.histogram)
            .expect("all histograms have the same bounds");
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The latency that this share of all, from 0 to 1, did not exceed; zero if there are none.
    pub fn at(&self, share: f64) -> Duration {
        Duration::from_nanos(self.histogram.value_at_quantile(share))
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.histogram.max())
    }

    /// The mean.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.histogram.mean() as u64)
    }

    /// The histogram, for who wants all of it; in nanoseconds.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }
}

/// Operations of one kind.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// How long those took that were answered.
    pub taken: Latencies,
    /// How late they were sent, after they were due; open loop only.
    pub delay: Latencies,
    /// How many were due and never sent, because every client was waiting; open loop only.
    pub unsent: u64,
}

impl Series {
    fn add(&mut self, other: &Self) {
        self.taken.add(&other.taken);
        self.delay.add(&other.delay);
        self.unsent += other.unsent;
    }
}

/// Failures of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// How many.
    pub count: u64,
    /// What the first of them said.
    pub first: String,
}

/// Everything that was counted.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Reads.
    pub reads: Series,
    /// Writes.
    pub writes: Series,
    /// Failures, by code.
    pub failures: BTreeMap<&'static str, Failures>,
    /// Reads that were answered, by authority. A handful, so a list is quickest.
    pub paths: Vec<(ReadPath, u64)>,
    /// Reads that found no key: they cost less, so they are counted separately.
    pub not_found: u64,
}

/// One request, from when it was due to when its fate was known.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// It was a read.
    pub is_read: bool,
    /// When it was due: in a closed loop, when it was sent.
    pub due: Duration,
    /// When it was sent.
    pub sent: Duration,
    /// When its fate was known.
    pub ended: Duration,
    /// Its fate.
    pub result: Result<Answer, Trouble>,
}

impl Tally {
    /// Takes a request down.
    pub fn record(&mut self, asked: &RequestRecord) {
        let series = match asked.is_read {
            true => &mut self.reads,
            false => &mut self.writes,
        };
        series.delay.record(asked.sent.saturating_sub(asked.due));
        match &asked.result {
            Ok(answer) => {
                series.taken.record(asked.ended.saturating_sub(asked.due));
                if let Some(path) = answer.path {
                    self.count_path(path, 1);
                }
                self.not_found += u64::from(asked.is_read && !answer.found);
            }
            Err(trouble) => self.fail(trouble),
        }
    }

    /// Takes a request down that was due and never sent: it would have taken longer than this.
    pub fn record_unsent(&mut self, is_read: bool, due: Duration, end: Duration) {
        let series = match is_read {
            true => &mut self.reads,
            false => &mut self.writes,
        };
        let at_least = end.saturating_sub(due);
        series.taken.record(at_least);
        series.delay.record(at_least);
        series.unsent += 1;
    }

    /// Takes over all of another.
    pub fn add(&mut self, other: &Self) {
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
        for (code, more) in &other.failures {
            let failures = self.failures.entry(code).or_default();
            if failures.count == 0 {
                failures.first.clone_from(&more.first);
            }
            failures.count += more.count;
        }
        for (path, count) in &other.paths {
            self.count_path(*path, *count);
        }
        self.not_found += other.not_found;
    }

    /// How many requests were answered.
    pub fn answered(&self) -> u64 {
        let series = |series: &Series| series.taken.count() - series.unsent;
        series(&self.reads) + series(&self.writes)
    }

    /// How many failed.
    pub fn failed(&self) -> u64 {
        self.failures.values().map(|failures| failures.count).sum()
    }

    fn fail(&mut self, trouble: &Trouble) {
        let failures = self.failures.entry(trouble.code).or_default();
        if failures.count == 0 {
            failures.first.clone_from(&trouble.detail);
        }
        failures.count += 1;
    }

    fn count_path(&mut self, path: ReadPath, more: u64) {
        match self.paths.iter_mut().find(|(known, _)| *known == path) {
            Some((_, count)) => *count += more,
            None => self.paths.push((path, more)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn asked(
        is_read: bool,
        due: Duration,
        ended: Duration,
        code: Option<&'static str>,
    ) -> RequestRecord {
        let answer = Answer {
            revision: 1,
            path: is_read.then_some(ReadPath::Lease),
            found: true,
        };
        let trouble = |code| Trouble {
            code,
            detail: format!("{code} at {ended:?}"),
        };
        RequestRecord {
            is_read,
            due,
            sent: due,
            ended,
            result: code.map_or(Ok(answer), |code| Err(trouble(code))),
        }
    }

    #[test]
    fn tallies_of_two_threads_add_up_as_if_one_had_counted() {
        let requests = [
            asked(true, MS, 3 * MS, None),
            asked(false, MS, 9 * MS, None),
            asked(true, MS, 2 * MS, Some("LH-NO-LEADER")),
            asked(true, MS, 4 * MS, Some("LH-NO-LEADER")),
            asked(true, MS, 4 * MS, Some("LH-SLOW-DOWN")),
            asked(true, 5 * MS, 6 * MS, None),
        ];
        let mut one = Tally::default();
        let mut two = [Tally::default(), Tally::default()];
        for (number, request) in requests.iter().enumerate() {
            one.record(request);
            two[number % 2].record(request);
        }
        two[1].record_unsent(true, MS, 8 * MS);
        one.record_unsent(true, MS, 8 * MS);
        let mut both = Tally::default();
        both.add(&two[0]);
        both.add(&two[1]);
        for tally in [&one, &both] {
            assert_eq!(tally.answered(), 3);
            assert_eq!(tally.failed(), 3);
            assert_eq!(tally.failures["LH-NO-LEADER"].count, 2);
            assert_eq!(tally.failures["LH-NO-LEADER"].first, "LH-NO-LEADER at 2ms");
            assert_eq!(tally.paths, [(ReadPath::Lease, 2)]);
            assert_eq!(tally.reads.unsent, 1);
            assert_eq!(tally.reads.taken.count(), 3);
            let longest = tally.reads.taken.max();
            assert!(longest >= 7 * MS && longest < 8 * MS, "{longest:?}");
        }
    }

    #[test]
    fn a_latency_beyond_all_bounds_is_kept_as_the_longest_there_is() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::MAX);
        latencies.record(Duration::ZERO);
        assert_eq!(latencies.count(), 2);
        assert!(latencies.max() >= Duration::from_secs(3_600));
    }
}
