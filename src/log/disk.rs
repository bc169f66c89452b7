//! The little that the log asks of a disk.
//!
//! Two small traits, so that the very same format and recovery code runs on the real file system
//! and on the simulator's disk. Names are relative and use `/` between folder and file
//! (`log/0000000001`, `vote`). There is no rename and no truncation: nothing in the format needs
//! them, and what is not offered cannot be got wrong.

use std::io;

use thiserror::Error;

/// A folder of files that the log and the vote file live in.
pub trait Disk {
    /// An open file.
    type File: DiskFile;

    /// Makes a new, empty file; one of that name must not exist. The name is durable only after
    /// [`Disk::sync_dir`].
    fn create(&mut self, name: &str) -> Result<Self::File, DiskError>;

    /// Opens a file for reading and writing.
    fn open(&mut self, name: &str) -> Result<Self::File, DiskError>;

    /// The names of the files in `folder` (without the folder), in any order. A folder that does
    /// not exist is empty.
    fn list(&mut self, folder: &str) -> Result<Vec<String>, DiskError>;

    /// Removes a file. Durable only after [`Disk::sync_dir`].
    fn remove(&mut self, name: &str) -> Result<(), DiskError>;

    /// Makes the names in `folder` durable; the empty string is the root. Creates the folder if
    /// it is missing.
    fn sync_dir(&mut self, folder: &str) -> Result<(), DiskError>;
}

/// An open file of a [`Disk`].
pub trait DiskFile {
    /// Fills `buffer` from `offset`. Reaching the end of the file first is an error.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), DiskError>;

    /// Writes all of `bytes` at `offset`. Durable only after [`DiskFile::sync_data`].
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), DiskError>;

    /// Writes zeros: real ones, not a hole, so that a later write in their place needs no
    /// metadata and its sync is a sync of data alone.
    fn write_zeros(&mut self, offset: u64, length: u64) -> Result<(), DiskError> {
        static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
        let mut at = offset;
        let end = offset + length;
        while at < end {
            let step = (end - at).min(ZEROS.len() as u64);
            self.write_at(&ZEROS[..step as usize], at)?;
            at += step;
        }
        Ok(())
    }

    /// Makes everything written to this file durable, with its length.
    fn sync_data(&mut self) -> Result<(), DiskError>;

    /// The file's length in bytes.
    fn length(&self) -> Result<u64, DiskError>;
}

/// What went wrong below the log.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DiskError {
    /// No space (or quota, or inodes) left.
    #[error("{operation} {name}: no space left on the disk; free some and restart")]
    NoSpace {
        /// The operation that failed.
        operation: &'static str,
        /// On which file.
        name: String,
    },
    /// There is no such file.
    #[error("{operation} {name}: no such file")]
    NotFound {
        /// The operation that failed.
        operation: &'static str,
        /// On which file.
        name: String,
    },
    /// Anything else.
    #[error("{operation} {name}: {text}")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// On which file.
        name: String,
        /// The kind, for those who want to tell them apart.
        kind: io::ErrorKind,
        /// What the system said.
        text: String,
    },
}

impl DiskError {
    /// Sorts an error of the operating system.
    pub fn from_io(operation: &'static str, name: &str, error: &io::Error) -> Self {
        let name = name.to_owned();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace { operation, name }
            }
            io::ErrorKind::NotFound => Self::NotFound { operation, name },
            kind => Self::Io {
                operation,
                name,
                kind,
                text: error.to_string(),
            },
        }
    }
}
