//! The file format of bbolt, in which etcd keeps its data and takes its snapshots.
//!
//! A file is a row of pages. Each has a header of 16 bytes: its number, its kind, how many elements it
//! has, and by how many pages it is longer than one. The first two are meta pages; the newer one that is
//! whole says where the tree of buckets begins. A bucket is a B+ tree of keys and values: its leaf pages
//! hold both, its branch pages the first key of each page below. Numbers are little endian.
//!
//! [`BoltWriter`] writes a file in one go, from keys that come in order. [`BoltReader`] reads whatever a file
//! says with suspicion: a number that leads nowhere is [`BoltError::Damaged`], and no file makes it read a
//! page twice. Neither changes a file that is there.

mod page;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::io;

pub(crate) use page::is_bolt;
pub(crate) use read::{BoltReader, BucketRoot};
pub(crate) use write::BoltWriter;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BoltError {
    /// The system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is no file of bbolt, or of another version.
    #[error("it is no file of bbolt, version 2: neither of its first two pages says so")]
    Unknown,
    /// It contradicts itself.
    #[error("it is damaged: page {page} {what}")]
    Damaged {
        /// The page.
        page: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}
