//! leasehold: a replicated key-value store whose leader answers linearizable reads alone, under a
//! lease, without asking anybody.
//!
//! Most programs need [`client`] alone: [`Client`](client::Client) connects to a cluster and
//! follows its leader. The rest, in the order in which it is best read:
//!
//! - [`types`], [`time`], [`api`]: the nouns, the pair of clocks, what may be asked;
//! - [`raft`], [`log`], [`kv`]: consensus, its log, and the state machine, each pure and none
//!   knowing the others; [`watch`]: who is told what the state machine has changed;
//! - [`node`]: one replica made of them, still pure; [`wire`]: how it speaks;
//! - `clock`, `transport`, `server`: the machine around it; `cli`: the binary; `bench`: load on it.
//!
//! `raft`, `log`, `kv`, `watch`, `node` and `wire` are public so that the simulator, the fuzzers and
//! the benches enter by the same door as the server. They promise no stability.

#![forbid(unsafe_code)]

/// A deliberate bug, which tests of the tests switch on (`planted.rs`). `planted!(Bug)` says
/// whether it is on, `planted!(Bug => what it does)` does it: never and nothing in a normal build.
#[cfg(not(leasehold_bugs))]
macro_rules! planted {
    ($bug:ident) => {
        false
    };
    ($bug:ident => $does:expr) => {};
}
#[cfg(leasehold_bugs)]
#[macro_use]
pub mod planted;

pub mod api;
#[cfg(feature = "cli")]
pub mod bench;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "transport")]
pub mod clock;
#[cfg(feature = "bench-etcd")]
pub mod etcd;
pub mod kv;
pub mod leader_lease;
pub mod log;
pub mod node;
#[cfg(all(test, feature = "cli"))]
mod pins;
pub mod raft;
#[cfg(feature = "server")]
pub mod server;
mod sync;
pub mod time;
#[cfg(feature = "transport")]
pub mod transport;
pub mod types;
pub mod version;
pub mod watch;
pub mod wire;

/// The examples of the README are compiled.
#[cfg(all(doctest, feature = "client"))]
#[doc = include_str!("../README.md")]
struct Readme;
