//! Watches of clients.

use metrics::{Counter, Gauge, Histogram};

use super::{Metrics, Register};

/// Watches of clients.
pub struct WatchMetrics {
    /// Watches that are open.
    pub watchers: Gauge,
    /// Connections that have any.
    pub streams: Gauge,
    /// Events sent, each watch by itself.
    pub events: Counter,
    /// Revisions and other notices that wait to be sent, each watch by itself.
    pub pending: Gauge,
    /// Bytes that wait to be sent or are being sent, what watches share counted once.
    pub queued_bytes: Gauge,
    /// Watches that do not keep up, or are catching up.
    pub slow: Gauge,
    /// From applying a change until its last byte was handed to the connection, in seconds; sampled.
    pub delivery_delay_seconds: Histogram,
}

impl WatchMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        Self {
            watchers: register.gauge("leasehold_watchers", "Watches that are open."),
            streams: register.gauge(
                "leasehold_watch_streams",
                "Connections that have watches open.",
            ),
            events: register.counter(
                "leasehold_watch_events_total",
                "Events sent, each watch by itself.",
            ),
            pending: register.gauge(
                "leasehold_watch_pending_events",
                "Notices that wait to be sent, each watch by itself; the changes of one revision \
                 are one.",
            ),
            queued_bytes: register.gauge(
                "leasehold_watch_queued_bytes",
                "Bytes that wait to be sent to watches or are being sent, what they share counted \
                 once.",
            ),
            slow: register.gauge(
                "leasehold_watch_slow_watchers",
                "Watches that have not been given all that was applied: they catch up, or their \
                 clients read too slowly.",
            ),
            delivery_delay_seconds: register.histogram(
                "leasehold_watch_delivery_delay_seconds",
                "Time from applying a change until it was handed to the connection of a watch; \
                 sampled.",
            ),
        }
    }
}

impl Metrics {
    /// So many watches ended before their clients had enough, or because they had.
    pub fn watches_canceled(&self, reason: &'static str, count: u64) {
        Register(&self.recorder)
            .labelled(&[("reason", reason)])
            .counter(
                "leasehold_watch_cancels_total",
                "Watches that ended, by what ended them.",
            )
            .increment(count);
    }
}
