//! What the server keeps on disk: the data directory, the log and the state.

pub(crate) mod apply_listener;
pub(crate) mod attempt;
pub(crate) mod bootstrap;
pub mod data_dir;
pub(crate) mod durable;
pub mod file;
pub(crate) mod gc_thread;
pub(crate) mod hand_over_thread;
pub(crate) mod journal_thread;
pub(crate) mod log_compactor;
pub mod log_thread;
pub(crate) mod mark_writer;
pub(crate) mod marker;
pub(crate) mod quota;
pub(crate) mod space;
pub mod state_dirs;
pub(crate) mod state_thread;
pub mod store;
pub mod tls;
