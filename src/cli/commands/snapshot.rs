//! `leasehold snapshot`: backups are written, and looked at.
//!
//! A backup takes its name only when all of it is there, checked and synced; until then it is called
//! FILE.part, and so is what a broken connection leaves behind. It holds everything that is stored, so
//! only its owner can read it.

use std::fs::File;
use std::io;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::arguments::snapshot::{SnapshotFileArgs, SnapshotSaveArgs};
use crate::cli::arguments::{Format, GlobalArgs};
use crate::cli::connection::{Connection, Target};
use crate::cli::failure::Failure;
use crate::cli::print;
use crate::client::{SnapshotOptions, SnapshotStream};
use crate::server::disk::durable;
use crate::wire::state::{Chunks, ReadFault, StateDecoder, StateFault, StateSummary};

/// The least time for a chunk: the client may have to reconnect.
const CHUNK_PATIENCE: Duration = Duration::from_secs(30);
/// Interval between lines of progress on a terminal.
const PROGRESS_BYTES: u64 = 4 << 20;

/// Says what a backup holds.
pub(super) fn status(
    arguments: &SnapshotFileArgs,
    format: Format,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (summary, bytes) = read(&arguments.file)?;
    Ok(print::snapshot::status(out, format, &summary, bytes)?)
}

/// Says that a backup is whole.
pub(super) fn verify(
    arguments: &SnapshotFileArgs,
    format: Format,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (summary, bytes) = read(&arguments.file)?;
    let file = arguments.file.display().to_string();
    Ok(print::snapshot::verified(
        out, format, &file, &summary, bytes,
    )?)
}

/// Reads all of a backup and checks all of it: what it is, and its length.
fn read(file: &Path) -> Result<(StateSummary, u64), Failure> {
    let refused = |fault: ReadFault| Failure::refused(format!("{}: {fault}", file.display()));
    let opened = File::open(file).map_err(|error| refused(error.into()))?;
    let mut chunks = Chunks::new(opened);
    let mut decoder = StateDecoder::new();
    let mut bytes = 0;
    while let Some(chunk) = chunks.next_chunk().map_err(refused)? {
        bytes += chunk.len() as u64;
        decoder.take(chunk).map_err(|fault| refused(fault.into()))?;
    }
    let summary = decoder.finish();
    let summary = summary.map_err(|fault: StateFault| refused(fault.into()))?;
    Ok((summary, bytes))
}

/// Writes a backup.
pub(super) async fn save(
    arguments: &SnapshotSaveArgs,
    connection: &impl Connection,
    target: &Target,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let file = &arguments.file;
    if !arguments.force && file.exists() {
        return Err(Failure::refused(format!(
            "{} exists already: choose another name, or replace it with --force",
            file.display()
        )));
    }
    let at =
        |path: &Path, error: io::Error| Failure::refused(format!("{}: {error}", path.display()));
    let part = part_of(file);
    // Before anything is asked of the cluster: whether it can be written shows now.
    let mut writing = begin(&part).map_err(|error| at(&part, error))?;
    let options = SnapshotOptions::new()
        .with_consistency(global.consistency)
        .with_timeout(target.timeout.max(CHUNK_PATIENCE));
    let begun = connection.client()?.snapshot(Some(options)).await;
    let mut stream = match begun {
        Ok(stream) => stream,
        Err(error) => {
            // Nothing has come, so there is nothing to keep.
            let _ = std::fs::remove_file(&part);
            return Err(error.into());
        }
    };
    let written = match fetch(&mut stream, &mut writing).await {
        Ok(written) => written,
        Err(failure) => {
            let message = format!(
                "{}; the incomplete file is {} and is not a backup: delete it, and save again",
                failure.message,
                part.display()
            );
            return Err(Failure::new(failure.exit, message));
        }
    };
    writing.sync_all().map_err(|error| at(&part, error))?;
    durable::move_into_place(&part, file).map_err(|error| at(file, error))?;
    let summary = stream.summary().expect("the last chunk has come");
    let file = file.display().to_string();
    Ok(print::snapshot::saved(
        out,
        global.output,
        &file,
        summary,
        written,
    )?)
}

/// Begins a file that only its owner can read. What an earlier attempt left there may have other
/// permissions, or be a link to elsewhere: it is replaced, and not written into.
fn begin(part: &Path) -> io::Result<File> {
    match std::fs::remove_file(part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(part)
}

/// Writes down what comes, and says how many bytes it was.
async fn fetch(stream: &mut SnapshotStream, file: &mut File) -> Result<u64, Failure> {
    let mut told = Progress::default();
    let mut written = 0;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        file.write_all(&chunk)
            .map_err(|error| Failure::refused(format!("cannot write it: {error}")))?;
        written += chunk.len() as u64;
        told.show(written);
    }
    told.end();
    Ok(written)
}

/// Where a backup is until it is one.
fn part_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

/// How far it is, on a terminal.
#[derive(Default)]
struct Progress {
    shown: u64,
}

impl Progress {
    fn show(&mut self, written: u64) {
        if written - self.shown >= PROGRESS_BYTES && io::stderr().is_terminal() {
            self.shown = written;
            // The next line of progress shows it.
            let _ = write!(anstream::stderr(), "\r{} ", print::size(written));
        }
    }

    fn end(&self) {
        if self.shown > 0 {
            let _ = writeln!(anstream::stderr());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::wire::state::{StateEncoder, StateHeader};

    /// What looks at a file: [`status`] or [`verify`].
    type LeaseSummary = fn(&SnapshotFileArgs, Format, &mut Vec<u8>) -> Result<(), Failure>;

    fn run(look: LeaseSummary, file: &Path, format: Format) -> Result<String, Failure> {
        let file = file.to_owned();
        let mut out = Vec::new();
        look(&SnapshotFileArgs { file }, format, &mut out)?;
        Ok(String::from_utf8(out).expect("it is text"))
    }

    /// A backup of nothing.
    fn backup() -> Vec<u8> {
        let header = StateHeader {
            revision: 1,
            ..StateHeader::default()
        };
        let (encoder, first) = StateEncoder::begin(&header);
        [&[first][..], &encoder.finish()].concat().concat()
    }

    #[test]
    fn a_backup_is_shown_in_every_format() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("backup.lhs");
        std::fs::write(&file, backup()).unwrap();
        let size = backup().len();
        let simple = run(status, &file, Format::Simple).unwrap();
        assert_eq!(simple, format!("00000000, 1, 0, {size}B\n"));
        let json = run(status, &file, Format::Json).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["revision"], 1);
        assert_eq!(json["totalKey"], 0);
        assert_eq!(json["totalSize"], size);
        assert!(
            run(status, &file, Format::Table)
                .unwrap()
                .contains("TOTAL KEYS")
        );
        assert!(
            run(status, &file, Format::Fields)
                .unwrap()
                .contains("\"revision\" : 1")
        );
        assert!(
            run(verify, &file, Format::Simple)
                .unwrap()
                .contains("sound")
        );
    }

    #[test]
    fn a_backup_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let part = part_of(&folder.path().join("backup.lhs"));
        let elsewhere = folder.path().join("elsewhere");
        let begun = || {
            begin(&part).unwrap();
            let found = std::fs::symlink_metadata(&part).unwrap();
            (found.is_file(), found.permissions().mode() & 0o777)
        };
        assert_eq!(begun(), (true, 0o600));
        // A leftover that all can read.
        let open_to_all = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&part, open_to_all).unwrap();
        assert_eq!(begun(), (true, 0o600));
        // A link that an attacker put there.
        std::fs::write(&elsewhere, "theirs").unwrap();
        std::fs::remove_file(&part).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &part).unwrap();
        assert_eq!(begun(), (true, 0o600));
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"theirs");
    }

    #[test]
    fn a_damaged_backup_is_refused_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("backup.lhs");
        let mut bytes = backup();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        for (bytes, expected) in [
            (bytes, "chunk 1 is damaged"),
            (backup()[..last].to_vec(), "truncated"),
            (b"something else".to_vec(), "not a leasehold snapshot"),
        ] {
            std::fs::write(&file, bytes).unwrap();
            for look in [status as LeaseSummary, verify] {
                let failure = run(look, &file, Format::Simple).unwrap_err();
                assert_eq!(failure.exit.code(), 1);
                assert!(failure.message.contains(expected), "{failure}");
            }
        }
        std::fs::remove_file(&file).unwrap();
        let missing = run(status, &file, Format::Simple).unwrap_err();
        assert!(missing.message.contains("cannot be read"), "{missing}");
    }
}
