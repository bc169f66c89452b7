//! What must hold: each rule by its name in docs/protocol.md, a few rules to a file.
//!
//! The [`Judge`] sees what every node is told, keeps, sends and applies, in real time, and objects
//! once; the world stops there. It mirrors what it is told and asks a node nothing that a peer or
//! a client would not see too, except for its role, term and commit index. Checkers of histories
//! (`linear.rs`, `search.rs`) work on what clients saw, after the run.

mod client_leases;
mod durable;
mod elections;
mod lease;
mod linear;
mod logs;
mod model;
mod outlast;
mod promises;
mod reads;
mod search;
mod watches;

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold::api::{Consistency, Error, ErrorKind, ReadInfo, ReadPath, WatchEvent, WatchRequest};
use leasehold::kv::ContentHash;
use leasehold::node::Input;
use leasehold::raft::{
    Configuration, Entry, Envelope, HardState, Message, Status, Timing, UnsavedState,
};
use leasehold::time::Instant;
use leasehold::types::{LogId, LogIndex, NodeId, Role, Term};
use leasehold::{kv, node};

use crate::clock::{Nanos, nanos};
use crate::disk::SimDisk;
use crate::history::History;
use crate::machine::{Asked, Machine};
use crate::marks::{Mark, Marks};
use crate::options::{Options, Profile};
use crate::state::Look;

pub(crate) use model::{Claim, entry, place_of, register};

use client_leases::ClientLeases;
use elections::Elections;
use lease::Lease;
use logs::Logs;
use model::Model;
use outlast::Outlast;
use promises::Promises;
use watches::Watched;

/// A rule that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The rule, by its name.
    pub(crate) rule: &'static str,
    /// What was seen.
    pub(crate) what: String,
}

/// How often things happened: a run in which nothing happened proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) elections: u64,
    pub(crate) commits: u64,
    pub(crate) leased_reads: u64,
    pub(crate) quorum_reads: u64,
    pub(crate) stale_reads: u64,
    pub(crate) follower_reads: u64,
    /// Reads under a read lease.
    pub(crate) held_reads: u64,
    /// Reads of a state whose age was proved, on request.
    pub(crate) bounded_reads: u64,
    /// Reads that said how old their state was at most.
    pub(crate) ages: u64,
    pub(crate) promises: u64,
    pub(crate) votes: u64,
    pub(crate) transfer_votes: u64,
    pub(crate) starts: u64,
    /// Leases that a freeze made outlast the next election: expected, because A1 was broken.
    pub(crate) broken_by_freeze: u64,
    pub(crate) tripped: u64,
    /// Damaged replicas that got everything back.
    pub(crate) recoveries: u64,
    /// Reads that were refused because their revision did not come.
    pub(crate) early_reads: u64,
    /// Leaders that succeeded themselves because a transfer had failed.
    pub(crate) own_successions: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.elections += other.elections;
        self.commits += other.commits;
        self.leased_reads += other.leased_reads;
        self.quorum_reads += other.quorum_reads;
        self.stale_reads += other.stale_reads;
        self.follower_reads += other.follower_reads;
        self.held_reads += other.held_reads;
        self.bounded_reads += other.bounded_reads;
        self.ages += other.ages;
        self.early_reads += other.early_reads;
        self.promises += other.promises;
        self.votes += other.votes;
        self.transfer_votes += other.transfer_votes;
        self.starts += other.starts;
        self.broken_by_freeze += other.broken_by_freeze;
        self.tripped += other.tripped;
        self.recoveries += other.recoveries;
        self.own_successions += other.own_successions;
    }
}

/// See the module.
pub(crate) struct Judge {
    violation: Option<Violation>,
    /// What happens is beyond what the rules hold for: nothing is judged any more.
    pub(crate) beyond: bool,
    pub(crate) counts: Counts,
    pub(crate) marks: Marks,
    /// Clocks may stop unnoticed: leased reads are not judged.
    frozen: bool,
    nodes: usize,
    elections: Elections,
    logs: Logs,
    lease: Lease,
    outlast: Outlast,
    promises: Promises,
    client_leases: ClientLeases,
    /// What users of locks were told.
    pub(crate) claims: Vec<Claim>,
    /// What replicas that are through with a compaction have removed in all.
    removed: BTreeMap<i64, ContentHash>,
    /// What the log means, as far as anybody had to know.
    model: Model,
    /// What each watcher watches.
    watches: Vec<Option<Watched>>,
    /// Members whose state is known to differ, because somebody has seen to that.
    erring: Vec<bool>,
}

/// An entry that a leader has committed.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) id: LogId,
    hash: u64,
    /// The term of the leader that committed it.
    by: Term,
    pub(crate) command: Option<Bytes>,
    /// The state's hash after it.
    state: Option<u128>,
}

impl Judge {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            violation: None,
            beyond: false,
            counts: Counts::default(),
            marks: Marks::default(),
            frozen: options.profile == Profile::Frozen,
            nodes: options.nodes,
            elections: Elections::default(),
            logs: Logs::new(options),
            lease: Lease::default(),
            outlast: Outlast::new(options.nodes),
            promises: Promises::new(options.nodes),
            client_leases: ClientLeases::default(),
            claims: Vec::new(),
            removed: BTreeMap::new(),
            model: Model::default(),
            watches: (0..options.watchers).map(|_| None).collect(),
            erring: vec![false; options.nodes],
        }
    }

    /// The first objection.
    pub(crate) fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Objects.
    pub(crate) fn fail(&mut self, rule: &'static str, what: String) {
        self.check(violation(rule, what));
    }

    fn check(&mut self, holds: Result<(), Violation>) {
        if let Err(violation) = holds
            && !self.beyond
        {
            self.violation.get_or_insert(violation);
        }
    }

    /// A process started on what `disk` holds; `now` is its own reading, and it would ask for
    /// promises by `timing` itself.
    pub(crate) fn started(&mut self, node: usize, now: Instant, disk: &SimDisk, timing: &Timing) {
        self.counts.starts += 1;
        self.logs.started(node, disk);
        let promise = timing.lease_duration;
        self.promises.started(node, now, disk.hard(), promise);
        if disk.wiped {
            let outwaits = timing.election_timeout_max * 2;
            self.promises.forgot_votes(node, now, outwaits);
        }
        self.outlast.started(node, timing.trusted_lease());
    }

    /// All members were restored from what ends with these.
    pub(crate) fn restored(&mut self, entries: &[Entry]) {
        self.logs.restored(entries);
    }

    /// A process ended.
    pub(crate) fn stopped(&mut self, node: usize, disk: &SimDisk) {
        self.logs.started(node, disk);
    }

    /// `input` is about to be handled.
    pub(crate) fn before(&mut self, node: usize, now: Instant, input: &Input) {
        match input {
            Input::Message(envelope) => {
                self.promises.hears(node, envelope);
                self.outlast.hears(node, now, envelope);
            }
            _ => self.promises.hears_nothing(node),
        }
    }

    /// The node wants this made durable.
    pub(crate) fn persist(
        &mut self,
        node: usize,
        now: Instant,
        before: &Status,
        unsaved: &UnsavedState,
    ) {
        if let Some(hard) = &unsaved.hard_state {
            let holds = self.promises.votes(node, now, hard);
            self.check(holds);
        }
        let holds = self.logs.persist(node, before, unsaved);
        self.check(holds);
    }

    /// The node has handled an input with the reading `now`.
    #[allow(clippy::too_many_arguments, reason = "one call, at one place")]
    pub(crate) fn handled(
        &mut self,
        real: Nanos,
        node: usize,
        now: Instant,
        before: &Status,
        after: &Status,
        machines: &[Machine],
    ) {
        self.promises.handled(node, now, before, after);
        let holds = elections::forward(node, before, after);
        self.check(holds);
        let leads = after.role == Role::Leader;
        let was_elected = leads && (before.role != Role::Leader || before.term != after.term);
        if was_elected {
            self.counts.elections += 1;
            if self.outlast.was_handed_over(node, after.term) {
                self.marks.hit(Mark::TransferWon);
            }
            self.counts.own_successions += u64::from(self.lease.gave_up(node, after.term));
            let holds = self
                .elections
                .elected(node, after, &machines[node].disk, self.nodes);
            self.check(holds);
            let holds = self.logs.elected(node, after.term, &mut self.marks);
            self.check(holds);
            self.lease.elected(after.term);
            let marks = &mut self.marks;
            let broken = (self.lease).exclusive(real, node, after.term, machines, marks);
            self.lease_broken(broken);
        }
        // A leader whose removal that commits may be none any more.
        let led = before.role == Role::Leader && before.term == after.term;
        if leads || led {
            let marks = &mut self.marks;
            let commits = (self.logs).commits(node, before, after, machines, marks);
            self.counts.commits += commits.as_ref().copied().unwrap_or_default();
            self.check(commits.map(|_| ()));
            let marks = &mut self.marks;
            let kept = (self.client_leases).committed(real, self.logs.committed(), marks);
            self.lease_broken(kept);
        }
        let marks = &mut self.marks;
        let broken = (self.lease).held(real, node, &machines[node], marks);
        self.lease_broken(broken);
        if led && after.commit > before.commit {
            let marks = &mut self.marks;
            let broken = lease::holders_have_it(real, node, after, machines, marks);
            self.lease_broken(broken);
        }
        if leads {
            lease::mark_grants(&machines[node], &mut self.marks);
            let marks = &mut self.marks;
            let broken = (self.lease).silent(real, node, after.term, &machines[node], marks);
            self.lease_broken(broken);
            let (promises, marks) = (&self.promises, &mut self.marks);
            let voters = self.logs.configuration(node);
            let broken = (self.outlast).judge(real, node, now, machines, voters, promises, marks);
            self.lease_broken(broken);
        }
    }

    /// P37: the tripwire of `node` went off, which is right only if A1 was broken.
    pub(crate) fn tripped(&mut self, node: usize) {
        self.counts.tripped += 1;
        if !self.frozen {
            let what = format!("{} says that its lease outlasted its leadership", id(node));
            self.fail("P37 the tripwire rests while A1 holds", what);
        }
    }

    /// A disk finished a sync.
    pub(crate) fn synced(&mut self, node: usize, before: HardState, disk: &SimDisk) {
        let holds = durable::hard_state_goes_on(node, before, disk.hard());
        self.check(holds);
    }

    /// The node sends a message; `now` is the reading it was handled with.
    pub(crate) fn send(
        &mut self,
        node: usize,
        now: Instant,
        envelope: &Envelope,
        machine: &Machine,
    ) {
        if matches!(envelope.message, Message::TimeoutNow(_)) {
            self.lease.burned = self.lease.burned.max(Some((envelope.term, node)));
            self.promises.burns(node, envelope.term);
        }
        match envelope.message {
            Message::Recall => self.marks.hit(Mark::ReadLeaseRecalled),
            Message::Returned(_) => self.marks.hit(Mark::ReadLeaseReturned),
            Message::Reminder(_) => self.marks.hit(Mark::ReminderSent),
            _ => {}
        }
        let mirror = self.logs.of(node);
        let holds = durable::before_it_is_said(node, envelope, &machine.disk, mirror);
        self.check(holds);
        let role = machine.process.as_ref().map(|process| process.status.role);
        self.outlast.says(node, now, envelope);
        if role == Some(Role::Quarantined) {
            self.marks.hit(Mark::QuarantineSilenceJudged);
            let holds = durable::says_nothing_that_counts(node, envelope, machine.disk.wiped);
            self.check(holds);
        }
        let hard = machine.disk.hard();
        let holds = self
            .promises
            .says(node, now, envelope, hard, &mut self.counts);
        self.check(holds);
    }

    /// The node hands entries out to be applied.
    pub(crate) fn apply(&mut self, node: usize, entries: &[Entry]) {
        let holds = self.logs.apply(node, entries);
        self.check(holds);
    }

    /// A store has applied `id`, and its content hashes to `state`.
    pub(crate) fn applied(&mut self, node: usize, id: LogId, state: u128) {
        // Whether replicas find that out by themselves could not be seen if it ended the run.
        if self.erring[node] {
            return;
        }
        let holds = self.logs.applied(node, id, state);
        self.check(holds);
    }

    /// R4: what is left with what was removed is what every change has kept count of; and two
    /// replicas that are through with the same compactions have removed the same.
    pub(crate) fn swept(&mut self, node: usize, store: &Look) {
        let memory = "memory does not fail";
        let (kept, scanned) = (kv::content_hash(store), kv::scan(store));
        if kept != scanned {
            let what = format!("{}: {scanned:?} is there, {kept:?} was kept", id(node));
            self.fail("R4 the removal takes what it counts", what);
        }
        let compacted = kv::compacted(store).expect(memory);
        if compacted.is_settled {
            let through = compacted.through;
            let first = self.removed.entry(through).or_insert(compacted.removed);
            if *first != compacted.removed {
                let what = format!("{} through {through}: {:?}", id(node), compacted.removed);
                self.fail("R4 equal removals", what);
            } else {
                self.marks.hit(Mark::RemovalCompared);
            }
        }
    }

    /// From now on the state of `node` differs from the others', or does not any more.
    pub(crate) fn errs(&mut self, node: usize, errs: bool) {
        self.erring[node] = errs;
    }

    /// R4: replicas that apply the same entries are never told that they differ.
    pub(crate) fn compared(&mut self, node: usize, consistency: node::StateCheck, agreed: u64) {
        if agreed > 0 {
            self.marks.hit(Mark::StatesCompared);
        }
        if !consistency.is_sound() && !self.erring[node] {
            let what = format!("{} is {consistency:?}", id(node));
            self.fail("R4 equal states are not told apart", what);
        }
    }

    /// Somebody outside may know of `revision` from now on.
    pub(crate) fn exposes(&mut self, real: Nanos, revision: i64) {
        self.lease.expose(real, revision);
    }

    /// The newest revision that anybody outside may know of.
    pub(crate) fn exposed(&self) -> i64 {
        self.lease.exposed
    }

    /// A session of `node` was permitted to read by the lease of `term`.
    pub(crate) fn permitted(&mut self, real: Nanos, node: usize, term: Term) {
        let broken = self.lease.permitted(real, node, term);
        self.lease_broken(broken);
    }

    /// A read is answered at `revision`.
    pub(crate) fn answered(
        &mut self,
        real: Nanos,
        node: usize,
        read: &ReadInfo,
        revision: i64,
        asked: Asked,
    ) {
        match read.path {
            ReadPath::Lease => self.counts.leased_reads += 1,
            ReadPath::ReadIndex => self.counts.quorum_reads += 1,
            ReadPath::Serializable => self.counts.stale_reads += 1,
            ReadPath::Follower => self.counts.follower_reads += 1,
            ReadPath::ReadLease => self.counts.held_reads += 1,
        }
        let holds = reads::as_asked(node, read, revision, asked);
        self.check(holds);
        // What rests on clocks may be wrong where they stop unnoticed, and then proves nothing.
        if self.frozen && (!read.lease_remaining.is_zero() || read.staleness.is_some()) {
            return;
        }
        if read.path != ReadPath::Serializable {
            self.marks.hit(match read.path {
                ReadPath::ReadLease => Mark::ReadLeaseFreshnessJudged,
                _ => Mark::FreshnessJudged,
            });
            let holds = lease::fresh(real, node, read.path, revision, asked.exposed);
            self.check(holds);
        }
        if let Some(staleness) = read.staleness {
            self.counts.ages += 1;
            let bounded = matches!(asked.consistency, Consistency::MaxStaleness(_));
            self.counts.bounded_reads += u64::from(bounded);
            let known = self
                .lease
                .exposed_before(real.saturating_sub(nanos(staleness)));
            let holds = reads::no_older(node, revision, staleness, known);
            self.check(holds);
        }
        self.exposes(real, revision);
    }

    /// `watcher` begins to watch something, or watches nothing any more.
    pub(crate) fn watches(&mut self, watcher: usize, request: Option<WatchRequest>) {
        self.watches[watcher] = request.map(Watched::new);
    }

    /// `node`, which has applied `applied`, takes a watch on that begins at `start`, or refuses it.
    pub(crate) fn watch_answered(
        &mut self,
        node: usize,
        applied: LogIndex,
        start: i64,
        refusal: Option<&Error>,
    ) {
        if self.erring[node] && refusal.is_some_and(|error| error.kind == ErrorKind::Corrupt) {
            return;
        }
        self.go_through_log();
        let (model, marks) = (&self.model, &mut self.marks);
        let holds = watches::may_begin(model, node, applied, start, refusal, marks);
        self.check(holds);
    }

    /// A node that had `revision` has opened the watch of `watcher`, which goes on from there.
    pub(crate) fn watch_opened(&mut self, watcher: usize, revision: i64, from: Option<i64>) {
        self.judge_watch(watcher, |watch, model, marks| {
            watch.opened(model, revision, from, marks)
        });
    }

    /// `watcher` is told something.
    pub(crate) fn watch_told(&mut self, watcher: usize, step: &WatchEvent) {
        self.judge_watch(watcher, |watch, model, marks| {
            watch.told(model, step, marks)
        });
    }

    /// A node has ended the watch of `watcher`.
    pub(crate) fn watch_ended(&mut self, watcher: usize, error: &Error, resume: Option<i64>) {
        self.judge_watch(watcher, |watch, model, marks| {
            watch.ended(model, error, resume, marks)
        });
    }

    fn judge_watch(
        &mut self,
        watcher: usize,
        judge: impl FnOnce(&mut Watched, &Model, &mut Marks) -> Result<(), Violation>,
    ) {
        self.go_through_log();
        let Some(watch) = &mut self.watches[watcher] else {
            return;
        };
        let holds = judge(watch, &self.model, &mut self.marks);
        let holds = holds.map_err(|violation| Violation {
            what: format!("w{watcher}: {}", violation.what),
            ..violation
        });
        self.check(holds);
    }

    /// Somebody watches who was not told everything yet.
    pub(crate) fn some_watch_is_behind(&mut self) -> bool {
        self.go_through_log();
        let mut watches = self.watches.iter().flatten();
        watches.any(|watch| watch.is_behind(&self.model))
    }

    /// A read at the revision `at` is answered by `node`, whose store was at `revision` and had
    /// applied `applied` when it was looked at.
    pub(crate) fn read_at(
        &mut self,
        node: usize,
        at: i64,
        applied: LogIndex,
        revision: i64,
        refusal: Option<&Error>,
    ) {
        self.go_through_log();
        let (model, marks) = (&self.model, &mut self.marks);
        let holds = watches::is_readable(model, node, at, applied, revision, refusal, marks);
        self.check(holds);
    }

    /// Brings the model to what is committed by now.
    fn go_through_log(&mut self) {
        let holds = self.model.extend(self.logs.committed());
        self.check(holds);
    }

    /// The holder of a client lease counts on it `until` then.
    pub(crate) fn holds(&mut self, real: Nanos, lease: i64, until: Nanos) {
        let holds = self.client_leases.holds(real, lease, until);
        self.lease_broken(holds);
    }

    /// The holder of a client lease was told that it is over.
    pub(crate) fn told_over(&mut self, lease: i64) {
        let holds = self.client_leases.told_over(lease, &mut self.marks);
        self.check(holds);
    }

    /// Everything that was marked.
    pub(crate) fn all_marks(&self) -> Marks {
        let mut marks = self.marks.clone();
        marks.add(&self.promises.marks);
        marks.add(&self.logs.marks);
        marks
    }

    /// The configuration in force on `node`.
    pub(crate) fn configuration(&self, node: usize) -> &Configuration {
        self.logs.configuration(node)
    }

    /// The sets of voters that `node` counts, each of which must have a majority.
    pub(crate) fn voters_known_to(&self, node: usize) -> Vec<Vec<usize>> {
        self.logs.voters_known_to(node)
    }

    /// Everything that has been committed, in order.
    pub(crate) fn committed(&self) -> &[Committed] {
        self.logs.committed()
    }

    /// Judges what clients saw, once the run is over.
    pub(crate) fn history(&mut self, history: &History, machines: &[Machine]) {
        let frozen = self.frozen;
        self.go_through_log();
        let holds = self.model.explains(history, frozen, &mut self.marks);
        self.check(holds);
        let holds = self.model.explains_locks(&self.claims, &mut self.marks);
        self.check(holds);
        for (node, machine) in machines.iter().enumerate() {
            self.check(self.model.equals(node, &machine.disk.state.look()));
        }
        self.check(linear::by_revision(history, frozen));
        for key in 0..2 {
            let history = search::of_key(history, key, frozen);
            let decided = search::linearizable(&history);
            if decided == Ok(true) {
                self.marks.hit(Mark::SearchDecided);
            }
            self.check(decided.map(|_| ()));
        }
    }

    fn lease_broken(&mut self, broken: Result<(), Violation>) {
        match broken {
            Err(_) if self.frozen => self.counts.broken_by_freeze += 1,
            holds => self.check(holds),
        }
    }
}

/// How many of `nodes` are a majority.
fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The id of a node counted from 0.
fn id(node: usize) -> NodeId {
    NodeId(node as u64 + 1)
}

fn violation(rule: &'static str, what: String) -> Result<(), Violation> {
    Err(Violation { rule, what })
}

/// Where `index` lies in a log that begins at 1.
fn slot(index: LogIndex) -> Option<usize> {
    usize::try_from(index.0).ok()?.checked_sub(1)
}
