//! Client leases in the state machine: their records, and the keys attached to them.
//!
//! Time plays no part here. Only the leader knows when a lease expires
//! (`node/lease_tracker/mod.rs`); its decision becomes an entry of the log, and only applying that
//! entry ends the lease (T3, T8). See `lease_end.rs`.
//!
//! | Keyspace | Key | Record |
//! |---|---|---|
//! | `leases` | id | [`Lease`] |
//! | `lease_keys` | id ⧺ key | nothing |
//! | `lease_names` | name | id |
//! | `meta` | `leases_of/` ⧺ user | how many leases the user has who granted them |
//!
//! A key says itself to which lease it is attached (`record.rs`); `lease_keys` is the same the other
//! way round, changed in the same step, so that a key is attached to one lease at most (T7).

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::api::{Error, ErrorKind, LeaseGrantResponse, LeaseInfo, LeaseRef, LeaseTarget};
use crate::types::LogIndex;

use super::hash::HashedStore;
use super::meta::Progress;
use super::store::{Fault, Space, Span, Store, View};

/// The most keys that may be attached to one lease, unless its grant says otherwise. What a grant says
/// stands in the record of the lease, so that every replica comes to the same verdict, however it is
/// configured.
pub const LEASE_KEYS_MAX: u64 = 100_000;

/// A lease to be granted, as its proposer decided it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGrant {
    /// The requested id; 0 for the index of the entry.
    pub id: i64,
    /// Its TTL in milliseconds, within the proposer's limits.
    pub ttl_ms: u64,
    /// The requested TTL.
    pub requested_ttl_ms: u64,
    /// A name that no other lease may have; empty for none.
    pub name: String,
    /// Its owner.
    pub owner: String,
    /// When it was granted, in milliseconds since 1970, by the clock of the proposer.
    pub granted_at_ms: i64,
    /// The proposer's limit: the grant is refused if this many leases exist.
    pub leases_max: u64,
    /// The proposer's limit: so many keys may be attached to the lease as long as it lives.
    pub keys_max: u64,
    /// The proposer's limit: the grant is refused if the user who asks has this many leases; 0 for none.
    pub per_user_max: u64,
}

/// The effect of an entry on a lease, from which a leader maintains deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// It exists now.
    Granted(LeaseTerms),
    /// Its terms are others now.
    Changed(LeaseTerms),
    /// It was removed, with all attached keys.
    Ended(LeaseRef, LeaseEnd),
}

/// Why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseEnd {
    /// It was not renewed in time.
    Expired,
    /// A client revoked it.
    Revoked,
}

/// The properties of a lease that determine its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Which lease.
    pub lease: LeaseRef,
    /// Its TTL, in milliseconds.
    pub ttl_ms: u64,
    /// The time that a new leader, which knows of no renewals, gives it, in milliseconds: the
    /// remaining time at the last checkpoint, or the longest TTL that may have been promised.
    pub restart_ms: u64,
    /// A checkpoint has shortened that: it must be cleared before a renewal is acknowledged (T9).
    pub is_checkpointed: bool,
    /// A longer TTL than the current one may still be promised to a holder (A13).
    pub outlasts_ttl: bool,
    /// It has ended, for this reason, and its keys are being deleted.
    pub ending: Option<LeaseEnd>,
}

/// Whether a lease lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LeaseState {
    Live,
    /// Ended, but with too many keys for one step.
    Revoking(LeaseEnd),
}

/// A lease, as it stands in `leases`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lease {
    pub(super) state: LeaseState,
    pub(super) ttl_ms: u64,
    /// The longest TTL it has promised that is not yet confirmed to have passed; 0 if that is
    /// `ttl_ms`.
    pub(super) promised_ms: u64,
    /// Its remaining time at the last checkpoint, unless it has been renewed since.
    pub(super) checkpoint_ms: Option<u64>,
    pub(super) grant_index: u64,
    pub(super) granted_at_ms: i64,
    pub(super) keys: u64,
    pub(super) name: String,
    pub(super) owner: String,
    /// How many keys may be attached to it.
    #[serde(skip)]
    pub(super) keys_max: u64,
    /// The user who granted it, the only one who may use it while access control is enabled. Empty
    /// if access control was disabled when it was granted.
    #[serde(skip)]
    pub(super) creator: String,
}

/// The first byte of a record: its format.
const FORMAT: u8 = 1;
/// The format of a lease with an owner: the owner's name follows the fields of [`FORMAT`].
const FORMAT_OF_USER: u8 = 2;
/// The format of a lease that may have more or fewer keys than [`LEASE_KEYS_MAX`]: their number follows
/// the fields of [`FORMAT`], and then the owner's name.
const FORMAT_OF_LIMIT: u8 = 3;

impl Lease {
    pub(super) fn encode(&self) -> Bytes {
        let has_limit = self.keys_max != LEASE_KEYS_MAX;
        let format = match self.creator.is_empty() {
            _ if has_limit => FORMAT_OF_LIMIT,
            true => FORMAT,
            false => FORMAT_OF_USER,
        };
        let mut bytes = postcard::to_extend(self, vec![format])
            .expect("a vector grows without bound and the types serialize without fail");
        if has_limit {
            bytes = postcard::to_extend(&self.keys_max, bytes)
                .expect("a vector grows without bound and numbers serialize without fail");
        }
        bytes.extend_from_slice(self.creator.as_bytes());
        Bytes::from(bytes)
    }

    pub(super) fn decode(record: &[u8]) -> Result<Self, Fault> {
        let (format, body) = match record.split_first() {
            Some((format @ (&FORMAT | &FORMAT_OF_USER | &FORMAT_OF_LIMIT), body)) => {
                (*format, body)
            }
            _ => return Err(damaged("a lease of unknown format")),
        };
        let does_not_read = |_| damaged("a lease that does not read");
        let (lease, rest): (Self, _) = postcard::take_from_bytes(body).map_err(does_not_read)?;
        let (keys_max, rest) = match format {
            FORMAT_OF_LIMIT => postcard::take_from_bytes(rest).map_err(does_not_read)?,
            _ => (LEASE_KEYS_MAX, rest),
        };
        let creator = match format {
            FORMAT => "",
            _ => std::str::from_utf8(rest)
                .map_err(|_| damaged("a lease of a user whose name does not read"))?,
        };
        Ok(Self {
            keys_max,
            creator: creator.to_owned(),
            ..lease
        })
    }

    pub(super) fn read<V: View>(view: &V, id: i64) -> Result<Option<Self>, V::Error> {
        match view.get(Space::Leases, &lease_key(id))? {
            Some(record) => Ok(Some(Self::decode(&record)?)),
            None => Ok(None),
        }
    }

    /// The lease that `lease` names, if it is still the one that was granted there.
    pub(super) fn find<V: View>(view: &V, lease: LeaseRef) -> Result<Option<Self>, V::Error> {
        let found = Self::read(view, lease.id)?;
        Ok(found.filter(|found| lease.means(found.grant_index) || planted!(LeaseIdReused)))
    }

    pub(super) fn write<S: Store>(
        &self,
        store: &mut HashedStore<'_, S>,
        id: i64,
    ) -> Result<(), S::Error> {
        store.put(Space::Leases, lease_key(id), self.encode())
    }

    #[cfg(test)]
    pub(super) fn read_for_test(view: &super::store::MemStore, id: i64) -> Option<Self> {
        Self::read(view, id).expect("memory does not fail")
    }

    #[cfg(test)]
    pub(super) fn for_test(grant_index: u64, keys: u64) -> Self {
        Self {
            state: LeaseState::Live,
            ttl_ms: 1_000,
            promised_ms: 0,
            checkpoint_ms: None,
            grant_index,
            granted_at_ms: 0,
            keys,
            name: String::new(),
            owner: String::new(),
            keys_max: LEASE_KEYS_MAX,
            creator: String::new(),
        }
    }

    pub(super) fn terms(&self, id: i64) -> LeaseTerms {
        let promised = self.ttl_ms.max(self.promised_ms);
        LeaseTerms {
            lease: LeaseRef {
                id,
                grant_index: self.grant_index,
            },
            ttl_ms: self.ttl_ms,
            restart_ms: self.checkpoint_ms.unwrap_or(promised),
            is_checkpointed: self.checkpoint_ms.is_some(),
            outlasts_ttl: promised > self.ttl_ms,
            ending: match self.state {
                LeaseState::Live => None,
                LeaseState::Revoking(cause) => Some(cause),
            },
        }
    }

    fn info(self, id: i64) -> LeaseInfo {
        LeaseInfo {
            id,
            grant_index: self.grant_index,
            name: self.name,
            owner: self.owner,
            granted_ttl_ms: self.ttl_ms,
            remaining_ms: None,
            granted_at_ms: self.granted_at_ms,
            key_count: self.keys,
            keys: Vec::new(),
            is_revoking: self.state != LeaseState::Live,
            renewals: None,
            is_extended: false,
        }
    }
}

/// Grants a lease at the entry `index`, or returns the refusal, which has changed nothing. Only
/// `creator` may use it, unless that is empty.
pub(super) fn grant<S: Store>(
    store: &mut HashedStore<'_, S>,
    index: LogIndex,
    leases: &mut u64,
    grant: &LeaseGrant,
    creator: &str,
) -> Result<Result<(LeaseGrantResponse, LeaseTerms), Error>, S::Error> {
    let of_user = user_leases(store, creator)?;
    if let Err(refusal) = check_limits(*leases, of_user, grant, creator) {
        return Ok(Err(refusal));
    }
    if grant.ttl_ms == 0 || grant.id < 0 {
        return Ok(Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            "a lease has a positive id and lasts at least a millisecond",
        )));
    }
    let id = match grant.id {
        0 => free_id(store, index)?,
        id if store.get(Space::Leases, &lease_key(id))?.is_some() => {
            return Ok(Err(Error::not_applied(
                ErrorKind::LeaseExists,
                format!("a lease with the id {id:016x} exists: choose another id, or none"),
            )));
        }
        id => id,
    };
    let name = Bytes::copy_from_slice(grant.name.as_bytes());
    if !name.is_empty() {
        if let Some(held) = store.get(Space::LeaseNames, &name)? {
            let holder = named_id(&held)?;
            return Ok(Err(Error::not_applied(
                ErrorKind::LeaseExists,
                format!("the lease {holder:016x} has the name {:?}", grant.name),
            )));
        }
        store.insert(Space::LeaseNames, name, lease_key(id));
    }
    let lease = Lease {
        state: LeaseState::Live,
        ttl_ms: grant.ttl_ms,
        promised_ms: 0,
        checkpoint_ms: None,
        grant_index: index.0,
        granted_at_ms: grant.granted_at_ms,
        keys: 0,
        name: grant.name.clone(),
        owner: grant.owner.clone(),
        keys_max: grant.keys_max,
        creator: creator.to_owned(),
    };
    store.insert(Space::Leases, lease_key(id), lease.encode());
    *leases += 1;
    set_user_leases(store, creator, of_user + 1)?;
    let response = LeaseGrantResponse {
        id,
        grant_index: index.0,
        ttl_ms: grant.ttl_ms,
        requested_ttl_ms: grant.requested_ttl_ms,
        name: grant.name.clone(),
    };
    Ok(Ok((response, lease.terms(id))))
}

/// Whether there is room for one more lease where `leases` exist, and `of_user` of its creator.
fn check_limits(leases: u64, of_user: u64, grant: &LeaseGrant, creator: &str) -> Result<(), Error> {
    if leases >= grant.leases_max {
        return Err(Error::not_applied(
            ErrorKind::LeaseLimit {
                limit: grant.leases_max,
            },
            format!("{leases} leases exist, the most that lease.max_leases allows: revoke some"),
        ));
    }
    if !creator.is_empty() && grant.per_user_max > 0 && of_user >= grant.per_user_max {
        return Err(Error::not_applied(
            ErrorKind::QuotaExceeded {
                limit: grant.per_user_max,
            },
            format!(
                "the user {creator:?} has {of_user} leases, the most that lease.max_per_user allows: \
                 revoke some"
            ),
        ));
    }
    Ok(())
}

/// Before the name of a user, in `meta`.
const USER_LEASES: &str = "leases_of/";

/// How many leases `user` has granted that exist; 0 if its name is empty.
pub(super) fn user_leases<V: View>(view: &V, user: &str) -> Result<u64, V::Error> {
    if user.is_empty() {
        return Ok(0);
    }
    let Some(record) = view.get(Space::Meta, &user_leases_key(user))? else {
        return Ok(0);
    };
    let bytes = <[u8; 8]>::try_from(record.as_ref()).map_err(|_| Fault::Damaged {
        space: Space::Meta,
        what: "a count of a user's leases of the wrong size",
    })?;
    Ok(u64::from_be_bytes(bytes))
}

fn set_user_leases<S: Store>(
    store: &mut HashedStore<'_, S>,
    user: &str,
    count: u64,
) -> Result<(), S::Error> {
    if user.is_empty() {
        return Ok(());
    }
    let key = user_leases_key(user);
    match count {
        0 => drop(store.take(Space::Meta, &key)?),
        count => {
            let record = Bytes::copy_from_slice(&count.to_be_bytes());
            store.put(Space::Meta, key, record)?;
        }
    }
    Ok(())
}

fn user_leases_key(user: &str) -> Bytes {
    Bytes::from([USER_LEASES, user].concat())
}

/// A lease of `user` is gone.
pub(super) fn one_less_of_user<S: Store>(
    store: &mut HashedStore<'_, S>,
    user: &str,
) -> Result<(), S::Error> {
    let before = user_leases(store, user)?;
    set_user_leases(store, user, before.saturating_sub(1))
}

/// The default id of a lease: the index of its grant. If a client has chosen that number for
/// another lease, the first free number of a sequence that no other grant tries.
fn free_id<V: View>(view: &V, index: LogIndex) -> Result<i64, V::Error> {
    let mut id = i64::try_from(index.0).unwrap_or(i64::MAX);
    while view.get(Space::Leases, &lease_key(id))?.is_some() {
        id = id.checked_add(1 << 40).unwrap_or(id / 2 + 1);
    }
    Ok(id)
}

/// Changes the TTL of a lease.
pub(super) fn update_ttl<S: Store>(
    store: &mut HashedStore<'_, S>,
    lease: LeaseRef,
    ttl_ms: u64,
) -> Result<Result<LeaseTerms, Error>, S::Error> {
    let Some(mut found) = Lease::find(store, lease)? else {
        return Ok(Err(not_found(lease.id)));
    };
    if found.state != LeaseState::Live {
        return Ok(Err(ending(lease.id)));
    }
    // A holder may rely on the longest TTL it was promised, also under the next leader (A13).
    let promised = found.promised_ms.max(found.ttl_ms);
    let is_shorter = ttl_ms < promised && !planted!(LongerPromiseForgotten);
    found.promised_ms = if is_shorter { promised } else { 0 };
    found.ttl_ms = ttl_ms.max(1);
    found.write(store, lease.id)?;
    Ok(Ok(found.terms(lease.id)))
}

/// The lease that a put names; 0 for none. Refused if it does not exist or has ended.
pub(super) fn resolve<V: View>(
    view: &V,
    target: &LeaseTarget,
) -> Result<Result<i64, Error>, V::Error> {
    let (id, found) = match target {
        LeaseTarget::None => return Ok(Ok(0)),
        LeaseTarget::Lease(lease) => (lease.id, Lease::find(view, *lease)?),
        LeaseTarget::Name(name) => {
            let Some(held) = view.get(Space::LeaseNames, name.as_bytes())? else {
                return Ok(Err(unnamed(name)));
            };
            let id = named_id(&held)?;
            (id, Lease::read(view, id)?)
        }
    };
    Ok(match found {
        None => Err(not_found(id)),
        Some(lease) if lease.state != LeaseState::Live => Err(ending(id)),
        Some(_) => Ok(id),
    })
}

/// Whether one more key may be attached to the lease `id`, which exists.
pub(super) fn check_room<V: View>(view: &V, id: i64) -> Result<Result<(), Error>, V::Error> {
    let lease = Lease::read(view, id)?;
    match lease.filter(|lease| lease.keys >= lease.keys_max) {
        None => Ok(Ok(())),
        Some(Lease { keys, keys_max, .. }) => Ok(Err(Error::not_applied(
            ErrorKind::LeaseLimit { limit: keys_max },
            format!(
                "{keys} keys are attached to the lease {id:016x}, the most that lease.max_keys \
                 allowed when it was granted: use another lease"
            ),
        ))),
    }
}

/// Attaches `key` to `to`, and detaches it `from` where it was before; 0 stands for no lease.
pub(super) fn move_key<S: Store>(
    store: &mut HashedStore<'_, S>,
    key: &[u8],
    from: i64,
    to: i64,
) -> Result<(), S::Error> {
    if from == to {
        return Ok(());
    }
    if from != 0 && !planted!(KeyNotDetached) {
        let mut lease = existing(store, from)?;
        if store
            .take(Space::LeaseKeys, &attachment(from, key))?
            .is_none()
        {
            return Err(damaged("a key that its lease does not know").into());
        }
        lease.keys = lease.keys.saturating_sub(1);
        lease.write(store, from)?;
    }
    if to != 0 {
        let mut lease = existing(store, to)?;
        store.put(Space::LeaseKeys, attachment(to, key), Bytes::new())?;
        lease.keys += 1;
        lease.write(store, to)?;
    }
    Ok(())
}

fn existing<V: View>(view: &V, id: i64) -> Result<Lease, V::Error> {
    let lease = Lease::read(view, id)?;
    Ok(lease.ok_or_else(|| damaged("a key attached to a lease that does not exist"))?)
}

/// The keys that are attached to the lease `id`, in order, at most `count_max`.
pub(super) fn attached<V: View>(
    view: &V,
    id: i64,
    count_max: usize,
) -> Result<Vec<Bytes>, V::Error> {
    let span = Span::between(lease_key(id), lease_key_end(id));
    let all = view.range(Space::LeaseKeys, &span).take(count_max);
    all.map(|pair| pair.map(|(key, _)| attached_key(&key)))
        .collect()
}

/// The first key attached to the lease `id` of which this is true. Holds one key at a time.
pub(super) fn find_attached<V: View>(
    view: &V,
    id: i64,
    is_it: impl Fn(&[u8]) -> bool,
) -> Result<Option<Bytes>, V::Error> {
    let span = Span::between(lease_key(id), lease_key_end(id));
    for pair in view.range(Space::LeaseKeys, &span) {
        let key = attached_key(&pair?.0);
        if is_it(&key) {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

/// Copied, because a key read from disk may keep its whole block in memory.
fn attached_key(record_key: &[u8]) -> Bytes {
    Bytes::copy_from_slice(record_key.get(ID_BYTES..).unwrap_or_default())
}

/// The leases that a store holds, as a node begins with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldLeases {
    /// Every lease, in the order of their ids.
    pub terms: Vec<LeaseTerms>,
    /// The number of keys attached to all of them.
    pub keys: u64,
}

/// Every lease, for a leader's deadlines.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn held_leases<V: View>(view: &V) -> Result<HeldLeases, V::Error> {
    let mut held = HeldLeases::default();
    for pair in view.range(Space::Leases, &Span::all()) {
        let (key, record) = pair?;
        let (id, lease) = (lease_id(&key)?, Lease::decode(&record)?);
        held.keys += lease.keys;
        held.terms.push(lease.terms(id));
    }
    Ok(held)
}

/// How the lease `id` is, without its remaining time; with its keys if `keys`, as many as
/// `bytes_max` bytes have room for.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn lease_info<V: View>(
    view: &V,
    id: i64,
    keys: bool,
    bytes_max: usize,
) -> Result<Option<LeaseInfo>, V::Error> {
    let Some(lease) = Lease::read(view, id)? else {
        return Ok(None);
    };
    let count = usize::try_from(lease.keys).unwrap_or(usize::MAX);
    let mut info = lease.info(id);
    if keys {
        let mut left = bytes_max;
        info.keys = attached(view, id, count)?;
        let room = info.keys.iter().take_while(|key| {
            let bytes = key.len() + KEY_OVERHEAD;
            let fits = bytes <= left;
            left = left.saturating_sub(bytes);
            fits
        });
        let room = room.count();
        info.keys.truncate(room);
    }
    Ok(Some(info))
}

/// The lease that has this name. It may be ending: its name is free once it has ended.
///
/// # Errors
/// The outer error is the store's, which is fatal for the reader; the inner one says that no lease has it.
pub fn named_lease<V: View>(view: &V, name: &str) -> Result<Result<LeaseRef, Error>, V::Error> {
    let Some(held) = view.get(Space::LeaseNames, name.as_bytes())? else {
        return Ok(Err(unnamed(name)));
    };
    let id = named_id(&held)?;
    let Some(lease) = Lease::read(view, id)? else {
        return Err(damaged("a name of no lease").into());
    };
    Ok(Ok(LeaseRef {
        id,
        grant_index: lease.grant_index,
    }))
}

/// What the length of a key takes in an encoded reply, at most.
const KEY_OVERHEAD: usize = 5;

pub(super) fn not_found(id: i64) -> Error {
    Error::not_applied(
        ErrorKind::LeaseNotFound,
        format!("there is no lease {id:016x}: it was never granted, or has ended"),
    )
}

fn unnamed(name: &str) -> Error {
    Error::not_applied(
        ErrorKind::LeaseNotFound,
        format!("no lease has the name {name:?}: it was never granted, or has ended"),
    )
}

pub(super) fn ending(id: i64) -> Error {
    Error::not_applied(
        ErrorKind::LeaseExpired,
        format!("the lease {id:016x} has ended: its keys are being deleted"),
    )
}

pub(super) const ID_BYTES: usize = 8;

/// The key of the lease `id`; ids are never negative, so their order is that of their bytes.
pub(super) fn lease_key(id: i64) -> Bytes {
    Bytes::copy_from_slice(&id.to_be_bytes())
}

/// The end of all keys that begin with the id: the next id, which for the largest one is no id any
/// more. A negative one, which no lease has, does no harm.
pub(super) fn lease_key_end(id: i64) -> Bytes {
    Bytes::copy_from_slice(&(id.unsigned_abs() + 1).to_be_bytes())
}

pub(super) fn lease_id(key: &[u8]) -> Result<i64, Fault> {
    let bytes = <[u8; ID_BYTES]>::try_from(key).map_err(|_| damaged("an id that does not read"))?;
    Ok(i64::from_be_bytes(bytes))
}

/// The id in a record of `lease_names`.
pub(super) fn named_id(record: &[u8]) -> Result<i64, Fault> {
    lease_id(record)
}

/// The key that says that `key` is attached to the lease `id`.
pub(super) fn attachment(id: i64, key: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(ID_BYTES + key.len());
    bytes.put_i64(id);
    bytes.put_slice(key);
    bytes.freeze()
}

pub(super) fn damaged(what: &'static str) -> Fault {
    Fault::Damaged {
        space: Space::Leases,
        what,
    }
}

/// Checks the counts in `progress` against the store, for tests and checkers.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn leases_are_sound<V: View>(view: &V, progress: &Progress) -> Result<bool, V::Error> {
    let mut leases = 0;
    let mut attached_keys = 0;
    let mut of_users: BTreeMap<String, u64> = BTreeMap::new();
    for pair in view.range(Space::Leases, &Span::all()) {
        let (key, record) = pair?;
        let (id, lease) = (lease_id(&key)?, Lease::decode(&record)?);
        leases += 1;
        if !lease.creator.is_empty() {
            *of_users.entry(lease.creator.clone()).or_default() += 1;
        }
        let keys = attached(view, id, usize::MAX)?;
        if keys.len() as u64 != lease.keys {
            return Ok(false);
        }
        for key in keys {
            let record = view.get(Space::Current, &key)?;
            let kv = record
                .map(|record| super::record::key_value(key, record))
                .transpose()?;
            if kv.is_none_or(|kv| kv.lease != id) {
                return Ok(false);
            }
            attached_keys += 1;
        }
    }
    let names_hold = view
        .range(Space::LeaseNames, &Span::all())
        .try_fold(true, |all, pair| {
            let (name, record) = pair?;
            let lease = Lease::read(view, named_id(&record)?)?;
            Ok::<bool, V::Error>(all && lease.is_some_and(|lease| lease.name.as_bytes() == name))
        })?;
    let indexed = view.count(Space::LeaseKeys, &Span::all())?;
    let users = Span::between(Bytes::from(USER_LEASES), Bytes::from("leases_of0"));
    let counted = view.count(Space::Meta, &users)?;
    let users_hold = of_users.iter().try_fold(true, |all, (user, count)| {
        Ok::<bool, V::Error>(all && user_leases(view, user)? == *count)
    })?;
    Ok(leases == progress.leases
        && indexed == attached_keys
        && names_hold
        && users_hold
        && counted == of_users.len() as u64)
}
