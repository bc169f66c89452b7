//! What a store must do to be put under load.

use std::future::Future;

use bytes::Bytes;

use crate::api::{Consistency, ReadPath};
use crate::cli::failure::Failure;

/// A store that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The revision that the answer names.
    pub revision: i64,
    /// On whose authority a read was served, where the store says so.
    pub path: Option<ReadPath>,
    /// Whether a read found its key.
    pub found: bool,
}

/// A store that did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// A short stable name of the kind, by which errors are counted.
    pub code: &'static str,
    /// A sentence.
    pub detail: String,
}

/// One connection to a store. Its requests may overlap.
pub trait Store: 'static {
    /// Reads one key.
    fn get(
        &self,
        key: &Bytes,
        consistency: Consistency,
    ) -> impl Future<Output = Result<Answer, Trouble>>;

    /// Writes one key.
    fn put(&self, key: &Bytes, value: &Bytes) -> impl Future<Output = Result<Answer, Trouble>>;

    /// Takes leave of the server.
    fn close(&self) -> impl Future<Output = ()>;
}

/// Makes connections to one store.
pub trait Connector: Clone + Send + 'static {
    /// A connection.
    type Store: Store;

    /// The store's name in reports.
    fn name(&self) -> &'static str;

    /// Makes connection `number`; they are numbered from 0, so that they can be spread.
    fn connect(&self, number: usize) -> impl Future<Output = Result<Self::Store, Failure>>;
}
