//! What clients measure, for the recorder that a program has installed for the crate `metrics` (feature `metrics`).

use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use crate::client::{CLIENT_METRICS, Client, ClientLabels, ClientRecorder};

/// The recorder that is installed.
struct GlobalRecorder;

impl ClientRecorder for GlobalRecorder {
    fn count(&self, name: &'static str, by: u64, labels: &ClientLabels) {
        counter!(name, labels).increment(by);
    }

    fn change(&self, name: &'static str, by: f64) {
        gauge!(name).increment(by);
    }

    fn record(&self, name: &'static str, took: Duration, labels: &ClientLabels) {
        histogram!(name, labels).record(took);
    }
}

impl Client {
    /// Has all clients of this program tell what they do, from now on, to the recorder that is installed for the crate
    /// `metrics`, which also gets the help texts of [`CLIENT_METRICS`]. To be called once that is installed and before
    /// clients are made: what is open already is not counted. False if a recorder is told already, by this or by
    /// [`Client::record_to`].
    ///
    /// ```
    /// use leasehold::client::Client;
    ///
    /// Client::record_metrics(); // Once, when the recorder is installed.
    /// ```
    pub fn record_metrics() -> bool {
        for metric in CLIENT_METRICS {
            match metric.kind {
                "counter" => describe_counter!(metric.name, metric.help),
                "gauge" => describe_gauge!(metric.name, metric.help),
                _ => describe_histogram!(metric.name, metric.help),
            }
        }
        Self::record_to(&GlobalRecorder)
    }
}
