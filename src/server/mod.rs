//! The server: the shell around the pure core.

pub mod disk;
