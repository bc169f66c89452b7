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
//! println!("{:?}, served by {:?}", got.value(), got.header.read);
//! # Ok(())
//! # }
//! ```
//!
//! Programs need [`client`] alone, and [`types`], [`time`] and [`api`]: the nouns, the pair of clocks, what may be asked.
//! Why a leased read is never stale is proved in docs/protocol.md, rule by rule; comments cite the rules by name (`P20`,
//! `A18`).
#![cfg_attr(feature = "server", doc = "", doc = include_str!("inside.md"))]
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
#[cfg_attr(not(feature = "server"), doc(hidden))]
pub mod clock;
#[cfg(feature = "embed")]
pub mod embed;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod etcd;
#[cfg_attr(not(feature = "server"), doc(hidden))]
pub mod front;
#[cfg(feature = "json")]
mod json;
#[cfg_attr(not(feature = "server"), doc(hidden))]
pub mod kv;
#[cfg_attr(not(feature = "server"), doc(hidden))]
pub mod leader_lease;
#[cfg_attr(not(feature = "server"), doc(hidden))]
pub mod log;
#[cfg_attr(not(feature = "server"), doc(hidden))]
pub mod node;
#[cfg(feature = "embed")]
pub mod pki;
#[cfg_attr(not(feature = "server"), doc(hidden))]
pub mod raft;
#[cfg(feature = "server")]
pub mod server;
mod sync;
pub mod time;
#[cfg(feature = "transport")]
#[cfg_attr(not(feature = "server"), doc(hidden))]
pub mod transport;
pub mod types;
pub mod version;
#[cfg_attr(not(feature = "server"), doc(hidden))]
pub mod watch;
#[cfg_attr(not(feature = "server"), doc(hidden))]
pub mod wire;

/// The examples of the README and of the guide are compiled.
#[cfg(all(doctest, feature = "embed"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/guide/rust.md")]
#[doc = include_str!("../docs/guide/leases.md")]
#[doc = include_str!("../docs/guide/locks.md")]
struct Pages;
