//! Why a server did not start: each reason, and what to do about it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::log::LogError;
use crate::node::recovery::Refusal;
use crate::server::admin::AdminError;
use crate::server::config::At;
use crate::server::disk::data_dir::DataDirError;
use crate::server::disk::log_thread::RestoreError;
use crate::server::disk::store::StoreError;
use crate::server::disk::tls::CertificateError;
use crate::server::peers::PeersError;
use crate::server::session::auth::KeysError;
use crate::transport::BindError;
use crate::types::{BootstrapId, ClusterId};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The new certificate is of another cluster than the one before.
    #[error(
        "[tls.{section}] the certificate belongs to cluster {found}, but this node to {cluster}: \
         issue it with this cluster's authorities"
    )]
    CertificateOfAnotherCluster {
        /// `client` or `peer`.
        section: &'static str,
        /// The cluster of the certificate.
        found: ClusterId,
        /// The cluster of the node.
        cluster: ClusterId,
    },
    /// The two certificates belong to different clusters.
    #[error(
        "the certificates of [tls.client] and [tls.peer] belong to different clusters ({client} \
         and {peer}): issue both with the same authorities"
    )]
    CertificateClusters {
        /// The cluster of the client port's certificate.
        client: ClusterId,
        /// The cluster of the peer port's certificate.
        peer: ClusterId,
    },
    /// The keys of the issuer of tokens cannot be used.
    #[error(transparent)]
    IssuerKeys(#[from] KeysError),
    /// The members are still to be found.
    #[error(
        "cluster.discovery_srv is set, which `leasehold serve` alone looks up: give the members in \
         cluster.initial"
    )]
    MembersNotFound,
    /// The VMClock device that the configuration names cannot be used.
    #[error(
        "node.vm_clock = `{}`: {source}; name a VMClock device that this user may read, or leave the setting \
         out",
        device.display()
    )]
    VmClock {
        /// The device.
        device: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The data directory cannot be used.
    #[error("{at}: node.data_dir: {error}")]
    DataDir {
        /// Where the directory was set.
        at: Box<At>,
        /// The reason.
        error: DataDirError,
    },
    /// The content of the disks does not allow a start.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Parts of the directory come from different bootstraps of the cluster.
    #[error(
        "{} holds data of two bootstraps of this cluster ({found} and {other}): parts of it were \
         copied from elsewhere; restore the whole directory from one copy, or start with an empty \
         one and cluster.state = \"existing\", so that the member copies all data from its peers",
        path.display()
    )]
    TwoBootstraps {
        /// The directory.
        path: PathBuf,
        /// One of them.
        found: BootstrapId,
        /// The other.
        other: BootstrapId,
    },
    /// The directory is empty, the cluster is configured as existing, and no peer is known.
    #[error(
        "{} is empty, cluster.state says that the cluster exists, and cluster.initial names no \
         other member to contact: add other members there, restore the directory, or set \
         cluster.state = \"new\" if the cluster has never existed",
        path.display()
    )]
    NobodyToAsk {
        /// The directory.
        path: PathBuf,
    },
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log contains entries that this version cannot read.
    #[error(transparent)]
    Restore(#[from] RestoreError),
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
        /// The reason.
        error: BindError,
    },
    /// The port for etcd's clients cannot be opened.
    #[error("listen.etcd: cannot listen on {address}: {error}")]
    Etcd {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The admin port cannot be opened.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A thread cannot be started, or a folder renamed.
    #[error("{what}: {error}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl StartError {
    /// Whether the node was removed from its cluster: starting it again changes nothing.
    pub fn is_removed(&self) -> bool {
        matches!(self, Self::Refused(Refusal::Removed { .. }))
    }
}

pub(super) fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |error| StartError::Io { what, error }
}
