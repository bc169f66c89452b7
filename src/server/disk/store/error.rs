//! What can be wrong with the state on disk, sorted by what to do about it.

use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use crate::kv::Fault;
use crate::server::threads::fatal::StateFailure;
use crate::types::{LogId, VersionRange};

/// Why the state cannot be used. All of them are fatal for this node's run.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error(
        "{} is in use by another process: stop that process, or give this node its own data \
         directory",
        path.display()
    )]
    Locked {
        /// The state's directory.
        path: PathBuf,
    },
    /// What is there was not written by this program.
    #[error(
        "{} contains something that is not a leasehold state ({found}): use an empty directory, or \
         the one this node used before",
        path.display()
    )]
    Foreign {
        /// The state's directory.
        path: PathBuf,
        /// What is in the way.
        found: String,
    },
    /// A later version of this program wrote it.
    #[error(
        "{} has state format {found}, but this release reads format {known}: start the newer \
         release that wrote it",
        path.display()
    )]
    NewerFormat {
        /// The state's directory.
        path: PathBuf,
        /// The format found.
        found: u32,
        /// The format that this program reads.
        known: u32,
    },
    /// An earlier version of this program wrote it, and this one does not know how to read it. It is
    /// not rebuilt from the log either: that is as old as the state, and what does not read there
    /// would be left out.
    #[error(
        "{} has state format {found}, but this release reads format {known}: start the release \
         that wrote it; to use this one, export the data with the old release and write it to a \
         new cluster",
        path.display()
    )]
    OlderFormat {
        /// The state's directory.
        path: PathBuf,
        /// The format found.
        found: u32,
        /// The format that this program reads.
        known: u32,
    },
    /// The cluster has agreed on a version that this program does not know.
    #[error(
        "the cluster has version {found}, but this release supports {known}: start the newer \
         release that its other members run; downgrading is not supported"
    )]
    NewerCluster {
        /// What the cluster is.
        found: u16,
        /// What this program knows.
        known: VersionRange,
    },
    /// It does not read as it was written.
    #[error("the state on disk is damaged ({detail}): rebuild this node from its peers")]
    Damaged {
        /// What was noticed.
        detail: String,
    },
    /// The entries to apply do not follow what was applied.
    #[error(
        "entry {given} cannot be applied after {applied}: the log and the state of this node do \
         not match; rebuild it from its peers"
    )]
    OutOfOrder {
        /// The last entry applied.
        applied: LogId,
        /// The entry that came.
        given: LogId,
    },
    /// The disk or the file system refused.
    #[error("{doing} failed: {source}; {}", advice(source))]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// An earlier error ended the use of this state. It is named here too: who meets this one may be
    /// the first to say anything.
    #[error("{0}; the state has been unusable since")]
    Poisoned(Failure),
}

/// What to do about an error of the system.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "nothing that was acknowledged is lost: free space on the disk of the data directory; \
             the node's next start waits until there is enough"
        }
        _ => "check the disk, then restart the node",
    }
}

/// The error that ended the use of a state, for those who come later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    why: Arc<str>,
    is_damage: bool,
}

impl Failure {
    /// What remains of `error`.
    pub(super) fn of(error: &StoreError) -> Self {
        Self {
            why: error.to_string().into(),
            is_damage: error.is_damage(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl StoreError {
    /// Whether the state itself is wrong, so that it must be rebuilt, whatever the disk does.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::OutOfOrder { .. } => true,
            Self::Poisoned(failure) => failure.is_damage,
            _ => false,
        }
    }

    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }

    pub(super) fn from_fjall(doing: &'static str, error: fjall::Error) -> Self {
        match error {
            fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => {
                Self::from_database_io(doing, source)
            }
            // A write in the background failed before; fjall tells why only to the log.
            fjall::Error::Poisoned => Self::Io {
                doing,
                source: io::Error::other(
                    "the storage engine stopped after a background write failed, usually because \
                     the disk is full or failing; see its earlier messages in the log. A start \
                     waits until the disk has enough space",
                ),
            },
            other => Self::Damaged {
                detail: format!("while {doing}: {other}"),
            },
        }
    }

    /// A file of the database that is missing, short or unreadable as such is no failing disk.
    fn from_database_io(doing: &'static str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput => Self::Damaged {
                detail: format!("while {doing}: {source}"),
            },
            _ => Self::Io { doing, source },
        }
    }
}

impl StateFailure for StoreError {
    fn is_damage(&self) -> bool {
        self.is_damage()
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::OutOfOrder { applied, given } => Self::OutOfOrder { applied, given },
            Fault::Damaged { space, what } => Self::Damaged {
                detail: format!("keyspace {space} holds {what}"),
            },
        }
    }
}
