//! The owner of a log and the size of its files.

use xxhash_rust::xxh3::xxh3_128;

use crate::types::{ClusterId, Incarnation, NodeId};

/// The owner of a log and the size of its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// The cluster. Data of another one is refused.
    pub cluster: ClusterId,
    /// The member. Data of another one is refused.
    pub node: NodeId,
    /// Which life of the member this is; kept in the vote file.
    pub incarnation: Incarnation,
    /// Size of new segments in bytes; a multiple of 4 KiB, at least 16 KiB. Existing segments keep
    /// theirs. A record must fit into one segment.
    pub segment_bytes: u64,
}

impl LogOptions {
    /// The size of segments in production: 64 MiB.
    pub const SEGMENT_BYTES: u64 = 64 << 20;
    /// The size of segments in a development cluster: 8 MiB.
    pub const SEGMENT_BYTES_DEV: u64 = 8 << 20;

    /// What stands in place of the hash of a record before the first.
    pub(super) fn genesis(&self) -> u128 {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.cluster.0.to_le_bytes());
        bytes[16..].copy_from_slice(&self.node.0.to_le_bytes());
        xxh3_128(&bytes)
    }
}
