//! Integration tests: separate processes on loopback, with real certificates, disks and sockets.

#![expect(
    clippy::disallowed_methods,
    reason = "tests wait for real processes, in real time"
)]

mod bad_input;
mod crashes;
mod harness;
mod hostile;
mod life;
