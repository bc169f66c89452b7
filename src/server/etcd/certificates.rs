//! The certificates of the port: loaded at the start, and again when their files have changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;

use super::tls::{ClientCertificates, TcpTls};
use crate::server::config::TlsFiles;
use crate::transport::{TlsError, TlsStamps};

/// What the port says it speaks (ALPN), the better first.
const PROTOCOLS: &[&str] = &["h2", "http/1.1"];

/// See the module.
pub(crate) struct EtcdCertificates {
    files: TlsFiles,
    clients: ClientCertificates,
    interval: Option<Duration>,
    current: ArcSwap<TcpTls>,
    /// Clients that were refused for their names, their certificates, or what they know of TLS.
    refused: AtomicU64,
}

impl EtcdCertificates {
    /// Loads the files, and looks for changes at this interval; never, if it is `None`. The users of an issuer of
    /// tokens have names with `issuer_prefix`, so no certificate has such a one.
    ///
    /// # Errors
    /// They cannot be used.
    pub(crate) fn load(
        files: &TlsFiles,
        are_required: bool,
        issuer_prefix: Option<&str>,
        interval: Option<Duration>,
    ) -> Result<Arc<Self>, TlsError> {
        let clients = ClientCertificates {
            are_required,
            allowed: files.allowed_sans.clone(),
            spiffe: files.spiffe.clone(),
            issuer_prefix: issuer_prefix
                .filter(|prefix| !prefix.is_empty())
                .map(str::to_owned),
        };
        Ok(Arc::new(Self {
            current: ArcSwap::from_pointee(load(files, &clients)?),
            files: files.clone(),
            clients,
            interval,
            refused: AtomicU64::new(0),
        }))
    }

    /// Whether every client shows a certificate.
    pub(super) fn must_be_shown(&self) -> bool {
        self.clients.must_be_shown()
    }

    /// Counts a client that was refused, and says how many there were.
    pub(super) fn count_refusal(&self) -> u64 {
        self.refused.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What new connections are accepted with.
    pub(super) fn current(&self) -> Arc<TcpTls> {
        self.current.load_full()
    }

    /// Loads the files again whenever they have changed. Those that cannot be used are reported once, and
    /// the ones before stay in use.
    pub(super) async fn look_after(&self) {
        let Some(interval) = self.interval else {
            return std::future::pending().await;
        };
        let mut known = self.files.paths().stamps();
        loop {
            tokio::time::sleep(interval).await;
            let found = self.files.paths().stamps();
            if !has_changed(known.as_ref(), found.as_ref()) {
                continue;
            }
            known = found;
            match load(&self.files, &self.clients) {
                Ok(tls) => {
                    self.current.store(Arc::new(tls));
                    tracing::info!("certificates of the etcd port reloaded");
                }
                Err(error) => tracing::warn!(
                    %error,
                    "the changed certificates of the etcd port cannot be used; the ones before stay"
                ),
            }
        }
    }
}

/// Whether there is something new to load: files that are missing are being replaced.
fn has_changed(known: Option<&TlsStamps>, found: Option<&TlsStamps>) -> bool {
    found.is_some() && known != found
}

fn load(files: &TlsFiles, clients: &ClientCertificates) -> Result<TcpTls, TlsError> {
    TcpTls::load(&files.paths(), clients, PROTOCOLS)
}
