//! Measures the space for data at intervals, and reports it to the driver and to status requests.
//!
//! The node decides what follows ([`crate::node::SpaceReport`]). What is measured is the state as the
//! storage engine counts it, and what its disk has left. The log lies on that disk, too: running out
//! of space under a write of the log ends a node, so some of it is kept for the log and for merging
//! tables, without which deletions would free nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::api::QuotaStatus;
use crate::kv::SpaceAlarm;
use crate::node::{Input, SpaceReport};
use crate::server::config::QuotaConfig;
use crate::server::disk::store::{StateReader, StoreError};
use crate::server::mail::{Mail, Mailbox};
use crate::server::metrics::Metrics;

/// Interval between measurements. What is written in between may exceed the quota.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Log segments that space is reserved for: the one that is written, the one that is prepared, and as
/// much again for merging tables.
const RESERVE_SEGMENTS: u64 = 4;
/// The reserve is at most this part of a small disk.
const RESERVE_PART: u64 = 20;

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

    /// For `endpoint status`.
    pub(crate) fn status(&self) -> QuotaStatus {
        QuotaStatus {
            bytes: self.quota.bytes,
            no_space: self.is_alarm(),
        }
    }

    /// Whether the alarm is raised.
    pub(crate) fn is_alarm(&self) -> bool {
        self.alarm.load().is_some()
    }

    /// What the alarm says, while it is raised.
    pub(crate) fn alarm(&self) -> Option<String> {
        let alarm = self.alarm.load_full()?;
        Some(format!("alarm NOSPACE: {}", alarm.refusal().detail))
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

/// What a node needs to measure.
pub(crate) struct QuotaWatch {
    pub(crate) name: String,
    pub(crate) room: Arc<Room>,
    pub(crate) data_dir: PathBuf,
    pub(crate) segment_bytes: u64,
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
            match tokio::task::spawn_blocking(move || looking.look()).await {
                Ok(Ok(report)) => {
                    this.room.note(&this.name, &report);
                    this.mailbox.send(Mail::Input(Input::Space(report)));
                }
                Ok(Err(error)) => return (this.on_fatal)(error),
                // The runtime is ending.
                Err(_) => return,
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    fn look(&self) -> Result<SpaceReport, StoreError> {
        let (free, total) = disk_space(&self.data_dir);
        Ok(SpaceReport {
            used: self.store.storage_bytes()?,
            quota: self.room.quota.bytes,
            free,
            reserve: reserve(self.segment_bytes, total),
            alarm: self.store.snapshot()?.space_alarm(),
        })
    }
}

/// Bytes that the disk under `path` has left for this user, and has at all. What cannot be asked is
/// not limited.
pub(crate) fn disk_space(path: &Path) -> (u64, u64) {
    rustix::fs::statvfs(path).map_or((u64::MAX, u64::MAX), |disk| {
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        (bytes(disk.f_bavail), bytes(disk.f_blocks))
    })
}

/// How much of a disk of `total` bytes stays free.
fn reserve(segment_bytes: u64, total: u64) -> u64 {
    let wanted = segment_bytes.saturating_mul(RESERVE_SEGMENTS);
    wanted.min(total / RESERVE_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_disk_keeps_a_part_of_it_and_a_large_one_some_segments() {
        assert_eq!(reserve(64 << 20, 1 << 40), 256 << 20);
        assert_eq!(reserve(8 << 20, 40 << 20), 2 << 20);
        let folder = tempfile::tempdir().unwrap();
        let (free, total) = disk_space(folder.path());
        assert!(0 < free && free <= total, "{free} of {total}");
    }

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
            (room.status().no_space, room.warning())
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
