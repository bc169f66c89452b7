//! Integration tests: separate processes on loopback, with real certificates, disks and sockets.

mod bad_input;
mod crashes;
mod harness;
mod hostile;
mod life;
