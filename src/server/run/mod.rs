//! Starting a node, keeping what it needs current, and ending it; and what is done to a data directory
//! while no node runs on it.

pub(crate) mod backups;
pub(crate) mod certificates;
pub mod offline;
pub(crate) mod start;
pub mod supervisor;
