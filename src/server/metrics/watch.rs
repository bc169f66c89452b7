//! Watches of clients.

use super::table::{Counter, Gauge, Histogram, Lookup, metrics};

metrics! {
    /// Watches of clients.
    pub struct WatchMetrics {
        pub watchers: Gauge = "leasehold_watchers", "Open watches.";
        pub streams: Gauge = "leasehold_watch_streams", "Connections with open watches.";
        pub events: Counter = "leasehold_watch_events_total",
            "Events sent, counted once per watch.";
        pub pending: Gauge = "leasehold_watch_pending_events",
            "Event batches waiting to be sent, counted once per watch; the changes of one \
             revision are one batch.";
        pub queued_bytes: Gauge = "leasehold_watch_queued_bytes",
            "Bytes queued for watches or being sent to them; data shared by several watches \
             counts once.";
        pub slow: Gauge = "leasehold_watch_slow_watchers",
            "Watches that lag behind the applied state: they are catching up, or their clients \
             read too slowly.";
        pub delivery_delay_seconds: Histogram = "leasehold_watch_delivery_delay_seconds",
            "Time from applying a change until it was handed to the connection of a watch, \
             sampled.";
        cancels: Lookup<Counter> = "leasehold_watch_cancels_total",
            "Watches that ended, by reason.";
    }
}

impl WatchMetrics {
    /// Watches that ended for this reason.
    pub fn canceled(&self, reason: &'static str) -> Counter {
        self.cancels.find([("reason", reason.into())])
    }
}
