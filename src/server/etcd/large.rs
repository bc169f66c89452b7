//! An answer that takes memory of the node until the client has read it: one message, or many that come by
//! and by.
//!
//! It is handed over in small pieces, and what it holds is released once the piece that follows is asked
//! for. A client that reads nothing for ten seconds loses its call, and the node has its memory back, as on
//! the streams of native clients; of a snapshot, for a minute, since its client writes to a disk.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hyper::HeaderMap;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::stream_frame::StreamFrame;
use crate::sync::Mutex;

/// Of what is handed over at a time. HTTP/2 buffers a piece or two however little the client wants, and what it
/// buffers is not counted: so an answer has four pieces at least, unless they would be smaller than the least.
pub(super) const PIECE_BYTES: usize = 64 << 10;
const PIECE_BYTES_MIN: usize = 4 << 10;
const PIECES_MIN: usize = 4;
/// How often it is looked whether the client reads.
const LOOK: Duration = Duration::from_secs(1);

/// How long what waits may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    TenSeconds,
    Minute,
}

impl Patience {
    /// After so many looks, all of them between two pieces, nothing was read for that long.
    fn looks_max(self) -> u32 {
        match self {
            Self::TenSeconds => 11,
            Self::Minute => 61,
        }
    }
}

/// See the module.
pub(super) struct LargeReply {
    left: Arc<Mutex<Left>>,
    watchdog: AbortHandle,
}

/// What is not handed over yet.
struct Left {
    /// Of the message that is on its way.
    pieces: VecDeque<Bytes>,
    /// Of which size they are handed over.
    piece_bytes: usize,
    /// Until something is asked for behind these pieces.
    held: Option<Box<dyn Send + Sync>>,
    rest: Rest,
    patience: Patience,
    /// Looks since something was asked for.
    looks: u32,
}

/// What follows the message that is on its way.
enum Rest {
    Trailers(HeaderMap),
    /// More messages, each in one frame, and the trailers.
    Messages(mpsc::Receiver<StreamFrame>),
    Nothing,
}

impl LargeReply {
    /// A message; `held` is released once everything is handed over, or is given up.
    pub(super) fn new(
        pieces: VecDeque<Bytes>,
        trailers: HeaderMap,
        held: Box<dyn Send + Sync>,
    ) -> Self {
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        Self::watched(Left {
            pieces,
            piece_bytes: (bytes / PIECES_MIN).clamp(PIECE_BYTES_MIN, PIECE_BYTES),
            held: Some(held),
            rest: Rest::Trailers(trailers),
            patience: Patience::TenSeconds,
            looks: 0,
        })
    }

    /// Messages, each of which may hold something. If they are given up, the channel is closed.
    pub(super) fn stream(messages: mpsc::Receiver<StreamFrame>, patience: Patience) -> Self {
        Self::watched(Left {
            pieces: VecDeque::new(),
            piece_bytes: PIECE_BYTES,
            held: None,
            rest: Rest::Messages(messages),
            patience,
            looks: 0,
        })
    }

    fn watched(left: Left) -> Self {
        let left = Arc::new(Mutex::new(left));
        let watched = Arc::clone(&left);
        let watchdog = tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                if watched.lock().is_stalled() {
                    return;
                }
            }
        });
        Self {
            left,
            watchdog: watchdog.abort_handle(),
        }
    }
}

impl Left {
    /// Looks once more. Whether what waits has not been asked for during all the looks; then it is given up.
    fn is_stalled(&mut self) -> bool {
        if !self.has_waiting() {
            self.looks = 0;
            return false;
        }
        self.looks += 1;
        let is_stalled = self.looks >= self.patience.looks_max();
        if is_stalled {
            self.give_up();
        }
        is_stalled
    }

    /// Whether there is something for the client to read: not while the messages are still being made.
    fn has_waiting(&self) -> bool {
        let follows = match &self.rest {
            Rest::Trailers(_) => true,
            Rest::Messages(messages) => !messages.is_empty(),
            Rest::Nothing => false,
        };
        follows || self.held.is_some() || !self.pieces.is_empty()
    }

    /// The call ends without its trailers, which its client takes for a failure.
    fn give_up(&mut self) {
        self.pieces.clear();
        self.held = None;
        self.rest = Rest::Nothing;
    }

    /// A piece of what waits. A part of a large one is copied: if it shared the memory of the whole, that would
    /// stay as long as the part.
    fn next_piece(&mut self) -> Option<Bytes> {
        let mut whole = self.pieces.pop_front()?;
        if whole.len() <= self.piece_bytes {
            return Some(whole);
        }
        let piece = Bytes::copy_from_slice(&whole[..self.piece_bytes]);
        whole.advance(self.piece_bytes);
        if whole.len() <= self.piece_bytes {
            whole = Bytes::copy_from_slice(&whole);
        }
        self.pieces.push_front(whole);
        Some(piece)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        self.looks = 0;
        loop {
            if let Some(piece) = self.next_piece() {
                return Poll::Ready(Some(Frame::data(piece)));
            }
            self.held = None;
            if let Rest::Messages(messages) = &mut self.rest
                && let Some(message) = ready!(messages.poll_recv(cx))
            {
                let (frame, held) = message.into_parts();
                match frame.into_data() {
                    Ok(message) => self.pieces.push_back(message),
                    Err(end) => return Poll::Ready(Some(end)),
                }
                self.held = held.map(|held| Box::new(held) as Box<dyn Send + Sync>);
                continue;
            }
            let rest = std::mem::replace(&mut self.rest, Rest::Nothing);
            return Poll::Ready(match rest {
                Rest::Trailers(trailers) => Some(Frame::trailers(trailers)),
                Rest::Messages(_) | Rest::Nothing => None,
            });
        }
    }
}

impl Body for LargeReply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.left.lock().poll_next(cx);
        next.map(|frame| frame.map(Ok))
    }
}

impl Drop for LargeReply {
    fn drop(&mut self) {
        self.watchdog.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const LOOKS_MAX: u32 = 11;

    async fn next(reply: &mut LargeReply) -> Option<Frame<Bytes>> {
        let next = poll_fn(|cx| Pin::new(&mut *reply).poll_frame(cx)).await;
        next.map(|frame| match frame {
            Ok(frame) => frame,
            Err(never) => match never {},
        })
    }

    async fn next_bytes(reply: &mut LargeReply) -> usize {
        let frame = next(reply).await.unwrap();
        frame.into_data().unwrap().len()
    }

    /// Looks as often as it may be stalled, and once more.
    fn is_given_up(left: &Mutex<Left>) -> bool {
        for _ in 1..LOOKS_MAX {
            assert!(!left.lock().is_stalled());
        }
        left.lock().is_stalled()
    }

    #[tokio::test]
    async fn what_is_not_read_is_given_up_and_its_memory_released() {
        let memory = Arc::new(());
        let pieces = VecDeque::from(vec![Bytes::from_static(b"x"); 3]);
        let held: Box<dyn Send + Sync> = Box::new(memory.clone());
        let mut reply = LargeReply::new(pieces, HeaderMap::new(), held);
        let left = Arc::clone(&reply.left);
        assert_eq!(next_bytes(&mut reply).await, 1);
        for _ in 1..LOOKS_MAX {
            assert!(!left.lock().is_stalled());
        }
        assert_eq!(next_bytes(&mut reply).await, 1);
        assert_eq!(Arc::strong_count(&memory), 2);
        assert!(is_given_up(&left));
        assert_eq!(Arc::strong_count(&memory), 1);
        assert!(next(&mut reply).await.is_none());
    }

    /// A stream, and what its first message holds, which is of two pieces and a byte.
    fn stream() -> (mpsc::Sender<StreamFrame>, LargeReply, Arc<()>) {
        let (messages, waiting) = mpsc::channel(1);
        let memory = Arc::new(());
        let bytes = Bytes::from(vec![b'x'; 2 * PIECE_BYTES + 1]);
        let message = StreamFrame::from(bytes).held_with(memory.clone());
        messages.try_send(message).unwrap();
        (
            messages,
            LargeReply::stream(waiting, Patience::TenSeconds),
            memory,
        )
    }

    #[tokio::test]
    async fn a_message_of_a_stream_is_held_until_something_is_asked_for_behind_its_last_piece() {
        let (messages, mut reply, memory) = stream();
        for bytes in [PIECE_BYTES, PIECE_BYTES, 1] {
            assert_eq!(next_bytes(&mut reply).await, bytes);
            assert_eq!(Arc::strong_count(&memory), 2);
        }
        let is_pending = poll_fn(|cx| {
            let polled = Pin::new(&mut reply).poll_frame(cx);
            Poll::Ready(polled.is_pending())
        });
        assert!(is_pending.await);
        assert_eq!(Arc::strong_count(&memory), 1);
        // Nothing waits, however long it takes to make the next message.
        let left = Arc::clone(&reply.left);
        for _ in 0..2 * LOOKS_MAX {
            assert!(!left.lock().is_stalled());
        }
        let end = Frame::trailers(HeaderMap::new());
        messages.try_send(end.into()).unwrap();
        assert!(next(&mut reply).await.unwrap().is_trailers());
        drop(messages);
        assert!(next(&mut reply).await.is_none());
    }

    #[tokio::test]
    async fn messages_that_are_not_read_are_given_up_wherever_they_wait() {
        // None of its pieces was asked for, one was, or all were and nothing behind them.
        for asked in [0, 1, 3] {
            let (messages, mut reply, memory) = stream();
            for _ in 0..asked {
                next_bytes(&mut reply).await;
            }
            assert_eq!(Arc::strong_count(&memory), 2);
            assert!(is_given_up(&reply.left), "{asked}");
            assert_eq!(Arc::strong_count(&memory), 1);
            assert!(messages.is_closed());
            assert!(next(&mut reply).await.is_none());
        }
    }

    #[tokio::test]
    async fn a_stream_that_may_wait_for_a_minute_is_not_given_up_before() {
        let (messages, waiting) = mpsc::channel(1);
        let reply = LargeReply::stream(waiting, Patience::Minute);
        messages.try_send(Bytes::from_static(b"x").into()).unwrap();
        for _ in 0..60 {
            assert!(!reply.left.lock().is_stalled());
        }
        assert!(reply.left.lock().is_stalled());
        assert!(messages.is_closed());
    }

    #[tokio::test]
    async fn a_piece_has_nothing_of_the_memory_of_the_whole() {
        let (_messages, mut reply, _) = stream();
        let mut pieces = Vec::new();
        for _ in 0..3 {
            pieces.push(next(&mut reply).await.unwrap().into_data().unwrap());
        }
        // A piece that shares its memory with something is not unique.
        assert!(pieces.iter().all(Bytes::is_unique));
    }
}
