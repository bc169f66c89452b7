//! What a data directory remembers of its cluster's founding.
//!
//! Two files beside the data. `founding` names the members that the cluster began with: voters are
//! derived from it, so a configuration that names others must not start, or two halves of a
//! cluster would each find a majority. `unproven` is there from the moment the directory is made
//! until this member has either taken part in the founding or taken everything anew from its
//! peers: while it is there, an empty log may be a lost one, and its owner must not vote like one
//! that never forgot anything (lease-protocol A23).

use std::fs::File;
use std::io;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use super::config::Config;
use super::disk::data_dir::DataDir;

/// What was found.
#[derive(Debug)]
pub(crate) struct Founding {
    /// The directory may have been emptied: see [`crate::raft::Restored::unproven`].
    pub(crate) unproven: bool,
    mark: PathBuf,
}

/// Why a node must not start on this directory.
#[derive(Debug, thiserror::Error)]
pub enum FoundingError {
    /// The configuration names other members than the cluster was founded with.
    #[error(
        "cluster.initial names {configured:?}, and this cluster was founded with {founded:?} (says \
         {}): members cannot be changed in this version; put the founding members back",
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

impl Founding {
    /// Compares `config` with what the directory remembers, or has it remember.
    pub(crate) fn check(config: &Config, data_dir: &DataDir) -> Result<Self, FoundingError> {
        let names: Vec<String> = config
            .initial_members
            .iter()
            .map(|member| member.name.clone())
            .collect();
        Self::check_names(names, data_dir.path())
    }

    fn check_names(mut names: Vec<String>, directory: &Path) -> Result<Self, FoundingError> {
        names.sort();
        let path = directory.join("founding");
        let mark = directory.join("unproven");
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| FoundingError::Io { path, error }
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let founded =
                    parse(&text).ok_or_else(|| FoundingError::Damaged { path: path.clone() })?;
                if founded != names {
                    return Err(FoundingError::OtherMembers {
                        configured: names,
                        founded,
                        path,
                    });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The mark first: a crash in between must not leave an empty log that looks old.
                if names.len() > 1 {
                    write(&mark, "see the documentation of the data directory\n")
                        .map_err(at(&mark))?;
                }
                write(&path, &render(&names)).map_err(at(&path))?;
            }
            Err(error) => return Err(at(&path)(error)),
        }
        Ok(Self {
            unproven: mark.exists(),
            mark,
        })
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
    let (list, checksum) = text.trim_end().rsplit_once('\n')?;
    let checksum = u32::from_str_radix(checksum, 16).ok()?;
    (crc32fast::hash(list.as_bytes()) == checksum)
        .then(|| list.split('\n').map(str::to_owned).collect())
}

/// Writes a file that is whole or not there.
fn write(path: &Path, text: &str) -> io::Result<()> {
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

    #[test]
    fn the_first_start_is_unproven_until_the_mark_is_gone_and_other_members_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let check = |list: &[&str]| Founding::check_names(names(list), folder.path());
        let first = check(&["n2", "n1", "n3"]).unwrap();
        assert!(first.unproven);
        assert!(
            check(&["n1", "n2", "n3"]).unwrap().unproven,
            "a crash forgets nothing"
        );
        remove_mark(&first.mark()).unwrap();
        assert!(!check(&["n3", "n2", "n1"]).unwrap().unproven);
        let error = check(&["n1"]).unwrap_err().to_string();
        assert!(error.contains(r#"["n1", "n2", "n3"]"#), "{error}");
        assert!(error.contains("put the founding members back"), "{error}");
    }

    #[test]
    fn a_cluster_of_one_has_nobody_to_take_anything_from() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            !Founding::check_names(names(&["n1"]), folder.path())
                .unwrap()
                .unproven
        );
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        Founding::check_names(names(&["n1", "n2"]), folder.path()).unwrap();
        let path = folder.path().join("founding");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("n2", "n3")).unwrap();
        let error = Founding::check_names(names(&["n1", "n3"]), folder.path()).unwrap_err();
        assert!(matches!(error, FoundingError::Damaged { .. }));
    }
}
