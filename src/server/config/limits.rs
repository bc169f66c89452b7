//! The limits of a node: of requests, of waiting work, of connections and of watches.

use std::time::Duration;

use super::error::ConfigError;
use super::sections::{
    AdmissionOptions, ConnectionSettings, RaftSettings, RequestSettings, StorageConfig,
    WatchSettings,
};
use super::source::Values;
use crate::api::Limits;
use crate::transport::Admission;

/// What a request holds besides key and value, generously.
const REQUEST_OVERHEAD: usize = 1 << 10;
const MEMORY_MAX: u64 = 1 << 44;
/// Concurrent handshakes for each one above which unauthenticated peers must validate their address.
const HANDSHAKES_BEFORE_RETRY_PART: usize = 4;

impl AdmissionOptions {
    /// The defaults of the configuration.
    pub const DEFAULT: Self = Self {
        in_flight_max: 4_096,
        waiting_max: 16_384,
        bytes_max: 256 << 20,
        connection_bytes_max: 64 << 20,
        user_rate_max: 0,
    };
}

/// Limits of watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchOptions {
    /// Maximum number of watches per connection.
    pub per_connection_max: usize,
    /// Interval between progress notifications to watches that requested them, if there are no events.
    pub progress_interval: Duration,
    /// Memory for the events queued for all watches, including those being sent.
    pub memory_bytes_max: usize,
    /// How long a node that knows no leader continues its watches. After that it ends them and
    /// accepts none: other nodes may have changes that this one does not receive. Longer than
    /// elections take.
    pub leaderless_max: Duration,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            per_connection_max: 10_000,
            progress_interval: Duration::from_secs(10),
            memory_bytes_max: 128 << 20,
            leaderless_max: Duration::from_secs(3),
        }
    }
}

pub(super) fn requests(values: &Values) -> Result<Limits, ConfigError> {
    let limits = RequestSettings::read(values)?;
    let (request, key) = (limits.max_request_bytes, limits.max_key_bytes);
    let value = limits.max_value_bytes;
    if key + value + REQUEST_OVERHEAD > request {
        return Err(ConfigError::Relation {
            at: values.at_first_set(&[
                RequestSettings::max_value_bytes,
                RequestSettings::max_request_bytes,
                RequestSettings::max_key_bytes,
            ]),
            problem: format!(
                "a put of limits.max_key_bytes = {key} and limits.max_value_bytes = {value} does \
                 not fit limits.max_request_bytes = {request}: choose a request size of at least {}",
                key + value + REQUEST_OVERHEAD
            ),
        });
    }
    Ok(Limits {
        key_bytes_max: key,
        value_bytes_max: value,
        request_bytes_max: request,
        reply_bytes_max: request,
        ..Limits::DEFAULT
    })
}

pub(super) fn work(values: &Values, limits: &Limits) -> Result<AdmissionOptions, ConfigError> {
    // A connection must have room for one reply that is being made, and the node for several.
    let least = 4 * limits.request_bytes_max as u64;
    for key in [
        AdmissionOptions::bytes_max,
        AdmissionOptions::connection_bytes_max,
    ] {
        values.bytes::<usize>(key, least..=MEMORY_MAX)?;
    }
    AdmissionOptions::read(values)
}

/// Limits of the connections to the client port.
pub(super) fn connections(values: &Values) -> Result<Admission, ConfigError> {
    let limits = ConnectionSettings::read(values)?;
    Ok(Admission {
        connections_max: limits.max_connections,
        per_identity_max: limits.max_connections_per_client,
        per_address_max: limits.max_connections_per_address,
        handshakes_max: limits.max_handshakes,
        handshakes_before_retry: limits.max_handshakes / HANDSHAKES_BEFORE_RETRY_PART,
        per_network_per_second_max: limits.max_handshake_rate,
    })
}

pub(super) fn watches(values: &Values, raft: &RaftSettings) -> Result<WatchOptions, ConfigError> {
    let limits = WatchSettings::read(values)?;
    if limits.progress_notify_interval < Duration::from_millis(100) {
        let key = WatchSettings::progress_notify_interval;
        return Err(values.invalid(key, "choose at least 100ms"));
    }
    // Several elections may fail before one succeeds.
    let elections = raft.election_timeout_max * 3;
    Ok(WatchOptions {
        leaderless_max: elections.max(WatchOptions::default().leaderless_max),
        per_connection_max: limits.max_per_connection,
        progress_interval: limits.progress_notify_interval,
        memory_bytes_max: limits.memory_budget,
    })
}

pub(super) fn storage(values: &Values, limits: &Limits) -> Result<StorageConfig, ConfigError> {
    let storage = StorageConfig::read(values)?;
    let least = 4 * limits.request_bytes_max as u64;
    if storage.segment_bytes < least {
        return Err(ConfigError::Relation {
            at: values.at_first_set(&[
                StorageConfig::segment_bytes,
                RequestSettings::max_request_bytes,
            ]),
            problem: format!(
                "storage.segment_bytes = {} is below four times limits.max_request_bytes: a \
                 segment must hold several of the largest entries; choose at least {least}",
                storage.segment_bytes
            ),
        });
    }
    Ok(storage)
}
