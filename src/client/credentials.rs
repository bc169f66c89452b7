//! The certificates of a client, which may be replaced while it runs.

use crate::client::options::TlsOptions;
use crate::sync::Mutex;
use crate::transport::{Endpoint, TlsStamps};

/// The source of the certificates, and those in use.
#[derive(Debug)]
pub(super) struct Credentials {
    tls: TlsOptions,
    stamps: Mutex<Option<TlsStamps>>,
}

impl Credentials {
    /// The certificates that were just loaded from `tls`.
    pub(super) fn new(tls: TlsOptions) -> Self {
        let stamps = Mutex::new(tls.paths().and_then(|paths| paths.stamps()));
        Self { tls, stamps }
    }

    /// Makes `endpoint` use the current contents of the files, if they have changed. Call it before
    /// a connection is made. Files that cannot be used are ignored, since they may be in the middle
    /// of being written: the previous certificates stay in use, and the files are read again the
    /// next time.
    pub(super) fn renew(&self, endpoint: &Endpoint) {
        let Some(found) = self.tls.paths().and_then(|paths| paths.stamps()) else {
            return;
        };
        let mut stamps = self.stamps.lock();
        if *stamps == Some(found) {
            return;
        }
        if let Ok(tls) = self.tls.load()
            && endpoint.renew(&tls).is_ok()
        {
            *stamps = Some(found);
        }
    }
}
