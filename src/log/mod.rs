//! The Raft log and the vote file: our own, because a Raft log must tell a torn tail from a lost
//! end.
//!
//! A voter that acknowledged an entry and forgets it can elect a leader that overwrites committed
//! data. After a crash the end of a log may be torn, and must be cut; but a log whose synced end
//! rotted away looks much the same, and must never be cut. So the format leaves a witness of each
//! sync (A19 to A24):
//!
//! - what is synced together is a *batch*, on 4 KiB blocks of its own, in 512-byte sectors that
//!   each say which batch they belong to (`segment.rs`);
//! - batch n+1 is written only after the sync of batch n returned: any sector of it is the *mark*
//!   of batch n. When no batch follows, an empty one is written as a mark after a while;
//! - the vote file repeats the last synced batch with every vote (`vote.rs`), and so does the
//!   opening of each segment;
//! - records form a chain of hashes (`record.rs`), and a conflicting tail is cut by a record, so
//!   nothing is ever overwritten;
//! - that the log begins later than it did is a record, too, with what its owner has to know of what
//!   was before. Only then are segments deleted, whole and oldest first: so a log whose beginning is
//!   lost does not pass for one that was cut.
//!
//! Recovery (`recover.rs`) reads everything and gives one of three verdicts: clean, a torn tail
//! cut, or damaged. The one fault it cannot see (A24), besides a disk that lies about syncs: a
//! whole sector of the last batch turned to zeros, together with a crash within about 10 ms of that
//! batch's acknowledgement, before a mark or a vote named it.
//!
//! This module knows bytes and no entries: what a record means is its owner's affair. It opens no
//! file itself but asks a small [`Disk`], so that the same code runs over the file system and over
//! the simulator's disk ([`sim_disk`]). It reads no clock, and has no thread: when to mark and when
//! to prepare the next segment is told to it.

mod disk;
mod record;
mod recover;
mod sector;
mod segment;
#[doc(hidden)]
pub mod sim_disk;
mod tip;
mod vote;
mod writer;

#[cfg(test)]
mod tests;

use bytes::Bytes;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_128;

use crate::types::{ClusterId, Incarnation, LogId, NodeId};

pub use disk::{Disk, DiskError, DiskFile};
pub use record::{Base, Item, Record};
pub use vote::Vote;
pub use writer::Log;

/// Whose log this is, and how large its pieces are.
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
    fn genesis(&self) -> u128 {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.cluster.0.to_le_bytes());
        bytes[16..].copy_from_slice(&self.node.0.to_le_bytes());
        xxh3_128(&bytes)
    }
}

/// What was found when the log was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// How it looks.
    pub verdict: Verdict,
    /// The vote file's content.
    pub vote: Vote,
    /// The last entry before the log; 0@0 for a whole log. A state that does not reach so far has to
    /// come from elsewhere.
    pub base: LogId,
    /// What its owner noted with it; empty for a whole log.
    pub base_note: Bytes,
    /// Everything after `base`, contiguous. When damaged: what could still be trusted.
    pub records: Vec<Record>,
    /// The log did not exist and has been made. If this member ever ran before, its data is gone:
    /// it may come back only as a new member.
    pub created: bool,
    /// Damaged now, or earlier and not rebuilt since: the replica neither votes nor campaigns
    /// (A23).
    pub quarantined: bool,
}

/// How a log looks after a start (A21).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Whole.
    Clean,
    /// The last batch was never synced, so never acknowledged, and has been cut.
    TornTailCut {
        /// How many batches: never more than one can be torn.
        batches: u64,
        /// How many bytes it occupied.
        bytes: u64,
    },
    /// Something that was synced is gone or altered. Nothing has been changed.
    Damaged(Damage),
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

/// What is left to do of preparing the next segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// Nothing for now.
    Done,
    /// The next slice is due at once.
    More,
    /// The disk is full. Nothing is lost yet: what was begun has been given back, and it can be
    /// tried again. When the segment in use is full as well, appending fails.
    NoSpace,
}

/// Why the log refuses, or cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LogError {
    /// The disk failed. The log is poisoned, and the process has to end: what was not yet
    /// acknowledged may or may not be on disk.
    #[error("the log cannot go on: {0}")]
    Disk(#[from] DiskError),
    /// An earlier call failed; see there.
    #[error("the log failed earlier and takes nothing more; restart the process")]
    Poisoned,
    /// The log is damaged; nothing can be appended to it.
    #[error(transparent)]
    Damaged(Damage),
    /// Both slots of the vote file are gone: this member no longer knows what it promised.
    #[error(
        "the vote file is lost, so this member cannot know whom it voted for; in a cluster \
         of several, empty its data directory: it then takes everything anew from its peers"
    )]
    VoteLost,
    /// A later version of leasehold wrote this.
    #[error("{file} has format {version}, which this version cannot read; run a newer leasehold")]
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
        /// Whose it is.
        found: ClusterId,
        /// Whose it should be.
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
        /// Whose it is.
        found: NodeId,
        /// Whose it should be.
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
    #[error("the log cannot be used so: {reason}")]
    BadOptions {
        /// Why, and what would.
        reason: String,
    },
    /// A record that neither follows the log nor cuts it.
    #[error("entry {given} does not follow {last}, and does not replace an entry that is held")]
    OutOfOrder {
        /// The entry before it.
        last: LogId,
        /// The entry.
        given: LogId,
    },
    /// A log that would begin earlier than it does.
    #[error("the log begins after {base}, so it cannot begin after {given}")]
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
    #[error("records of kind {kind} are the log's own; kinds up to 127 are free")]
    BadKind {
        /// The kind.
        kind: u8,
    },
    /// A vote that contradicts the saved one.
    #[error("vote {given:?} would take {saved:?} back")]
    VoteTakenBack {
        /// What is saved.
        saved: Vote,
        /// What was given.
        given: Vote,
    },
}

impl LogError {
    fn check_identity(
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
