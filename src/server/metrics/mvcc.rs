//! The keys, and what is done to them.

use metrics::{Counter, Gauge};

use super::Register;

/// The keys, and what is done to them.
pub struct MvccMetrics {
    /// How many keys there are; NaN until they are counted.
    pub keys: Gauge,
    /// Ranges that clients were served, single keys included.
    pub ranges: Counter,
    /// Keys written.
    pub puts: Counter,
    /// Keys deleted.
    pub deletes: Counter,
    /// Transactions carried out.
    pub txns: Counter,
}

impl MvccMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        let operations = |op| {
            register.labelled(&[("op", op)]).counter(
                "leasehold_mvcc_operations_total",
                "Key-value operations on this node, by kind: ranges read for clients (a single key \
                 counts as one), keys written, keys deleted (by clients and by ended leases), and \
                 transactions.",
            )
        };
        let keys = register.gauge(
            "leasehold_mvcc_keys",
            "Keys that currently exist, old revisions not counted; NaN after a start or an \
             installed snapshot until they have been counted.",
        );
        keys.set(f64::NAN);
        Self {
            keys,
            ranges: operations("range"),
            puts: operations("put"),
            deletes: operations("delete"),
            txns: operations("txn"),
        }
    }
}
