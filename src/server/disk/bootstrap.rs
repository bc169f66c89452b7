//! The records of a cluster's bootstrap in a data directory.
//!
//! Three files beside the data. [`Marker::Bootstrap`] names the members that the cluster began with, and none
//! for a member that joined later: voters are derived from it for as long as the log says nothing else.
//! [`Marker::Unproven`] is there while this member may have forgotten what it acknowledged. What follows
//! from either is decided in [`crate::node::recovery`]. [`Marker::BootstrapId`] tells the cluster from one
//! that the same members bootstrapped before or after: peers compare it in their hellos.

use std::io;
use std::path::Path;

use crate::node::recovery::{Bootstrap, UnprovenReason};
use crate::server::disk::marker::Marker;
use crate::types::{BootstrapId, LogIndex};

const LOST_LOG: &str = "its log and its votes were gone\n";
const OLDER_VOTES: &str = "its vote file was older than its log\n";
const OLDER_COPY: &str = "its log lacked what it had acknowledged\n";
const RESTORED: &str = "restored from a backup: ";
const WAS_EMPTY: &str = "see the documentation of the data directory\n";

/// Reads the record of the initial members in `directory`.
pub(crate) fn read(directory: &Path) -> io::Result<Bootstrap> {
    Ok(match Marker::Bootstrap.read(directory)? {
        None => Bootstrap::Missing,
        Some(text) => parse(&text).map_or(Bootstrap::Damaged, Bootstrap::Members),
    })
}

/// Records in `directory` the initial members of its cluster.
pub(crate) fn write(directory: &Path, mut names: Vec<String>) -> io::Result<()> {
    names.sort();
    let list = names.join("\n");
    let text = format!("{list}\n{:08x}\n", crc32fast::hash(list.as_bytes()));
    Marker::Bootstrap.write(directory, &text)
}

/// Reads in `directory` which bootstrap its member comes from. None where that is not known yet, or where
/// the file does not read: state and log say it, too.
pub(crate) fn read_id(directory: &Path) -> io::Result<Option<BootstrapId>> {
    let text = Marker::BootstrapId.read(directory)?;
    Ok(text.and_then(|text| {
        let (id, checksum) = text.strip_suffix('\n')?.split_once('\n')?;
        let is_sound = checksum == format!("{:08x}", crc32fast::hash(id.as_bytes()));
        is_sound.then(|| BootstrapId::parse(id)).flatten()
    }))
}

/// Records in `directory` which bootstrap its member comes from.
pub(crate) fn write_id(directory: &Path, id: BootstrapId) -> io::Result<()> {
    let id = id.to_string();
    let text = format!("{id}\n{:08x}\n", crc32fast::hash(id.as_bytes()));
    Marker::BootstrapId.write(directory, &text)
}

/// Reads why this member may have forgotten something.
pub(crate) fn read_unproven(directory: &Path) -> io::Result<Option<UnprovenReason>> {
    let text = Marker::Unproven.read(directory)?;
    Ok(text.map(|text| match text.as_str() {
        LOST_LOG => UnprovenReason::LostLog,
        OLDER_VOTES => UnprovenReason::OlderVotes,
        OLDER_COPY => UnprovenReason::OlderCopy,
        text => restored(text).unwrap_or(UnprovenReason::WasEmpty),
    }))
}

/// Records in `directory` why this member may have forgotten something.
pub(crate) fn write_unproven(directory: &Path, why: UnprovenReason) -> io::Result<()> {
    let text = match why {
        UnprovenReason::LostLog => LOST_LOG.to_owned(),
        UnprovenReason::OlderVotes => OLDER_VOTES.to_owned(),
        UnprovenReason::OlderCopy => OLDER_COPY.to_owned(),
        UnprovenReason::WasEmpty => WAS_EMPTY.to_owned(),
        UnprovenReason::Restored { base, hash } => format!("{RESTORED}{} {hash:032x}\n", base.0),
    };
    Marker::Unproven.write(directory, &text)
}

/// From what the member was restored, if that is what the mark says.
fn restored(text: &str) -> Option<UnprovenReason> {
    let (base, hash) = text.strip_prefix(RESTORED)?.trim_end().split_once(' ')?;
    Some(UnprovenReason::Restored {
        base: LogIndex(base.parse().ok()?),
        hash: u128::from_str_radix(hash, 16).ok()?,
    })
}

fn parse(text: &str) -> Option<Vec<String>> {
    let (list, checksum) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let checksum = u32::from_str_radix(checksum, 16).ok()?;
    let names = list.split('\n').filter(|name| !name.is_empty());
    (crc32fast::hash(list.as_bytes()) == checksum).then(|| names.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_members_are_remembered_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), Bootstrap::Missing);
        for members in [&["n2", "n1", "n3"][..], &["n1"], &[]] {
            write(folder.path(), names(members)).unwrap();
            let mut sorted = names(members);
            sorted.sort();
            assert_eq!(read(folder.path()).unwrap(), Bootstrap::Members(sorted));
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), names(&["n1", "n2"])).unwrap();
        let path = Marker::Bootstrap.path(folder.path());
        let bytes = std::fs::read(&path).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &flipped).unwrap();
            let found = read(folder.path()).unwrap();
            // A checksum in capital letters is the same number.
            let is_same = found == Bootstrap::Members(names(&["n1", "n2"]));
            assert!(
                is_same && bit / 8 >= 6 || found == Bootstrap::Damaged,
                "{bit}: {found:?}"
            );
        }
    }

    #[test]
    fn which_bootstrap_it_was_is_remembered_and_a_flipped_bit_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_id(folder.path()).unwrap(), None);
        let id = BootstrapId(0xfeed << 100);
        write_id(folder.path(), id).unwrap();
        assert_eq!(read_id(folder.path()).unwrap(), Some(id));
        let path = Marker::BootstrapId.path(folder.path());
        let bytes = std::fs::read(&path).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &flipped).unwrap();
            assert_eq!(read_id(folder.path()).unwrap(), None, "{bit}");
        }
    }

    #[test]
    fn why_it_may_have_forgotten_something_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_unproven(folder.path()).unwrap(), None);
        let restored = UnprovenReason::Restored {
            base: LogIndex(100),
            hash: 7 << 100,
        };
        for why in [
            UnprovenReason::WasEmpty,
            UnprovenReason::LostLog,
            UnprovenReason::OlderVotes,
            UnprovenReason::OlderCopy,
            restored,
        ] {
            write_unproven(folder.path(), why).unwrap();
            assert_eq!(read_unproven(folder.path()).unwrap(), Some(why));
        }
        // Whatever it says, it is there.
        Marker::Unproven.write(folder.path(), "").unwrap();
        let found = read_unproven(folder.path()).unwrap();
        assert_eq!(found, Some(UnprovenReason::WasEmpty));
    }
}
