//! The certificates of a client, which may be replaced while it runs.

use crate::client::options::TlsOptions;
use crate::sync::Mutex;
use crate::transport::{Endpoint, TlsStamps};

/// Where they come from, and which are in use.
#[derive(Debug)]
pub(super) struct Credentials {
    tls: TlsOptions,
    stamps: Mutex<Option<TlsStamps>>,
}

impl Credentials {
    /// Those that `tls` was just loaded from.
    pub(super) fn new(tls: TlsOptions) -> Self {
        let stamps = Mutex::new(tls.paths().and_then(|paths| paths.stamps()));
        Self { tls, stamps }
    }

    /// Has `endpoint` use what is in the files now, if they have changed. To be called before a
    /// connection is made. What cannot be used is left alone, for it may be in the middle of being
    /// written: the certificates before stay in use, and the files are looked at again the next time.
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
