//! The shell around a node: what is neither consensus nor state machine.

pub mod admin;
mod attempt;
mod budget;
pub mod config;
mod directory;
pub mod disk;
mod driver;
mod fatal;
mod founding;
mod gather;
mod instruments;
mod integrity;
mod journal_thread;
mod lease_log;
pub mod metrics;
mod outbox;
pub mod peers;
mod sessions;
mod sinks;
mod start;
mod state_thread;
pub mod supervisor;
mod sweep_thread;
mod vitals;
mod watches;

pub use founding::FoundingError;
pub use start::Pulse;
pub use start::Server;
pub use start::ServerOptions;
pub use start::StartError;
