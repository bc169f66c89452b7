//! Current records in memory, in front of the database.
//!
//! Two hands write here, and one of them must never undo the other. The thread that applies
//! changes a key's record after every look finds its batch and before the applied index is shown.
//! A reader that did not find its key reads the disk and fills the record in; if the key changed
//! between the two, what it read may be old. So a miss hands out a [`Ticket`] with the number of
//! changes that the key's shard has seen, and a fill counts only while that number stands:
//!
//! - the reader read before the commit, and the change came before its fill: the fill is refused;
//! - the reader read before the commit, and its fill came before the change: the change replaces it;
//! - the ticket is younger than the change: the commit came before both, so what was read is new.
//!
//! Keys that do not exist are remembered too, because waiting for a key to appear is common.
//!
//! Each shard is bounded in bytes and evicts by a clock hand: a record read since the hand last
//! passed gets another round. Records are found by a 64-bit hash with a secret of this process; two
//! keys with the same hash share one place.

use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::{Hashing, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::wire::point::Record;

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CachedKey {
    /// Its current record.
    Present(Record),
    /// There is no such key since `revision` or before.
    Absent { revision: i64 },
}

/// What a lookup finds.
pub(super) enum Lookup {
    Found(CachedKey),
    Missing(Ticket),
}

/// The right to fill in a record, as long as nothing near it has changed.
pub(super) struct Ticket {
    hash: u64,
    changes: u64,
}

/// A bounded map from keys to their current records.
pub(super) struct RecordCache {
    shards: Vec<RwLock<Shard>>,
    hashing: Hashing,
}

/// Enough that readers on every core seldom meet.
const SHARDS: usize = 64;

impl RecordCache {
    /// A cache that holds about `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        let shard = || RwLock::new(Shard::new(bytes_max / SHARDS));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hashing: Hashing::default(),
        }
    }

    /// What is known of `key`.
    pub(super) fn get(&self, key: &[u8]) -> Lookup {
        let hash = self.hashing.hash_one(key);
        let shard = self.read(hash);
        match shard.find(hash, key) {
            Some(cached) => Lookup::Found(cached),
            None => Lookup::Missing(Ticket {
                hash,
                changes: shard.changes,
            }),
        }
    }

    /// Fills in what a reader found on disk after it got its `ticket` for `key`.
    pub(super) fn fill(&self, ticket: Ticket, key: &[u8], cached: CachedKey) {
        let mut shard = self.write(ticket.hash);
        if shard.changes == ticket.changes || planted!(FillWithoutTicket) {
            shard.insert(ticket.hash, key, cached);
        }
    }

    /// Notes what a committed write has made of `key`.
    pub(super) fn change(&self, key: &[u8], cached: CachedKey) {
        let hash = self.hashing.hash_one(key);
        let mut shard = self.write(hash);
        shard.changes += 1;
        shard.insert(hash, key, cached);
    }

    // A poisoned lock would mean that a thread died inside of a shard, which ends the process.

    fn read(&self, hash: u64) -> RwLockReadGuard<'_, Shard> {
        self.shards[shard_of(hash)].read()
    }

    fn write(&self, hash: u64) -> RwLockWriteGuard<'_, Shard> {
        self.shards[shard_of(hash)].write()
    }
}

/// The map inside of a shard uses the lower bits for a place and the uppermost seven to tell its
/// neighbours apart: bits between choose the shard, or all neighbours would look alike.
fn shard_of(hash: u64) -> usize {
    (hash >> 48) as usize % SHARDS
}

#[expect(
    clippy::disallowed_types,
    reason = "only looked up by hash, never iterated"
)]
type Slots = std::collections::HashMap<u64, Slot, BuildHasherDefault<IdentityHasher>>;

/// One part of the cache, under its own lock.
struct Shard {
    slots: Slots,
    /// The hashes of all slots, in the order in which the hand passes them.
    ring: Vec<u64>,
    hand: usize,
    bytes: usize,
    bytes_max: usize,
    /// How often a committed write has changed something here.
    changes: u64,
}

/// Lies in the map itself, and what a record holds lies together in another piece of memory, its key
/// first: so a lookup waits for memory twice.
struct Slot {
    cached: CachedKey,
    /// The key that is absent; a record that is present has its own.
    absent: Box<[u8]>,
    bytes: usize,
    /// Where in the ring it is.
    place: usize,
    /// Read since the hand last passed.
    was_read: AtomicBool,
}

impl Slot {
    fn is_of(&self, key: &[u8]) -> bool {
        match &self.cached {
            CachedKey::Present(record) => record.is_of(key),
            CachedKey::Absent { .. } => &*self.absent == key,
        }
    }
}

/// What a slot costs beside key and value: itself, its place, and the counts of shared memory.
const SLOT_BYTES: usize = 256;

impl Shard {
    fn new(bytes_max: usize) -> Self {
        Self {
            slots: Slots::default(),
            ring: Vec::new(),
            hand: 0,
            bytes: 0,
            bytes_max,
            changes: 0,
        }
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<CachedKey> {
        let slot = self.slots.get(&hash)?;
        if !slot.is_of(key) {
            return None;
        }
        // Readers of a hot key should not pass its cache line around for a bit that is set.
        if !slot.was_read.load(Ordering::Relaxed) {
            slot.was_read.store(true, Ordering::Relaxed);
        }
        Some(slot.cached.clone())
    }

    fn insert(&mut self, hash: u64, key: &[u8], cached: CachedKey) {
        let (content_bytes, absent) = match &cached {
            CachedKey::Present(record) => (record.encoded().len(), Box::default()),
            CachedKey::Absent { .. } => (key.len(), key.into()),
        };
        let bytes = SLOT_BYTES + content_bytes;
        // One record must not push out everyone else's.
        if bytes > self.bytes_max / 4 {
            self.remove(hash);
            return;
        }
        // What replaces another record takes its place, and nothing else is touched.
        if let Some(slot) = self.slots.get_mut(&hash)
            && self.bytes - slot.bytes + bytes <= self.bytes_max
        {
            self.bytes = self.bytes - slot.bytes + bytes;
            slot.cached = cached;
            slot.absent = absent;
            slot.bytes = bytes;
            return;
        }
        let was_read = self.remove(hash);
        while self.bytes + bytes > self.bytes_max {
            self.evict_one();
        }
        let slot = Slot {
            cached,
            absent,
            bytes,
            place: self.ring.len(),
            was_read: AtomicBool::new(was_read),
        };
        self.ring.push(hash);
        self.slots.insert(hash, slot);
        self.bytes += bytes;
    }

    /// Takes out what is at `hash`; says whether it was read lately.
    fn remove(&mut self, hash: u64) -> bool {
        let Some(slot) = self.slots.remove(&hash) else {
            return false;
        };
        self.ring.swap_remove(slot.place);
        if let Some(moved) = self.ring.get(slot.place) {
            let moved = self
                .slots
                .get_mut(moved)
                .expect("the ring holds what is there");
            moved.place = slot.place;
        }
        self.bytes -= slot.bytes;
        slot.was_read.into_inner()
    }

    /// Moves the hand to a record that was not read since it last came by, and takes that out.
    /// There is one, after at most two rounds, as long as there is any record.
    fn evict_one(&mut self) {
        loop {
            self.hand = (self.hand + 1) % self.ring.len();
            let hash = self.ring[self.hand];
            let slot = self
                .slots
                .get_mut(&hash)
                .expect("the ring holds what is there");
            if !std::mem::take(slot.was_read.get_mut()) {
                self.remove(hash);
                return;
            }
        }
    }
}

/// Passes on a key that is a hash already.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::api::KeyValue;
    use bytes::Bytes;
    use std::sync::atomic::{AtomicI64, AtomicU64};
    use std::thread;

    fn record(key: &[u8], value: &[u8], mod_revision: i64) -> CachedKey {
        CachedKey::Present(Record::new(&KeyValue {
            key: Bytes::copy_from_slice(key),
            value: Bytes::copy_from_slice(value),
            mod_revision,
            ..KeyValue::default()
        }))
    }

    fn found(cache: &RecordCache, key: &[u8]) -> Option<CachedKey> {
        match cache.get(key) {
            Lookup::Found(cached) => Some(cached),
            Lookup::Missing(_) => None,
        }
    }

    fn ticket(cache: &RecordCache, key: &[u8]) -> Ticket {
        match cache.get(key) {
            Lookup::Missing(ticket) => ticket,
            Lookup::Found(cached) => panic!("it is there: {cached:?}"),
        }
    }

    fn bytes(cache: &RecordCache) -> usize {
        let bytes = |shard: &RwLock<Shard>| shard.read().bytes;
        cache.shards.iter().map(bytes).sum()
    }

    #[test]
    fn a_fill_is_found_and_shares_its_memory() {
        let cache = RecordCache::new(1 << 20);
        cache.fill(ticket(&cache, b"k"), b"k", record(b"k", b"v", 2));
        let (Some(CachedKey::Present(one)), Some(CachedKey::Present(two))) =
            (found(&cache, b"k"), found(&cache, b"k"))
        else {
            panic!("it was just filled in");
        };
        assert_eq!(one.to_key_value().value.as_ref(), b"v");
        assert_eq!(
            one.encoded().as_ptr(),
            two.encoded().as_ptr(),
            "no copy is made"
        );
        assert_eq!(found(&cache, b"other"), None);
    }

    #[test]
    fn a_fill_that_a_change_has_overtaken_is_refused() {
        let cache = RecordCache::new(1 << 20);
        let before = ticket(&cache, b"k");
        cache.change(b"k", record(b"k", b"new", 3));
        cache.fill(before, b"k", record(b"k", b"old", 2));
        assert_eq!(found(&cache, b"k"), Some(record(b"k", b"new", 3)));

        let before = ticket(&cache, b"gone");
        let absent = CachedKey::Absent { revision: 4 };
        cache.change(b"gone", absent.clone());
        cache.fill(before, b"gone", record(b"gone", b"old", 2));
        assert_eq!(found(&cache, b"gone"), Some(absent));
    }

    #[test]
    fn a_change_replaces_what_a_reader_has_filled_in() {
        let cache = RecordCache::new(1 << 20);
        cache.fill(ticket(&cache, b"k"), b"k", record(b"k", b"old", 2));
        cache.change(b"k", record(b"k", b"new", 3));
        assert_eq!(found(&cache, b"k"), Some(record(b"k", b"new", 3)));
    }

    #[test]
    fn a_change_too_large_to_cache_still_removes_the_old_record() {
        let cache = RecordCache::new(SHARDS * 4096);
        cache.fill(ticket(&cache, b"k"), b"k", record(b"k", b"old", 2));
        let large = record(b"k", &[0; 4096], 3);
        cache.change(b"k", large);
        assert_eq!(found(&cache, b"k"), None);
        assert_eq!(bytes(&cache), 0);
    }

    #[test]
    fn it_stays_within_its_bytes_and_keeps_what_is_read() {
        let bytes_max = SHARDS * 8192;
        let cache = RecordCache::new(bytes_max);
        for number in 0..20_000u32 {
            let key = Bytes::from(format!("key{number}"));
            cache.change(&key, record(&key, &[7; 100], 2));
            assert!(found(&cache, b"key0").is_some(), "read all the time");
        }
        assert!(bytes(&cache) <= bytes_max);
        assert!(bytes(&cache) > bytes_max / 2, "and it is used");
        for shard in &cache.shards {
            let shard = shard.read();
            assert_eq!(shard.slots.len(), shard.ring.len());
            for (place, hash) in shard.ring.iter().enumerate() {
                assert_eq!(shard.slots[hash].place, place);
            }
        }
    }

    #[test]
    fn a_cache_of_no_bytes_holds_nothing() {
        let cache = RecordCache::new(0);
        cache.fill(ticket(&cache, b"k"), b"k", record(b"k", b"v", 2));
        cache.change(b"k", record(b"k", b"v", 2));
        assert_eq!(found(&cache, b"k"), None);
    }

    #[test]
    fn two_keys_with_one_hash_do_not_answer_for_each_other() {
        let mut shard = Shard::new(1 << 20);
        shard.insert(7, b"a", record(b"a", b"1", 2));
        assert_eq!(shard.find(7, b"b"), None);
        shard.insert(7, b"b", record(b"b", b"2", 3));
        assert_eq!(shard.find(7, b"a"), None);
        assert_eq!(shard.find(7, b"b"), Some(record(b"b", b"2", 3)));
    }

    /// A writer commits to a "disk", changes the cache and publishes; readers fill and read. What
    /// was published before a read began must be in it.
    #[test]
    fn no_reader_sees_less_than_what_was_published_before_it_began() {
        const KEYS: usize = 4;
        const WRITES: i64 = 3_000;
        let cache = RecordCache::new(SHARDS * 2048);
        let disk: [AtomicI64; KEYS] = Default::default();
        let published = AtomicU64::new(0);
        let key = |which: usize| Bytes::from(vec![b'k', which as u8]);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for reader in 0..3usize {
                let (cache, disk, published, is_over) = (&cache, &disk, &published, &is_over);
                scope.spawn(move || {
                    let mut turn = reader;
                    while !is_over.load(Ordering::Relaxed) {
                        turn += 1;
                        let which = turn % KEYS;
                        let before = published.load(Ordering::Acquire);
                        // The writes go round the keys: this was the last to ours.
                        let least = (before as i64 - which as i64).div_euclid(KEYS as i64)
                            * KEYS as i64
                            + which as i64;
                        let seen = match cache.get(&key(which)) {
                            Lookup::Found(cached) => cached,
                            Lookup::Missing(ticket) => {
                                let value = disk[which].load(Ordering::Acquire);
                                if turn % 3 == 0 {
                                    thread::yield_now();
                                }
                                let cached = record(&key(which), b"", value);
                                cache.fill(ticket, &key(which), cached.clone());
                                cached
                            }
                        };
                        let CachedKey::Present(kv) = seen else {
                            panic!("nothing is ever deleted here");
                        };
                        assert!(
                            kv.mod_revision() >= least,
                            "key {which} at {} after {before} was published",
                            kv.mod_revision()
                        );
                    }
                });
            }
            for write in 1..=WRITES {
                let which = write as usize % KEYS;
                disk[which].store(write, Ordering::Release);
                if write % 5 == 0 {
                    thread::yield_now();
                }
                // Every other change is too large to stay, so that readers keep filling.
                let value = vec![
                    0;
                    if write / KEYS as i64 % 2 == 0 {
                        2048
                    } else {
                        0
                    }
                ];
                cache.change(&key(which), record(&key(which), &value, write));
                published.store(write as u64, Ordering::Release);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
