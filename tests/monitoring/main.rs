//! What operators watch a cluster with: alert rules, dashboards, the runbook, and the other files of
//! `deploy/`.
//!
//! `files` reads them and needs nothing else. `live` starts a real Prometheus on a real cluster, and
//! makes alerts fire by doing to the cluster what they are for. It needs Debian's package `prometheus`:
//! without it, it says loudly that it was left out, and with `LEASEHOLD_REQUIRE_PROMETHEUS` set, as the
//! gate sets it, it fails.

#![expect(
    clippy::disallowed_methods,
    reason = "tests wait for real processes, in real time"
)]
#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]
#![expect(clippy::print_stderr, reason = "figures are reported, never asserted")]

mod beside;
mod clocks;
mod dashboards;
mod files;
#[path = "../cluster/harness.rs"]
#[expect(
    dead_code,
    reason = "shared with the cluster tests, which use all of it"
)]
mod harness;
mod live;
mod machines;
mod metrics;
mod prometheus;
mod promql;
mod rules;
#[path = "../chaos/tools.rs"]
#[expect(dead_code, reason = "shared with chaos, which uses all of it")]
mod tools;
mod unit;
#[path = "../chaos/wires.rs"]
mod wires;
