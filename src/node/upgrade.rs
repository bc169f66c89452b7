//! The version of the cluster, and how it rises while nodes of two releases run beside each other.
//!
//! A release knows a range of versions, and every node tells the others which. What is new in a version
//! may be in the log only once the cluster is of that version, and it becomes so by an entry
//! ([`Command::RaiseVersion`]). A leader proposes that when every member, voter or not, is connected
//! and has said that it knows the version: a member that is away may come back as whatever it was. From
//! the moment that the entry is committed every replica applies it before anything that rests on it.
//!
//! There is no way down: what is in a log stays there for as long as the log and the states made of it.
//! A node whose release does not know the version of its cluster says so and serves nothing: at its
//! start by its state and its log, on its way in by the others, and else when it is to apply that entry.

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

    /// What the cluster is, by all that is committed as far as this node knows.
    pub fn cluster_version(&self) -> u16 {
        self.upgrade.cluster
    }

    /// Whether every member can read this command. Whatever proposes one that is newer than the first
    /// version asks before.
    pub(super) fn may_log(&self, command: &Command) -> bool {
        command.since() <= self.upgrade.cluster
    }

    /// Why a command may not be in the log yet.
    pub(super) fn too_new(&self, command: &Command) -> String {
        format!(
            "the cluster has version {}, and this requires version {}: it is raised once every \
             member runs a release that supports it",
            self.upgrade.cluster,
            command.since()
        )
    }

    /// As leader, proposes the version that all members know, if it is a newer one.
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
        // A refusal is no loss: the next input tries again.
        if self.consensus.propose(now, command.encode()).is_ok() {
            self.upgrade.proposed = Some(wish);
        }
    }
}
