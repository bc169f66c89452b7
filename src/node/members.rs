//! Membership changes requested by clients.
//!
//! Consensus knows members by id and decides what is safe ([`Consensus::change`]). Here ids get names:
//! the configuration keeps for each member what [`MemberDetails`] holds, a name is a member's once at
//! most (but for a node whose data is lost, while its next life takes the place of the one before),
//! and no id is ever used twice: that of a new member is derived from the place in the log of the entry
//! that adds it.
//!
//! A change is answered when it is complete: the current configuration is at or after its entry,
//! committed, and not joint.
//!
//! [`Consensus::change`]: crate::raft::Consensus::change

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{Node, Output};
use crate::api::{
    Call, Error, ErrorKind, Member, MemberAddRequest, MemberDetails, MemberInfo,
    MemberUpdateRequest, MembersResponse, Membership, Request, Response, ResponseBody,
};
use crate::raft::{Change, Configuration, JoinRole, MembershipError, ReadPermit};
use crate::time::Instant;
use crate::types::{Incarnation, NodeId, RequestId};

impl Node {
    /// Reads the member list, like any other read, so that it includes every change completed
    /// before.
    pub(super) fn list_members(&mut self, now: Instant, id: RequestId, call: &Call) {
        self.members.lists.insert(id);
        self.start_read(now, id, call);
    }

    /// Answers a read of the list, if `id` is one.
    pub(super) fn answer_member_list(&mut self, id: RequestId, permit: Option<ReadPermit>) -> bool {
        let is_one = self.members.lists.remove(&id);
        if is_one {
            self.answer_members(id, None, permit);
        }
        is_one
    }

    pub(super) fn start_change(
        &mut self,
        now: Instant,
        id: RequestId,
        request: &Request,
        deadline: Instant,
    ) {
        if self.consensus.leads_in().is_none() {
            return self.refuse_not_leader(id);
        }
        let (about, change) = match self.change_for(request) {
            Ok(change) => change,
            Err(error) => return self.outputs.push_back(Output::Reply(id, Err(error))),
        };
        match self.consensus.change(now, &change) {
            Ok(entry) => {
                self.members.changes.insert(id, (entry.index, about));
                self.pending.add_change(id, deadline);
            }
            Err(refused) => self.refuse_because(id, refused),
        }
    }

    /// Translates `request` into a change for consensus, and returns the member it is about.
    fn change_for(&self, request: &Request) -> Result<(NodeId, Change), Error> {
        Ok(match request {
            Request::MemberAdd(add) => {
                let details = self.new_member(add)?;
                let cluster = self.options.cluster_id;
                let member = NodeId::derive(cluster, &details.name, details.incarnation);
                let role = match add.replaces {
                    Some(voter) => JoinRole::InPlaceOf(voter),
                    None if add.learner => JoinRole::Learner,
                    None => JoinRole::Voter,
                };
                let details = Bytes::from(details.encode());
                let change = Change::Add {
                    member,
                    details,
                    role,
                };
                (member, change)
            }
            Request::MemberUpdate(update) => {
                let details = Bytes::from(self.updated(update)?.encode());
                let member = update.id;
                (member, Change::Update { member, details })
            }
            Request::MemberPromote { id } => (*id, Change::Promote(*id)),
            Request::MemberRemove { id } => (*id, Change::Remove(*id)),
            _ => unreachable!("these are the changes of members"),
        })
    }

    fn new_member(&self, add: &MemberAddRequest) -> Result<MemberDetails, Error> {
        let members = known(self.consensus.configuration());
        let replaced = add.replaces.and_then(|id| members.get(&id));
        let exists = |detail| Err(Error::not_applied(ErrorKind::MemberExists, detail));
        for (id, member) in &members {
            if add.replaces == Some(*id) {
                continue;
            }
            if member.name == add.name {
                return exists(format!(
                    "{} is already a member ({id}): give the new one another name, or replace it",
                    add.name
                ));
            }
            if member.peer_address == add.peer_address {
                return exists(format!(
                    "{} already has the address {} ({id}): members cannot share an address",
                    member.name, add.peer_address
                ));
            }
        }
        if let Some(id) = add.replaces
            && replaced.is_some_and(|member| member.name == add.name)
        {
            self.check_rebuild(id, &add.name)?;
        }
        // Committed indexes are never reused, so no two lives have the same incarnation. One that
        // two leaders gave out, of whom one was overruled, is the same node with the same memory.
        let index = self.consensus.status().last.index.next();
        Ok(MemberDetails {
            name: add.name.clone(),
            incarnation: Incarnation(index.0),
            peer_address: add.peer_address.clone(),
            client_address: add.client_address.clone(),
        })
    }

    /// A member that takes its own place is heard in its new life only, from this moment on: so the
    /// others must be able to decide without it.
    fn check_rebuild(&self, id: NodeId, name: &str) -> Result<(), Error> {
        let unsafe_now = |detail| Error::not_applied(ErrorKind::UnsafeReconfiguration, detail);
        if id == self.options.id {
            return Err(unsafe_now(format!(
                "{name} is the leader: transfer leadership to another member first (leasehold \
                 move-leader)"
            )));
        }
        if !self.consensus.has_quorum_without(id) {
            return Err(unsafe_now(format!(
                "without {name} too few voters would answer to form a quorum: bring one of the \
                 others back first"
            )));
        }
        Ok(())
    }

    fn updated(&self, update: &MemberUpdateRequest) -> Result<MemberDetails, Error> {
        let configuration = self.consensus.configuration();
        let members = known(configuration);
        if !configuration.is_member(update.id) {
            return Err(no_member());
        }
        let Some(details) = members.get(&update.id) else {
            return Err(Error::not_applied(
                ErrorKind::MemberNotFound,
                format!(
                    "the name of {} is not known: remove it, and add it again",
                    update.id
                ),
            ));
        };
        let MemberUpdateRequest {
            peer_address,
            client_address,
            ..
        } = update.clone();
        if let Some(address) = &peer_address {
            let other = members.iter().find(|(id, _)| **id != update.id);
            let other = other.filter(|(_, member)| member.peer_address == *address);
            if let Some((id, member)) = other {
                return Err(Error::not_applied(
                    ErrorKind::MemberExists,
                    format!("{} already has the address {address} ({id})", member.name),
                ));
            }
        }
        Ok(MemberDetails {
            peer_address: peer_address.unwrap_or_else(|| details.peer_address.clone()),
            client_address: client_address.unwrap_or_else(|| details.client_address.clone()),
            ..details.clone()
        })
    }

    /// Answers the changes that are complete.
    pub(super) fn answer_changes(&mut self) {
        if self.members.changes.is_empty() || self.consensus.leads_in().is_none() {
            return;
        }
        let configuration = self.consensus.configuration();
        if configuration.is_joint() || !self.consensus.is_configuration_committed() {
            return;
        }
        let reached = self.consensus.configuration_index();
        let changes = self.members.changes.iter();
        let complete = changes.filter(|(_, (index, _))| *index <= reached);
        let complete: Vec<_> = complete.map(|(id, (_, about))| (*id, *about)).collect();
        for (id, about) in complete {
            self.members.changes.remove(&id);
            self.pending.take_change(id);
            self.answer_members(id, Some(about), None);
        }
    }

    /// The next leader may complete them, or not.
    pub(super) fn give_up_on_changes(&mut self) {
        for (id, _) in std::mem::take(&mut self.members.changes) {
            self.pending.take_change(id);
            let error = Error::unknown(
                ErrorKind::LeaderChanged,
                "this node lost leadership before the membership change was complete: check the \
                 member list for its outcome",
            );
            self.outputs.push_back(Output::Reply(id, Err(error)));
        }
    }

    fn answer_members(
        &mut self,
        id: RequestId,
        changed: Option<NodeId>,
        permit: Option<ReadPermit>,
    ) {
        let configuration = self.consensus.configuration();
        let response = MembersResponse {
            members: members_of(configuration),
            changed,
            settled: self.consensus.is_configuration_committed()
                && !configuration.is_joint()
                && configuration.joining.is_empty(),
        };
        let response = Response {
            header: self.header_under(permit),
            body: ResponseBody::Members(Box::new(response)),
        };
        self.outputs.push_back(Output::Reply(id, Ok(response)));
    }

    pub(super) fn refuse_membership_change(&mut self, id: RequestId, error: MembershipError) {
        self.outputs
            .push_back(Output::Reply(id, Err(refusal(error))));
    }
}

/// The stored details of the members, as far as they can be decoded.
pub fn known(configuration: &Configuration) -> BTreeMap<NodeId, MemberDetails> {
    let details = configuration.details.iter();
    details
        .filter_map(|(id, bytes)| Some((*id, MemberDetails::decode(bytes)?)))
        .collect()
}

/// The members of a configuration, by name.
pub fn members_of(configuration: &Configuration) -> Vec<Member> {
    let mut known = known(configuration);
    let member = |id: NodeId| {
        let details = known.remove(&id).unwrap_or_default();
        let membership = match configuration.joining.get(&id) {
            Some(replaces) => Membership::Joining {
                replaces: *replaces,
            },
            None if configuration.voters.contains(&id) => Membership::Voter,
            None if configuration.learners.contains(&id) => Membership::Learner,
            None => Membership::Leaving,
        };
        Member {
            info: MemberInfo {
                id,
                name: details.name,
                peer_address: details.peer_address,
                client_address: details.client_address,
            },
            incarnation: details.incarnation,
            membership,
        }
    };
    let mut members: Vec<Member> = configuration.members().into_iter().map(member).collect();
    members.sort_by(|a, b| (&a.info.name, a.info.id.0).cmp(&(&b.info.name, b.info.id.0)));
    members
}

fn no_member() -> Error {
    refusal(MembershipError::NoMember)
}

/// Explains why a membership change is refused, and what to do.
fn refusal(error: MembershipError) -> Error {
    let (kind, detail) = match error {
        MembershipError::InProgress => (
            ErrorKind::UnsafeReconfiguration,
            "another membership change is in progress, and two at once would not be safe: retry \
             once `leasehold member list` shows that it is complete"
                .to_owned(),
        ),
        MembershipError::NotSettled => (
            ErrorKind::SlowDown { retry_after_ms: 50 },
            "this leader was just elected and does not know yet whether a membership change is in \
             progress: retry shortly"
                .to_owned(),
        ),
        MembershipError::Member => (ErrorKind::MemberExists, "it is already a member".to_owned()),
        MembershipError::NoMember => (
            ErrorKind::MemberNotFound,
            "there is no such member: see `leasehold member list`".to_owned(),
        ),
        MembershipError::NoVoter => (
            ErrorKind::UnsafeReconfiguration,
            "the member to replace is not a voter: remove it, and add the other node".to_owned(),
        ),
        MembershipError::NoLearner => (
            ErrorKind::InvalidArgument,
            "it is already a voter: only a learner can be promoted".to_owned(),
        ),
        MembershipError::LastVoter => (
            ErrorKind::UnsafeReconfiguration,
            "it is the last voter: without it no quorum would exist".to_owned(),
        ),
        MembershipError::Behind(lag) => (
            ErrorKind::LearnerNotReady,
            match lag {
                Some(lag) => format!(
                    "the learner still lags by {lag} entries and would slow the cluster down as a \
                     voter: retry once it has caught up"
                ),
                None => "the learner has not connected yet, or is still receiving its data: start \
                         it, and retry once it has caught up"
                    .to_owned(),
            },
        ),
        MembershipError::Unreachable { reachable, needed } => (
            ErrorKind::UnsafeReconfiguration,
            format!(
                "only {reachable} of the future voters answer and {needed} are needed for a \
                 quorum: first bring a member back, or remove a dead one"
            ),
        ),
        MembershipError::TooMany => (
            ErrorKind::UnsafeReconfiguration,
            "the cluster has the maximum number of members: remove one first".to_owned(),
        ),
        MembershipError::TooLarge => (
            ErrorKind::InvalidArgument,
            "name and addresses are too long: use shorter ones".to_owned(),
        ),
    };
    Error::not_applied(kind, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(name: &str) -> Bytes {
        let details = MemberDetails {
            name: name.to_owned(),
            incarnation: Incarnation(5),
            peer_address: format!("{name}:7401"),
            client_address: format!("{name}:7400"),
        };
        Bytes::from(details.encode())
    }

    #[test]
    fn each_member_is_what_the_configuration_makes_of_it_and_the_list_is_in_order() {
        let configuration = Configuration {
            voters: [1, 2].map(NodeId).into(),
            outgoing: Some([1, 3].map(NodeId).into()),
            learners: [4, 5, 6].map(NodeId).into(),
            joining: BTreeMap::from([(NodeId(5), None), (NodeId(6), Some(NodeId(2)))]),
            details: BTreeMap::from([
                (NodeId(1), details("d")),
                (NodeId(2), details("c")),
                (NodeId(3), details("b")),
                (NodeId(4), details("a")),
                (NodeId(6), details("c")),
                // Of a later release, say.
                (NodeId(5), Bytes::from_static(b"\xff\xff")),
            ]),
        };
        assert_eq!(
            known(&configuration).len(),
            5,
            "what cannot be read is not known"
        );
        let members = members_of(&configuration);
        let shown: Vec<_> = members
            .iter()
            .map(|member| {
                (
                    member.info.name.as_str(),
                    member.info.id.0,
                    member.membership,
                )
            })
            .collect();
        let joining = |replaces| Membership::Joining { replaces };
        assert_eq!(
            shown,
            [
                ("", 5, joining(None)),
                ("a", 4, Membership::Learner),
                ("b", 3, Membership::Leaving),
                ("c", 2, Membership::Voter),
                ("c", 6, joining(Some(NodeId(2)))),
                ("d", 1, Membership::Voter),
            ]
        );
        assert_eq!(members[1].info.peer_address, "a:7401");
        assert_eq!(members[1].info.client_address, "a:7400");
        assert_eq!(members[1].incarnation, Incarnation(5));
    }

    #[test]
    fn every_refusal_took_no_effect_and_says_what_to_do() {
        let unreachable = MembershipError::Unreachable {
            reachable: 1,
            needed: 2,
        };
        let unsafe_now = ErrorKind::UnsafeReconfiguration;
        let cases = [
            (
                MembershipError::InProgress,
                unsafe_now.clone(),
                "retry once",
            ),
            (
                MembershipError::NotSettled,
                ErrorKind::SlowDown { retry_after_ms: 50 },
                "retry shortly",
            ),
            (
                MembershipError::Member,
                ErrorKind::MemberExists,
                "already a member",
            ),
            (
                MembershipError::NoMember,
                ErrorKind::MemberNotFound,
                "see `leasehold member list`",
            ),
            (
                MembershipError::NoVoter,
                unsafe_now.clone(),
                "remove it, and add the other node",
            ),
            (
                MembershipError::NoLearner,
                ErrorKind::InvalidArgument,
                "only a learner",
            ),
            (
                MembershipError::LastVoter,
                unsafe_now.clone(),
                "the last voter",
            ),
            (
                MembershipError::Behind(Some(12)),
                ErrorKind::LearnerNotReady,
                "still lags by 12 entries",
            ),
            (
                MembershipError::Behind(None),
                ErrorKind::LearnerNotReady,
                "start it",
            ),
            (
                unreachable,
                unsafe_now.clone(),
                "only 1 of the future voters answer and 2 are needed for a quorum",
            ),
            (MembershipError::TooMany, unsafe_now, "remove one first"),
            (
                MembershipError::TooLarge,
                ErrorKind::InvalidArgument,
                "use shorter ones",
            ),
        ];
        for (error, kind, advice) in cases {
            let error = refusal(error);
            assert_eq!(error.kind, kind, "{error:?}");
            assert_eq!(error.outcome, crate::api::Outcome::NotApplied, "{error:?}");
            assert!(error.detail.contains(advice), "{error:?}: {}", error.detail);
        }
    }
}
