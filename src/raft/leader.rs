//! What a leader does: rounds, replication, commitment, hand-over, and the answers to all three.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::raft::leader_lease::LeaderLease;
use crate::raft::log::Log;
use crate::raft::progress::{Progress, State};
use crate::raft::published::LeaseCell;
use crate::raft::read_lease::Grants;
use crate::raft::reads::{Reader, Reads};
use crate::raft::role::{Follower, Leader, RoleState, Transfer};
use crate::raft::{
    Append, AppendReply, Confirmation, Consensus, Entry, Envelope, Fresh, Heard, Heartbeat,
    HeartbeatReply, Invalidation, Message, Output, Payload, ProposalError, ReadIndex,
    ReadIndexReply, ReadMode, ReadPermit, ReadRefusal, Rejoin, RejoinReply, RoundId, TimeoutNow,
    Verdict,
};
use crate::time::Instant;
use crate::types::{LogId, LogIndex, NodeId};

/// Payload of one append; an entry that is larger travels alone.
pub(super) const APPEND_BYTES_MAX: usize = 1 << 20;

/// Questions of one follower that may wait for a quorum round; it asks again what is dropped.
const QUESTIONS_MAX: usize = 64;

/// Payload of an append that may well be refused.
const PROBE_BYTES_MAX: usize = 4 << 10;

impl Consensus {
    /// The candidate has its quorum, its own durable vote in it.
    pub(super) fn become_leader(&mut self) {
        let nobody = RoleState::Follower(Follower::default());
        let RoleState::Candidate(campaign) = std::mem::replace(&mut self.role, nobody) else {
            unreachable!("only candidates count votes");
        };
        let last = self.log.last().index;
        let counters = self.published.lease_counters().clone();
        let cell = LeaseCell::new(self.hard.term, last, self.timing.trusted_lease(), counters);
        let mut lease = LeaderLease::new(cell, self.timing.trusted_lease(), self.now);
        let mut peers = unknown_peers(self.log.configuration().members(), self.id, last, self);
        if campaign.transfer_from.is_some() || planted!(VotesArePromises) {
            // Voters who knew of the hand-over promised with their vote (H1).
            lease.begin(campaign.round, campaign.created);
            for peer in campaign.promised {
                if let Some(progress) = peers.get_mut(&peer) {
                    progress.promised(campaign.round);
                }
            }
        }
        planted!(RoundsStartOver => self.next_round = 1);
        self.published.begin_lease(lease.cell().clone());
        self.role = RoleState::Leader(Box::new(Leader {
            peers,
            leaving: BTreeMap::new(),
            lease,
            grants: Grants::default(),
            last_at_election: last,
            reads: Reads::default(),
            transfer: None,
            heartbeat_due: self.now,
            announce: false,
            uncommitted_bytes: 0,
        }));
        let first = match self.log.is_empty() && !self.bootstrap_command.is_empty() {
            true => Payload::Command(std::mem::take(&mut self.bootstrap_command)),
            false => Payload::Noop,
        };
        self.log.append(self.hard.term, first);
        self.take_over_waiting_reads();
        self.begin_round();
    }

    /// Takes over the reads that waited for a leader's confirmation. The next round is created after
    /// they arrived, so it can confirm them.
    fn take_over_waiting_reads(&mut self) {
        for (mode, read) in self.read_index.take_all() {
            if mode == ReadMode::Lease {
                // The lease is not valid yet, and a lease-only read does not wait.
                let refusal = Output::RefuseRead(read, ReadRefusal::LeaseVoid);
                self.outputs.push_back(refusal);
            } else if let RoleState::Leader(leader) = &mut self.role {
                leader.reads.push(Reader::Local(read, mode), self.commit);
            }
        }
    }

    pub(super) fn tick_leader(&mut self) {
        // A sole voter always has its quorum.
        self.recompute_lease();
        let stalled = self.disk_is_stalled(self.timing.step_down_after);
        let stalled = stalled && !planted!(SilentDiskLeads);
        let RoleState::Leader(leader) = &mut self.role else {
            return;
        };
        let deserted = leader.lease.quorum_at() + self.timing.step_down_after;
        let alone = self.now.possibly_after(deserted) && !planted!(NoStepDown);
        if alone || stalled {
            // No more heartbeats, so that the voters it still reaches may elect another leader (P12).
            return self.leave_leadership(Invalidation::QuorumLost);
        }
        let now = self.now;
        let late = |transfer: &mut Transfer| now.certainly_after(transfer.until);
        planted!(ResumeBurn => leader.lease.burned &= !leader.transfer.as_mut().is_some_and(late));
        if leader.transfer.take_if(late).is_some() && self.is_deposed() {
            return self.resign();
        }
        self.forget_who_left();
        self.begin_own_succession();
        if let RoleState::Leader(leader) = &self.role
            && self.now.certainly_after(leader.heartbeat_due)
        {
            self.begin_round();
        }
    }

    /// Creates a round: its time is read before its name can be seen (N1).
    fn begin_round(&mut self) -> RoundId {
        let round = self.fresh_round();
        if let RoleState::Leader(leader) = &mut self.role {
            let created = if planted!(RoundStampedLate) {
                self.now + self.timing.heartbeat_interval
            } else {
                self.now
            };
            leader.lease.begin(round, created);
            leader.reads.assign(round);
            leader.announce = true;
            leader.heartbeat_due = self.now + self.timing.heartbeat_interval;
        }
        round
    }

    /// The newest round. Every message carries it.
    pub(super) fn newest_round(&self) -> RoundId {
        RoundId(self.next_round - 1)
    }

    // What peers answer.

    /// Records the promise, and returns the progress of its sender if the message is plausible.
    fn heard(&mut self, from: NodeId, heard: Heard) -> Option<&mut Progress> {
        let newest = self.newest_round();
        let RoleState::Leader(leader) = &mut self.role else {
            return None;
        };
        let known = leader.lease.knows(heard.round);
        #[cfg(leasehold_bugs)]
        let (heard, known) = planted_in_answer(heard, known, newest);
        let progress = leader.peers.get_mut(&from)?;
        if heard.round > newest {
            self.published.refuse_message();
            return None;
        }
        if heard.promised && known {
            progress.promised(heard.round);
        }
        Some(progress)
    }

    pub(super) fn handle_heartbeat_reply(&mut self, from: NodeId, reply: HeartbeatReply) {
        let (now, last) = (self.now, self.log.last().index);
        let longest = self.timing.election_timeout_max;
        let next_round = RoundId(self.next_round);
        if let Some(progress) = self.heard(from, reply.heard) {
            let before = progress.asked.name;
            if before.is_some_and(|before| !before.is_of_one_life_with(reply.name)) {
                progress.begins_anew(next_round);
            }
            progress
                .asked
                .named(now, reply.name, reply.wants_read_lease);
            let forgot = progress.forgot;
            if reply.verified <= last {
                progress.heard(now, reply.heard.round, reply.verified, longest);
            } else {
                self.published.refuse_message();
            }
            if forgot {
                self.say_what_it_forgot(from);
            }
        }
    }

    /// Tells a follower that its log lacks what it acknowledged here, until it asks what it must hold (A28).
    fn say_what_it_forgot(&mut self, peer: NodeId) {
        self.send(peer, Message::Forgotten(self.newest_round()));
    }

    pub(super) fn handle_appended(&mut self, from: NodeId, reply: AppendReply) {
        let last = self.log.last().index;
        let heartbeat = self.timing.heartbeat_interval;
        let told = match reply.verdict {
            Verdict::Durable(through) | Verdict::Held(through) => through,
            Verdict::Conflict(conflict) => conflict.base,
        };
        if told > last {
            return self.published.refuse_message();
        }
        let shared = match reply.verdict {
            Verdict::Conflict(conflict) => self.log.base_before(conflict),
            _ => told,
        };
        let Some(progress) = self.heard(from, reply.heard) else {
            return;
        };
        // Said by a life of that follower whose log is gone.
        if reply.heard.round < progress.counts_from && !planted!(EarlierLifeCounts) {
            return;
        }
        let round = reply.heard.round;
        match reply.verdict {
            Verdict::Durable(through) => progress.stored(through, true, round, heartbeat),
            Verdict::Held(through) => progress.stored(through, false, round, heartbeat),
            Verdict::Conflict(conflict) => {
                let lost = progress.lost_its_log(conflict.base, round);
                progress.refused(conflict.base, shared);
                if lost {
                    let forgot = progress.forgot;
                    self.published.count_lost_log();
                    if forgot {
                        self.say_what_it_forgot(from);
                    }
                }
            }
        }
    }

    /// A follower asks what its reads must see. The commit index is captured, and the lease judged,
    /// now: after the question arrived (F1, A11). A void lease is made good by a quorum
    /// round that is created after this.
    pub(super) fn handle_read_index(&mut self, from: NodeId, question: ReadIndex) {
        let RoleState::Leader(leader) = &mut self.role else {
            return;
        };
        let Some(progress) = leader.peers.get_mut(&from) else {
            return;
        };
        let ReadIndex { name, mode } = question;
        let cell = leader.lease.cell();
        let confirmed = match cell.check(self.now, self.commit) {
            Some(permit) if mode != ReadMode::Quorum => Some(Confirmation {
                index: if planted!(AnswerOfApplied) {
                    self.applied
                } else {
                    permit.index()
                },
                lease_remaining: permit.lease_remaining(),
            }),
            #[cfg(leasehold_bugs)]
            _ if planted!(AnswerUnconfirmed) && self.applied >= cell.floor => Some(Confirmation {
                index: self.commit.max(cell.floor),
                lease_remaining: Some(Duration::from_millis(1)),
            }),
            _ if mode == ReadMode::Lease => {
                self.published.lease_counters().rejected();
                None
            }
            _ => {
                if progress.questions < QUESTIONS_MAX && !leader.reads.is_full() {
                    progress.questions += 1;
                    let peer = from;
                    let reader = Reader::Follower { peer, name, mode };
                    leader.reads.push(reader, self.commit);
                }
                return;
            }
        };
        self.answer_question(from, name, mode, confirmed);
    }

    fn answer_question(
        &mut self,
        peer: NodeId,
        name: RoundId,
        mode: ReadMode,
        confirmed: Option<Confirmation>,
    ) {
        if let Some(Confirmation { index, .. }) = confirmed
            && let RoleState::Leader(leader) = &mut self.role
            && let Some(progress) = leader.peers.get_mut(&peer)
        {
            progress.awaits = progress.awaits.max(index);
        }
        let reply = ReadIndexReply {
            name,
            mode,
            confirmed,
        };
        self.send(peer, Message::ReadIndexReply(reply));
    }

    /// A damaged follower requests to rejoin (A23). Its acknowledgements from an earlier life are void
    /// from here on, including those still in flight: they name older rounds. Entries
    /// committed with it stay committed; it learns of them once a quorum has confirmed that we lead.
    pub(super) fn handle_rejoin(&mut self, from: NodeId, question: Rejoin) {
        let last = self.log.last().index;
        let nonce = question.nonce;
        planted!(RejoinUnconfirmed => {
            let through = self.commit;
            self.send(from, Message::RejoinReply(RejoinReply { nonce, through }));
        });
        let RoleState::Leader(leader) = &mut self.role else {
            return;
        };
        let Some(progress) = leader.peers.get(&from) else {
            return;
        };
        let reader = Reader::Rejoining { peer: from, nonce };
        if leader.reads.is_full() || leader.reads.contains(reader) {
            return;
        }
        let known = progress.rejoined == Some(nonce);
        leader.reads.push(reader, self.commit);
        if known {
            return;
        }
        let round = self.begin_round();
        if let RoleState::Leader(leader) = &mut self.role
            && let Some(progress) = leader.peers.get_mut(&from)
        {
            progress.forget(last, round, nonce);
        }
    }

    // What follows.

    /// Commits what a quorum holds durably and every holder of a read lease has acknowledged (RL4), if it
    /// is of this term (Raft, section 5.4.2); what came before is committed with it.
    pub(super) fn advance_commit(&mut self) {
        let RoleState::Leader(leader) = &mut self.role else {
            return;
        };
        let (id, durable) = (self.id, self.log.durable());
        let held = self.log.configuration().quorum_value(|voter| {
            if voter == id {
                planted!(LeaderCountsUnsynced => return Some(self.log.last().index));
                return Some(durable);
            }
            leader.peers.get(&voter).map(|progress| progress.matched)
        });
        let Some(quorum) = held else {
            return;
        };
        let gate = leader.grants.gate(&leader.peers, &leader.leaving);
        let held = gate.map_or(quorum, |gate| quorum.min(gate));
        let counters = self.published.grant_counters();
        let committed = self.commit.max(held);
        let stride = self.timing.read_lease_max_write_delay / 2;
        leader
            .grants
            .note_commit(self.now, quorum, committed, stride, counters);
        let its_own = self.log.term_at(held) == Some(self.hard.term);
        if held <= self.commit || !its_own && !planted!(OldTermsCounted) {
            return;
        }
        let mut index = self.commit.max(leader.last_at_election);
        while index < held {
            index = index.next();
            if let Some(Payload::Command(bytes)) = self.log.entry(index).map(|e| &e.payload) {
                leader.uncommitted_bytes = leader.uncommitted_bytes.saturating_sub(bytes.len());
            }
        }
        self.commit = held;
        planted!(ConfigurationAtCommit => self.log.committed = held);
    }

    /// Publishes what the promises of the configuration in force are worth now (P13).
    pub(super) fn recompute_lease(&mut self) {
        if self.log.configuration().is_sole_voter(self.id) {
            self.begin_round_alone();
        }
        let (id, newest) = (self.id, self.newest_round());
        let RoleState::Leader(leader) = &mut self.role else {
            return;
        };
        let promised = |voter: NodeId| {
            if voter == id {
                return Some(newest);
            }
            leader.peers.get(&voter).and_then(|progress| progress.ack)
        };
        let held = self.log.configuration().quorum_value(promised);
        #[cfg(leasehold_bugs)]
        let held = match planted!(LeaseHalf) {
            true => self.log.configuration().incoming_value(promised),
            false => held,
        };
        let ready = self.applied >= leader.last_at_election || planted!(LeaseReadyAtOnce);
        #[cfg(leasehold_bugs)]
        let ready = ready || planted!(LeaseReadyByCommit) && self.commit >= leader.last_at_election;
        let tripped = self.tripped && !planted!(TrippedServes);
        let trustworthy = ready && self.timing.lease_enabled && !tripped;
        leader.lease.recompute(self.now, held, trustworthy);
        if let Some(since) = leader.lease.held_since()
            && ready
        {
            let since = if planted!(LeaderAgeIsNow) {
                self.now
            } else {
                since
            };
            self.staleness.note(since, self.commit, &self.timing);
        }
    }

    /// A round that only we need answer. A lease of one is never endless: it is as old as our own
    /// reading of the clock (P16).
    fn begin_round_alone(&mut self) {
        let round = self.fresh_round();
        if let RoleState::Leader(leader) = &mut self.role {
            planted!(LoneLeaseForever => return leader.lease.begin(round, Instant::NEVER));
            leader.lease.begin(round, self.now);
            leader.reads.assign(round);
        }
    }

    /// Permits the reads whose round a quorum has answered.
    pub(super) fn answer_reads(&mut self) {
        let RoleState::Leader(leader) = &mut self.role else {
            return;
        };
        let floor = leader.last_at_election;
        let ready = self.applied >= floor || planted!(QuorumReadUnready);
        let (true, Some(held)) = (ready, leader.lease.held()) else {
            return;
        };
        let mut permitted = Vec::new();
        while let Some((reader, index)) = leader.reads.pop_answered(held) {
            let index = if planted!(QuorumReadNoFloor) {
                index
            } else {
                index.max(floor)
            };
            permitted.push((
                reader,
                ReadPermit::by_quorum(index, leader.lease.cell().term),
            ));
        }
        if leader.reads.has_leasable()
            && let Some(permit) = leader.lease.cell().check(self.now, self.commit)
        {
            let leasable = leader.reads.take_leasable().into_iter();
            permitted.extend(leasable.map(|reader| (reader, permit)));
        }
        for (reader, permit) in permitted {
            self.permit(reader, permit);
        }
    }

    fn permit(&mut self, reader: Reader, permit: ReadPermit) {
        let index = permit.index();
        match reader {
            Reader::Local(id, _) => self.outputs.push_back(Output::Permit(id, permit)),
            Reader::Follower { peer, name, mode } => {
                if let RoleState::Leader(leader) = &mut self.role
                    && let Some(progress) = leader.peers.get_mut(&peer)
                {
                    progress.questions = progress.questions.saturating_sub(1);
                }
                let confirmed = Confirmation {
                    index,
                    lease_remaining: permit.lease_remaining(),
                };
                self.answer_question(peer, name, mode, Some(confirmed));
            }
            Reader::Rejoining { peer, nonce } => {
                let reply = RejoinReply {
                    nonce,
                    through: index,
                };
                self.send(peer, Message::RejoinReply(reply));
            }
        }
    }

    /// Reads that arrived since share a round of their own.
    pub(super) fn start_read_round(&mut self) {
        let RoleState::Leader(leader) = &self.role else {
            return;
        };
        if leader.reads.want_round() {
            if !self.log.configuration().is_sole_voter(self.id) {
                self.begin_round();
            }
            self.recompute_lease();
            self.answer_reads();
        }
    }

    // Handing over.

    pub(super) fn begin_transfer(
        &mut self,
        target: Option<NodeId>,
        even_unapplied: bool,
    ) -> Result<NodeId, ProposalError> {
        let known = self.known_leader();
        let RoleState::Leader(leader) = &mut self.role else {
            return Err(ProposalError::NotLeader { leader: known });
        };
        if leader.transfer.is_some() {
            return Err(ProposalError::Transferring);
        }
        let voters = &self.log.configuration().voters;
        let fit = leader.peers.iter().filter(|(peer, progress)| {
            voters.contains(peer)
                && target.is_none_or(|target| target == **peer)
                && (target.is_some() || progress.ack.is_some())
        });
        // The most up to date; of equals the one heard of last.
        let best = fit.max_by_key(|(_, progress)| (progress.matched, progress.ack));
        let target = *best.ok_or(ProposalError::NoTarget)?.0;
        planted!(TransferPostponesStepDown => leader.lease.heard_a_quorum(self.now));
        leader.transfer = Some(Transfer {
            target,
            until: self.now + self.timing.election_timeout_max,
            even_unapplied,
            told: None,
        });
        Ok(target)
    }

    /// Tells the target as soon as it holds all that we hold, and all of it is committed; and applied
    /// here, so that requests get their replies, unless the transfer is for want of that. Before the
    /// word can leave, the lease of this term is gone for good (P9).
    pub(super) fn drive_transfer(&mut self) {
        let last = self.log.last();
        let RoleState::Leader(leader) = &mut self.role else {
            return;
        };
        let Some(transfer) = &mut leader.transfer else {
            return;
        };
        let is_applied = self.applied == last.index || transfer.even_unapplied;
        // Who is told may be elected past every promise that a read lease rests on (RL8).
        let is_clear = leader.grants.is_empty() || planted!(TransferKeepsGrants);
        let done = self.commit == last.index && is_applied && is_clear;
        if transfer.target == self.id {
            if done && leader.lease.has_quorum(self.now) {
                debug_assert!(leader.lease.is_burned());
                self.campaign(Some(self.hard.term));
            }
            return;
        }
        let Some(progress) = leader.peers.get(&transfer.target) else {
            leader.transfer = None;
            return;
        };
        let done = done && progress.matched == last.index;
        if transfer.told.is_some() || !done && !planted!(TransferHurried) {
            return;
        }
        let deposed = planted!(DeposedKeepsLease) && !self.log.configuration().is_voter(self.id);
        if !planted!(NoBurn) && !deposed {
            leader.lease.burn(self.now);
        }
        transfer.told = Some(last);
        let target = transfer.target;
        let order = TimeoutNow {
            last,
            commit: self.frontier(),
            id: self.next_round,
        };
        self.send(target, Message::TimeoutNow(order));
        if self.is_deposed() {
            self.leave_leadership(Invalidation::ConfigurationChanged);
        }
    }

    /// A hand-over that came to nothing leaves this term without a lease for good: the word to
    /// campaign may still arrive (P9). A lease needs a new term, so the leader succeeds itself: it
    /// takes no more proposals until all it holds is committed and applied, and then campaigns for
    /// the next term as the target would have.
    ///
    /// That is safe because a vote for term T + 1 may pass over promises exactly when the leader of
    /// T has no lease any more and will have none (P10, Theorem 1, step 5), and this leader burned its
    /// own before the first word of the transfer left, which is before this vote exists. Earlier
    /// leaders' leases ended before T was won. Should the late word still reach its target, both
    /// stand for the same term and a quorum elects one; or the target is in T + 1 already, and the
    /// word is for T. The voters promise with their votes, so the lease of T + 1 begins with its
    /// election, and no read waits longer than that takes (H1).
    ///
    /// An acknowledged cancellation by the target would do as well, but not where it matters most:
    /// when the target is gone.
    fn begin_own_succession(&mut self) {
        let votes = self.may_campaign();
        let RoleState::Leader(leader) = &mut self.role else {
            return;
        };
        let burned = leader.lease.is_burned() && leader.transfer.is_none();
        // Without voters that answer nothing would be won, and reads by quorum are all there is.
        if burned && votes && !planted!(NoOwnSuccession) && leader.lease.has_quorum(self.now) {
            leader.transfer = Some(Transfer {
                target: self.id,
                until: self.now + self.timing.election_timeout_max,
                even_unapplied: false,
                told: None,
            });
        }
    }

    // What goes out.

    /// What followers may commit: no more than this leader has applied, so that nothing can be seen
    /// anywhere before a leased read sees it here (A11).
    fn frontier(&self) -> LogIndex {
        match planted!(FrontierUnapplied) {
            true => self.commit,
            false => self.applied,
        }
    }

    /// Makes a new round known, and sends each follower what it lacks, as far as its window goes. One
    /// whose reads wait for what may be committed now is told so at once.
    pub(super) fn flush_leader(&mut self) {
        let heartbeat = Heartbeat {
            round: self.newest_round(),
            promise: self.timing.lease_duration,
            commit: self.frontier(),
            fresh: None,
        };
        let index = match planted!(FreshOfApplied) {
            true => heartbeat.commit,
            false => self.commit,
        };
        let terms = self.grant_terms();
        let RoleState::Leader(leader) = &mut self.role else {
            return;
        };
        let confirmed = leader.lease.is_live(self.now) || planted!(FreshUnconfirmed);
        let last = self.log.last().index;
        let announce = std::mem::take(&mut leader.announce);
        let mut granted = 0;
        let Leader {
            peers,
            grants,
            leaving,
            ..
        } = &mut **leader;
        for (peer, progress) in peers {
            let mut send = |message| {
                self.outputs.push_back(Output::Send(Envelope {
                    from: self.id,
                    to: *peer,
                    term: self.hard.term,
                    message,
                }));
            };
            let waits = progress.wants_notice(heartbeat.commit)
                || progress.told < heartbeat.commit && grants.contains(*peer);
            if announce || waits && progress.next > last {
                let name = progress.asked.name.filter(|_| confirmed);
                let terms = terms.filter(|_| !leaving.contains_key(peer));
                let grant = terms.and_then(|terms| grants.grant(*peer, progress, &terms));
                granted += u64::from(grant.is_some());
                let fresh = name.map(|name| Fresh { name, index, grant });
                progress.told = heartbeat.commit;
                send(Message::Heartbeat(Heartbeat { fresh, ..heartbeat }));
            }
            let mut needs_state = progress.needs_state;
            while progress.may_send(last) {
                let Some(append) = next_append(&self.log, progress, heartbeat) else {
                    needs_state = true;
                    break;
                };
                send(Message::Append(append));
            }
            if needs_state && progress.order_snapshot(self.now) {
                self.outputs.push_back(Output::SendSnapshot(*peer));
            }
        }
        if granted > 0 {
            self.bind_by_grants(granted);
        }
    }
}

/// What a follower is sent next; `None` if it needs what this log no longer holds.
fn next_append(log: &Log, progress: &mut Progress, heartbeat: Heartbeat) -> Option<Append> {
    let base = progress.next.previous();
    let term = log.term_at(base)?;
    let streams = matches!(progress.state, State::Stream { .. });
    let bytes_max = if streams {
        APPEND_BYTES_MAX
    } else {
        PROBE_BYTES_MAX
    };
    let entries = log.run(progress.next, bytes_max, streams);
    let through = entries.last().map_or(base, |entry| entry.id.index);
    progress.sent(through, heartbeat.round);
    progress.told = heartbeat.commit;
    Some(Append {
        heartbeat,
        base: LogId::new(base, term),
        base_checksum: log.entry(base).map(Entry::checksum),
        entries,
    })
}

impl Leader {
    /// The clock ran backwards: no round is worth anything, and the next is due at once.
    pub(super) fn clock_went_back(&mut self, now: Instant, promise: Duration, longest: Duration) {
        self.lease.clock_went_back(now);
        self.grants.clock_went_back(now, promise);
        for progress in self.peers.values_mut() {
            progress.ack = None;
            progress.clock_went_back();
        }
        for since in self.leaving.values_mut() {
            *since = (*since).min(now);
        }
        self.heartbeat_due = now;
        if let Some(transfer) = &mut self.transfer {
            transfer.until = transfer.until.min(now + longest);
        }
    }
}

#[cfg(leasehold_bugs)]
fn planted_in_answer(mut heard: Heard, known: bool, newest: RoundId) -> (Heard, bool) {
    if planted!(AnyAckIsNewest) || planted!(UnknownRoundIsNow) && !known {
        heard.round = newest;
        return (heard, true);
    }
    (heard, known)
}

/// Every member but `id`, and nothing known of any.
pub(super) fn unknown_peers(
    members: impl IntoIterator<Item = NodeId>,
    id: NodeId,
    last: LogIndex,
    consensus: &Consensus,
) -> BTreeMap<NodeId, Progress> {
    let heartbeat = consensus.timing.heartbeat_interval;
    let others = members.into_iter().filter(|member| *member != id);
    others
        .map(|peer| (peer, Progress::unknown(last, heartbeat)))
        .collect()
}
