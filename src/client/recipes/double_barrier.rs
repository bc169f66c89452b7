//! Double barriers: a group enters together and leaves together, round after round.
//!
//! Below the barrier's name, `here/` holds an entry of each participant, and `ready` records that a
//! round has begun, and the last entry that belongs to it. It is written, once, when enough
//! participants have entered; entries are ordered by the revisions that created them, so no
//! participant joins a round afterwards. The participant that finds the round empty ends it: the
//! last one to leave, or, if that one fails first, the next one to enter.

use std::fmt;

use bytes::Bytes;

use super::entry::{Entries, Entry, EntryKeys, Patience, changed, look};
use super::session::Session;
use crate::api::{Compare, CompareOp, Error, ErrorKind, SortOrder, TxnOp, TxnRequest};
use crate::client::WatchOptions;

/// A barrier that a group of a known size enters together and leaves together.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::client::recipes::DoubleBarrier;
/// use std::time::Duration;
///
/// let session = client.lease().session(Duration::from_secs(10), None).await?;
/// // Each of a group of one does this; larger groups wait for each other:
/// let inside = DoubleBarrier::new(&session, "round", 1).enter().await?;
/// println!("all are there: round {}", inside.round());
/// inside.leave().await?; // Once all leave.
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct DoubleBarrier {
    session: Session,
    here: EntryKeys,
    ready: Bytes,
    all: Bytes,
    count: u32,
}

impl DoubleBarrier {
    /// The double barrier `name` for groups of `count`, at least one, to be entered with `session`.
    /// Sends no request.
    pub fn new(session: &Session, name: impl AsRef<[u8]>, count: u32) -> Self {
        let place = EntryKeys::below(name.as_ref());
        Self {
            session: session.clone(),
            here: EntryKeys::below(&place.key("here")),
            ready: place.key("ready"),
            all: place.prefix().clone(),
            count: count.max(1),
        }
    }

    /// Enters, and waits until the group is complete. A participant that arrives while a group is
    /// inside, or exceeds its size, waits for the next round.
    ///
    /// # Errors
    /// As [`Lock::acquire`](super::Lock::acquire).
    ///
    /// # Cancel safety
    /// Safe: the entry is withdrawn; but a round that has begun meanwhile counts this participant
    /// as one that has left.
    pub async fn enter(&self) -> Result<Inside, Error> {
        loop {
            self.until_open().await?;
            let insists = Patience::Insists;
            let entry = Entry::put(&self.session, &self.here, Bytes::new(), insists).await?;
            match self.until_ready(&entry).await? {
                round if entry.revision() <= round.last => {
                    return Ok(Inside {
                        barrier: self.clone(),
                        entry,
                        round,
                    });
                }
                // The entry was created just as the round began, or exceeds the group's size.
                _ => entry.remove().await?,
            }
        }
    }

    /// Waits until no round is in progress.
    async fn until_open(&self) -> Result<(), Error> {
        loop {
            let looked = self.look().await?;
            let Some(round) = Round::of(&looked)? else {
                return Ok(());
            };
            match round.is_over(&looked) {
                true => self.end(round).await?,
                false => self.until_change(looked.revision).await?,
            }
        }
    }

    /// Waits until a round begins that `entry` may belong to.
    async fn until_ready(&self, entry: &Entry) -> Result<Round, Error> {
        loop {
            let looked = self.look().await?;
            let [here] = &looked.entries;
            if let Some(round) = Round::of(&looked)? {
                return Ok(round);
            }
            if !here.iter().any(|kv| kv.key == entry.key()) {
                return Err(entry.was_removed());
            }
            match here.get(self.count as usize - 1) {
                Some(last) => self.begin(last.create_revision).await?,
                None => self.until_change(looked.revision).await?,
            }
        }
    }

    /// Begins a round of all entries up to `last`, unless one has begun.
    async fn begin(&self, last: i64) -> Result<(), Error> {
        let txn = TxnRequest::new()
            .when([Compare::create_revision(
                self.ready.clone(),
                CompareOp::Equal,
                0,
            )])
            .and_then([TxnOp::put(self.ready.clone(), last.to_string())]);
        let client = self.session.client();
        let begun = self.session.insist(|| client.txn(txn.clone(), None));
        begun.await.map(|_| ())
    }

    /// Ends a round that has no participants left, unless it has ended.
    async fn end(&self, round: Round) -> Result<(), Error> {
        let txn = TxnRequest::new()
            .when([Compare::create_revision(
                self.ready.clone(),
                CompareOp::Equal,
                round.id,
            )])
            .and_then([TxnOp::delete(self.ready.clone())]);
        let client = self.session.client();
        let ended = self.session.insist(|| client.txn(txn.clone(), None));
        ended.await.map(|_| ())
    }

    /// The participants, oldest first, and whether a round is in progress.
    async fn look(&self) -> Result<Entries<1>, Error> {
        let (client, places) = (self.session.client(), [self.here.clone()]);
        let ready = [self.ready.clone()];
        let all = (SortOrder::Ascend, 0, 0);
        self.session
            .insist(|| look(client, &places, all, &ready))
            .await
    }

    async fn until_change(&self, revision: i64) -> Result<(), Error> {
        let options = WatchOptions::new().with_prefix();
        let client = self.session.client();
        let change = changed(client, &self.all, options, revision);
        self.session.until(change).await
    }
}

/// A round in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Round {
    /// The revision at which the round began.
    id: i64,
    /// Entries created up to this revision belong to the round.
    last: i64,
}

impl Round {
    fn of(looked: &Entries<1>) -> Result<Option<Self>, Error> {
        let Some(Some(ready)) = looked.beside.first() else {
            return Ok(None);
        };
        let last = std::str::from_utf8(&ready.value).ok();
        let last = last.and_then(|last| last.parse().ok()).ok_or_else(|| {
            Error::not_applied(
                ErrorKind::InvalidArgument,
                format!(
                    "{} was not written by a double barrier: its name is in use for something else",
                    String::from_utf8_lossy(&ready.key)
                ),
            )
        })?;
        Ok(Some(Self {
            id: ready.create_revision,
            last,
        }))
    }

    /// Whether the round has no participants left.
    fn is_over(self, looked: &Entries<1>) -> bool {
        let [here] = &looked.entries;
        here.iter().all(|kv| kv.create_revision > self.last)
    }
}

/// Membership in a round, from when all have entered. Dropping it leaves, without waiting for the
/// others.
pub struct Inside {
    barrier: DoubleBarrier,
    entry: Entry,
    round: Round,
}

impl fmt::Debug for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inside")
            .field("key", self.entry.key())
            .field("round", &self.round.id)
            .finish_non_exhaustive()
    }
}

impl Inside {
    /// The revision at which the round began: the same for all participants.
    pub fn round(&self) -> i64 {
        self.round.id
    }

    /// Leaves, and waits until all have left. A participant whose session is lost counts as having
    /// left.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseExpired`] if the session is lost.
    ///
    /// # Cancel safety
    /// Safe: the participant leaves in the background.
    pub async fn leave(self) -> Result<(), Error> {
        let Self {
            barrier,
            entry,
            round,
        } = self;
        entry.remove().await?;
        loop {
            let looked = barrier.look().await?;
            let goes_on = Round::of(&looked)? == Some(round);
            match (goes_on, round.is_over(&looked)) {
                (false, _) => return Ok(()),
                (true, true) => barrier.end(round).await?,
                (true, false) => barrier.until_change(looked.revision).await?,
            }
        }
    }
}
