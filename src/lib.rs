//! leasehold: a replicated key-value store whose leader answers linearizable reads alone, under a
//! lease, without asking its peers.
//!
//! ```no_run
//! # #[cfg(feature = "client")]
//! # async fn run() -> Result<(), leasehold::api::Error> {
//! use leasehold::client::{Client, ConnectOptions, TlsOptions};
//!
//! let tls = TlsOptions::new()
//!     .ca_pem_file("pki/client-ca.pem")
//!     .identity_pem_files("pki/app.pem", "pki/app.key");
//! let options = ConnectOptions::new().with_tls(tls);
//! let client = Client::connect(["10.0.0.1:7400"], Some(options)).await?;
//! let got = client.get("color", None).await?;
//! println!("{:?}, served by {:?}", got.value(), got.header().read);
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//!  client ── get ──▶ session ── lease valid? state new enough? ──▶ answer
//!  client ── put ──▶ session ──▶ driver ──▶ log thread, peers ──▶ state thread ──▶ answer
//!                                owns `Node`: consensus, waiting clients, lease deadlines
//! ```
//!
//! Three concepts carry everything else:
//!
//! - **The leader lease.** A majority of voters promises to elect no other leader for a while; the
//!   leader counts a shorter while from before it asked, and reads alone meanwhile. A
//!   [`ReadPermit`](raft::ReadPermit) is the proof, and no read is answered without one unless it
//!   asked for less ([`node::Judged`]).
//! - **The pure replica.** [`node::Node`] takes time and messages and returns effects. The server
//!   is one shell around it and the simulator another.
//! - **The log decides.** Every change, the end of a client lease included, is an entry of the log
//!   that each replica applies alike ([`kv`]); renewals and reads are not.
//!
//! Programs need [`client`] alone. The modules in reading order:
//!
//! - [`types`], [`time`], [`api`]: the nouns, the pair of clocks, what may be asked;
//! - [`raft`], [`log`], [`kv`]: consensus, its log, and the state machine, each pure and none
//!   knowing the others; [`front`]: how the state is published and read; [`watch`]: which watchers
//!   are sent what;
//! - [`node`]: one replica made of them, still pure; [`wire`]: its frames;
//! - `clock`, `transport`, `server`: the machine around it; `embed`: a node inside a program; `cli`: the
//!   binary; `bench`: load on it.
//!
//! `raft`, `log`, `kv`, `front`, `watch`, `node` and `wire` are public so that the simulator, the fuzzers and
//! the benches enter by the same door as the server. They promise no stability.
//!
//! Why a leased read is never stale is proved in docs/protocol.md, rule by rule; comments cite the
//! rules by name (`P20`, `A18`).

#![forbid(unsafe_code)]

/// A deliberate bug, which tests of the tests switch on (`planted/mod.rs`). `planted!(Bug)` says
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
#[doc(hidden)]
pub mod bench;
#[cfg(feature = "blocking")]
pub mod blocking;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "metrics")]
mod client_metrics;
#[cfg(feature = "transport")]
pub mod clock;
#[cfg(feature = "embed")]
pub mod embed;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod etcd;
pub mod front;
#[cfg(feature = "json")]
mod json;
pub mod kv;
pub mod leader_lease;
pub mod log;
pub mod node;
#[cfg(feature = "embed")]
pub mod pki;
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

/// The examples of the README and of the guide are compiled.
#[cfg(all(doctest, feature = "embed"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/guide/rust.md")]
#[doc = include_str!("../docs/guide/leases.md")]
#[doc = include_str!("../docs/guide/locks.md")]
struct Pages;
