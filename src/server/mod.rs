//! The shell around a node: what is neither consensus nor state machine.

pub mod admin;
pub mod config;
pub mod disk;
mod directory;
mod driver;
mod gather;
pub mod metrics;
mod outbox;
mod sessions;
mod sinks;
mod start;
mod state_thread;
