//! The shell around a node: what is neither consensus nor state machine.

pub mod admin;
pub mod config;
pub mod metrics;
