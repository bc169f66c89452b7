//! The shell around a node: what is neither consensus nor state machine.

pub mod peers;
