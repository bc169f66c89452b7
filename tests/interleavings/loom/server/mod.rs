//! The files of the server that are tried, in the places where they know each other.

pub(crate) mod mail;
pub(crate) mod peers;
pub(crate) mod session;
pub(crate) mod threads;
