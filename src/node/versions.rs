//! The versions that the cluster and its members have.

use std::collections::BTreeMap;

use crate::kv::{FIRST_VERSION, KNOWN_VERSIONS, raises_version};
use crate::raft::{Entry, Payload};
use crate::types::{NodeId, Term, VersionRange};

/// What a node knows about versions.
#[derive(Debug)]
pub(super) struct Upgrade {
    /// What this node knows.
    pub(super) own: VersionRange,
    /// What the cluster is, by all that is committed.
    pub(super) cluster: u16,
    /// What the members that are connected know.
    pub(super) told: BTreeMap<NodeId, VersionRange>,
    /// What this node has proposed to be, and as leader of which term.
    pub(super) proposed: Option<(Term, u16)>,
}

impl Default for Upgrade {
    fn default() -> Self {
        Self {
            own: KNOWN_VERSIONS,
            cluster: FIRST_VERSION,
            told: BTreeMap::new(),
            proposed: None,
        }
    }
}

impl Upgrade {
    /// A member is connected, and knows these; or it is not connected any more.
    pub(super) fn heard(&mut self, peer: NodeId, versions: Option<VersionRange>) {
        match versions {
            Some(versions) => self.told.insert(peer, versions),
            None => self.told.remove(&peer),
        };
    }

    /// These entries are committed.
    pub(super) fn committed(&mut self, entries: &[Entry]) {
        for entry in entries {
            if let Payload::Command(bytes) = &entry.payload
                && let Some(version) = raises_version(bytes)
            {
                self.reached(version);
            }
        }
    }

    /// The cluster is of this version at least.
    pub(super) fn reached(&mut self, version: u16) {
        self.cluster = self.cluster.max(version);
    }

    /// The newest version that all of `members` know, this node among them; `None` while one of them
    /// has not said what it knows.
    pub(super) fn common(
        &self,
        own: NodeId,
        members: impl IntoIterator<Item = NodeId>,
    ) -> Option<u16> {
        let others = members.into_iter().filter(|member| *member != own);
        let mut newest = others.map(|member| Some(self.told.get(&member)?.newest));
        newest.try_fold(self.own.newest, |least, newest| Some(least.min(newest?)))
    }
}
