//! The log of slow requests.
//!
//! A line says where the time of a request went, and never names a key or a value. A disk that has
//! become slow makes every request slow, so the number of lines is limited, and the next line counts
//! those left out. The metrics count all slow requests.

use std::time::{Duration, Instant};

use crate::api::{Error, ReadPath, Response};
use crate::server::metrics::Phase;
use crate::server::session::traces::{Account, TraceId};
use crate::sync::Mutex;

use super::phases::Phases;

/// So many lines may be written within [`PERIOD`].
const LINES_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// The threshold, and the lines of the last period.
#[derive(Debug)]
pub(crate) struct SlowLog {
    /// `None`: no request is slow.
    from: Option<Duration>,
    pace: Mutex<Pace>,
}

/// Lines of the current period.
#[derive(Debug, Default)]
struct Pace {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// `OK`, or the code of the error.
    code: &'static str,
    revision: Option<i64>,
    path: Option<ReadPath>,
}

/// What a line contains beside the times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    pub(super) method: &'static str,
    pub(super) outcome: Outcome,
    /// As it came from the wire.
    pub(super) request_bytes: usize,
    /// As it went there.
    pub(super) reply_bytes: usize,
    /// Other reads of the same batch.
    pub(super) beside: usize,
}

impl Outcome {
    pub(super) fn of(result: &Result<Response, Error>) -> Self {
        match result {
            Ok(response) => Self {
                code: "OK",
                revision: Some(response.header.revision),
                path: response.header.read.map(|read| read.path),
            },
            Err(error) => Self::refused(error),
        }
    }

    pub(super) fn refused(error: &Error) -> Self {
        Self {
            code: error.code(),
            revision: None,
            path: None,
        }
    }

    pub(super) fn read(path: ReadPath, revision: i64) -> Self {
        Self {
            code: "OK",
            revision: Some(revision),
            path: Some(path),
        }
    }
}

impl Summary {
    /// The same for a trace.
    pub(super) fn account(&self, is_slow: bool, phases: &Phases) -> Account {
        Account {
            method: self.method,
            code: self.outcome.code,
            read_path: self.outcome.path.map(|path| path.name()),
            revision: self.outcome.revision,
            request_bytes: self.request_bytes,
            reply_bytes: self.reply_bytes,
            beside: self.beside,
            is_slow,
            stretches: phases.stretches().to_vec(),
        }
    }

    /// Writes the line of a slow request, after `left_out` slow requests that had none.
    pub(super) fn log(
        &self,
        node: &str,
        phases: &Phases,
        trace_id: Option<TraceId>,
        left_out: u64,
    ) {
        let millis = |time: Duration| time.as_micros() as f64 / 1e3;
        tracing::warn!(
            node = %node,
            method = self.method,
            outcome = self.outcome.code,
            total_ms = millis(phases.total()),
            queue_ms = millis(phases.spent(Phase::Queue)),
            quorum_ms = millis(phases.spent(Phase::Quorum)),
            apply_ms = millis(phases.spent(Phase::Apply)),
            storage_ms = millis(phases.spent(Phase::Storage)),
            request_bytes = self.request_bytes,
            reply_bytes = self.reply_bytes,
            beside = self.beside,
            revision = self.outcome.revision,
            read_path = self.outcome.path.map(|path| path.name()),
            trace_id = trace_id.map(|id| id.to_string()),
            left_out,
            "slow request"
        );
    }
}

impl SlowLog {
    /// Logs requests that took `from` or longer.
    pub(crate) fn new(from: Option<Duration>) -> Self {
        Self {
            from,
            pace: Mutex::default(),
        }
    }

    pub(super) fn is_slow(&self, total: Duration) -> bool {
        self.from.is_some_and(|from| total >= from)
    }

    pub(super) fn pace(&self, now: Instant) -> Option<u64> {
        let mut pace = self.pace.lock();
        pace.take(now)
    }
}

impl Pace {
    /// Room for a line, and how many were left out before it; `None` if there is none.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= PERIOD;
        if self.since.is_none_or(is_over) {
            self.since = Some(now);
            self.lines = 0;
        }
        if self.lines >= LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::metrics::stopwatch;

    #[test]
    fn some_have_lines_and_the_next_line_says_how_many_had_none() {
        let mut pace = Pace::default();
        let now = stopwatch();
        for _ in 0..LINES_MAX {
            assert_eq!(pace.take(now), Some(0));
        }
        for _ in 0..1_000 {
            assert_eq!(pace.take(now + PERIOD / 2), None);
        }
        assert_eq!(pace.take(now + PERIOD), Some(1_000));
        assert_eq!(pace.take(now + PERIOD), Some(0));
    }

    #[test]
    fn slow_begins_where_it_is_said_to_and_nowhere_if_nothing_is_said() {
        let from = Duration::from_millis(100);
        let log = SlowLog::new(Some(from));
        assert!(log.is_slow(from));
        assert!(!log.is_slow(from - Duration::from_nanos(1)));
        assert!(!SlowLog::new(None).is_slow(Duration::MAX));
    }
}
