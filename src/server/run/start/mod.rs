//! Putting a node together, in stages; `running` takes it apart again.
//!
//! Each stage is made from the ones before it, so the order that matters is what the compiler lets
//! through, and [`Stage`](server::Stage) lists it for the test that holds it: the data directory is locked before
//! the clock is read that the voter's silence is counted from (A3), the log is whole before consensus
//! sees it, and the ports for clients and peers open last. Operators are answered from early on.

mod admin_ports;
mod core;
mod disks;
mod error;
mod etcd_port;
mod identity;
mod ports;
mod recovery;
mod running;
mod server;
mod tasks;
mod threads;

#[cfg(test)]
mod tests;

pub use self::error::StartError;
pub use self::running::{CertificateReload, Pulse};
pub use self::server::{Server, ServerOptions};
