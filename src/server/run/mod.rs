//! Starts and stops a node, keeps its certificates and backups current, and performs offline operations on
//! a data directory.

pub(crate) mod backups;
pub(crate) mod certificates;
pub mod discovery;
pub mod offline;
pub(crate) mod reopening;
pub(crate) mod start;
pub mod supervisor;
