//! Every metric named once, with its help, its labels and its buckets.
//!
//! Each node has a [`Metrics`] of its own, and with it a recorder of its own: three nodes may live
//! in one process, and no library should install something global. The fields are handles that are
//! registered once and cost a few nanoseconds to update. Counters and histograms are updated where
//! the thing happens; gauges that only repeat what some atomic already says are set when somebody
//! looks, by the closure given to [`Metrics::render`].
//!
//! Labels have few values, all known here (never a key, an id or an address), and each is touched
//! at the start, so that rates begin at zero instead of with a gap. A histogram without buckets
//! would turn into a summary, which cannot be added up across nodes: so there are buckets for every
//! name. Samples of histograms pile up until somebody drains them: [`Metrics::spawn_upkeep`] does.

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
mod register;
mod requests;
mod storage;
#[cfg(test)]
mod tests;
mod traces;
mod transport;
mod watch;
mod work;

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use metrics_exporter_prometheus::PrometheusRecorder;
use tokio::task::JoinHandle;

use crate::version;

use self::process::ProcessMetrics;
use self::register::{Labelled, Register, recorder};

pub use self::auth::{AuthFailure, AuthMetrics};
pub use self::leader_lease::LeaderLeaseMetrics;
pub use self::leases::LeaseMetrics;
pub use self::members::MemberMetrics;
pub use self::mvcc::MvccMetrics;
pub use self::peers::PeerMetrics;
pub use self::phases::{Phase, PhaseMetrics};
pub use self::raft::{MessageKind, RaftMetrics, TransferEnd};
pub use self::reads::{ReadFallback, ReadMetrics, Sampler, Tally};
pub use self::requests::RequestMetrics;
pub use self::storage::{BackupMetrics, HistoryMetrics, StorageMetrics};
pub use self::traces::{TraceMetrics, TraceResult};
pub use self::transport::{PortMetrics, TransportMetrics};
pub use self::watch::WatchMetrics;
pub use self::work::{ExpiredIn, Rejection, WorkMetrics};

/// How often samples are drained.
pub const UPKEEP_INTERVAL: Duration = Duration::from_secs(2);

/// One node's metrics.
pub struct Metrics {
    recorder: PrometheusRecorder,
    process: ProcessMetrics,
    /// The lease under which a leader answers reads alone.
    pub leader_lease: LeaderLeaseMetrics,
    /// Reads, by the authority they were served on.
    pub reads: ReadMetrics,
    /// All requests of clients.
    pub requests: RequestMetrics,
    /// Those that were refused for who asked.
    pub auth: AuthMetrics,
    /// Where their time goes.
    pub phases: PhaseMetrics,
    /// What became of traces.
    pub traces: TraceMetrics,
    /// What waits of them, and what was turned away.
    pub work: WorkMetrics,
    /// Consensus.
    pub raft: RaftMetrics,
    /// Who the members are.
    pub members: MemberMetrics,
    /// Client leases.
    pub leases: LeaseMetrics,
    /// Log and state on disk.
    pub storage: StorageMetrics,
    /// The keys, and what is done to them.
    pub mvcc: MvccMetrics,
    /// Past revisions, and how they leave.
    pub history: HistoryMetrics,
    /// Backups that the node writes by itself.
    pub backup: BackupMetrics,
    /// Watches.
    pub watch: WatchMetrics,
    /// Connections of clients and peers.
    pub transport: TransportMetrics,
}

impl Metrics {
    /// The metrics of one node, all at zero.
    pub fn new() -> Arc<Self> {
        let recorder = recorder();
        let register = Register(&recorder);
        register
            .labelled(&[
                ("version", version::VERSION),
                ("commit", version::COMMIT),
                ("rustc", version::RUSTC),
            ])
            .gauge(
                "leasehold_build_info",
                "Always 1; the labels describe the build.",
            )
            .set(1.0);
        register
            .gauge(
                "leasehold_start_time_seconds",
                "When this node started, as a Unix timestamp in seconds.",
            )
            .set(seconds_since_1970());
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
            members: MemberMetrics::new(register),
            leases: LeaseMetrics::new(register),
            storage: StorageMetrics::new(register),
            mvcc: MvccMetrics::new(register),
            history: HistoryMetrics::new(register),
            backup: BackupMetrics::new(register),
            watch: WatchMetrics::new(register),
            transport: TransportMetrics::new(register),
            recorder,
        })
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
