//! What etcd's data file holds: buckets, and in them keys and values, in the layout of etcd 3.4 to 3.6.
//!
//! | Bucket | Key | Value |
//! |---|---|---|
//! | `key` | revision, `_`, number within the revision, `t` for a deletion | the key with its value |
//! | `lease` | id | the lease |
//! | `meta` | what it is: how far compaction is, which entry was applied last | that |
//! | `auth`, `authUsers`, `authRoles` | users and roles | |
//! | others | members and the like, which etcd writes itself when it restores a snapshot | |

use bytes::{Buf, BufMut, Bytes};
use prost::Message;

use super::proto;

/// Every bucket that etcd looks for, in order.
pub(crate) const BUCKETS: [&str; 10] = [
    "alarm",
    AUTH,
    AUTH_ROLES,
    AUTH_USERS,
    "cluster",
    KEYS,
    LEASES,
    "members",
    "members_removed",
    META,
];
pub(crate) const KEYS: &str = "key";
pub(crate) const LEASES: &str = "lease";
pub(crate) const META: &str = "meta";
pub(crate) const AUTH: &str = "auth";
pub(crate) const AUTH_ROLES: &str = "authRoles";
pub(crate) const AUTH_USERS: &str = "authUsers";

/// Keys of the bucket `meta`: how far a compaction was asked for, how far one has come, and the entry
/// that was applied last.
pub(crate) const COMPACT_REVISION: &[u8] = b"scheduledCompactRev";
pub(crate) const COMPACTED_REVISION: &[u8] = b"finishedCompactRev";
pub(crate) const APPLIED_INDEX: &[u8] = b"consistent_index";
pub(crate) const APPLIED_TERM: &[u8] = b"term";
/// The key of the bucket `auth` that says whether access is controlled, and its value if it is.
pub(crate) const AUTH_ENABLED: &[u8] = b"authEnabled";
pub(crate) const ENABLED: &[u8] = &[1];

/// The length of the hash, SHA-256, that follows a file that was taken as a snapshot; the file itself is
/// a multiple of 512 bytes long.
pub(crate) const HASH_BYTES: u64 = 32;
const SECTOR_BYTES: u64 = 512;

const REVISION_BYTES: usize = 17;
const DELETED: u8 = b't';

/// What one change made of one key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredVersion {
    pub(crate) revision: i64,
    /// Which change of its revision it is.
    pub(crate) number: i64,
    pub(crate) is_deleted: bool,
    pub(crate) kv: proto::KeyValue,
}

/// Whether a file of `length` bytes is followed by its hash.
pub(crate) fn has_hash(length: u64) -> bool {
    length % SECTOR_BYTES == HASH_BYTES
}

/// A revision, and the number of a change within it.
pub(crate) fn revision_bytes(revision: i64, number: i64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(REVISION_BYTES + 1);
    bytes.put_i64(revision);
    bytes.put_u8(b'_');
    bytes.put_i64(number);
    bytes
}

/// What [`revision_bytes`] made; `None` for anything else, and what follows it.
fn read_revision(mut bytes: &[u8]) -> Option<(i64, i64, &[u8])> {
    if bytes.len() < REVISION_BYTES {
        return None;
    }
    let revision = bytes.get_i64();
    let separator = bytes.get_u8();
    let number = bytes.get_i64();
    let is_revision = separator == b'_' && revision >= 0 && number >= 0;
    is_revision.then_some((revision, number, bytes))
}

/// The revision of a compaction.
pub(crate) fn read_compaction(value: &[u8]) -> Option<i64> {
    let (revision, _, rest) = read_revision(value)?;
    rest.is_empty().then_some(revision)
}

impl StoredVersion {
    /// Key and value of the bucket of keys.
    pub(crate) fn record(&self) -> (Vec<u8>, Vec<u8>) {
        let mut key = revision_bytes(self.revision, self.number);
        if self.is_deleted {
            key.push(DELETED);
        }
        (key, self.kv.encode_to_vec())
    }

    /// `None` if that is none.
    pub(crate) fn read(key: &[u8], value: &[u8]) -> Option<Self> {
        let (revision, number, rest) = read_revision(key)?;
        let is_deleted = match rest {
            [] => false,
            [DELETED] => true,
            _ => return None,
        };
        let kv = proto::KeyValue::decode(Bytes::copy_from_slice(value)).ok()?;
        Some(Self {
            revision,
            number,
            is_deleted,
            kv,
        })
    }
}

impl proto::StoredLease {
    /// Key and value of the bucket of leases.
    pub(crate) fn record(&self) -> (Vec<u8>, Vec<u8>) {
        (self.id.to_be_bytes().to_vec(), self.encode_to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(is_deleted: bool) -> StoredVersion {
        StoredVersion {
            revision: 258,
            number: 3,
            is_deleted,
            kv: proto::KeyValue {
                key: Bytes::from_static(b"k"),
                value: Bytes::from_static(b"v"),
                mod_revision: 258,
                ..proto::KeyValue::default()
            },
        }
    }

    #[test]
    fn versions_stand_under_etcds_keys_and_read_back() {
        for is_deleted in [false, true] {
            let version = version(is_deleted);
            let (key, value) = version.record();
            let expected: &[u8] = b"\0\0\0\0\0\0\x01\x02_\0\0\0\0\0\0\0\x03";
            assert_eq!(&key[..REVISION_BYTES], expected);
            assert_eq!(
                &key[REVISION_BYTES..],
                if is_deleted { "t" } else { "" }.as_bytes()
            );
            assert_eq!(StoredVersion::read(&key, &value), Some(version));
        }
    }

    #[test]
    fn what_is_no_version_and_no_compaction_is_none() {
        let (key, value) = version(false).record();
        let mut longer = key.clone();
        longer.push(b'x');
        let mut negative = key.clone();
        negative[0] = 0xff;
        let mut other = key.clone();
        other[8] = b'-';
        for key in [&key[..16], &longer, &negative, &other, &[]] {
            assert_eq!(StoredVersion::read(key, &value), None);
        }
        assert_eq!(StoredVersion::read(&key, b"\x0a\x7f"), None);
        assert_eq!(read_compaction(&revision_bytes(9, 0)), Some(9));
        assert_eq!(read_compaction(&longer), None);
        assert_eq!(read_compaction(b""), None);
    }

    #[test]
    fn buckets_are_in_order_and_a_hash_shows_by_the_length() {
        assert!(BUCKETS.is_sorted());
        assert!(has_hash(4096 + 32) && !has_hash(4096) && !has_hash(31));
    }
}
