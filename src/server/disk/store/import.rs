//! Imports a state from chunks ([`crate::wire::state`]) into a separate directory.
//!
//! An [`Import`] creates a new database beside the one in use. Each chunk is checked, and at the end the
//! whole state is compared with its content hash. Until then the directory is marked as incomplete: it is
//! never read, and the next open or import there removes it. A complete import is synced, and its
//! directory is that of a state after a clean stop.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use fjall::{Database, Keyspace, PersistMode};

use super::error::StoreError;
use super::marks::Directory;
use super::{HashReport, StateStore, StoreOptions, boundary, marks, open_database, tables};
use crate::front::Batch;
use crate::kv::{LoadRefusal, LoadedPart, Progress, Space};
use crate::wire::state::{StateDecoder, StateFault, StateHeader, StatePart, StateSummary};

/// Approximate size of the records in one batch of the database.
const BATCH_BYTES: usize = 4 << 20;

/// Why a state cannot be imported. Nothing of it is used.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The state was altered on the way, or was already damaged.
    #[error(transparent)]
    State(#[from] StateFault),
    /// The state cannot be stored here.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The directory already contains a state.
    #[error("{} contains a state already: remove it, or use another directory", path.display())]
    Occupied {
        /// The directory.
        path: PathBuf,
    },
}

/// The import of one state.
pub struct Import {
    decoder: StateDecoder,
    batch: Vec<(Space, Bytes, Bytes)>,
    batch_bytes: usize,
    /// In the order of [`Space::ALL`].
    spaces: Vec<Keyspace>,
    database: Database,
    /// The lock, released after the database has closed its files.
    directory: Directory,
}

impl Import {
    /// Starts an import into `directory`, which is created if missing. Removes the remains of an
    /// interrupted import.
    ///
    /// # Errors
    /// [`ImportError::Occupied`], or the directory cannot be written.
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

    /// The number of the next chunk.
    pub fn next_chunk(&self) -> u64 {
        self.decoder.next_chunk()
    }

    /// The header of the state, once its first chunk has been received.
    pub fn header(&self) -> Option<&StateHeader> {
        self.decoder.header()
    }

    /// Imports one chunk and returns whether it was the last: then call [finish](Self::finish). May write
    /// to the disk, so it must not run on a latency-sensitive thread.
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

    /// Makes the state durable and returns its description. Afterwards the directory is closed, and may
    /// be moved or opened.
    ///
    /// # Errors
    /// The last chunk is missing, or the disk failed. The directory stays incomplete.
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
        // The mark contains a hash of the files, so they must not change after it is computed.
        drop(spaces);
        drop(database);
        // The state was compared with its hash, and synced.
        let mark = marks::CleanMark {
            applied: summary.report.progress.applied,
            hash: summary.report.kept,
        };
        marks::write_clean_mark(directory.path(), &mark)?;
        drop(directory);
        Ok(summary)
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        self.batch_bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        let changes = batch
            .iter()
            .map(|(space, key, record)| (*space, key, Some(record)));
        tables::commit(
            &self.database,
            &self.spaces,
            "writing a received state",
            changes,
        )
    }
}

impl StateStore {
    /// Adds what comes from another store ([`kv::load`](crate::kv::load)) to a state that has nothing else.
    /// There must be no readers yet.
    ///
    /// # Errors
    /// The outer error is fatal; inside: it is not taken. After either, the state must not be used.
    pub fn load(&mut self, part: LoadedPart) -> Result<Result<Progress, LoadRefusal>, StoreError> {
        let result = self.load_unguarded(part);
        self.tables().poison_on_error(result)
    }

    fn load_unguarded(
        &mut self,
        part: LoadedPart,
    ) -> Result<Result<Progress, LoadRefusal>, StoreError> {
        let mut batch = Batch::begin(&mut self.writer)?;
        let progress = match batch.load(part)? {
            Ok(progress) => progress,
            Err(refusal) => return Ok(Err(refusal)),
        };
        batch.show()?.cache()?.revise().publish();
        self.writer.settle()?;
        Ok(Ok(progress))
    }

    /// Turns the state of a backup into the initial state of a new cluster
    /// ([`kv::reset_identity`](crate::kv::reset_identity)), and compares it with its hash. There must be no readers yet.
    ///
    /// # Errors
    /// Every error is fatal, and the state must not be used.
    pub fn reset_identity(&mut self, leap: i64) -> Result<HashReport, StoreError> {
        let result = self.reset_identity_unguarded(leap);
        self.tables().poison_on_error(result)?;
        self.reader().verify()
    }

    fn reset_identity_unguarded(&mut self, leap: i64) -> Result<(), StoreError> {
        let mut batch = Batch::begin(&mut self.writer)?;
        batch.reset_identity(leap)?;
        batch.show()?.cache()?.revise().publish();
        self.writer.settle().map(|_| ())
    }
}
