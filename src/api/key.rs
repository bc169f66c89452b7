//! Keys and what is done to them: ranges, reads, writes, deletes and the end of history.

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::LeaseTarget;

/// Which keys, beginning with the request's `key`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyRange {
    /// Exactly `key`.
    #[default]
    Single,
    /// Every key that starts with `key`; an empty `key` means every key.
    Prefix,
    /// `[key, end)`.
    Until(Bytes),
    /// `key` and everything after it.
    From,
}

impl KeyRange {
    /// The first key that this means together with `key`, and the first one after it that it does
    /// not mean, if there is one.
    pub fn bounds(&self, key: &Bytes) -> (Bytes, Option<Bytes>) {
        let end = match self {
            Self::Single => Some(successor(key)),
            Self::Prefix => prefix_end(key),
            Self::Until(end) => Some(end.clone()),
            Self::From => None,
        };
        (key.clone(), end)
    }
}

/// The first key after `key`.
pub fn successor(key: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(key.len() + 1);
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(&[0]);
    bytes.freeze()
}

/// The first key after all that start with `prefix`, if there is any.
fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = BytesMut::from(&prefix[..=last]);
    end[last] += 1;
    Some(end.freeze())
}

/// Read one key or a range of keys.
///
/// In this order, as in etcd: the range at the revision is taken and counted, the filters leave
/// keys out, what is left is sorted, and the limit cuts it off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeRequest {
    /// The key, or where the range starts.
    pub key: Bytes,
    /// How far the range goes.
    pub range: KeyRange,
    /// At most this many keys; 0 means no limit of the caller's own.
    pub limit: u64,
    /// Leave values out of the reply.
    pub keys_only: bool,
    /// Leave keys out as well: only count them.
    pub count_only: bool,
    /// Read the store as it was at this revision; 0 means the current one. Refused with
    /// [`ErrorKind::Compacted`](super::ErrorKind::Compacted) or
    /// [`ErrorKind::FutureRevision`](super::ErrorKind::FutureRevision) if it cannot be read.
    pub revision: i64,
    /// By what to sort.
    pub sort_target: SortTarget,
    /// In which direction to sort.
    pub sort_order: SortOrder,
    /// Leave out keys whose mod revision is lower; 0 leaves out none.
    pub min_mod_revision: i64,
    /// Leave out keys whose mod revision is higher; 0 leaves out none.
    pub max_mod_revision: i64,
    /// Leave out keys whose create revision is lower; 0 leaves out none.
    pub min_create_revision: i64,
    /// Leave out keys whose create revision is higher; 0 leaves out none.
    pub max_create_revision: i64,
}

impl RangeRequest {
    /// Whether this asks for one key as it is now, which one lookup answers.
    pub fn is_point(&self) -> bool {
        self.range == KeyRange::Single
            && self.revision == 0
            && self.min_mod_revision == 0
            && self.max_mod_revision == 0
            && self.min_create_revision == 0
            && self.max_create_revision == 0
    }

    /// Whether the filters let `kv` through.
    pub(crate) fn admits(&self, kv: &KeyValue) -> bool {
        let within =
            |revision, min, max| (min == 0 || revision >= min) && (max == 0 || revision <= max);
        within(
            kv.mod_revision,
            self.min_mod_revision,
            self.max_mod_revision,
        ) && within(
            kv.create_revision,
            self.min_create_revision,
            self.max_create_revision,
        )
    }

    /// By what and in which direction the reply must be sorted; `None` where keys in their order
    /// are what is asked for.
    pub(crate) fn sort(&self) -> Option<(SortTarget, SortOrder)> {
        match (self.sort_target, self.sort_order) {
            (SortTarget::Key, SortOrder::None | SortOrder::Ascend) => None,
            sort => Some(sort),
        }
    }

    pub(crate) fn sorts_by_value(&self) -> bool {
        self.sort_target == SortTarget::Value
    }
}

/// By what a range is sorted. Where it is equal, the smaller key comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SortTarget {
    /// The key.
    #[default]
    Key,
    /// How often it was written.
    Version,
    /// When it was created.
    CreateRevision,
    /// When it was last written.
    ModRevision,
    /// The value, byte by byte.
    Value,
}

/// In which direction a range is sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SortOrder {
    /// The caller does not care. Keys come in their order; by anything else it means ascending, as
    /// in etcd.
    #[default]
    None,
    /// The smallest first.
    Ascend,
    /// The largest first.
    Descend,
}

/// Write one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutRequest {
    /// The key; not empty.
    pub key: Bytes,
    /// The value; may be empty.
    pub value: Bytes,
    /// Return what the key held before.
    pub prev_kv: bool,
    /// Keep the value that the key has, and write it anew: `value` must be empty, and the key must
    /// exist ([`ErrorKind::KeyNotFound`](super::ErrorKind::KeyNotFound)).
    pub ignore_value: bool,
    /// Keep the client lease that the key is attached to, where a put detaches it otherwise: the key
    /// must exist ([`ErrorKind::KeyNotFound`](super::ErrorKind::KeyNotFound)).
    pub ignore_lease: bool,
    /// The client lease to attach the key to
    /// ([`ErrorKind::LeaseNotFound`](super::ErrorKind::LeaseNotFound) if there is none such).
    pub lease: LeaseTarget,
}

/// Delete one key or a range of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteRangeRequest {
    /// The key, or where the range starts.
    pub key: Bytes,
    /// How far the range goes.
    pub range: KeyRange,
    /// Return what the keys held before.
    pub prev_kv: bool,
}

/// Give up history: what was before `revision` cannot be read any more afterwards.
///
/// Reads at `revision` and above stay possible, and of every key that exists at `revision` the value
/// that it has then. Refused with [`ErrorKind::Compacted`](super::ErrorKind::Compacted) if that has
/// been given up already, and with
/// [`ErrorKind::FutureRevision`](super::ErrorKind::FutureRevision) if it does not exist yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionRequest {
    /// The oldest revision to keep; positive.
    pub revision: i64,
    /// Have every node give the space back to its disk as soon as it has removed what is given up,
    /// however little that is. Else it does so when it is worth the work.
    pub physical: bool,
}

impl CompactionRequest {
    /// Gives up what was before `revision`.
    pub const fn at(revision: i64) -> Self {
        Self {
            revision,
            physical: false,
        }
    }
}

/// A key with its value and history, as of some revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty where only keys were asked for.
    pub value: Bytes,
    /// The revision that created the key (since it was last absent).
    pub create_revision: i64,
    /// The revision that last wrote it.
    pub mod_revision: i64,
    /// Writes since it was created; 1 right after creation.
    pub version: i64,
    /// The client lease it is attached to; 0 for none.
    pub lease: i64,
}

/// A part of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangePage {
    /// The keys found, in key order. There may be none in a page though more follow.
    pub kvs: Vec<KeyValue>,
    /// Where the next page begins; `None` if the range is at its end or the limit is reached.
    pub next: Option<Bytes>,
    /// The revision that was read: what the next page asks for.
    pub revision: i64,
}

/// Keys in order, and whether that was all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeResponse {
    /// The keys found, in the order asked for.
    pub kvs: Vec<KeyValue>,
    /// More keys exist that were asked for: the limit, or the size of one reply, was reached.
    pub more: bool,
    /// How many keys the range holds in all, whatever the limit and the filters.
    pub count: u64,
}

/// A put took effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutResponse {
    /// What the key held before, if it existed and was asked for.
    pub prev_kv: Option<KeyValue>,
}

/// A delete took effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteRangeResponse {
    /// How many keys were deleted.
    pub deleted: u64,
    /// What they held before, if asked for.
    pub prev_kvs: Vec<KeyValue>,
}
