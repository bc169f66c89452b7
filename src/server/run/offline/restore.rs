//! Restores a backup into the data directory of a member of a new cluster.
//!
//! Every member is restored from the same backup, on its own machine and without communication. So
//! everything on which members must agree follows from the file and from equal arguments: the state, its
//! log index, and the voters. Their logs begin after that index, and the first leader bootstraps the
//! cluster like an empty one.
//!
//! The identity file is written last, and a node refuses to start on a directory without it. So an
//! interrupted restore cannot be mistaken for a member.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use xxhash_rust::xxh3::xxh3_128;

use super::{OfflineError, etcd};
use crate::kv::{ContentHash, Space, Span, View};
use crate::log::{Log, LogOptions, Vote};
use crate::node::recovery::UnprovenReason;
use crate::raft::{Configuration, LogBase};
use crate::server::disk::data_dir::{DataDir, Identity, NewDataDir};
use crate::server::disk::store::{Import, ImportError, StateStore, StoreError, StoreOptions};
use crate::server::disk::{bootstrap, log_thread};
use crate::transport::PeerIdentity;
use crate::types::{ClusterId, Incarnation, LogId, LogIndex, NodeId};
use crate::wire::state::{Chunks, ReadFault, StateDecoder, StateFault, StateHeader, StateSummary};

/// Entries applied in one step.
const ENTRIES_PER_BATCH: usize = 128;

/// The amount added to the revision of a backup, unless another one is chosen.
const LEAP: i64 = 1_000_000_000;

/// The member to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// The data directory: empty or missing.
    pub data_dir: PathBuf,
    /// The new cluster.
    pub cluster: ClusterId,
    /// Its name.
    pub name: String,
    /// The names of all initial members.
    pub members: Vec<String>,
    /// The amount added to the revision; 0 keeps the revision and the history. `None` for what the
    /// origin demands: a thousand million, or none for a snapshot of etcd.
    pub leap: Option<i64>,
}

/// The initial data of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredMember {
    /// The member id.
    pub member: NodeId,
    /// Where its log begins: the same on all members.
    pub base: LogId,
    /// The store-wide revision.
    pub revision: i64,
    /// The number of keys.
    pub keys: u64,
    /// The number of client leases.
    pub leases: u64,
    /// The hash of everything stored: the same on all members.
    pub hash: ContentHash,
}

/// Creates a data directory from a backup, or from a snapshot of etcd: of one that has users only
/// `without_users`.
///
/// # Errors
/// The directory may contain partial data, on which no node starts: empty it before the next attempt.
pub fn restore(
    backup: &Path,
    member: &NewMember,
    without_users: bool,
) -> Result<RestoredMember, OfflineError> {
    let is_of_etcd = etcd::is_of_etcd(backup).map_err(|error| fault(backup)(error.into()))?;
    if is_of_etcd {
        let in_progress = RestoreInProgress::new(member)?;
        let imported = etcd::import(backup, &in_progress.state_path(), without_users);
        let last = imported.map_err(|fault| OfflineError::Etcd {
            path: backup.to_owned(),
            fault,
        })?;
        return in_progress.finish(member, last, &[], member.leap.unwrap_or(0));
    }
    // Checks that the file is a backup before anything is created.
    let header = read_header(backup)?;
    let leap = check_origin(header.cluster, header.revision, member)?;
    let in_progress = RestoreInProgress::new(member)?;
    let summary = import(backup, &in_progress.state_path())?;
    in_progress.finish(member, summary.header.base.id, &[], leap)
}

/// A member whose directory is being filled.
pub(super) struct RestoreInProgress {
    new: NewDataDir,
    voters: BTreeSet<NodeId>,
}

impl RestoreInProgress {
    pub(super) fn new(member: &NewMember) -> Result<Self, OfflineError> {
        let voters = voters(member)?;
        let identity = Identity {
            cluster: member.cluster,
            node_name: member.name.clone(),
            incarnation: Incarnation(0),
        };
        let new = NewDataDir::begin(&member.data_dir, &identity)?;
        Ok(Self { new, voters })
    }

    /// The path for its state.
    pub(super) fn state_path(&self) -> PathBuf {
        self.new.unfinished().state_path()
    }

    /// Applies `entries` to the imported state, which ends with the entry `last`, and turns the result into
    /// the initial state of the new cluster, its revision raised by `leap`.
    pub(super) fn finish(
        self,
        member: &NewMember,
        last: LogId,
        entries: &[(LogId, Option<Bytes>)],
        leap: i64,
    ) -> Result<RestoredMember, OfflineError> {
        let data_dir = self.new.unfinished();
        let mut store = StateStore::open(&data_dir.state_path(), &StoreOptions::default())?;
        for batch in entries.chunks(ENTRIES_PER_BATCH) {
            store.apply_batch(batch)?;
        }
        let report = store.reset_identity(leap)?;
        if !report.is_sound() {
            let detail = "the restored data differs from what was written".to_owned();
            return Err(StoreError::Damaged { detail }.into());
        }
        let keys = store.reader().snapshot()?;
        let keys = keys.count(Space::Current, &Span::all())?;
        store.close()?;
        let base = LogBase {
            id: entries.last().map_or(last, |(id, _)| *id),
            configuration: Configuration {
                voters: self.voters,
                ..Configuration::default()
            },
        };
        write_log(data_dir, &base)?;
        let why = UnprovenReason::Restored {
            base: base.id.index,
            hash: origin_hash(&base, report.kept, report.progress.revision),
        };
        let marked = bootstrap::write_unproven(data_dir.path(), why);
        let remembered =
            marked.and_then(|()| bootstrap::write(data_dir.path(), member.members.clone()));
        remembered.map_err(|error| OfflineError::Io {
            path: data_dir.path().to_owned(),
            error,
        })?;
        let id = data_dir.identity().node();
        self.new.finish()?;
        Ok(RestoredMember {
            member: id,
            base: base.id,
            revision: report.progress.revision,
            keys,
            leases: report.progress.leases,
            hash: report.kept,
        })
    }
}

/// The cluster that a node's certificate belongs to.
///
/// # Errors
/// The certificate was not issued to the node `name`.
pub fn cluster_of_certificate(path: &Path, name: &str) -> Result<ClusterId, OfflineError> {
    let invalid = |reason: String| OfflineError::Invalid {
        reason: format!("{}: {reason}", path.display()),
    };
    let der = CertificateDer::from_pem_file(path)
        .map_err(|error| invalid(format!("no certificate can be read from it ({error})")))?;
    let identity =
        PeerIdentity::of_certificate(&der).map_err(|error| invalid(error.to_string()))?;
    if !identity.is_node() || identity.name() != name {
        return Err(invalid(format!(
            "this is the certificate of {identity}, but the node to restore is {name:?}: use one \
             issued to it"
        )));
    }
    Ok(identity.cluster_id)
}

/// The hash of what a member is restored with: only members with the same one bootstrap a cluster (A26).
fn origin_hash(base: &LogBase, content: ContentHash, revision: i64) -> u128 {
    let mut bytes = Vec::new();
    bytes.extend(base.id.index.0.to_le_bytes());
    bytes.extend(base.id.term.0.to_le_bytes());
    bytes.extend(content.0.to_le_bytes());
    bytes.extend(revision.to_le_bytes());
    for voter in &base.configuration.voters {
        bytes.extend(voter.0.to_le_bytes());
    }
    xxh3_128(&bytes)
}

fn voters(member: &NewMember) -> Result<BTreeSet<NodeId>, OfflineError> {
    let invalid = |reason: String| Err(OfflineError::Invalid { reason });
    let id = |name: &String| NodeId::derive(member.cluster, name, Incarnation(0));
    let voters: BTreeSet<_> = member.members.iter().map(id).collect();
    if voters.len() < member.members.len() {
        return invalid("a member is named twice: name each once".to_owned());
    }
    if !member.members.contains(&member.name) {
        return invalid(format!(
            "{:?} is not among the initial members {:?}: name all of them, as in the configuration of \
             each node",
            member.name, member.members
        ));
    }
    if member.leap.is_some_and(|leap| leap < 0) {
        return invalid("the revision can be raised and never lowered".to_owned());
    }
    Ok(voters)
}

/// Checks that data of `cluster` at `revision` may become that of `member`, and returns by how much its
/// revision is raised.
pub(super) fn check_origin(
    cluster: ClusterId,
    revision: i64,
    member: &NewMember,
) -> Result<i64, OfflineError> {
    let leap = member.leap.unwrap_or(LEAP);
    if cluster == member.cluster {
        return Err(OfflineError::SameCluster { cluster });
    }
    if revision.checked_add(leap).is_none() {
        return Err(OfflineError::Invalid {
            reason: format!(
                "what there is is at revision {revision}, which cannot be raised by {leap}: raise it by less"
            ),
        });
    }
    Ok(leap)
}

fn chunks(backup: &Path) -> Result<Chunks<File>, OfflineError> {
    let file = File::open(backup).map_err(|error| fault(backup)(error.into()))?;
    Ok(Chunks::new(file))
}

fn fault(backup: &Path) -> impl Fn(ReadFault) -> OfflineError {
    move |fault| OfflineError::Backup {
        path: backup.to_owned(),
        fault,
    }
}

fn read_header(backup: &Path) -> Result<StateHeader, OfflineError> {
    let first = chunks(backup)?.next_chunk().map_err(fault(backup))?;
    let first = first.ok_or_else(|| fault(backup)(StateFault::Cut { chunks: 0 }.into()))?;
    let mut decoder = StateDecoder::new();
    let taken = decoder.take(first);
    taken.map_err(|error| fault(backup)(error.into()))?;
    Ok(decoder
        .header()
        .expect("the first chunk is the header")
        .clone())
}

fn import(backup: &Path, state: &Path) -> Result<StateSummary, OfflineError> {
    let refused = |error: ImportError| OfflineError::Import {
        path: backup.to_owned(),
        error,
    };
    let mut import = Import::begin(state, &StoreOptions::default()).map_err(refused)?;
    let mut chunks = chunks(backup)?;
    while let Some(chunk) = chunks.next_chunk().map_err(fault(backup))? {
        import.take(chunk).map_err(refused)?;
    }
    import.finish().map_err(refused)
}

/// Creates a log that begins after `base`, and a vote file with its term.
fn write_log(data_dir: &DataDir, base: &LogBase) -> Result<(), OfflineError> {
    // Small, because later segments have the configured size.
    let options = data_dir.log_options(LogOptions::SEGMENT_BYTES_DEV);
    let (mut log, _) = Log::open(data_dir.log_disk(), options)?;
    log.save_vote(Vote {
        term: base.id.term,
        ..Vote::default()
    })?;
    // An empty state has no applied entry, so its log starts at the beginning.
    if base.id.index > LogIndex(0) {
        log.write(&[log_thread::encode_base(base.clone())])?;
    }
    log.close()?;
    Ok(())
}
