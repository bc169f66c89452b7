//! Keys, and operations on them.

use super::table::{By, Counter, Gauge, labels, metrics};

metrics! {
    /// Keys, and operations on them.
    pub struct MvccMetrics {
        pub keys: Gauge = "leasehold_mvcc_keys",
            "Keys that currently exist, old revisions not counted; NaN after a start or an \
             installed snapshot until they have been counted.";
        pub operations: By<OperationKind, Counter> = "leasehold_mvcc_operations_total",
            "Key-value operations on this node, by kind: ranges read for clients (a single key \
             counts as one), keys written, keys deleted (by clients and by ended leases), and \
             transactions.";
    }
}

labels! {
    /// A kind of key-value operation.
    pub enum OperationKind: "op" {
        /// A range was read for a client.
        Range = "range",
        /// A key was written.
        Put = "put",
        /// A key was deleted.
        Delete = "delete",
        /// A transaction was executed.
        Txn = "txn",
    }
}
