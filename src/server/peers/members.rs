//! What the shell makes of the configuration: names and addresses for ids, and who may speak as a peer.
//!
//! The configuration keeps for each member the details given at its addition or its last update. Of the
//! initial members nothing need be kept there: their names are in the data directory and in the
//! configuration file, and their ids follow from them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::api::{Member, MemberDetails};
use crate::node;
use crate::raft::Configuration;
use crate::server::config::Config;
use crate::server::peers::{CommittedConfiguration, Roster, RosterPeer};
use crate::types::{ClusterId, Incarnation, LogIndex, NodeId};

/// What a node knows of members besides the configuration.
#[derive(Clone, Debug)]
pub(crate) struct MemberNames {
    cluster: ClusterId,
    initial_members: Vec<String>,
    /// Addresses of the configuration file, by name.
    configured: BTreeMap<String, String>,
    /// This node may have lost everything, and with it who the members are.
    unproven: bool,
}

impl MemberNames {
    pub(crate) fn new(
        config: &Config,
        cluster: ClusterId,
        initial_members: Vec<String>,
        unproven: bool,
    ) -> Self {
        let configured = config.cluster.initial.iter();
        let configured = configured.filter_map(|member| {
            let address = member.address.clone()?;
            Some((member.name.clone(), address))
        });
        Self {
            cluster,
            initial_members,
            configured: configured.collect(),
            unproven,
        }
    }

    /// This node has shown that it took part in the bootstrap, or has received everything again.
    pub(crate) fn proven(&mut self) {
        self.unproven = false;
    }

    /// The configuration before every entry: the initial members, or none if this node joined later.
    pub(crate) fn first_configuration(&self) -> Configuration {
        let mut first = Configuration::default();
        for name in &self.initial_members {
            let details = MemberDetails {
                name: name.clone(),
                incarnation: Incarnation(0),
                peer_address: self.configured.get(name).cloned().unwrap_or_default(),
                client_address: String::new(),
            };
            let id = NodeId::derive(self.cluster, name, Incarnation(0));
            first.voters.insert(id);
            first.details.insert(id, Bytes::from(details.encode()));
        }
        first
    }

    /// The members of a configuration, by name, with what else is known of each.
    pub(crate) fn describe(&self, configuration: &Configuration) -> Vec<Member> {
        let mut members = node::members_of(configuration);
        for member in &mut members {
            if member.info.name.is_empty() {
                let name = self.name_of(member.info.id);
                member.info.name = name.unwrap_or_else(|| member.info.id.to_string());
            }
            if member.info.peer_address.is_empty()
                && let Some(address) = self.configured.get(&member.info.name)
            {
                member.info.peer_address.clone_from(address);
            }
        }
        members.sort_by(|a, b| a.info.name.cmp(&b.info.name));
        members
    }

    /// The name of an initial member, if this node knows it.
    fn name_of(&self, id: NodeId) -> Option<String> {
        let names = self.initial_members.iter().chain(self.configured.keys());
        let is_it = |name: &&String| NodeId::derive(self.cluster, name, Incarnation(0)) == id;
        names.into_iter().find(is_it).cloned()
    }

    /// Who may speak as a peer while `configuration` is in force; `before` is the roster up to now.
    pub(crate) fn roster(
        &self,
        index: LogIndex,
        is_committed: bool,
        configuration: &Configuration,
        before: &Roster,
    ) -> Roster {
        let members = self.describe(configuration);
        if members.is_empty() || self.unproven && index == LogIndex(0) {
            // Nothing is known yet but whom to ask: the initial members may have been succeeded by others.
            let addresses = self.configured.clone();
            return Roster {
                is_open: true,
                ..Roster::of_addresses(addresses)
            };
        }
        let mut roster = Roster {
            // The change may be undone: messages of a member that it removes are still accepted.
            peers: match is_committed {
                true => BTreeMap::new(),
                false => before.peers.clone(),
            },
            is_open: !is_committed && before.is_open,
            committed: before.committed.clone(),
        };
        for member in &members {
            let info = &member.info;
            let peer = roster.peers.entry(info.name.clone()).or_default();
            // The newest report comes first; the configuration file is a good guess.
            let configured = self.configured.get(&info.name);
            let addresses = [Some(&info.peer_address), configured];
            let mut addresses: Vec<String> = addresses
                .into_iter()
                .flatten()
                .filter(|address| !address.is_empty())
                .cloned()
                .collect();
            addresses.dedup();
            *peer = RosterPeer {
                incarnations: std::mem::take(&mut peer.incarnations),
                addresses,
            };
            peer.incarnations.insert(member.incarnation);
        }
        if is_committed {
            let mut incarnations: BTreeMap<String, Incarnation> = BTreeMap::new();
            for member in members {
                let newest = incarnations.entry(member.info.name).or_default();
                *newest = (*newest).max(member.incarnation);
            }
            roster.committed = Some(CommittedConfiguration {
                index,
                incarnations,
                initial_members: self.initial_members.clone(),
            });
        }
        roster
    }
}

/// What this node must know of itself to judge what others say of it.
#[derive(Debug)]
pub(crate) struct OwnStanding {
    incarnation: Incarnation,
    /// Where the configuration in force stands in its own log.
    configuration: AtomicU64,
}

impl OwnStanding {
    pub(crate) fn new(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            configuration: AtomicU64::new(0),
        }
    }

    /// The configuration in force stands here now.
    pub(crate) fn reached(&self, index: LogIndex) {
        self.configuration.store(index.0, Ordering::Relaxed);
    }

    /// Judges a peer's report that, by the configuration committed at `index`, this node is a member in
    /// `incarnation`, or is no member. Returns a reason to stop, unless the peer's configuration is older
    /// than this node's.
    ///
    /// An incarnation is the index of the entry that added it, or an earlier one, so an older
    /// configuration cannot contain it.
    pub(crate) fn judge(&self, index: LogIndex, incarnation: Option<Incarnation>) -> Option<&str> {
        let own = self.configuration.load(Ordering::Relaxed);
        if index.0 <= own || index.0 < self.incarnation.0 || incarnation == Some(self.incarnation) {
            return None;
        }
        Some(match incarnation {
            Some(newer) if newer > self.incarnation => REPLACED,
            Some(_) => return None,
            None => REMOVED,
        })
    }
}

/// Why a node stops that was removed.
pub(crate) const REMOVED: &str = "this node was removed from its cluster: to add it again, empty \
                                  its data directory, run `leasehold member add` at a member, and \
                                  start it with cluster.state = \"join\"";

/// Why a node stops in whose place a new life of it was taken in.
pub(crate) const REPLACED: &str = "this node was replaced by a newer incarnation of itself, to \
                                   which its data does not belong: empty its data directory, and \
                                   start it with cluster.state = \"join\"";

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId(7);

    fn names() -> MemberNames {
        MemberNames {
            cluster: CLUSTER,
            initial_members: ["n1", "n2"].map(str::to_owned).into(),
            configured: [("n1", "a:1"), ("n2", "b:1"), ("n9", "z:1")]
                .map(|(name, address)| (name.to_owned(), address.to_owned()))
                .into(),
            unproven: false,
        }
    }

    fn id(name: &str, incarnation: u64) -> NodeId {
        NodeId::derive(CLUSTER, name, Incarnation(incarnation))
    }

    /// `base` and another learner, which takes the place of an earlier life of itself.
    fn with_next_life(base: &Configuration, name: &str, incarnation: u64) -> Configuration {
        let mut next = base.clone();
        let details = MemberDetails {
            name: name.to_owned(),
            incarnation: Incarnation(incarnation),
            peer_address: "new:1".into(),
            client_address: String::new(),
        };
        let id = id(name, incarnation);
        next.learners.insert(id);
        next.details.insert(id, Bytes::from(details.encode()));
        next
    }

    #[test]
    fn initial_members_are_known_by_name_whatever_the_configuration_keeps_of_them() {
        let names = names();
        let mut first = names.first_configuration();
        assert_eq!(first.voters, [id("n1", 0), id("n2", 0)].into());
        let described = names.describe(&first);
        first.details.clear();
        assert_eq!(names.describe(&first), described);
        assert_eq!(described[1].info.peer_address, "b:1");
    }

    #[test]
    fn who_leaves_by_a_change_that_may_be_undone_is_heard_on() {
        let names = names();
        let first = names.first_configuration();
        let at = |index, committed, configuration: &Configuration, before: &Roster| {
            names.roster(LogIndex(index), committed, configuration, before)
        };
        let roster = at(0, true, &first, &Roster::default());
        assert!(roster.peers.contains_key("n2") && !roster.peers.contains_key("n9"));
        let mut alone = first.clone();
        alone.voters.remove(&id("n2", 0));
        alone.details.remove(&id("n2", 0));
        let undecided = at(9, false, &alone, &roster);
        assert!(undecided.peers.contains_key("n2"));
        let told = |roster: &Roster| {
            let committed = roster.committed.clone().unwrap();
            (committed.index, committed.incarnations.contains_key("n2"))
        };
        assert_eq!(told(&undecided), (LogIndex(0), true));
        let decided = at(9, true, &alone, &undecided);
        assert!(!decided.peers.contains_key("n2"));
        assert_eq!(told(&decided), (LogIndex(9), false));
    }

    #[test]
    fn a_node_without_a_configuration_hears_every_node_and_tells_nobody_anything() {
        let nobody = names().roster(
            LogIndex(0),
            true,
            &Configuration::default(),
            &Roster::default(),
        );
        assert!(nobody.is_open && nobody.committed.is_none());
        assert!(nobody.peers.contains_key("n9"), "whom to ask");
        // Nor does an initial member that may have lost everything.
        let mut names = names();
        names.unproven = true;
        let first = names.first_configuration();
        let at = |names: &MemberNames, index| {
            names.roster(LogIndex(index), true, &first, &Roster::default())
        };
        assert!(at(&names, 0).is_open && at(&names, 0).committed.is_none());
        assert!(!at(&names, 5).is_open, "the log knows better");
        names.proven();
        assert!(!at(&names, 0).is_open);
    }

    #[test]
    fn the_newest_life_of_a_member_is_the_one_that_counts() {
        let names = names();
        let first = names.first_configuration();
        let next = with_next_life(&first, "n2", 57);
        let roster = names.roster(LogIndex(57), true, &next, &Roster::default());
        let peer = &roster.peers["n2"];
        assert_eq!(peer.incarnations, [Incarnation(0), Incarnation(57)].into());
        let committed = roster.committed.unwrap();
        assert_eq!(committed.incarnations["n2"], Incarnation(57));
    }

    #[test]
    fn nobody_is_believed_who_knows_less() {
        let own = OwnStanding::new(Incarnation(40));
        let judge = |index, life: Option<u64>| own.judge(LogIndex(index), life.map(Incarnation));
        assert_eq!(judge(39, None), None, "from before it was added");
        assert_eq!(judge(50, Some(40)), None);
        assert_eq!(judge(50, Some(0)), None);
        assert_eq!(judge(50, None), Some(REMOVED));
        assert_eq!(judge(50, Some(45)), Some(REPLACED));
        own.reached(LogIndex(50));
        assert_eq!(judge(50, None), None);
        assert_eq!(judge(51, None), Some(REMOVED));
    }
}
