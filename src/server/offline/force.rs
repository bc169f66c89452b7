//! What one member of a lost cluster has becomes a cluster of its own.
//!
//! For the day on which a majority is gone for good and there is no backup that is younger. Everything that
//! the survivor has is taken: its state, and what its log holds beyond it. Neither is all that was ever
//! acknowledged (it may have lagged behind), nor only that (an entry at its end may never have been): nobody
//! is left who knows. So it is a new cluster, as a restored one is, and the survivor's own data is only read.

use super::OfflineError;
use super::StoppedNode;
use super::restore::Begun;
use super::restore::NewMember;
use super::restore::Restored;
use super::restore::check_origin;
use crate::raft::Configuration;
use crate::raft::Payload;
use crate::server::disk::log_thread;
use crate::server::disk::store::Export;
use crate::server::disk::store::Import;
use crate::server::disk::store::ImportError;
use crate::server::disk::store::Origin;
use crate::server::disk::store::StoreOptions;

/// Makes `member`, the only one of its cluster, of what `survivor` has. Also says how many entries were
/// taken from its log beyond its state.
///
/// # Errors
/// As [`restore`](super::restore()). What the survivor has is damaged, or its log does not follow upon its
/// state.
pub fn force_new_cluster(
    survivor: &StoppedNode,
    member: &NewMember,
) -> Result<(Restored, usize), OfflineError> {
    let refused = |error: ImportError| OfflineError::Import {
        path: survivor.data_dir.path().to_owned(),
        error,
    };
    let store = survivor.open_state()?;
    let snapshot = store.reader().snapshot()?;
    let identity = survivor.data_dir.identity();
    check_origin(identity.cluster, snapshot.revision(), member)?;
    let applied = snapshot.applied();
    let mut entries = Vec::new();
    for record in survivor.read_log()?.records {
        if record.id.index <= applied.index {
            continue;
        }
        let entry = log_thread::decode(record)?;
        let command = match entry.payload {
            Payload::Command(command) => Some(command),
            Payload::Noop | Payload::Configuration(_) => None,
        };
        entries.push((entry.id, command));
    }
    let begun = Begun::new(member)?;
    let origin = Origin {
        cluster: identity.cluster,
        member: identity.node(),
        // Who voted in the old cluster means nothing in the new one.
        configuration: Configuration::default(),
    };
    let mut export = Export::new(snapshot, origin)?;
    let mut import =
        Import::begin(&begun.state_path(), &StoreOptions::default()).map_err(refused)?;
    while let Some(chunk) = export.next_chunk()? {
        import.take(chunk).map_err(refused)?;
    }
    import.finish().map_err(refused)?;
    drop(export);
    store.close()?;
    let restored = begun.finish(member, applied, &entries)?;
    Ok((restored, entries.len()))
}
