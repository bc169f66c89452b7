//! What an installed snapshot means for the requests that wait.

use super::{InstalledSnapshot, Node};
use crate::raft;
use crate::time::Instant;

impl Node {
    /// The replies of the skipped entries are unknown, but no write waits for them: only followers
    /// receive a snapshot, and pending writes were answered with an unknown outcome when leadership
    /// ended (A18). Lease deadlines restart with the next leadership, and reads that wait for an index
    /// or a revision are released as usual.
    pub(super) fn handle_installed(&mut self, now: Instant, installed: InstalledSnapshot) {
        let InstalledSnapshot {
            id,
            revision,
            bootstrap,
            leases,
            cluster_version,
        } = installed;
        self.bootstrap = self.bootstrap.or(bootstrap);
        self.upgrade.reached(cluster_version);
        self.revision = self.revision.max(revision);
        self.applied = self.applied.max(id.index);
        self.leases.reset(leases, &self.options.timing);
        self.consensus.handle(now, raft::Input::Applied(id.index));
    }
}
