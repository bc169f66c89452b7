//! What can be typed after `leasehold snapshot`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::elsewhere::ElsewhereArgs;

/// Save backups and inspect them.
#[derive(Clone, Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Save a backup of the whole cluster to a file
    #[command(after_help = "Examples:
  leasehold snapshot save backup.lhs
  leasehold snapshot save backup.lhs --endpoints n3:7400                  from that node
  leasehold snapshot save backup.lhs --endpoints n3:7400 --consistency s  even without a leader

The backup contains every write acknowledged before the command was started, unless --consistency \
says otherwise. It is written to FILE.part and renamed once it is complete, verified and synced. \
Restore it with `leasehold offline snapshot restore`.")]
    Save(SnapshotSaveArgs),
    /// Show a summary of a backup; exits with 1 if it is damaged
    #[command(after_help = "Examples:
  leasehold snapshot status backup.lhs            hash, revision, keys, size
  leasehold snapshot status backup.lhs -o table")]
    Status(SnapshotFileArgs),
    /// Read and verify a whole backup; exits with 1 if it is damaged
    #[command(after_help = "Example:
  leasehold snapshot verify backup.lhs && cp backup.lhs /mnt/elsewhere/")]
    Verify(SnapshotFileArgs),
    /// See `leasehold offline snapshot restore`
    #[command(
        hide = true,
        after_help = "Example:
  leasehold offline snapshot restore backup.lhs --help"
    )]
    Restore(ElsewhereArgs),
}

/// Save a backup of the whole cluster to a file.
#[derive(Clone, Debug, Args)]
pub struct SnapshotSaveArgs {
    /// The file to write
    pub file: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,
}

/// Inspect a backup.
#[derive(Clone, Debug, Args)]
pub struct SnapshotFileArgs {
    /// The file
    pub file: PathBuf,
}
