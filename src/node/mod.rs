//! One replica: consensus, the replies of the state machine, and the requests that wait for them.
//!
//! [`Node`] is a pure value. It takes time and messages as arguments and gives effects back as
//! data; the server and the simulator drive the same code. It owns no store: entries go out as
//! [`Output::Apply`] and their replies come back as [`Input::Applied`], and a read goes out as a
//! [`ReadPermit`], the right to look, for the shell to use.
//!
//! What is missing in [`Node`] on purpose: the leased read. The session that received it takes the
//! steps of `leased_read` itself, over the published [`LeaseCell`](crate::raft::LeaseCell) and the
//! store; only reads that the lease does not cover, or whose index is not applied yet, arrive here
//! as requests.

mod compaction;
mod compactor;
mod corruption_checker;
mod etcd_urls;
mod io;
mod lease_queries;
mod lease_tracker;
mod leased_read;
mod leases;
mod members;
mod pending;
mod pending_members;
mod proposal_counts;
mod proposals;
mod quota;
pub mod recovery;
mod requests;
mod said_urls;
mod snapshots;
mod space_report;
mod state_check;
#[cfg(test)]
mod tests;
pub mod turn;
mod upgrade;
mod versions;
mod view;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::api::{
    Call, ClusterInfo, ErrorKind, Limits, MemberInfo, Request, RequestKind, ResponseHeader,
};
use crate::kv::access::Author;
use crate::kv::{Command, bootstraps};
use crate::raft;
use crate::raft::{
    Consensus, Entry, Envelope, Message, Payload, Published, ReadPermit, RestoredState, Timing,
};
use crate::time::Instant;
use crate::types::{BootstrapId, ClusterId, LogId, LogIndex, NodeId, RequestId, Role, SessionId};

pub use compactor::AutoCompaction;
pub use corruption_checker::StateCheck;
pub use io::{Input, InstalledSnapshot, Output};
pub use lease_queries::{QueriedLease, QueriedLeases};
pub use lease_tracker::{
    LEASE_BATCH_MAX, Lapse, LeaseCounts, LeaseOptions, LeaseTracker, RENEWALS_SAMPLED, Renewals,
};
pub use leased_read::{
    Answer, Captured, Demand, Judged, Looked, Read, ReadBuffer, ReadResult, Reader, Source,
    path_of, wants_lease,
};
pub use members::{known, members_of};
pub use proposal_counts::Proposals;
pub use space_report::SpaceReport;
pub use view::{LeaseTotals, MembersInForce, NodeView};

use compactor::Compactor;
use corruption_checker::CorruptionChecker;
use lease_queries::Leases;
use pending::PendingRequests;
use pending_members::PendingMembers;
use said_urls::SaidUrls;
use space_report::KnownSpace;
use versions::Upgrade;
use view::SharedConfiguration;

/// Interval at which the leader records the end of the log, to find sessions unused since then.
const SESSION_SAMPLE_INTERVAL: Duration = Duration::from_secs(60);

/// The refusal of a replica whose state must not be served.
pub const STATE_DIFFERS: &str = "the state of this node differs from the others, so it serves no \
                                 requests until this is resolved: use another node";

/// The fixed configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The cluster's identity.
    pub cluster_id: ClusterId,
    /// This member.
    pub id: NodeId,
    /// The cluster's first members, as configured on every node alike.
    pub members: Vec<MemberInfo>,
    /// Timeouts of consensus.
    pub timing: Timing,
    /// What requests may cost.
    pub limits: Limits,
    /// Maximum number of requests waiting in this node; further ones get `SlowDown`. An eighth is
    /// reserved for lease renewals and operators.
    pub waiting_max: usize,
    /// Maximum number of sessions; further ones are refused.
    pub sessions_max: u32,
    /// How long a session may stay unused before the leader proposes to forget it.
    pub session_idle_max: Duration,
    /// The limits of client leases.
    pub leases: LeaseOptions,
    /// The automatic compaction.
    pub auto_compaction: AutoCompaction,
    /// How often replicas compare their states, if at all.
    pub check_interval: Option<Duration>,
    /// Draws the election timeouts.
    pub seed: u64,
    /// Drawn at random at this start: names the bootstrap, if this node is the first leader (A25).
    pub bootstrap: BootstrapId,
}

/// One replica.
pub struct Node {
    options: NodeOptions,
    consensus: Consensus,
    pending: PendingRequests,
    /// So far; those that wait are counted where they wait.
    proposals: Proposals,
    leases: Leases,
    members: PendingMembers,
    /// The reading with which the last input was handled.
    now: Instant,
    outputs: VecDeque<Output>,
    applied: LogIndex,
    /// The store's revision there.
    revision: i64,
    /// Which bootstrap of its cluster it comes from, as soon as that is committed.
    bootstrap: Option<BootstrapId>,
    /// As leader: how far the log had come at past instants, oldest first.
    session_samples: VecDeque<(Instant, LogIndex)>,
    compactor: Compactor,
    checker: CorruptionChecker,
    space: KnownSpace,
    upgrade: Upgrade,
    etcd_urls: SaidUrls,
    /// For [`Node::view`].
    shared_configuration: SharedConfiguration,
}

impl Node {
    /// A node as its disks left it. `bootstrap` is what they say of its cluster's, `revision` how far the
    /// store has come; `now` is read after the data directory is locked.
    pub fn new(
        options: NodeOptions,
        mut restored: RestoredState,
        bootstrap: Option<BootstrapId>,
        revision: i64,
        now: Instant,
    ) -> Self {
        let applied = restored.applied;
        if bootstrap.is_none() {
            let command = Command::BootstrapAs {
                bootstrap: options.bootstrap,
                info: ClusterInfo {
                    cluster_id: options.cluster_id,
                    members: options.members.clone(),
                },
            };
            restored.bootstrap_command = command.encode();
        }
        let consensus = Consensus::new(options.id, options.timing, restored, options.seed, now);
        let mut node = Self {
            compactor: Compactor::new(options.auto_compaction),
            checker: CorruptionChecker::default(),
            upgrade: Upgrade::default(),
            etcd_urls: SaidUrls::default(),
            pending: PendingRequests::new(options.waiting_max),
            proposals: Proposals::default(),
            leases: Leases::new(options.leases, &options.timing),
            members: PendingMembers::default(),
            now,
            options,
            consensus,
            outputs: VecDeque::new(),
            applied,
            revision,
            bootstrap,
            session_samples: VecDeque::new(),
            space: KnownSpace::default(),
            shared_configuration: SharedConfiguration::default(),
        };
        node.drain_consensus();
        node
    }

    /// Takes one input in. Drain [`Node::poll_output`] before the clock is read again.
    pub fn handle(&mut self, now: Instant, input: Input) {
        self.now = now;
        let applied_before = self.applied;
        let is_tick = matches!(input, Input::Tick);
        match input {
            Input::Message(Envelope {
                from,
                to,
                message: Message::StateHash(report),
                ..
            }) if to == self.options.id => {
                self.hear_hash(from, report);
                self.judge(now);
            }
            Input::Message(envelope) => self.consensus.handle(now, raft::Input::Message(envelope)),
            Input::Persisted(ticket) => self.consensus.handle(now, raft::Input::Persisted(ticket)),
            Input::Applied(replies) => self.handle_applied(now, replies),
            Input::Request(id, call, author) => self.handle_request(now, id, call, author),
            Input::IdleSessions {
                unused_since,
                sessions,
            } => {
                self.forget_sessions(now, unused_since, sessions);
            }
            Input::Compact(truncation) => {
                let compact = raft::Input::Compact(truncation.through());
                self.consensus.handle(now, compact);
            }
            Input::SnapshotReceived(base) => {
                let received = raft::Input::SnapshotReceived(base);
                self.consensus.handle(now, received);
            }
            Input::SnapshotSent(peer) => {
                self.consensus.handle(now, raft::Input::SnapshotSent(peer));
            }
            Input::Installed(installed) => self.handle_installed(now, *installed),
            // The caller looks at the configuration, whatever the answer is.
            Input::Change(change) => _ = self.consensus.change(now, &change),
            Input::Retire => self.consensus.retire(now),
            Input::AskForReadLeases(asks) => self.consensus.ask_for_read_leases(now, asks),
            Input::Space(report) => self.judge_space(now, report),
            Input::PeerVersions(peer, versions) => self.upgrade.heard(peer, versions),
            Input::EtcdUrl(member, url) => self.etcd_urls.heard(member, url),
            Input::Tick => {
                self.consensus.handle(now, raft::Input::Tick);
                self.answer_transfers();
                self.expire_requests(now);
                self.forget_idle_sessions(now);
                self.compact_by_itself(now);
                self.compare_states(now);
            }
        }
        self.raise_version(now);
        self.record_etcd_urls(now);
        self.follow_leadership(now);
        if is_tick {
            self.tend_leases(now);
        }
        self.release_reads();
        self.answer_changes();
        self.give_up_on_lost_leadership();
        self.answer_transfers();
        self.check_handled(applied_before);
    }

    /// What must hold after every input.
    fn check_handled(&self, applied_before: LogIndex) {
        assert!(
            self.applied >= applied_before,
            "the applied index does not go back"
        );
        let promoted = self.leases.tracker.promoted_in();
        assert!(
            promoted.is_none() || promoted == self.consensus.leads_in(),
            "only the leader of this term keeps lease deadlines"
        );
        assert_eq!(
            self.pending.leadership,
            self.consensus.leads_in(),
            "requests wait on the leadership there is"
        );
        assert!(
            self.pending.len() <= self.options.waiting_max,
            "waiting requests are bounded"
        );
        self.pending.check();
    }

    /// The next effect, if any. Several inputs may be handled before the first one is asked for:
    /// then their effects are gathered, and a batch of writes costs one `Persist` and one message
    /// to each follower.
    pub fn poll_output(&mut self) -> Option<Output> {
        if self.outputs.is_empty() {
            self.drain_consensus();
        }
        self.outputs.pop_front()
    }

    /// When to call `handle` with [`Input::Tick`] at the latest.
    pub fn poll_timeout(&self) -> Instant {
        let mut timeout = self.consensus.poll_timeout();
        if let Some(deadline) = self.pending.next_deadline() {
            timeout = timeout.min(deadline);
        }
        timeout.min(self.leases_due())
    }

    /// How consensus stands.
    pub fn status(&self) -> raft::Status {
        self.consensus.status()
    }

    /// What other threads may look at: the commit index and the leader lease.
    pub fn published(&self) -> Arc<Published> {
        self.consensus.published()
    }

    /// Highest index whose replies this node has seen.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// How many requests wait inside.
    pub fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Which bootstrap of its cluster it comes from, if it knows.
    pub fn bootstrap(&self) -> Option<BootstrapId> {
        self.bootstrap
    }

    /// This node's consensus, for checkers that compare replicas.
    pub fn consensus(&self) -> &Consensus {
        &self.consensus
    }

    fn handle_request(&mut self, now: Instant, id: RequestId, call: Call, author: Option<Author>) {
        let deadline = now + Duration::from_millis(u64::from(call.timeout_ms));
        if call.timeout_ms == 0 {
            return self.refuse(
                id,
                ErrorKind::DeadlineExceeded,
                "the deadline passed before the request was processed",
            );
        }
        let spec = call.request.spec();
        if self.pending.is_full(spec.is_urgent()) {
            return self.refuse(
                id,
                ErrorKind::SlowDown { retry_after_ms: 20 },
                "too many requests are waiting on this node: retry shortly",
            );
        }
        if !self.state_check().is_sound() && spec.kind != RequestKind::Transfer {
            return self.refuse(id, ErrorKind::Corrupt, STATE_DIFFERS);
        }
        if let Request::MoveLeader { target } = call.request {
            return self.start_transfer(now, id, target, deadline);
        }
        match spec.kind {
            RequestKind::Write => self.start_write(now, id, &call, author, deadline),
            RequestKind::Read => self.start_read(now, id, &call),
            RequestKind::LeaseRead | RequestKind::KeepAlive => self.ask_leases(now, id, &call),
            RequestKind::MemberList => self.list_members(now, id, &call),
            RequestKind::MemberChange => self.start_change(now, id, &call.request, deadline),
            RequestKind::Transfer | RequestKind::Watch | RequestKind::Node | RequestKind::Login => {
                self.refuse(
                    id,
                    ErrorKind::Unsupported,
                    "this request is answered by the session that received it, not by consensus",
                )
            }
        }
    }

    fn start_transfer(
        &mut self,
        now: Instant,
        id: RequestId,
        target: Option<NodeId>,
        deadline: Instant,
    ) {
        match self.consensus.transfer(now, target) {
            Ok(_) => self
                .pending
                .add_transfer(id, self.consensus.status().term, deadline),
            Err(refused) => self.refuse_because(id, refused),
        }
    }

    /// Looks for the bootstrap of the cluster in entries that are committed.
    fn learn_bootstrap(&mut self, entries: &[Entry]) {
        if self.bootstrap.is_some() {
            return;
        }
        self.bootstrap = entries.iter().find_map(|entry| match &entry.payload {
            Payload::Command(bytes) => bootstraps(bytes),
            Payload::Noop | Payload::Configuration(_) => None,
        });
    }

    /// Asks for sessions that were not used since a sample old enough. The clock is the
    /// leader's own and restarts with each leadership, so a session is never forgotten early.
    fn forget_idle_sessions(&mut self, now: Instant) {
        if self.consensus.leads_in().is_none() || !self.consensus.status().ready {
            self.session_samples.clear();
            return;
        }
        let due = self
            .session_samples
            .back()
            .is_none_or(|(last, _)| now.certainly_after(*last + SESSION_SAMPLE_INTERVAL));
        if due {
            self.session_samples.push_back((now, self.applied));
        }
        let mut unused_since = None;
        while let Some((sampled, index)) = self.session_samples.front().copied() {
            if !now.certainly_after(sampled + self.options.session_idle_max) {
                break;
            }
            unused_since = Some(index);
            self.session_samples.pop_front();
        }
        if let Some(unused_since) = unused_since {
            self.outputs
                .push_back(Output::FindIdleSessions { unused_since });
        }
    }

    /// Proposes to forget what the store found idle. A session that is used before the entry is
    /// applied is spared there.
    fn forget_sessions(&mut self, now: Instant, unused_since: LogIndex, sessions: Vec<SessionId>) {
        if sessions.is_empty() {
            return;
        }
        let command = Command::ForgetSessions {
            sessions,
            unused_since,
        };
        // A refusal is no loss: the next sample asks again.
        let _ = self.consensus.propose(now, command.encode());
    }

    fn handle_applied(&mut self, now: Instant, replies: Vec<(LogId, crate::kv::Reply)>) {
        let Some(last) = replies.last().map(|(id, _)| id.index) else {
            return;
        };
        for (id, reply) in replies {
            // The reply to a retry is the first one, of an earlier revision.
            self.revision = self.revision.max(reply.revision);
            for change in &reply.leases {
                self.leases.tracker.apply(now, *change);
            }
            self.leases.tracker.attached(reply.lease_keys);
            self.leases.tracker.landed(id.index);
            if let Some(hash) = reply.hash {
                self.note_own_hash(now, id.index, hash);
            }
            self.answer_write(id, reply);
        }
        self.applied = last;
        self.consensus.handle(now, raft::Input::Applied(last));
    }

    /// Moves what consensus wants into our own outputs, and wakes those who waited for it.
    fn drain_consensus(&mut self) {
        while let Some(output) = self.consensus.poll_output() {
            match output {
                raft::Output::Persist(ticket, unsaved) => {
                    self.outputs.push_back(Output::Persist(ticket, unsaved));
                }
                raft::Output::Send(envelope) => self.outputs.push_back(Output::Send(envelope)),
                raft::Output::Commit(entries) => {
                    self.upgrade.committed(&entries);
                    self.learn_bootstrap(&entries);
                    self.outputs.push_back(Output::Apply(entries));
                }
                raft::Output::SendSnapshot(peer) => {
                    self.outputs.push_back(Output::SendSnapshot(peer));
                }
                raft::Output::Install(id) => self.outputs.push_back(Output::Install(id)),
                raft::Output::DiscardSnapshot(id) => {
                    self.outputs.push_back(Output::DiscardSnapshot(id));
                }
                raft::Output::Permit(read, permit) => self.permit_read(RequestId(read.0), permit),
                raft::Output::RefuseRead(read, refusal) => {
                    let id = RequestId(read.0);
                    self.leases.forget(id);
                    self.members.forget(id);
                    if !self.pending.take_read(id) {
                        continue;
                    }
                    match refusal {
                        raft::ReadRefusal::NotLeader => self.refuse_not_leader(id),
                        raft::ReadRefusal::LeaseVoid => self.refuse(
                            id,
                            ErrorKind::LeaseInvalid,
                            "the leader has no valid lease at the moment: retry shortly, or allow \
                             a quorum read",
                        ),
                    }
                }
            }
        }
        self.release_reads();
    }

    fn header(&self, revision: i64) -> ResponseHeader {
        let status = self.consensus.status();
        ResponseHeader {
            cluster_id: self.options.cluster_id.short(),
            member_id: self.options.id,
            revision,
            raft_term: status.term,
            leader_id: status.leader,
            read: None,
        }
    }

    /// The header of a reply that `permit` allows, if any has to: with the leadership that gave the
    /// permit, even if another one has begun since.
    fn header_under(&self, permit: Option<ReadPermit>) -> ResponseHeader {
        let now = self.header(self.revision);
        match permit {
            None => now,
            Some(permit) => ResponseHeader {
                raft_term: permit.term(),
                leader_id: permit.from_leader().or(Some(self.options.id)),
                ..now
            },
        }
    }
}

impl Node {
    /// How the node stands after its last input.
    pub fn view(&mut self) -> NodeView {
        let members = self.members_in_force();
        let consensus = &self.consensus;
        let (status, published) = (consensus.status(), consensus.published());
        let until = published.lease().map(|lease| lease.until());
        let tracker = &self.leases.tracker;
        NodeView {
            lease_until: until.filter(|until| *until != Instant::ZERO),
            proposals: self.proposals(),
            leases: LeaseTotals {
                leases: tracker.len(),
                keys: tracker.keys(),
                expiring: tracker.expiring(),
            },
            members,
            state_check: self.state_check(),
            checks_agreed: self.checks_agreed(),
            disk_silent: consensus.stalled_disk(self.now),
            clock_regressions: published.lease_counters().clock_regressions(),
            lease_tripped: consensus.lease_tripped(),
            is_unproven: consensus.is_unproven() || consensus.is_quarantined(),
            bootstrap_awaits: consensus.bootstrap_awaits().clone(),
            bootstrap: self.bootstrap,
            // A leader that removed itself leads until another has taken over.
            is_removed: consensus.is_removed() && status.role != Role::Leader,
            cluster_version: self.cluster_version(),
            status,
        }
    }

    fn members_in_force(&mut self) -> MembersInForce {
        let (consensus, shared) = (&self.consensus, &mut self.shared_configuration);
        let index = consensus.configuration_index();
        let index_and_term = Some((index, consensus.status().term));
        if shared.index_and_term != index_and_term {
            shared.index_and_term = index_and_term;
            shared.configuration = Arc::new(consensus.configuration().clone());
        }
        MembersInForce {
            index,
            is_committed: consensus.is_configuration_committed(),
            configuration: shared.configuration.clone(),
        }
    }
}
