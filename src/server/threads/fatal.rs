//! What happens when a node cannot go on: a sync that failed, a store that failed.
//!
//! Nothing is retried and nothing is worked around: after a failed sync the kernel may have thrown
//! the data away and would report the next sync as good. The reason is logged and published, and the
//! process ends, or (where several nodes share one) the node.

use std::any::Any;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::log::LogError;
use crate::server::threads::spawn;

/// The exit code of a process whose disk failed it.
const EXIT_CODE: i32 = 1;

/// Records a reason in the data directory, for the next start.
pub(crate) type Record = Arc<dyn Fn(&str) -> io::Result<()> + Send + Sync>;

/// An error of the state, as far as the end of a node depends on it.
pub(crate) trait StateFailure: Display {
    /// Whether it proves that the state is damaged, so that the next start has to rebuild it.
    fn is_damage(&self) -> bool;
}

/// How a node leaves its cluster: it records that it was removed, and stops.
#[derive(Clone)]
pub(crate) struct Exit {
    fatal: Fatal,
    record: Record,
    /// Held while that is recorded: the lock on the data directory.
    guard: Arc<dyn Any + Send + Sync>,
    left: Arc<AtomicBool>,
}

impl Exit {
    /// This node is no member any more. Never waits: a thread of its own records it, and then the
    /// supervisor of the node stops it.
    pub(crate) fn leave(&self, why: &str) {
        if self.left.swap(true, Ordering::AcqRel) {
            return;
        }
        let name = format!("{}-leave", self.fatal.node);
        let (fatal, record, reason) = (self.fatal.clone(), self.record.clone(), why.to_owned());
        let recording = spawn(&name, self.guard.clone(), move || {
            if let Err(error) = record(&reason) {
                fatal.cannot_record(&error);
            }
            // Only now: a process that ended before would start again as a member.
            fatal.tell(&reason);
        });
        if let Err(error) = recording {
            self.fatal.cannot_record(&error);
            self.fatal.tell(why);
        }
    }

    /// Whether the node was removed.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }
}

/// Where fatal errors go.
#[derive(Clone)]
pub(crate) struct Fatal {
    node: String,
    exit: bool,
    reason: Arc<watch::Sender<Option<String>>>,
}

impl Fatal {
    /// The place, and where to wait for the reason.
    pub(crate) fn new(node: &str, exit: bool) -> (Self, watch::Receiver<Option<String>>) {
        let (sender, receiver) = watch::channel(None);
        (
            Self {
                node: node.to_owned(),
                exit,
                reason: Arc::new(sender),
            },
            receiver,
        )
    }

    /// For the log thread.
    pub(crate) fn for_log(&self) -> Box<dyn Fn(LogError) + Send> {
        let fatal = self.clone();
        Box::new(move |error| fatal.strike(&format!("the log failed: {error}")))
    }

    /// For readers of the store.
    pub(crate) fn for_store<E: Display>(&self) -> Box<dyn Fn(E) + Send + Sync> {
        let fatal = self.clone();
        Box::new(move |error| fatal.strike(&format!("the state failed: {error}")))
    }

    /// For the state thread. If the state proved to be damaged, `record_damage` notes it beside the
    /// state, so that the next start rebuilds it instead of meeting the same damage.
    pub(crate) fn for_state<E: StateFailure>(
        &self,
        record_damage: Record,
    ) -> Box<dyn Fn(E) + Send> {
        let fatal = self.clone();
        Box::new(move |error| {
            let mut reason = format!("the state failed: {error}");
            if error.is_damage() {
                match record_damage(&error.to_string()) {
                    Ok(()) => reason.push_str("; it will be rebuilt at the next start"),
                    Err(failure) => {
                        reason.push_str(&format!("; and its marker cannot be written: {failure}"));
                    }
                }
            }
            fatal.strike(&reason);
        })
    }

    /// To be held by a thread that the node cannot do without.
    pub(crate) fn watch(&self, thread: &'static str) -> Watch {
        Watch {
            fatal: self.clone(),
            thread,
        }
    }

    /// For those who may learn that this node was removed; `record` notes it for the next start, while
    /// `guard` is held.
    pub(crate) fn exit(&self, guard: Arc<dyn Any + Send + Sync>, record: Record) -> Exit {
        Exit {
            fatal: self.clone(),
            record,
            guard,
            left: Arc::default(),
        }
    }

    /// The node ends, for a reason that is none of its parts' failure.
    pub(crate) fn give_up(&self, reason: &str) {
        self.strike(reason);
    }

    fn strike(&self, reason: &str) {
        self.tell(reason);
        if self.exit {
            std::process::exit(EXIT_CODE);
        }
    }

    fn cannot_record(&self, error: &io::Error) {
        tracing::error!(node = %self.node, %error, "cannot record the removal of this member");
    }

    fn tell(&self, reason: &str) {
        tracing::error!(node = %self.node, "{reason}");
        // Only the first reason counts; the rest follows from it.
        self.reason.send_if_modified(|current| {
            let first = current.is_none();
            current.get_or_insert_with(|| reason.to_owned());
            first
        });
    }
}

/// Notices that the thread which holds it ends in a panic: half a node is worse than none.
pub(crate) struct Watch {
    fatal: Fatal,
    thread: &'static str,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fatal
                .strike(&format!("the {} thread panicked", self.thread));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::sync::Mutex;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// The driver calls it, and the thread that serves the peers.
    #[test]
    fn who_leaves_waits_for_no_disk_and_is_stopped_once_it_is_recorded() {
        let (disk_answers, disk) = channel();
        let (disk, (told, records)) = (Mutex::new(disk), channel());
        let (fatal, mut reason) = Fatal::new("n1", false);
        let guard: Arc<dyn Any + Send + Sync> = Arc::new("the data directory");
        let held = Arc::downgrade(&guard);
        let record: Record = Arc::new(move |why| {
            disk.lock()
                .recv_timeout(PATIENCE)
                .map_err(io::Error::other)?;
            told.send(why.to_owned()).map_err(io::Error::other)
        });
        let exit = fatal.exit(guard, record);
        exit.leave("removed");
        exit.leave("removed, as a peer says, too");
        assert!(exit.has_left());
        assert_eq!(*reason.borrow_and_update(), None, "it is not recorded yet");
        drop(exit);
        assert!(held.upgrade().is_some(), "while it is recorded");

        disk_answers.send(()).unwrap();
        assert_eq!(records.recv_timeout(PATIENCE).unwrap(), "removed");
        while reason.borrow_and_update().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(reason.borrow().as_deref(), Some("removed"));
        assert!(records.recv().is_err(), "it was recorded once");
    }
}
