//! The refusals that more than one kind of request is answered with.

use std::time::Duration;

use crate::api::{Error, ErrorKind};
use crate::server::metrics::Rejection;

/// The refusal of a new member by a cluster whose initial member would bootstrap it again.
pub(super) fn bootstraps_alone() -> Error {
    Error::not_applied(
        ErrorKind::UnsafeReconfiguration,
        "this node bootstrapped its cluster alone, and with cluster.state = \"new\" it would do so \
         again if its data directory were ever emptied, next to the members that are added now: \
         set cluster.state = \"existing\" in its configuration and restart it, then add members",
    )
}

pub(super) fn lease_invalid() -> Error {
    Error::not_applied(
        ErrorKind::LeaseInvalid,
        "the leader has no valid lease at the moment: retry shortly, or allow a quorum read",
    )
}

/// The answer to every request while the node is out of service.
pub(super) fn stopping() -> Error {
    Error::not_applied(
        ErrorKind::Unavailable,
        "this node is stopping: use another node",
    )
}

pub(super) fn not_readable() -> Error {
    Error::not_applied(
        ErrorKind::Unavailable,
        "this node was not stopped cleanly and is verifying its state: use another node, or retry \
         shortly",
    )
}

pub(super) fn behind() -> Error {
    Error::not_applied(
        ErrorKind::Internal,
        "the store is behind the applied index reported by consensus",
    )
}

/// The task that read the store panicked or was cancelled.
pub(super) fn read_aborted() -> Error {
    Error::not_applied(ErrorKind::Internal, "the read of the store was aborted")
}

pub(super) fn slow_down(reason: Rejection, retry_after: Duration) -> Error {
    let detail = match reason {
        Rejection::Waiting => "this node is overloaded: retry later",
        Rejection::Memory => {
            "the memory budget for the requests of this node or connection is exhausted: retry \
             later"
        }
        Rejection::Storage => {
            "the disk of this node does not keep up with what is written: retry later"
        }
        Rejection::Priority => {
            "this node is busy, and has no room for what has a low priority: retry later"
        }
        Rejection::User => "this user makes too many requests: retry later",
    };
    Error::not_applied(slow_down_for(retry_after), detail)
}

pub(super) fn too_many_requests(user: &str, retry_after: Duration) -> Error {
    let detail = format!(
        "{user:?} makes more requests a second than limits.max_request_rate_per_user allows at this \
         node: retry later"
    );
    Error::not_applied(slow_down_for(retry_after), detail)
}

fn slow_down_for(retry_after: Duration) -> ErrorKind {
    let retry_after_ms = u32::try_from(retry_after.as_millis()).unwrap_or(u32::MAX);
    ErrorKind::SlowDown { retry_after_ms }
}
