//! Metrics of traces: whether the collector has them.

use metrics::Counter;

use super::Register;

/// What became of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceResult {
    /// The collector has taken it.
    Exported,
    /// The collector was not there, or refused it.
    Failed,
    /// Too many waited already.
    Dropped,
}

/// What became of traces.
pub struct TraceMetrics {
    results: [Counter; TraceResult::ALL.len()],
}

impl TraceResult {
    const ALL: [Self; 3] = [Self::Exported, Self::Failed, Self::Dropped];

    fn name(self) -> &'static str {
        match self {
            Self::Exported => "exported",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }
}

impl TraceMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        Self {
            results: TraceResult::ALL.map(|result| {
                register.labelled(&[("result", result.name())]).counter(
                    "leasehold_traces_total",
                    "Traced requests, by outcome of the export: exported, failed (the collector \
                     did not accept it) or dropped (too many were waiting).",
                )
            }),
        }
    }

    /// Traces that this became of.
    pub fn result(&self, result: TraceResult) -> &Counter {
        &self.results[result as usize]
    }
}
