//! Queues: what is put in is taken out in order, each by exactly one taker.

use bytes::Bytes;

use super::entry::Place;
use super::entry::changed;
use crate::api::Compare;
use crate::api::CompareOp;
use crate::api::Consistency;
use crate::api::Error;
use crate::api::ErrorKind;
use crate::api::KeyValue;
use crate::api::TxnOp;
use crate::api::TxnRequest;
use crate::client::Client;
use crate::client::GetOptions;
use crate::client::WatchOptions;

/// How many of the first items a taker looks at, to find one that nobody was quicker to take.
const LOOK_AT: u64 = 16;

/// A queue. What was put before something else was begun to be put comes out before it.
///
/// Keys have the form *name*`/`*revision*`-`*number*, where the revision is one that the putter saw
/// right before: so the order of keys is that of putting, and the first item is found at once, however
/// many there are. Items hang on no session, and stay until they are taken.
#[derive(Clone, Debug)]
pub struct Queue {
    client: Client,
    place: Place,
}

impl Queue {
    /// The queue `name`. Asks nobody.
    pub fn new(client: &Client, name: impl AsRef<[u8]>) -> Self {
        Self {
            client: client.clone(),
            place: Place::below(name.as_ref()),
        }
    }

    /// Puts an item at the end.
    ///
    /// # Errors
    /// As [`Client::put`].
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn put(&self, value: impl Into<Bytes>) -> Result<(), Error> {
        let value = value.into();
        let options = GetOptions::new()
            .with_count_only()
            .with_consistency(Consistency::Linearizable);
        let before = self.client.get(self.place.prefix(), Some(options)).await?;
        loop {
            let number = self.client.inner.router.random();
            let revision = before.header.revision;
            let key = self.place.key(&format!("{revision:016x}-{number:016x}"));
            // Somebody else may draw the same number.
            if self.client.create(&key, value.clone()).await?.succeeded {
                return Ok(());
            }
        }
    }

    /// Takes the first item, if there is one. Of those who take at the same time each gets another.
    ///
    /// # Errors
    /// As [`Client::delete`]: with outcome *unknown* an item may be gone that nobody was given.
    ///
    /// # Cancel safety
    /// As [`Client::delete`]: if the future is dropped, an item may be gone that nobody was given.
    pub async fn try_take(&self) -> Result<Option<Bytes>, Error> {
        self.take_or_revision().await.map(Result::ok)
    }

    /// Takes the first item, and waits for one if there is none. Goes on trying while nobody leads
    /// the cluster: give it a time limit of your own.
    ///
    /// # Errors
    /// As [`Queue::try_take`], of the taking itself.
    ///
    /// # Cancel safety
    /// As [`Queue::try_take`]. While it waits for an item it is safe.
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

    /// An item, or the revision at which there was none.
    async fn take_or_revision(&self) -> Result<Result<Bytes, i64>, Error> {
        loop {
            let options = GetOptions::new()
                .with_prefix()
                .with_limit(LOOK_AT)
                .with_consistency(Consistency::Linearizable);
            let found = self.client.get(self.place.prefix(), Some(options)).await?;
            if found.kvs.is_empty() {
                return Ok(Err(found.header.revision));
            }
            for kv in &found.kvs {
                if self.place.entry_of(&kv.key).is_none() {
                    return Err(not_ours(kv));
                }
                if self.take_it(kv).await? {
                    return Ok(Ok(kv.value.clone()));
                }
            }
        }
    }

    /// Whether nobody was quicker.
    async fn take_it(&self, kv: &KeyValue) -> Result<bool, Error> {
        let txn = TxnRequest::new()
            .when([Compare::create_revision(
                kv.key.clone(),
                CompareOp::Equal,
                kv.create_revision,
            )])
            .and_then([TxnOp::delete(kv.key.clone())]);
        Ok(self.client.txn(txn, None).await?.succeeded)
    }
}

fn not_ours(kv: &KeyValue) -> Error {
    Error::not_applied(
        ErrorKind::InvalidArgument,
        format!(
            "{} is no item of this queue: the names of queues must not lie below one another",
            String::from_utf8_lossy(&kv.key)
        ),
    )
}
