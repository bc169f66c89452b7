//! Admission control: requests in flight, and those that were rejected or expired.

use super::table::{By, Counter, Gauge, labels, metrics};
use crate::api::Class;

metrics! {
    /// Admission control: requests in flight, and those that were rejected or expired.
    pub struct WorkMetrics {
        pub in_flight: By<Class, Gauge> = "leasehold_requests_in_flight",
            "Requests accepted and not answered yet, by priority class.";
        pub rejected: By<Class, By<Rejection, Counter>> = "leasehold_requests_rejected_total",
            "Requests rejected because the server was overloaded.";
        pub expired: By<ExpiredIn, Counter> = "leasehold_requests_expired_total",
            "Requests dropped because their deadline had passed before work on them began.";
        pub room: Gauge = "leasehold_requests_write_limit",
            "Number of waiting requests up to which this node accepts another write.";
    }
}

labels!(Class: "class", name);

labels! {
    /// Why a request was rejected.
    pub enum Rejection: "reason" {
        /// Too many requests of its class or worse are waiting.
        Waiting = "waiting",
        /// The memory budget of the node or of the connection is used up.
        Memory = "memory",
        /// Too much was applied that the storage engine does not have yet.
        Storage = "storage",
        /// Its user makes more requests a second than one may.
        User = "user",
        /// It has a low priority, and half of the room for its class is taken.
        Priority = "priority",
    }
}

labels! {
    /// Where a request waited when its deadline passed.
    pub enum ExpiredIn: "phase" {
        /// In the queue of the consensus thread.
        Queue = "queue",
        /// For a permit to scan.
        Scan = "scan",
    }
}
