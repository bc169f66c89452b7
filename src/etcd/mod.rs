//! etcd's v3 API as data: its messages, how they relate to [`api`](crate::api), and what it calls errors.
//!
//! Nothing here knows a socket or a node; `server/etcd` has the port. What a client of etcd relies on
//! beyond the messages (texts of errors, empty ranges, which revision a header shows) is decided
//! here, so that it can be tested without either.

pub(crate) mod backup;
pub(crate) mod bbolt;
pub(crate) mod convert;
pub mod doors;
pub(crate) mod errors;
pub(crate) mod framing;
pub(crate) mod json;
pub(crate) mod metrics;
pub(crate) mod proto;
pub(crate) mod status;
#[cfg(test)]
mod texts;
