//! The small files by which a data directory remembers something: one name for each, in one place.
//!
//! Each is there or not, whatever the moment of a crash ([`durable`]), and is read at the next start
//! before anything else is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use crate::server::disk::durable;
use crate::server::threads::fatal::Record;

/// A file that remembers one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    /// In the data directory: the members that the cluster began with, and none for a member that joined
    /// later. See [`super::bootstrap`].
    Bootstrap,
    /// In the data directory: which bootstrap of its cluster the member comes from (A25). There once its
    /// entry is committed.
    BootstrapId,
    /// In the data directory: the members that DNS named when the node was last started, with their addresses.
    /// See `discovery` of `run`.
    MembersByDns,
    /// In the data directory: this member may have forgotten what it acknowledged. There from the moment
    /// the directory is made until the member has taken part in the bootstrap, or has everything again.
    Unproven,
    /// In the data directory: this member was removed from its cluster, and why it stopped.
    Removed,
    /// In the data directory: an assumption about clocks failed on this node (P37).
    LeaseTripped,
    /// In the data directory: a leader contradicts this entry (A27).
    Diverged,
    /// In the data directory: the state was found to be damaged while the node ran, and how.
    StateDamaged,
    /// In the data directory: the name of the folder of a state that was set aside and is to be opened
    /// again, because no leader was heard of without it. See [`super::state_dirs`].
    StateReopen,
    /// In the folder of a state that was set aside: it was opened again, and is not once more.
    StateReopened,
    /// In the data directory: how many processes in a row began to open the state and did not come
    /// back. See [`super::attempt`].
    StateOpening,
    /// In the data directory: the name of the folder that holds the state in use. See [`super::state_dirs`].
    StateInUse,
    /// In the folder of a state that came from a peer: it is complete, and ends with this entry.
    StateReceived,
    /// In a state's folder: a state of this format, and a complete one.
    StateFormat,
    /// In a state's folder: its creation has begun, and nothing was applied to it.
    StateCreating,
    /// In a state's folder: it was left by a clean stop, and with which files.
    StateClean,
}

impl Marker {
    /// The file's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::BootstrapId => "bootstrap.id",
            Self::MembersByDns => "members.dns",
            Self::Unproven => "unproven",
            Self::Removed => "removed",
            Self::LeaseTripped => "leader-lease.tripped",
            Self::Diverged => "diverged",
            Self::StateDamaged => "state.damaged",
            Self::StateReopen => "state.reopen",
            Self::StateReopened => "reopened",
            Self::StateOpening => "state.opening",
            Self::StateInUse => "state.current",
            Self::StateReceived => "received",
            Self::StateFormat => "format",
            Self::StateCreating => "creating",
            Self::StateClean => "clean",
        }
    }

    /// Where it lies in `folder`.
    pub(crate) fn path(self, folder: &Path) -> PathBuf {
        folder.join(self.name())
    }

    /// What it says; none if it is not there.
    pub(crate) fn read(self, folder: &Path) -> io::Result<Option<String>> {
        match fs::read(self.path(folder)) {
            // What does not read as text is judged by who asked: no text is right but what was written.
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it is there.
    pub(crate) fn is_set(self, folder: &Path) -> io::Result<bool> {
        self.path(folder).try_exists()
    }

    /// Has it say `text`, durably.
    pub(crate) fn write(self, folder: &Path, text: &str) -> io::Result<()> {
        durable::replace(&self.path(folder), text.as_bytes())
    }

    /// Writes it in `folder` with a reason, when the reason is known.
    pub(crate) fn record_in(self, folder: &Path) -> Record {
        let folder = folder.to_owned();
        Arc::new(move |why| self.write(&folder, &format!("{why}\n")))
    }

    /// Removes it, if it is there, so that no crash brings it back.
    pub(crate) fn remove(self, folder: &Path) -> io::Result<()> {
        durable::remove(&self.path(folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_there_with_what_it_says_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mark = Marker::LeaseTripped;
        assert_eq!(mark.read(folder.path()).unwrap(), None);
        for text in ["one\n", "another\n"] {
            mark.write(folder.path(), text).unwrap();
            assert_eq!(mark.read(folder.path()).unwrap().as_deref(), Some(text));
            assert!(mark.is_set(folder.path()).unwrap());
        }
        assert!(!Marker::Unproven.is_set(folder.path()).unwrap());
        mark.remove(folder.path()).unwrap();
        mark.remove(folder.path()).unwrap();
        assert!(!mark.is_set(folder.path()).unwrap());
        fs::write(mark.path(folder.path()), [0xff, b'a']).unwrap();
        assert!(mark.read(folder.path()).unwrap().is_some());
    }
}
