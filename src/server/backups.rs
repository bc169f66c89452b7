//! Backups that a node writes by itself, where it is told to: every so often one, and the oldest go.
//!
//! Each is what `leasehold snapshot save` would write, of what this node has applied by then, named
//! after its revision: so the names sort by age, and no clock goes into them. It is written under
//! another name, read back whole as `snapshot verify` would, and only then counts: a backup that was
//! never read is a hope. When the next one is due follows from the newest file, so that a restart
//! neither skips one nor adds one.

use std::fs;
use std::fs::File;
use std::io;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::SystemTime;

use super::config::BackupConfig;
use super::disk::store::Export;
use super::disk::store::StateReader;
use super::disk::store::StoreError;
use super::integrity::Integrity;
use super::metrics::Metrics;
use super::metrics::seconds_since_1970;
use super::origins::Origins;
use crate::wire::state::Chunks;
use crate::wire::state::ReadFault;
use crate::wire::state::StateDecoder;

/// What the names of finished backups begin and end with; between is the revision.
const PREFIX: &str = "leasehold-";
const ENDING: &str = ".lhs";
/// The ending of one that is being written.
const PART: &str = ".part";
/// The rest after each chunk: nobody waits for a backup, and others want the disk.
const REST: Duration = Duration::from_millis(1);
/// After a failure it is tried again this much sooner than the schedule says.
const RETRY_MAX: Duration = Duration::from_secs(300);
/// How often it is looked whether the state may be read yet.
const READABLE_LOOK: Duration = Duration::from_millis(100);

/// What a node needs to write backups.
pub(crate) struct Backups {
    pub(crate) config: BackupConfig,
    pub(crate) store: StateReader,
    pub(crate) origins: Arc<Origins>,
    /// The state may be read.
    pub(crate) readable: Arc<AtomicBool>,
    /// Whether it may be served, by what other nodes have.
    pub(crate) integrity: Arc<Integrity>,
    pub(crate) metrics: Arc<Metrics>,
    /// The node is stopping, and waits for nobody who reads its state.
    pub(crate) stopping: Arc<AtomicBool>,
    /// Called when the store fails; the process must end.
    pub(crate) on_fatal: Box<dyn Fn(StoreError) + Send + Sync>,
}

/// Why there is no backup this time.
#[derive(Debug, thiserror::Error)]
enum BackupError {
    #[error("the node is stopping")]
    Stopping,
    #[error("the state of this node differs from that of the others")]
    Unsound,
    #[error("this node cannot say who the members were where its state ends")]
    NoMembers,
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{} was not what was written: {fault}", path.display())]
    ReadBack { path: PathBuf, fault: ReadFault },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Backups {
    /// Writes backups until the task ends.
    pub(crate) async fn run(self) {
        let metrics = &self.metrics.backup;
        let interval = self.config.interval;
        metrics.interval_seconds.set(interval.as_secs_f64());
        while !self.readable.load(Ordering::Acquire) {
            tokio::time::sleep(READABLE_LOOK).await;
        }
        let this = Arc::new(self);
        let mut wait = match newest(&this.config.dir) {
            Some(written) => {
                this.metrics.backup.last_success_seconds.set(written);
                // A file from the future is as good as a new one.
                let age = (seconds_since_1970() - written).max(0.0);
                interval.saturating_sub(Duration::from_secs_f64(age))
            }
            None => Duration::ZERO,
        };
        loop {
            tokio::time::sleep(wait).await;
            let writer = Arc::clone(&this);
            let written = tokio::task::spawn_blocking(move || writer.write()).await;
            wait = match written {
                Ok(Ok(file)) => {
                    tracing::info!(file = %file.display(), "a backup was written and read back");
                    this.metrics
                        .backup
                        .last_success_seconds
                        .set(seconds_since_1970());
                    interval
                }
                Ok(Err(BackupError::Stopping)) | Err(_) => return,
                Ok(Err(error)) => {
                    tracing::error!(%error, "no backup could be written; it is tried again");
                    this.metrics.backup.failures.increment(1);
                    if let BackupError::Store(error) = error {
                        return (this.on_fatal)(error);
                    }
                    interval.min(RETRY_MAX)
                }
            };
        }
    }

    /// Writes one, and removes those that are too many.
    fn write(&self) -> Result<PathBuf, BackupError> {
        if !self.integrity.is_sound() {
            return Err(BackupError::Unsound);
        }
        let dir = &self.config.dir;
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| BackupError::Io { path, error }
        };
        fs::create_dir_all(dir).map_err(at(dir))?;
        let snapshot = self.store.snapshot()?;
        let origin = self.origins.at(snapshot.applied().index);
        let mut export = Export::new(snapshot, origin.ok_or(BackupError::NoMembers)?)?;
        // Twenty digits hold every revision, so that names sort as numbers do.
        let name = format!("{PREFIX}{:020}{ENDING}", export.header().revision);
        let (file, part) = (dir.join(&name), dir.join(name + PART));
        let mut writing = File::create(&part).map_err(at(&part))?;
        while let Some(chunk) = export.next_chunk()? {
            writing.write_all(&chunk).map_err(at(&part))?;
            self.rest()?;
        }
        // Reading it back needs no snapshot.
        drop(export);
        writing.sync_all().map_err(at(&part))?;
        drop(writing);
        self.read_back(&part)?;
        fs::rename(&part, &file).map_err(at(&file))?;
        let synced = File::open(dir).and_then(|folder| folder.sync_all());
        synced.map_err(at(dir))?;
        self.prune().map_err(at(dir))?;
        Ok(file)
    }

    /// Reads all of a backup and checks all of it.
    fn read_back(&self, file: &Path) -> Result<(), BackupError> {
        let fault = |fault| BackupError::ReadBack {
            path: file.to_owned(),
            fault,
        };
        let opened = File::open(file).map_err(|error| fault(error.into()))?;
        let mut chunks = Chunks::new(opened);
        let mut decoder = StateDecoder::new();
        while let Some(chunk) = chunks.next_chunk().map_err(fault)? {
            decoder.take(chunk).map_err(|found| fault(found.into()))?;
            self.rest()?;
        }
        decoder.finish().map_err(|found| fault(found.into()))?;
        Ok(())
    }

    fn rest(&self) -> Result<(), BackupError> {
        std::thread::sleep(REST);
        match self.stopping.load(Ordering::Relaxed) {
            true => Err(BackupError::Stopping),
            false => Ok(()),
        }
    }

    /// Removes the oldest, and what attempts that failed have left.
    fn prune(&self) -> io::Result<()> {
        let (mut finished, left) = found(&self.config.dir)?;
        finished.sort();
        let surplus = finished.len().saturating_sub(self.config.keep);
        for file in finished.into_iter().take(surplus).chain(left) {
            fs::remove_file(file)?;
        }
        Ok(())
    }
}

/// Our files in `dir`: backups, and what is left of attempts. Nothing else is touched.
fn found(dir: &Path) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let (mut finished, mut left) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let is_ours = |revision: &str| {
            revision.len() == 20 && revision.bytes().all(|byte| byte.is_ascii_digit())
        };
        if name.strip_suffix(ENDING).is_some_and(is_ours) {
            finished.push(entry.path());
        } else if let Some(name) = name.strip_suffix(PART)
            && name.strip_suffix(ENDING).is_some_and(is_ours)
        {
            left.push(entry.path());
        }
    }
    Ok((finished, left))
}

/// When the newest backup was written, in seconds since 1970.
fn newest(dir: &Path) -> Option<f64> {
    let (finished, _) = found(dir).ok()?;
    let times = finished
        .iter()
        .filter_map(|file| file.metadata().ok()?.modified().ok());
    let since = times.max()?.duration_since(SystemTime::UNIX_EPOCH);
    Some(since.unwrap_or_default().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::Configuration;
    use crate::server::disk::store::StateStore;
    use crate::server::disk::store::StoreOptions;
    use crate::types::ClusterId;
    use crate::types::LogId;
    use crate::types::LogIndex;
    use crate::types::NodeId;
    use crate::types::Term;

    fn backups(dir: &Path, store: &StateStore) -> Backups {
        Backups {
            config: BackupConfig {
                interval: Duration::from_secs(3600),
                dir: dir.to_owned(),
                keep: 2,
            },
            store: store.reader(),
            origins: Arc::new(Origins::fixed(
                ClusterId(7),
                NodeId(3),
                Configuration::default(),
            )),
            readable: Arc::new(AtomicBool::new(true)),
            integrity: Arc::default(),
            metrics: Metrics::new(),
            stopping: Arc::default(),
            on_fatal: Box::new(|error| panic!("{error}")),
        }
    }

    fn put(store: &mut StateStore, index: u64) {
        let put = crate::kv::Operation::Put(crate::api::PutRequest {
            key: "k".into(),
            value: vec![7; 1000].into(),
            ..crate::api::PutRequest::default()
        });
        let command = crate::kv::Command::Write {
            session: None,
            operation: put,
        };
        let id = LogId::new(LogIndex(index), Term(1));
        store.apply_batch(&[(id, Some(command.encode()))]).unwrap();
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_oldest_go_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("backups");
        let mut store =
            StateStore::open(&folder.path().join("state"), &StoreOptions::default()).unwrap();
        let backups = backups(&dir, &store);
        assert_eq!(newest(&dir), None);
        for index in 1..=3 {
            put(&mut store, index);
            let file = backups.write().unwrap();
            backups.read_back(&file).unwrap();
            fs::write(dir.join("leasehold-notes.lhs"), "mine").unwrap();
            fs::write(dir.join("leasehold-00000000000000000001.lhs.part"), "cut").unwrap();
        }
        // The same revision again is the same backup.
        backups.write().unwrap();
        assert!(newest(&dir).is_some());
        let expected = [
            "leasehold-00000000000000000003.lhs",
            "leasehold-00000000000000000004.lhs",
            "leasehold-notes.lhs",
        ];
        assert_eq!(names(&dir), expected);
    }

    #[test]
    fn a_backup_that_does_not_read_back_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let mut store =
            StateStore::open(&folder.path().join("state"), &StoreOptions::default()).unwrap();
        put(&mut store, 1);
        let dir = folder.path().join("backups");
        let backups = backups(&dir, &store);
        let file = backups.write().unwrap();
        let mut bytes = fs::read(&file).unwrap();
        bytes[100] ^= 1;
        fs::write(&file, bytes).unwrap();
        assert!(backups.read_back(&file).is_err());
        fs::remove_dir_all(&dir).unwrap();
        fs::write(&dir, "in the way").unwrap();
        let error = backups.write().unwrap_err();
        assert!(matches!(error, BackupError::Io { .. }), "{error}");
        fs::remove_file(&dir).unwrap();
        backups.stopping.store(true, Ordering::Relaxed);
        assert!(matches!(backups.write(), Err(BackupError::Stopping)));
    }
}
