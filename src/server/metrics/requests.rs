//! All requests of clients, by their method.

use metrics::{Counter, Histogram};

use super::{AuthFailure, Metrics, Register};
use crate::api::ErrorKind;

/// All requests of clients.
pub struct RequestMetrics {
    succeeded: [Counter; METHODS.len()],
    duration_seconds: [Histogram; METHODS.len()],
}

impl RequestMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        Self {
            succeeded: METHODS.map(|method| {
                register
                    .labelled(&[("method", method), ("code", "OK")])
                    .counter(REQUESTS, REQUESTS_HELP)
            }),
            duration_seconds: METHODS.map(|method| {
                register.labelled(&[("method", method)]).histogram(
                    "leasehold_request_duration_seconds",
                    "Time inside the server, from decoded request to encoded reply (of reads \
                     under the lease, one in 64).",
                )
            }),
        }
    }

    /// Requests of this [`method`](crate::api::Request::method) that succeeded.
    pub fn succeeded(&self, method: &'static str) -> &Counter {
        &self.succeeded[method_index(method)]
    }

    /// How long requests of this method took, from decoded request to encoded reply, in seconds.
    /// Reads under the lease are sampled, as in
    /// [`ReadMetrics::duration_seconds`](super::ReadMetrics::duration_seconds).
    pub fn duration_seconds(&self, method: &'static str) -> &Histogram {
        &self.duration_seconds[method_index(method)]
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

pub(super) fn method_index(method: &str) -> usize {
    METHODS
        .iter()
        .position(|known| *known == method)
        .unwrap_or(METHODS.len() - 1)
}

/// What [`Request::method`](crate::api::Request::method) may say, and a place for what it may not.
pub(super) const METHODS: [&str; 45] = [
    "range",
    "put",
    "delete_range",
    "open_session",
    "status",
    "move_leader",
    "compact",
    "leader_lease_report",
    "txn",
    "lease_grant",
    "lease_revoke",
    "lease_keep_alive",
    "lease_time_to_live",
    "lease_list",
    "lease_update_ttl",
    "put_with_new_lease",
    "range_page",
    "watch",
    "watch_cancel",
    "watch_progress",
    "snapshot",
    "member_list",
    "member_add",
    "member_remove",
    "member_promote",
    "member_update",
    "auth_enable",
    "auth_disable",
    "auth_status",
    "authenticate",
    "use_token",
    "user_add",
    "user_get",
    "user_list",
    "user_delete",
    "user_change_password",
    "user_grant_role",
    "user_revoke_role",
    "role_add",
    "role_get",
    "role_list",
    "role_delete",
    "role_grant_permission",
    "role_revoke_permission",
    "other",
];

const REQUESTS: &str = "leasehold_requests_total";
const REQUESTS_HELP: &str = "Requests answered, by method and outcome code.";
