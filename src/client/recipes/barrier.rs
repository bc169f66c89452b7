//! Barriers: everybody waits until they are lifted.

use bytes::Bytes;

use super::entry::{Entry, Guard, Patience, Place, look};
use super::session::{Session, passes};
use crate::api::{Error, SortOrder};
use crate::client::Client;

/// A barrier: down while anybody holds it down, and whoever comes to it waits until nobody does.
///
/// It hangs on the sessions of those who hold it: should they die, it opens.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::client::recipes::Barrier;
/// use std::time::Duration;
///
/// let session = client.lease().session(Duration::from_secs(10), None).await?;
/// let gate = Barrier::new(&client, "migration");
/// let held = gate.hold(&session).await?; // Whoever comes waits.
/// // ... the migration ...
/// held.release().await?;
/// gate.wait().await?; // Nobody holds it: does not wait.
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Barrier {
    client: Client,
    place: Place,
}

impl Barrier {
    /// The barrier `name`. Asks nobody.
    pub fn new(client: &Client, name: impl AsRef<[u8]>) -> Self {
        Self {
            client: client.clone(),
            place: Place::below(name.as_ref()),
        }
    }

    /// Holds it down until the guard is released.
    ///
    /// # Errors
    /// As [`Lock::acquire`](super::Lock::acquire).
    ///
    /// # Cancel safety
    /// Safe: it is let go.
    pub async fn hold(&self, session: &Session) -> Result<Guard, Error> {
        let entry = Entry::put(session, &self.place, Bytes::new(), Patience::Insists).await?;
        Ok(Guard::new(entry))
    }

    /// Waits until nobody holds it down; does not wait if nobody does. Goes on trying while nobody
    /// leads the cluster: give it a time limit of your own.
    ///
    /// # Errors
    /// What [`Client::txn`] is refused with; the client was closed.
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
    /// Rests after what may go well the next time; everything else is for the caller.
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
