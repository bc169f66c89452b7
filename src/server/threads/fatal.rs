//! What happens when a node cannot go on: a sync that failed, a store that failed.
//!
//! Nothing is retried and nothing is worked around: after a failed sync the kernel may have thrown
//! the data away and would report the next sync as good. The reason is logged and published, and the
//! process ends, or (where several nodes share one) the node.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::log::LogError;

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
    left: Arc<AtomicBool>,
}

impl Exit {
    /// This node is no member any more. Returns at once: the supervisor of the node stops it.
    pub(crate) fn leave(&self, why: &str) {
        if self.left.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Err(error) = (self.record)(why) {
            tracing::error!(
                node = %self.fatal.node,
                %error,
                "cannot record the removal of this member"
            );
        }
        self.fatal.tell(why);
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

    /// For those who may learn that this node was removed; `record` notes it for the next start.
    pub(crate) fn exit(&self, record: Record) -> Exit {
        Exit {
            fatal: self.clone(),
            record,
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
