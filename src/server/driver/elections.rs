//! How long elections take in which this node stands, seen by the driver.

use std::time::Duration;

use crate::raft::Status;
use crate::time::Instant;
use crate::types::Role;

/// An election that this node takes part in, if there is one.
///
/// It begins when the node first asks whether it could be elected, and ends when it knows a leader:
/// itself or another. Rounds of votes without a winner belong to one election, and so does the time
/// between them. A node that only votes reports none: it does not know when the candidates began.
#[derive(Debug, Default)]
pub(crate) struct Elections {
    since: Option<Instant>,
}

impl Elections {
    /// Consensus stands like this now, and stood like `before` at the look before. Returns how long the
    /// election took that is over.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        before: &Status,
        status: &Status,
    ) -> Option<Duration> {
        let stands = matches!(status.role, Role::PreCandidate | Role::Candidate);
        // Who is elected between two looks was never seen to stand.
        let was_elected = status.role == Role::Leader && before.role != Role::Leader;
        if stands || was_elected {
            self.since.get_or_insert(now);
        }
        status.leader?;
        self.since.take().map(|since| now.at_least_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::NodeId;

    const US: NodeId = NodeId(1);
    const OTHER: NodeId = NodeId(2);

    /// What is told, and when, as consensus goes through these, one after the other.
    fn told(steps: &[(u64, Role, Option<NodeId>)]) -> Vec<(u64, u64)> {
        let mut elections = Elections::default();
        let mut before = Status::default();
        let mut told = Vec::new();
        for (millis, role, leader) in steps {
            let status = Status {
                role: *role,
                leader: *leader,
                ..Status::default()
            };
            let now = Instant::from_nanos(millis * 1_000_000);
            if let Some(took) = elections.look(now, &before, &status) {
                told.push((*millis, took.as_millis() as u64));
            }
            before = status;
        }
        told
    }

    #[test]
    fn an_election_lasts_from_the_first_question_until_a_leader_is_known() {
        let won = [
            (100, Role::PreCandidate, None),
            (110, Role::Candidate, None),
            (130, Role::Leader, Some(US)),
            (140, Role::Leader, Some(US)),
        ];
        assert_eq!(told(&won), [(130, 30)]);
        let lost_at_last = [
            (100, Role::PreCandidate, None),
            (200, Role::Follower, None),
            (900, Role::PreCandidate, None),
            (950, Role::Follower, Some(OTHER)),
            (960, Role::Follower, Some(OTHER)),
        ];
        assert_eq!(told(&lost_at_last), [(950, 850)]);
    }

    #[test]
    fn who_only_votes_tells_of_nothing_and_who_is_elected_at_once_does() {
        let voted = [
            (100, Role::Follower, None),
            (200, Role::Follower, Some(OTHER)),
        ];
        assert_eq!(told(&voted), []);
        assert_eq!(told(&[(100, Role::Leader, Some(US))]), [(100, 0)]);
    }
}
