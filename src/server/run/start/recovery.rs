//! What a node finds on its disks: the log and the state, whole or not, and whether its votes can
//! still be trusted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{StartError, io_error};
use crate::kv;
use crate::kv::HeldLeases;
use crate::log::{Log, Verdict};
use crate::raft::{Configuration, Payload, Restored};
use crate::server::config::{ClusterState, Config};
use crate::server::disk::attempt::Attempt;
use crate::server::disk::bootstrap::Founding;
use crate::server::disk::data_dir::DataDir;
use crate::server::disk::file::RealDisk;
use crate::server::disk::log_thread::restore;
use crate::server::disk::places::Places;
use crate::server::disk::store::{StateStore, StoreOptions};
use crate::server::disk::{attempt, log_thread};
use crate::server::metrics::Metrics;
use crate::server::peers::members::MemberNames;
use crate::server::threads::fatal::damage_mark;
use crate::types::{LogId, LogIndex};

/// What the disks held.
pub(super) struct Found {
    pub(super) log: Log<RealDisk>,
    pub(super) places: Places,
    pub(super) store: StateStore,
    /// It ends before the log begins.
    pub(super) lacks_state: bool,
    pub(super) restored: Restored,
    pub(super) founded: bool,
    pub(super) leases: HeldLeases,
    pub(super) cluster_version: u16,
    pub(super) quarantine_warning: Option<String>,
    pub(super) warnings: Vec<String>,
    /// It may have voted before it lost its memory.
    pub(super) forgot_votes: bool,
}

impl Found {
    pub(super) fn on_disk(
        config: &Config,
        data_dir: &DataDir,
        names: &MemberNames,
        founding: &mut Founding,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, StartError> {
        // Before the log is opened, which writes to it: what a later release left stays as it is.
        StateStore::refuse_newer_format(&data_dir.state_path())?;
        let options = data_dir.log_options(config.storage.segment_bytes);
        let observed = metrics.clone();
        let disk = data_dir.log_disk().observed_by(Arc::new(move |took| {
            observed
                .storage
                .wal_fsync_seconds
                .record(took.as_secs_f64());
        }));
        let (mut log, recovery) = Log::open(disk, options)?;
        let first = names.first_configuration();
        let configuration = log_thread::configuration(&recovery, &first)?;
        // One that joins, and knows nothing yet, has somebody who took it in.
        let has_peers = configuration.members().len() != 1;
        let mut warnings = Vec::new();
        let mut quarantine_warning = None;
        // Whoever begins with nothing beside others is unproven from the start: this one had more.
        let may_have_peers = has_peers || config.cluster_state == ClusterState::Existing;
        let lost_everything = recovery.created && !founding.unproven && may_have_peers;
        if lost_everything {
            let why = "its log and its votes are gone, and it was a member before";
            let warning = quarantine_sentence(why, has_peers);
            tracing::error!("{warning}");
            quarantine_warning = Some(warning);
            founding.has_lost_everything()?;
        }
        match &recovery.verdict {
            Verdict::Clean => {}
            Verdict::TornTailCut { batches, bytes } => tracing::info!(
                batches,
                bytes,
                "the last batch of the log was never synced, and has been cut: nothing that was \
                 acknowledged is lost"
            ),
            // What is repaired is cut off, and a copy of it may be all that there is.
            Verdict::Damaged(damage) if !has_peers => {
                return Err(StartError::LogDamaged {
                    damage: format!("{}: {}", damage.place, damage.what),
                });
            }
            Verdict::Damaged(damage) => {
                let warning = quarantine_sentence(&damage.to_string(), has_peers);
                tracing::error!("{warning}");
                quarantine_warning = Some(warning);
                log.repair()?;
            }
        }
        let places = Places::new(data_dir.path());
        places
            .settle()
            .map_err(io_error("putting the state in its place"))?;
        // What is lost can be had from the log, or from peers.
        let can_be_lost = recovery.base.index == LogIndex(0) || has_peers;
        let store = open_state(
            &places,
            recovery.base,
            &store_options(config.storage.cache_bytes),
            can_be_lost,
            &mut warnings,
        )?;
        let lacks_state = store.reader().applied() < recovery.base.index;
        if lacks_state && !has_peers {
            return Err(StartError::StateLost {
                applied: store.reader().applied(),
                base: recovery.base.index,
            });
        }
        if lacks_state {
            tracing::warn!(
                applied = %store.reader().applied(),
                base = %recovery.base,
                "this node has no state: it serves nothing until a peer has sent its own, which it \
                 asks the leader for"
            );
        }
        let snapshot = store.reader().snapshot()?;
        let founded = kv::cluster_info(&snapshot)?.is_some();
        let leases = kv::held_leases(&snapshot)?;
        let cluster_version = kv::cluster_version(&snapshot)?;
        drop(snapshot);
        let applied = store.reader().applied();
        let was_quarantined = recovery.quarantined;
        let mut restored = restore(recovery, first, applied)?;
        restored.unproven = founding.unproven;
        refuse_newer_cluster(&restored, cluster_version, &config.node.data_dir)?;
        // Nobody it helps to elect could be sure of what the cluster has committed.
        restored.quarantined |= founding.emptied || lost_everything;
        if quarantine_warning.is_none()
            && let Some(why) = doubt(&restored, founding, was_quarantined, applied)
        {
            let warning = quarantine_sentence(&why, has_peers);
            tracing::error!("{warning}");
            quarantine_warning = Some(warning);
        }
        if restored.quarantined {
            // A state ahead of the log proves a loss, too; only this remembers it after a crash.
            log.begin_quarantine()?;
        }
        let mark = tripwire_mark(data_dir.path());
        restored.lease_tripped = mark.exists();
        if restored.lease_tripped {
            warnings.push(tripwire_warning(&mark));
        }
        Ok(Self {
            log,
            places,
            store,
            lacks_state,
            restored,
            founded,
            leases,
            cluster_version,
            quarantine_warning,
            warnings,
            forgot_votes: founding.emptied || lost_everything,
        })
    }
}

/// Opens the state of a node whose log begins after `base`. One that cannot be used is set aside if
/// it `can_be_lost`, and one that came from a peer is used where the log goes no further back.
fn open_state(
    places: &Places,
    base: LogId,
    options: &StoreOptions,
    can_be_lost: bool,
    warnings: &mut Vec<String>,
) -> Result<StateStore, StartError> {
    let state_path = places.state();
    let mark = damage_mark(&state_path);
    if can_be_lost && let Ok(why) = std::fs::read_to_string(&mark) {
        warnings.push(set_aside(&state_path, why.trim())?);
        std::fs::remove_file(&mark).map_err(io_error("removing the mark of damage"))?;
    }
    let marking = || io_error("marking the opening of the state");
    let (attempt, lost) = Attempt::begin(&state_path).map_err(marking())?;
    if can_be_lost && lost >= attempt::PROOF {
        let why = format!("opening it ended this process {lost} times in a row");
        warnings.push(set_aside(&state_path, &why)?);
    }
    let opened = StateStore::open(&state_path, options);
    attempt.end().map_err(marking())?;
    let mut store = match opened {
        Err(error) if error.is_damage() && can_be_lost => {
            warnings.push(set_aside(&state_path, &error.to_string())?);
            StateStore::open(&state_path, options)?
        }
        opened => opened?,
    };
    let looking = || io_error("looking for a state that came from a peer");
    if store.reader().applied() < base.index
        && let Some(received) = places.accepted(base).map_err(looking())?
    {
        drop(store);
        places
            .adopt(&received)
            .and_then(|()| places.settle())
            .map_err(io_error("putting a state from a peer in its place"))?;
        store = StateStore::open(&state_path, options)?;
        tracing::info!(base = %base, "a state that came from a peer is in use");
    }
    places.clear().map_err(looking())?;
    Ok(store)
}

/// A cluster does not go back to an older version, and what is only in the log is no exception.
fn refuse_newer_cluster(
    restored: &Restored,
    cluster_version: u16,
    data_dir: &Path,
) -> Result<(), StartError> {
    let logged = restored
        .entries
        .iter()
        .filter_map(|entry| match &entry.payload {
            Payload::Command(bytes) => kv::raises_version(bytes),
            Payload::Noop | Payload::Configuration(_) => None,
        });
    // What is only in the log may still be cut from it, but not by this program: it would apply
    // what comes instead, and could not read that either.
    let newest = logged.max().unwrap_or(cluster_version).max(cluster_version);
    if newest > kv::KNOWN_VERSIONS.newest {
        return Err(StartError::NewerCluster {
            data_dir: data_dir.to_owned(),
            found: newest,
            known: kv::KNOWN_VERSIONS,
        });
    }
    Ok(())
}

/// Why a log that can be read whole may still lack what this node has acknowledged.
fn doubt(
    restored: &Restored,
    founding: &Founding,
    was_quarantined: bool,
    applied: LogIndex,
) -> Option<String> {
    let last = restored
        .entries
        .last()
        .map_or(restored.base, |entry| entry.id);
    if founding.emptied {
        Some("the data directory of this member was empty, and its cluster exists".to_owned())
    } else if was_quarantined {
        Some("it was so before the last stop, and was not whole again by then".to_owned())
    } else if applied > last.index {
        Some(format!(
            "it ends with entry {}, and the state holds entry {applied}: its end is lost",
            last.index
        ))
    } else if restored.hard_state.term < last.term {
        // Consensus draws the same conclusion.
        Some(format!(
            "it holds entries of term {}, and the vote file knows of none after {}: that file is \
             an older one, and votes may be forgotten",
            last.term, restored.hard_state.term
        ))
    } else {
        None
    }
}

/// The file that remembers that an assumption about clocks failed on this node (P37).
pub(crate) fn tripwire_mark(data_dir: &Path) -> PathBuf {
    data_dir.join("leader-lease.tripped")
}

fn tripwire_warning(mark: &Path) -> String {
    format!(
        "this node serves no reads under a leader lease: it once held one while another node led, so \
         an assumption about clocks failed ({}); find out why, then stop the node, have it forget \
         that with `leasehold leader-lease clear`, and start it again",
        mark.display()
    )
}

/// How `cache_bytes` is shared out: most of it to current records, which answer point reads.
pub(super) fn store_options(cache_bytes: u64) -> StoreOptions {
    let records = cache_bytes / 4 * 3;
    StoreOptions {
        record_cache_bytes: usize::try_from(records).unwrap_or(usize::MAX),
        block_cache_bytes: cache_bytes - records,
        ..StoreOptions::default()
    }
}

/// What is said of a log that cannot be trusted.
fn quarantine_sentence(why: &str, has_peers: bool) -> String {
    let then = match has_peers {
        false => {
            "it has no peers to take everything anew from: restore its data directory from a copy"
        }
        true => "it takes everything anew from its peers",
    };
    format!(
        "the log of this node is damaged ({why}): it is quarantined, neither votes nor serves; {then}"
    )
}

/// Puts a state that cannot be used out of the way: the log, if it is whole, or a peer makes up for it.
fn set_aside(state: &Path, why: &str) -> Result<String, StartError> {
    let mut number = 1;
    let aside = loop {
        let candidate = state.with_extension(format!("damaged-{number}"));
        if !candidate.exists() {
            break candidate;
        }
        number += 1;
    };
    match std::fs::rename(state, &aside) {
        // Set aside by an earlier start that got no further.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        renamed => renamed.map_err(io_error("setting the damaged state aside"))?,
    }
    let warning = format!(
        "the state of this node cannot be used ({why}): it was moved to {} and is rebuilt from the \
         log, or from a peer where the log was cut; delete that folder when you have looked at it",
        aside.display()
    );
    tracing::warn!("{warning}");
    Ok(warning)
}

/// The configuration in force after all that the log holds.
pub(super) fn configuration_of(restored: &Restored) -> &Configuration {
    let entries = restored.entries.iter().rev();
    let mut configurations = entries.filter_map(|entry| match &entry.payload {
        Payload::Configuration(configuration) => Some(&**configuration),
        _ => None,
    });
    configurations
        .next()
        .unwrap_or(&restored.base_configuration)
}
