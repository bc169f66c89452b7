//! The encoding of the records in `current`, `history` and `events`.
//!
//! | Keyspace | Record |
//! |---|---|
//! | `current`, `history` | `1`, create revision, mod revision, version, lease, value |
//! | `history`, where the key was deleted | `0` |
//! | `events` | `1` for a put or `0` for a delete, mod revision before the change, key |
//!
//! An event names the revision that it superseded (0 where the key was created), so that the
//! previous value is found without a search: by a watch that reports it, and by compaction, which
//! removes it.

use bytes::{Buf, BufMut, Bytes};

use crate::api::{EventKind, KeyValue};

use super::store::{Fault, Space};

/// What a key holds.
pub(super) struct Record {
    pub(super) create_revision: i64,
    pub(super) mod_revision: i64,
    pub(super) version: i64,
    pub(super) lease: i64,
    pub(super) value: Bytes,
}

/// The first byte of a record that holds a value, and of one that says the key was deleted.
const VALUE: u8 = 1;
const DELETED: u8 = 0;
/// One byte of kind and four numbers stand before the value.
const RECORD_HEADER: usize = 33;

/// What `history` holds where a key was deleted.
pub(super) const TOMBSTONE: Bytes = Bytes::from_static(&[DELETED]);

impl Record {
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(RECORD_HEADER + self.value.len());
        bytes.put_u8(VALUE);
        bytes.put_i64(self.create_revision);
        bytes.put_i64(self.mod_revision);
        bytes.put_i64(self.version);
        bytes.put_i64(self.lease);
        bytes.put_slice(&self.value);
        bytes.into()
    }

    /// The value stays where it is: it shares `record`'s memory.
    pub(super) fn decode(record: Bytes) -> Result<Self, Fault> {
        Self::read(record, Space::Current)
    }

    /// A record of `history`: `None` for a tombstone.
    pub(super) fn decode_past(record: Bytes) -> Result<Option<Self>, Fault> {
        if record == TOMBSTONE {
            return Ok(None);
        }
        Self::read(record, Space::History).map(Some)
    }

    fn read(mut record: Bytes, space: Space) -> Result<Self, Fault> {
        if record.len() < RECORD_HEADER || record.get_u8() != VALUE {
            return Err(Fault::Damaged {
                space,
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

    pub(super) fn with_key(self, key: Bytes) -> KeyValue {
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

/// The key with its `record` from [`Space::Current`].
///
/// # Errors
/// [`Fault::Damaged`] if the record does not read.
pub fn key_value(key: Bytes, record: Bytes) -> Result<KeyValue, Fault> {
    Record::decode(record).map(|record| record.with_key(key))
}

/// What [`Space::Current`] holds for a key that reads as `kv`: what [`key_value`] is made of.
pub fn record_of(kv: &KeyValue) -> Bytes {
    Record {
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        lease: kv.lease,
        value: kv.value.clone(),
    }
    .encode()
}

/// One change of one key, as it stands in `events`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventRecord {
    pub(super) kind: EventKind,
    /// The mod revision that the key had before; 0 if it did not exist.
    pub(super) previous: i64,
    pub(super) key: Bytes,
}

/// One byte of kind and the previous revision stand before the key.
const EVENT_HEADER: usize = 9;

impl EventRecord {
    pub(super) fn encode(kind: EventKind, previous: i64, key: &[u8]) -> Bytes {
        let mut bytes = Vec::with_capacity(EVENT_HEADER + key.len());
        bytes.put_u8(match kind {
            EventKind::Delete => DELETED,
            EventKind::Put => VALUE,
        });
        bytes.put_i64(previous);
        bytes.put_slice(key);
        bytes.into()
    }

    /// The key stays where it is: it shares `record`'s memory.
    pub(super) fn decode(mut record: Bytes) -> Result<Self, Fault> {
        let damaged = Fault::Damaged {
            space: Space::Events,
            what: "an event that does not read",
        };
        if record.len() < EVENT_HEADER {
            return Err(damaged);
        }
        let kind = match record.get_u8() {
            DELETED => EventKind::Delete,
            VALUE => EventKind::Put,
            _ => return Err(damaged),
        };
        Ok(Self {
            kind,
            previous: record.get_i64(),
            key: record,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(value: &'static [u8]) -> Record {
        Record {
            create_revision: 2,
            mod_revision: 3,
            version: 2,
            lease: 9,
            value: Bytes::from_static(value),
        }
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        for value in [b"".as_slice(), b"v"] {
            let bytes = record(value).encode();
            assert_eq!(bytes.len(), RECORD_HEADER + value.len());
            let read = Record::decode(bytes.clone()).unwrap();
            assert_eq!(read.with_key(Bytes::new()), {
                record(value).with_key(Bytes::new())
            });
            let read = key_value(Bytes::from_static(b"k"), bytes.clone()).unwrap();
            assert_eq!(record_of(&read), bytes);
            assert!(Record::decode_past(bytes).unwrap().is_some());
        }
        assert!(Record::decode_past(TOMBSTONE).unwrap().is_none());
    }

    #[test]
    fn what_is_no_record_is_damage() {
        let whole = record(b"").encode();
        assert!(Record::decode(TOMBSTONE).is_err(), "current holds values");
        assert!(Record::decode(whole.slice(..whole.len() - 1)).is_err());
        assert!(Record::decode_past(Bytes::new()).is_err());
        assert!(Record::decode_past(Bytes::from_static(&[DELETED, 1])).is_err());
        let mut other = whole.to_vec();
        other[0] = 2;
        assert!(Record::decode(other.into()).is_err());
    }

    #[test]
    fn an_event_reads_as_it_was_written() {
        for (kind, previous, key) in [
            (EventKind::Put, 0, b"k".as_slice()),
            (EventKind::Delete, i64::MAX, b""),
        ] {
            let bytes = EventRecord::encode(kind, previous, key);
            let read = EventRecord::decode(bytes).unwrap();
            assert_eq!(
                (read.kind, read.previous, &read.key[..]),
                (kind, previous, key)
            );
        }
        assert!(EventRecord::decode(Bytes::from_static(&[1; 8])).is_err());
        assert!(EventRecord::decode(Bytes::from_static(&[2; 9])).is_err());
    }
}
