//! Snapshots of the whole state, requested chunk by chunk.
//!
//! A node takes a snapshot of its state machine on request, and keeps it while its chunks are
//! requested; `wire::state` defines their contents. The client sets the pace, and requests chunks
//! again that did not arrive.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A request about a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotCall {
    /// Take a snapshot, with the consistency of the call.
    Begin,
    /// Send a chunk. Refused with [`ErrorKind::SnapshotGone`](super::ErrorKind::SnapshotGone) if
    /// the node no longer has the snapshot.
    Chunk {
        /// Which snapshot.
        id: u64,
        /// Which chunk; the first is 0.
        number: u64,
    },
    /// Release a snapshot. The node does so by itself when it was not read for a while.
    End {
        /// Which snapshot.
        id: u64,
    },
}

/// The answer to a [`SnapshotCall`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotReply {
    /// The snapshot.
    pub id: u64,
    /// The requested chunk; empty if none was requested or it does not exist.
    pub chunk: Bytes,
}
