//! The download of a snapshot over HTTP, chunk by chunk, for a client on the node's own machine.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

use crate::api::{Error, SnapshotCall};
use crate::server::admin::Progress;
use crate::server::session::Sessions;

/// Chunks that are read ahead of the client.
const AHEAD: usize = 2;

/// The body of a response. An error in it closes the connection, so that the client does not take a
/// part for the whole.
#[derive(Debug)]
pub(crate) struct Download {
    chunks: mpsc::Receiver<Result<Bytes, Error>>,
    progress: Progress,
}

impl Download {
    /// Takes a snapshot, and begins to read it. It is released at its end, or when this is dropped.
    ///
    /// # Errors
    /// Those of [`Sessions::export`].
    pub(crate) async fn begin(
        sessions: Arc<Sessions>,
        progress: Progress,
        patience: Duration,
    ) -> Result<Self, Error> {
        let id = sessions.export(SnapshotCall::Begin, patience).await?.id;
        tracing::info!("snapshot download started over HTTP from this machine");
        let (sender, chunks) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            let mut number = 0;
            loop {
                let call = SnapshotCall::Chunk { id, number };
                let chunk = sessions
                    .export(call, patience)
                    .await
                    .map(|reply| reply.chunk);
                number += 1;
                let is_last = chunk.as_ref().map_or(true, Bytes::is_empty);
                let is_empty = chunk.as_ref().is_ok_and(Bytes::is_empty);
                if let Err(error) = &chunk {
                    tracing::warn!(%error, "snapshot download over HTTP failed before its end");
                }
                if (!is_empty && sender.send(chunk).await.is_err()) || is_last {
                    break;
                }
            }
            // The client has everything, or is gone. If this fails, the snapshot is released already.
            let _ = sessions.export(SnapshotCall::End { id }, patience).await;
        });
        Ok(Self { chunks, progress })
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let next = self.chunks.poll_recv(context);
        if matches!(next, Poll::Ready(Some(Ok(_)))) {
            self.progress.made();
        }
        next.map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }
}
