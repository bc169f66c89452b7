//! The log in memory: the entries since the base, and how much of them is durable.
//!
//! Its invariants:
//! 1. entries are contiguous, from the one after the base to the last;
//! 2. their terms never fall;
//! 3. the base is committed, so what lies at or below it agrees with every leader;
//! 4. `durable` never lies beyond the last entry, and names entries that are these entries: a cut
//!    takes it back;
//! 5. a write that was on its way when its entries were cut no longer makes them durable;
//! 6. everything before `unsaved` has been handed out to be written, nothing from there on;
//! 7. the configuration in force is the last one in the log, committed or not;
//! 8. cutting brings back the configuration before;
//! 9. committed entries are never cut: the caller says how much to keep;
//! 10. a base that moved is written before anything rests on it: until then the durable part of a
//!     log that was reset is empty.

use std::collections::VecDeque;

use crate::raft::bounded::Weigh;
use crate::raft::digest::Digest;
use crate::raft::{APPEND_WEIGHT_MAX, Configuration, Conflict, Entry, LogBase, Payload, Ticket};
use crate::types::{LogId, LogIndex, NodeId, Term};

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Log {
    base: LogId,
    base_configuration: Configuration,
    /// The base has moved since it was last handed out to be written.
    base_unsaved: bool,
    entries: VecDeque<Entry>,
    /// The configurations among the entries, by index.
    configurations: Vec<(LogIndex, Configuration)>,
    durable: LogIndex,
    unsaved: LogIndex,
    /// Writes on their way, and the last entry that each makes durable.
    writing: VecDeque<(Ticket, LogIndex)>,
    /// See `ConfigurationAtCommit`.
    #[cfg(leasehold_bugs)]
    pub(super) committed: LogIndex,
}

/// An append would have cut entries that must be kept: its sender is not who it claims to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WouldCutKept;

impl Log {
    /// The log as found on disk, all of it durable. The boolean says whether the entries were
    /// fit; from the first one that does not continue the log, they are left out.
    pub(super) fn restore(
        base: LogId,
        base_configuration: Configuration,
        entries: Vec<Entry>,
    ) -> (Self, bool) {
        let mut log = Self {
            base,
            base_configuration,
            base_unsaved: false,
            entries: VecDeque::with_capacity(entries.len()),
            configurations: Vec::new(),
            durable: base.index,
            unsaved: base.index.next(),
            writing: VecDeque::new(),
            #[cfg(leasehold_bugs)]
            committed: base.index,
        };
        let mut fit = true;
        for entry in entries {
            let last = log.last();
            if last.index.0.checked_add(1) != Some(entry.id.index.0) || entry.id.term < last.term {
                fit = false;
                break;
            }
            log.push(entry);
        }
        log.durable = log.last().index;
        log.unsaved = log.durable.next();
        (log, fit)
    }

    /// The last entry; the base, if there is none.
    pub(super) fn last(&self) -> LogId {
        self.entries.back().map_or(self.base, |entry| entry.id)
    }

    /// Whether it holds no entry.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The first entry that it holds; 0@0 if there is none.
    pub(super) fn first(&self) -> LogId {
        self.entries
            .front()
            .map_or_else(LogId::default, |entry| entry.id)
    }

    /// The last entry that it no longer holds.
    pub(super) fn base(&self) -> LogId {
        self.base
    }

    /// How far the log is durable.
    pub(super) fn durable(&self) -> LogIndex {
        self.durable
    }

    /// The configuration in force.
    pub(super) fn configuration(&self) -> &Configuration {
        #[cfg(leasehold_bugs)]
        if planted!(ConfigurationAtCommit) {
            let known = |(index, _): &&(LogIndex, Configuration)| *index <= self.committed;
            let latest = self.configurations.iter().rev().find(known);
            return latest.map_or(&self.base_configuration, |(_, configuration)| configuration);
        }
        let latest = self.configurations.last();
        latest.map_or(&self.base_configuration, |(_, configuration)| configuration)
    }

    /// The configuration before the one in force.
    pub(super) fn previous_configuration(&self) -> &Configuration {
        let previous = self.configurations.iter().rev().nth(1);
        previous.map_or(&self.base_configuration, |(_, configuration)| configuration)
    }

    /// The configuration in force at `index`, if that is in the log or just before it.
    pub(super) fn configuration_at(&self, index: LogIndex) -> Option<&Configuration> {
        if index < self.base.index || index > self.last().index {
            return None;
        }
        let until = self.configurations.partition_point(|(at, _)| *at <= index);
        let latest = until
            .checked_sub(1)
            .map(|place| &self.configurations[place].1);
        Some(latest.unwrap_or(&self.base_configuration))
    }

    /// Where the configuration in force stands.
    pub(super) fn configuration_index(&self) -> LogIndex {
        let latest = self.configurations.last();
        latest.map_or(self.base.index, |(index, _)| *index)
    }

    /// Whether any configuration that is here has `id` as a member.
    pub(super) fn was_member(&self, id: NodeId) -> bool {
        let mut all = self.configurations.iter();
        self.base_configuration.is_member(id) || all.any(|(_, one)| one.is_member(id))
    }

    /// The term of the entry at `index`, if it is here (or is the base).
    pub(super) fn term_at(&self, index: LogIndex) -> Option<Term> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        self.entry(index).map(|entry| entry.id.term)
    }

    /// The entry at `index`, if it is here.
    pub(super) fn entry(&self, index: LogIndex) -> Option<&Entry> {
        self.entries.get(self.position(index)?)
    }

    /// Whether this log agrees with a leader that holds `id`. What lies below the base is
    /// committed, so it agrees with every leader.
    pub(super) fn agrees(&self, id: LogId) -> bool {
        id.index < self.base.index || self.term_at(id.index) == Some(id.term)
    }

    /// Whether a leader that holds `id` cannot hold what is committed here, of which `id.index` is a part. Terms
    /// never fall along a log, so that can be seen before the base, too.
    pub(super) fn contradicts(&self, id: LogId) -> bool {
        match id.index < self.base.index {
            true => id.term > self.base.term,
            false => !self.agrees(id),
        }
    }

    /// Where this log and that of a leader part, if they do not agree at `base`.
    pub(super) fn conflict(&self, base: LogIndex) -> Conflict {
        let first = match self.term_at(base) {
            Some(term) => LogId::new(self.first_of(term), term),
            None => LogId::new(self.last().index.next(), Term(0)),
        };
        Conflict { base, first }
    }

    /// The next base to try with a follower that answered with `conflict`: as leader. Always
    /// before the one that was refused.
    pub(super) fn base_before(&self, conflict: Conflict) -> LogIndex {
        let refused = conflict.base.previous();
        let term = conflict.first.term;
        // The follower has `term` from `first` on. Where we have it too, our last entry of it is
        // the latest that we may share; where we do not, nothing of it can be.
        let end = self.entries.partition_point(|entry| entry.id.term <= term);
        let ours = end.checked_sub(1).map(|last| self.entries[last].id);
        let id = ours.unwrap_or(self.base);
        let shared = if id.term == term && id.index >= conflict.first.index {
            id.index
        } else {
            conflict.first.index.previous()
        };
        shared.min(refused)
    }

    /// Appends as leader.
    pub(super) fn append(&mut self, term: Term, payload: Payload) -> LogId {
        let id = LogId::new(self.last().index.next(), term);
        self.push(Entry { id, payload });
        id
    }

    /// Takes over a leader's `entries`, which follow an entry that this log agrees on. Cuts what
    /// differs, but nothing up to `keep`.
    pub(super) fn accept(
        &mut self,
        entries: Vec<Entry>,
        keep: LogIndex,
    ) -> Result<(), WouldCutKept> {
        for entry in entries {
            if self.agrees(entry.id) {
                continue;
            }
            if entry.id.index <= self.last().index {
                if entry.id.index <= keep {
                    return Err(WouldCutKept);
                }
                self.cut(entry.id.index);
            }
            self.push(entry);
        }
        Ok(())
    }

    /// A run of entries from `from` on: at most `bytes_max` of payload and as many as an append may
    /// carry, but at least one entry if `oversized` and there is any. An entry larger than the
    /// bound travels alone.
    pub(super) fn run(&self, from: LogIndex, bytes_max: usize, oversized: bool) -> Vec<Entry> {
        let start = self.position(from).unwrap_or(usize::MAX);
        if start >= self.entries.len() {
            return Vec::new();
        }
        let mut bytes = 0usize;
        let mut weight = 0;
        let mut end = start;
        for entry in self.entries.range(start..) {
            bytes = bytes.saturating_add(size(entry));
            weight += entry.weight();
            let over = bytes > bytes_max || weight > APPEND_WEIGHT_MAX;
            if over && !(oversized && end == start) {
                break;
            }
            end += 1;
        }
        self.entries.range(start..end).cloned().collect()
    }

    /// The entries from `from` to `to`, both included.
    pub(super) fn between(&self, from: LogIndex, to: LogIndex) -> Vec<Entry> {
        let start = self.position(from).unwrap_or(0).min(self.entries.len());
        let end = self.position(to.next()).unwrap_or(0);
        let end = end.clamp(start, self.entries.len());
        self.entries.range(start..end).cloned().collect()
    }

    /// Gives up everything up to `through`, which is here, durable, committed, and in the state
    /// machine.
    pub(super) fn compact(&mut self, through: LogIndex) {
        let Some(term) = self.term_at(through).filter(|_| through > self.base.index) else {
            return;
        };
        debug_assert!(through <= self.durable && through < self.unsaved);
        let kept = self
            .configurations
            .partition_point(|(at, _)| *at <= through);
        if let Some((_, latest)) = self.configurations.drain(..kept).next_back() {
            self.base_configuration = latest;
        }
        let count = self.position(through.next()).unwrap_or(0);
        self.entries.drain(..count);
        self.base = LogId::new(through, term);
        self.base_unsaved = true;
    }

    /// Resets the log to begin after `base`, which is committed and was not in it: the entries in it
    /// are either before `base` or not in any leader's log.
    pub(super) fn begin_after(&mut self, base: LogBase) {
        self.entries.clear();
        self.configurations.clear();
        // Writes in flight belong to the old log.
        for (_, last) in &mut self.writing {
            *last = LogIndex(0);
        }
        self.durable = LogIndex(0);
        self.unsaved = base.id.index.next();
        self.base = base.id;
        self.base_configuration = base.configuration;
        self.base_unsaved = true;
    }

    /// See `SnapshotBaseUnsynced`: what is not written counts as durable.
    #[cfg(leasehold_bugs)]
    pub(super) fn trust_base(&mut self) {
        self.durable = self.base.index;
    }

    /// Whether anything waits to be written.
    pub(super) fn has_unsaved(&self) -> bool {
        self.base_unsaved || self.unsaved <= self.last().index
    }

    /// Everything that waits to be written, now on its way under `ticket`.
    pub(super) fn take_unsaved(&mut self, ticket: Ticket) -> (Option<LogBase>, Vec<Entry>) {
        let last = self.last().index;
        let base = std::mem::take(&mut self.base_unsaved).then(|| LogBase {
            id: self.base,
            configuration: self.base_configuration.clone(),
        });
        let entries = self.between(self.unsaved, last);
        if base.is_some() || !entries.is_empty() {
            self.writing.push_back((ticket, last));
            self.unsaved = last.next();
        }
        (base, entries)
    }

    /// Everything up to `ticket` is durable.
    pub(super) fn persisted(&mut self, ticket: Ticket) {
        while let Some((written, last)) = self.writing.front() {
            if *written > ticket {
                break;
            }
            self.durable = self.durable.max(*last);
            self.writing.pop_front();
        }
    }

    /// Adds every field that future behaviour depends on. `issued` is the newest ticket.
    pub(super) fn digest(&self, digest: &mut Digest, issued: Ticket) {
        let Self {
            base,
            base_configuration,
            base_unsaved,
            entries,
            // They are among the entries.
            configurations: _,
            durable,
            unsaved,
            writing,
            #[cfg(leasehold_bugs)]
                committed: _,
        } = self;
        digest.value(&(base, base_configuration, base_unsaved));
        digest.value(&(entries, durable, unsaved));
        digest.value(&writing.len());
        for (ticket, last) in writing {
            digest.value(&(issued.0 - ticket.0, last));
        }
    }

    fn push(&mut self, entry: Entry) {
        debug_assert_eq!(entry.id.index, self.last().index.next());
        debug_assert!(entry.id.term >= self.last().term);
        if let Payload::Configuration(configuration) = &entry.payload {
            let configuration = Configuration::clone(configuration);
            self.configurations.push((entry.id.index, configuration));
        }
        self.entries.push_back(entry);
    }

    /// Cuts `from` and everything after it.
    fn cut(&mut self, from: LogIndex) {
        debug_assert!(from > self.base.index);
        let keep = self.position(from).unwrap_or(0);
        self.entries.truncate(keep);
        while self.configurations.last().is_some_and(|c| c.0 >= from) {
            self.configurations.pop();
        }
        let end = from.previous();
        if !planted!(CutStaysDurable) {
            self.durable = self.durable.min(end);
        }
        self.unsaved = self.unsaved.min(from);
        for (_, last) in &mut self.writing {
            *last = (*last).min(end);
        }
    }

    /// The first entry of `term`, which is present.
    fn first_of(&self, term: Term) -> LogIndex {
        let position = self.entries.partition_point(|entry| entry.id.term < term);
        let entry = self.entries.get(position);
        entry.map_or(self.base.index, |entry| entry.id.index)
    }

    /// Where `index` is (or would be) among the entries.
    fn position(&self, index: LogIndex) -> Option<usize> {
        let offset = index.0.checked_sub(self.base.index.0)?.checked_sub(1)?;
        usize::try_from(offset).ok()
    }
}

/// What an entry weighs on the wire, about.
pub(super) fn size(entry: &Entry) -> usize {
    const HEADER: usize = 24;
    HEADER
        + match &entry.payload {
            Payload::Noop => 0,
            Payload::Command(bytes) => bytes.len(),
            Payload::Configuration(configuration) => {
                configuration.len() * 20 + configuration.details_len()
            }
        }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bytes::Bytes;

    use super::*;

    fn log_of(terms: &[u64]) -> Log {
        let mut log = Log::restore(LogId::default(), Configuration::default(), Vec::new()).0;
        for term in terms {
            log.append(Term(*term), Payload::Noop);
        }
        log
    }

    fn terms(log: &Log) -> Vec<u64> {
        log.entries.iter().map(|entry| entry.id.term.0).collect()
    }

    fn entries_after(base: u64, terms: &[u64]) -> Vec<Entry> {
        let ids = terms.iter().zip(base + 1..);
        ids.map(|(term, index)| Entry {
            id: LogId::new(LogIndex(index), Term(*term)),
            payload: Payload::Noop,
        })
        .collect()
    }

    /// Logs as leaders of rising terms leave them behind: each leader appends to what it has, and
    /// some of the others take over a part of it.
    fn logs_after_leaders(rng: &mut fastrand::Rng) -> Vec<Vec<u64>> {
        let mut logs = vec![Vec::new(); 3];
        for term in 1..rng.u64(2..12) {
            let leader = rng.usize(0..3);
            for _ in 0..rng.usize(0..4) {
                logs[leader].push(term);
            }
            let leading = logs[leader].clone();
            for (follower, log) in logs.iter_mut().enumerate() {
                if follower != leader && rng.bool() {
                    let shared = log.iter().zip(&leading).take_while(|(a, b)| a == b);
                    let shared = shared.count();
                    let through = rng.usize(shared..=leading.len());
                    if through > shared {
                        *log = leading[..through].to_vec();
                    }
                }
            }
        }
        logs
    }

    #[test]
    fn conflict_search_finds_a_shared_entry_within_one_question_per_term() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..5000 {
            let logs = logs_after_leaders(&mut rng);
            let (leader, follower) = (log_of(&logs[0]), log_of(&logs[1]));
            let mut base = leader.last().index;
            let mut questions = 0;
            loop {
                let term = leader.term_at(base).expect("a leader asks for what it has");
                if follower.agrees(LogId::new(base, term)) {
                    break;
                }
                let next = leader.base_before(follower.conflict(base));
                assert!(next < base, "the search must go back");
                base = next;
                questions += 1;
            }
            let kinds: BTreeSet<_> = logs[0].iter().chain(&logs[1]).collect();
            assert!(questions <= kinds.len(), "{logs:?}");
            let shared = logs[0].iter().zip(&logs[1]).take_while(|(a, b)| a == b);
            assert!(base.0 <= shared.count() as u64, "{logs:?}");
        }
    }

    #[test]
    fn accepting_cuts_from_the_first_difference_and_keeps_what_agrees() {
        let mut log = log_of(&[1, 1, 2, 2]);
        log.accept(entries_after(1, &[1, 3, 3]), LogIndex(1))
            .expect("nothing kept is cut");
        assert_eq!(terms(&log), [1, 1, 3, 3]);
        log.accept(entries_after(0, &[1, 1]), LogIndex(0))
            .expect("a duplicate cuts nothing");
        assert_eq!(terms(&log), [1, 1, 3, 3]);
    }

    #[test]
    fn what_must_be_kept_is_never_cut() {
        let mut log = log_of(&[1, 1, 2]);
        let refused = log.accept(entries_after(1, &[3]), LogIndex(2));
        assert_eq!(refused, Err(WouldCutKept));
        assert_eq!(terms(&log), [1, 1, 2]);
    }

    #[test]
    fn a_write_under_way_does_not_make_its_cut_entries_durable() {
        let mut log = log_of(&[1, 1, 1]);
        let (_, first) = log.take_unsaved(Ticket(1));
        assert_eq!(first.len(), 3);
        log.accept(entries_after(1, &[2]), LogIndex(1))
            .expect("nothing kept is cut");
        log.persisted(Ticket(1));
        assert_eq!(log.durable(), LogIndex(1), "2@1 is gone, 2@2 not written");
        let (_, second) = log.take_unsaved(Ticket(2));
        assert_eq!(second[0].id, LogId::new(LogIndex(2), Term(2)));
        log.persisted(Ticket(2));
        assert_eq!(log.durable(), LogIndex(2));
    }

    #[test]
    fn a_cut_brings_back_the_configuration_before() {
        let mut log = log_of(&[1]);
        let configuration = Configuration {
            voters: [NodeId(1)].into(),
            ..Configuration::default()
        };
        log.append(
            Term(1),
            Payload::Configuration(Box::new(configuration.clone())),
        );
        assert_eq!(log.configuration(), &configuration);
        log.accept(entries_after(1, &[2]), LogIndex(1))
            .expect("nothing kept is cut");
        assert_eq!(log.configuration(), &Configuration::default());
        assert_eq!(log.configuration_index(), LogIndex(0));
    }

    #[test]
    fn a_run_is_bounded_and_an_entry_beyond_the_bound_travels_alone() {
        let mut log = log_of(&[]);
        for length in [10, 10, 500, 10] {
            let bytes = Bytes::from(vec![0; length]);
            log.append(Term(1), Payload::Command(bytes));
        }
        let lengths = |from, oversized| log.run(LogIndex(from), 100, oversized).len();
        assert_eq!(lengths(1, true), 2);
        assert_eq!(lengths(3, true), 1);
        assert_eq!(lengths(3, false), 0);
        assert_eq!(lengths(4, true), 1);
        assert_eq!(lengths(5, true), 0);
        assert_eq!(lengths(u64::MAX, true), 0);
        // Small entries fill an append by their number.
        let many = log_of(&vec![1; APPEND_WEIGHT_MAX + 1]);
        let run = many.run(LogIndex(1), usize::MAX, true);
        assert_eq!(run.len(), APPEND_WEIGHT_MAX);
    }

    #[test]
    fn a_log_with_a_hole_is_kept_up_to_the_hole() {
        let mut entries = entries_after(0, &[1, 1, 1]);
        entries.remove(1);
        let (log, fit) = Log::restore(LogId::default(), Configuration::default(), entries);
        assert!(!fit);
        assert_eq!(log.last().index, LogIndex(1));
    }

    fn saved(log: &mut Log, ticket: u64) -> (Option<LogBase>, Vec<Entry>) {
        let taken = log.take_unsaved(Ticket(ticket));
        log.persisted(Ticket(ticket));
        taken
    }

    #[test]
    fn a_compacted_log_begins_after_its_base_with_the_configuration_in_force_there() {
        let mut log = log_of(&[1, 1]);
        let configuration = |voter| Configuration {
            voters: [NodeId(voter)].into(),
            ..Configuration::default()
        };
        log.append(Term(1), Payload::Configuration(Box::new(configuration(1))));
        log.append(Term(2), Payload::Noop);
        log.append(Term(2), Payload::Configuration(Box::new(configuration(2))));
        log.append(Term(2), Payload::Noop);
        saved(&mut log, 1);
        log.compact(LogIndex(4));
        let base = LogId::new(LogIndex(4), Term(2));
        assert_eq!((log.base(), terms(&log)), (base, vec![2, 2]));
        for (index, at) in [
            (3, None),
            (4, Some(1)),
            (5, Some(2)),
            (6, Some(2)),
            (7, None),
        ] {
            let at = at.map(configuration);
            assert_eq!(log.configuration_at(LogIndex(index)), at.as_ref());
        }
        assert_eq!(log.previous_configuration(), &configuration(1));
        assert_eq!(log.configuration(), &configuration(2));
        assert!(
            log.agrees(LogId::new(LogIndex(1), Term(9))),
            "it is committed"
        );
        assert!(log.agrees(base));
        assert!(!log.agrees(LogId::new(LogIndex(4), Term(1))));
        assert_eq!(log.entry(LogIndex(4)), None);
        let (written, entries) = log.take_unsaved(Ticket(2));
        assert_eq!(
            written.map(|base| base.configuration),
            Some(configuration(1))
        );
        assert!(entries.is_empty());
        assert_eq!(log.durable(), LogIndex(6), "what it holds stays durable");
        log.compact(LogIndex(3));
        assert_eq!(log.base(), base, "it never goes back");
        assert!(!log.has_unsaved());
    }

    #[test]
    fn a_log_that_begins_anew_is_durable_once_its_base_is() {
        let mut log = log_of(&[1, 1, 1]);
        log.take_unsaved(Ticket(1));
        let base = LogBase {
            id: LogId::new(LogIndex(9), Term(3)),
            configuration: Configuration::default(),
        };
        log.begin_after(base.clone());
        assert_eq!(log.last(), base.id);
        log.accept(entries_after(9, &[3, 4]), LogIndex(9))
            .expect("nothing kept is cut");
        assert_eq!(log.take_unsaved(Ticket(2)).0, Some(base));
        log.persisted(Ticket(1));
        assert_eq!(log.durable(), LogIndex(0), "that was the log before");
        log.persisted(Ticket(2));
        assert_eq!(log.durable(), LogIndex(11));
    }

    #[test]
    fn a_conflict_in_the_term_of_the_base_is_settled_by_the_base() {
        let mut log = log_of(&[1, 3, 3, 4]);
        saved(&mut log, 1);
        log.compact(LogIndex(3));
        let first = LogId::new(LogIndex(2), Term(3));
        let base = LogIndex(4);
        assert_eq!(log.base_before(Conflict { base, first }), LogIndex(3));
    }
}
