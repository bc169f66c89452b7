//! Builds a new cluster from the data of one surviving member.
//!
//! Used when a majority is permanently lost and every backup is older. It takes the survivor's state and the
//! entries of its log beyond that state. These may lack acknowledged entries, because the survivor may have
//! lagged, and may include entries that were never acknowledged; without the majority this cannot be
//! decided. So the result is a new cluster, like a restored one, and the survivor's data is only read.

use bytes::Bytes;

use super::restore::{NewMember, RestoreInProgress, RestoredMember, check_origin};
use super::{OfflineError, StoppedNode};
use crate::log::{Recovery, Verdict};
use crate::raft::{Configuration, Payload};
use crate::server::disk::log_thread;
use crate::server::disk::store::{Export, Import, ImportError, Origin, StoreOptions};
use crate::types::LogId;

/// The result of a forced new cluster.
#[derive(Clone, Debug)]
pub struct ForceOutcome {
    /// The initial data of the new member.
    pub restored: RestoredMember,
    /// The number of entries taken from the log beyond the state.
    pub entries: usize,
    /// Warnings about the survivor: why another member might have held more.
    pub warnings: Vec<String>,
}

/// Creates `member`, the only one of its cluster, from the data of `survivor`. A damaged log is refused
/// unless it `may_be_damaged`; then its readable part is used.
///
/// # Errors
/// As [`restore`](super::restore()). [`OfflineError::LogDamaged`] or [`OfflineError::StateBehindLog`]:
/// the survivor's data is incomplete; or its state is damaged.
pub fn force_new_cluster(
    survivor: &StoppedNode,
    member: &NewMember,
    may_be_damaged: bool,
) -> Result<ForceOutcome, OfflineError> {
    let refused = |error: ImportError| OfflineError::Import {
        path: survivor.data_dir.path().to_owned(),
        error,
    };
    let store = survivor.open_state()?;
    let snapshot = store.reader().snapshot()?;
    let identity = survivor.data_dir.identity();
    let leap = check_origin(identity.cluster, snapshot.revision(), member)?;
    let applied = snapshot.applied();
    let log = survivor.read_log()?;
    let warnings = check_log(&log, applied, may_be_damaged)?;
    if applied.index < log.base.index {
        return Err(OfflineError::StateBehindLog {
            path: survivor.data_dir.path().to_owned(),
            applied,
            base: log.base,
        });
    }
    let entries = entries_after(applied, log)?;
    let in_progress = RestoreInProgress::new(member)?;
    let origin = Origin {
        cluster: identity.cluster,
        member: identity.node(),
        // The old cluster's configuration does not apply to the new cluster.
        configuration: Configuration::default(),
    };
    let mut export = Export::new(snapshot, origin)?;
    let mut import =
        Import::begin(&in_progress.state_path(), &StoreOptions::default()).map_err(refused)?;
    while let Some(chunk) = export.next_chunk()? {
        import.take(chunk).map_err(refused)?;
    }
    import.finish().map_err(refused)?;
    drop(export);
    store.close()?;
    let restored = in_progress.finish(member, applied, &entries, leap)?;
    Ok(ForceOutcome {
        restored,
        entries: entries.len(),
        warnings,
    })
}

/// Refuses a damaged log, unless it `may_be_damaged`. Returns why another member may hold more.
fn check_log(
    log: &Recovery,
    applied: LogId,
    may_be_damaged: bool,
) -> Result<Vec<String>, OfflineError> {
    let mut warnings = Vec::new();
    if let Verdict::Damaged(damage) = &log.verdict {
        let last = log.records.last().map_or(log.base, |record| record.id);
        let last = last.max(applied);
        if !may_be_damaged {
            let damage = damage.clone();
            return Err(OfflineError::LogDamaged { damage, last });
        }
        warnings.push(format!(
            "the log is damaged ({}: {}); nothing after entry {last} was used",
            damage.place, damage.what
        ));
    } else if log.quarantined {
        warnings.push(
            "this member was quarantined: it had lost part of its log before, and may hold fewer \
             entries than others"
                .to_owned(),
        );
    }
    Ok(warnings)
}

/// The entries of the log that the state does not contain, with their commands.
fn entries_after(
    applied: LogId,
    log: Recovery,
) -> Result<Vec<(LogId, Option<Bytes>)>, OfflineError> {
    let mut entries = Vec::new();
    for record in log.records {
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
    Ok(entries)
}
