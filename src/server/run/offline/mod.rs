//! What is done to the data of a node that does not run: looked at, checked, made from a backup.
//!
//! Each of these holds the lock of the data directory, so that no node starts on it meanwhile, and is
//! refused where one runs. What looks changes nothing of what the node holds; the database's own files
//! may be put in order by being opened, as at any start.

mod check;
mod dump;
mod force;
mod restore;
mod tripwire;

use std::io;
use std::path::{Path, PathBuf};

use crate::log::{Damage, Log, LogError, LogOptions, Recovery};
use crate::server::disk::data_dir::{DataDir, DataDirError};
use crate::server::disk::log_thread::RestoreError;
use crate::server::disk::state_dirs::StateDirs;
use crate::server::disk::store::{ImportError, StateStore, StoreError, StoreOptions};
use crate::types::{ClusterId, LogId};
use crate::wire::state::ReadFault;

pub use check::{Finding, StateHash};
pub use dump::DumpedEntry;
pub use force::{ForceOutcome, force_new_cluster};
pub use restore::{NewMember, Restored, cluster_of_certificate, restore};

/// Why it cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// The directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// There is no node's data.
    #[error("{} does not contain the data of a node: name its data_dir", path.display())]
    Nothing {
        /// The directory.
        path: PathBuf,
    },
    /// The log is damaged, and was not to be taken as it is.
    #[error(
        "the log is damaged ({}: {}): its readable part ends with entry {last}, and later entries \
         may have been acknowledged; choose another survivor or a backup, or, if there is none, \
         use the readable part with --yes-lose-what-is-damaged",
        damage.place,
        damage.what
    )]
    LogDamaged {
        /// What is damaged, and where.
        damage: Damage,
        /// The last entry that can be read, or that the state holds.
        last: LogId,
    },
    /// The state ends before the log begins.
    #[error(
        "the state in {} ends with entry {applied}, but the log begins after {base}: the entries \
         in between are missing; choose another survivor or a backup (if this one was just \
         receiving a snapshot, start it once so that it installs it)",
        path.display()
    )]
    StateBehindLog {
        /// The directory.
        path: PathBuf,
        /// How far the state goes.
        applied: LogId,
        /// Where the log begins.
        base: LogId,
    },
    /// The node has no state yet, or lost it.
    #[error(
        "{} contains no state: it is built from the log when the node starts, or copied from its \
         peers",
        path.display()
    )]
    NoState {
        /// Where it should be.
        path: PathBuf,
    },
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log holds what cannot be read.
    #[error(transparent)]
    Entries(#[from] RestoreError),
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The backup cannot be read.
    #[error("{}: {fault}", path.display())]
    Backup {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: ReadFault,
    },
    /// The backup cannot be taken in.
    #[error("{}: {error}", path.display())]
    Import {
        /// The file.
        path: PathBuf,
        /// Why.
        error: ImportError,
    },
    /// What was asked for makes no sense.
    #[error("{reason}")]
    Invalid {
        /// Why, and what would.
        reason: String,
    },
    /// The backup is of the very cluster that it is to be restored for.
    #[error(
        "the certificates belong to cluster {cluster}, which this backup was taken from: a \
         restored cluster needs an identity of its own, so that members of the old one are not \
         mistaken for its members; create new certificates with `leasehold cert init` and `cert \
         issue`"
    )]
    SameCluster {
        /// The cluster.
        cluster: ClusterId,
    },
    /// The disk.
    #[error("{}: {error}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// The data of a node that does not run, and will not while this lives.
pub struct StoppedNode {
    data_dir: DataDir,
}

impl StoppedNode {
    /// Takes hold of the data at `path`.
    ///
    /// # Errors
    /// [`DataDirError::InUse`]: the node runs. [`OfflineError::Nothing`]: there is no data.
    pub fn open(path: &Path) -> Result<Self, OfflineError> {
        let Some(identity) = DataDir::read_identity(path)? else {
            return Err(OfflineError::Nothing { path: path.into() });
        };
        let data_dir = DataDir::open_or_create(path, &identity)?;
        Ok(Self { data_dir })
    }

    /// Reads all of the log, and changes nothing.
    fn read_log(&self) -> Result<Recovery, LogError> {
        // Only the log's size of new segments is not known here, and none is made.
        let options = self.data_dir.log_options(LogOptions::SEGMENT_BYTES);
        Log::inspect(self.data_dir.log_disk(), options)
    }

    /// Opens the state.
    fn open_state(&self) -> Result<StateStore, OfflineError> {
        let path = self.data_dir.state_path();
        // A state that has just taken the place of another lies elsewhere until the next start.
        let settled = StateDirs::new(self.data_dir.path()).settle();
        settled.map_err(|error| OfflineError::Io {
            path: path.clone(),
            error,
        })?;
        if !path.join("format").exists() {
            return Err(OfflineError::NoState { path });
        }
        Ok(StateStore::open(&path, &StoreOptions::default())?)
    }
}
