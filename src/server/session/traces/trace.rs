//! One trace, as it waits for the exporter.

use std::fmt;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::server::metrics::Phase;

/// What a collector knows a trace by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId(pub(super) u128);

/// The trace of one request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trace {
    pub(super) id: TraceId,
    /// Of the request's own span; those below it follow.
    pub(super) span_id: u64,
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
