//! A state comes in, as chunks ([`crate::wire::state`]), into a directory of its own.
//!
//! An [`Import`] makes a fresh database beside the one in use. Until all chunks are there, each
//! checked, and the whole compared with the hash that its changes have kept, the directory is marked
//! as half made: nothing of it is ever read, and the next open or import there removes it. When that is done,
//! everything is synced and the directory is a state like any other, left by a clean stop.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use fjall::{Database, Keyspace, PersistMode};

use super::error::StoreError;
use super::marks::Directory;
use super::{HashReport, StateStore, StoreOptions, boundary, marks, open_database};
use crate::front::Batch;
use crate::kv::Space;
use crate::wire::state::{StateDecoder, StateFault, StateHeader, StatePart, StateSummary};

/// Bytes of records in one batch of the database, about.
const BATCH_BYTES: usize = 4 << 20;

/// Why a state cannot be taken in. Nothing of it is used.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is not what was sent, or was wrong before.
    #[error(transparent)]
    State(#[from] StateFault),
    /// It cannot be stored here.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A state lies there already.
    #[error("{} contains a state already: remove it, or use another directory", path.display())]
    Occupied {
        /// The directory.
        path: PathBuf,
    },
}

/// A state on its way in.
pub struct Import {
    decoder: StateDecoder,
    batch: Vec<(Space, Bytes, Bytes)>,
    batch_bytes: usize,
    /// In the order of [`Space::ALL`].
    spaces: Vec<Keyspace>,
    database: Database,
    /// Released last, when the database has let go of its files.
    directory: Directory,
}

impl Import {
    /// Begins in `directory`, which is made if need be. What an import that was broken off has left
    /// there is removed.
    ///
    /// # Errors
    /// [`ImportError::Occupied`], or it cannot be written there.
    pub fn begin(directory: &Path, options: &StoreOptions) -> Result<Self, ImportError> {
        let directory = Directory::claim(directory)?;
        if !directory.is_new() {
            return Err(ImportError::Occupied {
                path: directory.path().to_owned(),
            });
        }
        let made = boundary::contain(|| open_database(&directory, options));
        let (database, spaces) = made?;
        Ok(Self {
            decoder: StateDecoder::new(),
            batch: Vec::new(),
            batch_bytes: 0,
            spaces,
            database,
            directory,
        })
    }

    /// The number of the chunk that it waits for.
    pub fn next_chunk(&self) -> u64 {
        self.decoder.next_chunk()
    }

    /// What the state says of itself, once its first chunk is here.
    pub fn header(&self) -> Option<&StateHeader> {
        self.decoder.header()
    }

    /// Takes one chunk, and says whether it was the last: then [finish](Self::finish). Writes to the
    /// disk now and then: not for a thread that others wait for.
    ///
    /// # Errors
    /// [`StateFault::OutOfOrder`] changes nothing, and the right chunk may still come. After any other
    /// error this import is over.
    pub fn take(&mut self, chunk: Bytes) -> Result<bool, ImportError> {
        match self.decoder.take(chunk)? {
            StatePart::Header(_) => Ok(false),
            StatePart::Records(records) => {
                let bytes = |(_, key, record): &(Space, Bytes, Bytes)| key.len() + record.len();
                self.batch_bytes += records.iter().map(bytes).sum::<usize>();
                self.batch.extend(records);
                if self.batch_bytes >= BATCH_BYTES {
                    self.commit()?;
                }
                Ok(false)
            }
            StatePart::End(_) => Ok(true),
        }
    }

    /// Makes the state durable and says what it is. The directory is closed after this, and may be
    /// moved or opened.
    ///
    /// # Errors
    /// The last chunk was not there yet, or the disk. The directory stays half made.
    pub fn finish(mut self) -> Result<StateSummary, ImportError> {
        let decoder = std::mem::take(&mut self.decoder);
        let summary = decoder.finish()?;
        self.commit()?;
        let Self {
            spaces,
            database,
            directory,
            ..
        } = self;
        directory.finish_creation(|| {
            database
                .persist(PersistMode::SyncAll)
                .map_err(|error| StoreError::from_fjall("syncing a received state", error))
        })?;
        // Its files must not change any more when they are noted.
        drop(spaces);
        drop(database);
        // All of it was compared with its hash, and synced.
        let mark = marks::CleanMark {
            applied: summary.report.progress.applied,
            hash: summary.report.kept,
        };
        marks::write_clean_mark(directory.path(), &mark)?;
        drop(directory);
        Ok(summary)
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        let mut batch = self.database.batch();
        for (space, key, record) in self.batch.drain(..) {
            batch.insert(&self.spaces[space.slot()], key, record);
        }
        self.batch_bytes = 0;
        batch
            .commit()
            .map_err(|error| StoreError::from_fjall("writing a received state", error))
    }
}

impl StateStore {
    /// Makes of a state that was taken from a backup the one that a new cluster begins with
    /// ([`kv::reset_identity`](crate::kv::reset_identity)), and compares all of it with its hash. Nobody may read it yet.
    ///
    /// # Errors
    /// Any is fatal, and the state is not to be used.
    pub fn reset_identity(&mut self, leap: i64) -> Result<HashReport, StoreError> {
        let result = self.reset_identity_unguarded(leap);
        self.tables().poison_on_error(result)?;
        self.reader().verify()
    }

    fn reset_identity_unguarded(&mut self, leap: i64) -> Result<(), StoreError> {
        let mut batch = Batch::begin(&mut self.writer)?;
        batch.reset_identity(leap)?;
        batch.show()?.cache()?.revise().publish();
        self.writer.settle()
    }
}
