//! [`Consensus`]: the state, its inputs and outputs, and the one place that decides by (role, message).
//!
//! What happens inside one role is in its own file: elections in `election.rs`, following in
//! `follower.rs`, leading in `leader.rs`.
//!
//! Effects are batched: `handle`, `propose` and `read` change state, and the first `poll_output` after
//! them collects everything that follows from it. So a batch of inputs costs one write to
//! the log, one append per follower and one round, however many inputs it had.

mod explore;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::raft::leader_lease::VotePromise;
use crate::raft::log::Log;
use crate::raft::read_index::ReadIndexQueues;
use crate::raft::read_lease::Holder;
use crate::raft::reads::Reader;
use crate::raft::role::{Follower, RoleState};
use crate::raft::staleness::StalenessTracker;
use crate::raft::{
    Ballot, COMMAND_BYTES_MAX, Configuration, Envelope, HardState, Input, Invalidation, Message,
    Output, Payload, ProposalError, Published, ReadId, ReadMode, ReadRefusal, Reminder,
    RestoredState, RoundId, Status, Ticket, Timing, UnsavedState,
};
use crate::time::Instant;
use crate::types::{LogId, LogIndex, NodeId, Role, Term};

/// Proposals that may be uncommitted at once, and their weight.
const UNCOMMITTED_ENTRIES_MAX: u64 = 16_384;
const UNCOMMITTED_BYTES_MAX: usize = 64 << 20;

/// Entries that may be handed out to be applied at once.
const UNAPPLIED_MAX: u64 = 4_096;

/// No cluster lives to see this term; a message that names a later one is not to be believed, and
/// counting on from it would end in an overflow.
const TERM_MAX: Term = Term(1 << 62);

/// One replica's consensus: a pure value that takes time and messages, and gives effects.
///
/// Three laws for who drives it: drain [`Self::poll_output`] after handling, report what became
/// durable and applied, and never lie about time. `now` is read after the batch of inputs was
/// taken from its queues and before anything is sent; within a batch, `Tick` is handled last.
#[derive(Debug)]
pub struct Consensus {
    pub(super) id: NodeId,
    pub(super) timing: Timing,
    pub(super) rng: fastrand::Rng,
    /// The newest reading that was handed in.
    pub(super) now: Instant,

    pub(super) hard: HardState,
    /// `hard` has changed since it was last handed out to be written.
    pub(super) hard_unsaved: bool,
    /// The ticket under which it was last handed out.
    hard_ticket: Ticket,
    issued: Ticket,
    persisted: Ticket,
    /// When each ticket was issued that has not come back: how long the disk has been silent.
    writing: VecDeque<(Ticket, Instant)>,

    pub(super) log: Log,
    pub(super) commit: LogIndex,
    pub(super) handed_out: LogIndex,
    /// A state that was received as of this entry, to be handed out once the log is durable there.
    pub(super) installing: Option<LogId>,
    pub(super) applied: LogIndex,
    applied_at_start: LogIndex,

    pub(super) promise: VotePromise,
    pub(super) role: RoleState,
    pub(super) election_due: Instant,
    pub(super) next_round: u64,
    /// Names of our questions count beside those of rounds, with the same drawn upper bits: the
    /// two are never compared.
    pub(super) next_name: u64,
    pub(super) quarantine: Option<Quarantine>,
    /// See [`Consensus::is_unproven`].
    pub(super) unproven: bool,
    /// Where its log began.
    pub(super) origin: Origin,
    /// See [`Consensus::diverged`].
    pub(super) diverged: Option<LogIndex>,
    /// The initial members whose vote was missing when the last attempt to bootstrap ended.
    pub(super) bootstrap_awaits: BTreeSet<NodeId>,
    /// See [`RestoredState::bootstrap_command`]; empty once the log holds an entry.
    pub(super) bootstrap_command: Bytes,
    pub(super) retired: bool,
    pub(super) tripped: bool,
    /// See `StickyTransferFlag`.
    #[cfg(leasehold_bugs)]
    pub(super) sticky_transfer: Option<Term>,
    /// See `CandidacyGoesOn`.
    #[cfg(leasehold_bugs)]
    pub(super) candidacy: Option<crate::raft::role::Campaign>,
    /// What others acknowledged when this replica last led them (A28).
    pub(super) reminders: BTreeMap<NodeId, Reminder>,
    /// No leader of a later term has replaced anything of this log.
    pub(super) replaced_in: Term,
    /// A vote that was given and is not yet durable.
    pub(super) grant: Option<Envelope>,
    /// Reads that wait for the word of a leader that is not us.
    pub(super) read_index: ReadIndexQueues,
    /// When a leader was last heard.
    pub(super) heard_leader_at: Instant,
    /// How old the applied state can be.
    pub(super) staleness: StalenessTracker,
    /// The read lease that it holds of its leader.
    pub(super) holder: Holder,

    pub(super) published: Arc<Published>,
    pub(super) outputs: VecDeque<Output>,
    pub(super) unflushed: bool,
}

/// A replica that lost part of its log neither votes, campaigns nor acknowledges until it durably
/// holds everything that may have been committed with its help (A23).
///
/// It still promises: a promise is kept by not voting, and what it needs for that (term, vote and
/// the longest promise) is in the vote file, which is whole.
#[derive(Clone, Debug, Hash)]
pub(super) struct Quarantine {
    /// Names this life of the process, so that an answer to an older one does not count.
    pub(super) nonce: u64,
    /// What a leader, confirmed by a quorum after it was asked, says must be held.
    pub(super) through: Option<LogIndex>,
    /// The vote file is lost as well: what it promises now says nothing of what it voted before,
    /// so no quorum may count it until it is out of quarantine.
    pub(super) forgot_votes: bool,
    /// A leader has said so: the data directory does not know it yet (A28).
    pub(super) was_told: bool,
}

/// Where the log of a replica began, as far as that matters while it is unproven.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Origin {
    /// 0; or the last entry of the backup that it was restored from.
    pub(super) index: LogIndex,
    /// 0; or the hash of that backup.
    pub(super) hash: u128,
}

impl Origin {
    fn new(base: LogId, restored_from: Option<u128>) -> Self {
        match restored_from {
            Some(hash) => Self {
                index: base.index,
                hash,
            },
            None => Self {
                index: LogIndex(0),
                hash: 0,
            },
        }
    }
}

impl Consensus {
    /// The replica as it was found on its disks. `seed` draws election timeouts and names of
    /// rounds, and must differ from start to start. `now` is read after the data directory is
    /// locked (A3): from it on, no vote is given for as long as an earlier life can have promised.
    // Long: whether anything acknowledged may be gone is decided from all of it at once, and each
    // line of the struct follows from that.
    pub fn new(
        id: NodeId,
        timing: Timing,
        restored: RestoredState,
        seed: u64,
        now: Instant,
    ) -> Self {
        let RestoredState {
            hard_state: mut hard,
            base,
            base_configuration,
            entries,
            applied,
            quarantined,
            unproven,
            restored_from,
            diverged,
            lease_tripped,
            bootstrap_command,
        } = restored;
        let (log, fit) = Log::restore(base, base_configuration, entries);
        let last = log.last();

        // Each of these means that something acknowledged may be gone. The vote file is written
        // before the log, and nothing is applied that is not durable, so neither can lag.
        // An unproven replica that holds entries met an older cluster before it was stopped.
        let origin = Origin::new(base, restored_from);
        let unproven = unproven && !(restored_from.is_some() && planted!(RestoredUnmarked));
        let lost_all = unproven && last.index > origin.index;
        let damaged =
            quarantined || lost_all || !fit || hard.term < last.term || applied > last.index;
        let damaged = damaged && !planted!(QuarantineIgnored);
        // Of one that may have lost everything before its log was damaged, too, and of one whose vote
        // file is older than its log.
        let forgot_votes = unproven || hard.term < last.term;
        let forgot_votes = forgot_votes && !(planted!(SilenceOverByRestart) && damaged);
        if hard.term < last.term {
            hard.term = last.term;
            hard.vote = None;
        }
        let silence = hard.promise_floor.max(timing.lease_duration);
        let hard_unsaved = hard.promise_floor < silence;
        hard.promise_floor = silence;
        let silence = match () {
            () if planted!(NoBlackout) => Duration::ZERO,
            () if planted!(HalfBlackout) => silence / 2,
            () if planted!(OwnBlackout) => timing.lease_duration,
            () if planted!(FirstBootSpeaks) && hard.term == Term(0) => Duration::ZERO,
            () => silence,
        };
        planted!(VoteForgotten => hard.vote = None);

        let mixed = seed ^ now.boot.rotate_left(32) ^ id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut rng = fastrand::Rng::with_seed(mixed);
        // The upper bits are drawn, the lower count: no name is ever used twice.
        let next_round = (rng.u64(..) >> 1) & !0xf_ffff;
        let next_round = if planted!(RoundsRepeat) {
            1
        } else {
            next_round
        };
        let quarantine = damaged.then(|| Quarantine {
            nonce: rng.u64(..),
            through: None,
            forgot_votes,
            was_told: false,
        });
        // The end of a damaged log may be one that had been cut, and say something else than what
        // was applied: nothing of it is known to be committed until a leader confirms it.
        let applied_here = match damaged {
            true if !planted!(DamageKeepsCommit) => base.index,
            _ => applied.clamp(base.index, last.index),
        };
        // A state machine that ends before the log begins holds nothing that may be built upon.
        let lacks_state = applied < base.index && !planted!(LackOfStateUnnoticed);
        let held = |index: LogIndex| match lacks_state {
            true => applied,
            false => index,
        };

        let mut consensus = Self {
            id,
            timing,
            rng,
            now,
            hard,
            hard_unsaved,
            hard_ticket: Ticket(0),
            issued: Ticket(0),
            persisted: Ticket(0),
            writing: VecDeque::new(),
            log,
            commit: applied_here,
            handed_out: held(applied.max(base.index)),
            installing: None,
            applied: held(applied_here),
            applied_at_start: applied,
            promise: VotePromise::at_start(now, silence, timing.earlier_votes_count()),
            role: RoleState::Follower(Follower::default()),
            election_due: now,
            next_round,
            next_name: if planted!(NamesRepeat) { 1 } else { next_round },
            unproven: unproven && !damaged,
            quarantine,
            origin,
            diverged,
            bootstrap_awaits: BTreeSet::new(),
            bootstrap_command,
            retired: false,
            tripped: lease_tripped,
            #[cfg(leasehold_bugs)]
            sticky_transfer: None,
            #[cfg(leasehold_bugs)]
            candidacy: None,
            reminders: BTreeMap::new(),
            // What an earlier life received is not known: it was of a term that it knew of.
            replaced_in: hard.term,
            grant: None,
            read_index: ReadIndexQueues::default(),
            heard_leader_at: now,
            staleness: StalenessTracker::default(),
            holder: Holder::new(timing.read_lease_enabled),
            published: Arc::default(),
            outputs: VecDeque::new(),
            unflushed: true,
        };
        consensus.restart_election_timer();
        consensus.publish();
        consensus
    }

    /// Handles one input. Total: no message makes it fail.
    pub fn handle(&mut self, now: Instant, input: Input) {
        self.observe(now);
        match input {
            Input::Message(envelope) => self.receive(envelope),
            Input::Persisted(ticket) => self.persisted(ticket),
            Input::Applied(index) => self.applied(index),
            Input::Compact(through) => self.compact(through),
            Input::SnapshotReceived(base) => self.snapshot_received(base),
            Input::SnapshotSent(peer) => self.snapshot_sent(peer),
            Input::Tick => self.tick(),
        }
        self.settle();
    }

    /// The next effect; drain after every batch.
    pub fn poll_output(&mut self) -> Option<Output> {
        if self.unflushed {
            self.unflushed = false;
            self.flush();
        }
        self.outputs.pop_front()
    }

    /// When to call `handle(Tick)`: once both clocks have reached it. (So sleep for
    /// `poll_timeout().at_most_since(now)`.)
    pub fn poll_timeout(&self) -> Instant {
        let due = match &self.role {
            RoleState::Leader(leader) => [
                Some(leader.heartbeat_due),
                Some(leader.lease.quorum_at() + self.timing.step_down_after),
                leader.lease.runs_out_at(),
                leader.transfer.as_ref().map(|transfer| transfer.until),
                leader
                    .grants
                    .due(self.timing.read_lease_max_write_delay, &leader.peers),
            ],
            _ => [
                (self.may_campaign() || self.known_leader().is_some()).then_some(self.election_due),
                (!self.read_index.is_empty()).then(|| self.reads_wait_until()),
                self.silence_until(),
                None,
                None,
            ],
        };
        // The readings of two instants are never mixed: that would be due before either is.
        let due = due.into_iter().flatten();
        due.min_by_key(|due| due.at_most_since(self.now))
            .unwrap_or(Instant::NEVER)
    }

    /// When the silence of a replica is over that has forgotten its votes.
    fn silence_until(&self) -> Option<Instant> {
        let quarantine = self.quarantine.as_ref()?;
        let is_silent = quarantine.forgot_votes && !self.promise.earlier_votes_are_over(self.now);
        is_silent.then(|| self.promise.earlier_votes_until())
    }

    /// Appends a command, as leader. The place is its own for ever, but only `Output::Commit` says
    /// that the command has it.
    ///
    /// # Errors
    /// Refused proposals were not appended.
    pub fn propose(&mut self, now: Instant, command: Bytes) -> Result<LogId, ProposalError> {
        self.observe(now);
        let leader = self.known_leader();
        let RoleState::Leader(leading) = &mut self.role else {
            return Err(ProposalError::NotLeader { leader });
        };
        if leading.transfer.is_some() {
            return Err(ProposalError::Transferring);
        }
        if command.len() > COMMAND_BYTES_MAX {
            return Err(ProposalError::TooLarge);
        }
        let uncommitted = self.log.last().index.0 - self.commit.0;
        if uncommitted >= UNCOMMITTED_ENTRIES_MAX
            || leading.uncommitted_bytes >= UNCOMMITTED_BYTES_MAX
        {
            return Err(ProposalError::Busy);
        }
        leading.uncommitted_bytes += command.len();
        self.unflushed = true;
        Ok(self.log.append(self.hard.term, Payload::Command(command)))
    }

    /// Asks for a permit: of the lease, or by a quorum round, as `mode` says; where this node does
    /// not lead, of its leader. The answer is an `Output::Permit` or `Output::RefuseRead` with this
    /// `id`. A node without a leader waits for one, for an election timeout.
    ///
    /// # Errors
    /// Refused reads get no such answer.
    pub fn read(&mut self, now: Instant, id: ReadId, mode: ReadMode) -> Result<(), ProposalError> {
        self.observe(now);
        let leader = self.known_leader();
        let RoleState::Leader(leading) = &mut self.role else {
            let deserted = now.certainly_after(self.reads_wait_until());
            if deserted || !self.counts() {
                return Err(ProposalError::NotLeader { leader });
            }
            if self.read_index.is_full() {
                return Err(ProposalError::Busy);
            }
            self.read_index.push(mode, id);
            self.unflushed = true;
            return Ok(());
        };
        if mode != ReadMode::Quorum {
            if let Some(permit) = leading.lease.cell().check(now, self.commit) {
                self.outputs.push_back(Output::Permit(id, permit));
                return Ok(());
            }
            if mode == ReadMode::Lease {
                self.published.lease_counters().rejected();
                let refusal = Output::RefuseRead(id, ReadRefusal::LeaseVoid);
                self.outputs.push_back(refusal);
                return Ok(());
            }
        }
        if leading.reads.is_full() {
            return Err(ProposalError::Busy);
        }
        leading.reads.push(Reader::Local(id, mode), self.commit);
        self.unflushed = true;
        Ok(())
    }

    /// Transfers leadership to `target`, or to the most up-to-date voter, and returns the target.
    ///
    /// Proposals are refused until the hand-over succeeds or, after an election timeout, is given
    /// up; the lease of this term ends when `TimeoutNow` is sent, and stays ended (P9).
    ///
    /// # Errors
    /// Refused transfers change nothing.
    pub fn transfer(
        &mut self,
        now: Instant,
        target: Option<NodeId>,
    ) -> Result<NodeId, ProposalError> {
        self.observe(now);
        let target = self.begin_transfer(target, false)?;
        self.settle();
        Ok(target)
    }

    /// Transfers leadership to the most up-to-date voter, as [`Consensus::transfer`], by a leader that
    /// cannot apply what is committed: it does not wait for that. Its requests learn their results from
    /// its successor, or not at all.
    ///
    /// # Errors
    /// Refused transfers change nothing.
    pub fn transfer_unapplied(&mut self, now: Instant) -> Result<NodeId, ProposalError> {
        self.observe(now);
        let target = self.begin_transfer(None, true)?;
        self.settle();
        Ok(target)
    }

    /// Whether a hand-over is under way, be it to this node itself after one has failed.
    pub fn is_handing_over(&self) -> bool {
        matches!(&self.role, RoleState::Leader(leader) if leader.transfer.is_some())
    }

    /// Steps down and releases the voters' promises (P36). The node takes no further part as
    /// leader or candidate; it goes on following and voting.
    pub fn retire(&mut self, now: Instant) {
        self.observe(now);
        self.retired = true;
        let led = matches!(self.role, RoleState::Leader(_));
        let is_clear = self.has_no_grants() || planted!(ReleaseKeepsGrants);
        self.give_back_read_lease();
        if !planted!(ReleaseWhileServing) {
            self.leave_leadership(Invalidation::Retired);
        }
        if !matches!(self.role, RoleState::Follower(_)) {
            self.role = RoleState::Follower(Follower::default());
        }
        if led && is_clear {
            for peer in self.log.configuration().members() {
                self.send(peer, Message::Release);
            }
        }
        self.settle();
    }

    /// How long the disk has owed an answer, if for longer than a promise lasts. A node whose disk is
    /// so slow promises nothing, does not stand for election, and gives up leadership soon.
    pub fn stalled_disk(&self, now: Instant) -> Option<Duration> {
        let (_, issued) = self.writing.front()?;
        let silent = now.at_least_since(*issued);
        (silent > self.timing.lease_duration).then_some(silent)
    }

    /// Role, term, leader and log position.
    pub fn status(&self) -> Status {
        Status {
            role: self.role_now(),
            term: self.hard.term,
            leader: self.known_leader(),
            last: self.log.last(),
            commit: self.commit,
            ready: match &self.role {
                RoleState::Leader(leader) => self.applied >= leader.last_at_election,
                _ => false,
            },
        }
    }

    /// As leader: whether a quorum has answered a round so lately that a lease may rest on it,
    /// whether or not one does.
    pub(crate) fn has_quorum(&self, now: Instant) -> bool {
        match &self.role {
            RoleState::Leader(leader) => leader.lease.has_quorum(now),
            _ => false,
        }
    }

    /// The term that it leads, if it does: cheaper than [`Self::status`].
    pub(crate) fn leads_in(&self) -> Option<Term> {
        matches!(self.role, RoleState::Leader(_)).then_some(self.hard.term)
    }

    /// As leader: every other member, with how far it has acknowledged this log. Empty elsewhere.
    pub fn followers(&self) -> impl Iterator<Item = (NodeId, LogIndex)> {
        let peers = match &self.role {
            RoleState::Leader(leader) => Some(&leader.peers),
            _ => None,
        };
        let peers = peers.into_iter().flatten();
        peers.map(|(peer, progress)| (*peer, progress.matched))
    }

    /// What other threads may look at.
    pub fn published(&self) -> Arc<Published> {
        self.published.clone()
    }

    /// The configuration in force: the last one in the log, committed or not.
    pub fn configuration(&self) -> &Configuration {
        self.log.configuration()
    }

    /// The configuration in force at `index`: what a state that ends there has to say of it. `None` if
    /// the log does not reach there, on either side.
    pub fn configuration_at(&self, index: LogIndex) -> Option<Configuration> {
        self.log.configuration_at(index).cloned()
    }

    /// Whether the configuration in force is known to be committed.
    pub fn is_configuration_committed(&self) -> bool {
        self.log.configuration_index() <= self.commit
    }

    /// Where the configuration in force stands in the log.
    pub fn configuration_index(&self) -> LogIndex {
        self.log.configuration_index()
    }

    /// Whether this node was a member and its removal is committed. It then takes no part except to
    /// answer messages, and should stop.
    pub fn is_removed(&self) -> bool {
        self.is_configuration_committed()
            && !self.log.configuration().is_member(self.id)
            && self.log.was_member(self.id)
    }

    /// Whether an assumption that leases rest on was seen to fail, here or in a life before, and
    /// no operator has said since that it holds again. While so, this node serves no leased reads
    /// (P37). To be remembered across restarts ([`RestoredState::lease_tripped`]).
    pub fn lease_tripped(&self) -> bool {
        self.tripped
    }

    /// How often that was seen since the start.
    pub fn lease_assumption_violations(&self) -> u64 {
        self.published.lease_counters().assumption_violations()
    }

    /// An operator has found the cause: leased reads are allowed again.
    pub fn clear_lease_tripwire(&mut self) {
        self.tripped = false;
        self.settle();
    }

    /// Whether this replica began with nothing and has stored nothing since.
    ///
    /// A member whose disks were emptied looks like one that starts for the first time, and must
    /// not vote: it has forgotten what it acknowledged (A23). So a replica that begins with nothing
    /// helps to elect only candidates that have nothing either, and at the first sign that the
    /// cluster exists already it goes into quarantine, like any other replica that lost its log.
    /// That it gave a vote, or asked for some, proves nothing: such an election may be in vain.
    /// Its first entry does: the first leader has the votes of all initial members (A25).
    pub fn is_unproven(&self) -> bool {
        self.unproven
    }

    /// Whether nothing was stored here since the cluster was new, or restored.
    pub(super) fn is_at_origin(&self) -> bool {
        self.log.last().index == self.origin.index
    }

    /// The initial members whose vote is missing, while the cluster is not bootstrapped and this node
    /// has tried.
    pub fn bootstrap_awaits(&self) -> &BTreeSet<NodeId> {
        &self.bootstrap_awaits
    }

    /// Whether this replica has voted for the leader of the present term. If it is unproven, that is
    /// one whose bootstrap it took part in: it gives no other its vote (A25).
    pub(super) fn has_elected(&self, leader: NodeId) -> bool {
        self.hard.vote == Some(leader)
    }

    /// The cluster is older than this replica's memory of it.
    pub(super) fn meet_an_older_cluster(&mut self) {
        if !std::mem::take(&mut self.unproven) {
            return;
        }
        if self.origin.index > LogIndex(0) {
            // Its cluster may have been restored from other data: it needs a whole state.
            (self.handed_out, self.applied) = (LogIndex(0), LogIndex(0));
        }
        let nonce = self.rng.u64(..);
        self.quarantine = Some(Quarantine {
            nonce,
            through: None,
            forgot_votes: true,
            was_told: false,
        });
        if !matches!(self.role, RoleState::Follower(_)) {
            self.role = RoleState::Follower(Follower::default());
        }
    }

    /// Whether this replica still waits to have back what its log lost (A23). Once this turns
    /// false, the mark of damage on disk may be removed.
    pub fn is_quarantined(&self) -> bool {
        self.quarantine.is_some()
    }

    // Inputs.

    fn receive(&mut self, envelope: Envelope) {
        let Envelope {
            from,
            to,
            term,
            message,
        } = envelope;
        if to != self.id || from == self.id || from == NodeId(0) || term > TERM_MAX {
            return self.published.refuse_message();
        }
        match message {
            // Neither may change the term before the gate has let it pass (P7).
            Message::PreVote(question) => self.handle_pre_vote(from, term, question),
            Message::Vote(question) => self.handle_vote(from, term, question),
            // A leader may be unknown here: our configuration may be older than its.
            Message::Heartbeat(heartbeat) => self.handle_heartbeat(from, term, heartbeat),
            Message::Append(append) => self.handle_append(from, term, append),
            Message::Release => self.handle_release(from, term),
            // Whether it means anything depends on the term that this replica is in.
            Message::Reminder(reminder) => self.handle_reminder(from, term, reminder),
            // The replica around this takes it out; it is nothing to elections or the log.
            Message::StateHash(_) => {}
            other => self.receive_in_term(from, term, other),
        }
    }

    /// Messages that members send to each other about a term that both are in.
    fn receive_in_term(&mut self, from: NodeId, term: Term, message: Message) {
        if !self.is_expected(from) {
            return self.published.refuse_message();
        }
        if term > self.hard.term {
            return self.adopt(term);
        }
        planted!(CandidacyGoesOn => self.count_pre_vote_as_follower(from, &message));
        let current = term == self.hard.term
            || planted!(OldTermAck)
                && matches!(message, Message::HeartbeatReply(_) | Message::Appended(_))
            || planted!(LateTransferWord) && matches!(message, Message::TimeoutNow(_));
        match (&self.role, message) {
            // The sender may be in an earlier term than ours.
            (RoleState::PreCandidate(_), Message::PreVoteReply(reply)) => {
                self.handle_pre_vote_reply(from, reply);
            }
            (RoleState::Candidate(_), Message::VoteReply(reply)) if current => {
                self.handle_vote_reply(from, reply);
            }
            (RoleState::Leader(_), Message::HeartbeatReply(reply)) if current => {
                self.handle_heartbeat_reply(from, reply);
            }
            (RoleState::Leader(_), Message::Appended(reply)) if current => {
                self.handle_appended(from, reply);
            }
            (RoleState::Leader(_), Message::Rejoin(question)) if current => {
                self.handle_rejoin(from, question);
            }
            (RoleState::Follower(_), Message::RejoinReply(reply)) if current => {
                self.handle_rejoin_reply(from, reply);
            }
            (RoleState::Follower(_), Message::Forgotten(round)) if current => {
                self.handle_forgotten(from, round);
            }
            (RoleState::Follower(_), Message::Recall) if current => self.handle_recall(from),
            (RoleState::Leader(_), Message::Returned(through)) if current => {
                self.handle_returned(from, through);
            }
            (RoleState::Leader(_), Message::NeedState) if current => self.handle_need_state(from),
            (RoleState::Leader(_), Message::ReadIndex(question)) if current => {
                self.handle_read_index(from, question);
            }
            (RoleState::Follower(_), Message::ReadIndexReply(reply)) if current => {
                self.handle_read_index_reply(from, reply);
            }
            (RoleState::Follower(_), Message::TimeoutNow(order)) if current => {
                self.handle_timeout_now(from, order);
            }
            // A late reply to an earlier role or term.
            _ => {}
        }
    }

    /// Whether answers and orders of `from` are accepted: it is a member; or it is the leader we
    /// follow, which may have removed itself or added us in a configuration that we lack; or it is a
    /// removed peer that is still being notified.
    fn is_expected(&self, from: NodeId) -> bool {
        self.log.configuration().is_member(from)
            || match &self.role {
                RoleState::Leader(leader) => leader.peers.contains_key(&from),
                RoleState::Follower(follower) => follower.leader == Some(from),
                _ => false,
            }
    }

    fn persisted(&mut self, ticket: Ticket) {
        let ticket = ticket.min(self.issued);
        self.persisted = self.persisted.max(ticket);
        self.log.persisted(ticket);
        while self.writing.front().is_some_and(|(t, _)| *t <= ticket) {
            self.writing.pop_front();
        }
        if self.hard_is_durable() {
            self.count_own_vote();
        }
    }

    fn applied(&mut self, index: LogIndex) {
        self.applied = self
            .applied
            .max(index.min(self.handed_out).min(self.commit));
    }

    fn tick(&mut self) {
        if let RoleState::Leader(_) = self.role {
            self.tick_leader();
            return self.give_up_reads();
        }
        self.give_up_reads();
        if !self.now.certainly_after(self.election_due) {
            return;
        }
        if self.may_campaign() {
            self.handle_election_timeout();
        } else if self.known_leader().is_some() {
            // A node that may not campaign still forgets a leader that fell silent or released it.
            self.role = RoleState::Follower(Follower::default());
            self.read_index.ask_again();
        }
    }

    /// Everything that follows from a change of state.
    pub(super) fn settle(&mut self) {
        self.leave_quarantine();
        self.check_read_lease();
        if !self.is_at_origin() {
            self.unproven = false;
            self.bootstrap_awaits.clear();
        }
        if !self.log.is_empty() {
            self.bootstrap_command.clear();
        }
        planted!(ConfigurationAtCommit => self.log.committed = self.commit);
        if matches!(self.role, RoleState::Leader(_)) {
            self.drive_read_leases();
            self.advance_commit();
            self.drive_change();
            self.drive_transfer();
            self.recompute_lease();
            self.answer_reads();
        }
        self.staleness
            .settle(self.applied, &self.published.staleness);
        self.publish();
        self.unflushed = true;
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
    }

    // Changes of term and role.

    /// Enters `term`, in memory at once: from here on no leader of an earlier term gets a promise
    /// (P38). The promise made so far stays (P6).
    pub(super) fn adopt(&mut self, term: Term) {
        debug_assert!(term > self.hard.term);
        self.void_read_lease(Invalidation::StepDown);
        self.leave_leadership(Invalidation::StepDown);
        planted!(PromiseDropped => self.promise = VotePromise::at_start(self.now, Duration::ZERO, Duration::ZERO));
        self.hard.term = term;
        self.hard.vote = None;
        self.hard_unsaved = true;
        self.grant = None;
        self.role = RoleState::Follower(Follower::default());
        self.read_index.ask_again();
    }

    /// Stops leading, if it did: the lease first, before anything else is done or said (P23).
    pub(super) fn leave_leadership(&mut self, reason: Invalidation) {
        self.keep_reminders();
        let RoleState::Leader(leader) = &mut self.role else {
            return;
        };
        let removed = reason == Invalidation::ConfigurationChanged;
        let deposed = removed && planted!(DeposedKeepsLease);
        if !planted!(StepDownKeepsLease) && !deposed {
            leader.lease.void(self.now, reason);
        }
        if !deposed {
            self.published.end_lease();
        }
        self.published.grant_counters().end_leadership();
        // Local reads are sent to the next leader. A follower asks again by itself.
        for reader in leader.reads.drain() {
            if let Reader::Local(id, mode) = reader {
                self.read_index.push(mode, id);
            }
        }
        // A leader that lost its quorum may be partitioned: its reads should go elsewhere soon.
        if reason != Invalidation::QuorumLost {
            self.heard_leader_at = self.now;
        }
        self.role = RoleState::Follower(Follower::default());
        self.restart_election_timer();
    }

    /// An assumption that leases rest on has failed: no more leased reads here (P37).
    pub(super) fn trip(&mut self) {
        planted!(NoTripwire => return);
        self.published.lease_counters().violated();
        self.tripped = true;
        self.void_read_lease(Invalidation::Tripped);
        if let RoleState::Leader(leader) = &mut self.role {
            leader.lease.void(self.now, Invalidation::Tripped);
        }
    }

    // Time.

    /// Records the time. A clock that ran backwards is not corrected: it voids the lease,
    /// and every deadline is brought within its distance of the new reading (A4).
    pub(super) fn observe(&mut self, now: Instant) {
        if now.went_back_since(self.now) && !planted!(StepBackIgnored) {
            let published = self.published.clone();
            published.lease_counters().clock_went_back();
            self.promise.clock_went_back(now, self.hard.promise_floor);
            self.election_due = self
                .election_due
                .min(now + self.timing.election_timeout_max);
            for (_, issued) in &mut self.writing {
                *issued = issued.min(now);
            }
            self.heard_leader_at = self.heard_leader_at.min(now);
            self.read_index.clock_went_back(now);
            self.staleness.forget(&published.staleness);
            self.void_read_lease(Invalidation::ClockWentBack);
            match &mut self.role {
                RoleState::Leader(leader) => {
                    leader.clock_went_back(
                        now,
                        self.timing.lease_duration,
                        self.timing.election_timeout_max,
                    );
                }
                // It cannot be told any more how long ago it asked for votes.
                RoleState::Candidate(_) => {
                    if !planted!(CampaignOverStepBack) {
                        self.role = RoleState::Follower(Follower::default());
                    }
                }
                RoleState::PreCandidate(_) | RoleState::Follower(_) => {}
            }
        }
        self.now = now;
    }

    pub(super) fn restart_election_timer(&mut self) {
        let min = self.timing.election_timeout_min;
        let spread = self.timing.election_timeout_max - min;
        self.election_due = self.now + min + self.up_to(spread);
    }

    /// A random part of `longest`.
    pub(super) fn up_to(&mut self, longest: Duration) -> Duration {
        let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.rng.u64(0..=nanos))
    }

    /// A name for a round that was never used before.
    pub(super) fn fresh_round(&mut self) -> RoundId {
        let round = RoundId(self.next_round);
        self.next_round += 1;
        round
    }

    // Questions about the state.

    /// Whether this node may ever stand for election as things are.
    ///
    /// It must vote in the configuration in force; or in the one before, while it does not know
    /// the change to be committed. Else a change that only those on their way out hold would
    /// leave a cluster without anybody to elect: they hold more than the others, who need their
    /// votes (thesis, 4.2.2). Its own vote counts only where it is a voter.
    pub(super) fn may_campaign(&self) -> bool {
        let changing = self.log.configuration_index() > self.commit;
        let votes = self.log.configuration().is_voter(self.id)
            || changing && self.log.previous_configuration().is_voter(self.id);
        votes && !self.retired && self.counts() && !self.lacks_state()
    }

    /// Whether the disk has owed an answer for longer than `limit`.
    pub(super) fn disk_is_stalled(&self, limit: Duration) -> bool {
        let oldest = self.writing.front();
        oldest.is_some_and(|(_, issued)| self.now.certainly_after(*issued + limit))
    }

    /// Whether term, vote and promise floor are on disk as they are in memory.
    pub(super) fn hard_is_durable(&self) -> bool {
        !self.hard_unsaved && self.hard_ticket <= self.persisted
    }

    pub(super) fn known_leader(&self) -> Option<NodeId> {
        match &self.role {
            RoleState::Leader(_) => Some(self.id),
            RoleState::Follower(follower) => follower.leader,
            _ => None,
        }
    }

    fn role_now(&self) -> Role {
        match &self.role {
            RoleState::Leader(_) => Role::Leader,
            _ if self.quarantine.is_some() => Role::Quarantined,
            RoleState::PreCandidate(_) => Role::PreCandidate,
            RoleState::Candidate(_) => Role::Candidate,
            RoleState::Follower(_) if !self.log.configuration().is_voter(self.id) => Role::Learner,
            RoleState::Follower(_) => Role::Follower,
        }
    }

    // Effects.

    pub(super) fn send(&mut self, to: NodeId, message: Message) {
        if to != self.id {
            let envelope = self.envelope(to, message);
            self.outputs.push_back(Output::Send(envelope));
        }
    }

    pub(super) fn envelope(&self, to: NodeId, message: Message) -> Envelope {
        Envelope {
            from: self.id,
            to,
            term: self.hard.term,
            message,
        }
    }

    /// Collects every effect that follows from the state.
    fn flush(&mut self) {
        self.start_read_round();
        self.persist();
        match &self.role {
            RoleState::Leader(_) => self.flush_leader(),
            RoleState::Follower(_) => self.flush_follower(),
            _ => {}
        }
        if (self.hard_is_durable() || planted!(VoteBeforeSync))
            && let Some(grant) = self.grant.take()
        {
            debug_assert!(matches!(
                &grant.message,
                Message::VoteReply(reply) if reply.ballot == Ballot::Granted
            ));
            self.outputs.push_back(Output::Send(grant));
        }
        self.hand_out();
    }

    fn persist(&mut self) {
        if !self.hard_unsaved && !self.log.has_unsaved() {
            return;
        }
        let ticket = Ticket(self.issued.0 + 1);
        self.issued = ticket;
        self.writing.push_back((ticket, self.now));
        let hard_state = self.hard_unsaved.then_some(self.hard);
        if self.hard_unsaved {
            self.hard_unsaved = false;
            self.hard_ticket = ticket;
        }
        let (base, entries) = self.log.take_unsaved(ticket);
        let unsaved = UnsavedState {
            hard_state,
            base,
            entries,
        };
        self.outputs.push_back(Output::Persist(ticket, unsaved));
    }

    /// Hands out what is committed. Nothing is applied that this node does not hold durably: an
    /// applied index beyond the end of the log is then a proof of damage.
    fn hand_out(&mut self) {
        self.hand_out_state();
        let window = self.applied.max(self.applied_at_start).0 + UNAPPLIED_MAX;
        let end = self.commit.min(self.log.durable()).min(LogIndex(window));
        let end = if planted!(AppliedUnheld) {
            self.commit.min(LogIndex(window))
        } else {
            end
        };
        let end = if planted!(UncommittedShown) && self.role_now() == Role::Leader {
            self.log.durable().min(LogIndex(window))
        } else {
            end
        };
        if end <= self.handed_out || self.lacks_state() {
            return;
        }
        let entries = self.log.between(self.handed_out.next(), end);
        self.handed_out = end;
        if !entries.is_empty() {
            self.outputs.push_back(Output::Commit(entries));
        }
    }

    fn publish(&self) {
        let (role, leader) = (self.role_now(), self.known_leader());
        let last = match planted!(LastShownLate) {
            true => self.log.durable().min(self.commit),
            false => self.log.last().index,
        };
        self.published.show_last(last);
        self.published
            .update(self.commit, self.hard.term, role, leader);
    }

    /// What must hold after every input, whatever it was.
    fn check_invariants(&self) {
        let last = self.log.last();
        assert!(self.commit <= last.index, "only what exists is committed");
        assert!(
            self.applied <= self.commit,
            "only what is committed is applied"
        );
        assert!(self.log.durable() <= last.index);
        assert!(self.commit >= self.log.base().index);
        assert!(last.term <= self.hard.term, "no entry is from the future");
        assert!(self.hard.promise_floor >= self.timing.lease_duration);
        assert!(self.persisted <= self.issued);
        assert_eq!(self.published.commit(), self.commit);
        match &self.role {
            RoleState::Leader(leader) => {
                let cell = leader.lease.cell();
                assert_eq!(cell.term, self.hard.term);
                assert_eq!(self.hard.vote, Some(self.id), "a leader voted for itself");
                assert!(!self.retired, "who has retired does not lead");
                assert!(self.counts());
                assert!(!self.lacks_state());
                assert!(!leader.peers.contains_key(&self.id));
                if cell.until() != Instant::ZERO {
                    assert!(!leader.lease.is_burned(), "a burned lease is void");
                    assert!(!self.tripped && self.timing.lease_enabled);
                    assert!(self.applied >= leader.last_at_election);
                }
            }
            _ => assert!(self.published.lease().is_none(), "only leaders have leases"),
        }
    }
}
