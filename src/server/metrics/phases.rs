//! Metrics of where the time of requests goes, and of those that took too long.

use std::time::Duration;

use metrics::{Counter, Histogram};

use super::Register;
use super::requests::ByMethod;

/// What the time of a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It waits for its turn: for consensus to take it in, for a place to scan, for a password's hash.
    Queue,
    /// A write waits for its entry to be committed. What is answered without an entry waits for a
    /// quorum's word, or for this node to have applied what it must see.
    Quorum,
    /// Its entry is committed, and is applied.
    Apply,
    /// The store is read.
    Storage,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 4] = [Self::Queue, Self::Quorum, Self::Apply, Self::Storage];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Quorum => "quorum",
            Self::Apply => "apply",
            Self::Storage => "storage",
        }
    }
}

/// Where the time of requests goes.
pub struct PhaseMetrics {
    durations: [Histogram; Phase::ALL.len()],
    slow: ByMethod<Counter>,
    /// Retries answered with what their session kept of the first time.
    pub dedup_hits: Counter,
}

impl PhaseMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        Self {
            durations: Phase::ALL.map(|phase| {
                register.labelled(&[("phase", phase.name())]).histogram(
                    "leasehold_request_phase_duration_seconds",
                    "Time inside the server by phase of the request; one leased read in 64 is \
                     sampled.",
                )
            }),
            slow: ByMethod::new(|method| {
                register.labelled(&[("method", method)]).counter(
                    "leasehold_slow_requests_total",
                    "Requests that took log.slow_request or longer; one leased read in 64 is \
                     measured.",
                )
            }),
            dedup_hits: register.counter(
                "leasehold_request_dedup_hits_total",
                "Retried writes answered with the reply that their session had kept.",
            ),
        }
    }

    /// A request has spent so long in this phase.
    pub fn spent(&self, phase: Phase, time: Duration) {
        self.durations[phase as usize].record(time.as_secs_f64());
    }

    /// Requests of this [`method`](crate::api::Request::method) that took too long.
    pub fn slow(&self, method: &str) -> &Counter {
        self.slow.of(method)
    }
}
