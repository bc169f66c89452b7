//! All requests of clients, by their method.

use metrics::{Counter, Histogram};

use super::{AuthFailure, Metrics, Register};
use crate::api::{ErrorKind, Spec};

/// All requests of clients.
pub struct RequestMetrics {
    succeeded: ByMethod<Counter>,
    duration_seconds: ByMethod<Histogram>,
}

impl RequestMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        Self {
            succeeded: ByMethod::new(|method| {
                register
                    .labelled(&[("method", method), ("code", "OK")])
                    .counter(REQUESTS, REQUESTS_HELP)
            }),
            duration_seconds: ByMethod::new(|method| {
                register.labelled(&[("method", method)]).histogram(
                    "leasehold_request_duration_seconds",
                    "Time inside the server, from decoded request to encoded reply; one leased \
                     read in 64 is sampled.",
                )
            }),
        }
    }

    /// Requests of this [`method`](crate::api::Request::method) that succeeded.
    pub fn succeeded(&self, method: &'static str) -> &Counter {
        self.succeeded.of(method)
    }

    /// How long requests of this method took, from decoded request to encoded reply, in seconds.
    /// Reads under the lease are sampled, as in
    /// [`ReadMetrics::duration_seconds`](super::ReadMetrics::duration_seconds).
    pub fn duration_seconds(&self, method: &'static str) -> &Histogram {
        self.duration_seconds.of(method)
    }
}

impl Metrics {
    /// A request of `method` that failed with `kind`.
    pub fn request_failed(&self, method: &'static str, kind: &ErrorKind) {
        // Failures are rare enough to look their counter up.
        Register(&self.recorder)
            .labelled(&[("method", method), ("code", kind.code())])
            .counter(REQUESTS, REQUESTS_HELP)
            .increment(1);
        if let Some(reason) = AuthFailure::of(kind) {
            self.auth.failures(reason).increment(1);
        }
    }
}

/// A handle for each request by its name.
pub(super) struct ByMethod<T> {
    handles: Vec<(&'static str, T)>,
    /// For a name that no request has.
    other: T,
}

impl<T> ByMethod<T> {
    pub(super) fn new(register: impl Fn(&'static str) -> T) -> Self {
        let names = Spec::all().map(|spec| spec.name);
        Self {
            handles: names.map(|name| (name, register(name))).collect(),
            other: register("other"),
        }
    }

    pub(super) fn of(&self, method: &str) -> &T {
        let mut handles = self.handles.iter();
        let found = handles.find(|(name, _)| *name == method);
        found.map_or(&self.other, |(_, handle)| handle)
    }
}

const REQUESTS: &str = "leasehold_requests_total";
const REQUESTS_HELP: &str = "Requests answered, by method and outcome code.";
