//! Who is where: the members' names and addresses, as configured and as learned from peers.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::RwLock;

use crate::api::MemberInfo;
use crate::types::NodeId;

/// The members a node knows.
#[derive(Debug)]
pub(crate) struct Directory {
    members: RwLock<BTreeMap<NodeId, MemberInfo>>,
}

impl Directory {
    /// The members as configured; client addresses of others are learned later.
    pub(crate) fn new(members: impl IntoIterator<Item = MemberInfo>) -> Self {
        let members = members
            .into_iter()
            .map(|member| (member.id, member))
            .collect();
        Self {
            members: RwLock::new(members),
        }
    }

    /// A member said where clients reach it. Strangers are not taken in.
    pub(crate) fn learn_client_address(&self, id: NodeId, address: &str) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(member) = members.get_mut(&id)
            && !address.is_empty()
        {
            address.clone_into(&mut member.client_address);
        }
    }

    /// What is known of one member.
    pub(crate) fn member(&self, id: NodeId) -> Option<MemberInfo> {
        self.members
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&id)
            .cloned()
    }

    /// Every member, by name.
    pub(crate) fn members(&self) -> Vec<MemberInfo> {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<MemberInfo> = members.values().cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_members_are_learned_and_strangers_are_not_taken_in() {
        let known = MemberInfo {
            id: NodeId(1),
            name: "n1".into(),
            ..MemberInfo::default()
        };
        let directory = Directory::new([known]);
        directory.learn_client_address(NodeId(1), "127.0.0.1:7400");
        directory.learn_client_address(NodeId(1), "");
        directory.learn_client_address(NodeId(2), "127.0.0.1:9");
        assert_eq!(
            directory.member(NodeId(1)).unwrap().client_address,
            "127.0.0.1:7400"
        );
        assert_eq!(directory.member(NodeId(2)), None);
        assert_eq!(directory.members().len(), 1);
    }
}
