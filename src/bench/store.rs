//! A store under load, as the benches see it.
//!
//! One [`Store`] makes [`Connection`]s, and a connection opens [`Watch`]es. leasehold implements them
//! through its SDK (`leasehold.rs`); `benches/load` implements them for etcd.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use crate::api::{Consistency, ReadPath};
use crate::cli::failure::Failure;

/// The response to a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The revision that the response names.
    pub revision: i64,
    /// The authority under which a read was served, if the store reports it.
    pub path: Option<ReadPath>,
    /// Whether a read found its key.
    pub found: bool,
}

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// A short stable name of the error kind. Errors are counted by it.
    pub code: &'static str,
    /// A sentence.
    pub detail: String,
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        Self::refused(trouble.detail)
    }
}

/// A store.
pub trait Store: Clone + Send + Sync + 'static {
    /// A connection to it.
    type Connection: Connection;

    /// The store's name in reports.
    fn name(&self) -> &'static str;

    /// Opens connection `number`. Numbers count from 0, so that connections can be spread over members.
    fn connect(
        &self,
        number: usize,
    ) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;
}

/// One connection to a store. Its requests may overlap.
pub trait Connection: Send + Sync + 'static {
    /// An open watch.
    type Watch: Watch;

    /// Reads one key.
    fn get(
        &self,
        key: &Bytes,
        consistency: Consistency,
    ) -> impl Future<Output = Result<Answer, Trouble>> + Send;

    /// Writes one key.
    fn put(
        &self,
        key: &Bytes,
        value: &Bytes,
    ) -> impl Future<Output = Result<Answer, Trouble>> + Send;

    /// Grants a lease and returns its id. With `key`, also writes that key, attached to the lease.
    fn grant(
        &self,
        ttl: Duration,
        key: Option<Bytes>,
    ) -> impl Future<Output = Result<i64, Trouble>> + Send;

    /// Renews leases.
    fn renew(&self, leases: &[i64]) -> impl Future<Output = Result<Renewal, Trouble>> + Send;

    /// Revokes a lease.
    fn revoke(&self, lease: i64) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// Opens a watch.
    fn watch(&self, what: WatchTarget)
    -> impl Future<Output = Result<Self::Watch, Failure>> + Send;

    /// Closes the connection.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// The response to a renewal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewal {
    /// The store's revision.
    pub revision: i64,
    /// For each lease, in the order of the request: `true` if it was renewed, `false` if it does not exist.
    pub kept: Vec<bool>,
}

/// What a watch is opened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchTarget {
    /// Changes of one key from a revision on.
    Key {
        /// The key.
        key: Bytes,
        /// The first revision.
        start: i64,
    },
    /// Deletes of all keys with this prefix from now on.
    Deletes {
        /// The prefix.
        prefix: String,
    },
}

/// An open watch.
pub trait Watch: Send + 'static {
    /// Waits for the next event.
    ///
    /// # Errors
    /// The watch ended.
    fn next(&mut self) -> impl Future<Output = Result<WatchEvent, Failure>> + Send;
}

/// An event of a watch.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// Keys changed.
    Changes {
        /// The revision up to which the changes are complete.
        revision: i64,
        /// In the order of revisions.
        changes: Vec<Change>,
    },
    /// The watch was interrupted, and resumed without a gap.
    Resumed,
    /// An event that the benches do not measure.
    Other,
}

/// A put or a delete of one key.
#[derive(Clone, Debug)]
pub struct Change {
    /// The key.
    pub key: Bytes,
    /// The key's version: the number of puts since its creation; 0 for a delete.
    pub version: i64,
    /// The value; empty for a delete.
    pub value: Bytes,
}
