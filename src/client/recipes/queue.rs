//! Queues: items are taken in order, each by exactly one consumer.

use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::entry::{EntryKeys, changed, current};
use crate::api::{Compare, CompareOp, Error, ErrorKind, KeyValue, TxnOp, TxnRequest};
use crate::client::{Client, GetOptions, TxnOptions, WatchOptions};

/// How many of the first items a consumer reads, to find one that no other consumer has taken.
const LOOK_AT: u64 = 16;
/// Without a time limit: the deletion of an item is retried until its outcome is known.
const UNTIL_KNOWN: Duration = Duration::MAX;

/// A queue. If one put completes before another begins, its item is taken first.
///
/// Keys have the form *name*`/`*revision*`-`*number*, where the revision is one that the producer
/// read right before: so the order of keys is that of the puts, and the first item is found at
/// once, however many there are. Items are not bound to a session, and stay until they are taken.
///
/// An item is taken once, and not lost in transit: the deletion that takes it has a sequence number
/// in the client's session, and is retried under it until its outcome is known, regardless of the
/// client's own timeout; and an item that was taken for a future that was dropped meanwhile is put
/// back at its position. There are three limits: a program that crashes loses the items it has
/// taken; a client without exactly-once writes
/// ([`ConnectOptions::with_exactly_once`](crate::client::ConnectOptions::with_exactly_once)) gets
/// outcome *unknown* at the first lost reply; and so does one whose session the cluster forgot in
/// between, which takes an hour of inactivity.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::client::recipes::Queue;
///
/// let queue = Queue::new(&client, "mail");
/// queue.put("to ann").await?;
/// queue.put("to bob").await?;
/// println!("{:?}", queue.take().await?); // Waits where there is none.
/// println!("{:?}", queue.try_take().await?);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Queue {
    client: Client,
    place: EntryKeys,
}

impl Queue {
    /// The queue `name`. Sends no request.
    pub fn new(client: &Client, name: impl AsRef<[u8]>) -> Self {
        Self {
            client: client.clone(),
            place: EntryKeys::below(name.as_ref()),
        }
    }

    /// Appends an item to the queue.
    ///
    /// # Errors
    /// As [`Client::put`].
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn put(&self, value: impl Into<Bytes>) -> Result<(), Error> {
        self.put_behind("", value.into()).await
    }

    /// Appends an item to those whose keys begin with `rank`.
    pub(super) async fn put_behind(&self, rank: &str, value: Bytes) -> Result<(), Error> {
        let options = GetOptions::new()
            .with_count_only()
            .with_consistency(current());
        let before = self.client.get(self.place.prefix(), Some(options)).await?;
        loop {
            let number = self.client.inner.router.random();
            let revision = before.header.revision;
            let place = format!("{rank}{revision:016x}-{number:016x}");
            let key = self.place.key(&place);
            // Another producer may draw the same number.
            if self.client.create(&key, value.clone()).await?.succeeded {
                return Ok(());
            }
        }
    }

    /// Takes the first item, if there is one. Concurrent consumers get different items.
    ///
    /// While the cluster has no leader it keeps retrying to learn the outcome for an item: apply a
    /// timeout of your own.
    ///
    /// # Errors
    /// As [`Client::get`], while it looks for an item. With outcome *unknown*, which a client with
    /// exactly-once writes gets only if its session was forgotten, an item may have been deleted
    /// without having been returned.
    ///
    /// # Cancel safety
    /// Safe: an item that was taken but not returned is put back at its position.
    pub async fn try_take(&self) -> Result<Option<Bytes>, Error> {
        self.take_or_revision().await.map(Result::ok)
    }

    /// Takes the first item, and waits for one if there is none. Keeps retrying while the cluster
    /// has no leader: apply a timeout of your own.
    ///
    /// # Errors
    /// As [`Queue::try_take`], for the taking itself.
    ///
    /// # Cancel safety
    /// As [`Queue::try_take`].
    pub async fn take(&self) -> Result<Bytes, Error> {
        loop {
            let revision = match self.take_or_revision().await? {
                Ok(value) => return Ok(value),
                Err(revision) => revision,
            };
            let options = WatchOptions::new().with_prefix().with_no_delete();
            let put = changed(&self.client, self.place.prefix(), options, revision);
            self.client.bear(put.await).await?;
        }
    }

    /// An item, or the revision at which the queue was empty.
    async fn take_or_revision(&self) -> Result<Result<Bytes, i64>, Error> {
        loop {
            let options = GetOptions::new()
                .with_prefix()
                .with_limit(LOOK_AT)
                .with_consistency(current());
            let found = self.client.get(self.place.prefix(), Some(options)).await?;
            if found.kvs.is_empty() {
                return Ok(Err(found.header.revision));
            }
            for kv in &found.kvs {
                if self.place.entry_of(&kv.key).is_none() {
                    return Err(not_ours(kv));
                }
                if let Some(taken) = self.take_it(kv).await? {
                    return Ok(Ok(taken.keep()));
                }
            }
        }
    }

    /// Takes the item, unless another consumer was faster. Runs in a task of its own, which goes on
    /// if this future is dropped.
    async fn take_it(&self, kv: &KeyValue) -> Result<Option<TakenItem>, Error> {
        let mut taken = TakenItem {
            client: self.client.clone(),
            kv: None,
        };
        let (kv, (told, answer)) = (kv.clone(), oneshot::channel());
        tokio::spawn(async move {
            let is_there =
                Compare::create_revision(kv.key.clone(), CompareOp::Equal, kv.create_revision);
            let delete = TxnOp::delete(kv.key.clone());
            let txn = TxnRequest::new().when([is_there]).and_then([delete]);
            let options = TxnOptions::new().with_timeout(UNTIL_KNOWN);
            let done = taken.client.txn(txn, Some(options)).await;
            let result = done.map(|done| {
                taken.kv = done.succeeded.then_some(kv);
                taken.kv.is_some().then_some(taken)
            });
            // If the receiver is gone, the item is dropped, and so put back.
            let _ = told.send(result);
        });
        let ended = || Error::not_applied(ErrorKind::Unavailable, "the runtime is being shut down");
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}

/// An item that was taken, until it is returned to the caller.
#[derive(Debug)]
struct TakenItem {
    client: Client,
    kv: Option<KeyValue>,
}

impl TakenItem {
    fn keep(mut self) -> Bytes {
        self.kv.take().map_or_else(Bytes::new, |kv| kv.value)
    }
}

impl Drop for TakenItem {
    /// Puts back an item that was not returned, under its old key, so that it keeps its position.
    fn drop(&mut self) {
        let (Some(kv), Ok(runtime)) = (self.kv.take(), Handle::try_current()) else {
            return;
        };
        let client = self.client.clone();
        runtime.spawn(async move {
            let is_free = Compare::create_revision(kv.key.clone(), CompareOp::Equal, 0);
            let put = TxnOp::put(kv.key, kv.value);
            let txn = TxnRequest::new().when([is_free]).and_then([put]);
            let options = TxnOptions::new().with_timeout(UNTIL_KNOWN);
            // If this fails there is no caller left to report it to.
            let _ = client.txn(txn, Some(options)).await;
        });
    }
}

fn not_ours(kv: &KeyValue) -> Error {
    Error::not_applied(
        ErrorKind::InvalidArgument,
        format!(
            "{} is not an item of this queue: the name of a queue must not be a prefix path of \
             another",
            String::from_utf8_lossy(&kv.key)
        ),
    )
}
