//! The server: the shell around one replica.

pub mod disk;
