//! Snapshots that go from node to node.

use super::table::{By, Counter, Histogram, labels, metrics};

metrics! {
    /// Snapshots sent, received and installed.
    pub struct SnapshotMetrics {
        pub sent: By<TransferEnd, Counter> = "leasehold_raft_snapshot_sent_total",
            "Snapshots sent to peers that need truncated entries, by outcome.";
        pub received: By<TransferEnd, Counter> = "leasehold_raft_snapshot_received_total",
            "Snapshots received from peers, by outcome.";
        pub sent_bytes: Counter = "leasehold_raft_snapshot_sent_bytes_total",
            "Bytes of snapshots sent to peers.";
        pub received_bytes: Counter = "leasehold_raft_snapshot_received_bytes_total",
            "Bytes of snapshots received from peers.";
        pub send_seconds: Histogram = "leasehold_raft_snapshot_send_duration_seconds",
            "Time to send a snapshot, or the rest of one.";
        pub receive_seconds: Histogram = "leasehold_raft_snapshot_receive_duration_seconds",
            "Time to receive a snapshot, or the rest of one.";
        pub install_seconds: Histogram = "leasehold_raft_snapshot_install_duration_seconds",
            "Time to install a received snapshot.";
    }
}

labels! {
    /// How the transfer of a snapshot ended.
    pub enum TransferEnd: "result" {
        /// The snapshot was received completely.
        Ok = "ok",
        /// The connection was lost or one side stopped; the transfer can be resumed.
        Broken = "broken",
        /// The receiver was busy.
        Busy = "busy",
        /// The received data was corrupt.
        Corrupt = "corrupt",
        /// The receiver could not write it, or the sender could not read it.
        Failed = "failed",
    }
}
