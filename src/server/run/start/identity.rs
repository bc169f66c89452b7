//! Determines a node's identity from the certificates of its ports and from its data directory or, if that
//! is empty, from its cluster. From here on the directory is locked, and time is counted.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use super::error::StartError;
use crate::server::config::{ClusterState, Config};
use crate::server::disk::data_dir;
use crate::server::disk::data_dir::{DataDir, DataDirError};
use crate::server::disk::tls::load_tls;
use crate::server::peers::joining;
use crate::server::session::auth::Issuer;
use crate::time::{Clock, Instant};
use crate::transport::Tls;
use crate::types::{BootstrapId, ClusterId, Incarnation, NodeId};

/// The first stage: who this node is, and the lock that makes it the only one.
pub(super) struct Identity {
    pub(super) tls_client: Tls,
    pub(super) tls_peer: Tls,
    /// Whose tokens are good besides the cluster's own.
    pub(super) issuer: Option<Arc<Issuer>>,
    pub(super) cluster_id: ClusterId,
    pub(super) member_id: NodeId,
    pub(super) data_dir: Arc<DataDir>,
    /// The initial members of the cluster, if the cluster was asked for them.
    pub(super) initial_members: Vec<String>,
    pub(super) clock: Arc<dyn Clock>,
    /// The start of a restarted voter's silence (A3).
    pub(super) started: Instant,
}

impl Identity {
    /// Loads the certificates, asks the cluster if the directory is empty, and locks the directory.
    pub(super) async fn new(config: &Config, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        if config.cluster.discovery.is_some() {
            return Err(StartError::MembersNotFound);
        }
        let (tls_client, tls_peer) = load_both_tls(config)?;
        let cluster_id = tls_peer.cluster_id();
        let issuer = config.auth.oidc.as_ref().map(Issuer::load).transpose()?;
        let told = who_am_i(config, &tls_peer).await?;
        let identity = data_dir::Identity {
            cluster: cluster_id,
            node_name: config.node.name.clone(),
            incarnation: told.incarnation,
        };
        let data_dir = DataDir::open_or_create(&config.node.data_dir, &identity);
        let data_dir = data_dir.map_err(in_data_dir(config))?;
        // Only now that the lock is held: an earlier process of this directory can promise nothing
        // after this moment.
        let started = clock.now();
        Ok(Self {
            tls_client,
            tls_peer,
            issuer,
            cluster_id,
            member_id: identity.node(),
            data_dir: Arc::new(data_dir),
            initial_members: told.initial_members,
            clock,
            started,
        })
    }

    /// What random choices are drawn from, such as election timeouts: different on every node, at
    /// every start and for every call.
    pub(super) fn seed(&self) -> u64 {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.started.boot.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.started.raw.to_le_bytes());
        bytes[16..].copy_from_slice(&self.member_id.0.to_le_bytes());
        // A hasher of std is seeded by the system when it is made.
        let mut hasher = RandomState::new().build_hasher();
        hasher.write(&bytes);
        hasher.finish()
    }

    /// What this node would call the bootstrap of its cluster: random, and another one at every start.
    pub(super) fn draw_bootstrap(&self) -> BootstrapId {
        let halves = [self.seed(), self.seed()].map(u128::from);
        BootstrapId(halves[0] << 64 | halves[1])
    }
}

/// What is in the files of the client port and of the peer port, if both are this node's and of one
/// cluster.
fn load_both_tls(config: &Config) -> Result<(Tls, Tls), StartError> {
    let client = load_tls("client", &config.tls.client, &config.node.name)?;
    let peer = load_tls("peer", &config.tls.peer, &config.node.name)?;
    if client.cluster_id() != peer.cluster_id() {
        return Err(StartError::CertificateClusters {
            client: client.cluster_id(),
            peer: peer.cluster_id(),
        });
    }
    Ok((client, peer))
}

/// The error names the setting, and where that was set.
fn in_data_dir(config: &Config) -> impl FnOnce(DataDirError) -> StartError {
    let at = Box::new(config.effective.at("node.data_dir"));
    move |error| StartError::DataDir { at, error }
}

/// Which life of its data this node is in: what its data directory says; what the cluster says, where
/// that is empty and the cluster exists; the first, in a new one.
async fn who_am_i(config: &Config, tls: &Tls) -> Result<joining::MemberIdentity, StartError> {
    let path = &config.node.data_dir;
    let known = DataDir::read_identity(path).map_err(in_data_dir(config))?;
    let told = |incarnation| joining::MemberIdentity {
        incarnation,
        initial_members: Vec::new(),
    };
    if let Some(identity) = known {
        return Ok(told(identity.incarnation));
    }
    if config.cluster.state == ClusterState::New {
        return Ok(told(Incarnation(0)));
    }
    let others = config.cluster.initial.iter();
    if others
        .filter(|member| member.name != config.node.name)
        .count()
        == 0
    {
        return Err(StartError::NobodyToAsk { path: path.clone() });
    }
    joining::ask(config, tls)
        .await
        .map_err(|error| StartError::Bind {
            setting: "listen.peer",
            error,
        })
}
