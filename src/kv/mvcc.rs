//! The rules of revisions (multi-version concurrency control).
//!
//! The store has one revision. A write that changes something makes it one higher, and everything
//! the write changes carries that revision; a delete that finds nothing changes nothing. A key's
//! create revision is that of the write that made it (again), its mod revision that of the last
//! write, its version the number of writes since it was created.
//!
//! Each change writes three records: the key's current record (or removes it), the record or
//! tombstone in `history`, and an event under (revision, number within the write). One write
//! changes a key at most once.

use bytes::Bytes;

use crate::api::{
    DeleteRangeRequest, DeleteRangeResponse, Error, ErrorKind, EventKind, KeyRange, LeaseTarget,
    PutRequest, PutResponse,
};

use super::hash::HashedStore;
use super::keys::Revision;
use super::record::{EventRecord, Record, TOMBSTONE};
use super::store::{Space, Store, View};
use super::{keys, lease};

/// The most keys that one write may delete or look at. Without a bound, one small request could
/// demand more time and memory than a replica has, and again at every restart.
pub const WRITE_KEYS_MAX: u64 = 100_000;

/// The most bytes of keys and values that one write may replace, delete or look at: 128 values of
/// the default limits have room, and a state thread is not held up for seconds.
pub const WRITE_BYTES_MAX: u64 = 144 << 20;

/// The most bytes of keys and values that the answer to a write carries, unless it is a single
/// one: what fits into one reply of the default limits.
pub const ANSWER_BYTES_MAX: u64 = 1280 << 10;

/// A write in progress: the position of its next change, and its cost so far.
pub(super) struct Write {
    next: Revision,
    pub(super) cost: Cost,
}

impl Write {
    /// A write that will have the revision `main`, if it changes anything.
    pub(super) fn new(main: i64) -> Self {
        Self {
            next: Revision::first(main),
            cost: Cost::default(),
        }
    }

    /// Whether it has changed the store, and so used up its revision.
    pub(super) fn has_changed(&self) -> bool {
        self.next.sub > 0
    }

    /// The same write, for changes that may be taken back. What it costs is counted on.
    pub(super) fn draft(&mut self) -> Self {
        Self {
            next: self.next,
            cost: std::mem::take(&mut self.cost),
        }
    }

    fn take_place(&mut self) -> Revision {
        let place = self.next;
        self.next = place.next();
        place
    }
}

/// The cost of a request so far. The bounds are constants, because every replica must reach the
/// same decision.
#[derive(Default)]
pub(super) struct Cost {
    keys: u64,
    bytes: u64,
    answers: u64,
    answer_bytes: u64,
}

impl Cost {
    /// Counts `keys` that the request goes through, with `bytes` of keys and records.
    pub(super) fn visit(&mut self, keys: usize, bytes: usize) -> Result<(), Error> {
        self.keys += keys as u64;
        self.bytes += bytes as u64;
        if self.keys > WRITE_KEYS_MAX {
            return Err(too_large(
                WRITE_KEYS_MAX,
                self.keys,
                format!(
                    "the request covers more than {WRITE_KEYS_MAX} keys, the most that one write \
                     or transaction may: use several with smaller ranges"
                ),
            ));
        }
        if self.bytes > WRITE_BYTES_MAX && self.keys > 1 {
            return Err(too_large(
                WRITE_BYTES_MAX,
                self.bytes,
                format!(
                    "the request covers more than {WRITE_BYTES_MAX} bytes of keys and values, the \
                     most that one write or transaction may: use several with smaller ranges"
                ),
            ));
        }
        Ok(())
    }

    /// Counts a key that the request goes through, and that goes into the answer if `answered`.
    pub(super) fn count(&mut self, bytes: usize, answered: bool) -> Result<(), Error> {
        self.visit(1, bytes)?;
        match answered {
            true => self.answer(bytes),
            false => Ok(()),
        }
    }

    /// Counts a key and value of `bytes` that go into the answer.
    pub(super) fn answer(&mut self, bytes: usize) -> Result<(), Error> {
        self.answers += 1;
        self.answer_bytes += bytes as u64;
        if self.answer_bytes > ANSWER_BYTES_MAX && self.answers > 1 {
            return Err(too_large(
                ANSWER_BYTES_MAX,
                self.answer_bytes,
                format!(
                    "the keys and values of the reply exceed {ANSWER_BYTES_MAX} bytes, the most \
                     that one reply may hold: use smaller ranges, or omit the values"
                ),
            ));
        }
        Ok(())
    }
}

/// Writes one key. A refusal has changed nothing.
pub(super) fn put<S: Store>(
    store: &mut HashedStore<'_, S>,
    write: &mut Write,
    request: PutRequest,
) -> Result<Result<PutResponse, Error>, S::Error> {
    if let Err(refusal) = check_put(&request) {
        return Ok(Err(refusal));
    }
    let key = request.key;
    let old = store.get(Space::Current, &key)?;
    let previous = old.clone().map(Record::decode).transpose()?;
    if let Some(old) = &old
        && let Err(refusal) = write.cost.count(key.len() + old.len(), request.prev_kv)
    {
        return Ok(Err(refusal));
    }
    let held = previous.as_ref().map_or(0, |previous| previous.lease);
    let (mut value, mut lease) = match lease::resolve(store, &request.lease)? {
        Ok(lease) => (request.value, lease),
        Err(refusal) => return Ok(Err(refusal)),
    };
    if request.ignore_value || request.ignore_lease {
        let Some(previous) = &previous else {
            return Ok(Err(Error::not_applied(
                ErrorKind::KeyNotFound,
                "the put is to keep the value or the lease of its key, but the key does not exist",
            )));
        };
        if request.ignore_value {
            value = previous.value.clone();
        }
        if request.ignore_lease {
            lease = previous.lease;
        }
    }
    if lease != held
        && lease != 0
        && let Err(refusal) = lease::check_room(store, lease)?
    {
        return Ok(Err(refusal));
    }

    let place = write.take_place();
    let main = place.main;
    let record = Record {
        create_revision: previous.as_ref().map_or(main, |p| p.create_revision),
        mod_revision: main,
        version: previous.as_ref().map_or(1, |p| p.version + 1),
        lease,
        value,
    };
    let before = previous.as_ref().map_or(0, |p| p.mod_revision);
    store_record(store, place, &key, old.as_deref(), before, record.encode());
    lease::move_key(store, &key, held, lease)?;
    let prev_kv = previous
        .filter(|_| request.prev_kv)
        .map(|previous| previous.with_key(key));
    Ok(Ok(PutResponse { prev_kv }))
}

/// Stores the record that a put made, with its history and event, in place of `old`, which is of the
/// revision `before`.
fn store_record<S: Store>(
    store: &mut HashedStore<'_, S>,
    place: Revision,
    key: &Bytes,
    old: Option<&[u8]>,
    before: i64,
    record: Bytes,
) {
    store.insert(
        Space::History,
        keys::history_key(key, place),
        record.clone(),
    );
    store.insert(
        Space::Events,
        keys::event_key(place),
        EventRecord::encode(EventKind::Put, before, key),
    );
    match old {
        Some(old) => store.replace(Space::Current, key.clone(), old, record),
        None => store.insert(Space::Current, key.clone(), record),
    }
}

/// Deletes one key or a range of keys. A refusal has changed nothing.
pub(super) fn delete_range<S: Store>(
    store: &mut HashedStore<'_, S>,
    write: &mut Write,
    request: &DeleteRangeRequest,
) -> Result<Result<DeleteRangeResponse, Error>, S::Error> {
    let keys = match doomed(store, &mut write.cost, request)? {
        Ok(keys) => keys,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut response = DeleteRangeResponse::default();
    for key in keys {
        let Some(old) = delete_key(store, write, &key)? else {
            continue;
        };
        lease::move_key(store, &key, old.lease, 0)?;
        response.deleted += 1;
        if request.prev_kv {
            response.prev_kvs.push(old.with_key(key));
        }
    }
    Ok(Ok(response))
}

/// Deletes one key, if it exists, and returns its record. The caller handles its lease.
pub(super) fn delete_key<S: Store>(
    store: &mut HashedStore<'_, S>,
    write: &mut Write,
    key: &Bytes,
) -> Result<Option<Record>, S::Error> {
    let Some(old) = store.get(Space::Current, key)? else {
        return Ok(None);
    };
    let record = Record::decode(old.clone())?;
    delete_found(store, write, key, &old, record.mod_revision);
    Ok(Some(record))
}

/// Deletes a key whose record `old`, of the revision `previous`, the caller has just read.
pub(super) fn delete_found<S: Store>(
    store: &mut HashedStore<'_, S>,
    write: &mut Write,
    key: &Bytes,
    old: &[u8],
    previous: i64,
) {
    store.remove(Space::Current, key.clone(), old);
    let place = write.take_place();
    store.insert(Space::History, keys::history_key(key, place), TOMBSTONE);
    store.insert(
        Space::Events,
        keys::event_key(place),
        EventRecord::encode(EventKind::Delete, previous, key),
    );
}

/// The keys that `request` deletes, or the refusal. Nothing has been changed yet, so a refusal has
/// no effect.
fn doomed<V: View>(
    view: &V,
    cost: &mut Cost,
    request: &DeleteRangeRequest,
) -> Result<Result<Vec<Bytes>, Error>, V::Error> {
    if request.range == KeyRange::Single {
        if let Err(refusal) = check_key(&request.key) {
            return Ok(Err(refusal));
        }
        let Some(record) = view.get(Space::Current, &request.key)? else {
            return Ok(Ok(Vec::new()));
        };
        let counted = cost.count(request.key.len() + record.len(), request.prev_kv);
        return Ok(counted.map(|()| vec![request.key.clone()]));
    }
    let mut keys = Vec::new();
    for pair in view.range(Space::Current, &keys::span(&request.key, &request.range)) {
        let (key, record) = pair?;
        if let Err(refusal) = cost.count(key.len() + record.len(), request.prev_kv) {
            return Ok(Err(refusal));
        }
        // Copied, because a key read from disk may keep its whole block in memory.
        keys.push(Bytes::copy_from_slice(&key));
    }
    Ok(Ok(keys))
}

fn check_put(request: &PutRequest) -> Result<(), Error> {
    check_key(&request.key)?;
    if request.ignore_lease && request.lease != LeaseTarget::None {
        return Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            "the put names a lease and also asks to keep the current one: leave one of the two out",
        ));
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            "the put gives a value and also asks to keep the current one: leave one of the two out",
        ));
    }
    Ok(())
}

fn check_key(key: &[u8]) -> Result<(), Error> {
    if key.is_empty() {
        return Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            "the key is empty: give a key of at least one byte",
        ));
    }
    if key.len() > keys::KEY_BYTES_MAX {
        return Err(too_large(
            keys::KEY_BYTES_MAX as u64,
            key.len() as u64,
            format!(
                "the key has {} bytes and at most {} can be stored: use a shorter key",
                key.len(),
                keys::KEY_BYTES_MAX
            ),
        ));
    }
    Ok(())
}

fn too_large(limit: u64, actual: u64, detail: String) -> Error {
    Error::not_applied(ErrorKind::RequestTooLarge { limit, actual }, detail)
}
