//! Watches of clients.

use metrics::{Counter, Gauge, Histogram};

use super::{Metrics, Register};

/// Watches of clients.
pub struct WatchMetrics {
    /// Open watches.
    pub watchers: Gauge,
    /// Connections that have any.
    pub streams: Gauge,
    /// Events sent, counted once per watch.
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
            watchers: register.gauge("leasehold_watchers", "Open watches."),
            streams: register.gauge("leasehold_watch_streams", "Connections with open watches."),
            events: register.counter(
                "leasehold_watch_events_total",
                "Events sent, counted once per watch.",
            ),
            pending: register.gauge(
                "leasehold_watch_pending_events",
                "Event batches waiting to be sent, counted once per watch; the changes of one \
                 revision are one batch.",
            ),
            queued_bytes: register.gauge(
                "leasehold_watch_queued_bytes",
                "Bytes queued for watches or being sent to them; data shared by several watches \
                 counts once.",
            ),
            slow: register.gauge(
                "leasehold_watch_slow_watchers",
                "Watches that lag behind the applied state: they are catching up, or their clients \
                 read too slowly.",
            ),
            delivery_delay_seconds: register.histogram(
                "leasehold_watch_delivery_delay_seconds",
                "Time from applying a change until it was handed to the connection of a watch, \
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
                "Watches that ended, by reason.",
            )
            .increment(count);
    }
}
