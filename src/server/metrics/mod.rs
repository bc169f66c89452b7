//! The metrics of a node, each declared once: a row of a table with its field, type, name and help.
//!
//! Each node has its own [`Metrics`] with its own recorder: three nodes may run in one process, and
//! a library should not install anything global. The fields are handles that are registered once and
//! cost a few nanoseconds to update. Counters and histograms are updated where the event happens;
//! gauges that only repeat an atomic are set at a scrape, by the closure given to
//! [`Metrics::render`].
//!
//! Labels have few values, all known here (never a key, an id or an address), and each is registered
//! at the start, so that rates begin at zero instead of with a gap. A histogram without buckets
//! would be rendered as a summary, which cannot be added up across nodes: so there are default
//! buckets. Samples of histograms pile up until they are drained: [`Metrics::spawn_upkeep`] does.

mod auth;
mod health;
mod leader_lease;
mod leases;
mod members;
mod mvcc;
mod peers;
mod phases;
mod process;
mod raft;
mod reads;
mod requests;
mod snapshots;
mod storage;
mod table;
#[cfg(test)]
mod tests;
mod traces;
mod transport;
mod watch;
mod work;

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use tokio::task::JoinHandle;

use crate::api::ErrorKind;
use crate::version;

use self::process::ProcessMetrics;
use self::table::{Gauge, Handle, Register};

pub use self::auth::{AuthFailure, AuthMetrics};
pub use self::health::HealthMetrics;
pub use self::leader_lease::LeaderLeaseMetrics;
pub use self::leases::LeaseMetrics;
pub use self::members::MemberMetrics;
pub use self::mvcc::{MvccMetrics, OperationKind};
pub use self::peers::PeerMetrics;
pub use self::phases::{Phase, PhaseMetrics};
pub use self::raft::{MessageKind, RaftMetrics};
pub use self::reads::{ReadFallback, ReadMetrics, Sampler, Tally};
pub use self::requests::{Methods, RequestMetrics};
pub use self::snapshots::{SnapshotMetrics, TransferEnd};
pub use self::storage::{AlarmType, BackupMetrics, HashCheck, HistoryMetrics, StorageMetrics};
pub use self::table::{By, ByName, LabelNames, LabelValue};
pub use self::traces::{TraceMetrics, TraceResult};
pub use self::transport::{
    CertificateMetrics, ConnectionMetrics, HandshakeResults, PortMetrics, QuicMetrics,
    ReloadResult, TransportMetrics,
};
pub use self::watch::WatchMetrics;
pub use self::work::{ExpiredIn, Rejection, WorkMetrics};

/// Interval between drains of samples.
pub const UPKEEP_INTERVAL: Duration = Duration::from_secs(2);

/// Default buckets of histograms: 1 µs to 10 s.
const LATENCY_SECONDS: &[f64] = &[
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2,
    5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

/// One node's metrics.
pub struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    process: ProcessMetrics,
    /// The leader lease, and the clocks that it depends on.
    pub leader_lease: LeaderLeaseMetrics,
    /// Reads, by the authority they were served on.
    pub reads: ReadMetrics,
    /// Requests of clients.
    pub requests: RequestMetrics,
    /// Requests refused by authentication or access control.
    pub auth: AuthMetrics,
    /// Where the time of requests goes.
    pub phases: PhaseMetrics,
    /// The export of traces.
    pub traces: TraceMetrics,
    /// Admission control.
    pub work: WorkMetrics,
    /// Consensus.
    pub raft: RaftMetrics,
    /// Snapshots sent, received and installed.
    pub snapshots: SnapshotMetrics,
    /// The members of the cluster.
    pub members: MemberMetrics,
    /// Client leases.
    pub leases: LeaseMetrics,
    /// Log and state on disk.
    pub storage: StorageMetrics,
    /// Keys, and operations on them.
    pub mvcc: MvccMetrics,
    /// Compaction of history.
    pub history: HistoryMetrics,
    /// Scheduled backups.
    pub backup: BackupMetrics,
    /// Watches.
    pub watch: WatchMetrics,
    /// Connections of clients and peers.
    pub transport: TransportMetrics,
    /// Health checks.
    pub health: HealthMetrics,
}

impl Metrics {
    /// The metrics of one node, all at zero.
    pub fn new() -> Arc<Self> {
        let recorder = Arc::new(recorder());
        let register = &Register::new(Arc::clone(&recorder));
        let build = register
            .with("version", version::VERSION)
            .with("commit", version::COMMIT)
            .with("rustc", version::RUSTC);
        let help = "Always 1; the labels describe the build.";
        Gauge::register(&build, "leasehold_build_info", help).set(1.0);
        let help = "When this node started, as a Unix timestamp in seconds.";
        let start_time = Gauge::register(register, "leasehold_start_time_seconds", help);
        start_time.set(seconds_since_1970());
        let mvcc = MvccMetrics::new(register);
        mvcc.keys.set(f64::NAN);
        Arc::new(Self {
            process: ProcessMetrics::new(register),
            leader_lease: LeaderLeaseMetrics::new(register),
            reads: ReadMetrics::new(register),
            requests: RequestMetrics::new(register),
            auth: AuthMetrics::new(register),
            phases: PhaseMetrics::new(register),
            traces: TraceMetrics::new(register),
            work: WorkMetrics::new(register),
            raft: RaftMetrics::new(register),
            snapshots: SnapshotMetrics::new(register),
            members: MemberMetrics::new(register),
            leases: LeaseMetrics::new(register),
            storage: StorageMetrics::new(register),
            mvcc,
            history: HistoryMetrics::new(register),
            backup: BackupMetrics::new(register),
            watch: WatchMetrics::new(register),
            transport: TransportMetrics::new(register),
            health: HealthMetrics::new(register),
            recorder,
        })
    }

    /// The metrics of the member `peer`; the same ones with each call. There are as many as a
    /// cluster has members in its life, so the name is a label with few values.
    pub fn peer(&self, peer: &str) -> PeerMetrics {
        let register = Register::new(Arc::clone(&self.recorder));
        PeerMetrics::new(&register.with("peer", peer.to_owned()))
    }

    /// A request of `method` failed with `kind`.
    pub fn request_failed(&self, method: &'static str, kind: &ErrorKind) {
        self.requests.failed(method, kind.code()).increment(1);
        if let Some(reason) = AuthFailure::of(kind) {
            self.auth.failures[reason].increment(1);
        }
    }

    /// Everything as Prometheus text. `refresh` sets the gauges that repeat what is known
    /// elsewhere. Takes milliseconds: not for a thread that serves requests.
    pub fn render(&self, refresh: impl FnOnce(&Self)) -> String {
        refresh(self);
        self.process.refresh();
        self.recorder.handle().render()
    }

    /// Drains the samples that histograms have piled up.
    pub fn run_upkeep(&self) {
        self.recorder.handle().run_upkeep();
    }

    /// Runs [`Metrics::run_upkeep`] every `interval`, until the metrics are dropped or the task is
    /// aborted. Needs a tokio runtime.
    pub fn spawn_upkeep(self: &Arc<Self>, interval: Duration) -> JoinHandle<()> {
        let metrics: Weak<Self> = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(interval);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                match metrics.upgrade() {
                    Some(metrics) => metrics.run_upkeep(),
                    None => return,
                }
            }
        })
    }
}

/// A recorder that knows the buckets of every histogram.
fn recorder() -> PrometheusRecorder {
    const NOT_EMPTY: &str = "the buckets are not empty";
    let mut builder = PrometheusBuilder::new()
        .set_buckets(LATENCY_SECONDS)
        .expect(NOT_EMPTY);
    let tables = [
        StorageMetrics::BUCKETS,
        HistoryMetrics::BUCKETS,
        LeaseMetrics::BUCKETS,
    ];
    for (name, buckets) in tables.concat() {
        let matcher = Matcher::Full(name.to_owned());
        builder = builder
            .set_buckets_for_metric(matcher, buckets)
            .expect(NOT_EMPTY);
    }
    builder.build_recorder()
}

/// A reading to measure a duration for a metric with; nothing else may be decided by it.
#[expect(
    clippy::disallowed_methods,
    reason = "a duration for a metric; no lease hangs on it"
)]
pub(crate) fn stopwatch() -> std::time::Instant {
    std::time::Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "shown to people; nothing but the time of a backup is decided by it"
)]
pub(crate) fn seconds_since_1970() -> f64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}
