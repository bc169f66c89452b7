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
//! - the vote file repeats the last synced batch with every vote (`vote_file.rs`), and so does the
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
//! the simulator's disk (`sim_disk.rs`). It reads no clock, and has no thread: its owner
//! decides when to mark and when to prepare the next segment.

mod disk;
mod error;
mod options;
mod record;
mod recover;
mod sector;
mod segment;
#[cfg(test)]
pub(crate) mod sim_disk;
mod tip;
mod vote;
mod vote_file;
mod writer;

#[cfg(test)]
mod tests;

use bytes::Bytes;

use crate::types::LogId;

pub use disk::{Disk, DiskError, DiskFile};
pub use error::{Damage, LogError};
pub use options::LogOptions;
pub use record::{Base, Item, Record};
pub use vote::Vote;
pub use writer::Log;

/// What was found when the log was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Whether it is sound.
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
