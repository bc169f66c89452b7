//! Where the time of requests goes, and which of them were slow.

use std::time::Duration;

use super::requests::Methods;
use super::table::{By, ByName, Counter, Histogram, labels, metrics};

metrics! {
    /// Where the time of requests goes.
    pub struct PhaseMetrics {
        durations: By<Phase, Histogram> = "leasehold_request_phase_duration_seconds",
            "Time inside the server by phase of the request; one leased read in 64 is \
             sampled.";
        pub slow: ByName<Methods, Counter> = "leasehold_slow_requests_total",
            "Requests that took log.slow_request or longer; one leased read in 64 is \
             measured.";
        pub dedup_hits: Counter = "leasehold_request_dedup_hits_total",
            "Retried writes answered with the reply that their session had kept.";
    }
}

labels! {
    /// A phase of a request.
    pub enum Phase: "phase" {
        /// It waits for the consensus thread, for a permit to scan, or for the hash of a password.
        Queue = "queue",
        /// A write waits for its entry to be committed. A request without an entry waits for a
        /// quorum round, or for this node to apply the entries that it must see.
        Quorum = "quorum",
        /// Its committed entry is being applied.
        Apply = "apply",
        /// The store is read.
        Storage = "storage",
    }
}

impl PhaseMetrics {
    /// A request has spent so long in this phase.
    pub fn spent(&self, phase: Phase, time: Duration) {
        self.durations[phase].record(time.as_secs_f64());
    }
}
