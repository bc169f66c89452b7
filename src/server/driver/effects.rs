//! Where the driver's outputs go, and where the log thread's reports come from.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use super::lease_log::LeaseLog;
use crate::api::{Member, MemberInfo};
use crate::log::LogError;
use crate::node::{Consistency, Input, LeaseCounts, Proposals};
use crate::raft::{Configuration, Entry, Envelope, Message, Status, Ticket, Unsaved};
use crate::server::disk::durable;
use crate::server::disk::log_thread::{GroupCommit, LogEvents, LogSize, LogThread};
use crate::server::disk::state_thread::Work;
use crate::server::driver::{LeasesHeld, Mail, Mailbox, Sinks};
use crate::server::metrics::{ExpiredIn, MessageKind, Metrics, PeerMetrics};
use crate::server::peers::members::{MemberNames, OwnStanding, REMOVED};
use crate::server::peers::transfer::{Incoming, Outgoing};
use crate::server::peers::{PeerHandler, PeerInfo, Peers, Roster};
use crate::server::status::directory::Directory;
use crate::server::status::integrity::Integrity;
use crate::server::status::lease_stats::Vitals;
use crate::server::threads::fatal::Exit;
use crate::server::threads::queue::BatchQueue;
use crate::server::watch::Watches;
use crate::transport::FrameStream;
use crate::types::{Incarnation, LogId, LogIndex, NodeId, Role};

/// Carries the driver's outputs to the threads that do them.
pub(crate) struct Hands {
    pub(crate) log: Arc<LogThread>,
    pub(crate) state: Arc<BatchQueue<Work>>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) outgoing: Arc<Outgoing>,
    pub(crate) incoming: Arc<Incoming>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) directory: Arc<Directory>,
    /// What the cluster has agreed on, for whoever asks.
    pub(crate) cluster_version: Arc<AtomicU16>,
    pub(crate) name: String,
    /// The file that remembers a tripped lease.
    pub(crate) tripwire_mark: PathBuf,
    /// The file that says that this member may have lost everything.
    pub(crate) unproven_mark: PathBuf,
    /// For how long a round is trusted after it began.
    pub(crate) trusted_lease: Duration,
    pub(crate) vitals: Arc<Vitals>,
    pub(crate) integrity: Arc<Integrity>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) lease_log: LeaseLog,
    /// The file that says that the state is to be built anew at the next start.
    pub(crate) damage_mark: PathBuf,
    pub(crate) names: MemberNames,
    /// What is told of each other member.
    pub(crate) peer_metrics: BTreeMap<NodeId, PeerMetrics>,
    /// Who may speak as a peer, by the configuration in force.
    pub(crate) roster: Roster,
    /// The same as the peers were told.
    pub(crate) told: Roster,
    /// Who leads, as far as this node knows.
    pub(crate) leader: Option<NodeId>,
    /// The configuration in force, where it stands, and whether it is committed.
    pub(crate) configuration: (LogIndex, bool, Configuration),
    /// Who the members were when something was last told of them, and whether that was committed.
    pub(crate) logged_members: (bool, Vec<Member>),
    pub(crate) standing: Arc<OwnStanding>,
    pub(crate) exit: Exit,
}

impl Hands {
    /// Tells the peers who may speak, if that has changed.
    ///
    /// All members that this node knows may have been succeeded by others while it was away. So while
    /// none of them leads, every node of its cluster is heard: a member that it has not heard of may be
    /// the leader, or need its vote. What such a node says is judged by consensus, as ever.
    fn tell_peers(&mut self) {
        let (index, is_committed, configuration) = &self.configuration;
        self.roster = self
            .names
            .roster(*index, *is_committed, configuration, &self.roster);
        let members = configuration.members();
        let is_led = self.leader.is_some_and(|leader| members.contains(&leader));
        let told = Roster {
            is_open: self.roster.is_open || !is_led,
            ..self.roster.clone()
        };
        if told != self.told {
            self.told = told.clone();
            self.peers.set_roster(told);
        }
    }

    /// From here on these are the members of whom something is told.
    fn name_peers(&mut self, members: &[Member]) {
        let others = members
            .iter()
            .filter(|member| member.info.name != self.name);
        let named = others.map(|member| {
            let MemberInfo { id, name, .. } = &member.info;
            let name = match name.is_empty() {
                true => &id.to_string(),
                false => name,
            };
            (*id, self.metrics.peer(name))
        });
        let before = std::mem::replace(&mut self.peer_metrics, named.collect());
        for (id, metrics) in before {
            // Nobody sets what is said of one who left.
            if !self.peer_metrics.contains_key(&id) {
                metrics.lag_entries.set(0.0);
            }
        }
    }
}

impl Sinks for Hands {
    fn persist(&mut self, ticket: Ticket, unsaved: Unsaved) {
        self.log.submit(ticket, unsaved);
    }

    fn send(&mut self, envelope: Envelope) {
        self.metrics
            .raft
            .messages_sent(kind_of(&envelope.message))
            .increment(1);
        let Some(dropped) = self.peers.send(envelope) else {
            return;
        };
        let is_heartbeat = matches!(dropped.message, Message::Heartbeat(_));
        if let Some(metrics) = self.peer_metrics.get(&dropped.to)
            && is_heartbeat
        {
            metrics.heartbeat_send_failures.increment(1);
        }
    }

    fn heartbeat_answered(&mut self, peer: NodeId, after: Duration) {
        if let Some(metrics) = self.peer_metrics.get(&peer) {
            let histogram = &metrics.heartbeat_round_trip_seconds;
            histogram.record(after.as_secs_f64());
        }
    }

    fn followers_lack(&mut self, entries: &[(NodeId, u64)]) {
        for (peer, metrics) in &self.peer_metrics {
            let lack = entries.iter().find(|(follower, _)| follower == peer);
            let lack = lack.map_or(0, |(_, lack)| *lack);
            metrics.lag_entries.set(lack as f64);
        }
    }

    fn election_over(&mut self, after: Duration) {
        let histogram = &self.metrics.raft.election_seconds;
        histogram.record(after.as_secs_f64());
    }

    fn apply(&mut self, entries: Vec<Entry>) {
        self.state.send(Work::Apply(entries));
    }

    fn install(&mut self, id: LogId) {
        self.state.send(Work::Install(id));
    }

    fn discard_snapshot(&mut self, id: LogId) {
        self.incoming.discard(id);
    }

    fn send_snapshot(&mut self, peer: NodeId) {
        self.outgoing.send(peer);
    }

    fn find_idle_sessions(&mut self, unused_since: LogIndex) {
        self.state.send(Work::FindIdleSessions { unused_since });
    }

    fn lease_renewed(&mut self, interval: Option<Duration>, left: Duration) {
        let (metrics, vitals) = (&self.metrics.leader_lease, &self.vitals);
        if let Some(interval) = interval {
            let histogram = &metrics.renew_interval_seconds;
            histogram.record(interval.as_secs_f64());
            vitals.renew_interval.record(interval);
        }
        // It is counted from the beginning of its round.
        let round_trip = self.trusted_lease.saturating_sub(left);
        metrics.round_trip_seconds.record(round_trip.as_secs_f64());
        vitals.round_trip.record(round_trip);
    }

    fn timer_delayed(&mut self, by: Duration) {
        let metrics = &self.metrics.raft;
        metrics.timer_delay_seconds.record(by.as_secs_f64());
        self.vitals.timer_delay.record(by);
    }

    fn members_changed(
        &mut self,
        index: LogIndex,
        is_committed: bool,
        configuration: &Configuration,
    ) {
        self.configuration = (index, is_committed, configuration.clone());
        self.tell_peers();
        self.standing.reached(index);
        let members = self.names.describe(configuration);
        self.directory.set_members(&members);
        self.metrics.members.set(&members);
        self.name_peers(&members);
        let logged = (is_committed, members);
        // A log that is cut has the same members at another index: that is no news.
        if logged == self.logged_members {
            return;
        }
        // Founders begin with what they were configured with.
        if index > LogIndex(0) {
            let say = |member: &Member| format!("{} ({:?})", member.info.name, member.membership);
            let members: Vec<String> = logged.1.iter().map(say).collect();
            tracing::info!(
                node = %self.name,
                configuration = %index,
                committed = is_committed,
                members = members.join(", "),
                "members"
            );
        }
        self.logged_members = logged;
    }

    fn removed(&mut self) {
        self.exit.leave(REMOVED);
    }

    fn proposals_changed(&mut self, proposals: &Proposals) {
        let raft = &self.metrics.raft;
        raft.proposals_pending.set(proposals.pending as f64);
        raft.proposals_failed.absolute(proposals.failed);
        let hits = &self.metrics.phases.dedup_hits;
        hits.absolute(proposals.repeated);
    }

    fn request_expired(&mut self) {
        self.metrics.work.expired(ExpiredIn::Queue).increment(1);
    }

    fn status_changed(&mut self, before: &Status, now: &Status) {
        if before.leader != now.leader {
            self.leader = now.leader;
            self.tell_peers();
            self.watches.leader(now.leader.is_some());
            let term = now.term;
            match now.leader {
                Some(leader) => {
                    self.metrics.raft.leader_changes.increment(1);
                    let known = self.directory.member(leader);
                    let name = known.map_or_else(|| leader.to_string(), |member| member.name);
                    tracing::info!(node = %self.name, %term, leader = %name, "knows its leader");
                }
                None => tracing::warn!(node = %self.name, %term, "knows no leader"),
            }
        }
        if before.role == Role::Quarantined && now.role != Role::Quarantined {
            self.log.end_quarantine();
        }
        if before.role != now.role {
            let term = now.term;
            match now.role {
                Role::Leader => tracing::info!(node = %self.name, %term, "leads"),
                role => tracing::info!(node = %self.name, %term, %role, "role changed"),
            }
        }
    }

    fn disk_stalled(&mut self, silent: Option<Duration>) {
        let storage = &self.metrics.storage;
        match silent {
            Some(silent) => {
                storage.wal_stalls.increment(1);
                storage.wal_stalled.set(1.0);
                tracing::error!(
                    node = %self.name,
                    ?silent,
                    "the disk of the log does not answer: until it does this node promises nothing and \
                     stands in no election, and if it leads it gives that up, so that another can"
                );
            }
            None => {
                storage.wal_stalled.set(0.0);
                tracing::warn!(node = %self.name, "the disk of the log answers again");
            }
        }
    }

    fn clock_went_back(&mut self, times: u64) {
        tracing::warn!(
            node = %self.name,
            times,
            "a clock of this machine ran backwards: the leader lease was given up and is earned \
             anew; find out what steps it (a hypervisor, a restored snapshot), for leases rest on \
             clocks that only go forward"
        );
    }

    fn version_raised(&mut self, version: u16) {
        tracing::info!(node = %self.name, version, "the cluster is of a newer version from here on");
        self.cluster_version.store(version, Ordering::Relaxed);
        self.peers.require_version(version);
    }

    fn proven(&mut self) {
        self.names.proven();
        self.tell_peers();
        tracing::info!(node = %self.name, "this member holds all that it ever acknowledged");
        if let Err(error) = durable::remove(&self.unproven_mark) {
            tracing::warn!(
                node = %self.name,
                %error,
                "{} cannot be removed: after a restart this member asks its peers again",
                self.unproven_mark.display()
            );
        }
    }

    fn leases_changed(&mut self, counts: &LeaseCounts, held: LeasesHeld) {
        let metrics = &self.metrics.leases;
        metrics.changed(counts);
        metrics.leases.set(held.leases as f64);
        metrics.keys.set(held.keys as f64);
        metrics.expiring.set(held.expiring as f64);
        self.lease_log.tell(&self.name, counts, held);
    }

    fn compared(&mut self, consistency: Consistency, agreed: u64) {
        let was_sound = self.integrity.is_sound();
        self.integrity.set(consistency, agreed);
        if was_sound != self.integrity.is_sound() {
            let refusal = was_sound.then(|| self.integrity.refusal());
            self.watches.refuse(refusal);
        }
        match self.integrity.warning() {
            Some(warning) => tracing::error!(node = %self.name, "{warning}"),
            None if !was_sound => {
                tracing::warn!(node = %self.name, "the nodes agree again: this one serves again");
            }
            None => {}
        }
        if !self.integrity.is_corrupt() {
            return;
        }
        // Once in a node's life, and nothing is served any more: this may wait for the disk.
        let why = "a majority of the nodes had another state\n";
        if let Err(error) = durable::replace(&self.damage_mark, why.as_bytes()) {
            tracing::error!(
                node = %self.name,
                %error,
                "{} cannot be made: remove the state's folder by hand before the next start",
                self.damage_mark.display()
            );
        }
    }

    fn lease_tripped(&mut self) {
        tracing::error!(
            node = %self.name,
            "another node led while this one held a leader lease: an assumption about clocks \
             failed; leased reads are off on this node until an operator has looked"
        );
        // Once in a node's life, and leased reads are off already: this may wait for the disk.
        if let Err(error) = durable::replace(&self.tripwire_mark, b"see the log of this node\n") {
            tracing::error!(node = %self.name, %error, "the tripped lease cannot be remembered");
        }
    }
}

/// Carries what peers say to the driver.
pub(crate) struct Post {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) incoming: Arc<Incoming>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) standing: Arc<OwnStanding>,
    pub(crate) exit: Exit,
}

impl PeerHandler for Post {
    fn on_message(&self, envelope: Envelope) {
        self.mailbox.send(Mail::Input(Input::Message(envelope)));
    }

    fn on_connected(&self, peer: &PeerInfo) {
        tracing::info!(peer = %peer.name, address = %peer.peer_address, "connected to peer");
        self.directory
            .learn(peer.id, &peer.peer_address, &peer.client_address);
        let told = Input::PeerVersions(peer.id, Some(peer.versions));
        self.mailbox.send(Mail::Input(told));
    }

    fn on_standing(&self, by: &str, index: LogIndex, incarnation: Option<Incarnation>) {
        if let Some(why) = self.standing.judge(index, incarnation) {
            tracing::warn!(by, configuration = %index, "a member does not count this node as one");
            self.exit.leave(why);
        }
    }

    fn on_disconnected(&self, peer: NodeId) {
        let told = Input::PeerVersions(peer, None);
        self.mailbox.send(Mail::Input(told));
    }

    fn on_stream(&self, peer: &PeerInfo, stream: FrameStream) {
        tokio::spawn(Arc::clone(&self.incoming).receive(peer.id, stream));
    }

    fn on_drift(&self, peer: &PeerInfo, ratio: f64) {
        self.metrics.clock_drifts(&peer.name, ratio);
    }
}

/// Carries the log thread's reports to the driver.
pub(crate) struct LogReports {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) on_fatal: Box<dyn Fn(LogError) + Send>,
}

impl LogEvents for LogReports {
    fn persisted(&mut self, ticket: Ticket) {
        self.mailbox.send(Mail::Input(Input::Persisted(ticket)));
    }

    fn fatal(&mut self, error: LogError) {
        (self.on_fatal)(error);
    }

    fn measured(&mut self, size: LogSize) {
        let metrics = &self.metrics.raft;
        metrics.log_first_index.set(size.first.0 as f64);
        metrics.log_segments.set(size.segments as f64);
        metrics.log_bytes.set(size.bytes as f64);
    }

    fn committed(&mut self, group: &GroupCommit) {
        self.metrics
            .storage
            .wal_batch_entries
            .record(group.entries as f64);
    }
}

fn kind_of(message: &Message) -> MessageKind {
    match message {
        Message::Heartbeat(_) | Message::HeartbeatReply(_) => MessageKind::Heartbeat,
        Message::Append(_) | Message::Appended(_) => MessageKind::Append,
        Message::PreVote(_)
        | Message::PreVoteReply(_)
        | Message::Vote(_)
        | Message::VoteReply(_) => MessageKind::Vote,
        Message::StateHash(_) => MessageKind::StateHash,
        Message::NeedState => MessageKind::Other,
        _ => MessageKind::Other,
    }
}
