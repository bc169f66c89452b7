//! What stands in front of the database that holds the state: how a batch of entries is published, and
//! how it is read.
//!
//! A batch is published before the database has it: its changes lie ahead of the database (`ahead.rs`), where
//! every look finds them, until they are handed over: later, and together with those of other batches. So
//! nothing that applies or reads waits for a write of the database. A crash in between loses what every crash
//! may: the end of the state, which the log replays. And what may leave the log is not what is published but
//! what is [`Durable`]. The thread that publishes sees to it that not too much lies ahead ([`Front::ahead_bytes`]).
//!
//! The order of publication is what makes reads linearizable, and types keep it: each step is made from
//! the one before and consumes it.
//!
//! 1. [`Batch`]: the entries are applied, and not visible.
//! 2. [`ShownBatch`]: every look at the database finds what they changed.
//! 3. [`CachedBatch`]: so does the cache of current records.
//! 4. [`RevisedBatch`]: the revision is published (A10).
//! 5. [`PublishedBatch`]: the applied index is, so reads may be answered from this state (A7).
//!
//! A reader goes the other way ([`Front::get`]): applied index, revision, lookup. So a reader that sees an
//! index applied sees everything up to it. Whatever needs more than one key takes a [`Snapshot`], which
//! says of itself how far it is (A9).
//!
//! The database is a trait ([`Database`]). The server has fjall behind it, the simulator a map that a
//! crash takes back to what was persisted, with time passing between any two steps; `tests/interleavings`
//! tries them against readers in every order.
//!
//! ```
//! # use leasehold::front::{Batch, Database, Writer};
//! # use leasehold::types::LogId;
//! fn in_order<D: Database>(writer: &mut Writer<D>, id: LogId) -> Result<(), D::Error> {
//!     let mut batch = Batch::begin(writer)?;
//!     batch.apply(id, None)?;
//!     batch.show()?.cache()?.revise().publish();
//!     Ok(())
//! }
//! ```
//!
//! The applied index is not published before the state can be found:
//!
//! ```compile_fail
//! # use leasehold::front::{Batch, Database, Writer};
//! fn published_before_it_is_shown<D: Database>(batch: Batch<&mut Writer<D>, D>) {
//!     batch.publish();
//! }
//! ```
//!
//! Nor while the cache has what was there before:
//!
//! ```compile_fail
//! # use leasehold::front::{Database, ShownBatch, Writer};
//! fn revised_before_it_is_cached<D: Database>(shown: ShownBatch<&mut Writer<D>>) {
//!     shown.revise();
//! }
//! ```
//!
//! Nor before the revision that belongs to it:
//!
//! ```compile_fail
//! # use leasehold::front::{CachedBatch, Database, Writer};
//! fn applied_before_its_revision<D: Database>(cached: CachedBatch<&mut Writer<D>>) {
//!     cached.publish();
//! }
//! ```
//!
//! One batch is published before the next one is begun:
//!
//! ```compile_fail
//! # use leasehold::front::{Batch, Database, Writer};
//! fn two_at_once<D: Database>(writer: &mut Writer<D>) {
//!     let one = Batch::begin(&mut *writer);
//!     let two = Batch::begin(&mut *writer);
//!     drop(one);
//! }
//! ```
//!
//! The log is not cut by what is published, but by what a sync has returned for (D1):
//!
//! ```compile_fail
//! # use leasehold::front::{Database, Durable, Front};
//! fn durable_by_word<D: Database>(front: &std::sync::Arc<Front<D>>) -> Durable {
//!     Durable { through: front.snapshot().ok().unwrap().applied() }
//! }
//! ```

mod ahead;
mod cache;
mod database;
mod durable;
mod publish;
mod state;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use ahead::{Growth, HandedOver};
pub use database::Database;
pub use durable::{Durable, Truncation};
pub use publish::{
    Batch, CachedBatch, PublishedBatch, RetiredState, RevisedBatch, ShownBatch, Writer,
};
pub use state::{Front, Handle, Point, Snapshot};
