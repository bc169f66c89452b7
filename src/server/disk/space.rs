//! What a node takes of its disk, and what it leaves free, by the size of that disk.
//!
//! Nothing may fail for want of space that cannot be tried again: a failed write of the storage engine
//! ends its use, and a failed sync ends the process. So the space is watched in two steps.
//!
//! - Below the *reserve* the alarm is raised: the cluster takes no more writes that make the state grow.
//!   What is taken still (deletions, the ends of leases, renewals, the entries of new leaders, and the
//!   growth of the log until it is truncated) and the merges of tables have the reserve.
//! - Below the *floor*, which only others on this disk can bring about, the node gives the engine nothing
//!   more ([`SpaceGate`]): what was committed waits in the log, whose next segments are on the disk
//!   already. Votes, heartbeats and the leader lease need no new space. The floor is left to what the
//!   engine holds in memory. Once there is space, everything goes on where it stood, without a restart.
//!
//! The engine keeps merged tables until it next flushes a memtable, so while space is short it is made
//! to flush a small one ([`crate::server::disk::store::StateReader::release_merged`]).
//!
//! The space is measured and not set aside in a file: what a file could give up in an emergency would go
//! to the process that fills the disk, and nothing can be given to a write of the engine that has failed. A disk
//! that another process fills at once can still make a flush fail that has begun. Then the node
//! ends and says so, and its next start waits until there is as much as the floor.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::server::config::Config;

const MIB: u64 = 1 << 20;

/// Parts of a disk that one thing may take at most; a setting can only ask for less.
const SEGMENT_PART: u64 = 32;
const LOG_PART: u64 = 16;
const JOURNAL_PART: u64 = 8;
const MEMTABLE_PART: u64 = 64;
/// The part of a disk that is left to deletions while the alarm is raised.
const FREEING_PART: u64 = 16;

const LOG_BYTES_MIN: u64 = 4 * MIB;
/// The engine takes no smaller limit.
const JOURNAL_BYTES_MIN: u64 = 64 * MIB;
const JOURNAL_BYTES_MAX: u64 = 256 * MIB;
const MEMTABLE_BYTES_MIN: u64 = 2 * MIB;
const MEMTABLE_BYTES_MAX: u64 = 16 * MIB;
const FREEING_BYTES_MIN: u64 = 8 * MIB;
const FREEING_BYTES_MAX: u64 = 64 * MIB;
/// Memtables that are written to tables at a time: those of current records, history and events, and
/// as much again for all others.
const MEMTABLES: u64 = 4;
/// What a merge may need at a time beside the tables that it replaces: all of the first two levels of
/// the engine, of tables of 64 MiB. No more than there is.
const MERGE_BYTES_MAX: u64 = 384 * MIB;
/// Two batches of the state, or of what is handed over of it, with what the journal adds.
const BATCH_BYTES: u64 = 10 * MIB;
/// Segments of the log beside the bytes after which it is truncated: the first one, of which a part still
/// counts, the one in use, and those that are prepared.
const SEGMENTS: u64 = 4;
/// The format demands it of a segment.
const BLOCK_BYTES: u64 = 4096;
/// A segment holds several of the largest requests.
const REQUESTS_IN_SEGMENT: u64 = 4;

/// Between two looks of somebody who waits for space.
const PATIENCE: Duration = Duration::from_millis(50);

/// What a node takes of a disk of some size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskPlan {
    /// Of one segment of the log.
    pub(crate) segment_bytes: u64,
    /// Of the entries after which the log is truncated.
    pub(crate) log_bytes: u64,
    /// Of one memtable.
    pub(crate) memtable_bytes: u64,
    /// Of the engine's journals.
    pub(crate) journal_bytes: u64,
    freeing_bytes: u64,
}

/// What the settings ask for.
#[derive(Clone, Copy, Debug)]
struct SizeSettings {
    segment_bytes: u64,
    log_bytes: u64,
    /// Of the largest request.
    request_bytes: u64,
}

/// What must be left of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Below this, nothing more is given to the storage engine.
    pub(crate) floor: u64,
    /// Below this, the alarm is raised.
    pub(crate) reserve: u64,
}

impl DiskPlan {
    /// For the disk of the data directory.
    pub(crate) fn of(config: &Config) -> Self {
        let (_, total) = disk_space(&config.node.data_dir);
        let settings = SizeSettings {
            segment_bytes: config.storage.segment_bytes,
            log_bytes: config.snapshots.log_bytes,
            request_bytes: config.limits.request_bytes_max as u64,
        };
        Self::for_disk(total, settings)
    }

    /// For a disk of `total` bytes.
    fn for_disk(total: u64, settings: SizeSettings) -> Self {
        let requests = settings.request_bytes * REQUESTS_IN_SEGMENT;
        let segment = (total / SEGMENT_PART / BLOCK_BYTES * BLOCK_BYTES)
            .max(requests.next_multiple_of(BLOCK_BYTES));
        let log = (total / LOG_PART).max(LOG_BYTES_MIN);
        Self {
            segment_bytes: segment.min(settings.segment_bytes),
            log_bytes: log.min(settings.log_bytes),
            memtable_bytes: (total / MEMTABLE_PART).clamp(MEMTABLE_BYTES_MIN, MEMTABLE_BYTES_MAX),
            journal_bytes: (total / JOURNAL_PART).clamp(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX),
            freeing_bytes: (total / FREEING_PART).clamp(FREEING_BYTES_MIN, FREEING_BYTES_MAX),
        }
    }

    /// What must be left beside a state whose tables take `tables` bytes, and a log that takes `log`.
    pub(crate) fn needs(&self, tables: u64, log: u64) -> Needs {
        let floor = MEMTABLES * self.memtable_bytes + BATCH_BYTES;
        let log_max = self.log_bytes + SEGMENTS * self.segment_bytes;
        let growth = log_max.saturating_sub(log).max(self.segment_bytes);
        let merging = tables.min(MERGE_BYTES_MAX);
        Needs {
            floor,
            reserve: floor + merging + growth + self.freeing_bytes,
        }
    }

    /// What a start must find: the memtables of the process before lie in its journals.
    pub(crate) fn needs_to_start(&self, tables: u64) -> u64 {
        tables.min(MERGE_BYTES_MAX) + BATCH_BYTES
    }
}

/// How much a merge that writes so much needs beside the floor, which has room for smaller ones.
pub(crate) fn merge_beyond_floor(bytes: u64) -> u64 {
    bytes.saturating_sub(MERGE_BYTES_MAX)
}

/// Bytes that the disk under `path` has left for this user, and has at all. What cannot be asked is
/// not limited.
pub(crate) fn disk_space(path: &Path) -> (u64, u64) {
    rustix::fs::statvfs(path).map_or((u64::MAX, u64::MAX), |disk| {
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        (bytes(disk.f_bavail), bytes(disk.f_blocks))
    })
}

/// Bytes of the files below `folder` without the engine's journals, whose length says nothing; of those
/// that are gone meanwhile, none.
pub(crate) fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let sizes = entries.filter_map(Result::ok).map(|entry| {
        let Ok(metadata) = entry.metadata() else {
            return 0;
        };
        match metadata.is_dir() {
            true => bytes_below(&entry.path()),
            false if entry.path().extension().is_some_and(|kind| kind == "jnl") => 0,
            false => metadata.len(),
        }
    });
    sizes.sum()
}

/// Keeps those who write to the state waiting while its disk has less than the floor.
#[derive(Debug)]
pub(crate) struct SpaceGate {
    node: String,
    data_dir: PathBuf,
    floor: u64,
    /// The node is ending: no thread waits.
    is_over: AtomicBool,
}

/// Whether who has waited may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// There is room.
    Open,
    /// There is none, and the node is ending.
    Ended,
}

impl SpaceGate {
    /// Of a node.
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            node: config.node.name.clone(),
            data_dir: config.node.data_dir.clone(),
            floor: DiskPlan::of(config).needs(0, 0).floor,
            is_over: AtomicBool::new(false),
        }
    }

    /// One that everybody passes.
    #[cfg(test)]
    pub(crate) fn without_floor(data_dir: &Path) -> Self {
        Self {
            node: "n1".to_owned(),
            data_dir: data_dir.to_owned(),
            floor: 0,
            is_over: AtomicBool::new(false),
        }
    }

    /// No thread waits any more.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Waits until there is as much as the floor.
    pub(crate) fn wait(&self) -> Passage {
        if self.has_room() {
            return Passage::Open;
        }
        let floor = self.floor;
        let (free, _) = disk_space(&self.data_dir);
        tracing::error!(
            node = %self.node,
            free,
            needed = floor,
            "the disk is full: what is committed waits in the log until {} has {floor} bytes free; \
             the node goes on by itself",
            self.data_dir.display()
        );
        while !self.has_room() {
            if self.is_over.load(Ordering::Relaxed) {
                return Passage::Ended;
            }
            std::thread::sleep(PATIENCE);
        }
        tracing::warn!(node = %self.node, "the disk has space again: the node goes on");
        Passage::Open
    }

    fn has_room(&self) -> bool {
        disk_space(&self.data_dir).0 >= self.floor
    }

    /// Whether the disk has `bytes` beside the floor.
    pub(crate) fn has(&self, bytes: u64) -> bool {
        disk_space(&self.data_dir).0 >= self.floor.saturating_add(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: SizeSettings = SizeSettings {
        segment_bytes: 64 * MIB,
        log_bytes: 256 * MIB,
        request_bytes: 3 * MIB / 2,
    };

    #[test]
    fn a_small_disk_is_shared_out_and_a_large_one_has_what_is_configured() {
        let on = |total: u64| DiskPlan::for_disk(total, SETTINGS);
        let large = on(1 << 40);
        assert_eq!(large.segment_bytes, SETTINGS.segment_bytes);
        assert_eq!(large.log_bytes, SETTINGS.log_bytes);
        assert_eq!(large.memtable_bytes, MEMTABLE_BYTES_MAX);
        assert_eq!(large.journal_bytes, JOURNAL_BYTES_MAX);
        // The floor, the log until it is truncated, and what deletions may take.
        let needs = large.needs(0, 192 * MIB);
        assert_eq!(needs.floor, 74 * MIB);
        assert_eq!(needs.reserve, (74 + 320 + 64) * MIB);
        let merging = large.needs(1 << 40, 1 << 40);
        assert_eq!(merging.reserve, (74 + 64 + 64 + 384) * MIB);
        let small = on(256 * MIB);
        assert_eq!(small.segment_bytes, 8 * MIB);
        assert_eq!(small.log_bytes, 16 * MIB);
        let needs = small.needs(20 * MIB, 24 * MIB);
        assert_eq!((needs.floor, needs.reserve), (26 * MIB, 86 * MIB));
        // On the smallest, a segment still holds several of the largest requests.
        let least = on(1);
        assert!(least.segment_bytes >= 4 * SETTINGS.request_bytes);
        assert!(least.segment_bytes.is_multiple_of(BLOCK_BYTES));
        assert!(least.log_bytes > 0 && least.needs_to_start(0) > 0);
    }

    #[test]
    fn who_writes_passes_above_the_floor_and_waits_below_it_until_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let (free, total) = disk_space(folder.path());
        assert!(0 < free && free <= total, "{free} of {total}");
        let gate = |floor| SpaceGate {
            node: "n1".to_owned(),
            data_dir: folder.path().to_owned(),
            floor,
            is_over: AtomicBool::new(false),
        };
        assert_eq!(gate(0).wait(), Passage::Open);
        assert!(gate(0).has(1) && !gate(0).has(u64::MAX));
        let full = gate(u64::MAX);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| full.wait());
            full.end();
            assert_eq!(waiting.join().unwrap(), Passage::Ended);
        });
    }

    #[test]
    fn the_files_of_a_folder_are_counted_with_those_further_down() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("below")).unwrap();
        std::fs::write(folder.path().join("a"), [0; 10]).unwrap();
        std::fs::write(folder.path().join("below/b"), [0; 5]).unwrap();
        std::fs::write(folder.path().join("below/0.jnl"), [0; 7]).unwrap();
        assert_eq!(bytes_below(folder.path()), 15);
        assert_eq!(bytes_below(&folder.path().join("no")), 0);
    }
}
