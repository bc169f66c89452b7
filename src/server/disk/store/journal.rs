//! Gets the database's journal onto the disk before the database waits for it.
//!
//! fjall writes its journal without a sync, and syncs it whenever a memtable is written out: under the
//! lock that every batch takes. With tens of megabytes in the page cache that sync takes a tenth of a
//! second, for which nothing is applied, so every write waits. Here the same file is synced often,
//! through a handle of its own and without that lock, so that little is left to do under it.
//!
//! Nothing rests on this: the log makes up for whatever the journal lacks.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::StateStore;
use super::error::StoreError;
use super::reader::Current;

/// Fewer new bytes than this are left to wait: they are written out in a few milliseconds whoever asks
/// for it, and each sync is one more that the log's have to share the disk with.
const WORTH_BYTES: u64 = 4 << 20;
/// The unit in which the system counts the room that a file takes up.
const BLOCK_BYTES: u64 = 512;
/// How fjall's journals end.
const EXTENSION: &str = "jnl";

/// The journal that is written at present.
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
    /// Syncs what was written since the last time, if that is worth it; says how much it was.
    ///
    /// # Errors
    /// Any is fatal: what was written may be lost, and the database may not be told.
    pub fn write_back(&mut self) -> Result<u64, StoreError> {
        self.sync(WORTH_BYTES)
    }

    /// As [`Journal::write_back`], however little it is.
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
                // It was given up just now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(failed(error)),
            };
        }
        let Some(current) = &mut self.current else {
            return Ok(0);
        };
        // The file is as long as it will ever be from the start; what is written takes up room in it.
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
