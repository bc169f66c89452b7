//! What probes were told.

use metrics::Gauge;

use super::{Metrics, Register};
use crate::server::admin::Check;

const CHECKS: &str = "leasehold_healthchecks_total";
const CHECKS_HELP: &str = "Health checks run for probes, by probe, check and outcome.";

impl Metrics {
    /// A probe of this type (`livez`, `readyz`) was told this.
    pub fn checked(&self, probe: &'static str, checks: &[Check]) {
        // A few times a second at most: they are looked up.
        for check in checks {
            let named = [("type", probe), ("name", check.name)];
            let gauge: Gauge = Register(&self.recorder).labelled(&named).gauge(
                "leasehold_healthcheck",
                "1 if this health check passed when it last ran, else 0; absent until it has run \
                 once.",
            );
            gauge.set(f64::from(u8::from(check.ok)));
            for (status, is_it) in [("success", check.ok), ("error", !check.ok)] {
                let [probe, name] = named;
                Register(&self.recorder)
                    .labelled(&[probe, name, ("status", status)])
                    .counter(CHECKS, CHECKS_HELP)
                    .increment(u64::from(is_it));
            }
        }
    }
}
