//! What is written reads back, and what is damaged never panics and never passes for more than it is.

use std::io::Cursor;

use proptest::prelude::*;

use super::page::PAGE_BYTES;
use super::{BoltError, BoltWriter};
use crate::etcd::doors::{Pairs, read_bolt};

fn written(buckets: &[(&str, Pairs)]) -> Vec<u8> {
    let mut writer = BoltWriter::begin(Cursor::new(Vec::new())).unwrap();
    for (name, pairs) in buckets {
        for (key, value) in pairs {
            writer.put(key.clone(), value.clone()).unwrap();
        }
        writer.end_bucket(name).unwrap();
    }
    let (file, length) = writer.finish().unwrap();
    let file = file.into_inner();
    assert_eq!((file.len() as u64, file.len() % PAGE_BYTES), (length, 0));
    file
}

fn read(file: &[u8]) -> Result<Vec<(String, Pairs)>, BoltError> {
    let named =
        |(name, pairs): (Vec<u8>, Pairs)| (String::from_utf8_lossy(&name).into_owned(), pairs);
    Ok(read_bolt(file)?.into_iter().map(named).collect())
}

/// `count` keys with values of these lengths in turn.
fn pairs(count: u64, lengths: &[usize]) -> Pairs {
    let pair = |number: u64| {
        let length = lengths[number as usize % lengths.len()];
        let value = vec![number as u8; length];
        (number.to_be_bytes().to_vec(), value)
    };
    (0..count).map(pair).collect()
}

fn owned(buckets: &[(&str, Pairs)]) -> Vec<(String, Pairs)> {
    let named = buckets.iter();
    named
        .map(|(name, pairs)| ((*name).to_owned(), pairs.clone()))
        .collect()
}

#[test]
fn buckets_of_every_size_read_as_they_were_written() {
    // Leaves alone, one level of branches, two of them; values of many pages, and none.
    for count in [0, 1, 2, 100, 10_000, 60_000] {
        let buckets = [
            ("a", pairs(count, &[0, 30])),
            ("empty", Vec::new()),
            ("long", pairs(count.min(20), &[100_000, 3, 4_060, 4_064])),
        ];
        assert_eq!(read(&written(&buckets)).unwrap(), owned(&buckets));
    }
}

#[test]
fn the_older_meta_page_counts_where_the_newer_one_is_torn() {
    let buckets = [("a", pairs(3, &[5]))];
    let whole = written(&buckets);
    for at in [30, PAGE_BYTES + 30] {
        let mut torn = whole.clone();
        torn[at] ^= 1;
        assert_eq!(read(&torn).unwrap(), owned(&buckets));
    }
    let mut torn = whole;
    torn[30] ^= 1;
    torn[PAGE_BYTES + 30] ^= 1;
    assert!(matches!(read(&torn), Err(BoltError::Unknown)));
}

#[test]
fn a_file_that_goes_round_in_circles_is_damaged() {
    let mut file = written(&[("a", pairs(10_000, &[30]))]);
    let is_branch = |page: &[u8]| page[8] == 1;
    let number = file.chunks(PAGE_BYTES).position(is_branch).unwrap();
    // The first element of the branch leads to the branch.
    let element = number * PAGE_BYTES + 16;
    file[element + 8..element + 16].copy_from_slice(&(number as u64).to_le_bytes());
    let error = read(&file).unwrap_err();
    assert!(matches!(error, BoltError::Damaged { .. }), "{error}");
}

/// Otherwise each element could be as long as the page, and what a file means a thousand times its size.
#[test]
fn a_page_whose_elements_share_bytes_is_damaged() {
    let mut file = written(&[("a", pairs(20, &[30]))]);
    let is_leaf = |page: &[u8]| page[8] == 2;
    let number = file.chunks(PAGE_BYTES).position(is_leaf).unwrap();
    // The value of the first element goes on to the end of the page.
    let element = number * PAGE_BYTES + 16;
    let at = |field: usize| file[element + field..][..4].try_into().unwrap();
    let value_at = 16 + u32::from_le_bytes(at(4)) + u32::from_le_bytes(at(8));
    let rest = PAGE_BYTES as u32 - value_at;
    file[element + 12..element + 16].copy_from_slice(&rest.to_le_bytes());
    let error = read(&file).unwrap_err();
    assert!(matches!(error, BoltError::Damaged { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn what_is_written_reads_back(
        first in prop::collection::btree_map(prop::collection::vec(any::<u8>(), 0..40), prop::collection::vec(any::<u8>(), 0..6_000), 0..80),
        second in prop::collection::btree_map(prop::collection::vec(any::<u8>(), 0..4), Just(Vec::new()), 0..300),
    ) {
        let buckets = [
            ("first", first.into_iter().collect::<Pairs>()),
            ("second", second.into_iter().collect()),
        ];
        prop_assert_eq!(read(&written(&buckets)).unwrap(), owned(&buckets));
    }

    #[test]
    fn no_damage_makes_reading_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        end in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = written(&[("a", pairs(500, &[30])), ("b", pairs(2, &[9_000]))]);
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Some(end) = end {
            file.truncate(end.index(file.len()));
        }
        let _ = read(&file);
    }
}
