//! The marker files beside the database: its format, its lock, and whether the last stop was clean.
//!
//! Each is written and removed atomically (`durable`).

use std::cmp::Ordering;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use xxhash_rust::xxh3::Xxh3Default;

use crate::kv::{ContentHash, STATE_FORMAT};
use crate::server::disk::durable;
use crate::server::disk::durable::TEMPORARY;
use crate::server::disk::marker::Marker;
use crate::types::{LogId, LogIndex, Term};

use super::error::StoreError;

const FORMAT_TITLE: &str = "leasehold state ";
/// Begins the last line of that file.
const CHECKSUM: &str = "checksum: ";
const LOCK: &str = "lock";
pub(super) const DATABASE: &str = "db";
/// The folder of a keyspace's tables.
const TABLES: &str = "tables";
/// A file that fjall writes when its own creation is complete.
const DATABASE_VERSION: &str = "version";

/// A directory that is locked, and either holds a state of a known format or may take a new one.
pub(super) struct Directory {
    path: PathBuf,
    lock: File,
    is_new: bool,
}

impl Directory {
    /// Locks `path`, creating it if it is missing, and examines its content.
    pub(super) fn claim(path: &Path) -> Result<Self, StoreError> {
        // The directory contains all data, so only its owner may read it.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(StoreError::io("creating the state's directory"))?;
        // Examined before the lock file is created, so that a foreign directory stays unchanged.
        let found = DirectoryContent::read(path)?;
        let lock = lock(path)?;
        let found = match found {
            DirectoryContent::Ours => DirectoryContent::Ours,
            // Another process may have created a state before the lock was taken.
            DirectoryContent::Empty | DirectoryContent::Incomplete => DirectoryContent::read(path)?,
        };
        match found {
            DirectoryContent::Ours => {
                remove_if_there(&Marker::StateCreating.path(path))?;
                if !exists(&path.join(DATABASE).join(DATABASE_VERSION))? {
                    return Err(StoreError::Damaged {
                        detail: "the database is missing".to_owned(),
                    });
                }
            }
            DirectoryContent::Empty => write(Marker::StateCreating, path, "")?,
            DirectoryContent::Incomplete => match fs::remove_dir_all(path.join(DATABASE)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(StoreError::io("removing a half-made state")(error));
                }
                _ => {}
            },
        }
        Ok(Self {
            path: path.to_owned(),
            lock,
            is_new: !matches!(found, DirectoryContent::Ours),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there was no state here before.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// The path of the database.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Marks a new state as complete after `persist` has made it durable.
    pub(super) fn finish_creation(
        &self,
        persist: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if !self.is_new {
            return Ok(());
        }
        persist()?;
        let text = bare(STATE_FORMAT);
        write(Marker::StateFormat, &self.path, &sealed(&text))?;
        remove_if_there(&Marker::StateCreating.path(&self.path))?;
        sync_directory(&self.path)
    }

    pub(super) fn into_lock(self) -> File {
        self.lock
    }
}

/// The content of a state's directory.
enum DirectoryContent {
    /// A state in a format that this program reads.
    Ours,
    /// Nothing.
    Empty,
    /// A state whose creation was interrupted. Nothing was ever applied to it.
    Incomplete,
}

impl DirectoryContent {
    fn read(path: &Path) -> Result<Self, StoreError> {
        let doing = "reading the state's format";
        match fs::read(Marker::StateFormat.path(path)) {
            Ok(format) => {
                check_format(path, &format)?;
                return Ok(Self::Ours);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::io(doing)(error)),
        }
        if exists(&Marker::StateCreating.path(path))? {
            return Ok(Self::Incomplete);
        }
        if exists(&path.join(DATABASE))? {
            return Err(damaged_format("is missing"));
        }
        for entry in fs::read_dir(path).map_err(StoreError::io(doing))? {
            let name = entry.map_err(StoreError::io(doing))?.file_name();
            let name = name.to_string_lossy();
            let is_ours = name == LOCK || name.ends_with(TEMPORARY);
            if !is_ours {
                return Err(StoreError::Foreign {
                    path: path.to_owned(),
                    found: format!("`{name}`"),
                });
            }
        }
        Ok(Self::Empty)
    }
}

/// Refuses a state at `path` that a later release wrote. Changes nothing and makes no other check.
pub(super) fn refuse_newer_format(path: &Path) -> Result<(), StoreError> {
    let format = fs::read(Marker::StateFormat.path(path)).unwrap_or_default();
    match check_format(path, &format) {
        Err(error @ StoreError::NewerFormat { .. }) => Err(error),
        _ => Ok(()),
    }
}

/// Sorts what the file says: this program's format, that of another release, or nothing that a release wrote.
///
/// A single digit decides whether a state is refused as another release's, so the number counts only with its
/// checksum. What was written before there was one is taken without: this format, and older ones.
fn check_format(path: &Path, format: &[u8]) -> Result<(), StoreError> {
    let Some((found, is_sealed)) = std::str::from_utf8(format).ok().and_then(parse_format) else {
        return Err(damaged_format("does not read as it was written"));
    };
    let path = path.to_owned();
    let known = STATE_FORMAT;
    match found.cmp(&known) {
        Ordering::Equal => Ok(()),
        Ordering::Less => Err(StoreError::OlderFormat { path, found, known }),
        Ordering::Greater if is_sealed => Err(StoreError::NewerFormat { path, found, known }),
        Ordering::Greater => Err(damaged_format("has no checksum")),
    }
}

/// The format that `text` names, and whether a checksum says that it does. The first line and the last are the
/// same in all formats, and there may be others between them.
fn parse_format(text: &str) -> Option<(u32, bool)> {
    let first = text.split_inclusive('\n').next()?;
    let number = first.strip_prefix(FORMAT_TITLE)?.strip_suffix('\n')?;
    let number = number.parse().ok().filter(|number| *number > 0)?;
    if first != bare(number) {
        return None;
    }
    if text == first {
        return Some((number, false));
    }
    let (content, _) = text.rsplit_once(CHECKSUM)?;
    (text == sealed(content)).then_some((number, true))
}

/// The line that names a format.
fn bare(format: u32) -> String {
    format!("{FORMAT_TITLE}{format}\n")
}

/// With its checksum.
fn sealed(content: &str) -> String {
    let checksum = crc32fast::hash(content.as_bytes());
    format!("{content}{CHECKSUM}{checksum:08x}\n")
}

/// The file is gone, or no release wrote what it says: as with any other file of the state, nothing is known.
fn damaged_format(how: &str) -> StoreError {
    StoreError::Damaged {
        detail: format!("its `{}` file {how}", Marker::StateFormat.name()),
    }
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let doing = "locking the state";
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path.join(LOCK))
        .map_err(StoreError::io(doing))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(error)) => Err(StoreError::io(doing)(error)),
    }
}

/// The state that a clean stop left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CleanMark {
    pub(super) applied: LogId,
    pub(super) hash: ContentHash,
}

/// Marks the durable state as left by a clean stop, with a hash of its files. The database must be closed,
/// so that the files no longer change.
pub(super) fn write_clean_mark(path: &Path, mark: &CleanMark) -> Result<(), StoreError> {
    let files = fingerprint(&path.join(DATABASE)).map_err(StoreError::io(LOOKING_THROUGH))?;
    let text = format!(
        "{} {} {} {files:032x}\n",
        mark.applied.index.0, mark.applied.term.0, mark.hash
    );
    write(Marker::StateClean, path, &text)
}

/// Reads and durably removes the mark, so that it does not survive a later crash. It is a separate file
/// because a truncated journal would restore it in the database. The database must not be open yet.
///
/// An unreadable mark, or one whose hash does not match the files, counts as missing.
pub(super) fn take_clean_mark(path: &Path) -> Result<Option<CleanMark>, StoreError> {
    let file = Marker::StateClean.path(path);
    let bytes = match fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io("reading the mark of a clean stop")(error)),
    };
    remove_if_there(&file)?;
    sync_directory(path)?;
    let Some((mark, files)) = std::str::from_utf8(&bytes).ok().and_then(parse_mark) else {
        return Ok(None);
    };
    let found = fingerprint(&path.join(DATABASE)).map_err(StoreError::io(LOOKING_THROUGH))?;
    Ok((found == files).then_some(mark))
}

fn parse_mark(text: &str) -> Option<(CleanMark, u128)> {
    let mut words = text.strip_suffix('\n')?.split(' ');
    let index = words.next()?.parse().ok()?;
    let term = words.next()?.parse().ok()?;
    let hash = u128::from_str_radix(words.next()?, 16).ok()?;
    let files = u128::from_str_radix(words.next()?, 16).ok()?;
    let mark = CleanMark {
        applied: LogId::new(LogIndex(index), Term(term)),
        hash: ContentHash(hash),
    };
    words.next().is_none().then_some((mark, files))
}

const LOOKING_THROUGH: &str = "listing the files of the state";

/// A hash over the names, lengths and contents of all files of the database; for tables the contents are
/// left out, because tables are large, immutable, and have checksums of their own.
///
/// The engine treats a keyspace without its first file as new, and a journal without its end as torn, so
/// lost files could pass as an older or emptier state. After an unclean stop the full verification detects
/// this; after a clean stop, this hash does.
fn fingerprint(database: &Path) -> io::Result<u128> {
    let mut files = Vec::new();
    let mut folders = vec![database.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files.sort();
    let mut hasher = Xxh3Default::new();
    for file in files {
        let name = file.strip_prefix(database).unwrap_or(&file);
        let name = name.as_os_str().as_encoded_bytes();
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name);
        hasher.update(&fs::metadata(&file)?.len().to_le_bytes());
        if file.parent().is_some_and(|folder| folder.ends_with(TABLES)) {
            continue;
        }
        let mut reader = File::open(&file)?;
        let mut block = vec![0; 64 << 10];
        loop {
            match reader.read(&mut block)? {
                0 => break,
                length => hasher.update(&block[..length]),
            }
        }
    }
    Ok(hasher.digest128())
}

/// Writes `text` to a mark durably.
fn write(mark: Marker, directory: &Path, text: &str) -> Result<(), StoreError> {
    mark.write(directory, text)
        .map_err(StoreError::io("writing a mark of the state"))
}

fn remove_if_there(file: &Path) -> Result<(), StoreError> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::io("removing a mark of the state")(error))
        }
        _ => Ok(()),
    }
}

fn sync_directory(path: &Path) -> Result<(), StoreError> {
    durable::sync_folder(path).map_err(StoreError::io("syncing the state's directory"))
}

fn exists(path: &Path) -> Result<bool, StoreError> {
    path.try_exists()
        .map_err(StoreError::io("listing the state's directory"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_new_state_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let directory = Directory::claim(&path).unwrap();
        assert!(directory.is_new());
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
    fn read_format(bytes: &[u8]) -> &'static str {
        match check_format(Path::new("/state"), bytes) {
            Ok(()) => "ours",
            Err(StoreError::NewerFormat { .. }) => "newer",
            Err(StoreError::OlderFormat { .. }) => "older",
            Err(error) => {
                assert!(error.is_damage(), "{error}");
                "damaged"
            }
        }
    }

    #[test]
    fn a_format_is_that_of_a_release_or_damaged_and_a_flip_is_never_another_release() {
        let ours = sealed(&bare(STATE_FORMAT));
        assert_eq!(ours, "leasehold state 2\nchecksum: 5103540b\n");
        assert_eq!(read_format(ours.as_bytes()), "ours");
        // Of a release whose file says more.
        let newer = sealed("leasehold state 3\nand more: than this one knows\n");
        assert_eq!(read_format(newer.as_bytes()), "newer");
        // Written before there was a checksum.
        assert_eq!(read_format(bare(STATE_FORMAT).as_bytes()), "ours");
        assert_eq!(read_format(bare(1).as_bytes()), "older");
        assert_eq!(read_format(bare(3).as_bytes()), "damaged");
        for whole in [ours, newer, bare(STATE_FORMAT)] {
            for bit in 0..whole.len() * 8 {
                let mut bytes = whole.clone().into_bytes();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(read_format(&bytes), "damaged", "bit {bit} of {whole}");
            }
            for length in 0..whole.len() {
                let cut = &whole[..length];
                let is_bare = cut == bare(STATE_FORMAT);
                let expected = if is_bare { "ours" } else { "damaged" };
                assert_eq!(read_format(cut.as_bytes()), expected, "{cut:?}");
            }
            let longer = format!("{whole}\n");
            assert_eq!(read_format(longer.as_bytes()), "damaged", "{longer:?}");
        }
        for other in [
            "leasehold state 02\n",
            "leasehold state +2\n",
            "leasehold state 0\n",
        ] {
            for text in [other.to_owned(), sealed(other)] {
                assert_eq!(read_format(text.as_bytes()), "damaged", "{text:?}");
            }
        }
    }
}
