//! What can be typed after `leasehold offline`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::cert::parse_cluster_id;
use crate::types::{ClusterId, is_name};

/// Look at the data of a node that does not run.
#[derive(Clone, Debug, Subcommand)]
pub enum OfflineCommand {
    /// Read everything and check everything; code 1 if something is damaged
    #[command(after_help = "Example:
  leasehold offline check --data-dir /var/lib/leasehold

Each part is named on a line of its own, a damaged one with what to do. It takes as long as reading all \
of the data does, and changes nothing of what the node holds.")]
    Check(DataDirArgs),
    /// Show the hash of everything stored: the same on members that have applied the same entries
    #[command(after_help = "Example:
  leasehold offline hashkv --data-dir /var/lib/leasehold      hash, revision, entry")]
    Hashkv(DataDirArgs),
    /// Print every key with what it holds
    #[command(after_help = "Examples:
  leasehold offline dump-kv --data-dir /var/lib/leasehold
  leasehold offline dump-kv --data-dir /var/lib/leasehold -o json     a document a line")]
    DumpKv(DataDirArgs),
    /// Print every entry of the log: its place, what it is, its length
    #[command(after_help = "Example:
  leasehold offline dump-log --data-dir /var/lib/leasehold")]
    DumpLog(DataDirArgs),
    /// Make, of what one member of a lost cluster has, a new cluster of one
    #[command(after_help = "\
For the day on which a majority of the members is lost for good, and there is no backup that is younger.

Example:
  leasehold offline force-new-cluster --data-dir /var/lib/leasehold \\
    --new-data-dir /var/lib/leasehold-new --name n1 --node-cert /etc/leasehold/tls/n1-peer.pem

What only the lost members had is gone, though it was acknowledged; and what this member was about to \
write may be kept, though nobody was told so. The survivor's own data is only read: choose, of several \
survivors, the one whose log goes furthest (`offline check`). The new cluster has an identity of its own, \
as a restored one has, and needs new certificates; its configuration names this member alone.")]
    #[command(override_usage = "\
leasehold offline force-new-cluster --data-dir <DIR> --new-data-dir <DIR> --name <NAME>
           {--node-cert <FILE> | --cluster-id <UUID>} [OPTIONS]")]
    ForceNewCluster(ForceNewClusterArgs),
    /// Make data of backups
    #[command(after_help = "Example:
  leasehold offline snapshot restore backup.lhs --data-dir /var/lib/leasehold --name n1 \\
    --initial-cluster n1=10.0.0.1:7401 --node-cert /etc/leasehold/tls/n1-peer.pem")]
    Snapshot {
        /// What to do.
        #[command(subcommand)]
        command: OfflineSnapshotCommand,
    },
}

/// Make, of what one member has, a new cluster.
#[derive(Clone, Debug, Args)]
pub struct ForceNewClusterArgs {
    /// The survivor's data directory, which is only read
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// The new data directory: empty, or not there yet
    #[arg(long, value_name = "DIR")]
    pub new_data_dir: PathBuf,
    /// The new member's name
    #[arg(long)]
    pub name: String,
    /// What the new cluster is.
    #[command(flatten)]
    pub cluster: NewClusterArgs,
    /// Do not ask: what only the lost members had may be lost
    #[arg(long)]
    pub yes_lose_what_others_had: bool,
    /// Take of a damaged log what can still be read, and lose what lay behind that
    #[arg(long)]
    pub yes_lose_what_is_damaged: bool,
}

/// Make data of backups.
#[derive(Clone, Debug, Subcommand)]
pub enum OfflineSnapshotCommand {
    /// Make of a backup the data directory of one member of a new cluster
    #[command(after_help = "\
Example, on each node of the new cluster, with its own name, directory and certificate:
  leasehold offline snapshot restore backup.lhs --data-dir /var/lib/leasehold --name n1 \\
    --initial-cluster n1=10.0.0.1:7401,n2=10.0.0.2:7401,n3=10.0.0.3:7401 \\
    --node-cert /etc/leasehold/tls/n1-peer.pem

Every member is made from the same file, once, before the new cluster is first started: a member that is \
made again later would have forgotten what it acknowledged meanwhile. One that is lost then is replaced \
(`member replace`) and starts with an empty directory. A second cluster of the same backup needs a larger \
--bump-revision, or it gives out revisions and fencing tokens that the first one gave out.

The new cluster has an identity of its own, so it needs new \
certificates (`cert init`, `cert issue`). Keys, values and leases are kept, and each lease has its full \
time again; sessions are not, for no client of the old cluster can go on with one. The revision is raised, \
and what was before it counts as compacted, so that whoever watched the old cluster is told to read anew.")]
    #[command(override_usage = "\
leasehold offline snapshot restore <FILE> --data-dir <DIR> --name <NAME>
           --initial-cluster <NAME=HOST:PORT,...>
           {--node-cert <FILE> | --cluster-id <UUID>} [OPTIONS]")]
    Restore(RestoreArgs),
}

/// Make of a backup the data directory of a member.
#[derive(Clone, Debug, Args)]
pub struct RestoreArgs {
    /// The backup
    pub file: PathBuf,
    /// The member's data directory: empty, or not there yet
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// The member's name
    #[arg(long)]
    pub name: String,
    /// All members of the new cluster, as in cluster.initial of their configuration
    #[arg(
        long,
        value_name = "NAME=HOST:PORT",
        value_delimiter = ',',
        required = true,
        value_parser = parse_member
    )]
    pub initial_cluster: Vec<String>,
    /// What the new cluster is.
    #[command(flatten)]
    pub cluster: NewClusterArgs,
}

/// What a new cluster is, that begins with what an old one had.
#[derive(Clone, Debug, Args)]
pub struct NewClusterArgs {
    /// One of the member's new certificates, which says what the new cluster is
    #[arg(long, value_name = "FILE", required_unless_present = "cluster_id")]
    pub node_cert: Option<PathBuf>,
    /// The new cluster's identity, where no certificate is at hand
    #[arg(long, value_name = "UUID", conflicts_with = "node_cert", value_parser = parse_cluster_id)]
    pub cluster_id: Option<ClusterId>,
    /// By how much the revision is raised: more than the old cluster has written since the backup
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000_000_000,
        value_parser = clap::value_parser!(i64).range(1..)
    )]
    pub bump_revision: i64,
    /// Leave the revision as it was, and history too: whoever watched the old cluster is not told
    #[arg(long, conflicts_with = "bump_revision")]
    pub no_bump_revision: bool,
}

/// The name in `name=host:port`: where the member is stands in its configuration.
fn parse_member(text: &str) -> Result<String, String> {
    let name = text.split_once('=').map_or(text, |(name, _)| name).trim();
    match is_name(name) {
        true => Ok(name.to_owned()),
        false => Err("write name=host:port, for example n1=10.0.0.1:7401".to_owned()),
    }
}

/// Whose data.
#[derive(Clone, Debug, Args)]
pub struct DataDirArgs {
    /// The node's data directory
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
}
