//! Whom this node hears: whether somebody leads, which members answer it while it leads, and to which it is
//! connected.
//!
//! The driver and the peers write it; the warnings of [`super::warnings`] are made of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::api::MemberInfo;
use crate::sync::RwLock;
use crate::time::Instant;
use crate::types::NodeId;

/// Silences that are shorter are those of elections and restarts.
const LASTING: Duration = Duration::from_secs(5);

/// What is known, for all threads.
#[derive(Debug)]
pub(crate) struct Contacts {
    known: RwLock<ContactState>,
}

#[derive(Debug)]
struct ContactState {
    /// `None` while a leader is known.
    leaderless_since: Option<Instant>,
    /// `None` while this node does not lead.
    leads_since: Option<Instant>,
    /// When a message of each other node was last handled.
    heard: BTreeMap<NodeId, Instant>,
    connected: BTreeSet<NodeId>,
}

impl ContactState {
    /// For how long no leader has been known, if that is longer than elections and restarts take.
    fn leaderless_for(&self, now: Instant) -> Option<Duration> {
        let lasts = now.at_least_since(self.leaderless_since?);
        (lasts >= LASTING).then_some(lasts)
    }
}

impl Contacts {
    /// Those of a node that starts now, and knows no other.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            known: RwLock::new(ContactState {
                leaderless_since: Some(now),
                leads_since: None,
                heard: BTreeMap::new(),
                connected: BTreeSet::new(),
            }),
        }
    }

    /// Whether a leader is known, and whether it is this node.
    pub(crate) fn led(&self, now: Instant, is_led: bool, leads: bool) {
        let mut known = self.known.write();
        known.leaderless_since = match is_led {
            true => None,
            false => known.leaderless_since.or(Some(now)),
        };
        known.leads_since = match leads {
            true => known.leads_since.or(Some(now)),
            false => None,
        };
    }

    /// When each of the other nodes was last heard of.
    pub(crate) fn heard(&self, heard: &BTreeMap<NodeId, Instant>) {
        self.known.write().heard.clone_from(heard);
    }

    pub(crate) fn connected(&self, peer: NodeId) {
        self.known.write().connected.insert(peer);
    }

    pub(crate) fn disconnected(&self, peer: NodeId) {
        self.known.write().connected.remove(&peer);
    }

    /// Whether this node is connected to no other.
    pub(crate) fn is_alone(&self) -> bool {
        self.known.read().connected.is_empty()
    }

    /// Whether no leader has been known for longer than elections and restarts take.
    pub(crate) fn is_leaderless(&self, now: Instant) -> bool {
        self.known.read().leaderless_for(now).is_some()
    }

    /// The warning that no node leads, if that has lasted: `own` is this node, and `voters` those of the
    /// configuration in force.
    pub(crate) fn leaderless(
        &self,
        now: Instant,
        own: NodeId,
        voters: &[MemberInfo],
    ) -> Option<String> {
        let known = self.known.read();
        let lasts = known.leaderless_for(now)?.as_secs();
        if voters.is_empty() {
            return Some(format!(
                "no leader has been known for {lasts}s, and this node does not know the members \
                 yet: start those in cluster.initial, or open their peer ports (UDP)"
            ));
        }
        let is_reached = |it: &&MemberInfo| it.id == own || known.connected.contains(&it.id);
        let reached = voters.iter().filter(is_reached).count();
        let missing: Vec<&str> = voters
            .iter()
            .filter(|it| !is_reached(it))
            .map(|it| it.name.as_str())
            .collect();
        let (all, needed) = (voters.len(), voters.len() / 2 + 1);
        Some(match reached < needed {
            true => format!(
                "no leader has been known for {lasts}s, and there is no quorum: this node is \
                 connected to {reached} of {all} voters, itself included if it is one, and {needed} are \
                 needed; start {}, or open their peer ports (UDP)",
                missing.join(", ")
            ),
            false => format!(
                "no leader has been known for {lasts}s, although this node is connected to \
                 {reached} of {all} voters, itself included if it is one, and {needed} are needed: their \
                 logs say why none is elected (a stalled disk, a quarantine, a clock)"
            ),
        })
    }

    /// A warning for each of `members` that this node, which leads, has not heard of for a while.
    pub(crate) fn silent(&self, now: Instant, own: NodeId, members: &[MemberInfo]) -> Vec<String> {
        let known = self.known.read();
        let Some(leads_since) = known.leads_since else {
            return Vec::new();
        };
        // Members that do not lead say nothing to each other.
        let silence = |id: NodeId| {
            let led = now.at_least_since(leads_since);
            let heard = known.heard.get(&id).map(|last| now.at_least_since(*last));
            heard.map_or(led, |silent| silent.min(led))
        };
        let others = members.iter().filter(|it| it.id != own);
        let silent = others.filter(|it| silence(it.id) >= LASTING);
        silent
            .map(|it| {
                let why = match known.connected.contains(&it.id) {
                    true => "although it is connected: it stands still, or its disk does",
                    false => "and it is not connected: start it, or open its peer port (UDP)",
                };
                let lasts = silence(it.id).as_secs();
                format!(
                    "{} has not answered this leader for {lasts}s, {why}",
                    it.name
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn member(id: u64) -> MemberInfo {
        MemberInfo {
            id: NodeId(id),
            name: format!("n{id}"),
            ..MemberInfo::default()
        }
    }

    const OWN: NodeId = NodeId(1);

    #[test]
    fn that_nobody_leads_is_said_once_it_lasts_and_with_whom_is_missing() {
        let contacts = Contacts::new(at(100));
        let voters = [1, 2, 3].map(member);
        let said = |seconds| contacts.leaderless(at(seconds), OWN, &voters);
        assert_eq!(said(104), None);
        assert_eq!(
            said(112).unwrap(),
            "no leader has been known for 12s, and there is no quorum: this node is connected to 1 \
             of 3 voters, itself included if it is one, and 2 are needed; start n2, n3, or open their \
             peer ports (UDP)"
        );
        contacts.connected(NodeId(3));
        assert_eq!(
            said(112).unwrap(),
            "no leader has been known for 12s, although this node is connected to 2 of 3 voters, \
             itself included if it is one, and 2 are needed: their logs say why none is elected (a \
             stalled disk, a quarantine, a clock)"
        );
        let unknown = contacts.leaderless(at(112), OWN, &[]).unwrap();
        assert!(
            unknown.contains("does not know the members yet"),
            "{unknown}"
        );
        contacts.led(at(113), true, false);
        assert_eq!(said(200), None);
        contacts.disconnected(NodeId(3));
        contacts.led(at(200), false, false);
        contacts.led(at(203), false, false);
        assert_eq!(said(204), None, "not since the start");
        assert!(
            said(206)
                .unwrap()
                .contains("for 6s, and there is no quorum")
        );
    }

    #[test]
    fn a_leader_says_who_does_not_answer_it_and_nobody_else_does() {
        let contacts = Contacts::new(at(0));
        let members = [1, 2, 3].map(member);
        let said = |seconds| contacts.silent(at(seconds), OWN, &members);
        contacts.heard(&[(NodeId(2), at(3))].into());
        assert_eq!(said(60), [""; 0], "it does not lead");
        contacts.led(at(100), true, true);
        assert_eq!(said(104), [""; 0], "it has just begun to lead");
        contacts.connected(NodeId(3));
        contacts.heard(&[(NodeId(2), at(103))].into());
        contacts.led(at(105), true, true);
        assert_eq!(
            said(107),
            [
                "n3 has not answered this leader for 7s, although it is connected: it stands still, \
                 or its disk does"
            ]
        );
        contacts.heard(&[(NodeId(2), at(103)), (NodeId(3), at(109))].into());
        assert_eq!(
            said(110),
            [
                "n2 has not answered this leader for 7s, and it is not connected: start it, or open \
                 its peer port (UDP)"
            ]
        );
        contacts.led(at(111), true, false);
        assert_eq!(said(200), [""; 0]);
    }
}
