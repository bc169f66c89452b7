//! The command line.

pub mod pki;
