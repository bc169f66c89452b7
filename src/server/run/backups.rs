//! Backups that a node writes at an interval, if configured, and the removal of the oldest.
//!
//! A backup is the file that `leasehold snapshot save` would write of the state applied by this node. Its
//! name contains the cluster and the revision, so the names of one cluster sort by age without a clock.
//! It is written under a temporary name and renamed only after it was read back and verified, as by
//! `snapshot verify`. The time of the next backup follows from the newest file, so a restart neither skips
//! a backup nor adds one.
//!
//! Other members and other clusters may use the same directory. So only backups of the own cluster are
//! counted and removed, and a temporary file is named after its member.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use crate::server::config::BackupConfig;
use crate::server::disk::durable;
use crate::server::disk::space::disk_space;
use crate::server::disk::store::{Export, Origin, StateReader, StoreError};
use crate::server::metrics::{Metrics, seconds_since_1970};
use crate::server::session::origins::Origins;
use crate::server::status::integrity::Integrity;
use crate::wire::state::{Chunks, ReadFault, StateDecoder};

/// Prefix and suffix of a finished backup's name; between them are the cluster and the revision.
const PREFIX: &str = "leasehold-";
const ENDING: &str = ".lhs";
/// The suffix of an unfinished backup's name.
const PART: &str = ".part";
/// The pause after each chunk, which leaves the disk to requests: a backup is not urgent.
const REST: Duration = Duration::from_millis(1);
/// Maximum time until the retry after a failure.
const RETRY_MAX: Duration = Duration::from_secs(300);
/// Interval between checks of whether the state may be read.
const READABLE_LOOK: Duration = Duration::from_millis(100);

/// What a node needs to write backups.
pub(crate) struct Backups {
    pub(crate) config: BackupConfig,
    pub(crate) store: StateReader,
    pub(crate) origins: Arc<Origins>,
    /// Whether the state may be read.
    pub(crate) readable: Arc<AtomicBool>,
    /// Whether the state agrees with those of other nodes.
    pub(crate) integrity: Arc<Integrity>,
    pub(crate) metrics: Arc<Metrics>,
    /// Set when the node stops: it does not wait for readers of its state.
    pub(crate) stopping: Arc<AtomicBool>,
    /// Called when the store fails, which must end the process.
    pub(crate) on_fatal: Box<dyn Fn(StoreError) + Send + Sync>,
}

/// Why a backup was not written.
#[derive(Debug, thiserror::Error)]
enum BackupError {
    #[error("the node is stopping")]
    Stopping,
    #[error("the state of this node differs from the others")]
    Unsound,
    #[error("this node does not know the configuration at the end of its state")]
    NoMembers,
    #[error(
        "{} has {free} bytes left, but the state takes {needed}: free some space, or use another \
         backup.dir",
        dir.display()
    )]
    NoRoom {
        dir: PathBuf,
        free: u64,
        needed: u64,
    },
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{} differs from what was written: {fault}", path.display())]
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
        let looking = Arc::clone(&this);
        let last = tokio::task::spawn_blocking(move || looking.last_written());
        let Ok(last) = last.await else { return };
        let mut wait = match last {
            Some(written) => {
                this.metrics.backup.last_success_seconds.set(written);
                // A file with a time in the future counts as new.
                let age = (seconds_since_1970() - written).max(0.0);
                interval.saturating_sub(Duration::from_secs_f64(age))
            }
            None => Duration::ZERO,
        };
        loop {
            tokio::time::sleep(wait).await;
            let writer = Arc::clone(&this);
            let written = tokio::task::spawn_blocking(move || writer.write(free_bytes)).await;
            wait = match written {
                Ok(Ok(file)) => {
                    tracing::info!(file = %file.display(), "backup written and verified");
                    this.metrics
                        .backup
                        .last_success_seconds
                        .set(seconds_since_1970());
                    interval
                }
                Ok(Err(BackupError::Stopping)) | Err(_) => return,
                Ok(Err(error)) => {
                    tracing::error!(%error, "backup failed; it will be retried");
                    this.metrics.backup.failures.increment(1);
                    if let BackupError::Store(error) = error {
                        return (this.on_fatal)(error);
                    }
                    interval.min(RETRY_MAX)
                }
            };
        }
    }

    /// When the newest backup of this cluster was written, in seconds since 1970. `None` if there is none,
    /// or while the configuration is unknown, without which no backup can be written either.
    fn last_written(&self) -> Option<f64> {
        let origin = self.origins.at(self.store.applied())?;
        newest(&Names::of(&origin).backups_in(&self.config.dir).ok()?)
    }

    /// Writes a backup, if `free_bytes` of the directory are enough, and removes surplus ones.
    fn write(&self, free_bytes: impl FnOnce(&Path) -> u64) -> Result<PathBuf, BackupError> {
        if !self.integrity.is_sound() {
            return Err(BackupError::Unsound);
        }
        let dir = &self.config.dir;
        // A backup contains all data, so only its owner may read it.
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir);
        made.map_err(at(dir))?;
        let snapshot = self.store.snapshot()?;
        let origin = self.origins.at(snapshot.applied().index);
        let origin = origin.ok_or(BackupError::NoMembers)?;
        let names = Names::of(&origin);
        let part = dir.join(&names.part);
        // The remains of a killed process must not count against the free space.
        remove_if_there(&part).map_err(at(&part))?;
        self.check_room(free_bytes(dir))?;
        let mut export = Export::new(snapshot, origin)?;
        let file = dir.join(names.backup(export.header().revision));
        let mut part = Part::create(part)?;
        while let Some(chunk) = export.next_chunk()? {
            part.file.write_all(&chunk).map_err(at(&part.path))?;
            self.rest()?;
        }
        // Verifying needs no snapshot, which would delay the removal of history.
        drop(export);
        part.file.sync_all().map_err(at(&part.path))?;
        self.read_back(&part.path)?;
        durable::move_into_place(&part.path, &file).map_err(at(&file))?;
        self.prune(&names, &file).map_err(at(dir))?;
        Ok(file)
    }

    /// Whether a backup fits into `free` bytes. Its length is not known before it is written; the size of
    /// the state on disk is a good enough estimate to avoid a futile attempt.
    fn check_room(&self, free: u64) -> Result<(), BackupError> {
        let needed = self.store.storage_bytes()?;
        if free < needed {
            return Err(BackupError::NoRoom {
                dir: self.config.dir.clone(),
                free,
                needed,
            });
        }
        Ok(())
    }

    /// Reads and verifies a whole backup.
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

    /// Removes the oldest surplus backups of this cluster after `written` was added, which always stays.
    ///
    /// Backups of higher revisions are neither counted nor removed. They were written by a member that
    /// was further ahead, which counts them itself, or before the cluster was bootstrapped again, in
    /// which case revisions do not order them by age.
    fn prune(&self, names: &Names, written: &Path) -> io::Result<()> {
        let mut older = names.backups_in(&self.config.dir)?;
        older.retain(|file| file.as_path() < written);
        older.sort();
        let surplus = (older.len() + 1).saturating_sub(self.config.keep);
        for file in older.iter().take(surplus) {
            // Another member may have removed it already.
            remove_if_there(file)?;
        }
        Ok(())
    }
}

/// The names of this member's files.
struct Names {
    /// The common prefix of this cluster's backups, from any member.
    prefix: String,
    /// The temporary file of this member. Its name does not contain the revision, so that the next backup
    /// finds and removes a file left by an interrupted one.
    part: String,
}

impl Names {
    fn of(origin: &Origin) -> Self {
        // The whole id, because `cert init` accepts any: a shared prefix must not match another cluster.
        let prefix = format!("{PREFIX}{}-", origin.cluster);
        let part = format!("{prefix}{}{PART}", origin.member);
        Self { prefix, part }
    }

    /// Twenty digits fit every revision, so names sort like numbers.
    fn backup(&self, revision: i64) -> String {
        format!("{}{revision:020}{ENDING}", self.prefix)
    }

    fn is_backup(&self, name: &str) -> bool {
        let rest = name.strip_prefix(self.prefix.as_str());
        let revision = rest.and_then(|rest| rest.strip_suffix(ENDING));
        revision.is_some_and(|revision| {
            revision.len() == 20 && revision.bytes().all(|byte| byte.is_ascii_digit())
        })
    }

    /// The finished backups of this cluster in `dir`.
    fn backups_in(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut backups = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| self.is_backup(name)) {
                backups.push(entry.path());
            }
        }
        Ok(backups)
    }
}

/// An unfinished backup. Dropping it removes the file, unless it was renamed before.
struct Part {
    path: PathBuf,
    file: File,
}

impl Part {
    /// Creates a file that only its owner can read. It must not exist: an existing link is not followed.
    fn create(path: PathBuf) -> Result<Self, BackupError> {
        let opened = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let file = opened.map_err(at(&path))?;
        Ok(Self { path, file })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // A finished backup no longer has this name. If the removal fails, the next attempt reports it.
        let _ = fs::remove_file(&self.path);
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    let path = path.to_owned();
    move |error| BackupError::Io { path, error }
}

fn remove_if_there(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Free bytes for this user in the file system of `dir`. A file system without a size, as some network
/// file systems are, counts as unlimited.
fn free_bytes(dir: &Path) -> u64 {
    match disk_space(dir) {
        (_, 0) => u64::MAX,
        (free, _) => free,
    }
}

/// When the newest of `backups` was written, in seconds since 1970.
fn newest(backups: &[PathBuf]) -> Option<f64> {
    let times = backups
        .iter()
        .filter_map(|file| file.metadata().ok()?.modified().ok());
    let since = times.max()?.duration_since(SystemTime::UNIX_EPOCH);
    Some(since.unwrap_or_default().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::raft::Configuration;
    use crate::server::disk::store::{StateStore, StoreOptions};
    use crate::types::{ClusterId, LogId, LogIndex, NodeId, Term};

    const CLUSTER: ClusterId = ClusterId(7);
    /// Its id begins as that of the other one does.
    const OTHER_CLUSTER: ClusterId = ClusterId(8);
    const MEMBER: NodeId = NodeId(3);
    const OTHER_MEMBER: NodeId = NodeId(4);

    /// A member that keeps two backups.
    fn member(cluster: ClusterId, member: NodeId, dir: &Path, store: &StateStore) -> Backups {
        Backups {
            config: BackupConfig {
                interval: Duration::from_secs(3600),
                dir: dir.to_owned(),
                keep: 2,
            },
            store: store.reader(),
            origins: Arc::new(Origins::fixed(cluster, member, Configuration::default())),
            readable: Arc::new(AtomicBool::new(true)),
            integrity: Arc::default(),
            metrics: Metrics::new(),
            stopping: Arc::default(),
            on_fatal: Box::new(|error| panic!("{error}")),
        }
    }

    fn backups(dir: &Path, store: &StateStore) -> Backups {
        member(CLUSTER, MEMBER, dir, store)
    }

    fn open(folder: &Path) -> StateStore {
        StateStore::open(&folder.join("state"), &StoreOptions::default()).unwrap()
    }

    /// Raises the revision: the first one of an empty store to 2.
    fn put(store: &mut StateStore, index: u64) {
        let put = crate::kv::Operation::Put(crate::api::PutRequest {
            key: "k".into(),
            value: vec![7; 1000].into(),
            ..crate::api::PutRequest::default()
        });
        let command = crate::kv::Command::Write {
            author: None,
            session: None,
            operation: put,
        };
        let id = LogId::new(LogIndex(index), Term(1));
        store.apply_batch(&[(id, Some(command.encode()))]).unwrap();
    }

    fn name(cluster: ClusterId, revision: u64) -> String {
        format!("leasehold-{cluster}-{revision:020}.lhs")
    }

    fn part(cluster: ClusterId, member: NodeId) -> String {
        format!("leasehold-{cluster}-{member}.part")
    }

    /// Adds a file that no member wrote.
    fn plant(dir: &Path, name: &str) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join(name), "planted").unwrap();
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn sorted<const N: usize>(names: [String; N]) -> Vec<String> {
        let mut names = Vec::from(names);
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_oldest_go_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("backups");
        let mut store = open(folder.path());
        let backups = backups(&dir, &store);
        assert_eq!(backups.last_written(), None);
        let foreign = [
            "leasehold-notes.lhs".to_owned(),
            // As they were called before the cluster was in their names.
            "leasehold-00000000000000000001.lhs".to_owned(),
            "leasehold-00000000000000000001.lhs.part".to_owned(),
            name(OTHER_CLUSTER, 1),
            name(OTHER_CLUSTER, 9),
        ];
        for name in &foreign {
            plant(&dir, name);
        }
        assert_eq!(backups.last_written(), None);
        for index in 1..=3 {
            put(&mut store, index);
            let file = backups.write(free_bytes).unwrap();
            backups.read_back(&file).unwrap();
        }
        // The same revision again is the same backup.
        backups.write(free_bytes).unwrap();
        assert!(backups.last_written().is_some());
        let [notes, old, old_part, first, second] = foreign;
        let (older, newer) = (name(CLUSTER, 3), name(CLUSTER, 4));
        assert_eq!(
            names(&dir),
            sorted([notes, old, old_part, first, second, older, newer])
        );
    }

    #[test]
    fn a_backup_stays_where_others_have_higher_revisions() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("backups");
        let mut store = open(folder.path());
        let backups = backups(&dir, &store);
        let before = [
            name(CLUSTER, 1000),
            name(CLUSTER, 1001),
            name(OTHER_CLUSTER, 1000),
            name(OTHER_CLUSTER, 1001),
        ];
        for name in &before {
            plant(&dir, name);
        }
        for index in 1..=3 {
            put(&mut store, index);
            let file = backups.write(free_bytes).unwrap();
            backups.read_back(&file).unwrap();
        }
        let [first, second, third, fourth] = before;
        let (older, newer) = (name(CLUSTER, 3), name(CLUSTER, 4));
        assert_eq!(
            names(&dir),
            sorted([first, second, third, fourth, older, newer])
        );
    }

    #[test]
    fn members_of_a_cluster_share_a_directory() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("backups");
        let mut store = open(folder.path());
        let ours = backups(&dir, &store);
        let theirs = member(CLUSTER, OTHER_MEMBER, &dir, &store);
        // One was killed while it wrote; the others are at it.
        let under_way = [part(CLUSTER, OTHER_MEMBER), part(OTHER_CLUSTER, MEMBER)];
        plant(&dir, &part(CLUSTER, MEMBER));
        for name in &under_way {
            plant(&dir, name);
        }
        put(&mut store, 1);
        ours.write(free_bytes).unwrap();
        let [first, second] = under_way;
        assert_eq!(
            names(&dir),
            sorted([first, second.clone(), name(CLUSTER, 2)])
        );
        for index in 2..=4 {
            put(&mut store, index);
            ours.write(free_bytes).unwrap();
            theirs.write(free_bytes).unwrap();
        }
        // What they keep, they keep together.
        assert_eq!(
            names(&dir),
            sorted([second, name(CLUSTER, 4), name(CLUSTER, 5)])
        );
    }

    #[test]
    fn a_backup_that_does_not_read_back_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path());
        put(&mut store, 1);
        let dir = folder.path().join("backups");
        let backups = backups(&dir, &store);
        let file = backups.write(free_bytes).unwrap();
        let mut bytes = fs::read(&file).unwrap();
        bytes[100] ^= 1;
        fs::write(&file, bytes).unwrap();
        assert!(backups.read_back(&file).is_err());
        fs::remove_dir_all(&dir).unwrap();
        fs::write(&dir, "in the way").unwrap();
        let error = backups.write(free_bytes).unwrap_err();
        assert!(matches!(error, BackupError::Io { .. }), "{error}");
    }

    #[test]
    fn an_attempt_that_fails_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path());
        put(&mut store, 1);
        let dir = folder.path().join("backups");
        let backups = backups(&dir, &store);
        // Broken off while it is written.
        backups.stopping.store(true, Ordering::Relaxed);
        assert!(matches!(
            backups.write(free_bytes),
            Err(BackupError::Stopping)
        ));
        assert_eq!(names(&dir), [""; 0]);
        // Written and read back, and then refused its name.
        backups.stopping.store(false, Ordering::Relaxed);
        let in_the_way = name(CLUSTER, 2);
        fs::create_dir(dir.join(&in_the_way)).unwrap();
        let error = backups.write(free_bytes).unwrap_err();
        assert!(matches!(error, BackupError::Io { .. }), "{error}");
        assert_eq!(names(&dir), [in_the_way]);
    }

    #[test]
    fn nothing_is_written_where_there_is_no_room_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path());
        put(&mut store, 1);
        let dir = folder.path().join("backups");
        let backups = backups(&dir, &store);
        let needed = store.reader().storage_bytes().unwrap();
        // What we have left takes room that is ours.
        plant(&dir, &part(CLUSTER, MEMBER));
        let error = backups.write(|_| needed - 1).unwrap_err();
        assert!(matches!(error, BackupError::NoRoom { .. }), "{error}");
        let message = error.to_string();
        assert!(message.contains(&needed.to_string()), "{message}");
        assert_eq!(names(&dir), [""; 0]);
        backups.write(|_| needed).unwrap();
        assert_eq!(names(&dir), [name(CLUSTER, 2)]);
        assert!(free_bytes(&dir) > 0);
        assert_eq!(free_bytes(&dir.join("nowhere")), u64::MAX);
    }

    #[test]
    fn a_backup_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path());
        put(&mut store, 1);
        let dir = folder.path().join("all/backups");
        let backups = backups(&dir, &store);
        let file = backups.write(free_bytes).unwrap();
        assert_eq!((mode(&dir), mode(&file)), (0o700, 0o600));
        // What somebody links to is not written into.
        let theirs = folder.path().join("theirs");
        fs::write(&theirs, "theirs").unwrap();
        std::os::unix::fs::symlink(&theirs, dir.join(part(CLUSTER, MEMBER))).unwrap();
        let file = backups.write(free_bytes).unwrap();
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
        assert_eq!(mode(&file), 0o600);
        assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
        assert_eq!(names(&dir), [name(CLUSTER, 2)]);
    }
}
