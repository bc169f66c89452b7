//! One trace, as it waits for the exporter.

use std::fmt;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::api::TraceParent;
use crate::server::metrics::Phase;

/// What a collector knows a trace by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId(pub(super) u128);

/// The place of a request in the trace of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JoinedTrace {
    pub(super) parent: TraceParent,
    /// Of the request's own span at this node; without a collector, which would show none, its caller's.
    pub(super) span_id: u64,
}

impl JoinedTrace {
    /// Of a request at a node without a collector.
    pub(crate) fn unseen(parent: TraceParent) -> Self {
        Self {
            parent,
            span_id: u64::from_be_bytes(parent.span_id()),
        }
    }

    /// What the trace is known by.
    pub(crate) fn id(&self) -> TraceId {
        TraceId(u128::from_be_bytes(self.parent.trace_id()))
    }

    /// Whether the trace is kept where it began.
    pub(crate) fn is_sampled(&self) -> bool {
        self.parent.is_sampled()
    }

    /// The place of what this node has another one do for the request.
    pub(crate) fn beyond(&self) -> Option<TraceParent> {
        let own = self.span_id.to_be_bytes();
        TraceParent::new(self.parent.trace_id(), own, self.parent.flags()).ok()
    }

    /// The span that the request's own lies below.
    pub(super) fn caller(&self) -> u64 {
        u64::from_be_bytes(self.parent.span_id())
    }
}

/// The trace of one request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trace {
    pub(super) id: TraceId,
    /// Of the request's own span; those below it follow.
    pub(super) span_id: u64,
    /// The span of the client that made the request, if it named one.
    pub(super) caller: Option<u64>,
    /// When the request arrived, since 1970.
    pub(super) began: Duration,
    pub(super) account: Account,
}

/// The attributes of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Account {
    pub(crate) method: &'static str,
    /// `OK`, or the code of the error.
    pub(crate) code: &'static str,
    pub(crate) read_path: Option<&'static str>,
    pub(crate) revision: Option<i64>,
    pub(crate) request_bytes: usize,
    pub(crate) reply_bytes: usize,
    /// Other reads of the same batch.
    pub(crate) beside: usize,
    /// It took `log.slow_request` or longer.
    pub(crate) is_slow: bool,
    /// All of its way, in order.
    pub(crate) stretches: Vec<Stretch>,
}

/// A stretch of the way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) phase: Phase,
    pub(crate) spent: Duration,
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Traces that wait for the exporter.
#[derive(Debug)]
pub(super) struct Queue(pub(super) mpsc::Receiver<Trace>);
