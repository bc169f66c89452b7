//! What one member of a lost cluster has becomes a cluster of its own.
//!
//! For the day on which a majority is gone for good and there is no backup that is younger. Everything that
//! the survivor has is taken: its state, and what its log holds beyond it. Neither is all that was ever
//! acknowledged (it may have lagged behind), nor only that (an entry at its end may never have been): nobody
//! is left who knows. So it is a new cluster, as a restored one is, and the survivor's own data is only read.

use bytes::Bytes;

use super::restore::{NewMember, RestoreInProgress, Restored, check_origin};
use super::{OfflineError, StoppedNode};
use crate::log::{Recovery, Verdict};
use crate::raft::{Configuration, Payload};
use crate::server::disk::log_thread;
use crate::server::disk::store::{Export, Import, ImportError, Origin, StoreOptions};
use crate::types::LogId;

/// What was made of a survivor.
#[derive(Clone, Debug)]
pub struct ForceOutcome {
    /// What the new member begins with.
    pub restored: Restored,
    /// How many entries were taken from the log beyond the state.
    pub entries: usize,
    /// What is to be known of the survivor: why another one might have had more.
    pub warnings: Vec<String>,
}

/// Makes `member`, the only one of its cluster, of what `survivor` has. Of a damaged log only what can be
/// read, and only if it `may_be_damaged`.
///
/// # Errors
/// As [`restore`](super::restore()). [`OfflineError::LogDamaged`] or [`OfflineError::StateBehindLog`]:
/// what the survivor has is not whole; or its state is damaged.
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
    check_origin(identity.cluster, snapshot.revision(), member)?;
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
        // Who voted in the old cluster means nothing in the new one.
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
    let restored = in_progress.finish(member, applied, &entries)?;
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
