//! The private file in which a development cluster says where it is.
//!
//! It lies in a directory that only its user may enter: below `$XDG_RUNTIME_DIR`, or else in a
//! directory of the temporary one that bears the user's number and is checked to be the user's own,
//! since any user may create names there. The running cluster holds a lock on the directory: so a
//! file left by a killed process is told apart from one of a process that lives, and a second
//! cluster finds out that there is a first.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::Duration;
use std::{env, fmt, fs};

use serde::{Deserialize, Serialize};

use crate::server::disk::durable;

const FILE: &str = "dev.json";

/// What a development cluster says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevCluster {
    /// The process it runs in.
    pub pid: u32,
    /// Client addresses, as `host:port`.
    pub endpoints: Vec<String>,
    /// The authority that signs its nodes.
    pub cacert: PathBuf,
    /// A client's certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Where everything lies.
    pub directory: PathBuf,
    /// Whether the directory is to be gone afterwards.
    pub temporary: bool,
}

/// The name of a development cluster that is not the only one: a few letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevName(String);

impl FromStr for DevName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const LONGEST: usize = 32;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        match (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_plain) {
            true => Ok(Self(text.to_owned())),
            false => Err(format!(
                "write {LONGEST} letters, digits, `-` and `_` at most, for example two"
            )),
        }
    }
}

impl fmt::Display for DevName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The directory belongs to another user, or is open to others.
    #[error(
        "{} is not private to this user: its owner could redirect this command to another cluster; \
         remove it, or set XDG_RUNTIME_DIR to a private directory",
        path.display()
    )]
    NotOurs {
        /// The directory.
        path: PathBuf,
    },
    /// There is a development cluster already.
    #[error(
        "a development cluster of this name is already running{}: use it, or stop it first with Ctrl-C \
         in its shell. Another one runs beside it under another name and on other ports: `leasehold \
         dev --name two --port 7500`, and then `leasehold --dev two put foo bar`",
        .running.as_ref().map_or_else(String::new, |dev| format!(
            " (process {}, at {}, data in {})",
            dev.pid,
            dev.endpoints.join(" "),
            dev.directory.display()
        ))
    )]
    Running {
        /// What it says of itself, if it has come so far.
        running: Option<Box<DevCluster>>,
    },
    /// The system said no.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The directory of the private file.
#[derive(Clone, Debug)]
pub struct RuntimeDirectory {
    path: PathBuf,
}

impl RuntimeDirectory {
    /// Where this user's cluster of this name is. It need not exist.
    ///
    /// # Errors
    /// [`RuntimeError::NotOurs`], when it exists and is not private.
    pub fn find(name: Option<&DevName>) -> Result<Self, RuntimeError> {
        let suffix = name.map_or_else(String::new, |name| format!("-{name}"));
        let path = match env::var_os("XDG_RUNTIME_DIR") {
            Some(directory) if Path::new(&directory).is_absolute() => {
                Path::new(&directory).join(format!("leasehold{suffix}"))
            }
            // A dot, which no name has: a user's number is no name either.
            _ => env::temp_dir().join(format!(
                "leasehold-{}{}",
                user(),
                suffix.replacen('-', ".", 1)
            )),
        };
        Self::at(path)
    }

    /// The one at `path`.
    ///
    /// # Errors
    /// As [`RuntimeDirectory::find`].
    pub fn at(path: PathBuf) -> Result<Self, RuntimeError> {
        // Of the name itself: a link could lead anywhere.
        match fs::symlink_metadata(&path) {
            Ok(found) => {
                let private = found.is_dir() && found.uid() == user() && found.mode() & 0o077 == 0;
                match private {
                    true => Ok(Self { path }),
                    false => Err(RuntimeError::NotOurs { path }),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self { path }),
            Err(source) => Err(RuntimeError::Io { path, source }),
        }
    }

    /// The development cluster that runs now, if one does.
    ///
    /// # Errors
    /// [`RuntimeError::Io`].
    pub fn running(&self) -> Result<Option<DevCluster>, RuntimeError> {
        let directory = match File::open(&self.path) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.io(source)),
        };
        match directory.try_lock_shared() {
            // The lock is free, so the file is a leftover.
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => Ok(self.read()),
            Err(TryLockError::Error(source)) => Err(self.io(source)),
        }
    }

    /// Becomes the one development cluster of this user. What an earlier one left behind when it
    /// was killed is removed.
    ///
    /// # Errors
    /// [`RuntimeError::Running`], [`RuntimeError::NotOurs`], [`RuntimeError::Io`].
    pub fn claim(&self) -> Result<Claim, RuntimeError> {
        let lock = self.lock()?;
        if let Some(past) = self.read().filter(|past| past.temporary) {
            // Only what looks like ours: the file might have been edited.
            let name = past.directory.file_name().unwrap_or_default();
            if name.to_string_lossy().starts_with(TEMPORARY_PREFIX) {
                let _ = fs::remove_dir_all(&past.directory);
            }
        }
        let _ = fs::remove_file(self.path.join(FILE));
        Ok(Claim {
            directory: self.clone(),
            _lock: lock,
        })
    }

    fn lock(&self) -> Result<File, RuntimeError> {
        // A command that checks for a running cluster holds the lock for a moment: hence a few tries.
        for _ in 0..20 {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.path)
                .map_err(|source| self.io(source))?;
            Self::at(self.path.clone())?;
            let directory = match File::open(&self.path) {
                Ok(directory) => directory,
                // Removed by one that just ended.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(self.io(source)),
            };
            match directory.try_lock() {
                // The lock is of use only if the name still leads to what was locked.
                Ok(()) if self.is_still(&directory) => return Ok(directory),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
                Err(TryLockError::Error(source)) => return Err(self.io(source)),
            }
        }
        Err(RuntimeError::Running {
            running: self.read().map(Box::new),
        })
    }

    fn is_still(&self, opened: &File) -> bool {
        let same = || {
            let (opened, named) = (opened.metadata().ok()?, fs::metadata(&self.path).ok()?);
            Some(opened.ino() == named.ino() && opened.dev() == named.dev())
        };
        same().unwrap_or(false)
    }

    fn read(&self) -> Option<DevCluster> {
        let text = fs::read(self.path.join(FILE)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn io(&self, source: io::Error) -> RuntimeError {
        RuntimeError::Io {
            path: self.path.clone(),
            source,
        }
    }
}

/// How the name of every temporary directory of ours begins.
pub const TEMPORARY_PREFIX: &str = "leasehold-dev-";

/// The right to be the one development cluster. Dropping it removes file and directory.
#[derive(Debug)]
pub struct Claim {
    directory: RuntimeDirectory,
    _lock: File,
}

impl Claim {
    /// Tells the command line where the cluster is.
    ///
    /// # Errors
    /// [`RuntimeError::Io`].
    pub fn announce(&self, dev: &DevCluster) -> Result<(), RuntimeError> {
        let path = self.directory.path.join(FILE);
        let write = || durable::replace(&path, &serde_json::to_vec_pretty(dev)?);
        write().map_err(|source| RuntimeError::Io {
            path: path.clone(),
            source,
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let path = &self.directory.path;
        let _ = fs::remove_file(path.join(FILE));
        let _ = fs::remove_file(path.join("dev.json.new"));
        // Not if something else is there.
        let _ = fs::remove_dir(path);
    }
}

fn user() -> u32 {
    rustix::process::getuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn dev(directory: &Path) -> DevCluster {
        DevCluster {
            pid: 42,
            endpoints: vec!["127.0.0.1:7400".to_owned()],
            cacert: "/pki/client-ca.pem".into(),
            cert: "/pki/dev.pem".into(),
            key: "/pki/dev.key".into(),
            directory: directory.to_owned(),
            temporary: true,
        }
    }

    fn runtime(temporary: &tempfile::TempDir) -> RuntimeDirectory {
        RuntimeDirectory::at(temporary.path().join("leasehold")).unwrap()
    }

    #[test]
    fn a_running_cluster_is_found_and_one_that_ended_leaves_nothing() {
        let temporary = tempfile::tempdir().unwrap();
        let runtime = runtime(&temporary);
        assert_eq!(runtime.running().unwrap(), None);
        let claim = runtime.claim().unwrap();
        assert_eq!(runtime.running().unwrap(), None, "not announced yet");
        claim.announce(&dev(temporary.path())).unwrap();
        assert_eq!(runtime.running().unwrap(), Some(dev(temporary.path())));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&runtime.path), 0o700);
        assert_eq!(mode(&runtime.path.join(FILE)), 0o600);
        drop(claim);
        assert_eq!(runtime.running().unwrap(), None);
        assert!(!runtime.path.exists());
    }

    #[test]
    fn a_name_of_a_cluster_is_a_part_of_a_path_and_nothing_else() {
        for good in ["two", "a-b_2"] {
            assert_eq!(good.parse::<DevName>().unwrap().to_string(), good);
        }
        for bad in ["", ".", "../x", "a/b", "a b", &"x".repeat(33)] {
            let refused = bad.parse::<DevName>().unwrap_err();
            assert!(refused.contains("for example two"), "{bad}: {refused}");
        }
    }

    #[test]
    fn a_second_cluster_is_told_of_the_first() {
        let temporary = tempfile::tempdir().unwrap();
        let runtime = runtime(&temporary);
        let claim = runtime.claim().unwrap();
        claim
            .announce(&dev(Path::new("/tmp/leasehold-dev-42")))
            .unwrap();
        assert_eq!(
            runtime.claim().unwrap_err().to_string(),
            "a development cluster of this name is already running (process 42, at 127.0.0.1:7400, data \
             in /tmp/leasehold-dev-42): use it, or stop it first with Ctrl-C in its shell. Another \
             one runs beside it under another name and on other ports: `leasehold dev --name two \
             --port 7500`, and then `leasehold --dev two put foo bar`"
        );
        drop(claim);
        runtime.claim().expect("free again");
    }

    #[test]
    fn what_a_killed_cluster_left_is_not_believed_and_is_removed_by_the_next() {
        let temporary = tempfile::tempdir().unwrap();
        let runtime = runtime(&temporary);
        let data = temporary.path().join("leasehold-dev-42");
        fs::create_dir_all(data.join("n1")).unwrap();
        let claim = runtime.claim().unwrap();
        claim.announce(&dev(&data)).unwrap();
        // Killed: the lock is gone, the file is not.
        let left = fs::read(runtime.path.join(FILE)).unwrap();
        drop(claim);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&runtime.path)
            .unwrap();
        fs::write(runtime.path.join(FILE), left).unwrap();

        assert_eq!(runtime.running().unwrap(), None);
        let next = runtime.claim().unwrap();
        assert!(!data.exists());
        assert!(!runtime.path.join(FILE).exists());
        drop(next);
    }

    #[test]
    fn a_directory_that_others_could_have_made_is_not_trusted() {
        let temporary = tempfile::tempdir().unwrap();
        let open = temporary.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        let error = RuntimeDirectory::at(open.clone()).unwrap_err();
        assert!(matches!(error, RuntimeError::NotOurs { .. }), "{error}");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(RuntimeDirectory::at(open.clone()).is_ok());
        let link = temporary.path().join("link");
        std::os::unix::fs::symlink(&open, &link).unwrap();
        let error = RuntimeDirectory::at(link).unwrap_err();
        assert!(matches!(error, RuntimeError::NotOurs { .. }), "{error}");
    }
}
