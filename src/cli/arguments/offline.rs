//! What can be typed after `leasehold offline`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::cert::parse_cluster_id;
use crate::types::{ClusterId, is_name};

/// Inspect the data of a stopped node; restore it from a backup or a surviving member.
#[derive(Clone, Debug, Subcommand)]
pub enum OfflineCommand {
    /// Read and verify all data; exits with 1 if something is damaged
    #[command(after_help = "Example:
  leasehold offline check --data-dir /var/lib/leasehold

Each part is reported on a line of its own, a damaged one with what to do about it. The command \
reads all data and changes none.")]
    Check(DataDirArgs),
    /// Show the hash of the state, which is equal on members that have applied the same entries
    #[command(after_help = "Example:
  leasehold offline hashkv --data-dir /var/lib/leasehold      hash, revision, entry")]
    Hashkv(DataDirArgs),
    /// Print every key with its value and metadata
    #[command(after_help = "Examples:
  leasehold offline dump-kv --data-dir /var/lib/leasehold
  leasehold offline dump-kv --data-dir /var/lib/leasehold -o json     one document per line")]
    DumpKv(DataDirArgs),
    /// Print every entry of the log: position, type and length
    #[command(after_help = "Example:
  leasehold offline dump-log --data-dir /var/lib/leasehold")]
    DumpLog(DataDirArgs),
    /// Create a new cluster of one member from the data of a surviving member of a lost cluster
    #[command(after_help = "\
For the case that a majority of the members is permanently lost and there is no newer backup.

Example:
  leasehold offline force-new-cluster --data-dir /var/lib/leasehold \\
    --new-data-dir /var/lib/leasehold-new --name n1 --node-cert /etc/leasehold/tls/n1-peer.pem

Entries that only the lost members held are lost even if they were acknowledged; entries of this \
member that were never acknowledged may be kept. The data of the survivor is only read: of several \
survivors, choose the one with the longest log (`offline check`). Like a restored cluster, the new \
cluster has an identity of its own and needs new certificates; its configuration names only this \
member.")]
    #[command(override_usage = "\
leasehold offline force-new-cluster --data-dir <DIR> --new-data-dir <DIR> --name <NAME>
           {--node-cert <FILE> | --cluster-id <UUID>} [OPTIONS]")]
    ForceNewCluster(ForceNewClusterArgs),
    /// Restore backups
    #[command(after_help = "Example:
  leasehold offline snapshot restore backup.lhs --data-dir /var/lib/leasehold --name n1 \\
    --initial-cluster n1=10.0.0.1:7401 --node-cert /etc/leasehold/tls/n1-peer.pem")]
    Snapshot {
        /// What to do.
        #[command(subcommand)]
        command: OfflineSnapshotCommand,
    },
}

/// Create a new cluster from the data of one member.
#[derive(Clone, Debug, Args)]
pub struct ForceNewClusterArgs {
    /// Data directory of the surviving member; it is only read
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// New data directory, which must be empty or not exist yet
    #[arg(long, value_name = "DIR")]
    pub new_data_dir: PathBuf,
    /// Name of the new member
    #[arg(long)]
    pub name: String,
    /// What the new cluster is.
    #[command(flatten)]
    pub cluster: NewClusterArgs,
    /// Do not ask for confirmation: entries that only the lost members held may be lost
    #[arg(long)]
    pub yes_lose_what_others_had: bool,
    /// Use the readable beginning of a damaged log, and lose what follows it
    #[arg(long)]
    pub yes_lose_what_is_damaged: bool,
}

/// Restore backups.
#[derive(Clone, Debug, Subcommand)]
pub enum OfflineSnapshotCommand {
    /// Create the data directory of one member of a new cluster from a backup
    #[command(after_help = "\
Example, on each node of the new cluster, with its own name, directory and certificate:
  leasehold offline snapshot restore backup.lhs --data-dir /var/lib/leasehold --name n1 \\
    --initial-cluster n1=10.0.0.1:7401,n2=10.0.0.2:7401,n3=10.0.0.3:7401 \\
    --node-cert /etc/leasehold/tls/n1-peer.pem

Restore every member from the same file, once, before the new cluster is first started: a member \
restored again later would have forgotten what it acknowledged in between. A member lost later is \
replaced (`member replace`) and starts with an empty directory. A second cluster restored from the \
same backup needs a larger --bump-revision, otherwise it issues the same revisions and fencing \
tokens as the first one.

The new cluster has an identity of its own, so it needs new certificates (`cert init`, `cert \
issue`). Keys, values and leases are kept, and each lease starts with its full TTL; sessions are \
not kept, because no client of the old cluster can continue one. The revision is raised and \
earlier revisions count as compacted, so that watchers of the old cluster learn that they must \
read again.

FILE may also be a snapshot that `etcdctl snapshot save` took of an etcd 3: keys, their history, \
revisions and leases are kept, and users are not. Stop what writes to etcd before it is taken.")]
    #[command(override_usage = "\
leasehold offline snapshot restore <FILE> --data-dir <DIR> --name <NAME>
           --initial-cluster <NAME=HOST:PORT,...>
           {--node-cert <FILE> | --cluster-id <UUID>} [OPTIONS]")]
    Restore(RestoreArgs),
}

/// Create the data directory of a member from a backup.
#[derive(Clone, Debug, Args)]
pub struct RestoreArgs {
    /// The backup, or a snapshot of etcd
    pub file: PathBuf,
    /// Data directory of the member, which must be empty or not exist yet
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Name of the member
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
    /// Restore a snapshot of etcd that has users without them: until users are created here, every client
    /// may do everything
    #[arg(long)]
    pub without_users: bool,
}

/// What a new cluster is, that begins with what an old one had.
#[derive(Clone, Debug, Args)]
pub struct NewClusterArgs {
    /// One of the member's new certificates, from which the identity of the new cluster is taken
    #[arg(long, value_name = "FILE", required_unless_present = "cluster_id")]
    pub node_cert: Option<PathBuf>,
    /// Identity of the new cluster, if no certificate is at hand
    #[arg(long, value_name = "UUID", conflicts_with = "node_cert", value_parser = parse_cluster_id)]
    pub cluster_id: Option<ClusterId>,
    /// How much to raise the revision; must exceed the number of revisions the old cluster has
    /// written since the backup [default: 1000000000, for a snapshot of etcd 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub bump_revision: Option<i64>,
    /// Keep the revision and the history as they are: watchers of the old cluster do not learn that
    /// they must read again
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
