//! Certificates that change while a node runs, and the keys of an issuer of tokens.
//!
//! The files are checked at intervals, and at once on request. New ones are loaded and
//! trusted from the next connection on; open connections stay, unless the other side
//! would be rejected now: its certificate has expired, or its authority is no longer trusted.
//! Such connections are closed; a peer with a valid certificate connects again.
//!
//! Unusable files change nothing: the certificates in use stay, the error is reported once, and the files
//! are checked again, since another process may be writing them. But a key that a list of keys names no more is
//! not used any more, whatever else is wrong with the list.

use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::UnixTime;
use tokio::sync::Notify;

use super::start::StartError;
use crate::server::config::TlsFiles;
use crate::server::disk::tls::load_tls;
use crate::server::metrics::{CertificateMetrics, Metrics, ReloadResult};
use crate::server::session::auth::Issuer;
use crate::server::status::reload::ReloadReports;
use crate::transport::{Endpoint, TlsStamps};
use crate::types::ClusterId;

/// Interval between checks for connections whose certificates have expired.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// One port of a node.
#[derive(Debug)]
pub(crate) struct PortCertificate {
    section: &'static str,
    files: TlsFiles,
    endpoint: Endpoint,
    /// The content of the files when they were last loaded.
    stamps: Option<TlsStamps>,
    /// The last reported error.
    complaint: Option<String>,
}

impl PortCertificate {
    /// The certificates of a port that was opened with what is in `files`.
    pub(crate) fn new(section: &'static str, files: &TlsFiles, endpoint: Endpoint) -> Self {
        Self {
            section,
            stamps: files.paths().stamps(),
            files: files.clone(),
            endpoint,
            complaint: None,
        }
    }
}

/// The keys of an issuer of tokens.
pub(crate) struct IssuerKeys {
    issuer: Arc<Issuer>,
    /// The last reported error.
    complaint: Option<String>,
}

impl IssuerKeys {
    /// The keys that were read at the start.
    pub(crate) fn new(issuer: Arc<Issuer>) -> Self {
        Self {
            issuer,
            complaint: None,
        }
    }

    /// # Cancel safety
    /// Safe: the keys are then used without a word.
    async fn renew(&mut self) {
        let issuer = Arc::clone(&self.issuer);
        // The file may be of a machine that does not answer.
        let Ok(renewed) = tokio::task::spawn_blocking(move || issuer.reload()).await else {
            return;
        };
        match renewed {
            Ok(changed) => {
                self.complaint = None;
                match changed {
                    None => {}
                    Some(0) => tracing::warn!(
                        "the issuer of tokens has no keys any more: its tokens are refused"
                    ),
                    Some(_) => tracing::info!("new keys of the issuer of tokens loaded"),
                }
            }
            Err(error) => {
                let complaint = error.to_string();
                if self.complaint.as_ref() != Some(&complaint) {
                    tracing::error!(
                        "the changed keys of the issuer of tokens cannot be used; the previous ones stay \
                         in use that the file still lists, or all if it has no list: {complaint}"
                    );
                }
                self.complaint = Some(complaint);
            }
        }
    }
}

/// Reloads the certificates of a node.
pub(crate) struct Certificates {
    pub(crate) name: String,
    pub(crate) cluster_id: ClusterId,
    pub(crate) client: PortCertificate,
    pub(crate) peer: PortCertificate,
    pub(crate) issuer: Option<IssuerKeys>,
    /// Interval between checks of the files; zero disables them.
    pub(crate) interval: Option<Duration>,
    pub(crate) asked: Arc<Notify>,
    /// Receives the result of each reload that was requested.
    pub(crate) told: Arc<ReloadReports>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Certificates {
    /// Checks and reloads the files until the future is dropped.
    pub(crate) async fn look_after(mut self) {
        loop {
            let pause = self.interval.unwrap_or(SWEEP_INTERVAL).min(SWEEP_INTERVAL);
            let asked = tokio::time::timeout(pause, self.asked.notified()).await;
            if asked.is_ok() || self.interval.is_some() {
                let metrics = self.metrics.clone();
                let (name, cluster) = (self.name.clone(), self.cluster_id);
                for (port_certificate, port) in [
                    (&mut self.client, &metrics.transport.client.certificate),
                    (&mut self.peer, &metrics.transport.peer.certificate),
                ] {
                    renew(port_certificate, port, &name, cluster, asked.is_ok());
                }
                if let Some(issuer) = &mut self.issuer {
                    issuer.renew().await;
                }
            }
            if asked.is_ok() {
                let complaints = [
                    self.client.complaint.clone(),
                    self.peer.complaint.clone(),
                    self.issuer
                        .as_ref()
                        .and_then(|issuer| issuer.complaint.clone()),
                ];
                self.told.report(complaints.into_iter().flatten().collect());
            }
            for port_certificate in [&self.client, &self.peer] {
                let closed = port_certificate.endpoint.close_untrusted(UnixTime::now());
                if closed > 0 {
                    tracing::info!(
                        port = port_certificate.section,
                        connections = closed,
                        "closed connections whose certificates are no longer trusted"
                    );
                }
            }
        }
    }
}

/// Loads the files that have changed, or all of them if `asked`.
fn renew(
    port_certificate: &mut PortCertificate,
    port: &CertificateMetrics,
    name: &str,
    cluster: ClusterId,
    asked: bool,
) {
    let found = port_certificate.files.paths().stamps();
    if found == port_certificate.stamps && !asked {
        return;
    }
    let renewed = load_tls(port_certificate.section, &port_certificate.files, name)
        .map_err(StartError::from)
        .and_then(|tls| {
            if tls.cluster_id() != cluster {
                return Err(StartError::CertificateOfAnotherCluster {
                    section: port_certificate.section,
                    found: tls.cluster_id(),
                    cluster,
                });
            }
            Ok(tls)
        })
        .map_err(|error| error.to_string())
        .and_then(|tls| match port_certificate.endpoint.renew(&tls) {
            Ok(()) => Ok(tls),
            Err(error) => Err(format!("[tls.{}] {error}", port_certificate.section)),
        });
    match renewed {
        Ok(tls) => {
            // A file written during the load differs from the content seen before, so the next check
            // loads it.
            port_certificate.stamps = found;
            port_certificate.complaint = None;
            let ends = tls.expires_at_unix_seconds() as f64;
            port.expiry_seconds.set(ends);
            port.reloads[ReloadResult::Ok].increment(1);
            tracing::info!(port = port_certificate.section, "new certificates loaded");
        }
        Err(complaint) => {
            if port_certificate.complaint.as_ref() != Some(&complaint) {
                port.reloads[ReloadResult::Failed].increment(1);
                tracing::error!(
                    port = port_certificate.section,
                    "the changed certificates cannot be used; the previous ones stay in use: \
                     {complaint}"
                );
            }
            port_certificate.complaint = Some(complaint);
        }
    }
}
