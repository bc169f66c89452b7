//! The members of a cluster: how they are listed and changed, and what a cluster remembers of each.

use std::net::SocketAddrV6;

use serde::{Deserialize, Serialize};

use super::{Error, ErrorKind};
use crate::types::{ClusterId, Incarnation, NodeId, is_name};

/// The longest address, as `host:port`: a DNS name has at most 253 characters.
const ADDRESS_BYTES_MAX: usize = 253 + 1 + 5;

/// What a node knows of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Its id.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Its peer address, as `host:port`.
    pub peer_address: String,
    /// Its client address, as `host:port`; empty while unknown.
    pub client_address: String,
}

/// The identity and members of a new cluster: the first entry of its first leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterInfo {
    /// The cluster's identity.
    pub cluster_id: ClusterId,
    /// Its first members.
    pub members: Vec<MemberInfo>,
}

/// What a cluster remembers of a member, beside its id in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberDetails {
    /// Its name, as in its certificate.
    pub name: String,
    /// The incarnation of its data: the member id is derived from this and the name.
    pub incarnation: Incarnation,
    /// Its peer address, as `host:port`.
    pub peer_address: String,
    /// Its client address, as `host:port`; empty if only the member itself knows it.
    pub client_address: String,
}

impl MemberDetails {
    /// The bytes that a configuration keeps.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("writing into memory does not fail")
    }

    /// What [`Self::encode`] wrote; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match postcard::take_from_bytes(bytes) {
            Ok((details, [])) => Some(details),
            _ => None,
        }
    }
}

/// A new member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberAddRequest {
    /// Its name, as in its certificate.
    pub name: String,
    /// Its peer address, as `host:port`.
    pub peer_address: String,
    /// Its client address, as `host:port`; empty to let the member announce it.
    pub client_address: String,
    /// Keep it a learner until it is promoted by hand. Otherwise it is promoted automatically once
    /// it has caught up.
    pub learner: bool,
    /// The voter that it replaces in the step that promotes it. May be an earlier incarnation of
    /// the same node, whose data was lost.
    pub replaces: Option<NodeId>,
}

/// New addresses of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberUpdateRequest {
    /// Which.
    pub id: NodeId,
    /// Where peers reach it, as `host:port`; `None` leaves it as it is.
    pub peer_address: Option<String>,
    /// Where clients reach it, as `host:port`; `None` leaves it as it is.
    pub client_address: Option<String>,
}

/// The role of a member in the current configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Membership {
    /// It votes.
    #[default]
    Voter,
    /// It replicates the log and does not vote.
    Learner,
    /// A learner that is promoted automatically once it has caught up.
    Joining {
        /// The voter that it replaces in the same step.
        replaces: Option<NodeId>,
    },
    /// It votes until the membership change in progress is complete.
    Leaving,
}

impl Membership {
    /// Whether it votes now.
    pub fn votes(self) -> bool {
        matches!(self, Self::Voter | Self::Leaving)
    }
}

/// A member, as the configuration has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Who and where it is.
    pub info: MemberInfo,
    /// Which life of its data it is.
    pub incarnation: Incarnation,
    /// What it is.
    pub membership: Membership,
}

/// The members of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersResponse {
    /// All of them, by name.
    pub members: Vec<Member>,
    /// The member that a change was about.
    pub changed: Option<NodeId>,
    /// No membership change is in progress: none waits to be committed, and no member is about to
    /// join.
    pub settled: bool,
}

pub(super) fn validate_add(add: &MemberAddRequest) -> Result<(), Error> {
    if !is_name(&add.name) {
        return Err(invalid(format!(
            "{:?} is not a valid node name: use 1 to 64 of a-z A-Z 0-9 . _ -, starting with a \
             letter or digit",
            add.name
        )));
    }
    if add.learner && add.replaces.is_some() {
        return Err(invalid(
            "a node that replaces a voter becomes a voter: leave out either the learner flag or \
             the member to replace",
        ));
    }
    validate_address(&add.peer_address)?;
    match add.client_address.is_empty() {
        true => Ok(()),
        false => validate_address(&add.client_address),
    }
}

pub(super) fn validate_update(update: &MemberUpdateRequest) -> Result<(), Error> {
    let given = [&update.peer_address, &update.client_address];
    if given.iter().all(|address| address.is_none()) {
        return Err(invalid(
            "no change was requested: give a new peer address, a new client address, or both",
        ));
    }
    given
        .into_iter()
        .flatten()
        .try_for_each(|address| validate_address(address))
}

fn validate_address(address: &str) -> Result<(), Error> {
    let is_sound = address.len() <= ADDRESS_BYTES_MAX
        && !address.contains(|c: char| c.is_whitespace() || matches!(c, '/' | ',' | '@' | '='))
        && address.rsplit_once(':').is_some_and(|(host, port)| {
            let is_host = match host.contains(['[', ']']) {
                true => address.parse::<SocketAddrV6>().is_ok(),
                false => !host.is_empty(),
            };
            is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
    match is_sound {
        true => Ok(()),
        false => Err(invalid(format!(
            "{address:?} is not an address: write host:port, such as 10.0.0.4:7401"
        ))),
    }
}

fn invalid(detail: impl Into<String>) -> Error {
    Error::not_applied(ErrorKind::InvalidArgument, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add() -> MemberAddRequest {
        MemberAddRequest {
            name: "n4".into(),
            peer_address: "10.0.0.4:7401".into(),
            ..MemberAddRequest::default()
        }
    }

    #[test]
    fn what_is_remembered_of_a_member_reads_back_and_nothing_else_does() {
        let details = MemberDetails {
            name: "n4".into(),
            incarnation: Incarnation(57),
            peer_address: "10.0.0.4:7401".into(),
            client_address: String::new(),
        };
        let bytes = details.encode();
        assert_eq!(MemberDetails::decode(&bytes), Some(details));
        assert_eq!(MemberDetails::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(MemberDetails::decode(&[&bytes[..], b"x"].concat()), None);
        assert_eq!(MemberDetails::decode(b""), None);
    }

    #[test]
    fn a_member_has_a_name_and_an_address() {
        assert_eq!(validate_add(&add()), Ok(()));
        let wrong = |change: fn(&mut MemberAddRequest)| {
            let mut add = add();
            change(&mut add);
            validate_add(&add).unwrap_err().kind
        };
        for kind in [
            wrong(|add| add.name = "n 4".into()),
            wrong(|add| add.peer_address = "10.0.0.4".into()),
            wrong(|add| add.peer_address = "10.0.0.4:0".into()),
            wrong(|add| add.peer_address = ":7401".into()),
            wrong(|add| add.peer_address = "[::1:7401".into()),
            wrong(|add| add.peer_address = "[::1]x:7401".into()),
            wrong(|add| add.peer_address = "[n4]:7401".into()),
            wrong(|add| add.client_address = "http://10.0.0.4:7400".into()),
            wrong(|add| add.peer_address = format!("{}:1", "a".repeat(300))),
            wrong(|add| {
                add.learner = true;
                add.replaces = Some(NodeId(1));
            }),
        ] {
            assert_eq!(kind, ErrorKind::InvalidArgument);
        }
        let update = MemberUpdateRequest {
            id: NodeId(1),
            ..MemberUpdateRequest::default()
        };
        assert!(validate_update(&update).is_err());
    }
}
