//! Traces of single requests, for a collector that speaks OTLP.
//!
//! A trace is made when its request is finished, from what is measured anyway: one span for the request,
//! and below it one for each [`Stretch`] of time. So a request that is not traced costs a comparison, and
//! carries nothing along. A trace begins where the request reaches this node, unless the client names one
//! that the request is a part of ([`JoinedTrace`]): then the request's span lies below the client's, and
//! below it that of the leader, if another node forwarded the request to it.
//!
//! A share of requests is traced at random ([`Traces::draws`]), each request that has a line in the slow
//! log, and each whose client says that it keeps its trace. A trace contains what the line contains: never a key, a value, a lease, a user or an address.
//!
//! Traces wait in a bounded queue, which [`exporter`] empties; when it is full they are dropped and
//! counted. Those that only a client asked for may fill half of it, so that clients cannot push out what
//! this node wants to show. No request waits for a trace.

mod exporter;
mod otlp;
mod trace;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::api::TraceParent;
use crate::server::config::TracingConfig;
use crate::server::metrics::{Metrics, TraceResult, stopwatch};
use crate::types::ClusterId;

use exporter::Exporter;
pub(crate) use exporter::ExporterTask;
pub(crate) use trace::{Account, JoinedTrace, Stretch, TraceId};
use trace::{Queue, Trace};

/// So many traces may wait for the exporter: what a second of sampling may bring.
const QUEUE_MAX: usize = 2_048;
/// So much of that is left to traces that this node wants itself.
const QUEUE_OWN: usize = QUEUE_MAX / 2;

/// Samples requests, and queues their traces.
pub(crate) struct Traces {
    /// The share of requests that are traced.
    ratio: f64,
    seed: u64,
    drawn: AtomicU64,
    queue: mpsc::Sender<Trace>,
    metrics: Arc<Metrics>,
}

/// Who wants a trace to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WantedBy {
    /// This node: it drew it, or its request was slow.
    Node,
    /// Its client alone.
    Client,
}

/// Starts the exporter, if a collector is configured. Needs a tokio runtime then. `seed` must differ
/// from node to node and from start to start, because the ids of traces follow from it.
pub(crate) fn start(
    config: &TracingConfig,
    node: &str,
    cluster: ClusterId,
    seed: u64,
    metrics: &Arc<Metrics>,
) -> Option<(Traces, ExporterTask)> {
    let collector = config.collector.clone()?;
    let (traces, queue) = Traces::new(config.sample_ratio, seed, metrics.clone());
    let exporter = Exporter::new(node, cluster, collector, queue, metrics.clone());
    Some((traces, exporter.spawn()))
}

impl Traces {
    /// Traces of a share `ratio` of all requests, and what takes them out again.
    fn new(ratio: f64, seed: u64, metrics: Arc<Metrics>) -> (Self, Queue) {
        let (sender, queue) = mpsc::channel(QUEUE_MAX);
        let traces = Self {
            ratio,
            seed,
            drawn: AtomicU64::new(0),
            queue: sender,
            metrics,
        };
        (traces, Queue(queue))
    }

    /// Whether a request is to be traced that stands for so many. Never, if none are.
    pub(crate) fn draws(&self, stands_for: u64) -> bool {
        // Fifty-three bits are a fraction between 0 and 1, exactly.
        let part = || (self.draw() as u64 >> 11) as f64 / (1u64 << 53) as f64;
        self.ratio > 0.0 && part() < self.ratio * stands_for as f64
    }

    /// The place of a request that arrives below `parent`.
    pub(crate) fn join(&self, parent: TraceParent) -> JoinedTrace {
        JoinedTrace {
            parent,
            span_id: self.draw_span(),
        }
    }

    /// Queues the trace of a request that arrived at `began`: a part of the one that it `joined`, or one
    /// of its own. `wanted_by` says who cares for it.
    pub(crate) fn take(
        &self,
        began: Instant,
        account: Account,
        joined: Option<&JoinedTrace>,
        wanted_by: WantedBy,
    ) -> TraceId {
        let id = match joined {
            Some(joined) => joined.id(),
            None => TraceId(self.draw().max(1)),
        };
        let trace = Trace {
            id,
            span_id: joined.map_or_else(|| self.draw_span(), |joined| joined.span_id),
            caller: joined.map(JoinedTrace::caller),
            began: wall_clock().saturating_sub(stopwatch().saturating_duration_since(began)),
            account,
        };
        let has_room = wanted_by == WantedBy::Node || self.queue.capacity() > QUEUE_OWN;
        if !has_room || self.queue.try_send(trace).is_err() {
            let dropped = &self.metrics.traces.results[TraceResult::Dropped];
            dropped.increment(1);
        }
        id
    }

    /// The id of a span: neither zero, which means none, nor so large that those below could not follow.
    fn draw_span(&self) -> u64 {
        (self.draw() as u64 >> 1).max(1)
    }

    /// A pseudo-random number.
    fn draw(&self) -> u128 {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        xxh3_128_with_seed(&number.to_le_bytes(), self.seed)
    }
}

/// Time since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "people look at traces by the time of day; nothing else hangs on it"
)]
fn wall_clock() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces(ratio: f64) -> (Traces, Queue) {
        Traces::new(ratio, 7, Metrics::new())
    }

    #[test]
    fn as_many_are_drawn_as_the_ratio_says_and_they_stand_for() {
        let drawn = |ratio: f64, stands_for: u64| {
            let (traces, _queue) = traces(ratio);
            (0..10_000).filter(|_| traces.draws(stands_for)).count()
        };
        assert_eq!(drawn(0.0, 64), 0);
        assert_eq!(drawn(1.0, 1), 10_000);
        assert_eq!(drawn(0.5, 64), 10_000);
        // The seed is fixed, and so are these.
        let tenth = drawn(0.1, 1);
        assert!((900..1_100).contains(&tenth), "{tenth}");
        let measured = drawn(0.001, 64);
        assert!((540..740).contains(&measured), "{measured}");
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted_and_nobody_waits() {
        let (traces, mut queue) = traces(1.0);
        let now = stopwatch();
        let ids: Vec<_> = (0..QUEUE_MAX + 3)
            .map(|_| traces.take(now, Account::default(), None, WantedBy::Node))
            .collect();
        let rendered = traces.metrics.render(|_| {});
        let dropped = "leasehold_traces_total{result=\"dropped\"} 3\n";
        assert!(rendered.contains(dropped), "{rendered}");
        let first = queue.0.try_recv().unwrap();
        assert_eq!(first.id, ids[0]);
        assert!(ids.iter().all(|id| id.to_string().len() == 32));
        let different: std::collections::BTreeSet<u128> = ids.iter().map(|id| id.0).collect();
        assert_eq!(different.len(), ids.len());
    }

    #[test]
    fn a_request_of_a_traced_client_is_below_its_span_and_has_one_of_its_own() {
        let (traces, mut queue) = traces(0.0);
        let parent = TraceParent::new([7; 16], [8; 8], 1).unwrap();
        let joined = traces.join(parent);
        let other = traces.join(parent);
        assert_ne!(joined.span_id, other.span_id);
        let now = stopwatch();
        let id = traces.take(now, Account::default(), Some(&joined), WantedBy::Client);
        let trace = queue.0.try_recv().unwrap();
        assert_eq!((trace.id, trace.id.to_string()), (id, "07".repeat(16)));
        assert_eq!(trace.caller, Some(0x0808_0808_0808_0808));
        // Where it is sent on, it is below the span that it has here.
        let beyond = joined.beyond().unwrap();
        assert_eq!(beyond.trace_id(), parent.trace_id());
        assert_eq!(u64::from_be_bytes(beyond.span_id()), trace.span_id);
        assert!(beyond.is_sampled());
    }

    #[test]
    fn clients_that_ask_for_traces_leave_room_for_those_of_the_node() {
        let (traces, _queue) = traces(0.0);
        let joined = traces.join(TraceParent::new([7; 16], [8; 8], 1).unwrap());
        let take = |wanted_by| {
            traces.take(stopwatch(), Account::default(), Some(&joined), wanted_by);
            traces.queue.capacity()
        };
        for _ in 0..2 * QUEUE_MAX {
            take(WantedBy::Client);
        }
        assert_eq!(traces.queue.capacity(), QUEUE_OWN);
        assert_eq!(take(WantedBy::Node), QUEUE_OWN - 1);
        let dropped = traces.metrics.render(|_| {});
        let expected = format!("result=\"dropped\"}} {}\n", 2 * QUEUE_MAX - QUEUE_OWN);
        assert!(dropped.contains(&expected), "{dropped}");
    }

    #[test]
    fn a_trace_begins_when_its_request_was_taken_in() {
        let (traces, mut queue) = traces(1.0);
        let hour = Duration::from_secs(3_600);
        let Some(hour_ago) = stopwatch().checked_sub(hour) else {
            return;
        };
        traces.take(hour_ago, Account::default(), None, WantedBy::Node);
        let now = wall_clock();
        let trace = queue.0.try_recv().unwrap();
        assert!(trace.began <= now - hour, "{:?} of {now:?}", trace.began);
    }
}
