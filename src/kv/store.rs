//! The store that the state machine runs on: ordered keyspaces that can be read and written.
//!
//! [`View`] is a consistent look at the state: a store, or a snapshot of one. [`Store`] adds
//! writing. Apply and the readers are written against these alone, so the very same code runs on
//! [`MemStore`] in the simulator and on the disk's snapshots in the server. An [`Overlay`] collects
//! the writes of a batch above a view, so that they can be made durable in one piece.
//!
//! Writing cannot fail, because it only collects; what reaches a disk does so when the batch is
//! committed, outside of this module.

use std::collections::BTreeMap;
use std::fmt;
use std::iter::Peekable;
use std::ops::Bound;

use bytes::Bytes;

use crate::types::LogId;

/// The keyspaces of the state machine.
///
/// The numbers go into the content hash and are never given to another keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Space {
    /// Metadata: applied entry, revision, cluster, content hash.
    Meta = 0,
    /// Key → its current record.
    Current = 1,
    /// (Key, revision) → the record that revision gave it, or a tombstone.
    History = 2,
    /// Revision → the key it changed.
    Events = 3,
    /// Id → the client lease.
    Leases = 4,
    /// (Lease, key) → nothing: which keys are attached to it.
    LeaseKeys = 5,
    /// Name → the client lease that has it.
    LeaseNames = 6,
    /// Sessions and the replies kept for them.
    Clients = 7,
    /// Metadata of this replica alone: its progress in removing compacted history. It differs
    /// between replicas, so the content hash leaves it out.
    Local = 8,
}

impl Space {
    /// Every keyspace.
    pub const ALL: [Self; 9] = [
        Self::Meta,
        Self::Current,
        Self::History,
        Self::Events,
        Self::Leases,
        Self::LeaseKeys,
        Self::LeaseNames,
        Self::Clients,
        Self::Local,
    ];

    /// Its name on disk.
    pub fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Current => "current",
            Self::History => "history",
            Self::Events => "events",
            Self::Leases => "leases",
            Self::LeaseKeys => "lease_keys",
            Self::LeaseNames => "lease_names",
            Self::Clients => "clients",
            Self::Local => "local",
        }
    }

    /// Its place in [`Space::ALL`], for tables of one slot per keyspace.
    pub fn slot(self) -> usize {
        match self {
            Self::Meta => 0,
            Self::Current => 1,
            Self::History => 2,
            Self::Events => 3,
            Self::Leases => 4,
            Self::LeaseKeys => 5,
            Self::LeaseNames => 6,
            Self::Clients => 7,
            Self::Local => 8,
        }
    }

    /// Whether it is changed by entries of the log alone, and so is the same on every replica
    /// that has applied the same ones, compacted history aside.
    pub fn is_replicated(self) -> bool {
        self != Self::Local
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A run of keys: from a first one, which belongs to it, until one that does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    from: Bytes,
    until: Option<Bytes>,
}

impl Span {
    /// Every key.
    pub fn all() -> Self {
        Self::from_key(Bytes::new())
    }

    /// `from` and everything after it.
    pub fn from_key(from: Bytes) -> Self {
        Self::new(from, None)
    }

    /// `[from, until)`; empty if `until` does not sort after `from`.
    pub fn between(from: Bytes, until: Bytes) -> Self {
        Self::new(from, Some(until))
    }

    /// The same, without an end if there is no `until`.
    pub fn new(from: Bytes, until: Option<Bytes>) -> Self {
        // Ordered maps panic when a range ends before it starts, so no such span exists.
        let until = until.map(|until| until.max(from.clone()));
        Self { from, until }
    }

    /// The first key that may belong to it.
    pub fn from(&self) -> &Bytes {
        &self.from
    }

    /// The first key after it; `None` if it has no end.
    pub fn until(&self) -> Option<&Bytes> {
        self.until.as_ref()
    }

    /// Whether `key` belongs to it.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.from.as_ref() && self.until.as_ref().is_none_or(|until| key < until.as_ref())
    }

    /// Leaves out what is before `from`.
    pub fn advance(&mut self, from: Bytes) {
        if let Some(until) = &self.until
            && *until < from
        {
            self.from = until.clone();
        } else {
            self.from = from;
        }
    }

    /// Its two ends, as ordered maps want them.
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let until = match &self.until {
            Some(until) => Bound::Excluded(until.as_ref()),
            None => Bound::Unbounded,
        };
        (Bound::Included(self.from.as_ref()), until)
    }
}

/// A key with its record.
pub type Pair = (Bytes, Bytes);

/// A consistent look at the state.
pub trait View {
    /// Why a look can fail: the disk, or a state that cannot be.
    type Error: From<Fault> + fmt::Debug;

    /// The record of `key`.
    ///
    /// # Errors
    /// The store's error, which is fatal for the reader.
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, Self::Error>;

    /// The keys of `span` in order, with their records. Lazy: what is not taken is not read.
    fn range(
        &self,
        space: Space,
        span: &Span,
    ) -> impl Iterator<Item = Result<Pair, Self::Error>> + use<'_, Self>;

    /// How many keys `span` holds. Takes time by their number, and no memory.
    ///
    /// # Errors
    /// The store's error, which is fatal for the reader.
    fn count(&self, space: Space, span: &Span) -> Result<u64, Self::Error> {
        self.range(space, span)
            .try_fold(0, |count, pair| pair.map(|_| count + 1))
    }
}

impl<'v, V: View> View for &'v V {
    type Error = V::Error;

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, V::Error> {
        (**self).get(space, key)
    }

    fn range(
        &self,
        space: Space,
        span: &Span,
    ) -> impl Iterator<Item = Result<Pair, V::Error>> + use<'_, 'v, V> {
        (**self).range(space, span)
    }
}

/// A view that can be changed.
pub trait Store: View {
    /// Sets the record of `key`, whether or not it had one.
    fn put(&mut self, space: Space, key: Bytes, record: Bytes);

    /// Removes `key`, if it exists.
    fn delete(&mut self, space: Space, key: Bytes);
}

/// An impossible state: a replica that finds it must stop and never serve from it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A stored record cannot be decoded.
    #[error(
        "the state is damaged: keyspace {space} holds {what}; rebuild this node from its peers"
    )]
    Damaged {
        /// Where.
        space: Space,
        /// What was found.
        what: &'static str,
    },
    /// An entry that does not follow the last applied entry: a bug of the caller, or a log that
    /// does not belong to this state.
    #[error(
        "entry {given} cannot be applied after {applied}: the log and the state of this node do \
         not match; rebuild it from its peers"
    )]
    OutOfOrder {
        /// The last entry applied.
        applied: LogId,
        /// The entry that came.
        given: LogId,
    },
}

/// A store in memory: what the simulator and the tests run on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemStore {
    spaces: [BTreeMap<Bytes, Bytes>; Space::ALL.len()],
}

impl MemStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

impl View for MemStore {
    type Error = Fault;

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, Fault> {
        Ok(self.spaces[space.slot()].get(key).cloned())
    }

    fn range(
        &self,
        space: Space,
        span: &Span,
    ) -> impl Iterator<Item = Result<Pair, Fault>> + use<'_> {
        self.spaces[space.slot()]
            .range::<[u8], _>(span.bounds())
            .map(|(key, record)| Ok((key.clone(), record.clone())))
    }
}

impl Store for MemStore {
    fn put(&mut self, space: Space, key: Bytes, record: Bytes) {
        self.spaces[space.slot()].insert(key, record);
    }

    fn delete(&mut self, space: Space, key: Bytes) {
        self.spaces[space.slot()].remove(&key);
    }
}

/// The changes of one keyspace: a record, or `None` where the key was taken away.
pub type Changes = BTreeMap<Bytes, Option<Bytes>>;

/// A key, and its record after all changes; `None` where it was taken away.
pub type LastChange<'c> = (Space, &'c Bytes, Option<&'c Bytes>);

/// Writes above a view, seen by reads through it, and not yet part of it.
#[derive(Debug)]
pub struct Overlay<V> {
    base: V,
    spaces: [Changes; Space::ALL.len()],
}

impl<V: View> Overlay<V> {
    /// Nothing written yet above `base`.
    pub fn new(base: V) -> Self {
        Self {
            base,
            spaces: Default::default(),
        }
    }

    /// What was written in `space`: the last change of each key.
    pub fn changes(&self, space: Space) -> &Changes {
        &self.spaces[space.slot()]
    }

    /// What was written: the last change of each key.
    pub fn last_changes(&self) -> impl Iterator<Item = LastChange<'_>> {
        let spaces = Space::ALL.into_iter().zip(&self.spaces);
        spaces.flat_map(|(space, changes)| {
            let changes = changes.iter();
            changes.map(move |(key, change)| (space, key, change.as_ref()))
        })
    }

    /// The same, by keyspace.
    pub fn into_changes(self) -> impl Iterator<Item = (Space, Changes)> {
        Space::ALL.into_iter().zip(self.spaces)
    }
}

impl<V: View> View for Overlay<V> {
    type Error = V::Error;

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, V::Error> {
        match self.spaces[space.slot()].get(key) {
            Some(change) => Ok(change.clone()),
            None => self.base.get(space, key),
        }
    }

    fn range(
        &self,
        space: Space,
        span: &Span,
    ) -> impl Iterator<Item = Result<Pair, V::Error>> + use<'_, V> {
        let changes = self.spaces[space.slot()].range::<[u8], _>(span.bounds());
        overlaid(self.base.range(space, span), changes)
    }
}

impl<V: View> Store for Overlay<V> {
    fn put(&mut self, space: Space, key: Bytes, record: Bytes) {
        self.spaces[space.slot()].insert(key, Some(record));
    }

    fn delete(&mut self, space: Space, key: Bytes) {
        self.spaces[space.slot()].insert(key, None);
    }
}

/// What is there where `changes` lie above what is `below`; both are of the same span, and in order.
pub fn overlaid<'c, E>(
    below: impl Iterator<Item = Result<Pair, E>>,
    changes: impl Iterator<Item = (&'c Bytes, &'c Option<Bytes>)>,
) -> impl Iterator<Item = Result<Pair, E>> {
    MergeIterator {
        below: below.peekable(),
        above: changes.peekable(),
    }
}

/// Two ordered runs as one; where both have a key, the one above hides the one below.
struct MergeIterator<B: Iterator, A: Iterator> {
    below: Peekable<B>,
    above: Peekable<A>,
}

impl<'a, E, B, A> Iterator for MergeIterator<B, A>
where
    B: Iterator<Item = Result<Pair, E>>,
    A: Iterator<Item = (&'a Bytes, &'a Option<Bytes>)>,
{
    type Item = Result<Pair, E>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some((key, _)) = self.above.peek() else {
                return self.below.next();
            };
            match self.below.peek() {
                Some(Err(_)) => return self.below.next(),
                Some(Ok((lower, _))) if lower < *key => return self.below.next(),
                Some(Ok((lower, _))) if lower == *key => {
                    self.below.next();
                }
                Some(Ok(_)) | None => {}
            }
            let (key, change) = self.above.next().expect("it was just looked at");
            if let Some(record) = change {
                return Some(Ok((key.clone(), record.clone())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read<V: View>(view: &V, span: &Span) -> Vec<Pair> {
        view.range(Space::Current, span)
            .map(|pair| pair.expect("memory does not fail"))
            .collect()
    }

    fn bytes(small: &[u8]) -> Bytes {
        Bytes::copy_from_slice(small)
    }

    #[test]
    fn a_span_that_ends_before_it_starts_is_empty() {
        let mut store = MemStore::new();
        store.put(Space::Current, bytes(b"b"), bytes(b"1"));
        for span in [
            Span::between(bytes(b"c"), bytes(b"a")),
            Span::between(bytes(b"b"), bytes(b"b")),
        ] {
            assert_eq!(read(&store, &span), vec![]);
            assert_eq!(store.count(Space::Current, &span), Ok(0));
        }
        assert_eq!(read(&store, &Span::all()).len(), 1);
    }

    #[test]
    fn keyspaces_do_not_share_keys() {
        let mut store = MemStore::new();
        for space in Space::ALL {
            store.put(space, bytes(b"k"), bytes(space.name().as_bytes()));
        }
        for space in Space::ALL {
            assert_eq!(
                store.get(space, b"k"),
                Ok(Some(bytes(space.name().as_bytes())))
            );
            assert_eq!(Space::ALL[space.slot()], space);
        }
    }

    fn small_key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..3, 0..4)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn an_overlay_reads_like_a_store_that_took_the_writes(
            below in prop::collection::btree_map(small_key(), any::<u8>(), 0..12),
            above in prop::collection::vec((small_key(), prop::option::of(any::<u8>())), 0..12),
            from in small_key(),
            until in prop::option::of(small_key()),
        ) {
            let mut plain = MemStore::new();
            for (key, record) in &below {
                plain.put(Space::Current, bytes(key), bytes(&[*record]));
            }
            let mut overlay = Overlay::new(plain.clone());
            for (key, record) in &above {
                match record {
                    Some(record) => {
                        plain.put(Space::Current, bytes(key), bytes(&[*record]));
                        overlay.put(Space::Current, bytes(key), bytes(&[*record]));
                    }
                    None => {
                        plain.delete(Space::Current, bytes(key));
                        overlay.delete(Space::Current, bytes(key));
                    }
                }
                prop_assert_eq!(
                    plain.get(Space::Current, key),
                    overlay.get(Space::Current, key)
                );
            }
            let span = match until {
                Some(until) => Span::between(bytes(&from), bytes(&until)),
                None => Span::from_key(bytes(&from)),
            };
            prop_assert_eq!(read(&plain, &span), read(&overlay, &span));
            prop_assert_eq!(
                plain.count(Space::Current, &span),
                overlay.count(Space::Current, &span)
            );
        }
    }
}
