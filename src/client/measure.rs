//! What clients measure of themselves, where the program asks for it: by a recorder of its own, or, with the feature
//! `metrics`, by that of the crate `metrics`.
//!
//! Labels are few and of fixed sets: never a key, a user or an address. What is not asked for costs a look at one
//! pointer.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::Instant;

use super::deadline::now;
use crate::api::{Error, Outcome};

/// A metric of the SDK.
#[derive(Clone, Copy, Debug)]
pub struct ClientMetric {
    /// Its name.
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its labels and their values; empty for none.
    pub labels: &'static str,
    /// What it is.
    pub help: &'static str,
}

const REQUESTS: &str = "leasehold_client_requests_total";
const ATTEMPTS: &str = "leasehold_client_attempts_total";
const DURATION: &str = "leasehold_client_request_duration_seconds";
const CONNECTIONS: &str = "leasehold_client_connections";
const CONNECTS: &str = "leasehold_client_connects_total";
const KEPT_LEASES: &str = "leasehold_client_kept_leases";
const RENEWALS: &str = "leasehold_client_lease_renewals_total";
const LOST_LEASES: &str = "leasehold_client_lost_leases_total";
const WATCHES: &str = "leasehold_client_watches";
const RESUMPTIONS: &str = "leasehold_client_watch_resumptions_total";
const CACHE_AGE: &str = "leasehold_client_cache_age_seconds";

/// All metrics of the SDK.
pub const CLIENT_METRICS: &[ClientMetric] = &[
    ClientMetric {
        name: REQUESTS,
        kind: "counter",
        labels: "`method`: as in `leasehold_requests_total`; `outcome`: ok, not_applied, applied, unknown, dropped",
        help: "Requests that ended, by what came of them; dropped ones were no longer waited for. What a client asks \
               by itself, as a list of members, is not counted.",
    },
    ClientMetric {
        name: ATTEMPTS,
        kind: "counter",
        labels: "`method`",
        help: "Attempts at these requests, the first included.",
    },
    ClientMetric {
        name: DURATION,
        kind: "histogram",
        labels: "`method`",
        help: "Time of a request, all attempts and the waits between them included.",
    },
    ClientMetric {
        name: CONNECTIONS,
        kind: "gauge",
        labels: "",
        help: "Connections to nodes that are kept.",
    },
    ClientMetric {
        name: CONNECTS,
        kind: "counter",
        labels: "`result`: ok, failed",
        help: "Attempts to connect to a node.",
    },
    ClientMetric {
        name: KEPT_LEASES,
        kind: "gauge",
        labels: "",
        help: "Leases that are kept alive.",
    },
    ClientMetric {
        name: RENEWALS,
        kind: "counter",
        labels: "`result`: renewed, undecided, failed",
        help: "Answers to renewals of kept leases, each lease by itself; failed ones are tried again.",
    },
    ClientMetric {
        name: LOST_LEASES,
        kind: "counter",
        labels: "",
        help: "Kept leases that were lost.",
    },
    ClientMetric {
        name: WATCHES,
        kind: "gauge",
        labels: "",
        help: "Watches that are open, those of caches and recipes included.",
    },
    ClientMetric {
        name: RESUMPTIONS,
        kind: "counter",
        labels: "",
        help: "Watches that were opened again where they were.",
    },
    ClientMetric {
        name: CACHE_AGE,
        kind: "histogram",
        labels: "",
        help: "How old the copy of a `CachedKv` could be at most when that was found out, once in each of its intervals.",
    },
];

/// Names and values of labels.
pub type ClientLabels = [(&'static str, &'static str)];

/// Is told what the clients of a program do: see [`Client::record_to`](crate::client::Client::record_to). The names
/// are those of [`CLIENT_METRICS`]. The methods are called on the path of requests, and must not wait.
pub trait ClientRecorder: Send + Sync {
    /// A counter rises.
    fn count(&self, name: &'static str, by: u64, labels: &ClientLabels);
    /// A gauge changes, by one.
    fn change(&self, name: &'static str, by: f64);
    /// A histogram gets a sample.
    fn record(&self, name: &'static str, took: Duration, labels: &ClientLabels);
}

/// Who is told; nothing is measured before a program says so.
static RECORDER: OnceLock<&'static dyn ClientRecorder> = OnceLock::new();

/// Has `recorder` told from now on. False if one is told already.
pub(super) fn tell(recorder: &'static dyn ClientRecorder) -> bool {
    RECORDER.set(recorder).is_ok()
}

fn recorder() -> Option<&'static dyn ClientRecorder> {
    RECORDER.get().copied()
}

/// An outcome in labels, and in spans.
pub(super) fn name_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::NotApplied => "not_applied",
        Outcome::Applied => "applied",
        Outcome::Unknown => "unknown",
    }
}

/// A request that is on its way. Dropped before it has ended, it counts as dropped.
pub(super) struct Measurement {
    recorder: Option<&'static dyn ClientRecorder>,
    method: &'static str,
    began: Instant,
    outcome: &'static str,
    attempts: u32,
}

impl Measurement {
    /// One that began at `began`.
    pub(super) fn begin(method: &'static str, began: Instant) -> Self {
        Self {
            recorder: recorder(),
            method,
            began,
            outcome: "dropped",
            attempts: 0,
        }
    }

    /// Another attempt begins.
    pub(super) fn attempt(&mut self) {
        self.attempts += 1;
    }

    /// It succeeded.
    pub(super) fn succeed(&mut self) {
        self.outcome = "ok";
    }

    /// It failed.
    pub(super) fn fail(&mut self, error: &Error) {
        self.outcome = name_of(error.outcome);
    }

    /// It is measured by another one.
    pub(super) fn hand_over(mut self) {
        self.recorder = None;
    }
}

impl Drop for Measurement {
    fn drop(&mut self) {
        let Some(recorder) = self.recorder else {
            return;
        };
        let method = ("method", self.method);
        recorder.count(REQUESTS, 1, &[method, ("outcome", self.outcome)]);
        recorder.count(ATTEMPTS, self.attempts.into(), &[method]);
        let took = now().saturating_duration_since(self.began);
        recorder.record(DURATION, took, &[method]);
    }
}

/// Something that there may be several of at a time; counted until it is dropped.
pub(super) struct Presence {
    recorder: Option<&'static dyn ClientRecorder>,
    name: &'static str,
}

impl Presence {
    pub(super) fn connection() -> Self {
        Self::of(CONNECTIONS)
    }

    pub(super) fn kept_lease() -> Self {
        Self::of(KEPT_LEASES)
    }

    pub(super) fn watch() -> Self {
        Self::of(WATCHES)
    }

    fn of(name: &'static str) -> Self {
        let recorder = recorder();
        if let Some(recorder) = recorder {
            recorder.change(name, 1.0);
        }
        Self { recorder, name }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if let Some(recorder) = self.recorder {
            recorder.change(self.name, -1.0);
        }
    }
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// An attempt to connect has ended.
pub(super) fn connected(is_ok: bool) {
    let result = if is_ok { "ok" } else { "failed" };
    count(CONNECTS, &[("result", result)]);
}

/// A renewal of a kept lease was answered, or failed.
pub(super) fn renewal(result: &'static str) {
    count(RENEWALS, &[("result", result)]);
}

/// A kept lease was lost.
pub(super) fn lost_lease() {
    count(LOST_LEASES, &[]);
}

/// A watch was opened again where it was.
pub(super) fn resumed() {
    count(RESUMPTIONS, &[]);
}

/// A copy can be so old.
pub(super) fn cache_age(age: Duration) {
    if let Some(recorder) = recorder() {
        recorder.record(CACHE_AGE, age, &[]);
    }
}

fn count(name: &'static str, labels: &ClientLabels) {
    if let Some(recorder) = recorder() {
        recorder.count(name, 1, labels);
    }
}
