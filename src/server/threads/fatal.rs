//! What happens when a node cannot go on: a sync that failed, a store that failed.
//!
//! Nothing is retried and nothing is worked around: after a failed sync the kernel may have thrown
//! the data away and would report the next sync as good. The reason is logged, whoever waits for
//! it is told, and the process ends, or (where several nodes share one) the node.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::log::LogError;
use crate::server::disk::marker::Marker;
use crate::server::disk::store::StoreError;

/// The exit code of a process whose disk failed it.
const EXIT_CODE: i32 = 1;

/// How a node leaves its cluster: it remembers that it was removed, and stops.
#[derive(Clone)]
pub(crate) struct Exit {
    fatal: Fatal,
    data_dir: PathBuf,
    left: Arc<AtomicBool>,
}

impl Exit {
    /// This node is no member any more. Returns at once: whoever runs the node stops it.
    pub(crate) fn leave(&self, why: &str) {
        if self.left.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Err(error) = Marker::Removed.write(&self.data_dir, &format!("{why}\n")) {
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

    /// For whoever reads the store.
    pub(crate) fn for_store(&self) -> Box<dyn Fn(StoreError) + Send + Sync> {
        let fatal = self.clone();
        Box::new(move |error| fatal.strike(&format!("the state failed: {error}")))
    }

    /// For the state thread. If the state proved to be damaged, a mark is left beside it, so that
    /// the next start rebuilds it instead of meeting the same damage.
    pub(crate) fn for_state(&self, data_dir: PathBuf) -> Box<dyn Fn(StoreError) + Send> {
        let fatal = self.clone();
        Box::new(move |error| {
            let mut reason = format!("the state failed: {error}");
            if error.is_damage() {
                match Marker::StateDamaged.write(&data_dir, &format!("{error}\n")) {
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

    /// For whoever learns that this node was removed.
    pub(crate) fn exit(&self, data_dir: &Path) -> Exit {
        Exit {
            fatal: self.clone(),
            data_dir: data_dir.to_owned(),
            left: Arc::default(),
        }
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
