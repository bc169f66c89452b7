//! Locks that many may share to read, or one may hold to write.

use bytes::Bytes;

use super::entry::{Entry, Guard, Patience, Place};
use super::session::Session;
use crate::api::Error;

/// A lock for reading together or writing alone, in the order of asking: who asks to read waits for
/// the writers that asked before, who asks to write for everybody that did. So neither side starves
/// the other.
///
/// The fencing tokens of writers grow from each to the next, as those of a [`Lock`](super::Lock) do.
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
    readers: Place,
    writers: Place,
}

impl RwLock {
    /// The lock `name`, to be held with `session`. Asks nobody.
    pub fn new(session: &Session, name: impl AsRef<[u8]>) -> Self {
        let below = |kind: &[u8]| Place::below(&[name.as_ref(), kind].concat());
        Self {
            session: session.clone(),
            readers: below(b"/read"),
            writers: below(b"/write"),
        }
    }

    /// Waits until this may read: until no writer that asked before is left.
    ///
    /// # Errors
    /// As [`Lock::acquire`](super::Lock::acquire).
    ///
    /// # Cancel safety
    /// Safe: the place in the queue is given back.
    pub async fn read(&self) -> Result<Guard, Error> {
        let insists = Patience::Insists;
        let entry = Entry::put(&self.session, &self.readers, Bytes::new(), insists).await?;
        // The last writer ahead is the last to let go: those before it do so earlier.
        self.writers.first(entry).await
    }

    /// Waits until this may write: until nobody that asked before is left.
    ///
    /// # Errors
    /// As [`Lock::acquire`](super::Lock::acquire).
    ///
    /// # Cancel safety
    /// Safe: the place in the queue is given back.
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
