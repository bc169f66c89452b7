//! Files of bbolt.

use std::io::Cursor;

use crate::etcd::bbolt::{BoltError, BoltReader, BoltWriter};

/// Keys and their values, in order.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A file with these buckets, which are in order like their keys.
pub fn write_bolt(buckets: &[(String, Pairs)]) -> Vec<u8> {
    const MEMORY: &str = "memory takes what is written";
    let mut writer = BoltWriter::begin(Cursor::new(Vec::new())).expect(MEMORY);
    for (name, pairs) in buckets {
        for (key, value) in pairs {
            writer.put(key.clone(), value.clone()).expect(MEMORY);
        }
        writer.end_bucket(name).expect(MEMORY);
    }
    writer.finish().expect(MEMORY).0.into_inner()
}

/// The buckets of a file.
///
/// # Errors
/// It is none, or is damaged.
pub fn read_bolt(file: &[u8]) -> Result<Vec<(Vec<u8>, Pairs)>, BoltError> {
    let mut reader = BoltReader::open(Cursor::new(file), file.len() as u64)?;
    let mut found = Vec::new();
    for (name, root) in reader.buckets()? {
        let mut pairs = Pairs::new();
        reader.for_each(&root, |key, value| {
            pairs.push((key.to_vec(), value.to_vec()));
            Ok::<_, BoltError>(())
        })?;
        found.push((name, pairs));
    }
    Ok(found)
}
