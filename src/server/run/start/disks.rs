//! Opens and repairs a node's log and state, before consensus uses them.

use std::sync::Arc;
use std::time::Duration;

use super::error::{StartError, io_error};
use super::identity::Identity;
use super::recovery::Recovered;
use crate::kv::HeldLeases;
use crate::log::Log;
use crate::raft::RestoredState;
use crate::server::config::Config;
use crate::server::disk::file::RealDisk;
use crate::server::disk::space::{DiskPlan, bytes_below, disk_space};
use crate::server::disk::state_dirs::StateDirs;
use crate::server::disk::store::StateStore;
use crate::server::metrics::Metrics;
use crate::server::peers::members::MemberNames;
use crate::server::session::auth::Audit;
use crate::types::BootstrapId;

/// Between two looks of a start that waits for space.
const SPACE_LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// After how many of them it is said again.
const SPACE_LOOKS_TOLD: u32 = 300;

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
    pub(super) bootstrap: Option<BootstrapId>,
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
        wait_for_space(config).await;
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
                bootstrap: recovered.bootstrap,
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

/// Waits until the disk has what opening the state may take. A node that ended because its disk was full
/// would otherwise begin, and end, again and again.
async fn wait_for_space(config: &Config) {
    let data_dir = &config.node.data_dir;
    let tables = bytes_below(&StateDirs::new(data_dir).state());
    let needed = DiskPlan::of(config).needs_to_start(tables);
    let mut looks = 0_u32;
    loop {
        let (free, _) = disk_space(data_dir);
        if free >= needed {
            break;
        }
        if looks.is_multiple_of(SPACE_LOOKS_TOLD) {
            tracing::error!(
                node = %config.node.name,
                free,
                needed,
                "the disk is full: this node starts once {} has {needed} bytes free",
                data_dir.display()
            );
        }
        looks = looks.wrapping_add(1);
        tokio::time::sleep(SPACE_LOOK_INTERVAL).await;
    }
    if looks > 0 {
        tracing::warn!(node = %config.node.name, "the disk has space again: this node starts");
    }
}
