//! What operators watch a cluster with: alert rules, dashboards, the runbook, and the other files of
//! `deploy/`.
//!
//! `files` reads them and needs nothing else. `live` starts a real Prometheus on a real cluster, and
//! makes alerts fire by doing to the cluster what they are for. It needs Debian's package `prometheus`:
//! without it, it says loudly that it was left out, and with `LEASEHOLD_REQUIRE_PROMETHEUS` set, as the
//! gate sets it, it fails.

mod beside;
pub(crate) mod clocks;
mod dashboards;
mod files;
mod live;
mod machines;
mod metrics;
mod prometheus;
mod promql;
mod rules;
mod unit;
