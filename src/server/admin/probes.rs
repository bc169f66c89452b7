//! The checks of probes, and the metrics that a scrape brings up to date.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls_pki_types::UnixTime;

use crate::api::Class;
use crate::raft::{Invalidation, RecallReason, Status};
use crate::server::admin::{AdminSource, Answer};
use crate::server::metrics::{AlarmType, ConnectionMetrics, HashCheck, Metrics, OperationKind};
use crate::server::session::Sessions;
use crate::server::status::checks;
use crate::server::status::checks::{Check, LINEARIZABLE_READ};
use crate::server::status::node_state::NodeState;
use crate::server::status::startup::{Startup, StartupProgress};
use crate::transport::{Endpoint, HandshakeFailure, Port, TransportStats};
use crate::types::Role;

/// The node, as its admin port sees it.
pub(crate) struct NodeProbes {
    pub(crate) node: Arc<NodeState>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) transport: Arc<TransportStats>,
    pub(crate) failed: tokio::sync::watch::Receiver<Option<String>>,
    pub(crate) startup: Arc<StartupProgress>,
    /// Both ports, that of clients first, with the settings that name their certificates.
    pub(crate) ports: [(&'static str, Endpoint); 2],
}

/// What answers probes, from the first moment of a start on.
pub(crate) struct Probes {
    pub(crate) metrics: Arc<Metrics>,
    /// The node, once it has been put together.
    pub(crate) node: OnceLock<Arc<NodeProbes>>,
}

impl Probes {
    fn count(&self, probe: &'static str, checks: &[Check]) {
        for check in checks {
            self.metrics.health.checked(probe, check.name, check.ok);
        }
    }
}

impl AdminSource for Probes {
    fn live(&self) -> Vec<Check> {
        let checks = match self.node.get() {
            None => vec![Check::ok("threads")],
            Some(node) => vec![node.threads()],
        };
        self.count("livez", &checks);
        checks
    }

    fn ready(self: Arc<Self>) -> Answer<Vec<Check>> {
        Box::pin(async move {
            let checks = match self.node.get() {
                None => {
                    let detail = "the node is starting: /startupz shows its progress";
                    vec![Check::failed("started", detail)]
                }
                Some(node) => node.ready().await,
            };
            self.count("readyz", &checks);
            checks
        })
    }

    fn warnings(&self) -> Vec<String> {
        let node = self.node.get();
        node.map_or_else(Vec::new, |node| node.sessions.all_warnings())
    }

    fn no_space(&self) -> Option<String> {
        self.node.get()?.sessions.serving.space_alarm()
    }

    fn startup(&self) -> Startup {
        match self.node.get() {
            None => Startup::Opening,
            Some(node) => node
                .startup
                .stands(&node.node, node.sessions.serving.store.applied()),
        }
    }

    fn cluster_version(&self) -> Option<u16> {
        let node = self.node.get()?;
        Some(node.node.cluster_version.load(Ordering::Relaxed))
    }

    fn render_metrics(&self) -> Option<String> {
        let node = self.node.get()?;
        Some(self.metrics.render(|metrics| node.refresh(metrics)))
    }
}

/// How long a linearizable read of a probe may take: less than a probe waits.
const READ_PATIENCE: Duration = Duration::from_secs(1);
/// A state that may be older than this, or than three elections take, has not caught up.
const CAUGHT_UP_MAX: Duration = Duration::from_secs(5);

impl NodeProbes {
    fn threads(&self) -> Check {
        match &*self.failed.borrow() {
            None => Check::ok("threads"),
            Some(reason) => Check::failed("threads", reason.clone()),
        }
    }

    async fn ready(&self) -> Vec<Check> {
        let status = self.node.status.load_full();
        let leader = self.leader_known(&status);
        let linearizable_read = match leader.ok {
            true => checks::linearizable_read(self.sessions.confirm(READ_PATIENCE).await),
            false => Check::failed(LINEARIZABLE_READ, leader.detail.clone()),
        };
        vec![
            Check::ok("started"),
            self.storage_writable(),
            checks::serializable_read(&self.node),
            linearizable_read,
            leader,
            self.caught_up(),
            checks::non_learner(status.role),
            self.log_whole(),
            checks::data_corruption(&self.node),
            self.sole_process(),
            self.certificates(),
            self.not_stopping(),
        ]
    }

    /// Whether this node has what its leader had a moment ago. A node that has just been restarted has
    /// not, and while it has not, another one must not be stopped.
    fn caught_up(&self) -> Check {
        let most = CAUGHT_UP_MAX.max(self.node.timing.election_timeout_max * 3);
        let Some(fresh) = self.node.published.staleness() else {
            return Check::failed("caught_up", "the leader's commit index is not applied yet");
        };
        match fresh.age(self.node.clock.now()) {
            Some(age) if age <= most => Check::ok("caught_up"),
            Some(age) => Check::failed(
                "caught_up",
                format!("the state may be stale by up to {:.1}s", age.as_secs_f64()),
            ),
            None => Check::failed("caught_up", "the clock of this node ran backwards"),
        }
    }

    fn certificates(&self) -> Check {
        let now = UnixTime::now().as_secs();
        let ended = self.ports.iter().find(|(_, port)| {
            let ends = u64::try_from(port.certificate_ends()).unwrap_or(0);
            ends <= now
        });
        match ended {
            None => Check::ok("certificates"),
            Some((section, _)) => Check::failed(
                "certificates",
                format!("the certificate of [tls.{section}] has expired: issue a new one"),
            ),
        }
    }

    fn storage_writable(&self) -> Check {
        match &*self.failed.borrow() {
            None => Check::ok("storage_writable"),
            Some(reason) => Check::failed("storage_writable", reason.clone()),
        }
    }

    fn log_whole(&self) -> Check {
        Check::unless("log_whole", self.node.quarantine_warning())
    }

    /// Whether no other process has the identity of this node, as far as its peers tell.
    fn sole_process(&self) -> Check {
        Check::unless("sole_process", self.node.double_warning())
    }

    fn leader_known(&self, status: &Status) -> Check {
        match status.leader {
            Some(_) => Check::ok("leader_known"),
            None => {
                let lasting = self.node.leaderless_warning();
                let found = lasting.unwrap_or_else(|| "no leader is known".to_owned());
                Check::failed("leader_known", found)
            }
        }
    }

    fn not_stopping(&self) -> Check {
        if self.node.is_stopping() {
            Check::failed("not_stopping", "the node is stopping")
        } else {
            Check::ok("not_stopping")
        }
    }

    /// Brings the metrics up to date that repeat what is known elsewhere: the core counts without
    /// knowing what a metric is.
    pub(crate) fn refresh(&self, metrics: &Metrics) {
        self.refresh_lease(metrics);
        self.refresh_read_lease(metrics);
        self.refresh_raft(metrics);
        self.refresh_work(metrics);
        self.refresh_storage(metrics);
        self.refresh_transport(metrics);
    }

    fn refresh_lease(&self, metrics: &Metrics) {
        let now = self.node.clock.now();
        let cell = self.node.published.lease();
        let counters = self.node.published.lease_counters();
        let lease = &metrics.leader_lease;
        let valid = cell.as_ref().is_some_and(|cell| cell.is_valid(now));
        let remaining = cell
            .as_ref()
            .and_then(|cell| cell.remaining(now))
            .unwrap_or_default();
        lease.valid.set(flag(valid));
        lease.remaining_seconds.set(remaining.as_secs_f64());
        lease
            .duration_seconds
            .set(self.node.timing.lease_duration.as_secs_f64());
        lease
            .max_clock_skew_seconds
            .set(self.sessions.serving.reader.lease_margin.as_secs_f64());
        lease.renewals.absolute(counters.renewals());
        lease.expirations.absolute(counters.expirations());
        lease.rejections.absolute(counters.rejections());
        lease.clock_jumps.absolute(counters.clock_regressions());
        lease
            .clock_disruptions
            .absolute(crate::clock::disruptions().unwrap_or(0));
        lease
            .assumption_violations
            .absolute(counters.assumption_violations());
        for reason in Invalidation::ALL {
            lease.invalidations[reason].absolute(counters.invalidations(reason));
        }
    }

    fn refresh_read_lease(&self, metrics: &Metrics) {
        let (now, published) = (self.node.clock.now(), &self.node.published);
        let (held, granted) = (published.read_lease_counters(), published.grant_counters());
        let reads = &metrics.reads;
        let remaining = published.read_lease().and_then(|cell| cell.remaining(now));
        reads
            .read_lease_remaining_seconds
            .set(remaining.unwrap_or_default().as_secs_f64());
        reads.read_lease_renewals.absolute(held.renewals());
        reads.read_lease_rejections.absolute(held.rejections());
        reads.read_lease_holders.set(granted.holders() as f64);
        reads.read_lease_grants.absolute(granted.grants());
        reads.read_lease_waited_out.absolute(granted.waited_out());
        reads
            .read_lease_commit_held_back_seconds
            .set(granted.held_back().as_secs_f64());
        for reason in RecallReason::ALL {
            reads.read_lease_recalls[reason].absolute(granted.recalls(reason));
        }
    }

    fn refresh_raft(&self, metrics: &Metrics) {
        let status = self.node.status.load();
        let raft = &metrics.raft;
        let commit = self.node.published.commit();
        let applied = self.sessions.serving.store.applied();
        raft.has_leader.set(flag(status.leader.is_some()));
        raft.is_leader.set(flag(status.role == Role::Leader));
        raft.is_learner.set(flag(status.role == Role::Learner));
        raft.term.set(status.term.0 as f64);
        raft.commit_index.set(commit.0 as f64);
        raft.applied_index.set(applied.0 as f64);
        raft.proposals_committed.absolute(commit.0);
        raft.lost_logs.absolute(self.node.published.lost_logs());
        raft.messages_refused
            .absolute(self.node.published.messages_refused());
        raft.quarantined.set(flag(status.role == Role::Quarantined));
        raft.proposals_applied.absolute(applied.0);
    }

    fn refresh_work(&self, metrics: &Metrics) {
        let sessions = &self.sessions;
        let watches = sessions.serving.watches.counts();
        let count = |count: &std::sync::atomic::AtomicUsize| count.load(Ordering::Relaxed) as f64;
        metrics.watch.watchers.set(count(&watches.watchers));
        metrics.watch.streams.set(count(&watches.streams));
        metrics.watch.slow.set(count(&watches.slow));
        metrics.watch.pending.set(count(&watches.pending));
        metrics.watch.queued_bytes.set(count(&watches.queued_bytes));
        for class in Class::ALL {
            let waiting = sessions.limits.backlog.waiting(class);
            metrics.work.in_flight[class].set(waiting as f64);
        }
        metrics.work.room.set(sessions.limits.backlog.room() as f64);
    }

    fn refresh_storage(&self, metrics: &Metrics) {
        let serving = &self.sessions.serving;
        metrics
            .storage
            .revision
            .set(serving.store.revision() as f64);
        let ahead = serving.store.ahead_bytes();
        metrics.storage.ahead_bytes.set(ahead as f64);
        let history = &metrics.history;
        let compact_revision = serving.store.compact_revision();
        history.compact_revision.set(compact_revision as f64);
        history
            .removed_through
            .set(serving.removed.through() as f64);
        let (agreed, differed) = self.node.integrity.checks();
        let storage = &metrics.storage;
        storage.hash_checks[HashCheck::Agreed].absolute(agreed);
        storage.hash_checks[HashCheck::Differed].absolute(differed);
        let is_alarm = !self.node.integrity.is_sound();
        storage.alarms[AlarmType::Corrupt].set(flag(is_alarm));
        let is_full = serving.is_no_space();
        storage.alarms[AlarmType::NoSpace].set(flag(is_full));
        // What cannot be measured is not shown; the store reports its own failure.
        if let Ok(bytes) = serving.store.storage_bytes() {
            storage.size_bytes.set(bytes as f64);
        }

        let mvcc = &metrics.mvcc;
        let keys = serving.store.keys();
        mvcc.keys.set(keys.map_or(f64::NAN, |keys| keys as f64));
        let operations = serving.store.operations();
        mvcc.operations[OperationKind::Put].absolute(operations.puts());
        mvcc.operations[OperationKind::Delete].absolute(operations.deletes());
    }

    fn refresh_transport(&self, metrics: &Metrics) {
        let ports = [
            (&metrics.transport.client.connections, Port::Client),
            (&metrics.transport.peer.connections, Port::Peer),
        ];
        for ((metrics, port), (_, endpoint)) in ports.into_iter().zip(&self.ports) {
            for round_trip in endpoint.look() {
                metrics.round_trip_seconds.record(round_trip.as_secs_f64());
            }
            self.refresh_port(metrics, port);
        }
        let quic = &metrics.transport.quic;
        quic.migrations.absolute(self.transport.migrations());
        quic.retries.absolute(self.transport.retries());
        quic.ignored.absolute(self.transport.ignored());
    }

    fn refresh_port(&self, metrics: &ConnectionMetrics, port: Port) {
        metrics.open.set(self.transport.connections(port) as f64);
        metrics
            .malformed_frames
            .absolute(self.transport.malformed_frames(port));
        let traffic = self.transport.traffic(port);
        metrics.lost_packets.absolute(traffic.lost_packets);
        metrics.sent_bytes.absolute(traffic.sent_bytes);
        metrics.received_bytes.absolute(traffic.received_bytes);
        let handshakes = &metrics.handshakes;
        let completed = self.transport.handshakes_ok(port);
        handshakes.of("ok").absolute(completed);
        for reason in HandshakeFailure::ALL {
            let count = self.transport.handshakes_failed(port, reason);
            handshakes.of(reason.name()).absolute(count);
        }
    }
}

fn flag(condition: bool) -> f64 {
    f64::from(u8::from(condition))
}
