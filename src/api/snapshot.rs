//! A whole state, asked for chunk by chunk.
//!
//! A node takes a snapshot of its state machine when it is asked to, and keeps it while its chunks are
//! asked for; what the chunks hold is `wire::state`'s affair. Whoever asks sets the pace, and asks
//! again for what did not come.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What is asked of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotCall {
    /// Take one, as fresh as the call's consistency says.
    Begin,
    /// Send a chunk of one. Refused with [`ErrorKind::SnapshotGone`](super::ErrorKind::SnapshotGone)
    /// if the node does not have it any more.
    Chunk {
        /// Which snapshot.
        id: u64,
        /// Which chunk; the first is 0.
        number: u64,
    },
    /// Let one go. The node does so by itself when nothing was asked of it for a while.
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
    /// The chunk that was asked for; empty if none was, or if there is none of that number.
    pub chunk: Bytes,
}
