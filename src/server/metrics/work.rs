//! Metrics of requests that were turned away, and of those that wait.

use metrics::{Counter, Gauge};

use super::Register;
use crate::api::Class;

/// Why a request was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// As many wait as may.
    Waiting,
    /// The node, or its connection, holds as many bytes as it may.
    Memory,
}

/// Where a request was when its deadline was over before anything had been done for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiredIn {
    /// On its way to consensus.
    Queue,
    /// Waiting for its turn to scan.
    Scan,
}

/// What waits, and what was turned away.
pub struct WorkMetrics {
    in_flight: [Gauge; Class::ALL.len()],
    rejected: [[Counter; Rejection::ALL.len()]; Class::ALL.len()],
    expired: [Counter; ExpiredIn::ALL.len()],
    /// How many writes the node lets wait.
    pub room: Gauge,
}

impl Rejection {
    const ALL: [Self; 2] = [Self::Waiting, Self::Memory];

    fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Memory => "memory",
        }
    }
}

impl ExpiredIn {
    const ALL: [Self; 2] = [Self::Queue, Self::Scan];

    fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Scan => "scan",
        }
    }
}

impl WorkMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        Self {
            in_flight: Class::ALL.map(|class| {
                register.labelled(&[("class", class.name())]).gauge(
                    "leasehold_requests_in_flight",
                    "Requests accepted and not answered yet, by priority class.",
                )
            }),
            rejected: Class::ALL.map(|class| {
                Rejection::ALL.map(|reason| {
                    register
                        .labelled(&[("class", class.name()), ("reason", reason.name())])
                        .counter(
                            "leasehold_requests_rejected_total",
                            "Requests rejected because the server was overloaded.",
                        )
                })
            }),
            expired: ExpiredIn::ALL.map(|phase| {
                register.labelled(&[("phase", phase.name())]).counter(
                    "leasehold_requests_expired_total",
                    "Requests dropped because their deadline had passed before work on them began.",
                )
            }),
            room: register.gauge(
                "leasehold_requests_write_limit",
                "Number of waiting requests up to which this node accepts another write.",
            ),
        }
    }

    /// Requests of this class that wait.
    pub fn in_flight(&self, class: Class) -> &Gauge {
        &self.in_flight[class as usize]
    }

    /// Requests that were turned away.
    pub fn rejected(&self, class: Class, reason: Rejection) -> &Counter {
        &self.rejected[class as usize][reason as usize]
    }

    /// Requests whose deadline was over before they were looked at.
    pub fn expired(&self, phase: ExpiredIn) -> &Counter {
        &self.expired[phase as usize]
    }
}
