//! leasehold: a replicated key-value store whose leader answers linearizable reads alone.

#![forbid(unsafe_code)]

pub mod api;
pub mod raft;
pub mod time;
pub mod types;
