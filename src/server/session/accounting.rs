//! What is counted, logged, traced and audited of requests.

use std::sync::Arc;
use std::time::Instant;

use super::phases::Phases;
use super::slow_log::{SlowLog, Summary};
use crate::api::TraceParent;
use crate::server::metrics::{AuthFailure, Metrics, Sampler};
use crate::server::session::auth::Audit;
use crate::server::session::traces::{JoinedTrace, Traces, WantedBy};
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
    /// has a collector; of the others a share is traced, and those whose clients keep the traces that they
    /// `joined`. `now` is when the request was answered; it is measured for `stands_for` requests.
    pub(super) fn account(
        &self,
        node: &str,
        now: Instant,
        phases: &Phases,
        stands_for: u64,
        joined: Option<&JoinedTrace>,
        summary: impl FnOnce() -> Summary,
    ) {
        let metrics = &self.metrics.phases;
        phases.report(metrics);
        let is_slow = self.slow.is_slow(phases.total());
        let is_drawn = self
            .traces
            .as_ref()
            .is_some_and(|traces| traces.draws(stands_for));
        if !is_slow && !is_drawn && !joined.is_some_and(JoinedTrace::is_sampled) {
            return;
        }
        let summary = summary();
        if is_slow {
            metrics.slow.of(summary.method).increment(1);
        }
        self.tell(node, now, phases, (is_slow, is_drawn), joined, summary);
    }

    /// Logs and traces a request that is a part of the trace `joined`, and is counted elsewhere: by the node
    /// that forwarded it, or with the rest of its batch.
    pub(super) fn tell_joined(
        &self,
        node: &str,
        now: Instant,
        phases: &Phases,
        joined: &JoinedTrace,
        summary: Summary,
    ) {
        let is_slow = self.slow.is_slow(phases.total());
        self.tell(node, now, phases, (is_slow, false), Some(joined), summary);
    }

    fn tell(
        &self,
        node: &str,
        now: Instant,
        phases: &Phases,
        (is_slow, is_drawn): (bool, bool),
        joined: Option<&JoinedTrace>,
        summary: Summary,
    ) {
        let line = is_slow.then(|| self.slow.pace(now)).flatten();
        // A request that has a line has a trace, so that the line can be followed up.
        let wanted_by = match (is_drawn || line.is_some(), joined) {
            (true, _) => Some(WantedBy::Node),
            (false, Some(joined)) if joined.is_sampled() => Some(WantedBy::Client),
            (false, _) => None,
        };
        let traced = self.traces.as_ref().zip(wanted_by);
        let trace_id = traced.map(|(traces, wanted_by)| {
            let account = summary.account(is_slow, phases);
            traces.take(phases.began(), account, joined, wanted_by)
        });
        if let Some(left_out) = line {
            // Its client's trace is worth a look, whether or not this node adds to it.
            let trace_id = trace_id.or_else(|| joined.map(JoinedTrace::id));
            summary.log(node, phases, trace_id, left_out);
        }
    }

    /// The place of a request that arrives below `parent`.
    pub(super) fn join(&self, parent: TraceParent) -> JoinedTrace {
        match &self.traces {
            Some(traces) => traces.join(parent),
            None => JoinedTrace::unseen(parent),
        }
    }

    /// A password was not checked, because of wrong ones before it.
    pub(super) fn count_rate_limited(&self) {
        self.metrics.auth.failures[AuthFailure::LockedOut].increment(1);
    }
}
