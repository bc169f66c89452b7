//! The console in a real browser, against real nodes.
//!
//! It needs Debian's packages `chromium` and `chromium-driver`: without them, it says loudly that it was left
//! out, and with `LEASEHOLD_REQUIRE_BROWSER` set, as the gate sets it, it fails. With
//! `UPDATE_PICTURES` set it takes the pictures of the documentation.

#![expect(
    clippy::disallowed_methods,
    reason = "tests wait for real processes, in real time"
)]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod access;
mod browser;
mod changes;
#[path = "../cluster/harness.rs"]
#[expect(
    dead_code,
    reason = "shared with the cluster tests, which use all of it"
)]
mod harness;
#[path = "../cluster/etcd/http.rs"]
#[expect(
    dead_code,
    reason = "shared with the cluster tests, which use all of it"
)]
mod http;
mod many;
mod pictures;
mod views;
mod world;
