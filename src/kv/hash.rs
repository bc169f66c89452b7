//! A hash of everything stored, kept up to date by every change (D1).
//!
//! It is the sum, modulo 2^128, of a 128-bit hash of each keyspace, key and record, so a change
//! costs the hash of the record that goes and of the one that comes, whatever the store holds.
//! The sum stands in the store itself, in the same batch as what it sums, and is the one record it
//! leaves out. The applied entry is part of it: replicas compare it at equal applied index.
//!
//! Compacted history leaves the store at each replica's own pace, and stays in the sum for ever: what
//! a replica has removed it adds up beside (`compaction.rs`), and a scan counts that with what is
//! still there. So the hash does not depend on how far the removal is, and says as much as before
//! about every record that is left.
//!
//! It is made to find disks and defects that lie, not forgeries: a program that can write the store
//! can write the sum.

use bytes::Bytes;

use super::record_hash::{ContentHash, RecordHasher};
use super::store::{Changes, Fault, Pair, Space, Span, Store, View};
use super::{compaction, meta};

/// The hash stored in `view`, maintained by every change.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn content_hash<V: View>(view: &V) -> Result<ContentHash, V::Error> {
    let Some(record) = view.get(Space::Meta, meta::HASH)? else {
        return Ok(ContentHash::default());
    };
    let bytes = <[u8; 16]>::try_from(record.as_ref()).map_err(|_| Fault::Damaged {
        space: Space::Meta,
        what: "a content hash of the wrong size",
    })?;
    Ok(ContentHash(u128::from_be_bytes(bytes)))
}

/// The hash of the actual contents of `view`, plus what compaction has removed: reads everything.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn scan<V: View>(view: &V) -> Result<ContentHash, V::Error> {
    let mut hasher = RecordHasher::default();
    let ContentHash(mut sum) = compaction::removed(view)?;
    for space in Space::ALL {
        if !space.is_replicated() {
            continue;
        }
        for pair in view.range(space, &Span::all()) {
            let (key, record) = pair?;
            if space == Space::Meta && key == meta::HASH {
                continue;
            }
            sum = sum.wrapping_add(hasher.hash(space, &key, &record));
        }
    }
    Ok(ContentHash(sum))
}

/// A store that updates the hash with every change.
pub(super) struct HashedStore<'a, S> {
    store: &'a mut S,
    sum: u128,
    /// The change in the number of keys attached to leases since this was created.
    lease_keys: i64,
    hasher: RecordHasher,
}

impl<'a, S: Store> HashedStore<'a, S> {
    /// Changes above those whose sum is `sum`, to be [adopted](HashedStore::adopt) or thrown away.
    pub(super) fn above(store: &'a mut S, sum: u128) -> Self {
        Self {
            store,
            sum,
            lease_keys: 0,
            hasher: RecordHasher::default(),
        }
    }

    /// The change in the number of keys attached to leases since this was created; negative if
    /// fewer.
    pub(super) fn lease_keys(&self) -> i64 {
        self.lease_keys
    }

    /// The hash so far.
    pub(super) fn sum(&self) -> u128 {
        self.sum
    }

    /// Takes over changes that were made above this store, led to `sum`, and left so many more keys
    /// on leases.
    pub(super) fn adopt(&mut self, changes: Vec<(Space, Changes)>, sum: u128, lease_keys: i64) {
        for (space, changes) in changes {
            for (key, record) in changes {
                match record {
                    Some(record) => self.store.put(space, key, record),
                    None => self.store.delete(space, key),
                }
            }
        }
        self.sum = sum;
        self.lease_keys += lease_keys;
    }

    /// Starts with the hash stored in `store`.
    pub(super) fn begin(store: &'a mut S) -> Result<Self, S::Error> {
        let ContentHash(sum) = content_hash(store)?;
        Ok(Self {
            store,
            sum,
            lease_keys: 0,
            hasher: RecordHasher::default(),
        })
    }

    /// Sets the record of `key`, whether or not it had one.
    pub(super) fn put(&mut self, space: Space, key: Bytes, record: Bytes) -> Result<(), S::Error> {
        if let Some(old) = self.store.get(space, &key)? {
            self.subtract(space, &key, &old);
        }
        self.insert(space, key, record);
        Ok(())
    }

    /// Gives `key` its first record: the caller knows that there is none.
    pub(super) fn insert(&mut self, space: Space, key: Bytes, record: Bytes) {
        self.lease_keys += i64::from(space == Space::LeaseKeys);
        let hash = self.hasher.hash(space, &key, &record);
        self.sum = self.sum.wrapping_add(hash);
        self.store.put(space, key, record);
    }

    /// Gives `key` a record in place of `old`, which the caller has just read.
    pub(super) fn replace(&mut self, space: Space, key: Bytes, old: &[u8], record: Bytes) {
        self.subtract(space, &key, old);
        self.insert(space, key, record);
    }

    /// Removes `key` and returns its record.
    pub(super) fn take(&mut self, space: Space, key: &Bytes) -> Result<Option<Bytes>, S::Error> {
        let old = self.store.get(space, key)?;
        if let Some(old) = &old {
            self.remove(space, key.clone(), old);
        }
        Ok(old)
    }

    /// Removes `key`, whose record `old` the caller has just read.
    pub(super) fn remove(&mut self, space: Space, key: Bytes, old: &[u8]) {
        self.subtract(space, &key, old);
        self.store.delete(space, key);
    }

    /// Writes the hash into the store. Without this the changes are not accounted for.
    pub(super) fn finish(self) {
        let record = Bytes::copy_from_slice(&self.sum.to_be_bytes());
        self.store
            .put(Space::Meta, Bytes::from_static(meta::HASH), record);
    }

    fn subtract(&mut self, space: Space, key: &[u8], record: &[u8]) {
        self.lease_keys -= i64::from(space == Space::LeaseKeys);
        let hash = self.hasher.hash(space, key, record);
        self.sum = self.sum.wrapping_sub(hash);
    }
}

impl<'s, S: Store> View for HashedStore<'s, S> {
    type Error = S::Error;

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, S::Error> {
        self.store.get(space, key)
    }

    fn range(
        &self,
        space: Space,
        span: &Span,
    ) -> impl Iterator<Item = Result<Pair, S::Error>> + use<'_, 's, S> {
        self.store.range(space, span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::store::MemStore;

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    fn written() -> MemStore {
        let mut store = MemStore::new();
        let mut hashed = HashedStore::begin(&mut store).unwrap();
        for space in Space::ALL.into_iter().filter(|space| space.is_replicated()) {
            hashed.insert(space, bytes("a"), bytes("old"));
            hashed.put(space, bytes("a"), bytes("new")).unwrap();
            hashed.put(space, bytes("ab"), bytes("")).unwrap();
            hashed.insert(space, bytes("gone"), bytes("x"));
            assert_eq!(
                hashed.take(space, &bytes("gone")).unwrap(),
                Some(bytes("x"))
            );
            assert_eq!(hashed.take(space, &bytes("never")).unwrap(), None);
            hashed.insert(space, bytes("known"), bytes("y"));
            hashed.remove(space, bytes("known"), b"y");
            hashed.replace(space, bytes("ab"), b"", bytes("c"));
        }
        hashed.finish();
        store
    }

    #[test]
    fn the_kept_hash_is_the_hash_of_what_is_there() {
        let store = written();
        assert_ne!(content_hash(&store).unwrap(), ContentHash::default());
        assert_eq!(content_hash(&store), scan(&store));
        assert_eq!(scan(&MemStore::new()), Ok(ContentHash::default()));
    }

    #[test]
    fn one_byte_changed_anywhere_is_noticed() {
        let store = written();
        let kept = content_hash(&store).unwrap();
        for space in Space::ALL.into_iter().filter(|space| space.is_replicated()) {
            for pair in store.range(space, &Span::all()) {
                let (key, record) = pair.unwrap();
                if key == meta::HASH {
                    continue;
                }
                for at in 0..key.len() + record.len() {
                    let (mut other_key, mut other_record) = (key.to_vec(), record.to_vec());
                    match at.checked_sub(key.len()) {
                        None => other_key[at] ^= 0x10,
                        Some(at) => other_record[at] ^= 0x10,
                    }
                    let mut damaged = store.clone();
                    damaged.delete(space, key.clone());
                    damaged.put(space, other_key.into(), other_record.into());
                    assert_ne!(scan(&damaged).unwrap(), kept, "{space} {key:?} byte {at}");
                }
                let mut lost = store.clone();
                lost.delete(space, key);
                assert_ne!(scan(&lost).unwrap(), kept);
            }
        }
    }

    #[test]
    fn bytes_that_move_between_key_record_and_keyspace_change_the_hash() {
        let mut hasher = RecordHasher::default();
        let one = hasher.hash(Space::Current, b"ab", b"c");
        assert_ne!(one, hasher.hash(Space::Current, b"a", b"bc"));
        assert_ne!(one, hasher.hash(Space::History, b"ab", b"c"));
    }
}
