//! What client leases may be: the limits and intervals of a node.

use std::time::Duration;

/// What client leases may be, and how they are looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// A shorter time to live is granted as this.
    pub ttl_min: Duration,
    /// A longer time to live is refused.
    pub ttl_max: Duration,
    /// How many leases there may be.
    pub leases_max: u64,
    /// The width of a bucket of deadlines: by so much an expiry may be late.
    pub tick: Duration,
    /// Of leases this long and longer, what is left is noted in the log now and then (T9).
    pub checkpoint_min_ttl: Duration,
    /// How often.
    pub checkpoint_interval: Duration,
}

impl LeaseOptions {
    /// Those of an unconfigured server.
    pub const DEFAULT: Self = Self {
        ttl_min: Duration::from_millis(500),
        ttl_max: Duration::from_secs(365 * 24 * 3600),
        leases_max: 1_000_000,
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
