//! The server: the shell around one replica.

pub mod disk;
//! The shell around a node: what is neither consensus nor state machine.
