//! leasehold: a replicated key-value store whose leader answers linearizable reads alone.

#![forbid(unsafe_code)]

pub mod api;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "transport")]
pub mod clock;
pub mod raft;
#[cfg(feature = "server")]
pub mod server;
pub mod time;
#[cfg(feature = "transport")]
pub mod transport;
pub mod types;
pub mod wire;
