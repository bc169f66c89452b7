//! A request between its arrival and its reply: what it was, what it holds of the node, and where its
//! time goes.

use std::time::{Duration, Instant};

use super::phases::Phases;
use crate::api::{Call, Consistency, Outcome, Request};
use crate::server::mail::outbox::{Delivery, Stages};
use crate::server::metrics::stopwatch;
use crate::server::session::admission::BacklogPermit;
use crate::server::session::budget::ReservedBytes;
use crate::server::session::lease_query::LeaseQuestion;
use crate::server::session::scan::Query;
use crate::server::session::traces::JoinedTrace;
use crate::wire::client::{ClientFrame, ContextFrame};
use crate::wire::{Frame, Kind, RequestContext, WireError};

/// The longest that a request waits here, ten minutes, whatever it asks for: what its client has long
/// forgotten would otherwise take up room for weeks.
const TIMEOUT_MS_MAX: u32 = 10 * 60 * 1000;

/// A request that waits for the driver, a scan or the watch thread.
pub(super) struct PendingRequest {
    pub(super) timing: RequestTiming,
    pub(super) kind: PendingKind,
    /// Held until its work is done: the answer may have to wait for the client.
    pub(super) backlog_permit: Option<BacklogPermit>,
    /// Held of the node's budget as long, or until the result of a scan is taken.
    pub(super) node_bytes: Option<ReservedBytes>,
    /// Held of the connection's budget until its answer is taken.
    pub(super) connection_bytes: ReservedBytes,
}

/// Where the time of a request goes, and how it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTiming {
    pub(super) phases: Phases,
    pub(super) arrival: Arrival,
}

/// How a request came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Its size on the wire.
    pub(super) bytes: usize,
    /// What it says of itself.
    pub(super) context: RequestContext,
    /// Its place in the trace of its client, if it names one.
    pub(super) joined: Option<JoinedTrace>,
}

/// The kind of a pending request, with what completing it needs.
pub(super) enum PendingKind {
    Read {
        query: Query,
        consistency: Consistency,
        min_revision: i64,
        /// How long the client waits for it.
        timeout: Duration,
    },
    Leases(LeaseQuestion),
    /// Of so many leases.
    Renewal(u64),
    Other(&'static str),
}

impl PendingRequest {
    /// Its work is done, as `stages` show, and `now` its answer is here. Releases what it held of the
    /// node; the result of a scan is counted until it is taken.
    pub(super) fn answered(&mut self, delivery: &Delivery, stages: &Stages, now: Instant) {
        let Some(permit) = self.backlog_permit.take() else {
            return;
        };
        self.timing.phases.answered(stages, now);
        match delivery {
            // Refused at once, which is no measure of how long work takes.
            Delivery::Reply(Err(error)) if error.outcome == Outcome::NotApplied => drop(permit),
            _ => permit.served(now, self.timing.phases.total()),
        }
        if !matches!(delivery, Delivery::Scanned(..)) {
            self.node_bytes = None;
        }
    }
}

impl RequestTiming {
    /// Of a request that arrives now.
    pub(super) fn begin(arrival: Arrival) -> Self {
        Self {
            phases: Phases::begin(stopwatch()),
            arrival,
        }
    }
}

impl Arrival {
    /// What the request says of itself where it is sent on: what is done there is a part of what is done
    /// here.
    pub(super) fn context_beyond(&self) -> RequestContext {
        let joined = self.joined.as_ref();
        RequestContext {
            trace_parent: joined.map_or(self.context.trace_parent, JoinedTrace::beyond),
            ..self.context
        }
    }
}

impl PendingKind {
    /// Of a read.
    pub(super) fn read(query: Query, call: &Call) -> Self {
        Self::Read {
            query,
            consistency: call.consistency,
            min_revision: call.min_revision,
            timeout: timeout(call),
        }
    }

    /// Of a request that is neither a read nor a lease query.
    pub(super) fn of(request: &Request) -> Self {
        match request {
            Request::LeaseKeepAlive(leases) => Self::Renewal(leases.len() as u64),
            request => Self::Other(request.method()),
        }
    }

    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Read { query, .. } => query.method(),
            Self::Leases(question) => question.method(),
            Self::Renewal(_) => "lease_keep_alive",
            Self::Other(method) => method,
        }
    }
}

/// The request in a frame, which waits no longer than any may, and what it says of itself.
pub(super) fn call_of(frame: &Frame) -> Result<(ClientFrame, RequestContext), WireError> {
    let (mut asked, context) = match frame.kind {
        Kind::ContextCall => {
            let ContextFrame { context, frame } = frame.decode()?;
            (frame, context)
        }
        _ => (frame.decode()?, RequestContext::default()),
    };
    asked.call.timeout_ms = asked.call.timeout_ms.min(TIMEOUT_MS_MAX);
    Ok((asked, context))
}

/// How long its client waits for it, from its arrival.
pub(super) fn timeout(call: &Call) -> Duration {
    Duration::from_millis(u64::from(call.timeout_ms))
}
