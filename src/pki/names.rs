//! What certificates and their files are called, and what a certificate says it is.

use std::path::Path;

use crate::transport::exposed_mode;
use crate::types::ClusterId;

/// The peer authority's certificate, beside its key in `peer-ca.key`.
pub const PEER_CA_FILE: &str = "peer-ca.pem";
/// The client authority's certificate, beside its key in `client-ca.key`.
pub const CLIENT_CA_FILE: &str = "client-ca.pem";

/// The DNS name by which every node of `cluster` is called.
pub fn server_name(cluster: ClusterId) -> String {
    format!("{cluster}.leasehold.internal")
}

/// What a certificate's URI says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Authority,
    Node,
    Client,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Authority => "ca",
            Self::Node => "node",
            Self::Client => "client",
        }
    }
}

/// The complaint about a key that others may use than it is meant for, as a node judges it that runs
/// as this user.
pub(super) fn key_exposed(path: &Path) -> Option<String> {
    let mode = exposed_mode(path)?;
    Some(format!(
        "users other than the owner can read this private key (mode {mode:04o}): chmod 600 {}",
        path.display()
    ))
}
