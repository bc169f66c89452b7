//! Semaphores: a number of permits, each with one holder at a time, in the order of the requests.

use bytes::Bytes;

use super::entry::{Entry, EntryKeys, Guard, Patience};
use super::session::Session;
use crate::api::{Error, ErrorKind, KeyValue};

/// Permits that are granted in the order of the requests, and returned when their guards are
/// released or their sessions lost.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::client::recipes::Semaphore;
/// use std::time::Duration;
///
/// let session = client.lease().session(Duration::from_secs(10), None).await?;
/// let slots = Semaphore::new(&session, "downloads", 3);
/// let two = slots.acquire(2).await?;
/// assert!(slots.try_acquire(2).await?.is_none(), "one is left");
/// two.release().await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    session: Session,
    place: EntryKeys,
    permits: u32,
}

impl Semaphore {
    /// The semaphore `name` with this total number of permits, at least one, to be held with
    /// `session`. All users must pass the same number: a mismatch is an error. Sends no request.
    pub fn new(session: &Session, name: impl AsRef<[u8]>, permits: u32) -> Self {
        Self {
            session: session.clone(),
            place: EntryKeys::below(name.as_ref()),
            permits: permits.max(1),
        }
    }

    /// Waits for `count` permits, which one guard holds. A request for many permits is not
    /// overtaken by later requests for fewer.
    ///
    /// # Errors
    /// As [`Lock::acquire`](super::Lock::acquire). [`ErrorKind::InvalidArgument`] if `count` is
    /// zero or more than the total, or if other users pass another total.
    ///
    /// # Cancel safety
    /// Safe: the entry in the queue is removed.
    pub async fn acquire(&self, count: u32) -> Result<Guard, Error> {
        let entry = self.enter(count, Patience::Insists).await?;
        let places = [self.place.clone()];
        loop {
            let limit = u64::from(self.permits);
            let looked = entry.ahead(&places, limit, Patience::Insists).await?;
            match self.has_room(count, &looked.entries[0]) {
                Ok(true) => return Ok(Guard::new(entry)),
                Ok(false) => {}
                Err(mismatch) => return Err(withdraw(entry, mismatch).await),
            }
            let client = self.session.client();
            let deleted = self.place.deleted(client, looked.revision);
            self.session.until(deleted).await?;
        }
    }

    /// Takes `count` permits if as many are free and no request is waiting; `None` otherwise.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`]; also every error of a single request.
    ///
    /// # Cancel safety
    /// Safe: nothing is held.
    pub async fn try_acquire(&self, count: u32) -> Result<Option<Guard>, Error> {
        let entry = self.enter(count, Patience::Tries).await?;
        let places = [self.place.clone()];
        let limit = u64::from(self.permits);
        let looked = entry.ahead(&places, limit, Patience::Tries).await?;
        match self.has_room(count, &looked.entries[0]) {
            Ok(true) => return Ok(Some(Guard::new(entry))),
            Ok(false) => {}
            Err(mismatch) => return Err(withdraw(entry, mismatch).await),
        }
        entry.remove().await?;
        Ok(None)
    }

    /// An entry records how many permits it is for, and the total that its session passed.
    async fn enter(&self, count: u32, patience: Patience) -> Result<Entry, Error> {
        if count == 0 || count > self.permits {
            return Err(Error::not_applied(
                ErrorKind::InvalidArgument,
                format!(
                    "{count} permits were requested from a semaphore that has {}: request at least \
                     one and at most all of them",
                    self.permits
                ),
            ));
        }
        let value = Bytes::from(format!("{count}/{}", self.permits));
        Entry::put(&self.session, &self.place, value, patience).await
    }

    /// Whether the entries ahead, holders and waiters, leave `count` permits: then all of them are
    /// holders.
    fn has_room(&self, count: u32, ahead: &[KeyValue]) -> Result<bool, Error> {
        let mut taken = u64::from(count);
        for kv in ahead {
            let Some((theirs, all)) = read(&kv.value) else {
                return Err(self.mismatch(kv));
            };
            if all != self.permits {
                return Err(self.mismatch(kv));
            }
            taken += u64::from(theirs);
        }
        Ok(taken <= u64::from(self.permits))
    }

    fn mismatch(&self, other: &KeyValue) -> Error {
        Error::not_applied(
            ErrorKind::InvalidArgument,
            format!(
                "the semaphore has {} permits here, but others registered {:?} (their permits, and \
                 the total): use the same number everywhere",
                self.permits,
                String::from_utf8_lossy(&other.value)
            ),
        )
    }
}

/// Removes the entry of a request that is refused: while it is there, those who pass the right total and come
/// after it would be refused, too.
async fn withdraw(entry: Entry, refusal: Error) -> Error {
    // If it cannot be removed now, its session's lease ends it.
    let _ = entry.remove().await;
    refusal
}

/// The two numbers of an entry.
fn read(value: &[u8]) -> Option<(u32, u32)> {
    let (count, all) = std::str::from_utf8(value).ok()?.split_once('/')?;
    Some((count.parse().ok()?, all.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_holds_two_numbers_and_whatever_else_lies_there_is_none() {
        assert_eq!(read(b"2/3"), Some((2, 3)));
        for other in [
            &b""[..],
            b"3",
            b"2/",
            b"/3",
            b"2/3/4",
            b"-1/3",
            b"2/x",
            b"\xff/1",
        ] {
            assert_eq!(read(other), None, "{other:?}");
        }
    }
}
