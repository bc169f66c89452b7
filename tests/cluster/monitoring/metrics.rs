//! What there is to ask Prometheus for: the names of a scrape, each with its labels.

use std::collections::{BTreeMap, BTreeSet};

use leasehold::server::metrics::Metrics;

use crate::monitoring::promql;

/// Labels that Prometheus adds.
const OF_TARGET: [&str; 2] = ["job", "instance"];

/// Names of series with their labels.
#[derive(Debug, Default)]
pub(crate) struct Catalog(BTreeMap<String, BTreeSet<String>>);

impl Catalog {
    /// Everything that the code registers, those included that come with the first event.
    pub(crate) fn of_the_code() -> Self {
        let metrics = Metrics::new();
        metrics.watch.canceled("client").increment(1);
        metrics.leader_lease.set_clock_drift("n2", 0.0);
        metrics.peer("n2");
        metrics.health.checked("readyz", "started", true);
        let mut catalog = Self::default();
        catalog.add(&metrics.render(|_| {}));
        catalog
    }

    /// Adds what a scrape shows.
    pub(crate) fn add(&mut self, scrape: &str) {
        for line in scrape.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, _)) = line.rsplit_once(' ') else {
                continue;
            };
            let (selectors, _) = promql::names(series);
            for selector in selectors {
                let labels = self.0.entry(selector.name).or_default();
                labels.extend(selector.labels);
            }
        }
    }

    /// What of an expression nothing has, as sentences.
    pub(crate) fn strangers(&self, expression: &str) -> Vec<String> {
        let (selectors, grouping) = promql::names(expression);
        let mut strangers = Vec::new();
        let mut labels: BTreeSet<&str> = OF_TARGET.into();
        for selector in &selectors {
            // Prometheus makes it for each target.
            if selector.name == "up" {
                continue;
            }
            let Some(known) = self.0.get(&selector.name) else {
                strangers.push(format!("there is no metric {}", selector.name));
                continue;
            };
            labels.extend(known.iter().map(String::as_str));
            for label in &selector.labels {
                if !known.contains(label) && !OF_TARGET.contains(&label.as_str()) {
                    strangers.push(format!("{} has no label {label}", selector.name));
                }
            }
        }
        let unknown = grouping
            .iter()
            .filter(|label| !labels.contains(label.as_str()));
        strangers.extend(unknown.map(|label| format!("none of its metrics has a label {label}")));
        strangers
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

#[test]
fn what_nothing_has_is_found() {
    let catalog = Catalog::of_the_code();
    assert!(catalog.names().count() > 100);
    for good in [
        "sum by (job, path) (rate(leasehold_reads_total{path=\"lease\"}[5m]))",
        "leasehold_wal_fsync_duration_seconds_bucket{le=\"+Inf\", job=\"x\"}",
        "leasehold_watch_cancels_total{reason=\"slow\"} or up == 0",
    ] {
        assert_eq!(catalog.strangers(good), [""; 0], "{good}");
    }
    for (bad, sentence) in [
        (
            "sum(leasehold_nonsense)",
            "there is no metric leasehold_nonsense",
        ),
        (
            "leasehold_wal_fsync_duration_seconds",
            "there is no metric leasehold_wal_fsync_duration_seconds",
        ),
        (
            "leasehold_reads_total{method=\"put\"}",
            "leasehold_reads_total has no label method",
        ),
        (
            "sum by (method) (leasehold_reads_total)",
            "none of its metrics has a label method",
        ),
    ] {
        assert_eq!(catalog.strangers(bad), [sentence], "{bad}");
    }
}
