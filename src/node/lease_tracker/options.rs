//! The limits and intervals of client leases on a node.

use std::time::Duration;

use crate::kv::LEASE_KEYS_MAX;

/// The limits and intervals of client leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// The minimum TTL; shorter requests are raised to it.
    pub ttl_min: Duration,
    /// The maximum TTL, that of etcd; longer requests are refused.
    pub ttl_max: Duration,
    /// The maximum number of leases.
    pub leases_max: u64,
    /// The maximum number of keys attached to a lease that is granted from now on.
    pub keys_max: u64,
    /// The maximum number of leases of one user; 0 for no limit.
    pub per_user_max: u64,
    /// The width of a bucket of deadlines, by which an expiry may be late.
    pub tick: Duration,
    /// Leases with at least this TTL are checkpointed in the log (T9).
    pub checkpoint_min_ttl: Duration,
    /// How often.
    pub checkpoint_interval: Duration,
}

impl LeaseOptions {
    /// Those of an unconfigured server.
    pub const DEFAULT: Self = Self {
        ttl_min: Duration::from_millis(500),
        ttl_max: Duration::from_secs(9_000_000_000),
        leases_max: 1_000_000,
        keys_max: LEASE_KEYS_MAX,
        per_user_max: 0,
        tick: Duration::from_millis(10),
        checkpoint_min_ttl: Duration::from_secs(300),
        checkpoint_interval: Duration::from_secs(60),
    };
}

impl Default for LeaseOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}
