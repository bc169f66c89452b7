//! Streams of frames.
//!
//! Reading takes everything that has arrived at once, and writing takes any number of encoded
//! frames as one buffer: that many small requests share a packet, a wake-up and a write is worth
//! a factor of three to five (performance.md).

use std::fmt;

use bytes::Bytes;

use crate::transport::Connection;
use crate::transport::Lost;
use crate::wire::Body;
use crate::wire::Door;
use crate::wire::Frame;
use crate::wire::FrameLimits;
use crate::wire::FrameReader;
use crate::wire::WireError;

/// Packets taken from a stream at one time; a batch is about this many packets long at most.
const CHUNKS_MAX: usize = 64;

/// Why a stream gives or takes nothing more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The other side has finished the stream, between two frames.
    #[error("the stream has ended")]
    Finished,
    /// The other side gave the stream up.
    #[error("the other side gave the stream up")]
    Stopped,
    /// What came is no frame. The connection has been closed for it, and the frame counted.
    #[error("{0}")]
    Malformed(#[from] WireError),
    /// The connection is over.
    #[error("{0}")]
    Lost(#[from] Lost),
}

/// Both directions of a two-way stream.
#[derive(Debug)]
pub struct FrameStream {
    /// The way out.
    pub sender: FrameSender,
    /// The way in.
    pub receiver: FrameReceiver,
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

    /// Both directions, apart, for two tasks.
    pub fn split(self) -> (FrameSender, FrameReceiver) {
        (self.sender, self.receiver)
    }
}

/// The way out of a stream.
pub struct FrameSender {
    stream: quinn::SendStream,
}

impl FrameSender {
    pub(crate) fn new(stream: quinn::SendStream) -> Self {
        Self { stream }
    }

    /// Hands `frames` (any number, encoded one after the other) to the connection, waiting while
    /// the other side is behind. Nothing is copied. That this returns does not say that anything
    /// has arrived.
    ///
    /// # Errors
    /// The stream or connection is over.
    ///
    /// # Cancel safety
    /// Not safe: part of `frames` may be under way, and the stream is then useless.
    pub async fn write(&mut self, frames: impl Into<Bytes>) -> Result<(), StreamError> {
        self.stream
            .write_chunk(frames.into())
            .await
            .map_err(|error| match error {
                quinn::WriteError::Stopped(_) => StreamError::Stopped,
                quinn::WriteError::ConnectionLost(lost) => StreamError::Lost(Lost::of(&lost)),
                other => StreamError::Lost(Lost::Other(other.to_string())),
            })
    }

    /// Says that nothing more will come. What was written is still delivered.
    pub fn finish(&mut self) {
        // Fails only if the stream is already over, which is what was wanted.
        let _ = self.stream.finish();
    }
}

impl fmt::Debug for FrameSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameSender({})", self.stream.id())
    }
}

/// The way in from a stream.
pub struct FrameReceiver {
    stream: quinn::RecvStream,
    connection: Connection,
    reader: FrameReader,
    chunks: Box<[Bytes; CHUNKS_MAX]>,
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
        }
    }

    /// Appends to `into` every frame that has arrived, waiting for the first one if there is
    /// none. Frames keep their order.
    ///
    /// # Errors
    /// [`StreamError::Malformed`] if what came is no frame: that is counted and the connection
    /// closed, whatever the caller does; frames before it may have been appended. Otherwise, that
    /// the stream or connection is over.
    ///
    /// # Cancel safety
    /// Safe: nothing that has arrived is lost.
    pub async fn read_batch(&mut self, into: &mut Vec<Frame>) -> Result<(), StreamError> {
        let before = into.len();
        loop {
            let arrived = self
                .stream
                .read_chunks(self.chunks.as_mut_slice())
                .await
                .map_err(|error| match error {
                    quinn::ReadError::Reset(_) => StreamError::Stopped,
                    quinn::ReadError::ConnectionLost(lost) => StreamError::Lost(Lost::of(&lost)),
                    other => StreamError::Lost(Lost::Other(other.to_string())),
                })?;
            let Some(count) = arrived else {
                self.reader
                    .finish()
                    .map_err(|error| self.malformed(error))?;
                return Err(StreamError::Finished);
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
                return Ok(());
            }
        }
    }

    /// Decodes a frame that came from here.
    ///
    /// # Errors
    /// The body is not what it should be: that is counted and the connection closed, whatever the
    /// caller does.
    pub fn decode<T: Body>(&self, frame: &Frame) -> Result<T, StreamError> {
        frame.decode().map_err(|error| self.malformed(error))
    }

    /// The connection that the stream belongs to.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    fn malformed(&self, error: WireError) -> StreamError {
        self.connection.close_malformed(&error);
        StreamError::Malformed(error)
    }
}

impl fmt::Debug for FrameReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameReceiver({})", self.stream.id())
    }
}
