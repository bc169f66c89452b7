//! The disk of a node: log and state, compaction of history, and backups.

use super::table::{By, Counter, Gauge, Histogram, labels, metrics};

/// Buckets of times that depend on a disk: 100 µs to 10 s.
const DISK_SECONDS: &[f64] = &[
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Buckets of the sizes of batches.
const BATCH_SIZES: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0,
];

metrics! {
    /// Log and state on disk.
    pub struct StorageMetrics {
        pub revision: Gauge = "leasehold_mvcc_revision", "The store's revision.";
        pub size_bytes: Gauge = "leasehold_storage_size_bytes",
            "Size of the state on disk, as counted by the storage engine.";
        pub quota_bytes: Gauge = "leasehold_storage_quota_bytes",
            "Quota: bytes that the state may take on disk.";
        pub alarms: By<AlarmType, Gauge> = "leasehold_alarms",
            "1 while an alarm is raised on this node, by its type.";
        pub hash_checks: By<HashCheck, Counter> = "leasehold_storage_hash_checks_total",
            "Comparisons of this node's state hash with those of the other nodes.";
        pub commit_seconds: Histogram = "leasehold_storage_commit_duration_seconds",
            "Time to apply one batch of entries to the state.", in DISK_SECONDS;
        pub ahead_bytes: Gauge = "leasehold_storage_ahead_bytes",
            "Bytes of memory that are applied and not yet handed over to the storage engine.";
        pub ahead_seconds: Histogram = "leasehold_storage_ahead_duration_seconds",
            "Time for which applied changes were in memory before the storage engine had them.",
            in DISK_SECONDS;
        pub hand_over_seconds: Histogram = "leasehold_storage_hand_over_duration_seconds",
            "Time of one hand-over of applied changes to the storage engine.", in DISK_SECONDS;
        pub handed_over_bytes: Counter = "leasehold_storage_handed_over_bytes_total",
            "Bytes of memory that were handed over to the storage engine.";
        pub wal_fsync_seconds: Histogram = "leasehold_wal_fsync_duration_seconds",
            "Time of one sync of the log.", in DISK_SECONDS;
        pub wal_batch_entries: Histogram = "leasehold_wal_batch_entries",
            "Log entries written per sync.", in BATCH_SIZES;
        pub wal_stalls: Counter = "leasehold_wal_stalls_total",
            "Times a write to the log's disk was pending for longer than a promise lasts.";
        pub wal_stalled: Gauge = "leasehold_wal_stalled",
            "1 while a write to the log's disk has been pending for longer than a promise \
             lasts.";
        pub log_first_index: Gauge = "leasehold_raft_log_first_index",
            "Lowest index that the log may hold; earlier entries were truncated.";
        pub log_bytes: Gauge = "leasehold_wal_size_bytes", "Bytes of the log's files.";
        pub log_segments: Gauge = "leasehold_wal_segments",
            "Segment files of the log, preallocated ones included.";
        pub log_compactions: Counter = "leasehold_raft_log_compactions_total",
            "Truncations of the log's beginning.";
        pub log_compaction_seconds: Histogram = "leasehold_raft_log_compaction_duration_seconds",
            "Time to make the state durable before the log was truncated.";
    }
}

labels! {
    /// A condition in which the node refuses requests.
    pub enum AlarmType: "type" {
        /// The state has reached the quota.
        NoSpace = "no_space",
        /// The state differs from that of the other nodes.
        Corrupt = "corrupt",
    }
}

labels! {
    /// The outcome of a comparison of state hashes.
    pub enum HashCheck: "result" {
        /// The hashes are equal.
        Agreed = "ok",
        /// The hashes differ.
        Differed = "differs",
    }
}

metrics! {
    /// Compaction of history.
    pub struct HistoryMetrics {
        pub compact_revision: Gauge = "leasehold_mvcc_compact_revision",
            "The oldest revision that can be read.";
        pub removed_through: Gauge = "leasehold_storage_history_removed_revision",
            "Revision through which this node has removed compacted history.";
        pub compactions: Counter = "leasehold_storage_compactions_total",
            "Compactions whose history this node has removed.";
        pub removed_records: Counter = "leasehold_storage_history_removed_records_total",
            "Records of compacted history removed.";
        pub step_seconds: Histogram = "leasehold_storage_history_step_duration_seconds",
            "Time of one step of removing compacted history.", in DISK_SECONDS;
    }
}

metrics! {
    /// Scheduled backups.
    pub struct BackupMetrics {
        pub interval_seconds: Gauge = "leasehold_backup_interval_seconds",
            "Interval between scheduled backups on this node, in seconds; 0 if it writes none.";
        pub last_success_seconds: Gauge = "leasehold_backup_last_success_timestamp_seconds",
            "When this node last wrote and verified a backup, as a Unix timestamp in seconds.";
        pub failures: Counter = "leasehold_backup_failures_total",
            "Scheduled backups that failed.";
    }
}
