//! Reads that wait for a quorum round.
//!
//! A round that was created after a read arrived, and that a quorum answered in the same term,
//! proves that this node was still the leader when the read arrived; no clock is involved. Reads
//! that arrive together share one round, and while a few rounds are on their way those that
//! arrive wait for the next.

use std::collections::VecDeque;

use crate::raft::ReadId;
use crate::raft::RoundId;
use crate::types::LogIndex;
use crate::types::NodeId;

/// Reads that may wait at once.
pub(super) const READS_WAITING_MAX: usize = 65_536;

/// Rounds that may be on their way for reads alone.
const ROUNDS_UNDER_WAY_MAX: usize = 4;

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reader {
    /// A read of this node.
    Local(ReadId),
    /// A damaged peer that wants to know how much it must hold (A23).
    Rejoining {
        /// Who.
        peer: NodeId,
        /// In which of its lives.
        nonce: u64,
    },
}

/// See the module.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Reads {
    /// In order of arrival; those without a round are at the end.
    waiting: VecDeque<Waiting>,
    under_way: VecDeque<RoundId>,
}

#[derive(Clone, Debug, Hash)]
struct Waiting {
    reader: Reader,
    /// The commit index captured after it arrived.
    index: LogIndex,
    /// The first round created after it arrived.
    round: Option<RoundId>,
}

impl Reads {
    /// Whether no more may wait.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= READS_WAITING_MAX
    }

    /// Whether `reader` waits already.
    pub(super) fn contains(&self, reader: Reader) -> bool {
        self.waiting.iter().any(|waiting| waiting.reader == reader)
    }

    /// A read arrived; `index` is the commit index, captured since.
    pub(super) fn push(&mut self, reader: Reader, index: LogIndex) {
        self.waiting.push_back(Waiting {
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

    /// A round was created: whoever has none waits for this one.
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
        let answered = self.waiting.front()?.round.is_some_and(|r| r <= held);
        if !answered {
            return None;
        }
        self.waiting
            .pop_front()
            .map(|read| (read.reader, read.index))
    }

    /// Everybody who waits, because leadership is over.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Reader> {
        self.under_way.clear();
        self.waiting.drain(..).map(|read| read.reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(id: u64) -> Reader {
        Reader::Local(ReadId(id))
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
