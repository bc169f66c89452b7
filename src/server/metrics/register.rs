//! The one way to make a metric: with its help, its labels and, if it is a histogram, its buckets.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};

use super::{leases, storage};

/// Registers metrics with their help: there is no other way to make one.
#[derive(Clone, Copy)]
pub(super) struct Register<'a>(pub(super) &'a PrometheusRecorder);

/// As [`Register`], with labels.
pub(super) struct Labelled<'a> {
    pub(super) recorder: &'a PrometheusRecorder,
    pub(super) labels: Vec<Label>,
}

impl<'a> Register<'a> {
    pub(super) fn labelled(self, labels: &[(&'static str, &'static str)]) -> Labelled<'a> {
        let label =
            |(name, value): &(&'static str, &'static str)| Label::from_static_parts(name, value);
        Labelled {
            recorder: self.0,
            labels: labels.iter().map(label).collect(),
        }
    }

    pub(super) fn counter(self, name: &'static str, help: &'static str) -> Counter {
        self.labelled(&[]).counter(name, help)
    }

    pub(super) fn gauge(self, name: &'static str, help: &'static str) -> Gauge {
        self.labelled(&[]).gauge(name, help)
    }

    pub(super) fn histogram(self, name: &'static str, help: &'static str) -> Histogram {
        self.labelled(&[]).histogram(name, help)
    }
}

impl Labelled<'_> {
    pub(super) fn counter(self, name: &'static str, help: &'static str) -> Counter {
        self.recorder
            .describe_counter(name.into(), None, help.into());
        let key = Key::from_parts(name, self.labels);
        self.recorder.register_counter(&key, &METADATA)
    }

    pub(super) fn gauge(self, name: &'static str, help: &'static str) -> Gauge {
        self.recorder.describe_gauge(name.into(), None, help.into());
        let key = Key::from_parts(name, self.labels);
        self.recorder.register_gauge(&key, &METADATA)
    }

    pub(super) fn histogram(self, name: &'static str, help: &'static str) -> Histogram {
        self.recorder
            .describe_histogram(name.into(), None, help.into());
        let key = Key::from_parts(name, self.labels);
        self.recorder.register_histogram(&key, &METADATA)
    }
}

pub(super) fn recorder() -> PrometheusRecorder {
    let buckets = |builder: PrometheusBuilder, matcher, bounds| {
        builder
            .set_buckets_for_metric(matcher, bounds)
            .expect("the bounds are not empty")
    };
    let mut builder = PrometheusBuilder::new()
        .set_buckets(LATENCY_SECONDS)
        .expect("the bounds are not empty");
    for name in [
        storage::WAL_FSYNC,
        storage::STORAGE_COMMIT,
        storage::HISTORY_STEP,
    ] {
        builder = buckets(builder, Matcher::Full(name.to_owned()), DISK_SECONDS);
    }
    for (name, bounds) in [
        (leases::LATENESS, leases::LATENESS_SECONDS),
        (leases::TTL, leases::TTL_SECONDS),
        (leases::RATIO, leases::RATIOS),
    ] {
        builder = buckets(builder, Matcher::Full(name.to_owned()), bounds);
    }
    let batches = Matcher::Full(storage::WAL_BATCH_ENTRIES.to_owned());
    builder = buckets(builder, batches, BATCH_SIZES);
    builder.build_recorder()
}

const METADATA: Metadata<'static> =
    Metadata::new("leasehold", Level::INFO, Some("leasehold::server::metrics"));

/// Bounds of what happens inside a server: 1 µs to 10 s.
const LATENCY_SECONDS: &[f64] = &[
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2,
    5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];
/// Bounds of what waits for a disk: 100 µs to 10 s.
const DISK_SECONDS: &[f64] = &[
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Bounds of how many things go together.
const BATCH_SIZES: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0,
];
