//! The ports for operators. They open early, because opening a long log takes a while, and a probe must
//! distinguish a starting node from a dead one.

use std::sync::{Arc, OnceLock};

use super::error::StartError;
use super::identity::Identity;
use crate::server::admin::manage::ServiceSlot;
use crate::server::admin::probes::{NodeProbes, Probes};
use crate::server::admin::service::AdminService;
use crate::server::admin::{AdminServer, Pages, manage, profile};
use crate::server::config::Config;
use crate::server::metrics::Metrics;

/// The operators' ports of a node, open from the moment that its directory is locked.
pub(super) struct AdminPorts {
    pub(super) metrics: Arc<Metrics>,
    pub(super) servers: Vec<AdminServer>,
    probes: Arc<Probes>,
    slot: ServiceSlot,
}

impl AdminPorts {
    /// Opens the ports. Until [`AdminPorts::attach`] they report that the node is starting.
    pub(super) async fn new(config: &Config, identity: &Identity) -> Result<Self, StartError> {
        let metrics = Metrics::new();
        for (port, tls) in [
            (&metrics.transport.client, &identity.tls_client),
            (&metrics.transport.peer, &identity.tls_peer),
        ] {
            let ends = tls.expires_at_unix_seconds() as f64;
            port.certificate.expiry_seconds.set(ends);
        }
        let probes = Arc::new(Probes {
            metrics: metrics.clone(),
            node: OnceLock::new(),
        });
        let slot = ServiceSlot::default();
        let profiling = config.observability.profiling;
        let pages = Pages::probes(probes.clone())
            .and(manage::router(slot.clone()), manage::PATHS)
            .and(profile::router(profiling), profile::PATHS);
        let mut servers =
            vec![AdminServer::start("listen.admin", config.listen.admin, pages).await?];
        if let Some(address) = config.listen.metrics {
            let pages = Pages::probes(probes.clone());
            servers.push(AdminServer::start("listen.metrics", address, pages).await?);
        }
        Ok(Self {
            metrics,
            servers,
            probes,
            slot,
        })
    }

    /// Connects the ports to the running node.
    pub(super) fn attach(self, probes: NodeProbes, service: AdminService) -> Vec<AdminServer> {
        // Each is set here, and nowhere else.
        let _ = self.probes.node.set(Arc::new(probes));
        let _ = self.slot.set(Arc::new(service));
        self.servers
    }
}
