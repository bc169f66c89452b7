//! Why the log refuses, or cannot go on.

use thiserror::Error;

use crate::log::{DiskError, LogOptions, Vote};
use crate::types::{ClusterId, Incarnation, LogId, NodeId};

/// Why the log refuses, or cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LogError {
    /// The disk failed. The log is poisoned, and the process has to end: what was not yet
    /// acknowledged may or may not be on disk.
    #[error("the log failed: {0}")]
    Disk(#[from] DiskError),
    /// An earlier call failed; see there.
    #[error("the log failed earlier and accepts no more entries; restart the process")]
    Poisoned,
    /// The log is damaged; nothing can be appended to it.
    #[error(transparent)]
    Damaged(Damage),
    /// Both slots of the vote file are gone: this member no longer knows what it promised.
    #[error(
        "the vote file is lost, so this member cannot know its votes; in a cluster of several \
         members, empty its data directory: it then copies all data from its peers"
    )]
    VoteLost,
    /// A later version of leasehold wrote this.
    #[error(
        "{file} has format {version}, which this release cannot read; run a newer release of \
         leasehold"
    )]
    NewerFormat {
        /// Which file.
        file: String,
        /// The format that it has.
        version: u32,
    },
    /// The data of another cluster.
    #[error("{file} belongs to cluster {found}, not to {expected}; check the data directory")]
    ForeignCluster {
        /// Which file.
        file: String,
        /// The owner it names.
        found: ClusterId,
        /// The owner it should name.
        expected: ClusterId,
    },
    /// The data of another member.
    #[error(
        "{file} belongs to member {found}, not to {expected}; check the data directory, and that \
         it was not copied from another node"
    )]
    ForeignNode {
        /// Which file.
        file: String,
        /// The owner it names.
        found: NodeId,
        /// The owner it should name.
        expected: NodeId,
    },
    /// The data of an earlier or later life of this member.
    #[error("the vote file is of incarnation {found}, not {expected}; check the data directory")]
    OtherIncarnation {
        /// Which one it is.
        found: Incarnation,
        /// Which one it should be.
        expected: Incarnation,
    },
    /// The options make no sense.
    #[error("invalid log options: {reason}")]
    BadOptions {
        /// Why, and what would.
        reason: String,
    },
    /// A record that neither follows the log nor cuts it.
    #[error("entry {given} neither follows {last} nor replaces an existing entry")]
    OutOfOrder {
        /// The entry before it.
        last: LogId,
        /// The entry.
        given: LogId,
    },
    /// A log that would begin earlier than it does.
    #[error("the log begins after {base}, so it cannot be truncated to begin after {given}")]
    BaseGoesBack {
        /// Where it begins.
        base: LogId,
        /// Where it should.
        given: LogId,
    },
    /// A record that does not fit into a segment.
    #[error("a record of {bytes} bytes is over the limit of {bytes_max}; use larger segments")]
    RecordTooLarge {
        /// Its payload.
        bytes: usize,
        /// What would fit.
        bytes_max: usize,
    },
    /// A record of a kind that the log keeps for itself.
    #[error("record kind {kind} is reserved for the log; use kinds up to 127")]
    BadKind {
        /// The kind.
        kind: u8,
    },
    /// A vote that contradicts the saved one.
    #[error("vote {given:?} would revoke the saved vote {saved:?}")]
    VoteTakenBack {
        /// What is saved.
        saved: Vote,
        /// What was given.
        given: Vote,
    },
}

impl LogError {
    pub(super) fn check_identity(
        file: &str,
        options: &LogOptions,
        cluster: u128,
        node: u64,
    ) -> Result<(), Self> {
        let file = file.to_owned();
        if cluster != options.cluster.0 {
            return Err(Self::ForeignCluster {
                file,
                found: ClusterId(cluster),
                expected: options.cluster,
            });
        }
        if node != options.node.0 {
            return Err(Self::ForeignNode {
                file,
                found: NodeId(node),
                expected: options.node,
            });
        }
        Ok(())
    }
}

/// What is damaged, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the log is damaged, so this replica does not vote until it is rebuilt from its peers; check \
     the disk ({place}: {what})"
)]
pub struct Damage {
    /// What is wrong.
    pub what: String,
    /// The file, and where in it.
    pub place: String,
}
