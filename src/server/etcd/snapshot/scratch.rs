//! A file without a name, of which nothing is left when it is closed, and which leaves the disk to the node.

use std::fs::{File, OpenOptions};
use std::io;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::server::config::Config;
use crate::server::disk::space::{DiskPlan, disk_space};

/// Between two looks at how much space is left.
const LOOK_BYTES: usize = 4 << 20;
/// How many times the reserve of the node must be left: below twice that, it begins to free space.
const RESERVES: u64 = 2;

/// Where such files may lie, and what they leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotRoom {
    data_dir: PathBuf,
    plan: DiskPlan,
}

impl SnapshotRoom {
    /// Of a node.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            data_dir: config.node.data_dir.clone(),
            plan: DiskPlan::of(config),
        }
    }

    /// The folder for such files.
    pub(super) fn folder(&self) -> &Path {
        &self.data_dir
    }

    /// The bytes that they leave, beside a state whose tables take `tables` bytes.
    pub(super) fn left_min(&self, tables: u64) -> u64 {
        self.plan.needs(tables, 0).reserve.saturating_mul(RESERVES)
    }
}

/// Why writing was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum StopReason {
    /// The client is gone, or the node stops.
    #[error("the client is gone, or the node stops")]
    Unwanted,
    /// The disk has as much left as the node needs for itself.
    #[error("the disk has no space for the file")]
    NoSpace,
}

/// See the module.
pub(super) struct Scratch<W> {
    file: File,
    folder: PathBuf,
    left_min: u64,
    is_wanted: W,
    since_look: usize,
}

impl<W: Fn() -> bool> Scratch<W> {
    /// Creates one in `folder`, for as long as `is_wanted` and as the disk has `left_min` bytes left. `id` is
    /// that of no other.
    pub(super) fn create(folder: &Path, id: u64, left_min: u64, is_wanted: W) -> io::Result<Self> {
        let path = folder.join(format!("etcd-snapshot-{id:016x}.part"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path)?;
        std::fs::remove_file(&path)?;
        let scratch = Self {
            file,
            folder: folder.to_owned(),
            left_min,
            is_wanted,
            since_look: 0,
        };
        scratch.look()?;
        Ok(scratch)
    }

    pub(super) fn into_file(self) -> File {
        self.file
    }

    fn look(&self) -> io::Result<()> {
        if !(self.is_wanted)() {
            return Err(io::Error::other(StopReason::Unwanted));
        }
        match disk_space(&self.folder).0 < self.left_min {
            true => Err(io::Error::other(StopReason::NoSpace)),
            false => Ok(()),
        }
    }
}

impl<W: Fn() -> bool> Write for Scratch<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.since_look >= LOOK_BYTES {
            self.look()?;
            self.since_look = 0;
        }
        let written = self.file.write(bytes)?;
        self.since_look += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<W> Seek for Scratch<W> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_file_has_no_name_and_ends_where_the_disk_does_or_nobody_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let is_wanted = Cell::new(true);
        let mut scratch = Scratch::create(folder.path(), 1, 0, || is_wanted.get()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let piece = vec![0; LOOK_BYTES];
        let stopped = |error: io::Error| {
            *error
                .get_ref()
                .unwrap()
                .downcast_ref::<StopReason>()
                .unwrap()
        };
        scratch.write_all(&piece).unwrap();
        is_wanted.set(false);
        assert_eq!(
            stopped(scratch.write_all(&piece).unwrap_err()),
            StopReason::Unwanted
        );
        is_wanted.set(true);
        scratch.write_all(&piece).unwrap();
        scratch.left_min = u64::MAX;
        assert_eq!(
            stopped(scratch.write_all(&piece).unwrap_err()),
            StopReason::NoSpace
        );
    }
}
