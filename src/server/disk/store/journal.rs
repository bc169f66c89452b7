//! Syncs the database's journal ahead of the database, which would block writes meanwhile.
//!
//! fjall writes its journal without a sync and syncs it when it flushes a memtable, under the lock that
//! every batch takes. With tens of megabytes in the page cache that sync takes a tenth of a second, during
//! which nothing is applied and every write waits. Here the same file is synced often through a separate
//! handle, without that lock, so that the sync under it has little to write.
//!
//! Durability does not depend on this: the log replays whatever the journal lacks.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::StateStore;
use super::error::StoreError;
use super::reader::Current;

/// Fewer new bytes than this are not synced: the database writes them in a few milliseconds, and each
/// sync competes with those of the log for the disk.
const WORTH_BYTES: u64 = 4 << 20;
/// The unit in which the system counts the allocated size of a file.
const BLOCK_BYTES: u64 = 512;
/// The file extension of fjall's journals.
const EXTENSION: &str = "jnl";

/// The journal that fjall is writing.
pub struct Journal {
    state: Current,
    current: Option<JournalFile>,
}

struct JournalFile {
    folder: PathBuf,
    number: u64,
    file: File,
    synced: u64,
}

impl StateStore {
    /// Syncs the journal ahead of the database.
    pub fn journal(&self) -> Journal {
        Journal {
            state: self.current.clone(),
            current: None,
        }
    }
}

impl Journal {
    /// Syncs the bytes written since the last call, if there are enough of them. Returns their number.
    ///
    /// # Errors
    /// Every error is fatal: written data may be lost, and the database may not detect it.
    pub fn write_back(&mut self) -> Result<u64, StoreError> {
        self.sync(WORTH_BYTES)
    }

    /// As [`Journal::write_back`], but syncs any number of bytes.
    ///
    /// # Errors
    /// As there.
    pub(super) fn sync_all_new(&mut self) -> Result<u64, StoreError> {
        self.sync(1)
    }

    fn sync(&mut self, worth: u64) -> Result<u64, StoreError> {
        let failed = |source| StoreError::io("syncing the journal of the state")(source);
        let folder = self
            .state
            .load()
            .database()
            .farewell
            .path
            .join(super::marks::DATABASE);
        let Some((number, path)) = newest(&folder).map_err(failed)? else {
            return Ok(0);
        };
        if self
            .current
            .as_ref()
            .is_none_or(|current| current.number != number || current.folder != folder)
        {
            // fjall has synced the one before when it began this one.
            self.current = match File::options().write(true).open(path) {
                Ok(file) => Some(JournalFile {
                    folder,
                    number,
                    file,
                    synced: 0,
                }),
                // fjall has just deleted it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(failed(error)),
            };
        }
        let Some(current) = &mut self.current else {
            return Ok(0);
        };
        // The file has its full length from the start, so only its allocated size shows the progress.
        let written = current.file.metadata().map_err(failed)?.blocks() * BLOCK_BYTES;
        let new = written.saturating_sub(current.synced);
        if new < worth {
            return Ok(0);
        }
        current.file.sync_data().map_err(failed)?;
        current.synced = written;
        Ok(new)
    }
}

/// The journal with the highest number.
fn newest(folder: &Path) -> io::Result<Option<(u64, PathBuf)>> {
    let mut newest = None;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == EXTENSION)
            && let Some(number) = path
                .file_stem()
                .and_then(|stem| stem.to_str()?.parse().ok())
            && newest.as_ref().is_none_or(|(highest, _)| number > *highest)
        {
            newest = Some((number, path));
        }
    }
    Ok(newest)
}
