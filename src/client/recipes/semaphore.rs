//! Semaphores: so many holders at a time, in the order of asking.

use bytes::Bytes;

use super::entry::Entry;
use super::entry::Guard;
use super::entry::Patience;
use super::entry::Place;
use super::session::Session;
use crate::api::Error;
use crate::api::ErrorKind;
use crate::api::KeyValue;

/// Permits that are handed out in the order of asking, and come back when their guards are released
/// or their sessions lost.
#[derive(Clone, Debug)]
pub struct Semaphore {
    session: Session,
    place: Place,
    permits: u32,
}

impl Semaphore {
    /// The semaphore `name` with so many permits in all, at least one, to be held with `session`.
    /// Everybody has to name the same number: who finds another one is refused. Asks nobody.
    pub fn new(session: &Session, name: impl AsRef<[u8]>, permits: u32) -> Self {
        Self {
            session: session.clone(),
            place: Place::below(name.as_ref()),
            permits: permits.max(1),
        }
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// As [`Lock::acquire`](super::Lock::acquire). [`ErrorKind::InvalidArgument`] if others count with
    /// another number of permits.
    ///
    /// # Cancel safety
    /// Safe: the place in the queue is given back.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        let entry = self.enter(Patience::Insists).await?;
        let places = [self.place.clone()];
        loop {
            let limit = u64::from(self.permits);
            let looked = entry.ahead(&places, limit, Patience::Insists).await?;
            if self.has_room(&looked.entries[0])? {
                return Ok(Guard::new(entry));
            }
            let client = self.session.client();
            let deleted = self.place.deleted(client, looked.revision);
            self.session.until(deleted).await?;
        }
    }

    /// Takes a permit if one is left; `None` if not.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`]; also what keeps a single request from succeeding.
    ///
    /// # Cancel safety
    /// Safe: nothing is held.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        let entry = self.enter(Patience::Tries).await?;
        let places = [self.place.clone()];
        let limit = u64::from(self.permits);
        let looked = entry.ahead(&places, limit, Patience::Tries).await?;
        if self.has_room(&looked.entries[0])? {
            return Ok(Some(Guard::new(entry)));
        }
        entry.remove().await?;
        Ok(None)
    }

    /// An entry says how many permits its holder counts with.
    async fn enter(&self, patience: Patience) -> Result<Entry, Error> {
        let permits = Bytes::from(self.permits.to_string());
        Entry::put(&self.session, &self.place, permits, patience).await
    }

    /// Whether so many are ahead that a permit is left.
    fn has_room(&self, ahead: &[KeyValue]) -> Result<bool, Error> {
        let own = self.permits.to_string();
        if let Some(other) = ahead.iter().find(|kv| kv.value != own.as_bytes()) {
            return Err(Error::not_applied(
                ErrorKind::InvalidArgument,
                format!(
                    "the semaphore has {} permits for its other users, and {own} here: give the \
                     same number everywhere",
                    String::from_utf8_lossy(&other.value)
                ),
            ));
        }
        Ok(ahead.len() < self.permits as usize)
    }
}
