//! Sets of key ranges; ranges that touch are merged.
//!
//! Two adjacent permissions allow a range that spans both, as in etcd; so the permissions of a user
//! are kept as ranges that neither overlap nor touch, and a range is allowed if one of them
//! contains all of it.

use bytes::Bytes;

/// Sorted ranges that do not touch. A range without an end is unbounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges {
    merged: Vec<(Bytes, Option<Bytes>)>,
}

impl Ranges {
    /// The union of the given ranges.
    pub(super) fn new(mut ranges: Vec<(Bytes, Option<Bytes>)>) -> Self {
        ranges.retain(|(from, until)| until.as_ref().is_none_or(|until| from < until));
        ranges.sort_by(|left, right| left.0.cmp(&right.0));
        let mut merged: Vec<(Bytes, Option<Bytes>)> = Vec::with_capacity(ranges.len());
        for (from, until) in ranges {
            match merged.last_mut() {
                Some((_, None)) => break,
                Some((_, Some(end))) if from <= *end => match until {
                    None => merged.last_mut().expect("there is a last").1 = None,
                    Some(until) if until > *end => *end = until,
                    Some(_) => {}
                },
                _ => merged.push((from, until)),
            }
        }
        Self { merged }
    }

    /// Whether there is nothing in them.
    pub(super) fn is_empty(&self) -> bool {
        self.merged.is_empty()
    }

    /// Whether all of `[from, until)` is in them; without an end, everything from `from` on.
    pub(super) fn hold(&self, from: &[u8], until: Option<&[u8]>) -> bool {
        let after = self.merged.partition_point(|(start, _)| start <= from);
        let Some((_, end)) = after.checked_sub(1).map(|at| &self.merged[at]) else {
            return false;
        };
        match (end, until) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(end), Some(until)) => until <= end,
        }
    }

    /// Whether `key` is in them.
    pub(super) fn hold_key(&self, key: &[u8]) -> bool {
        let after = self.merged.partition_point(|(start, _)| start <= key);
        let found = after.checked_sub(1).map(|at| &self.merged[at]);
        found.is_some_and(|(_, end)| end.as_ref().is_none_or(|end| key < end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn small() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0_u8..3, 0..3)
    }

    /// Every key of up to four letters: enough to tell ranges of shorter bounds apart.
    fn all_keys() -> Vec<Vec<u8>> {
        let mut keys = vec![Vec::new()];
        let mut last = keys.clone();
        for _ in 0..4 {
            let longer =
                |key: &Vec<u8>| (0_u8..4).map(|byte| [&key[..], &[byte]].concat()).collect();
            last = last
                .iter()
                .flat_map(|key| -> Vec<Vec<u8>> { longer(key) })
                .collect();
            keys.extend(last.iter().cloned());
        }
        keys
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_range_is_held_exactly_if_every_key_of_it_is(
            granted in prop::collection::vec((small(), prop::option::of(small())), 0..5),
            from in small(),
            until in prop::option::of(small()),
        ) {
            let ranges: Vec<(Bytes, Option<Bytes>)> = granted
                .iter()
                .map(|(from, until)| (Bytes::from(from.clone()), until.clone().map(Bytes::from)))
                .collect();
            let within = |key: &[u8], from: &[u8], until: Option<&[u8]>| {
                key >= from && until.is_none_or(|until| key < until)
            };
            let held = Ranges::new(ranges.clone());
            let any = |key: &[u8]| {
                ranges.iter().any(|(from, until)| within(key, from, until.as_deref()))
            };
            let keys = all_keys();
            for key in &keys {
                prop_assert_eq!(held.hold_key(key), any(key), "{:?}", key);
            }
            let asked = || keys.iter().filter(|key| within(key, &from, until.as_deref()));
            if asked().next().is_some() {
                let expected = asked().all(|key| any(key))
                    // Beyond the tested keys, where both are unbounded.
                    && (until.is_some() || any(&[255; 8]));
                prop_assert_eq!(held.hold(&from, until.as_deref()), expected);
            }
        }
    }
}
