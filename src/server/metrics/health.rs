//! Health checks run for probes.

use super::table::{Counter, Gauge, Lookup, metrics};

metrics! {
    /// Health checks run for probes.
    pub struct HealthMetrics {
        last: Lookup<Gauge> = "leasehold_healthcheck",
            "1 if this health check passed when it last ran, else 0; absent until it has run \
             once.";
        run: Lookup<Counter> = "leasehold_healthchecks_total",
            "Health checks run for probes, by probe, check and outcome.";
    }
}

impl HealthMetrics {
    /// The check `name` ran for a probe of this type (`livez`, `readyz`).
    pub fn checked(&self, probe: &'static str, name: &'static str, passed: bool) {
        // A few times a second at most, so a look-up does.
        let last = self
            .last
            .find([("type", probe.into()), ("name", name.into())]);
        last.set(f64::from(u8::from(passed)));
        for (status, count) in [("success", passed), ("error", !passed)] {
            let labels = [("type", probe), ("name", name), ("status", status)];
            let run = self
                .run
                .find(labels.map(|(label, value)| (label, value.into())));
            run.increment(u64::from(count));
        }
    }
}
