//! How many keys are in ranges that were read, at revisions that do not change any more.
//!
//! A reply says how many keys its range holds if it is asked to, which beyond its limit takes a walk over the rest.
//! But a client that reads page by page goes on after the last key, at the same revision: what is left there is what
//! was there before, less what the page held. So a list of any length costs one walk, and not one for each page.
//!
//! What is kept is bounded, oldest first out, and only of ranges that are worth it.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::api::{RangeRequest, RangeResponse, successor};

use super::keys;

/// A walk over fewer keys takes no longer than the rest of a read.
const WORTH_KEYS: u64 = 1_000;
/// The bounds of what is kept.
const ENTRIES_MAX: usize = 1_024;
const BYTES_MAX: usize = 1 << 20;

/// See the module.
#[derive(Debug, Default)]
pub struct RangeCounts {
    kept: BTreeMap<CountedRange, u64>,
    /// In the order in which they came.
    order: VecDeque<CountedRange>,
    bytes: usize,
}

/// What was counted: the keys of a span at a revision.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CountedRange {
    revision: i64,
    from: Bytes,
    until: Option<Bytes>,
}

impl RangeCounts {
    /// How many keys the range of `request` holds, if that is known. The store is at revision `current`.
    pub fn get(&self, request: &RangeRequest, current: i64) -> Option<u64> {
        self.kept.get(&CountedRange::of(request, current)).copied()
    }

    /// Learns from what was found in a store at revision `current`.
    pub fn note(&mut self, request: &RangeRequest, current: i64, found: &RangeResponse) {
        if found.count < WORTH_KEYS || !request.count.is_whole(found.more) {
            return;
        }
        let counted = CountedRange::of(request, current);
        self.keep(counted.clone(), found.count);
        if let Some(last) = found.kvs.last()
            && found.more
            && request.is_in_key_order_and_whole()
        {
            let from = successor(&last.key);
            let left = found.count - found.kvs.len() as u64;
            self.keep(CountedRange { from, ..counted }, left);
        }
    }

    fn keep(&mut self, counted: CountedRange, count: u64) {
        let counted = counted.detached();
        let bytes = counted.bytes();
        if self.kept.insert(counted.clone(), count).is_some() {
            return;
        }
        self.bytes += bytes;
        self.order.push_back(counted);
        while self.order.len() > ENTRIES_MAX || self.bytes > BYTES_MAX {
            let oldest = self.order.pop_front().expect("something is kept");
            self.bytes -= oldest.bytes();
            self.kept.remove(&oldest);
        }
    }
}

impl CountedRange {
    fn of(request: &RangeRequest, current: i64) -> Self {
        let span = keys::span(&request.key, &request.range);
        Self {
            revision: match request.revision {
                0 => current,
                past => past,
            },
            from: span.from().clone(),
            until: span.until().cloned(),
        }
    }

    /// It holds on to no more than it needs: keys are parts of what they were read from.
    fn detached(&self) -> Self {
        Self {
            revision: self.revision,
            from: Bytes::copy_from_slice(&self.from),
            until: self.until.as_deref().map(Bytes::copy_from_slice),
        }
    }

    fn bytes(&self) -> usize {
        let until = self.until.as_ref().map_or(0, Bytes::len);
        self.from.len() + until + 2 * size_of::<Self>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{KeyRange, KeyValue};

    fn found(count: u64, last: &'static str) -> (RangeRequest, RangeResponse) {
        let request = RangeRequest {
            key: Bytes::from_static(b"k/"),
            range: KeyRange::Prefix,
            limit: 1,
            ..RangeRequest::default()
        };
        let kv = KeyValue {
            key: Bytes::from_static(last.as_bytes()),
            ..KeyValue::default()
        };
        let response = RangeResponse {
            kvs: vec![kv],
            more: true,
            count,
        };
        (request, response)
    }

    #[test]
    fn what_follows_a_page_is_known_at_its_revision_and_to_its_end() {
        let mut counts = RangeCounts::default();
        let (request, response) = found(5_000, "k/1");
        counts.note(&request, 7, &response);
        assert_eq!(counts.get(&request, 7), Some(5_000));
        let next = RangeRequest {
            key: Bytes::from_static(b"k/1\0"),
            range: KeyRange::Until(Bytes::from_static(b"k0")),
            ..request.clone()
        };
        assert_eq!(counts.get(&next, 7), Some(4_999));
        assert_eq!(counts.get(&next, 8), None);
        let further = RangeRequest {
            range: KeyRange::Until(Bytes::from_static(b"k1")),
            ..next
        };
        assert_eq!(counts.get(&further, 7), None);
    }

    #[test]
    fn what_is_filtered_or_sorted_says_nothing_of_what_follows() {
        for filtered in [
            RangeRequest {
                min_mod_revision: 3,
                ..found(5_000, "k/1").0
            },
            RangeRequest {
                sort_order: crate::api::SortOrder::Descend,
                ..found(5_000, "k/1").0
            },
        ] {
            let mut counts = RangeCounts::default();
            counts.note(&filtered, 7, &found(5_000, "k/1").1);
            assert_eq!(counts.get(&filtered, 7), Some(5_000));
            assert_eq!(counts.kept.len(), 1, "{filtered:?}");
        }
    }

    #[test]
    fn it_is_bounded_and_small_ranges_are_walked_over() {
        let mut counts = RangeCounts::default();
        let (request, response) = found(WORTH_KEYS - 1, "k/1");
        counts.note(&request, 7, &response);
        assert_eq!(counts.get(&request, 7), None);
        let (request, response) = found(5_000, "k/1");
        for revision in 0..2_000 {
            counts.note(&request, revision, &response);
        }
        assert_eq!(counts.kept.len(), ENTRIES_MAX);
        assert_eq!(counts.order.len(), ENTRIES_MAX);
        assert_eq!(counts.get(&request, 0), None);
        assert_eq!(counts.get(&request, 1_999), Some(5_000));
        let long = RangeRequest {
            key: Bytes::from(vec![b'k'; BYTES_MAX]),
            ..request
        };
        counts.note(&long, 1, &found(5_000, "k/1").1);
        assert!(counts.bytes <= BYTES_MAX, "{}", counts.bytes);
        assert_eq!(counts.kept.len(), counts.order.len());
    }
}
