//! How keys and revisions become bytes whose order is the order we want to read in.
//!
//! `current` uses a client's key as it is. `history` holds several records per key, so the key is
//! escaped and terminated (no key's records lie between another's) and followed by the complement
//! of the revision: newest first, so that "the latest at or below a revision" is the first record
//! at or after one seek. `events` is ordered by revision.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::api::KeyRange;
pub(super) use crate::api::successor;

use super::store::{Fault, Space, Span};

/// The longest key that can be stored: escaped for `history`, it may double, and the disk's keys
/// end at 64 KiB. Servers set their own limit at or below.
pub const KEY_BYTES_MAX: usize = 16 << 10;

/// A change's place: the write's revision, and which of the write's changes it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Revision {
    /// The store-wide revision of the write; never negative.
    pub(super) main: i64,
    /// The change's number within the write.
    pub(super) sub: u32,
}

impl Revision {
    /// Before every change of the write `main`.
    pub(super) fn first(main: i64) -> Self {
        Self { main, sub: 0 }
    }

    /// The change after this one, of the same write or a later one.
    pub(super) fn next(self) -> Self {
        match self.sub.checked_add(1) {
            Some(sub) => Self { sub, ..self },
            None => Self::first(self.main + 1),
        }
    }
}

/// The key of the record that `revision` gave `key`.
pub(super) fn history_key(key: &[u8], revision: Revision) -> Bytes {
    let mut bytes = escaped(key, 2 + REVISION_BYTES);
    bytes.put_slice(&[0, 0]);
    bytes.put_u64(!main_bits(revision));
    bytes.put_u32(!revision.sub);
    bytes.into()
}

/// What `key` was at `main`: the first record of this span, if there is one.
pub(super) fn history_at(key: &[u8], main: i64) -> Span {
    Span::between(
        history_key(
            key,
            Revision {
                main,
                sub: u32::MAX,
            },
        ),
        history_end(key),
    )
}

/// The record that the write `main` gave `key`: the only one of this span.
pub(super) fn history_of(key: &[u8], main: i64) -> Span {
    let newest = Revision {
        main,
        sub: u32::MAX,
    };
    let oldest = history_key(key, Revision::first(main));
    Span::between(history_key(key, newest), successor(&oldest))
}

/// After the last record of `key` in `history`, and before the first one of any later key.
pub(super) fn history_end(key: &[u8]) -> Bytes {
    let mut bytes = escaped(key, 2);
    bytes.put_slice(&[0, 1]);
    bytes.into()
}

/// The records of the keys of `span` in `history`.
pub(super) fn history_span(span: &Span) -> Span {
    let before = |key: &Bytes| {
        let mut bytes = escaped(key, 2);
        bytes.put_slice(&[0, 0]);
        bytes.into()
    };
    match span.until() {
        Some(until) => Span::between(before(span.from()), before(until)),
        None => Span::from_key(before(span.from())),
    }
}

/// What all records of one key have in common in their keys, and which revision gave this one.
pub(super) fn history_run(bytes: &[u8]) -> Result<(&[u8], Revision), Fault> {
    let damaged = Fault::Damaged {
        space: Space::History,
        what: "a key that does not read",
    };
    let Some((prefix, mut rest)) = bytes
        .split_last_chunk::<REVISION_BYTES>()
        .map(|(p, r)| (p, &r[..]))
    else {
        return Err(damaged);
    };
    let revision = Revision {
        main: i64::try_from(!rest.get_u64()).map_err(|_| damaged)?,
        sub: !rest.get_u32(),
    };
    Ok((prefix, revision))
}

/// Whose record this is, and which revision gave it. Copies the key, which may be short beside
/// the block of the disk that `bytes` comes from.
pub(super) fn history_parts(bytes: &[u8]) -> Result<(Bytes, Revision), Fault> {
    let damaged = Fault::Damaged {
        space: Space::History,
        what: "a key that does not read",
    };
    let (prefix, revision) = history_run(bytes)?;
    let Some(key) = prefix.strip_suffix(&[0, 0]) else {
        return Err(damaged);
    };
    let mut plain = BytesMut::with_capacity(key.len());
    let mut key = key.iter();
    while let Some(&byte) = key.next() {
        plain.put_u8(byte);
        if byte == 0 && key.next() != Some(&0xff) {
            return Err(damaged);
        }
    }
    Ok((plain.freeze(), revision))
}

/// The key of the event of `revision`.
pub(super) fn event_key(revision: Revision) -> Bytes {
    let mut bytes = Vec::with_capacity(REVISION_BYTES);
    bytes.put_u64(main_bits(revision));
    bytes.put_u32(revision.sub);
    bytes.into()
}

/// Which revision's event has this key.
pub(super) fn event_revision(mut bytes: &[u8]) -> Result<Revision, Fault> {
    let damaged = Fault::Damaged {
        space: Space::Events,
        what: "a key that does not read",
    };
    if bytes.len() != REVISION_BYTES {
        return Err(damaged);
    }
    Ok(Revision {
        main: i64::try_from(bytes.get_u64()).map_err(|_| damaged)?,
        sub: bytes.get_u32(),
    })
}

/// Two numbers, at the end of a key in `history` and the whole of one in `events`.
const REVISION_BYTES: usize = 12;

/// `key` such that a terminator of two bytes can follow, with room for `more`.
fn escaped(key: &[u8], more: usize) -> Vec<u8> {
    let zeros = key.iter().filter(|byte| **byte == 0).count();
    let mut bytes = Vec::with_capacity(key.len() + zeros + more);
    let mut parts = key.split(|byte| *byte == 0);
    bytes.extend_from_slice(parts.next().unwrap_or_default());
    for part in parts {
        bytes.extend_from_slice(&[0, 0xff]);
        bytes.extend_from_slice(part);
    }
    bytes
}

/// The keys that a request means by `key` and `range`.
pub(super) fn span(key: &Bytes, range: &KeyRange) -> Span {
    match range.bounds(key) {
        (from, Some(until)) => Span::between(from, until),
        (from, None) => Span::from_key(from),
    }
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
        fn history_keys_read_as_they_were_written(key in keys(), revision in revisions()) {
            let bytes = history_key(&key, revision);
            let (read, at) = history_parts(&bytes).unwrap();
            prop_assert_eq!((&read[..], at), (&key[..], revision));
            for end in 0..bytes.len() {
                prop_assert!(history_parts(&bytes[..end]).map_or(true, |(other, _)| other != key));
            }
        }

        #[test]
        fn the_spans_of_history_hold_what_they_are_made_for(
            key in keys(),
            other in keys(),
            end in prop::option::of(keys()),
            revision in revisions(),
            main in 0i64..4,
        ) {
            let record = history_key(&other, revision);
            let same = key == other;
            prop_assert_eq!(
                holds(&history_at(&key, main), &record),
                same && revision.main <= main
            );
            prop_assert_eq!(
                holds(&history_of(&key, main), &record),
                same && revision.main == main
            );
            prop_assert_eq!(record < history_end(&key), other <= key);
            let from = Bytes::from(key.clone());
            let span = match end {
                Some(end) => Span::between(from, end.into()),
                None => Span::from_key(from),
            };
            prop_assert_eq!(holds(&history_span(&span), &record), holds(&span, &other));
        }

        #[test]
        fn keys_of_events_read_as_they_were_written(revision in revisions()) {
            prop_assert_eq!(event_revision(&event_key(revision)), Ok(revision));
            let is_last = revision.main == i64::MAX && revision.sub == u32::MAX;
            prop_assert!(is_last || event_key(revision.next()) > event_key(revision));
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
