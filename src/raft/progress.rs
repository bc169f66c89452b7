//! The leader's view of one follower: its matched log, entries in flight, and its promise.
//!
//! A follower is either *probed* for the last entry that its log shares with ours, or *streamed*
//! to: then appends follow each other without waiting, up to a bounded number in flight. One that
//! needs what our log no longer holds is sent a whole state beside that, one at a time, with a rest
//! before the next. Nothing is sent again on a timer alone: only a follower that
//! answers heartbeats, and says by them that it lacks what was sent, gets it again, less and less
//! often while that does not help; and one that has everything, and whose acknowledgement got lost,
//! is asked for it again.

use std::collections::VecDeque;
use std::time::Duration;

use crate::raft::RoundId;
use crate::raft::digest::Digest;
use crate::time::Instant;
use crate::types::LogIndex;

/// Appends that may be on their way to one follower, unanswered.
pub(super) const APPENDS_IN_FLIGHT_MAX: usize = 32;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    /// The follower holds our log up to here, durably, and its word counts.
    pub(super) matched: LogIndex,
    /// The first entry to send next.
    pub(super) next: LogIndex,
    /// How we send to it.
    pub(super) state: State,
    /// The newest round that it had heard when it acknowledged what is matched.
    matched_in: RoundId,
    /// The newest round it promised; `None` from the moment it enters the configuration until it
    /// answers (P15).
    pub(super) ack: Option<RoundId>,
    /// Its word on what is durable counts only from this round on: before, it lost part of its log
    /// (A23), or an earlier life of it spoke.
    pub(super) counts_from: RoundId,
    /// Its last word on what it stored did not count: it came back damaged (A23). Or it has come back, and has not said
    /// since that it holds all that it had acknowledged.
    held: bool,
    /// It lacks what it has acknowledged, and has not asked yet what it must hold: its word does not count (A28).
    pub(super) forgot: bool,
    /// The life of the follower whose return was last adopted (A23).
    pub(super) rejoined: Option<u64>,
    /// What it last asked with a heartbeat reply.
    pub(super) asked: Question,
    /// Its questions that wait for a quorum round.
    pub(super) questions: usize,
    /// The newest round when something was last sent: who has not heard of a later one may not
    /// have got it yet.
    sent_in: RoundId,
    /// How far it was told to commit last.
    pub(super) told: LogIndex,
    /// The reads of a question of its wait until it has applied this.
    pub(super) awaits: LogIndex,
    /// What it last said it knows to be ours.
    verified: LogIndex,
    /// Since when it has lacked something that was sent, without getting on.
    lacking_since: Option<Instant>,
    /// How long it may lack it before it is sent again.
    patience: Duration,
    /// It said that its state machine lacks what its log does not hold.
    pub(super) needs_state: bool,
    /// Of a whole state for it.
    snapshot: Snapshot,
}

/// What the heartbeat replies of a follower ask.
#[derive(Clone, Debug, Default)]
pub(super) struct Question {
    /// The name that the last one carried: to be given back to it.
    pub(super) name: Option<RoundId>,
    /// When it asked for a read lease with that name, for which none was granted yet.
    pub(super) since: Option<Instant>,
    /// It accepts no read lease for a name of the same life up to this one (RL7).
    declined: RoundId,
}

/// Whether a whole state is on its way to a follower.
#[derive(Clone, Debug)]
enum Snapshot {
    /// Not that we know.
    None,
    /// One was ordered from the shell, which has not reported its end.
    UnderWay,
    /// One was sent; whether it has helped is heard by then.
    Sent { until: Instant },
}

/// How we send to a follower.
#[derive(Clone, Debug, Hash)]
pub(super) enum State {
    /// One small append at a time, until a base is found that both logs share.
    Probe {
        /// The last index of the one that is on its way.
        sent: Option<LogIndex>,
    },
    /// Appends without waiting.
    Stream {
        /// The last index of each that is on its way.
        in_flight: VecDeque<LogIndex>,
    },
}

impl Question {
    /// A heartbeat reply of `now` carried `name`, and asked for a read lease with it if `wants_read_lease`.
    pub(super) fn named(&mut self, now: Instant, name: RoundId, wants_read_lease: bool) {
        let is_declined = name <= self.declined && name.is_of_one_life_with(self.declined);
        self.name = Some(name);
        self.since = (wants_read_lease && !is_declined).then_some(now);
    }

    /// The follower accepts no read lease for a name up to `through` (RL7): what it asked with one of them is
    /// not answered, and commits do not wait for it, whichever of the two arrives first.
    pub(super) fn decline(&mut self, through: RoundId) {
        self.declined = through;
        let is_meant = |name: RoundId| name <= through && name.is_of_one_life_with(through);
        if self.name.is_some_and(is_meant) {
            self.since = None;
        }
    }

    fn digest(&self, digest: &mut Digest) {
        let Self {
            name,
            since,
            declined,
        } = self;
        digest.value(&(name, declined, since.is_some()));
        if let Some(since) = since {
            digest.since(*since);
        }
    }
}

impl Progress {
    /// Nothing known yet of a follower; the log that it is asked about ends at `last`.
    pub(super) fn unknown(last: LogIndex, heartbeat: Duration) -> Self {
        Self {
            matched: LogIndex(0),
            matched_in: RoundId(0),
            next: last.next(),
            state: State::Probe { sent: None },
            ack: None,
            counts_from: RoundId(0),
            held: false,
            forgot: false,
            rejoined: None,
            asked: Question::default(),
            questions: 0,
            sent_in: RoundId(0),
            told: LogIndex(0),
            awaits: LogIndex(0),
            verified: LogIndex(0),
            lacking_since: None,
            patience: heartbeat * 2,
            needs_state: false,
            snapshot: Snapshot::None,
        }
    }

    /// Whether the shell is to send it a whole state now, because it needs one: it is noted that
    /// this is so.
    pub(super) fn order_snapshot(&mut self, now: Instant) -> bool {
        let due = match self.snapshot {
            Snapshot::None => true,
            Snapshot::UnderWay => false,
            Snapshot::Sent { until } => now.certainly_after(until),
        };
        if due {
            self.snapshot = Snapshot::UnderWay;
        }
        due
    }

    /// The shell has sent it, or failed to; before `until` no other is sent.
    pub(super) fn snapshot_sent(&mut self, until: Instant) {
        if let Snapshot::UnderWay = self.snapshot {
            self.snapshot = Snapshot::Sent { until };
            self.needs_state = false;
        }
    }

    /// The follower came back damaged: nothing that it acknowledged before `round` counts.
    pub(super) fn forget(&mut self, last: LogIndex, round: RoundId, nonce: u64) {
        self.matched = LogIndex(0);
        self.next = last.next();
        self.state = State::Probe { sent: None };
        self.counts_from = round;
        self.forgot = false;
        self.rejoined = Some(nonce);
        self.verified = LogIndex(0);
        self.lacking_since = None;
    }

    /// What it last said is that it holds our log and that its word counts: no base is looked for
    /// that it may have lost, and nothing that it stored was said by a damaged replica.
    pub(super) fn is_whole(&self) -> bool {
        let streams = matches!(self.state, State::Stream { .. });
        self.matched > LogIndex(0) && self.ack.is_some() && streams && !self.held
    }

    /// Another life of it speaks, which may run on an older copy of its data directory: what it says of its log counts
    /// from `round` on, so that it is not taken for what the life before has said.
    pub(super) fn begins_anew(&mut self, round: RoundId) {
        planted!(EarlierLifeHolds => return);
        self.counts_from = self.counts_from.max(round);
        self.held = true;
    }

    /// It promised `round`.
    pub(super) fn promised(&mut self, round: RoundId) {
        if self.forgot {
            return;
        }
        self.ack = self.ack.max(Some(round));
    }

    /// It stored everything up to `through`; `durable` if that counts. `through` is in our log.
    pub(super) fn stored(
        &mut self,
        through: LogIndex,
        durable: bool,
        round: RoundId,
        heartbeat: Duration,
    ) {
        let durable = durable && !self.forgot;
        // What is less than it has acknowledged before may be all that an older copy of it holds.
        self.held = !durable || self.held && through < self.matched;
        if durable && through > self.matched {
            self.matched = through;
            self.matched_in = round;
            self.lacking_since = None;
        }
        self.got_on(through, heartbeat);
        self.stream_from(through.next());
    }

    /// It refused `base` after it had heard of `round`. If it had acknowledged that base before, it
    /// has lost part of its log and does not know it: an older copy of its data, or another
    /// process in its place. What it acknowledged is void; whether that was so.
    pub(super) fn lost_its_log(&mut self, base: LogIndex, round: RoundId) -> bool {
        let lost = base <= self.matched && round > self.matched_in;
        if lost {
            self.matched = LogIndex(0);
            self.matched_in = round;
            self.forgot = !planted!(OlderCopyCounts);
            if self.forgot {
                self.ack = None;
            }
            self.next = base.next();
            self.state = State::Probe { sent: None };
            self.verified = LogIndex(0);
            self.lacking_since = None;
        }
        lost
    }

    /// It refused `base`; the logs may share `shared`. Whether that is news.
    pub(super) fn refused(&mut self, base: LogIndex, shared: LogIndex) -> bool {
        let stale = match self.state {
            State::Probe { .. } => base.next() != self.next,
            State::Stream { .. } => base.next() > self.next,
        };
        if stale || base <= self.matched {
            return false;
        }
        self.next = shared.next().max(self.matched.next()).min(base.next());
        self.state = State::Probe { sent: None };
        true
    }

    /// It answered a heartbeat of `round`, and knows its log to be ours up to `verified`, which is
    /// in our log. Sends again what it has lacked for too long.
    pub(super) fn heard(
        &mut self,
        now: Instant,
        round: RoundId,
        verified: LogIndex,
        longest: Duration,
    ) {
        if verified > self.verified {
            self.verified = verified;
            self.lacking_since = None;
        }
        // A whole state takes it further than anything that was sent to it; and if its word of that
        // is lost, this is the only one there will be.
        let is_ahead = verified >= self.next || matches!(self.state, State::Probe { .. });
        if verified > LogIndex(0) && is_ahead {
            self.stream_from(verified.next().max(self.matched.next()));
        }
        let waits = match &self.state {
            State::Probe { sent } => sent.is_some(),
            // Also for the acknowledgement alone: it may have been lost on its way to us.
            State::Stream { .. } => verified.min(self.matched).next() < self.next,
        };
        if !waits {
            self.lacking_since = None;
            return;
        }
        if round <= self.sent_in {
            return;
        }
        let since = *self.lacking_since.get_or_insert(now);
        if !now.certainly_after(since + self.patience) {
            return;
        }
        self.patience = (self.patience * 2).min(longest);
        self.lacking_since = None;
        self.verified = verified;
        match &mut self.state {
            State::Probe { sent } => *sent = None,
            // It has everything, and what it said of that did not arrive: it is asked once more.
            State::Stream { .. } if verified.next() >= self.next => {
                self.next = verified.next();
                self.state = State::Probe { sent: None };
            }
            State::Stream { in_flight } if verified > LogIndex(0) => {
                in_flight.clear();
                self.next = verified.next();
            }
            // It knows nothing of us: it has restarted, and must be asked again.
            State::Stream { .. } => {
                self.next = self.matched.next();
                self.state = State::Probe { sent: None };
            }
        }
    }

    /// Whether an append may leave now; `last` is the last index of our log.
    pub(super) fn may_send(&self, last: LogIndex) -> bool {
        match &self.state {
            State::Probe { sent } => sent.is_none(),
            State::Stream { in_flight } => {
                self.next <= last && in_flight.len() < APPENDS_IN_FLIGHT_MAX
            }
        }
    }

    /// Whether reads of its wait to be told to commit what may be committed through `frontier`. They
    /// need not wait for a heartbeat.
    pub(super) fn wants_notice(&self, frontier: LogIndex) -> bool {
        self.told < self.awaits && self.awaits <= frontier
    }

    /// An append with entries up to `through` is on its way, and says that `round` is the newest.
    pub(super) fn sent(&mut self, through: LogIndex, round: RoundId) {
        self.sent_in = round;
        match &mut self.state {
            State::Probe { sent } => *sent = Some(through),
            State::Stream { in_flight } => {
                in_flight.push_back(through);
                self.next = through.next();
            }
        }
    }

    /// The clock ran backwards: whatever was waited for is waited for from now on.
    pub(super) fn clock_went_back(&mut self) {
        self.lacking_since = None;
        self.asked.since = None;
        if let Snapshot::Sent { .. } = self.snapshot {
            self.snapshot = Snapshot::None;
        }
    }

    /// Adds every field that future behaviour depends on.
    pub(super) fn digest(&self, digest: &mut Digest) {
        let Self {
            matched,
            next,
            state,
            matched_in,
            ack,
            counts_from,
            held,
            forgot,
            rejoined,
            asked,
            questions,
            sent_in,
            told,
            awaits,
            verified,
            lacking_since,
            patience,
            needs_state,
            snapshot,
        } = self;
        digest.value(&(matched, next, state, matched_in, ack, counts_from, held));
        digest.value(&(forgot, told, awaits));
        asked.digest(digest);
        digest.value(&(rejoined, questions, sent_in));
        digest.value(&(verified, patience));
        digest.value(&lacking_since.is_some());
        if let Some(since) = lacking_since {
            digest.since(*since);
        }
        digest.value(&(needs_state, std::mem::discriminant(snapshot)));
        if let Snapshot::Sent { until } = snapshot {
            digest.deadline(*until);
        }
    }

    fn stream_from(&mut self, next: LogIndex) {
        match &mut self.state {
            State::Probe { sent } => {
                // What the probe carried has arrived with it, or will be found to be lacking.
                let carried = sent.filter(|end| *end >= next);
                self.next = carried.map_or(next, LogIndex::next);
                self.lacking_since = None;
                self.state = State::Stream {
                    in_flight: carried.into_iter().collect(),
                };
            }
            State::Stream { in_flight } => {
                while in_flight.front().is_some_and(|end| *end < next) {
                    in_flight.pop_front();
                }
                self.next = self.next.max(next);
            }
        }
    }

    fn got_on(&mut self, through: LogIndex, heartbeat: Duration) {
        if through > self.verified {
            self.verified = through;
            self.lacking_since = None;
        }
        self.patience = heartbeat * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_follower_whose_acknowledgements_are_lost_is_asked_again() {
        let heartbeat = Duration::from_millis(50);
        let longest = Duration::from_millis(1000);
        let mut progress = Progress::unknown(LogIndex(0), heartbeat);
        progress.stored(LogIndex(0), true, RoundId(1), heartbeat);
        let last = LogIndex(100);
        while progress.may_send(last) {
            progress.sent(progress.next, RoundId(7));
        }
        let sent = progress.next.previous();
        assert_eq!(sent.0, APPENDS_IN_FLIGHT_MAX as u64, "the window is full");
        // Everything arrived, and every answer to it was lost.
        progress.heard(at(0), RoundId(8), sent, longest);
        progress.heard(at(50), RoundId(8), sent, longest);
        assert!(
            !progress.may_send(last),
            "the answers may be on their way yet"
        );
        progress.heard(at(100), RoundId(8), sent, longest);
        assert!(progress.may_send(last), "it is asked for what it holds");
        assert_eq!(progress.next, sent.next());
        progress.sent(sent, RoundId(8));
        progress.stored(sent, true, RoundId(1), heartbeat);
        assert_eq!(progress.matched, sent);
        assert!(progress.may_send(last), "and the stream goes on");
    }

    #[test]
    fn a_follower_that_a_state_took_ahead_goes_on_from_there_and_is_asked_for_its_word() {
        let heartbeat = Duration::from_millis(50);
        let longest = Duration::from_millis(1000);
        let mut progress = Progress::unknown(LogIndex(60), heartbeat);
        progress.stored(LogIndex(60), true, RoundId(1), heartbeat);
        assert_eq!(progress.next, LogIndex(61), "which the log no longer holds");
        // It has a state up to 88, and its acknowledgement of that was lost.
        progress.heard(at(0), RoundId(8), LogIndex(88), longest);
        assert_eq!(progress.next, LogIndex(89));
        assert_eq!(progress.matched, LogIndex(60), "heartbeats commit nothing");
        assert!(!progress.may_send(LogIndex(88)));
        progress.heard(at(100), RoundId(9), LogIndex(88), longest);
        assert!(
            progress.may_send(LogIndex(88)),
            "it is asked for what it holds"
        );
    }
}
