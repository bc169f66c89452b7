//! Locks that many holders may share to read, or one may hold to write.

use bytes::Bytes;

use super::entry::{Entry, EntryKeys, Guard, Patience};
use super::session::Session;
use crate::api::Error;

/// A lock for shared reads or an exclusive write, granted in the order of the requests: a reader
/// waits for the writers before it, a writer for every request before it. So neither side starves
/// the other.
///
/// The fencing tokens of writers increase from each to the next, as those of a
/// [`Lock`](super::Lock) do.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::client::recipes::RwLock;
/// use std::time::Duration;
///
/// let session = client.lease().session(Duration::from_secs(10), None).await?;
/// let table = RwLock::new(&session, "table");
/// let (one, two) = (table.read().await?, table.read().await?); // Together.
/// one.release().await?;
/// two.release().await?;
/// let alone = table.write().await?;
/// alone.release().await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    session: Session,
    readers: EntryKeys,
    writers: EntryKeys,
}

impl RwLock {
    /// The lock `name`, to be held with `session`. Sends no request.
    pub fn new(session: &Session, name: impl AsRef<[u8]>) -> Self {
        let below = |kind: &[u8]| EntryKeys::below(&[name.as_ref(), kind].concat());
        Self {
            session: session.clone(),
            readers: below(b"/read"),
            writers: below(b"/write"),
        }
    }

    /// Waits for a read lock: until no earlier writer is left.
    ///
    /// # Errors
    /// As [`Lock::acquire`](super::Lock::acquire).
    ///
    /// # Cancel safety
    /// Safe: the entry in the queue is removed.
    pub async fn read(&self) -> Result<Guard, Error> {
        let insists = Patience::Insists;
        let entry = Entry::put(&self.session, &self.readers, Bytes::new(), insists).await?;
        // The last writer ahead is the last to release: those before it do so earlier.
        self.writers.first(entry).await
    }

    /// Waits for the write lock: until no earlier request is left.
    ///
    /// # Errors
    /// As [`Lock::acquire`](super::Lock::acquire).
    ///
    /// # Cancel safety
    /// Safe: the entry in the queue is removed.
    pub async fn write(&self) -> Result<Guard, Error> {
        let insists = Patience::Insists;
        let entry = Entry::put(&self.session, &self.writers, Bytes::new(), insists).await?;
        let places = [self.readers.clone(), self.writers.clone()];
        loop {
            let looked = entry.ahead(&places, 1, insists).await?;
            let ahead = looked.entries.iter().flatten();
            match ahead.max_by_key(|kv| kv.create_revision) {
                None => return Ok(Guard::new(entry)),
                Some(ahead) => entry.until_gone(&ahead.key, looked.revision).await?,
            }
        }
    }
}
