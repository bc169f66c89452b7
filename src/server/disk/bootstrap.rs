//! What a data directory remembers of its cluster's founding.
//!
//! Two files beside the data. `founding` names the members that the cluster began with, and none for a
//! member that joined later: voters are derived from it for as long as the log says nothing else, so
//! while the cluster is not known to be founded a configuration that names others must not start, or
//! two halves of a cluster would each find a majority. Afterwards the log alone says who the members
//! are. `unproven` is there from the moment the directory is made until this member has either taken
//! part in the founding or taken everything anew from its peers: while it is there, an empty log may be
//! a lost one, and its owner must not vote like one that never forgot anything (lease-protocol A23).
//!
//! Whoever founds a cluster alone has nobody who could tell it that the cluster exists already. Were its
//! directory emptied it would found the cluster again, beside the members that were added meanwhile,
//! and serve clients from nothing. So a cluster does not grow beyond a node that would do that: the node
//! takes in a member only when its configuration says that the cluster exists ([`founds_alone`]), and
//! does not start with another one once there are others.

use std::fs::File;
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::server::config::{ClusterState, Config};
use crate::server::disk::data_dir::DataDir;
use crate::types::Incarnation;

/// What was found.
#[derive(Debug)]
pub(crate) struct Founding {
    /// The members that the cluster began with, sorted; empty for one that joined, or that lost its data
    /// and was not told.
    pub(crate) founders: Vec<String>,
    /// The directory may have been emptied: see [`crate::raft::Restored::unproven`].
    pub(crate) unproven: bool,
    /// It was emptied, or must be taken for that: this founder says that the cluster exists.
    pub(crate) emptied: bool,
    mark: PathBuf,
}

/// Why a node must not start on this directory.
#[derive(Debug, thiserror::Error)]
pub enum FoundingError {
    /// The configuration names other members than the cluster is being founded with.
    #[error(
        "cluster.initial names {configured:?}, and this cluster is being founded with {founded:?} (says \
         {}): until that has happened its members must not be others; put the founding members back",
        path.display()
    )]
    OtherMembers {
        /// The names in the configuration.
        configured: Vec<String>,
        /// The names at the founding.
        founded: Vec<String>,
        /// The file that remembers them.
        path: PathBuf,
    },
    /// The file does not read.
    #[error(
        "{} is damaged: restore it, or empty the data directory, and the member takes everything \
         anew from its peers",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The disk.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// Whether this node, on an empty data directory, would found a cluster with nobody's consent.
pub(crate) fn founds_alone(config: &Config) -> bool {
    config.cluster_state == ClusterState::New && config.initial_members.len() == 1
}

impl Founding {
    /// Compares `config` with what the directory remembers, or has it remember. `founders` is what the
    /// cluster said of its founding, if this node had to ask.
    pub(crate) fn check(
        config: &Config,
        data_dir: &DataDir,
        founders: Vec<String>,
    ) -> Result<Self, FoundingError> {
        let names = config.initial_members.iter();
        let names: Vec<String> = names.map(|member| member.name.clone()).collect();
        let is_founder = data_dir.identity().incarnation == Incarnation(0);
        let begin_with = match (is_founder, config.cluster_state) {
            (true, ClusterState::New) => names.clone(),
            // Whoever was not told is told by the log: somebody joined since.
            (true, ClusterState::Existing) => founders,
            (false, _) => Vec::new(),
        };
        let state = config.cluster_state;
        Self::check_names(names, begin_with, is_founder, state, data_dir.path())
    }

    /// `begin_with` is what a directory is to remember that remembers nothing.
    fn check_names(
        mut names: Vec<String>,
        mut begin_with: Vec<String>,
        is_founder: bool,
        state: ClusterState,
        directory: &Path,
    ) -> Result<Self, FoundingError> {
        names.sort();
        begin_with.sort();
        let path = directory.join("founding");
        let mark = directory.join("unproven");
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| FoundingError::Io { path, error }
        };
        let founders = match std::fs::read_to_string(&path) {
            Ok(text) => {
                parse(&text).ok_or_else(|| FoundingError::Damaged { path: path.clone() })?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The mark first: a crash in between must not leave an empty log that looks old. Whoever
                // founds alone has nobody to take anything from.
                if begin_with.len() != 1 || state == ClusterState::Existing {
                    write(&mark, "see the documentation of the data directory\n")
                        .map_err(at(&mark))?;
                }
                write(&path, &render(&begin_with)).map_err(at(&path))?;
                begin_with
            }
            Err(error) => return Err(at(&path)(error)),
        };
        let unproven = mark.exists();
        if unproven && state == ClusterState::New && !founders.is_empty() && founders != names {
            return Err(FoundingError::OtherMembers {
                configured: names,
                founded: founders,
                path,
            });
        }
        Ok(Self {
            emptied: unproven && is_founder && state == ClusterState::Existing,
            founders,
            unproven,
            mark,
        })
    }

    /// A member that had been proven has no log and no votes any more: it must not vote like one that never
    /// forgot anything, and remembers that until it has taken everything anew.
    pub(crate) fn has_lost_everything(&mut self) -> Result<(), FoundingError> {
        write(&self.mark, "its log and its votes were gone\n").map_err(|error| {
            let path = self.mark.clone();
            FoundingError::Io { path, error }
        })?;
        self.unproven = true;
        Ok(())
    }

    /// Where the mark is.
    pub(crate) fn mark(&self) -> PathBuf {
        self.mark.clone()
    }
}

/// Has `directory` remember that its cluster began with these members, and that this one has forgotten
/// nothing: it begins with all that they begin with.
pub(crate) fn write_members(mut names: Vec<String>, directory: &Path) -> io::Result<()> {
    names.sort();
    write(&directory.join("founding"), &render(&names))
}

/// The file that says that this member was removed from its cluster, and why it stopped.
pub(crate) fn removed_mark(directory: &Path) -> PathBuf {
    directory.join("removed")
}

/// Has `directory` remember that its member was removed.
pub(crate) fn write_removed(directory: &Path, why: &str) -> io::Result<()> {
    write(&removed_mark(directory), &format!("{why}\n"))
}

/// Removes the mark: this member remembers all that it ever acknowledged.
pub(crate) fn remove_mark(mark: &Path) -> io::Result<()> {
    std::fs::remove_file(mark)?;
    sync_directory(mark)
}

fn render(names: &[String]) -> String {
    let list = names.join("\n");
    format!("{list}\n{:08x}\n", crc32fast::hash(list.as_bytes()))
}

fn parse(text: &str) -> Option<Vec<String>> {
    let (list, checksum) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let checksum = u32::from_str_radix(checksum, 16).ok()?;
    let names = list.split('\n').filter(|name| !name.is_empty());
    (crc32fast::hash(list.as_bytes()) == checksum).then(|| names.map(str::to_owned).collect())
}

/// Writes a file that is whole or not there.
/// Has a file say `text`, and be there after any crash.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    sync_directory(path)
}

fn sync_directory(of: &Path) -> io::Result<()> {
    File::open(of.parent().unwrap_or_else(|| Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn check(
        initial: &[&str],
        begin_with: &[&str],
        state: ClusterState,
        directory: &Path,
    ) -> Result<Founding, FoundingError> {
        let is_founder = !begin_with.is_empty();
        Founding::check_names(
            names(initial),
            names(begin_with),
            is_founder,
            state,
            directory,
        )
    }

    #[test]
    fn the_first_start_is_unproven_until_the_mark_is_gone_and_until_then_other_members_are_refused()
    {
        let folder = tempfile::tempdir().unwrap();
        let check = |list: &[&str]| check(list, list, ClusterState::New, folder.path());
        let first = check(&["n2", "n1", "n3"]).unwrap();
        assert!(first.unproven && !first.emptied);
        assert!(
            check(&["n1", "n2", "n3"]).unwrap().unproven,
            "a crash forgets nothing"
        );
        let error = check(&["n1"]).unwrap_err().to_string();
        assert!(error.contains(r#"["n1", "n2", "n3"]"#), "{error}");
        assert!(error.contains("put the founding members back"), "{error}");
        remove_mark(&first.mark()).unwrap();
        assert!(!check(&["n3", "n2", "n1"]).unwrap().unproven);
        // From here on the log says who the members are.
        let later = check(&["n1", "n2", "n3", "n4", "n5"]).unwrap();
        assert_eq!(later.founders, names(&["n1", "n2", "n3"]));
    }

    #[test]
    fn a_founder_that_says_that_the_cluster_exists_may_have_been_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let founders = ["n1", "n2", "n3"];
        let check = |state| check(&["n1", "n4"], &founders, state, folder.path());
        let found = check(ClusterState::Existing).unwrap();
        assert!(found.unproven && found.emptied);
        assert_eq!(found.founders, names(&founders));
        remove_mark(&found.mark()).unwrap();
        assert!(!check(ClusterState::Existing).unwrap().emptied);
    }

    #[test]
    fn one_that_joins_began_with_nobody() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let found = check(&["n1"], &[], ClusterState::Existing, folder.path()).unwrap();
            assert!(found.unproven && !found.emptied && found.founders.is_empty());
        }
    }

    #[test]
    fn a_cluster_of_one_has_nobody_to_take_anything_from() {
        let folder = tempfile::tempdir().unwrap();
        let alone = check(&["n1"], &["n1"], ClusterState::New, folder.path());
        assert!(!alone.unwrap().unproven);
        let folder = tempfile::tempdir().unwrap();
        let emptied = check(&["n1"], &["n1"], ClusterState::Existing, folder.path());
        assert!(emptied.unwrap().emptied);
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let check = |list: &[&str]| check(list, list, ClusterState::New, folder.path());
        check(&["n1", "n2"]).unwrap();
        let path = folder.path().join("founding");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("n2", "n3")).unwrap();
        let error = check(&["n1", "n3"]).unwrap_err();
        assert!(matches!(error, FoundingError::Damaged { .. }));
    }
}
