//! The end of leases: revoked by a client, or expired by the leader.
//!
//! It deletes the attached keys, as one write with one revision, and removes the lease from every
//! table in the same step. A lease with more keys than one step may delete ([`END_KEYS_MAX`]) goes
//! through the state *revoking*: it can no longer be renewed and no key can be attached to it, and
//! a leader continues the deletion, entry by entry, with a revision for each (T10, A16).
//!
//! An expiry names the term in which it was decided, and is valid in that term only (T3): the
//! deadlines of a deposed leader must have no effect.

use bytes::Bytes;

use crate::api::{Error, LeaseRef, LeaseRevokeResponse};
use crate::types::Term;

use super::command::{LeaseMark, LeaseMarkKind};
use super::hash::HashedStore;
use super::lease::{Lease, LeaseChange, LeaseEnd, LeaseState};
use super::lease_walk::DoomedLease;
use super::meta::Progress;
use super::mvcc::Write;
use super::record::Record;
use super::store::{Space, Store, View};
use super::{lease, lease_walk, mvcc};

/// The most keys that one step deletes of one lease.
pub const END_KEYS_MAX: usize = 1_000;
/// A step ends once it has deleted this many bytes of records.
pub(super) const END_BYTES_MAX: usize = 8 << 20;
/// After this many deleted keys, or the bytes of a step, an entry ends no further lease: the rest
/// is retried in another entry. Reads and writes wait for a whole entry.
pub(super) const ENTRY_KEYS_MAX: usize = 4 << 10;

/// Revokes a lease on request of a client.
pub(super) fn revoke<S: Store>(
    store: &mut HashedStore<'_, S>,
    progress: &mut Progress,
    lease: LeaseRef,
    changes: &mut Vec<LeaseChange>,
) -> Result<Result<LeaseRevokeResponse, Error>, S::Error> {
    let Some(found) = Lease::find(store, lease)? else {
        return Ok(Err(lease::not_found(lease.id)));
    };
    if found.state != LeaseState::Live {
        return Ok(Err(lease::ending(lease.id)));
    }
    let deleted = found.keys;
    let attached = lease::attached(store, lease.id, END_KEYS_MAX)?;
    let cause = LeaseEnd::Revoked;
    let step = end(store, progress, lease.id, found, attached, cause, changes)?;
    Ok(Ok(LeaseRevokeResponse {
        deleted,
        is_partial: !step.is_gone,
    }))
}

/// Ends those of `leases` that still exist, because the leader of `term` found them due; the entry
/// itself has `entry_term`.
pub(super) fn expire<S: Store>(
    store: &mut HashedStore<'_, S>,
    progress: &mut Progress,
    term: Term,
    leases: Vec<LeaseRef>,
    changes: &mut Vec<LeaseChange>,
) -> Result<(), S::Error> {
    if term != progress.applied.term && !planted!(ExpiryOfAnyTerm) {
        return Ok(());
    }
    let mut cost = Step::default();
    let mut doomed = lease_walk::doomed(store, &leases)?;
    for lease in leases {
        let meant =
            |found: &DoomedLease| lease.means(found.lease.grant_index) || planted!(LeaseIdReused);
        if !doomed.get(&lease.id).is_some_and(meant) {
            continue;
        }
        // A lease that an entry names twice ends once.
        let Some(DoomedLease {
            lease: found,
            keys: attached,
        }) = doomed.remove(&lease.id)
        else {
            continue;
        };
        if found.state != LeaseState::Live {
            continue;
        }
        let attached = match attached {
            Some(attached) => attached,
            None => lease::attached(store, lease.id, END_KEYS_MAX)?,
        };
        let cause = LeaseEnd::Expired;
        let step = end(store, progress, lease.id, found, attached, cause, changes)?;
        if cost.adds_too_much(step) {
            break;
        }
    }
    Ok(())
}

/// Deletes more keys of leases whose end has begun.
pub(super) fn go_on<S: Store>(
    store: &mut HashedStore<'_, S>,
    progress: &mut Progress,
    leases: Vec<LeaseRef>,
    changes: &mut Vec<LeaseChange>,
) -> Result<(), S::Error> {
    let mut cost = Step::default();
    for lease in leases {
        let Some(found) = Lease::find(store, lease)? else {
            continue;
        };
        if let LeaseState::Revoking(cause) = found.state {
            let attached = lease::attached(store, lease.id, END_KEYS_MAX)?;
            let step = end(store, progress, lease.id, found, attached, cause, changes)?;
            if cost.adds_too_much(step) {
                break;
            }
        }
    }
    Ok(())
}

/// Sets or clears the checkpoints of leases, as decided by the leader of `term` (T9).
pub(super) fn mark<S: Store>(
    store: &mut HashedStore<'_, S>,
    progress: &Progress,
    term: Term,
    marks: Vec<LeaseMark>,
    changes: &mut Vec<LeaseChange>,
) -> Result<(), S::Error> {
    if term != progress.applied.term {
        return Ok(());
    }
    for LeaseMark { lease, kind } in marks {
        let Some(mut found) = Lease::find(store, lease)? else {
            continue;
        };
        if found.state != LeaseState::Live {
            continue;
        }
        match kind {
            LeaseMarkKind::Remaining(left) => found.checkpoint_ms = Some(left),
            LeaseMarkKind::Clear => found.checkpoint_ms = None,
            // Only if it has not been shortened once more since.
            LeaseMarkKind::Settle { ttl_ms } if ttl_ms == found.ttl_ms => found.promised_ms = 0,
            LeaseMarkKind::Settle { .. } => continue,
        }
        found.write(store, lease.id)?;
        changes.push(LeaseChange::Changed(found.terms(lease.id)));
    }
    Ok(())
}

/// What a step came to.
#[derive(Default)]
struct Step {
    is_gone: bool,
    /// Keys that were deleted, and their bytes.
    keys: usize,
    bytes: usize,
}

impl Step {
    /// Whether an entry that has cost this should do no more after another step.
    fn adds_too_much(&mut self, step: Self) -> bool {
        self.keys += step.keys;
        self.bytes += step.bytes;
        self.keys >= ENTRY_KEYS_MAX || self.bytes >= END_BYTES_MAX
    }
}

/// One step of ending the lease `found`: deletes the keys `attached`, which are all it has or the
/// first thousand, and the lease itself if none is left.
fn end<S: Store>(
    store: &mut HashedStore<'_, S>,
    progress: &mut Progress,
    id: i64,
    mut found: Lease,
    attached: Vec<Bytes>,
    cause: LeaseEnd,
    changes: &mut Vec<LeaseChange>,
) -> Result<Step, S::Error> {
    let main = progress.revision + 1;
    let mut write = Write::new(main);
    let (mut keys, mut bytes) = (0, 0);
    let before = found.encode();
    #[cfg(leasehold_bugs)]
    let attached = planted_left(attached, cause, &mut found);
    for key in attached {
        bytes += delete(store, &mut write, id, key)?;
        found.keys = found.keys.saturating_sub(1);
        keys += 1;
        if bytes >= END_BYTES_MAX {
            break;
        }
    }
    if write.has_changed() {
        progress.revision = main;
    }
    if found.keys > 0 {
        found.state = LeaseState::Revoking(cause);
        found.write(store, id)?;
        changes.push(LeaseChange::Changed(found.terms(id)));
        return Ok(Step {
            is_gone: false,
            keys,
            bytes,
        });
    }
    if !found.name.is_empty() {
        let name = Bytes::copy_from_slice(found.name.as_bytes());
        store.take(Space::LeaseNames, &name)?;
    }
    store.remove(Space::Leases, lease::lease_key(id), &before);
    progress.leases = progress.leases.saturating_sub(1);
    lease::one_less_of_user(store, &found.creator)?;
    let lease = LeaseRef {
        id,
        grant_index: found.grant_index,
    };
    changes.push(LeaseChange::Ended(lease, cause));
    Ok(Step {
        is_gone: true,
        keys,
        bytes,
    })
}

/// Deletes a key attached to the lease `id`; returns its size in bytes.
fn delete<S: Store>(
    store: &mut HashedStore<'_, S>,
    write: &mut Write,
    id: i64,
    key: Bytes,
) -> Result<usize, S::Error> {
    store.remove(Space::LeaseKeys, lease::attachment(id, &key), b"");
    let Some(record) = store.get(Space::Current, &key)? else {
        return Err(lease::damaged("an attached key that does not exist").into());
    };
    let held = Record::decode(record.clone())?;
    if held.lease != id && !planted!(KeyNotDetached) {
        return Err(lease::damaged("a key attached to two leases").into());
    }
    mvcc::delete_found(store, write, &key, &record, held.mod_revision);
    Ok(key.len() + record.len())
}

#[cfg(leasehold_bugs)]
fn planted_left(mut attached: Vec<Bytes>, cause: LeaseEnd, found: &mut Lease) -> Vec<Bytes> {
    if planted!(LeaseKeysLeft) && cause == LeaseEnd::Expired {
        attached.clear();
        found.keys = 0;
    }
    attached
}
