//! What most recipes are built on: an entry in a queue that the store keeps.
//!
//! An entry is a key below the queue's name, attached to the session's lease. Its position in the
//! queue is the revision that created it: the order of the log, which no client can influence. The
//! key is never reused, so an attempt with an unknown outcome is simply repeated, and deleting the
//! key deletes this entry and no other.
//!
//! A waiter reads the entries ahead of it, at one revision, and watches one of those from that
//! revision on: no change is missed between the two, and a change wakes only the waiters it
//! concerns.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;

use super::session::{Session, passes};
use crate::api::{
    Compare, CompareOp, Consistency, Error, ErrorKind, Fence, KeyRange, KeyValue, LeaseTarget,
    Outcome, PutRequest, RangeRequest, SortOrder, SortTarget, TxnOp, TxnOpResponse, TxnRequest,
    last_ahead_of,
};
use crate::client::{
    Client, GetOptions, LostCause, PutOptions, TxnOptions, WatchEvent, WatchOptions,
};

/// Something held: a lock, a share of one, a permit. Dropping it releases it in a background task;
/// the cluster releases it when the session is lost.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::client::PutOptions;
/// use leasehold::client::recipes::Lock;
/// use std::time::Duration;
///
/// let session = client.lease().session(Duration::from_secs(10), None).await?;
/// let held = Lock::new(&session, "jobs/nightly").acquire().await?;
/// tokio::select! {
///     cause = held.lost() => println!("stop: {cause}"),
///     () = tokio::time::sleep(Duration::from_millis(10)) => {
///         // The store has the last word, however long this was asleep:
///         let mine = PutOptions::new().with_fence(held.key().clone(), held.fencing_token());
///         client.put("nightly-report", "done", Some(mine)).await?;
///     }
/// }
/// held.release().await?;
/// # Ok(())
/// # });
/// ```
pub struct Guard {
    entry: Entry,
    /// Whether the key is gone; begun when somebody asks for the loss.
    own_key: OnceLock<OwnKey>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", &self.entry.key)
            .field("fencing_token", &self.entry.revision)
            .finish_non_exhaustive()
    }
}

impl Guard {
    pub(super) fn new(entry: Entry) -> Self {
        Self {
            entry,
            own_key: OnceLock::new(),
        }
    }

    /// The key that represents it in the store. The key exists for as long as the guard is held.
    pub fn key(&self) -> &Bytes {
        &self.entry.key
    }

    /// The revision that created the key: larger than those of all earlier holders. Pass both to
    /// [`PutOptions::with_fence`](crate::client::PutOptions::with_fence), and pass the number to
    /// every other resource that the lock protects.
    pub fn fencing_token(&self) -> i64 {
        self.entry.revision
    }

    /// Key and token together.
    pub fn fence(&self) -> Fence {
        Fence::new(self.entry.key.clone(), self.entry.revision)
    }

    /// A comparison that holds in the store for as long as the guard is held: for transactions of
    /// your own.
    pub fn is_owner(&self) -> Compare {
        self.fence().compare()
    }

    /// The session that the guard is bound to.
    pub fn session(&self) -> &Session {
        &self.entry.session
    }

    /// Whether it is held now: whether its session is valid, by this machine's clocks. Every call
    /// reads the clocks; call it right before an action that depends on it, and let the store
    /// enforce it ([`Guard::fencing_token`]). From the first call of [`Guard::lost`] on it is also
    /// false once the key is seen to have been deleted.
    pub fn is_held(&self) -> bool {
        !self.is_deleted() && self.entry.session.is_alive()
    }

    /// Remaining validity from now on; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        match self.is_deleted() {
            true => Duration::ZERO,
            false => self.entry.session.remaining(),
        }
    }

    /// As [`Session::deadline`].
    pub fn deadline(&self) -> Instant {
        self.entry.session.deadline()
    }

    /// Waits until it is no longer held, because its session is lost or its key was deleted, and
    /// returns the cause. The first call begins a watch of the key, which goes on until
    /// this is dropped.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> LostCause {
        let own_key = self.own_key.get_or_init(|| OwnKey::watch(&self.entry));
        tokio::select! {
            cause = self.entry.session.lost() => cause,
            () = own_key.deleted() => LostCause::Deleted,
        }
    }

    /// Whether the key is known to have been deleted.
    fn is_deleted(&self) -> bool {
        let own_key = self.own_key.get();
        own_key.is_some_and(|own_key| *own_key.is_deleted.borrow())
    }

    /// Releases it, and waits until the cluster has done so. Retries for as long as the session is
    /// valid.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseExpired`] if the session is lost; the cluster then releases it by itself.
    ///
    /// # Cancel safety
    /// Safe: the release goes on in the background.
    pub async fn release(self) -> Result<(), Error> {
        self.entry.remove().await
    }
}

/// Whether the key of a guard was deleted, by somebody who does not hold it. A task watches it, so
/// that a program may ask for the loss again and again.
struct OwnKey {
    is_deleted: watch::Receiver<bool>,
    task: tokio::task::AbortHandle,
}

impl OwnKey {
    fn watch(entry: &Entry) -> Self {
        let (tell, is_deleted) = watch::channel(false);
        // Not the session: it ends with its last owner, and a watch is none.
        let client = entry.session.client().clone();
        let (key, revision) = (entry.key.clone(), entry.revision);
        let task = tokio::spawn(async move {
            until_deleted(&client, &key, revision).await;
            tell.send_replace(true);
        });
        Self {
            is_deleted,
            task: task.abort_handle(),
        }
    }

    async fn deleted(&self) {
        let mut is_deleted = self.is_deleted.clone();
        if is_deleted.wait_for(|is_deleted| *is_deleted).await.is_err() {
            // The runtime ends, and its tasks with it: nothing is known.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for OwnKey {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits until the key that was created at `created` is gone. What fails is tried again: the caller
/// has the session's end beside it.
async fn until_deleted(client: &Client, key: &Bytes, created: i64) {
    let mut revision = created;
    loop {
        let options = WatchOptions::new().with_no_put();
        let looked = match changed(client, key, options, revision).await {
            Ok(()) => {
                let options = GetOptions::new().with_consistency(current());
                client.get(key, Some(options)).await
            }
            Err(error) => Err(error),
        };
        match looked {
            Ok(found) => {
                let is_own = |kv: &KeyValue| kv.create_revision == created;
                if !found.kv().is_some_and(is_own) {
                    return;
                }
                revision = found.header.revision;
            }
            Err(_) => tokio::time::sleep(WATCH_AGAIN_AFTER).await,
        }
    }
}

/// Wait before the watch of a guard's own key is begun again.
const WATCH_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// The keys of a queue's entries: below a name and a slash.
#[derive(Clone, Debug)]
pub(super) struct EntryKeys {
    prefix: Bytes,
}

impl EntryKeys {
    pub(super) fn below(name: &[u8]) -> Self {
        let mut prefix = name.to_vec();
        prefix.push(b'/');
        Self {
            prefix: prefix.into(),
        }
    }

    pub(super) fn key(&self, entry: &str) -> Bytes {
        let mut key = self.prefix.to_vec();
        key.extend_from_slice(entry.as_bytes());
        key.into()
    }

    pub(super) fn prefix(&self) -> &Bytes {
        &self.prefix
    }

    /// The part of a key below this prefix; `None` for a key that is further down, which belongs to
    /// another recipe.
    pub(super) fn entry_of<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        let entry = key.strip_prefix(&*self.prefix)?;
        (!entry.contains(&b'/')).then_some(entry)
    }

    /// Whether a key is an entry of the queue: it has the name of a lease, with an optional number.
    /// Other keys below the prefix are ignored.
    pub(super) fn has(&self, kv: &KeyValue) -> bool {
        let is_hex = |text: &[u8]| {
            let digits = text.iter().all(|byte| byte.is_ascii_hexdigit());
            digits && !text.is_empty()
        };
        self.entry_of(&kv.key).is_some_and(|entry| {
            let (lease, rest) = entry.split_at(entry.len().min(LEASE_DIGITS));
            let is_lease = lease.len() == LEASE_DIGITS && is_hex(lease);
            is_lease && (rest.is_empty() || rest.strip_prefix(b"-").is_some_and(is_hex))
        })
    }

    /// Selects its entries, of those created up to `until`, in the given order of creation, at most
    /// `limit` of them.
    pub(super) fn range(&self, order: SortOrder, until: i64, limit: u64) -> RangeRequest {
        RangeRequest {
            key: self.prefix.clone(),
            range: KeyRange::Prefix,
            sort_target: SortTarget::CreateRevision,
            sort_order: order,
            max_create_revision: until,
            limit,
            ..RangeRequest::default()
        }
    }

    /// Waits until an entry is deleted here after `revision`.
    pub(super) async fn deleted(&self, client: &Client, revision: i64) -> Result<(), Error> {
        let options = WatchOptions::new().with_prefix().with_no_put();
        changed(client, &self.prefix, options, revision).await
    }
}

/// The consistency of every read that a recipe decides by, regardless of the client's default: with
/// stale state, two clients could hold the lock.
pub(super) fn current() -> Consistency {
    match planted!(RecipesLookStale) {
        true => Consistency::Serializable,
        false => Consistency::Linearizable,
    }
}

/// Reads the entries at `places` that `range` selects, with the revision of the read, and the
/// contents of `beside`.
pub(super) async fn look<const N: usize>(
    client: &Client,
    places: &[EntryKeys; N],
    (order, until, limit): (SortOrder, i64, u64),
    beside: &[Bytes],
) -> Result<Entries<N>, Error> {
    let mut limit = limit;
    loop {
        let ranges = places
            .iter()
            .map(|place| TxnOp::Range(place.range(order, until, limit)));
        let gets = beside.iter().map(|key| TxnOp::get(key.clone()));
        let txn = TxnRequest::new().and_then(ranges.chain(gets));
        let options = TxnOptions::new().with_consistency(current());
        let found = client.txn(txn, Some(options)).await?;
        let mut answers = found.responses.into_iter().map(|response| match response {
            TxnOpResponse::Range(range) => range.kvs,
            _ => Vec::new(),
        });
        let mut has_others = false;
        let entries = places.each_ref().map(|place| {
            let mut kvs = answers.next().unwrap_or_default();
            let all = kvs.len();
            kvs.retain(|kv| place.has(kv));
            has_others |= kvs.len() < all;
            kvs
        });
        // Keys of other recipes used up a part of the limit: then read without one.
        if has_others && limit > 0 {
            limit = 0;
            continue;
        }
        return Ok(Entries {
            revision: found.header.revision,
            entries,
            beside: answers.map(|kvs| kvs.into_iter().next()).collect(),
        });
    }
}

/// The entries at one revision.
pub(super) struct Entries<const N: usize> {
    pub(super) revision: i64,
    pub(super) entries: [Vec<KeyValue>; N],
    pub(super) beside: Vec<Option<KeyValue>>,
}

/// Waits for any event of a watch after `revision`. Compaction of that history counts as one: the
/// waiter then reads the state again.
pub(super) async fn changed(
    client: &Client,
    key: &[u8],
    options: WatchOptions,
    revision: i64,
) -> Result<(), Error> {
    let options = options.with_start_revision(revision + 1);
    let again = |error: Error| match error.kind {
        ErrorKind::Compacted { .. } => Ok(()),
        _ => Err(error),
    };
    let mut watcher = match client.watch(key, Some(options)).await {
        Ok(watcher) => watcher,
        Err(error) => return again(error),
    };
    while let Some(event) = watcher.next().await {
        match event {
            Ok(WatchEvent::Events { .. }) => return Ok(()),
            Ok(_) => {}
            Err(error) => return again(error),
        }
    }
    Ok(())
}

/// Digits of the lease id in the key of an entry.
const LEASE_DIGITS: usize = 16;

/// An entry of a session in a queue, from before it is created.
pub(super) struct Entry {
    session: Session,
    key: Bytes,
    /// The revision that created it; 0 until that is known.
    revision: i64,
    /// Whether it may be in the store.
    may_exist: bool,
}

/// How an entry is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Retries for as long as the session is valid.
    Insists,
    /// Sends one request.
    Tries,
}

impl Entry {
    /// Creates an entry at the end of the queue.
    pub(super) async fn put(
        session: &Session,
        place: &EntryKeys,
        value: Bytes,
        patience: Patience,
    ) -> Result<Self, Error> {
        let key = place.key(&session.next_entry());
        // From here on the entry is removed when it is dropped, whatever the outcome of the
        // request.
        let mut entry = Self {
            session: session.clone(),
            key: key.clone(),
            revision: 0,
            may_exist: true,
        };
        let put = PutRequest {
            key: key.clone(),
            value,
            lease: LeaseTarget::Lease(session.lease()),
            ..PutRequest::default()
        };
        let txn = TxnRequest::new()
            .when([Compare::create_revision(key.clone(), CompareOp::Equal, 0)])
            .and_then([TxnOp::Put(put)])
            .or_else([TxnOp::get(key)]);
        let client = session.client();
        let placed = match patience {
            Patience::Insists => session.insist(|| client.txn(txn.clone(), None)).await,
            Patience::Tries => {
                session.check()?;
                client.txn(txn, None).await
            }
        };
        let placed = match placed {
            Ok(placed) => placed,
            Err(error) => {
                let is_over = matches!(
                    error.kind,
                    ErrorKind::LeaseNotFound | ErrorKind::LeaseExpired
                );
                entry.may_exist = !(is_over && error.outcome == Outcome::NotApplied);
                return Err(error);
            }
        };
        entry.revision = match (placed.succeeded, placed.responses.first()) {
            (true, _) => placed.header.revision,
            // An earlier attempt succeeded: no other entry has this key.
            (false, Some(TxnOpResponse::Range(range))) => {
                range.kvs.first().map_or(0, |kv| kv.create_revision)
            }
            (false, _) => 0,
        };
        match entry.revision {
            0 => Err(entry.was_removed()),
            _ => Ok(entry),
        }
    }

    /// Attaches the entry that was created at `revision` to `session`, if it still exists.
    pub(super) async fn resume(
        session: &Session,
        key: Bytes,
        revision: i64,
    ) -> Result<Self, Error> {
        let client = session.client();
        // Repeated, it attaches the same key to the same lease.
        let attach = || {
            let options = PutOptions::new()
                .with_ignore_value()
                .with_lease(session.lease())
                .with_fence(key.clone(), revision);
            client.put(&key, Bytes::new(), Some(options))
        };
        session.insist(attach).await?;
        Ok(Self {
            session: session.clone(),
            key,
            revision,
            may_exist: true,
        })
    }

    pub(super) fn key(&self) -> &Bytes {
        &self.key
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    /// The newest `limit` entries at `places` that are ahead of this one, if this one still exists
    /// and its session is valid.
    pub(super) async fn ahead<const N: usize>(
        &self,
        places: &[EntryKeys; N],
        limit: u64,
        patience: Patience,
    ) -> Result<Entries<N>, Error> {
        let client = self.session.client();
        let until = last_ahead_of(self.revision);
        let which = (SortOrder::Descend, until, limit);
        let beside = [self.key.clone()];
        let looked = match patience {
            Patience::Insists => {
                let look = || look(client, places, which, &beside);
                self.session.insist(look).await?
            }
            Patience::Tries => look(client, places, which, &beside).await?,
        };
        let own = looked.beside.first().cloned().flatten();
        if own.is_none_or(|own| own.create_revision != self.revision) {
            self.session.check()?;
            return Err(self.was_removed());
        }
        // The clocks are read after the store: a caller that is first in the queue was so at a
        // moment when its session was still valid.
        self.session.check()?;
        Ok(looked)
    }

    /// Waits until `key` is deleted after `revision`.
    pub(super) async fn until_gone(&self, key: &[u8], revision: i64) -> Result<(), Error> {
        let options = WatchOptions::new().with_no_put();
        let client = self.session.client();
        let gone = changed(client, key, options, revision);
        self.session.until(gone).await
    }

    /// Removes the entry.
    pub(super) async fn remove(mut self) -> Result<(), Error> {
        let client = self.session.client();
        let key = &self.key;
        self.session.insist(|| client.delete(key, None)).await?;
        self.may_exist = false;
        Ok(())
    }

    pub(super) fn was_removed(&self) -> Error {
        Error {
            detail: format!(
                "another client deleted {}, the key of this recipe: acquire it again",
                String::from_utf8_lossy(&self.key)
            ),
            ..Error::fenced(0)
        }
    }
}

impl Drop for Entry {
    /// An entry that is left behind would make others wait until the lease ends.
    fn drop(&mut self) {
        let runtime = tokio::runtime::Handle::try_current();
        let (true, true, Ok(runtime)) = (self.may_exist, self.session.is_alive(), runtime) else {
            return;
        };
        let client = self.session.client().clone();
        let session = self.session.downgrade();
        let key = self.key.clone();
        runtime.spawn(async move {
            while let Err(error) = client.delete(&key, None).await {
                if !passes(&error) || !session.pause().await {
                    return;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_session_put_there_is_an_entry_of_a_queue() {
        let place = EntryKeys::below(b"jobs");
        let has = |key: &str| {
            place.has(&KeyValue {
                key: Bytes::copy_from_slice(key.as_bytes()),
                ..KeyValue::default()
            })
        };
        for entry in ["jobs/000000000000001f", "jobs/000000000000001f-2a"] {
            assert!(has(entry), "{entry}");
        }
        for other in [
            "jobs/",
            "jobs/progress",
            "jobs/nightly/000000000000001f",
            "jobs/000000000000001",
            "jobs/000000000000001f0",
            "jobs/000000000000001f-",
            "jobs/000000000000001f-x",
            "job/000000000000001f",
        ] {
            assert!(!has(other), "{other}");
        }
    }
}
