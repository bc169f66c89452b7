//! The leader's side: reads its state, and sends it.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::{
    CHUNKS_AHEAD, FINISHED_WITHIN, KEPT_FOR, STALLED_AFTER, SendRate, TransferFailure, hear, say,
};
use crate::node::Input;
use crate::raft::Configuration;
use crate::server::disk::log_compactor::LogUse;
use crate::server::disk::store::{Export, Origin, Snapshot, StateReader, StoreError};
use crate::server::mail::{Mail, Mailbox};
use crate::server::metrics::{Metrics, TransferEnd, stopwatch};
use crate::server::peers::Peers;
use crate::sync::{Mutex, MutexGuard};
use crate::transport::{Connection, FrameStream};
use crate::types::{ClusterId, LogId, LogIndex, NodeId};
use crate::wire::peer::{StateChunk, Transfer};
use crate::wire::{FrameLimits, encode};

/// After everything else on the connection.
const PRIORITY: i32 = -1;

/// See [`super`].
pub(crate) struct StateSender {
    pub(crate) cluster: ClusterId,
    pub(crate) member: NodeId,
    /// Not kept alive by a transfer: they end with the server.
    pub(crate) peers: Weak<Peers>,
    pub(crate) store: StateReader,
    pub(crate) log_use: Arc<LogUse>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) limits: FrameLimits,
    pub(crate) rate: SendRate,
    pub(crate) broken: Mutex<BTreeMap<NodeId, PartialExport>>,
    pub(crate) exports: AtomicU64,
}

/// A state of which a member may have a part.
pub(crate) struct PartialExport {
    number: u64,
    export: Export,
}

impl StateSender {
    /// Sends the latest state to `peer`, and reports when that has ended, well or not. Never waits.
    pub(crate) fn send(self: &Arc<Self>, peer: NodeId) {
        // Reported however it ends, so that consensus does not wait for it in vain.
        let report = Report {
            mailbox: self.mailbox.clone(),
            peer,
        };
        let Some(peers) = self.peers.upgrade() else {
            return;
        };
        let connection = peers.connection(peer);
        let this = Arc::clone(self);
        peers.spawn(async move {
            let began = stopwatch();
            let end = this.transfer(peer, connection).await;
            let metrics = &this.metrics.snapshots;
            metrics.sent[end].increment(1);
            let took = began.elapsed();
            metrics.send_seconds.record(took.as_secs_f64());
            drop(report);
        });
    }

    async fn transfer(
        self: &Arc<Self>,
        peer: NodeId,
        connection: Option<Connection>,
    ) -> TransferEnd {
        let Some(connection) = connection else {
            return TransferEnd::Broken;
        };
        let kept = match self.take_partial(peer).await {
            Some(kept) => kept,
            None => match self.begin().await {
                Some(kept) => kept,
                None => return TransferEnd::Failed,
            },
        };
        let (number, base) = (kept.number, kept.export.header().base.id);
        tracing::info!(
            %peer,
            %base,
            "sending a snapshot: the entries that this member lacks were truncated from the log"
        );
        let (kept, sent) = self.offer(kept, base, &connection).await;
        let (end, may_go_on) = match sent {
            Ok(Transfer::Done) => {
                tracing::info!(%peer, %base, "snapshot sent");
                (TransferEnd::Ok, false)
            }
            Ok(Transfer::Busy) => (TransferEnd::Busy, true),
            Ok(Transfer::Failed { corrupt: true }) => {
                tracing::warn!(%peer, %base, "the snapshot arrived damaged");
                (TransferEnd::Corrupt, false)
            }
            Ok(_) => {
                tracing::warn!(%peer, %base, "the member cannot store the snapshot: see its log");
                (TransferEnd::Failed, false)
            }
            Err(broken) => {
                tracing::warn!(%peer, %base, %broken, "the snapshot transfer failed");
                (TransferEnd::Broken, true)
            }
        };
        let kept = kept.filter(|_| may_go_on);
        if let Some(kept) = kept {
            self.broken().insert(peer, kept);
        }
        let this = Arc::clone(self);
        // What follows the state is needed for a while even when it has arrived.
        tokio::spawn(async move {
            tokio::time::sleep(KEPT_FOR).await;
            let let_go = {
                let mut broken = this.broken();
                let is_it = broken.get(&peer).is_some_and(|kept| kept.number == number);
                is_it.then(|| broken.remove(&peer)).flatten()
            };
            drop(let_go);
            this.log_use.let_go(number);
        });
        end
    }

    /// What was not sent to its end, if it would still be of use.
    async fn take_partial(&self, peer: NodeId) -> Option<PartialExport> {
        let kept = self.broken().remove(&peer)?;
        let base = kept.export.header().base.id.index;
        self.configuration_at(base).await?;
        self.log_use.hold(kept.number, base);
        Some(kept)
    }

    /// Takes a look at the state as it is now.
    async fn begin(&self) -> Option<PartialExport> {
        let store = self.store.clone();
        let snapshot = tokio::task::spawn_blocking(move || store.snapshot());
        // A store that fails ends the node, whichever thread notices first.
        let snapshot = snapshot.await.ok()?.ok()?;
        let at = snapshot.applied().index;
        let number = RandomState::new().hash_one(self.exports.fetch_add(1, Ordering::Relaxed));
        self.log_use.hold(number, at);
        let export = self.export(snapshot).await;
        if export.is_none() {
            self.log_use.let_go(number);
        }
        export.map(|export| PartialExport { number, export })
    }

    async fn export(&self, snapshot: Snapshot) -> Option<Export> {
        let at = snapshot.applied().index;
        let origin = Origin {
            cluster: self.cluster,
            member: self.member,
            configuration: self.configuration_at(at).await?,
        };
        let export = tokio::task::spawn_blocking(move || Export::new(snapshot, origin));
        export.await.ok()?.ok()
    }

    /// Asks the driver; `None` if the log begins later already.
    async fn configuration_at(&self, at: LogIndex) -> Option<Configuration> {
        let (answer, answered) = oneshot::channel();
        self.mailbox.send(Mail::ConfigurationAt(at, answer));
        answered.await.ok()?
    }

    async fn offer(
        &self,
        kept: PartialExport,
        base: LogId,
        connection: &Connection,
    ) -> (Option<PartialExport>, Result<Transfer, TransferFailure>) {
        let opened = self.open(&kept, base, connection).await;
        let (mut stream, from) = match opened {
            Ok((stream, Transfer::Want { from })) => (stream, from),
            Ok((_, other)) => return (Some(kept), Ok(other)),
            Err(broken) => return (Some(kept), Err(broken)),
        };
        let number = kept.number;
        let (chunks, reading) = read(kept.export, from);
        let written = self.write(&mut stream, chunks).await;
        let answer = match written {
            Ok(()) => hear(&mut stream.receiver, FINISHED_WITHIN).await,
            // A receiver that stops reading says why.
            Err(TransferFailure::Stream(_)) => hear(&mut stream.receiver, STALLED_AFTER).await,
            Err(broken) => Err(broken),
        };
        let export = match reading.await {
            Ok(Ok(export)) => Some(export),
            _ => None,
        };
        (
            export.map(|export| PartialExport { number, export }),
            answer,
        )
    }

    async fn open(
        &self,
        kept: &PartialExport,
        base: LogId,
        connection: &Connection,
    ) -> Result<(FrameStream, Transfer), TransferFailure> {
        let opening = connection.open_stream_of(PRIORITY);
        let opened = tokio::time::timeout(STALLED_AFTER, opening).await;
        let mut stream = opened
            .map_err(|_| TransferFailure::Silent)?
            .map_err(|_| TransferFailure::Unconnected)?;
        let export = kept.number;
        say(
            &mut stream.sender,
            &self.limits,
            Transfer::Offer { export, base },
        )
        .await?;
        let answer = hear(&mut stream.receiver, STALLED_AFTER).await?;
        Ok((stream, answer))
    }

    async fn write(
        &self,
        stream: &mut FrameStream,
        mut chunks: mpsc::Receiver<Bytes>,
    ) -> Result<(), TransferFailure> {
        let mut frame = BytesMut::new();
        while let Some(bytes) = chunks.recv().await {
            let length = bytes.len();
            self.rate.wait(length).await;
            encode(&StateChunk { bytes }, &self.limits, &mut frame)
                .expect("a chunk is as long as it may be at most");
            let writing = stream.sender.write(frame.split().freeze());
            let written = tokio::time::timeout(STALLED_AFTER, writing).await;
            written.map_err(|_| TransferFailure::Silent)??;
            let sent = &self.metrics.snapshots.sent_bytes;
            sent.increment(length as u64);
        }
        stream.sender.finish();
        Ok(())
    }

    fn broken(&self) -> MutexGuard<'_, BTreeMap<NodeId, PartialExport>> {
        // Each change of it is one step.
        self.broken.lock()
    }
}

type ReadTask = JoinHandle<Result<Export, StoreError>>;

/// Reads chunks from number `from` on, where waiting for a disk is allowed, a few ahead of who takes
/// them.
fn read(mut export: Export, from: u64) -> (mpsc::Receiver<Bytes>, ReadTask) {
    let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
    let reading = tokio::task::spawn_blocking(move || {
        export.seek(from)?;
        while let Some(chunk) = export.next_chunk()? {
            if sender.blocking_send(chunk).is_err() {
                break;
            }
        }
        Ok(export)
    });
    (receiver, reading)
}

/// Says, when it is dropped, that a transfer has ended.
struct Report {
    mailbox: Arc<Mailbox>,
    peer: NodeId,
}

impl Drop for Report {
    fn drop(&mut self) {
        let over = Input::SnapshotSent(self.peer);
        self.mailbox.send(Mail::Input(over));
    }
}
