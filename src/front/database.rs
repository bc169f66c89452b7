use std::fmt;

use bytes::Bytes;

use crate::kv::{Fault, LastChange, Pair, Space, Span};

/// What the front needs of the database behind it: fjall in the server, a map in the simulator and in
/// the models of `tests/interleavings`.
pub trait Database {
    /// Why it can fail: the disk, or a state that cannot be. Any error is fatal.
    type Error: From<Fault> + fmt::Debug;
    /// All of it at one moment.
    type Snapshot;

    /// What it holds now. Writes that come later do not change it.
    fn snapshot(&self) -> Self::Snapshot;

    /// The record of `key` in `at`.
    ///
    /// # Errors
    /// Any is fatal.
    fn get(
        &self,
        at: &Self::Snapshot,
        space: Space,
        key: &[u8],
    ) -> Result<Option<Bytes>, Self::Error>;

    /// The keys of `span` in `at`, in order, with their records.
    fn range<'a>(
        &'a self,
        at: &'a Self::Snapshot,
        space: Space,
        span: &Span,
    ) -> impl Iterator<Item = Result<Pair, Self::Error>> + use<'a, Self>;

    /// Takes in changes, of each key one, all or none: later snapshots have them. Not synced.
    ///
    /// # Errors
    /// Any is fatal.
    fn write<'c>(&self, changes: impl Iterator<Item = LastChange<'c>>) -> Result<(), Self::Error>;

    /// Makes everything durable that was written before.
    ///
    /// # Errors
    /// Any is fatal: after a failed sync the content of the disk is unknown.
    fn sync(&self) -> Result<(), Self::Error>;
}
