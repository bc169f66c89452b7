//! leasehold: a replicated key-value store whose leader answers linearizable reads alone.

#![forbid(unsafe_code)]

pub mod api;
pub mod log;
pub mod raft;
#[cfg(feature = "server")]
pub mod server;
pub mod time;
pub mod types;
