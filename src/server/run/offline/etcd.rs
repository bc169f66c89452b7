//! Takes the keys, their history and the leases from a snapshot of etcd.
//!
//! Revisions stay what they are, so that a program which keeps one across the move can go on with it. Every
//! member of the new cluster is made from the same file, and so has the same state.

use std::fs::File;
use std::io;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use ring::digest;

use crate::api::{EventKind, KeyValue};
use crate::etcd::backup::{
    AUTH, AUTH_ENABLED, AUTH_USERS, COMPACT_REVISION, COMPACTED_REVISION, ENABLED, HASH_BYTES,
    KEYS, LEASES, META, StoredVersion, has_hash, read_compaction,
};
use crate::etcd::bbolt::{BoltError, BoltReader, BucketRoot, is_bolt};
use crate::etcd::proto::StoredLease;
use crate::kv::{LoadRefusal, LoadedLease, LoadedPart, Version};
use crate::server::disk::store::{StateStore, StoreError, StoreOptions};
use crate::types::LogId;

/// What is taken at a time.
const PART_BYTES: usize = 4 << 20;
/// What a version takes beside its key and value.
const VERSION_BYTES: usize = size_of::<Version>();
/// Of a file, to see what it is.
const BEGINNING_BYTES: u64 = 64;
const READ_BYTES: usize = 256 << 10;

/// Why a snapshot of etcd cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum EtcdFault {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] BoltError),
    /// It is not what etcd has written.
    #[error(
        "the SHA-256 at its end is not that of the file: it was cut off or changed since etcd wrote \
         it; take the snapshot again"
    )]
    Hash,
    /// It is a file of bbolt, and none of etcd.
    #[error("it has no bucket `key`: it is not the data of etcd 3")]
    NoKeys,
    /// An entry of it does not read.
    #[error("the bucket {bucket:?} holds an entry that does not read: take the snapshot again")]
    Entry {
        /// Where.
        bucket: &'static str,
    },
    /// Access to it was controlled.
    #[error(
        "etcd controls access to it: its users cannot come along, because their passwords are kept in \
         another way, and without them everybody could read and write everything; restore it with \
         --without-users, and create users and roles before clients may reach the new cluster"
    )]
    Users,
    /// The state does not take it.
    #[error(transparent)]
    Refused(#[from] LoadRefusal),
    /// The state cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<io::Error> for EtcdFault {
    fn from(error: io::Error) -> Self {
        Self::File(error.into())
    }
}

/// Whether the file at `path` is one of bbolt, as etcd's snapshots are.
pub(super) fn is_of_etcd(path: &Path) -> io::Result<bool> {
    let mut beginning = Vec::new();
    let file = File::open(path)?;
    file.take(BEGINNING_BYTES).read_to_end(&mut beginning)?;
    Ok(is_bolt(&beginning))
}

/// Makes of the snapshot at `path` the state in the directory `state`, which is empty, and returns the entry
/// with which that ends.
///
/// # Errors
/// The directory may contain a part.
pub(super) fn import(path: &Path, state: &Path, without_users: bool) -> Result<LogId, EtcdFault> {
    let mut snapshot = Snapshot::open(path)?;
    if !without_users && snapshot.has_users()? {
        return Err(EtcdFault::Users);
    }
    let mut store = StateStore::open(state, &StoreOptions::default())?;
    snapshot.load(|part| {
        store.load(part)??;
        Ok(())
    })?;
    let last = store.reader().snapshot()?.applied();
    store.close()?;
    Ok(last)
}

/// What is taken from a snapshot of etcd that is `file`, part by part; for who tries files.
///
/// # Errors
/// It is none, or is damaged.
#[doc(hidden)]
pub fn etcd_parts(file: &[u8]) -> Result<Vec<LoadedPart>, EtcdFault> {
    let mut snapshot = Snapshot::read(io::Cursor::new(file), file.len() as u64)?;
    snapshot.has_users()?;
    let mut parts = Vec::new();
    snapshot.load(|part| {
        parts.push(part);
        Ok(())
    })?;
    Ok(parts)
}

/// A snapshot that is being read.
struct Snapshot<F> {
    file: BoltReader<F>,
    buckets: Vec<(Vec<u8>, BucketRoot)>,
}

impl Snapshot<BufReader<File>> {
    fn open(path: &Path) -> Result<Self, EtcdFault> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        // A copy of a data directory has no hash.
        let hashed = match has_hash(length) {
            true => length - HASH_BYTES,
            false => length,
        };
        if hashed < length {
            check_hash(&mut file, hashed)?;
        }
        Self::read(BufReader::new(file), hashed)
    }
}

/// Compares the first `length` bytes with the hash behind them.
fn check_hash(file: &mut File, length: u64) -> Result<(), EtcdFault> {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut content = BufReader::with_capacity(READ_BYTES, &mut *file).take(length);
    let mut piece = vec![0; READ_BYTES];
    loop {
        let read = content.read(&mut piece)?;
        if read == 0 {
            break;
        }
        context.update(&piece[..read]);
    }
    let mut expected = Vec::new();
    content.into_inner().read_to_end(&mut expected)?;
    match context.finish().as_ref() == expected {
        true => Ok(()),
        false => Err(EtcdFault::Hash),
    }
}

impl<F: Read + Seek> Snapshot<F> {
    fn read(file: F, length: u64) -> Result<Self, EtcdFault> {
        let mut file = BoltReader::open(file, length)?;
        let buckets = file.buckets()?;
        Ok(Self { file, buckets })
    }

    /// The keys and values of a bucket, if it is there.
    fn for_each(
        &mut self,
        bucket: &'static str,
        take: impl FnMut(&[u8], &[u8]) -> Result<(), EtcdFault>,
    ) -> Result<(), EtcdFault> {
        let named = |(name, _): &&(Vec<u8>, BucketRoot)| name == bucket.as_bytes();
        let Some((_, root)) = self.buckets.iter().find(named) else {
            return match bucket {
                KEYS => Err(EtcdFault::NoKeys),
                _ => Ok(()),
            };
        };
        self.file.for_each(root, take)
    }

    fn has_users(&mut self) -> Result<bool, EtcdFault> {
        let mut has_users = false;
        self.for_each(AUTH, |key, value| {
            has_users |= key == AUTH_ENABLED && value == ENABLED;
            Ok(())
        })?;
        self.for_each(AUTH_USERS, |_, _| {
            has_users = true;
            Ok(())
        })?;
        Ok(has_users)
    }

    /// How far it is compacted, or was to be: etcd goes on with that when it starts.
    fn compact_revision(&mut self) -> Result<i64, EtcdFault> {
        let mut compact_revision = 0;
        self.for_each(META, |key, value| {
            if [COMPACT_REVISION, COMPACTED_REVISION].contains(&key) {
                let revision = read_compaction(value);
                let revision = revision.ok_or(EtcdFault::Entry { bucket: META })?;
                compact_revision = revision.max(compact_revision);
            }
            Ok(())
        })?;
        Ok(compact_revision)
    }

    fn leases(&mut self) -> Result<Vec<LoadedLease>, EtcdFault> {
        let mut leases = Vec::new();
        self.for_each(LEASES, |_, value| {
            let damaged = EtcdFault::Entry { bucket: LEASES };
            let lease = <StoredLease as prost::Message>::decode(value);
            let lease = lease.map_err(|_| damaged)?;
            let ttl = u64::try_from(lease.ttl).unwrap_or_default();
            leases.push(LoadedLease {
                id: lease.id,
                ttl_ms: ttl.saturating_mul(1_000),
            });
            Ok(())
        })?;
        Ok(leases)
    }

    /// Hands what it holds to `load`, part by part.
    fn load(
        &mut self,
        mut load: impl FnMut(LoadedPart) -> Result<(), EtcdFault>,
    ) -> Result<(), EtcdFault> {
        let compact_revision = self.compact_revision()?;
        let mut part = LoadedPart {
            leases: self.leases()?,
            versions: Vec::new(),
            compact_revision,
        };
        let mut bytes = 0;
        self.for_each(KEYS, |key, value| {
            let version = StoredVersion::read(key, value).and_then(version);
            let version = version.ok_or(EtcdFault::Entry { bucket: KEYS })?;
            bytes += VERSION_BYTES + value.len();
            part.versions.push(version);
            if bytes >= PART_BYTES {
                bytes = 0;
                let next = LoadedPart {
                    compact_revision,
                    ..LoadedPart::default()
                };
                load(std::mem::replace(&mut part, next))?;
            }
            Ok(())
        })?;
        load(part)
    }
}

/// A version in our own words; `None` if it has more changes than we count.
fn version(stored: StoredVersion) -> Option<Version> {
    let kv = stored.kv;
    Some(Version {
        revision: stored.revision,
        number: u32::try_from(stored.number).ok()?,
        kind: match stored.is_deleted {
            true => EventKind::Delete,
            false => EventKind::Put,
        },
        kv: KeyValue {
            key: kv.key,
            value: kv.value,
            create_revision: kv.create_revision,
            mod_revision: kv.mod_revision,
            version: kv.version,
            lease: kv.lease,
        },
    })
}
