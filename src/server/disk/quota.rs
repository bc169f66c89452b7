//! Measures the space for data at intervals, and reports it to the driver and to status requests.
//!
//! The node decides what follows ([`crate::node::SpaceReport`]). What is measured is the state as the
//! storage engine counts it, and what its disk has left. How much that must be is known in
//! [`crate::server::disk::space`].

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::api::Error;
use crate::kv::SpaceAlarm;
use crate::node::{Input, SpaceReport};
use crate::server::config::QuotaConfig;
use crate::server::disk::space::{DiskPlan, bytes_below, disk_space};
use crate::server::disk::store::{StateReader, StoreError};
use crate::server::mail::{Mail, Mailbox};
use crate::server::metrics::Metrics;

/// Interval between measurements. What is written in between may exceed the quota.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The same on a disk that might be full after the longer one.
const NEAR_INTERVAL: Duration = Duration::from_millis(50);
/// Looks at a disk that is nearly full until merged tables are let go of once more.
const LOOKS_PER_RELEASE: u64 = 20;
/// More than that costs.
const RELEASE_BYTES: u64 = 8 << 20;
/// More than a node writes in [`LOOK_INTERVAL`], with all that follows from it.
const NEAR_BYTES: u64 = 1 << 30;

/// The space of a node by the last measurement.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) quota: QuotaConfig,
    used: AtomicU64,
    alarm: ArcSwapOption<SpaceAlarm>,
}

impl Room {
    pub(crate) fn new(quota: QuotaConfig) -> Self {
        Self {
            quota,
            used: AtomicU64::new(0),
            alarm: ArcSwapOption::empty(),
        }
    }

    /// Whether the alarm is raised.
    pub(crate) fn is_alarm(&self) -> bool {
        self.alarm.load().is_some()
    }

    /// What the alarm says, while it is raised.
    pub(crate) fn alarm(&self) -> Option<String> {
        let alarm = self.alarm.load_full()?;
        Some(alarm_text(&alarm.refusal()))
    }

    /// What an operator must know of it.
    pub(crate) fn warning(&self) -> Option<String> {
        if let Some(alarm) = self.alarm() {
            return Some(alarm);
        }
        let used = self.used.load(Ordering::Relaxed);
        let warned = self.quota.bytes as f64 * self.quota.warn_ratio;
        (used as f64 > warned).then(|| {
            format!(
                "the state takes {used} of the {} bytes that quota.bytes allows: delete unneeded \
                 keys and compact history, or raise quota.bytes",
                self.quota.bytes
            )
        })
    }

    /// Takes a look's result down, and says what is new.
    fn note(&self, node: &str, report: &SpaceReport) {
        self.used.store(report.used, Ordering::Relaxed);
        let before = self.alarm.swap(report.alarm.map(Arc::new));
        match (before, report.alarm) {
            (None, Some(alarm)) => tracing::error!(
                node,
                used = alarm.used,
                quota = alarm.quota,
                free = report.free,
                "NOSPACE alarm raised: puts and lease grants are refused until space is freed"
            ),
            (Some(_), None) => {
                tracing::warn!(
                    node,
                    used = report.used,
                    "NOSPACE alarm cleared: writes are accepted again"
                );
            }
            _ => {}
        }
    }
}

/// How an alarm is told to operators that refuses writes with `refusal`.
pub(crate) fn alarm_text(refusal: &Error) -> String {
    format!("alarm NOSPACE: {}", refusal.detail)
}

/// What a node needs to measure.
pub(crate) struct QuotaWatch {
    pub(crate) name: String,
    pub(crate) room: Arc<Room>,
    pub(crate) data_dir: PathBuf,
    pub(crate) plan: DiskPlan,
    /// Looks that found little space.
    pub(crate) looks: AtomicU64,
    pub(crate) store: StateReader,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) metrics: Arc<Metrics>,
    /// Called when the store fails; the process must end.
    pub(crate) on_fatal: Box<dyn Fn(StoreError) + Send + Sync>,
}

impl QuotaWatch {
    /// Measures until the task ends.
    pub(crate) async fn run(self) {
        let storage = &self.metrics.storage;
        storage.quota_bytes.set(self.room.quota.bytes as f64);
        let this = Arc::new(self);
        loop {
            let looking = Arc::clone(&this);
            let report = match tokio::task::spawn_blocking(move || looking.look()).await {
                Ok(Ok(report)) => report,
                Ok(Err(error)) => return (this.on_fatal)(error),
                // The runtime is ending.
                Err(_) => return,
            };
            this.room.note(&this.name, &report);
            this.mailbox.send(Mail::Input(Input::Space(report)));
            let is_near = report.free < report.reserve.saturating_add(NEAR_BYTES);
            tokio::time::sleep(if is_near {
                NEAR_INTERVAL
            } else {
                LOOK_INTERVAL
            })
            .await;
        }
    }

    /// Whether merged tables are to be let go of again: each time costs a small table.
    fn is_release_due(&self) -> bool {
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        looks.is_multiple_of(LOOKS_PER_RELEASE)
    }

    fn look(&self) -> Result<SpaceReport, StoreError> {
        let (free, _) = disk_space(&self.data_dir);
        let log = bytes_below(&self.data_dir.join("log"));
        let needs = self.plan.needs(self.store.table_bytes()?, log);
        // Begun before the alarm has to be raised, or it would be raised for what a moment later is free again.
        // On a disk without any space it would fail.
        let is_short = (RELEASE_BYTES..needs.reserve.saturating_mul(2)).contains(&free);
        if is_short && self.is_release_due() {
            self.store.release_merged()?;
        }
        Ok(SpaceReport {
            used: self.store.storage_bytes()?,
            quota: self.room.quota.bytes,
            free,
            reserve: needs.reserve,
            floor: needs.floor,
            alarm: self.store.snapshot()?.space_alarm(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_near_its_quota_is_a_warning_and_an_alarm_another() {
        let room = Room::new(QuotaConfig {
            bytes: 1000,
            warn_ratio: 0.8,
        });
        let look = |used, alarm| {
            let report = SpaceReport {
                used,
                alarm,
                ..SpaceReport::default()
            };
            room.note("n1", &report);
            (room.is_alarm(), room.warning())
        };
        assert_eq!(look(800, None), (false, None));
        let (no_space, warning) = look(801, None);
        assert!(!no_space && warning.unwrap().contains("quota.bytes"));
        let alarm = SpaceAlarm {
            used: 1001,
            quota: 1000,
        };
        let (no_space, warning) = look(10, Some(alarm));
        assert!(no_space && warning.unwrap().contains("NOSPACE"));
        assert_eq!(look(10, None), (false, None));
    }
}
