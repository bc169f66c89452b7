//! The Raft log and the vote file. (Signatures; the implementation follows.)

mod disk;
mod record;

use std::time::Duration;

use thiserror::Error;

use crate::types::ClusterId;
use crate::types::Incarnation;
use crate::types::LogId;
use crate::types::LogIndex;
use crate::types::NodeId;
use crate::types::Term;

pub use disk::{Disk, DiskError, DiskFile};
pub use record::Record;

/// Whose log this is, and how large its pieces are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// The cluster. Data of another one is refused.
    pub cluster: ClusterId,
    /// The member. Data of another one is refused.
    pub node: NodeId,
    /// Which life of the member this is; kept in the vote file.
    pub incarnation: Incarnation,
    /// Size of new segments in bytes; a multiple of 4 KiB, at least 16 KiB.
    pub segment_bytes: u64,
}

/// What a vote file keeps (P33).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vote {
    /// The latest term this node has seen.
    pub term: Term,
    /// Whom it voted for in that term.
    pub voted_for: Option<NodeId>,
    /// The longest promise it ever made.
    pub promise_floor: Duration,
}

/// What was found when the log was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// How it looks.
    pub verdict: Verdict,
    /// The vote file's content.
    pub vote: Vote,
    /// The last entry that the log no longer holds; 0@0 for a whole log.
    pub base: LogId,
    /// Everything after `base`, contiguous. When damaged: what could still be trusted.
    pub records: Vec<Record>,
    /// The log did not exist and has been made.
    pub created: bool,
    /// Damaged now, or earlier and not rebuilt since: neither vote nor campaign (A23).
    pub quarantined: bool,
}

/// How a log looks after a start (A21).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Whole.
    Clean,
    /// The last batch was never synced, and has been cut.
    TornTailCut {
        /// How many batches.
        batches: u64,
        /// How many bytes they occupied.
        bytes: u64,
    },
    /// Something that was synced is gone or altered.
    Damaged(Damage),
}

/// What is damaged, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}: {what}")]
pub struct Damage {
    /// What is wrong, for an operator.
    pub what: String,
    /// The file, and where in it.
    pub place: String,
}

/// Why the log cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LogError {
    /// The disk failed. The log is poisoned.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// What is left of preparing the next segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// Nothing.
    Done,
    /// Call again.
    More,
    /// The disk is full; it can be tried again later.
    NoSpace,
}

/// The log of one member, and its vote file.
#[derive(Debug)]
pub struct Log<D: Disk> {
    disk: D,
}

#[allow(
    unused_variables,
    clippy::unimplemented,
    missing_docs,
    clippy::needless_pass_by_value
)]
impl<D: Disk> Log<D> {
    pub fn open(disk: D, options: LogOptions) -> Result<(Self, Recovery), LogError> {
        unimplemented!()
    }
    pub fn append(&mut self, records: &[Record]) -> Result<(), LogError> {
        unimplemented!()
    }
    pub fn save_vote(&mut self, vote: Vote) -> Result<(), LogError> {
        unimplemented!()
    }
    pub fn mark(&mut self) -> Result<(), LogError> {
        unimplemented!()
    }
    pub fn prepare_next(&mut self) -> Result<Preparation, LogError> {
        unimplemented!()
    }
    pub fn cut_before(&mut self, index: LogIndex) -> Result<(), LogError> {
        unimplemented!()
    }
    pub fn close(self) -> Result<(), LogError> {
        unimplemented!()
    }
}
