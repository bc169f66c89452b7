//! The members that follow this node while it leads: how far they are, how soon they answer, and how they
//! stand with their read leases.
//!
//! The driver writes it; the status, the metrics and the warnings of [`super::warnings`] are made of it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::MemberInfo;
use crate::raft::GrantStanding;
use crate::sync::RwLock;
use crate::types::NodeId;

/// One sample in so many is what an average of round trips is made of.
const ROUND_TRIPS: u32 = 16;

/// What the leader knows of a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Follower {
    /// It has not acknowledged so many entries of the log.
    pub(crate) lag: u64,
    /// How it stands with its read lease; `None` if it does not ask for one.
    pub(crate) read_lease: Option<GrantStanding>,
}

/// What is known, for all threads.
#[derive(Debug, Default)]
pub(crate) struct Followers {
    known: RwLock<FollowerTable>,
}

#[derive(Debug, Default)]
struct FollowerTable {
    /// Empty while this node does not lead.
    followers: BTreeMap<NodeId, Follower>,
    /// How long each took to answer heartbeats, on average.
    round_trips: BTreeMap<NodeId, Duration>,
}

impl Followers {
    /// All followers, as they are now.
    pub(crate) fn sampled(&self, followers: &[(NodeId, Follower)]) {
        let mut known = self.known.write();
        known.followers = followers.iter().copied().collect();
        if followers.is_empty() {
            known.round_trips.clear();
        }
    }

    /// A follower has answered a heartbeat after so long.
    pub(crate) fn answered(&self, follower: NodeId, after: Duration) {
        let mut known = self.known.write();
        let average = known.round_trips.entry(follower).or_insert(after);
        *average = (*average * (ROUND_TRIPS - 1) + after) / ROUND_TRIPS;
    }

    /// A warning for each follower that asks for read leases and cannot acknowledge a write within
    /// `max_write_delay`.
    pub(crate) fn far_holders(
        &self,
        max_write_delay: Duration,
        members: &[MemberInfo],
    ) -> Vec<String> {
        let known = self.known.read();
        let holders = known.followers.iter();
        let holders = holders.filter(|(_, follower)| follower.read_lease.is_some());
        let far = holders.filter_map(|(id, _)| {
            let round_trip = *known.round_trips.get(id)?;
            (round_trip > max_write_delay).then_some((id, round_trip))
        });
        far.map(|(id, round_trip)| {
            let member = members.iter().find(|member| member.id == *id);
            let name = member.map_or_else(|| id.to_string(), |member| member.name.clone());
            format!(
                "{name} asks for read leases and answers this leader after {:.1} ms, but \
                 read_lease.max_write_delay is {:.1} ms: it holds none while writes go on; set a delay \
                 above that round trip on every member, or read_lease.enabled = false on {name}",
                round_trip.as_secs_f64() * 1e3,
                max_write_delay.as_secs_f64() * 1e3,
            )
        })
        .collect()
    }

    /// One document for each follower.
    pub(crate) fn documents(&self, members: &[MemberInfo]) -> Vec<Value> {
        let known = self.known.read();
        let documents = known.followers.iter().map(|(id, follower)| {
            let member = members.iter().find(|member| member.id == *id);
            let round_trip = known.round_trips.get(id);
            json!({
                "id": id.to_string(),
                "name": member.map(|member| &member.name),
                "lag": follower.lag,
                "round_trip_ms": round_trip.map(|it| it.as_secs_f64() * 1e3),
                "read_lease": follower.read_lease.map(GrantStanding::name),
            })
        });
        documents.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_answers_later_than_writes_may_wait_is_warned_of_by_name() {
        let (near, far, reader) = (NodeId(2), NodeId(3), NodeId(4));
        let named = |id, name: &str| MemberInfo {
            id,
            name: name.to_owned(),
            ..MemberInfo::default()
        };
        let members = [named(near, "near"), named(far, "far")];
        let follower = |read_lease| Follower { lag: 0, read_lease };
        let followers = Followers::default();
        followers.sampled(&[
            (near, follower(Some(GrantStanding::Held))),
            (far, follower(Some(GrantStanding::Resting))),
            (reader, follower(None)),
        ]);
        let delay = Duration::from_millis(50);
        assert!(followers.far_holders(delay, &members).is_empty(), "unknown");
        for (id, after) in [(near, 1), (far, 70), (reader, 70)] {
            followers.answered(id, Duration::from_millis(after));
        }
        let warnings = followers.far_holders(delay, &members);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].starts_with("far asks") && warnings[0].contains("70.0 ms"),
            "{warnings:?}"
        );
        // One late answer is no round trip.
        followers.answered(near, Duration::from_millis(400));
        assert_eq!(followers.far_holders(delay, &members).len(), 1);
        followers.sampled(&[]);
        assert!(
            followers.far_holders(delay, &members).is_empty(),
            "it leads no more"
        );
    }
}
