//! The real disk under the log.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The file system, seen as the log sees a disk. Rooted at a data directory.
#[derive(Clone, Debug)]
#[allow(dead_code)]
pub struct RealDisk {
    root: PathBuf,
    last_sync_nanos: Arc<AtomicU64>,
}

/// An open file of a [`RealDisk`].
#[derive(Debug)]
#[allow(dead_code)]
pub struct RealFile {
    file: File,
}
