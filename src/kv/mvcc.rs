//! Every rule about revisions.
//!
//! The store has one revision. A write that changes something makes it one higher, and everything
//! the write changes carries that revision; a delete that finds nothing changes nothing. A key's
//! create revision is that of the write that made it (again), its mod revision that of the last
//! write, its version the number of writes since it was created.
//!
//! Each change leaves three marks: the key's current record (or none), the record or tombstone in
//! `history`, and an event under (revision, number within the write).

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::api::DeleteRangeRequest;
use crate::api::DeleteRangeResponse;
use crate::api::Error;
use crate::api::ErrorKind;
use crate::api::KeyRange;
use crate::api::KeyValue;
use crate::api::PutRequest;
use crate::api::PutResponse;

use super::hash::Hashed;
use super::keys;
use super::keys::Revision;
use super::store::Fault;
use super::store::Space;
use super::store::Store;
use super::store::View;

/// The most keys that one write may delete. Without a bound one small request could ask every
/// replica for more memory than it has, and would ask again at every restart.
pub const DELETE_KEYS_MAX: u64 = 100_000;

/// The most bytes of previous keys and values that a delete of several keys hands back: what fits
/// into one reply of the default limits.
pub const PREVIOUS_BYTES_MAX: u64 = 1280 << 10;

/// What a write did: `Ok` with its answer and whether it changed anything, or why it was refused.
pub(super) type Written<T> = Result<(T, Changed), Error>;

/// Whether a write changed the store, and so used up its revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    Yes,
    No,
}

/// Writes one key at revision `main`.
pub(super) fn put<S: Store>(
    store: &mut Hashed<'_, S>,
    main: i64,
    request: PutRequest,
) -> Result<Written<PutResponse>, S::Error> {
    if let Err(refusal) = check_key(&request.key) {
        return Ok(Err(refusal));
    }
    let key = request.key;
    let old = store.get(Space::Current, &key)?;
    let previous = old.clone().map(Record::decode).transpose()?;
    let record = Record {
        create_revision: previous.as_ref().map_or(main, |p| p.create_revision),
        mod_revision: main,
        version: previous.as_ref().map_or(1, |p| p.version + 1),
        lease: 0,
        value: request.value,
    }
    .encode();
    let revision = Revision { main, sub: 0 };
    store.insert(
        Space::History,
        keys::history_key(&key, revision),
        record.clone(),
    );
    store.insert(
        Space::Events,
        keys::event_key(revision),
        event(EventKind::Put, &key),
    );
    match &old {
        Some(old) => store.replace(Space::Current, key.clone(), old, record),
        None => store.insert(Space::Current, key.clone(), record),
    }
    let prev_kv = previous
        .filter(|_| request.prev_kv)
        .map(|previous| previous.with_key(key));
    Ok(Ok((PutResponse { prev_kv }, Changed::Yes)))
}

/// Deletes one key or a range of keys at revision `main`.
pub(super) fn delete_range<S: Store>(
    store: &mut Hashed<'_, S>,
    main: i64,
    request: &DeleteRangeRequest,
) -> Result<Written<DeleteRangeResponse>, S::Error> {
    let keys = match doomed(store, request)? {
        Ok(keys) => keys,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut response = DeleteRangeResponse::default();
    for (sub, key) in (0..).zip(keys) {
        let Some(old) = store.take(Space::Current, &key)? else {
            continue;
        };
        response.deleted += 1;
        let revision = Revision { main, sub };
        store.insert(
            Space::History,
            keys::history_key(&key, revision),
            Bytes::from_static(&[TOMBSTONE]),
        );
        store.insert(
            Space::Events,
            keys::event_key(revision),
            event(EventKind::Delete, &key),
        );
        if request.prev_kv {
            response.prev_kvs.push(Record::decode(old)?.with_key(key));
        }
    }
    let changed = match response.deleted {
        0 => Changed::No,
        _ => Changed::Yes,
    };
    Ok(Ok((response, changed)))
}

/// The keys that `request` deletes, or why it may not. Nothing is changed yet, so a refusal
/// leaves nothing behind.
fn doomed<V: View>(
    view: &V,
    request: &DeleteRangeRequest,
) -> Result<Result<Vec<Bytes>, Error>, V::Error> {
    if request.range == KeyRange::Single {
        return Ok(check_key(&request.key).map(|()| vec![request.key.clone()]));
    }
    let mut keys = Vec::new();
    let mut previous_bytes = 0u64;
    for pair in view.range(Space::Current, &keys::span(&request.key, &request.range)) {
        let (key, record) = pair?;
        previous_bytes += (key.len() + record.len()) as u64;
        // A copy, because a key read from disk may hold on to the whole block it came from.
        keys.push(Bytes::copy_from_slice(&key));
        if keys.len() as u64 > DELETE_KEYS_MAX {
            return Ok(Err(too_large(
                DELETE_KEYS_MAX,
                DELETE_KEYS_MAX + 1,
                format!(
                    "the range holds more than {DELETE_KEYS_MAX} keys, the most that one request \
                     deletes: delete it in several smaller ranges"
                ),
            )));
        }
        if request.prev_kv && previous_bytes > PREVIOUS_BYTES_MAX && keys.len() > 1 {
            return Ok(Err(too_large(
                PREVIOUS_BYTES_MAX,
                previous_bytes,
                format!(
                    "the previous values of the range exceed {PREVIOUS_BYTES_MAX} bytes, the most \
                     that one reply carries: delete smaller ranges, or without asking for them"
                ),
            )));
        }
    }
    Ok(Ok(keys))
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
                "the key has {} bytes, and no more than {} can be stored: use a shorter key",
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

/// The key with its `record` from [`Space::Current`].
///
/// # Errors
/// [`Fault::Damaged`] if the record does not read.
pub fn key_value(key: Bytes, record: Bytes) -> Result<KeyValue, Fault> {
    Record::decode(record).map(|record| record.with_key(key))
}

/// What a key holds, in `current` and in `history`.
struct Record {
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    lease: i64,
    value: Bytes,
}

/// The first byte of a record that holds a value, and of one that says the key was deleted.
const VALUE: u8 = 1;
const TOMBSTONE: u8 = 0;
/// One byte of kind and four numbers stand before the value.
const RECORD_HEADER: usize = 33;

impl Record {
    fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(RECORD_HEADER + self.value.len());
        bytes.put_u8(VALUE);
        bytes.put_i64(self.create_revision);
        bytes.put_i64(self.mod_revision);
        bytes.put_i64(self.version);
        bytes.put_i64(self.lease);
        bytes.put_slice(&self.value);
        bytes.freeze()
    }

    /// The value stays where it is: it shares `record`'s memory.
    fn decode(mut record: Bytes) -> Result<Self, Fault> {
        if record.len() < RECORD_HEADER || record.get_u8() != VALUE {
            return Err(Fault::Damaged {
                space: Space::Current,
                what: "a record that does not read",
            });
        }
        Ok(Self {
            create_revision: record.get_i64(),
            mod_revision: record.get_i64(),
            version: record.get_i64(),
            lease: record.get_i64(),
            value: record,
        })
    }

    fn with_key(self, key: Bytes) -> KeyValue {
        KeyValue {
            key,
            value: self.value,
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
            version: self.version,
            lease: self.lease,
        }
    }
}

/// What an event did to its key.
enum EventKind {
    Delete = 0,
    Put = 1,
}

fn event(kind: EventKind, key: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(1 + key.len());
    bytes.put_u8(kind as u8);
    bytes.put_slice(key);
    bytes.freeze()
}
