//! Elections: one leader at a time, which proclaims a value.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

use super::entry::{Entry, EntryKeys, Guard, Patience, look};
use super::session::Session;
use crate::api::{Error, ErrorKind, EventKind, KeyValue, PutRequest, SortOrder, TxnOp, TxnRequest};
use crate::client::{Client, WatchEvent, WatchOptions, Watcher};

/// An election. Candidates lead in the order of their candidacies, each until it resigns or its
/// session is lost; any client may observe the leader.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::client::recipes::Election;
/// use std::time::Duration;
///
/// let session = client.lease().session(Duration::from_secs(10), None).await?;
/// let election = Election::new(&client, "reports");
/// let leadership = election.campaign(&session, "n7").await?; // Waits for its turn.
/// leadership.proclaim("n7, since noon").await?; // Refused once another candidate leads.
///
/// let mut observer = election.observe().await?;
/// println!("{:?} leads; anybody may know", observer.next().await?);
/// println!("{:?}", election.leader().await?);
/// leadership.resign().await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    place: EntryKeys,
}

/// The leader of an election, as recorded in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The leader's key in the election.
    pub key: Bytes,
    /// The value that it proclaims.
    pub value: Bytes,
    /// Its fencing token: larger than those of all earlier leaders.
    pub fencing_token: i64,
}

impl From<&KeyValue> for Leader {
    fn from(kv: &KeyValue) -> Self {
        Self {
            key: kv.key.clone(),
            value: kv.value.clone(),
            fencing_token: kv.create_revision,
        }
    }
}

impl Election {
    /// The election `name`. Sends no request.
    pub fn new(client: &Client, name: impl AsRef<[u8]>) -> Self {
        Self {
            client: client.clone(),
            place: EntryKeys::below(name.as_ref()),
        }
    }

    /// Becomes a candidate that proclaims `value`, and waits until it is the leader.
    ///
    /// # Errors
    /// As [`Lock::acquire`](super::Lock::acquire).
    ///
    /// # Cancel safety
    /// Safe: the candidacy is withdrawn.
    pub async fn campaign(
        &self,
        session: &Session,
        value: impl Into<Bytes>,
    ) -> Result<Leadership, Error> {
        let insists = Patience::Insists;
        let entry = Entry::put(session, &self.place, value.into(), insists).await?;
        let guard = self.place.first(entry).await?;
        Ok(Leadership { guard })
    }

    /// Takes up a candidacy again that an earlier process has begun: `key` and `create_revision` are
    /// the [`Guard::key`] and the [`Guard::fencing_token`] that it had, and kept where they outlive
    /// it. If the key is still that one, it is attached to `session` from now on, keeps its place and
    /// its value, and this waits until it is the leader: at once, if it was. So a program that
    /// restarts before its lease ends goes on leading; observers are told the same leader once more.
    ///
    /// The earlier process must have ended. One that goes on holds the same token, so that the store
    /// cannot tell the two apart.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::recipes::Election;
    /// use std::time::Duration;
    ///
    /// let ttl = Duration::from_secs(10);
    /// let election = Election::new(&client, "backups");
    /// let session = client.lease().session(ttl, None).await?;
    /// let leadership = election.campaign(&session, "n7").await?;
    /// let (key, token) = (leadership.key().clone(), leadership.fencing_token());
    /// std::mem::forget(leadership); // As if the process was killed.
    ///
    /// let session = client.lease().session(ttl, None).await?;
    /// let again = election.resume(&session, key, token).await?;
    /// assert_eq!(again.fencing_token(), token);
    /// again.resign().await?;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if the key is gone, or was created by another candidate: campaign then.
    /// [`ErrorKind::InvalidArgument`] if it is no key of this election. Otherwise as
    /// [`Election::campaign`].
    ///
    /// # Cancel safety
    /// Safe: the key stays attached to whichever session it has, and the candidacy may be resumed
    /// again; once it waits behind others, it is withdrawn.
    pub async fn resume(
        &self,
        session: &Session,
        key: impl Into<Bytes>,
        create_revision: i64,
    ) -> Result<Leadership, Error> {
        let key = key.into();
        let named = KeyValue {
            key: key.clone(),
            ..KeyValue::default()
        };
        if !self.place.has(&named) {
            return Err(Error::not_applied(
                ErrorKind::InvalidArgument,
                format!(
                    "{} is no key of a candidate of this election: pass the key of its leadership",
                    String::from_utf8_lossy(&key)
                ),
            ));
        }
        let entry = Entry::resume(session, key, create_revision).await?;
        let guard = self.place.first(entry).await?;
        Ok(Leadership { guard })
    }

    /// The current leader, if there is one.
    ///
    /// # Errors
    /// As [`Client::get`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let places = [self.place.clone()];
        let looked = look(&self.client, &places, (SortOrder::Ascend, 0, 1), &[]).await?;
        let [entries] = &looked.entries;
        Ok(entries.first().map(Leader::from))
    }

    /// Observes the leader, now and from now on: every leader and every proclamation, in order,
    /// except that outdated ones may be omitted.
    ///
    /// # Errors
    /// As [`Client::watch`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn observe(&self) -> Result<Observer, Error> {
        Ok(Observer {
            election: self.clone(),
            watcher: self.watch().await?,
            candidates: BTreeMap::new(),
            told: None,
            is_synced: false,
        })
    }

    async fn watch(&self) -> Result<Watcher, Error> {
        let options = WatchOptions::new().with_prefix().with_initial_state();
        self.client.watch(self.place.prefix(), Some(options)).await
    }
}

/// Leadership of an election. Dropping it resigns; losing the session does so, too.
pub struct Leadership {
    guard: Guard,
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.guard).finish()
    }
}

impl Deref for Leadership {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl Leadership {
    /// Proclaims another value, and remains the leader.
    ///
    /// # Errors
    /// As [`Client::put`]; [`ErrorKind::Fenced`] if this candidate is no longer the leader.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn proclaim(&self, value: impl Into<Bytes>) -> Result<(), Error> {
        let put = PutRequest {
            key: self.guard.key().clone(),
            value: value.into(),
            ignore_lease: true,
            ..PutRequest::default()
        };
        let txn = TxnRequest::fenced(&[self.guard.fence()], TxnOp::Put(put))?;
        let client = self.guard.session().client();
        let proclaimed = client.txn(txn, None).await?;
        match proclaimed.succeeded {
            true => Ok(()),
            false => Err(Error::fenced(0)),
        }
    }

    /// Resigns, and waits until the cluster has recorded it.
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// Safe: the resignation goes on in the background.
    pub async fn resign(self) -> Result<(), Error> {
        self.guard.release().await
    }
}

/// Observes the leader; see [`Election::observe`].
#[derive(Debug)]
pub struct Observer {
    election: Election,
    watcher: Watcher,
    /// All candidates, in the order of their candidacies.
    candidates: BTreeMap<i64, KeyValue>,
    /// The leader that was returned last, by its revision.
    told: Option<i64>,
    is_synced: bool,
}

impl Observer {
    /// The next leader, or proclamation. Waits while there is no leader.
    ///
    /// # Errors
    /// The client was closed. The observer survives every other failure.
    ///
    /// # Cancel safety
    /// Safe: no event is lost.
    pub async fn next(&mut self) -> Result<Leader, Error> {
        loop {
            if let Some(leader) = self.news() {
                return Ok(leader);
            }
            match self.watcher.next().await {
                Some(Ok(event)) => self.take(event),
                // History that was not yet observed was compacted: read the current state.
                Some(Err(error)) if matches!(error.kind, ErrorKind::Compacted { .. }) => {
                    self.watcher = self.election.watch().await?;
                    self.begin_anew();
                }
                Some(Err(error)) => return Err(error),
                None => {
                    return Err(Error::not_applied(
                        ErrorKind::ConnectionLost,
                        "the watch of the election has ended",
                    ));
                }
            }
        }
    }

    fn begin_anew(&mut self) {
        self.candidates.clear();
        self.is_synced = false;
    }

    /// The current leader, unless it was returned already.
    fn news(&mut self) -> Option<Leader> {
        let (_, first) = self.candidates.first_key_value()?;
        let is_news = self.is_synced && self.told != Some(first.mod_revision);
        if !is_news {
            return None;
        }
        self.told = Some(first.mod_revision);
        Some(Leader::from(first))
    }

    fn take(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::State { kvs } => kvs.into_iter().for_each(|kv| self.stands(kv)),
            WatchEvent::Synced { .. } => self.is_synced = true,
            WatchEvent::Restarted { .. } => self.begin_anew(),
            WatchEvent::Events { events, .. } => {
                for event in events {
                    match event.kind {
                        EventKind::Put => self.stands(event.kv),
                        EventKind::Delete => {
                            self.candidates.retain(|_, kv| kv.key != event.kv.key);
                        }
                    }
                }
            }
            WatchEvent::Created { .. }
            | WatchEvent::Progress { .. }
            | WatchEvent::Resumed { .. } => {}
        }
    }

    fn stands(&mut self, kv: KeyValue) {
        if self.election.place.has(&kv) {
            self.candidates.insert(kv.create_revision, kv);
        }
    }
}
