//! What threads share, in every order that the memory model allows.
//!
//! The files of the library that are tried here are compiled once more, into this binary, with
//! `crate::sync` being loom's. Everything else of the library is used as it is. Each model is a
//! function that loom runs again and again, until it has seen every order of the steps of its
//! threads that differs. See README.md beside this folder for what is modelled and what is not.
//!
//! ```text
//! RUSTFLAGS='--cfg loom --cfg leasehold_bugs' cargo test --release --target-dir target/loom \
//!     --no-default-features --test interleavings_loom [-- NAME...]
//! ```

#![cfg_attr(
    loom,
    expect(clippy::unwrap_used, reason = "a test that meets an error has failed")
)]

/// As in the library, but switched by name, by [`planted::with`].
#[cfg(loom)]
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is_on(stringify!($bug))
    };
    ($bug:ident => $does:expr) => {
        if $crate::planted::is_on(stringify!($bug)) {
            $does
        }
    };
}

#[cfg(loom)]
mod holder;
#[cfg(loom)]
mod lease;
#[cfg(loom)]
mod models;
#[cfg(loom)]
mod notify;
#[cfg(loom)]
mod planted;
#[cfg(loom)]
mod queues;
#[cfg(loom)]
mod server;
#[cfg(loom)]
mod store;
#[cfg(loom)]
mod sync;

// What the compiled files know as `crate::…`.
#[cfg(loom)]
use leasehold::{api, kv, node, time, types, wire};

// And as `tokio::sync::…`.
#[cfg(loom)]
extern crate self as tokio;

#[cfg(loom)]
#[path = "../../../src/front/mod.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "compiled as it is"
)]
mod front;

#[cfg(loom)]
#[path = "../../../src/node/leased_read.rs"]
#[allow(dead_code, unreachable_pub, reason = "compiled as it is")]
mod leased_read;

#[cfg(loom)]
#[path = "../../../src/raft/mod.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::wrong_self_convention,
    reason = "the whole of consensus is compiled, and a part of it tried"
)]
mod raft;

#[cfg(loom)]
fn main() -> std::process::ExitCode {
    models::main()
}

#[cfg(not(loom))]
#[expect(clippy::print_stdout, reason = "it is its own test harness")]
fn main() {
    println!("interleavings: nothing is tried without --cfg loom; .ci/run does it");
}
