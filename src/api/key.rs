//! Keys: ranges, reads, writes, deletes and compaction.

use std::str;
use std::str::Utf8Error;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::{LeaseGrantResponse, LeaseTarget};

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
    /// The first key of the range that starts at `key`, and the first key after the range, if it
    /// has an end.
    pub fn bounds(&self, key: &Bytes) -> (Bytes, Option<Bytes>) {
        let end = match self {
            Self::Single => Some(successor(key)),
            Self::Prefix => prefix_end(key),
            Self::Until(end) => Some(end.clone()),
            Self::From => None,
        };
        (key.clone(), end)
    }

    /// The same keys, with a prefix written as the range that it is.
    pub fn without_prefix(&self, key: &Bytes) -> Self {
        match self {
            Self::Prefix => prefix_end(key).map_or(Self::From, Self::Until),
            other => other.clone(),
        }
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
/// Steps, in this order as in etcd: read and count the range at the revision, filter, sort, apply
/// the limit. A request that [names no order](SortOrder::None) may be an exception.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeRequest {
    /// The key, or the start of the range.
    pub key: Bytes,
    /// The extent of the range.
    pub range: KeyRange,
    /// Maximum number of keys; 0 means no limit.
    pub limit: u64,
    /// Leave values out of the reply.
    pub keys_only: bool,
    /// Which keys are counted; whether any are returned.
    pub count: RangeCount,
    /// Read the store as it was at this revision; 0 means the current one. Refused with
    /// [`ErrorKind::Compacted`](super::ErrorKind::Compacted) or
    /// [`ErrorKind::FutureRevision`](super::ErrorKind::FutureRevision) if it cannot be read.
    pub revision: i64,
    /// What to sort by.
    pub sort_target: SortTarget,
    /// The direction to sort in.
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
    /// Whether this reads the current record of one key, which takes a single lookup.
    pub fn is_point(&self) -> bool {
        self.range == KeyRange::Single && self.revision == 0 && !self.is_filtered()
    }

    /// Whether the reply holds no keys, only their number.
    pub fn is_count_only(&self) -> bool {
        self.count == RangeCount::Only
    }

    /// Whether the reply holds every key from the first one on, as far as it goes: nothing is sorted or filtered.
    pub(crate) fn is_in_key_order_and_whole(&self) -> bool {
        self.sort().is_none() && !self.is_filtered() && !self.is_count_only()
    }

    /// Whether `kv` passes the filters.
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

    /// The sort order of the reply; `None` for ascending key order.
    pub(crate) fn sort(&self) -> Option<(SortTarget, SortOrder)> {
        match (self.sort_target, self.sort_order) {
            (SortTarget::Key, SortOrder::None | SortOrder::Ascend) => None,
            sort => Some(sort),
        }
    }

    /// Whether the limit is applied before what it leaves is sorted: see [`SortOrder::None`].
    pub(crate) fn is_cut_before_sorting(&self) -> bool {
        self.limit > 0
            && self.sort_order == SortOrder::None
            && self.sort_target != SortTarget::Key
            && !self.is_filtered()
    }

    fn is_filtered(&self) -> bool {
        let filters = [
            self.min_mod_revision,
            self.max_mod_revision,
            self.min_create_revision,
            self.max_create_revision,
        ];
        filters != [0; 4]
    }

    pub(crate) fn sorts_by_value(&self) -> bool {
        self.sort_target == SortTarget::Value
    }
}

/// What a range is sorted by. Ties are in ascending key order.
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

/// Which keys of a range are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RangeCount {
    /// All keys of the range, whatever limit and filters, as in etcd. What is beyond the limit is walked over
    /// for its number alone.
    #[default]
    All,
    /// All keys of the range, and none is returned.
    Only,
    /// Those up to the end of the reply. If the reply [is cut](RangeResponse::more), the range holds at least as
    /// many; otherwise it holds just as many. So a short reply in key order costs the same, however long its range
    /// is. What is filtered or sorted has to be looked for.
    ToLimit,
}

impl RangeCount {
    /// Whether the number in a reply is that of the whole range: not if the reply is cut and only its keys are counted.
    pub(crate) fn is_whole(self, is_cut: bool) -> bool {
        self != Self::ToLimit || !is_cut
    }
}

/// The direction in which a range is sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SortOrder {
    /// Unspecified: key order, or ascending when sorting by anything else, as in etcd. Then, as there, the
    /// limit is applied first unless the request filters: of one key more than the limit, the first ones by
    /// key, those are left that sort first. Name an order to get the first ones of the whole range.
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
    /// Return the previous value of the key.
    pub prev_kv: bool,
    /// Keep the current value of the key, and write it again: `value` must be empty, and the key
    /// must exist ([`ErrorKind::KeyNotFound`](super::ErrorKind::KeyNotFound)).
    pub ignore_value: bool,
    /// Keep the current client lease of the key, which a put detaches otherwise: the key must exist
    /// ([`ErrorKind::KeyNotFound`](super::ErrorKind::KeyNotFound)).
    pub ignore_lease: bool,
    /// The client lease to attach the key to
    /// ([`ErrorKind::LeaseNotFound`](super::ErrorKind::LeaseNotFound) if it does not exist).
    pub lease: LeaseTarget,
}

/// Delete one key or a range of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteRangeRequest {
    /// The key, or the start of the range.
    pub key: Bytes,
    /// The extent of the range.
    pub range: KeyRange,
    /// Return the previous values of the keys.
    pub prev_kv: bool,
}

/// Compact history: revisions before `revision` can no longer be read.
///
/// Reads at `revision` and above stay possible, and every key that exists at `revision` keeps its
/// value at it. Refused with [`ErrorKind::Compacted`](super::ErrorKind::Compacted) if that revision
/// has been compacted already, and with
/// [`ErrorKind::FutureRevision`](super::ErrorKind::FutureRevision) if it does not exist yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionRequest {
    /// The oldest revision to keep; positive.
    pub revision: i64,
    /// Have every node reclaim the disk space as soon as it has removed the history, however little
    /// that is. Otherwise it does so when it is worth the work.
    pub physical: bool,
}

impl CompactionRequest {
    /// Compacts to `revision`.
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

impl KeyValue {
    /// The key as text.
    ///
    /// # Errors
    /// It is not UTF-8.
    pub fn key_str(&self) -> Result<&str, Utf8Error> {
        str::from_utf8(&self.key)
    }

    /// The value as text.
    ///
    /// # Errors
    /// It is not UTF-8.
    pub fn value_str(&self) -> Result<&str, Utf8Error> {
        str::from_utf8(&self.value)
    }
}

/// A part of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangePage {
    /// The keys found, in key order. A page may be empty although more follow.
    pub kvs: Vec<KeyValue>,
    /// Where the next page begins; `None` at the end of the range or limit.
    pub next: Option<Bytes>,
    /// The revision that was read, to be requested for the next page.
    pub revision: i64,
}

/// Keys in order, and whether that was all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeResponse {
    /// The keys found, in the requested order.
    pub kvs: Vec<KeyValue>,
    /// More keys match: the limit, or the maximum size of a reply, was reached.
    pub more: bool,
    /// The number of keys in the range, whatever limit and filters. If the reply is cut and the request counts
    /// [to the limit](RangeCount::ToLimit), the number of keys in the reply.
    pub count: u64,
}

/// A put took effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutResponse {
    /// The previous value, if it existed and was requested.
    pub prev_kv: Option<KeyValue>,
}

/// A lease was granted and a key attached to it, in one step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutWithNewLeaseResponse {
    /// The lease.
    pub grant: LeaseGrantResponse,
    /// The put.
    pub put: PutResponse,
}

/// A delete took effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteRangeResponse {
    /// How many keys were deleted.
    pub deleted: u64,
    /// Their previous values, if requested.
    pub prev_kvs: Vec<KeyValue>,
}
