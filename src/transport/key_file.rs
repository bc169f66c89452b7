//! Checks that a private key file is readable only by those its owner intended.
//!
//! A key that only its owner can read is safe. So is a key that root gave to this process by its
//! group, and to no other user: that is how Kubernetes mounts a secret into a pod that does not run
//! as root (`fsGroup`: owner root, mode 0440), and how administrators give keys to a service that
//! must not change them. Members of that group were put there by root, who can read every key
//! anyway. The group of an ordinary user's file proves nothing: most often it is that user's
//! default group.

use std::path::Path;

/// The permission bits that expose a key to unintended readers; `None` if there are none, or if the
/// file does not exist, which the following read reports.
#[cfg(unix)]
pub fn exposed_mode(path: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok()?;
    let key = KeyFile {
        mode: metadata.mode() & 0o777,
        owner: metadata.uid(),
        group: metadata.gid(),
    };
    // If the list of groups cannot be read, the process's own group is used.
    let mut groups: Vec<u32> = rustix::process::getgroups()
        .unwrap_or_default()
        .into_iter()
        .map(rustix::process::Gid::as_raw)
        .collect();
    groups.push(rustix::process::getegid().as_raw());
    let reader = Reader {
        user: rustix::process::geteuid().as_raw(),
        groups,
    };
    key.is_exposed(&reader).then_some(key.mode)
}

/// On other systems, permissions are not checked.
#[cfg(not(unix))]
pub fn exposed_mode(_path: &Path) -> Option<u32> {
    None
}

/// The metadata of a key file.
#[cfg(unix)]
#[derive(Clone, Copy, Debug)]
struct KeyFile {
    /// The nine permission bits.
    mode: u32,
    owner: u32,
    group: u32,
}

/// The user and groups of this process.
#[cfg(unix)]
#[derive(Debug)]
struct Reader {
    user: u32,
    groups: Vec<u32>,
}

#[cfg(unix)]
impl KeyFile {
    fn is_exposed(self, reader: &Reader) -> bool {
        const ROOT: u32 = 0;
        let for_others = self.mode & 0o077;
        let from_root_by_group = for_others == 0o040
            && self.owner == ROOT
            && reader.user != ROOT
            && reader.groups.contains(&self.group);
        for_others != 0 && !from_root_by_group
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    /// Whether a process of user 65532 in groups 65532 and 2000 refuses such a key.
    fn is_refused(mode: u32, owner: u32, group: u32) -> bool {
        let reader = Reader {
            user: 65_532,
            groups: vec![65_532, 2_000],
        };
        KeyFile { mode, owner, group }.is_exposed(&reader)
    }

    #[test]
    fn a_key_for_its_owner_alone_is_taken_whoever_that_is() {
        for owner in [0, 65_532, 1_000] {
            for mode in [0o400, 0o600, 0o700] {
                assert!(!is_refused(mode, owner, 1_000), "{mode:o} of {owner}");
            }
        }
    }

    #[test]
    fn a_key_that_root_gave_to_a_group_of_ours_is_taken() {
        for mode in [0o440, 0o640] {
            for group in [65_532, 2_000] {
                assert!(!is_refused(mode, 0, group), "{mode:o} for {group}");
            }
        }
    }

    #[test]
    fn no_other_key_that_a_group_can_read_is_taken() {
        for mode in [0o440, 0o640] {
            assert!(is_refused(mode, 0, 1_000), "a group that we are not in");
            assert!(is_refused(mode, 0, 0), "root's group");
            assert!(is_refused(mode, 65_532, 65_532), "ours: chmod is ours, too");
            assert!(is_refused(mode, 1_000, 65_532), "an ordinary user's");
            let root = Reader {
                user: 0,
                groups: vec![0],
            };
            let key = KeyFile {
                mode,
                owner: 0,
                group: 0,
            };
            assert!(key.is_exposed(&root), "root's, and we are root");
        }
    }

    #[test]
    fn more_than_reading_by_the_group_and_anything_by_others_is_refused() {
        for mode in [
            0o444, 0o404, 0o604, 0o644, 0o660, 0o650, 0o460, 0o641, 0o666,
        ] {
            for owner in [0, 65_532] {
                assert!(is_refused(mode, owner, 65_532), "{mode:o} of {owner}");
            }
        }
    }
}
