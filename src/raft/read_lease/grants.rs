//! The leader's side: to whom read leases were granted, and until when commits wait for them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{GrantCounters, GrantStanding, RecallReason};
use crate::raft::digest::Digest;
use crate::raft::progress::Progress;
use crate::raft::{ReadGrant, RoundId};
use crate::sync::Ordering;
use crate::time::Instant;
use crate::types::{LogIndex, NodeId};

/// How long a holder that was too slow is granted nothing; twice as long each time, up to the second.
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(60);

/// The read leases that this leadership has granted and that may not be over. It ends with the leadership:
/// no other leader exists before they are over (Theorem 5).
#[derive(Clone, Debug, Default)]
pub(in crate::raft) struct Grants {
    tenures: BTreeMap<NodeId, Tenure>,
    /// Holders that were too slow.
    rests: BTreeMap<NodeId, Rest>,
    held_back: Option<HeldBack>,
    pace: Option<Pace>,
}

/// What was committed a little while ago.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Between [`Terms::stride`] and twice that ago.
    earlier: LogIndex,
    later: LogIndex,
    /// When `later` was noted.
    at: Instant,
}

/// One member holds a read lease without interruption, as far as this leader knows.
#[derive(Clone, Debug)]
struct Tenure {
    /// What was committed when it began: the holder may not have acknowledged that (RL2).
    floor: LogIndex,
    /// Commits wait for the holder until then, by both clocks.
    until: Instant,
    /// The newest name that it was granted for.
    name: RoundId,
    /// All of them were drawn by one life of the holder, as far as can be told.
    is_of_one_life: bool,
    /// It is not renewed any more.
    is_recalled: bool,
}

#[derive(Clone, Debug)]
struct Rest {
    until: Instant,
    length: Duration,
}

/// A quorum holds more than some holder has acknowledged.
#[derive(Clone, Copy, Debug)]
struct HeldBack {
    since: Instant,
    /// What a quorum held then.
    index: LogIndex,
}

impl Tenure {
    /// It was granted for `name`, too. Names of two lives have no order.
    fn note(&mut self, name: RoundId) {
        if name.is_of_one_life_with(self.name) {
            self.name = self.name.max(name);
        } else {
            self.name = name;
            self.is_of_one_life = false;
        }
    }
}

impl HeldBack {
    /// Whether it is `holder` that has not acknowledged it.
    fn is_by(&self, holder: NodeId, peers: &BTreeMap<NodeId, Progress>) -> bool {
        let progress = peers.get(&holder);
        progress.is_none_or(|progress| progress.matched < self.index)
    }
}

/// What may be granted at one moment.
#[derive(Clone, Copy, Debug)]
pub(in crate::raft) struct Terms {
    pub(super) now: Instant,
    /// No more than is left of the leader's own lease (RL2).
    pub(super) length: Duration,
    /// When everything granted on these terms is over for the leader: the end of the promises that its lease
    /// rests on.
    pub(super) until: Instant,
    pub(super) commit: LogIndex,
    /// A question that is older is not answered: who asked it may not hear any more, and commits would wait.
    pub(super) patience: Duration,
    /// Who acknowledged what was committed one to two of these ago keeps up (RL10).
    pub(super) stride: Duration,
}

impl Grants {
    /// Grants `peer` what it asks for, if it may have it. Its name is answered once (RL2).
    pub(in crate::raft) fn grant(
        &mut self,
        peer: NodeId,
        progress: &mut Progress,
        terms: &Terms,
    ) -> Option<ReadGrant> {
        let asked = progress.asked.since?;
        let is_old = terms.now.certainly_after(asked + terms.patience);
        if is_old && !planted!(GrantPerHeartbeat) || !progress.is_whole() || progress.needs_state {
            return None;
        }
        let name = progress.asked.name?;
        let pace = self.pace(terms.now, terms.commit, terms.stride);
        let resting = |rest: &Rest| !terms.now.certainly_after(rest.until);
        let floor = match self.tenures.get_mut(&peer) {
            Some(tenure) if tenure.is_recalled => return None,
            Some(tenure) => {
                tenure.until = tenure.until.max(terms.until);
                tenure.note(name);
                tenure.floor
            }
            // It would hold commits up for too long at once.
            None if progress.matched < pace && !planted!(HolderAdmittedBehind) => {
                return None;
            }
            None if self.rests.get(&peer).is_some_and(resting) => return None,
            None => {
                let tenure = Tenure {
                    floor: terms.commit,
                    until: terms.until,
                    name,
                    is_of_one_life: true,
                    is_recalled: false,
                };
                self.tenures.insert(peer, tenure);
                terms.commit
            }
        };
        if !planted!(GrantPerHeartbeat) {
            progress.asked.since = None;
        }
        Some(ReadGrant {
            length: terms.length,
            floor: if planted!(ReadLeaseNoFloor) {
                LogIndex(0)
            } else {
                floor
            },
        })
    }

    /// Whether `peer` may hold a read lease. Its reads wait for what it has acknowledged, so it is told at
    /// once of what may be committed.
    pub(in crate::raft) fn contains(&self, peer: NodeId) -> bool {
        self.tenures.contains_key(&peer)
    }

    /// What a member has to have acknowledged to keep up: nothing that was committed within the last `stride`.
    fn pace(&mut self, now: Instant, commit: LogIndex, stride: Duration) -> LogIndex {
        let pace = self.pace.get_or_insert(Pace {
            earlier: commit,
            later: commit,
            at: now,
        });
        if now.certainly_after(pace.at + stride) {
            pace.earlier = pace.later;
            pace.later = commit;
            pace.at = now;
        }
        pace.earlier
    }

    /// How `peer` stands at `now`; `asks` is whether it waits for an answer to its question.
    pub(super) fn standing(&self, peer: NodeId, asks: bool, now: Instant) -> Option<GrantStanding> {
        let is_resting = |rest: &Rest| !now.certainly_after(rest.until);
        match self.tenures.get(&peer) {
            Some(tenure) if tenure.is_recalled => Some(GrantStanding::Recalled),
            Some(_) => Some(GrantStanding::Held),
            None if self.rests.get(&peer).is_some_and(is_resting) => Some(GrantStanding::Resting),
            None => asks.then_some(GrantStanding::Waiting),
        }
    }

    /// No read lease is outstanding.
    pub(in crate::raft) fn is_empty(&self) -> bool {
        self.tenures.is_empty()
    }

    /// What may be committed: what every holder has acknowledged (RL4). A member that was removed has its say
    /// until its lease is over (RL9).
    pub(in crate::raft) fn gate(
        &self,
        peers: &BTreeMap<NodeId, Progress>,
        leaving: &BTreeMap<NodeId, Instant>,
    ) -> Option<LogIndex> {
        planted!(NoCommitGate => return None);
        let has_a_say =
            |holder: &&NodeId| !(planted!(RemovedGateForgotten) && leaving.contains_key(holder));
        let matched = |holder: &NodeId| match peers.get(holder) {
            Some(progress) => progress.matched,
            None => LogIndex(0),
        };
        self.tenures.keys().filter(has_a_say).map(matched).min()
    }

    /// Notes that a quorum holds everything up to `held`, and that all up to `commit` is committed.
    pub(in crate::raft) fn note_commit(
        &mut self,
        now: Instant,
        held: LogIndex,
        commit: LogIndex,
        stride: Duration,
        counters: &GrantCounters,
    ) {
        self.pace(now, commit, stride);
        if let Some(past) = self.held_back.take_if(|past| commit >= past.index) {
            let nanos = now.at_most_since(past.since).as_nanos();
            let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
            counters.held_back_nanos.fetch_add(nanos, Ordering::Relaxed);
        }
        if held > commit && self.held_back.is_none() && !self.is_empty() {
            self.held_back = Some(HeldBack {
                since: now,
                index: held,
            });
        }
    }

    /// When something has to be done about a holder for which commits wait: the earlier of that it is
    /// recalled and that its lease is over. `None` while no commit waits.
    pub(in crate::raft) fn due(
        &self,
        max_write_delay: Duration,
        peers: &BTreeMap<NodeId, Progress>,
    ) -> Option<Instant> {
        let held_back = self.held_back?;
        let slow = self
            .tenures
            .iter()
            .filter(|(holder, _)| held_back.is_by(**holder, peers));
        let due = slow.map(|(_, tenure)| match tenure.is_recalled {
            true => tenure.until,
            false => tenure.until.min(held_back.since + max_write_delay),
        });
        due.reduce(Instant::min)
    }

    /// Forgets what is over at `now`.
    pub(super) fn expire(&mut self, now: Instant, counters: &GrantCounters) {
        self.tenures.retain(|_, tenure| {
            let is_over = now.certainly_after(tenure.until);
            if is_over && tenure.is_recalled {
                counters.waited_out.fetch_add(1, Ordering::Relaxed);
            }
            !is_over
        });
        let holders = self.tenures.len() as u64;
        counters.holders.store(holders, Ordering::Relaxed);
    }

    /// Renews no more what `chosen` hold, and tells whom to ask for it.
    pub(super) fn recall(
        &mut self,
        reason: RecallReason,
        counters: &GrantCounters,
        chosen: impl Fn(NodeId) -> bool,
    ) -> Vec<NodeId> {
        let mut asked = Vec::new();
        for (holder, tenure) in &mut self.tenures {
            if !tenure.is_recalled && chosen(*holder) {
                tenure.is_recalled = true;
                counters.recalls[reason as usize].fetch_add(1, Ordering::Relaxed);
                asked.push(*holder);
            }
        }
        planted!(HolderDroppedAtOnce => self.tenures.retain(|_, tenure| !tenure.is_recalled));
        asked
    }

    /// The same for holders for which commits have waited longer than `patience`. They get none again for a
    /// while (RL10).
    pub(super) fn recall_slow(
        &mut self,
        now: Instant,
        patience: Duration,
        peers: &BTreeMap<NodeId, Progress>,
        counters: &GrantCounters,
    ) -> Vec<NodeId> {
        let held_back = self.held_back;
        let held_back = held_back.filter(|it| now.certainly_after(it.since + patience));
        let Some(held_back) = held_back else {
            return Vec::new();
        };
        let is_slow = |holder| held_back.is_by(holder, peers);
        let slow = self.recall(RecallReason::Slow, counters, is_slow);
        for holder in &slow {
            self.rest(*holder, now);
        }
        slow
    }

    /// `holder` is granted nothing for a while: twice as long as last time, unless that was long ago.
    fn rest(&mut self, holder: NodeId, now: Instant) {
        let is_recent = |rest: &&Rest| !now.certainly_after(rest.until + REST_MAX);
        let before = self.rests.get(&holder).filter(is_recent);
        let before = before.map(|rest| rest.length);
        let length = before.map_or(REST_MIN, |length| (length * 2).min(REST_MAX));
        let until = now + length;
        self.rests.insert(holder, Rest { until, length });
    }

    /// `holder` has no read lease that was granted for a name up to `through`, and will accept none. An earlier
    /// life of it may have said so of its own.
    pub(super) fn returned(&mut self, holder: NodeId, through: RoundId) {
        let is_over = |tenure: &Tenure| {
            let is_meant = tenure.name <= through && tenure.name.is_of_one_life_with(through);
            let is_meant = is_meant && tenure.is_of_one_life;
            is_meant || planted!(ReturnOfAnyLife)
        };
        if self.tenures.get(&holder).is_some_and(is_over) {
            self.tenures.remove(&holder);
        }
    }

    /// The clock ran backwards to `now`. No promise was for longer than `promise`, so everything is over then.
    pub(in crate::raft) fn clock_went_back(&mut self, now: Instant, promise: Duration) {
        for tenure in self.tenures.values_mut() {
            tenure.until = now + promise;
        }
        for rest in self.rests.values_mut() {
            rest.until = rest.until.min(now + rest.length);
        }
        if let Some(held_back) = &mut self.held_back {
            held_back.since = held_back.since.min(now);
        }
        self.pace = None;
    }

    /// Adds every field that future behaviour depends on.
    pub(in crate::raft) fn digest(&self, digest: &mut Digest) {
        let Self {
            tenures,
            rests,
            held_back,
            pace,
        } = self;
        digest.value(&(tenures.len(), rests.len()));
        for (holder, tenure) in tenures {
            let Tenure {
                floor,
                until,
                name,
                is_of_one_life,
                is_recalled,
            } = tenure;
            digest.value(&(holder, floor, name, is_of_one_life, is_recalled));
            digest.deadline(*until);
        }
        for (holder, rest) in rests {
            let Rest { until, length } = rest;
            digest.value(&(holder, length));
            digest.deadline(*until);
        }
        digest.value(&held_back.map(|held_back| held_back.index));
        if let Some(held_back) = held_back {
            digest.since(held_back.since);
        }
        digest.value(&pace.map(|pace| (pace.earlier, pace.later)));
        if let Some(pace) = pace {
            digest.since(pace.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: NodeId = NodeId(2);

    fn granted(names: &[u64]) -> Grants {
        let at = Instant::from_nanos(1_000_000_000);
        let heartbeat = Duration::from_millis(50);
        let terms = Terms {
            now: at,
            length: Duration::from_millis(400),
            until: at + Duration::from_millis(500),
            commit: LogIndex(1),
            patience: heartbeat * 2,
            stride: Duration::from_millis(25),
        };
        let mut progress = Progress::unknown(LogIndex(1), heartbeat);
        progress.stored(LogIndex(1), true, RoundId(1), heartbeat);
        progress.promised(RoundId(1));
        let mut grants = Grants::default();
        for name in names {
            progress.asked.name = Some(RoundId(*name));
            progress.asked.since = Some(at);
            let grant = grants.grant(HOLDER, &mut progress, &terms);
            assert_eq!(grant.map(|grant| grant.floor), Some(LogIndex(1)));
            let again = grants.grant(HOLDER, &mut progress, &terms);
            assert_eq!(again, None, "a name is answered once");
        }
        grants
    }

    #[test]
    fn a_read_lease_is_over_once_all_its_names_were_given_back() {
        let mut grants = granted(&[5, 7]);
        grants.returned(HOLDER, RoundId(6));
        assert!(!grants.is_empty(), "7 may be on its way");
        grants.returned(HOLDER, RoundId(7));
        assert!(grants.is_empty());
    }

    /// The word of the earlier life was late, and the member was granted a read lease again meanwhile.
    #[test]
    fn what_an_earlier_life_gave_back_ends_nothing_of_this_one() {
        let (earlier, later) = (9 << 20, 4 << 20);
        let mut grants = granted(&[later + 1]);
        grants.returned(HOLDER, RoundId(earlier + 3));
        assert!(!grants.is_empty());
        // A late question of the earlier life was answered, too.
        let mut grants = granted(&[earlier + 1, later + 1, earlier + 2]);
        grants.returned(HOLDER, RoundId(earlier + 3));
        grants.returned(HOLDER, RoundId(later + 3));
        assert!(!grants.is_empty(), "it is waited out");
    }

    #[test]
    fn who_was_slow_rests_longer_each_time_unless_that_was_long_ago() {
        let mut grants = Grants::default();
        let second = |second: u64| Instant::from_nanos(second * 1_000_000_000);
        let rests = |grants: &Grants, now| {
            grants.standing(HOLDER, false, second(now)) == Some(GrantStanding::Resting)
        };
        grants.rest(HOLDER, second(10));
        assert!(rests(&grants, 10) && !rests(&grants, 11));
        grants.rest(HOLDER, second(20));
        assert!(rests(&grants, 21) && !rests(&grants, 22));
        grants.rest(HOLDER, second(30));
        assert!(rests(&grants, 33) && !rests(&grants, 34));
        grants.rest(HOLDER, second(34 + 60));
        assert!(
            rests(&grants, 94) && !rests(&grants, 95),
            "a minute was good"
        );
    }

    #[test]
    fn who_acknowledged_what_was_committed_a_moment_ago_keeps_up() {
        let stride = Duration::from_millis(25);
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut grants = Grants::default();
        for (ms, commit, pace) in [
            (0, 5, 5),
            (10, 6, 5),
            (25, 7, 5),
            (40, 8, 5),
            (50, 9, 7),
            (60, 10, 7),
            // Nothing was committed meanwhile.
            (1_000, 10, 9),
            (1_020, 10, 9),
            (1_025, 10, 10),
        ] {
            assert_eq!(
                grants.pace(at(ms), LogIndex(commit), stride),
                LogIndex(pace),
                "{ms}"
            );
        }
    }
}
