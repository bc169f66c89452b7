//! Requests of clients, by their method.

use super::table::{ByName, Counter, Handle, Histogram, LabelNames, Lookup, Register, metrics};
use crate::api::Spec;

metrics! {
    /// Requests of clients.
    pub struct RequestMetrics {
        outcomes: Outcomes = "leasehold_requests_total",
            "Requests answered, by method and outcome code.";
        pub duration_seconds: ByName<Methods, Histogram> = "leasehold_request_duration_seconds",
            "Time inside the server, from decoded request to encoded reply; one leased \
             read in 64 is sampled.";
    }
}

/// The [methods](crate::api::Request::method) of requests, as values of a label.
pub struct Methods;

impl LabelNames for Methods {
    const LABEL: &'static str = "method";

    fn names() -> impl Iterator<Item = &'static str> {
        Spec::all().map(|spec| spec.name)
    }
}

/// Requests by their outcome. Only success has handles: failures are rare enough for a look-up.
struct Outcomes {
    succeeded: ByName<Methods, SuccessCounter>,
    failed: Lookup<Counter>,
}

struct SuccessCounter(Counter);

impl Handle for Outcomes {
    fn register(register: &Register, name: &'static str, help: &'static str) -> Self {
        Self {
            succeeded: ByName::register(register, name, help),
            failed: Lookup::register(register, name, help),
        }
    }
}

impl Handle for SuccessCounter {
    fn register(register: &Register, name: &'static str, help: &'static str) -> Self {
        Self(Counter::register(&register.with("code", "OK"), name, help))
    }
}

impl RequestMetrics {
    /// Requests of this method that succeeded.
    pub fn succeeded(&self, method: &str) -> &Counter {
        &self.outcomes.succeeded.of(method).0
    }

    /// Requests of this method that failed with this code.
    pub fn failed(&self, method: &'static str, code: &'static str) -> Counter {
        let labels = [(Methods::LABEL, method.into()), ("code", code.into())];
        self.outcomes.failed.find(labels)
    }
}
