//! What can be wrong with a state that was received or read.

use std::io;

use crate::kv::{ContentHash, Fault};

/// Why chunks are not a state. Nothing of what came before is to be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateFault {
    /// It does not begin like one.
    #[error(
        "this is not a leasehold snapshot: it has no snapshot header; use a file written by \
         `snapshot save`"
    )]
    Foreign,
    /// A later version wrote it.
    #[error(
        "it has format {found}, but this release reads format {known}: use the newer release that \
         wrote it"
    )]
    NewerFormat {
        /// The format of the stream.
        found: u16,
        /// The one that this program reads.
        known: u16,
    },
    /// The records are of another format than those of this version.
    #[error(
        "it contains a state of format {found}, but this release reads format {known}: use the \
         release that wrote it"
    )]
    OtherState {
        /// The format of the state.
        found: u32,
        /// The one that this program reads.
        known: u32,
    },
    /// Chunks are missing, or come twice.
    #[error("received chunk {found} instead of chunk {expected}: send it from chunk {expected} on")]
    OutOfOrder {
        /// The one that follows.
        expected: u64,
        /// The one that came.
        found: u64,
    },
    /// It ends before its end.
    #[error("it is truncated after {chunks} chunks: take another copy")]
    Cut {
        /// Whole chunks so far.
        chunks: u64,
    },
    /// There is more after its end.
    #[error("unexpected data follows its end: take another copy")]
    Trailing,
    /// A chunk is not what was written.
    #[error("chunk {chunk} is damaged ({what}): take another copy")]
    Damaged {
        /// Which.
        chunk: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Each chunk is whole, and together they are not what was written.
    #[error("its chunks are inconsistent ({what}): take another copy")]
    Mixed {
        /// What does not fit.
        what: &'static str,
    },
    /// The state is not what its changes made: it was wrong before it was read.
    #[error(
        "the content hash of its state is {found}, but {expected} is expected: it was damaged at \
         its source; take one from another member"
    )]
    WrongContent {
        /// The hash that its changes have kept.
        expected: ContentHash,
        /// The hash of what is there.
        found: ContentHash,
    },
    /// What the state says of itself does not read.
    #[error(
        "the state in it is damaged (keyspace {space} holds {what}): take one from another member"
    )]
    Unreadable {
        /// The keyspace, by name.
        space: &'static str,
        /// What it holds.
        what: &'static str,
    },
}

impl From<Fault> for StateFault {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Damaged { space, what } => Self::Unreadable {
                space: space.name(),
                what,
            },
            // Nothing is applied here.
            Fault::OutOfOrder { .. } => Self::Mixed {
                what: "its entries are out of order",
            },
        }
    }
}

/// Why the next chunk cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadFault {
    /// What is there is no state.
    #[error(transparent)]
    State(#[from] StateFault),
    /// The file, or whatever it is read from.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
}
