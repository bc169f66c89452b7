//! A file for one input, for what can only be read from a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Removed when it is dropped.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A name that nobody else uses.
    pub fn new(extension: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasehold-fuzz-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name).with_extension(extension);
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
