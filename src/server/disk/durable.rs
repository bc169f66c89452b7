//! Small files that are whole and durable, or not there.
//!
//! A file is written beside its place, synced, renamed into it, and its folder is synced. Whatever the
//! moment of a crash, the place holds what was there before or all of what is new; and once a call
//! returned, it is the new. What is left beside it by a crash does not hinder the next attempt.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::server::threads::may_wait;

/// The ending of files that are being written.
pub(crate) const TEMPORARY: &str = ".new";

const NOT_HERE: &str = "the driver waits for no disk";

/// Has the file at `path` hold `bytes`, durably; it is its owner's alone.
///
/// # Errors
/// The file is as it was before, or as it should be.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    debug_assert!(may_wait(), "{NOT_HERE}: {}", path.display());
    let mut folder = RealFolder {
        mode: 0o600,
        is_private: true,
    };
    replace_in(&mut folder, path, bytes)
}

/// As [`replace`], with permissions of its own, in a folder that others may write to as well.
///
/// # Errors
/// The file is as it was before, or as it should be.
#[allow(dead_code, reason = "the server alone makes no certificates")]
pub(crate) fn replace_with_mode(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    debug_assert!(may_wait(), "{NOT_HERE}: {}", path.display());
    let mut folder = RealFolder {
        mode,
        is_private: false,
    };
    replace_in(&mut folder, path, bytes)
}

/// Puts the file at `part`, which is complete and synced, in its `place`, durably. Both lie in one folder.
///
/// # Errors
/// It lies in one of the two places.
pub(crate) fn move_into_place(part: &Path, place: &Path) -> io::Result<()> {
    fs::rename(part, place)?;
    sync_folder_of(place)
}

/// Removes a file, if it is there, so that no crash brings it back.
///
/// # Errors
/// It may be there still, or again after a crash.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    debug_assert!(may_wait(), "{NOT_HERE}: {}", path.display());
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| sync_folder_of(path)),
    }
}

/// Makes what is written in a folder's list durable.
///
/// # Errors
/// Those of the disk.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    debug_assert!(may_wait(), "{NOT_HERE}: {}", folder.display());
    planted!(RealNamesUnsynced => return Ok(()));
    File::open(folder)?.sync_all()
}

fn sync_folder_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => sync_folder(folder),
        _ => sync_folder(Path::new(".")),
    }
}

/// Where a file is written before it is put in its place.
fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(TEMPORARY);
    PathBuf::from(beside)
}

/// What the steps of [`replace`] are made of: the real disk's, or that of a test that cuts its power.
trait Folder {
    type File;
    fn create(&mut self, path: &Path) -> io::Result<Self::File>;
    fn write(&mut self, file: &mut Self::File, bytes: &[u8]) -> io::Result<()>;
    fn sync(&mut self, file: &Self::File) -> io::Result<()>;
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    fn sync_folder_of(&mut self, path: &Path) -> io::Result<()>;
}

fn replace_in<F: Folder>(folder: &mut F, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = beside(path);
    let mut file = folder.create(&beside)?;
    folder.write(&mut file, bytes)?;
    // Its content first: a name that is durable before it would show an empty file after a crash.
    if !planted!(MarkUnsynced) {
        folder.sync(&file)?;
    }
    folder.rename(&beside, path)?;
    planted!(MarkNameUnsynced => return Ok(()));
    folder.sync_folder_of(path)
}

struct RealFolder {
    /// Of the files that it creates.
    mode: u32,
    /// No other program leaves files there.
    is_private: bool,
}

impl Folder for RealFolder {
    type File = File;

    fn create(&mut self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).mode(self.mode);
        if self.is_private {
            return options.create(true).truncate(true).open(path);
        }
        // A leftover of an interrupted run may have other permissions, or lead elsewhere: never write into it.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        options.create_new(true);
        options.open(path)
    }

    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        planted!(RealMarkUnsynced => return Ok(()));
        file.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_folder_of(&mut self, path: &Path) -> io::Result<()> {
        sync_folder_of(path)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    #[cfg(debug_assertions)]
    use crate::server::threads::spawn;

    #[test]
    fn a_file_is_replaced_and_removed_and_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.mark");
        // As a crash may have left it.
        fs::write(folder.path().join("a.mark.new"), "half of something longer").unwrap();
        for text in ["one", "", "another"] {
            replace(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(replace(&folder.path().join("no/such"), b"").is_err());
    }

    #[test]
    fn what_an_interrupted_run_left_is_not_written_into() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a.new"), "for all to read").unwrap();
        fs::set_permissions(at("a.new"), fs::Permissions::from_mode(0o666)).unwrap();
        fs::write(at("elsewhere"), "another's").unwrap();
        std::os::unix::fs::symlink(at("elsewhere"), at("b.new")).unwrap();
        for (name, mode) in [("a", 0o600), ("b", 0o640)] {
            replace_with_mode(&at(name), b"new", mode).unwrap();
            let found = fs::symlink_metadata(at(name)).unwrap();
            assert!(found.is_file(), "{name}");
            assert_eq!(found.permissions().mode() & 0o777, mode, "{name}");
        }
        assert_eq!(fs::read(at("elsewhere")).unwrap(), b"another's");
    }

    /// A device of this kind cannot be synced, so the system says no if it is asked.
    #[test]
    fn syncs_are_those_of_the_system() {
        let device = Path::new("/dev/full");
        let file = File::open(device).unwrap();
        let mut folder = RealFolder {
            mode: 0o600,
            is_private: true,
        };
        let refused = folder.sync(&file).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        let refused = sync_folder(device).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        let refused = folder.sync_folder_of(&device.join("mark")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn the_driver_waits_for_no_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        for (thread, is_refused) in [("n1-driver", true), ("n1-log", false)] {
            let path = path.clone();
            let write = spawn(thread, (), move || replace(&path, b"")).unwrap();
            assert_eq!(write.join().is_err(), is_refused, "{thread}");
        }
    }

    #[test]
    fn what_is_complete_is_put_in_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let (part, place) = (folder.path().join("part"), folder.path().join("place"));
        fs::write(&part, "all of it").unwrap();
        fs::write(&place, "before").unwrap();
        move_into_place(&part, &place).unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "all of it");
        assert!(!part.exists());
    }

    /// A folder whose power fails at a call: names and contents that were not synced may be on its disk, in
    /// whole or in part, or not.
    #[derive(Clone, Default)]
    struct Cut {
        /// Contents by inode: what was written, and how much of it is durable.
        contents: Vec<(Vec<u8>, usize)>,
        names: BTreeMap<PathBuf, usize>,
        durable_names: BTreeMap<PathBuf, usize>,
        calls_left: usize,
    }

    impl Cut {
        fn call(&mut self) -> io::Result<()> {
            let left = self.calls_left.checked_sub(1);
            self.calls_left = left.ok_or_else(|| io::Error::other("no power"))?;
            Ok(())
        }

        /// Everything that the disk may hold at `path` after the power failed.
        fn may_hold(&self, path: &Path) -> Vec<Option<Vec<u8>>> {
            let mut all = Vec::new();
            for names in [&self.names, &self.durable_names] {
                let Some(inode) = names.get(path) else {
                    all.push(None);
                    continue;
                };
                let (bytes, durable) = &self.contents[*inode];
                all.extend((*durable..=bytes.len()).map(|kept| Some(bytes[..kept].to_vec())));
            }
            all
        }
    }

    impl Folder for Cut {
        type File = usize;

        fn create(&mut self, path: &Path) -> io::Result<usize> {
            self.call()?;
            // A name that is there gets another file.
            self.contents.push((Vec::new(), 0));
            self.names.insert(path.to_owned(), self.contents.len() - 1);
            Ok(self.contents.len() - 1)
        }

        fn write(&mut self, file: &mut usize, bytes: &[u8]) -> io::Result<()> {
            self.contents[*file].0.extend(bytes);
            self.call()
        }

        fn sync(&mut self, file: &usize) -> io::Result<()> {
            self.call()?;
            self.contents[*file].1 = self.contents[*file].0.len();
            Ok(())
        }

        fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
            self.call()?;
            let inode = self.names.remove(from).expect("it was created");
            self.names.insert(to.to_owned(), inode);
            Ok(())
        }

        fn sync_folder_of(&mut self, _: &Path) -> io::Result<()> {
            self.call()?;
            self.durable_names = self.names.clone();
            Ok(())
        }
    }

    #[test]
    fn a_crash_at_any_call_leaves_the_old_file_or_the_new_one_and_after_the_last_the_new_one() {
        let path = Path::new("folder/mark");
        let (old, new) = (Some(b"old".to_vec()), Some(b"new, and longer".to_vec()));
        for before in [None, old] {
            let mut whole = Cut {
                calls_left: usize::MAX,
                ..Cut::default()
            };
            if let Some(bytes) = &before {
                replace_in(&mut whole, path, bytes).unwrap();
            }
            let mut calls = 0;
            loop {
                let mut cut = whole.clone();
                cut.calls_left = calls;
                let done = replace_in(&mut cut, path, new.as_deref().unwrap());
                for held in cut.may_hold(path) {
                    let is_new = held == new;
                    assert!(
                        is_new || done.is_err() && held == before,
                        "{calls}: {held:?}"
                    );
                }
                // The next attempt is not held up by what this one left.
                cut.calls_left = usize::MAX;
                replace_in(&mut cut, path, b"next").unwrap();
                let next = Some(b"next".to_vec());
                assert!(cut.may_hold(path).into_iter().all(|held| held == next));
                if done.is_ok() {
                    break;
                }
                calls += 1;
            }
            assert_eq!(calls, 5, "each step was cut off once");
        }
    }
}
