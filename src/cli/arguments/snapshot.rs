//! What can be typed after `leasehold snapshot`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Back everything up, and look at backups.
#[derive(Clone, Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Write everything that the cluster stores to a file
    #[command(after_help = "Examples:
  leasehold snapshot save backup.lhs
  leasehold snapshot save backup.lhs --endpoints n3:7400                  from that node
  leasehold snapshot save backup.lhs --endpoints n3:7400 --consistency s  even without a leader

It holds every write that was acknowledged before it was asked for, unless --consistency says \
otherwise. It is written to FILE.part and takes its name when all of it is there, checked and synced. \
Restore it with `leasehold offline snapshot restore`.")]
    Save(SnapshotSaveArgs),
    /// Show what a backup holds; code 1 if it is damaged
    #[command(after_help = "Examples:
  leasehold snapshot status backup.lhs            hash, revision, keys, size
  leasehold snapshot status backup.lhs -o table")]
    Status(SnapshotFileArgs),
    /// Read all of a backup and check all of it; code 1 if it is damaged
    #[command(after_help = "Example:
  leasehold snapshot verify backup.lhs && cp backup.lhs /mnt/elsewhere/")]
    Verify(SnapshotFileArgs),
}

/// Write everything that the cluster stores to a file.
#[derive(Clone, Debug, Args)]
pub struct SnapshotSaveArgs {
    /// The file to write
    pub file: PathBuf,
    /// Replace the file if there is one
    #[arg(long)]
    pub force: bool,
}

/// Look at a backup.
#[derive(Clone, Debug, Args)]
pub struct SnapshotFileArgs {
    /// The file
    pub file: PathBuf,
}
