//! What the server keeps on disk: the data directory, the log and the state.

pub mod data_dir;
pub mod file;
pub mod log_thread;
pub mod places;
pub mod store;
