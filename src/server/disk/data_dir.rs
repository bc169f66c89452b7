//! The data directory: one member's, locked, recognised. (Signatures; the implementation follows.)

use std::path::Path;
use std::path::PathBuf;

use thiserror::Error;

use crate::server::disk::file::RealDisk;
use crate::types::ClusterId;
use crate::types::Incarnation;
use crate::types::NodeId;

/// Whose data a directory holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node's name, as its certificate says it.
    pub node_name: String,
    /// Which life of the member this is.
    pub incarnation: Incarnation,
}

impl Identity {
    /// The member id.
    pub fn node(&self) -> NodeId {
        NodeId::derive(self.cluster, &self.node_name, self.incarnation)
    }
}

/// A directory that this process alone may use, until it is dropped.
#[derive(Debug)]
#[allow(dead_code)]
pub struct DataDir {
    path: PathBuf,
    identity: Identity,
    created: bool,
}

#[allow(unused_variables, clippy::unimplemented)]
impl DataDir {
    /// Locks the directory; makes it if it is missing or empty.
    pub fn open_or_create(path: &Path, identity: &Identity) -> Result<Self, DataDirError> {
        unimplemented!()
    }
    /// Whose data lies at `path`, without locking it; `None` for none yet.
    pub fn read_identity(path: &Path) -> Result<Option<Identity>, DataDirError> {
        unimplemented!()
    }
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Whose it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }
    /// It was empty and has been made by this call.
    pub fn created(&self) -> bool {
        self.created
    }
    /// Where the log and the vote file live.
    pub fn log_disk(&self) -> RealDisk {
        unimplemented!()
    }
    /// The state's folder, for fjall.
    pub fn state_path(&self) -> PathBuf {
        unimplemented!()
    }
}

/// Why a directory cannot be used.
#[derive(Debug, Error)]
pub enum DataDirError {}
