//! What is on the disk of a node: log and state, past revisions, and backups.

use metrics::{Counter, Gauge, Histogram};

use super::Register;

/// Log and state on disk.
pub struct StorageMetrics {
    /// The store's revision.
    pub revision: Gauge,
    /// Size of the state on disk, as counted by the storage engine.
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

impl StorageMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        Self {
            revision: register.gauge("leasehold_mvcc_revision", "The store's revision."),
            size_bytes: register.gauge(
                "leasehold_storage_size_bytes",
                "Size of the state on disk, as counted by the storage engine.",
            ),
            quota_bytes: register.gauge(
                "leasehold_storage_quota_bytes",
                "Quota: bytes that the state may take on disk.",
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
            wal_batch_entries: register
                .histogram(WAL_BATCH_ENTRIES, "Log entries written per sync."),
            wal_stalls: register.counter(
                "leasehold_wal_stalls_total",
                "Times a write to the log's disk was pending for longer than a promise lasts.",
            ),
            wal_stalled: register.gauge(
                "leasehold_wal_stalled",
                "1 while a write to the log's disk has been pending for longer than a promise \
                 lasts.",
            ),
            commit_seconds: register.histogram(
                STORAGE_COMMIT,
                "Time to apply one batch of entries to the state.",
            ),
        }
    }
}

impl HistoryMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        Self {
            compact_revision: register.gauge(
                "leasehold_mvcc_compact_revision",
                "The oldest revision that can be read.",
            ),
            removed_through: register.gauge(
                "leasehold_storage_history_removed_revision",
                "Revision through which this node has removed compacted history.",
            ),
            compactions: register.counter(
                "leasehold_storage_compactions_total",
                "Compactions whose history this node has removed.",
            ),
            removed_records: register.counter(
                "leasehold_storage_history_removed_records_total",
                "Records of compacted history removed.",
            ),
            step_seconds: register.histogram(
                HISTORY_STEP,
                "Time of one step of removing compacted history.",
            ),
        }
    }
}

impl BackupMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        Self {
            interval_seconds: register.gauge(
                "leasehold_backup_interval_seconds",
                "Interval between scheduled backups on this node, in seconds; 0 if it writes none.",
            ),
            last_success_seconds: register.gauge(
                "leasehold_backup_last_success_timestamp_seconds",
                "When this node last wrote and verified a backup, as a Unix timestamp in seconds.",
            ),
            failures: register.counter(
                "leasehold_backup_failures_total",
                "Scheduled backups that failed.",
            ),
        }
    }
}

pub(super) const WAL_FSYNC: &str = "leasehold_wal_fsync_duration_seconds";
pub(super) const STORAGE_COMMIT: &str = "leasehold_storage_commit_duration_seconds";
const HASH_CHECKS: &str = "leasehold_storage_hash_checks_total";
const HASH_CHECKS_HELP: &str = "Comparisons of this node's state hash with those of the other \
                                nodes.";
const ALARMS: &str = "leasehold_alarms";
const ALARMS_HELP: &str = "1 while an alarm is raised on this node, by its type.";
pub(super) const HISTORY_STEP: &str = "leasehold_storage_history_step_duration_seconds";
pub(super) const WAL_BATCH_ENTRIES: &str = "leasehold_wal_batch_entries";
