//! Transactions: comparisons that choose between two lists of operations, executed atomically at
//! one revision.
//!
//! The rules are etcd's. All comparisons, those of nested transactions too, look at the store as it
//! was before the transaction. Its operations are executed in order, and each sees the effects of
//! the previous ones. All changes have the same revision; a transaction that changes nothing leaves
//! the revision alone.
//!
//! No key may be written twice: not put twice, and not put where the same transaction deletes. That
//! is checked before anything is done, and in the branches that are not taken as well; only the two
//! branches of one transaction may write the same key, because only one of them is executed.
//!
//! A transaction is the one request that can hold requests of its own kind, so its depth and the
//! number of its parts are bounded while it is decoded (`nested.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::limits::{validate_delete, validate_put, validate_range, validate_read};
use super::{
    DeleteRangeRequest, DeleteRangeResponse, Error, ErrorKind, KeyRange, KeyValue, Limits,
    PutRequest, PutResponse, RangeRequest, RangeResponse,
};

/// Maximum nesting depth of transactions; 1 is a transaction without nested ones.
pub const TXN_DEPTH_MAX: usize = 8;

/// The most comparisons and operations that a transaction may hold, nested ones and those of the
/// branches not taken included, whatever the limits of a server say.
pub const TXN_PARTS_MAX: usize = 4096;

/// If all of `compare` hold, execute `success`, else `failure`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TxnRequest {
    /// The comparisons. An empty list always holds.
    pub compare: Vec<Compare>,
    /// The operations if all comparisons hold.
    pub success: Vec<TxnOp>,
    /// The operations otherwise.
    pub failure: Vec<TxnOp>,
}

/// A comparison of a key, or of every key of a range, with a given value.
///
/// A key that does not exist has version, revisions and lease 0, and no value: comparisons of its
/// value never hold. So does a range without keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compare {
    /// The key, or the start of the range.
    pub key: Bytes,
    /// The extent of the range.
    pub range: KeyRange,
    /// The operator, with the stored value on its left.
    pub op: CompareOp,
    /// What is compared, and with what.
    pub target: CompareTarget,
}

/// A comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CompareOp {
    /// `=`
    Equal,
    /// `>`
    Greater,
    /// `<`
    Less,
    /// `!=`
    NotEqual,
}

/// The property to compare, and the given value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompareTarget {
    /// The number of writes since it was created.
    Version(i64),
    /// When it was created.
    CreateRevision(i64),
    /// When it was last written.
    ModRevision(i64),
    /// Its value, byte by byte.
    Value(Bytes),
    /// The client lease it is attached to.
    Lease(i64),
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum TxnOp {
    /// Read one key or a range of keys.
    Range(RangeRequest),
    /// Write one key.
    Put(PutRequest),
    /// Delete one key or a range of keys.
    DeleteRange(DeleteRangeRequest),
    /// A transaction inside of this one.
    Txn(TxnRequest),
}

/// The reply to a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TxnResponse {
    /// Whether all comparisons held.
    pub succeeded: bool,
    /// The replies of the executed operations, in order.
    pub responses: Vec<TxnOpResponse>,
}

/// The reply of one operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum TxnOpResponse {
    /// To [`TxnOp::Range`].
    Range(RangeResponse),
    /// To [`TxnOp::Put`].
    Put(PutResponse),
    /// To [`TxnOp::DeleteRange`].
    DeleteRange(DeleteRangeResponse),
    /// To [`TxnOp::Txn`].
    Txn(TxnResponse),
}

impl TxnRequest {
    /// A transaction that compares nothing and does nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds comparisons.
    #[must_use]
    pub fn when(mut self, compare: impl IntoIterator<Item = Compare>) -> Self {
        self.compare.extend(compare);
        self
    }

    /// Adds operations to run if all comparisons hold.
    #[must_use]
    pub fn and_then(mut self, ops: impl IntoIterator<Item = TxnOp>) -> Self {
        self.success.extend(ops);
        self
    }

    /// Adds operations to run if they do not all hold.
    #[must_use]
    pub fn or_else(mut self, ops: impl IntoIterator<Item = TxnOp>) -> Self {
        self.failure.extend(ops);
        self
    }

    /// Writes `key` if it does not exist; else reads it. [`TxnResponse::into_cas`] extracts the
    /// result.
    pub fn create(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::compare_and_swap(key, 0, value)
    }

    /// Writes `key` if it was last written at `mod_revision`, 0 meaning that it does not exist;
    /// else reads it. [`TxnResponse::into_cas`] extracts the result.
    pub fn compare_and_swap(
        key: impl Into<Bytes>,
        mod_revision: i64,
        value: impl Into<Bytes>,
    ) -> Self {
        let key = key.into();
        Self::new()
            .when([Compare::mod_revision(
                key.clone(),
                CompareOp::Equal,
                mod_revision,
            )])
            .and_then([TxnOp::put(key.clone(), value)])
            .or_else([TxnOp::get(key)])
    }

    /// Deletes `key` if it was last written at `mod_revision`; else reads it.
    /// [`TxnResponse::into_cas`] extracts the result.
    pub fn compare_and_delete(key: impl Into<Bytes>, mod_revision: i64) -> Self {
        let key = key.into();
        Self::new()
            .when([Compare::mod_revision(
                key.clone(),
                CompareOp::Equal,
                mod_revision,
            )])
            .and_then([TxnOp::delete(key.clone())])
            .or_else([TxnOp::get(key)])
    }

    /// Whether no branch can change the store: then it is served like a read.
    pub fn is_read_only(&self) -> bool {
        self.success.iter().chain(&self.failure).all(|op| match op {
            TxnOp::Range(_) => true,
            TxnOp::Put(_) | TxnOp::DeleteRange(_) => false,
            TxnOp::Txn(txn) => txn.is_read_only(),
        })
    }

    /// That no key is written twice.
    ///
    /// # Errors
    /// [`ErrorKind::DuplicateKey`], with the key.
    pub(crate) fn check_keys(&self) -> Result<(), Error> {
        Writes::of(&self.success)?;
        Writes::of(&self.failure)?;
        Ok(())
    }

    /// Checks a transaction without a store. `depth` and `ops_max` are the remaining bounds;
    /// `parts` counts across all levels.
    pub(super) fn validate(
        &self,
        limits: &Limits,
        depth: usize,
        ops_max: usize,
        parts: &mut usize,
    ) -> Result<(), Error> {
        if depth == 0 {
            return Err(too_large(format!(
                "its transactions are nested more than {TXN_DEPTH_MAX} levels deep"
            )));
        }
        let lists = [self.compare.len(), self.success.len(), self.failure.len()];
        let longest = lists.into_iter().max().unwrap_or_default();
        if longest > ops_max {
            return Err(too_large(format!(
                "it has {longest} comparisons or operations in one list and at most {} are \
                 allowed, counting those of the enclosing transactions",
                limits.txn_ops_max
            )));
        }
        *parts += lists.into_iter().sum::<usize>();
        if *parts > TXN_PARTS_MAX {
            return Err(too_large(format!(
                "it has more than {TXN_PARTS_MAX} comparisons and operations in all"
            )));
        }
        for compare in &self.compare {
            validate_range(&compare.key, &compare.range, limits)?;
        }
        for op in self.success.iter().chain(&self.failure) {
            match op {
                TxnOp::Range(range) => validate_read(range, limits)?,
                TxnOp::Put(put) => validate_put(put, limits)?,
                TxnOp::DeleteRange(delete) => validate_delete(delete, limits)?,
                TxnOp::Txn(txn) => txn.validate(limits, depth - 1, ops_max - longest, parts)?,
            }
        }
        Ok(())
    }
}

pub(super) fn too_large(what: String) -> Error {
    Error::not_applied(
        ErrorKind::TxnTooLarge,
        format!("the transaction is too large: {what}; use several smaller ones"),
    )
}

impl Compare {
    fn new(key: impl Into<Bytes>, op: CompareOp, target: CompareTarget) -> Self {
        Self {
            key: key.into(),
            range: KeyRange::Single,
            op,
            target,
        }
    }

    /// Compares how often `key` was written.
    pub fn version(key: impl Into<Bytes>, op: CompareOp, version: i64) -> Self {
        Self::new(key, op, CompareTarget::Version(version))
    }

    /// Compares when `key` was created.
    pub fn create_revision(key: impl Into<Bytes>, op: CompareOp, revision: i64) -> Self {
        Self::new(key, op, CompareTarget::CreateRevision(revision))
    }

    /// Compares when `key` was last written.
    pub fn mod_revision(key: impl Into<Bytes>, op: CompareOp, revision: i64) -> Self {
        Self::new(key, op, CompareTarget::ModRevision(revision))
    }

    /// Compares the value of `key`.
    pub fn value(key: impl Into<Bytes>, op: CompareOp, value: impl Into<Bytes>) -> Self {
        Self::new(key, op, CompareTarget::Value(value.into()))
    }

    /// Compares the client lease of `key`.
    pub fn lease(key: impl Into<Bytes>, op: CompareOp, lease: i64) -> Self {
        Self::new(key, op, CompareTarget::Lease(lease))
    }

    /// Compares every key of this range instead of one.
    #[must_use]
    pub fn with_range(mut self, range: KeyRange) -> Self {
        self.range = range;
        self
    }

    /// Whether the comparison holds for `kv`; `None` is a key that does not exist.
    pub(crate) fn holds(&self, kv: Option<&KeyValue>) -> bool {
        let number = |field: fn(&KeyValue) -> i64| kv.map_or(0, field);
        let ordering = match &self.target {
            CompareTarget::Version(given) => number(|kv| kv.version).cmp(given),
            CompareTarget::CreateRevision(given) => number(|kv| kv.create_revision).cmp(given),
            CompareTarget::ModRevision(given) => number(|kv| kv.mod_revision).cmp(given),
            CompareTarget::Lease(given) => number(|kv| kv.lease).cmp(given),
            CompareTarget::Value(given) => match kv {
                Some(kv) => kv.value.cmp(given),
                None => return false,
            },
        };
        match self.op {
            CompareOp::Equal => ordering.is_eq(),
            CompareOp::Greater => ordering.is_gt(),
            CompareOp::Less => ordering.is_lt(),
            CompareOp::NotEqual => ordering.is_ne(),
        }
    }
}

impl TxnOp {
    /// Reads one key.
    pub fn get(key: impl Into<Bytes>) -> Self {
        Self::Range(RangeRequest {
            key: key.into(),
            ..RangeRequest::default()
        })
    }

    /// Writes one key.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::Put(PutRequest {
            key: key.into(),
            value: value.into(),
            ..PutRequest::default()
        })
    }

    /// Deletes one key.
    pub fn delete(key: impl Into<Bytes>) -> Self {
        Self::DeleteRange(DeleteRangeRequest {
            key: key.into(),
            ..DeleteRangeRequest::default()
        })
    }

    /// A transaction inside of this one.
    pub fn txn(txn: TxnRequest) -> Self {
        Self::Txn(txn)
    }
}

/// The result of a [`TxnRequest::create`], [`TxnRequest::compare_and_swap`] or
/// [`TxnRequest::compare_and_delete`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CasResult {
    /// The key was as expected, and has been changed.
    pub succeeded: bool,
    /// If not, the current record of the key; `None` if it does not exist.
    pub current: Option<KeyValue>,
}

impl TxnResponse {
    /// Interprets this as the reply to a compare-and-swap or a similar transaction.
    pub fn into_cas(self) -> CasResult {
        let current = match self.responses.into_iter().next() {
            Some(TxnOpResponse::Range(range)) => range.kvs.into_iter().next(),
            _ => None,
        };
        CasResult {
            succeeded: self.succeeded,
            current,
        }
    }
}

/// The keys that some operations write, whichever branches are taken.
#[derive(Default)]
struct Writes<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: Ranges,
}

impl<'a> Writes<'a> {
    /// Those of `ops`, if no two operations that may both be executed write the same key.
    fn of(ops: &'a [TxnOp]) -> Result<Self, Error> {
        let mut all = Self::default();
        for op in ops {
            let mut one = Self::default();
            match op {
                TxnOp::Range(_) => {}
                TxnOp::Put(put) => {
                    one.puts.insert(&put.key);
                }
                TxnOp::DeleteRange(delete) => one.deletes.add(&delete.key, &delete.range),
                TxnOp::Txn(txn) => {
                    one = Self::of(&txn.success)?;
                    // Only one of the two is executed, so they need not differ.
                    one.join(Self::of(&txn.failure)?);
                }
            }
            all.exclude(&one)?;
            all.join(one);
        }
        Ok(all)
    }

    fn exclude(&self, other: &Self) -> Result<(), Error> {
        let twice = other
            .puts
            .iter()
            .find(|key| self.puts.contains(*key) || self.deletes.contain(key))
            .or_else(|| other.deletes.first_of(&self.puts));
        match twice {
            None => Ok(()),
            Some(key) => Err(Error::not_applied(
                ErrorKind::DuplicateKey,
                format!(
                    "the transaction writes the key {:?} twice, or both writes and deletes it: one \
                     revision holds one change of a key",
                    String::from_utf8_lossy(&key[..key.len().min(64)])
                ),
            )),
        }
    }

    fn join(&mut self, mut other: Self) {
        if other.puts.len() > self.puts.len() {
            std::mem::swap(&mut self.puts, &mut other.puts);
        }
        self.puts.extend(other.puts);
        for (start, end) in other.deletes.runs {
            self.deletes.join(start, end);
        }
    }
}

/// Ranges of keys, as runs that do not meet: where each starts, and where it ends, if it does.
#[derive(Default)]
struct Ranges {
    runs: BTreeMap<Bytes, Option<Bytes>>,
}

impl Ranges {
    fn add(&mut self, key: &Bytes, range: &KeyRange) {
        let (start, end) = range.bounds(key);
        self.join(start, end);
    }

    fn join(&mut self, mut start: Bytes, mut end: Option<Bytes>) {
        if end.as_ref().is_some_and(|end| *end <= start) {
            return;
        }
        // What begins in or right behind the new run, or reaches up to it, becomes part of it.
        while let Some((other, until)) = self.last_until(end.as_ref()) {
            if until.as_ref().is_some_and(|until| *until < start) {
                break;
            }
            self.runs.remove(&other);
            start = start.min(other);
            end = match (end, until) {
                (Some(end), Some(until)) => Some(end.max(until)),
                _ => None,
            };
        }
        self.runs.insert(start, end);
    }

    /// The last run that begins at or before `end`.
    fn last_until(&self, end: Option<&Bytes>) -> Option<(Bytes, Option<Bytes>)> {
        let found = match end {
            Some(end) => self.runs.range::<Bytes, _>(..=end).next_back(),
            None => self.runs.last_key_value(),
        };
        found.map(|(start, end)| (start.clone(), end.clone()))
    }

    /// One of `keys` that a run holds.
    fn first_of<'k, 'a>(&self, keys: &'k BTreeSet<&'a [u8]>) -> Option<&'k &'a [u8]> {
        self.runs.iter().find_map(|(start, end)| {
            let end = match end {
                Some(end) => Bound::Excluded(end.as_ref()),
                None => Bound::Unbounded,
            };
            let mut inside = keys.range::<[u8], _>((Bound::Included(start.as_ref()), end));
            inside.next()
        })
    }

    fn contain(&self, key: &[u8]) -> bool {
        let mut before = self
            .runs
            .range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
        before
            .next_back()
            .is_some_and(|(_, end)| end.as_ref().is_none_or(|end| key < end.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Outcome, Request, validate};
    use proptest::prelude::*;

    fn refusal(txn: TxnRequest) -> Option<ErrorKind> {
        let result = validate(&Request::Txn(txn), &Limits::DEFAULT);
        result.err().map(|error| {
            assert_eq!(error.outcome, Outcome::NotApplied);
            error.kind
        })
    }

    fn delete(key: &'static str, range: KeyRange) -> TxnOp {
        TxnOp::DeleteRange(DeleteRangeRequest {
            key: key.into(),
            range,
            prev_kv: false,
        })
    }

    fn both(success: Vec<TxnOp>, failure: Vec<TxnOp>) -> TxnRequest {
        TxnRequest::new().and_then(success).or_else(failure)
    }

    fn put(key: &'static str) -> TxnOp {
        TxnOp::put(key, "v")
    }

    #[test]
    fn no_key_is_written_twice_in_any_branch() {
        let prefix = || delete("a", KeyRange::Prefix);
        let nest = |op| TxnOp::Txn(both(vec![op], vec![]));
        let nest_else = |op| TxnOp::Txn(both(vec![], vec![op]));
        let twice: Vec<Vec<TxnOp>> = vec![
            vec![put("a"), put("b"), put("a")],
            vec![prefix(), put("ab")],
            vec![put("ab"), prefix()],
            vec![TxnOp::delete("a"), put("a")],
            vec![put("z"), delete("b", KeyRange::From)],
            vec![put("a"), nest(put("a"))],
            vec![nest(put("a")), put("a")],
            vec![put("a"), nest_else(put("a"))],
            vec![nest(put("a")), nest(put("a"))],
            vec![nest(put("a")), nest_else(put("a"))],
            vec![put("ab"), nest(prefix())],
            vec![prefix(), nest_else(put("ab"))],
            vec![nest(prefix()), nest(put("ab"))],
            // etcd lets this one pass, and the key would have two changes at one revision.
            vec![nest(put("ab")), nest(prefix())],
            vec![nest(nest_else(put("a"))), nest(put("a"))],
        ];
        for ops in twice {
            let taken = both(ops.clone(), vec![]);
            assert_eq!(refusal(taken), Some(ErrorKind::DuplicateKey), "{ops:?}");
            let not_taken = both(vec![], ops.clone());
            assert_eq!(refusal(not_taken), Some(ErrorKind::DuplicateKey), "{ops:?}");
            let inside = both(vec![], vec![nest(TxnOp::Txn(both(vec![], ops.clone())))]);
            assert_eq!(refusal(inside), Some(ErrorKind::DuplicateKey), "{ops:?}");
        }
        let once: Vec<TxnRequest> = vec![
            both(vec![put("a")], vec![put("a")]),
            both(vec![put("a")], vec![prefix()]),
            both(
                vec![prefix(), delete("ab", KeyRange::Prefix), put("b")],
                vec![],
            ),
            both(
                vec![
                    TxnOp::Txn(both(vec![put("a")], vec![put("a"), put("b")])),
                    put("c"),
                ],
                vec![],
            ),
            both(vec![prefix(), TxnOp::get("a"), TxnOp::get("a")], vec![]),
            both(
                vec![delete("b", KeyRange::Until("b".into())), put("b")],
                vec![],
            ),
        ];
        for txn in once {
            assert_ne!(
                refusal(txn.clone()),
                Some(ErrorKind::DuplicateKey),
                "{txn:?}"
            );
        }
    }

    #[test]
    fn the_limit_is_the_longest_list_and_nested_ones_have_what_is_left() {
        let gets = |count| vec![TxnOp::get("k"); count];
        let compares = |count| vec![Compare::version("k", CompareOp::Equal, 1); count];
        assert_eq!(
            refusal(both(gets(128), gets(128)).when(compares(128))),
            None
        );
        for txn in [
            both(gets(129), vec![]),
            both(vec![], gets(129)),
            both(vec![], vec![]).when(compares(129)),
        ] {
            assert_eq!(refusal(txn), Some(ErrorKind::TxnTooLarge));
        }
        let nested = |outer: usize, inner: usize| {
            let mut ops = gets(outer - 1);
            ops.push(TxnOp::Txn(both(vec![], gets(inner))));
            both(ops, vec![])
        };
        assert_eq!(refusal(nested(100, 28)), None);
        assert_eq!(refusal(nested(100, 29)), Some(ErrorKind::TxnTooLarge));
        // As many as a list may have, each with as many as it may have, is still too many.
        let wide = vec![TxnOp::Txn(both(gets(64), vec![])); 64];
        assert_eq!(refusal(both(wide, vec![])), Some(ErrorKind::TxnTooLarge));
    }

    #[test]
    fn nesting_is_refused_before_it_is_followed() {
        let mut txn = TxnRequest::new();
        for depth in 1..100 {
            let expected = (depth > TXN_DEPTH_MAX).then_some(ErrorKind::TxnTooLarge);
            assert_eq!(refusal(txn.clone()), expected, "{depth}");
            txn = both(vec![TxnOp::Txn(txn)], vec![]);
        }
    }

    #[test]
    fn every_part_is_checked_like_a_request_of_its_own() {
        let limits = Limits::DEFAULT;
        let inverted = KeyRange::Until("a".into());
        let long = Bytes::from(vec![b'k'; limits.key_bytes_max + 1]);
        let bad = vec![
            TxnOp::get(""),
            put(""),
            TxnOp::delete(""),
            TxnOp::get(long.clone()),
            TxnOp::put("k", vec![0; limits.value_bytes_max + 1]),
            delete("b", inverted.clone()),
            TxnOp::Range(RangeRequest {
                key: "k".into(),
                revision: -1,
                ..RangeRequest::default()
            }),
            TxnOp::Put(PutRequest {
                key: "k".into(),
                value: "v".into(),
                ignore_value: true,
                ..PutRequest::default()
            }),
        ];
        for op in bad {
            for txn in [
                both(vec![op.clone()], vec![]),
                both(vec![], vec![op.clone()]),
            ] {
                assert!(refusal(txn.clone()).is_some(), "{op:?}");
                assert!(
                    refusal(both(vec![], vec![TxnOp::Txn(txn)])).is_some(),
                    "{op:?}"
                );
            }
        }
        for compare in [
            Compare::version("", CompareOp::Equal, 0),
            Compare::version(long, CompareOp::Equal, 0),
            Compare::version("b", CompareOp::Equal, 0).with_range(inverted),
        ] {
            assert!(refusal(TxnRequest::new().when([compare])).is_some());
        }
    }

    #[test]
    fn a_transaction_is_read_only_if_no_branch_of_it_could_write() {
        assert!(TxnRequest::new().is_read_only());
        let gets = both(
            vec![TxnOp::get("a")],
            vec![TxnOp::Txn(both(vec![], vec![]))],
        );
        assert!(gets.is_read_only());
        for op in [put("a"), TxnOp::delete("a")] {
            assert!(!both(vec![], vec![op.clone()]).is_read_only());
            let inside = TxnOp::Txn(both(vec![], vec![op]));
            assert!(!both(vec![inside], vec![]).is_read_only());
        }
    }

    fn a_key() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xff)], 0..4)
            .prop_map(Bytes::from)
    }

    fn a_range() -> impl Strategy<Value = KeyRange> {
        prop_oneof![
            Just(KeyRange::Single),
            Just(KeyRange::Prefix),
            a_key().prop_map(KeyRange::Until),
            Just(KeyRange::From),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn joined_ranges_hold_what_each_of_them_holds(
            ranges in prop::collection::vec((a_key(), a_range()), 0..8),
            keys in prop::collection::vec(a_key(), 1..8),
        ) {
            let mut joined = Ranges::default();
            for (key, range) in &ranges {
                joined.add(key, range);
            }
            let means = |key: &Bytes| {
                ranges.iter().any(|(start, range)| {
                    let (from, until) = range.bounds(start);
                    *key >= from && until.is_none_or(|until| *key < until)
                })
            };
            for key in &keys {
                prop_assert_eq!(joined.contain(key), means(key), "{:?}", key);
            }
            let set: BTreeSet<&[u8]> = keys.iter().map(|key| key.as_ref()).collect();
            prop_assert_eq!(joined.first_of(&set).is_some(), keys.iter().any(means));
            let runs: Vec<_> = joined.runs.iter().collect();
            for pair in runs.windows(2) {
                prop_assert!(pair[0].1.as_ref().is_some_and(|end| end < pair[1].0));
            }
        }
    }
}
