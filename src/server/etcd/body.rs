//! The body of a request, as framed messages of gRPC.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};

use crate::etcd::status::{Code, Status};
use crate::sync::{Count, Ordering};

/// How much of a body is read that nothing needs, and for how long.
const DRAINED_BYTES_MAX: usize = 256 << 10;
const DRAINED_WITHIN: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct RequestBody {
    source: Source,
    received_bytes: Arc<Count>,
}

/// Where they come from.
enum Source {
    /// They are what the client sends.
    Grpc(Incoming),
    /// They are what it means.
    Translated(Box<dyn TranslatedBody>),
}

/// A body that means framed messages.
pub(super) trait TranslatedBody: Send {
    /// The next bytes of these messages; `None` after the last.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>>;

    /// Whether a part of a message has arrived, and not the whole.
    fn has_begun(&self) -> bool;
}

impl RequestBody {
    /// What a client of gRPC sends. Its bytes count.
    pub(super) fn grpc(body: Incoming, received_bytes: &Arc<Count>) -> Self {
        Self {
            source: Source::Grpc(body),
            received_bytes: Arc::clone(received_bytes),
        }
    }

    /// What the body of another client means. Its bytes count as if they were sent.
    pub(super) fn translated(
        body: impl TranslatedBody + 'static,
        received_bytes: &Arc<Count>,
    ) -> Self {
        Self {
            source: Source::Translated(Box::new(body)),
            received_bytes: Arc::clone(received_bytes),
        }
    }

    /// The next bytes of framed messages; `None` after the last. There are none as yet if a message has begun to
    /// arrive, so that the reader knows.
    ///
    /// # Errors
    /// The client has gone, or what it sent is no message.
    ///
    /// # Cancel safety
    /// Nothing that has arrived is lost.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        let had_begun = self.has_begun();
        let next = std::future::poll_fn(|cx| match &mut self.source {
            Source::Grpc(body) => poll_data(body, cx),
            Source::Translated(body) => match body.poll_next(cx) {
                Poll::Pending if !had_begun && body.has_begun() => {
                    Poll::Ready(Some(Ok(Bytes::new())))
                }
                polled => polled,
            },
        });
        let next = next.await;
        if let Some(Ok(data)) = &next {
            let bytes = data.len() as u64;
            self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        next
    }

    /// Whether a part of a message has arrived that is not given out yet.
    pub(super) fn has_begun(&self) -> bool {
        match &self.source {
            Source::Grpc(_) => false,
            Source::Translated(body) => body.has_begun(),
        }
    }
}

/// The next bytes of a body. Trailers of a client mean nothing.
pub(super) fn poll_data(
    body: &mut Incoming,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Bytes, Status>>> {
    loop {
        let Some(frame) = ready!(Pin::new(&mut *body).poll_frame(cx)) else {
            return Poll::Ready(None);
        };
        match frame.map(|frame| frame.into_data()) {
            Ok(Ok(data)) => return Poll::Ready(Some(Ok(data))),
            Ok(Err(_)) => {}
            Err(_) => return Poll::Ready(Some(Err(CUT_OFF))),
        }
    }
}

/// Reads what is left of the body of a request that is answered already, if that is little: without it a
/// connection of HTTP/1.1 would be closed, which its client may be about to use again.
pub(super) fn drain(mut body: Incoming) {
    if body.is_end_stream() {
        return;
    }
    tokio::spawn(async move {
        let mut left = DRAINED_BYTES_MAX;
        let drained = async {
            while let Some(Ok(data)) = std::future::poll_fn(|cx| poll_data(&mut body, cx)).await {
                left = left.saturating_sub(data.len());
                if left == 0 {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(DRAINED_WITHIN, drained).await;
    });
}

/// That the client has sent no request, as etcd says it.
pub(super) const NO_REQUEST: Status = Status::new(Code::Unknown, "EOF");
/// That it has gone, or has sent its last, in the middle of one.
pub(super) const CUT_OFF: Status = Status::new(Code::Unknown, "unexpected EOF");
/// The same on a stream.
pub(super) const STREAM_CUT_OFF: Status = Status::new(Code::Internal, "unexpected EOF");
