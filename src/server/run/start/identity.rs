//! Who a node is: by the certificates of its ports, and by its data directory or, where that is
//! empty, by its cluster.

use std::io;
use std::path::Path;

use super::error::{StartError, io_error};
use crate::server::config::{ClusterState, Config, TlsFiles};
use crate::server::disk::bootstrap::removed_mark;
use crate::server::disk::data_dir::DataDir;
use crate::server::peers::joining;
use crate::transport::Tls;
use crate::types::Incarnation;

/// What is in the files of the client port and of the peer port, if both are this node's and of one
/// cluster.
pub(super) fn load_both_tls(config: &Config) -> Result<(Tls, Tls), StartError> {
    let client = load_tls("client", &config.tls_client, &config.node.name)?;
    let peer = load_tls("peer", &config.tls_peer, &config.node.name)?;
    if client.cluster_id() != peer.cluster_id() {
        return Err(StartError::CertificateClusters {
            client: client.cluster_id(),
            peer: peer.cluster_id(),
        });
    }
    Ok((client, peer))
}

/// What is in the files of one port, if it is this node's.
pub(crate) fn load_tls(
    section: &'static str,
    files: &TlsFiles,
    name: &str,
) -> Result<Tls, StartError> {
    let tls = Tls::load(&files.paths()).map_err(|error| StartError::Tls { section, error })?;
    let tls = tls.with_allowed(files.allowed_sans.clone());
    let identity = tls.identity();
    if !identity.is_node() || identity.name() != name {
        return Err(StartError::CertificateName {
            section,
            found: identity.to_string(),
            name: name.to_owned(),
        });
    }
    Ok(tls)
}

/// Which life of its data this node is in: what its data directory says; what the cluster says, where
/// that is empty and the cluster exists; the first, in a new one.
pub(super) async fn who_am_i(config: &Config, tls: &Tls) -> Result<joining::Told, StartError> {
    let path = &config.node.data_dir;
    let known = DataDir::read_identity(path)?;
    let told = |incarnation| joining::Told {
        incarnation,
        founders: Vec::new(),
    };
    if let Some(identity) = known {
        return Ok(told(identity.incarnation));
    }
    if config.cluster_state == ClusterState::New {
        return Ok(told(Incarnation(0)));
    }
    let others = config.initial_members.iter();
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

/// A member that was removed does not come back with what it had: it has promised and voted.
pub(super) fn refuse_removed(data_dir: &Path) -> Result<(), StartError> {
    let path = removed_mark(data_dir);
    match std::fs::read_to_string(&path) {
        Ok(why) => Err(StartError::Removed {
            why: why.trim().to_owned(),
            path,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error("looking whether this member was removed")(error)),
    }
}
