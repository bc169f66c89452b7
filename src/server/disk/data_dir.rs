//! The data directory: one member's, held by one process, and never mistaken for another.
//!
//! ```text
//! identity   whose data this is, as text with a checksum
//! lock       held for as long as the process lives
//! vote       term, vote and promise: two slots
//! log/       segments of the Raft log
//! state/     the state machine
//! ```
//!
//! Two processes with one identity could promise different things to different peers (P35), and a
//! directory of another member holds other promises: so both are refused, before anything is read
//! or written. The clock for the silence after a start is read after the lock is held (A3), by the
//! caller.
//!
//! An empty directory is taken for a new member's. That a member which ran before has lost its
//! disk cannot be seen here; it has to come back with a new incarnation.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::{fmt, fs, io};

use thiserror::Error;

use crate::log::LogOptions;
use crate::server::disk::durable;
use crate::server::disk::file::RealDisk;
use crate::types::{ClusterId, Incarnation, NodeId};

const FORMAT_VERSION: u32 = 1;
const IDENTITY: &str = "identity";
const IDENTITY_NEW: &str = "identity.new";
const LOCK: &str = "lock";
const TITLE: &str = "leasehold data directory";
/// Names that show that the directory belonged to a member.
const DATA: [&str; 3] = ["vote", "log", "state"];
/// Names allowed in an unused directory; the last exists on a new volume.
const HARMLESS: [&str; 3] = [LOCK, IDENTITY_NEW, "lost+found"];
/// Maximum length of an identity file; a longer file is not one.
const IDENTITY_BYTES_MAX: u64 = 4096;

/// The owner of a directory's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node's name, as its certificate says it.
    pub node_name: String,
    /// The incarnation of the member.
    pub incarnation: Incarnation,
}

/// A directory that this process alone may use, until this is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    identity: Identity,
    created: bool,
    /// Keeps the lock until dropped.
    _lock: File,
    /// Dropped after it.
    lock_held: Arc<()>,
}

impl Identity {
    /// The member id.
    pub fn node(&self) -> NodeId {
        NodeId::derive(self.cluster, &self.node_name, self.incarnation)
    }

    fn encode(&self) -> String {
        let text = format!(
            "{TITLE}\nformat: {FORMAT_VERSION}\ncluster: {}\nnode: {}\nincarnation: {}\n",
            self.cluster, self.node_name, self.incarnation.0
        );
        let checksum = crc32fast::hash(text.as_bytes());
        format!("{text}checksum: {checksum:08x}\n")
    }

    fn decode(text: &str) -> Result<Self, IdentityFault> {
        let fault = IdentityFault::Corrupt;
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err(fault);
        }
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(": ");
        // Every later version states its format here.
        let version = field("format").and_then(|version| version.parse().ok());
        match version {
            None => return Err(fault),
            Some(version) if version > FORMAT_VERSION => {
                return Err(IdentityFault::Newer { version });
            }
            Some(_) => {}
        }
        let identity = (|| {
            Some(Self {
                cluster: ClusterId::parse(field("cluster")?)?,
                node_name: field("node")?.to_owned(),
                incarnation: Incarnation(field("incarnation")?.parse().ok()?),
            })
        })();
        // One way to write an identity, so equal bytes are the whole check.
        identity
            .filter(|identity| identity.encode() == text)
            .ok_or(fault)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "node {} ({}) of cluster {}",
            self.node_name, self.incarnation, self.cluster
        )
    }
}

impl DataDir {
    /// Gone once the lock of the directory is released.
    pub(crate) fn lock_held(&self) -> Weak<()> {
        Arc::downgrade(&self.lock_held)
    }

    /// Locks the directory and makes sure that it is `identity`'s; makes it if it is missing or
    /// empty. Refuses anything else, and changes nothing then.
    pub fn open_or_create(path: &Path, identity: &Identity) -> Result<Self, DataDirError> {
        if !name_is_sound(&identity.node_name) {
            return Err(DataDirError::BadNodeName {
                name: identity.node_name.clone(),
            });
        }
        make_directory(path)?;
        // Examined before the lock file is created, so that a foreign directory stays unchanged.
        if read_identity(path)?.is_none() {
            refuse_foreign(path)?;
        }
        let lock = take_lock(path)?;
        let found = read_identity(path)?;
        let created = found.is_none();
        match found {
            Some(found) => compare(path, &found, identity)?,
            None => {
                refuse_foreign(path)?;
                write_identity(path, identity)?;
            }
        }
        Ok(Self {
            path: path.to_owned(),
            identity: identity.clone(),
            created,
            _lock: lock,
            lock_held: Arc::default(),
        })
    }

    /// The owner of the data at `path`, without locking it; `None` if there is none yet.
    pub fn read_identity(path: &Path) -> Result<Option<Identity>, DataDirError> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => read_identity(path),
            Ok(_) => Err(DataDirError::NotADirectory { path: path.into() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(DataDirError::sort(path, error)),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The owner of the data.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether this call created it, or found it empty.
    pub fn created(&self) -> bool {
        self.created
    }

    /// Where the log and the vote file live.
    pub fn log_disk(&self) -> RealDisk {
        RealDisk::new(&self.path)
    }

    /// The log's options for this identity.
    pub fn log_options(&self, segment_bytes: u64) -> LogOptions {
        LogOptions {
            cluster: self.identity.cluster,
            node: self.identity.node(),
            incarnation: self.identity.incarnation,
            segment_bytes,
        }
    }

    /// The state's folder. It need not exist yet.
    pub fn state_path(&self) -> PathBuf {
        self.path.join("state")
    }
}

/// A directory that is being filled. It belongs to no member before that is complete: no node starts on
/// it.
#[derive(Debug)]
pub struct NewDataDir {
    unfinished: DataDir,
}

impl NewDataDir {
    /// Locks the directory, which must be empty or missing. Refuses anything else, and changes nothing
    /// then.
    pub fn begin(path: &Path, identity: &Identity) -> Result<Self, DataDirError> {
        if !name_is_sound(&identity.node_name) {
            return Err(DataDirError::BadNodeName {
                name: identity.node_name.clone(),
            });
        }
        make_directory(path)?;
        refuse_anything(path)?;
        let lock = take_lock(path)?;
        refuse_anything(path)?;
        Ok(Self {
            unfinished: DataDir {
                path: path.to_owned(),
                identity: identity.clone(),
                created: true,
                _lock: lock,
                lock_held: Arc::default(),
            },
        })
    }

    /// The paths to fill.
    pub fn unfinished(&self) -> &DataDir {
        &self.unfinished
    }

    /// Writes the identity, after everything else is durable: the directory now belongs to its member.
    pub fn finish(self) -> Result<DataDir, DataDirError> {
        write_identity(&self.unfinished.path, &self.unfinished.identity)?;
        Ok(self.unfinished)
    }
}

/// Why a directory cannot be used. Nothing in it has been changed.
#[derive(Debug, Error)]
pub enum DataDirError {
    /// Another process holds it.
    #[error(
        "{path} is in use by another leasehold process; stop that process first, or use another \
         data_dir"
    )]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The path is not a directory.
    #[error("{path} is not a directory; use a data_dir that is a directory or does not exist yet")]
    NotADirectory {
        /// The given path.
        path: PathBuf,
    },
    /// The directory contains other files.
    #[error(
        "{path} is not empty and not a leasehold data directory (it contains {found:?}); use an \
         empty data_dir"
    )]
    NotLeasehold {
        /// The directory.
        path: PathBuf,
        /// One of its files.
        found: String,
    },
    /// The directory is not empty.
    #[error(
        "{path} is not empty (it contains {found:?}); use a directory that is empty or does not \
         exist yet"
    )]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// One of its files.
        found: String,
    },
    /// The identity file is gone, and the data is not.
    #[error(
        "{path} contains a member's {found:?} but no identity file, so its owner is unknown; \
         restore the identity file, or (in a cluster of several members) empty the directory: the \
         member then copies all data from its peers"
    )]
    IdentityMissing {
        /// The directory.
        path: PathBuf,
        /// The data found.
        found: String,
    },
    /// The identity file is damaged.
    #[error(
        "{path} is damaged, so the owner of the data is unknown; check the disk, then restore the \
         file, or (in a cluster of several members) empty the directory: the member then copies \
         all data from its peers"
    )]
    IdentityCorrupt {
        /// The file.
        path: PathBuf,
    },
    /// A later version of leasehold created the directory.
    #[error(
        "{path} has format {version}, which this release cannot read; run the newer release of \
         leasehold that wrote it"
    )]
    NewerFormat {
        /// The directory.
        path: PathBuf,
        /// The format found.
        version: u32,
    },
    /// Another cluster's data.
    #[error("{path} belongs to cluster {found}, not to {expected}; check data_dir and certificate")]
    OtherCluster {
        /// The directory.
        path: PathBuf,
        /// The owner of the data.
        found: ClusterId,
        /// The expected owner.
        expected: ClusterId,
    },
    /// Another node's data.
    #[error(
        "{path} belongs to node {found:?}, not to {expected:?}; check data_dir and certificate, \
         and never start a node from a copy of another's data"
    )]
    OtherNode {
        /// The directory.
        path: PathBuf,
        /// The owner of the data.
        found: String,
        /// The expected owner.
        expected: String,
    },
    /// Data of another life of this node.
    #[error(
        "{path} belongs to incarnation {found} of this node, but {expected} is expected; a \
         replaced member starts with an empty data_dir"
    )]
    OtherIncarnation {
        /// The directory.
        path: PathBuf,
        /// The incarnation found.
        found: Incarnation,
        /// The expected incarnation.
        expected: Incarnation,
    },
    /// The name cannot be stored in the identity file.
    #[error("{name:?} is not a valid node name: use 1 to 253 characters and no control characters")]
    BadNodeName {
        /// The name.
        name: String,
    },
    /// The directory does not exist and cannot be created.
    #[error("cannot create {path}: {error}; use a data_dir on a file system that keeps files")]
    NotCreated {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Access was denied.
    #[error("permission denied for {path}; it must belong to the user that leasehold runs as")]
    NoPermission {
        /// The path.
        path: PathBuf,
    },
    /// The file system is read-only.
    #[error("{path} is on a read-only file system; leasehold has to write there")]
    ReadOnly {
        /// The path.
        path: PathBuf,
    },
    /// No space is left.
    #[error("no space left for {path}; free some and restart")]
    NoSpace {
        /// The path.
        path: PathBuf,
    },
    /// Any other error.
    #[error("{path}: {error}")]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl DataDirError {
    fn sort(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::NoPermission { path },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { path },
            io::ErrorKind::NotADirectory => Self::NotADirectory { path },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { path },
            _ => Self::Io { path, error },
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum IdentityFault {
    Corrupt,
    Newer { version: u32 },
}

fn make_directory(path: &Path) -> Result<(), DataDirError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(DataDirError::NotADirectory { path: path.into() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.map_err(|error| match error.kind() {
                // Its parents are made, too: below /proc there is nothing to make it in.
                io::ErrorKind::NotFound => DataDirError::NotCreated {
                    path: path.to_owned(),
                    error,
                },
                _ => DataDirError::sort(path, error),
            })?;
            match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => sync(parent),
                _ => Ok(()),
            }
        }
        Err(error) => Err(DataDirError::sort(path, error)),
    }
}

/// The directory must hold nothing.
fn refuse_anything(path: &Path) -> Result<(), DataDirError> {
    match contents(path)?.into_iter().next() {
        None => Ok(()),
        Some(found) => Err(DataDirError::NotEmpty {
            path: path.to_owned(),
            found,
        }),
    }
}

/// The files of a directory other than harmless ones, in name order.
fn contents(path: &Path) -> Result<Vec<String>, DataDirError> {
    let sort = |error| DataDirError::sort(path, error);
    let mut names = Vec::new();
    for item in fs::read_dir(path).map_err(sort)? {
        names.push(
            item.map_err(sort)?
                .file_name()
                .to_string_lossy()
                .into_owned(),
        );
    }
    names.retain(|name| !HARMLESS.contains(&name.as_str()));
    names.sort();
    Ok(names)
}

/// Refuses a directory without an identity that contains other files.
fn refuse_foreign(path: &Path) -> Result<(), DataDirError> {
    let found = contents(path)?.into_iter().next();
    let path = path.to_owned();
    match found {
        None => Ok(()),
        Some(found) if DATA.contains(&found.as_str()) => {
            Err(DataDirError::IdentityMissing { path, found })
        }
        Some(found) => Err(DataDirError::NotLeasehold { path, found }),
    }
}

fn take_lock(path: &Path) -> Result<File, DataDirError> {
    let file = path.join(LOCK);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    let lock = options.open(&file);
    let lock = lock.map_err(|error| DataDirError::sort(&file, error))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(DataDirError::InUse { path: path.into() }),
        Err(TryLockError::Error(error)) => Err(DataDirError::sort(&file, error)),
    }
}

fn read_identity(path: &Path) -> Result<Option<Identity>, DataDirError> {
    let file = path.join(IDENTITY);
    let mut bytes = Vec::new();
    let read = File::open(&file).and_then(|file| {
        file.take(IDENTITY_BYTES_MAX)
            .read_to_end(&mut bytes)
            .map(|_| ())
    });
    match read {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DataDirError::sort(&file, error)),
    }
    let text = String::from_utf8_lossy(&bytes);
    match Identity::decode(&text) {
        Ok(identity) => Ok(Some(identity)),
        Err(IdentityFault::Corrupt) => Err(DataDirError::IdentityCorrupt { path: file }),
        Err(IdentityFault::Newer { version }) => Err(DataDirError::NewerFormat {
            path: path.to_owned(),
            version,
        }),
    }
}

fn write_identity(path: &Path, identity: &Identity) -> Result<(), DataDirError> {
    let file = path.join(IDENTITY);
    durable::replace(&file, identity.encode().as_bytes())
        .map_err(|error| DataDirError::sort(&file, error))
}

fn sync(folder: &Path) -> Result<(), DataDirError> {
    durable::sync_folder(folder).map_err(|error| DataDirError::Io {
        path: folder.to_owned(),
        error,
    })
}

fn compare(path: &Path, found: &Identity, expected: &Identity) -> Result<(), DataDirError> {
    let path = path.to_owned();
    if found.cluster != expected.cluster {
        return Err(DataDirError::OtherCluster {
            path,
            found: found.cluster,
            expected: expected.cluster,
        });
    }
    if found.node_name != expected.node_name {
        return Err(DataDirError::OtherNode {
            path,
            found: found.node_name.clone(),
            expected: expected.node_name.clone(),
        });
    }
    if found.incarnation != expected.incarnation {
        return Err(DataDirError::OtherIncarnation {
            path,
            found: found.incarnation,
            expected: expected.incarnation,
        });
    }
    Ok(())
}

fn name_is_sound(name: &str) -> bool {
    (1..=253).contains(&name.len()) && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn identity() -> Identity {
        Identity {
            cluster: ClusterId(0x0123_4567),
            node_name: "n1".to_owned(),
            incarnation: Incarnation(0),
        }
    }

    fn open(path: &Path) -> Result<DataDir, DataDirError> {
        DataDir::open_or_create(path, &identity())
    }

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(path)
            .unwrap()
            .map(|item| item.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_missing_directory_is_made_for_its_owner_alone_and_opens_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/data");
        let data = open(&path).unwrap();
        assert!(data.created());
        assert_eq!(data.identity(), &identity());
        assert_eq!(data.log_options(4096).node, identity().node());
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert_eq!(names(&path), ["identity", "lock"]);
        drop(data);
        let data = open(&path).unwrap();
        assert!(!data.created());
        let read = DataDir::read_identity(&path).unwrap();
        assert_eq!(read, Some(identity()));
    }

    #[test]
    fn a_fresh_volume_counts_as_empty() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("lost+found")).unwrap();
        assert!(open(folder.path()).unwrap().created());
        assert_eq!(
            DataDir::read_identity(&folder.path().join("none")).unwrap(),
            None
        );
    }

    #[test]
    fn a_second_process_is_told_that_the_first_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let first = open(folder.path()).unwrap();
        let error = open(folder.path()).unwrap_err();
        assert!(matches!(error, DataDirError::InUse { .. }), "{error}");
        assert!(error.to_string().contains("in use by another leasehold"));
        drop(first);
        open(folder.path()).unwrap();
    }

    #[test]
    fn the_data_of_another_cluster_node_or_life_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path()).unwrap());
        let refused = |change: fn(&mut Identity)| {
            let mut other = identity();
            change(&mut other);
            DataDir::open_or_create(folder.path(), &other).unwrap_err()
        };
        let error = refused(|other| other.cluster = ClusterId(5));
        assert!(matches!(error, DataDirError::OtherCluster { .. }));
        let error = refused(|other| other.node_name = "n2".to_owned());
        assert!(matches!(error, DataDirError::OtherNode { .. }));
        let error = refused(|other| other.incarnation = Incarnation(1));
        assert!(matches!(error, DataDirError::OtherIncarnation { .. }));
        let error = refused(|other| other.node_name = "n2\nformat: 9".to_owned());
        assert!(matches!(error, DataDirError::BadNodeName { .. }));
        open(folder.path()).unwrap();
    }

    #[test]
    fn somebody_elses_directory_is_refused_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("thesis.txt"), "mine").unwrap();
        let error = open(folder.path()).unwrap_err();
        assert!(
            matches!(&error, DataDirError::NotLeasehold { found, .. } if found == "thesis.txt")
        );
        assert!(
            error
                .to_string()
                .contains("not empty and not a leasehold data directory")
        );
        assert_eq!(names(folder.path()), ["thesis.txt"]);
    }

    #[test]
    fn data_without_its_identity_is_never_taken_for_a_new_members() {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path()).unwrap());
        fs::write(folder.path().join("vote"), "x").unwrap();
        fs::remove_file(folder.path().join(IDENTITY)).unwrap();
        let error = open(folder.path()).unwrap_err();
        assert!(matches!(error, DataDirError::IdentityMissing { .. }));
    }

    #[test]
    fn an_interrupted_creation_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(LOCK), "").unwrap();
        fs::write(folder.path().join(IDENTITY_NEW), "leaseho").unwrap();
        assert!(open(folder.path()).unwrap().created());
        assert!(!open(folder.path()).unwrap().created());
    }

    #[test]
    fn every_flip_in_the_identity_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path()).unwrap());
        let file = folder.path().join(IDENTITY);
        let bytes = fs::read(&file).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let decoded = Identity::decode(&String::from_utf8_lossy(&flipped));
            assert!(decoded.is_err(), "bit {bit}");
        }
        for short in [&bytes[..0], &bytes[..bytes.len() - 1], b"something else"] {
            fs::write(&file, short).unwrap();
            let error = open(folder.path()).unwrap_err();
            assert!(matches!(error, DataDirError::IdentityCorrupt { .. }));
        }
    }

    #[test]
    fn a_newer_format_is_refused_whatever_else_it_says() {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path()).unwrap());
        let newer = format!("{TITLE}\nformat: 7\nshape: unheard of\n");
        fs::write(folder.path().join(IDENTITY), newer).unwrap();
        let error = open(folder.path()).unwrap_err();
        assert!(matches!(
            error,
            DataDirError::NewerFormat { version: 7, .. }
        ));
    }

    #[test]
    fn a_file_is_no_data_directory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = open(file.path()).unwrap_err();
        assert!(matches!(error, DataDirError::NotADirectory { .. }));
        let error = open(&file.path().join("below")).unwrap_err();
        assert!(matches!(error, DataDirError::NotADirectory { .. }));
        assert!(DataDir::read_identity(file.path()).is_err());
    }

    #[test]
    fn what_the_system_refuses_says_what_to_do() {
        // Root is refused nothing, so the sorting itself is asked first.
        let sorted = |kind: io::ErrorKind| {
            let error = DataDirError::sort(Path::new("/d"), io::Error::from(kind));
            error.to_string()
        };
        assert!(sorted(io::ErrorKind::PermissionDenied).contains("permission denied for /d"));
        assert!(sorted(io::ErrorKind::ReadOnlyFilesystem).contains("read-only file system"));
        assert!(sorted(io::ErrorKind::StorageFull).contains("no space left"));
        assert!(sorted(io::ErrorKind::TimedOut).contains("/d: "));

        let folder = tempfile::tempdir().unwrap();
        let closed = folder.path().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
        let as_root = File::create(closed.join("probe")).is_ok();
        let opened = open(&closed.join("data"));
        if !as_root {
            let error = opened.unwrap_err();
            assert!(
                matches!(error, DataDirError::NoPermission { .. }),
                "{error}"
            );
        }
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    }
}
