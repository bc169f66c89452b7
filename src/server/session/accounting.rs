//! What is counted, logged, traced and audited of requests.

use std::sync::Arc;
use std::time::Instant;

use super::phases::Phases;
use super::slow_log::{SlowLog, Summary};
use crate::server::metrics::{AuthFailure, Metrics, Sampler};
use crate::server::session::auth::Audit;
use crate::server::session::traces::Traces;
use crate::server::status::lease_stats::Recorder;

/// Where requests are accounted for.
pub(crate) struct Accounting {
    pub(crate) metrics: Arc<Metrics>,
    /// The log of who did what.
    pub(crate) audit: Option<Audit>,
    /// The log of slow requests.
    pub(crate) slow: SlowLog,
    /// The traces of requests; `None` without a collector.
    pub(crate) traces: Option<Traces>,
    /// Chooses the leased reads that are measured.
    pub(crate) sampler: Sampler,
    pub(crate) latencies: Latencies,
}

/// How long requests took inside this node, in buckets fine enough for quantiles of a few seconds.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    /// Of reads; one of many under a lease is measured.
    pub(crate) reads: Recorder,
    /// Of what becomes a log entry.
    pub(crate) writes: Recorder,
}

impl Accounting {
    /// Adds the time of a request to the histograms. A slow request is logged, and traced if the node
    /// has a collector; of the others a share is traced. `now` is when the request was answered; it is
    /// measured for `stands_for` requests.
    pub(super) fn account(
        &self,
        node: &str,
        now: Instant,
        phases: &Phases,
        stands_for: u64,
        summary: impl FnOnce() -> Summary,
    ) {
        let metrics = &self.metrics.phases;
        phases.report(metrics);
        let is_slow = self.slow.is_slow(phases.total());
        let traces = self.traces.as_ref();
        let is_drawn = traces.is_some_and(|traces| traces.draws(stands_for));
        if !is_slow && !is_drawn {
            return;
        }
        let summary = summary();
        let mut line = None;
        if is_slow {
            metrics.slow.of(summary.method).increment(1);
            line = self.slow.pace(now);
        }
        // A request that has a line has a trace, so that the line can be followed up.
        let traces = traces.filter(|_| is_drawn || line.is_some());
        let trace_id =
            traces.map(|traces| traces.take(phases.began(), summary.account(is_slow, phases)));
        if let Some(left_out) = line {
            summary.log(node, phases, trace_id, left_out);
        }
    }

    /// A password was not checked, because of wrong ones before it.
    pub(super) fn count_rate_limited(&self) {
        self.metrics.auth.failures[AuthFailure::LockedOut].increment(1);
    }
}
