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

mod leases;
mod members;
mod work;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use tokio::task::JoinHandle;

use crate::api::ErrorKind;
use crate::api::ReadCounts;
use crate::api::ReadPath;
use crate::raft::Invalidation;
use crate::version;

pub use leases::LeaseMetrics;
pub use members::MemberMetrics;
pub use work::ExpiredIn;
pub use work::Rejection;
pub use work::WorkMetrics;

/// How often samples are drained.
pub const UPKEEP_INTERVAL: Duration = Duration::from_secs(2);

/// Bounds of what happens inside a server: 1 µs to 10 s.
const LATENCY_SECONDS: &[f64] = &[
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2,
    5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];
/// Bounds of what waits for a disk: 100 µs to 10 s.
const DISK_SECONDS: &[f64] = &[
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Bounds of how many things go together.
const BATCH_SIZES: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0,
];

const WAL_FSYNC: &str = "leasehold_wal_fsync_duration_seconds";
const STORAGE_COMMIT: &str = "leasehold_storage_commit_duration_seconds";
const HASH_CHECKS: &str = "leasehold_storage_hash_checks_total";
const HASH_CHECKS_HELP: &str = "Comparisons of this node's state with that of the others.";
const ALARMS: &str = "leasehold_alarms";
const ALARMS_HELP: &str = "1 while an alarm is raised on this node, by its type.";
const HISTORY_STEP: &str = "leasehold_storage_history_step_duration_seconds";
const WAL_BATCH_ENTRIES: &str = "leasehold_wal_batch_entries";
const REQUESTS: &str = "leasehold_requests_total";
const REQUESTS_HELP: &str = "Requests answered, by method and outcome code.";

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
    /// Past revisions, and how they leave.
    pub history: HistoryMetrics,
    /// Backups that the node writes by itself.
    pub backup: BackupMetrics,
    /// Watches.
    pub watch: WatchMetrics,
    /// Connections of clients and peers.
    pub transport: TransportMetrics,
}

/// The leader lease, as this node sees it.
pub struct LeaderLeaseMetrics {
    /// 1 while the node may answer reads alone.
    pub valid: Gauge,
    /// What is left of it, in seconds, margin taken off; 0 when void.
    pub remaining_seconds: Gauge,
    /// What voters promise, in seconds.
    pub duration_seconds: Gauge,
    /// The margin, in seconds.
    pub max_clock_skew_seconds: Gauge,
    /// Renewals.
    pub renewals: Counter,
    /// Times it lapsed.
    pub expirations: Counter,
    /// Reads that found it void.
    pub rejections: Counter,
    /// Readings of a clock that ran backwards or leapt.
    pub clock_jumps: Counter,
    /// Proofs that an assumption about clocks or members is false.
    pub assumption_violations: Counter,
    /// How far apart the starts of successive leases were, in seconds.
    pub renew_interval_seconds: Histogram,
    /// What was left of the lease when a batch of reads was validated, in seconds.
    pub read_margin_seconds: Histogram,
    /// From the beginning of a round until a quorum had answered it, in seconds.
    pub round_trip_seconds: Histogram,
    invalidations: [Counter; Invalidation::ALL.len()],
}

impl LeaderLeaseMetrics {
    /// Leases ended before their time, by what ended them.
    pub fn invalidations(&self, reason: Invalidation) -> &Counter {
        &self.invalidations[reason as usize]
    }
}

/// Reads, by the authority they were served on.
pub struct ReadMetrics {
    total: [Tally; READ_PATHS.len()],
    duration_seconds: [Histogram; READ_PATHS.len()],
    fallbacks: [Counter; ReadFallback::ALL.len()],
    /// Reads that waited for consensus and were refused.
    pub read_index_failures: Counter,
    /// How old a state was at most that a read was served from, in seconds, where it may be old and
    /// that is known.
    pub staleness_seconds: Histogram,
}

/// A counter that can be read, too.
pub struct Tally {
    counter: Counter,
    so_far: AtomicU64,
}

impl Tally {
    /// Counts `more`.
    pub fn increment(&self, more: u64) {
        self.so_far.fetch_add(more, Ordering::Relaxed);
        self.counter.increment(more);
    }
}

const READ_PATHS: [ReadPath; 4] = [
    ReadPath::Lease,
    ReadPath::ReadIndex,
    ReadPath::Follower,
    ReadPath::Serializable,
];

/// Why a read that could have been served by the session that received it was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFallback {
    /// The lease was void.
    LeaseInvalid,
    /// The store had not yet applied what was committed when the read arrived.
    Behind,
    /// This node is configured not to serve under the lease.
    Disabled,
    /// The state could not be proved to be as young as was asked.
    TooOld,
    /// The store had not yet reached the revision that was asked for.
    Revision,
}

impl ReadFallback {
    const ALL: [Self; 5] = [
        Self::LeaseInvalid,
        Self::Behind,
        Self::Disabled,
        Self::TooOld,
        Self::Revision,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::LeaseInvalid => "lease_invalid",
            Self::Behind => "behind",
            Self::Disabled => "disabled",
            Self::TooOld => "too_old",
            Self::Revision => "revision",
        }
    }
}

impl ReadMetrics {
    /// Reads served.
    pub fn total(&self, path: ReadPath) -> &Tally {
        &self.total[path_index(path)]
    }

    /// All reads served so far.
    pub fn counts(&self) -> ReadCounts {
        let count = |path| self.total(path).so_far.load(Ordering::Relaxed);
        ReadCounts {
            lease: count(ReadPath::Lease),
            read_index: count(ReadPath::ReadIndex),
            follower: count(ReadPath::Follower),
            serializable: count(ReadPath::Serializable),
        }
    }

    /// How long a read took, from decoded request to encoded reply, in seconds. Sampled: record
    /// only what a [`Sampler`] lets through.
    pub fn duration_seconds(&self, path: ReadPath) -> &Histogram {
        &self.duration_seconds[path_index(path)]
    }

    /// Reads that had to ask or to wait, although the session might have served them.
    pub fn fallbacks(&self, reason: ReadFallback) -> &Counter {
        &self.fallbacks[reason as usize]
    }
}

fn path_index(path: ReadPath) -> usize {
    READ_PATHS
        .iter()
        .position(|known| *known == path)
        .expect("READ_PATHS holds every path")
}

/// Lets one of every 64 reads through: a histogram sample costs more than the read of a batch.
/// Shared by all sessions of a node, so that those of short connections are measured like any
/// other.
#[derive(Debug, Default)]
pub struct Sampler {
    seen: AtomicU64,
}

impl Sampler {
    /// One of so many is measured.
    pub const EVERY: u64 = 64;

    /// Counts `reads` and says whether one of them should be measured.
    pub fn take(&self, reads: u64) -> bool {
        let before = self.seen.fetch_add(reads, Ordering::Relaxed);
        before / Self::EVERY != before.wrapping_add(reads) / Self::EVERY
    }
}

/// All requests of clients.
pub struct RequestMetrics {
    succeeded: [Counter; METHODS.len()],
    duration_seconds: [Histogram; METHODS.len()],
}

/// What [`Request::method`](crate::api::Request::method) may say, and a place for what it may not.
const METHODS: [&str; 45] = [
    "range",
    "put",
    "delete_range",
    "open_session",
    "status",
    "move_leader",
    "compact",
    "leader_lease_report",
    "txn",
    "lease_grant",
    "lease_revoke",
    "lease_keep_alive",
    "lease_time_to_live",
    "lease_list",
    "lease_update_ttl",
    "put_with_new_lease",
    "range_page",
    "watch",
    "watch_cancel",
    "watch_progress",
    "snapshot",
    "member_list",
    "member_add",
    "member_remove",
    "member_promote",
    "member_update",
    "auth_enable",
    "auth_disable",
    "auth_status",
    "authenticate",
    "use_token",
    "user_add",
    "user_get",
    "user_list",
    "user_delete",
    "user_change_password",
    "user_grant_role",
    "user_revoke_role",
    "role_add",
    "role_get",
    "role_list",
    "role_delete",
    "role_grant_permission",
    "role_revoke_permission",
    "other",
];

impl RequestMetrics {
    /// Requests of this [`method`](crate::api::Request::method) that succeeded.
    pub fn succeeded(&self, method: &'static str) -> &Counter {
        &self.succeeded[method_index(method)]
    }

    /// How long requests of this method took, from decoded request to encoded reply, in seconds.
    /// Reads under the lease are sampled, as in [`ReadMetrics::duration_seconds`].
    pub fn duration_seconds(&self, method: &'static str) -> &Histogram {
        &self.duration_seconds[method_index(method)]
    }
}

fn method_index(method: &str) -> usize {
    METHODS
        .iter()
        .position(|known| *known == method)
        .unwrap_or(METHODS.len() - 1)
}

/// Consensus.
pub struct RaftMetrics {
    /// 1 while the node knows a leader.
    pub has_leader: Gauge,
    /// 1 while it leads.
    pub is_leader: Gauge,
    /// 1 while it receives everything and does not vote.
    pub is_learner: Gauge,
    /// Its term.
    pub term: Gauge,
    /// Changes of leader that it saw.
    pub leader_changes: Counter,
    /// How late it acted on what was due, in seconds.
    pub timer_delay_seconds: Histogram,
    /// Highest index known to be committed; as a counter, because it never falls.
    pub proposals_committed: Counter,
    /// Highest index applied.
    pub proposals_applied: Counter,
    /// Highest index known to be committed.
    pub commit_index: Gauge,
    /// Highest index applied.
    pub applied_index: Gauge,
    /// Followers that turned out to lack what they had acknowledged to this leader.
    pub lost_logs: Counter,
    /// Messages that no correct peer can have sent.
    pub messages_refused: Counter,
    /// 1 while this node takes everything anew and neither votes nor serves.
    pub quarantined: Gauge,
    /// 1 while this node has no state, and waits for one from a peer.
    pub without_state: Gauge,
    /// The first entry that the log may hold.
    pub log_first_index: Gauge,
    /// Bytes of the log's files.
    pub log_bytes: Gauge,
    /// The log's files.
    pub log_segments: Gauge,
    /// Times the log was cut at its beginning.
    pub log_compactions: Counter,
    /// How long it took to make the state durable before that, in seconds.
    pub log_compaction_seconds: Histogram,
    snapshots_sent: [Counter; TransferEnd::ALL.len()],
    snapshots_received: [Counter; TransferEnd::ALL.len()],
    /// Bytes of states sent to peers.
    pub snapshot_sent_bytes: Counter,
    /// Bytes of states received from peers.
    pub snapshot_received_bytes: Counter,
    /// How long it took to send a state, in seconds.
    pub snapshot_send_seconds: Histogram,
    /// How long it took to receive a state, in seconds.
    pub snapshot_receive_seconds: Histogram,
    /// How long it took to put a received state to work, in seconds.
    pub snapshot_install_seconds: Histogram,
    messages_sent: [Counter; MessageKind::ALL.len()],
}

/// How the transfer of a state has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferEnd {
    /// All of it is there.
    Ok,
    /// The connection broke, or one side was stopped: it may go on where it was.
    Broken,
    /// The receiver had its hands full.
    Busy,
    /// What came was damaged.
    Corrupt,
    /// The receiver could not store it, or the sender not read it.
    Failed,
}

impl TransferEnd {
    const ALL: [Self; 5] = [
        Self::Ok,
        Self::Broken,
        Self::Busy,
        Self::Corrupt,
        Self::Failed,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Broken => "broken",
            Self::Busy => "busy",
            Self::Corrupt => "corrupt",
            Self::Failed => "failed",
        }
    }
}

/// What a message to a peer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Keeps promises alive, and their answers. Flows all the time.
    Heartbeat,
    /// Replicates entries, and the answers.
    Append,
    /// Elections.
    Vote,
    /// Compares states with the others.
    StateHash,
    /// Everything else: transfers, releases, rejoining.
    Other,
}

impl MessageKind {
    const ALL: [Self; 5] = [
        Self::Heartbeat,
        Self::Append,
        Self::Vote,
        Self::StateHash,
        Self::Other,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Heartbeat => "heartbeat",
            Self::Append => "append",
            Self::Vote => "vote",
            Self::StateHash => "state_hash",
            Self::Other => "other",
        }
    }
}

impl RaftMetrics {
    /// States that were sent to peers, or not to the end.
    pub fn snapshots_sent(&self, end: TransferEnd) -> &Counter {
        &self.snapshots_sent[end as usize]
    }

    /// States that peers have sent, or not to the end.
    pub fn snapshots_received(&self, end: TransferEnd) -> &Counter {
        &self.snapshots_received[end as usize]
    }

    /// Messages handed to the transport for peers.
    pub fn messages_sent(&self, kind: MessageKind) -> &Counter {
        &self.messages_sent[kind as usize]
    }
}

/// Log and state on disk.
pub struct StorageMetrics {
    /// The store's revision.
    pub revision: Gauge,
    /// Bytes of state on disk, as the storage engine counts them.
    pub size_bytes: Gauge,
    /// How many there may be.
    pub quota_bytes: Gauge,
    /// 1 while nothing may be written because there is no room.
    pub space_alarm: Gauge,
    /// Comparisons with the states of other nodes that agreed.
    pub hash_checks_agreed: Counter,
    /// Those that did not.
    pub hash_checks_differed: Counter,
    /// 1 while the state is not served because it differs from others'.
    pub corruption_alarm: Gauge,
    /// How long a sync of the log took, in seconds.
    pub wal_fsync_seconds: Histogram,
    /// How many entries shared one sync.
    pub wal_batch_entries: Histogram,
    /// Times that a write of the log was owed for longer than a promise lasts.
    pub wal_stalls: Counter,
    /// 1 while one is.
    pub wal_stalled: Gauge,
    /// How long it took to apply a batch to the state, in seconds.
    pub commit_seconds: Histogram,
}

/// Past revisions, and how they leave.
pub struct HistoryMetrics {
    /// The oldest revision that can be read.
    pub compact_revision: Gauge,
    /// What compactions up to this revision gave up is removed.
    pub removed_through: Gauge,
    /// Compactions whose history is removed.
    pub compactions: Counter,
    /// Records removed.
    pub removed_records: Counter,
    /// How long a step of the removal took, in seconds.
    pub step_seconds: Histogram,
}

/// Backups that the node writes by itself.
pub struct BackupMetrics {
    /// How often one is due, in seconds; 0 where none is.
    pub interval_seconds: Gauge,
    /// When the last one was written and read back, in seconds since 1970; 0 for never.
    pub last_success_seconds: Gauge,
    /// Backups that could not be written.
    pub failures: Counter,
}

/// Watches of clients.
pub struct WatchMetrics {
    /// Watches that are open.
    pub watchers: Gauge,
    /// Connections that have any.
    pub streams: Gauge,
    /// Events sent, each watch by itself.
    pub events: Counter,
    /// Revisions and other notices that wait to be sent, each watch by itself.
    pub pending: Gauge,
    /// Bytes that wait to be sent or are being sent, what watches share counted once.
    pub queued_bytes: Gauge,
    /// Watches that do not keep up, or are catching up.
    pub slow: Gauge,
    /// From applying a change until its last byte was handed to the connection, in seconds; sampled.
    pub delivery_delay_seconds: Histogram,
}

impl WatchMetrics {
    fn new(register: Register<'_>) -> Self {
        Self {
            watchers: register.gauge("leasehold_watchers", "Watches that are open."),
            streams: register.gauge(
                "leasehold_watch_streams",
                "Connections that have watches open.",
            ),
            events: register.counter(
                "leasehold_watch_events_total",
                "Events sent, each watch by itself.",
            ),
            pending: register.gauge(
                "leasehold_watch_pending_events",
                "Notices that wait to be sent, each watch by itself; the changes of one revision \
                 are one.",
            ),
            queued_bytes: register.gauge(
                "leasehold_watch_queued_bytes",
                "Bytes that wait to be sent to watches or are being sent, what they share counted \
                 once.",
            ),
            slow: register.gauge(
                "leasehold_watch_slow_watchers",
                "Watches that have not been given all that was applied: they catch up, or their \
                 clients read too slowly.",
            ),
            delivery_delay_seconds: register.histogram(
                "leasehold_watch_delivery_delay_seconds",
                "Time from applying a change until it was handed to the connection of a watch; \
                 sampled.",
            ),
        }
    }
}

/// Connections of clients and peers.
pub struct TransportMetrics {
    /// The client port.
    pub client: PortMetrics,
    /// The peer port.
    pub peer: PortMetrics,
    /// Strangers who were asked to prove their address first.
    pub retries: Counter,
    /// Strangers who got no answer, because there were too many.
    pub ignored: Counter,
}

/// One port's connections.
pub struct PortMetrics {
    /// Connections open now.
    pub connections: Gauge,
    /// Frames that could not be decoded; each ends its connection.
    pub malformed_frames: Counter,
    /// When the certificate that this node shows there ends, in seconds since 1970.
    pub certificate_expiry_seconds: Gauge,
    /// Certificates that were taken into use while the node ran.
    pub certificate_reloads_ok: Counter,
    /// Certificates that had changed and could not be used.
    pub certificate_reloads_failed: Counter,
    handshakes: [Counter; HANDSHAKE_RESULTS.len()],
}

/// How a handshake may end, and at the end a place for what is not known here.
const HANDSHAKE_RESULTS: [&str; 10] = [
    "ok", "tls", "alpn", "timeout", "identity", "cluster", "version", "limit", "hello", "other",
];

impl PortMetrics {
    /// Handshakes of incoming connections that ended so: `ok`, or the name of the failure.
    pub fn handshakes(&self, result: &str) -> &Counter {
        let index = HANDSHAKE_RESULTS.iter().position(|known| *known == result);
        &self.handshakes[index.unwrap_or(HANDSHAKE_RESULTS.len() - 1)]
    }
}

struct ProcessMetrics {
    cpu_seconds: Counter,
    open_fds: Gauge,
    max_fds: Gauge,
    virtual_memory_bytes: Gauge,
    virtual_memory_max_bytes: Gauge,
    resident_memory_bytes: Gauge,
    start_time_seconds: Gauge,
    threads: Gauge,
}

impl Metrics {
    /// The metrics of one node, all at zero.
    pub fn new() -> Arc<Self> {
        let recorder = recorder();
        let register = Register(&recorder);
        let (leader_lease, reads) = (
            LeaderLeaseMetrics::new(register),
            ReadMetrics::new(register),
        );
        let (requests, raft) = (RequestMetrics::new(register), RaftMetrics::new(register));
        let (storage, transport) = (
            StorageMetrics::new(register),
            TransportMetrics::new(register),
        );
        let leases = LeaseMetrics::new(register);
        let members = MemberMetrics::new(register);
        let work = WorkMetrics::new(register);
        let history = HistoryMetrics::new(register);
        let backup = BackupMetrics::new(register);
        let watch = WatchMetrics::new(register);
        let process = ProcessMetrics::new(register);
        register
            .labelled(&[
                ("version", version::VERSION),
                ("commit", version::COMMIT),
                ("rustc", version::RUSTC),
            ])
            .gauge(
                "leasehold_build_info",
                "1, with what this binary was made from.",
            )
            .set(1.0);
        register
            .gauge(
                "leasehold_start_time_seconds",
                "When this node started, in seconds since 1970.",
            )
            .set(seconds_since_1970());
        Arc::new(Self {
            recorder,
            process,
            leader_lease,
            reads,
            requests,
            raft,
            members,
            leases,
            work,
            storage,
            history,
            backup,
            watch,
            transport,
        })
    }

    /// A request of `method` that failed with `kind`.
    pub fn request_failed(&self, method: &'static str, kind: &ErrorKind) {
        // Failures are rare enough to look their counter up.
        Register(&self.recorder)
            .labelled(&[("method", method), ("code", kind.code())])
            .counter(REQUESTS, REQUESTS_HELP)
            .increment(1);
        let reason = match kind {
            ErrorKind::Unauthenticated => "unauthenticated",
            ErrorKind::TokenExpired => "token_expired",
            ErrorKind::PermissionDenied => "permission_denied",
            _ => return,
        };
        Register(&self.recorder)
            .labelled(&[("reason", reason)])
            .counter(
                "leasehold_auth_failures_total",
                "Requests refused for who asked, by what was wrong with that.",
            )
            .increment(1);
    }

    /// A watch that ended before its client had enough, or because it had.
    pub fn watch_canceled(&self, reason: &'static str) {
        Register(&self.recorder)
            .labelled(&[("reason", reason)])
            .counter(
                "leasehold_watch_cancels_total",
                "Watches that ended, by what ended them.",
            )
            .increment(1);
    }

    /// The clocks of the member `peer` run faster than ours by `ratio`.
    pub fn clock_drifts(&self, peer: &str, ratio: f64) {
        // Once a second for each member: its gauge is looked up.
        Labelled {
            recorder: &self.recorder,
            labels: vec![Label::new("peer", peer.to_owned())],
        }
        .gauge(
            "leasehold_clock_drift_ratio",
            "How much faster the peer's clocks run than this node's, over the last minutes: 1e-6 \
             is a microsecond a second.",
        )
        .set(ratio);
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

fn recorder() -> PrometheusRecorder {
    let buckets = |builder: PrometheusBuilder, matcher, bounds| {
        builder
            .set_buckets_for_metric(matcher, bounds)
            .expect("the bounds are not empty")
    };
    let mut builder = PrometheusBuilder::new()
        .set_buckets(LATENCY_SECONDS)
        .expect("the bounds are not empty");
    for name in [WAL_FSYNC, STORAGE_COMMIT, HISTORY_STEP] {
        builder = buckets(builder, Matcher::Full(name.to_owned()), DISK_SECONDS);
    }
    for (name, bounds) in [
        (leases::LATENESS, leases::LATENESS_SECONDS),
        (leases::TTL, leases::TTL_SECONDS),
        (leases::RATIO, leases::RATIOS),
    ] {
        builder = buckets(builder, Matcher::Full(name.to_owned()), bounds);
    }
    let batches = Matcher::Full(WAL_BATCH_ENTRIES.to_owned());
    builder = buckets(builder, batches, BATCH_SIZES);
    builder.build_recorder()
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

/// Registers metrics with their help: there is no other way to make one.
#[derive(Clone, Copy)]
struct Register<'a>(&'a PrometheusRecorder);

/// As [`Register`], with labels.
struct Labelled<'a> {
    recorder: &'a PrometheusRecorder,
    labels: Vec<Label>,
}

const METADATA: Metadata<'static> =
    Metadata::new("leasehold", Level::INFO, Some("leasehold::server::metrics"));

impl<'a> Register<'a> {
    fn labelled(self, labels: &[(&'static str, &'static str)]) -> Labelled<'a> {
        let label =
            |(name, value): &(&'static str, &'static str)| Label::from_static_parts(name, value);
        Labelled {
            recorder: self.0,
            labels: labels.iter().map(label).collect(),
        }
    }

    fn counter(self, name: &'static str, help: &'static str) -> Counter {
        self.labelled(&[]).counter(name, help)
    }

    fn gauge(self, name: &'static str, help: &'static str) -> Gauge {
        self.labelled(&[]).gauge(name, help)
    }

    fn histogram(self, name: &'static str, help: &'static str) -> Histogram {
        self.labelled(&[]).histogram(name, help)
    }
}

impl Labelled<'_> {
    fn counter(self, name: &'static str, help: &'static str) -> Counter {
        self.recorder
            .describe_counter(name.into(), None, help.into());
        let key = Key::from_parts(name, self.labels);
        self.recorder.register_counter(&key, &METADATA)
    }

    fn gauge(self, name: &'static str, help: &'static str) -> Gauge {
        self.recorder.describe_gauge(name.into(), None, help.into());
        let key = Key::from_parts(name, self.labels);
        self.recorder.register_gauge(&key, &METADATA)
    }

    fn histogram(self, name: &'static str, help: &'static str) -> Histogram {
        self.recorder
            .describe_histogram(name.into(), None, help.into());
        let key = Key::from_parts(name, self.labels);
        self.recorder.register_histogram(&key, &METADATA)
    }
}

impl LeaderLeaseMetrics {
    fn new(register: Register<'_>) -> Self {
        Self {
            valid: register.gauge(
                "leasehold_leader_lease_valid",
                "1 while this node may answer linearizable reads alone.",
            ),
            remaining_seconds: register.gauge(
                "leasehold_leader_lease_remaining_seconds",
                "What is left of the leader lease, margin taken off; 0 when void.",
            ),
            duration_seconds: register.gauge(
                "leasehold_leader_lease_duration_seconds",
                "For how long voters promise to elect nobody else.",
            ),
            max_clock_skew_seconds: register.gauge(
                "leasehold_leader_lease_max_clock_skew_seconds",
                "How much earlier than the promise the leader lease ends.",
            ),
            renewals: register.counter(
                "leasehold_leader_lease_renewals_total",
                "Renewals of the leader lease.",
            ),
            expirations: register.counter(
                "leasehold_leader_lease_expirations_total",
                "Times the leader lease lapsed.",
            ),
            rejections: register.counter(
                "leasehold_leader_lease_rejections_total",
                "Reads that found the leader lease void.",
            ),
            clock_jumps: register.counter(
                "leasehold_clock_jump_total",
                "Readings of a clock that ran backwards or leapt.",
            ),
            assumption_violations: register.counter(
                "leasehold_leader_lease_assumption_violations_total",
                "Proofs that an assumption about clocks or members is false: another node led \
                 while this one held a lease.",
            ),
            renew_interval_seconds: register.histogram(
                "leasehold_leader_lease_renew_interval_seconds",
                "How far apart the starts of successive leases were; renewals closer than 10 ms \
                 count as one.",
            ),
            read_margin_seconds: register.histogram(
                "leasehold_leader_lease_read_margin_seconds",
                "What was left of the leader lease when a batch of reads was validated.",
            ),
            round_trip_seconds: register.histogram(
                "leasehold_leader_lease_round_trip_seconds",
                "From the beginning of a round of messages until a quorum had answered it.",
            ),
            invalidations: Invalidation::ALL.map(|reason| {
                register.labelled(&[("reason", reason.label())]).counter(
                    "leasehold_leader_lease_invalidations_total",
                    "Leader leases ended before their time, by what ended them.",
                )
            }),
        }
    }
}

impl ReadMetrics {
    fn new(register: Register<'_>) -> Self {
        Self {
            total: READ_PATHS.map(|path| Tally {
                counter: register
                    .labelled(&[("path", path.name())])
                    .counter("leasehold_reads_total", "Reads served, by authority."),
                so_far: AtomicU64::new(0),
            }),
            duration_seconds: READ_PATHS.map(|path| {
                register.labelled(&[("path", path.name())]).histogram(
                    "leasehold_read_duration_seconds",
                    "Time inside the server of one in 64 reads, by authority.",
                )
            }),
            fallbacks: ReadFallback::ALL.map(|reason| {
                register.labelled(&[("reason", reason.label())]).counter(
                    "leasehold_read_fallbacks_total",
                    "Reads that had to ask or to wait, by the reason why the node that received \
                     them could not serve them alone.",
                )
            }),
            read_index_failures: register.counter(
                "leasehold_raft_read_index_failures_total",
                "Reads that waited for a quorum, a leader or the state machine, and were refused.",
            ),
            staleness_seconds: register.histogram(
                "leasehold_read_staleness_seconds",
                "Proved bound of the age of the state that one in 64 serializable or \
                 bounded-staleness reads were served from.",
            ),
        }
    }
}

impl RequestMetrics {
    fn new(register: Register<'_>) -> Self {
        Self {
            succeeded: METHODS.map(|method| {
                register
                    .labelled(&[("method", method), ("code", "OK")])
                    .counter(REQUESTS, REQUESTS_HELP)
            }),
            duration_seconds: METHODS.map(|method| {
                register.labelled(&[("method", method)]).histogram(
                    "leasehold_request_duration_seconds",
                    "Time inside the server, from decoded request to encoded reply (of reads \
                     under the lease, one in 64).",
                )
            }),
        }
    }
}

impl RaftMetrics {
    fn new(register: Register<'_>) -> Self {
        Self {
            has_leader: register.gauge(
                "leasehold_raft_has_leader",
                "1 while this node knows a leader.",
            ),
            is_leader: register.gauge("leasehold_raft_is_leader", "1 while this node leads."),
            is_learner: register.gauge(
                "leasehold_raft_is_learner",
                "1 while this node receives everything and does not vote.",
            ),
            term: register.gauge("leasehold_raft_term", "This node's term."),
            timer_delay_seconds: register.histogram(
                "leasehold_raft_timer_delay_seconds",
                "How late the node acted on what was due: pauses of the scheduler, and its own.",
            ),
            leader_changes: register.counter(
                "leasehold_raft_leader_changes_total",
                "Changes of leader that this node saw.",
            ),
            proposals_committed: register.counter(
                "leasehold_raft_proposals_committed_total",
                "Log entries known to be committed.",
            ),
            proposals_applied: register.counter(
                "leasehold_raft_proposals_applied_total",
                "Log entries applied to the state.",
            ),
            commit_index: register.gauge(
                "leasehold_raft_commit_index",
                "Highest log index known to be committed.",
            ),
            applied_index: register.gauge(
                "leasehold_raft_applied_index",
                "Highest log index applied to the state.",
            ),
            lost_logs: register.counter(
                "leasehold_raft_lost_logs_total",
                "Followers that turned out to lack what they had acknowledged to this leader.",
            ),
            messages_refused: register.counter(
                "leasehold_raft_messages_refused_total",
                "Messages that no correct peer can have sent.",
            ),
            quarantined: register.gauge(
                "leasehold_raft_quarantined",
                "1 while this node takes everything anew and neither votes nor serves.",
            ),
            without_state: register.gauge(
                "leasehold_raft_without_state",
                "1 while this node has no state, and waits for one from a peer.",
            ),
            log_first_index: register.gauge(
                "leasehold_raft_log_first_index",
                "First entry that the log may hold: what was before it has been cut.",
            ),
            log_bytes: register.gauge("leasehold_wal_size_bytes", "Bytes of the log's files."),
            log_segments: register.gauge(
                "leasehold_wal_segments",
                "Files of the log, with those that lie ready.",
            ),
            log_compactions: register.counter(
                "leasehold_raft_log_compactions_total",
                "Times the log was cut at its beginning.",
            ),
            log_compaction_seconds: register.histogram(
                "leasehold_raft_log_compaction_duration_seconds",
                "How long it took to make the state durable before the log was cut.",
            ),
            snapshots_sent: TransferEnd::ALL.map(|end| {
                register.labelled(&[("result", end.label())]).counter(
                    "leasehold_raft_snapshot_sent_total",
                    "States sent to peers whose log lacks what was cut, by how it ended.",
                )
            }),
            snapshots_received: TransferEnd::ALL.map(|end| {
                register.labelled(&[("result", end.label())]).counter(
                    "leasehold_raft_snapshot_received_total",
                    "States that came from peers, by how it ended.",
                )
            }),
            snapshot_sent_bytes: register.counter(
                "leasehold_raft_snapshot_sent_bytes_total",
                "Bytes of states sent to peers.",
            ),
            snapshot_received_bytes: register.counter(
                "leasehold_raft_snapshot_received_bytes_total",
                "Bytes of states received from peers.",
            ),
            snapshot_send_seconds: register.histogram(
                "leasehold_raft_snapshot_send_duration_seconds",
                "How long it took to send a state, all of it or the rest.",
            ),
            snapshot_receive_seconds: register.histogram(
                "leasehold_raft_snapshot_receive_duration_seconds",
                "How long it took to receive a state, all of it or the rest.",
            ),
            snapshot_install_seconds: register.histogram(
                "leasehold_raft_snapshot_install_duration_seconds",
                "How long it took to put a received state to work.",
            ),
            messages_sent: MessageKind::ALL.map(|kind| {
                register.labelled(&[("kind", kind.label())]).counter(
                    "leasehold_raft_messages_sent_total",
                    "Messages handed to the transport for peers, by what they are for.",
                )
            }),
        }
    }
}

impl StorageMetrics {
    fn new(register: Register<'_>) -> Self {
        Self {
            revision: register.gauge("leasehold_mvcc_revision", "The store's revision."),
            size_bytes: register.gauge(
                "leasehold_storage_size_bytes",
                "Bytes of state on disk, as the storage engine counts them.",
            ),
            quota_bytes: register.gauge(
                "leasehold_storage_quota_bytes",
                "Bytes that the state may take on disk.",
            ),
            space_alarm: register
                .labelled(&[("type", "no_space")])
                .gauge(ALARMS, ALARMS_HELP),
            hash_checks_agreed: register
                .labelled(&[("result", "ok")])
                .counter(HASH_CHECKS, HASH_CHECKS_HELP),
            hash_checks_differed: register
                .labelled(&[("result", "differs")])
                .counter(HASH_CHECKS, HASH_CHECKS_HELP),
            corruption_alarm: register
                .labelled(&[("type", "corrupt")])
                .gauge(ALARMS, ALARMS_HELP),
            wal_fsync_seconds: register.histogram(WAL_FSYNC, "Time of one sync of the log."),
            wal_batch_entries: register.histogram(
                WAL_BATCH_ENTRIES,
                "Entries that shared one sync of the log.",
            ),
            wal_stalls: register.counter(
                "leasehold_wal_stalls_total",
                "Times that the disk of the log owed an answer for longer than a promise lasts.",
            ),
            wal_stalled: register.gauge(
                "leasehold_wal_stalled",
                "1 while the disk of the log owes an answer for longer than a promise lasts.",
            ),
            commit_seconds: register.histogram(
                STORAGE_COMMIT,
                "Time to apply one batch of entries to the state.",
            ),
        }
    }
}

impl HistoryMetrics {
    fn new(register: Register<'_>) -> Self {
        Self {
            compact_revision: register.gauge(
                "leasehold_mvcc_compact_revision",
                "The oldest revision that can be read.",
            ),
            removed_through: register.gauge(
                "leasehold_storage_history_removed_revision",
                "What compactions up to this revision gave up is gone from this node.",
            ),
            compactions: register.counter(
                "leasehold_storage_compactions_total",
                "Compactions whose history is gone from this node.",
            ),
            removed_records: register.counter(
                "leasehold_storage_history_removed_records_total",
                "Records removed because they were compacted.",
            ),
            step_seconds: register.histogram(
                HISTORY_STEP,
                "Time of one step of the removal of compacted history.",
            ),
        }
    }
}

impl BackupMetrics {
    fn new(register: Register<'_>) -> Self {
        Self {
            interval_seconds: register.gauge(
                "leasehold_backup_interval_seconds",
                "How often this node writes a backup; 0 where it writes none.",
            ),
            last_success_seconds: register.gauge(
                "leasehold_backup_last_success_timestamp_seconds",
                "When this node last wrote a backup and read it back, in seconds since 1970.",
            ),
            failures: register.counter(
                "leasehold_backup_failures_total",
                "Backups that this node could not write.",
            ),
        }
    }
}

impl TransportMetrics {
    fn new(register: Register<'_>) -> Self {
        Self {
            client: PortMetrics::new(register, "client"),
            peer: PortMetrics::new(register, "peer"),
            retries: register.counter(
                "leasehold_quic_retries_total",
                "Strangers who were asked to prove their address first.",
            ),
            ignored: register.counter(
                "leasehold_quic_ignored_total",
                "Strangers who got no answer, because there were too many.",
            ),
        }
    }
}

impl PortMetrics {
    fn new(register: Register<'_>, kind: &'static str) -> Self {
        let labelled = || register.labelled(&[("kind", kind)]);
        let reloads = |result| {
            register
                .labelled(&[("role", kind), ("result", result)])
                .counter(
                    "leasehold_tls_reloads_total",
                    "Certificates that changed while the node ran, by whether they could be used.",
                )
        };
        Self {
            connections: labelled().gauge("leasehold_quic_connections", "Connections open now."),
            malformed_frames: labelled().counter(
                "leasehold_malformed_frames_total",
                "Frames that could not be decoded; each ends its connection.",
            ),
            certificate_expiry_seconds: register.labelled(&[("role", kind)]).gauge(
                "leasehold_tls_certificate_expiry_timestamp_seconds",
                "When the certificate that this node shows on a port ends, in seconds since 1970.",
            ),
            certificate_reloads_ok: reloads("ok"),
            certificate_reloads_failed: reloads("failed"),
            handshakes: HANDSHAKE_RESULTS.map(|result| {
                register
                    .labelled(&[("kind", kind), ("result", result)])
                    .counter(
                        "leasehold_quic_handshakes_total",
                        "Handshakes of incoming connections, by how they ended.",
                    )
            }),
        }
    }
}

impl ProcessMetrics {
    fn new(register: Register<'_>) -> Self {
        Self {
            cpu_seconds: register.counter(
                "process_cpu_seconds_total",
                "User and system time of the process, in whole seconds.",
            ),
            open_fds: register.gauge("process_open_fds", "Open file descriptors."),
            max_fds: register.gauge("process_max_fds", "Most file descriptors allowed."),
            virtual_memory_bytes: register
                .gauge("process_virtual_memory_bytes", "Virtual memory in bytes."),
            virtual_memory_max_bytes: register.gauge(
                "process_virtual_memory_max_bytes",
                "Most virtual memory allowed, in bytes.",
            ),
            resident_memory_bytes: register
                .gauge("process_resident_memory_bytes", "Resident memory in bytes."),
            start_time_seconds: register.gauge(
                "process_start_time_seconds",
                "When the process started, in seconds since 1970.",
            ),
            threads: register.gauge("process_threads", "Threads of the process."),
        }
    }

    fn refresh(&self) {
        let now = metrics_process::collector::collect();
        if let Some(seconds) = now.cpu_seconds_total {
            self.cpu_seconds.absolute(seconds as u64);
        }
        let gauges = [
            (&self.open_fds, now.open_fds),
            (&self.max_fds, now.max_fds),
            (&self.virtual_memory_bytes, now.virtual_memory_bytes),
            (&self.virtual_memory_max_bytes, now.virtual_memory_max_bytes),
            (&self.resident_memory_bytes, now.resident_memory_bytes),
            (&self.start_time_seconds, now.start_time_seconds),
            (&self.threads, now.threads),
        ];
        for (gauge, value) in gauges {
            if let Some(value) = value {
                gauge.set(value as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::node::Lapse;
    use crate::node::LeaseCounts;

    /// The type of every metric in a rendered text, by name.
    fn types(text: &str) -> BTreeMap<&str, &str> {
        text.lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
            .collect()
    }

    fn value(text: &str, series: &str) -> f64 {
        text.lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
            .unwrap_or_else(|| panic!("{series} is not in\n{text}"))
    }

    #[test]
    fn nothing_is_a_summary_everything_has_help_and_only_counters_end_in_total() {
        let metrics = Metrics::new();
        let text = metrics.render(|_| {});
        let types = types(&text);
        assert!(types.len() > 40, "{text}");
        for (name, kind) in &types {
            assert_ne!(*kind, "summary", "{name}");
            assert!(
                text.contains(&format!("# HELP {name} ")),
                "{name} has no help"
            );
            assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
            if *kind == "histogram" {
                let units = ["_seconds", "_entries", "_ratio_at_renew"];
                let unit = units.iter().any(|unit| name.ends_with(unit));
                assert!(unit, "{name} does not end in its unit");
            }
        }
    }

    /// Each outcome of a renewal is counted as what it is and nothing else, and a whole request that is
    /// refused only where nobody could prove to lead.
    #[test]
    fn renewals_are_counted_by_what_became_of_them() {
        use crate::api::ErrorKind;
        use crate::api::LeaseKept;
        let metrics = Metrics::new();
        let renewed = LeaseKept::Renewed { ttl_ms: 1 };
        let outcomes = [
            (renewed, 5),
            (LeaseKept::NotFound, 4),
            (LeaseKept::Expired, 3),
            (LeaseKept::Revoked, 2),
            (LeaseKept::Undecided, 1),
        ];
        let kept = outcomes.map(|(kept, count)| vec![kept; count]).concat();
        metrics.leases.kept(&kept);
        for doubt in [
            ErrorKind::LeaderChanged,
            ErrorKind::LeaseInvalid,
            ErrorKind::NoLeader,
            ErrorKind::DeadlineExceeded,
        ] {
            metrics.leases.refused(10, &doubt);
        }
        let elsewhere = ErrorKind::NotLeader {
            leader: None,
            address: None,
        };
        metrics.leases.refused(10, &elsewhere);
        metrics.leases.changed(&LeaseCounts {
            granted_ttl_ms: vec![500, 1_500],
            expired: 7,
            revoked: 8,
            late: vec![Duration::from_millis(250); 3],
            left_at_renewal: vec![400, 600],
            checkpoints: 9,
            lapses: vec![
                Lapse::StoodStill(Duration::from_secs(1)),
                Lapse::ClockWentBack,
                Lapse::ClockWentBack,
                Lapse::NoQuorum(Duration::from_secs(1)),
            ],
            ..LeaseCounts::default()
        });
        let text = metrics.render(|_| {});
        for (series, expected) in [
            ("leasehold_lease_renewed_total", 5.0),
            (
                "leasehold_lease_renew_rejected_total{reason=\"not_found\"}",
                4.0,
            ),
            (
                "leasehold_lease_renew_rejected_total{reason=\"expired\"}",
                5.0,
            ),
            (
                "leasehold_lease_renew_rejected_total{reason=\"undecided\"}",
                1.0,
            ),
            (
                "leasehold_lease_renew_rejected_total{reason=\"leader_lease_invalid\"}",
                40.0,
            ),
            ("leasehold_lease_granted_total", 2.0),
            ("leasehold_lease_ttl_seconds_sum", 2.0),
            ("leasehold_lease_revoked_total{reason=\"expired\"}", 7.0),
            ("leasehold_lease_revoked_total{reason=\"client\"}", 8.0),
            ("leasehold_lease_expiry_error_seconds_sum", 0.75),
            ("leasehold_lease_remaining_ratio_at_renew_sum", 1.0),
            ("leasehold_lease_checkpoints_total", 9.0),
            ("leasehold_lease_lapses_total{reason=\"stood_still\"}", 1.0),
            (
                "leasehold_lease_lapses_total{reason=\"clock_went_back\"}",
                2.0,
            ),
            ("leasehold_lease_lapses_total{reason=\"no_quorum\"}", 1.0),
        ] {
            assert_eq!(value(&text, series), expected, "{series}");
        }
    }

    #[test]
    fn every_value_of_every_label_is_there_from_the_start() {
        let text = Metrics::new().render(|_| {});
        for series in [
            "leasehold_reads_total{path=\"lease\"}",
            "leasehold_reads_total{path=\"read_index\"}",
            "leasehold_reads_total{path=\"serializable\"}",
            "leasehold_read_fallbacks_total{reason=\"behind\"}",
            "leasehold_leader_lease_invalidations_total{reason=\"quorum_lost\"}",
            "leasehold_requests_total{method=\"put\",code=\"OK\"}",
            "leasehold_quic_connections{kind=\"peer\"}",
            "leasehold_quic_handshakes_total{kind=\"peer\",result=\"cluster\"}",
            "leasehold_malformed_frames_total{kind=\"client\"}",
            "leasehold_tls_certificate_expiry_timestamp_seconds{role=\"peer\"}",
            "leasehold_request_duration_seconds_count{method=\"move_leader\"}",
            "leasehold_wal_fsync_duration_seconds_count",
            "leasehold_members{role=\"learner\"}",
            "leasehold_raft_is_learner",
        ] {
            assert_eq!(value(&text, series), 0.0, "{series}");
        }
        assert!(text.contains("leasehold_build_info{version=\""), "{text}");
        assert!(value(&text, "process_open_fds") > 0.0);
        assert!(value(&text, "leasehold_start_time_seconds") > 1.7e9);
    }

    #[test]
    fn a_handle_moves_its_own_series_and_no_other() {
        let metrics = Metrics::new();
        for reason in Invalidation::ALL {
            metrics
                .leader_lease
                .invalidations(reason)
                .increment(1 + reason as u64);
        }
        for reason in ReadFallback::ALL {
            metrics.reads.fallbacks(reason).increment(1 + reason as u64);
        }
        metrics.reads.total(ReadPath::Serializable).increment(7);
        metrics.requests.succeeded("put").increment(3);
        metrics.request_failed("put", &ErrorKind::NoLeader);
        metrics.storage.wal_batch_entries.record(5.0);
        metrics.transport.peer.handshakes("cluster").absolute(4);
        metrics
            .transport
            .peer
            .handshakes("not known here")
            .absolute(5);
        let text = metrics.render(|metrics| metrics.raft.term.set(9.0));
        let total =
            |name, label: &str, of: &str| value(&text, &format!("{name}{{{label}=\"{of}\"}}"));
        for reason in Invalidation::ALL {
            let found = total(
                "leasehold_leader_lease_invalidations_total",
                "reason",
                reason.label(),
            );
            assert_eq!(found, 1.0 + reason as u64 as f64);
        }
        for reason in ReadFallback::ALL {
            let found = total("leasehold_read_fallbacks_total", "reason", reason.label());
            assert_eq!(found, 1.0 + reason as u64 as f64);
        }
        assert_eq!(total("leasehold_reads_total", "path", "serializable"), 7.0);
        assert_eq!(total("leasehold_reads_total", "path", "lease"), 0.0);
        assert_eq!(
            value(
                &text,
                "leasehold_requests_total{method=\"put\",code=\"OK\"}"
            ),
            3.0
        );
        let failed = "leasehold_requests_total{method=\"put\",code=\"LH-NO-LEADER\"}";
        assert_eq!(value(&text, failed), 1.0);
        assert_eq!(value(&text, "leasehold_raft_term"), 9.0);
        for (kind, result, expected) in [
            ("peer", "cluster", 4.0),
            ("peer", "other", 5.0),
            ("client", "cluster", 0.0),
        ] {
            let series =
                format!("leasehold_quic_handshakes_total{{kind=\"{kind}\",result=\"{result}\"}}");
            assert_eq!(value(&text, &series), expected, "{series}");
        }
        assert_eq!(
            value(&text, "leasehold_wal_batch_entries_bucket{le=\"4\"}"),
            0.0
        );
        assert_eq!(
            value(&text, "leasehold_wal_batch_entries_bucket{le=\"8\"}"),
            1.0
        );
    }

    #[test]
    fn two_nodes_of_one_process_do_not_share_a_metric() {
        let (one, two) = (Metrics::new(), Metrics::new());
        one.raft.leader_changes.increment(5);
        let name = "leasehold_raft_leader_changes_total";
        assert_eq!(value(&one.render(|_| {}), name), 5.0);
        assert_eq!(value(&two.render(|_| {}), name), 0.0);
    }

    #[test]
    fn every_method_of_a_request_has_its_handles() {
        let requests = crate::api::every::every_request();
        let mut indexes: Vec<usize> = requests
            .iter()
            .map(|request| method_index(request.method()))
            .collect();
        indexes.sort_unstable();
        assert_eq!(
            indexes,
            (0..METHODS.len() - 1).collect::<Vec<_>>(),
            "and the last is for what is not known here"
        );
    }

    #[test]
    fn one_read_of_sixty_four_is_measured_whatever_the_batches() {
        let sampler = Sampler::default();
        let measured = (0..640).filter(|_| sampler.take(1)).count();
        assert_eq!(measured, 10);
        let measured = (0..64).filter(|_| sampler.take(10)).count();
        assert_eq!(measured, 10);
        assert!(
            sampler.take(1_000_000),
            "one sample of a large batch is enough"
        );
    }

    /// Samples that were drained into the histogram of `wal_batch_entries`, seen without draining
    /// any (rendering would).
    fn drained(metrics: &Metrics) -> usize {
        let text = format!("{:?}", metrics.recorder);
        let at = text
            .find("distributions:")
            .expect("the recorder holds distributions");
        text[at..].matches("count: 1000,").count()
    }

    #[tokio::test]
    async fn upkeep_drains_the_samples_that_pile_up() {
        let metrics = Metrics::new();
        for _ in 0..1_000 {
            metrics.storage.wal_batch_entries.record(1.0);
        }
        assert_eq!(drained(&metrics), 0, "nothing drains by itself");
        let upkeep = metrics.spawn_upkeep(Duration::from_millis(1));
        let seen = async {
            while drained(&metrics) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), seen)
            .await
            .expect("upkeep drains sooner or later");
        drop(metrics);
        upkeep
            .await
            .expect("the task ends by itself when the metrics are gone");
    }
}
