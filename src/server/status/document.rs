//! What a node says of itself, as JSON: the same names on the command line and over HTTP.

use serde_json::{Value, json};

use crate::api::{ReadCounts, ResponseHeader, StatusResponse};

/// What a node says of itself.
pub(crate) fn of_node(header: &ResponseHeader, status: &StatusResponse) -> Value {
    json!({
        "name": status.name,
        "role": status.role.to_string(),
        "term": header.raft_term.0,
        "applied_index": status.applied_index.0,
        "lease": {
            "is_valid": status.leader_lease.is_valid,
            "remaining_ms": status.leader_lease.remaining.as_secs_f64() * 1e3,
        },
        "reads": of_reads(&status.reads),
        "storage_bytes": status.storage_bytes,
        "cluster_version": status.cluster_version,
        "warnings": status.warnings,
    })
}

fn of_reads(reads: &ReadCounts) -> Value {
    json!({
        "lease": reads.lease,
        "read_index": reads.read_index,
        "follower": reads.follower,
        "read_lease": reads.read_lease,
        "serializable": reads.serializable,
    })
}
