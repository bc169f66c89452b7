//! The names and addresses of members, from the configuration and from the members themselves.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{Member, MemberInfo, Membership};
use crate::sync::RwLock;
use crate::types::{BootstrapId, NodeId};

/// The members a node knows.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    known: RwLock<Addresses>,
}

#[derive(Debug, Default)]
struct Addresses {
    members: BTreeMap<NodeId, MemberInfo>,
    /// Those of them that vote.
    voters: BTreeSet<NodeId>,
    /// What members reported themselves: newer than the configuration.
    reported: BTreeMap<NodeId, ReportedAddresses>,
    /// Where etcd's clients reach nodes, as URLs, as these reported it; empty if they do not.
    etcd_urls: BTreeMap<NodeId, String>,
    /// Initial members that the bootstrap of the cluster waits for, by name.
    bootstrap_awaits: Vec<String>,
    /// Members that come from another bootstrap of this cluster, by name.
    other_bootstraps: BTreeMap<String, BootstrapId>,
}

#[derive(Clone, Debug, Default)]
struct ReportedAddresses {
    peer_address: String,
    client_address: String,
}

impl Directory {
    /// The members are these from here on.
    pub(crate) fn set_members(&self, members: &[Member]) {
        let mut known = self.known.write();
        known.members = members
            .iter()
            .map(|member| (member.info.id, member.info.clone()))
            .collect();
        let voters = members
            .iter()
            .filter(|it| it.membership == Membership::Voter);
        known.voters = voters.map(|it| it.info.id).collect();
    }

    /// A node reported its addresses. They are kept even if it is no member, since it may become one;
    /// its certificate is that of a node.
    pub(crate) fn learn(&self, id: NodeId, peer_address: &str, client_address: &str) {
        let mut known = self.known.write();
        let reported = known.reported.entry(id).or_default();
        for (place, address) in [
            (&mut reported.peer_address, peer_address),
            (&mut reported.client_address, client_address),
        ] {
            if !address.is_empty() {
                address.clone_into(place);
            }
        }
    }

    /// A node reported where etcd's clients reach it; empty if they do not.
    pub(crate) fn learn_etcd(&self, id: NodeId, url: &str) {
        let mut known = self.known.write();
        known.etcd_urls.insert(id, url.to_owned());
    }

    /// Where etcd's clients reach a node, as far as it has reported that since this one started; empty if they do
    /// not.
    pub(crate) fn etcd_url(&self, id: NodeId) -> Option<String> {
        self.known.read().etcd_urls.get(&id).cloned()
    }

    /// The bootstrap of the cluster waits for these.
    pub(crate) fn set_bootstrap_awaits(&self, ids: &BTreeSet<NodeId>) {
        let mut known = self.known.write();
        let name = |id: &NodeId| match known.members.get(id) {
            Some(member) if !member.name.is_empty() => member.name.clone(),
            _ => id.to_string(),
        };
        known.bootstrap_awaits = ids.iter().map(name).collect();
    }

    /// The warning about initial members that the bootstrap of the cluster waits for.
    pub(crate) fn bootstrap_warning(&self) -> Option<String> {
        let known = self.known.read();
        if known.bootstrap_awaits.is_empty() {
            return None;
        }
        Some(format!(
            "the cluster is not bootstrapped yet: that needs every member in cluster.initial, and the vote of {} is \
             missing (it is down, cannot be reached, holds data of this cluster already, or was restored from another backup or with another --bump-revision): start it, or, if no \
             member holds data, remove it from cluster.initial on the others and empty their data directories",
            known.bootstrap_awaits.join(", ")
        ))
    }

    /// The member `name` comes from this other bootstrap of the cluster; or from none.
    pub(crate) fn note_bootstrap(&self, name: &str, other: Option<BootstrapId>) {
        let mut known = self.known.write();
        match other {
            Some(other) => known.other_bootstraps.insert(name.to_owned(), other),
            None => known.other_bootstraps.remove(name),
        };
    }

    /// The warning about members that come from another bootstrap of the cluster.
    pub(crate) fn other_bootstrap_warning(&self) -> Option<String> {
        let known = self.known.read();
        if known.other_bootstraps.is_empty() {
            return None;
        }
        let others = known.other_bootstraps.iter();
        let others: Vec<String> = others
            .map(|(name, bootstrap)| format!("{name} ({bootstrap})"))
            .collect();
        Some(format!(
            "the cluster was bootstrapped more than once, and this node and {} come from different bootstraps: \
             they refuse each other, and neither changes the data of the other. Decide whose data to keep; then \
             move the data directories of the other members aside, set cluster.state = \"existing\" there, and \
             start them: they copy everything",
            others.join(", ")
        ))
    }

    /// What is known of one member.
    pub(crate) fn member(&self, id: NodeId) -> Option<MemberInfo> {
        let known = self.known.read();
        known.members.get(&id).map(|member| known.complete(member))
    }

    /// Every member, by name.
    pub(crate) fn members(&self) -> Vec<MemberInfo> {
        let known = self.known.read();
        let members = known.members.values();
        let mut all: Vec<MemberInfo> = members.map(|member| known.complete(member)).collect();
        all.sort_by(|a, b| (&a.name, a.id.0).cmp(&(&b.name, b.id.0)));
        all
    }

    /// Every member that votes, by name.
    pub(crate) fn voters(&self) -> Vec<MemberInfo> {
        let mut voters = self.members();
        let known = self.known.read();
        voters.retain(|member| known.voters.contains(&member.id));
        voters
    }

    /// Fills in what is known here and not in the list.
    pub(crate) fn complete(&self, members: &mut [Member]) {
        let known = self.known.read();
        for member in members {
            let info = known.members.get(&member.info.id);
            if member.info.name.is_empty()
                && let Some(info) = info
            {
                member.info.name.clone_from(&info.name);
            }
            if member.info.peer_address.is_empty()
                && let Some(info) = info
            {
                member.info.peer_address.clone_from(&info.peer_address);
            }
            member.info = known.complete(&member.info);
        }
    }
}

impl Addresses {
    fn complete(&self, member: &MemberInfo) -> MemberInfo {
        let mut member = member.clone();
        if let Some(reported) = self.reported.get(&member.id) {
            for (place, address) in [
                (&mut member.peer_address, &reported.peer_address),
                (&mut member.client_address, &reported.client_address),
            ] {
                if !address.is_empty() {
                    place.clone_from(address);
                }
            }
        }
        member
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_members_are_learned_and_other_nodes_are_not_shown() {
        let directory = Directory::default();
        let member = |id: u64, client: &str| Member {
            info: MemberInfo {
                id: NodeId(id),
                name: format!("n{id}"),
                peer_address: format!("p{id}:1"),
                client_address: client.to_owned(),
            },
            ..Member::default()
        };
        directory.set_members(&[member(1, "")]);
        directory.learn(NodeId(1), "", "127.0.0.1:7400");
        directory.learn(NodeId(1), "", "");
        directory.learn(NodeId(2), "", "127.0.0.1:9");
        directory.learn_etcd(NodeId(1), "http://127.0.0.1:2379");
        let url = directory.etcd_url(NodeId(1));
        assert_eq!(url.as_deref(), Some("http://127.0.0.1:2379"));
        directory.learn_etcd(NodeId(1), "");
        assert_eq!(directory.etcd_url(NodeId(1)).as_deref(), Some(""));
        assert_eq!(directory.etcd_url(NodeId(2)), None);
        let first = directory.member(NodeId(1)).unwrap();
        assert_eq!(first.client_address, "127.0.0.1:7400");
        assert_eq!(first.peer_address, "p1:1");
        assert_eq!(directory.member(NodeId(2)), None);
        // Its own report is newer than the configuration.
        directory.set_members(&[member(1, "old:1"), member(2, "")]);
        let clients = directory.members().into_iter();
        let clients: Vec<String> = clients.map(|member| member.client_address).collect();
        assert_eq!(clients, ["127.0.0.1:7400", "127.0.0.1:9"]);
        let learner = Member {
            membership: Membership::Learner,
            ..member(2, "")
        };
        directory.set_members(&[member(1, ""), learner]);
        let voters: Vec<NodeId> = directory.voters().iter().map(|it| it.id).collect();
        assert_eq!(voters, [NodeId(1)]);
    }
}
