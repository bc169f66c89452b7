//! Opens and repairs a node's log and state, before consensus uses them.

use std::sync::Arc;

use super::error::{StartError, io_error};
use super::identity::Identity;
use super::recovery::Recovered;
use crate::kv::HeldLeases;
use crate::log::Log;
use crate::raft::RestoredState;
use crate::server::config::Config;
use crate::server::disk::file::RealDisk;
use crate::server::disk::state_dirs::StateDirs;
use crate::server::disk::store::StateStore;
use crate::server::metrics::Metrics;
use crate::server::peers::members::MemberNames;
use crate::server::session::auth::Audit;

/// The second stage: log and state are open and valid.
pub(super) struct Disks {
    pub(super) storage: Storage,
    pub(super) state_dirs: StateDirs,
    pub(super) replica: Replica,
    pub(super) warnings: StartWarnings,
    pub(super) audit: Option<Audit>,
}

/// The files written by the threads.
pub(super) struct Storage {
    pub(super) log: Log<RealDisk>,
    pub(super) store: StateStore,
    /// The state ends before the log begins.
    pub(super) lacks_state: bool,
}

/// The state from which the replica restarts.
pub(super) struct Replica {
    pub(super) restored: RestoredState,
    pub(super) bootstrapped: bool,
    pub(super) leases: HeldLeases,
    pub(super) cluster_version: u16,
    pub(super) names: MemberNames,
}

/// Warnings of the start, which the status shows for as long as the node runs.
pub(super) struct StartWarnings {
    pub(super) quarantine_warning: Option<String>,
    pub(super) warnings: Vec<String>,
}

impl Disks {
    /// Opens log and state, and repairs them if possible.
    pub(super) async fn new(
        config: &Config,
        identity: &Identity,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, StartError> {
        let audit = config
            .auth
            .audit_file
            .as_ref()
            .map(|path| Audit::open(path));
        let audit = audit
            .transpose()
            .map_err(io_error("opening auth.audit_file"))?;
        let open = {
            let (config, data_dir) = (config.clone(), identity.data_dir.clone());
            let (told, metrics) = (identity.initial_members.clone(), metrics.clone());
            move || Recovered::on_disk(&config, &data_dir, told, &metrics)
        };
        let recovered = match tokio::task::spawn_blocking(open).await {
            Ok(recovered) => recovered?,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        Ok(Self {
            storage: Storage {
                log: recovered.log,
                store: recovered.store,
                lacks_state: recovered.lacks_state,
            },
            state_dirs: recovered.state_dirs,
            replica: Replica {
                restored: recovered.restored,
                bootstrapped: recovered.bootstrapped,
                leases: recovered.leases,
                cluster_version: recovered.cluster_version,
                names: recovered.names,
            },
            warnings: StartWarnings {
                quarantine_warning: recovered.quarantine_warning,
                warnings: recovered.warnings,
            },
            audit,
        })
    }
}
