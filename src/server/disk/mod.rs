//! What a replica keeps on disk.

pub mod store;
