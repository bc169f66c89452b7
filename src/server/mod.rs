//! The shell around a node: what is neither consensus nor state machine.

pub mod admin;
pub mod config;
pub mod disk;
mod driver;
mod etcd;
mod mail;
pub mod metrics;
pub mod peers;
pub mod run;
mod session;
pub(crate) mod status;
mod threads;
mod watch;

pub use admin::log_control::LogControl;
pub use run::start::{CertificateReload, Pulse, Server, ServerOptions, StartError};
