//! Registries: the instances of a service that are alive.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;

use bytes::Bytes;

use super::entry::EntryKeys;
use super::session::{Session, passes};
use crate::api::{Compare, CompareOp, Error, ErrorKind, EventKind, KeyValue, TxnOp, TxnRequest};
use crate::client::{Client, GetOptions, PutOptions, WatchEvent, WatchOptions, Watcher};

/// A list of instances. An instance is listed from its registration until it leaves or its session
/// is lost.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::client::recipes::{Registry, RegistryEvent};
/// use std::time::Duration;
///
/// let session = client.lease().session(Duration::from_secs(10), None).await?;
/// let api = Registry::new(&client, "services/api");
/// let here = api.register(&session, "7", "10.0.0.7:80").await?; // For as long as the session lives.
/// here.update("10.0.0.7:81").await?;
/// println!("{:?}", api.list().await?);
///
/// let mut watcher = api.watch().await?;
/// loop {
///     match watcher.next().await? {
///         RegistryEvent::Complete => break,
///         other => println!("{other:?}"),
///     }
/// }
/// here.leave().await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Registry {
    client: Client,
    place: EntryKeys,
}

/// A listed instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The instance's id.
    pub id: Bytes,
    /// The instance's value, such as its address.
    pub value: Bytes,
    /// The lease that its entry is attached to.
    pub lease: i64,
}

/// A change of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistryEvent {
    /// An instance is listed, or has a new value.
    Is(Instance),
    /// An instance is no longer listed.
    Gone {
        /// The instance's id.
        id: Bytes,
    },
    /// All instances that were listed when the watch began have been delivered.
    Complete,
}

impl Registry {
    /// The registry `name`. Sends no request.
    pub fn new(client: &Client, name: impl AsRef<[u8]>) -> Self {
        Self {
            client: client.clone(),
            place: EntryKeys::below(name.as_ref()),
        }
    }

    /// Registers an instance. An instance with the same id and another session is replaced: so a
    /// server that was restarted need not wait until its previous session has expired. Within one
    /// session an id has one entry: dropping any of its registrations removes it.
    ///
    /// # Errors
    /// As [`Client::put`]; [`ErrorKind::LeaseExpired`] if the session is lost;
    /// [`ErrorKind::InvalidArgument`] if the id is empty or has a slash.
    ///
    /// # Cancel safety
    /// The instance may be listed until the session is lost.
    pub async fn register(
        &self,
        session: &Session,
        id: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
    ) -> Result<Registration, Error> {
        let id = id.as_ref();
        if id.is_empty() || id.contains(&b'/') {
            return Err(Error::not_applied(
                ErrorKind::InvalidArgument,
                "the id of an instance must not be empty or contain a slash",
            ));
        }
        session.check()?;
        let registration = Registration {
            session: session.clone(),
            key: [self.place.prefix(), id].concat().into(),
            is_listed: true,
        };
        registration.update(value).await?;
        Ok(registration)
    }

    /// The listed instances, in the order of their ids.
    ///
    /// # Errors
    /// As [`Client::get`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn list(&self) -> Result<Vec<Instance>, Error> {
        let options = GetOptions::new().with_prefix();
        let mut found = self.client.get_stream(self.place.prefix(), Some(options))?;
        let mut instances = Vec::new();
        while let Some(kv) = found.next().await {
            instances.extend(self.instance(&kv?));
        }
        Ok(instances)
    }

    /// Delivers the listed instances, and then every change.
    ///
    /// # Errors
    /// As [`Client::watch`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn watch(&self) -> Result<RegistryWatcher, Error> {
        Ok(RegistryWatcher {
            registry: self.clone(),
            watcher: self.begin_watch().await?,
            listed: BTreeSet::new(),
            stale: None,
            is_complete: false,
            waiting: VecDeque::new(),
        })
    }

    async fn begin_watch(&self) -> Result<Watcher, Error> {
        let options = WatchOptions::new().with_prefix().with_initial_state();
        self.client.watch(self.place.prefix(), Some(options)).await
    }

    fn instance(&self, kv: &KeyValue) -> Option<Instance> {
        let id = self.place.entry_of(&kv.key)?;
        Some(Instance {
            id: Bytes::copy_from_slice(id),
            value: kv.value.clone(),
            lease: kv.lease,
        })
    }
}

/// An entry in the list. Dropping it removes the entry; losing the session does so, too.
pub struct Registration {
    session: Session,
    key: Bytes,
    is_listed: bool,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Registration {
    /// The key that represents the entry in the store.
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// The session that the entry is bound to.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Changes the instance's value.
    ///
    /// # Errors
    /// As [`Client::put`]; [`ErrorKind::LeaseNotFound`] if the session is lost.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn update(&self, value: impl Into<Bytes>) -> Result<(), Error> {
        let options = PutOptions::new().with_lease(self.session.lease());
        let client = self.session.client();
        client
            .put(&self.key, value, Some(options))
            .await
            .map(|_| ())
    }

    /// Removes the entry, and waits until the cluster has done so. An entry that another session
    /// registered under the same id meanwhile stays.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseExpired`] if the session is lost; the entry is then removed by itself.
    ///
    /// # Cancel safety
    /// Safe: the removal goes on in the background.
    pub async fn leave(mut self) -> Result<(), Error> {
        let (client, txn) = (self.session.client(), self.removal());
        let left = self.session.insist(|| client.txn(txn.clone(), None));
        left.await?;
        self.is_listed = false;
        Ok(())
    }

    fn removal(&self) -> TxnRequest {
        let (key, lease) = (self.key.clone(), self.session.id());
        TxnRequest::new()
            .when([Compare::lease(key.clone(), CompareOp::Equal, lease)])
            .and_then([TxnOp::delete(key)])
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Handle::try_current();
        let (true, true, Ok(runtime)) = (self.is_listed, self.session.is_alive(), runtime) else {
            return;
        };
        let (client, txn) = (self.session.client().clone(), self.removal());
        let session = self.session.downgrade();
        runtime.spawn(async move {
            while let Err(error) = client.txn(txn.clone(), None).await {
                if !passes(&error) || !session.pause().await {
                    return;
                }
            }
        });
    }
}

/// Delivers the changes of a list; see [`Registry::watch`].
#[derive(Debug)]
pub struct RegistryWatcher {
    registry: Registry,
    watcher: Watcher,
    /// Ids of the instances delivered as listed.
    listed: BTreeSet<Bytes>,
    /// While the list is delivered again: the ids listed before that have not been seen again.
    stale: Option<BTreeSet<Bytes>>,
    is_complete: bool,
    waiting: VecDeque<RegistryEvent>,
}

impl RegistryWatcher {
    /// The next change.
    ///
    /// # Errors
    /// The client was closed. The watcher survives every other failure without omitting a change,
    /// except changes that were undone in the meantime.
    ///
    /// # Cancel safety
    /// Safe: no change is lost.
    pub async fn next(&mut self) -> Result<RegistryEvent, Error> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(event);
            }
            match self.watcher.next().await {
                Some(Ok(event)) => self.take(event),
                // History that was not yet delivered was compacted: compare with the current state.
                Some(Err(error)) if matches!(error.kind, ErrorKind::Compacted { .. }) => {
                    self.watcher = self.registry.begin_watch().await?;
                    self.stale = Some(self.listed.clone());
                }
                Some(Err(error)) => return Err(error),
                None => {
                    return Err(Error::not_applied(
                        ErrorKind::ConnectionLost,
                        "the watch of the registry has ended",
                    ));
                }
            }
        }
    }

    fn take(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::State { kvs } => kvs.iter().for_each(|kv| self.is(kv)),
            WatchEvent::Synced { .. } => {
                let stale = self.stale.take().unwrap_or_default();
                stale.into_iter().for_each(|id| self.is_gone(id));
                if !std::mem::replace(&mut self.is_complete, true) {
                    self.waiting.push_back(RegistryEvent::Complete);
                }
            }
            WatchEvent::Restarted { .. } => {
                // The list delivered so far may be outdated.
                let told = self.listed.clone();
                self.stale.get_or_insert_default().extend(told);
            }
            WatchEvent::Events { events, .. } => {
                for event in events {
                    match event.kind {
                        EventKind::Put => self.is(&event.kv),
                        EventKind::Delete => {
                            if let Some(instance) = self.registry.instance(&event.kv) {
                                self.is_gone(instance.id);
                            }
                        }
                    }
                }
            }
            WatchEvent::Created { .. }
            | WatchEvent::Progress { .. }
            | WatchEvent::Resumed { .. } => {}
        }
    }

    fn is(&mut self, kv: &KeyValue) {
        let Some(instance) = self.registry.instance(kv) else {
            return;
        };
        if let Some(stale) = &mut self.stale {
            stale.remove(&instance.id);
        }
        self.listed.insert(instance.id.clone());
        self.waiting.push_back(RegistryEvent::Is(instance));
    }

    fn is_gone(&mut self, id: Bytes) {
        if self.listed.remove(&id) {
            self.waiting.push_back(RegistryEvent::Gone { id });
        }
    }
}
