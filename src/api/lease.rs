//! Client leases: requests and replies.
//!
//! A lease is a promise of the cluster that the keys attached to it stay for its time to live (TTL)
//! after it was last renewed, and are deleted some time after that. It is granted, changed and ended
//! by log entries; renewals never enter the log (S13).

use serde::{Deserialize, Serialize};

use super::{Error, ErrorKind};

/// The longest name or owner of a lease, in bytes.
pub const LEASE_NAME_BYTES_MAX: usize = 255;

/// The most leases that one keep-alive may name.
pub const KEEP_ALIVE_LEASES_MAX: usize = 16_384;

/// The most leases that one page of a list examines.
pub const LEASE_PAGE_MAX: u32 = 1_000;

/// Names a lease: by its id, and by the entry that granted it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LeaseRef {
    /// Its id; positive.
    pub id: i64,
    /// The log index of its grant, as [`LeaseGrantResponse`] gave it; 0 for any lease with the id.
    /// An id chosen by a client may be granted again later, to another client: with the index, the
    /// new lease is not mistaken for the old one (T14).
    pub grant_index: u64,
}

impl LeaseRef {
    /// The lease that currently has this id.
    pub fn id(id: i64) -> Self {
        Self { id, grant_index: 0 }
    }

    /// Whether it names the lease that was granted at `grant_index`.
    pub fn means(self, grant_index: u64) -> bool {
        self.grant_index == 0 || self.grant_index == grant_index
    }
}

/// The lease to which a put attaches its key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseTarget {
    /// None. The key is detached from its current lease.
    #[default]
    None,
    /// To this one.
    Lease(LeaseRef),
    /// The lease with this name.
    Name(String),
}

/// Grant a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGrantRequest {
    /// The requested id; 0 lets the cluster choose the log index of the grant.
    pub id: i64,
    /// The TTL in milliseconds; positive. A TTL below the cluster's minimum is raised to it, which
    /// the reply shows; one above the maximum is refused with [`ErrorKind::TtlOutOfRange`].
    pub ttl_ms: i64,
    /// A name, unique among all leases; empty for none.
    pub name: String,
    /// The owner, for information and filters; empty for none.
    pub owner: String,
    /// When it was granted, in milliseconds since 1970, for information only. Set by the node that
    /// receives the request, whatever the client sent.
    pub granted_at_ms: i64,
}

/// A lease was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGrantResponse {
    /// Its id.
    pub id: i64,
    /// The log index of its grant.
    pub grant_index: u64,
    /// How long it lasts without a renewal, in milliseconds.
    pub ttl_ms: u64,
    /// The requested TTL, in milliseconds.
    pub requested_ttl_ms: u64,
    /// Its name, if it has one.
    pub name: String,
}

/// A lease was revoked, and its keys were deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRevokeResponse {
    /// How many keys were attached to it.
    pub deleted: u64,
    /// It had too many keys for one step: it can no longer be used, and its keys are being deleted,
    /// a thousand at a time.
    pub is_partial: bool,
}

/// The result of a keep-alive for one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseKept {
    /// It lasts at least this long from when the keep-alive was *sent*, in milliseconds.
    Renewed {
        /// Its time to live.
        ttl_ms: u64,
        /// The log index of its grant. A client that asked by the id alone names it from now on, and does
        /// not renew the next lease of that id (T14).
        grant_index: u64,
        /// Since the renewal before, or the grant, a leader had given it a new deadline without being
        /// asked: a new leader, which knows of no renewals (T1), or one that stood still (T15). So it may
        /// have lived longer than its holder asked for.
        is_extended: bool,
    },
    /// There is no such lease.
    NotFound,
    /// It expired recently.
    Expired,
    /// It was revoked recently.
    Revoked,
    /// Not decided yet: its end, or another entry that must precede a renewal, is being committed.
    /// It was not renewed; retry shortly.
    Undecided,
}

/// The status of a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseInfo {
    /// Its id.
    pub id: i64,
    /// The log index of its grant.
    pub grant_index: u64,
    /// Its name; empty if it has none.
    pub name: String,
    /// The owner; empty if none.
    pub owner: String,
    /// Its TTL, in milliseconds.
    pub granted_ttl_ms: u64,
    /// Its remaining time in milliseconds, by the leader's clock: only a hint, because a renewal
    /// may be in flight. At least 1 while it exists; `None` from a node that is not the leader.
    pub remaining_ms: Option<u64>,
    /// When it was granted, in milliseconds since 1970, by the clock of the node that received the
    /// request.
    pub granted_at_ms: i64,
    /// How many keys are attached to it.
    pub key_count: u64,
    /// The keys, sorted, if requested.
    pub keys: Vec<bytes::Bytes>,
    /// Its end is decided, and its keys are being deleted.
    pub is_revoking: bool,
    /// How often it has been renewed since the leader began to count: since its grant, or since a leader
    /// gave all leases their time again, whichever was later. Renewals are in no log, so a new leader begins
    /// at 0. `None` from a node that is not the leader.
    pub renewals: Option<u64>,
    /// Its remaining time is not from a renewal or its grant: a leader gave it a new deadline, as
    /// [`LeaseKept::Renewed`] says, and it has not been renewed since. `false` from a node that is not the
    /// leader.
    pub is_extended: bool,
}

/// List leases, in the order of their ids, a page at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseListRequest {
    /// Start after this id; 0 to start with the first lease.
    pub after: i64,
    /// Examine at most this many; 0 for as many as a page may have ([`LEASE_PAGE_MAX`]).
    pub limit: u32,
    /// Only leases of this owner; empty for all.
    pub owner: String,
    /// Only leases whose name has this prefix; empty for all.
    pub name_prefix: String,
}

/// A page of leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseListResponse {
    /// The leases that pass the filters; a page may be empty although more follow.
    pub leases: Vec<LeaseInfo>,
    /// Where the next page begins ([`LeaseListRequest::after`]); `None` if this was the last.
    pub next: Option<i64>,
}

pub(super) fn validate_grant(grant: &LeaseGrantRequest) -> Result<(), Error> {
    validate_id(grant.id, true)?;
    validate_ttl(grant.ttl_ms)?;
    for (what, text) in [("name", &grant.name), ("owner", &grant.owner)] {
        if text.len() > LEASE_NAME_BYTES_MAX {
            return Err(invalid(format!(
                "the {what} of a lease may have at most {LEASE_NAME_BYTES_MAX} bytes, and this one \
                 has {}",
                text.len()
            )));
        }
    }
    Ok(())
}

pub(super) fn validate_ttl(ttl_ms: i64) -> Result<(), Error> {
    if ttl_ms < 1 {
        return Err(invalid(format!(
            "{ttl_ms} ms is not a valid TTL: a lease lasts at least one millisecond"
        )));
    }
    Ok(())
}

/// 0 stands for an id that is still to be chosen, where one may be.
pub(super) fn validate_id(id: i64, may_be_chosen: bool) -> Result<(), Error> {
    if id < 0 || id == 0 && !may_be_chosen {
        return Err(invalid(format!("{id} is not a lease id: ids are positive")));
    }
    Ok(())
}

pub(super) fn validate_keep_alive(leases: &[LeaseRef]) -> Result<(), Error> {
    if leases.len() > KEEP_ALIVE_LEASES_MAX {
        return Err(invalid(format!(
            "a keep-alive may name at most {KEEP_ALIVE_LEASES_MAX} leases, and this one names {}: \
             send several",
            leases.len()
        )));
    }
    Ok(())
}

/// The lease of a put.
pub(super) fn validate_target(target: &LeaseTarget, keeps_current: bool) -> Result<(), Error> {
    if keeps_current && *target != LeaseTarget::None {
        return Err(invalid(
            "the put names a lease and also asks to keep the current one: leave one of the two out"
                .to_owned(),
        ));
    }
    match target {
        LeaseTarget::None => Ok(()),
        LeaseTarget::Lease(lease) => validate_id(lease.id, false),
        LeaseTarget::Name(name) => validate_name(name),
    }
}

/// The name of a lease that is looked for.
pub(super) fn validate_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > LEASE_NAME_BYTES_MAX {
        return Err(invalid(format!(
            "a lease name must have 1 to {LEASE_NAME_BYTES_MAX} bytes, and this one has {}",
            name.len()
        )));
    }
    Ok(())
}

fn invalid(detail: String) -> Error {
    Error::not_applied(ErrorKind::InvalidArgument, detail)
}
