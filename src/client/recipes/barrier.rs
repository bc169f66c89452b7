//! Barriers: tasks wait until a barrier is lifted.

use bytes::Bytes;

use super::entry::{Entry, EntryKeys, Guard, Patience, look};
use super::session::{Session, passes};
use crate::api::{Error, SortOrder};
use crate::client::Client;

/// A barrier: it is down while at least one holder holds it, and callers wait until no holder is
/// left.
///
/// A hold is bound to the holder's session: the barrier opens when the session is lost.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::client::recipes::Barrier;
/// use std::time::Duration;
///
/// let session = client.lease().session(Duration::from_secs(10), None).await?;
/// let gate = Barrier::new(&client, "migration");
/// let held = gate.hold(&session).await?; // Waiters wait.
/// // ... the migration ...
/// held.release().await?;
/// gate.wait().await?; // Not held: does not wait.
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Barrier {
    client: Client,
    place: EntryKeys,
}

impl Barrier {
    /// The barrier `name`. Sends no request.
    pub fn new(client: &Client, name: impl AsRef<[u8]>) -> Self {
        Self {
            client: client.clone(),
            place: EntryKeys::below(name.as_ref()),
        }
    }

    /// Holds the barrier down until the guard is released.
    ///
    /// # Errors
    /// As [`Lock::acquire`](super::Lock::acquire).
    ///
    /// # Cancel safety
    /// Safe: the hold is released.
    pub async fn hold(&self, session: &Session) -> Result<Guard, Error> {
        let entry = Entry::put(session, &self.place, Bytes::new(), Patience::Insists).await?;
        Ok(Guard::new(entry))
    }

    /// Waits until there is no holder; returns at once if there is none. Keeps retrying while the
    /// cluster has no leader: apply a timeout of your own.
    ///
    /// # Errors
    /// Those of [`Client::txn`] that a retry cannot cure; the client was closed.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn wait(&self) -> Result<(), Error> {
        let places = [self.place.clone()];
        loop {
            let looked = look(&self.client, &places, (SortOrder::Ascend, 0, 1), &[]).await;
            let waited = match looked {
                Ok(looked) if looked.entries[0].is_empty() => return Ok(()),
                Ok(looked) => self.place.deleted(&self.client, looked.revision).await,
                Err(error) => Err(error),
            };
            self.client.bear(waited).await?;
        }
    }
}

impl Client {
    /// Waits after an error that a retry may cure; returns every other error to the caller.
    pub(super) async fn bear(&self, result: Result<(), Error>) -> Result<(), Error> {
        match result {
            Err(error) if passes(&error) && !self.inner.router.pool().is_closed() => {
                tokio::time::sleep(super::session::AGAIN_AFTER).await;
                Ok(())
            }
            result => result,
        }
    }
}
