//! Changes what the data directory says of its member beside its log, while the node runs.
//!
//! The log thread does it, so the driver never waits for a disk: a mark that takes as long as it likes holds
//! up no heartbeat. Nothing waits for a mark but what is written after it, and the log thread keeps that
//! order by itself; so the driver needs no word when a mark is there.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::node::recovery::UnprovenReason;
use crate::node::turn::Mark;
use crate::server::disk::bootstrap;
use crate::server::disk::log_thread::LogThread;
use crate::server::disk::marker::Marker;

/// Changes the marks of one data directory. See [`Mark`] for their order among the writes of the log.
pub(crate) struct MarkWriter {
    /// The node's name, for log lines.
    pub(crate) node: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) log: Arc<LogThread>,
}

impl MarkWriter {
    /// Has `mark` made durable. Never waits.
    pub(crate) fn write(&self, mark: Mark) {
        let change = match mark {
            Mark::QuarantineOver => return self.log.end_quarantine(),
            Mark::Proven => change(|folder| Marker::Unproven.remove(folder)),
            Mark::Forgotten => {
                tracing::error!(
                    node = self.node,
                    "the log of this node lacks entries that it has acknowledged: its data directory is an \
                     older copy; it is quarantined until it has copied all data from its peers"
                );
                change(|folder| bootstrap::write_unproven(folder, UnprovenReason::OlderCopy))
            }
            Mark::LeaseTripped => {
                change(|folder| Marker::LeaseTripped.write(folder, "see the log of this node\n"))
            }
            Mark::StateCorrupt => change(|folder| {
                Marker::StateDamaged.write(folder, "a majority of the nodes had another state\n")
            }),
            Mark::Bootstrap(id) => change(move |folder| bootstrap::write_id(folder, id)),
            Mark::Diverged(index) => {
                change(move |folder| Marker::Diverged.write(folder, &format!("{index}\n")))
            }
        };
        let (node, folder) = (self.node.clone(), self.data_dir.clone());
        self.log.do_first(move || {
            if let Err(error) = change(&folder) {
                not_changed(&node, mark, &folder, &error);
            }
        });
    }
}

type Change = Box<dyn FnOnce(&Path) -> io::Result<()> + Send>;

fn change(change: impl FnOnce(&Path) -> io::Result<()> + Send + 'static) -> Change {
    Box::new(change)
}

fn not_changed(node: &str, mark: Mark, folder: &Path, error: &io::Error) {
    match mark {
        Mark::Proven | Mark::QuarantineOver => tracing::warn!(
            node,
            %error,
            "cannot remove {}: after a restart this member will ask its peers again",
            Marker::Unproven.path(folder).display()
        ),
        Mark::Forgotten => tracing::error!(
            node,
            %error,
            "cannot record the quarantine: do not restart this node before it is over"
        ),
        Mark::Bootstrap(_) => tracing::warn!(
            node,
            %error,
            "cannot record which bootstrap of the cluster this member comes from: the next start looks \
             for it in the state and tries again"
        ),
        Mark::LeaseTripped => tracing::error!(
            node,
            %error,
            "cannot record the violated clock assumption; leased reads stay off only until this \
             node restarts"
        ),
        Mark::Diverged(_) => tracing::error!(
            node,
            %error,
            "cannot record that the log has diverged; after a restart this node finds out anew"
        ),
        Mark::StateCorrupt => tracing::error!(
            node,
            %error,
            "cannot create {}: remove the state directory by hand before the next start",
            Marker::StateDamaged.path(folder).display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::log::sim_disk::SimDisk;
    use crate::log::{Log, LogError, LogOptions};
    use crate::raft::{HardState, Ticket, UnsavedState};
    use crate::server::disk::log_thread::LogEvents;
    use crate::types::{ClusterId, Incarnation, LogIndex, NodeId, Term};

    const PATIENCE: Duration = Duration::from_secs(60);

    struct Tells(Sender<Ticket>);

    impl LogEvents for Tells {
        fn persisted(&mut self, ticket: Ticket) {
            let _ = self.0.send(ticket);
        }
        fn fatal(&mut self, error: LogError) {
            panic!("{error}");
        }
    }

    fn start(folder: &Path) -> (MarkWriter, Receiver<Ticket>) {
        let options = LogOptions {
            cluster: ClusterId(1),
            node: NodeId(1),
            incarnation: Incarnation(0),
            segment_bytes: 64 * 1024,
        };
        let (log, _) = Log::open(SimDisk::new(1), options).unwrap();
        let (told, persisted) = channel();
        let log = LogThread::spawn("marks-test", (), log, Tells(told)).unwrap();
        let marks = MarkWriter {
            node: "n1".to_owned(),
            data_dir: folder.to_owned(),
            log: Arc::new(log),
        };
        (marks, persisted)
    }

    fn term(term: u64) -> UnsavedState {
        UnsavedState {
            hard_state: Some(HardState {
                term: Term(term),
                ..HardState::default()
            }),
            ..UnsavedState::default()
        }
    }

    /// The disk takes a mark only once somebody reads the pipe that it is written to first.
    #[test]
    fn who_marks_waits_for_no_disk_and_what_is_written_later_waits_for_the_mark() {
        for (mark, marker) in [
            (Mark::LeaseTripped, Marker::LeaseTripped),
            (Mark::Forgotten, Marker::Unproven),
            (Mark::StateCorrupt, Marker::StateDamaged),
            (Mark::Diverged(LogIndex(7)), Marker::Diverged),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let pipe = folder.path().join(format!("{}.new", marker.name()));
            let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
            assert!(made.success());
            let (marks, persisted) = start(folder.path());
            marks.log.submit(Ticket(1), term(1));
            assert_eq!(persisted.recv_timeout(PATIENCE), Ok(Ticket(1)));

            let (tells, returned) = channel();
            let caller = thread::spawn(move || {
                marks.write(mark);
                marks.log.submit(Ticket(2), term(2));
                tells.send(()).unwrap();
                marks
            });
            assert_eq!(returned.recv_timeout(PATIENCE), Ok(()), "{mark:?}");
            let early = persisted.recv_timeout(Duration::from_millis(300));
            assert_eq!(early, Err(RecvTimeoutError::Timeout), "{mark:?}");
            // A pipe cannot be synced. That a mark fails holds up nothing, either.
            let said = fs::read_to_string(&pipe).unwrap();
            assert!(!said.is_empty(), "{mark:?}");
            assert_eq!(persisted.recv_timeout(PATIENCE), Ok(Ticket(2)));
            assert!(!marker.is_set(folder.path()).unwrap());
            drop(caller.join().unwrap());
        }
    }

    #[test]
    fn marks_are_there_when_what_was_written_after_them_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        Marker::Unproven.write(path, "").unwrap();
        let (marks, persisted) = start(path);
        marks.write(Mark::Proven);
        marks.log.submit(Ticket(1), term(1));
        assert_eq!(persisted.recv_timeout(PATIENCE), Ok(Ticket(1)));
        assert!(!Marker::Unproven.is_set(path).unwrap());
        marks.write(Mark::LeaseTripped);
        marks.write(Mark::Forgotten);
        marks.write(Mark::StateCorrupt);
        marks.write(Mark::Diverged(LogIndex(7)));
        marks.log.submit(Ticket(2), term(2));
        assert_eq!(persisted.recv_timeout(PATIENCE), Ok(Ticket(2)));
        let why = bootstrap::read_unproven(path).unwrap();
        assert_eq!(why, Some(UnprovenReason::OlderCopy));
        assert!(Marker::LeaseTripped.is_set(path).unwrap());
        assert!(Marker::StateDamaged.is_set(path).unwrap());
        let diverged = Marker::Diverged.read(path).unwrap();
        assert_eq!(diverged.as_deref(), Some("7\n"));
    }
}
