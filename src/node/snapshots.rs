//! What an installed snapshot means for the requests that wait.

use super::{InstalledSnapshot, Node};
use crate::raft;
use crate::time::Instant;

impl Node {
    /// Nothing is known of the entries in between but what they came to. Writes do not wait for any
    /// of them: a node that is sent a state does not lead, and whoever waited was answered as
    /// unknown when it ceased to (A18). Deadlines of leases begin anew with the next leadership, and
    /// reads that wait for an index or a revision are let go by the usual rule.
    pub(super) fn handle_installed(&mut self, now: Instant, installed: InstalledSnapshot) {
        let InstalledSnapshot {
            id,
            revision,
            bootstrapped,
            leases,
            cluster_version,
        } = installed;
        self.bootstrapped |= bootstrapped;
        self.upgrade.reached(cluster_version);
        self.revision = self.revision.max(revision);
        self.applied = self.applied.max(id.index);
        self.leases.reset(leases, &self.options.timing);
        self.consensus.handle(now, raft::Input::Applied(id.index));
    }
}
