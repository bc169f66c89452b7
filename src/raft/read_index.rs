//! Reads that wait at a node that does not lead.
//!
//! They are asked for together: one question to the leader serves every read that had arrived when
//! it was put, because the leader captures its commit index, and has itself confirmed, only after
//! the question arrived (F1). So the answer to a question serves the reads of all earlier
//! ones as well, and whatever got lost is made good by the next. No clock of ours takes part.
//!
//! Reads outlive a change of leader: they have not been confirmed, so the next leader may confirm
//! them. A node that hears of no leader for an election timeout gives them up.

use std::collections::VecDeque;
use std::time::Duration;

use crate::raft::digest::Digest;
use crate::raft::reads::READS_WAITING_MAX;
use crate::raft::{ReadId, ReadMode, RoundId};
use crate::time::Instant;

/// Questions of one mode that may be on their way at once; reads that arrive meanwhile share the
/// next.
const QUESTIONS_UNDER_WAY_MAX: usize = 4;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadIndexQueues {
    queues: [Queue; ReadMode::ALL.len()],
    /// The first and the last question that this process has put. The next process names its own in
    /// another range, which may be a lower one.
    put: Option<(RoundId, RoundId)>,
}

#[derive(Clone, Debug, Default)]
struct Queue {
    /// In order of arrival, with the question that was put after; those without are at the end.
    waiting: VecDeque<(ReadId, Option<RoundId>)>,
    under_way: VecDeque<(RoundId, Instant)>,
}

impl ReadIndexQueues {
    /// Whether no read waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.waiting.is_empty())
    }

    /// Whether no further read may wait.
    pub(super) fn is_full(&self) -> bool {
        let waiting = self.queues.iter().map(|queue| queue.waiting.len());
        waiting.sum::<usize>() >= READS_WAITING_MAX
    }

    /// A read arrived.
    pub(super) fn push(&mut self, mode: ReadMode, read: ReadId) {
        self.queues[mode as usize].waiting.push_back((read, None));
    }

    /// Whether a question should be put: for reads that have none, or because one has been without
    /// an answer for longer than `patience`.
    pub(super) fn wants_question(&self, mode: ReadMode, now: Instant, patience: Duration) -> bool {
        let queue = &self.queues[mode as usize];
        let overdue = |asked: &Instant| now.certainly_after(*asked + patience);
        match queue.waiting.back() {
            None => false,
            Some((_, None)) if queue.under_way.len() < QUESTIONS_UNDER_WAY_MAX => true,
            Some(_) => queue.under_way.back().is_some_and(|(_, at)| overdue(at)),
        }
    }

    /// A question is sent at `now`: every waiting read arrived before it.
    pub(super) fn put(&mut self, mode: ReadMode, name: RoundId, now: Instant) {
        let (first, _) = self.put.unwrap_or((name, name));
        self.put = Some((first, name));
        let queue = &mut self.queues[mode as usize];
        let without = queue.waiting.iter_mut().rev();
        for (_, question) in without.take_while(|(_, question)| question.is_none()) {
            *question = Some(name);
        }
        if queue.under_way.len() == QUESTIONS_UNDER_WAY_MAX {
            queue.under_way.pop_front();
        }
        queue.under_way.push_back((name, now));
    }

    /// The question `name` was answered: the next read that had arrived when it was put. `None`, if
    /// this process has put no such question: the answer is to an earlier one's, and may be older
    /// than every read that waits here, whatever the order of the names says.
    pub(super) fn pop_answered(&mut self, mode: ReadMode, name: RoundId) -> Option<ReadId> {
        let ours = self
            .put
            .is_some_and(|(first, last)| first <= name && name <= last);
        if !ours && !planted!(AnswerToEarlierLife) {
            return None;
        }
        let queue = &mut self.queues[mode as usize];
        while queue.under_way.front().is_some_and(|(put, _)| *put <= name) {
            queue.under_way.pop_front();
        }
        let (_, question) = queue.waiting.front()?;
        if question.is_none_or(|question| question > name) && !planted!(AnswerServesLater) {
            return None;
        }
        queue.waiting.pop_front().map(|(read, _)| read)
    }

    /// The leader that was asked leads no more: all questions must be sent again.
    pub(super) fn ask_again(&mut self) {
        for queue in &mut self.queues {
            queue.under_way.clear();
            for (_, question) in &mut queue.waiting {
                *question = None;
            }
        }
    }

    /// Takes all waiting reads, in the order of arrival within each mode.
    pub(super) fn take_all(&mut self) -> Vec<(ReadMode, ReadId)> {
        let mut all = Vec::new();
        for mode in ReadMode::ALL {
            let queue = std::mem::take(&mut self.queues[mode as usize]);
            all.extend(queue.waiting.into_iter().map(|(read, _)| (mode, read)));
        }
        all
    }

    /// Adds every field that future behaviour depends on.
    pub(super) fn digest(&self, digest: &mut Digest) {
        let Self { queues, put } = self;
        digest.value(put);
        for Queue { waiting, under_way } in queues {
            digest.value(&(waiting, under_way.len()));
            for (name, asked) in under_way {
                digest.value(name);
                digest.since(*asked);
            }
        }
    }

    /// The clock ran backwards: whatever was waited for is waited for from now on.
    pub(super) fn clock_went_back(&mut self, now: Instant) {
        for queue in &mut self.queues {
            for (_, asked) in &mut queue.under_way {
                *asked = asked.min(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODE: ReadMode = ReadMode::Any;
    const PATIENCE: Duration = Duration::from_millis(100);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn answered(read_index: &mut ReadIndexQueues, name: u64) -> Vec<u64> {
        let mut all = Vec::new();
        while let Some(read) = read_index.pop_answered(MODE, RoundId(name)) {
            all.push(read.0);
        }
        all
    }

    #[test]
    fn a_read_is_served_only_by_a_question_put_after_it_came() {
        let mut read_index = ReadIndexQueues::default();
        read_index.push(MODE, ReadId(1));
        assert!(read_index.wants_question(MODE, at(0), PATIENCE));
        read_index.put(MODE, RoundId(10), at(0));
        read_index.push(MODE, ReadId(2));
        assert!(read_index.wants_question(MODE, at(1), PATIENCE));
        read_index.put(MODE, RoundId(11), at(1));
        read_index.push(MODE, ReadId(3));
        assert_eq!(answered(&mut read_index, 10), [1]);
        assert_eq!(
            answered(&mut read_index, 11),
            [2],
            "nobody asked for the third"
        );
    }

    #[test]
    fn an_answer_to_a_question_that_this_process_never_put_serves_nobody() {
        let mut read_index = ReadIndexQueues::default();
        read_index.push(MODE, ReadId(1));
        assert!(answered(&mut read_index, 10).is_empty(), "it has put none");
        read_index.put(MODE, RoundId(10), at(0));
        assert!(answered(&mut read_index, 9).is_empty());
        assert!(answered(&mut read_index, 11).is_empty());
        assert_eq!(answered(&mut read_index, 10), [1]);
    }

    #[test]
    fn a_question_without_an_answer_is_put_again_and_the_next_answer_serves_all() {
        let mut read_index = ReadIndexQueues::default();
        read_index.push(MODE, ReadId(1));
        read_index.put(MODE, RoundId(10), at(0));
        assert!(!read_index.wants_question(MODE, at(99), PATIENCE));
        assert!(read_index.wants_question(MODE, at(100), PATIENCE));
        read_index.put(MODE, RoundId(11), at(100));
        assert!(!read_index.wants_question(MODE, at(199), PATIENCE));
        assert_eq!(answered(&mut read_index, 11), [1]);
        assert!(read_index.is_empty());
    }

    #[test]
    fn questions_under_way_are_bounded_and_modes_do_not_answer_for_each_other() {
        let mut read_index = ReadIndexQueues::default();
        let mut put = 0;
        for read in 0..100 {
            read_index.push(MODE, ReadId(read));
            if read_index.wants_question(MODE, at(0), PATIENCE) {
                read_index.put(MODE, RoundId(read), at(0));
                put += 1;
            }
        }
        assert_eq!(put, QUESTIONS_UNDER_WAY_MAX);
        assert_eq!(read_index.pop_answered(ReadMode::Quorum, RoundId(99)), None);
        read_index.ask_again();
        assert!(
            answered(&mut read_index, 3).is_empty(),
            "the old leader's word is void"
        );
        assert!(read_index.wants_question(MODE, at(0), PATIENCE));
        assert_eq!(read_index.take_all().len(), 100);
    }
}
