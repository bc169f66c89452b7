//! All versions of all keys in the order of revisions: what another store that keeps history as etcd does
//! is given, and gives.

use std::collections::BinaryHeap;

use bytes::Bytes;

use crate::api::{EventKind, KeyValue};
use crate::types::{LogId, LogIndex, Term};

use super::hash::HashedStore;
use super::keys::Revision;
use super::lease::{LEASE_KEYS_MAX, Lease, LeaseState};
use super::meta::Progress;
use super::record::{EventRecord, Record, TOMBSTONE};
use super::store::{Fault, Pair, Space, Span, Store, View};
use super::{keys, lease, meta, record};

/// The bytes of keys that are put in order at a time. All that are left are looked through for each such
/// lot.
const SORTED_BYTES_MAX: usize = 64 << 20;
/// What a key in the lot takes besides its bytes.
const SORTED_KEY_BYTES: usize = size_of::<(Revision, Bytes)>() + 16;

/// The entry that a state ends with which was taken from another store.
const LOADED: LogId = LogId {
    term: Term(1),
    index: LogIndex(1),
};

/// What one change made of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The revision that made it.
    pub revision: i64,
    /// Which change of its revision it is.
    pub number: u32,
    /// What was done.
    pub kind: EventKind,
    /// The key; after a deletion its name alone.
    pub kv: KeyValue,
}

/// The versions that can be read, each in its turn: all after the compact revision, the changes of that
/// itself, because a watch may begin there, and of earlier ones the newest of each key that existed there.
pub struct Versions<'v, V> {
    view: &'v V,
    compact_revision: i64,
    sorted_bytes_max: usize,
    lot: std::vec::IntoIter<(Revision, Bytes)>,
    /// Where the last lot ended.
    last: Option<Revision>,
}

impl<'v, V: View> Versions<'v, V> {
    /// Those of `view`.
    ///
    /// # Errors
    /// The store's error, which is fatal for the reader.
    pub fn of(view: &'v V) -> Result<Self, V::Error> {
        Ok(Self {
            view,
            compact_revision: meta::progress(view)?.compact_revision,
            sorted_bytes_max: SORTED_BYTES_MAX,
            lot: Vec::new().into_iter(),
            last: None,
        })
    }

    /// The next one; `None` after the last.
    ///
    /// # Errors
    /// The store's error, which is fatal for the reader.
    pub fn next_version(&mut self) -> Result<Option<Version>, V::Error> {
        if self.lot.as_slice().is_empty() {
            self.lot = self.next_lot()?.into_iter();
        }
        let Some((place, key)) = self.lot.next() else {
            return Ok(None);
        };
        self.last = Some(place);
        let found = self
            .view
            .get(Space::History, &keys::history_key(&key, place))?;
        let found = match found {
            // The tombstones of the compact revision itself may be removed, and their events are not.
            None if place.main == self.compact_revision => TOMBSTONE,
            found => found.ok_or(Fault::Damaged {
                space: Space::History,
                what: "no record where one was just seen",
            })?,
        };
        let record = Record::decode_past(Bytes::copy_from_slice(&found))?;
        Ok(Some(Version {
            revision: place.main,
            number: place.sub,
            kind: match record {
                Some(_) => EventKind::Put,
                None => EventKind::Delete,
            },
            kv: match record {
                Some(record) => record.with_key(key),
                None => KeyValue {
                    key,
                    mod_revision: place.main,
                    ..KeyValue::default()
                },
            },
        }))
    }

    /// The first changes after the last one that was given, as many as may be sorted at a time.
    fn next_lot(&self) -> Result<Vec<(Revision, Bytes)>, V::Error> {
        let mut lot = Lot::new(self.last, self.sorted_bytes_max);
        let compacted = Span::between(
            keys::event_key(Revision::first(self.compact_revision)),
            keys::event_key(Revision::first(self.compact_revision + 1)),
        );
        for pair in self.view.range(Space::Events, &compacted) {
            let (place, record) = pair?;
            let event = EventRecord::decode(record)?;
            if event.kind == EventKind::Delete {
                lot.offer(keys::event_revision(&place)?, || Ok(event.key))?;
            }
        }
        // The key whose newest version before the compact revision was seen.
        let mut passed = Vec::new();
        for pair in self.view.range(Space::History, &Span::all()) {
            let (place, record): Pair = pair?;
            let (run, revision) = keys::history_run(&place)?;
            if revision.main <= self.compact_revision {
                if passed == run {
                    continue;
                }
                passed.clear();
                passed.extend_from_slice(run);
                if record == TOMBSTONE {
                    continue;
                }
            }
            lot.offer(revision, || Ok(keys::history_parts(&place)?.0))?;
        }
        Ok(lot.first.into_sorted_vec())
    }
}

/// The first changes after one, of all that are offered.
struct Lot {
    after: Option<Revision>,
    bytes_max: usize,
    first: BinaryHeap<(Revision, Bytes)>,
    bytes: usize,
}

impl Lot {
    fn new(after: Option<Revision>, bytes_max: usize) -> Self {
        Self {
            after,
            bytes_max,
            first: BinaryHeap::new(),
            bytes: 0,
        }
    }

    fn offer(
        &mut self,
        revision: Revision,
        key: impl FnOnce() -> Result<Bytes, Fault>,
    ) -> Result<(), Fault> {
        let is_later = self.after.is_none_or(|after| revision > after);
        let last = self.first.peek().map(|(last, _)| *last);
        let is_full = self.bytes >= self.bytes_max;
        if !is_later || (is_full && last.is_some_and(|last| last < revision)) {
            return Ok(());
        }
        let key = Bytes::copy_from_slice(&key()?);
        self.bytes += key.len() + SORTED_KEY_BYTES;
        self.first.push((revision, key));
        while self.bytes > self.bytes_max && self.first.len() > 1 {
            let (_, key) = self.first.pop().expect("there are two");
            self.bytes -= key.len() + SORTED_KEY_BYTES;
        }
        Ok(())
    }
}

/// A lease of another store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedLease {
    /// Its id.
    pub id: i64,
    /// Its TTL, in milliseconds.
    pub ttl_ms: u64,
}

/// What comes from another store, or a part of it. Leases come before the keys that are attached to them, and
/// versions in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedPart {
    /// Leases.
    pub leases: Vec<LoadedLease>,
    /// Versions of keys.
    pub versions: Vec<Version>,
    /// The compact revision of the other store: of the versions up to it only those are kept that it needs.
    pub compact_revision: i64,
}

/// Why something of another store cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {revision}: {what}")]
pub struct LoadRefusal {
    /// Where.
    pub revision: i64,
    /// What is wrong with it.
    pub what: String,
}

/// Adds a part of another store to `store`, which is empty or holds earlier parts and nothing else.
///
/// # Errors
/// The outer error is the store's. Inside: the part is not taken. After either, discard `store`.
pub fn load<S: Store>(
    store: &mut S,
    part: LoadedPart,
) -> Result<Result<Progress, LoadRefusal>, S::Error> {
    let mut progress = meta::progress(store)?;
    let mut store = HashedStore::begin(store)?;
    progress.applied = LOADED;
    progress.compact_revision = part.compact_revision;
    progress.revision = progress.revision.max(part.compact_revision);
    for lease in part.leases {
        if let Err(refusal) = load_lease(&mut store, lease)? {
            return Ok(Err(refusal));
        }
        progress.leases += 1;
    }
    for version in part.versions {
        progress.revision = progress.revision.max(version.revision);
        if let Err(refusal) = load_version(&mut store, version, part.compact_revision)? {
            return Ok(Err(refusal));
        }
    }
    let (key, record) = progress.record();
    store.put(Space::Meta, key, record)?;
    store.finish();
    Ok(Ok(progress))
}

fn load_lease<S: Store>(
    store: &mut HashedStore<'_, S>,
    loaded: LoadedLease,
) -> Result<Result<(), LoadRefusal>, S::Error> {
    let LoadedLease { id, ttl_ms } = loaded;
    if id <= 0 || ttl_ms == 0 || Lease::read(store, id)?.is_some() {
        return Ok(Err(LoadRefusal {
            revision: 0,
            what: format!(
                "a lease with the id {id:016x} and a TTL of {ttl_ms} ms, or a second one"
            ),
        }));
    }
    let lease = Lease {
        state: LeaseState::Live,
        ttl_ms,
        promised_ms: 0,
        checkpoint_ms: None,
        grant_index: LOADED.index.0,
        granted_at_ms: 0,
        keys: 0,
        name: String::new(),
        owner: String::new(),
        keys_max: LEASE_KEYS_MAX,
        creator: String::new(),
    };
    lease.write(store, id)?;
    Ok(Ok(()))
}

fn load_version<S: Store>(
    store: &mut HashedStore<'_, S>,
    version: Version,
    compact_revision: i64,
) -> Result<Result<(), LoadRefusal>, S::Error> {
    if let Err(what) = check(&version) {
        let revision = version.revision;
        return Ok(Err(LoadRefusal { revision, what }));
    }
    let Version {
        revision,
        number,
        kind,
        kv,
    } = version;
    let place = Revision {
        main: revision,
        sub: number,
    };
    let key = kv.key.clone();
    let old = store.get(Space::Current, &key)?;
    let previous = old.clone().map(Record::decode).transpose()?;
    let before = previous
        .as_ref()
        .map_or(0, |previous| previous.mod_revision);
    if before >= revision {
        let what = format!("a key is changed that was changed at revision {before} already");
        return Ok(Err(LoadRefusal { revision, what }));
    }
    let held = previous.as_ref().map_or(0, |previous| previous.lease);
    // One that has ended since stays in history alone: a later version is attached to another, or to none.
    let is_attached = kind == EventKind::Put && Lease::read(store, kv.lease)?.is_some();
    let lease = if is_attached { kv.lease } else { 0 };
    let (current, past) = match kind {
        EventKind::Put => {
            let past = record::record_of(&kv);
            (Some(record::record_of(&KeyValue { lease, ..kv })), past)
        }
        EventKind::Delete => (None, TOMBSTONE),
    };
    if revision <= compact_revision {
        for (key, old) in history_of(store, &key)? {
            store.remove(Space::History, key, &old);
        }
    }
    // A watch may begin at the compact revision.
    if revision >= compact_revision {
        let event = EventRecord::encode(kind, before, &key);
        let at = keys::event_key(place);
        if store.get(Space::Events, &at)?.is_some() {
            let what = format!("two changes with the number {number}");
            return Ok(Err(LoadRefusal { revision, what }));
        }
        store.insert(Space::Events, at, event);
    }
    if kind == EventKind::Put || revision > compact_revision {
        store.insert(Space::History, keys::history_key(&key, place), past);
    }
    lease::move_key(store, &key, held, lease)?;
    match (old, current) {
        (Some(old), Some(record)) => store.replace(Space::Current, key, &old, record),
        (Some(old), None) => store.remove(Space::Current, key, &old),
        (None, Some(record)) => store.insert(Space::Current, key, record),
        (None, None) => {}
    }
    Ok(Ok(()))
}

/// All that is kept of a key.
fn history_of<S: Store>(store: &HashedStore<'_, S>, key: &Bytes) -> Result<Vec<Pair>, S::Error> {
    let all = Span::between(
        keys::history_at(key, i64::MAX).from().clone(),
        keys::history_end(key),
    );
    let found = store.range(Space::History, &all);
    found
        .map(|pair| pair.map(|(key, record)| (Bytes::copy_from_slice(&key), record)))
        .collect()
}

fn check(version: &Version) -> Result<(), String> {
    let kv = &version.kv;
    if kv.key.is_empty() || kv.key.len() > keys::KEY_BYTES_MAX {
        return Err(format!(
            "a key of {} bytes, of which there may be 1 to {}: delete it before the snapshot is taken",
            kv.key.len(),
            keys::KEY_BYTES_MAX
        ));
    }
    if version.kind == EventKind::Delete {
        return Ok(());
    }
    let is_sound = kv.mod_revision == version.revision
        && (1..=kv.mod_revision).contains(&kv.create_revision)
        && kv.version >= 1
        && kv.lease >= 0;
    match is_sound {
        true => Ok(()),
        false => Err("a key whose revisions contradict each other".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::CompactionRequest;
    use crate::kv;
    use crate::kv::MemStore;
    use crate::kv::tests::{everything, uncompacted};

    fn all(store: &MemStore, sorted_bytes_max: usize) -> Vec<Version> {
        let mut versions = Versions::of(store).unwrap();
        versions.sorted_bytes_max = sorted_bytes_max;
        let mut found = Vec::new();
        while let Some(version) = versions.next_version().unwrap() {
            found.push(version);
        }
        found
    }

    fn leases(store: &MemStore) -> Vec<LoadedLease> {
        let mut leases = Vec::new();
        for pair in store.range(Space::Leases, &Span::all()) {
            let (key, record) = pair.unwrap();
            leases.push(LoadedLease {
                id: lease::lease_id(&key).unwrap(),
                ttl_ms: Lease::decode(&record).unwrap().ttl_ms,
            });
        }
        leases
    }

    /// Everything of `store` in a new one, in parts of `part` versions.
    fn copied(store: &MemStore, part: usize) -> MemStore {
        let progress = kv::progress(store).unwrap();
        let mut copy = MemStore::new();
        let first = LoadedPart {
            leases: leases(store),
            versions: Vec::new(),
            compact_revision: progress.compact_revision,
        };
        load(&mut copy, first).unwrap().unwrap();
        for versions in all(store, usize::MAX).chunks(part) {
            let part = LoadedPart {
                leases: Vec::new(),
                versions: versions.to_vec(),
                compact_revision: progress.compact_revision,
            };
            load(&mut copy, part).unwrap().unwrap();
            assert_eq!(kv::content_hash(&copy), kv::scan(&copy));
        }
        copy
    }

    /// What is left of `store` when compacted history is gone.
    fn finished(store: &MemStore) -> MemStore {
        let mut store = store.clone();
        let budget = kv::CompactionBudget {
            events: 1_000,
            bytes: usize::MAX,
        };
        assert!(kv::compact_step(&mut store, &budget).unwrap().finished);
        store
    }

    fn records(store: &MemStore, space: Space) -> Vec<Pair> {
        let pairs = store.range(space, &Span::all());
        pairs.map(Result::unwrap).collect()
    }

    fn compacted(store: &MemStore, revision: i64) -> MemStore {
        let mut store = store.clone();
        let next = kv::progress(&store).unwrap().applied;
        let next = LogId::new(LogIndex(next.index.0 + 1), next.term);
        let command = kv::Command::Write {
            author: None,
            session: None,
            operation: kv::Operation::Compact(CompactionRequest::at(revision)),
        };
        kv::apply(&mut store, next, Some(&command.encode())).unwrap();
        store
    }

    #[test]
    fn versions_come_in_order_however_many_are_sorted_at_a_time() {
        let store = uncompacted();
        let whole = all(&store, usize::MAX);
        assert!(whole.len() > 3);
        let place = |version: &Version| (version.revision, version.number);
        assert!(whole.is_sorted_by(|left, right| place(left) < place(right)));
        for bytes in [0, 200, 500] {
            assert_eq!(all(&store, bytes), whole);
        }
    }

    #[test]
    fn a_copy_has_the_same_keys_history_and_events() {
        for part in [1, 3, 1_000] {
            let store = uncompacted();
            let copy = copied(&store, part);
            let (was, is) = (kv::progress(&store).unwrap(), kv::progress(&copy).unwrap());
            assert_eq!((is.revision, is.leases), (was.revision, was.leases));
            assert_eq!(is.applied, LOADED);
            for space in [
                Space::Current,
                Space::History,
                Space::Events,
                Space::LeaseKeys,
            ] {
                assert_eq!(records(&copy, space), records(&store, space), "{space}");
            }
            assert!(kv::leases_are_sound(&copy, &is).unwrap());
        }
    }

    #[test]
    fn of_compacted_history_a_copy_has_what_is_left_when_all_of_it_is_removed() {
        let store = uncompacted();
        let newest = kv::progress(&store).unwrap().revision;
        for revision in 2..=newest {
            // The removal has not begun, and is done.
            let begun = compacted(&store, revision);
            let done = finished(&begun);
            assert_eq!(all(&begun, usize::MAX), all(&done, usize::MAX));
            let copy = copied(&begun, 2);
            for space in [Space::Current, Space::History] {
                assert_eq!(records(&copy, space), records(&done, space), "{revision}");
            }
            assert_eq!(events(&copy, revision), events(&done, revision));
        }
        let half_removed = everything();
        assert_eq!(
            all(&half_removed, usize::MAX),
            all(&finished(&half_removed), usize::MAX)
        );
    }

    /// The events of `store`. What one of `compacted` replaced is not known to a copy.
    fn events(store: &MemStore, compacted: i64) -> Vec<(i64, EventRecord)> {
        let pairs = records(store, Space::Events).into_iter();
        let events = pairs.map(|(place, record)| {
            let revision = keys::event_revision(&place).unwrap().main;
            let mut event = EventRecord::decode(record).unwrap();
            event.previous *= i64::from(revision > compacted);
            (revision, event)
        });
        events.collect()
    }

    /// A put and a delete of one place, as a file could have it that no etcd has written.
    #[test]
    fn a_second_change_of_the_same_place_is_refused() {
        let put = |key: &'static str| Version {
            revision: 5,
            number: 0,
            kind: EventKind::Put,
            kv: KeyValue {
                key: Bytes::from_static(key.as_bytes()),
                create_revision: 5,
                mod_revision: 5,
                version: 1,
                ..KeyValue::default()
            },
        };
        let delete = Version {
            kind: EventKind::Delete,
            ..put("b")
        };
        let part = LoadedPart {
            versions: vec![put("a"), delete],
            ..LoadedPart::default()
        };
        let refusal = load(&mut MemStore::new(), part).unwrap().unwrap_err();
        let said = refusal.to_string();
        assert_eq!(said, "revision 5: two changes with the number 0");
    }

    #[test]
    fn what_contradicts_itself_is_refused_and_says_where() {
        let version = |revision, mod_revision| Version {
            revision,
            number: 0,
            kind: EventKind::Put,
            kv: KeyValue {
                key: Bytes::from_static(b"k"),
                create_revision: 1,
                mod_revision,
                version: 1,
                ..KeyValue::default()
            },
        };
        let refused = |versions: Vec<Version>| {
            let part = LoadedPart {
                versions,
                ..LoadedPart::default()
            };
            load(&mut MemStore::new(), part).unwrap().unwrap_err()
        };
        assert_eq!(refused(vec![version(7, 6)]).revision, 7);
        assert_eq!(refused(vec![version(7, 7), version(7, 7)]).revision, 7);
        assert_eq!(refused(vec![version(7, 7), version(5, 5)]).revision, 5);
        let mut long = version(3, 3);
        long.kv.key = vec![b'x'; keys::KEY_BYTES_MAX + 1].into();
        assert!(refused(vec![long]).what.contains("16385 bytes"));
        for (id, ttl_ms) in [(0, 5), (-1, 5), (7, 0)] {
            let part = LoadedPart {
                leases: vec![LoadedLease { id, ttl_ms }],
                ..LoadedPart::default()
            };
            load(&mut MemStore::new(), part).unwrap().unwrap_err();
        }
    }
}
