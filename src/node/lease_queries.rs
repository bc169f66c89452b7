//! The leases of a node, and the requests that ask for them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::lease_tracker::{LeaseOptions, LeaseTracker, Renewals};
use crate::api::{Error, ErrorKind, LeaseGrantRequest, LeaseRef};
use crate::kv::{HeldLeases, LeaseGrant};
use crate::raft::Timing;
use crate::time::Instant;
use crate::types::RequestId;

/// The leases of a node, and the requests about them.
pub(super) struct Leases {
    pub(super) options: LeaseOptions,
    pub(super) tracker: LeaseTracker,
    /// Lease queries that wait for a permit.
    pub(super) queries: BTreeMap<RequestId, LeaseQuery>,
    /// The last tick of this promotion, and the last at which a quorum answered.
    pub(super) ticked: Instant,
    pub(super) confirmed: Instant,
    /// `ExpiryKept`: what earlier leaderships of this node had decided, with their terms.
    #[cfg(leasehold_bugs)]
    pub(super) kept: Vec<(crate::types::Term, LeaseRef)>,
}

pub(super) enum LeaseQuery {
    KeepAlive(Vec<LeaseRef>),
    TimeToLive(i64),
    List { after: i64, limit: u32 },
}

/// A lease in a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueriedLease {
    /// Its id.
    pub id: i64,
    /// How long it has, in milliseconds, by the clock of a leader; `None` elsewhere.
    pub remaining_ms: Option<u64>,
    /// What that leader has seen of its renewals; `None` elsewhere.
    pub renewals: Option<Renewals>,
}

/// The leases of a query; the shell reads their records from the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueriedLeases {
    /// In the order of their ids.
    pub leases: Vec<QueriedLease>,
    /// Where the next page of a list begins; `None` if this is the last.
    pub next: Option<i64>,
}

impl Leases {
    pub(super) fn new(options: LeaseOptions, timing: &Timing) -> Self {
        Self {
            options,
            tracker: LeaseTracker::new(options, restart_min(timing)),
            queries: BTreeMap::new(),
            ticked: Instant::ZERO,
            confirmed: Instant::ZERO,
            #[cfg(leasehold_bugs)]
            kept: Vec::new(),
        }
    }

    /// The store was replaced and contains these leases; forgets all others.
    pub(super) fn reset(&mut self, leases: HeldLeases, timing: &Timing) {
        self.tracker = LeaseTracker::new(self.options, restart_min(timing));
        self.tracker.restore(leases);
    }

    /// The client no longer waits for the reply.
    pub(super) fn forget(&mut self, id: RequestId) {
        self.queries.remove(&id);
    }

    /// The lease to propose for `request`, within this node's limits.
    pub(super) fn grant(&self, request: &LeaseGrantRequest) -> Result<LeaseGrant, Error> {
        let requested = u64::try_from(request.ttl_ms).unwrap_or(0);
        Ok(LeaseGrant {
            id: request.id,
            ttl_ms: self.ttl_ms(request.ttl_ms)?,
            requested_ttl_ms: requested,
            name: request.name.clone(),
            owner: request.owner.clone(),
            granted_at_ms: request.granted_at_ms,
            leases_max: self.options.leases_max,
            keys_max: self.options.keys_max,
            per_user_max: self.options.per_user_max,
        })
    }

    /// The time to live to propose where `asked` is asked for (T20).
    pub(super) fn ttl_ms(&self, asked: i64) -> Result<u64, Error> {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (least, most) = (millis(self.options.ttl_min), millis(self.options.ttl_max));
        let asked = u64::try_from(asked).unwrap_or(0).max(1);
        if asked > most {
            return Err(Error::not_applied(
                ErrorKind::TtlOutOfRange { ttl_max_ms: most },
                format!(
                    "a TTL of {asked} ms was requested, and lease.max_ttl allows {most} ms at \
                     most: ask for less"
                ),
            ));
        }
        Ok(asked.max(least))
    }
}

/// Time for a holder to notice a new leader, and to find it.
pub(super) fn restart_min(timing: &Timing) -> Duration {
    timing.lease_duration + timing.election_timeout_max
}
