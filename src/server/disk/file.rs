//! The real disk under the log: files of the data directory, with nothing clever about them.
//!
//! Buffered writes and `fdatasync`. Segments are written with zeros ahead of use, so a sync of
//! the log changes no metadata.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, fs, io};

use crate::log::{Disk, DiskError, DiskFile};
use crate::server::disk::durable;

/// Called with the duration of each `fdatasync`, on the thread that synced; must be quick.
pub type SyncObserver = Arc<dyn Fn(Duration) + Send + Sync>;

/// The file system, seen as the log sees a disk. Rooted at a data directory that exists.
#[derive(Clone)]
pub struct RealDisk {
    root: PathBuf,
    observer: Option<SyncObserver>,
}

/// An open file of a [`RealDisk`].
pub struct RealFile {
    file: File,
    path: PathBuf,
    observer: Option<SyncObserver>,
}

impl RealDisk {
    /// A disk whose names are relative to `root`.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            observer: None,
        }
    }

    /// Calls `observer` for every later sync.
    pub fn observed_by(mut self, observer: SyncObserver) -> Self {
        self.observer = Some(observer);
        self
    }

    fn open_with(
        &self,
        operation: &'static str,
        name: &str,
        options: &OpenOptions,
    ) -> Result<RealFile, DiskError> {
        let path = self.root.join(name);
        match options.open(&path) {
            Ok(file) => Ok(RealFile {
                file,
                path,
                observer: self.observer.clone(),
            }),
            Err(error) => Err(sorted(operation, &path, &error)),
        }
    }
}

impl Disk for RealDisk {
    type File = RealFile;

    fn create(&mut self, name: &str) -> Result<RealFile, DiskError> {
        if let Some((folder, _)) = name.rsplit_once('/') {
            make_folder(&self.root.join(folder))?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        self.open_with("create", name, &options)
    }

    fn open(&mut self, name: &str) -> Result<RealFile, DiskError> {
        self.open_with("open", name, OpenOptions::new().read(true).write(true))
    }

    fn list(&mut self, folder: &str) -> Result<Vec<String>, DiskError> {
        let path = self.root.join(folder);
        let names = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for item in fs::read_dir(&path)? {
                names.push(item?.file_name().to_string_lossy().into_owned());
            }
            Ok(names)
        };
        match names() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => names.map_err(|error| sorted("list", &path, &error)),
        }
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        let path = self.root.join(name);
        fs::remove_file(&path).map_err(|error| sorted("remove", &path, &error))
    }

    fn sync_dir(&mut self, folder: &str) -> Result<(), DiskError> {
        let path = self.root.join(folder);
        if !folder.is_empty() {
            make_folder(&path)?;
            sync_folder(&path)?;
        }
        // The folder's own name lies in the root.
        sync_folder(&self.root)
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), DiskError> {
        let done = self.file.read_exact_at(buffer, offset);
        done.map_err(|error| sorted("read", &self.path, &error))
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        let done = self.file.write_all_at(bytes, offset);
        done.map_err(|error| sorted("write", &self.path, &error))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a figure for metrics; nothing is decided by it"
    )]
    fn sync_data(&mut self) -> Result<(), DiskError> {
        let begun = self.observer.as_ref().map(|_| Instant::now());
        let done = match planted!(RealSyncSkipped) {
            true => Ok(()),
            false => self.file.sync_data(),
        };
        if let (Some(observer), Some(begun)) = (&self.observer, begun) {
            observer(begun.elapsed());
        }
        done.map_err(|error| sorted("sync", &self.path, &error))
    }

    fn length(&self) -> Result<u64, DiskError> {
        let metadata = self.file.metadata();
        let length = metadata.map(|metadata| metadata.len());
        length.map_err(|error| sorted("look at", &self.path, &error))
    }
}

impl fmt::Debug for RealDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealDisk({})", self.root.display())
    }
}

impl fmt::Debug for RealFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealFile({})", self.path.display())
    }
}

/// Makes what is written in a folder's list durable.
fn sync_folder(path: &Path) -> Result<(), DiskError> {
    durable::sync_folder(path).map_err(|error| sorted("sync the folder", path, &error))
}

fn make_folder(path: &Path) -> Result<(), DiskError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(sorted("create the folder", path, &error))
        }
        _ => Ok(()),
    }
}

fn sorted(operation: &'static str, path: &Path, error: &io::Error) -> DiskError {
    DiskError::from_io(operation, &path.display().to_string(), error)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;

    use super::*;
    use crate::log::{Log, LogOptions, Record, Verdict};
    use crate::types::{ClusterId, Incarnation, LogId, LogIndex, NodeId, Term};

    fn options() -> LogOptions {
        LogOptions {
            cluster: ClusterId(1),
            node: NodeId(2),
            incarnation: Incarnation(0),
            segment_bytes: 64 * 1024,
        }
    }

    fn record(index: u64) -> Record {
        Record {
            id: LogId::new(LogIndex(index), Term(1)),
            kind: 1,
            payload: Bytes::from(vec![index as u8; 3000]),
        }
    }

    #[test]
    fn the_log_lives_on_real_files_across_restarts_and_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(folder.path());
        let mut all = Vec::new();
        for life in 0..4u64 {
            let (mut log, recovery) = Log::open(disk.clone(), options()).unwrap();
            assert_eq!(recovery.verdict, Verdict::Clean);
            assert_eq!(recovery.created, life == 0);
            assert_eq!(recovery.records, all);
            for index in life * 20 + 1..=life * 20 + 20 {
                log.append(&[record(index)]).unwrap();
                all.push(record(index));
            }
            assert_eq!(log.delete_old(), Ok(false));
            log.close().unwrap();
        }
        let segments = fs::read_dir(folder.path().join("log")).unwrap().count();
        assert!(segments > 4, "{segments}");
        let segment = folder.path().join("log/0000000000000001");
        assert_eq!(fs::metadata(segment).unwrap().len(), 64 * 1024);
    }

    #[test]
    fn each_sync_is_observed() {
        let folder = tempfile::tempdir().unwrap();
        let times = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&times);
        let observer: SyncObserver = Arc::new(move |took| seen.lock().unwrap().push(took));
        let disk = RealDisk::new(folder.path()).observed_by(observer);
        let (mut log, _) = Log::open(disk, options()).unwrap();
        let before = times.lock().unwrap().len();
        log.append(&[record(1)]).unwrap();
        assert_eq!(times.lock().unwrap().len(), before + 1);
    }

    #[test]
    fn a_full_disk_is_told_apart_from_a_broken_one() {
        // Every write to it finds the device full.
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut file = RealFile {
            file,
            path: PathBuf::from("/dev/full"),
            observer: None,
        };
        let error = file.write_at(b"x", 0).unwrap_err();
        assert!(matches!(error, DiskError::NoSpace { .. }), "{error}");
        let error = file.read_at(&mut [0], 0).unwrap_err();
        assert!(matches!(error, DiskError::Io { .. }), "{error}");
    }

    /// What no test of a process can see that goes on running: whether the system was asked at all. It
    /// refuses to sync a device of this kind.
    #[test]
    fn a_sync_of_the_log_is_one_of_the_system() {
        let device = Path::new("/dev/full");
        let mut file = RealFile {
            file: File::open(device).unwrap(),
            path: device.to_owned(),
            observer: None,
        };
        let error = file.sync_data().unwrap_err();
        assert!(matches!(error, DiskError::Io { .. }), "{error}");
    }

    #[test]
    fn a_sync_of_names_is_one_of_the_system() {
        let error = RealDisk::new(Path::new("/dev/full")).sync_dir("");
        assert!(matches!(error, Err(DiskError::Io { .. })), "{error:?}");
    }

    #[test]
    fn a_missing_folder_is_empty_and_a_missing_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = RealDisk::new(folder.path());
        assert_eq!(disk.list("log"), Ok(Vec::new()));
        let error = disk.open("log/x").unwrap_err();
        assert!(matches!(error, DiskError::NotFound { .. }), "{error}");
        disk.create("log/x").unwrap();
        assert!(disk.create("log/x").is_err(), "there already");
        assert_eq!(disk.list("log"), Ok(vec!["x".to_owned()]));
        disk.remove("log/x").unwrap();
        disk.sync_dir("log").unwrap();
        assert_eq!(disk.list("log"), Ok(Vec::new()));
    }
}
