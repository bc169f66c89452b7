//! Why a server did not start: each reason, and what to do about it.

use std::io;
use std::path::PathBuf;

use crate::log::LogError;
use crate::server::admin::AdminError;
use crate::server::disk::bootstrap::FoundingError;
use crate::server::disk::data_dir::DataDirError;
use crate::server::disk::log_thread::RestoreError;
use crate::server::disk::store::StoreError;
use crate::server::peers::PeersError;
use crate::transport::{BindError, TlsError};
use crate::types::{ClusterId, LogIndex, VersionRange};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A certificate cannot be used.
    #[error("[tls.{section}] {error}")]
    Tls {
        /// `client` or `peer`.
        section: &'static str,
        /// What is wrong with it.
        error: TlsError,
    },
    /// The certificate is not this node's.
    #[error(
        "[tls.{section}] the certificate is {found}'s, and node.name is \"{name}\": use the \
         certificate that was issued to \"{name}\", or correct the name"
    )]
    CertificateName {
        /// `client` or `peer`.
        section: &'static str,
        /// Whose it is.
        found: String,
        /// Who this node is.
        name: String,
    },
    /// The new certificate is of another cluster than the one before.
    #[error(
        "[tls.{section}] the certificate is of cluster {found}, and this node is of {cluster}: issue \
         it with this cluster's authorities"
    )]
    CertificateOfAnotherCluster {
        /// `client` or `peer`.
        section: &'static str,
        /// The certificate's.
        found: ClusterId,
        /// The node's.
        cluster: ClusterId,
    },
    /// The two certificates belong to different clusters.
    #[error(
        "the certificates of [tls.client] and [tls.peer] belong to different clusters ({client} \
         and {peer}): issue both with the same authorities"
    )]
    CertificateClusters {
        /// The client port's.
        client: ClusterId,
        /// The peer port's.
        peer: ClusterId,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The configuration does not fit what the directory remembers of the founding.
    #[error(transparent)]
    Founding(#[from] FoundingError),
    /// The directory is that of a member that was removed.
    #[error("{why} (says {})", path.display())]
    Removed {
        /// What it was told.
        why: String,
        /// The file that remembers it.
        path: PathBuf,
    },
    /// The directory is empty, the cluster is said to exist, and nobody can be asked.
    #[error(
        "{} is empty, cluster.state says that the cluster exists, and cluster.initial names nobody who \
         could be asked: name other members there, restore the directory, or set cluster.state = \"new\" \
         if there never was such a cluster",
        path.display()
    )]
    NobodyToAsk {
        /// The directory.
        path: PathBuf,
    },
    /// Emptied, this member of a larger cluster would found it anew.
    #[error(
        "this cluster has {members} members, and cluster.initial names this node alone with cluster.state \
         = \"new\": were its data directory ever emptied it would found the cluster again, beside the \
         others; set cluster.state = \"existing\""
    )]
    WouldFoundAlone {
        /// How many there are.
        members: usize,
    },
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log holds what this version cannot read.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The state was lost, the log has been cut, and there are no peers to take it from.
    #[error(
        "the state has applied entry {applied}, and the log begins after {base}: the state was lost, \
         and this node has no peers to take it from; restore a backup of the data directory"
    )]
    StateLost {
        /// How far the state goes.
        applied: LogIndex,
        /// Where the log begins.
        base: LogIndex,
    },
    /// The log is damaged, and nobody else has what it held.
    #[error(
        "the log of this node is damaged ({damage}), and it is the only member of its cluster, so nobody \
         else has what is lost; nothing has been changed: look at the disk, then restore a backup (`leasehold offline snapshot \
         restore`), or make a cluster of what can still be read (`leasehold offline force-new-cluster \
         --yes-lose-what-is-damaged`)"
    )]
    LogDamaged {
        /// What is damaged, and where.
        damage: String,
    },
    /// The data is of a cluster that has agreed on what this program does not know.
    #[error(
        "{} belongs to a cluster of version {found}, and this program knows {known}: start the newer \
         release that wrote it; there is no way back to an older one",
        data_dir.display()
    )]
    NewerCluster {
        /// The data directory.
        data_dir: PathBuf,
        /// What the cluster is.
        found: u16,
        /// What this program knows.
        known: VersionRange,
    },
    /// The state cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The peer port cannot be opened.
    #[error("listen.peer: {0}")]
    Peers(PeersError),
    /// A port cannot be opened.
    #[error("{setting}: {error}")]
    Bind {
        /// The setting that names the address.
        setting: &'static str,
        /// What is wrong.
        error: BindError,
    },
    /// The admin port cannot be opened.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A thread cannot be started, or a folder renamed.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

pub(super) fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |error| StartError::Io { what, error }
}
