//! The side of the member that lacks a state: takes what comes, and keeps it apart until consensus has
//! said what is to become of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{CHUNKS_AHEAD, KEPT_FOR, STALLED_AFTER, say};
use crate::node::Input;
use crate::raft::LogBase;
use crate::server::disk::data_dir::DataDir;
use crate::server::disk::state_dirs;
use crate::server::disk::state_dirs::StateDirs;
use crate::server::disk::state_thread::ReceivedStates;
use crate::server::disk::store::{Import, ImportError, StoreError, StoreOptions};
use crate::server::mail::{Mail, Mailbox};
use crate::server::metrics::{Metrics, TransferEnd, stopwatch};
use crate::server::threads::spawn;
use crate::sync::{Mutex, MutexGuard};
use crate::transport::{FrameReceiver, FrameStream};
use crate::types::{ClusterId, LogId, NodeId};
use crate::wire::peer::{StateChunk, Transfer};
use crate::wire::{Frame, FrameLimits};

/// See [`super`].
pub(crate) struct StateReceiver {
    pub(crate) cluster: ClusterId,
    pub(crate) state_dirs: StateDirs,
    /// Keeps the directory locked while something is written or removed there.
    pub(crate) data_dir: Arc<DataDir>,
    pub(crate) options: StoreOptions,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) limits: FrameLimits,
    pub(crate) slot: Mutex<Slot>,
}

/// One state at a time.
#[derive(Default)]
pub(crate) enum Slot {
    #[default]
    Free,
    /// One comes in, or what was left of one is being removed.
    Busy,
    /// The connection broke.
    Partial(Box<Part>),
    /// It is complete, and consensus knows of it.
    Whole { path: PathBuf, id: LogId },
}

/// A state that is not complete.
pub(crate) struct Part {
    from: NodeId,
    export: u64,
    path: PathBuf,
    import: Import,
}

impl Part {
    /// Closes and removes it. Never waits.
    fn remove(self, data_dir: Arc<DataDir>) {
        remove(Some(self.import), self.path, data_dir);
    }
}

/// How the taking of chunks ended.
enum StoreOutcome {
    /// The last of them is there.
    All(Import),
    /// No more came.
    Some(Import),
}

/// Why nothing becomes of a state that came.
#[derive(Debug, thiserror::Error)]
enum TransferError {
    #[error("{0}")]
    Import(#[from] ImportError),
    #[error("it belongs to cluster {0}")]
    Foreign(ClusterId),
    #[error("it ends with {found}, but {offered} was offered")]
    Other { offered: LogId, found: LogId },
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the thread that stores it panicked")]
    Panicked,
}

impl TransferError {
    fn end(&self) -> TransferEnd {
        match self {
            Self::Import(ImportError::State(_)) | Self::Foreign(_) | Self::Other { .. } => {
                TransferEnd::Corrupt
            }
            _ => TransferEnd::Failed,
        }
    }
}

impl StateReceiver {
    /// Takes a state in that the member `from` offers on `stream`, as the `first` frames of that say.
    pub(crate) async fn receive(
        self: Arc<Self>,
        from: NodeId,
        stream: FrameStream,
        first: &[Frame],
    ) {
        let (mut sender, mut receiver) = stream.split();
        let [offer] = first else {
            return;
        };
        let Ok(Transfer::Offer { export, base }) = receiver.decode(offer) else {
            return;
        };
        let Ok(kept) = self.claim(from, export) else {
            // The leader offers it again.
            let _ = say(&mut sender, &self.limits, Transfer::Busy).await;
            sender.finish();
            return;
        };
        let began = stopwatch();
        let (end, word) = match self.begin(from, export, kept).await {
            Ok(part) => {
                let from = part.import.next_chunk();
                tracing::info!(%base, from, "receiving a snapshot from a peer");
                match say(&mut sender, &self.limits, Transfer::Want { from }).await {
                    Ok(()) => self.take(part, base, &mut receiver).await,
                    Err(_) => self.keep(part),
                }
            }
            Err(error) => self.give_up(&error),
        };
        let metrics = &self.metrics.snapshots;
        metrics.received[end].increment(1);
        let took = began.elapsed();
        metrics.receive_seconds.record(took.as_secs_f64());
        if let Some(word) = word {
            // If this is lost, the leader learns it from what this member does next.
            let _ = say(&mut sender, &self.limits, word).await;
        }
        sender.finish();
    }

    /// Takes the only place; what lies there if it is a part of this very state or of none that still
    /// comes. An error: it is taken.
    fn claim(&self, from: NodeId, export: u64) -> Result<Option<Part>, ()> {
        let mut slot = self.slot();
        match &*slot {
            Slot::Busy | Slot::Whole { .. } => return Err(()),
            Slot::Free | Slot::Partial(_) => {}
        }
        let before = std::mem::replace(&mut *slot, Slot::Busy);
        drop(slot);
        Ok(match before {
            Slot::Partial(part) if part.from == from && part.export == export => Some(*part),
            Slot::Partial(part) => {
                part.remove(self.data_dir.clone());
                None
            }
            _ => None,
        })
    }

    async fn begin(
        &self,
        from: NodeId,
        export: u64,
        kept: Option<Part>,
    ) -> Result<Part, TransferError> {
        if let Some(part) = kept {
            return Ok(part);
        }
        let (state_dirs, options) = (self.state_dirs.clone(), self.options);
        let begun = tokio::task::spawn_blocking(move || {
            let path = state_dirs.next()?;
            let import = Import::begin(&path, &options)?;
            Ok::<_, TransferError>((path, import))
        });
        let (path, import) = begun.await.map_err(|_| TransferError::Panicked)??;
        Ok(Part {
            from,
            export,
            path,
            import,
        })
    }

    /// Takes chunks until all are there or none come any more.
    async fn take(
        self: &Arc<Self>,
        part: Part,
        base: LogId,
        receiver: &mut FrameReceiver,
    ) -> (TransferEnd, Option<Transfer>) {
        let Part {
            from,
            export,
            path,
            import,
        } = part;
        let (chunks, mut storing) = store(import);
        let stored = self.pass_on(receiver, chunks, &mut storing).await;
        let stored = stored.map_err(|_| TransferError::Panicked).flatten();
        let finished = match stored {
            Ok(StoreOutcome::All(import)) => self.finish(import, &path, base).await,
            Ok(StoreOutcome::Some(import)) => {
                return self.keep(Part {
                    from,
                    export,
                    path,
                    import,
                });
            }
            Err(error) => Err(error),
        };
        match finished {
            Ok(base) => {
                tracing::info!(base = %base.id, "snapshot received");
                *self.slot() = Slot::Whole { path, id: base.id };
                self.mailbox
                    .send(Mail::Input(Input::SnapshotReceived(base)));
                (TransferEnd::Ok, Some(Transfer::Done))
            }
            Err(error) => {
                remove(None, path, self.data_dir.clone());
                self.give_up(&error)
            }
        }
    }

    /// Passes chunks to the task that stores them, until one of the two ends.
    async fn pass_on(
        &self,
        receiver: &mut FrameReceiver,
        chunks: mpsc::Sender<Bytes>,
        storing: &mut StoreTask,
    ) -> Result<Result<StoreOutcome, TransferError>, tokio::task::JoinError> {
        let mut frames = Vec::new();
        loop {
            let reading = tokio::time::timeout(STALLED_AFTER, receiver.read_batch(&mut frames));
            tokio::select! {
                stored = &mut *storing => return stored,
                read = reading => {
                    if !matches!(read, Ok(Ok(()))) && frames.is_empty() {
                        break;
                    }
                }
            }
            for frame in frames.drain(..) {
                let Ok(StateChunk { bytes }) = receiver.decode(&frame) else {
                    break;
                };
                let length = bytes.len();
                // It fails when no more is wanted, and why is known in the next turn.
                if chunks.send(bytes).await.is_ok() {
                    let received = &self.metrics.snapshots.received_bytes;
                    received.increment(length as u64);
                }
            }
        }
        drop(chunks);
        storing.await
    }

    /// Makes a state durable of which every chunk is there.
    async fn finish(
        &self,
        import: Import,
        path: &Path,
        offered: LogId,
    ) -> Result<LogBase, TransferError> {
        let (state_dirs, cluster, path) = (self.state_dirs.clone(), self.cluster, path.to_owned());
        let finishing = tokio::task::spawn_blocking(move || {
            let header = import.header().cloned().unwrap_or_default();
            if header.cluster != cluster {
                return Err(TransferError::Foreign(header.cluster));
            }
            let found = header.base.id;
            if found != offered {
                return Err(TransferError::Other { offered, found });
            }
            import.finish()?;
            state_dirs.complete(&path, found)?;
            Ok(header.base)
        });
        finishing.await.map_err(|_| TransferError::Panicked)?
    }

    fn give_up(&self, error: &TransferError) -> (TransferEnd, Option<Transfer>) {
        tracing::warn!(%error, "the received snapshot cannot be used; requesting it again");
        *self.slot() = Slot::Free;
        let end = error.end();
        let corrupt = end == TransferEnd::Corrupt;
        (end, Some(Transfer::Failed { corrupt }))
    }

    /// Keeps what is here, in case that it goes on.
    fn keep(self: &Arc<Self>, part: Part) -> (TransferEnd, Option<Transfer>) {
        let (export, path) = (part.export, part.path.clone());
        tracing::info!(
            chunks = part.import.next_chunk(),
            "the snapshot transfer was interrupted"
        );
        *self.slot() = Slot::Partial(Box::new(part));
        let this = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(KEPT_FOR).await;
            let mut slot = this.slot();
            if matches!(&*slot, Slot::Partial(part) if part.export == export && part.path == path)
                && let Slot::Partial(part) = std::mem::take(&mut *slot)
            {
                part.remove(this.data_dir.clone());
            }
        });
        (TransferEnd::Broken, None)
    }

    /// The state that ends with `id` is not needed. Never waits.
    pub(crate) fn discard(&self, id: LogId) {
        if let Some(path) = self.take_whole(id) {
            remove(None, path, self.data_dir.clone());
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        // Each change of it is one step.
        self.slot.lock()
    }
}

impl ReceivedStates for StateReceiver {
    fn take_whole(&self, id: LogId) -> Option<PathBuf> {
        let mut slot = self.slot();
        match std::mem::take(&mut *slot) {
            Slot::Whole { path, id: found } if found == id => Some(path),
            other => {
                *slot = other;
                None
            }
        }
    }
}

type StoreTask = JoinHandle<Result<StoreOutcome, TransferError>>;

/// Stores chunks where waiting for a disk is allowed.
fn store(mut import: Import) -> (mpsc::Sender<Bytes>, StoreTask) {
    let (sender, mut receiver) = mpsc::channel(CHUNKS_AHEAD);
    let storing = tokio::task::spawn_blocking(move || {
        while let Some(chunk) = receiver.blocking_recv() {
            if import.take(chunk)? {
                return Ok(StoreOutcome::All(import));
            }
        }
        Ok(StoreOutcome::Some(import))
    });
    (sender, storing)
}

/// Closes what is open in a folder and removes it, by a thread of its own: it may be large, and who
/// asks for it waits for nothing.
fn remove(import: Option<Import>, path: PathBuf, data_dir: Arc<DataDir>) {
    let removing = spawn("remove-state", data_dir, move || {
        drop(import);
        if let Err(error) = state_dirs::remove(&path) {
            tracing::warn!(%error, "cannot remove {}", path.display());
        }
    });
    if let Err(error) = removing {
        tracing::warn!(
            %error,
            "a snapshot that is no longer needed stays on disk until the next start"
        );
    }
}

/// An error of the store's own.
impl From<StoreError> for TransferError {
    fn from(error: StoreError) -> Self {
        Self::Import(ImportError::Store(error))
    }
}
