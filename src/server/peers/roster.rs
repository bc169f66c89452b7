//! Who may speak as a member, and where each is called.
//!
//! A certificate proves the name of a node; the configuration alone says whether it is a member. A node
//! that is not in it is refused, with what is known of it: one that was removed while it was away
//! learns it from that, and one without data learns which incarnation it has.

use std::collections::{BTreeMap, BTreeSet};

use crate::types::{Incarnation, LogIndex};
use crate::wire::peer::MemberStanding;

/// The other members, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// Each of them.
    pub peers: BTreeMap<String, RosterPeer>,
    /// The members are not known: messages of every node of the cluster are accepted.
    pub is_open: bool,
    /// What is known to be committed of the members, this one included; `None` until something is.
    pub committed: Option<CommittedConfiguration>,
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RosterPeer {
    /// The lives of it that are members: two while one takes the place of the other, none where any
    /// will do. Messages of the newest alone are accepted.
    pub incarnations: BTreeSet<Incarnation>,
    /// Where it may be, as `host:port`.
    pub addresses: Vec<String>,
}

/// The newest configuration that is known to be committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommittedConfiguration {
    /// Where it stands in the log.
    pub index: LogIndex,
    /// The newest life of each member.
    pub incarnations: BTreeMap<String, Incarnation>,
    /// The initial members; empty where they are not known.
    pub initial_members: Vec<String>,
}

/// Whether messages of a node are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MembershipCheck {
    Yes,
    NotMember,
    /// An earlier incarnation of a member.
    Outdated,
}

impl Roster {
    /// A roster of names and addresses, whose lives are not known.
    pub fn of_addresses(peers: impl IntoIterator<Item = (String, String)>) -> Self {
        let peer = |address| RosterPeer {
            incarnations: BTreeSet::new(),
            addresses: vec![address],
        };
        Self {
            peers: peers
                .into_iter()
                .map(|(name, address)| (name, peer(address)))
                .collect(),
            ..Self::default()
        }
    }

    /// Whether messages of a node of this name may be accepted at all.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.is_open || self.peers.contains_key(name)
    }

    /// Whether messages of this incarnation of the node `name` are accepted.
    pub(super) fn admits(&self, name: &str, incarnation: Incarnation) -> MembershipCheck {
        let Some(peer) = self.peers.get(name) else {
            return match self.is_open {
                true => MembershipCheck::Yes,
                false => MembershipCheck::NotMember,
            };
        };
        match peer.incarnations.last() {
            None => MembershipCheck::Yes,
            Some(newest) if incarnation == *newest => MembershipCheck::Yes,
            Some(newest) if incarnation < *newest => MembershipCheck::Outdated,
            Some(_) if self.is_open => MembershipCheck::Yes,
            Some(_) => MembershipCheck::NotMember,
        }
    }

    /// The standing of the node `name`; `None` while the members are not known.
    pub(super) fn standing_of(&self, name: &str) -> Option<MemberStanding> {
        let committed = self.committed.as_ref()?;
        Some(MemberStanding::Known {
            index: committed.index,
            incarnation: committed.incarnations.get(name).copied(),
            initial_members: committed.initial_members.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_alone_are_heard_and_only_in_their_newest_life() {
        let lives = |lives: &[u64]| RosterPeer {
            incarnations: lives.iter().copied().map(Incarnation).collect(),
            addresses: Vec::new(),
        };
        let mut roster = Roster {
            peers: [
                ("n1".to_owned(), lives(&[0])),
                ("n2".to_owned(), lives(&[0, 57])),
                ("n3".to_owned(), lives(&[])),
            ]
            .into(),
            ..Roster::default()
        };
        let asked = [
            ("n1", 0),
            ("n1", 9),
            ("n2", 0),
            ("n2", 57),
            ("n3", 5),
            ("n4", 0),
        ];
        let admitted = |roster: &Roster| {
            asked.map(|(name, incarnation)| roster.admits(name, Incarnation(incarnation)))
        };
        use MembershipCheck::{NotMember, Outdated, Yes};
        assert_eq!(
            admitted(&roster),
            [Yes, NotMember, Outdated, Yes, Yes, NotMember]
        );
        assert!(!roster.knows("n4"));
        roster.is_open = true;
        assert_eq!(admitted(&roster), [Yes, Yes, Outdated, Yes, Yes, Yes]);
    }
}
