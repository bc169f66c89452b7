//! Reads the leases that one entry ends, in scans.
//!
//! Leases that expire together were mostly granted together, so their records and attached keys are
//! adjacent. Looking up each lease, and its keys in a range of their own, would cost more than
//! ending it. So one scan over each of the two keyspaces reads those whose ids are close together, and
//! seeks past other leases in between. The result is that of single look-ups.
//!
//! Leases that were renewed since end in another order than that of their ids. Then most ids between two of an
//! entry are of leases that have ended, whose removed records a scan passes without showing them: a scan over
//! all of an entry would pass every lease that has ended before, for each entry.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::api::LeaseRef;

use super::lease;
use super::lease::{ID_BYTES, Lease};
use super::store::{Pair, Space, Span, View};

/// A lease that is to be ended.
pub(super) struct DoomedLease {
    pub(super) lease: Lease,
    /// The keys attached to it, in order; `None` if they are too many for the scan.
    pub(super) keys: Option<Vec<Bytes>>,
}

/// Leases with more keys have them read when they are ended, so that a scan holds at most some
/// thousand keys.
const KEYS_MAX: u64 = 8;
/// Ids that are farther apart than this are read in scans of their own: so many removed records one scan may
/// have to pass for each lease that it finds.
const GAP_MAX: u64 = 8;
/// How many records of other leases are skipped one by one before the scan seeks.
const PASSED_MAX: usize = 16;

/// Those of `leases` that exist, by id: the latest grant under each id.
pub(super) fn doomed<V: View>(
    view: &V,
    leases: &[LeaseRef],
) -> Result<BTreeMap<i64, DoomedLease>, V::Error> {
    let mut ids: Vec<i64> = leases.iter().map(|lease| lease.id).collect();
    ids.retain(|id| *id >= 0);
    ids.sort_unstable();
    ids.dedup();
    let mut found = BTreeMap::new();
    walk(view, Space::Leases, &ids, |id, (_, record)| {
        let lease = Lease::decode(&record)?;
        let keys = (lease.keys <= KEYS_MAX).then(Vec::new);
        found.insert(id, DoomedLease { lease, keys });
        Ok(())
    })?;
    let with_keys = |id: &i64| {
        let doomed = found.get(id);
        doomed.is_some_and(|doomed| doomed.keys.is_some() && doomed.lease.keys > 0)
    };
    ids.retain(with_keys);
    walk(view, Space::LeaseKeys, &ids, |id, (key, _)| {
        if let Some(keys) = found.get_mut(&id).and_then(|doomed| doomed.keys.as_mut()) {
            let key = key.get(ID_BYTES..).unwrap_or_default();
            // Copied, because a key read from disk may keep its whole block in memory.
            keys.push(Bytes::copy_from_slice(key));
        }
        Ok(())
    })?;
    Ok(found)
}

/// Calls `take` with every record in `space` whose key begins with one of `ids`, which are sorted.
fn walk<V: View>(
    view: &V,
    space: Space,
    ids: &[i64],
    mut take: impl FnMut(i64, Pair) -> Result<(), V::Error>,
) -> Result<(), V::Error> {
    for ids in ids.chunk_by(|one, next| one.abs_diff(*next) <= GAP_MAX) {
        walk_close(view, space, ids, &mut take)?;
    }
    Ok(())
}

/// The same for ids that are close together.
fn walk_close<V: View>(
    view: &V,
    space: Space,
    ids: &[i64],
    take: &mut impl FnMut(i64, Pair) -> Result<(), V::Error>,
) -> Result<(), V::Error> {
    // A lease has one record, which is found for less than a scan takes to begin.
    if let (Space::Leases, &[id]) = (space, ids) {
        let key = lease::lease_key(id);
        return match view.get(space, &key)? {
            Some(record) => take(id, (key, record)),
            None => Ok(()),
        };
    }
    let Some(&last) = ids.last() else {
        return Ok(());
    };
    let end = lease::lease_key_end(last);
    let mut wanted = ids.iter().copied().peekable();
    'leap: while let Some(&first) = wanted.peek() {
        let span = Span::between(lease::lease_key(first), end.clone());
        let mut passed = 0;
        for pair in view.range(space, &span) {
            let pair = pair?;
            let id = lease::lease_id(pair.0.get(..ID_BYTES).unwrap_or_default())?;
            while wanted.next_if(|wanted| *wanted < id).is_some() {}
            match wanted.peek() {
                None => return Ok(()),
                Some(&next) if next == id => {
                    passed = 0;
                    take(id, pair)?;
                }
                Some(_) => passed += 1,
            }
            if passed > PASSED_MAX {
                continue 'leap;
            }
        }
        return Ok(());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;
    use crate::kv::store::{MemStore, Store};

    /// Leases with so many keys each, and what hangs on them.
    fn stored(leases: &BTreeMap<i64, u64>) -> MemStore {
        let mut store = MemStore::new();
        for (&id, &keys) in leases {
            let lease = Lease::for_test(id.unsigned_abs(), keys);
            store.put(Space::Leases, lease::lease_key(id), lease.encode());
            for number in 0..keys {
                let key = lease::attachment(id, format!("k{number}").as_bytes());
                store.put(Space::LeaseKeys, key, Bytes::new());
            }
        }
        store
    }

    /// Adds up how many ids the scans of a walk cover.
    struct Covered<'a> {
        store: &'a MemStore,
        ids: Cell<u64>,
    }

    impl<'a> View for Covered<'a> {
        type Error = <MemStore as View>::Error;

        fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, Self::Error> {
            self.store.get(space, key)
        }

        fn range(
            &self,
            space: Space,
            span: &Span,
        ) -> impl Iterator<Item = Result<Pair, Self::Error>> + use<'_, 'a> {
            let id = |bound: &Bytes| lease::lease_id(&bound[..ID_BYTES]).unwrap();
            let until = span.until().expect("a walk ends somewhere");
            let covered = id(until).abs_diff(id(span.from()));
            self.ids.set(self.ids.get() + covered);
            self.store.range(space, span)
        }
    }

    /// What was removed is not shown, and passed all the same.
    #[test]
    fn a_walk_passes_few_leases_that_have_ended_whatever_the_order_they_end_in() {
        let store = stored(&(0..100).map(|number| (number * 1_000, 1)).collect());
        let refs: Vec<LeaseRef> = (0..100)
            .map(|number| LeaseRef::id(number * 1_000))
            .collect();
        let covered = Covered {
            store: &store,
            ids: Cell::new(0),
        };
        assert_eq!(doomed(&covered, &refs).unwrap().len(), 100);
        assert!(covered.ids.get() <= 1_600, "{}", covered.ids.get());
    }

    /// One of many, or one of the last that there can be.
    fn an_id(many: i64) -> impl Strategy<Value = i64> {
        prop_oneof![
            8 => 0..many,
            1 => (0i64..3).prop_map(|before| i64::MAX - before),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_walk_finds_what_single_look_ups_do(
            leases in prop::collection::btree_map(an_id(200), 0u64..2 * KEYS_MAX, 0..120),
            asked in prop::collection::vec(prop_oneof![9 => an_id(220), 1 => Just(-1)], 0..60),
        ) {
            let store = stored(&leases);
            let refs: Vec<LeaseRef> = asked.iter().map(|id| LeaseRef::id(*id)).collect();
            let found = doomed(&store, &refs).unwrap();
            for id in asked {
                let looked_up = Lease::read(&store, id).unwrap();
                prop_assert_eq!(found.get(&id).map(|doomed| doomed.lease.clone()), looked_up.clone());
                let Some(lease) = looked_up else { continue };
                let keys = lease::attached(&store, id, usize::MAX).unwrap();
                prop_assert_eq!(keys.len() as u64, lease.keys);
                let read_along = (lease.keys <= KEYS_MAX).then_some(keys);
                prop_assert_eq!(found[&id].keys.clone(), read_along);
            }
        }
    }
}
