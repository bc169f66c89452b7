//! The cluster version, and how it rises while nodes of two releases run side by side.
//!
//! A release supports a range of versions, and every node reports its range to its peers. What is new
//! in a version may be logged only once the cluster has that version, which an entry sets
//! ([`Command::RaiseVersion`]). A leader proposes it when every member, voter or not, is connected and
//! supports the version: a disconnected member may return with any release. Every replica applies the
//! committed entry before anything that depends on it.
//!
//! The version never falls: what was logged stays in the log and in the states made from it. A node
//! whose release does not support the version of its cluster reports that and serves nothing: at
//! start, from its state and its log; when its peers refuse it; and when it is to apply the entry.
//!
//! There is one version today, so no command needs a higher one. The first that does compares it with
//! [`Node::cluster_version`] before it is proposed.

use super::Node;
use crate::kv::Command;
use crate::time::Instant;
use crate::types::VersionRange;

impl Node {
    /// The same node as a release that knows these versions, in a cluster of this one.
    #[must_use]
    pub fn with_versions(mut self, own: VersionRange, cluster: u16) -> Self {
        self.upgrade.own = own;
        self.upgrade.cluster = cluster;
        self
    }

    /// The cluster version, by the committed entries that this node knows.
    pub fn cluster_version(&self) -> u16 {
        self.upgrade.cluster
    }

    /// As leader, proposes the newest version that all members support, if it is higher.
    pub(super) fn raise_version(&mut self, now: Instant) {
        if self.upgrade.own.newest <= self.upgrade.cluster || self.consensus.leads_in().is_none() {
            return;
        }
        let status = self.consensus.status();
        if !status.ready {
            return;
        }
        let members = self.consensus.configuration().members();
        let Some(version) = self.upgrade.common(self.options.id, members) else {
            return;
        };
        let wish = (status.term, version);
        if version <= self.upgrade.cluster || self.upgrade.proposed == Some(wish) {
            return;
        }
        let command = Command::RaiseVersion { version };
        // A refusal is harmless: the next input tries again.
        if self.consensus.propose(now, command.encode()).is_ok() {
            self.upgrade.proposed = Some(wish);
        }
    }
}
