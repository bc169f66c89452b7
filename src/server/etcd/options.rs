//! How the port presents itself.

use super::snapshot::SnapshotRoom;

/// How the port presents itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EtcdOptions {
    /// The version of etcd that clients are told: three numbers.
    pub(crate) emulated_version: String,
    /// The largest answer to a read, in bytes.
    pub(crate) reply_bytes_max: usize,
    /// Calls of one connection beside each other. What each may have waiting uncounted is less than sixteen kilobytes.
    pub(crate) streams_max: u32,
    /// Whether the methods are served as JSON, too.
    pub(crate) has_gateway: bool,
    /// What browsers may do here.
    pub(crate) browsers: BrowserOptions,
    /// Where files of snapshots may lie until they are sent.
    pub(crate) snapshot_room: SnapshotRoom,
}

/// What browsers may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BrowserOptions {
    /// Whether the console is served.
    pub(crate) has_console: bool,
    /// The port is served under TLS: a browser knows by its certificate whom it asks.
    pub(crate) is_secure: bool,
    /// The names of hosts by which this node is known to be called.
    pub(crate) hosts: Vec<String>,
}

impl EtcdOptions {
    /// The version of the cluster and of the storage, as etcd names it: the same without patches.
    pub(super) fn storage_version(&self) -> String {
        without_patch(&self.emulated_version)
    }
}

fn without_patch(version: &str) -> String {
    let end = version.rfind('.').unwrap_or(version.len());
    format!("{}.0", &version[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_cut_where_etcd_cuts_them() {
        assert_eq!(without_patch("3.6.14"), "3.6.0");
    }
}
