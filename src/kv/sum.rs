//! Summing up a state record by record, for the receiver of a snapshot.
//!
//! A snapshot is checked by the hash that it contains (`hash.rs`). The receiver sees every record
//! once and in order, so it sums up the hash on the way and reads nothing again.

use bytes::Bytes;

use crate::api::ClusterInfo;

use super::meta::Progress;
use super::record_hash::{ContentHash, RecordHasher};
use super::store::{Fault, MemStore, Space, Store};
use super::{compaction, hash, meta};

/// The metadata of a state takes a few kilobytes; more means that the state is damaged.
const TOLD_BYTES_MAX: usize = 1 << 20;

/// Adds up the records of a state.
#[derive(Default)]
pub struct StateSum {
    hasher: RecordHasher,
    sum: u128,
    /// The metadata records of the state.
    told: MemStore,
    told_bytes: usize,
}

/// What a state holds, and whether it is what its changes made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateReport {
    /// Its progress.
    pub progress: Progress,
    /// The cluster it belongs to; `None` before the cluster's first command.
    pub cluster: Option<ClusterInfo>,
    /// The hash that every change has kept.
    pub kept: ContentHash,
    /// The hash of the received records.
    pub scanned: ContentHash,
}

impl StateReport {
    /// Whether the two hashes are equal.
    pub fn is_sound(&self) -> bool {
        self.kept == self.scanned
    }
}

impl StateSum {
    /// Adds one record. Each must be added exactly once.
    ///
    /// # Errors
    /// [`Fault::Damaged`]: there is more metadata than a state may have.
    pub fn add(&mut self, space: Space, key: &[u8], record: &[u8]) -> Result<(), Fault> {
        if matches!(space, Space::Meta | Space::Local) {
            self.told_bytes += key.len() + record.len();
            if self.told_bytes > TOLD_BYTES_MAX {
                return Err(Fault::Damaged {
                    space,
                    what: "more metadata than a state may have",
                });
            }
            let (key, record) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(record));
            self.told.put(space, key, record);
        }
        let is_hash = space == Space::Meta && key == meta::HASH;
        if space.is_replicated() && !is_hash {
            let hash = self.hasher.hash(space, key, record);
            self.sum = self.sum.wrapping_add(hash);
        }
        Ok(())
    }

    /// What all records together come to.
    ///
    /// # Errors
    /// [`Fault::Damaged`]: the metadata cannot be decoded.
    pub fn report(&self) -> Result<StateReport, Fault> {
        let ContentHash(removed) = compaction::removed(&self.told)?;
        Ok(StateReport {
            progress: meta::progress(&self.told)?,
            cluster: meta::cluster_info(&self.told)?,
            kept: hash::content_hash(&self.told)?,
            scanned: ContentHash(self.sum.wrapping_add(removed)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::store::{Span, View};
    use crate::kv::tests::everything;

    #[test]
    fn a_state_told_record_by_record_comes_to_its_own_hash() {
        let store = everything();
        let mut sum = StateSum::default();
        for space in Space::ALL {
            for pair in store.range(space, &Span::all()) {
                let (key, record) = pair.unwrap();
                sum.add(space, &key, &record).unwrap();
            }
        }
        let report = sum.report().unwrap();
        assert!(report.is_sound());
        assert_eq!(report.scanned, hash::scan(&store).unwrap());
        assert_eq!(report.progress, meta::progress(&store).unwrap());
        assert_eq!(report.cluster, meta::cluster_info(&store).unwrap());
        sum.add(Space::Current, b"one", b"more").unwrap();
        assert!(!sum.report().unwrap().is_sound());
    }

    #[test]
    fn what_a_state_says_of_itself_is_bounded() {
        let mut sum = StateSum::default();
        sum.add(Space::Current, b"k", &vec![0; TOLD_BYTES_MAX])
            .unwrap();
        sum.add(Space::Local, b"k", &vec![0; TOLD_BYTES_MAX - 1])
            .unwrap();
        assert!(sum.add(Space::Meta, b"", b"x").is_err());
    }
}
