//! What a node puts up with: room for data, strangers, and work that waits.

use super::error::ConfigError;
use super::source::Values;
use crate::server::session::admission::AdmissionOptions;
use crate::transport::Admission;

/// How much a node stores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuotaConfig {
    /// Bytes that the state may take on disk.
    pub bytes: u64,
    /// From which part of it on a node warns.
    pub warn_ratio: f64,
}

/// Handshakes that may be under way for each one from which on strangers must prove their address.
const HANDSHAKES_BEFORE_RETRY_PART: usize = 4;

/// The engine's journal alone has 64 MiB from the start.
const QUOTA_MIN: u64 = 128 << 20;

pub(super) fn quota(values: &Values) -> Result<QuotaConfig, ConfigError> {
    Ok(QuotaConfig {
        bytes: values.bytes("quota.bytes", QUOTA_MIN, 1 << 50)?,
        warn_ratio: values.ratio("quota.warn_ratio")?,
    })
}

/// Who may connect to the client port.
pub(super) fn connections(values: &Values) -> Result<Admission, ConfigError> {
    let count = |key: &str, most: u64| values.integer(key, 1, most).map(|count| count as usize);
    let handshakes_max = count("limits.max_handshakes", 65_536)?;
    Ok(Admission {
        connections_max: count("limits.max_connections", 1_000_000)?,
        per_identity_max: count("limits.max_connections_per_client", 1_000_000)?,
        per_address_max: count("limits.max_connections_per_address", 1_000_000)?,
        handshakes_max,
        handshakes_before_retry: handshakes_max / HANDSHAKES_BEFORE_RETRY_PART,
        per_network_per_second_max: count("limits.max_handshake_rate", 1_000_000)? as u32,
    })
}

/// What may wait in a node.
pub(super) fn work(values: &Values) -> Result<AdmissionOptions, ConfigError> {
    let bytes = |key: &str, least: u64| values.bytes(key, least, 1 << 44);
    // A connection must be able to have one answer made, and the node to serve some of them.
    let least = 4 * values.bytes("limits.max_request_bytes", 0, u64::MAX)?;
    Ok(AdmissionOptions {
        waiting_max: values.integer("limits.max_waiting", 16, 1 << 20)? as usize,
        bytes_max: bytes("limits.memory_budget", least)? as usize,
        connection_bytes_max: bytes("limits.connection_memory_budget", least)? as usize,
    })
}
