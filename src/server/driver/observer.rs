//! Reports changes of a node: to metrics, to the log, and to the other threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;

use super::elections::Elections;
use super::lease_log::LeaseLog;
use crate::api::{Member, MemberInfo};
use crate::node::{LeaseCounts, LeaseTotals, MembersInForce, NodeView};
use crate::raft::{GrantStanding, Status};
use crate::server::metrics::{ExpiredIn, Metrics, PeerMetrics};
use crate::server::peers::members::{MemberNames, OwnStanding, REMOVED};
use crate::server::peers::{Peers, Roster};
use crate::server::status::contacts::Contacts;
use crate::server::status::directory::Directory;
use crate::server::status::followers::{Follower, Followers};
use crate::server::status::integrity::Integrity;
use crate::server::status::lease_stats::LeaseStats;
use crate::server::threads::fatal::Exit;
use crate::server::watch::Watches;
use crate::time::Instant;
use crate::types::{BootstrapId, LogIndex, NodeId, Role};

/// Renewals that are closer than this count as one: where reads wait for rounds there may be
/// thousands a second.
const RENEWAL_MIN: Duration = Duration::from_millis(10);

/// Learns of every change of the node. Must not block.
pub(crate) trait Observer: Send {
    /// The node has changed in a turn whose effects are not carried out yet.
    fn changed(&mut self, now: Instant, old: &NodeView, new: &NodeView);
    /// Something happened that no view shows.
    fn happened(&mut self, event: Event<'_>);
}

/// What no view shows, because it has no duration.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// A timer of the node fired this much late.
    TimerDelayed(Duration),
    /// This member has answered a heartbeat after so long.
    HeartbeatAnswered(NodeId, Duration),
    /// A heartbeat to this member was dropped, because it takes nothing.
    HeartbeatDropped(NodeId),
    /// What this leader knows of each other member; empty if this node does not lead.
    Followers(&'a [(NodeId, Follower)]),
    /// When each other node was last heard of.
    Heard(&'a BTreeMap<NodeId, Instant>),
    /// The deadline of a request expired before it was handled.
    RequestExpired,
    /// Client leases were granted, renewed or ended, and there are so many now.
    Leases(&'a LeaseCounts, LeaseTotals),
    /// This member took part in the bootstrap, or received everything again. Happens once at most.
    Proven,
}

/// Reports to operators and to the other threads of the server.
pub(crate) struct Reporter {
    pub(crate) name: String,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) lease_stats: Arc<LeaseStats>,
    pub(crate) contacts: Arc<Contacts>,
    pub(crate) followers: Arc<Followers>,
    pub(crate) integrity: Arc<Integrity>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) status: Arc<ArcSwap<Status>>,
    /// The version that the cluster has agreed on.
    pub(crate) cluster_version: Arc<AtomicU16>,
    /// Which bootstrap of its cluster the node comes from.
    pub(crate) bootstrap: Arc<OnceLock<BootstrapId>>,
    pub(crate) exit: Exit,
    pub(crate) membership: Membership,
    pub(crate) lease_log: LeaseLog,
    pub(crate) elections: Elections,
    pub(crate) renewals: Renewals,
    /// Disruptions of the clocks that were told.
    pub(crate) disruptions: u64,
    /// Whether a leader was known since the start: before that, no client misses this node.
    pub(crate) has_served: bool,
    /// Whether it was a warning that the bootstrap waits for members.
    pub(crate) lacks_bootstrap: bool,
}

/// Who the members are, for those who speak with them and those who ask.
pub(crate) struct Membership {
    pub(crate) peers: Arc<Peers>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) standing: Arc<OwnStanding>,
    pub(crate) names: MemberNames,
    /// The configuration in force.
    pub(crate) in_force: MembersInForce,
    /// Who leads, as far as this node knows.
    pub(crate) leader: Option<NodeId>,
    /// Who may speak as a peer, by the configuration in force.
    pub(crate) roster: Roster,
    /// The same as the peers know it.
    pub(crate) published: Roster,
    /// The metrics of each other member.
    pub(crate) metrics: BTreeMap<NodeId, PeerMetrics>,
    /// Who the members were in the last log line about them, and whether that was committed.
    pub(crate) logged: (bool, Vec<Member>),
}

/// How far apart the leases of one leadership are.
#[derive(Debug)]
pub(crate) struct Renewals {
    /// For how long a round is trusted after it began.
    trusted: Duration,
    /// The end of the lease that was checked last.
    last: Option<Instant>,
}

impl Observer for Reporter {
    fn changed(&mut self, now: Instant, old: &NodeView, new: &NodeView) {
        // Before anything is sent to a new member.
        if old.members != new.members {
            self.members_changed(&new.members);
        }
        if old.status != new.status {
            self.status_changed(now, &old.status, &new.status);
        }
        let is_awaited = old.bootstrap_awaits != new.bootstrap_awaits;
        if is_awaited {
            let directory = &self.membership.directory;
            directory.set_bootstrap_awaits(&new.bootstrap_awaits);
        }
        if !new.bootstrap_awaits.is_empty() && (is_awaited || old.status != new.status) {
            self.bootstrap_awaited(now, is_awaited);
        }
        if let (None, Some(bootstrap)) = (old.bootstrap, new.bootstrap) {
            self.bootstrapped(bootstrap);
        }
        if old.lease_until != new.lease_until {
            self.lease_renewed(now, new.lease_until);
        }
        if old.proposals != new.proposals {
            self.proposals_changed(new);
        }
        if old.leases != new.leases {
            self.leases_changed(new.leases);
        }
        if old.disk_silent.is_some() != new.disk_silent.is_some() {
            self.disk_stalled(new.disk_silent);
        }
        if old.clock_regressions != new.clock_regressions {
            self.clock_went_back(new.clock_regressions);
        }
        let disruptions = crate::clock::disruptions().unwrap_or(0);
        if disruptions != std::mem::replace(&mut self.disruptions, disruptions) {
            self.clocks_disrupted(disruptions);
        }
        if !old.lease_tripped && new.lease_tripped {
            tracing::error!(
                node = %self.name,
                "another node was leader while this one held a leader lease: a clock assumption \
                 was violated; leased reads are off on this node until an operator clears it"
            );
        }
        if (old.state_check, old.checks_agreed) != (new.state_check, new.checks_agreed) {
            self.compared(new);
        }
        if old.cluster_version != new.cluster_version {
            self.version_raised(new.cluster_version);
        }
        if !old.is_removed && new.is_removed {
            self.exit.leave(REMOVED);
        }
    }

    fn happened(&mut self, event: Event<'_>) {
        match event {
            Event::TimerDelayed(by) => {
                let histogram = &self.metrics.raft.timer_delay_seconds;
                histogram.record(by.as_secs_f64());
                self.lease_stats.timer_delay.record(by);
            }
            Event::HeartbeatAnswered(peer, after) => {
                self.followers.answered(peer, after);
                if let Some(metrics) = self.membership.metrics.get(&peer) {
                    let histogram = &metrics.heartbeat_round_trip_seconds;
                    histogram.record(after.as_secs_f64());
                }
            }
            Event::HeartbeatDropped(peer) => {
                if let Some(metrics) = self.membership.metrics.get(&peer) {
                    metrics.heartbeat_send_failures.increment(1);
                }
            }
            Event::Followers(followers) => {
                self.followers.sampled(followers);
                for (peer, metrics) in &self.membership.metrics {
                    let follower = followers.iter().find(|(follower, _)| follower == peer);
                    let follower = follower.map(|(_, follower)| follower);
                    metrics
                        .lag_entries
                        .set(follower.map_or(0, |it| it.lag) as f64);
                    let standing = follower.and_then(|it| it.read_lease);
                    let holds = standing.is_some_and(GrantStanding::is_outstanding);
                    metrics.holds_read_lease.set(f64::from(u8::from(holds)));
                }
            }
            Event::Heard(last) => self.contacts.heard(last),
            Event::RequestExpired => {
                self.metrics.work.expired[ExpiredIn::Queue].increment(1);
            }
            Event::Leases(counts, totals) => {
                self.metrics.leases.changed(counts);
                self.lease_log.tell(&self.name, counts, totals);
            }
            Event::Proven => {
                self.membership.names.proven();
                self.membership.update_peers();
                tracing::info!(
                    node = %self.name,
                    "this member holds every entry it ever acknowledged"
                );
            }
        }
    }
}

impl Reporter {
    fn members_changed(&mut self, members: &MembersInForce) {
        let membership = &mut self.membership;
        membership.in_force = members.clone();
        membership.update_peers();
        membership.standing.reached(members.index);
        let described = membership.names.describe(&members.configuration);
        membership.directory.set_members(&described);
        self.metrics.members.set(&described);
        membership.name_peers(&self.name, &self.metrics, &described);
        let logged = (members.is_committed, described);
        // A log that is cut has the same members at another index: that is no news.
        if logged == membership.logged {
            return;
        }
        // Initial members begin with what they were configured with.
        if members.index > LogIndex(0) {
            let say = |member: &Member| format!("{} ({:?})", member.info.name, member.membership);
            let names: Vec<String> = logged.1.iter().map(say).collect();
            tracing::info!(
                node = %self.name,
                configuration = %members.index,
                committed = members.is_committed,
                members = names.join(", "),
                "configuration changed"
            );
        }
        membership.logged = logged;
    }

    fn status_changed(&mut self, now: Instant, old: &Status, new: &Status) {
        if let Some(after) = self.elections.look(now, old, new) {
            let histogram = &self.metrics.raft.election_seconds;
            histogram.record(after.as_secs_f64());
        }
        let term = new.term;
        if old.leader != new.leader {
            self.membership.leader = new.leader;
            self.membership.update_peers();
            self.watches.leader(new.leader.is_some());
            match new.leader {
                Some(leader) => {
                    self.has_served = true;
                    self.metrics.raft.leader_changes.increment(1);
                    let known = self.membership.directory.member(leader);
                    let name = known.map_or_else(|| leader.to_string(), |member| member.name);
                    tracing::info!(node = %self.name, %term, leader = %name, "found leader");
                }
                // Every hand-over has such a moment; one that lasts shows in the metrics and alerts.
                None => tracing::info!(node = %self.name, %term, "lost leader"),
            }
        }
        if old.role != new.role {
            match new.role {
                Role::Leader => tracing::info!(node = %self.name, %term, "became leader"),
                role => tracing::info!(node = %self.name, %term, %role, "role changed"),
            }
        }
        let leads = new.role == Role::Leader;
        self.contacts.led(now, new.leader.is_some(), leads);
        self.status.store(Arc::new(new.clone()));
    }

    /// The members of a cluster that starts come one after the other: that some are missing is a warning once it
    /// lasts.
    fn bootstrap_awaited(&mut self, now: Instant, is_news: bool) {
        let Some(warning) = self.membership.directory.bootstrap_warning() else {
            return;
        };
        let lasts = self.contacts.is_leaderless(now);
        let was_told = std::mem::replace(&mut self.lacks_bootstrap, lasts);
        match lasts {
            true if is_news || !was_told => tracing::warn!(node = %self.name, "{warning}"),
            false if is_news => tracing::info!(node = %self.name, "{warning}"),
            _ => {}
        }
    }

    fn bootstrapped(&self, bootstrap: BootstrapId) {
        tracing::info!(node = %self.name, %bootstrap, "the cluster is bootstrapped");
        // Set once: a node does not change from one bootstrap to another.
        let _ = self.bootstrap.set(bootstrap);
        self.membership.peers.part_from_other_bootstraps();
    }

    fn lease_renewed(&mut self, now: Instant, until: Option<Instant>) {
        let Some((interval, round_trip)) = self.renewals.renewed(now, until) else {
            return;
        };
        let (metrics, lease_stats) = (&self.metrics.leader_lease, &self.lease_stats);
        if let Some(interval) = interval {
            let histogram = &metrics.renew_interval_seconds;
            histogram.record(interval.as_secs_f64());
            lease_stats.renew_interval.record(interval);
        }
        metrics.round_trip_seconds.record(round_trip.as_secs_f64());
        lease_stats.round_trip.record(round_trip);
    }

    fn proposals_changed(&self, new: &NodeView) {
        let raft = &self.metrics.raft;
        raft.proposals_pending.set(new.proposals.pending as f64);
        raft.proposals_failed.absolute(new.proposals.failed);
        let hits = &self.metrics.phases.dedup_hits;
        hits.absolute(new.proposals.repeated);
    }

    fn leases_changed(&mut self, totals: LeaseTotals) {
        let metrics = &self.metrics.leases;
        metrics.leases.set(totals.leases as f64);
        metrics.keys.set(totals.keys as f64);
        metrics.expiring.set(totals.expiring as f64);
        self.lease_log
            .tell(&self.name, &LeaseCounts::default(), totals);
    }

    fn disk_stalled(&self, silent: Option<Duration>) {
        let storage = &self.metrics.storage;
        match silent {
            Some(silent) => {
                storage.wal_stalls.increment(1);
                storage.wal_stalled.set(1.0);
                if !self.has_served {
                    tracing::info!(
                        node = %self.name,
                        ?silent,
                        "log disk slow while this node starts: it begins to serve once the disk answers"
                    );
                    return;
                }
                tracing::error!(
                    node = %self.name,
                    ?silent,
                    "log disk stalled: until it answers, this node gives no promises and does not \
                     campaign; a leader steps down so that another node can be elected"
                );
            }
            None if !self.has_served => storage.wal_stalled.set(0.0),
            None => {
                storage.wal_stalled.set(0.0);
                tracing::warn!(node = %self.name, "log disk answers again");
            }
        }
    }

    fn clocks_disrupted(&self, times: u64) {
        tracing::warn!(
            node = %self.name,
            times,
            "the hypervisor disrupted the clocks of this machine (live migration, a restored memory image): the \
             leader leases of before are over"
        );
    }

    fn clock_went_back(&self, times: u64) {
        tracing::warn!(
            node = %self.name,
            times,
            "a clock of this machine went backwards: the leader lease was dropped and must be \
             acquired again; find out what steps the clock (a hypervisor, a restored VM snapshot), \
             because leases rely on monotonic clocks"
        );
    }

    fn version_raised(&self, version: u16) {
        tracing::info!(node = %self.name, version, "cluster version raised");
        self.cluster_version.store(version, Ordering::Relaxed);
        self.membership.peers.require_version(version);
    }

    fn compared(&self, new: &NodeView) {
        let was_sound = self.integrity.is_sound();
        self.integrity.set(new.state_check, new.checks_agreed);
        if was_sound != self.integrity.is_sound() {
            let refusal = was_sound.then(|| self.integrity.refusal());
            self.watches.refuse(refusal);
        }
        match self.integrity.warning() {
            Some(warning) => tracing::error!(node = %self.name, "{warning}"),
            None if !was_sound => {
                tracing::info!(
                    node = %self.name,
                    "the states of the nodes agree again: serving resumed"
                );
            }
            None => {}
        }
    }
}

impl Membership {
    /// Has the peers know who may speak, if that has changed.
    ///
    /// All members that this node knows may have been succeeded by others while it was away. So while
    /// none of them leads, every node of its cluster is heard: a member that it has not heard of may be
    /// the leader, or need its vote. What such a node says is judged by consensus, as ever.
    fn update_peers(&mut self) {
        let MembersInForce {
            index,
            is_committed,
            configuration,
        } = &self.in_force;
        self.roster = self
            .names
            .roster(*index, *is_committed, configuration, &self.roster);
        let members = configuration.members();
        let is_led = self.leader.is_some_and(|leader| members.contains(&leader));
        let roster = Roster {
            is_open: self.roster.is_open || !is_led,
            ..self.roster.clone()
        };
        if roster != self.published {
            self.published = roster.clone();
            self.peers.set_roster(roster);
        }
    }

    /// Replaces the members that have metrics of their own. `own`, this node, has none.
    fn name_peers(&mut self, own: &str, metrics: &Metrics, members: &[Member]) {
        let others = members.iter().filter(|member| member.info.name != own);
        let named = others.map(|member| {
            let MemberInfo { id, name, .. } = &member.info;
            let name = match name.is_empty() {
                true => &id.to_string(),
                false => name,
            };
            (*id, metrics.peer(name))
        });
        let before = std::mem::replace(&mut self.metrics, named.collect());
        for (id, metrics) in before {
            // Nothing sets the lag of a member that has left.
            if !self.metrics.contains_key(&id) {
                metrics.lag_entries.set(0.0);
            }
        }
    }
}

impl Renewals {
    /// Of leases that are trusted for so long after their round began.
    pub(crate) fn new(trusted: Duration) -> Self {
        Self {
            trusted,
            last: None,
        }
    }

    /// The lease ends at `until` now. Returns how long after the one before in the same leadership it
    /// was renewed, and how long its round took, if it is worth recording.
    fn renewed(
        &mut self,
        now: Instant,
        until: Option<Instant>,
    ) -> Option<(Option<Duration>, Duration)> {
        let Some(until) = until else {
            self.last = None;
            return None;
        };
        let interval = self.last.map(|last| until.at_least_since(last));
        if interval.is_some_and(|interval| interval < RENEWAL_MIN) {
            return None;
        }
        self.last = Some(until);
        // It is counted from the beginning of its round.
        let left = until.at_least_since(now);
        Some((interval, self.trusted.saturating_sub(left)))
    }
}
