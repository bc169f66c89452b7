//! The node's memory for requests that arrive.
//!
//! What has arrived counts, and not what is announced: five bytes announce two mebibytes, and a client that
//! sends no more would hold memory that it never needs. And a message that has begun has a time to arrive in.

use std::time::Duration;

use crate::etcd::errors::TOO_MANY_REQUESTS;
use crate::etcd::status::Status;
use crate::server::session::LocalClient;

/// How long a message takes at most from its first byte to its last.
pub(super) const ARRIVES_WITHIN: Duration = Duration::from_secs(7);
/// Bodies up to this size are not counted against the memory of a connection: the window of the connection
/// bounds those that arrive, and the number of its streams those that are to be read.
pub(super) const SMALL_BYTES: usize = 4 << 10;
/// Memory is reserved in steps of at most this size.
const STEP_BYTES_MAX: usize = 64 << 10;

/// See the module.
pub(super) struct ArrivingBytes {
    client: LocalClient,
    /// What is held for a byte.
    times: usize,
    held: Vec<Box<dyn Send + Sync>>,
    /// So much may have arrived.
    bytes: usize,
}

impl ArrivingBytes {
    /// In the budget of `client`, which holds `times` as much as has arrived.
    pub(super) fn new(client: LocalClient, times: usize) -> Self {
        Self {
            client,
            times,
            held: Vec::new(),
            bytes: SMALL_BYTES,
        }
    }

    /// So many bytes have arrived and are not taken.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<(), Status> {
        while self.bytes < bytes {
            // Twice as much, as long as that is little.
            let step = self.bytes.min(STEP_BYTES_MAX);
            let held = self.client.reserve(self.times * step);
            self.held.push(Box::new(held.ok_or(TOO_MANY_REQUESTS)?));
            self.bytes += step;
        }
        Ok(())
    }

    /// Gives everything back, if what is left is small.
    pub(super) fn release(&mut self, left: usize) {
        if left <= SMALL_BYTES {
            self.held.clear();
            self.bytes = SMALL_BYTES;
        }
    }
}
