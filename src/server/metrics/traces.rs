//! The export of traces.

use super::table::{By, Counter, labels, metrics};

metrics! {
    /// The export of traces.
    pub struct TraceMetrics {
        pub results: By<TraceResult, Counter> = "leasehold_traces_total",
            "Traced requests, by outcome of the export: exported, failed (the collector \
             did not accept it) or dropped (too many were waiting).";
    }
}

labels! {
    /// The outcome of the export of a trace.
    pub enum TraceResult: "result" {
        /// The collector accepted it.
        Exported = "exported",
        /// The collector could not be reached, or refused it.
        Failed = "failed",
        /// Too many traces were waiting.
        Dropped = "dropped",
    }
}
