//! Configurations, and majorities of votes, of indexes and of rounds.
//!
//! One function answers every question: the largest value that a majority has reached. Over
//! acknowledged indexes it is the commit index, over acknowledged rounds the start of the leader
//! lease, over ballots the outcome of an election. While a configuration is joint, a majority of
//! both halves is needed, so the smaller of their two values counts.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};

use crate::raft::bounded::bounded;
use crate::types::NodeId;

/// The most members that one set of a configuration may have.
pub const MEMBERS_MAX: usize = 64;

/// The most that a shell may keep about one member ([`Configuration::details`]).
pub const DETAILS_BYTES_MAX: usize = 2 << 10;

/// Members that all sets of a configuration can name together.
const NAMED_MAX: usize = 3 * MEMBERS_MAX;

/// The members and voters. While `outgoing` is present the configuration is joint and every decision needs a
/// majority of both sets (Raft, section 6).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Configuration {
    /// Voters (of the new configuration, while joint).
    #[serde(deserialize_with = "bounded::<MEMBERS_MAX, _, _>")]
    pub voters: BTreeSet<NodeId>,
    /// Voters of the old configuration, while joint.
    #[serde(deserialize_with = "bounded_option")]
    pub outgoing: Option<BTreeSet<NodeId>>,
    /// Members that receive the log and do not vote.
    #[serde(deserialize_with = "bounded::<MEMBERS_MAX, _, _>")]
    pub learners: BTreeSet<NodeId>,
    /// Learners that become voters by themselves once they have caught up; and the voter whose
    /// place each then takes in the same step, if there is one.
    #[serde(deserialize_with = "bounded::<MEMBERS_MAX, _, _>")]
    pub joining: BTreeMap<NodeId, Option<NodeId>>,
    /// What the shell keeps about members: names and addresses. Nothing here is decided by it.
    #[serde(deserialize_with = "bounded::<NAMED_MAX, _, _>")]
    pub details: BTreeMap<NodeId, Bytes>,
}

fn bounded_option<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeSet<NodeId>>, D::Error> {
    #[derive(Deserialize)]
    struct Set(#[serde(deserialize_with = "bounded::<MEMBERS_MAX, _, _>")] BTreeSet<NodeId>);

    Ok(Option::<Set>::deserialize(deserializer)?.map(|Set(set)| set))
}

impl Configuration {
    /// Whether `id` votes, in either half.
    pub fn is_voter(&self, id: NodeId) -> bool {
        self.voters.contains(&id) || self.outgoing.as_ref().is_some_and(|set| set.contains(&id))
    }

    /// Whether `id` receives the log.
    pub fn is_member(&self, id: NodeId) -> bool {
        self.is_voter(id) || self.learners.contains(&id)
    }

    /// Everyone who receives the log, each once.
    pub fn members(&self) -> BTreeSet<NodeId> {
        let mut members = &self.voters | &self.learners;
        if let Some(outgoing) = &self.outgoing {
            members.extend(outgoing);
        }
        members
    }

    /// How many members its sets name; a member of several sets counts several times.
    pub(super) fn len(&self) -> usize {
        let outgoing = self.outgoing.as_ref().map_or(0, BTreeSet::len);
        let kept = self.joining.len() + self.details.len();
        self.voters.len() + outgoing + self.learners.len() + kept
    }

    /// How many bytes the shell keeps in it.
    pub(super) fn details_len(&self) -> usize {
        self.details.values().map(Bytes::len).sum()
    }

    /// Whether a majority of the old voters is needed besides one of the new.
    pub fn is_joint(&self) -> bool {
        self.outgoing.is_some()
    }

    /// Whether it can be decided with at all, and is no larger than anyone would build.
    pub(super) fn is_sound(&self) -> bool {
        let sound = |set: &BTreeSet<NodeId>| !set.is_empty() && set.len() <= MEMBERS_MAX;
        sound(&self.voters)
            && self.outgoing.as_ref().is_none_or(sound)
            && self.learners.len() <= MEMBERS_MAX
            && self.joining.len() <= MEMBERS_MAX
            && self.details.len() <= NAMED_MAX
            && self
                .details
                .values()
                .all(|kept| kept.len() <= DETAILS_BYTES_MAX)
    }

    /// Whether `id` decides alone.
    pub(super) fn is_sole_voter(&self, id: NodeId) -> bool {
        let sole = |set: &BTreeSet<NodeId>| set.len() == 1 && set.contains(&id);
        sole(&self.voters) && self.outgoing.as_ref().is_none_or(sole)
    }

    /// Whether the members for which `agrees` holds are a quorum.
    pub(super) fn has_quorum(&self, agrees: impl Fn(NodeId) -> bool) -> bool {
        self.quorum_value(|id| agrees(id).then_some(())).is_some()
    }

    /// See `LeaseHalf`.
    #[cfg(leasehold_bugs)]
    pub(super) fn incoming_value<T: Ord + Copy>(
        &self,
        value: impl Fn(NodeId) -> Option<T>,
    ) -> Option<T> {
        majority_value(&self.voters, value)
    }

    /// The largest value that a quorum has reached. Who has no value has reached nothing.
    pub(super) fn quorum_value<T: Ord + Copy>(
        &self,
        value: impl Fn(NodeId) -> Option<T>,
    ) -> Option<T> {
        planted!(LearnersCount => if self.outgoing.is_none() {
            return majority_value(&self.members(), &value);
        });
        let incoming = majority_value(&self.voters, &value)?;
        match &self.outgoing {
            Some(_) if planted!(JointHalf) => Some(incoming),
            None => Some(incoming),
            Some(outgoing) => Some(incoming.min(majority_value(outgoing, &value)?)),
        }
    }
}

/// The largest value that more than half of `voters` have reached; of an empty set, nothing.
///
/// Sets have three to seven voters, and this runs for every acknowledgement: each voter is looked
/// up once, and nothing is allocated for a usual set.
fn majority_value<T: Ord + Copy>(
    voters: &BTreeSet<NodeId>,
    value: impl Fn(NodeId) -> Option<T>,
) -> Option<T> {
    const USUAL_MAX: usize = 8;
    let values = voters.iter().map(|id| value(*id));
    if voters.len() <= USUAL_MAX {
        let mut few = [None; USUAL_MAX];
        for (place, value) in few.iter_mut().zip(values) {
            *place = value;
        }
        middle(&mut few[..voters.len()])
    } else {
        middle(&mut values.collect::<Vec<_>>())
    }
}

/// The largest value that more than half of these have reached.
fn middle<T: Ord + Copy>(values: &mut [Option<T>]) -> Option<T> {
    values.sort_unstable_by(|a, b| b.cmp(a));
    *values.get(values.len() / 2)?
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn set(ids: impl IntoIterator<Item = u64>) -> BTreeSet<NodeId> {
        ids.into_iter().map(NodeId).collect()
    }

    #[test]
    fn the_quorum_value_is_what_brute_force_over_all_subsets_says() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..3000 {
            let ids = 1..=rng.u64(1..=6);
            let values: BTreeMap<_, _> = ids
                .clone()
                .map(|id| (NodeId(id), rng.bool().then(|| rng.u8(0..5))))
                .collect();
            let mut pick = || {
                let chosen = set(ids.clone().filter(|_| rng.bool()));
                if chosen.is_empty() { set([1]) } else { chosen }
            };
            let configuration = Configuration {
                voters: pick(),
                outgoing: Some(pick()),
                ..Configuration::default()
            };
            let simple = Configuration {
                outgoing: None,
                ..configuration.clone()
            };
            for configuration in [configuration, simple] {
                let value = |id: NodeId| values[&id];
                // Some majority subset of every half has reached it, and no larger one has.
                let mut halves = vec![&configuration.voters];
                halves.extend(configuration.outgoing.as_ref());
                let best = (0..5u8).rev().find(|bound| {
                    halves.iter().all(|half| {
                        let members: Vec<_> = half.iter().copied().collect();
                        (0..1u32 << members.len()).any(|subset| {
                            let chosen = members.iter().enumerate();
                            let chosen: Vec<_> =
                                chosen.filter(|(bit, _)| subset >> bit & 1 == 1).collect();
                            chosen.len() * 2 > members.len()
                                && chosen.iter().all(|(_, id)| value(**id) >= Some(*bound))
                        })
                    })
                });
                assert_eq!(configuration.quorum_value(value), best, "{values:?}");
            }
        }
    }

    #[test]
    fn quorums_of_adjacent_configurations_intersect() {
        let old = set([1, 2, 3]);
        let joint = Configuration {
            voters: set([3, 4, 5]),
            outgoing: Some(old.clone()),
            ..Configuration::default()
        };
        for subset in 0..32u32 {
            let in_subset = |id: NodeId| subset >> (id.0 - 1) & 1 == 1;
            if joint.has_quorum(in_subset) {
                let others = Configuration {
                    voters: old.clone(),
                    ..Configuration::default()
                };
                assert!(!others.has_quorum(|id| !in_subset(id)));
            }
        }
    }

    #[test]
    fn nobody_decides_in_an_empty_configuration() {
        let empty = Configuration::default();
        assert!(!empty.has_quorum(|_| true));
        assert!(!empty.is_sound());
        assert_eq!(empty.quorum_value(|_| Some(1)), None);
    }

    #[test]
    fn learners_never_count() {
        let configuration = Configuration {
            voters: set([1, 2, 3]),
            learners: set([4, 5]),
            ..Configuration::default()
        };
        assert!(!configuration.has_quorum(|id| [1, 4, 5].contains(&id.0)));
        assert!(configuration.has_quorum(|id| [1, 2].contains(&id.0)));
    }
}
