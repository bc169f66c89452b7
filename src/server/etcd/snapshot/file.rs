//! A state as the data file of etcd, which etcd's own tools read and restore.
//!
//! Keys come with their history back to the last compaction, under the revisions that they have here; leases
//! with their TTL. Users and roles are not in it: etcd could not check their passwords.

use std::io;
use std::io::{Seek, Write};

use crate::api::{EventKind, KeyValue};
use crate::etcd::backup::{
    APPLIED_INDEX, APPLIED_TERM, BUCKETS, COMPACT_REVISION, COMPACTED_REVISION, KEYS, LEASES, META,
    StoredVersion, revision_bytes,
};
use crate::etcd::bbolt::BoltWriter;
use crate::etcd::convert;
use crate::etcd::proto::StoredLease;
use crate::kv;
use crate::kv::{Progress, Version, Versions, View};

/// Why no file was made.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError<E> {
    /// The state cannot be read: fatal.
    #[error("the state cannot be read")]
    State(E),
    #[error("the file cannot be written: {0}")]
    Io(#[from] io::Error),
}

/// Writes `view` to `file`, which is empty, and returns that with its length. An error of `file` ends it.
///
/// # Errors
/// See [`FileError`].
pub(super) fn write<V: View, F: Write + Seek>(
    view: &V,
    file: F,
) -> Result<(F, u64), FileError<V::Error>> {
    let mut writer = BoltWriter::begin(file)?;
    let progress = kv::progress(view).map_err(FileError::State)?;
    for bucket in BUCKETS {
        match bucket {
            KEYS => write_keys(view, &mut writer)?,
            LEASES => write_leases(view, &mut writer)?,
            META => write_progress(&progress, &mut writer)?,
            _ => {}
        }
        writer.end_bucket(bucket)?;
    }
    Ok(writer.finish()?)
}

fn write_keys<V: View, F: Write + Seek>(
    view: &V,
    writer: &mut BoltWriter<F>,
) -> Result<(), FileError<V::Error>> {
    let mut versions = Versions::of(view).map_err(FileError::State)?;
    while let Some(version) = versions.next_version().map_err(FileError::State)? {
        let (key, value) = stored(version).record();
        writer.put(key, value)?;
    }
    Ok(())
}

fn write_leases<V: View, F: Write + Seek>(
    view: &V,
    writer: &mut BoltWriter<F>,
) -> Result<(), FileError<V::Error>> {
    for terms in kv::held_leases(view).map_err(FileError::State)?.terms {
        let lease = StoredLease {
            id: terms.lease.id,
            ttl: i64::try_from(terms.ttl_ms.div_ceil(1_000)).unwrap_or(i64::MAX),
        };
        let (key, value) = lease.record();
        writer.put(key, value)?;
    }
    Ok(())
}

fn write_progress<F: Write + Seek>(
    progress: &Progress,
    writer: &mut BoltWriter<F>,
) -> io::Result<()> {
    let number = |number: u64| number.to_be_bytes().to_vec();
    writer.put(APPLIED_INDEX.to_vec(), number(progress.applied.index.0))?;
    if progress.compact_revision > 0 {
        let compacted = revision_bytes(progress.compact_revision, 0);
        writer.put(COMPACTED_REVISION.to_vec(), compacted.clone())?;
        writer.put(COMPACT_REVISION.to_vec(), compacted)?;
    }
    writer.put(APPLIED_TERM.to_vec(), number(progress.applied.term.0))
}

/// A version in etcd's words: of a deletion it has the key alone.
fn stored(version: Version) -> StoredVersion {
    let is_deleted = version.kind == EventKind::Delete;
    let kv = match is_deleted {
        true => KeyValue {
            key: version.kv.key,
            ..KeyValue::default()
        },
        false => version.kv,
    };
    StoredVersion {
        revision: version.revision,
        number: version.number.into(),
        is_deleted,
        kv: convert::key_value(kv),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Cursor;

    use super::*;
    use crate::etcd::bbolt::{BoltError, BoltReader};
    use crate::kv::MemStore;
    use crate::kv::tests::{everything, uncompacted};

    type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

    fn written(state: &MemStore) -> BTreeMap<String, Pairs> {
        let (file, length) = write(state, Cursor::new(Vec::new())).unwrap();
        let mut reader = BoltReader::open(file, length).unwrap();
        let mut found = BTreeMap::new();
        for (name, root) in reader.buckets().unwrap() {
            let mut pairs = Vec::new();
            let taken = reader.for_each(&root, |key, value| {
                pairs.push((key.to_vec(), value.to_vec()));
                Ok::<_, BoltError>(())
            });
            taken.unwrap();
            found.insert(String::from_utf8(name).unwrap(), pairs);
        }
        found
    }

    #[test]
    fn a_file_has_every_bucket_the_versions_the_leases_and_the_compaction() {
        let state = uncompacted();
        let found = written(&state);
        assert!(found.keys().eq(BUCKETS));
        let mut versions = Versions::of(&state).unwrap();
        for (key, value) in &found[KEYS] {
            let version = versions.next_version().unwrap().unwrap();
            assert_eq!(StoredVersion::read(key, value), Some(stored(version)));
        }
        assert_eq!(versions.next_version().unwrap(), None);
        assert!(found[KEYS].iter().any(|(key, _)| key.ends_with(b"t")));
        let leases = kv::held_leases(&state).unwrap().terms;
        assert_eq!(found[LEASES].len(), leases.len());
        assert_eq!(found[META].len(), 2, "nothing is compacted");
        let state = everything();
        let compact_revision = kv::progress(&state).unwrap().compact_revision;
        let compacted = revision_bytes(compact_revision, 0);
        let meta: BTreeMap<_, _> = written(&state)[META].iter().cloned().collect();
        assert_eq!(meta[COMPACT_REVISION], compacted);
        assert_eq!(meta[COMPACTED_REVISION], compacted);
    }
}
