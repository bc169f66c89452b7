//! Client connections: decode a batch, answer what this node may answer here, and pass on the rest.
//!
//! Each stream has a task, [`stream`], that takes requests in closed batches. Reads of one key under
//! the lease begin and end in [`point_read`]: no other thread, no peer and no disk write takes part.
//! Reads of many keys run beside it, in [`scan`]; [`dispatch`] says where every other request goes.
//! What the driver answers comes back through the stream's
//! [`Outbox`](crate::server::mail::outbox::Outbox), to [`replies`].
//!
//! What a client can make a node hold is bounded: requests by connection and, by class, by node
//! ([`admission`]), bytes by both ([`budget`]), and replies by writing them before more is taken in. A
//! request gives back what it holds of the node when its work is done, whether or not the client reads
//! the answer, and not before, whether or not the client is still there. A client that reads nothing
//! loses its stream.

mod accept;
mod accounting;
pub(crate) mod admission;
pub(crate) mod auth;
mod blocking_task;
pub(crate) mod budget;
mod connection;
mod dispatch;
pub(crate) mod drain;
pub(crate) mod exports;
mod forward;
mod inside;
mod lease_query;
mod local;
pub(crate) mod origins;
mod pending;
mod phases;
mod point_read;
mod refusals;
mod replies;
mod scan;
mod shared;
mod slow_log;
mod status;
mod storage_size;
mod stream;
pub(crate) mod traces;
pub(crate) mod user_rates;

#[cfg(test)]
mod tests;

pub(crate) use accounting::{Accounting, Latencies};
pub(crate) use forward::{ForwardService, Forwarder};
pub(crate) use local::LocalClient;
pub(crate) use shared::{Serving, SessionLimits, Sessions};
pub(crate) use slow_log::SlowLog;
pub(crate) use storage_size::StorageSize;
