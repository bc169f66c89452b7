//! The hash of one record, and what a sum of them is called.

use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::store::Space;

/// The hash of a whole state.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContentHash(pub u128);

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Hashes records one at a time, each from one run of bytes: for the small records of a key-value
/// store that is faster than feeding a hasher in pieces.
pub(super) struct RecordHasher {
    bytes: Vec<u8>,
}

impl Default for RecordHasher {
    fn default() -> Self {
        Self {
            bytes: Vec::with_capacity(1024),
        }
    }
}

impl RecordHasher {
    pub(super) fn hash(&mut self, space: Space, key: &[u8], record: &[u8]) -> u128 {
        self.bytes.clear();
        self.bytes.push(space as u8);
        // The key's length keeps apart ("ab", "c") and ("a", "bc").
        self.bytes
            .extend_from_slice(&(key.len() as u64).to_be_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(record);
        xxh3_128(&self.bytes)
    }
}
