//! Read leases: linearizable reads at any member, without a message.
//!
//! A read lease is a *sub-lease of the leader's lease*. Its holder serves reads by it alone; the
//! leader, in return, commits nothing that a holder has not acknowledged (docs/protocol.md, RL1 to
//! RL11).
//!
//! 1. A member that wants one says so with each heartbeat reply. The reply names a moment of its own
//!    clock, for `staleness.rs` anyway.
//! 2. While the leader's lease holds, its next heartbeat grants what is left of that lease, at most
//!    once for each name ([`Grants`]). The holder counts from when it *drew the name*, which was
//!    before the leader looked at its lease: so it stops before the leader's own lease could have been
//!    over, and before any promise ends that this rests on (RL1, RL2).
//! 3. The leader commits what a quorum holds **and** every holder has acknowledged (RL4). A holder that
//!    is silent holds the others up until its lease is over, and no longer.
//! 4. A read at the holder captures the last index of its log, which contains whatever it acknowledged,
//!    and waits until that is applied (RL5; `node/leased_read.rs`).
//!
//! Nothing of it is in the log or on disk, and no new leader has to wait: when one can be elected, every
//! read lease is over (Theorem 5).
//!
//! [`Grants`]: grants::Grants

mod granting;
mod grants;
mod holder;
mod holding;

use std::time::Duration;

pub(super) use self::grants::Grants;
pub(super) use self::holder::Holder;
use crate::sync::{Count, Ordering};

/// Why a leader recalled a read lease, in place of renewing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecallReason {
    /// Leadership is being handed over (RL8).
    Transfer,
    /// The members change (RL9).
    Configuration,
    /// The holder acknowledged too slowly, and commits waited for it (RL10).
    Slow,
}

impl RecallReason {
    /// Every reason, in the order of their labels.
    pub const ALL: [Self; 3] = [Self::Transfer, Self::Configuration, Self::Slow];

    /// Its name as a metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Transfer => "transfer",
            Self::Configuration => "configuration",
            Self::Slow => "slow",
        }
    }
}

/// How a member stands with the read lease that this leader granted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantStanding {
    /// It holds one, or may still do. Commits wait for it.
    Held,
    /// The same, and it is not renewed.
    Recalled,
    /// It was too slow lately and gets none for a while (RL10).
    Resting,
    /// It asks for one, and gets it once it keeps up and this leader may grant one.
    Waiting,
}

impl GrantStanding {
    /// Whether commits wait for the member.
    pub fn is_outstanding(self) -> bool {
        matches!(self, Self::Held | Self::Recalled)
    }

    /// Its name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Recalled => "recalled",
            Self::Resting => "resting",
            Self::Waiting => "waiting",
        }
    }
}

/// What happened to the read leases that this node has granted as a leader, since it started.
#[derive(Debug, Default)]
pub struct GrantCounters {
    /// Holders at the moment.
    holders: Count,
    grants: Count,
    recalls: [Count; RecallReason::ALL.len()],
    waited_out: Count,
    held_back_nanos: Count,
}

impl GrantCounters {
    /// How many members hold a read lease of this leader, or may still do.
    pub fn holders(&self) -> u64 {
        self.holders.load(Ordering::Relaxed)
    }

    pub(super) fn end_leadership(&self) {
        self.holders.store(0, Ordering::Relaxed);
    }

    fn granted(&self, count: u64) {
        self.grants.fetch_add(count, Ordering::Relaxed);
    }

    /// How often a read lease was granted or renewed.
    pub fn grants(&self) -> u64 {
        self.grants.load(Ordering::Relaxed)
    }

    /// How often one was recalled for `reason`.
    pub fn recalls(&self, reason: RecallReason) -> u64 {
        self.recalls[reason as usize].load(Ordering::Relaxed)
    }

    /// How often one was not given back, and had to be waited for.
    pub fn waited_out(&self) -> u64 {
        self.waited_out.load(Ordering::Relaxed)
    }

    /// For how long a quorum held what a holder had not acknowledged.
    pub fn held_back(&self) -> Duration {
        Duration::from_nanos(self.held_back_nanos.load(Ordering::Relaxed))
    }
}
