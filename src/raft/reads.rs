//! Reads that wait at the leader: its own, and its followers' questions.
//!
//! A round that was created after a read arrived, and that a quorum answered in the same term,
//! proves that this node was still the leader when the read arrived; no clock is involved. Reads
//! that arrive together share one round, local or from followers, and while a few rounds are in
//! flight, later reads wait for the next. A read that does not require a round is answered by the
//! lease, if it becomes valid first.

use std::collections::VecDeque;

use crate::raft::{ReadId, ReadMode, RoundId};
use crate::types::{LogIndex, NodeId};

/// Reads that may wait at once.
pub(super) const READS_WAITING_MAX: usize = 65_536;

/// Rounds that may be on their way for reads alone.
const ROUNDS_UNDER_WAY_MAX: usize = 4;

/// The origin of a waiting read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reader {
    /// A read of this node.
    Local(ReadId, ReadMode),
    /// A follower's question (F1).
    Follower {
        /// The follower.
        peer: NodeId,
        /// The question's name.
        name: RoundId,
        /// What must confirm the answer.
        mode: ReadMode,
    },
    /// A damaged peer that wants to know how much it must hold (A23).
    Rejoining {
        /// The peer.
        peer: NodeId,
        /// Names the process, so that a reply to an earlier one does not count.
        nonce: u64,
    },
}

/// See the module.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Reads {
    /// In order of arrival; those without a round are at the end.
    waiting: VecDeque<PendingRead>,
    under_way: VecDeque<RoundId>,
    /// How many of them the lease may serve.
    leasable: usize,
}

impl Reader {
    /// Whether the lease may serve it.
    fn is_leasable(self) -> bool {
        match self {
            Self::Local(_, mode) | Self::Follower { mode, .. } => mode != ReadMode::Quorum,
            Self::Rejoining { .. } => false,
        }
    }
}

#[derive(Clone, Debug, Hash)]
struct PendingRead {
    reader: Reader,
    /// The commit index captured after it arrived.
    index: LogIndex,
    /// The first round created after it arrived.
    round: Option<RoundId>,
}

impl Reads {
    /// Whether no further read may wait.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= READS_WAITING_MAX
    }

    /// Whether `reader` waits already.
    pub(super) fn contains(&self, reader: Reader) -> bool {
        self.waiting.iter().any(|waiting| waiting.reader == reader)
    }

    /// A read arrived; `index` is the commit index, captured since.
    pub(super) fn push(&mut self, reader: Reader, index: LogIndex) {
        self.leasable += usize::from(reader.is_leasable());
        self.waiting.push_back(PendingRead {
            reader,
            index,
            round: None,
        });
    }

    /// Whether a round should be started for those that have none.
    pub(super) fn want_round(&self) -> bool {
        self.waiting.back().is_some_and(|read| read.round.is_none())
            && self.under_way.len() < ROUNDS_UNDER_WAY_MAX
    }

    /// A round was created: reads without one wait for it.
    pub(super) fn assign(&mut self, round: RoundId) {
        let without = self.waiting.iter_mut().rev();
        let mut any = false;
        for read in without.take_while(|read| read.round.is_none()) {
            read.round = Some(round);
            any = true;
        }
        if any {
            self.under_way.push_back(round);
            // Rounds of heartbeats come on top, but answering the newest answers all before.
            if self.under_way.len() > ROUNDS_UNDER_WAY_MAX {
                self.under_way.pop_front();
            }
        }
    }

    /// A quorum has answered `held`: the next read that waited for no later round.
    pub(super) fn pop_answered(&mut self, held: RoundId) -> Option<(Reader, LogIndex)> {
        while self.under_way.front().is_some_and(|round| *round <= held) {
            self.under_way.pop_front();
        }
        let answered =
            self.waiting.front()?.round.is_some_and(|r| r <= held) || planted!(QuorumReadOldRound);
        if !answered {
            return None;
        }
        let read = self.waiting.pop_front()?;
        self.leasable -= usize::from(read.reader.is_leasable());
        Some((read.reader, read.index))
    }

    /// Whether a read waits that the lease may serve.
    pub(super) fn has_leasable(&self) -> bool {
        self.leasable > 0
    }

    /// Takes the reads that the lease may serve. Each arrived before the clock reading that the lease
    /// is checked against.
    pub(super) fn take_leasable(&mut self) -> Vec<Reader> {
        self.leasable = 0;
        let mut taken = Vec::new();
        self.waiting.retain(|read| {
            let leasable = read.reader.is_leasable();
            if leasable {
                taken.push(read.reader);
            }
            !leasable
        });
        taken
    }

    /// Takes all waiting reads, because leadership has ended.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Reader> {
        self.under_way.clear();
        self.leasable = 0;
        self.waiting.drain(..).map(|read| read.reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(id: u64) -> Reader {
        Reader::Local(ReadId(id), ReadMode::Any)
    }

    fn answered(reads: &mut Reads, held: u64) -> Vec<Reader> {
        let mut all = Vec::new();
        while let Some((reader, _)) = reads.pop_answered(RoundId(held)) {
            all.push(reader);
        }
        all
    }

    #[test]
    fn reads_that_wait_together_share_a_round_and_later_ones_wait_for_the_next() {
        let mut reads = Reads::default();
        reads.push(read(1), LogIndex(1));
        reads.push(read(2), LogIndex(1));
        assert!(reads.want_round());
        reads.assign(RoundId(5));
        assert!(!reads.want_round());
        reads.push(read(3), LogIndex(2));
        assert_eq!(answered(&mut reads, 4), []);
        assert_eq!(answered(&mut reads, 5), [read(1), read(2)]);
        assert_eq!(answered(&mut reads, 9), [], "no round was made for it yet");
        reads.assign(RoundId(10));
        assert_eq!(answered(&mut reads, 11), [read(3)]);
    }

    #[test]
    fn the_lease_lets_go_whoever_does_not_insist_on_a_round() {
        let mut reads = Reads::default();
        let insists = Reader::Local(ReadId(2), ReadMode::Quorum);
        reads.push(read(1), LogIndex(1));
        reads.push(insists, LogIndex(1));
        reads.push(read(3), LogIndex(1));
        assert!(reads.has_leasable());
        assert_eq!(reads.take_leasable(), [read(1), read(3)]);
        assert!(!reads.has_leasable());
        assert!(reads.want_round());
        reads.assign(RoundId(5));
        assert_eq!(answered(&mut reads, 5), [insists]);
    }

    #[test]
    fn rounds_under_way_are_bounded() {
        let mut reads = Reads::default();
        for id in 0..100 {
            reads.push(read(id), LogIndex(1));
            if reads.want_round() {
                reads.assign(RoundId(id));
            }
        }
        assert_eq!(reads.under_way.len(), ROUNDS_UNDER_WAY_MAX);
        assert_eq!(answered(&mut reads, 3).len(), 4);
        assert!(reads.want_round());
    }
}
