//! Reads, by the authority they were served on.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Histogram};

use super::Register;
use crate::api::{ReadCounts, ReadPath};

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
    pub(super) const ALL: [Self; 5] = [
        Self::LeaseInvalid,
        Self::Behind,
        Self::Disabled,
        Self::TooOld,
        Self::Revision,
    ];

    pub(super) fn label(self) -> &'static str {
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
    pub(super) fn new(register: Register<'_>) -> Self {
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
                    "Time inside the server of reads, by authority; one read in 64 is sampled.",
                )
            }),
            fallbacks: ReadFallback::ALL.map(|reason| {
                register.labelled(&[("reason", reason.label())]).counter(
                    "leasehold_read_fallbacks_total",
                    "Reads that the receiving node could not serve at once by itself, by reason.",
                )
            }),
            read_index_failures: register.counter(
                "leasehold_raft_read_index_failures_total",
                "Reads that waited for a quorum round, a leader or the state machine, and failed.",
            ),
            staleness_seconds: register.histogram(
                "leasehold_read_staleness_seconds",
                "Proven upper bound on the age of the state that served a serializable or \
                 bounded-staleness read; one read in 64 is sampled.",
            ),
        }
    }

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

const READ_PATHS: [ReadPath; 4] = [
    ReadPath::Lease,
    ReadPath::ReadIndex,
    ReadPath::Follower,
    ReadPath::Serializable,
];
