//! Streams of frames.
//!
//! A read takes everything that has arrived, and a write takes any number of encoded frames as one
//! buffer: that many small requests share a packet, a wake-up and a write improves throughput by a
//! factor of three to five.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, Sleep};

use crate::transport::{Connection, ConnectionLost, Port};
use crate::wire::{Body, Door, Frame, FrameLimits, FrameReader, WireError};

/// Chunks taken from a stream at one time; a batch is about this many packets long at most.
const CHUNKS_MAX: usize = 64;
/// How long a client's frame may take from its first byte to its last, and how many bytes extend
/// that by a second: slow clients are accepted, but none may hold a buffer by sending a few bytes
/// at a time.
const FRAME_PATIENCE: Duration = Duration::from_secs(5);
const FRAME_BYTES_PER_SECOND: usize = 64 << 10;
/// The error code of a stream that was reset; the only one so far.
const GIVEN_UP: u32 = 1;

/// Why a stream can no longer be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The other side has finished the stream, between two frames.
    #[error("the stream has ended")]
    Finished,
    /// The other side reset or stopped the stream.
    #[error("the other side reset the stream")]
    Stopped,
    /// A frame began to arrive and was not complete in time. The stream has been stopped.
    #[error("a frame was started but not finished in time")]
    TooSlow,
    /// The bytes are not a valid frame. The connection has been closed, and the frame counted.
    #[error("{0}")]
    Malformed(#[from] WireError),
    /// The connection is over.
    #[error("{0}")]
    Lost(#[from] ConnectionLost),
}

/// Both directions of a bidirectional stream.
#[derive(Debug)]
pub struct FrameStream {
    /// The sending side.
    pub sender: FrameSender,
    /// The receiving side.
    pub receiver: FrameReceiver,
}

impl Connection {
    /// Opens a bidirectional stream. The other side learns of it with the first frame that is
    /// written.
    ///
    /// # Errors
    /// The connection is over.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn open_stream(&self) -> Result<FrameStream, ConnectionLost> {
        let (send, receive) = self
            .quic()
            .open_bi()
            .await
            .map_err(|e| ConnectionLost::of(&e))?;
        Ok(self.framed(send, receive))
    }

    /// Like [`Connection::open_stream`], with a send priority. Higher is sent first.
    ///
    /// # Errors
    /// The connection is over.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn open_stream_of(&self, priority: i32) -> Result<FrameStream, ConnectionLost> {
        let (send, receive) = self
            .quic()
            .open_bi()
            .await
            .map_err(|e| ConnectionLost::of(&e))?;
        // Fails only for a stream that is already closed, and writing will report that.
        let _ = send.set_priority(priority);
        Ok(self.framed(send, receive))
    }

    /// Accepts the next bidirectional stream that the other side opened.
    ///
    /// # Errors
    /// The connection is over.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn accept_stream(&self) -> Result<FrameStream, ConnectionLost> {
        let (send, receive) = self
            .quic()
            .accept_bi()
            .await
            .map_err(|e| ConnectionLost::of(&e))?;
        Ok(self.framed(send, receive))
    }

    /// Opens a unidirectional stream. Higher `priority` is sent first.
    ///
    /// # Errors
    /// The connection is over.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn open_sender(&self, priority: i32) -> Result<FrameSender, ConnectionLost> {
        let send = self
            .quic()
            .open_uni()
            .await
            .map_err(|e| ConnectionLost::of(&e))?;
        // Fails only for a stream that is already closed, and writing will report that.
        let _ = send.set_priority(priority);
        Ok(FrameSender::new(send))
    }

    /// Accepts the next unidirectional stream that the other side opened.
    ///
    /// # Errors
    /// The connection is over.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn accept_receiver(&self) -> Result<FrameReceiver, ConnectionLost> {
        let receive = self
            .quic()
            .accept_uni()
            .await
            .map_err(|e| ConnectionLost::of(&e))?;
        Ok(self.receiver(receive))
    }

    fn framed(&self, send: quinn::SendStream, receive: quinn::RecvStream) -> FrameStream {
        FrameStream {
            sender: FrameSender::new(send),
            receiver: self.receiver(receive),
        }
    }

    fn receiver(&self, receive: quinn::RecvStream) -> FrameReceiver {
        let door = match (self.port(), self.dialled()) {
            (Port::Peer, _) => Door::Peer,
            (Port::Client, true) => Door::Client,
            (Port::Client, false) => Door::Server,
        };
        FrameReceiver::new(receive, self.clone(), door, self.limits())
    }
}

impl FrameStream {
    /// Takes everything that has arrived; see [`FrameReceiver::read_batch`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read_batch(&mut self, into: &mut Vec<Frame>) -> Result<(), StreamError> {
        self.receiver.read_batch(into).await
    }

    /// Writes encoded frames; see [`FrameSender::write`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// Not safe.
    pub async fn write(&mut self, frames: impl Into<Bytes>) -> Result<(), StreamError> {
        self.sender.write(frames).await
    }

    /// Both directions, separately, for two tasks.
    pub fn split(self) -> (FrameSender, FrameReceiver) {
        (self.sender, self.receiver)
    }
}

/// The sending side of a stream.
pub struct FrameSender {
    stream: quinn::SendStream,
}

impl FrameSender {
    pub(crate) fn new(stream: quinn::SendStream) -> Self {
        Self { stream }
    }

    /// Passes `frames` (any number, encoded one after the other) to the connection, and waits for
    /// flow control. The bytes are not copied. A return does not mean that anything has arrived.
    ///
    /// # Errors
    /// The stream or connection is over.
    ///
    /// # Cancel safety
    /// Not safe: part of `frames` may have been sent, and the stream is then unusable.
    pub async fn write(&mut self, frames: impl Into<Bytes>) -> Result<(), StreamError> {
        self.stream
            .write_chunk(frames.into())
            .await
            .map_err(|error| match error {
                quinn::WriteError::Stopped(_) => StreamError::Stopped,
                quinn::WriteError::ConnectionLost(lost) => {
                    StreamError::Lost(ConnectionLost::of(&lost))
                }
                other => StreamError::Lost(ConnectionLost::Other(other.to_string())),
            })
    }

    /// Passes to the connection as much of `chunks` (encoded frames) as it accepts, and removes
    /// that. Ready once it has accepted something; until then, the task is woken when it can.
    ///
    /// # Errors
    /// The stream or connection is over.
    #[allow(dead_code, reason = "the SDK alone writes one stream at a time")]
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        chunks: &mut Vec<Bytes>,
    ) -> Poll<Result<(), StreamError>> {
        let written = ready!(pin!(self.stream.write_chunks(chunks)).poll(cx));
        let written = written.map_err(|error| match error {
            quinn::WriteError::Stopped(_) => StreamError::Stopped,
            quinn::WriteError::ConnectionLost(lost) => StreamError::Lost(ConnectionLost::of(&lost)),
            other => StreamError::Lost(ConnectionLost::Other(other.to_string())),
        })?;
        chunks.drain(..written.chunks);
        Poll::Ready(Ok(()))
    }

    /// Resets the stream, with all data that has not arrived.
    #[allow(dead_code, reason = "the SDK alone gives no stream up")]
    pub(crate) fn reset(&mut self) {
        // Fails only if the stream is already over, which is the intended state.
        let _ = self.stream.reset(quinn::VarInt::from_u32(GIVEN_UP));
    }

    /// Finishes the stream. Data that was written is still delivered.
    pub fn finish(&mut self) {
        // Fails only if the stream is already over, which is the intended state.
        let _ = self.stream.finish();
    }

    /// Waits, once the stream is finished, until the other side has acknowledged everything.
    #[cfg(test)]
    pub(crate) async fn arrived(&mut self) {
        let _ = self.stream.stopped().await;
    }
}

impl fmt::Debug for FrameSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameSender({})", self.stream.id())
    }
}

/// The receiving side of a stream.
pub struct FrameReceiver {
    stream: quinn::RecvStream,
    connection: Connection,
    reader: FrameReader,
    chunks: Box<[Bytes; CHUNKS_MAX]>,
    /// The timeout of frames, where the sender has one.
    patience: Option<Patience>,
}

/// The time that the current frame has taken.
#[derive(Default)]
struct Patience {
    begun: Option<Instant>,
    /// Kept from frame to frame: arming a timer costs more than reading a small frame. It may fire
    /// too early, never too late.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    /// Ready when a frame of `bytes`, of which some have arrived, has timed out.
    fn poll(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<()> {
        #[expect(
            clippy::disallowed_methods,
            reason = "how long a frame takes is no lease: plain elapsed time is enough"
        )]
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let whole_seconds = u64::try_from(bytes / FRAME_BYTES_PER_SECOND).unwrap_or(u64::MAX);
        let limit = begun + FRAME_PATIENCE + Duration::from_secs(whole_seconds);
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(limit)));
        while timer.as_mut().poll(cx).is_ready() {
            if timer.deadline() >= limit {
                return Poll::Ready(());
            }
            timer.as_mut().reset(limit);
        }
        if timer.deadline() > limit {
            timer.as_mut().reset(limit);
            return self.poll(cx, bytes);
        }
        Poll::Pending
    }
}

impl FrameReceiver {
    pub(crate) fn new(
        stream: quinn::RecvStream,
        connection: Connection,
        door: Door,
        limits: FrameLimits,
    ) -> Self {
        Self {
            stream,
            connection,
            reader: FrameReader::new(door, limits),
            chunks: Box::new([const { Bytes::new() }; CHUNKS_MAX]),
            patience: (door == Door::Server).then(Patience::default),
        }
    }

    /// Appends to `into` every frame that has arrived, and waits for the first one if there is
    /// none. Frames keep their order.
    ///
    /// # Errors
    /// [`StreamError::Malformed`] if the bytes are not a valid frame: the frame is counted and the
    /// connection closed, whatever the caller does; frames before it may have been appended. Other
    /// errors mean that the stream or connection is over.
    ///
    /// # Cancel safety
    /// Safe: nothing that has arrived is lost.
    pub async fn read_batch(&mut self, into: &mut Vec<Frame>) -> Result<(), StreamError> {
        poll_fn(|cx| self.poll_read_batch(cx, into)).await
    }

    /// Like [`FrameReceiver::read_batch`], for a task that also polls other futures.
    pub(crate) fn poll_read_batch(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<Frame>,
    ) -> Poll<Result<(), StreamError>> {
        let before = into.len();
        loop {
            let arrived = pin!(self.stream.read_chunks(self.chunks.as_mut_slice())).poll(cx);
            let Poll::Ready(arrived) = arrived else {
                return self.poll_patience(cx);
            };
            let arrived = arrived.map_err(|error| match error {
                quinn::ReadError::Reset(_) => StreamError::Stopped,
                quinn::ReadError::ConnectionLost(lost) => {
                    StreamError::Lost(ConnectionLost::of(&lost))
                }
                other => StreamError::Lost(ConnectionLost::Other(other.to_string())),
            })?;
            let Some(count) = arrived else {
                self.reader
                    .finish()
                    .map_err(|error| self.malformed(error))?;
                return Poll::Ready(Err(StreamError::Finished));
            };
            for at in 0..count {
                let chunk = std::mem::take(&mut self.chunks[at]);
                self.reader.push(chunk);
                while let Some(frame) = self
                    .reader
                    .next_frame()
                    .map_err(|error| self.malformed(error))?
                {
                    into.push(frame);
                }
            }
            if into.len() > before {
                self.excuse();
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Restarts the timeout of the current frame: this side made its sender wait.
    pub(crate) fn excuse(&mut self) {
        if let Some(patience) = &mut self.patience {
            patience.begun = None;
        }
    }

    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        let (Some(patience), Some(bytes)) = (&mut self.patience, self.reader.begun_bytes()) else {
            return Poll::Pending;
        };
        ready!(patience.poll(cx, bytes));
        // Fails only if the stream is already over, which is the intended state.
        let _ = self.stream.stop(quinn::VarInt::from_u32(GIVEN_UP));
        Poll::Ready(Err(StreamError::TooSlow))
    }

    /// Decodes a frame that arrived on this stream.
    ///
    /// # Errors
    /// The body is invalid: the frame is counted and the connection closed, whatever the caller
    /// does.
    pub fn decode<T: Body>(&self, frame: &Frame) -> Result<T, StreamError> {
        frame.decode().map_err(|error| self.malformed(error))
    }

    /// The connection that the stream belongs to.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Counts an invalid frame of this stream, and closes the connection for it.
    pub(crate) fn malformed(&self, error: WireError) -> StreamError {
        self.connection.close_malformed(&error);
        StreamError::Malformed(error)
    }
}

impl fmt::Debug for FrameReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameReceiver({})", self.stream.id())
    }
}
