//! Locks: one holder at a time, in the order of the requests.

use bytes::Bytes;

use super::entry::{Entry, EntryKeys, Guard, Patience};
use super::session::Session;
use crate::api::Error;

/// A lock. It is granted in the order of the requests; each waiter watches the one before it.
///
/// The [module's documentation](super) describes its guarantees, and how to use it. It is not
/// reentrant: a session that requests it twice waits for itself.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::client::recipes::Lock;
/// use std::time::Duration;
///
/// let session = client.lease().session(Duration::from_secs(10), None).await?;
/// let lock = Lock::new(&session, "jobs/weekly");
/// match lock.try_acquire().await? {
///     Some(held) => held.release().await?,
///     None => println!("another client holds it"),
/// }
/// let held = lock.acquire().await?; // Waits for its turn.
/// println!("token {}", held.fencing_token());
/// held.release().await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Lock {
    session: Session,
    place: EntryKeys,
}

impl Lock {
    /// The lock `name`, to be held with `session`. Sends no request.
    pub fn new(session: &Session, name: impl AsRef<[u8]>) -> Self {
        Self {
            session: session.clone(),
            place: EntryKeys::below(name.as_ref()),
        }
    }

    /// Waits until the lock is acquired.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseExpired`](crate::api::ErrorKind::LeaseExpired) if the session is lost;
    /// [`ErrorKind::Fenced`](crate::api::ErrorKind::Fenced) if the entry in the queue was deleted
    /// by another client; those of [`Client::txn`](crate::client::Client::txn) that a retry cannot
    /// cure. While there is no leader it keeps retrying.
    ///
    /// # Cancel safety
    /// Safe: the entry in the queue is removed.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        let insists = Patience::Insists;
        let entry = Entry::put(&self.session, &self.place, Bytes::new(), insists).await?;
        self.place.first(entry).await
    }

    /// Acquires the lock if it is free; `None` if it is held or has waiters.
    ///
    /// # Errors
    /// As [`Lock::acquire`]; also every error of a single request.
    ///
    /// # Cancel safety
    /// Safe: nothing is held.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        let tries = Patience::Tries;
        let entry = Entry::put(&self.session, &self.place, Bytes::new(), tries).await?;
        let places = [self.place.clone()];
        let looked = entry.ahead(&places, 1, tries).await?;
        if looked.entries[0].is_empty() {
            return Ok(Some(Guard::new(entry)));
        }
        entry.remove().await?;
        Ok(None)
    }
}

impl EntryKeys {
    /// Waits until no entry is ahead of `entry`.
    pub(super) async fn first(&self, entry: Entry) -> Result<Guard, Error> {
        let places = [self.clone()];
        loop {
            let looked = entry.ahead(&places, 1, Patience::Insists).await?;
            let [ahead] = &looked.entries;
            match ahead.first() {
                None => return Ok(Guard::new(entry)),
                Some(ahead) => entry.until_gone(&ahead.key, looked.revision).await?,
            }
        }
    }
}
