//! The task of one stream: it reads requests in batches, dispatches them, and writes the replies.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::connection::ConnectionState;
use super::dispatch::{REPLIES_BYTES, Session};
use super::point_read::IndexedRead;
use super::shared::Sessions;
use crate::api::{Class, Consistency};
use crate::server::metrics::stopwatch;
use crate::transport::{FrameReceiver, FrameStream, StreamError};
use crate::wire::point::PointRead;
use crate::wire::{Frame, Kind, WireError};

/// Requests in one batch: so long may those behind wait for a lookup that has to ask the disk.
pub(super) const BATCH_MAX: usize = 128;
/// How long a client may take to read so many bytes of replies. A slow client is fine; the stream of a
/// client that reads nothing is reset, because the node has to hold its replies.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);
const WRITE_BYTES: usize = 32 << 10;

/// Serves the stream until the client ends it or the connection breaks. How it ended is no news:
/// malformed frames are counted where they are found.
pub(super) async fn serve(
    shared: Arc<Sessions>,
    connection: Arc<ConnectionState>,
    mut stream: FrameStream,
) {
    let mut session = Session::new(shared, connection);
    let Err(end) = session.run(&mut stream).await;
    // Its requests come too slowly, or its replies are not read.
    if end == StreamError::TooSlow {
        tracing::debug!(address = %session.connection.address, "a stream of a client was abandoned");
        stream.sender.reset();
    }
}

impl Session {
    async fn run(&mut self, stream: &mut FrameStream) -> Result<Infallible, StreamError> {
        let mut frames = Vec::new();
        let mut deliveries = Vec::new();
        let mut reads = Vec::new();
        loop {
            let receiver = &mut stream.receiver;
            poll_fn(|cx| self.poll_work(cx, receiver, &mut frames)).await?;
            for batch in frames.chunks(BATCH_MAX) {
                let taken = self.dispatch_batch(batch, &mut reads);
                taken.map_err(|error| stream.receiver.malformed(error))?;
                self.submit();
                self.flush(stream, REPLIES_BYTES).await?;
                let mut rest = &reads[..];
                while !rest.is_empty() {
                    let done = self.read_round(batch, rest);
                    rest = &rest[done.map_err(|error| stream.receiver.malformed(error))?..];
                    self.submit();
                    self.flush(stream, REPLIES_BYTES).await?;
                }
            }
            frames.clear();
            std::mem::swap(&mut deliveries, &mut self.answers);
            for answered in deliveries.drain(..) {
                self.complete(answered);
                self.flush(stream, REPLIES_BYTES).await?;
            }
            self.flush(stream, 1).await?;
        }
    }

    /// Ready when requests have arrived, or answers to earlier ones; takes both, the answers to
    /// `self.answers`.
    fn poll_work(
        &mut self,
        cx: &mut Context<'_>,
        receiver: &mut FrameReceiver,
        frames: &mut Vec<Frame>,
    ) -> Poll<Result<(), StreamError>> {
        self.collect_answers(cx);
        let mut is_ready = !self.answers.is_empty();
        if self.connection.in_flight.poll_room(cx) {
            if let Poll::Ready(read) = receiver.poll_read_batch(cx, frames) {
                read?;
                is_ready = true;
            }
        } else {
            receiver.excuse();
        }
        match is_ready {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    /// Takes the answers that have arrived. Whether there were any; if not, the task is woken when there
    /// are. What was done for a request need not be held for it any more.
    pub(super) fn collect_answers(&mut self, cx: &Context<'_>) -> bool {
        let known = self.answers.len();
        if !self.outbox.poll_take(cx, &mut self.answers) {
            return false;
        }
        let now = stopwatch();
        for (frame, delivery, stages) in &self.answers[known..] {
            if let Some(pending) = self.waiting.get_mut(frame) {
                pending.answered(delivery, stages, now);
            }
        }
        true
    }

    /// Writes the replies that have gathered, if they have `bytes` or more.
    async fn flush(&mut self, stream: &mut FrameStream, bytes: usize) -> Result<(), StreamError> {
        if self.replies.len() < bytes {
            return Ok(());
        }
        let mut replies = self.replies.split().freeze();
        while !replies.is_empty() {
            let piece = replies.split_to(replies.len().min(WRITE_BYTES));
            self.write(WRITE_PATIENCE, stream.sender.write(piece))
                .await?;
        }
        self.written();
        stream.receiver.excuse();
        Ok(())
    }

    /// Waits until the client has made room for what is being written, and goes on taking answers: what
    /// is done holds up no others, whether it is read or not.
    ///
    /// # Errors
    /// [`StreamError::TooSlow`]: `patience` is over; otherwise, that of `writing`.
    pub(super) async fn write(
        &mut self,
        patience: Duration,
        writing: impl Future<Output = Result<(), StreamError>>,
    ) -> Result<(), StreamError> {
        let mut writing = pin!(tokio::time::timeout(patience, writing));
        let written = poll_fn(|cx| {
            let written = writing.as_mut().poll(cx);
            if written.is_pending() {
                while self.collect_answers(cx) {}
            }
            written
        });
        written.await.unwrap_or(Err(StreamError::TooSlow))
    }

    /// The client has been sent everything: the scans among it make room for others.
    pub(super) fn written(&mut self) {
        self.scan_permits.clear();
    }

    /// Dispatches one closed batch of requests: leaves reads of one key in `reads`, and handles the
    /// others.
    pub(super) fn dispatch_batch(
        &mut self,
        frames: &[Frame],
        reads: &mut Vec<IndexedRead>,
    ) -> Result<(), WireError> {
        reads.clear();
        self.joined_reads.clear();
        let is_stopping = self.shared.node.is_stopping();
        let is_served = !is_stopping && self.shared.node.integrity.is_sound();
        for (number, frame) in frames.iter().enumerate() {
            match PointRead::of(frame).filter(|read| is_served && self.takes(read, frame)) {
                Some(read) => match self.charge(Class::Read) {
                    Ok(()) => {
                        if frame.kind == Kind::ContextCall {
                            self.join_read(number, frame);
                        }
                        reads.push(IndexedRead {
                            frame: number,
                            read,
                        });
                    }
                    Err(error) => self.reply(read.request_id, "range", Err(error)),
                },
                None => self.dispatch(frame, is_stopping)?,
            }
        }
        Ok(())
    }

    /// Whether a read of one key may be tried here. Invalid ones are refused where all requests are
    /// validated.
    fn takes(&self, read: &PointRead, frame: &Frame) -> bool {
        let key_bytes = read.key(frame).len();
        read.consistency != Consistency::LinearizableQuorum
            && key_bytes > 0
            && key_bytes <= self.shared.limits.requests.key_bytes_max
    }
}
