//! Offline operations on the data of a stopped node: inspection, verification, and restore from a backup.
//!
//! Each operation holds the lock of the data directory, so it is refused while a node runs, and no node
//! can start meanwhile. Read-only operations do not change the node's data, but opening the database may
//! run its recovery, as at any start.

mod check;
mod dump;
mod etcd;
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
pub use etcd::EtcdFault;
#[doc(hidden)]
pub use etcd::etcd_parts;
pub use force::{ForceOutcome, force_new_cluster};
pub use restore::{NewMember, RestoredMember, cluster_of_certificate, restore};

/// Why an offline operation failed.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// The directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The directory contains no data of a node.
    #[error("{} does not contain the data of a node: name its data_dir", path.display())]
    Nothing {
        /// The directory.
        path: PathBuf,
    },
    /// The log is damaged, and a damaged log was not allowed.
    #[error(
        "the log is damaged ({}: {}): its readable part ends with entry {last}, and later entries \
         may have been acknowledged; choose another survivor or a backup, or, if there is none, \
         use the readable part with --yes-lose-what-is-damaged",
        damage.place,
        damage.what
    )]
    LogDamaged {
        /// The damage, and its location.
        damage: Damage,
        /// The last entry that can be read, or that the state contains.
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
        /// The last entry in the state.
        applied: LogId,
        /// Where the log begins.
        base: LogId,
    },
    /// The node has no state.
    #[error(
        "{} contains no state: it is built from the log when the node starts, or copied from its \
         peers",
        path.display()
    )]
    NoState {
        /// The expected path.
        path: PathBuf,
    },
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log contains an entry that cannot be decoded.
    #[error(transparent)]
    Entries(#[from] RestoreError),
    /// The state cannot be opened or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The backup cannot be read.
    #[error("{}: {fault}", path.display())]
    Backup {
        /// The file.
        path: PathBuf,
        /// The fault.
        fault: ReadFault,
    },
    /// The backup cannot be imported.
    #[error("{}: {error}", path.display())]
    Import {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: ImportError,
    },
    /// The snapshot of etcd cannot be restored.
    #[error("{}: {fault}", path.display())]
    Etcd {
        /// The file.
        path: PathBuf,
        /// The reason.
        fault: EtcdFault,
    },
    /// The arguments are inconsistent.
    #[error("{reason}")]
    Invalid {
        /// The reason, and a correct alternative.
        reason: String,
    },
    /// The backup was taken from the cluster that it is to be restored for.
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
    /// An operation of the file system failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// The locked data directory of a stopped node.
pub struct StoppedNode {
    data_dir: DataDir,
}

impl StoppedNode {
    /// Locks the data at `path`.
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

    /// Reads the whole log without changing it.
    fn read_log(&self) -> Result<Recovery, LogError> {
        // The configured segment size is unknown here, but no segment is created.
        let options = self.data_dir.log_options(LogOptions::SEGMENT_BYTES);
        Log::inspect(self.data_dir.log_disk(), options)
    }

    /// Opens the state.
    fn open_state(&self) -> Result<StateStore, OfflineError> {
        let path = self.data_dir.state_path();
        // After a snapshot was installed, the current state has another path until the next start.
        let settled = StateDirs::new(self.data_dir.path()).settle();
        settled.map_err(|error| OfflineError::Io {
            path: path.clone(),
            error,
        })?;
        let has = |name| path.join(name).exists();
        // With a database and no format it is a damaged one, which is said where it is opened.
        if !has("format") && (has("creating") || !has("db")) {
            return Err(OfflineError::NoState { path });
        }
        Ok(StateStore::open(&path, &StoreOptions::default())?)
    }
}
