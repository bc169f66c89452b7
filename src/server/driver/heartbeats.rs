//! How long a heartbeat takes to each member and back, and what each member lacks: seen by the driver,
//! through which all of it passes.
//!
//! A heartbeat names its round, and a member answers with the newest round that it has heard. So an
//! answer to the very round that was sent tells the time of one journey there and back, with what both
//! nodes took to act on it. An answer that names another round (two heartbeats were heard together, or
//! one came late) gives no sample, and earlier heartbeats are not waited for any more.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::raft::RoundId;
use crate::time::Instant;
use crate::types::NodeId;

/// Rounds to one member whose answers are waited for: seconds of them, where nothing but heartbeats
/// makes any.
const UNDER_WAY_MAX: usize = 128;
/// Journeys that end closer together than this count as one: where reads wait for rounds, there may be
/// thousands a second.
const APART_MIN: Duration = Duration::from_millis(10);

/// The heartbeats of one node.
#[derive(Debug, Default)]
pub(crate) struct Heartbeats {
    by_peer: BTreeMap<NodeId, SentHeartbeats>,
}

#[derive(Debug, Default)]
struct SentHeartbeats {
    /// In the order of their rounds.
    under_way: VecDeque<(RoundId, Instant)>,
    told: Option<Instant>,
}

impl Heartbeats {
    /// A heartbeat of `round` leaves for `peer`.
    pub(crate) fn sent(&mut self, peer: NodeId, round: RoundId, now: Instant) {
        let under_way = &mut self.by_peer.entry(peer).or_default().under_way;
        // Only the newest one can be given twice.
        if under_way.back().is_some_and(|(newest, _)| *newest >= round) {
            return;
        }
        if under_way.len() == UNDER_WAY_MAX {
            under_way.pop_front();
        }
        under_way.push_back((round, now));
    }

    /// `peer` has answered `round`. Returns the round-trip time, if it is known and due to be reported.
    pub(crate) fn answered(
        &mut self,
        peer: NodeId,
        round: RoundId,
        now: Instant,
    ) -> Option<Duration> {
        let sent = self.by_peer.get_mut(&peer)?;
        let mut answered = None;
        while let Some((first, at)) = sent.under_way.front().copied() {
            if first > round {
                break;
            }
            sent.under_way.pop_front();
            answered = (first == round).then_some(at);
        }
        let took = now.at_least_since(answered?);
        let is_close = |told: Instant| now.at_least_since(told) < APART_MIN;
        if sent.told.is_some_and(is_close) {
            return None;
        }
        sent.told = Some(now);
        Some(took)
    }

    /// Forgets who is none of `peers`.
    pub(crate) fn keep(&mut self, peers: impl Fn(NodeId) -> bool) {
        self.by_peer.retain(|peer, _| peers(*peer));
    }

    /// The clock ran backwards: how long what is under way has taken is not known.
    pub(crate) fn clock_went_back(&mut self) {
        self.by_peer.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: NodeId = NodeId(2);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_journey_is_measured_by_the_answer_to_its_own_round() {
        let mut heartbeats = Heartbeats::default();
        for (round, sent) in [(7, 0), (8, 50), (9, 100)] {
            heartbeats.sent(PEER, RoundId(round), at(sent));
        }
        assert_eq!(heartbeats.answered(NodeId(3), RoundId(7), at(20)), None);
        assert_eq!(
            heartbeats.answered(PEER, RoundId(7), at(20)),
            Some(ms(20)),
            "its own round"
        );
        assert_eq!(
            heartbeats.answered(PEER, RoundId(7), at(60)),
            None,
            "one answer to one heartbeat"
        );
        assert_eq!(
            heartbeats.answered(PEER, RoundId(9), at(130)),
            Some(ms(30)),
            "the answer to 8 was overtaken"
        );
        assert_eq!(heartbeats.answered(PEER, RoundId(8), at(140)), None);
        assert_eq!(
            heartbeats.answered(PEER, RoundId(99), at(150)),
            None,
            "which was never sent"
        );
    }

    #[test]
    fn journeys_that_end_together_count_as_one_and_the_memory_is_bounded() {
        let mut heartbeats = Heartbeats::default();
        let mut told = 0;
        for round in 0..1_000 {
            heartbeats.sent(PEER, RoundId(round), at(round));
            let took = heartbeats.answered(PEER, RoundId(round), at(round));
            told += usize::from(took.is_some());
        }
        assert_eq!(told, 100, "one in ten milliseconds");
        for round in 1_000..2_000 {
            heartbeats.sent(PEER, RoundId(round), at(round));
        }
        assert_eq!(heartbeats.by_peer[&PEER].under_way.len(), UNDER_WAY_MAX);
        heartbeats.keep(|peer| peer != PEER);
        assert_eq!(heartbeats.answered(PEER, RoundId(1_999), at(2_100)), None);
    }

    #[test]
    fn nothing_is_told_over_a_step_of_the_clock() {
        let mut heartbeats = Heartbeats::default();
        heartbeats.sent(PEER, RoundId(1), at(1_000));
        heartbeats.clock_went_back();
        assert_eq!(heartbeats.answered(PEER, RoundId(1), at(500)), None);
    }
}
