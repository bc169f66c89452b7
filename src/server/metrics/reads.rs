//! Reads, by the authority they were served on.

use std::sync::atomic::{AtomicU64, Ordering};

use super::table::{By, Counter, Gauge, Handle, Histogram, LabelValue, Register, labels, metrics};
use crate::api::{ReadCounts, ReadPath};
use crate::raft::RecallReason;

metrics! {
    /// Reads, by the authority they were served on.
    pub struct ReadMetrics {
        pub total: By<ReadPath, Tally> = "leasehold_reads_total", "Reads served, by authority.";
        pub duration_seconds: By<ReadPath, Histogram> = "leasehold_read_duration_seconds",
            "Time inside the server of reads, by authority; one read in 64 is sampled.";
        pub fallbacks: By<ReadFallback, Tally> = "leasehold_read_fallbacks_total",
            "Reads that the receiving node could not serve at once by itself, by reason.";
        pub read_index_failures: Counter = "leasehold_raft_read_index_failures_total",
            "Reads that waited for a quorum round, a leader or the state machine, and failed.";
        pub staleness_seconds: Histogram = "leasehold_read_staleness_seconds",
            "Proven upper bound on the age of the state that served a serializable or \
             bounded-staleness read; one read in 64 is sampled.";
        pub read_lease_remaining_seconds: Gauge = "leasehold_read_lease_remaining_seconds",
            "Remaining time of the read lease that this node holds; 0 if it holds none.";
        pub read_lease_renewals: Counter = "leasehold_read_lease_renewals_total",
            "Read leases that this node was granted, renewals included.";
        pub read_lease_rejections: Counter = "leasehold_read_lease_rejections_total",
            "Reads that found the read lease of this node over.";
        pub read_lease_holders: Gauge = "leasehold_read_lease_holders",
            "Members that hold a read lease of this node as the leader, or may still do.";
        pub read_lease_grants: Counter = "leasehold_read_lease_grants_total",
            "Read leases that this node has granted as the leader, renewals included.";
        pub read_lease_waited_out: Counter = "leasehold_read_lease_waited_out_total",
            "Recalled read leases that were not given back and had to be waited for.";
        pub read_lease_commit_held_back_seconds: Gauge = "leasehold_read_lease_commit_held_back_seconds",
            "Time during which commits waited for the holder of a read lease, since the node started.";
        pub read_lease_recalls: By<RecallReason, Counter> = "leasehold_read_lease_recalls_total",
            "Read leases that this node has recalled as the leader, by reason.";
    }
}

labels! {
    /// Why the session that received a read could not serve it by itself.
    pub enum ReadFallback: "reason" {
        /// The leader lease was not valid.
        LeaseInvalid = "lease_invalid",
        /// The store had not yet applied everything that was committed when the read arrived.
        Behind = "behind",
        /// Leader leases are disabled on this node.
        Disabled = "disabled",
        /// The state could not be proved to be recent enough.
        TooOld = "too_old",
        /// The store had not yet reached the requested revision.
        Revision = "revision",
    }
}

labels!(RecallReason: "reason", label);

impl LabelValue for ReadPath {
    const LABEL: &'static str = "path";
    type Each<H> = [H; 5];

    fn each<H>(make: impl FnMut(Self) -> H) -> Self::Each<H> {
        [
            Self::Lease,
            Self::ReadIndex,
            Self::Serializable,
            Self::Follower,
            Self::ReadLease,
        ]
        .map(make)
    }

    fn index(self) -> usize {
        self as usize
    }

    fn value(self) -> &'static str {
        self.name()
    }
}

impl ReadMetrics {
    /// All reads served so far.
    pub fn counts(&self) -> ReadCounts {
        let count = |path| self.total[path].so_far();
        ReadCounts {
            lease: count(ReadPath::Lease),
            read_index: count(ReadPath::ReadIndex),
            follower: count(ReadPath::Follower),
            read_lease: count(ReadPath::ReadLease),
            serializable: count(ReadPath::Serializable),
        }
    }
}

/// A counter whose value can be read, too.
pub struct Tally {
    counter: Counter,
    so_far: AtomicU64,
}

impl Handle for Tally {
    fn register(register: &Register, name: &'static str, help: &'static str) -> Self {
        Self {
            counter: Counter::register(register, name, help),
            so_far: AtomicU64::new(0),
        }
    }
}

impl Tally {
    /// Counts `more`.
    pub fn increment(&self, more: u64) {
        self.so_far.fetch_add(more, Ordering::Relaxed);
        self.counter.increment(more);
    }
}

impl Tally {
    /// How many were counted so far.
    pub fn so_far(&self) -> u64 {
        self.so_far.load(Ordering::Relaxed)
    }
}

/// Selects one of every 64 reads: a histogram sample costs more than the read of a batch. Shared by
/// all sessions of a node, so that those of short connections are sampled like any other.
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
