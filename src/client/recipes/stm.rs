//! Transactions written as code that reads, decides and writes, and runs again if another client was
//! faster.
//!
//! Nothing is locked. All reads of an attempt are of one revision; writes are kept here until the
//! code is done, and then sent as one transaction of the store, which compares the revisions of what
//! was read and writes all or nothing. So an attempt leaves no trace unless it is committed.
//!
//! What is left out: an attempt that fails to commit learns nothing for the next one, which reads
//! everything again.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::entry::current;
use crate::api::{
    Compare, CompareOp, Error, ErrorKind, Fence, KeyRange, LeaseTarget, PutRequest, RangeRequest,
    TxnOp, TxnOpResponse, TxnRequest,
};
use crate::client::{Client, GetOptions, RetryPolicy, TxnOptions, WhichLease};
use crate::sync::{Mutex, MutexGuard};

/// What another client may change while a transaction runs, without a conflict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Nothing that was read: the transaction takes effect as if it had been run alone, at the
    /// revision of its commit.
    #[default]
    Serializable,
    /// What was only read: the commit compares the keys that are written, and no others. Updates
    /// are not lost, and there are fewer conflicts; but two transactions that each read what the
    /// other writes may both be committed.
    Snapshot,
}

/// Transactions of optimistic concurrency: code that reads and writes through a [`Transaction`], and
/// runs again if what it read has changed by the time it is committed.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::client::recipes::Stm;
///
/// let number = |value: Option<bytes::Bytes>| -> u64 {
///     value.map_or(0, |value| String::from_utf8_lossy(&value).parse().unwrap_or(0))
/// };
/// let commit = Stm::new(&client)
///     .run(|t| async move {
///         let ann = number(t.get("accounts/ann").await?);
///         let bob = number(t.get("accounts/bob").await?);
///         if ann == 0 {
///             return Ok(false); // Nothing was written, so nothing is committed.
///         }
///         t.put("accounts/ann", (ann - 1).to_string());
///         t.put("accounts/bob", (bob + 1).to_string());
///         Ok(true)
///     })
///     .await?;
/// println!("paid: {}, at revision {}", commit.value, commit.revision);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Stm {
    client: Client,
    isolation: Isolation,
    retry: RetryPolicy,
    fences: Vec<Fence>,
}

/// A transaction that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit<T> {
    /// What the code returned.
    pub value: T,
    /// The revision of its writes; of a transaction without writes, the one that it read, or 0 if it
    /// read nothing.
    pub revision: i64,
    /// How often the code was run.
    pub attempts: u32,
}

impl Stm {
    /// Transactions of this client: serializable, and run up to 32 times, with waits of up to half a
    /// second in between. Sends no request.
    pub fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            isolation: Isolation::default(),
            retry: RetryPolicy::new()
                .with_back_off(BACK_OFF_MIN, BACK_OFF_MAX)
                .with_attempts_max(ATTEMPTS_MAX),
            fences: Vec::new(),
        }
    }

    /// What counts as a conflict. Default: [`Isolation::Serializable`].
    #[must_use]
    pub fn with_isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// How often the code is run after conflicts, and the longest wait before each time: a random
    /// part of it is waited. The client's own policy holds for each request.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Commits only while a lock is held; see
    /// [`PutOptions::with_fence`](crate::client::PutOptions::with_fence).
    #[must_use]
    pub fn with_fence(mut self, key: impl Into<Bytes>, token: i64) -> Self {
        self.fences.push(Fence::new(key, token));
        self
    }

    /// Runs `code` and commits what it has written, and runs it again, with a new [`Transaction`],
    /// after a conflict. If it returns an error, nothing is written, and the error is returned. What
    /// it does outside of the store it may do several times.
    ///
    /// The first read is linearizable whatever the client's default is, and all others are of its
    /// revision; a transaction that writes nothing sends no request beyond its reads, and never
    /// conflicts. Code that runs long beside clients that change the same keys often may meet a
    /// conflict each time: let such clients take turns by a [`Lock`](super::Lock).
    ///
    /// # Errors
    /// Those of `code`. [`ErrorKind::Conflict`] if every attempt met a conflict: nothing was written.
    /// As [`Client::txn`] if the commit fails; [`ErrorKind::TxnTooLarge`] if it writes or, being
    /// serializable, has read more keys than a transaction may have operations. A commit whose reply
    /// is lost is sent again under its number in the client's session, as all writes are; where its
    /// outcome stays *unknown* that is returned, and the code is not run again.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn run<T, Code>(
        &self,
        mut code: impl FnMut(Transaction) -> Code,
    ) -> Result<Commit<T>, Error>
    where
        Code: Future<Output = Result<T, Error>>,
    {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let transaction = Transaction::begin(&self.client);
            let returned = code(transaction.clone()).await;
            // What the code made of an unfinished view of the store counts for nothing.
            if !transaction.state().is_outdated {
                let value = returned?;
                if let Some(revision) = self.commit(&transaction).await? {
                    return Ok(Commit {
                        value,
                        revision,
                        attempts,
                    });
                }
            }
            if attempts >= self.retry.attempts_max {
                return Err(conflict(attempts));
            }
            let share = self.client.inner.router.random() % 1024;
            let wait = self.retry.back_off(attempts).mul_f64(share as f64 / 1024.0);
            tokio::time::sleep(wait).await;
        }
    }

    /// The revision of the commit; `None` if there is a conflict.
    async fn commit(&self, transaction: &Transaction) -> Result<Option<i64>, Error> {
        // From here on nothing is added, by a clone that was kept either.
        let attempt = std::mem::take(&mut *transaction.state());
        if attempt.writes.is_empty() {
            return Ok(Some(attempt.revision));
        }
        let compare = match self.isolation {
            Isolation::Serializable => attempt.is_as_read(),
            Isolation::Snapshot => match self.is_as_before_writes(&attempt).await? {
                Some(compare) => compare,
                None => return Ok(None),
            },
        };
        let txn = TxnRequest::new().when(compare).and_then(attempt.ops());
        let options = TxnOptions {
            fences: self.fences.clone(),
            ..TxnOptions::default()
        };
        let done = self.client.txn(txn, Some(options)).await?;
        Ok(done.succeeded.then_some(done.header.revision))
    }

    /// That the keys to be written are as they were at the revision of the reads; `None` if that is
    /// not known any more. Without a read there is no such revision, and nothing to compare.
    async fn is_as_before_writes(&self, attempt: &Attempt) -> Result<Option<Vec<Compare>>, Error> {
        if attempt.revision == 0 {
            return Ok(Some(Vec::new()));
        }
        let (mut compare, mut unread) = (Vec::new(), Vec::new());
        for key in attempt.writes.keys() {
            match attempt.reads.get(key) {
                Some(record) => compare.push(unchanged(key, record.mod_revision)),
                None => unread.push(key),
            }
        }
        if unread.is_empty() {
            return Ok(Some(compare));
        }
        let reads = unread.iter().map(|key| {
            TxnOp::Range(RangeRequest {
                key: Bytes::clone(key),
                keys_only: true,
                revision: attempt.revision,
                ..RangeRequest::default()
            })
        });
        let txn = TxnRequest::new().and_then(reads);
        let options = TxnOptions::new().with_consistency(current());
        let found = match self.client.txn(txn, Some(options)).await {
            Err(error) if is_compacted(&error) => return Ok(None),
            found => found?,
        };
        for (key, response) in unread.into_iter().zip(found.responses) {
            let kv = match &response {
                TxnOpResponse::Range(range) => range.kvs.first(),
                _ => None,
            };
            compare.push(unchanged(key, kv.map_or(0, |kv| kv.mod_revision)));
        }
        Ok(Some(compare))
    }
}

/// One attempt of a transaction: reads the store as it was at one revision, and keeps writes until
/// the code is done. Reads see its own writes. All clones are one attempt, whose reads take turns;
/// what is written after the code has returned counts for nothing.
#[derive(Clone, Debug)]
pub struct Transaction {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    /// Held while a read is on its way: the first one decides the revision of all.
    reading: tokio::sync::Mutex<()>,
    attempt: Mutex<Attempt>,
}

#[derive(Debug, Default)]
struct Attempt {
    /// The revision of all reads; 0 before the first.
    revision: i64,
    reads: BTreeMap<Bytes, Record>,
    ranges: Vec<(Bytes, KeyRange)>,
    writes: BTreeMap<Bytes, Write>,
    /// Its revision was compacted before it had read everything.
    is_outdated: bool,
}

/// A key as it was read; of a key that was not there, the mod revision is 0.
#[derive(Debug)]
struct Record {
    mod_revision: i64,
    value: Option<Bytes>,
}

#[derive(Debug)]
enum Write {
    Put { value: Bytes, lease: LeaseTarget },
    Delete,
}

impl Transaction {
    fn begin(client: &Client) -> Self {
        Self {
            shared: Arc::new(Shared {
                client: client.clone(),
                reading: tokio::sync::Mutex::default(),
                attempt: Mutex::default(),
            }),
        }
    }

    /// The value of a key; `None` if there is none. A key that was read or written before costs no
    /// request.
    ///
    /// # Errors
    /// As [`Client::get`]. If the revision of the transaction was compacted meanwhile, all further
    /// reads fail, and the code is run again whatever it returns.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>, Error> {
        let key = key.as_ref();
        let _reading = self.shared.reading.lock().await;
        if let Some(value) = self.state().value(key) {
            return Ok(value);
        }
        let options = GetOptions::new()
            .with_revision(self.revision())
            .with_consistency(current());
        let found = self.shared.client.get(key, Some(options)).await;
        let found = self.unless_compacted(found)?;
        let kv = found.kvs.into_iter().next();
        let record = Record {
            mod_revision: kv.as_ref().map_or(0, |kv| kv.mod_revision),
            value: kv.map(|kv| kv.value),
        };
        let value = record.value.clone();
        let mut attempt = self.state();
        if attempt.revision == 0 {
            attempt.revision = found.header.revision;
        }
        attempt.reads.insert(Bytes::copy_from_slice(key), record);
        Ok(value)
    }

    /// The keys of a range, with their values. A serializable transaction conflicts with every
    /// change in it, also with keys that are new there; each key takes one of the comparisons that
    /// its commit may have.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::api::KeyRange;
    /// use leasehold::client::recipes::Stm;
    ///
    /// client.put("tickets/1", "row 5", None).await?;
    /// let taken = Stm::new(&client)
    ///     .run(|t| async move {
    ///         let ticket = t.range("tickets/", KeyRange::Prefix).await?.pop_first();
    ///         if let Some((key, _)) = &ticket {
    ///             t.delete(key.clone());
    ///         }
    ///         Ok(ticket)
    ///     })
    ///     .await?;
    /// println!("{:?}: no other client got it", taken.value);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn range(
        &self,
        key: impl AsRef<[u8]>,
        range: KeyRange,
    ) -> Result<BTreeMap<Bytes, Bytes>, Error> {
        let key = Bytes::copy_from_slice(key.as_ref());
        let _reading = self.shared.reading.lock().await;
        let options = GetOptions::new()
            .with_key_range(range.clone())
            .with_revision(self.revision())
            .with_consistency(current());
        // One reply may hold less than the range.
        let mut stream = self.shared.client.get_stream(&key, Some(options))?;
        let mut found = Vec::new();
        while let Some(kv) = stream.next().await {
            found.push(self.unless_compacted(kv)?);
        }
        let mut attempt = self.state();
        attempt.revision = stream.revision().unwrap_or(attempt.revision);
        let mut values = BTreeMap::new();
        for kv in found {
            values.insert(kv.key.clone(), kv.value.clone());
            let record = Record {
                mod_revision: kv.mod_revision,
                value: Some(kv.value),
            };
            attempt.reads.insert(kv.key, record);
        }
        let (start, end) = range.bounds(&key);
        for (key, write) in attempt.writes.range(start..) {
            if end.as_ref().is_some_and(|end| key >= end) {
                break;
            }
            match write {
                Write::Put { value, .. } => values.insert(key.clone(), value.clone()),
                Write::Delete => values.remove(key),
            };
        }
        attempt.ranges.push((key, range));
        Ok(values)
    }

    /// Writes a key, at the commit. A key that was attached to a lease is not any more.
    pub fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.write(key, value, LeaseTarget::default());
    }

    /// Writes a key and attaches it to a lease, at the commit. If there is no such lease by then the
    /// commit fails with [`ErrorKind::LeaseNotFound`].
    pub fn put_with_lease(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        lease: impl Into<WhichLease>,
    ) {
        self.write(key, value, lease.into().into());
    }

    /// Deletes a key, at the commit.
    pub fn delete(&self, key: impl Into<Bytes>) {
        self.state().writes.insert(key.into(), Write::Delete);
    }

    /// Forgets all writes so far: for code that decides late to change nothing.
    pub fn discard_writes(&self) {
        self.state().writes.clear();
    }

    /// The revision of all reads; 0 before the first.
    pub fn revision(&self) -> i64 {
        self.state().revision
    }

    fn write(&self, key: impl Into<Bytes>, value: impl Into<Bytes>, lease: LeaseTarget) {
        let value = value.into();
        let write = Write::Put { value, lease };
        self.state().writes.insert(key.into(), write);
    }

    fn state(&self) -> MutexGuard<'_, Attempt> {
        self.shared.attempt.lock()
    }

    fn unless_compacted<T>(&self, found: Result<T, Error>) -> Result<T, Error> {
        if found.as_ref().is_err_and(is_compacted) {
            self.state().is_outdated = true;
        }
        found
    }
}

impl Attempt {
    /// What is known of a key already.
    fn value(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let own = self.writes.get(key).map(|write| match write {
            Write::Put { value, .. } => Some(value.clone()),
            Write::Delete => None,
        });
        own.or_else(|| self.reads.get(key).map(|record| record.value.clone()))
    }

    /// That everything is as it was read.
    fn is_as_read(&self) -> Vec<Compare> {
        let records = self.reads.iter();
        let records = records.map(|(key, record)| unchanged(key, record.mod_revision));
        // Keys that are gone are among the records; these are the ones that are new.
        let after = self.revision + 1;
        let ranges = self.ranges.iter().map(|(key, range)| {
            Compare::mod_revision(key.clone(), CompareOp::Less, after).with_range(range.clone())
        });
        records.chain(ranges).collect()
    }

    fn ops(self) -> impl Iterator<Item = TxnOp> {
        self.writes.into_iter().map(|(key, write)| match write {
            Write::Put { value, lease } => TxnOp::Put(PutRequest {
                key,
                value,
                lease,
                ..PutRequest::default()
            }),
            Write::Delete => TxnOp::delete(key),
        })
    }
}

fn is_compacted(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Compacted { .. })
}

fn unchanged(key: &Bytes, mod_revision: i64) -> Compare {
    Compare::mod_revision(key.clone(), CompareOp::Equal, mod_revision)
}

fn conflict(attempts: u32) -> Error {
    Error::not_applied(
        ErrorKind::Conflict { attempts },
        format!(
            "another client changed what the transaction had read, in each of {attempts} attempts: \
             make it shorter, allow more attempts, or let its users take turns by a lock"
        ),
    )
}

const ATTEMPTS_MAX: u32 = 32;
const BACK_OFF_MIN: Duration = Duration::from_millis(5);
const BACK_OFF_MAX: Duration = Duration::from_millis(500);
