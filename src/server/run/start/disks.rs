//! What a node has on its disks, opened and whole, before consensus sees any of it.

use super::error::{StartError, io_error};
use super::identity::Identity;
use super::recovery::Found;
use crate::kv::HeldLeases;
use crate::log::Log;
use crate::raft::Restored;
use crate::server::config::Config;
use crate::server::disk::bootstrap::Founding;
use crate::server::disk::file::RealDisk;
use crate::server::disk::places::Places;
use crate::server::disk::store::StateStore;
use crate::server::metrics::Metrics;
use crate::server::peers::members::MemberNames;
use crate::server::session::auth::Audit;
use std::sync::Arc;

/// The second stage: log and state are open, and what they hold can be relied on.
pub(super) struct Disks {
    pub(super) storage: Storage,
    pub(super) places: Places,
    pub(super) replica: Replica,
    pub(super) notes: Notes,
    pub(super) audit: Option<Audit>,
}

/// What the threads write to.
pub(super) struct Storage {
    pub(super) log: Log<RealDisk>,
    pub(super) store: StateStore,
    /// The state ends before the log begins.
    pub(super) lacks_state: bool,
}

/// What the replica goes on from.
pub(super) struct Replica {
    pub(super) restored: Restored,
    pub(super) founded: bool,
    pub(super) leases: HeldLeases,
    pub(super) cluster_version: u16,
    pub(super) names: MemberNames,
    pub(super) founding: Founding,
}

/// What the status says of the start for as long as the node runs.
pub(super) struct Notes {
    pub(super) quarantine_warning: Option<String>,
    pub(super) warnings: Vec<String>,
}

impl Disks {
    /// Opens log and state, mends what can be mended, and waits until forgotten votes count no more.
    pub(super) async fn new(
        config: &Config,
        identity: &Identity,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, StartError> {
        let audit = config
            .auth_audit_file
            .as_ref()
            .map(|path| Audit::open(path));
        let audit = audit
            .transpose()
            .map_err(io_error("opening auth.audit_file"))?;
        let mut founding = Founding::check(config, &identity.data_dir, identity.founders.clone())?;
        let names = MemberNames::new(config, identity.cluster_id, &founding);
        let open = {
            let (config, data_dir) = (config.clone(), identity.data_dir.clone());
            let metrics = metrics.clone();
            move || {
                let found = Found::on_disk(&config, &data_dir, &names, &mut founding, &metrics);
                (found, names, founding)
            }
        };
        let (found, names, founding) = match tokio::task::spawn_blocking(open).await {
            Ok((found, names, founding)) => (found?, names, founding),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        if found.forgot_votes {
            // A vote that it does not remember may still be on its way to a candidate, and what this
            // node now promised or acknowledged to a leader would be worth nothing against that (A23).
            // Nobody waits longer for votes than an election timeout; until twice that nothing is said.
            let wait = config.timing.election_timeout_max * 2;
            tracing::info!(
                ?wait,
                "waits until votes that it may have forgotten count no more"
            );
            tokio::time::sleep(wait).await;
        }
        Ok(Self {
            storage: Storage {
                log: found.log,
                store: found.store,
                lacks_state: found.lacks_state,
            },
            places: found.places,
            replica: Replica {
                restored: found.restored,
                founded: found.founded,
                leases: found.leases,
                cluster_version: found.cluster_version,
                names,
                founding,
            },
            notes: Notes {
                quarantine_warning: found.quarantine_warning,
                warnings: found.warnings,
            },
            audit,
        })
    }
}
