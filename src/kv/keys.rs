//! How keys and revisions become bytes whose order is the order we want to read in.
//!
//! `current` uses a client's key as it is. `history` holds several records per key, so the key is
//! escaped and terminated (no key's records lie between another's) and followed by the complement
//! of the revision: newest first, so that "the latest at or below a revision" is the first record
//! at or after one seek (decisions.md 28). `events` is ordered by revision.

use bytes::{BufMut, Bytes, BytesMut};

use crate::api::KeyRange;

use super::store::Span;

/// The longest key that can be stored: escaped for `history`, it may double, and the disk's keys
/// end at 64 KiB. Servers set their own limit at or below.
pub const KEY_BYTES_MAX: usize = 16 << 10;

/// A change's place: the write's revision, and which of the write's changes it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Revision {
    /// The store-wide revision of the write; never negative.
    pub(super) main: i64,
    /// The change's number within the write.
    pub(super) sub: u32,
}

/// The key of the record that `revision` gave `key`.
pub(super) fn history_key(key: &[u8], revision: Revision) -> Bytes {
    let mut bytes = BytesMut::with_capacity(key.len() + 16);
    for &byte in key {
        bytes.put_u8(byte);
        if byte == 0 {
            bytes.put_u8(0xff);
        }
    }
    bytes.put_slice(&[0, 0]);
    bytes.put_u64(!main_bits(revision));
    bytes.put_u32(!revision.sub);
    bytes.freeze()
}

/// The key of the event of `revision`.
pub(super) fn event_key(revision: Revision) -> Bytes {
    let mut bytes = BytesMut::with_capacity(12);
    bytes.put_u64(main_bits(revision));
    bytes.put_u32(revision.sub);
    bytes.freeze()
}

/// The keys that a request means by `key` and `range`.
pub(super) fn span(key: &Bytes, range: &KeyRange) -> Span {
    match range {
        KeyRange::Single => Span::between(key.clone(), successor(key)),
        KeyRange::Prefix => match prefix_end(key) {
            Some(end) => Span::between(key.clone(), end),
            None => Span::from_key(key.clone()),
        },
        KeyRange::Until(end) => Span::between(key.clone(), end.clone()),
        KeyRange::From => Span::from_key(key.clone()),
    }
}

/// The first key after `key`.
pub(super) fn successor(key: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(key.len() + 1);
    bytes.put_slice(key);
    bytes.put_u8(0);
    bytes.freeze()
}

/// The first key after all that start with `prefix`, if there is any.
fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = BytesMut::from(&prefix[..=last]);
    end[last] += 1;
    Some(end.freeze())
}

fn main_bits(revision: Revision) -> u64 {
    u64::try_from(revision.main).expect("revisions start at 1 and only grow")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ops::RangeBounds;

    fn keys() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(
            prop_oneof![Just(0u8), Just(1), Just(0xfe), Just(0xff), any::<u8>()],
            0..6,
        )
    }

    fn revisions() -> impl Strategy<Value = Revision> {
        let main = prop_oneof![0i64..4, Just(i64::MAX)];
        let sub = prop_oneof![0u32..4, Just(u32::MAX)];
        (main, sub).prop_map(|(main, sub)| Revision { main, sub })
    }

    fn holds(span: &Span, key: &[u8]) -> bool {
        <_ as RangeBounds<[u8]>>::contains(&span.bounds(), key)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn history_is_ordered_by_key_and_then_newest_first(
            left in (keys(), revisions()),
            right in (keys(), revisions()),
        ) {
            let expected = left.0.cmp(&right.0).then(right.1.cmp(&left.1));
            let found = history_key(&left.0, left.1).cmp(&history_key(&right.0, right.1));
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn the_latest_record_at_or_below_a_revision_is_one_seek(
            key in keys(),
            other in keys(),
            stored in prop::collection::btree_set(1i64..40, 0..8),
            asked in 1i64..40,
        ) {
            let mut history = std::collections::BTreeMap::new();
            for &main in &stored {
                for (owner, sub) in [(&key, 0), (&key, 1), (&other, 2)] {
                    let revision = Revision { main, sub };
                    history.insert(history_key(owner, revision), (owner.clone(), revision));
                }
            }
            let seek = history_key(&key, Revision { main: asked, sub: u32::MAX });
            let end = history_key(&key, Revision { main: 0, sub: 0 });
            let found = history.range(seek..=end).next().map(|(_, (_, revision))| revision.main);
            prop_assert_eq!(found, stored.range(..=asked).next_back().copied());
        }

        #[test]
        fn events_are_ordered_by_revision(left in revisions(), right in revisions()) {
            prop_assert_eq!(event_key(left).cmp(&event_key(right)), left.cmp(&right));
        }

        #[test]
        fn a_span_holds_exactly_the_keys_that_its_range_means(
            start in keys(),
            end in keys(),
            key in keys(),
        ) {
            let from = Bytes::from(start.clone());
            let single = span(&from, &KeyRange::Single);
            prop_assert_eq!(holds(&single, &key), key == start);
            let prefix = span(&from, &KeyRange::Prefix);
            prop_assert_eq!(holds(&prefix, &key), key.starts_with(&start));
            let after = span(&from, &KeyRange::From);
            prop_assert_eq!(holds(&after, &key), key >= start);
            let until = span(&from, &KeyRange::Until(Bytes::from(end.clone())));
            prop_assert_eq!(holds(&until, &key), key >= start && key < end);
        }
    }

    #[test]
    fn the_longest_key_fits_the_disk_however_it_escapes() {
        let worst = vec![0; KEY_BYTES_MAX];
        let revision = Revision {
            main: i64::MAX,
            sub: 0,
        };
        assert!(history_key(&worst, revision).len() <= usize::from(u16::MAX));
    }
}
