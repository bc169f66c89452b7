//! An answer that takes memory of the node until the client has read it.
//!
//! A client that reads nothing for ten seconds loses its call, and the node has its memory back, as on
//! the streams of native clients.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Body, Frame};
use tokio::task::AbortHandle;

use crate::sync::Mutex;

/// How long a client may take to read a piece.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct LargeReply {
    left: Arc<Mutex<Left>>,
    watchdog: AbortHandle,
}

/// What is not handed over yet.
struct Left {
    pieces: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    held: Option<Box<dyn Send + Sync>>,
    /// Pieces that were handed over.
    handed: u64,
}

impl LargeReply {
    /// `held` is released once everything is handed over, or is given up.
    pub(super) fn new(
        pieces: VecDeque<Bytes>,
        trailers: HeaderMap,
        held: Box<dyn Send + Sync>,
    ) -> Self {
        let left = Arc::new(Mutex::new(Left {
            pieces,
            trailers: Some(trailers),
            held: Some(held),
            handed: 0,
        }));
        let watched = Arc::clone(&left);
        let watchdog = tokio::spawn(async move {
            let mut known = 0;
            loop {
                tokio::time::sleep(PATIENCE).await;
                if watched.lock().is_stalled(&mut known) {
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
    /// Whether nothing was handed over since `known` was; then the rest is given up.
    fn is_stalled(&mut self, known: &mut u64) -> bool {
        let is_stalled = self.handed == *known;
        if is_stalled {
            self.give_up();
        }
        *known = self.handed;
        is_stalled
    }

    /// The call ends without its trailers, which its client takes for a failure.
    fn give_up(&mut self) {
        self.pieces.clear();
        self.trailers = None;
        self.held = None;
    }
}

impl Body for LargeReply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut left = self.left.lock();
        left.handed += 1;
        if let Some(piece) = left.pieces.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        left.held = None;
        let trailers = left.trailers.take();
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
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

    #[tokio::test]
    async fn what_is_not_read_is_given_up_and_its_memory_released() {
        let memory = Arc::new(());
        let pieces = VecDeque::from(vec![Bytes::from_static(b"x"); 3]);
        let held: Box<dyn Send + Sync> = Box::new(memory.clone());
        let mut reply = LargeReply::new(pieces, HeaderMap::new(), held);
        let left = Arc::clone(&reply.left);
        let mut known = 0;
        let mut next = async || poll_fn(|cx| Pin::new(&mut reply).poll_frame(cx)).await;
        assert!(next().await.is_some());
        assert!(!left.lock().is_stalled(&mut known));
        assert!(next().await.is_some());
        assert!(!left.lock().is_stalled(&mut known));
        assert_eq!(Arc::strong_count(&memory), 2);
        assert!(left.lock().is_stalled(&mut known));
        assert_eq!(Arc::strong_count(&memory), 1);
        assert!(next().await.is_none());
    }
}
